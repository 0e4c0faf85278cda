use std::{io, path::PathBuf};

/// A state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be made or read.
    #[error("cannot use the state directory {dir}")]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Another process has it open.
    #[error("the state directory {dir} is locked: another process uses it")]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// Its content cannot be what was written.
    #[error("the state in {dir} is corrupt: {reason}")]
    Corrupt {
        /// The directory.
        dir: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It has what this version does not know.
    #[error(
        "the state in {dir} was written by a newer version: it has {what}, which this version does not know"
    )]
    Newer {
        /// The directory.
        dir: PathBuf,
        /// What it has.
        what: String,
    },
    /// It could be read in part only, or not be written.
    #[error("cannot read or write the state in {dir}: {reason}")]
    Disk {
        /// The directory.
        dir: PathBuf,
        /// What happened.
        reason: String,
    },
    /// No thread for writing could be started.
    #[error("cannot start the thread that writes the state")]
    Thread(#[source] io::Error),
}

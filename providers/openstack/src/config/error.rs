//! Errors in a configuration.

use std::path::PathBuf;

use ccm_core::config::gcfg::{ConfigIssue, format_issues};

/// An error that makes a configuration unusable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigErrors {
    /// No file was given.
    #[error("a cloud config is needed: --cloud-config names none")]
    NoFile,
    /// The file cannot be read.
    #[error("cannot read cloud config {}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// Errors in the text, in its order, one per line.
    #[error("{}", format_issues(file.as_deref(), issues))]
    Invalid {
        /// The file, if the text is from one.
        file: Option<PathBuf>,
        /// At least one.
        issues: Vec<ConfigIssue>,
    },
}

impl ConfigErrors {
    /// Returns the errors in the text.
    pub fn issues(&self) -> &[ConfigIssue] {
        match self {
            Self::NoFile | Self::Unreadable { .. } => &[],
            Self::Invalid { issues, .. } => issues,
        }
    }
}

//! Errors of a configuration.

use std::path::PathBuf;

pub use ccm_core::config::gcfg::ConfigIssue;
use ccm_core::config::gcfg::format_issues;

/// Error of loading a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigErrors {
    /// The file cannot be read.
    #[error("cannot read cloud config {}", file.display())]
    Unreadable {
        /// Path of the file.
        file: PathBuf,
        /// Error of the read.
        source: std::io::Error,
    },
    /// Validation errors, in the order of the text, one per line.
    #[error("{}", format_issues(file.as_deref(), issues))]
    Invalid {
        /// Path of the file; `None` if the text does not come from a file.
        file: Option<PathBuf>,
        /// The errors; at least one.
        issues: Vec<ConfigIssue>,
    },
}

impl ConfigErrors {
    /// Returns the validation errors; none if the file cannot be read.
    pub fn issues(&self) -> &[ConfigIssue] {
        match self {
            Self::Unreadable { .. } => &[],
            Self::Invalid { issues, .. } => issues,
        }
    }
}

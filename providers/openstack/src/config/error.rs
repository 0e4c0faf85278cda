//! Errors in a configuration.

use std::path::{Path, PathBuf};

use ccm_core::config::gcfg::ConfigIssue;

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
    #[error("{}", lines(file.as_deref(), issues))]
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

fn lines(file: Option<&Path>, issues: &[ConfigIssue]) -> String {
    let file = file
        .map(|file| format!(" {}", file.display()))
        .unwrap_or_default();
    let lines: Vec<String> = issues
        .iter()
        .map(|issue| format!("cloud config{file}: {issue}"))
        .collect();
    lines.join("\n")
}

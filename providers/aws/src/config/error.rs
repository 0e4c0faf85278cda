//! Errors of a configuration.

use std::path::{Path, PathBuf};

pub use ccm_core::config::gcfg::ConfigIssue;

/// Why a configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigErrors {
    /// The file cannot be read.
    #[error("cannot read cloud config {}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Validation errors, in the order of the text, one per line.
    #[error("{}", lines(file.as_deref(), mistakes))]
    Invalid {
        /// The file, if the text comes from one.
        file: Option<PathBuf>,
        /// At least one.
        mistakes: Vec<ConfigIssue>,
    },
}

impl ConfigErrors {
    /// Returns the validation errors.
    pub fn issues(&self) -> &[ConfigIssue] {
        match self {
            Self::Unreadable { .. } => &[],
            Self::Invalid { mistakes, .. } => mistakes,
        }
    }
}

fn lines(file: Option<&Path>, issues: &[ConfigIssue]) -> String {
    let file = file
        .map(|file| format!(" {}", file.display()))
        .unwrap_or_default();
    let lines: Vec<String> = issues
        .iter()
        .map(|mistake| format!("cloud config{file}: {mistake}"))
        .collect();
    lines.join("\n")
}

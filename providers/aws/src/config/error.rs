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
    #[error("{}", lines(file.as_deref(), issues))]
    Invalid {
        /// The file, if the text comes from one.
        file: Option<PathBuf>,
        /// At least one.
        issues: Vec<ConfigIssue>,
    },
}

impl ConfigErrors {
    /// Returns the validation errors.
    pub fn issues(&self) -> &[ConfigIssue] {
        match self {
            Self::Unreadable { .. } => &[],
            Self::Invalid { issues, .. } => issues,
        }
    }
}

fn lines(file: Option<&Path>, issues: &[ConfigIssue]) -> String {
    let file = match file {
        Some(file) => format!(" {}", file.display()),
        None => String::new(),
    };
    let lines: Vec<String> = issues
        .iter()
        .map(|issue| format!("cloud config{file}: {issue}"))
        .collect();
    lines.join("\n")
}

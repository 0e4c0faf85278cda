//! What can be wrong with a configuration.

use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Everything that is wrong with a configuration.
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
    /// Mistakes in the text, in its order, one a line.
    #[error("{}", lines(file.as_deref(), mistakes))]
    Invalid {
        /// The file, if the text is from one.
        file: Option<PathBuf>,
        /// At least one.
        mistakes: Vec<Mistake>,
    },
}

impl ConfigErrors {
    /// Returns the mistakes in the text.
    pub fn mistakes(&self) -> &[Mistake] {
        match self {
            Self::Unreadable { .. } => &[],
            Self::Invalid { mistakes, .. } => mistakes,
        }
    }
}

fn lines(file: Option<&Path>, mistakes: &[Mistake]) -> String {
    let file = file.map(|file| format!(" {}", file.display())).unwrap_or_default();
    let lines: Vec<String> = mistakes.iter().map(|mistake| format!("cloud config{file}: {mistake}")).collect();
    lines.join("\n")
}

/// One mistake. `Display` names line, section and key, as far as there are any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line, from 1.
    pub line: usize,
    /// Section and key, such as `[Global] Zone`; empty for a mistake of syntax.
    pub place: Box<str>,
    /// What is wrong.
    pub message: Box<str>,
}

impl Mistake {
    pub(super) fn syntax(line: usize, message: impl Into<Box<str>>) -> Self {
        Self { line, place: "".into(), message: message.into() }
    }

    pub(super) fn at(line: usize, place: impl Into<Box<str>>, message: impl Into<Box<str>>) -> Self {
        Self { line, place: place.into(), message: message.into() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.message)
    }
}

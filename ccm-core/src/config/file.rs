//! YAML files that flags name: decoded strictly, and every mistake told with the flag and the file.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

/// What is wrong with a file, all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FileError {
    /// The flag that names the file, without dashes.
    pub flag: &'static str,
    /// The file.
    pub file: PathBuf,
    /// Each with the field it is about.
    pub problems: Vec<String>,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{}={}: {}", self.flag, self.file.display(), self.problems.join("; "))
    }
}

/// Reads a file and has its text judged.
pub(crate) fn load<T>(
    flag: &'static str,
    file: &Path,
    judge: impl FnOnce(&str) -> Result<T, Vec<String>>,
) -> Result<T, FileError> {
    let text = std::fs::read_to_string(file).map_err(|error| vec![error.to_string()]);
    text.and_then(|text| judge(&text)).map_err(|problems| FileError { flag, file: file.to_owned(), problems })
}

/// Decodes a text; nothing at all is a mistake, too. The error has the parser's words and the position, without its copy of
/// the text.
pub(crate) fn decode<T: DeserializeOwned>(text: &str) -> Result<T, Vec<String>> {
    match serde_saphyr::from_str::<Option<T>>(text) {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(vec!["is empty".to_owned()]),
        Err(error) => {
            let words = error.without_snippet().to_string();
            Err(vec![words.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()])
        }
    }
}

//! YAML files that flags name. They are decoded strictly, and every error names the flag and the
//! file.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

use super::GenericConfig;

const CLOUD_CONFIG: &str = "cloud-config";

/// All errors of one file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FileError {
    /// The flag that names the file, without dashes.
    pub flag: &'static str,
    /// The file.
    pub file: PathBuf,
    /// Each error with the field that it concerns.
    pub errors: Vec<String>,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{}={}: {}", self.flag, self.file.display(), self.errors.join("; "))
    }
}

impl GenericConfig {
    /// Reads the file of `--cloud-config` as YAML. Deny unknown fields in `T`, so that a misspelt
    /// field is an error.
    ///
    /// # Errors
    /// No file is set, or it cannot be read, is empty, or does not match `T`. The error does not
    /// contain text of the file.
    pub fn read_cloud_config<T: DeserializeOwned>(&self) -> Result<T, FileError> {
        match &self.cloud_config {
            Some(file) => load(CLOUD_CONFIG, file, decode),
            None => {
                let problems = vec!["is needed: the file that says where the cloud is".to_owned()];
                Err(FileError { flag: CLOUD_CONFIG, file: PathBuf::new(), errors: problems })
            }
        }
    }
}

/// Reads a file and parses its text with `judge`.
pub(crate) fn load<T>(
    flag: &'static str,
    file: &Path,
    judge: impl FnOnce(&str) -> Result<T, Vec<String>>,
) -> Result<T, FileError> {
    let text = std::fs::read_to_string(file).map_err(|error| vec![error.to_string()]);
    text.and_then(|text| judge(&text))
        .map_err(|problems| FileError { flag, file: file.to_owned(), errors: problems })
}

/// Decodes a text; an empty text is an error. The error has the parser's message and the position,
/// without its excerpt of the text.
pub(crate) fn decode<T: DeserializeOwned>(text: &str) -> Result<T, Vec<String>> {
    match serde_saphyr::from_str::<Option<T>>(text) {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(vec!["is empty".to_owned()]),
        Err(error) => {
            let words = error.without_snippet().to_string();
            Err(vec![
                words
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .trim_start_matches("error: ")
                    .to_owned(),
            ])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Cloud {
        url: String,
        token: String,
    }

    fn read(text: Option<&str>) -> Result<Cloud, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text.unwrap_or_default()).unwrap();
        let cloud_config = text.map(|_| file.path().to_owned());
        GenericConfig { cloud_config, ..GenericConfig::default() }
            .read_cloud_config()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_cloud_config_is_read_and_its_mistakes_are_told_without_its_text() {
        let cloud = Cloud { url: "https://a".to_owned(), token: "s3cret".to_owned() };
        assert_eq!(read(Some("url: https://a\ntoken: s3cret\n")), Ok(cloud));
        let cases = [
            (None, "is needed"),
            (Some(""), "is empty"),
            (Some("token: s3cret\n"), "url"),
            (Some("token: s3cret\nurl: https://a\nregoin: x\n"), "regoin"),
            (Some("token: s3cret\nurl: [\n"), ""),
        ];
        for (text, words) in cases {
            let error = read(text).unwrap_err();
            assert!(
                error.starts_with("--cloud-config=") && error.contains(words),
                "{text:?}: {error}"
            );
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}

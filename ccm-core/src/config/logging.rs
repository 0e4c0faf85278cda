//! Configuration of `--logging-format`, `-v` and `--vmodule`.

use std::time::Duration;

/// Logging configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoggingConfig {
    /// Lines for people, or JSON objects.
    pub format: Format,
    /// `-v`.
    pub verbosity: u32,
    /// `--vmodule`, in the order given.
    pub modules: Vec<ModuleVerbosity>,
    /// Accepted because manifests set it; nothing is buffered.
    pub flush_frequency: Duration,
    /// The options of the text format, accepted without effect.
    pub text: StreamOptions,
    /// The options of the JSON format, accepted without effect.
    pub json: StreamOptions,
}

/// Form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// How a format uses output streams. All logs go to one stream here, so these options are only
/// accepted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamOptions {
    /// True if errors go to a separate stream.
    pub split_stream: bool,
    /// The size of the buffer of the other stream, as typed (`64Ki`).
    pub info_buffer_size: String,
}

/// Verbosity of the modules that match a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleVerbosity {
    /// The pattern, with `::` between the parts of a path.
    pub pattern: String,
    /// The verbosity.
    pub verbosity: u32,
}

/// Parses the value of `--vmodule`: comma-separated `pattern=N`.
///
/// # Errors
///
/// A sentence that names the invalid entry.
pub fn parse_vmodule(text: &str) -> Result<Vec<ModuleVerbosity>, String> {
    text.split(',')
        .filter(|entry| !entry.is_empty())
        .map(|entry| {
            match entry
                .split_once('=')
                .map(|(pattern, number)| (pattern, number.parse()))
            {
                Some((pattern, Ok(verbosity))) if !pattern.is_empty() => {
                    Ok(ModuleVerbosity { pattern: pattern.replace('/', "::"), verbosity })
                }
                _ => Err(format!("{entry:?} is not of the form pattern=N")),
            }
        })
        .collect()
}

//! The flags that all subcommands with a report have.

use std::time::Duration;

use crate::config::{self, Config, Flag};

const OUTPUT: &str = "output";
/// The name of the flag that limits the time of a subcommand.
pub(super) const TIMEOUT: &str = "timeout";

/// Returns the flag `--output`.
pub(super) fn output() -> Flag {
    Flag::provider(OUTPUT, "table", "Form of the report: `table` or `json`.")
}

/// Returns the flag `--timeout`.
pub(super) fn timeout(default: &'static str) -> Flag {
    let help = "When to give up, for example because the cloud does not answer.";
    Flag::provider(TIMEOUT, default, help)
}

/// Returns true if the report is to be JSON.
pub(super) fn is_json(config: &Config) -> Result<bool, String> {
    match value(config, OUTPUT) {
        "json" => Ok(true),
        "table" => Ok(false),
        other => Err(format!("--{OUTPUT} {other:?} must be \"table\" or \"json\"")),
    }
}

/// Parses `--timeout`.
pub(super) fn read_timeout(config: &Config) -> Result<Duration, String> {
    let text = value(config, TIMEOUT);
    let timeout = match config::parse_duration(text) {
        Ok(timeout) if timeout.is_zero() => Err("must be greater than zero".to_owned()),
        result => result,
    };
    timeout.map_err(|reason| format!("--{TIMEOUT} {text:?}: {reason}"))
}

/// Returns the text of a flag of the subcommand.
pub(super) fn value<'a>(config: &'a Config, name: &str) -> &'a str {
    config
        .extra
        .get(name)
        .map(String::as_str)
        .unwrap_or_default()
}

//! Collects errors and warnings about a configuration, and reads the types of values that occur in
//! many sections.

use ccm_core::config::gcfg_keys::ConfigValue;

use super::ConfigIssue;

/// Errors and warnings about a configuration.
#[derive(Debug, Default)]
pub(super) struct ValidationReport {
    /// Errors, with which the manager does not start.
    pub errors: Vec<ConfigIssue>,
    /// Settings without effect, and other oddities.
    pub warnings: Vec<ConfigIssue>,
}

impl ValidationReport {
    pub(super) fn add_error<T>(
        &mut self,
        section: &str,
        value: &ConfigValue<T>,
        message: impl Into<Box<str>>,
    ) {
        self.errors.push(issue_at(section, value, message));
    }

    pub(super) fn warn<T>(
        &mut self,
        section: &str,
        value: &ConfigValue<T>,
        message: impl Into<Box<str>>,
    ) {
        self.warnings.push(issue_at(section, value, message));
    }
}

fn issue_at<T>(section: &str, value: &ConfigValue<T>, message: impl Into<Box<str>>) -> ConfigIssue {
    ConfigIssue::at(value.line.unwrap_or_default(), format!("[{section}] {}", value.key), message)
}

/// Returns a text, unless it is empty.
pub(super) fn text(value: &ConfigValue<String>) -> Option<&str> {
    Some(value.value.as_str()).filter(|text| !text.is_empty())
}

/// Returns a copy of a text, unless it is empty.
pub(super) fn owned(value: &ConfigValue<String>) -> Option<Box<str>> {
    text(value).map(Into::into)
}

/// Returns a number, or the default if it is not set. Records an error if it is out of range.
pub(super) fn check_number(
    section: &str,
    setting: &ConfigValue<Option<i64>>,
    default: u32,
    range: std::ops::RangeInclusive<u32>,
    report: &mut ValidationReport,
) -> u32 {
    let Some(value) = setting.value else {
        return default;
    };
    if let Ok(number) = u32::try_from(value)
        && range.contains(&number)
    {
        return number;
    }
    let message = format!("must be between {} and {}", range.start(), range.end());
    report.add_error(section, setting, message);
    default
}

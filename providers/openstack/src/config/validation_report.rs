//! Collects what is wrong with a configuration, and reads values that are wrong in many sections
//! alike.

use ccm_core::config::gcfg_keys::ConfigValue;

use super::ConfigIssue;

/// Errors and warnings about a configuration.
#[derive(Debug, Default)]
pub(super) struct ValidationReport {
    /// What has to be corrected.
    pub errors: Vec<ConfigIssue>,
    /// What has no effect.
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

/// Checks a number that may be unset.
pub(super) fn number(
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

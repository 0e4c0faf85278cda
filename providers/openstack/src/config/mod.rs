//! Reads `cloud.conf` and `clouds.yaml`, with upstream's keys and a few of our own, and converts
//! them to [`Settings`], which are complete and checked.

mod auth;
mod check_load_balancer;
mod clouds_yaml;
mod credentials;
mod effective;
mod environment;
mod error;
mod keys;
mod settings;
mod validate;
mod validation_report;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use ccm_core::config::{
    gcfg::{self, Section},
    gcfg_keys::ConfigKey,
};

pub(crate) use self::credentials::stamp;
pub use self::{
    check_load_balancer::parse_selector, credentials::ReloadingCredentials,
    environment::Environment, error::ConfigErrors, settings::*,
};
use self::{
    keys::{
        Class, Global, LoadBalancer as LoadBalancerKeys, Metadata, Networking as NetworkingKeys,
        Requests, Route,
    },
    validation_report::ValidationReport,
};
pub use ccm_core::{config::gcfg::ConfigIssue, provider::Rate};

/// Sections for other programs that read the same file, as upstream's chart writes them; in lower
/// case.
const OTHER_PROGRAMS_SECTIONS: [&str; 1] = ["blockstorage"];

/// Reads a file, and `clouds.yaml` if the file enables it.
///
/// # Errors
/// Returns an error if there is no file or it cannot be read, or else all errors in it.
pub fn load(file: Option<&Path>, environment: &Environment) -> Result<Settings, ConfigErrors> {
    let file = file.ok_or(ConfigErrors::NoFile)?;
    let bytes = std::fs::read(file)
        .map_err(|source| ConfigErrors::Unreadable { file: file.to_owned(), source })?;
    let parsed = match gcfg::decode(bytes) {
        Ok(text) => read_settings(&text, environment),
        Err(issue) => Err(vec![issue]),
    };
    let mut settings =
        parsed.map_err(|issues| ConfigErrors::Invalid { file: Some(file.to_owned()), issues })?;
    settings.sources.insert(0, file.to_owned());
    Ok(settings)
}

/// Parses the text of a `cloud.conf`.
///
/// # Errors
/// Returns all errors in the text.
pub fn parse(text: &str, environment: &Environment) -> Result<Settings, ConfigErrors> {
    read_settings(text, environment).map_err(|issues| ConfigErrors::Invalid { file: None, issues })
}

/// The values as written in the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raw {
    pub(crate) global: Global,
    pub(crate) networking: NetworkingKeys,
    pub(crate) route: Route,
    pub(crate) metadata: Metadata,
    pub(crate) load_balancer: LoadBalancerKeys,
    pub(crate) classes: BTreeMap<String, Class>,
    pub(crate) requests: Requests,
    /// Other files that were read.
    pub(crate) sources: Vec<PathBuf>,
}

fn read_settings(text: &str, environment: &Environment) -> Result<Settings, Vec<ConfigIssue>> {
    let mut report = ValidationReport::default();
    let raw = read_raw(text, environment, &mut report);
    let settings = validate::validate(&raw, environment, &mut report);
    report.errors.sort_by_key(|issue| issue.line);
    report.warnings.sort_by_key(|issue| issue.line);
    match settings {
        Some(settings) if report.errors.is_empty() => {
            Ok(Settings { warnings: report.warnings, ..settings })
        }
        _ => Err(report.errors),
    }
}

/// Reads the values of all keys, including those of `clouds.yaml`.
fn read_raw(text: &str, environment: &Environment, report: &mut ValidationReport) -> Raw {
    let document = gcfg::parse(text);
    report.errors.extend(document.issues);
    let mut raw = Raw::default();
    for section in &document.sections {
        apply_section(section, &mut raw, report);
    }
    if raw.global.use_clouds.value {
        clouds_yaml::merge(&mut raw, environment, report);
    }
    raw
}

/// Reads the keys of one section. Names of sections are compared without regard to case.
fn apply_section(section: &Section, raw: &mut Raw, report: &mut ValidationReport) {
    let name = section.name.to_ascii_lowercase();
    if let Some(class) = &section.sub {
        if name == "loadbalancerclass" {
            let class = raw.classes.entry(class.clone()).or_default();
            apply_keys(section, Class::KEYS, class, report);
        } else {
            warn_about_section(section, report);
        }
        return;
    }
    match &*name {
        "global" => apply_keys(section, Global::KEYS, &mut raw.global, report),
        "networking" => apply_keys(section, NetworkingKeys::KEYS, &mut raw.networking, report),
        "route" => apply_keys(section, Route::KEYS, &mut raw.route, report),
        "metadata" => apply_keys(section, Metadata::KEYS, &mut raw.metadata, report),
        "loadbalancer" => {
            apply_keys(section, LoadBalancerKeys::KEYS, &mut raw.load_balancer, report);
        }
        "requests" => apply_keys(section, Requests::KEYS, &mut raw.requests, report),
        other if OTHER_PROGRAMS_SECTIONS.contains(&other) => {}
        _ => warn_about_section(section, report),
    }
}

fn warn_about_section(section: &Section, report: &mut ValidationReport) {
    report.warnings.push(ConfigIssue::at(
        section.line,
        title(section),
        "unknown section, which has no effect",
    ));
}

/// Returns a section's title as it is written.
fn title(section: &Section) -> String {
    let Section { name, sub, .. } = section;
    match sub {
        Some(sub) => format!("[{name} {sub:?}]"),
        None => format!("[{name}]"),
    }
}

/// Sets the values of a section's keys. Names of keys are compared without regard to case.
fn apply_keys<T>(
    section: &Section,
    keys: &[ConfigKey<T>],
    values: &mut T,
    report: &mut ValidationReport,
) {
    for entry in &section.entries {
        let Some(key) = keys
            .iter()
            .find(|key| key.name.eq_ignore_ascii_case(&entry.key))
        else {
            report.warnings.push(ConfigIssue::at(
                entry.line,
                format!("{} {}", title(section), entry.key),
                "unknown key, which has no effect",
            ));
            continue;
        };
        if let Err(message) = key.apply(values, entry.line, entry.value.as_deref()) {
            let place = format!("{} {}", title(section), key.name);
            report
                .errors
                .push(ConfigIssue::at(entry.line, place, message));
        }
    }
}

#[cfg(test)]
mod tests;

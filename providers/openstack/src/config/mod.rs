//! `cloud.conf` and `clouds.yaml`: upstream's keys, and a few of our own.
//!
//! [`Settings`] is what everything else uses: complete, checked, nothing left to interpret.

mod auth;
mod clouds_yaml;
mod credentials;
mod effective;
mod environment;
mod error;
mod keys;
mod load_balancer;
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
    credentials::ReloadingCredentials, environment::Environment, error::ConfigErrors,
    load_balancer::selector, settings::*,
};
use self::{
    keys::{
        Class, Global, LoadBalancer as LoadBalancerKeys, Metadata, Networking as NetworkingKeys,
        Requests, Route,
    },
    validation_report::ValidationReport,
};
pub use ccm_core::config::gcfg::ConfigIssue;

/// Sections for other programs that read the same file, as upstream's chart writes them.
const OTHER_PROGRAMS_SECTIONS: [&str; 1] = ["BlockStorage"];

/// Reads a file, and `clouds.yaml` if the file enables it.
///
/// # Errors
/// There is no file, it cannot be read, or it has errors: all of them are returned.
pub fn load(file: Option<&Path>, environment: &Environment) -> Result<Settings, ConfigErrors> {
    let file = file.ok_or(ConfigErrors::NoFile)?;
    let bytes = std::fs::read(file)
        .map_err(|source| ConfigErrors::Unreadable { file: file.to_owned(), source })?;
    let parsed = match String::from_utf8(bytes) {
        Ok(text) => read(&text, environment),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..valid]
                .split(|byte| *byte == b'\n')
                .count();
            Err(vec![ConfigIssue::syntax(line, "illegal UTF-8 encoding")])
        }
    };
    let mut settings = parsed
        .map_err(|mistakes| ConfigErrors::Invalid { file: Some(file.to_owned()), mistakes })?;
    settings.sources.insert(0, file.to_owned());
    Ok(settings)
}

/// Parses a text.
///
/// # Errors
/// All errors in it.
pub fn parse(text: &str, environment: &Environment) -> Result<Settings, ConfigErrors> {
    read(text, environment).map_err(|mistakes| ConfigErrors::Invalid { file: None, mistakes })
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

fn read(text: &str, environment: &Environment) -> Result<Settings, Vec<ConfigIssue>> {
    let mut report = ValidationReport::default();
    let raw = raw(text, environment, &mut report);
    let settings = validate::settings(&raw, environment, &mut report);
    report.errors.sort_by_key(|mistake| mistake.line);
    report.warnings.sort_by_key(|mistake| mistake.line);
    match settings {
        Some(settings) if report.errors.is_empty() => {
            Ok(Settings { warnings: report.warnings, ..settings })
        }
        _ => Err(report.errors),
    }
}

/// Reads the values of all keys, including those of `clouds.yaml`.
fn raw(text: &str, environment: &Environment, report: &mut ValidationReport) -> Raw {
    let document = gcfg::parse(text);
    report.errors.extend(document.issues);
    let mut raw = Raw::default();
    for section in &document.sections {
        let is = |name: &str| section.name.eq_ignore_ascii_case(name) && section.sub.is_none();
        match &section.sub {
            Some(sub) if section.name.eq_ignore_ascii_case("LoadBalancerClass") => {
                apply_keys(
                    section,
                    Class::KEYS,
                    raw.classes.entry(sub.clone()).or_default(),
                    report,
                );
            }
            _ if is("Global") => apply_keys(section, Global::KEYS, &mut raw.global, report),
            _ if is("Networking") => {
                apply_keys(section, NetworkingKeys::KEYS, &mut raw.networking, report);
            }
            _ if is("Route") => apply_keys(section, Route::KEYS, &mut raw.route, report),
            _ if is("Metadata") => apply_keys(section, Metadata::KEYS, &mut raw.metadata, report),
            _ if is("LoadBalancer") => {
                apply_keys(section, LoadBalancerKeys::KEYS, &mut raw.load_balancer, report);
            }
            _ if is("Requests") => apply_keys(section, Requests::KEYS, &mut raw.requests, report),
            _ if OTHER_PROGRAMS_SECTIONS.iter().any(|other| is(other)) => {}
            _ => {
                let place = title(section);
                report.warnings.push(ConfigIssue::at(
                    section.line,
                    place,
                    "unknown section, which has no effect",
                ));
            }
        }
    }
    if raw.global.use_clouds.value {
        clouds_yaml::merge(&mut raw, environment, report);
    }
    raw
}

/// Returns a section's title as it is written.
fn title(section: &Section) -> String {
    let Section { name, sub, .. } = section;
    sub.as_ref()
        .map_or_else(|| format!("[{name}]"), |sub| format!("[{name} {sub:?}]"))
}

fn apply_keys<T>(
    section: &Section,
    keys: &[ConfigKey<T>],
    into: &mut T,
    report: &mut ValidationReport,
) {
    for entry in &section.entries {
        let key = keys
            .iter()
            .find(|key| key.name.eq_ignore_ascii_case(&entry.key));
        let name = key.map_or(entry.key.as_str(), |key| key.name);
        let place = || format!("{} {name}", title(section));
        match key.map(|key| key.apply(into, entry.line, entry.value.as_deref())) {
            Some(Ok(())) => {}
            Some(Err(why)) => report
                .errors
                .push(ConfigIssue::at(entry.line, place(), why)),
            None => report.warnings.push(ConfigIssue::at(
                entry.line,
                place(),
                "unknown key, which has no effect",
            )),
        }
    }
}

#[cfg(test)]
mod tests;

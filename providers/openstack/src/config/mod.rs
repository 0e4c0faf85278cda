//! `cloud.conf` and `clouds.yaml`: upstream's keys, and a few of ours beside them.
//!
//! [`Settings`] is what everything else reads: complete, checked, nothing left to interpret.

mod auth;
mod balancers;
mod check;
mod clouds;
mod environment;
mod error;
mod keys;
mod reload;
mod settings;
mod show;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use ccm_core::config::{
    gcfg::{self, Section},
    keys::Key,
};

pub(crate) use self::reload::stamp;
pub use self::{balancers::selector, environment::Environment, error::ConfigErrors, reload::Reloaded, settings::*};
use self::{
    check::Report,
    keys::{Class, Global, LoadBalancer as LoadBalancerKeys, Metadata, Networking as NetworkingKeys, Requests, Route},
};
pub use ccm_core::config::gcfg::Mistake;

/// Sections for other programs that read the same file, as upstream's chart writes them.
const OTHERS: [&str; 1] = ["BlockStorage"];

/// Reads a file, and `clouds.yaml` where it says so.
///
/// # Errors
/// There is none, it cannot be read, or has mistakes: all of them.
pub fn load(file: Option<&Path>, environment: &Environment) -> Result<Settings, ConfigErrors> {
    let file = file.ok_or(ConfigErrors::NoFile)?;
    let bytes = std::fs::read(file).map_err(|source| ConfigErrors::Unreadable { file: file.to_owned(), source })?;
    let parsed = match String::from_utf8(bytes) {
        Ok(text) => read(&text, environment),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..valid].split(|byte| *byte == b'\n').count();
            Err(vec![Mistake::syntax(line, "illegal UTF-8 encoding")])
        }
    };
    let mut settings = parsed.map_err(|mistakes| ConfigErrors::Invalid { file: Some(file.to_owned()), mistakes })?;
    settings.sources.insert(0, file.to_owned());
    Ok(settings)
}

/// Reads a text.
///
/// # Errors
/// All mistakes in it.
pub fn parse(text: &str, environment: &Environment) -> Result<Settings, ConfigErrors> {
    read(text, environment).map_err(|mistakes| ConfigErrors::Invalid { file: None, mistakes })
}

/// The file as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raw {
    pub(crate) global: Global,
    pub(crate) networking: NetworkingKeys,
    pub(crate) route: Route,
    pub(crate) metadata: Metadata,
    pub(crate) balancers: LoadBalancerKeys,
    pub(crate) classes: BTreeMap<String, Class>,
    pub(crate) requests: Requests,
    /// Files that were read beside it.
    pub(crate) sources: Vec<PathBuf>,
}

fn read(text: &str, environment: &Environment) -> Result<Settings, Vec<Mistake>> {
    let mut report = Report::default();
    let raw = raw(text, environment, &mut report);
    let settings = check::settings(&raw, environment, &mut report);
    report.mistakes.sort_by_key(|mistake| mistake.line);
    report.warnings.sort_by_key(|mistake| mistake.line);
    match settings {
        Some(settings) if report.mistakes.is_empty() => Ok(Settings { warnings: report.warnings, ..settings }),
        _ => Err(report.mistakes),
    }
}

/// Reads the values of all keys, with those of `clouds.yaml`.
fn raw(text: &str, environment: &Environment, report: &mut Report) -> Raw {
    let document = gcfg::parse(text);
    report.mistakes.extend(document.mistakes);
    let mut raw = Raw::default();
    for section in &document.sections {
        let is = |name: &str| section.name.eq_ignore_ascii_case(name) && section.sub.is_none();
        match &section.sub {
            Some(sub) if section.name.eq_ignore_ascii_case("LoadBalancerClass") => {
                take(section, Class::KEYS, raw.classes.entry(sub.clone()).or_default(), report);
            }
            _ if is("Global") => take(section, Global::KEYS, &mut raw.global, report),
            _ if is("Networking") => take(section, NetworkingKeys::KEYS, &mut raw.networking, report),
            _ if is("Route") => take(section, Route::KEYS, &mut raw.route, report),
            _ if is("Metadata") => take(section, Metadata::KEYS, &mut raw.metadata, report),
            _ if is("LoadBalancer") => take(section, LoadBalancerKeys::KEYS, &mut raw.balancers, report),
            _ if is("Requests") => take(section, Requests::KEYS, &mut raw.requests, report),
            _ if OTHERS.iter().any(|other| is(other)) => {}
            _ => {
                let place = title(section);
                report.warnings.push(Mistake::at(section.line, place, "unknown section, which has no effect"));
            }
        }
    }
    if raw.global.use_clouds.value {
        clouds::merge(&mut raw, environment, report);
    }
    raw
}

/// Returns a section as it is written.
fn title(section: &Section) -> String {
    let Section { name, sub, .. } = section;
    sub.as_ref().map_or_else(|| format!("[{name}]"), |sub| format!("[{name} {sub:?}]"))
}

fn take<T>(section: &Section, keys: &[Key<T>], into: &mut T, report: &mut Report) {
    for entry in &section.entries {
        let key = keys.iter().find(|key| key.name.eq_ignore_ascii_case(&entry.key));
        let name = key.map_or(entry.key.as_str(), |key| key.name);
        let place = || format!("{} {name}", title(section));
        match key.map(|key| key.take(into, entry.line, entry.value.as_deref())) {
            Some(Ok(())) => {}
            Some(Err(why)) => report.mistakes.push(Mistake::at(entry.line, place(), why)),
            None => report.warnings.push(Mistake::at(entry.line, place(), "unknown key, which has no effect")),
        }
    }
}

#[cfg(test)]
mod tests;

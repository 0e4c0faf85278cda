//! Sections `[ServiceOverride "N"]`: endpoints, and what requests to them are signed for.

use std::collections::BTreeSet;

use ccm_core::config::{gcfg::Section, gcfg_keys::ConfigValue};

use super::{
    OverriddenService, ServiceOverride, error::ConfigIssue, keys::Override,
    validate::ValidationReport,
};

/// All sections of the same name, merged.
pub(super) struct OverrideSection {
    /// Name; empty for a section without one.
    name: String,
    /// Line of the first section header.
    line: usize,
    raw: Override,
}

impl OverrideSection {
    /// Returns the values of the section's name, and creates them if the name is new.
    pub(super) fn of<'a>(all: &'a mut Vec<Self>, section: &Section) -> &'a mut Override {
        let name = section.sub.as_deref().unwrap_or_default();
        let at = all
            .iter()
            .position(|written| written.name == name)
            .unwrap_or_else(|| {
                all.push(Self {
                    name: name.to_owned(),
                    line: section.line,
                    raw: Override::default(),
                });
                all.len() - 1
            });
        &mut all[at].raw
    }

    fn location(&self) -> String {
        title("ServiceOverride", Some(&self.name).filter(|name| !name.is_empty()))
    }
}

/// Returns a section header as it is written in the file.
pub(super) fn title(name: &str, sub: Option<&String>) -> String {
    sub.map_or_else(|| format!("[{name}]"), |sub| format!("[{name} {sub:?}]"))
}

/// Validates the sections and returns one override per client.
pub(super) fn check(
    all: &[OverrideSection],
    report: &mut ValidationReport,
) -> Vec<ServiceOverride> {
    // First, report sections that lack required keys.
    let mut complete = Vec::new();
    for written in all {
        let missing = missing(written);
        if missing.is_empty() {
            complete.push(written);
        }
        report.errors.extend(missing);
    }
    // Then validate the complete sections, and expand each to the clients that it names.
    let mut seen = BTreeSet::new();
    let mut overrides = Vec::new();
    for written in &complete {
        let Override { service, region, url, signing_region, signing_name, .. } = &written.raw;
        let name = trimmed(service);
        let region = trimmed(region);
        let services = OverriddenService::named(name);
        if let Err(why) = check_url(trimmed(url)) {
            report.errors.push(ConfigIssue::at(
                url.line.unwrap_or(written.line),
                format!("{} URL", written.location()),
                why,
            ));
        }
        if let [OverriddenService::Other(other)] = &services[..]
            && !other.eq_ignore_ascii_case("kms")
        {
            let words = format!(
                "no client of this program is called {name:?}: it calls EC2, Elastic Load Balancing v2, Elastic Load Balancing, STS and ec2imds"
            );
            report.warnings.push(ConfigIssue::at(
                service.line.unwrap_or(written.line),
                format!("{} Service", written.location()),
                words,
            ));
        }
        // A section for both kinds of load balancer yields to a section for one of them.
        let general = services.len() > 1;
        let named =
            |service: &OverriddenService| complete.iter().any(|other| other.names(service, region));
        for service in services
            .into_iter()
            .filter(|service| !(general && named(service)))
        {
            if !seen.insert((service.clone(), region.to_owned())) {
                let n = &written.name;
                let words = format!(
                    "duplicate entry found for service override [{n}] ({name} in {region})"
                );
                report
                    .errors
                    .push(ConfigIssue::at(written.line, written.location(), words));
                break;
            }
            overrides.push(ServiceOverride {
                service,
                region: region.into(),
                url: trimmed(url).into(),
                signing_region: trimmed(signing_region).into(),
                signing_name: Some(trimmed(signing_name))
                    .filter(|name| !name.is_empty())
                    .map(Into::into),
            });
        }
    }
    overrides
}

impl OverrideSection {
    /// Returns whether the section names only this service, in this region.
    fn names(&self, service: &OverriddenService, region: &str) -> bool {
        trimmed(&self.raw.region) == region
            && OverriddenService::named(trimmed(&self.raw.service)) == std::slice::from_ref(service)
    }
}

/// Returns a value without surrounding whitespace, which quotes preserve.
fn trimmed(value: &ConfigValue<String>) -> &str {
    value.value.trim()
}

fn missing(written: &OverrideSection) -> Vec<ConfigIssue> {
    let raw = &written.raw;
    let required = [
        (&raw.service, "service name"),
        (&raw.region, "service region"),
        (&raw.url, "url"),
        (&raw.signing_region, "signingRegion"),
    ];
    let empty = required
        .into_iter()
        .filter(|(spot, _)| trimmed(spot).is_empty());
    empty
        .map(|(spot, what)| {
            let words =
                format!("{what} is missing [{} is \"\"] in override {}", spot.key, written.name);
            ConfigIssue::at(spot.line.unwrap_or(written.line), written.location(), words)
        })
        .collect()
}

fn check_url(url: &str) -> Result<(), String> {
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let authority = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    let host = authority.map(|authority| authority.rsplit('@').next().unwrap_or_default());
    let blank = url.contains(|c: char| c.is_whitespace() || c.is_control());
    if host.is_some_and(|host| !host.is_empty() && !host.starts_with(':')) && !blank {
        Ok(())
    } else {
        // The message omits the URL, which may contain a password.
        Err("is not a URL of the form http://host:port or https://host".to_owned())
    }
}

impl OverriddenService {
    /// Returns the clients that a name means: the SDK's service ID or an older name,
    /// case-insensitive. `elasticloadbalancing`, which once meant both kinds of load balancer,
    /// still does.
    fn named(name: &str) -> Vec<Self> {
        match name.to_ascii_lowercase().as_str() {
            "ec2" => vec![Self::Ec2],
            "elastic load balancing v2" | "elasticloadbalancingv2" | "elbv2" => vec![Self::Elb],
            "elastic load balancing" => vec![Self::Classic],
            "elasticloadbalancing" => vec![Self::Elb, Self::Classic],
            "sts" => vec![Self::Sts],
            "ec2imds" | "imds" | "ec2metadata" => vec![Self::Imds],
            _ => vec![Self::Other(name.into())],
        }
    }
}

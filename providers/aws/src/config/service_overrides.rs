//! Validates the sections `[ServiceOverride "N"]`, which set the endpoints of AWS clients and the
//! region and service for which requests are signed.

use std::collections::BTreeSet;

use ccm_core::config::{gcfg::Section, gcfg_keys::ConfigValue};

use super::{
    OverriddenService, ServiceOverride, error::ConfigIssue, keys::Override,
    validate::ValidationReport,
};

/// The merged values of all sections with the same name.
pub(super) struct OverrideSection {
    /// Name of the section; empty for a section without a name.
    name: String,
    /// Line of the first section header.
    line: usize,
    raw: Override,
}

impl OverrideSection {
    /// Returns the values of the section's name, and adds empty ones if the name is new.
    pub(super) fn find_or_add<'a>(all: &'a mut Vec<Self>, section: &Section) -> &'a mut Override {
        let name = section.sub.as_deref().unwrap_or_default();
        let index = match all.iter().position(|other| other.name == name) {
            Some(index) => index,
            None => {
                all.push(Self {
                    name: name.to_owned(),
                    line: section.line,
                    raw: Override::default(),
                });
                all.len() - 1
            }
        };
        &mut all[index].raw
    }

    fn location(&self) -> String {
        if self.name.is_empty() {
            title("ServiceOverride", None)
        } else {
            title("ServiceOverride", Some(&self.name))
        }
    }

    /// Creates an issue for one of the section's keys.
    fn issue_at(&self, value: &ConfigValue<String>, message: impl Into<Box<str>>) -> ConfigIssue {
        ConfigIssue::at(
            value.line.unwrap_or(self.line),
            format!("{} {}", self.location(), value.key),
            message,
        )
    }

    /// Returns true if the section is for this service alone, in this region.
    fn is_only_for(&self, service: &OverriddenService, region: &str) -> bool {
        trimmed(&self.raw.region) == region
            && OverriddenService::all_named(trimmed(&self.raw.service))
                == std::slice::from_ref(service)
    }
}

/// Returns a section header as it is written in the file.
pub(super) fn title(name: &str, sub: Option<&String>) -> String {
    match sub {
        Some(sub) => format!("[{name} {sub:?}]"),
        None => format!("[{name}]"),
    }
}

/// Validates the sections and returns one override per client.
pub(super) fn validate(
    all: &[OverrideSection],
    report: &mut ValidationReport,
) -> Vec<ServiceOverride> {
    // First, report sections that lack required keys.
    let mut complete = Vec::new();
    for section in all {
        let missing = missing_keys(section);
        if missing.is_empty() {
            complete.push(section);
        }
        report.errors.extend(missing);
    }
    // Then validate the complete sections, and expand each to the clients that it names.
    let mut overridden = BTreeSet::new();
    let mut overrides = Vec::new();
    for section in &complete {
        let name = trimmed(&section.raw.service);
        let region = trimmed(&section.raw.region);
        let mut services = OverriddenService::all_named(name);
        if let Err(message) = check_url(trimmed(&section.raw.url)) {
            report
                .errors
                .push(section.issue_at(&section.raw.url, message));
        }
        if let [OverriddenService::Other(other)] = &services[..]
            && !other.eq_ignore_ascii_case("kms")
        {
            let message = format!(
                "this program has no client for {name:?}; its clients are EC2, Elastic Load Balancing v2, Elastic Load Balancing, STS and ec2imds"
            );
            report
                .warnings
                .push(section.issue_at(&section.raw.service, message));
        }
        // A section for one kind of load balancer takes precedence over a section for both kinds.
        if services.len() > 1 {
            services.retain(|service| {
                !complete
                    .iter()
                    .any(|other| other.is_only_for(service, region))
            });
        }
        for service in services {
            if !overridden.insert((service.clone(), region.to_owned())) {
                let message = format!(
                    "duplicate entry found for service override [{}] ({name} in {region})",
                    section.name
                );
                report
                    .errors
                    .push(ConfigIssue::at(section.line, section.location(), message));
                break;
            }
            overrides.push(service_override(service, &section.raw));
        }
    }
    overrides
}

fn service_override(service: OverriddenService, raw: &Override) -> ServiceOverride {
    let signing_name = match trimmed(&raw.signing_name) {
        "" => None,
        name => Some(name.into()),
    };
    ServiceOverride {
        service,
        region: trimmed(&raw.region).into(),
        url: trimmed(&raw.url).into(),
        signing_region: trimmed(&raw.signing_region).into(),
        signing_name,
    }
}

/// Returns a value without surrounding whitespace, which the parser preserves within quotes.
fn trimmed(value: &ConfigValue<String>) -> &str {
    value.value.trim()
}

/// Returns one issue for each required key without a value.
fn missing_keys(section: &OverrideSection) -> Vec<ConfigIssue> {
    let raw = &section.raw;
    let required = [
        (&raw.service, "service name"),
        (&raw.region, "service region"),
        (&raw.url, "url"),
        (&raw.signing_region, "signingRegion"),
    ];
    let mut issues = Vec::new();
    for (value, description) in required {
        if trimmed(value).is_empty() {
            let message = format!(
                "{description} is missing [{} is \"\"] in override {}",
                value.key, section.name
            );
            let line = value.line.unwrap_or(section.line);
            issues.push(ConfigIssue::at(line, section.location(), message));
        }
    }
    issues
}

fn check_url(url: &str) -> Result<(), String> {
    let has_blanks = url.contains(|c: char| c.is_whitespace() || c.is_control());
    let host = host_of(url).unwrap_or_default();
    if host.is_empty() || host.starts_with(':') || has_blanks {
        // The message omits the URL, which may contain a password.
        Err("is not a URL of the form http://host:port or https://host".to_owned())
    } else {
        Ok(())
    }
}

/// Returns host and port of a URL; `None` if it is neither HTTP nor HTTPS.
fn host_of(url: &str) -> Option<&str> {
    let without_scheme = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"))?;
    let authority = without_scheme.split(['/', '?', '#']).next()?;
    authority.rsplit('@').next()
}

impl OverriddenService {
    /// Returns the services with this name, which is the SDK's service ID or an older name, in
    /// upper or lower case. As in older versions of the SDK, `elasticloadbalancing` means both
    /// kinds of load balancer.
    fn all_named(name: &str) -> Vec<Self> {
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

//! Validates the sections `[ServiceOverride "N"]`, which set the endpoints of AWS clients and the
//! region and service for which requests are signed.

use std::collections::BTreeSet;

use ccm_core::config::{gcfg::Section, gcfg_keys::ConfigValue};

use super::{
    OverriddenService, ServiceOverride, error::ConfigIssue, keys::Override, show::service_name,
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

    fn service(&self) -> &str {
        trimmed(&self.raw.service)
    }

    fn region(&self) -> &str {
        trimmed(&self.raw.region)
    }

    /// Returns true if the section is for this service in this region.
    fn is_for(&self, service: &OverriddenService, region: &str) -> bool {
        let has_region = *service == OverriddenService::Imds || self.region() == region;
        has_region && OverriddenService::all_named(self.service()).contains(service)
    }

    /// Returns how exactly the section names a service, from 0 for its ID. A name of both kinds of
    /// load balancer is the least exact.
    fn inexactness(&self, service: &OverriddenService) -> usize {
        if self.service() == service_name(service) {
            0
        } else {
            OverriddenService::all_named(self.service()).len()
        }
    }

    /// Returns true if this program may use the section. It is in use if the region is not known
    /// yet.
    fn may_be_used(&self, region: Option<&str>) -> bool {
        OverriddenService::all_named(self.service())
            .iter()
            .any(|service| match service {
                OverriddenService::Other(_) => false,
                OverriddenService::Imds => true,
                _ => region.is_none_or(|region| region == self.region()),
            })
    }
}

/// Returns a section header as it is written in the file.
pub(super) fn title(name: &str, sub: Option<&String>) -> String {
    match sub {
        Some(sub) => format!("[{name} {sub:?}]"),
        None => format!("[{name}]"),
    }
}

/// Validates the sections and returns one override per client. `region` is the configured region.
///
/// Accepts each section that upstream accepts, except a URL that no request can be sent to.
/// Upstream compares the names of services exactly, and ignores sections under other names. Several
/// sections may therefore be for one service here, and the one with the exact name counts, whether
/// or not its URL is valid.
pub(super) fn validate(
    all: &[OverrideSection],
    region: Option<&str>,
    report: &mut ValidationReport,
) -> Vec<ServiceOverride> {
    let mut names = BTreeSet::new();
    let mut complete = Vec::new();
    for section in all {
        let missing = missing_keys(section);
        let is_complete = missing.is_empty();
        report.errors.extend(missing);
        if is_complete && is_unique(section, &mut names, report) {
            warn_if_unknown(section, report);
            complete.push(section);
        }
    }
    let mut overrides = Vec::new();
    for section in &complete {
        let mut services = OverriddenService::all_named(section.service());
        services.retain(|service| {
            let best = complete
                .iter()
                .filter(|other| other.is_for(service, section.region()))
                .min_by_key(|other| other.inexactness(service));
            best.is_some_and(|best| std::ptr::eq(*best, *section))
        });
        if services.is_empty() {
            let message = "has no effect, because another section is for the same service";
            report
                .warnings
                .push(section.issue_at(&section.raw.service, message));
        }
        if let Err(message) = check_url(trimmed(&section.raw.url)) {
            let issue = section.issue_at(&section.raw.url, message);
            if !services.is_empty() && section.may_be_used(region) {
                report.errors.push(issue);
            } else {
                report.warnings.push(issue);
            }
            continue;
        }
        let services = services.into_iter();
        overrides.extend(services.map(|service| service_override(service, &section.raw)));
    }
    overrides
}

/// Checks that no other section has the same service and region, and adds them to `names`.
fn is_unique<'a>(
    section: &'a OverrideSection,
    names: &mut BTreeSet<(&'a str, &'a str)>,
    report: &mut ValidationReport,
) -> bool {
    let (name, region) = (section.service(), section.region());
    if names.insert((name, region)) {
        return true;
    }
    let message = format!(
        "duplicate entry found for service override [{}] ({name} in {region})",
        section.name
    );
    report
        .errors
        .push(ConfigIssue::at(section.line, section.location(), message));
    false
}

/// Warns about a section for a service that this program does not call.
fn warn_if_unknown(section: &OverrideSection, report: &mut ValidationReport) {
    let name = section.service();
    if let [OverriddenService::Other(other)] = &OverriddenService::all_named(name)[..]
        && !other.eq_ignore_ascii_case("kms")
    {
        let message = format!(
            "this program has no client for {name:?}; its clients are EC2, Elastic Load Balancing v2, Elastic Load Balancing, STS and ec2imds"
        );
        report
            .warnings
            .push(section.issue_at(&section.raw.service, message));
    }
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
    let (scheme, without_scheme) = url.split_once("://")?;
    if !["http", "https"]
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known))
    {
        return None;
    }
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

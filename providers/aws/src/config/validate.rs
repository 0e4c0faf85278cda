//! Converts the typed values of the keys to validated [`Settings`]. Values that upstream accepts at
//! first, or always, are rejected here if they can never work.

use std::num::NonZeroU16;

use ccm_core::{config::gcfg_keys::ConfigValue, k8s::IpFamily};

use super::{
    AnnotationDialect, DefaultType, Limits, Rate, Role, Settings, SharedProbe, TypePattern,
    error::ConfigIssue, keys::Global,
};
use crate::{api::elb::TargetType, environment::region_of_zone};

/// Port of kube-proxy's health check.
const PROBE_PORT: NonZeroU16 = NonZeroU16::new(10256).expect("not zero");
/// Path of kube-proxy's health check.
const PROBE_PATH: &str = "/healthz";
/// Maximum length of the path of a health check.
const MAX_PATH_LENGTH: usize = 1024;

/// Errors and warnings found in a configuration.
#[derive(Debug, Default)]
pub(super) struct ValidationReport {
    /// Invalid parts of the configuration.
    pub errors: Vec<ConfigIssue>,
    /// Parts that have no effect.
    pub warnings: Vec<ConfigIssue>,
}

impl ValidationReport {
    fn add_error<T>(&mut self, value: &ConfigValue<T>, message: impl Into<Box<str>>) {
        self.errors.push(issue_at(value, message));
    }

    fn add_warning<T>(&mut self, value: &ConfigValue<T>, message: impl Into<Box<str>>) {
        self.warnings.push(issue_at(value, message));
    }

    /// Returns the value of a successful result, or records the error for its key.
    fn check_value<T, V>(
        &mut self,
        value: &ConfigValue<T>,
        result: Result<V, impl Into<Box<str>>>,
    ) -> Option<V> {
        match result {
            Ok(valid) => Some(valid),
            Err(message) => {
                self.add_error(value, message);
                None
            }
        }
    }

    /// Parses an ID, if the key has a value.
    fn parse_id<T: for<'a> From<&'a str>>(
        &mut self,
        value: &ConfigValue<String>,
        prefix: &str,
    ) -> Option<T> {
        let id = text(value)?;
        self.check_value(value, parse_id(id, prefix))
    }
}

fn issue_at<T>(value: &ConfigValue<T>, message: impl Into<Box<str>>) -> ConfigIssue {
    ConfigIssue::at(value.line.unwrap_or_default(), format!("[Global] {}", value.key), message)
}

/// Returns the value of a key, or `None` if it is empty.
fn text(value: &ConfigValue<String>) -> Option<&str> {
    Some(value.value.as_str()).filter(|text| !text.is_empty())
}

fn parse_id<T: for<'a> From<&'a str>>(id: &str, prefix: &str) -> Result<T, String> {
    let suffix = id.strip_prefix(prefix).unwrap_or_default();
    if !suffix.is_empty()
        && suffix
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    {
        Ok(id.into())
    } else {
        Err(format!("{id:?} is not an ID of the form {prefix}…"))
    }
}

/// Validates the section `[Global]`. The result has no overrides yet.
pub(super) fn settings(raw: &Global, report: &mut ValidationReport) -> Settings {
    let defaults = Settings::default();
    check_cluster(raw, report);
    Settings {
        region: region(raw, report),
        vpc: report.parse_id(&raw.vpc, "vpc-"),
        subnet: report.parse_id(&raw.subnet, "subnet-"),
        route_tables: route_tables(raw, report),
        role: role(raw, report),
        cluster_id: text(&raw.cluster_id).map(Into::into),
        cluster_tag: text(&raw.cluster_tag).map(Into::into),
        disable_security_group_ingress: raw.disable_ingress.value,
        protected_security_group: report.parse_id(&raw.elb_group, "sg-"),
        node_ip_families: families(raw, report).unwrap_or(defaults.node_ip_families),
        shared_health_probe: probe(raw, report),
        topology_types: topology(raw, report).unwrap_or_default(),
        managed_security_groups: managed_groups(raw, report),
        default_type: default_type(raw, report),
        claim_external: raw.claim_external.value,
        classes: classes(raw, report),
        default_target_type: target_type(raw, report),
        annotation_dialect: annotation_dialect(raw, report),
        backend_security_group: backend_group(raw, report),
        shared_backend_security_group: raw.shared_group.value,
        remove_deletion_protection: raw.remove_protection.value,
        drift_check_interval: raw
            .drift_interval
            .value
            .unwrap_or(defaults.drift_check_interval),
        overrides: Vec::new(),
        limits: limits(raw),
        warnings: Vec::new(),
    }
}

fn region(raw: &Global, report: &mut ValidationReport) -> Option<Box<str>> {
    let mut region = None;
    if let Some(name) = text(&raw.region) {
        region = report.check_value(&raw.region, parse_region(name));
    }
    if let Some(zone) = text(&raw.zone) {
        region = report.check_value(&raw.zone, region_of_zone(zone));
    }
    region
}

fn parse_region(name: &str) -> Result<Box<str>, String> {
    if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        Ok(name.into())
    } else {
        Err(format!("{name:?} is not the name of a region"))
    }
}

fn route_tables(raw: &Global, report: &mut ValidationReport) -> Vec<crate::api::RouteTableId> {
    let value = &raw.route_tables;
    let mut ids = Vec::new();
    for id in &value.value {
        if !id.is_empty() {
            ids.extend(report.check_value(value, parse_id(id, "rtb-")));
        }
    }
    ids
}

fn role(raw: &Global, report: &mut ValidationReport) -> Option<Role> {
    let Some(arn) = text(&raw.role) else {
        if text(&raw.source).is_some() {
            report.add_warning(&raw.source, "has no effect without RoleARN");
        }
        return None;
    };
    let account = report.check_value(&raw.role, account_of(arn))?;
    Some(Role {
        arn: arn.into(),
        account: account.into(),
        source: text(&raw.source).map(Into::into),
    })
}

/// Returns the account of a role's ARN.
fn account_of(arn: &str) -> Result<&str, String> {
    let parts: Vec<&str> = arn.splitn(6, ':').collect();
    match parts[..] {
        ["arn", _, _, _, account, _] if !account.is_empty() => Ok(account),
        _ => Err(format!("incorrect ARN format for role {arn}")),
    }
}

fn check_cluster(raw: &Global, report: &mut ValidationReport) {
    if let Some(id) = text(&raw.cluster_id)
        && let Some(tag) = text(&raw.cluster_tag)
        && id != tag
    {
        report.add_error(
            &raw.cluster_tag,
            format!("clusterID tags did not match: {id:?} vs {tag:?}"),
        );
    }
}

fn families(raw: &Global, report: &mut ValidationReport) -> Option<Vec<IpFamily>> {
    let value = &raw.families;
    let mut families = Vec::new();
    for name in &value.value {
        let family = match name.as_str() {
            "ipv4" => IpFamily::V4,
            "ipv6" => IpFamily::V6,
            other => {
                report.add_error(
                    value,
                    format!("unknown IP family {other:?}: expected ipv4 or ipv6"),
                );
                continue;
            }
        };
        if families.contains(&family) {
            report.add_warning(value, format!("names {name} twice, which counts once"));
        } else {
            families.push(family);
        }
    }
    if families.is_empty() {
        None
    } else {
        Some(families)
    }
}

fn probe(raw: &Global, report: &mut ValidationReport) -> Option<SharedProbe> {
    let port = match raw.probe_port.value {
        0 => Some(PROBE_PORT),
        port => u16::try_from(port).ok().and_then(NonZeroU16::new),
    };
    if port.is_none() {
        report.add_error(&raw.probe_port, "must be between 1 and 65535");
    }
    let path = text(&raw.probe_path).unwrap_or(PROBE_PATH);
    if !path.starts_with('/') || path.len() > MAX_PATH_LENGTH {
        report.add_error(
            &raw.probe_path,
            format!("must begin with / and have at most {MAX_PATH_LENGTH} characters"),
        );
    }
    match text(&raw.probe_mode) {
        None | Some("ServiceNodePort") => None,
        Some("Shared") => Some(SharedProbe { port: port?, path: path.into() }),
        Some(other) => {
            report.add_error(
                &raw.probe_mode,
                format!("Unsupported ClusterServiceLoadBalancerHealthProbeMode {other}"),
            );
            None
        }
    }
}

fn topology(raw: &Global, report: &mut ValidationReport) -> Option<TypePattern> {
    let parsed = TypePattern::parse(text(&raw.topology)?);
    report.check_value(
        &raw.topology,
        parsed.map_err(|error| format!("is not a regular expression: {}", last_line(&error))),
    )
}

/// Returns the last line of the error's text, which describes the error. The lines before it show
/// the pattern with a marker.
fn last_line(error: &regex::Error) -> String {
    let text = error.to_string();
    let last_line = text.lines().last().unwrap_or_default();
    last_line.trim_start_matches("error: ").to_owned()
}

fn managed_groups(raw: &Global, report: &mut ValidationReport) -> bool {
    match raw.nlb_groups.value.as_str() {
        "" => false,
        "Managed" => true,
        other => {
            report.add_error(
                &raw.nlb_groups,
                format!("invalid NLB security group mode: {other:?}. Expected: \"Managed\""),
            );
            false
        }
    }
}

fn default_type(raw: &Global, report: &mut ValidationReport) -> DefaultType {
    match text(&raw.default_type) {
        None => DefaultType::Unset,
        Some("nlb") => DefaultType::Nlb,
        Some("none") => DefaultType::None,
        Some(other) => {
            report.add_error(
                &raw.default_type,
                format!("unknown type {other:?}: expected nlb or none"),
            );
            DefaultType::Unset
        }
    }
}

fn classes(raw: &Global, report: &mut ValidationReport) -> Vec<Box<str>> {
    let value = &raw.classes;
    if value.value.iter().any(|class| class.trim().is_empty()) {
        report.add_error(value, "must not be empty");
    }
    value
        .value
        .iter()
        .map(|class| class.trim().into())
        .collect()
}

fn target_type(raw: &Global, report: &mut ValidationReport) -> TargetType {
    match text(&raw.target_type) {
        None | Some("instance") => TargetType::Instance,
        Some("ip") => TargetType::Ip,
        Some(other) => {
            report.add_error(
                &raw.target_type,
                format!("unknown target type {other:?}: expected instance or ip"),
            );
            TargetType::Instance
        }
    }
}

fn annotation_dialect(raw: &Global, report: &mut ValidationReport) -> AnnotationDialect {
    let Some(name) = text(&raw.dialect) else {
        return AnnotationDialect::default();
    };
    let parsed = AnnotationDialect::parse(name)
        .ok_or_else(|| format!("unknown dialect {name:?}: expected upstream or extended"));
    report.check_value(&raw.dialect, parsed).unwrap_or_default()
}

fn backend_group(
    raw: &Global,
    report: &mut ValidationReport,
) -> Option<crate::api::SecurityGroupId> {
    let group = report.parse_id(&raw.backend_group, "sg-");
    if group.is_some() && !raw.shared_group.value {
        report.add_warning(
            &raw.backend_group,
            "has no effect without EnableSharedBackendSecurityGroup",
        );
    }
    group
}

fn limits(raw: &Global) -> Limits {
    let defaults = Limits::default();
    Limits {
        ec2_read: rate(&raw.ec2_read_qps, &raw.ec2_read_burst, defaults.ec2_read),
        ec2_write: rate(&raw.ec2_write_qps, &raw.ec2_write_burst, defaults.ec2_write),
        topology: rate(&raw.topology_qps, &raw.topology_burst, defaults.topology),
        elb_read: rate(&raw.elb_read_qps, &raw.elb_read_burst, defaults.elb_read),
        elb_register: rate(&raw.elb_register_qps, &raw.elb_register_burst, defaults.elb_register),
        elb_write: rate(&raw.elb_write_qps, &raw.elb_write_burst, defaults.elb_write),
    }
}

fn rate(qps: &ConfigValue<Option<f64>>, burst: &ConfigValue<Option<u32>>, default: Rate) -> Rate {
    Rate {
        per_second: qps.value.unwrap_or(default.per_second),
        burst: burst.value.unwrap_or(default.burst),
    }
}

//! `cloud.conf`: upstream's keys, and ours beside them.
//!
//! [`Settings`] is what everything else reads: complete, checked, nothing left to interpret.

mod error;
mod keys;
mod service_overrides;
mod show;
mod validate;

use std::{
    fmt,
    path::Path,
    sync::{Arc, LazyLock},
    time::Duration,
};

use ccm_core::{
    config::{
        gcfg::{self, Section},
        gcfg_keys::ConfigKey,
    },
    k8s::IpFamily,
};

pub use self::error::{ConfigErrors, ConfigIssue};
use self::{
    keys::{Global, Override},
    service_overrides::{OverrideSection, title},
    validate::ValidationReport,
};
use crate::api::{RouteTableId, SecurityGroupId, SubnetId, VpcId};

/// Reads a file.
///
/// # Errors
/// It cannot be read, or has mistakes: all of them.
pub fn load(file: &Path) -> Result<Settings, ConfigErrors> {
    let bytes = std::fs::read(file).map_err(|source| ConfigErrors::Unreadable { file: file.to_owned(), source })?;
    let parsed = match String::from_utf8(bytes) {
        Ok(text) => read(&text),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..valid].split(|byte| *byte == b'\n').count();
            Err(vec![ConfigIssue::syntax(line, "illegal UTF-8 encoding")])
        }
    };
    parsed.map_err(|mistakes| ConfigErrors::Invalid { file: Some(file.to_owned()), mistakes })
}

/// Reads a text.
///
/// # Errors
/// All mistakes in it.
pub fn parse(text: &str) -> Result<Settings, ConfigErrors> {
    read(text).map_err(|mistakes| ConfigErrors::Invalid { file: None, mistakes })
}

fn read(text: &str) -> Result<Settings, Vec<ConfigIssue>> {
    let document = gcfg::parse(text);
    let mut report = ValidationReport { errors: document.issues, warnings: Vec::new() };
    let mut global = Global::default();
    let mut overrides = Vec::new();
    for section in &document.sections {
        let is = |name: &str| section.name.eq_ignore_ascii_case(name);
        if is("Global") && section.sub.is_none() {
            fill(&mut global, Global::KEYS, section, &mut report);
        } else if is("ServiceOverride") {
            fill(OverrideSection::of(&mut overrides, section), Override::KEYS, section, &mut report);
        } else {
            let place = title(&section.name, section.sub.as_ref());
            report.warnings.push(ConfigIssue::at(section.line, place, "unknown section, which has no effect"));
        }
    }
    let overrides = service_overrides::check(&overrides, &mut report);
    let mut settings = validate::settings(&global, overrides, &mut report);
    if !report.errors.is_empty() {
        report.errors.sort_by_key(|mistake| mistake.line);
        return Err(report.errors);
    }
    report.warnings.sort_by_key(|warning| warning.line);
    settings.warnings = report.warnings;
    Ok(settings)
}

fn fill<T>(into: &mut T, keys: &[ConfigKey<T>], section: &Section, report: &mut ValidationReport) {
    for entry in &section.entries {
        let key = keys.iter().find(|key| key.name.eq_ignore_ascii_case(&entry.key));
        let name = key.map_or(entry.key.as_str(), |key| key.name);
        let place = || format!("{} {name}", title(&section.name, section.sub.as_ref()));
        match key.map(|key| key.apply(into, entry.line, entry.value.as_deref())) {
            Some(Ok(())) => {}
            Some(Err(why)) => report.errors.push(ConfigIssue::at(entry.line, place(), why)),
            None => report.warnings.push(ConfigIssue::at(entry.line, place(), "unknown key, which has no effect")),
        }
    }
}

/// The configuration of the provider, checked. `Default` is that of an empty file.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "a set of independent switches, each a key of the file")]
pub struct Settings {
    /// Region, from `Region` or `Zone`; `None` has the metadata service asked.
    pub region: Option<Box<str>>,
    /// `VPC`; `None` has the metadata service asked.
    pub vpc: Option<VpcId>,
    /// `SubnetID`: subnet of the own instance, and the last resort of subnet discovery.
    pub subnet: Option<SubnetId>,
    /// `RouteTableID`, repeatable here: exactly these route tables.
    pub route_tables: Vec<RouteTableId>,
    /// `RoleARN`, with the source of `SourceARN`.
    pub role: Option<Role>,
    /// `KubernetesClusterID`.
    pub cluster_id: Option<Box<str>>,
    /// `KubernetesClusterTag`: the legacy tag.
    pub cluster_tag: Option<Box<str>>,
    /// `DisableSecurityGroupIngress`: rules of nodes' security groups are left alone.
    pub disable_security_group_ingress: bool,
    /// `ElbSecurityGroup`: a group that is never changed or deleted.
    pub protected_security_group: Option<SecurityGroupId>,
    /// `NodeIPFamilies`, in order. Default IPv4.
    pub node_ip_families: Vec<IpFamily>,
    /// `ClusterServiceLoadBalancerHealthProbeMode=Shared`, with port and path.
    pub shared_health_probe: Option<SharedProbe>,
    /// `SupportedTopologyInstanceTypePattern`: types whose network topology must be known.
    pub topology_types: TypePattern,
    /// `NLBSecurityGroupMode=Managed`.
    pub managed_security_groups: bool,
    /// `DefaultLoadBalancerType`: what a Service without type annotation gets.
    pub default_type: DefaultType,
    /// `ClaimExternalLoadBalancers`: types `external` and `nlb-ip` are served.
    pub claim_external: bool,
    /// `LoadBalancerClass`, repeatable: classes that are served.
    pub classes: Vec<Box<str>>,
    /// `DefaultTargetType`.
    pub default_target_type: crate::api::elb::TargetType,
    /// `BackendSecurityGroup`: the shared backend group to use.
    pub backend_security_group: Option<SecurityGroupId>,
    /// `EnableSharedBackendSecurityGroup`: one group on every NLB that the nodes admit. Off by default.
    pub shared_backend_security_group: bool,
    /// `DriftCheckInterval`. Default 1 h. The framework's own period rules; this one bounds trust in caches.
    pub drift_check_interval: Duration,
    /// `[ServiceOverride]` sections.
    pub overrides: Vec<ServiceOverride>,
    /// Budgets of requests per second, by kind of request.
    pub limits: Limits,
    /// What the file says without effect: to be told once.
    pub warnings: Vec<ConfigIssue>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            region: None,
            vpc: None,
            subnet: None,
            route_tables: Vec::new(),
            role: None,
            cluster_id: None,
            cluster_tag: None,
            disable_security_group_ingress: false,
            protected_security_group: None,
            node_ip_families: vec![IpFamily::V4],
            shared_health_probe: None,
            topology_types: TypePattern::default(),
            managed_security_groups: false,
            default_type: DefaultType::Unset,
            claim_external: false,
            classes: Vec::new(),
            default_target_type: crate::api::elb::TargetType::Instance,
            backend_security_group: None,
            shared_backend_security_group: false,
            drift_check_interval: Duration::from_secs(3600),
            overrides: Vec::new(),
            limits: Limits::default(),
            warnings: Vec::new(),
        }
    }
}

/// A role to assume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// Its ARN.
    pub arn: Box<str>,
    /// Account that it belongs to.
    pub account: Box<str>,
    /// `SourceARN`: sent along against confused deputies.
    pub source: Option<Box<str>>,
}

/// Health checks of every Service with traffic policy `Cluster` go to kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedProbe {
    /// Port. Default 10256.
    pub port: std::num::NonZeroU16,
    /// Path. Default `/healthz`.
    pub path: Box<str>,
}

/// What a Service without type annotation gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DefaultType {
    /// Nothing is configured: it is refused with a hint, since upstream would make a classic load balancer.
    #[default]
    Unset,
    /// `nlb`: a network load balancer.
    Nlb,
    /// `none`: left to another controller.
    None,
}

/// Which instance types a regular expression matches.
#[derive(Clone, Debug)]
pub struct TypePattern(regex::Regex);

impl TypePattern {
    /// Upstream's default.
    pub const DEFAULT: &str = r"^(hpc|trn|p)[0-9]+[a-z]*(-[a-z0-9]+)?(\.[0-9a-z]*)$";

    /// Reads a pattern.
    ///
    /// # Errors
    /// It is no regular expression.
    pub fn parse(pattern: &str) -> Result<Self, regex::Error> {
        if pattern == Self::DEFAULT { Ok(Self::default()) } else { regex::Regex::new(pattern).map(Self) }
    }

    /// Returns the expression.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Tells whether the pattern occurs in an instance type.
    pub fn matches(&self, instance_type: &str) -> bool {
        self.0.is_match(instance_type)
    }
}

impl Default for TypePattern {
    fn default() -> Self {
        // To compile an expression takes milliseconds, to clone one nothing.
        static PATTERN: LazyLock<regex::Regex> =
            LazyLock::new(|| regex::Regex::new(TypePattern::DEFAULT).expect("the default is a regular expression"));
        Self(PATTERN.clone())
    }
}

impl PartialEq for TypePattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// A `[ServiceOverride]` section. `Debug` shows no user, password and query of its URL.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceOverride {
    /// Which client.
    pub service: OverriddenService,
    /// Region that it is for.
    pub region: Box<str>,
    /// Endpoint.
    pub url: Box<str>,
    /// Region to sign for.
    pub signing_region: Box<str>,
    /// Name to sign for; the service's own when `None`.
    pub signing_name: Option<Box<str>>,
}

impl fmt::Debug for ServiceOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, region, url, signing_region, signing_name } = self;
        f.debug_struct("ServiceOverride")
            .field("service", service)
            .field("region", region)
            .field("url", &show::without_secrets(url))
            .field("signing_region", signing_region)
            .field("signing_name", signing_name)
            .finish()
    }
}

/// A client that a `[ServiceOverride]` section changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OverriddenService {
    /// EC2.
    Ec2,
    /// Elastic Load Balancing v2.
    Elb,
    /// Elastic Load Balancing (classic).
    Classic,
    /// STS.
    Sts,
    /// The instance metadata service; the region does not matter.
    Imds,
    /// A service that this provider does not call, such as KMS.
    Other(Box<str>),
}

/// Budgets: requests per second, and how many at once after a pause.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Reads of EC2. Default 20/s, 100 at once.
    pub ec2_read: Rate,
    /// Changes of EC2. Default 5/s, 50 at once.
    pub ec2_write: Rate,
    /// `DescribeInstanceTopology`. Default 1/s, 1 at once.
    pub topology: Rate,
    /// Reads of Elastic Load Balancing. Default 10/s, 40 at once.
    pub elb_read: Rate,
    /// Registrations of targets. Default 4/s, 20 at once.
    pub elb_register: Rate,
    /// Other changes of Elastic Load Balancing. Default 3/s, 20 at once.
    pub elb_write: Rate,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Tokens per second; more than 0.
    pub per_second: f64,
    /// Capacity; at least 1.
    pub burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        let rate = |per_second, burst| Rate { per_second, burst };
        Self {
            ec2_read: rate(20.0, 100),
            ec2_write: rate(5.0, 50),
            topology: rate(1.0, 1),
            elb_read: rate(10.0, 40),
            elb_register: rate(4.0, 20),
            elb_write: rate(3.0, 20),
        }
    }
}

/// Settings as they are shared.
pub type SharedSettings = Arc<Settings>;

#[cfg(test)]
mod tests;

//! `cloud.conf`: upstream's keys and our own.
//!
//! [`Settings`] is the complete, validated result that everything else uses.

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

/// Reads and parses a file.
///
/// # Errors
/// The file cannot be read, or is invalid: all validation errors.
pub fn load(file: &Path) -> Result<Settings, ConfigErrors> {
    let bytes = std::fs::read(file)
        .map_err(|source| ConfigErrors::Unreadable { file: file.to_owned(), source })?;
    let parsed = match String::from_utf8(bytes) {
        Ok(text) => read(&text),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..valid]
                .split(|byte| *byte == b'\n')
                .count();
            Err(vec![ConfigIssue::syntax(line, "illegal UTF-8 encoding")])
        }
    };
    parsed.map_err(|issues| ConfigErrors::Invalid { file: Some(file.to_owned()), issues })
}

/// Parses text.
///
/// # Errors
/// All validation errors.
pub fn parse(text: &str) -> Result<Settings, ConfigErrors> {
    read(text).map_err(|issues| ConfigErrors::Invalid { file: None, issues })
}

fn read(text: &str) -> Result<Settings, Vec<ConfigIssue>> {
    let document = gcfg::parse(text);
    let mut report = ValidationReport { errors: document.issues, warnings: Vec::new() };
    let mut global = Global::default();
    let mut overrides = Vec::new();
    for section in &document.sections {
        match section.name.to_ascii_lowercase().as_str() {
            "global" if section.sub.is_none() => {
                read_keys(section, Global::KEYS, &mut global, &mut report);
            }
            "serviceoverride" => {
                let service_override = OverrideSection::of(&mut overrides, section);
                read_keys(section, Override::KEYS, service_override, &mut report);
            }
            _ => report.warnings.push(ConfigIssue::at(
                section.line,
                title(&section.name, section.sub.as_ref()),
                "unknown section, which has no effect",
            )),
        }
    }
    let overrides = service_overrides::check(&overrides, &mut report);
    let mut settings = validate::settings(&global, overrides, &mut report);
    if !report.errors.is_empty() {
        report.errors.sort_by_key(|error| error.line);
        return Err(report.errors);
    }
    report.warnings.sort_by_key(|warning| warning.line);
    settings.warnings = report.warnings;
    Ok(settings)
}

/// Reads the entries of a section into its typed values.
fn read_keys<T>(
    section: &Section,
    keys: &[ConfigKey<T>],
    values: &mut T,
    report: &mut ValidationReport,
) {
    let title = title(&section.name, section.sub.as_ref());
    for entry in &section.entries {
        let Some(key) = keys
            .iter()
            .find(|key| key.name.eq_ignore_ascii_case(&entry.key))
        else {
            report.warnings.push(ConfigIssue::at(
                entry.line,
                format!("{title} {}", entry.key),
                "unknown key, which has no effect",
            ));
            continue;
        };
        if let Err(message) = key.apply(values, entry.line, entry.value.as_deref()) {
            let location = format!("{title} {}", key.name);
            report
                .errors
                .push(ConfigIssue::at(entry.line, location, message));
        }
    }
}

/// The validated configuration of the provider. `Default` is that of an empty file.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a set of independent switches, each a key of the file"
)]
pub struct Settings {
    /// Region, from `Region` or `Zone`; if `None`, it is read from the metadata service.
    pub region: Option<Box<str>>,
    /// `VPC`; if `None`, it is read from the metadata service.
    pub vpc: Option<VpcId>,
    /// `SubnetID`: subnet of the controller's own instance, and the last fallback of subnet
    /// discovery.
    pub subnet: Option<SubnetId>,
    /// `RouteTableID`, repeatable here: use exactly these route tables.
    pub route_tables: Vec<RouteTableId>,
    /// `RoleARN`, with `SourceARN`.
    pub role: Option<Role>,
    /// `KubernetesClusterID`.
    pub cluster_id: Option<Box<str>>,
    /// `KubernetesClusterTag`: the legacy tag.
    pub cluster_tag: Option<Box<str>>,
    /// `DisableSecurityGroupIngress`: do not change rules of nodes' security groups.
    pub disable_security_group_ingress: bool,
    /// `ElbSecurityGroup`: a security group that is never changed or deleted.
    pub protected_security_group: Option<SecurityGroupId>,
    /// `NodeIPFamilies`, in order. Default IPv4.
    pub node_ip_families: Vec<IpFamily>,
    /// `ClusterServiceLoadBalancerHealthProbeMode=Shared`, with port and path.
    pub shared_health_probe: Option<SharedProbe>,
    /// `SupportedTopologyInstanceTypePattern`: instance types that must get network topology
    /// labels.
    pub topology_types: TypePattern,
    /// `NLBSecurityGroupMode=Managed`.
    pub managed_security_groups: bool,
    /// `DefaultLoadBalancerType`: type for a Service without the type annotation.
    pub default_type: DefaultType,
    /// `ClaimExternalLoadBalancers`: also serve the types `external` and `nlb-ip`.
    pub claim_external: bool,
    /// `LoadBalancerClass`, repeatable: load balancer classes to serve.
    pub classes: Vec<Box<str>>,
    /// `DefaultTargetType`.
    pub default_target_type: crate::api::elb::TargetType,
    /// `BackendSecurityGroup`: the shared backend security group to use.
    pub backend_security_group: Option<SecurityGroupId>,
    /// `EnableSharedBackendSecurityGroup`: every NLB also gets one shared security group, which the
    /// nodes' rules admit. Off by default.
    pub shared_backend_security_group: bool,
    /// `DriftCheckInterval`. Default 1 h. Limits the age of cached state; the framework's own
    /// interval schedules drift checks.
    pub drift_check_interval: Duration,
    /// `[ServiceOverride]` sections.
    pub overrides: Vec<ServiceOverride>,
    /// Rate limits by kind of request.
    pub limits: Limits,
    /// Warnings about parts of the file that have no effect, logged once.
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

/// An IAM role to assume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// Its ARN.
    pub arn: Box<str>,
    /// Account of the role.
    pub account: Box<str>,
    /// `SourceARN`: sent when the role is assumed, against confused deputies.
    pub source: Option<Box<str>>,
}

/// Configuration of `Shared` mode: health checks of every Service with traffic policy `Cluster` go
/// to kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedProbe {
    /// Port. Default 10256.
    pub port: std::num::NonZeroU16,
    /// Path. Default `/healthz`.
    pub path: Box<str>,
}

/// Type for a Service without the type annotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DefaultType {
    /// Not configured: the Service is rejected with a hint, since upstream would create a classic
    /// load balancer.
    #[default]
    Unset,
    /// `nlb`: a network load balancer.
    Nlb,
    /// `none`: the Service is left to another controller.
    None,
}

/// Regular expression for instance types.
#[derive(Clone, Debug)]
pub struct TypePattern(regex::Regex);

impl TypePattern {
    /// Upstream's default.
    pub const DEFAULT: &str = r"^(hpc|trn|p)[0-9]+[a-z]*(-[a-z0-9]+)?(\.[0-9a-z]*)$";

    /// Compiles a pattern.
    ///
    /// # Errors
    /// It is not a valid regular expression.
    pub fn parse(pattern: &str) -> Result<Self, regex::Error> {
        if pattern == Self::DEFAULT {
            Ok(Self::default())
        } else {
            regex::Regex::new(pattern).map(Self)
        }
    }

    /// Returns the expression.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns whether the pattern matches anywhere in an instance type.
    pub fn matches(&self, instance_type: &str) -> bool {
        self.0.is_match(instance_type)
    }
}

impl Default for TypePattern {
    fn default() -> Self {
        // Compiling an expression takes milliseconds; cloning one is cheap.
        static PATTERN: LazyLock<regex::Regex> = LazyLock::new(|| {
            regex::Regex::new(TypePattern::DEFAULT).expect("the default is a regular expression")
        });
        Self(PATTERN.clone())
    }
}

impl PartialEq for TypePattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// A `[ServiceOverride]` section. `Debug` omits user, password and query of its URL.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceOverride {
    /// Client that is overridden.
    pub service: OverriddenService,
    /// Region for which the override applies.
    pub region: Box<str>,
    /// Endpoint.
    pub url: Box<str>,
    /// Region to sign requests for.
    pub signing_region: Box<str>,
    /// Service name to sign requests for; `None` for the service's own.
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

/// AWS client that a `[ServiceOverride]` section configures.
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
    /// The instance metadata service; the override's region is ignored.
    Imds,
    /// A service that this provider does not call, such as KMS.
    Other(Box<str>),
}

/// Rate limits: requests per second, and burst.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Reads of EC2. Default 20/s, burst 100.
    pub ec2_read: Rate,
    /// Changes of EC2. Default 5/s, burst 50.
    pub ec2_write: Rate,
    /// `DescribeInstanceTopology`. Default 1/s, burst 1.
    pub topology: Rate,
    /// Reads of Elastic Load Balancing. Default 10/s, burst 40.
    pub elb_read: Rate,
    /// Registrations and deregistrations of targets. Default 4/s, burst 20.
    pub elb_register: Rate,
    /// Other changes of Elastic Load Balancing. Default 3/s, burst 20.
    pub elb_write: Rate,
}

/// Parameters of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Tokens per second; more than 0.
    pub per_second: f64,
    /// Capacity; at least 1.
    pub burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ec2_read: Rate { per_second: 20.0, burst: 100 },
            ec2_write: Rate { per_second: 5.0, burst: 50 },
            topology: Rate { per_second: 1.0, burst: 1 },
            elb_read: Rate { per_second: 10.0, burst: 40 },
            elb_register: Rate { per_second: 4.0, burst: 20 },
            elb_write: Rate { per_second: 3.0, burst: 20 },
        }
    }
}

/// Settings shared by all parts of the provider.
pub type SharedSettings = Arc<Settings>;

#[cfg(test)]
mod tests;

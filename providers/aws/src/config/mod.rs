//! Reads the cloud config (`cloud.conf`), which has upstream's keys and additional ones.
//!
//! [`Settings`] is the validated result that the other modules use.

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

pub use ccm_core::provider::Rate;

pub use self::error::{ConfigErrors, ConfigIssue};
use self::{
    keys::{Global, Override},
    service_overrides::{OverrideSection, title},
    validate::ValidationReport,
};
use crate::api::{RouteTableId, SecurityGroupId, SubnetId, VpcId};

/// Reads and parses a cloud config file.
///
/// # Errors
/// Returns an error if the file cannot be read, or all validation errors if it is invalid.
pub fn load(file: &Path) -> Result<Settings, ConfigErrors> {
    let bytes = std::fs::read(file)
        .map_err(|source| ConfigErrors::Unreadable { file: file.to_owned(), source })?;
    let parsed = match gcfg::decode(bytes) {
        Ok(text) => parse_and_validate(&text),
        Err(issue) => Err(vec![issue]),
    };
    parsed.map_err(|issues| ConfigErrors::Invalid { file: Some(file.to_owned()), issues })
}

/// Parses the text of a cloud config.
///
/// # Errors
/// Returns all validation errors.
pub fn parse(text: &str) -> Result<Settings, ConfigErrors> {
    parse_and_validate(text).map_err(|issues| ConfigErrors::Invalid { file: None, issues })
}

fn parse_and_validate(text: &str) -> Result<Settings, Vec<ConfigIssue>> {
    // First, read the sections into typed values.
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
                let service_override = OverrideSection::find_or_add(&mut overrides, section);
                read_keys(section, Override::KEYS, service_override, &mut report);
            }
            _ => report.warnings.push(ConfigIssue::at(
                section.line,
                title(&section.name, section.sub.as_ref()),
                "unknown section, which has no effect",
            )),
        }
    }
    // Then validate the values.
    let mut settings = validate::settings(&global, &mut report);
    settings.overrides =
        service_overrides::validate(&overrides, settings.region.as_deref(), &mut report);
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

/// The validated configuration of the provider. `Default` is the configuration of an empty file.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a set of independent switches, each a key of the file"
)]
pub struct Settings {
    /// Region, from `Region` or `Zone`. If `None`, it is read from the metadata service.
    pub region: Option<Box<str>>,
    /// `VPC`. If `None`, it is read from the metadata service.
    pub vpc: Option<VpcId>,
    /// `SubnetID`: subnet of the controller's own instance, and the last fallback of subnet
    /// discovery.
    pub subnet: Option<SubnetId>,
    /// `RouteTableID`, which may be repeated: the route tables to use. If empty, the table with the
    /// cluster's tag is used.
    pub route_tables: Vec<RouteTableId>,
    /// `RoleARN` and `SourceARN`: the role to assume.
    pub role: Option<Role>,
    /// `KubernetesClusterID`. If neither it nor `KubernetesClusterTag` is set, the cluster ID is
    /// read from the tags of the process' own instance.
    pub cluster_id: Option<Box<str>>,
    /// `KubernetesClusterTag`: the cluster ID in the legacy tag.
    pub cluster_tag: Option<Box<str>>,
    /// `DisableSecurityGroupIngress`: whether to leave the rules of nodes' security groups
    /// unchanged.
    pub disable_security_group_ingress: bool,
    /// `ElbSecurityGroup`: a security group that is never changed or deleted.
    pub protected_security_group: Option<SecurityGroupId>,
    /// `NodeIPFamilies`, in order. Default: IPv4.
    pub node_ip_families: Vec<IpFamily>,
    /// `ClusterServiceLoadBalancerHealthProbeMode=Shared`, with port and path.
    pub shared_health_probe: Option<SharedProbe>,
    /// `SupportedTopologyInstanceTypePattern`: instance types that must get network topology
    /// labels.
    pub topology_types: TypePattern,
    /// `NLBSecurityGroupMode=Managed`: whether each new load balancer gets its own security group.
    pub managed_security_groups: bool,
    /// `DefaultLoadBalancerType`: type for a Service without the type annotation.
    pub default_type: DefaultType,
    /// `ClaimExternalLoadBalancers`: whether to serve the types `external` and `nlb-ip` as well.
    pub claim_external: bool,
    /// `LoadBalancerClass`, which may be repeated: load balancer classes to serve.
    pub classes: Vec<Box<str>>,
    /// `DefaultTargetType`: target type for a Service without the target type annotation.
    pub default_target_type: crate::api::elb::TargetType,
    /// `AnnotationDialect`: how annotations are read that do not come from the AWS load balancer
    /// controller. Default: as upstream reads them.
    pub annotation_dialect: AnnotationDialect,
    /// `BackendSecurityGroup`: the shared backend security group to use.
    pub backend_security_group: Option<SecurityGroupId>,
    /// `EnableSharedBackendSecurityGroup`: whether every NLB also gets one shared security group,
    /// which the nodes' rules admit. Default: `false`.
    pub shared_backend_security_group: bool,
    /// `RemoveDeletionProtection`: whether to turn off deletion protection that no annotation
    /// mentions, when a Service is deleted.
    pub remove_deletion_protection: bool,
    /// `DriftCheckInterval`: maximum age of cached state. Default: 1 h. The times of drift checks
    /// depend on the framework's own interval.
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
            annotation_dialect: AnnotationDialect::Upstream,
            backend_security_group: None,
            shared_backend_security_group: false,
            remove_deletion_protection: false,
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
    /// ARN of the role.
    pub arn: Box<str>,
    /// Account to which the role belongs.
    pub account: Box<str>,
    /// `SourceARN`, which is sent when the role is assumed, as protection against confused
    /// deputies.
    pub source: Option<Box<str>>,
}

/// Configuration of the health check mode `Shared`, in which the health checks of every Service
/// with `externalTrafficPolicy: Cluster` go to kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedProbe {
    /// Port of kube-proxy's health check. Default: 10256.
    pub port: std::num::NonZeroU16,
    /// Path of kube-proxy's health check. Default: `/healthz`.
    pub path: Box<str>,
}

/// Load balancer type for a Service without the type annotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DefaultType {
    /// Not configured. The Service gets a classic load balancer, as upstream makes it.
    #[default]
    Unset,
    /// `nlb`: the Service gets a network load balancer.
    Nlb,
    /// `none`: another controller serves the Service.
    None,
}

/// How the annotations of a Service are read. `docs/decisions/0017-annotation-dialects.md` explains
/// why there are two ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AnnotationDialect {
    /// As cloud-provider-aws reads them for network load balancers: what it ignores has no effect,
    /// and what it sets only at creation is not changed later.
    #[default]
    Upstream,
    /// All annotations of the reference, and existing objects follow all of them.
    Extended,
}

impl AnnotationDialect {
    /// Both values, as written in the configuration and in the annotation.
    pub const NAMES: [&'static str; 2] = ["upstream", "extended"];

    /// Parses a value of the configuration or of the annotation.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "upstream" => Some(Self::Upstream),
            "extended" => Some(Self::Extended),
            _ => None,
        }
    }

    /// Returns the value as in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Extended => "extended",
        }
    }
}

/// Regular expression that matches instance types.
#[derive(Clone, Debug)]
pub struct TypePattern(regex::Regex);

impl TypePattern {
    /// Upstream's default.
    pub const DEFAULT: &str = r"^(hpc|trn|p)[0-9]+[a-z]*(-[a-z0-9]+)?(\.[0-9a-z]*)$";

    /// Compiles a pattern.
    ///
    /// # Errors
    /// Returns an error if the pattern is not a valid regular expression.
    pub fn parse(pattern: &str) -> Result<Self, regex::Error> {
        if pattern == Self::DEFAULT {
            Ok(Self::default())
        } else {
            regex::Regex::new(pattern).map(Self)
        }
    }

    /// Returns the text of the regular expression.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns true if the pattern matches anywhere in an instance type.
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

/// A `[ServiceOverride]` section, which sets the endpoint of an AWS client. `Debug` omits user,
/// password and query of the URL.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceOverride {
    /// Client whose endpoint is overridden.
    pub service: OverriddenService,
    /// Region for which the override applies.
    pub region: Box<str>,
    /// URL of the endpoint.
    pub url: Box<str>,
    /// Region for which requests are signed.
    pub signing_region: Box<str>,
    /// Service name for which requests are signed. If `None`, the service's own name is used.
    pub signing_name: Option<Box<str>>,
}

impl fmt::Debug for ServiceOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, region, url, signing_region, signing_name } = self;
        f.debug_struct("ServiceOverride")
            .field("service", service)
            .field("region", region)
            .field("url", &show::redact_url(url))
            .field("signing_region", signing_region)
            .field("signing_name", signing_name)
            .finish()
    }
}

/// AWS client that a `[ServiceOverride]` section configures.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OverriddenService {
    /// Elastic Compute Cloud.
    Ec2,
    /// Elastic Load Balancing v2.
    Elb,
    /// Elastic Load Balancing (classic).
    Classic,
    /// Security Token Service.
    Sts,
    /// The instance metadata service. The override's region is ignored.
    Imds,
    /// A service that this provider does not call, such as KMS.
    Other(Box<str>),
}

/// Rate limits for each kind of request.
///
/// Other clusters and controllers may share the account. The defaults are therefore half of what AWS
/// documents as the limit of an account in a region. For changes of load balancers AWS documents none:
/// there they are those of the AWS load balancer controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Reads of EC2. Default 10/s, burst 50.
    pub ec2_read: Rate,
    /// Writes of EC2. Default 2.5/s, burst 25.
    pub ec2_write: Rate,
    /// `DescribeInstanceTopology`. Default 1/s, burst 1, which is all of it.
    pub topology: Rate,
    /// Reads of Elastic Load Balancing. Default 5/s, burst 20.
    pub elb_read: Rate,
    /// Registrations and deregistrations of targets. Default 4/s, burst 20.
    pub elb_register: Rate,
    /// Other writes of Elastic Load Balancing. Default 3/s, burst 20.
    pub elb_write: Rate,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ec2_read: Rate { per_second: 10.0, burst: 50 },
            ec2_write: Rate { per_second: 2.5, burst: 25 },
            topology: Rate { per_second: 1.0, burst: 1 },
            elb_read: Rate { per_second: 5.0, burst: 20 },
            elb_register: Rate { per_second: 4.0, burst: 20 },
            elb_write: Rate { per_second: 3.0, burst: 20 },
        }
    }
}

/// Settings shared by all parts of the provider.
pub type SharedSettings = Arc<Settings>;

#[cfg(test)]
mod tests;

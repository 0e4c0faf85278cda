//! The desired state of a Service, parsed from its spec, its annotations and the configuration
//! alone.
//!
//! Parsing sends no request and reads no clock. It reports all errors at once: an invalid value is
//! replaced by a harmless one, and parsing continues.

mod addressing;
pub mod annotations;
mod attributes;
mod classic;
mod dialect;
pub(in crate::lb) mod health;
pub(in crate::lb) mod listeners;
mod moving;
mod notices;
mod security_groups;

pub use self::attributes::DeletionProtection;
pub(super) use self::attributes::STICKY;
pub(super) use self::{
    addressing::Addressing,
    attributes::{TargetAttributes, of_listeners as listener_attributes},
};

use ccm_core::{
    k8s::ServiceView,
    provider::{CloudError, EventType, FieldError, LabelRequirement, ServiceNotice, adopted_id},
};

pub(super) use self::{
    dialect::{deletion_protection, upstream_reading},
    moving::move_request,
};

use self::annotations::{Annotation, AnnotationReader};
use super::{
    classic::model::{ClassicReading, DesiredClassic},
    model::{DesiredLoadBalancer, ServiceKey, UpdateScope},
};
use crate::{
    api::{Tags, elb::TargetType},
    config::{AnnotationDialect, DefaultType, Settings},
    ownership_tags::{self, Cluster},
};

/// Maximum length of the key of a tag, in characters.
const MAX_TAG_KEY_LENGTH: usize = 128;
/// Maximum length of the value of a tag, in characters.
const MAX_TAG_VALUE_LENGTH: usize = 256;

/// The result of parsing a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedService {
    /// The controller that is responsible for the Service, with the desired state if that is us.
    pub spec: ServiceSpec,
    /// True if the status has a host name shaped like that of a classic load balancer. It does not
    /// affect `spec`: Network Load Balancers of some clouds with an AWS-compatible API have such
    /// names too.
    pub status_looks_classic: bool,
    /// How the Service is read if it has a classic load balancer; `None` if it neither requests one
    /// nor shows a host name that may be that of one. Also there for a Service that `spec` leaves to
    /// another controller only because the configuration has no default type.
    pub classic: Option<ClassicReading>,
    /// For an invalid Service: the desired state, with harmless values in place of the invalid
    /// ones. Only for the targets of an existing load balancer.
    pub tolerant: Option<Box<DesiredLoadBalancer>>,
    /// Notices for the owner of the Service, who may have overlooked something.
    pub notices: Vec<ServiceNotice>,
}

/// The controller that is responsible for a Service, with the desired state if that is us.
#[derive(Clone, Debug, PartialEq)]
pub enum ServiceSpec {
    /// The Service requests a Network Load Balancer from us.
    Nlb(Box<DesiredLoadBalancer>),
    /// The Service requests a classic load balancer from us.
    Classic(Box<DesiredClassic>),
    /// Another controller is responsible.
    ImplementedElsewhere,
    /// We are responsible, but the Service is invalid. Has every validation error; existing objects
    /// stay.
    Invalid(Vec<FieldError>),
}

/// The controller whose defaults apply to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DefaultsSource {
    /// cloud-provider-aws.
    CloudProviderAws,
    /// The AWS load balancer controller, from which the Service is claimed.
    LoadBalancerController,
}

/// The inputs and intermediate results of parsing, shared by all parsers.
pub(super) struct SpecReader<'a> {
    pub(super) service: &'a ServiceView,
    pub(super) settings: &'a Settings,
    pub(super) cluster: &'a Cluster,
    pub(super) defaults_source: DefaultsSource,
    pub(super) dialect: AnnotationDialect,
    pub(super) target_type: TargetType,
    pub(super) owner: ServiceKey,
    pub(super) annotations: AnnotationReader<'a>,
    pub(super) notices: Vec<ServiceNotice>,
    /// See [`DesiredLoadBalancer::creation_errors`].
    pub(super) creation_errors: Vec<Box<str>>,
}

impl SpecReader<'_> {
    /// Adds a Warning notice.
    pub(super) fn warn(&mut self, reason: &'static str, note: impl Into<Box<str>>) {
        self.notices
            .push(ServiceNotice { kind: EventType::Warning, reason, note: note.into() });
    }

    /// Returns true if annotations are read as cloud-provider-aws reads them.
    pub(super) fn is_upstream(&self) -> bool {
        self.dialect == AnnotationDialect::Upstream
    }

    /// Adds an error for a setting that cloud-provider-aws reads only when it creates a load
    /// balancer. In its dialect, the error does not concern an existing one.
    pub(super) fn invalid_at_creation(
        &mut self,
        annotation: &Annotation,
        message: impl Into<Box<str>>,
    ) {
        let message = message.into();
        if self.is_upstream() {
            let error = format!("{}: {message}", annotation.key());
            self.creation_errors.push(error.into());
        } else {
            self.annotations.invalid_value(annotation, message);
        }
    }
}

/// Parses a Service.
pub fn parse(service: &ServiceView, settings: &Settings, cluster: &Cluster) -> ParsedService {
    let status_looks_classic = hostnames(service).any(is_classic_hostname);
    let classic = || classic::read(service, settings, cluster);
    // A Service that names no type gets an existing classic load balancer, whatever its host name is.
    let may_be_classic = status_looks_classic
        || (!requests_network_load_balancer(service)
            && hostnames(service).any(|host| !is_nlb_hostname(host)));
    let reading = || may_be_classic.then(|| classic().0);
    match service_ownership(service, settings) {
        ServiceOwnership::Ours(defaults_source) => {
            let dialect = dialect::of(service, settings, defaults_source);
            let mut parsed = parse_managed(service, settings, cluster, defaults_source, dialect);
            if dialect == AnnotationDialect::Upstream {
                parsed
                    .notices
                    .extend(dialect::dormant_annotations(service, settings, cluster));
            }
            let (spec, tolerant) = match parsed.desired {
                Some(desired) if parsed.errors.is_empty() => (ServiceSpec::Nlb(desired), None),
                desired => (ServiceSpec::Invalid(parsed.errors), desired),
            };
            ParsedService {
                spec,
                status_looks_classic,
                classic: reading(),
                tolerant,
                notices: parsed.notices,
            }
        }
        ServiceOwnership::Classic => {
            let (reading, mut notices) = classic();
            notices.extend(moving::unused_notice(service));
            let spec = match &reading.desired {
                Ok(desired) => ServiceSpec::Classic(desired.clone()),
                Err(errors) => ServiceSpec::Invalid(errors.clone()),
            };
            ParsedService {
                spec,
                status_looks_classic,
                classic: Some(reading),
                tolerant: moving::network_beside_classic(service, settings, cluster),
                notices,
            }
        }
        ServiceOwnership::Elsewhere(notice) => {
            // With DefaultLoadBalancerType "none", an older one is kept. One that was moving goes back.
            let is_moving = move_request(service).state.is_some();
            let is_kept =
                (status_looks_classic || is_moving) && !requests_network_load_balancer(service);
            let network = || moving::network_beside_classic(service, settings, cluster);
            ParsedService {
                spec: ServiceSpec::ImplementedElsewhere,
                status_looks_classic,
                classic: is_kept.then(|| classic().0),
                tolerant: is_kept.then(network).flatten(),
                notices: notice.into_iter().filter(|_| !is_kept).collect(),
            }
        }
        ServiceOwnership::Invalid(errors) => {
            let defaults_source = DefaultsSource::CloudProviderAws;
            let dialect = dialect::of(service, settings, defaults_source);
            let parsed = parse_managed(service, settings, cluster, defaults_source, dialect);
            ParsedService {
                spec: ServiceSpec::Invalid(errors),
                status_looks_classic,
                classic: reading(),
                tolerant: parsed.desired,
                notices: Vec::new(),
            }
        }
    }
}

/// A Service that was parsed as one that requests a Network Load Balancer from us.
#[derive(Debug, PartialEq)]
struct ManagedService {
    /// The desired state, with harmless values in place of invalid ones. `None` only if there are
    /// errors.
    desired: Option<Box<DesiredLoadBalancer>>,
    errors: Vec<FieldError>,
    notices: Vec<ServiceNotice>,
}

/// Parses a Service as one that requests a Network Load Balancer from us, with these defaults and in
/// this dialect. Parses all of it, whatever errors there are.
fn parse_managed(
    service: &ServiceView,
    settings: &Settings,
    cluster: &Cluster,
    defaults_source: DefaultsSource,
    dialect: AnnotationDialect,
) -> ManagedService {
    let mut annotations = AnnotationReader::new(service, dialect);
    let kind = annotations.get(&annotations::TYPE);
    let requested_type = annotations.get(&annotations::TARGET_TYPE);
    let target_type = if kind.as_deref() == Some("nlb-ip") {
        TargetType::Ip
    } else {
        requested_type.unwrap_or(settings.default_target_type)
    };
    let owner = ServiceKey {
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        uid: service.uid.clone(),
    };
    let mut reader = SpecReader {
        service,
        settings,
        cluster,
        defaults_source,
        dialect,
        target_type,
        owner,
        annotations,
        notices: Vec::new(),
        creation_errors: Vec::new(),
    };
    dialect::warn_if_unknown(&mut reader);
    let desired = parse_desired(&mut reader).map(Box::new);
    notices::ignored_annotations(&mut reader);
    ManagedService {
        desired,
        errors: reader.annotations.finish(),
        notices: reader.notices,
    }
}

/// Parses the whole desired state. Returns `None` only together with a validation error.
fn parse_desired(reader: &mut SpecReader<'_>) -> Option<DesiredLoadBalancer> {
    reject_unsupported(reader);
    moving::check(reader);
    let placement = addressing::read(reader);
    let checks = health::read(reader);
    let listeners = listeners::read(reader, &placement, &checks);
    let sources = security_groups::source_ranges(reader, placement.ip_address_type);
    let (security, sources) = security_groups::read(reader, sources);
    let attributes = attributes::of_load_balancer(reader);
    let extra_tags = extra_tags(reader);
    let desired = DesiredLoadBalancer {
        name: placement.name(reader),
        owner: reader.owner.clone(),
        scheme: placement.scheme,
        ip_address_type: placement.ip_address_type,
        subnets: placement.subnets,
        allocations: placement.allocations,
        private_ipv4: placement.private_ipv4,
        ipv6: placement.ipv6,
        ipv6_source_nat: placement.ipv6_source_nat,
        source_nat_prefixes: placement.source_nat_prefixes,
        security,
        listeners,
        attributes: attributes.attributes,
        deletion_protection: attributes.deletion_protection,
        capacity_units: reader.annotations.get(&annotations::CAPACITY),
        extra_tags,
        sources,
        node_labels: node_labels(reader),
        target_type: reader.target_type,
        updates: if reader.is_upstream() {
            UpdateScope::AsCloudProviderAws
        } else {
            UpdateScope::All
        },
        creation_errors: std::mem::take(&mut reader.creation_errors),
        adopts: adopted_id(reader.service).map(Into::into),
    };
    notices::unenforced_source_ranges(reader, &desired);
    notices::proxy_protocol_on_health_checks(reader, &desired);
    if desired.listeners.is_empty() {
        return None;
    }
    Some(desired)
}

/// Adds errors for features that Network Load Balancers do not have.
fn reject_unsupported(reader: &mut SpecReader<'_>) {
    let extra_groups = &annotations::EXTRA_SECURITY_GROUPS.definition;
    if reader.annotations.text(extra_groups).is_some() {
        let message = format!(
            "BYO extra security group annotation \"{}\" is not supported by NLB",
            extra_groups.key()
        );
        reader.annotations.invalid_value(extra_groups, message);
    }
    if reader.annotations.get(&annotations::MULTI_CLUSTER) == Some(true) {
        reader.annotations.invalid_value(
            &annotations::MULTI_CLUSTER.definition,
            "target groups of several clusters are not supported",
        );
    }
    if reader.is_upstream() {
        dialect::reject_unsupported(reader);
    }
    if reader
        .service
        .load_balancer_ip
        .as_ref()
        .is_some_and(|ip| !ip.is_empty())
    {
        reader
            .annotations
            .add_error("spec.loadBalancerIP", "LoadBalancerIP cannot be specified for AWS ELB");
    }
}

/// Parses the extra tags. Ownership tags cannot be set.
fn extra_tags(reader: &mut SpecReader<'_>) -> Tags {
    let mut tags = reader
        .annotations
        .get(&annotations::TAGS)
        .unwrap_or_default();
    let cluster_tag = format!("{}{}", ownership_tags::CLUSTER_TAG_PREFIX, reader.cluster.id());
    for key in [
        &*cluster_tag,
        ownership_tags::LEGACY_CLUSTER_TAG,
        ownership_tags::SERVICE_TAG,
        ownership_tags::OTHER_CONTROLLER_TAG,
        ownership_tags::RETAINED_TAG,
        ownership_tags::ADOPTER_TAG,
    ] {
        if tags.remove(key).is_some() {
            reader.warn(
                "ReservedTag",
                format!("tag {key} cannot be set by annotation and is left out"),
            );
        }
    }
    for (key, value) in &tags {
        let problem = if key.to_ascii_lowercase().starts_with("aws:") {
            "the prefix aws: is AWS' own"
        } else if key.chars().count() > MAX_TAG_KEY_LENGTH {
            "the key is longer than 128 characters"
        } else if value.chars().count() > MAX_TAG_VALUE_LENGTH {
            "the value is longer than 256 characters"
        } else {
            continue;
        };
        reader.invalid_at_creation(
            &annotations::TAGS.definition,
            format!("tag {key:?} is not possible in AWS: {problem}"),
        );
    }
    tags
}

/// Parses the label requirements for target nodes.
fn node_labels(reader: &mut SpecReader<'_>) -> Vec<LabelRequirement> {
    let labels = node_requirements(&mut reader.annotations);
    if reader.target_type == TargetType::Ip {
        Vec::new()
    } else {
        labels
    }
}

/// Returns the nodes that a Service selects, even if it is invalid; all nodes if the annotation is
/// invalid.
pub fn node_requirements_of(service: &ServiceView) -> Vec<LabelRequirement> {
    // Both dialects read them in the same way.
    node_requirements(&mut AnnotationReader::new(service, AnnotationDialect::Upstream))
}

fn node_requirements(reader: &mut AnnotationReader<'_>) -> Vec<LabelRequirement> {
    let labels = reader.get(&annotations::NODE_LABELS).unwrap_or_default();
    let mut requirements = Vec::new();
    for (key, value) in labels {
        requirements.push(if value.is_empty() {
            LabelRequirement::Exists(key)
        } else {
            LabelRequirement::Equals(key, value)
        });
    }
    requirements
}

/// The controller that is responsible for a Service.
enum ServiceOwnership {
    /// We are, for a Network Load Balancer, and these defaults apply.
    Ours(DefaultsSource),
    /// We are, for a classic load balancer.
    Classic,
    /// Another controller is. The notice is for the owner of the Service.
    Elsewhere(Option<ServiceNotice>),
    /// We are, but the type of the load balancer is not supported, or cannot be changed to it.
    Invalid(Vec<FieldError>),
}

/// Decides which controller is responsible for a Service, by class, type annotation and
/// configuration.
fn service_ownership(service: &ServiceView, settings: &Settings) -> ServiceOwnership {
    use DefaultsSource::{CloudProviderAws, LoadBalancerController};
    use ServiceOwnership::{Classic, Elsewhere, Invalid, Ours};

    // The class, if there is one, decides alone.
    if let Some(class) = &service.class {
        let claimed = settings.classes.iter().any(|ours| **ours == **class);
        return if claimed {
            Ours(LoadBalancerController)
        } else {
            Elsewhere(None)
        };
    }
    // Without a class, the type annotation decides, or the configured default type.
    let kind = type_of(service);
    let is_upstream =
        dialect::of(service, settings, CloudProviderAws) == AnnotationDialect::Upstream;
    match (kind, settings.default_type) {
        ("nlb", _) | ("", DefaultType::Nlb) => Ours(CloudProviderAws),
        ("external" | "nlb-ip", _) if settings.claim_external => Ours(LoadBalancerController),
        ("external" | "nlb-ip", _) => Elsewhere(None),
        ("", DefaultType::None) => Elsewhere(Some(no_default_type_notice())),
        // Like upstream, all other types are classic load balancers.
        _ if kind.is_empty() || is_upstream => {
            if hostnames(service).any(is_nlb_hostname) {
                Invalid(vec![network_to_classic()])
            } else {
                Classic
            }
        }
        (other, _) => Invalid(unsupported_type_errors(other, service)),
    }
}

/// Returns the type annotation of a Service, or empty text.
fn type_of(service: &ServiceView) -> &str {
    let key = annotations::TYPE.definition.key();
    service.annotations.get(&*key).map_or("", |text| &**text)
}

/// Returns true if a Service asks for a Network Load Balancer itself, and not by the configuration.
pub(super) fn requests_network_load_balancer(service: &ServiceView) -> bool {
    service.class.is_some() || ["nlb", "external", "nlb-ip"].contains(&type_of(service))
}

/// Reads a Service as one with a classic load balancer, whatever it requests.
pub(super) fn classic_reading(
    service: &ServiceView,
    settings: &Settings,
    cluster: &Cluster,
) -> ClassicReading {
    classic::read(service, settings, cluster).0
}

/// Returns the notice for a Service without type annotation if the default type is `none`.
fn no_default_type_notice() -> ServiceNotice {
    let note = format!(
        "the Service has no annotation {}, and DefaultLoadBalancerType is none: \
         it is left to another controller",
        annotations::TYPE.definition.key()
    );
    ServiceNotice {
        kind: EventType::Normal,
        reason: "LoadBalancerLeftAlone",
        note: note.into(),
    }
}

/// Returns the error of a Service that has a Network Load Balancer and requests a classic one.
fn network_to_classic() -> FieldError {
    let key = annotations::TYPE.definition.key();
    let message = format!(
        "cannot update Load Balancer Type annotation \"{key}\" after creation for Classic Load \
         Balancer"
    );
    FieldError::new(key, message)
}

/// Returns [the error](network_to_classic) of a Service whose Network Load Balancer was found in AWS.
pub(super) fn network_to_classic_error() -> CloudError {
    CloudError::from(vec![network_to_classic()])
}

/// Returns the errors of a Service whose type annotation has a value that is not supported.
fn unsupported_type_errors(kind: &str, service: &ServiceView) -> Vec<FieldError> {
    let message = format!("load balancer type \"{kind}\" is not supported; use \"nlb\"");
    let mut errors = vec![FieldError::new(annotations::TYPE.definition.key(), message)];
    if hostnames(service).any(is_nlb_hostname) {
        errors.push(network_to_classic());
    }
    errors
}

fn hostnames(service: &ServiceView) -> impl Iterator<Item = &str> {
    service
        .status
        .ingress
        .iter()
        .filter_map(|ingress| ingress.hostname.as_deref())
}

/// Returns true for a host name like `name-number.region.elb.amazonaws.com`. Partitions have domains
/// of their own, and not all are known. A name that only looks so costs a read, which finds nothing.
fn is_classic_hostname(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host.split('.').nth(2) == Some("elb")
        || host.ends_with(".elb.amazonaws.com")
        || host.ends_with(".elb.amazonaws.com.cn")
}

/// Returns true for a host name like `name-hash.elb.region.amazonaws.com`.
fn is_nlb_hostname(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let front = host
        .strip_suffix(".cn")
        .unwrap_or(&host)
        .strip_suffix(".amazonaws.com");
    front.is_some_and(|front| front.rsplit('.').nth(1) == Some("elb"))
}

#[cfg(test)]
mod tests;

//! The desired state of a Service, parsed from its spec, its annotations and the configuration
//! alone.
//!
//! Parsing sends no request and reads no clock. It reports all errors at once: an invalid value is
//! replaced by a harmless one, and parsing continues.

mod addressing;
pub mod annotations;
mod attributes;
pub(in crate::lb) mod health;
pub(in crate::lb) mod listeners;
mod notices;
mod security_groups;

pub(super) use self::attributes::STICKY;
pub use self::attributes::requests_deletion_protection;
pub(super) use self::{
    addressing::Addressing,
    attributes::{TargetAttributes, of_listeners as listener_attributes},
};

use ccm_core::{
    k8s::ServiceView,
    provider::{EventType, FieldError, LabelRequirement, ServiceNotice},
};

use self::annotations::AnnotationReader;
use super::model::{DesiredLoadBalancer, ServiceKey};
use crate::{
    api::{Tags, elb::TargetType},
    config::{DefaultType, Settings},
    ownership_tags::{self, Cluster},
};

/// Maximum lengths, in characters, of the key and of the value of a tag.
const TAG_LENGTHS: (usize, usize) = (128, 256);

/// The result of parsing a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedService {
    /// The controller that is responsible for the Service, with the desired state if that is us.
    pub spec: ServiceSpec,
    /// True if the status has a host name shaped like that of a classic load balancer. It does not
    /// affect `spec`: Network Load Balancers of some clouds with an AWS-compatible API have such
    /// names too.
    pub status_looks_classic: bool,
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
    /// Another controller is responsible.
    ImplementedElsewhere,
    /// We are responsible, but the Service is invalid. Has every validation error; existing objects
    /// stay.
    Invalid(Vec<FieldError>),
}

/// The controller whose defaults apply to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DefaultsSource {
    /// Upstream (cloud-provider-aws).
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
    pub(super) target_type: TargetType,
    pub(super) owner: ServiceKey,
    pub(super) annotations: AnnotationReader<'a>,
    pub(super) notices: Vec<ServiceNotice>,
}

impl SpecReader<'_> {
    /// Adds a Warning notice.
    pub(super) fn warn(&mut self, reason: &'static str, note: impl Into<Box<str>>) {
        self.notices
            .push(ServiceNotice { kind: EventType::Warning, reason, note: note.into() });
    }
}

/// Parses a Service.
pub fn parse(service: &ServiceView, settings: &Settings, cluster: &Cluster) -> ParsedService {
    let looks_classic = hostnames(service).any(is_classic_hostname);
    match service_ownership(service, settings) {
        ServiceOwnership::Ours(defaults_source) => ParsedService {
            status_looks_classic: looks_classic,
            ..parse_managed(service, settings, cluster, defaults_source)
        },
        ServiceOwnership::Elsewhere(notice) => ParsedService {
            spec: ServiceSpec::ImplementedElsewhere,
            status_looks_classic: looks_classic,
            tolerant: None,
            notices: notice.into_iter().collect(),
        },
        ServiceOwnership::Invalid(errors) => {
            let as_upstream =
                parse_managed(service, settings, cluster, DefaultsSource::CloudProviderAws);
            let tolerant = match as_upstream.spec {
                ServiceSpec::Nlb(desired) => Some(desired),
                _ => as_upstream.tolerant,
            };
            ParsedService {
                spec: ServiceSpec::Invalid(errors),
                status_looks_classic: looks_classic,
                tolerant,
                notices: Vec::new(),
            }
        }
    }
}

fn parse_managed(
    service: &ServiceView,
    settings: &Settings,
    cluster: &Cluster,
    defaults_source: DefaultsSource,
) -> ParsedService {
    let mut annotations = AnnotationReader::new(service);
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
        target_type,
        owner,
        annotations,
        notices: Vec::new(),
    };
    let desired = parse_desired(&mut reader).map(Box::new);
    notices::ignored_annotations(&mut reader);
    let errors = reader.annotations.finish();
    let (spec, tolerant) = match desired {
        Some(desired) if errors.is_empty() => (ServiceSpec::Nlb(desired), None),
        desired => (ServiceSpec::Invalid(errors), desired),
    };
    ParsedService {
        spec,
        status_looks_classic: false,
        tolerant,
        notices: reader.notices,
    }
}

/// Parses the whole desired state. Returns `None` only together with a validation error.
fn parse_desired(reader: &mut SpecReader<'_>) -> Option<DesiredLoadBalancer> {
    reject_unsupported(reader);
    let placement = addressing::read(reader);
    let checks = health::read(reader);
    let listeners = listeners::read(reader, &placement, &checks);
    let sources = security_groups::source_ranges(reader, placement.ip_address_type);
    let (security, sources) = security_groups::read(reader, sources);
    let attributes = attributes::of_load_balancer(reader);
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
        security,
        listeners,
        attributes: attributes.attributes,
        deletion_protection: attributes.deletion_protection,
        extra_tags: extra_tags(reader),
        sources,
        node_labels: node_labels(reader),
        target_type: reader.target_type,
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
    if reader
        .annotations
        .text(&annotations::EXTRA_SECURITY_GROUPS.row)
        .is_some()
    {
        let row = &annotations::EXTRA_SECURITY_GROUPS.row;
        let message = format!(
            "BYO extra security group annotation \"{}\" is not supported by NLB",
            row.key()
        );
        reader.annotations.invalid_value(row, message);
    }
    if reader.annotations.get(&annotations::MULTI_CLUSTER) == Some(true) {
        let row = &annotations::MULTI_CLUSTER.row;
        reader
            .annotations
            .invalid_value(row, "target groups of several clusters are not supported");
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
        } else if key.chars().count() > TAG_LENGTHS.0 {
            "the key is longer than 128 characters"
        } else if value.chars().count() > TAG_LENGTHS.1 {
            "the value is longer than 256 characters"
        } else {
            continue;
        };
        reader.annotations.invalid_value(
            &annotations::TAGS.row,
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
    node_requirements(&mut AnnotationReader::new(service))
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

enum ServiceOwnership {
    Ours(DefaultsSource),
    Elsewhere(Option<ServiceNotice>),
    Invalid(Vec<FieldError>),
}

/// Decides which controller is responsible for a Service, by class, type annotation and
/// configuration.
fn service_ownership(service: &ServiceView, settings: &Settings) -> ServiceOwnership {
    let row = &annotations::TYPE.row;
    // The class, if there is one, decides alone.
    if let Some(class) = &service.class {
        let claimed = settings.classes.iter().any(|ours| **ours == **class);
        return if claimed {
            ServiceOwnership::Ours(DefaultsSource::LoadBalancerController)
        } else {
            ServiceOwnership::Elsewhere(None)
        };
    }
    // Without a class, the type annotation decides, or the configured default type.
    let kind = service
        .annotations
        .get(&*row.key())
        .map_or("", |text| &**text);
    match (kind, settings.default_type) {
        ("nlb", _) | ("", DefaultType::Nlb) => ServiceOwnership::Ours(DefaultsSource::CloudProviderAws),
        ("external" | "nlb-ip", _) if settings.claim_external => ServiceOwnership::Ours(DefaultsSource::LoadBalancerController),
        ("external" | "nlb-ip", _) => ServiceOwnership::Elsewhere(None),
        ("", DefaultType::None) => ServiceOwnership::Elsewhere(Some(ServiceNotice {
            kind: EventType::Normal,
            reason: "LoadBalancerLeftAlone",
            note: format!(
                "the Service has no annotation {}, and DefaultLoadBalancerType is none: it is left to another controller",
                row.key()
            )
            .into(),
        })),
        ("", DefaultType::Unset) => ServiceOwnership::Invalid(vec![FieldError::new(
            row.key(),
            "is not set: set it to \"nlb\" for a Network Load Balancer, or set DefaultLoadBalancerType in cloud.conf \
             (classic load balancers are not made)",
        )]),
        (other, _) => {
            let message = format!("load balancer type \"{other}\" is not supported; use \"nlb\"");
            let mut errors = vec![FieldError::new(row.key(), message)];
            if hostnames(service).any(is_nlb_hostname) {
                let message = format!(
                    "cannot update Load Balancer Type annotation \"{}\" after creation for Classic Load Balancer",
                    row.key()
                );
                errors.push(FieldError::new(row.key(), message));
            }
            ServiceOwnership::Invalid(errors)
        }
    }
}

fn hostnames(service: &ServiceView) -> impl Iterator<Item = &str> {
    service
        .status
        .ingress
        .iter()
        .filter_map(|ingress| ingress.hostname.as_deref())
}

/// Returns true for a host name like `name-number.region.elb.amazonaws.com`.
fn is_classic_hostname(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host.ends_with(".elb.amazonaws.com") || host.ends_with(".elb.amazonaws.com.cn")
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

//! What a Service wants, read from its spec and annotations and the configuration alone.
//!
//! Pure: no call, no clock. All mistakes are found at once; what is wrong is replaced by something harmless meanwhile, so
//! that whatever else is wrong is found too.

mod attributes;
mod placement;
mod remarks;
mod security;

pub(super) use self::attributes::STICKY;
pub use self::attributes::asks_for_protection;
pub(super) use self::{
    attributes::{TargetAttributes, of_listeners as listener_attributes},
    placement::Placement,
};

use ccm_core::{
    k8s::ServiceView,
    provider::{EventKind, InvalidInput, LabelRequirement, Remark},
};

use super::{
    annotations::{self, Reader},
    health, listeners,
    model::{OwnerName, Wanted},
};
use crate::{
    api::{Tags, elb::TargetType},
    cluster::{self, Cluster},
    config::{DefaultType, Settings},
};

/// Most characters of the key and of the value of a tag.
const TAG_LENGTHS: (usize, usize) = (128, 256);

/// What a Service says.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Whose it is and what it wants.
    pub verdict: Verdict,
    /// Whether the status holds a host name shaped like a classic load balancer's. The verdict is as if it were not there:
    /// network load balancers of some clouds that speak AWS' API have such names too.
    pub looks_classic: bool,
    /// Of a Service that is refused: what it wants, with something harmless in place of what is wrong. For the targets of a load
    /// balancer that is there, and nothing else.
    pub tolerant: Option<Box<Wanted>>,
    /// What its owner should know, although nothing is wrong.
    pub remarks: Vec<Remark>,
}

/// Whose a Service is.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It wants a network load balancer of us.
    Nlb(Box<Wanted>),
    /// Another controller's.
    Elsewhere,
    /// Ours, but it cannot be served: every mistake. What it has stays.
    Refused(Vec<InvalidInput>),
}

/// In whose manner a Service is served, which decides defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Upstream's.
    Ccm,
    /// The AWS load balancer controller's, from which the Service is claimed.
    Lbc,
}

/// Everything that reading takes, handed from part to part.
pub(super) struct Reads<'a> {
    pub(super) service: &'a ServiceView,
    pub(super) settings: &'a Settings,
    pub(super) cluster: &'a Cluster,
    pub(super) manner: Manner,
    pub(super) target_type: TargetType,
    pub(super) owner: OwnerName,
    pub(super) annotations: Reader<'a>,
    pub(super) remarks: Vec<Remark>,
}

impl Reads<'_> {
    /// Notes a warning.
    pub(super) fn warn(&mut self, reason: &'static str, note: impl Into<Box<str>>) {
        self.remarks.push(Remark { kind: EventKind::Warning, reason, note: note.into() });
    }
}

/// Reads a Service.
pub fn read(service: &ServiceView, settings: &Settings, cluster: &Cluster) -> Reading {
    let looks_classic = hosts(service).any(classic_host);
    match whose(service, settings) {
        Whose::Ours(manner) => Reading { looks_classic, ..serve(service, settings, cluster, manner) },
        Whose::Elsewhere(remark) => {
            let remarks = remark.into_iter().collect();
            Reading { verdict: Verdict::Elsewhere, looks_classic, tolerant: None, remarks }
        }
        Whose::Refused(mistakes) => {
            let as_upstreams = serve(service, settings, cluster, Manner::Ccm);
            let tolerant = match as_upstreams.verdict {
                Verdict::Nlb(wanted) => Some(wanted),
                _ => as_upstreams.tolerant,
            };
            Reading { verdict: Verdict::Refused(mistakes), looks_classic, tolerant, remarks: Vec::new() }
        }
    }
}

fn serve(service: &ServiceView, settings: &Settings, cluster: &Cluster, manner: Manner) -> Reading {
    let mut annotations = Reader::new(service);
    let kind = annotations.get(&annotations::TYPE);
    let target_type = match annotations.get(&annotations::TARGET_TYPE) {
        _ if kind.as_deref() == Some("nlb-ip") => TargetType::Ip,
        Some(named) => named,
        None => settings.default_target_type,
    };
    let owner =
        OwnerName { namespace: service.namespace.clone(), name: service.name.clone(), uid: service.uid.clone() };
    let mut reads = Reads { service, settings, cluster, manner, target_type, owner, annotations, remarks: Vec::new() };
    let wanted = wanted(&mut reads).map(Box::new);
    remarks::without_effect(&mut reads);
    let (mistakes, remarks) = (reads.annotations.finish(), reads.remarks);
    let (verdict, tolerant) = match wanted {
        Some(wanted) if mistakes.is_empty() => (Verdict::Nlb(wanted), None),
        wanted => (Verdict::Refused(mistakes), wanted),
    };
    Reading { verdict, looks_classic: false, tolerant, remarks }
}

/// Reads everything; `None` only together with a mistake.
fn wanted(reads: &mut Reads<'_>) -> Option<Wanted> {
    unserved(reads);
    let placement = placement::read(reads);
    let checks = health::read(reads);
    let listeners = listeners::read(reads, &placement, &checks);
    let sources = security::sources(reads, placement.ip_address_type);
    let (security, sources) = security::read(reads, sources);
    let (attributes, deletion_protection) = attributes::of_load_balancer(reads);
    let wanted = Wanted {
        name: placement.name(reads),
        owner: reads.owner.clone(),
        scheme: placement.scheme,
        ip_address_type: placement.ip_address_type,
        subnets: placement.subnets,
        allocations: placement.allocations,
        private_ipv4: placement.private_ipv4,
        ipv6: placement.ipv6,
        ipv6_source_nat: placement.ipv6_source_nat,
        security,
        listeners,
        attributes,
        deletion_protection,
        extra_tags: extra_tags(reads),
        sources,
        node_labels: node_labels(reads),
        target_type: reads.target_type,
    };
    remarks::unenforced_sources(reads, &wanted);
    remarks::wrapped_health_checks(reads, &wanted);
    (!wanted.listeners.is_empty()).then_some(wanted)
}

/// Notes what a network load balancer cannot do at all.
fn unserved(reads: &mut Reads<'_>) {
    if reads.annotations.text(&annotations::EXTRA_SECURITY_GROUPS.row).is_some() {
        let row = &annotations::EXTRA_SECURITY_GROUPS.row;
        let message = format!("BYO extra security group annotation \"{}\" is not supported by NLB", row.key());
        reads.annotations.wrong(row, message);
    }
    if reads.annotations.get(&annotations::MULTI_CLUSTER) == Some(true) {
        let row = &annotations::MULTI_CLUSTER.row;
        reads.annotations.wrong(row, "target groups of several clusters are not supported");
    }
    if reads.service.load_balancer_ip.as_ref().is_some_and(|ip| !ip.is_empty()) {
        reads.annotations.mistake("spec.loadBalancerIP", "LoadBalancerIP cannot be specified for AWS ELB");
    }
}

/// Reads tags. Those by which things are found again cannot be set.
fn extra_tags(reads: &mut Reads<'_>) -> Tags {
    let mut tags = reads.annotations.get(&annotations::TAGS).unwrap_or_default();
    let own = format!("{}{}", cluster::CLUSTER_TAG_PREFIX, reads.cluster.id());
    for key in [&*own, cluster::LEGACY_CLUSTER_TAG, cluster::SERVICE_TAG, cluster::OTHER_CONTROLLER_TAG] {
        if tags.remove(key).is_some() {
            reads.warn("ReservedTag", format!("tag {key} cannot be set by annotation and is left out"));
        }
    }
    for (key, value) in &tags {
        let problem = match () {
            () if key.to_ascii_lowercase().starts_with("aws:") => "the prefix aws: is AWS' own",
            () if key.chars().count() > TAG_LENGTHS.0 => "the key is longer than 128 characters",
            () if value.chars().count() > TAG_LENGTHS.1 => "the value is longer than 256 characters",
            () => continue,
        };
        reads.annotations.wrong(&annotations::TAGS.row, format!("tag {key:?} is not possible in AWS: {problem}"));
    }
    tags
}

/// Reads which nodes are targets.
fn node_labels(reads: &mut Reads<'_>) -> Vec<LabelRequirement> {
    let labels = chosen_nodes(&mut reads.annotations);
    if reads.target_type == TargetType::Ip { Vec::new() } else { labels }
}

/// Returns which nodes a Service chooses, also one that cannot be served; all where it does not say so properly.
pub fn nodes_of(service: &ServiceView) -> Vec<LabelRequirement> {
    chosen_nodes(&mut Reader::new(service))
}

fn chosen_nodes(reader: &mut Reader<'_>) -> Vec<LabelRequirement> {
    let labels = reader.get(&annotations::NODE_LABELS).unwrap_or_default();
    let one = |(key, value): (Box<str>, Box<str>)| match &*value {
        "" => LabelRequirement::Exists(key),
        _ => LabelRequirement::Equals(key, value),
    };
    labels.into_iter().map(one).collect()
}

enum Whose {
    Ours(Manner),
    Elsewhere(Option<Remark>),
    Refused(Vec<InvalidInput>),
}

/// Decides whose a Service is, by class, type annotation and configuration.
fn whose(service: &ServiceView, settings: &Settings) -> Whose {
    let row = &annotations::TYPE.row;
    let refused = |messages: &[String]| {
        Whose::Refused(messages.iter().map(|message| InvalidInput::new(row.key(), message.as_str())).collect())
    };
    if let Some(class) = &service.class {
        let claimed = settings.classes.iter().any(|ours| **ours == **class);
        return if claimed { Whose::Ours(Manner::Lbc) } else { Whose::Elsewhere(None) };
    }
    let kind = service.annotations.get(&*row.key()).map_or("", |text| &**text);
    match (kind, settings.default_type) {
        ("nlb", _) | ("", DefaultType::Nlb) => Whose::Ours(Manner::Ccm),
        ("external" | "nlb-ip", _) if settings.claim_external => Whose::Ours(Manner::Lbc),
        ("external" | "nlb-ip", _) => Whose::Elsewhere(None),
        ("", DefaultType::None) => Whose::Elsewhere(Some(Remark {
            kind: EventKind::Normal,
            reason: "LoadBalancerLeftAlone",
            note: format!(
                "the Service has no annotation {}, and DefaultLoadBalancerType is none: it is left to another controller",
                row.key()
            )
            .into(),
        })),
        ("", DefaultType::Unset) => refused(&[
            "is not set: set it to \"nlb\" for a Network Load Balancer, or set DefaultLoadBalancerType in cloud.conf \
             (classic load balancers are not made)"
                .to_owned(),
        ]),
        (other, _) => {
            let mut messages = vec![format!("load balancer type \"{other}\" is not supported; use \"nlb\"")];
            if hosts(service).any(network_host) {
                messages.push(format!(
                    "cannot update Load Balancer Type annotation \"{}\" after creation for Classic Load Balancer",
                    row.key()
                ));
            }
            refused(&messages)
        }
    }
}

fn hosts(service: &ServiceView) -> impl Iterator<Item = &str> {
    service.status.ingress.iter().filter_map(|ingress| ingress.hostname.as_deref())
}

/// `name-number.region.elb.amazonaws.com`.
fn classic_host(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host.ends_with(".elb.amazonaws.com") || host.ends_with(".elb.amazonaws.com.cn")
}

/// `name-hash.elb.region.amazonaws.com`.
fn network_host(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let front = host.strip_suffix(".cn").unwrap_or(&host).strip_suffix(".amazonaws.com");
    front.is_some_and(|front| front.rsplit('.').nth(1) == Some("elb"))
}

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{CloudError, EventType, Op};
use crate::k8s::{
    EndpointSliceView, IpFamily, LbStatus, NodeView, Protocol, ServiceView, SessionAffinity, well_known as wk,
};

/// Creates, updates and deletes load balancers for Services. Needed for the service controller.
///
/// A service is owned by one worker at a time: no two calls about one service overlap.
#[async_trait]
pub trait LoadBalancers: Send + Sync {
    /// Returns what the provider can do. Constant once [`CloudProvider::start`](super::CloudProvider::start) returned.
    /// The framework checks every Service against it ([`LbSupport::validate`]) before `ensure`: one that asks for more
    /// is refused with an event, never served more openly than it asked.
    fn supports(&self) -> LbSupport;

    /// Returns the values of `spec.loadBalancerClass` that are served beside none at all. Constant; none by default.
    /// A Service with another class is nobody's business here: no finalizer, no event, no call.
    fn classes(&self) -> Vec<Box<str>> {
        Vec::new()
    }

    /// Tells whether [`interpret`](Self::interpret) may answer [`BackendKind::Endpoints`]. Constant; `false` by default.
    /// Where EndpointSlices cannot be listed, Services with such backends wait, and others are served.
    /// EndpointSlices are watched only if so (RBAC: `list` and `watch` on `endpointslices`).
    fn supports_endpoint_backends(&self) -> bool {
        false
    }

    /// Tells what load balancers address nodes by. Constant; [`NodeTarget::Address`], as upstream, by default.
    fn node_target(&self) -> NodeTarget {
        NodeTarget::Address
    }

    /// Parses the Service once: whose it is, which backends it takes, and a digest of all that matters to the cloud.
    ///
    /// Pure: no I/O, no clock. Called for each observed change of a Service of type LoadBalancer whose class is
    /// none or among [`classes`](Self::classes). Annotations that the provider writes itself ([`LbOutcome::annotations`]) must not
    /// change the digest, or each write would cause another `ensure`.
    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation;

    /// Tells which backends the load balancer of an invalid Service has, from when it was valid or another manager served it.
    ///
    /// Pure, called where [`interpret`](Self::interpret) answered [`ServiceInterpretation::Invalid`] and this process has not seen the Service
    /// valid, after a restart for instance. With `Some`, and a Service that shows a load balancer, backends follow the nodes by
    /// [`update_backends`](Self::update_backends) with the Service as it is; what is refused is only the change. `None`, the
    /// default: backends stay as they are until the Service is valid.
    fn backends_of_invalid(&self, service: &ServiceView) -> Option<BackendKind> {
        let _ = service;
        None
    }

    /// Says what the user should know about a Service although it is served, or left to another controller: an unknown
    /// annotation, a setting that has no effect here.
    ///
    /// Pure, called after [`interpret`](Self::interpret) with the same Service. Each remark becomes one event when it
    /// first appears on the Service, not one per reconcile. None by default.
    fn notices(&self, service: &ServiceView) -> Vec<ServiceNotice> {
        let _ = service;
        Vec::new()
    }

    /// Makes the load balancer as described, creating what is missing.
    ///
    /// Idempotent and resumable: it may have been interrupted after any of its cloud calls, and is called again. With
    /// [`ReadMode::Cached`] it may believe what it knows of the cloud; with [`ReadMode::Fresh`] it reads the cloud again and
    /// repairs drift. No call sleeps longer than two seconds: answer [`Progress::Pending`] instead.
    async fn ensure(&self, op: &Op, want: &LbSpec, depth: ReadMode) -> LbOutcome;

    /// Brings the set of backends, and nothing else, in line. Called when only nodes or endpoints changed, and after an
    /// [`ensure`](Self::ensure) that was [refused](super::ErrorKind::is_refusal), so that what there is serves on: what
    /// `want` says besides may not be so. Where [`backends_of_invalid`](Self::backends_of_invalid) answers `Some`, also called
    /// with an invalid Service: then its [`sources`](LbSpec::sources) may be wrong, and nothing may be opened by them. Answer [`ErrorKind::NotFound`](super::ErrorKind::NotFound) if the balancer is not
    /// there: it is then ensured.
    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome;

    /// Deletes everything of the load balancer. Succeeds on nothing, works when the Service's spec is invalid or the
    /// Service is gone, and never touches what this cluster does not own.
    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError>;

    /// Names the annotations to take off a Service that stays after its load balancer was deleted, because its type
    /// changed: those that the provider wrote and that would mislead the next `ensure`.
    ///
    /// Pure, called after [`delete`](Self::delete) answered [`Progress::Done`]. None by default.
    fn stale_annotations(&self, lb: &LbRef) -> Vec<Box<str>> {
        let _ = lb;
        Vec::new()
    }

    /// Says what [`ensure`](Self::ensure) would change, without changing anything: in the cloud, and in the status and
    /// annotations of the Service. Asked after a restart and once per period about balancers that should be in line, and
    /// for a dry run. An empty answer means that `ensure` is not called.
    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError>;
}

/// What load balancers of a provider can do. The default can do nothing beyond TCP to node ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "a set of independent capabilities, each named at its use")]
pub struct LbSupport {
    /// Restricting clients by source range.
    pub source_ranges: bool,
    /// UDP ports.
    pub udp: bool,
    /// SCTP ports.
    pub sctp: bool,
    /// Ports of different protocols on one Service.
    pub mixed_protocols: bool,
    /// Two address families.
    pub dual_stack: bool,
    /// Services without node ports.
    pub no_node_ports: bool,
    /// `spec.loadBalancerIP`.
    pub load_balancer_ip: bool,
    /// Session affinity by client address.
    pub client_ip_affinity: bool,
}

impl LbSupport {
    /// Lists what `service` asks for beyond this support, or asks for wrongly; empty when it may be served.
    pub fn validate(&self, service: &ServiceView) -> Vec<FieldError> {
        let mut found = Vec::new();
        let mut need = |supported: bool, asked: bool, field: &str, message: &str| {
            if asked && !supported {
                found.push(FieldError::new(field, message));
            }
        };
        let protocols: BTreeSet<_> = service.ports.iter().map(|p| p.protocol).collect();
        let families: BTreeSet<_> = service.ip_families.iter().copied().collect();
        let no_node_port = !service.allocate_node_ports && service.ports.iter().any(|p| p.node_port.is_none());
        need(self.udp, protocols.contains(&Protocol::Udp), "spec.ports", "protocol UDP is not supported");
        need(self.sctp, protocols.contains(&Protocol::Sctp), "spec.ports", "protocol SCTP is not supported");
        need(self.mixed_protocols, protocols.len() > 1, "spec.ports", "more than one protocol is not supported");
        need(self.dual_stack, families.len() > 1, "spec.ipFamilies", "two address families are not supported");
        need(
            self.no_node_ports,
            no_node_port,
            "spec.allocateLoadBalancerNodePorts",
            "ports without a node port are not supported",
        );
        let ip = service.load_balancer_ip.as_ref().is_some_and(|ip| !ip.is_empty());
        need(self.load_balancer_ip, ip, "spec.loadBalancerIP", "a requested address is not supported");
        let affinity = service.session_affinity != SessionAffinity::None;
        need(self.client_ip_affinity, affinity, "spec.sessionAffinity", "session affinity is not supported");
        match SourceRanges::of(service) {
            Ok(sources) => need(
                self.source_ranges,
                sources.restricts(&service.ip_families),
                "spec.loadBalancerSourceRanges",
                "restricting clients by source range is not supported",
            ),
            Err(invalid) => found.extend(invalid),
        }
        found
    }
}

/// Whose a Service is.
#[derive(Clone, Debug, PartialEq)]
pub enum ServiceInterpretation {
    /// Ours, and valid.
    Valid {
        /// Which backends it takes.
        backends: BackendKind,
        /// Digest of everything, besides the backends, that `ensure` would act on. Equal digests need no cloud call.
        digest: Digest,
    },
    /// Another controller's: left alone, status untouched.
    ImplementedElsewhere,
    /// Ours, but it cannot be served; every mistake, for one event.
    Invalid(Vec<FieldError>),
}

/// What load balancers address nodes by, which decides who can be a backend and what changes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeTarget {
    /// An address of the Node. Every node that is not excluded is a backend, also one whose provider ID is another
    /// provider's, as with upstream: a cluster whose distribution sets its own provider IDs keeps its backends.
    Address,
    /// The instance that the provider ID names. Nodes of other providers are no backends, and a change of addresses concerns
    /// no load balancer.
    Instance,
}

/// Which backends a load balancer takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Nodes that meet all of these requirements; every node when there is none.
    Nodes(Vec<LabelRequirement>),
    /// Endpoints of the Service.
    Endpoints,
}

/// What a node's labels must say for it to be a backend.
///
/// Labels that only annotations name are cached only if [`CloudProvider::node_fields`](super::CloudProvider::node_fields)
/// asks for `all_labels`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LabelRequirement {
    /// The label is there, with any value.
    Exists(Box<str>),
    /// The label has exactly this value.
    Equals(Box<str>, Box<str>),
}

impl LabelRequirement {
    /// Tells whether the node meets it.
    pub fn matches(&self, node: &NodeView) -> bool {
        match self {
            Self::Exists(key) => node.labels.contains(key),
            Self::Equals(key, value) => node.labels.get(key) == Some(value),
        }
    }
}

/// Something worth telling the owner of a Service, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceNotice {
    /// Type of the event.
    pub kind: EventType,
    /// Event reason: PascalCase, from a small fixed set.
    pub reason: &'static str,
    /// Note, under 1 kB.
    pub note: Box<str>,
}

/// Digest of a desired state. Stable within a process; never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u64);

impl Digest {
    /// Digests any value; equal values have equal digests within a process.
    pub fn of(value: &impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// One mistake in a Service, naming the field or annotation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Field path or annotation key.
    pub field: Box<str>,
    /// What is wrong with it.
    pub message: Box<str>,
}

impl FieldError {
    /// Makes a mistake from the field path or annotation key and what is wrong with it.
    pub fn new(field: impl Into<Box<str>>, message: impl Into<Box<str>>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl From<Vec<FieldError>> for CloudError {
    /// Names every mistake in one message.
    fn from(mistakes: Vec<FieldError>) -> Self {
        let mistakes: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        Self::invalid_input(mistakes.join("; "))
    }
}

/// Complete, validated description of a wanted load balancer.
#[derive(Clone, Debug)]
pub struct LbSpec {
    /// Value of `--cluster-name`.
    pub cluster: Arc<str>,
    /// The Service as observed: UID, ports, policies, annotations, previous status.
    pub service: Arc<ServiceView>,
    /// Client networks that may connect.
    pub sources: SourceRanges,
    /// Backends.
    pub backends: Backends,
}

/// Which clients may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceRanges {
    /// The Service says nothing: provider's default, commonly everybody.
    Unset,
    /// Exactly these, sorted and without duplicates. May hold `0.0.0.0/0` or `::/0`.
    Only(Vec<IpNet>),
}

impl SourceRanges {
    /// Reads `spec.loadBalancerSourceRanges`, or, when that is empty, the annotation
    /// `service.beta.kubernetes.io/load-balancer-source-ranges` (comma-separated).
    ///
    /// Networks are cut to their prefix. An annotation that is empty counts as absent.
    ///
    /// # Errors
    /// Every entry that is no network, once. A service with one must not be served: to leave the entry out could open it,
    /// or close it, to the wrong clients.
    pub fn of(service: &ServiceView) -> Result<Self, Vec<FieldError>> {
        let annotation = service.annotations.get(wk::ANNOTATION_SOURCE_RANGES).map(|text| text.trim());
        let (field, entries): (_, Vec<&str>) = match annotation {
            _ if !service.source_ranges.is_empty() => {
                ("spec.loadBalancerSourceRanges", service.source_ranges.iter().map(|e| e.trim()).collect())
            }
            Some(text) if !text.is_empty() => (wk::ANNOTATION_SOURCE_RANGES, text.split(',').map(str::trim).collect()),
            _ => return Ok(Self::Unset),
        };
        let (mut networks, mut invalid) = (BTreeSet::new(), Vec::new());
        for entry in entries {
            match entry.parse::<IpNet>() {
                Ok(network) => {
                    networks.insert(network.trunc());
                }
                Err(_) => {
                    let mistake = FieldError::new(field, format!("{entry:?} is not a network in CIDR form"));
                    if !invalid.contains(&mistake) {
                        invalid.push(mistake);
                    }
                }
            }
        }
        if invalid.is_empty() { Ok(Self::Only(networks.into_iter().collect())) } else { Err(invalid) }
    }

    /// Returns the networks; where the Service says nothing those that hold everybody of these address families, IPv4 if none
    /// is named.
    pub fn or_any_source(self, families: &[IpFamily]) -> Vec<IpNet> {
        let everybody = |family| match family {
            IpFamily::V4 => IpNet::V4(Ipv4Net::default()),
            IpFamily::V6 => IpNet::V6(Ipv6Net::default()),
        };
        match self {
            Self::Only(networks) => networks,
            Self::Unset if families.is_empty() => vec![everybody(IpFamily::V4)],
            Self::Unset => families.iter().copied().map(everybody).collect(),
        }
    }

    /// Tells whether any client of these address families, or of a family that is named here, is kept out.
    pub fn restricts(&self, families: &[IpFamily]) -> bool {
        let Self::Only(networks) = self else { return false };
        let open = |family| networks.iter().any(|n| n.prefix_len() == 0 && IpFamily::of(n) == family);
        !networks.iter().map(IpFamily::of).chain(families.iter().copied()).all(open)
    }
}

/// Backends of a wanted load balancer.
#[derive(Clone, Debug)]
pub enum Backends {
    /// Nodes, sorted by name.
    Nodes(Vec<Arc<NodeView>>),
    /// Slices of the Service, sorted by name.
    Endpoints(Vec<Arc<EndpointSliceView>>),
}

impl Backends {
    /// Returns the nodes; none where endpoints are the backends, which only a provider gets that
    /// [takes them](LoadBalancers::takes_endpoints).
    pub fn nodes(&self) -> &[Arc<NodeView>] {
        match self {
            Self::Nodes(nodes) => nodes,
            Self::Endpoints(_) => &[],
        }
    }
}

/// How far `ensure` trusts what it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Only differences from the last known state need calls.
    Cached,
    /// Read the cloud and repair drift.
    Fresh,
}

/// Names a load balancer to delete, even when the Service is invalid or gone.
#[derive(Clone, Debug)]
pub struct LbRef {
    /// UID of the Service.
    pub uid: Box<str>,
    /// Namespace of the Service.
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub name: Arc<str>,
    /// Load-balancer class.
    pub class: Option<Arc<str>>,
    /// Annotations as last seen.
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
    /// Status as last seen.
    pub status: LbStatus,
    /// The Service as last seen, if it was seen.
    pub last_observed: Option<Arc<ServiceView>>,
}

/// Result of `ensure` and `update_backends`.
#[derive(Debug)]
pub struct LbOutcome {
    /// Status to publish; `None` leaves it untouched. May be given together with an error.
    pub status: Option<LbStatus>,
    /// Annotations to persist on the Service; `None` removes one.
    pub annotations: BTreeMap<Box<str>, Option<Box<str>>>,
    /// How it went.
    pub result: Result<Progress, CloudError>,
}

impl LbOutcome {
    /// Makes an outcome that is done and publishes `status`.
    pub fn done(status: LbStatus) -> Self {
        Self { status: Some(status), annotations: BTreeMap::new(), result: Ok(Progress::Done) }
    }

    /// Makes an outcome that waits for the cloud and leaves the status untouched.
    pub fn pending(after: Duration, why: impl Into<Box<str>>) -> Self {
        let result = Ok(Progress::Pending { after, why: why.into() });
        Self { status: None, annotations: BTreeMap::new(), result }
    }

    /// Adds an annotation to persist on the Service.
    #[must_use]
    pub fn with_annotation(mut self, key: impl Into<Box<str>>, value: impl Into<Box<str>>) -> Self {
        self.annotations.insert(key.into(), Some(value.into()));
        self
    }

    /// Publishes `status` whatever the result: a balancer that serves although a later step failed or still runs.
    #[must_use]
    pub fn with_status(mut self, status: LbStatus) -> Self {
        self.status = Some(status);
        self
    }
}

impl From<Progress> for LbOutcome {
    /// Leaves the status untouched.
    fn from(progress: Progress) -> Self {
        Self { status: None, annotations: BTreeMap::new(), result: Ok(progress) }
    }
}

impl From<CloudError> for LbOutcome {
    fn from(error: CloudError) -> Self {
        Self { status: None, annotations: BTreeMap::new(), result: Err(error) }
    }
}

/// Whether something is finished. Waiting is an outcome, not an error: it warns nobody and holds no worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Finished.
    Done,
    /// The cloud is still at it.
    Pending {
        /// When to ask again.
        after: Duration,
        /// What is waited for.
        why: Box<str>,
    },
}

impl Progress {
    /// Makes the answer of something that is not finished, with a wait that [grows](Op::look_again).
    pub fn pending(op: &Op, why: impl Into<Box<str>>) -> Self {
        Self::Pending { after: op.poll_interval(), why: why.into() }
    }
}

/// One change that a provider would make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// Cloud operation, in the cloud's own spelling.
    pub operation: Box<str>,
    /// Object it concerns.
    pub object: Box<str>,
    /// Why.
    pub reason: Box<str>,
}

#[cfg(test)]
#[path = "load_balancer_tests.rs"]
mod tests;

//! The load balancers of a provider, and what a Service requests of them.

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
    EndpointSliceView, IpFamily, LbStatus, NodeView, Protocol, ServiceView, SessionAffinity,
    well_known,
};

/// Creates, updates and deletes load balancers for Services. Needed for the service controller.
///
/// The framework never runs two calls for the same Service at the same time.
#[async_trait]
pub trait LoadBalancers: Send + Sync {
    /// Returns the features that the provider supports. Constant once
    /// [`CloudProvider::start`](super::CloudProvider::start) returned. The framework checks every
    /// Service against it ([`LbSupport::validate`]) before `ensure`. A Service that requests more
    /// is rejected with an event and never served with weaker restrictions than requested.
    fn supports(&self) -> LbSupport;

    /// Returns the values of `spec.loadBalancerClass` that are served, in addition to Services
    /// without a class. Constant; none by default. A Service with another class is ignored: no
    /// finalizer, no event, no call.
    fn classes(&self) -> Vec<Box<str>> {
        Vec::new()
    }

    /// Returns whether [`interpret`](Self::interpret) may answer [`BackendKind::Endpoints`].
    /// Constant; `false` by default. EndpointSlices are watched only if it is `true` (RBAC: `list`
    /// and `watch` on `endpointslices`). If they cannot be listed, Services with such backends wait
    /// and all others are served.
    fn supports_endpoint_backends(&self) -> bool {
        false
    }

    /// Returns what load balancers address nodes by. Constant; by default [`NodeTarget::Address`],
    /// as upstream.
    fn node_target(&self) -> NodeTarget {
        NodeTarget::Address
    }

    /// Parses the Service: whether it is ours, which backends it takes, and a digest of everything
    /// that matters to the cloud.
    ///
    /// Pure: no I/O, no clock. Called for each observed change of a Service of type LoadBalancer
    /// that has no class or one of [`classes`](Self::classes). Annotations that the provider writes
    /// itself ([`LbOutcome::annotations`]) must not change the digest, or each write would cause
    /// another `ensure`.
    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation;

    /// Returns the kind of backends that the load balancer of an invalid Service has, from a time
    /// when the Service was valid or another manager served it.
    ///
    /// Pure. Called where [`interpret`](Self::interpret) answered
    /// [`ServiceInterpretation::Invalid`] and this process has not seen the Service valid, for
    /// instance after a restart. If this returns `Some` and the Service's status shows a load
    /// balancer, [`update_backends`](Self::update_backends) is called with the invalid Service so
    /// that the backends follow the nodes; only the invalid change is rejected. With `None`, the
    /// default, the backends stay unchanged until the Service is valid.
    fn backends_of_invalid(&self, service: &ServiceView) -> Option<BackendKind> {
        let _ = service;
        None
    }

    /// Returns what the owner of a Service should know although the Service is served, or belongs
    /// to another controller: an unknown annotation, a setting that has no effect here.
    ///
    /// Pure. Called after [`interpret`](Self::interpret) with the same Service. Each notice becomes
    /// one event when it first appears on the Service, not one per reconcile. None by default.
    fn notices(&self, service: &ServiceView) -> Vec<ServiceNotice> {
        let _ = service;
        Vec::new()
    }

    /// Creates or updates the load balancer so that it matches the spec.
    ///
    /// Idempotent and resumable: an earlier call may have been interrupted after any of its cloud
    /// requests. With [`ReadMode::Cached`] it may rely on its cached state of the cloud; with
    /// [`ReadMode::Fresh`] it reads the cloud again and repairs drift. No call sleeps longer than
    /// two seconds: answer [`Progress::Pending`] instead.
    async fn ensure(&self, op: &Op, want: &LbSpec, depth: ReadMode) -> LbOutcome;

    /// Updates the set of backends, and nothing else.
    ///
    /// Called when only nodes or endpoints changed, and after an [`ensure`](Self::ensure) that was
    /// [rejected](super::ErrorKind::is_rejection), so that the existing load balancer keeps
    /// serving. In that case the rest of the spec may not have been applied. Where
    /// [`backends_of_invalid`](Self::backends_of_invalid) answers `Some`, it is also called with an
    /// invalid Service: its [`sources`](LbSpec::sources) may then be wrong, and nothing may be
    /// opened because of them. Answer [`ErrorKind::NotFound`](super::ErrorKind::NotFound) if the
    /// load balancer does not exist: `ensure` is then called.
    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome;

    /// Deletes the load balancer and all its parts. Succeeds when nothing exists, works when the
    /// Service's spec is invalid or the Service is deleted, and never touches objects that this
    /// cluster does not own.
    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError>;

    /// Returns the annotations to remove from a Service that continues to exist after its load
    /// balancer was deleted, because its type changed: those that the provider wrote and that would
    /// mislead the next `ensure`.
    ///
    /// Pure. Called after [`delete`](Self::delete) answered [`Progress::Done`]. None by default.
    fn stale_annotations(&self, lb: &LbRef) -> Vec<Box<str>> {
        let _ = lb;
        Vec::new()
    }

    /// Returns what [`ensure`](Self::ensure) would change in the cloud, and in the status and
    /// annotations of the Service, without changing anything. Called after a restart and once per
    /// period for load balancers that should be up to date, and for a dry run. If the result is
    /// empty, `ensure` is not called.
    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError>;
}

/// Features of a provider's load balancers. The default supports nothing beyond TCP to node ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a set of independent capabilities, each named at its use"
)]
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
    /// Lists what `service` requests beyond these features, and what it requests in an invalid
    /// form. Empty when the Service may be served.
    pub fn validate(&self, service: &ServiceView) -> Vec<FieldError> {
        let protocols: BTreeSet<_> = service.ports.iter().map(|p| p.protocol).collect();
        let families: BTreeSet<_> = service.ip_families.iter().copied().collect();
        let no_node_port =
            !service.allocate_node_ports && service.ports.iter().any(|p| p.node_port.is_none());
        let requests_address = service
            .load_balancer_ip
            .as_ref()
            .is_some_and(|ip| !ip.is_empty());
        let requests_affinity = service.session_affinity != SessionAffinity::None;
        let mut errors = Vec::new();
        for (is_requested, is_supported, field, message) in [
            (
                protocols.contains(&Protocol::Udp),
                self.udp,
                "spec.ports",
                "protocol UDP is not supported",
            ),
            (
                protocols.contains(&Protocol::Sctp),
                self.sctp,
                "spec.ports",
                "protocol SCTP is not supported",
            ),
            (
                protocols.len() > 1,
                self.mixed_protocols,
                "spec.ports",
                "more than one protocol is not supported",
            ),
            (
                families.len() > 1,
                self.dual_stack,
                "spec.ipFamilies",
                "two address families are not supported",
            ),
            (
                no_node_port,
                self.no_node_ports,
                "spec.allocateLoadBalancerNodePorts",
                "ports without a node port are not supported",
            ),
            (
                requests_address,
                self.load_balancer_ip,
                "spec.loadBalancerIP",
                "a requested address is not supported",
            ),
            (
                requests_affinity,
                self.client_ip_affinity,
                "spec.sessionAffinity",
                "session affinity is not supported",
            ),
        ] {
            if is_requested && !is_supported {
                errors.push(FieldError::new(field, message));
            }
        }
        match SourceRanges::of(service) {
            Ok(sources) if sources.restricts(&service.ip_families) && !self.source_ranges => {
                errors.push(FieldError::new(
                    "spec.loadBalancerSourceRanges",
                    "restricting clients by source range is not supported",
                ));
            }
            Ok(_) => {}
            Err(invalid) => errors.extend(invalid),
        }
        errors
    }
}

/// Whether a Service is ours, and whether it is valid.
#[derive(Clone, Debug, PartialEq)]
pub enum ServiceInterpretation {
    /// Ours, and valid.
    Valid {
        /// Which backends it takes.
        backends: BackendKind,
        /// Digest of everything, besides the backends, that `ensure` acts on. Equal digests need no
        /// cloud call.
        digest: Digest,
    },
    /// Another controller's. It is not changed, and neither is its status.
    ImplementedElsewhere,
    /// Ours, but it cannot be served. Contains every validation error, for one event.
    Invalid(Vec<FieldError>),
}

/// What load balancers address nodes by. It decides which nodes can be backends and which changes
/// affect a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeTarget {
    /// An address of the Node. Every node that is not excluded is a backend, as upstream, even if
    /// its provider ID belongs to another provider: a cluster whose distribution sets its own
    /// provider IDs keeps its backends.
    Address,
    /// The instance that the provider ID names. Nodes of other providers are never backends, and a
    /// change of addresses does not affect any load balancer.
    Instance,
}

/// Which backends a load balancer takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Nodes that meet all of these requirements; every node when the list is empty.
    Nodes(Vec<LabelRequirement>),
    /// Endpoints of the Service.
    Endpoints,
}

/// A requirement on a node's labels for it to be a backend.
///
/// Labels that are named only in annotations are cached only if
/// [`CloudProvider::node_fields`](super::CloudProvider::node_fields) requests `all_labels`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LabelRequirement {
    /// The label exists, with any value.
    Exists(Box<str>),
    /// The label has exactly this value.
    Equals(Box<str>, Box<str>),
}

impl LabelRequirement {
    /// Returns whether the node meets the requirement.
    pub fn matches(&self, node: &NodeView) -> bool {
        match self {
            Self::Exists(key) => node.labels.contains(key),
            Self::Equals(key, value) => node.labels.get(key) == Some(value),
        }
    }
}

/// An event for the owner of a Service that is served, emitted once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceNotice {
    /// Type of the event.
    pub kind: EventType,
    /// Event reason: PascalCase, from a small fixed set.
    pub reason: &'static str,
    /// Text of the event, under 1 kB.
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

/// One validation error of a Service, naming the field or annotation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Field path or annotation key.
    pub field: Box<str>,
    /// What is wrong with it.
    pub message: Box<str>,
}

impl FieldError {
    /// Makes a validation error from the field path or annotation key and what is wrong with it.
    pub fn new(field: impl Into<Box<str>>, message: impl Into<Box<str>>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl From<Vec<FieldError>> for CloudError {
    /// Joins all validation errors into one message.
    fn from(errors: Vec<FieldError>) -> Self {
        let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
        Self::invalid_input(messages.join("; "))
    }
}

/// Complete, validated description of a desired load balancer.
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
    /// The Service sets no source ranges: the provider's default applies, usually any client.
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
    /// Every entry that is not a network, each once. A Service with such an entry must not be
    /// served: leaving the entry out could open or close the load balancer to the wrong clients.
    pub fn of(service: &ServiceView) -> Result<Self, Vec<FieldError>> {
        let annotation = service
            .annotations
            .get(well_known::ANNOTATION_SOURCE_RANGES)
            .map(|text| text.trim());
        let (field, entries): (_, Vec<&str>) = match annotation {
            _ if !service.source_ranges.is_empty() => (
                "spec.loadBalancerSourceRanges",
                service.source_ranges.iter().map(|e| e.trim()).collect(),
            ),
            Some(text) if !text.is_empty() => {
                (well_known::ANNOTATION_SOURCE_RANGES, text.split(',').map(str::trim).collect())
            }
            _ => return Ok(Self::Unset),
        };
        let mut networks = BTreeSet::new();
        let mut invalid = Vec::new();
        for entry in entries {
            match entry.parse::<IpNet>() {
                Ok(network) => {
                    networks.insert(network.trunc());
                }
                Err(_) => {
                    let error =
                        FieldError::new(field, format!("{entry:?} is not a network in CIDR form"));
                    if !invalid.contains(&error) {
                        invalid.push(error);
                    }
                }
            }
        }
        if invalid.is_empty() {
            Ok(Self::Only(networks.into_iter().collect()))
        } else {
            Err(invalid)
        }
    }

    /// Returns the networks. For `Unset` returns those that contain all clients of these address
    /// families, or of IPv4 if `families` is empty.
    pub fn or_any_source(self, families: &[IpFamily]) -> Vec<IpNet> {
        match self {
            Self::Only(networks) => networks,
            Self::Unset if families.is_empty() => vec![all_addresses(IpFamily::V4)],
            Self::Unset => families.iter().copied().map(all_addresses).collect(),
        }
    }

    /// Returns whether any client of these address families, or of a family listed here, is
    /// excluded.
    pub fn restricts(&self, families: &[IpFamily]) -> bool {
        let Self::Only(networks) = self else {
            return false;
        };
        let open_families: Vec<IpFamily> = networks
            .iter()
            .filter(|network| network.prefix_len() == 0)
            .map(IpFamily::of)
            .collect();
        networks
            .iter()
            .map(IpFamily::of)
            .chain(families.iter().copied())
            .any(|family| !open_families.contains(&family))
    }
}

/// Returns the network of all addresses of a family.
fn all_addresses(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => IpNet::V4(Ipv4Net::default()),
        IpFamily::V6 => IpNet::V6(Ipv6Net::default()),
    }
}

/// Backends of a desired load balancer.
#[derive(Clone, Debug)]
pub enum Backends {
    /// Nodes, sorted by name.
    Nodes(Vec<Arc<NodeView>>),
    /// Slices of the Service, sorted by name.
    Endpoints(Vec<Arc<EndpointSliceView>>),
}

impl Backends {
    /// Returns the nodes; empty if endpoints are the backends, which only happens for a provider
    /// that [supports them](LoadBalancers::supports_endpoint_backends).
    pub fn nodes(&self) -> &[Arc<NodeView>] {
        match self {
            Self::Nodes(nodes) => nodes,
            Self::Endpoints(_) => &[],
        }
    }
}

/// How far `ensure` relies on cached state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Only differences from the cached state need calls.
    Cached,
    /// Read the cloud and repair drift.
    Fresh,
}

/// Identifies a load balancer to delete, even when the Service is invalid or already deleted.
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
    /// Annotations as last observed.
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
    /// Status as last observed.
    pub status: LbStatus,
    /// The Service as last observed, if it was observed.
    pub last_observed: Option<Arc<ServiceView>>,
}

/// Result of `ensure` and `update_backends`.
#[derive(Debug)]
pub struct LbOutcome {
    /// Status to publish; `None` leaves it untouched. May be given together with an error.
    pub status: Option<LbStatus>,
    /// Annotations to persist on the Service; `None` removes one.
    pub annotations: BTreeMap<Box<str>, Option<Box<str>>>,
    /// Progress, or why the call failed.
    pub result: Result<Progress, CloudError>,
}

impl LbOutcome {
    /// Makes a finished outcome that publishes `status`.
    pub fn done(status: LbStatus) -> Self {
        Self {
            status: Some(status),
            annotations: BTreeMap::new(),
            result: Ok(Progress::Done),
        }
    }

    /// Makes an outcome that is pending in the cloud and leaves the status untouched.
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

    /// Publishes `status` whatever the result: for a load balancer that serves although a later
    /// step failed or is pending.
    #[must_use]
    pub fn with_status(mut self, status: LbStatus) -> Self {
        self.status = Some(status);
        self
    }
}

impl From<Progress> for LbOutcome {
    /// Leaves the status untouched.
    fn from(progress: Progress) -> Self {
        Self {
            status: None,
            annotations: BTreeMap::new(),
            result: Ok(progress),
        }
    }
}

impl From<CloudError> for LbOutcome {
    fn from(error: CloudError) -> Self {
        Self {
            status: None,
            annotations: BTreeMap::new(),
            result: Err(error),
        }
    }
}

/// Whether something is finished. Waiting is an outcome, not an error: it emits no warning and
/// occupies no worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Finished.
    Done,
    /// The cloud is still working on it.
    Pending {
        /// Delay before the next call.
        after: Duration,
        /// What the call waits for.
        why: Box<str>,
    },
}

impl Progress {
    /// Makes a pending result whose delay [grows](Op::poll_interval) with the time waited.
    pub fn pending(op: &Op, why: impl Into<Box<str>>) -> Self {
        Self::Pending { after: op.poll_interval(), why: why.into() }
    }
}

/// One change that a provider would make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// Cloud operation, in the cloud's own spelling.
    pub operation: Box<str>,
    /// Object that the operation concerns.
    pub object: Box<str>,
    /// Why the change is needed.
    pub reason: Box<str>,
}

#[cfg(test)]
#[path = "load_balancer_tests.rs"]
mod tests;

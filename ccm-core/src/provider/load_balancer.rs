//! The load balancers of a provider, and their description by a Service.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{CloudError, ErrorKind, EventType, Op, RetainOutcome, Retention, adopted_id};
use crate::k8s::{
    EndpointSliceView, IpFamily, LbStatus, NodeView, Protocol, ServiceView, SessionAffinity,
    well_known,
};

/// Creates, updates and deletes load balancers for Services. Needed for the service controller.
///
/// The framework never runs two calls for the same Service at the same time.
#[async_trait]
pub trait LoadBalancers: Send + Sync {
    /// Returns the features that the provider supports. The result must not change once
    /// [`CloudProvider::start`](super::CloudProvider::start) has returned.
    ///
    /// The framework checks every Service against these features ([`LbSupport::validate`]) before
    /// it calls `ensure`. It rejects a Service that requests more with an event, and never serves
    /// it with weaker restrictions than requested.
    fn supports(&self) -> LbSupport;

    /// Returns the values of `spec.loadBalancerClass` that the provider serves, in addition to
    /// Services without a class. The result must not change. The default is none.
    ///
    /// The framework ignores a Service with another class: it gets no finalizer and no event, and
    /// causes no call.
    fn classes(&self) -> Vec<Box<str>> {
        Vec::new()
    }

    /// Returns true if [`interpret`](Self::interpret) may return [`BackendKind::Endpoints`]. The
    /// result must not change. The default is `false`.
    ///
    /// The framework watches EndpointSlices only if this returns true (RBAC: `list` and `watch` on
    /// `endpointslices`). If they cannot be listed, Services with such backends wait, and all
    /// others are served.
    fn supports_endpoint_backends(&self) -> bool {
        false
    }

    /// Returns the property of nodes by which load balancers address them. The result must not
    /// change. The default is [`NodeTarget::Address`], as upstream.
    fn node_target(&self) -> NodeTarget {
        NodeTarget::Address
    }

    /// Parses the Service. Returns whether it belongs to this provider and is valid, the kind of
    /// its backends, and a digest of everything that matters to the cloud.
    ///
    /// Must be pure: no I/O, no clock. Called for each observed change of a Service of type
    /// LoadBalancer that has no class or one of [`classes`](Self::classes). Annotations that the
    /// provider itself writes ([`LbOutcome::annotations`]) must not change the digest, because then
    /// each write would cause another `ensure`.
    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation;

    /// Returns the kind of backends that the load balancer of an invalid Service has. Such a load
    /// balancer was created when the Service was valid, or by another manager. The default is
    /// `None`.
    ///
    /// Must be pure. Called if [`interpret`](Self::interpret) returned
    /// [`ServiceInterpretation::Invalid`] and this process has not observed the Service while it
    /// was valid, for instance after a restart. If this returns `Some` and the Service's status
    /// contains a load balancer, the framework calls [`update_backends`](Self::update_backends)
    /// with the invalid Service, and the backends follow the nodes although the invalid change is
    /// rejected. If it returns `None`, the backends stay unchanged until the Service is valid.
    fn backends_of_invalid(&self, service: &ServiceView) -> Option<BackendKind> {
        let _ = service;
        None
    }

    /// Returns notices for the owner of a Service that is served or belongs to another controller,
    /// for example about an unknown annotation or a setting that has no effect. The default is
    /// none.
    ///
    /// Must be pure. Called after [`interpret`](Self::interpret) with the same Service. The
    /// framework emits one event for each notice when it first appears on the Service, and none at
    /// later reconciles.
    fn notices(&self, service: &ServiceView) -> Vec<ServiceNotice> {
        let _ = service;
        Vec::new()
    }

    /// Creates or updates the load balancer so that it matches the spec.
    ///
    /// Must be idempotent, and must continue an earlier call that was interrupted after any of its
    /// cloud requests. With [`ReadMode::Cached`] it may rely on a cached state of the cloud. With
    /// [`ReadMode::Fresh`] it must read the cloud again and repair drift. It must not sleep for
    /// more than two seconds, but return [`Progress::Pending`] instead.
    async fn ensure(&self, op: &Op, want: &LbSpec, depth: ReadMode) -> LbOutcome;

    /// Updates the set of backends, and nothing else.
    ///
    /// Called if only nodes or endpoints changed. Also called after an [`ensure`](Self::ensure)
    /// that was [rejected](super::ErrorKind::is_rejection), so that the existing load balancer
    /// keeps serving; the rest of the spec may then not have been applied.
    ///
    /// If [`backends_of_invalid`](Self::backends_of_invalid) returns `Some`, this is also called
    /// with an invalid Service. Its [`sources`](LbSpec::sources) may then be wrong, and must not be
    /// used to open anything.
    ///
    /// # Errors
    /// Must return [`ErrorKind::NotFound`](super::ErrorKind::NotFound) if the load balancer does
    /// not exist. The framework then calls `ensure`.
    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome;

    /// Deletes the load balancer and all its parts.
    ///
    /// Must succeed if nothing exists, and must also work if the Service is invalid or was already
    /// deleted. Must not change objects that this cluster does not own.
    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError>;

    /// Lets go of the load balancer of a Service, where [`delete`](Self::delete) would be called if the
    /// Service did not ask to keep it. Everything that keeps it serving stays: listeners, backends,
    /// addresses, security groups and rules. The default is an error, after which the load balancer
    /// stays as it is and the Service waits.
    ///
    /// Called only if [`LbSupport::retain`] is set, until it returns
    /// [`RetainOutcome::Retained`] or [`RetainOutcome::NothingToRetain`]. The finalizer is removed
    /// then.
    ///
    /// Must be idempotent, and must continue an earlier call that was interrupted after any of its
    /// cloud requests. The load balancer gets a mark in the cloud. From then on no `ensure`,
    /// `update_backends`, `delete` or [`Inventory`](super::Inventory) of any cluster may change or
    /// list it, also for a Service of the same name or UID. Only the `ensure` of a Service
    /// [that names its ID](super::adopted_id) may: it makes the load balancer the Service's own,
    /// removes the mark last, and then changes only what differs. An `ensure` must reject
    /// ([`InvalidInput`](super::ErrorKind::InvalidInput)) an ID whose load balancer has no mark and
    /// is not the Service's own.
    ///
    /// # Errors
    /// Must return an error, without a change, if it is in doubt whether the load balancer is the
    /// Service's or whether there is one, or if others use it too.
    async fn retain(&self, op: &Op, lb: &LbRef) -> Result<RetainOutcome, CloudError> {
        let _ = (op, lb);
        Err(CloudError::new(ErrorKind::NotImplemented, "the provider cannot keep load balancers"))
    }

    /// Returns the annotations to remove from a Service that continues to exist after its load
    /// balancer was deleted, because its type changed. These are the annotations that the provider
    /// wrote and that would mislead the next `ensure`. The default is none.
    ///
    /// Must be pure. Called after [`delete`](Self::delete) has returned [`Progress::Done`].
    fn stale_annotations(&self, lb: &LbRef) -> Vec<Box<str>> {
        let _ = lb;
        Vec::new()
    }

    /// Returns the changes that [`ensure`](Self::ensure) would make in the cloud and in the status
    /// and annotations of the Service. Must not change anything.
    ///
    /// Called after a restart, once per period for load balancers that should be up to date, and in
    /// shadow mode. If the result is empty, the framework does not call `ensure`.
    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError>;
}

/// The features of a provider's load balancers. The default is TCP over IPv4 to node ports and nothing
/// else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a set of independent capabilities, each named at its use"
)]
pub struct LbSupport {
    /// Restriction of clients by source range.
    pub source_ranges: bool,
    /// UDP ports.
    pub udp: bool,
    /// SCTP ports.
    pub sctp: bool,
    /// Ports of different protocols on one Service.
    pub mixed_protocols: bool,
    /// IPv6 as the only address family.
    pub ipv6: bool,
    /// Two address families.
    pub dual_stack: bool,
    /// Services without node ports.
    pub no_node_ports: bool,
    /// `spec.loadBalancerIP`.
    pub load_balancer_ip: bool,
    /// Session affinity by client address.
    pub client_ip_affinity: bool,
    /// Load balancers that are kept for others ([`LoadBalancers::retain`]), and their adoption.
    pub retain: bool,
}

impl LbSupport {
    /// Returns a validation error for everything that `service` requests beyond these features or
    /// in an invalid form. The result is empty if the Service may be served.
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
                families.len() == 1 && families.contains(&IpFamily::V6),
                self.ipv6,
                "spec.ipFamilies",
                "address family IPv6 is not supported",
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
        errors.extend(self.retention_errors(service));
        errors
    }

    /// Returns the validation errors of the annotations that keep and adopt a load balancer.
    fn retention_errors(&self, service: &ServiceView) -> Vec<FieldError> {
        let mut errors = Vec::new();
        match Retention::of(service) {
            Retention::Delete => {}
            Retention::Keep if self.retain => {}
            Retention::Keep => {
                let message = "the provider cannot keep load balancers";
                errors.push(FieldError::new(well_known::ANNOTATION_RETAIN, message));
            }
            Retention::Unclear(value) => {
                let message = format!("{value:?} is neither true nor false");
                errors.push(FieldError::new(well_known::ANNOTATION_RETAIN, message));
            }
        }
        if service.annotation(well_known::ANNOTATION_ADOPT).is_some() {
            if !self.retain {
                let message = "the provider cannot adopt load balancers";
                errors.push(FieldError::new(well_known::ANNOTATION_ADOPT, message));
            } else if adopted_id(service).is_none() {
                let message = "names no load balancer";
                errors.push(FieldError::new(well_known::ANNOTATION_ADOPT, message));
            }
        }
        errors
    }
}

/// The provider's interpretation of a Service: valid, invalid, or another controller's.
#[derive(Clone, Debug, PartialEq)]
pub enum ServiceInterpretation {
    /// The Service belongs to this provider and is valid.
    Valid {
        /// The kind of its backends.
        backends: BackendKind,
        /// A digest of everything that `ensure` acts on, except the backends. If it is equal to the
        /// digest of the last `ensure`, no cloud call is needed.
        digest: Digest,
    },
    /// The Service belongs to another controller. The framework changes neither it nor its status.
    ImplementedElsewhere,
    /// The Service belongs to this provider but cannot be served. Contains all validation errors,
    /// which are reported in one event.
    Invalid(Vec<FieldError>),
}

/// The property of nodes by which load balancers address them. It determines the nodes that can be
/// backends and the changes of nodes that affect a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeTarget {
    /// An address of the Node. As upstream, every node that is not excluded is a backend, even if
    /// its provider ID belongs to another provider. A cluster whose distribution sets its own
    /// provider IDs therefore keeps its backends.
    Address,
    /// The instance that the provider ID names. Nodes of other providers are never backends, and
    /// changes of addresses do not affect load balancers.
    Instance,
}

/// The kind of a load balancer's backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Nodes that meet all of these requirements, or all nodes if the list is empty.
    Nodes(Vec<LabelRequirement>),
    /// Endpoints of the Service.
    Endpoints,
}

/// A requirement that a node's labels must meet for the node to be a backend.
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
    /// Returns true if the node meets the requirement.
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
    /// The type of the event.
    pub kind: EventType,
    /// The event reason, in PascalCase and from a small fixed set.
    pub reason: &'static str,
    /// The text of the event, of less than 1 kB.
    pub note: Box<str>,
}

/// A digest of a desired state. It is stable within a process and never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u64);

impl Digest {
    /// Returns the digest of a value. Equal values have equal digests within a process.
    pub fn of(value: &impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A validation error of a Service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// The path of the field, or the key of the annotation.
    pub field: Box<str>,
    /// The problem with its value.
    pub message: Box<str>,
}

impl FieldError {
    /// Creates a validation error for a field path or an annotation key.
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

/// The complete, validated description of a desired load balancer.
#[derive(Clone, Debug)]
pub struct LbSpec {
    /// The value of `--cluster-name`.
    pub cluster: Arc<str>,
    /// The Service as last observed, with its ports, policies, annotations and status.
    pub service: Arc<ServiceView>,
    /// The networks of the clients that may connect.
    pub sources: SourceRanges,
    /// The desired backends.
    pub backends: Backends,
}

/// The networks of the clients that may connect to a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceRanges {
    /// The Service sets no source ranges. The provider's default applies, which is usually all
    /// clients.
    Unset,
    /// Exactly these networks, sorted and without duplicates. May contain `0.0.0.0/0` or `::/0`.
    Only(Vec<IpNet>),
}

impl SourceRanges {
    /// Reads `spec.loadBalancerSourceRanges`, or, when that is empty, the annotation
    /// `service.beta.kubernetes.io/load-balancer-source-ranges` (comma-separated).
    ///
    /// Networks are truncated to their prefix. An empty annotation counts as absent.
    ///
    /// # Errors
    /// Returns one error for each distinct entry that is not a network. A Service with such an
    /// entry must not be served, because ignoring the entry could admit or exclude the wrong
    /// clients.
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

    /// Returns the networks. For [`Unset`](Self::Unset) these are the networks of all clients of
    /// these address families, or of IPv4 if `families` is empty.
    pub fn or_any_source(self, families: &[IpFamily]) -> Vec<IpNet> {
        match self {
            Self::Only(networks) => networks,
            Self::Unset if families.is_empty() => vec![all_addresses(IpFamily::V4)],
            Self::Unset => families.iter().copied().map(all_addresses).collect(),
        }
    }

    /// Returns true if some client is excluded whose address family is one of `families` or occurs
    /// in the networks.
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

/// The backends of a desired load balancer.
#[derive(Clone, Debug)]
pub enum Backends {
    /// Nodes, sorted by name.
    Nodes(Vec<Arc<NodeView>>),
    /// EndpointSlices of the Service, sorted by name.
    Endpoints(Vec<Arc<EndpointSliceView>>),
}

impl Backends {
    /// Returns the nodes. Returns none if the backends are endpoints, which only happens with a
    /// provider that [supports them](LoadBalancers::supports_endpoint_backends).
    pub fn nodes(&self) -> &[Arc<NodeView>] {
        match self {
            Self::Nodes(nodes) => nodes,
            Self::Endpoints(_) => &[],
        }
    }
}

/// The extent to which `ensure` may rely on cached state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Compare with the cached state, and send requests only for differences from it.
    Cached,
    /// Read the cloud and repair drift.
    Fresh,
}

/// Identifies a load balancer to delete, even when the Service is invalid or already deleted.
#[derive(Clone, Debug)]
pub struct LbRef {
    /// The UID of the Service.
    pub uid: Box<str>,
    /// The namespace of the Service.
    pub namespace: Arc<str>,
    /// The name of the Service.
    pub name: Arc<str>,
    /// The Service's load balancer class, if it has one.
    pub class: Option<Arc<str>>,
    /// The Service's annotations, as last observed.
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
    /// The Service's status, as last observed.
    pub status: LbStatus,
    /// The Service as last observed, if this process has observed it.
    pub last_observed: Option<Arc<ServiceView>>,
}

impl LbRef {
    /// Returns the Service as it was last observed, or what this reference says of it.
    pub fn last_observed_service(&self) -> ServiceView {
        let observed = self.last_observed.as_deref().cloned();
        let service = observed.unwrap_or_else(|| ServiceView::named(&self.namespace, &self.name));
        ServiceView {
            uid: self.uid.clone(),
            class: self.class.clone(),
            annotations: self.annotations.clone(),
            status: self.status.clone(),
            ..service
        }
    }
}

/// The result of `ensure` and `update_backends`.
#[derive(Debug)]
pub struct LbOutcome {
    /// The status to write to the Service, or `None` to leave it unchanged. May be set together
    /// with an error.
    pub status: Option<LbStatus>,
    /// The annotations to write to the Service. `None` removes an annotation.
    pub annotations: BTreeMap<Box<str>, Option<Box<str>>>,
    /// The progress, or the error of the call.
    pub result: Result<Progress, CloudError>,
}

impl LbOutcome {
    /// Creates the outcome of a finished call. The framework writes `status` to the Service.
    pub fn done(status: LbStatus) -> Self {
        Self {
            status: Some(status),
            annotations: BTreeMap::new(),
            result: Ok(Progress::Done),
        }
    }

    /// Creates the outcome of a call whose changes are pending in the cloud. Leaves the status
    /// unchanged. `after` is the delay before the next call, and `reason` says what the call waits
    /// for.
    pub fn pending(after: Duration, reason: impl Into<Box<str>>) -> Self {
        let result = Ok(Progress::Pending { after, reason: reason.into() });
        Self { status: None, annotations: BTreeMap::new(), result }
    }

    /// Adds an annotation to write to the Service.
    #[must_use]
    pub fn with_annotation(mut self, key: impl Into<Box<str>>, value: impl Into<Box<str>>) -> Self {
        self.annotations.insert(key.into(), Some(value.into()));
        self
    }

    /// Sets the status to write to the Service, whatever the result. Use it for a load balancer
    /// that serves although a later action failed or is pending.
    #[must_use]
    pub fn with_status(mut self, status: LbStatus) -> Self {
        self.status = Some(status);
        self
    }
}

impl From<Progress> for LbOutcome {
    /// Creates an outcome that leaves the status unchanged.
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

/// The progress of a call. Waiting for the cloud is not an error: it causes no warning and occupies
/// no worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The call is finished.
    Done,
    /// The cloud is still working on it.
    Pending {
        /// The delay before the next call.
        after: Duration,
        /// The reason: what the call waits for.
        reason: Box<str>,
    },
}

impl Progress {
    /// Creates a pending result whose delay [grows](Op::poll_interval) with the time waited.
    /// `reason` says what the call waits for.
    pub fn pending(op: &Op, reason: impl Into<Box<str>>) -> Self {
        Self::Pending { after: op.poll_interval(), reason: reason.into() }
    }
}

/// A change that a provider would make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// The cloud operation, in the cloud's own spelling.
    pub operation: Box<str>,
    /// The object that the operation would change.
    pub object: Box<str>,
    /// The reason for the change.
    pub reason: Box<str>,
}

#[cfg(test)]
#[path = "load_balancer_tests.rs"]
mod tests;

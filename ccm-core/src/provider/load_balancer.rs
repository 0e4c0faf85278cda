use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use ipnet::IpNet;

use super::{CloudError, Op};
use crate::k8s::{EndpointSliceView, LbStatus, NodeView, ServiceView};

/// Creates, updates and deletes load balancers for Services. Needed for the service controller.
///
/// A service is owned by one worker at a time: no two calls about one service overlap.
#[async_trait]
pub trait LoadBalancers: Send + Sync {
    /// Returns what the provider can do. A Service that asks for more is refused with an event, never served more
    /// openly than it asked.
    fn supports(&self) -> LbSupport;

    /// Parses the Service once: whose it is, which backends it takes, and a digest of all that matters to the cloud.
    ///
    /// Pure: no I/O, no clock. Called for each observed change of a Service of type LoadBalancer whose class is
    /// claimed by the configuration.
    fn interpret(&self, service: &ServiceView) -> Claim;

    /// Makes the load balancer as described, creating what is missing.
    ///
    /// Idempotent and resumable: it may have been interrupted after any of its cloud calls, and is called again. With
    /// [`Depth::Trust`] it may believe what it knows of the cloud; with [`Depth::Verify`] it reads the cloud again and
    /// repairs drift. No call sleeps longer than two seconds: answer [`Progress::Pending`] instead.
    async fn ensure(&self, op: &Op, want: &LbSpec, depth: Depth) -> LbOutcome;

    /// Brings the set of backends, and nothing else, in line. Called when only nodes or endpoints changed. Answer
    /// [`ErrorKind::NotFound`](super::ErrorKind::NotFound) if the balancer is not there: it is then ensured.
    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome;

    /// Deletes everything of the load balancer. Succeeds on nothing, works when the Service's spec is invalid or the
    /// Service is gone, and never touches what this cluster does not own.
    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError>;

    /// Says what [`ensure`](Self::ensure) would change, without changing anything (dry run, shadow mode).
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

/// Whose a Service is.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// Ours, and valid.
    Ours {
        /// Which backends it takes.
        backends: Backends,
        /// Digest of everything, besides the backends, that `ensure` would act on. Equal digests need no cloud call.
        digest: Digest,
    },
    /// Another controller's: left alone, status untouched.
    Elsewhere,
    /// Ours, but it cannot be served; every mistake, for one event.
    Refused(Vec<InvalidInput>),
}

/// Which backends a load balancer takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backends {
    /// Nodes, optionally only those with all of these labels (`(key, value)`).
    Nodes(Vec<(Box<str>, Box<str>)>),
    /// Endpoints of the Service.
    Endpoints,
}

/// Digest of a desired state. Stable within a process; never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest(pub u64);

/// One mistake in a Service, naming the field or annotation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct InvalidInput {
    /// Field path or annotation key.
    pub field: Box<str>,
    /// What is wrong with it.
    pub message: Box<str>,
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
    pub backends: BackendSet,
}

/// Which clients may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceRanges {
    /// The Service says nothing: provider's default, commonly everybody.
    Unset,
    /// Exactly these, sorted and without duplicates. May hold `0.0.0.0/0` or `::/0`.
    Only(Vec<IpNet>),
}

/// Backends of a wanted load balancer.
#[derive(Clone, Debug)]
pub enum BackendSet {
    /// Nodes, sorted by name.
    Nodes(Vec<Arc<NodeView>>),
    /// Slices of the Service, sorted by name.
    Endpoints(Vec<Arc<EndpointSliceView>>),
}

/// How far `ensure` trusts what it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Only differences from the last known state need calls.
    Trust,
    /// Read the cloud and repair drift.
    Verify,
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
    pub last_seen: Option<Arc<ServiceView>>,
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

//! What a cloud implements.
//!
//! A provider is one object that implements [`CloudProvider`] and offers its capabilities as further traits:
//! [`Instances`], [`LoadBalancers`], [`Routes`], [`Inventory`]. A controller whose capability is missing does not
//! start. A provider needs no watch and no Kubernetes client of its own: every call carries what it is about.
//!
//! # Coming from Go
//!
//! | `k8s.io/cloud-provider` | here |
//! |---|---|
//! | `Interface.Initialize`, `SetInformers` | [`CloudProvider::start`] with a [`ProviderContext`]; fallible, once per process |
//! | `Interface.ProviderName` | [`CloudProvider::name`] |
//! | `Interface.HasClusterID` | [`CloudProvider::has_cluster_id`] |
//! | `Interface.InstancesV2` (and `Instances`, `Zones`) | [`CloudProvider::instances`] |
//! | `Interface.LoadBalancer`, `Routes` | [`CloudProvider::load_balancers`], [`CloudProvider::routes`] |
//! | `Interface.Clusters`, `AddSSHKeyToAllInstances`, `CurrentNodeName` | nothing: never called upstream |
//! | `RegisterCloudProvider`, factory | the provider's `main` hands its constructor to the framework |
//! | `InstancesV2.InstanceExists`, `.InstanceShutdown`, `.InstanceMetadata` | [`Instances::describe`] |
//! | `LoadBalancer.EnsureLoadBalancer` | [`LoadBalancers::interpret`], then [`LoadBalancers::ensure`] |
//! | `LoadBalancer.UpdateLoadBalancer` | [`LoadBalancers::update_backends`] |
//! | `LoadBalancer.GetLoadBalancer`, `.EnsureLoadBalancerDeleted` | [`LoadBalancers::delete`], which succeeds on nothing |
//! | `LoadBalancer.GetLoadBalancerName` | the provider's own business |
//! | `Routes.ListRoutes`, `.CreateRoute`, `.DeleteRoute` | [`Routes::list`], [`Routes::apply`] |
//! | `InstanceNotFound` | [`Presence::NotFound`], and only on proof |
//! | `NotImplemented` | a missing capability, or [`ErrorKind::NotImplemented`] |
//! | `ImplementedElsewhere` | [`Claim::Elsewhere`], or [`ErrorKind::ImplementedElsewhere`] |
//! | `api.RetryError` | [`CloudError::with_retry_after`] on any call, or [`Progress::Pending`] |
//! | `DiskNotFound`, volume helpers | nothing: volumes left the framework long ago |
//! | `cloudprovider.DefaultLoadBalancerName` and other helpers | to come with the service controller |
//!
//! What the framework does with each error is written at [`ErrorKind`].

mod batch;
mod error;
mod instances;
mod inventory;
mod load_balancer;
mod op;
mod routes;

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

pub use batch::Coalescer;
pub use error::{CloudError, ErrorKind};
pub use instances::{BatchLimits, InstanceMetadata, Instances, Need, NodeQuery, Power, Presence};
pub use inventory::{Inventory, OwnedObject, Owner};
pub use load_balancer::{
    BackendSet, Backends, Claim, Depth, Digest, InvalidInput, LbOutcome, LbRef, LbSpec, LbSupport, LoadBalancers,
    PlannedChange, Progress, SourceRanges,
};
pub use op::{EventKind, ObjectEvents, Op};
pub use routes::{Route, RouteChange, Routes};

use crate::{
    k8s::{EndpointSliceView, NodeFields, NodeView, ServiceView},
    runtime::gate::WriteGate,
};

/// A cloud.
///
/// Object-safe; constructed by the provider's own async, fallible function before leader election, so that a bad
/// configuration ends a standby too.
#[async_trait]
pub trait CloudProvider: Send + Sync + 'static {
    /// Returns the provider's name: scheme of its provider IDs, label of metrics, field of logs.
    fn name(&self) -> &str;

    /// Tells whether the provider can tell this cluster's objects from another's. `false` ends the process unless
    /// `--allow-untagged-cloud` is given.
    fn has_cluster_id(&self) -> bool {
        true
    }

    /// Tells whose node this is, from its provider ID, labels or name.
    ///
    /// Pure, no cloud call. A foreign node is never initialised, tainted, deleted, routed to or balanced to. The
    /// default claims every node, as upstream does; a provider whose clusters may be mixed should at least compare the
    /// scheme of the provider ID.
    fn claims_node(&self, node: &NodeView) -> NodeClaim {
        let _ = node;
        NodeClaim::Ours
    }

    /// Returns the node facts, beyond name and provider ID, that `claims_node`, `describe` and the others read. Caches
    /// keep nothing else. Constant over the process.
    fn node_fields(&self) -> NodeFields {
        NodeFields::default()
    }

    /// Starts the provider: called once, after leadership was won and caches are there, before any other call but
    /// the pure ones. Loops belong into [`controllers`](Self::controllers).
    ///
    /// # Errors
    /// Any error ends the process.
    async fn start(&self, cx: ProviderContext) -> Result<(), CloudError> {
        let _ = cx;
        Ok(())
    }

    /// Returns the instances capability.
    fn instances(&self) -> Option<&dyn Instances> {
        None
    }

    /// Returns the load-balancer capability.
    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        None
    }

    /// Returns the routes capability.
    fn routes(&self) -> Option<&dyn Routes> {
        None
    }

    /// Returns the inventory capability.
    fn inventory(&self) -> Option<&dyn Inventory> {
        None
    }

    /// Returns loops of the provider's own (for example a tagging controller), started and ended with the framework's.
    fn controllers(&self) -> Vec<ExtraController> {
        Vec::new()
    }
}

/// Whose a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeClaim {
    /// This provider's.
    Ours,
    /// Another cloud's: left alone.
    Foreign,
}

/// Read-only view of a cache.
pub trait Index<T>: Send + Sync {
    /// Returns the object with this key (`name`, or `namespace/name`).
    fn get(&self, key: &str) -> Option<Arc<T>>;

    /// Returns all objects, in no particular order.
    fn list(&self) -> Vec<Arc<T>>;
}

/// What the framework lends to a provider.
#[derive(Clone)]
pub struct ProviderContext {
    /// Value of `--cluster-name`.
    pub cluster_name: Arc<str>,
    /// Cancelled when the process stops or leadership is lost.
    pub cancel: CancellationToken,
    /// Registry for the provider's own metrics.
    pub metrics: prometheus::Registry,
    /// Right to write, for the provider's own loops; calls of the framework carry it in [`Op`].
    pub gate: WriteGate,
    /// Nodes.
    pub nodes: Arc<dyn Index<NodeView>>,
    /// Services; `None` unless the service controller runs.
    pub services: Option<Arc<dyn Index<ServiceView>>>,
    /// EndpointSlices; `None` unless a Service takes endpoints as backends.
    pub endpoint_slices: Option<Arc<dyn Index<EndpointSliceView>>>,
    /// A Kubernetes client with a user agent and a rate budget of its own.
    pub client: kube::Client,
}

/// A loop that a provider brings along.
pub struct ExtraController {
    /// Canonical name, as in `--controllers`: lower case, ends in `-controller`.
    pub name: &'static str,
    /// Runs until the context is cancelled. Ending earlier, or with an error, ends the process.
    pub run: Box<dyn FnOnce(ProviderContext) -> BoxFuture<'static, Result<(), CloudError>> + Send>,
}

impl std::fmt::Debug for ExtraController {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExtraController").field("name", &self.name).finish_non_exhaustive()
    }
}

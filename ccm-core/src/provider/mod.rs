//! What a cloud implements.
//!
//! A provider is one object that implements [`CloudProvider`] and offers its capabilities as further traits:
//! [`Instances`], [`LoadBalancers`], [`Routes`], [`Inventory`]. A controller whose capability is missing does not
//! start. A provider needs no watch and no Kubernetes client of its own: every call carries what it is about.
//!
//! # What it is for
//!
//! A kubelet that is started with `--cloud-provider=external` registers its Node with a taint and waits. The framework
//! watches Nodes and Services, asks the provider what the cloud knows, and writes the answer back: provider ID,
//! addresses, zone, region and type of each Node; a taint on Nodes whose instance is shut down; no Node at all where the
//! instance is gone; routes for pod networks; load balancers for Services of that type. A provider answers questions and
//! makes cloud objects as they are described to it. It writes nothing to Kubernetes, keeps no queue, retries nothing
//! beyond its client's own quick retries, and never sleeps longer than two seconds.
//!
//! # A provider with instances
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use ccm_core::provider::prelude::*;
//!
//! /// A cloud that is one table: id of the machine, address.
//! struct Shelf(BTreeMap<String, String>);
//!
//! const SCHEME: &str = "shelf://";
//!
//! impl CloudProvider for Shelf {
//!     fn name(&self) -> &str {
//!         "shelf"
//!     }
//!
//!     fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
//!         NodeOwnership::by_scheme("shelf", node)
//!     }
//!
//!     fn instances(&self) -> Option<&dyn Instances> {
//!         Some(self)
//!     }
//! }
//!
//! #[async_trait]
//! impl Instances for Shelf {
//!     async fn describe(&self, _: &Op, asked: &[InstanceQuery]) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
//!         let answer = |query: &InstanceQuery| {
//!             let id = query.node.provider_id.as_deref().unwrap_or(&query.node.name);
//!             let id = id.trim_start_matches(SCHEME);
//!             // The table is complete, so what it does not hold is proved absent.
//!             let Some(address) = self.0.get(id) else { return Ok(InstanceStatus::NotFound) };
//!             let meta = InstanceMetadata {
//!                 provider_id: Some(format!("{SCHEME}{id}").into()),
//!                 addresses: vec![NodeAddress::new(AddressType::InternalIp, address.as_str())],
//!                 ..InstanceMetadata::default()
//!             };
//!             Ok(InstanceStatus::Found { power_state: PowerState::Running, meta })
//!         };
//!         Ok(asked.iter().map(answer).collect())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), CloudError> {
//! # use std::{sync::Arc, time::Duration};
//! # let shelf = Shelf(BTreeMap::from([("n1".to_owned(), "10.0.0.1".to_owned())]));
//! # let op = Op::new("kubernetes", Default::default(), ccm_core::runtime::write_gate::WriteGate::always_open());
//! # let ask = |name: &str| {
//! #     let node = Arc::new(NodeView::named(name));
//! #     InstanceQuery { node, scope: MetadataScope::All, max_age: Duration::ZERO }
//! # };
//! # let answers = shelf.instances().unwrap().describe(&op, &[ask("n2"), ask("n1")]).await?;
//! # assert_eq!(answers[0].as_ref().ok(), Some(&InstanceStatus::NotFound));
//! # assert!(matches!(&answers[1], Ok(InstanceStatus::Found { meta, .. }) if meta.addresses.len() == 1));
//! # Ok(()) }
//! ```
//!
//! # Its `main`
//!
//! ```no_run
//! # use std::{process::ExitCode, sync::Arc};
//! # use ccm_core::{app, config::Product, provider::CloudProvider};
//! # struct Shelf;
//! # impl Shelf {
//! #     async fn read(_: Option<std::path::PathBuf>) -> std::io::Result<Self> { Ok(Self) }
//! # }
//! # impl CloudProvider for Shelf { fn name(&self) -> &str { "shelf" } }
//! #[tokio::main]
//! async fn main() -> ExitCode {
//!     let product = Product::new("ccm-shelf", "v0.1.0", &["shelf"]);
//!     app::run(product, std::env::args_os().skip(1), |config| async move {
//!         let shelf = Shelf::read(config.generic.cloud_config).await?;
//!         Ok(Arc::new(shelf) as Arc<dyn CloudProvider>)
//!     })
//!     .await
//! }
//! ```
//!
//! # Order of calls
//!
//! 1. The provider's own constructor: async, fallible, before leader election, so that wrong credentials end a standby
//!    too. It may ask the cloud what it offers.
//! 2. [`CloudProvider::name`], [`CloudProvider::has_cluster_id`], [`CloudProvider::node_fields`]: constant facts.
//! 3. After leadership was won and the caches are there: [`CloudProvider::start`], once, then
//!    [`CloudProvider::controllers`], once.
//! 4. Everything else, concurrently, until the process ends. The capability accessors give the same answer every time.
//!
//! # Changing the cloud
//!
//! Every request that changes the cloud goes through [`Op::mutate`], or [`Op::mutate_batch`] where one request makes many
//! changes. It asks for the right to write immediately before, since leadership may have been lost after the call began,
//! and leaves one record in the log and one count for each change:
//!
//! ```
//! # use ccm_core::provider::*;
//! # struct LoadBalancer; struct Answer { load_balancer: LoadBalancer, request_id: String }
//! # async fn request(_: &str) -> Result<Answer, CloudError> { Ok(Answer { load_balancer: LoadBalancer, request_id: "1".into() }) }
//! # async fn create(op: &Op, name: &str) -> Result<LoadBalancer, CloudError> {
//! let mutation = Mutation::new("create_load_balancer", name).with_detail("it does not exist");
//! op.mutate(mutation, async {
//!     let answer = request(name).await?;
//!     Ok(MutationResponse::new(answer.load_balancer).with_request_id(answer.request_id))
//! })
//! .await
//! # }
//! ```
//!
//! A call may be dropped at any await point ([`Op::run`] does so at cancellation and deadline), so what
//! it did so far must be found again by the next one.
//!
//! # Coming from Go
//!
//! | `k8s.io/cloud-provider` | here |
//! |---|---|
//! | `RegisterCloudProvider`, factory with a reader of `--cloud-config` | the provider's `main` hands its constructor to the framework; no registry, no reserved name |
//! | `Interface.Initialize`, informer user's `SetInformers` | [`CloudProvider::start`] with a [`ProviderContext`]; fallible, once per process |
//! | loops started in `Initialize` | [`CloudProvider::controllers`]; a loop that ends early ends the process |
//! | `Interface.ProviderName` | [`CloudProvider::name`] |
//! | `Interface.HasClusterID` | [`CloudProvider::has_cluster_id`] |
//! | `Interface.InstancesV2` | [`CloudProvider::instances`]; `None` in place of `(nil, false)` |
//! | `Interface.LoadBalancer`, `Routes` | [`CloudProvider::load_balancers`], [`CloudProvider::routes`] |
//! | `Interface.Instances`, `Zones` | nothing beside it: a v1-style provider is adapted on top of [`Instances`] |
//! | `Interface.Clusters` | nothing: never called upstream |
//! | `InstancesV2.InstanceExists` | [`Instances::describe`]: [`InstanceStatus`]; for it, and for the next, [`MetadataScope::PowerState`] |
//! | `InstancesV2.InstanceShutdown` | [`Instances::describe`]: [`PowerState::Stopped`] |
//! | `InstancesV2.InstanceMetadata` | [`Instances::describe`]: [`InstanceMetadata`], with [`MetadataScope::All`] or [`MetadataScope::Addresses`] |
//! | `nil, nil` from `InstanceMetadata` | cannot be said: answer [`InstanceStatus::NotFound`] or an error |
//! | `Instances.InstanceID` | [`InstanceMetadata::provider_id`], complete with its scheme |
//! | `Instances.NodeAddresses…`, `InstanceType…`; `Zones.GetZone…` | further fields of [`InstanceMetadata`] |
//! | `Instances.InstanceExistsByProviderID`, `InstanceShutdownByProviderID` | as in V2 |
//! | `Instances.AddSSHKeyToAllInstances`, `CurrentNodeName`; `Zones.GetZone` | nothing: never called upstream |
//! | `LoadBalancer.EnsureLoadBalancer` | [`LoadBalancers::interpret`], then [`LoadBalancers::ensure`] |
//! | `LoadBalancer.UpdateLoadBalancer` | [`LoadBalancers::update_backends`] |
//! | `LoadBalancer.GetLoadBalancer`, `.EnsureLoadBalancerDeleted` | [`LoadBalancers::delete`], which succeeds on nothing |
//! | `LoadBalancer.GetLoadBalancerName` | the provider's own business |
//! | writing annotations to the Service | [`LbOutcome::annotations`], [`LoadBalancers::stale_annotations`] |
//! | events from inside the provider | [`Op::event`], [`LoadBalancers::notices`], [`CloudError::with_reason`] |
//! | `Routes.ListRoutes`, `.CreateRoute`, `.DeleteRoute` | [`Routes::list`], [`Routes::apply`] |
//! | `Route.TargetNode`, empty when unknown | [`Route::node`] |
//! | `Route.EnableNodeAddresses`, `.TargetNodeAddresses` | [`Route::node_addresses`] |
//! | name hint of `CreateRoute` | the node's UID, in [`RouteChange::Create`] |
//! | `InstanceNotFound` | [`InstanceStatus::NotFound`], and only on proof |
//! | `NotImplemented` | a missing capability, or [`ErrorKind::NotImplemented`] |
//! | `ImplementedElsewhere` | [`ServiceInterpretation::ImplementedElsewhere`], or [`ErrorKind::ImplementedElsewhere`]; compared by kind, wrapped or not |
//! | `api.RetryError` | [`CloudError::with_retry_after`] on any call, or [`Progress::Pending`] |
//! | `DiskNotFound`, volume helpers | nothing: volumes left the framework long ago |
//! | `GetLoadBalancerSourceRanges`, `IsAllowAll` | [`LbSpec::sources`]; [`SourceRanges::of`], [`SourceRanges::restricts`] |
//! | `RequestsOnlyLocalTraffic`, `NeedsHealthCheck`, `GetServiceHealthCheckPathPort` | [`ServiceView`] fields `external_traffic_policy` and `health_check_node_port`; the path is `/healthz` |
//! | `HasLBFinalizer`, `LoadBalancerStatusEqual`, `PatchService`, `AddToNodeAddresses` | the framework's business |
//! | `DefaultLoadBalancerName` | nothing yet: `a` and the Service's UID without dashes, cut to 32 characters |
//!
//! What the framework does with each error is written at [`ErrorKind`].

mod batch;
mod error;
pub(crate) mod instance_records;
mod instances;
mod inventory;
mod load_balancer;
pub mod metrics;
mod mutation;
mod operation;
pub mod prelude;
pub mod rest;
mod routes;
pub mod simple_load_balancers;
mod sleep_budget;
mod throttle;

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

pub use batch::InstanceBatcher;
pub(crate) use error::MAX_RETRY_AFTER;
pub use error::{CloudError, ErrorKind};
pub use instances::{
    BatchLimits, InstanceMetadata, InstanceQuery, InstanceStatus, Instances, MetadataScope, PowerState,
};
pub use inventory::{Inventory, OwnedObject, Owner};
pub use load_balancer::{
    BackendKind, Backends, Digest, FieldError, LabelRequirement, LbOutcome, LbRef, LbSpec, LbSupport, LoadBalancers,
    NodeTarget, PlannedChange, Progress, ReadMode, ServiceInterpretation, ServiceNotice, SourceRanges,
};
pub use mutation::{Mutation, MutationResponse};
pub use operation::{EventSink, EventType, Op};
pub use routes::{Route, RouteChange, Routes};
pub(crate) use throttle::Throttle;

use crate::{
    k8s::{EndpointSliceView, NodeFields, NodeView, ServiceView},
    write_gate::WriteGate,
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
    /// scheme of the provider ID ([`NodeOwnership::by_scheme`]).
    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        let _ = node;
        NodeOwnership::Ours
    }

    /// Returns the operations of [`Mutation`]s that the provider makes, so that their counters are there before the first of
    /// each.
    fn mutation_operations(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the node facts, beyond name and provider ID, that `node_ownership`, `describe` and the others read. Caches
    /// keep nothing else. Constant over the process.
    fn node_fields(&self) -> NodeFields {
        NodeFields::default()
    }

    /// Starts the provider: called after leadership was won and caches are there, before any other call but the pure ones.
    /// It succeeds once, and is called again after an error that may pass, so it must be idempotent: what a start made, the
    /// next one finds and leaves as it is, in this process or in one that follows.
    ///
    /// It ends within a minute, however slow the cloud is: nothing else begins before, and the framework sets it no
    /// deadline. Loops belong into [`controllers`](Self::controllers); whatever else it spawned ends when the context is
    /// cancelled.
    ///
    /// It changes nothing in the cloud or the cluster without asking the gate of its context
    /// ([`may_write`](crate::runtime::gate::WriteGate::may_write)) immediately before: in shadow mode it is called as well,
    /// while another process leads, and that gate never opens. What a closed gate prevents is left out there, not an error:
    /// [`ErrorKind::NotLeader`] ends the process.
    ///
    /// # Errors
    /// [`ErrorKind::Transient`], [`ErrorKind::Throttled`], [`ErrorKind::Conflict`] and [`ErrorKind::Canceled`] have it
    /// called again, after 1 s doubling to 30 s and not before the error's `retry_after`; meanwhile the process leads and
    /// is not ready. Any other kind ends the process. So an error of the cloud has the kind here that it has in every other
    /// call.
    ///
    /// # Cancellation
    /// Dropped when the process stops or loses leadership.
    async fn start(&self, cx: ProviderContext) -> Result<(), CloudError> {
        let _ = cx;
        Ok(())
    }

    /// Returns the instances capability. Like the other capabilities: cheap, and the same answer every time.
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
    /// Called once, after [`start`](Self::start); those that `--controllers` does not select are dropped.
    fn controllers(&self) -> Vec<ProviderController> {
        Vec::new()
    }
}

/// Whose a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeOwnership {
    /// This provider's.
    Ours,
    /// Another cloud's: left alone.
    Foreign,
}

impl NodeOwnership {
    /// Decides by the scheme of the provider ID, `<scheme>://<anything>`. A node without one is ours, and so is one whose ID
    /// has this scheme and means nothing: it is reported then, not passed over.
    pub fn by_scheme(scheme: &str, node: &NodeView) -> Self {
        let rest = |id: &str| id.strip_prefix(scheme).is_some_and(|rest| rest.starts_with("://"));
        if node.provider_id.as_deref().is_none_or(rest) { Self::Ours } else { Self::Foreign }
    }
}

/// Read-only view of a cache.
pub trait CacheReader<T>: Send + Sync {
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
    pub write_gate: WriteGate,
    /// Nodes.
    pub nodes: Arc<dyn CacheReader<NodeView>>,
    /// Services; `None` unless the service controller runs.
    pub services: Option<Arc<dyn CacheReader<ServiceView>>>,
    /// EndpointSlices; `None` unless a Service takes endpoints as backends.
    pub endpoint_slices: Option<Arc<dyn CacheReader<EndpointSliceView>>>,
    /// A Kubernetes client with a user agent and a rate budget of its own (`--kube-api-qps`, `--kube-api-burst`), whose
    /// requests are counted with the others. It refuses to write once leadership cannot be proved.
    pub client: kube::Client,
}

/// A loop that a provider brings along.
pub struct ProviderController {
    /// Canonical name of a controller that the provider's binary declares to the command line
    /// ([`ControllerInfo`](crate::config::ControllerInfo), which also says whether `*` selects it).
    pub name: &'static str,
    /// Runs until the context is cancelled. Ending earlier, or with an error, ends the process.
    pub run: Box<dyn FnOnce(ProviderContext) -> BoxFuture<'static, Result<(), CloudError>> + Send>,
}

impl ProviderController {
    /// Makes a loop.
    pub fn new<F, R>(name: &'static str, run: F) -> Self
    where
        F: FnOnce(ProviderContext) -> R + Send + 'static,
        R: Future<Output = Result<(), CloudError>> + Send + 'static,
    {
        Self { name, run: Box::new(|cx| Box::pin(run(cx))) }
    }
}

impl std::fmt::Debug for ProviderController {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProviderController").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_of_a_provider_id_says_whose_a_node_is() {
        let claim = |id: Option<&str>| {
            let node = NodeView { provider_id: id.map(Into::into), ..NodeView::named("n") };
            NodeOwnership::by_scheme("shelf", &node)
        };
        for ours in [None, Some("shelf://1"), Some("shelf://"), Some("shelf:///x/y")] {
            assert_eq!(claim(ours), NodeOwnership::Ours, "{ours:?}");
        }
        for foreign in ["shelf", "shelf:1", "shelf2://1", "bookshelf://1", "Shelf://1", "aws:///z/i-1"] {
            assert_eq!(claim(Some(foreign)), NodeOwnership::Foreign, "{foreign}");
        }
    }
}

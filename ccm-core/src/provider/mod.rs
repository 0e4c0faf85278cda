//! The traits that a cloud provider implements.
//!
//! A provider is one object that implements [`CloudProvider`] and offers its capabilities as
//! further traits: [`Instances`], [`LoadBalancers`], [`Routes`], [`Inventory`]. A controller whose
//! capability is missing does not start. A provider needs no watch and no Kubernetes client of its
//! own: every call carries the objects that it concerns.
//!
//! # What a provider does
//!
//! A kubelet started with `--cloud-provider=external` registers its Node with a taint and waits.
//! The framework watches Nodes and Services, asks the provider for the state in the cloud, and
//! writes the result to Kubernetes: the provider ID, addresses, zone, region and instance type of
//! each Node; a taint on each Node whose instance is shut down. It deletes each Node whose instance
//! no longer exists. It also manages routes for pod networks and load balancers for Services of
//! type LoadBalancer. A provider answers queries and creates, changes and deletes cloud objects as
//! requested. It writes nothing to Kubernetes, keeps no queue, retries nothing beyond its client's
//! own quick retries, and never sleeps longer than two seconds in one call.
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
//! # let op = Op::new("kubernetes", Default::default(), ccm_core::write_gate::WriteGate::always_open());
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
//! 1. The provider's own constructor: async and fallible. It runs before leader election, so that
//!    wrong credentials also end a standby. It may query the cloud for its features.
//! 2. [`CloudProvider::name`], [`CloudProvider::has_cluster_id`], [`CloudProvider::node_fields`]:
//!    constant values.
//! 3. After leadership was acquired and the caches are filled: [`CloudProvider::start`], once, then
//!    [`CloudProvider::controllers`], once.
//! 4. Everything else, concurrently, until the process ends. The capability accessors return the
//!    same value every time.
//!
//! # Changing the cloud
//!
//! Every request that changes the cloud goes through [`Op::mutate`], or through
//! [`Op::mutate_batch`] where one request makes many changes. Both check immediately before the
//! request that leadership still holds, because it may have been lost after the call began. Both
//! write one log record and count once for each change:
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
//! A call may be dropped at any await point ([`Op::run`] does so at cancellation and at the
//! deadline), so the next call must be able to find what the dropped one has already done.
//!
//! # Coming from Go
//!
//! | `k8s.io/cloud-provider` | here |
//! |---|---|
//! | `RegisterCloudProvider`, factory with a reader of `--cloud-config` | the provider's `main` passes its constructor to the framework; no registry, no reserved name |
//! | `Interface.Initialize`, informer user's `SetInformers` | [`CloudProvider::start`] with a [`ProviderContext`]; fallible, once per process |
//! | loops started in `Initialize` | [`CloudProvider::controllers`]; a loop that ends early ends the process |
//! | `Interface.ProviderName` | [`CloudProvider::name`] |
//! | `Interface.HasClusterID` | [`CloudProvider::has_cluster_id`] |
//! | `Interface.InstancesV2` | [`CloudProvider::instances`]; `None` in place of `(nil, false)` |
//! | `Interface.LoadBalancer`, `Routes` | [`CloudProvider::load_balancers`], [`CloudProvider::routes`] |
//! | `Interface.Instances`, `Zones` | no counterpart: a v1-style provider is adapted on top of [`Instances`] |
//! | `Interface.Clusters` | no counterpart: never called upstream |
//! | `InstancesV2.InstanceExists` | [`Instances::describe`]: [`InstanceStatus`]; for it, and for the next, [`MetadataScope::PowerState`] |
//! | `InstancesV2.InstanceShutdown` | [`Instances::describe`]: [`PowerState::Stopped`] |
//! | `InstancesV2.InstanceMetadata` | [`Instances::describe`]: [`InstanceMetadata`], with [`MetadataScope::All`] or [`MetadataScope::Addresses`] |
//! | `nil, nil` from `InstanceMetadata` | cannot be expressed: answer [`InstanceStatus::NotFound`] or an error |
//! | `Instances.InstanceID` | [`InstanceMetadata::provider_id`], complete with its scheme |
//! | `Instances.NodeAddresses…`, `InstanceType…`; `Zones.GetZone…` | further fields of [`InstanceMetadata`] |
//! | `Instances.InstanceExistsByProviderID`, `InstanceShutdownByProviderID` | as in V2 |
//! | `Instances.AddSSHKeyToAllInstances`, `CurrentNodeName`; `Zones.GetZone` | no counterpart: never called upstream |
//! | `LoadBalancer.EnsureLoadBalancer` | [`LoadBalancers::interpret`], then [`LoadBalancers::ensure`] |
//! | `LoadBalancer.UpdateLoadBalancer` | [`LoadBalancers::update_backends`] |
//! | `LoadBalancer.GetLoadBalancer`, `.EnsureLoadBalancerDeleted` | [`LoadBalancers::delete`], which succeeds when there is nothing to delete |
//! | `LoadBalancer.GetLoadBalancerName` | internal to the provider |
//! | writing annotations to the Service | [`LbOutcome::annotations`], [`LoadBalancers::stale_annotations`] |
//! | events from inside the provider | [`Op::event`], [`LoadBalancers::notices`], [`CloudError::with_reason`] |
//! | `Routes.ListRoutes`, `.CreateRoute`, `.DeleteRoute` | [`Routes::list`], [`Routes::apply`] |
//! | `Route.TargetNode`, empty when unknown | [`Route::node`] |
//! | `Route.EnableNodeAddresses`, `.TargetNodeAddresses` | [`Route::node_addresses`] |
//! | name hint of `CreateRoute` | the node's UID, in [`RouteChange::Create`] |
//! | `InstanceNotFound` | [`InstanceStatus::NotFound`], and only when absence is proven |
//! | `NotImplemented` | a missing capability, or [`ErrorKind::NotImplemented`] |
//! | `ImplementedElsewhere` | [`ServiceInterpretation::ImplementedElsewhere`], or [`ErrorKind::ImplementedElsewhere`]; compared by kind, wrapped or not |
//! | `api.RetryError` | [`CloudError::with_retry_after`] on any call, or [`Progress::Pending`] |
//! | `DiskNotFound`, volume helpers | no counterpart: volumes are no longer part of the framework |
//! | `GetLoadBalancerSourceRanges`, `IsAllowAll` | [`LbSpec::sources`]; [`SourceRanges::of`], [`SourceRanges::restricts`] |
//! | `RequestsOnlyLocalTraffic`, `NeedsHealthCheck`, `GetServiceHealthCheckPathPort` | [`ServiceView`] fields `external_traffic_policy` and `health_check_node_port`; the path is `/healthz` |
//! | `HasLBFinalizer`, `LoadBalancerStatusEqual`, `PatchService`, `AddToNodeAddresses` | done by the framework |
//! | `DefaultLoadBalancerName` | no counterpart yet: `a` and the Service's UID without dashes, cut to 32 characters |
//!
//! [`ErrorKind`] documents what the framework does with each kind of error.

mod batch;
pub mod call_metrics;
mod error;
mod finding;
pub(crate) mod instance_records;
mod instances;
mod inventory;
mod load_balancer;
mod mutation;
mod operation;
pub mod prelude;
mod rate_limiter;
pub mod rest;
mod retention;
mod routes;
mod shared_read;
pub mod simple_instances;
pub mod simple_load_balancers;
pub mod simple_routes;
mod sleep_budget;
mod throttle;

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

pub use batch::InstanceBatcher;
pub(crate) use error::MAX_RETRY_AFTER;
pub use error::{CloudError, ErrorKind};
pub use finding::{Area, CheckedCluster, Finding, FindingKind, NotBuilt, Severity};
pub use instances::{
    BatchLimits, InstanceMetadata, InstanceQuery, InstanceStatus, Instances, MetadataScope,
    PowerState, is_canonical_number,
};
pub use inventory::{Inventory, OwnedObject, Owner};
pub use load_balancer::{
    BackendKind, Backends, Digest, FieldError, LabelRequirement, LbOutcome, LbRef, LbSpec,
    LbSupport, LoadBalancers, NodeTarget, PlannedChange, Progress, ReadMode, ServiceInterpretation,
    ServiceNotice, SourceRanges,
};
pub use mutation::{Mutation, MutationResponse};
pub use operation::{EventSink, EventType, Op};
pub use rate_limiter::{Rate, RateLimiter};
pub(crate) use retention::{RemovalPlan, Retention};
pub use retention::{RetainOutcome, adopted_id, asks_to_retain};
pub use routes::{Route, RouteChange, RouteLimits, Routes, UNINITIALIZED_NODE_DELAY};
pub use shared_read::SharedRead;
pub(crate) use throttle::Throttle;

use crate::{
    k8s::{EndpointSliceView, NodeFields, NodeView, ServiceView},
    write_gate::WriteGate,
};

/// The operations of a provider whose routes are [`simple_routes`] and whose load balancers are
/// [`simple_load_balancers`], for [`CloudProvider::mutation_operations`].
pub const SIMPLE_OPERATIONS: &[&str] = &[
    simple_routes::CREATE,
    simple_routes::DELETE,
    simple_load_balancers::CREATE,
    simple_load_balancers::CHANGE,
    simple_load_balancers::DELETE,
];

/// A cloud provider.
///
/// Object-safe. The provider's own async, fallible function constructs it before leader election,
/// so that an invalid configuration also ends a standby.
#[async_trait]
pub trait CloudProvider: Send + Sync + 'static {
    /// Returns the provider's name, which is the scheme of the provider IDs, a metric label and a
    /// log field.
    fn name(&self) -> &str;

    /// Returns true if the provider can distinguish this cluster's objects from those of other
    /// clusters. If it cannot, the process ends, unless `--allow-untagged-cloud` is set. The
    /// default is `true`.
    fn has_cluster_id(&self) -> bool {
        true
    }

    /// Decides from the provider ID, the labels or the name of a node whether it belongs to this
    /// provider.
    ///
    /// Must be pure, without a cloud call. A foreign node is never initialized, tainted or deleted,
    /// and never becomes the target of a route or a load balancer. By default every node belongs to
    /// this provider, as upstream. A provider whose clusters may contain nodes of other providers
    /// should at least compare the scheme of the provider ID ([`NodeOwnership::by_scheme`]).
    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        let _ = node;
        NodeOwnership::Ours
    }

    /// Returns the operations of all [`Mutation`]s that the provider makes. The framework creates
    /// the counter of each before its first mutation. The default is none.
    fn mutation_operations(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the node data, beyond name and provider ID, that `node_ownership`, `describe` and
    /// the other calls read. The caches keep nothing else. The result must not change.
    fn node_fields(&self) -> NodeFields {
        NodeFields::default()
    }

    /// Starts the provider. Does nothing by default.
    ///
    /// Called after leadership was acquired and the caches are filled, before any call that is not
    /// pure. Called again after a transient error, until it succeeds. Must therefore be idempotent:
    /// a later call, in this process or another one, must find what an earlier call created and
    /// leave it unchanged.
    ///
    /// It must return within a minute, however slow the cloud is: nothing else begins before it
    /// returns, and the framework sets no deadline for it. Loops belong in
    /// [`controllers`](Self::controllers); any other task that it spawns must end when the context
    /// is cancelled.
    ///
    /// It must check the write gate of its context
    /// ([`may_write`](crate::write_gate::WriteGate::may_write)) immediately before each change of
    /// the cloud or the cluster. In shadow mode it is called as well, while another process leads,
    /// and that gate never opens. Skip whatever a closed gate prevents instead of returning an
    /// error: [`ErrorKind::NotLeader`] ends the process.
    ///
    /// # Errors
    /// After [`ErrorKind::Transient`], [`ErrorKind::Throttled`], [`ErrorKind::Conflict`] and
    /// [`ErrorKind::Canceled`] it is called again, after a delay that doubles from 1 s to 30 s, and
    /// not before the error's `retry_after`. Meanwhile the process leads and is not ready. Any
    /// other kind ends the process. Therefore give a cloud error the same kind here as in every
    /// other call.
    ///
    /// # Cancellation
    /// Dropped when the process stops or loses leadership.
    async fn start(&self, ctx: ProviderContext) -> Result<(), CloudError> {
        let _ = ctx;
        Ok(())
    }

    /// Returns the instances capability, or `None` if the provider does not have it, which is the
    /// default. Like every capability accessor, it must be cheap and always return the same value.
    fn instances(&self) -> Option<&dyn Instances> {
        None
    }

    /// Returns the load balancer capability. The default is `None`.
    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        None
    }

    /// Returns the routes capability. The default is `None`.
    fn routes(&self) -> Option<&dyn Routes> {
        None
    }

    /// Returns the inventory capability. The default is `None`.
    fn inventory(&self) -> Option<&dyn Inventory> {
        None
    }

    /// Returns the provider's own control loops, for example a tagging controller. They start and
    /// end with the framework's controllers. The default is none.
    ///
    /// Called once, after [`start`](Self::start). The framework drops loops that `--controllers`
    /// does not select.
    fn controllers(&self) -> Vec<ProviderController> {
        Vec::new()
    }

    /// Finds out for the subcommand `check`, and for the adoption report of shadow mode, what is
    /// wrong in the cloud, beyond what the framework checks itself. The default is nothing, and a
    /// provider works without it.
    ///
    /// Called once, after [`start`](Self::start), whether or not that succeeded. The write gate of
    /// `op` never opens, so only reads reach the cloud. Read as much as a person would look at, and
    /// no more: page by page, with a limit. A read that fails is a finding, too.
    /// [`finding_kinds!`](crate::finding_kinds) declares the kinds.
    async fn check(&self, op: &Op, cluster: CheckedCluster<'_>) -> Vec<Finding> {
        let _ = (op, cluster);
        Vec::new()
    }
}

/// The owner of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeOwnership {
    /// The node belongs to this provider.
    Ours,
    /// The node belongs to another cloud provider. The framework never changes it.
    Foreign,
}

impl NodeOwnership {
    /// Compares the scheme of the node's provider ID, `<scheme>://<anything>`, with this one.
    ///
    /// A node without a provider ID is [`Ours`](Self::Ours). So is a node whose ID has this scheme
    /// but is otherwise malformed, because it should be reported and not skipped.
    pub fn by_scheme(scheme: &str, node: &NodeView) -> Self {
        let has_scheme = |id: &str| {
            id.strip_prefix(scheme)
                .is_some_and(|after_scheme| after_scheme.starts_with("://"))
        };
        if node.provider_id.as_deref().is_none_or(has_scheme) {
            Self::Ours
        } else {
            Self::Foreign
        }
    }
}

/// A read-only view of a cache.
pub trait CacheReader<T>: Send + Sync {
    /// Returns the object with this key (`name`, or `namespace/name`).
    fn get(&self, key: &str) -> Option<Arc<T>>;

    /// Returns all objects, in no particular order.
    fn list(&self) -> Vec<Arc<T>>;
}

/// The resources that the framework gives to a provider at its start.
#[derive(Clone)]
pub struct ProviderContext {
    /// The value of `--cluster-name`.
    pub cluster_name: Arc<str>,
    /// A token that is cancelled when the process stops or leadership is lost.
    pub cancel: CancellationToken,
    /// The registry for the provider's own metrics.
    pub metrics: prometheus::Registry,
    /// The write gate for the provider's own loops. In calls of the framework it is part of [`Op`].
    pub write_gate: WriteGate,
    /// The cache of Nodes.
    pub nodes: Arc<dyn CacheReader<NodeView>>,
    /// The cache of Services, or `None` if the service controller does not run.
    pub services: Option<Arc<dyn CacheReader<ServiceView>>>,
    /// The cache of EndpointSlices, or `None` if the service controller does not run or the
    /// provider does not support endpoint backends.
    pub endpoint_slices: Option<Arc<dyn CacheReader<EndpointSliceView>>>,
    /// A Kubernetes client with its own user agent and rate limit (`--kube-api-qps`,
    /// `--kube-api-burst`). Its requests are counted together with the framework's. It rejects
    /// writes once leadership can no longer be proven.
    pub client: kube::Client,
}

/// A control loop that belongs to the provider.
pub struct ProviderController {
    /// The canonical name of the controller. The provider's binary declares it to the command line
    /// with a [`ControllerInfo`](crate::config::ControllerInfo).
    pub name: &'static str,
    /// The loop, which must run until the context is cancelled. If it ends earlier, or with an
    /// error, the process ends.
    pub run: Box<dyn FnOnce(ProviderContext) -> BoxFuture<'static, Result<(), CloudError>> + Send>,
}

impl ProviderController {
    /// Creates a controller from its name and its loop.
    pub fn new<F, R>(name: &'static str, run: F) -> Self
    where
        F: FnOnce(ProviderContext) -> R + Send + 'static,
        R: Future<Output = Result<(), CloudError>> + Send + 'static,
    {
        Self { name, run: Box::new(|ctx| Box::pin(run(ctx))) }
    }
}

impl std::fmt::Debug for ProviderController {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProviderController")
            .field("name", &self.name)
            .finish_non_exhaustive()
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
        for foreign in
            ["shelf", "shelf:1", "shelf2://1", "bookshelf://1", "Shelf://1", "aws:///z/i-1"]
        {
            assert_eq!(claim(Some(foreign)), NodeOwnership::Foreign, "{foreign}");
        }
    }
}

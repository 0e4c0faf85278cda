//! Caches the sets of nodes that are backends. A set is built once per node change. If it then
//! lacks most of its nodes, the API server must confirm that.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use super::{
    UNCONFIRMED_RETRY,
    backend_nodes::{BackendNodes, Urgency, is_backend, urgency},
};
use crate::{
    controllers::ControllerContext,
    k8s::NodeView,
    provider::{CloudProvider, LabelRequirement, LoadBalancers, NodeOwnership, NodeTarget},
    runtime::{api::ApiError, cache::Change},
};

/// Sets of backend nodes, by the label requirements of the load balancers.
pub(crate) struct BackendNodeCache {
    ctx: ControllerContext,
    state: Arc<Mutex<CachedNodeSets>>,
    /// Held while nodes are read from the API server, so that concurrent callers share one answer.
    confirmation_lock: AsyncMutex<()>,
}

#[derive(Default)]
struct CachedNodeSets {
    /// The number of node changes so far that may have changed a set.
    generation: u64,
    sets: HashMap<Vec<LabelRequirement>, CachedNodeSet>,
    /// The time until which a failed confirmation counts for all callers.
    unconfirmed_until: Option<Instant>,
    /// True once the API server confirmed the cached nodes after the start.
    confirmed: bool,
}

/// The sets that load balancers have, for explanations. Clones share them.
#[derive(Clone)]
pub(crate) struct StoredNodeSets(Arc<Mutex<CachedNodeSets>>);

impl StoredNodeSets {
    /// Returns true if `set` lacks most nodes of the stored set, which is kept until the API server
    /// confirms that they are gone.
    pub(crate) fn is_unconfirmed(
        &self,
        requirements: &[LabelRequirement],
        set: &BackendNodes,
    ) -> bool {
        let state = self.0.lock();
        let stored = state.sets.get(requirements);
        stored.is_some_and(|stored| set.lacks_most_of(&stored.set))
    }
}

struct CachedNodeSet {
    /// The generation for which the set was built.
    generation: u64,
    set: Arc<BackendNodes>,
}

/// An error that keeps the controller from acting on the cache.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StaleCacheError {
    /// The nodes could not be read from the API server.
    #[error("failed to list nodes to confirm the set of backends")]
    Api(#[source] ApiError),
    /// The API server has a Service that the cache lacks.
    #[error(
        "the service exists on the API server but not in the cache; its load balancer is kept until both agree"
    )]
    ServiceExists,
    /// According to the API server, the Service needs its load balancer again.
    #[error(
        "the service needs a load balancer according to the API server but not the cache; its load balancer is kept"
    )]
    LoadBalancerNeeded,
    /// Many Services disappeared at once without being deleted.
    #[error(
        "{missing} of {all} services with load balancers disappeared without being deleted, as after a restored backup; their load balancers are kept, delete them by hand if they are not needed"
    )]
    MostServicesGone {
        /// The number of Services that disappeared.
        missing: usize,
        /// The number of all Services with a load balancer.
        all: usize,
    },
    /// The API server did not confirm the cached nodes a moment ago.
    #[error(
        "the API server did not confirm the cached nodes a moment ago; backends are kept until both agree"
    )]
    RecentlyUnconfirmed,
    /// The API server has nodes that the cache lacks.
    #[error(
        "some nodes exist on the API server but not in the cache; backends are kept until both agree"
    )]
    BackendsDiffer,
}

impl BackendNodeCache {
    pub(crate) fn new(ctx: ControllerContext) -> Self {
        Self {
            ctx,
            state: Arc::default(),
            confirmation_lock: AsyncMutex::default(),
        }
    }

    /// Returns the sets, for explanations.
    pub(crate) fn stored(&self) -> StoredNodeSets {
        StoredNodeSets(self.state.clone())
    }

    /// Subscribes to the node cache, so that sets are rebuilt after node changes. Calls
    /// `on_relevant_change` for each change that load balancers need.
    pub(crate) fn watch_nodes(&self, on_relevant_change: impl Fn(Urgency) + Send + Sync + 'static) {
        let state = self.state.clone();
        let provider = self.ctx.provider.clone();
        self.ctx.nodes.on_change(move |change: &Change<NodeView>| {
            let (old, new) = match change {
                Change::Added(new) => (None, Some(&**new)),
                Change::Updated { old, new } => (Some(&**old), Some(&**new)),
                Change::Deleted(old) => (Some(&**old), None),
            };
            let old = old.filter(|node| is_candidate(&*provider, node));
            let new = new.filter(|node| is_candidate(&*provider, node));
            let urgency = urgency(old, new, target(&*provider));
            if urgency.is_some() || may_change_set(old, new) {
                state.lock().generation += 1;
            }
            if let Some(urgency) = urgency {
                on_relevant_change(urgency);
            }
        });
    }

    /// Returns the nodes that are backends and meet the requirements.
    ///
    /// If the set has lost most of its nodes since the last call, this reads the nodes from the API
    /// server. A cache that lags or lists that were cut short must not take backends out of
    /// service.
    pub(crate) async fn get(
        &self,
        requirements: &[LabelRequirement],
    ) -> Result<Arc<BackendNodes>, StaleCacheError> {
        if let Some(set) = self.cached(requirements) {
            return Ok(set);
        }
        let (generation, set) = self.build(requirements);
        if self.earlier_set_if_shrunk(requirements, &set).is_none() {
            return Ok(self.store(requirements, generation, set));
        }
        // Most nodes seem to be gone. Wait while another caller confirms that, and use its result.
        let _confirming = self.confirmation_lock.lock().await;
        if let Some(set) = self.cached(requirements) {
            return Ok(set);
        }
        self.fail_if_recently_unconfirmed()?;
        // Build the set again, because nodes may have changed while this waited.
        let (generation, set) = self.build(requirements);
        if let Some(earlier) = self.earlier_set_if_shrunk(requirements, &set) {
            tracing::warn!(
                remaining = set.nodes.len(),
                "most backends are gone; reading the nodes from the API server"
            );
            if let Err(error) = self.confirm_removals(requirements, &earlier, &set).await {
                self.state.lock().unconfirmed_until = Some(Instant::now() + UNCONFIRMED_RETRY);
                return Err(error);
            }
        }
        Ok(self.store(requirements, generation, set))
    }

    /// Reads the nodes from the API server. Returns an error if a node that `set` lacks still
    /// exists there.
    async fn confirm_removals(
        &self,
        requirements: &[LabelRequirement],
        earlier: &BackendNodes,
        set: &BackendNodes,
    ) -> Result<(), StaleCacheError> {
        let fresh = self.read(requirements).await?;
        if set.lacks_existing_node_of(earlier, &fresh) {
            return Err(StaleCacheError::BackendsDiffer);
        }
        Ok(())
    }

    /// Compares the cached nodes with the API server, once, before a load balancer from before the
    /// start is changed.
    ///
    /// There is no earlier set that shows what the first one lacks, and a first list that was cut
    /// short must not take backends out of service. The cache may change during this call, so a set
    /// from before it is not necessarily confirmed.
    ///
    /// # Errors
    /// Returns an error if the cache lacks a node, or if the API server could not be read, now or a
    /// moment ago.
    pub(crate) async fn confirm_nodes_after_start(&self) -> Result<(), StaleCacheError> {
        let _confirming = self.confirmation_lock.lock().await;
        if self.state.lock().confirmed {
            return Ok(());
        }
        self.fail_if_recently_unconfirmed()?;
        let confirmation = self.confirm_all_nodes().await;
        let mut state = self.state.lock();
        match confirmation {
            Ok(()) => state.confirmed = true,
            Err(_) => state.unconfirmed_until = Some(Instant::now() + UNCONFIRMED_RETRY),
        }
        confirmation
    }

    /// Reads all nodes from the API server. Returns an error if the cache lacks one of them.
    async fn confirm_all_nodes(&self) -> Result<(), StaleCacheError> {
        let fresh = self.read(&[]).await?;
        let (_, cached) = self.build(&[]);
        if cached.lacks_any_of(&fresh) {
            return Err(StaleCacheError::BackendsDiffer);
        }
        Ok(())
    }

    /// Returns an error if a confirmation of the nodes failed a moment ago.
    pub(crate) fn fail_if_recently_unconfirmed(&self) -> Result<(), StaleCacheError> {
        match self.state.lock().unconfirmed_until {
            Some(until) if until > Instant::now() => Err(StaleCacheError::RecentlyUnconfirmed),
            _ => Ok(()),
        }
    }

    /// Reads the nodes from the API server and selects the backends.
    async fn read(
        &self,
        requirements: &[LabelRequirement],
    ) -> Result<BackendNodes, StaleCacheError> {
        let nodes = self
            .ctx
            .api
            .list_nodes(&self.ctx.node_fields)
            .await
            .map_err(StaleCacheError::Api)?;
        Ok(self.select(nodes.into_iter().map(Arc::new).collect(), requirements))
    }

    fn select(
        &self,
        mut nodes: Vec<Arc<NodeView>>,
        requirements: &[LabelRequirement],
    ) -> BackendNodes {
        nodes.retain(|node| is_candidate(&*self.ctx.provider, node));
        BackendNodes::new(&nodes, requirements, target(&*self.ctx.provider))
    }

    /// Returns the stored set if no node has changed since it was built.
    fn cached(&self, requirements: &[LabelRequirement]) -> Option<Arc<BackendNodes>> {
        let state = self.state.lock();
        let entry = state.sets.get(requirements)?;
        (entry.generation == state.generation).then(|| entry.set.clone())
    }

    /// Builds the set from the cached nodes. Returns it with its generation.
    fn build(&self, requirements: &[LabelRequirement]) -> (u64, BackendNodes) {
        let generation = self.state.lock().generation;
        (generation, self.select(self.ctx.nodes.list(), requirements))
    }

    /// Returns the stored set if `set` lacks most of its nodes.
    fn earlier_set_if_shrunk(
        &self,
        requirements: &[LabelRequirement],
        set: &BackendNodes,
    ) -> Option<Arc<BackendNodes>> {
        let state = self.state.lock();
        let earlier = &state.sets.get(requirements)?.set;
        set.lacks_most_of(earlier).then(|| earlier.clone())
    }

    fn store(
        &self,
        requirements: &[LabelRequirement],
        generation: u64,
        set: BackendNodes,
    ) -> Arc<BackendNodes> {
        let set = Arc::new(set);
        self.state
            .lock()
            .sets
            .insert(requirements.to_vec(), CachedNodeSet { generation, set: set.clone() });
        set
    }

    /// Drops the sets that no load balancer uses, according to `is_used`.
    pub(crate) fn retain(&self, is_used: impl Fn(&[LabelRequirement]) -> bool) {
        self.state
            .lock()
            .sets
            .retain(|requirements, _| is_used(requirements));
    }
}

/// Returns true if a change may change a set although it is not urgent, such as the autoscaler's
/// taint or labels of an uninitialised node.
fn may_change_set(old: Option<&NodeView>, new: Option<&NodeView>) -> bool {
    if old.is_some_and(is_backend) != new.is_some_and(is_backend) {
        return true;
    }
    match (old, new) {
        (Some(old), Some(new)) => old.labels != new.labels,
        _ => false,
    }
}

/// Returns true if load balancers can address a node.
pub(super) fn is_candidate(provider: &dyn CloudProvider, node: &NodeView) -> bool {
    match target(provider) {
        NodeTarget::Address => true,
        NodeTarget::Instance => provider.node_ownership(node) == NodeOwnership::Ours,
    }
}

pub(super) fn target(provider: &dyn CloudProvider) -> NodeTarget {
    provider
        .load_balancers()
        .map_or(NodeTarget::Address, LoadBalancers::node_target)
}

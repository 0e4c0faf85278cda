//! Observes the nodes. Sets of backends are built once per change, and confirmed with the API
//! server when most of one is gone.

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
    /// Held while the API server is read, so that one answer serves all callers.
    confirmation_lock: AsyncMutex<()>,
}

#[derive(Default)]
struct CachedNodeSets {
    /// Counts the changes of nodes that may change a set.
    generation: u64,
    sets: HashMap<Vec<LabelRequirement>, CachedNodeSet>,
    /// Until when a failed confirmation counts for all callers.
    unconfirmed_until: Option<Instant>,
    /// True once the cache was compared with the API server after the start.
    confirmed: bool,
}

struct CachedNodeSet {
    generation: u64,
    set: Arc<BackendNodes>,
}

/// Why the cache is not acted upon: the API server has not confirmed it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StaleCacheError {
    /// The API server could not be read.
    #[error("nodes could not be read again before most backends are removed")]
    Api(#[source] ApiError),
    /// The API server has a Service that the cache lacks.
    #[error(
        "the API server has the service that the cache lacks; its load balancer stays until both agree"
    )]
    ServiceExists,
    /// The API server has the Service as one that is to be served again.
    #[error(
        "the API server has the service as one to be served, which the cache does not show yet; its load balancer stays"
    )]
    LoadBalancerNeeded,
    /// Many Services disappeared at once without being deleted.
    #[error(
        "{missing} of {all} services with load balancers are gone and were not deleted, as after a restored backup; their load balancers stay, delete them by hand if they are not needed"
    )]
    MostServicesGone {
        /// Services that are gone.
        missing: usize,
        /// All Services with a load balancer.
        all: usize,
    },
    /// A confirmation failed a moment ago.
    #[error(
        "nodes were not confirmed a moment ago: most backends are gone from the cache alone, or the API server could not be read"
    )]
    RecentlyUnconfirmed,
    /// The API server has backends that the cache lacks.
    #[error("the API server has nodes that the cache lacks; backends stay until both agree")]
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

    /// Has sets rebuilt after node changes, and calls `node_changes` for each change that load
    /// balancers need.
    pub(crate) fn watch_nodes(&self, node_changes: impl Fn(Urgency) + Send + Sync + 'static) {
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
                node_changes(urgency);
            }
        });
    }

    /// Returns the current set.
    ///
    /// If it lost most of its nodes since the last call, the nodes are read again from the API
    /// server: a cache that lags, or a list that is cut short, must not take backends out of
    /// service.
    pub(crate) async fn get(
        &self,
        requirements: &[LabelRequirement],
    ) -> Result<Arc<BackendNodes>, StaleCacheError> {
        if let Some(set) = self.cached(requirements) {
            return Ok(set);
        }
        let (generation, set) = self.build(requirements);
        if self.shrunk_from(requirements, &set).is_none() {
            return Ok(self.store(requirements, generation, set));
        }
        let _confirming = self.confirmation_lock.lock().await;
        // Another caller may have confirmed the set meanwhile.
        if let Some(set) = self.cached(requirements) {
            return Ok(set);
        }
        self.fail_if_recently_unconfirmed()?;
        let (generation, set) = self.build(requirements);
        if let Some(before) = self.shrunk_from(requirements, &set) {
            tracing::warn!(
                left = set.nodes.len(),
                "most backends are gone; nodes are read again from the API server"
            );
            if let Err(error) = self.confirm_removals(requirements, &before, &set).await {
                self.state.lock().unconfirmed_until = Some(Instant::now() + UNCONFIRMED_RETRY);
                return Err(error);
            }
        }
        Ok(self.store(requirements, generation, set))
    }

    /// Reads the nodes from the API server. An error if one of the nodes to be removed still exists
    /// there.
    async fn confirm_removals(
        &self,
        requirements: &[LabelRequirement],
        before: &BackendNodes,
        set: &BackendNodes,
    ) -> Result<(), StaleCacheError> {
        let fresh = self.read(requirements).await?;
        if before.removes_existing_node(set, &fresh) {
            return Err(StaleCacheError::BackendsDiffer);
        }
        Ok(())
    }

    /// Compares the cache with the API server, once, before the first change of backends from
    /// before the start. The first set has no predecessor that shows what it lost, and a list that
    /// was cut short at the start must not empty load balancers. A set that was taken from the
    /// cache before may be older than what is confirmed.
    ///
    /// # Errors
    /// If the cache lacks a node that the API server has, or the API server could not be read, now
    /// or a moment ago.
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

    /// Reads all nodes from the API server. An error if the cache lacks one of them.
    async fn confirm_all_nodes(&self) -> Result<(), StaleCacheError> {
        let fresh = self.read(&[]).await?;
        let (_, cached) = self.build(&[]);
        if fresh.removes_existing_node(&cached, &fresh) {
            return Err(StaleCacheError::BackendsDiffer);
        }
        Ok(())
    }

    /// Checks that no confirmation of the nodes failed a moment ago.
    ///
    /// # Errors
    /// If one did.
    pub(crate) fn fail_if_recently_unconfirmed(&self) -> Result<(), StaleCacheError> {
        match self.state.lock().unconfirmed_until {
            Some(until) if until > Instant::now() => Err(StaleCacheError::RecentlyUnconfirmed),
            _ => Ok(()),
        }
    }

    /// Reads the set from the API server.
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

    fn cached(&self, requirements: &[LabelRequirement]) -> Option<Arc<BackendNodes>> {
        let state = self.state.lock();
        let entry = state.sets.get(requirements)?;
        (entry.generation == state.generation).then(|| entry.set.clone())
    }

    fn build(&self, requirements: &[LabelRequirement]) -> (u64, BackendNodes) {
        let generation = self.state.lock().generation;
        (generation, self.select(self.ctx.nodes.list(), requirements))
    }

    /// Returns the previous set if `set` lacks most of it.
    fn shrunk_from(
        &self,
        requirements: &[LabelRequirement],
        set: &BackendNodes,
    ) -> Option<Arc<BackendNodes>> {
        let state = self.state.lock();
        let before = &state.sets.get(requirements)?.set;
        set.removes_most_of(before).then(|| before.clone())
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

    /// Drops the sets that no load balancer uses any more.
    pub(crate) fn retain(&self, used: impl Fn(&[LabelRequirement]) -> bool) {
        self.state
            .lock()
            .sets
            .retain(|requirements, _| used(requirements));
    }
}

/// Tells whether a change that is not urgent may change a set: the autoscaler's taint, or labels of
/// an uninitialised node.
fn may_change_set(old: Option<&NodeView>, new: Option<&NodeView>) -> bool {
    if old.is_some_and(is_backend) != new.is_some_and(is_backend) {
        return true;
    }
    match (old, new) {
        (Some(old), Some(new)) => old.labels != new.labels,
        _ => false,
    }
}

/// Tells whether the load balancers can address a node.
fn is_candidate(provider: &dyn CloudProvider, node: &NodeView) -> bool {
    match target(provider) {
        NodeTarget::Address => true,
        NodeTarget::Instance => provider.node_ownership(node) == NodeOwnership::Ours,
    }
}

fn target(provider: &dyn CloudProvider) -> NodeTarget {
    provider
        .load_balancers()
        .map_or(NodeTarget::Address, LoadBalancers::node_target)
}

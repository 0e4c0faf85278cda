//! Observes the nodes: sets of backends made once per change, and doubted when most of one is gone.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use super::{
    DOUBT_PAUSE,
    node_set::{NodeSet, Urgency, is_backend, urgency},
};
use crate::{
    controllers::ControllerContext,
    k8s::NodeView,
    provider::{CloudProvider, LabelRequirement, LoadBalancers, NodeClaim, NodeTarget},
    runtime::{api::ApiError, cache::Change},
};

/// Sets of nodes, by what balancers require of their labels.
pub(crate) struct NodeSets {
    cx: ControllerContext,
    state: Arc<Mutex<State>>,
    /// Held while the API server is asked, so that one answer serves all.
    asking: AsyncMutex<()>,
}

#[derive(Default)]
struct State {
    /// Counts the changes of nodes that may change a set.
    generation: u64,
    sets: HashMap<Vec<LabelRequirement>, Entry>,
    /// Until when an answer that did not settle a doubt stands for all who ask.
    doubted_until: Option<Instant>,
    /// Whether the cache was compared with the API server since the start.
    confirmed: bool,
}

struct Entry {
    generation: u64,
    set: Arc<NodeSet>,
}

/// Why what the cache shows is not acted upon.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Doubt {
    /// The API server could not be asked.
    #[error("nodes could not be read again before most backends are removed")]
    Unread(#[source] ApiError),
    /// It has a Service that the cache lacks.
    #[error("the API server has the service that the cache lacks; its load balancer stays until both agree")]
    StillThere,
    /// A Service is to be served again, as the API server has it.
    #[error(
        "the API server has the service as one to be served, which the cache does not show yet; its load balancer stays"
    )]
    WantedAgain,
    /// Services vanished all at once that nobody deleted.
    #[error(
        "{gone} of {all} services with load balancers are gone and were not deleted, as after a restored backup; their load balancers stay, delete them by hand if they are not needed"
    )]
    MostGone {
        /// Those that are gone.
        gone: usize,
        /// All with a balancer.
        all: usize,
    },
    /// It was asked a moment ago, in vain.
    #[error("nodes are in doubt: most backends are gone from the cache alone, or the API server could not be asked")]
    Recent,
    /// It shows backends that the cache does not.
    #[error("the API server has nodes that the cache lacks; backends stay until both agree")]
    Disagree,
}

impl NodeSets {
    pub(crate) fn new(cx: ControllerContext) -> Self {
        Self { cx, state: Arc::default(), asking: AsyncMutex::default() }
    }

    /// Has sets made anew after changes of nodes, and tells which changes are news to balancers.
    pub(crate) fn follow(&self, news: impl Fn(Urgency) + Send + Sync + 'static) {
        let (state, provider) = (self.state.clone(), self.cx.provider.clone());
        let candidate = {
            let provider = provider.clone();
            move |node: &Arc<NodeView>| is_candidate(&*provider, node).then(|| node.clone())
        };
        self.cx.nodes.on_change(move |change: &Change<NodeView>| {
            let (old, new) = match change {
                Change::Added(new) => (None, candidate(new)),
                Change::Updated { old, new } => (candidate(old), candidate(new)),
                Change::Deleted(old) => (candidate(old), None),
            };
            let news_of = urgency(old.as_deref(), new.as_deref(), target(&*provider));
            let relabelled = matches!((&old, &new), (Some(old), Some(new)) if old.labels != new.labels);
            let (was, is) = (old.is_some_and(|n| is_backend(&n)), new.is_some_and(|n| is_backend(&n)));
            // The autoscaler's taint changes a set and is no news; nor are labels before the initialisation.
            if news_of.is_some() || was != is || relabelled {
                state.lock().generation += 1;
            }
            news_of.into_iter().for_each(&news);
        });
    }

    /// Returns the set of today.
    ///
    /// When it lost most of its nodes since it was last asked for, the nodes are read again from the API server: a cache
    /// that lags or a list that is cut short must not take backends out of service.
    pub(crate) async fn get(&self, requirements: &[LabelRequirement]) -> Result<Arc<NodeSet>, Doubt> {
        if let Some(set) = self.known(requirements) {
            return Ok(set);
        }
        let (generation, set) = self.observe(requirements);
        if self.before(requirements, &set).is_none() {
            return Ok(self.keep(requirements, generation, set));
        }
        let _asking = self.asking.lock().await;
        // Somebody else may have asked meanwhile.
        if let Some(set) = self.known(requirements) {
            return Ok(set);
        }
        self.check_doubt()?;
        let (generation, set) = self.observe(requirements);
        if let Some(before) = self.before(requirements, &set) {
            tracing::warn!(left = set.nodes.len(), "most backends are gone; nodes are read again from the API server");
            self.confirm(requirements, &before, &set).await.inspect_err(|_| {
                self.state.lock().doubted_until = Some(Instant::now() + DOUBT_PAUSE);
            })?;
        }
        Ok(self.keep(requirements, generation, set))
    }

    /// Reads the nodes again; an error if one of those that are to go is still there.
    async fn confirm(&self, requirements: &[LabelRequirement], before: &NodeSet, set: &NodeSet) -> Result<(), Doubt> {
        let fresh = self.read(requirements).await?;
        if before.loses_one_of(set, &fresh) { Err(Doubt::Disagree) } else { Ok(()) }
    }

    /// Compares the cache with the API server, once, before the first change of backends from before the start. The first set
    /// has none before it that shows what it lost: a list that was cut short at the start must not empty load balancers. What
    /// was taken from the cache before may be older than what is confirmed.
    ///
    /// # Errors
    /// The cache lacks a node that the API server has, or that could not be asked.
    pub(crate) async fn confirm_start(&self) -> Result<(), Doubt> {
        let _asking = self.asking.lock().await;
        if self.state.lock().confirmed {
            return Ok(());
        }
        self.check_doubt()?;
        let confirmed = match self.read(&[]).await {
            Ok(fresh) if fresh.loses_one_of(&self.observe(&[]).1, &fresh) => Err(Doubt::Disagree),
            Ok(_) => Ok(()),
            Err(doubt) => Err(doubt),
        };
        let mut state = self.state.lock();
        match confirmed {
            Ok(()) => state.confirmed = true,
            Err(_) => state.doubted_until = Some(Instant::now() + DOUBT_PAUSE),
        }
        confirmed
    }

    /// Tells whether the nodes were in doubt a moment ago.
    ///
    /// # Errors
    /// They were.
    pub(crate) fn check_doubt(&self) -> Result<(), Doubt> {
        let doubted = self.state.lock().doubted_until.is_some_and(|until| until > Instant::now());
        if doubted { Err(Doubt::Recent) } else { Ok(()) }
    }

    /// Reads the set from the API server.
    async fn read(&self, requirements: &[LabelRequirement]) -> Result<NodeSet, Doubt> {
        let nodes = self.cx.api.list_nodes(&self.cx.fields).await.map_err(Doubt::Unread)?;
        Ok(self.select(nodes.into_iter().map(Arc::new).collect(), requirements))
    }

    fn select(&self, mut nodes: Vec<Arc<NodeView>>, requirements: &[LabelRequirement]) -> NodeSet {
        nodes.retain(|node| is_candidate(&*self.cx.provider, node));
        NodeSet::new(&nodes, requirements, target(&*self.cx.provider))
    }

    fn known(&self, requirements: &[LabelRequirement]) -> Option<Arc<NodeSet>> {
        let state = self.state.lock();
        let entry = state.sets.get(requirements)?;
        (entry.generation == state.generation).then(|| entry.set.clone())
    }

    fn observe(&self, requirements: &[LabelRequirement]) -> (u64, NodeSet) {
        let generation = self.state.lock().generation;
        (generation, self.select(self.cx.nodes.list(), requirements))
    }

    /// Returns the set as it was, if `set` lacks most of it.
    fn before(&self, requirements: &[LabelRequirement], set: &NodeSet) -> Option<Arc<NodeSet>> {
        let before = self.state.lock().sets.get(requirements).map(|entry| entry.set.clone());
        before.filter(|before| set.loses_most_of(before))
    }

    fn keep(&self, requirements: &[LabelRequirement], generation: u64, set: NodeSet) -> Arc<NodeSet> {
        let set = Arc::new(set);
        self.state.lock().sets.insert(requirements.to_vec(), Entry { generation, set: set.clone() });
        set
    }

    /// Forgets sets that no balancer asks for any more.
    pub(crate) fn retain(&self, used: impl Fn(&[LabelRequirement]) -> bool) {
        self.state.lock().sets.retain(|requirements, _| used(requirements));
    }
}

/// Tells whether the load balancers can address a node.
fn is_candidate(provider: &dyn CloudProvider, node: &NodeView) -> bool {
    match target(provider) {
        NodeTarget::Address => true,
        NodeTarget::Instance => provider.claims_node(node) == NodeClaim::Ours,
    }
}

fn target(provider: &dyn CloudProvider) -> NodeTarget {
    provider.load_balancers().map_or(NodeTarget::Address, LoadBalancers::node_target)
}

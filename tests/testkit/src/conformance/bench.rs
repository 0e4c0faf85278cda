use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ccm_core::{
    k8s::NodeView,
    provider::{CloudProvider, Op},
    runtime::gate::WriteGate,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    Make,
    report::{Problem, Verdict},
};

/// Longest wait for the constructor.
const PATIENCE: Duration = Duration::from_secs(60);
/// Name of the cluster that the provider under test works for.
pub(super) const CLUSTER: &str = "conformance";

/// What a rule works with: the cloud, fresh providers, things of its own. The suites add what they need.
pub(super) struct Bench<'a, C: ?Sized> {
    make: &'a Make,
    pub(super) cloud: &'a C,
    rule: &'static str,
    /// Names of the instances to delete afterwards.
    pub(super) created: Mutex<Vec<String>>,
    /// Nodes that rules about load balancers share.
    pub(super) pool: tokio::sync::Mutex<Vec<Arc<NodeView>>>,
    names: AtomicUsize,
}

impl<'a, C: ?Sized> Bench<'a, C> {
    pub(super) fn new(make: &'a Make, cloud: &'a C, rule: &'static str) -> Self {
        Self {
            make,
            cloud,
            rule,
            created: Mutex::default(),
            pool: tokio::sync::Mutex::default(),
            names: AtomicUsize::new(0),
        }
    }

    /// Returns a name that nothing else uses.
    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.rule, self.number())
    }

    /// Returns a number that no other call on this bench returns.
    pub(super) fn number(&self) -> usize {
        self.names.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a node name whose instance, if the rule creates one, is deleted afterwards.
    pub(super) fn reserve(&self) -> String {
        let name = self.name();
        self.created.lock().push(name.clone());
        name
    }

    /// Makes a provider that remembers nothing.
    pub(super) async fn make(&self) -> Verdict<Arc<dyn CloudProvider>> {
        let made = tokio::time::timeout(PATIENCE, (self.make)()).await;
        let made = made.map_err(|_| Problem::Failed(format!("the constructor did not end within {PATIENCE:?}")))?;
        made.map_err(|e| Problem::Failed(format!("the constructor failed: {e:#}")))
    }
}

/// An operation that may do everything.
pub(super) fn open_op() -> Op {
    Op::new(CLUSTER, CancellationToken::new(), WriteGate::always_open())
}

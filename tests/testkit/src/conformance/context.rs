use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, CloudProvider, Op, call_metrics::MutationMetrics},
    write_gate::WriteGate,
};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio_util::sync::CancellationToken;

use super::{
    Make,
    report::{Problem, Verdict, expect},
};

/// Longest wait for the constructor.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest reason of an event that the API server takes.
const LONGEST_REASON: usize = 128;
/// Name of the cluster that the provider under test works for.
pub(super) const CLUSTER: &str = "conformance";

/// What a rule works with: the cloud, fresh providers, things of its own. The suites add what they
/// need.
pub(super) struct RuleContext<'a, C: ?Sized> {
    make: &'a Make,
    pub(super) cloud: &'a C,
    rule: &'static str,
    /// Names of the instances to delete afterwards.
    pub(super) created: Mutex<Vec<String>>,
    /// Nodes that rules about load balancers share.
    pub(super) pool: tokio::sync::Mutex<Vec<Arc<NodeView>>>,
    names: AtomicUsize,
}

impl<'a, C: ?Sized> RuleContext<'a, C> {
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
        let made = made.map_err(|_| {
            Problem::Failed(format!("the constructor did not end within {PATIENCE:?}"))
        })?;
        made.map_err(|e| Problem::Failed(format!("the constructor failed: {e:#}")))
    }
}

/// What a provider records of its changes.
pub(super) struct MutationRecords {
    registry: Registry,
    pub(super) metrics: MutationMetrics,
    named: &'static [&'static str],
}

impl MutationRecords {
    pub(super) fn new(provider: &Arc<dyn CloudProvider>) -> Verdict<Self> {
        let (registry, named) = (Registry::new(), provider.mutation_operations());
        let metrics = MutationMetrics::register(&registry, named);
        let metrics =
            metrics.map_err(|error| Problem::Failed(format!("mutations {named:?}: {error}")))?;
        Ok(Self { registry, metrics, named })
    }

    /// Counts the changes of each operation.
    fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for family in self
            .registry
            .gather()
            .iter()
            .filter(|family| family.name() == "ccm_cloud_mutations_total")
        {
            for metric in family.get_metric() {
                let operation = metric
                    .get_label()
                    .iter()
                    .find(|label| label.name() == "operation");
                let made = metric.get_counter().get_value().round();
                // Counts of a run are small and never negative.
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a small count"
                )]
                let made = made as u64;
                *counts
                    .entry(
                        operation
                            .map(|label| label.value().to_owned())
                            .unwrap_or_default(),
                    )
                    .or_default() += made;
            }
        }
        counts
    }

    pub(super) fn made(&self) -> u64 {
        self.counts().values().sum()
    }

    /// Checks that every writing call since `before` records were there has one, of a kind that is
    /// named.
    pub(super) fn cover(&self, before: u64, writes: u64, what: &str) -> Verdict {
        let made = self.made() - before;
        expect(made >= writes, || {
            format!("{what}: {writes} writing calls, {made} changes are recorded")
        })?;
        let strange: Vec<_> = self
            .counts()
            .into_iter()
            .filter(|(operation, made)| *made > 0 && !self.named.contains(&operation.as_str()))
            .map(|(operation, _)| operation)
            .collect();
        expect(strange.is_empty(), || {
            format!("{what}: mutation_operations() does not name {strange:?}")
        })
    }
}

/// Says what is wrong with an error that people will read.
pub(super) fn presentable(error: &CloudError, secrets: &[String]) -> Result<(), String> {
    let text = error.chain();
    if text.trim().is_empty() {
        return Err(format!("an error of kind {} says nothing", error.kind()));
    }
    if holds(&format!("{text}{error:?}"), secrets) {
        return Err(format!("an error of kind {} holds a secret", error.kind()));
    }
    error.reason().map_or(Ok(()), event_reason)
}

/// Tells whether a secret can be read in a text.
pub(super) fn holds(text: &str, secrets: &[String]) -> bool {
    secrets.iter().any(|secret| text.contains(secret.as_str()))
}

/// Says what is wrong with the reason of an event.
pub(super) fn event_reason(reason: &str) -> Result<(), String> {
    let pascal = reason.starts_with(|c: char| c.is_ascii_uppercase())
        && reason.chars().all(|c| c.is_ascii_alphanumeric());
    match pascal && reason.len() <= LONGEST_REASON {
        true => Ok(()),
        false => Err(format!("the event reason {reason:?} is not one word in PascalCase")),
    }
}

/// An operation that may do everything.
pub(super) fn open_op() -> Op {
    Op::new(CLUSTER, CancellationToken::new(), WriteGate::always_open())
}

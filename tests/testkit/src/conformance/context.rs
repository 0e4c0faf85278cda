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

/// Timeout of the provider's constructor.
const CONSTRUCTOR_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of an event reason in the API server.
const MAX_REASON_LENGTH: usize = 128;
/// Name of the cluster that the provider under test works for.
pub(super) const CLUSTER: &str = "conformance";

/// Environment of one rule: the cloud, fresh providers, and unique names. Each suite adds methods
/// for its own objects.
pub(super) struct RuleContext<'a, C: ?Sized> {
    make: &'a Make,
    pub(super) cloud: &'a C,
    rule: &'static str,
    /// Names of the instances to delete after the rule.
    pub(super) created: Mutex<Vec<String>>,
    /// Nodes that the parts of a load balancer rule share.
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

    /// Returns a name that no other object uses.
    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.rule, self.number())
    }

    /// Returns a number that no earlier call on this context returned.
    pub(super) fn number(&self) -> usize {
        self.names.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a new node name. If the rule creates its instance, cleanup deletes it.
    pub(super) fn reserve(&self) -> String {
        let name = self.name();
        self.created.lock().push(name.clone());
        name
    }

    /// Returns a new provider with empty caches.
    pub(super) async fn make(&self) -> Verdict<Arc<dyn CloudProvider>> {
        let made = tokio::time::timeout(CONSTRUCTOR_TIMEOUT, (self.make)()).await;
        let made = made.map_err(|_| {
            Problem::Failed(format!("the constructor did not end within {CONSTRUCTOR_TIMEOUT:?}"))
        })?;
        made.map_err(|e| Problem::Failed(format!("the constructor failed: {e:#}")))
    }
}

/// Mutations that a provider recorded through [`MutationMetrics`].
pub(super) struct MutationRecords {
    registry: Registry,
    pub(super) metrics: MutationMetrics,
    operations: &'static [&'static str],
}

impl MutationRecords {
    pub(super) fn new(provider: &Arc<dyn CloudProvider>) -> Verdict<Self> {
        let (registry, operations) = (Registry::new(), provider.mutation_operations());
        let metrics = MutationMetrics::register(&registry, operations);
        let metrics = metrics
            .map_err(|error| Problem::Failed(format!("mutations {operations:?}: {error}")))?;
        Ok(Self { registry, metrics, operations })
    }

    /// Returns the number of recorded mutations of each operation.
    fn counts_by_operation(&self) -> BTreeMap<String, u64> {
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

    /// Returns the total number of recorded mutations.
    pub(super) fn count(&self) -> u64 {
        self.counts_by_operation().values().sum()
    }

    /// Checks that at least `writes` mutations were recorded since the count was `before`, all with
    /// operations that the provider lists.
    pub(super) fn check(&self, before: u64, writes: u64, what: &str) -> Verdict {
        let recorded = self.count() - before;
        expect(recorded >= writes, || {
            format!("{what}: {writes} writing calls, but only {recorded} recorded changes")
        })?;
        let unlisted: Vec<_> = self
            .counts_by_operation()
            .into_iter()
            .filter(|(operation, count)| {
                *count > 0 && !self.operations.contains(&operation.as_str())
            })
            .map(|(operation, _)| operation)
            .collect();
        expect(unlisted.is_empty(), || {
            format!("{what}: mutation_operations() does not list {unlisted:?}")
        })
    }
}

/// Checks that the text and the event reason of an error can be shown to users.
pub(super) fn check_error_text(error: &CloudError, secrets: &[String]) -> Result<(), String> {
    let text = error.chain();
    if text.trim().is_empty() {
        return Err(format!("an error of kind {} has an empty message", error.kind()));
    }
    if contains_secret(&format!("{text}{error:?}"), secrets) {
        return Err(format!("an error of kind {} contains a secret", error.kind()));
    }
    error.reason().map_or(Ok(()), check_event_reason)
}

/// Returns true if `text` contains one of the secrets.
pub(super) fn contains_secret(text: &str, secrets: &[String]) -> bool {
    secrets.iter().any(|secret| text.contains(secret.as_str()))
}

/// Checks that an event reason is one word in PascalCase that the API server accepts.
pub(super) fn check_event_reason(reason: &str) -> Result<(), String> {
    let is_pascal_case = reason.starts_with(|c: char| c.is_ascii_uppercase())
        && reason.chars().all(|c| c.is_ascii_alphanumeric());
    match is_pascal_case && reason.len() <= MAX_REASON_LENGTH {
        true => Ok(()),
        false => Err(format!("the event reason {reason:?} is not one word in PascalCase")),
    }
}

/// Returns an operation with an open write gate and no deadline.
pub(super) fn open_op() -> Op {
    Op::new(CLUSTER, CancellationToken::new(), WriteGate::always_open())
}

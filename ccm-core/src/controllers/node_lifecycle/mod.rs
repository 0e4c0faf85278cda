//! Taints nodes that are shut down and deletes those whose instance is gone (upstream's
//! `cloud-node-lifecycle-controller`).
//!
//! What a deletion needs is written in the `plan` module. Errors never delete.

pub(crate) mod apply;
pub(crate) mod metrics;
mod plan;
mod preview;

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{
    apply::Deleted,
    metrics::{Deletion, LifecycleMetrics},
    plan::{Action, ClusterCount, Controls, Denied, Evidence, MAX_CONTROLS, Refusal, Safety, Seen, Tracker},
};
use super::{ControllerContext, report::Reports};
use crate::{
    config::controllers as names,
    error::chain,
    k8s::NodeView,
    provider::{CloudError, Coalescer, EventKind, Need, NodeClaim, NodeQuery, Presence},
    runtime::events::ObjectRef,
    telemetry::controllers::Outcome,
};

/// Deletions per pass, spread evenly: a mistake that passes every guard is noticed before it is complete, and each
/// later Node is proved absent again in its own pass.
const MAX_DELETIONS_PER_PASS: usize = 50;
/// Pause between two deletions: at most ten a second.
const DELETION_GAP: Duration = Duration::from_millis(100);
/// Taint writes in flight at least, whatever `--concurrent-node-lifecycle-syncs` says.
const MIN_TAINTS_AT_ONCE: usize = 8;

/// Settings of the node-lifecycle controller.
#[derive(Clone, Debug)]
pub struct NodeLifecycleConfig {
    /// `--node-monitor-period`: pause between two passes.
    pub period: Duration,
    /// `--node-deletion-safety=upstream`: one negative answer deletes, as in Go's framework.
    pub upstream_deletion: bool,
    /// `--concurrent-node-lifecycle-syncs`: taint writes in flight, if more than 8.
    pub concurrent_syncs: usize,
}

/// The node-lifecycle controller.
pub struct NodeLifecycleController {
    cx: ControllerContext,
    config: NodeLifecycleConfig,
    instances: Coalescer,
    metrics: LifecycleMetrics,
    reports: Reports,
}

impl NodeLifecycleController {
    /// Makes the controller.
    ///
    /// # Errors
    /// When its metrics are registered already.
    pub fn new(cx: ControllerContext, config: NodeLifecycleConfig, instances: Coalescer) -> prometheus::Result<Self> {
        let metrics = LifecycleMetrics::register(&cx.metrics)?;
        Ok(Self { cx, config, instances, metrics, reports: Reports::default() })
    }

    /// Runs until `cancel`; a write that was begun is finished.
    pub async fn run(self, cancel: CancellationToken) {
        let mut tracker = Tracker::new(self.config.period, self.safety());
        let begin = Instant::now();
        cancel.run_until_cancelled(self.cx.nodes.synced()).await;
        let mut turn = 0;
        while !cancel.is_cancelled() {
            let start = Instant::now();
            let pass = async { (self.pass(&mut tracker, begin, turn, &cancel).await, ()) };
            self.cx.shared.reconcile(names::CLOUD_NODE_LIFECYCLE, "nodes", pass).await;
            self.metrics.pass.observe(start.elapsed().as_secs_f64());
            cancel.run_until_cancelled(tokio::time::sleep(self.config.period)).await;
            turn += 1;
        }
    }

    fn safety(&self) -> Safety {
        if self.config.upstream_deletion { Safety::Upstream } else { Safety::Strict }
    }

    /// One pass over all nodes. What a batch of answers leads to is done before the next batch is asked about, so that no
    /// proof is old when it is used.
    async fn pass(&self, tracker: &mut Tracker, begin: Instant, turn: usize, cancel: &CancellationToken) -> Outcome {
        let mut ours = self.cx.nodes.list();
        ours.retain(|node| self.cx.provider.claims_node(node) == NodeClaim::Ours);
        let (questions, mut actions) = tracker.questions(&ours, begin.elapsed());
        let answers = self.ask(&questions.ordinary).await;
        let in_vain = !answers.is_empty() && answers.iter().all(Result::is_err);
        for (node, answer) in questions.ordinary.iter().zip(answers) {
            actions.extend(tracker.ordinary(node, Seen::of(&answer), begin.elapsed()));
        }
        let mut deletions_left = MAX_DELETIONS_PER_PASS;
        self.apply(actions, &mut deletions_left, cancel).await;
        for suspects in questions.confirm.chunks(self.confirm_size()) {
            // With no deletion left, their proofs wait for the next pass.
            if deletions_left == 0 {
                break;
            }
            let mut actions = Vec::new();
            for (node, seen, evidence) in self.confirm(&ours, suspects, turn).await.0 {
                actions.extend(tracker.confirm(&node, seen, &evidence, begin.elapsed(), self.cx.clock.now()));
            }
            self.apply(actions, &mut deletions_left, cancel).await;
        }
        self.instances.records().prune(&ours);
        self.reports.retain(|name| self.cx.nodes.get(name).is_some());
        if in_vain { Outcome::Failed } else { Outcome::Done }
    }

    /// Returns how many suspects go into one batch beside the controls.
    fn confirm_size(&self) -> usize {
        let batch = self.instances.limits().max_batch;
        NonZeroUsize::new(batch.get().saturating_sub(MAX_CONTROLS)).unwrap_or(NonZeroUsize::MIN).get()
    }

    async fn ask(&self, nodes: &[Arc<NodeView>]) -> Vec<Result<Presence, CloudError>> {
        // Upstream's one answer deletes, so it has to be fresh; otherwise it only begins a proof.
        let max_age = if self.config.upstream_deletion { Duration::ZERO } else { self.config.period };
        let queries = nodes.iter().map(|node| NodeQuery { node: node.clone(), need: Need::Power, max_age }).collect();
        let answers = self.instances.describe_many(queries).await;
        self.note(nodes, &answers);
        answers
    }

    /// Asks fresh about suspects and controls in one batch, so that whatever is wrong with the question shows on both.
    /// Returns what was answered about each suspect, and the evidence; and the answers themselves.
    async fn confirm(
        &self,
        ours: &[Arc<NodeView>],
        suspects: &[Arc<NodeView>],
        turn: usize,
    ) -> (Vec<(Arc<NodeView>, Seen, Evidence)>, Vec<Result<Presence, CloudError>>) {
        let records = self.instances.records();
        let controls = plan::choose_controls(ours, suspects, records, turn);
        let before: Vec<_> = controls.iter().map(|node| records.of(node)).collect();
        let query = |node: &Arc<NodeView>| NodeQuery { node: node.clone(), need: Need::Power, max_age: Duration::ZERO };
        let queries = suspects.iter().chain(&controls).map(query).collect();
        let mut answers = self.instances.describe_together(queries).await;
        let of_controls = answers.split_off(suspects.len());
        self.note(suspects, &answers);

        // The records hold the new answers by now.
        let tally = Controls::tally(of_controls.iter().map(Seen::of).zip(before));
        let (cluster, denied) = (ClusterCount::of(ours, records), Denied::of(ours, records));
        let judged = suspects.iter().zip(&answers).map(|(node, answer)| {
            let evidence = Evidence { controls: tally, cluster, denied: denied.near(node), record: records.of(node) };
            (node.clone(), Seen::of(answer), evidence)
        });
        (judged.collect(), answers)
    }

    fn note(&self, nodes: &[Arc<NodeView>], answers: &[Result<Presence, CloudError>]) {
        for (node, answer) in nodes.iter().zip(answers) {
            self.metrics.answered(answer);
            if let Err(error) = answer {
                tracing::warn!(node = %node.name, error = error.chain(), "instance not checked");
            }
        }
    }

    async fn apply(&self, actions: Vec<Action>, deletions_left: &mut usize, cancel: &CancellationToken) {
        let (deletions, taints): (Vec<_>, Vec<_>) = actions.into_iter().partition(|a| matches!(a, Action::Delete(_)));
        let at_once = self.config.concurrent_syncs.max(MIN_TAINTS_AT_ONCE);
        let taints = stream::iter(taints).take_while(|_| std::future::ready(!cancel.is_cancelled()));
        taints.for_each_concurrent(at_once, |action| self.apply_one(action)).await;
        for action in deletions {
            if *deletions_left == 0 || cancel.is_cancelled() {
                return;
            }
            *deletions_left -= 1;
            self.apply_one(action).await;
            cancel.run_until_cancelled(tokio::time::sleep(DELETION_GAP)).await;
        }
    }

    async fn apply_one(&self, action: Action) {
        match action {
            Action::Taint(node) => self.taint(&node, true).await,
            Action::Untaint(node) => self.taint(&node, false).await,
            Action::Delete(node) => self.delete(&node).await,
            Action::Refuse { node, why, first } => self.refuse(&node, why, first),
        }
    }

    async fn taint(&self, node: &NodeView, wanted: bool) {
        match apply::set_shutdown_taint(&self.cx.api, &self.cx.fields, node, wanted).await {
            Ok(true) => tracing::info!(node = %node.name, tainted = wanted, "shutdown taint changed"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(node = %node.name, tainted = wanted, error = chain(&error), "shutdown taint not changed");
            }
        }
    }

    async fn delete(&self, node: &NodeView) {
        let object = ObjectRef::node(node.name.clone(), &*node.uid);
        match apply::delete(&self.cx.api, &self.cx.provider, &self.cx.fields, node).await {
            Ok(Deleted::Yes) => {
                self.metrics.deletion(Deletion::Deleted);
                tracing::info!(node = %node.name, provider_id = node.provider_id.as_deref(), "node deleted: its instance is gone");
                let note = format!("Deleting node {} because it does not exist in the cloud provider", node.name);
                self.cx.events.event(&object, EventKind::Normal, "DeletingNode", &note);
                self.reports.clear(&node.name);
            }
            Ok(Deleted::Withdrawn(why)) => {
                self.metrics.deletion(Deletion::Withdrawn);
                tracing::info!(node = %node.name, why, "node not deleted");
            }
            Err(error) => {
                self.metrics.deletion(Deletion::Failed);
                let error = chain(&error);
                tracing::warn!(node = %node.name, error, "node not deleted");
                let note = format!("Failed deleting node {}: {error}", node.name);
                self.reports.warn(&self.cx.events, node, "DeletingNodeFailed", &note);
            }
        }
    }

    fn refuse(&self, node: &NodeView, why: Refusal, first: bool) {
        self.metrics.deletion(Deletion::Refused(why));
        if !first {
            return;
        }
        let note = why.to_string();
        tracing::error!(node = %node.name, provider_id = node.provider_id.as_deref(), "node not deleted: {note}");
        self.cx.events.event(
            &ObjectRef::node(node.name.clone(), &*node.uid),
            EventKind::Warning,
            "NodeDeletionRefused",
            &note,
        );
    }
}

//! Taints nodes whose instance is shut down, marks them out of service if that lasts, and deletes
//! nodes whose instance no longer exists (upstream's `cloud-node-lifecycle-controller`).
//!
//! The `plan` module describes the proof that a deletion needs. An error never leads to a deletion.

pub(crate) mod apply;
mod dry_run;
mod explain;
pub(crate) mod metrics;
mod plan;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{
    apply::{DeleteOutcome, TaintChange},
    metrics::{DeletionOutcome, LifecycleMetrics},
    plan::{
        Action, ClusterCount, ControlResults, DeletionEvidence, DeletionRefusal, DeletionSafety,
        InstanceObservation, LostReadyNodes, MAX_CONTROLS, NotReadyTracker, OffFinding,
    },
};
use super::{ControllerContext, event_dedup::EventDeduplicator};
use crate::{
    config::controller_names as names,
    error::chain,
    explain::{AttemptLog, Cause, api_attempt, api_cause},
    k8s::NodeView,
    provider::{
        CloudError, EventType, InstanceBatcher, InstanceQuery, InstanceStatus, MetadataScope,
        NodeOwnership,
    },
    runtime::events::ObjectRef,
    telemetry::controller_metrics::ReconcileOutcome,
};

/// The maximum number of deletions and out-of-service marks in one pass. Should wrong ones pass
/// every check, the operator can intervene before all nodes are affected, and the next pass has to
/// prove again that each of the other instances is absent or shut down.
const MAX_DELETIONS_PER_PASS: usize = 50;
/// The number of passes between two queries of Ready nodes, which are needed before a node may be
/// marked out of service.
const PASSES_BETWEEN_PROOFS: usize = 12;
/// The maximum age of the cloud's answer when a node is marked out of service is one period, but at
/// least this long.
const MIN_ANSWER_AGE: Duration = Duration::from_secs(5);
/// The delay between two deletions, which makes at most ten per second.
const MIN_DELETION_INTERVAL: Duration = Duration::from_millis(100);
/// The minimum number of taint writes that may be in flight, even if
/// `--concurrent-node-lifecycle-syncs` is lower.
const MIN_CONCURRENT_TAINTS: usize = 8;

/// Settings of the node-lifecycle controller.
#[derive(Clone, Debug)]
pub struct NodeLifecycleOptions {
    /// The delay between two passes (`--node-monitor-period`).
    pub period: Duration,
    /// True if one "not found" is enough to delete a Node, as in the Go framework
    /// (`--node-deletion-safety=upstream`).
    pub upstream_deletion: bool,
    /// The time for which the cloud must say that an instance is shut down or gone before its node
    /// is marked out of service (`--out-of-service-after`). Zero for never.
    pub out_of_service_after: Duration,
    /// The maximum number of taint writes in flight (`--concurrent-node-lifecycle-syncs`). Values
    /// below 8 count as 8.
    pub concurrent_syncs: usize,
}

impl NodeLifecycleOptions {
    fn tracker(&self) -> NotReadyTracker {
        NotReadyTracker::new(self.period, self.safety())
            .with_out_of_service_after(self.out_of_service_after)
    }

    fn safety(&self) -> DeletionSafety {
        if self.upstream_deletion {
            DeletionSafety::Upstream
        } else {
            DeletionSafety::Strict
        }
    }
}

/// The node-lifecycle controller.
pub struct NodeLifecycleController {
    ctx: ControllerContext,
    config: NodeLifecycleOptions,
    instances: InstanceBatcher,
    metrics: LifecycleMetrics,
    event_dedup: EventDeduplicator,
    tracker: Arc<Mutex<NotReadyTracker>>,
    /// The last deletions and writes of taints that failed, for explanations.
    failed_writes: AttemptLog,
    started_at: Instant,
}

/// The cloud's answer about a suspect, and the evidence for and against its deletion.
struct QueriedSuspect {
    node: Arc<NodeView>,
    answer: Result<InstanceStatus, CloudError>,
    evidence: DeletionEvidence,
}

impl NodeLifecycleController {
    /// Creates the controller.
    ///
    /// # Errors
    /// Returns an error if the metrics are already registered.
    pub fn new(
        ctx: ControllerContext,
        config: NodeLifecycleOptions,
        instances: InstanceBatcher,
    ) -> prometheus::Result<Self> {
        let metrics = LifecycleMetrics::register(&ctx.metrics)?;
        let tracker = config.tracker();
        Ok(Self {
            ctx,
            config,
            instances,
            metrics,
            event_dedup: EventDeduplicator::default(),
            tracker: Arc::new(Mutex::new(tracker)),
            failed_writes: AttemptLog::default(),
            started_at: Instant::now(),
        })
    }

    /// Runs the controller until it is cancelled. It then only finishes a write in flight.
    pub async fn run(self, cancel: CancellationToken) {
        cancel.run_until_cancelled(self.ctx.nodes.synced()).await;
        let mut pass_number = 0;
        while !cancel.is_cancelled() {
            let pass_started_at = Instant::now();
            let pass = async {
                let outcome = self.pass(pass_number, &cancel).await;
                (outcome, ())
            };
            self.ctx
                .controller_metrics
                .reconcile(names::CLOUD_NODE_LIFECYCLE, "nodes", pass)
                .await;
            self.metrics
                .pass
                .observe(pass_started_at.elapsed().as_secs_f64());
            cancel
                .run_until_cancelled(tokio::time::sleep(self.config.period))
                .await;
            pass_number += 1;
        }
    }

    /// Runs one pass over all nodes.
    ///
    /// The actions that follow from one batch of answers are applied before the next batch is
    /// queried, so that every proof is recent when it is used.
    async fn pass(&self, pass_number: usize, cancel: &CancellationToken) -> ReconcileOutcome {
        let started_at = self.started_at;
        // Query the nodes that are not Ready, and apply what follows from the answers.
        let mut ours = self.ctx.nodes.list();
        ours.retain(|node| self.ctx.provider.node_ownership(node) == NodeOwnership::Ours);
        self.query_ready_nodes(&ours, pass_number).await;
        let (queries, mut actions) = self
            .tracker
            .lock()
            .plan_queries(&ours, started_at.elapsed());
        let answers = self.query_cloud(&queries.routine).await;
        let all_failed = !answers.is_empty() && answers.iter().all(Result::is_err);
        for (node, answer) in queries.routine.iter().zip(answers) {
            actions.extend(self.tracker.lock().record_routine(
                node,
                InstanceObservation::from_answer(&answer),
                started_at.elapsed(),
            ));
        }
        let mut deletions_left = MAX_DELETIONS_PER_PASS;
        self.apply(actions, &mut deletions_left, cancel).await;
        // Query the suspects again, together with controls. When no more deletions are allowed, the
        // other suspects wait for the next pass.
        for suspects in queries.confirmations.chunks(self.max_suspects_per_batch()) {
            if deletions_left == 0 {
                break;
            }
            let mut actions = Vec::new();
            for suspect in self.query_with_controls(&ours, suspects, pass_number).await {
                let mut tracker = self.tracker.lock();
                let action = tracker.record_confirmation(
                    &suspect.node,
                    InstanceObservation::from_answer(&suspect.answer),
                    &suspect.evidence,
                    started_at.elapsed(),
                    self.ctx.clock.now(),
                );
                if let Some(Action::Delete(node)) = &action {
                    actions.extend(tracker.plan_before_deletion(node, &suspect.evidence));
                }
                actions.extend(action);
            }
            self.apply(actions, &mut deletions_left, cancel).await;
        }
        // Forget nodes and instances that no longer exist.
        self.instances.records().prune(&ours);
        let exists = |name: &str| self.ctx.nodes.get(name).is_some();
        self.event_dedup.retain(exists);
        self.failed_writes.retain(exists);
        if all_failed {
            ReconcileOutcome::Failed
        } else {
            ReconcileOutcome::Done
        }
    }

    /// Returns the number of suspects that fit into one batch together with the controls.
    fn max_suspects_per_batch(&self) -> usize {
        let max_batch = self.instances.limits().max_batch.get();
        max_batch.saturating_sub(MAX_CONTROLS).max(1)
    }

    /// Queries the Ready nodes, so that it is recorded that their instance runs, and they may be marked
    /// out of service later. Nothing else follows from the answers.
    async fn query_ready_nodes(&self, ours: &[Arc<NodeView>], pass_number: usize) {
        if self.config.out_of_service_after.is_zero()
            || !pass_number.is_multiple_of(PASSES_BETWEEN_PROOFS)
        {
            return;
        }
        let nodes = plan::nodes_to_prove(ours);
        if !nodes.is_empty() {
            self.query_cloud(&nodes).await;
        }
    }

    /// Queries the instances of nodes whose absence is not suspected.
    async fn query_cloud(
        &self,
        nodes: &[Arc<NodeView>],
    ) -> Vec<Result<InstanceStatus, CloudError>> {
        // With upstream's safety, one answer is enough to delete a Node, so it must not be cached.
        // Otherwise the answer only starts a proof.
        let max_age = if self.config.upstream_deletion {
            Duration::ZERO
        } else {
            self.config.period
        };
        let queries = nodes
            .iter()
            .map(|node| power_state_query(node, max_age))
            .collect();
        let answers = self.instances.describe_many(queries).await;
        self.record_answers(nodes, &answers);
        answers
    }

    /// Queries suspects and controls in one batch and without cached answers. If something is wrong
    /// with the query, the controls then show it.
    async fn query_with_controls(
        &self,
        ours: &[Arc<NodeView>],
        suspects: &[Arc<NodeView>],
        pass_number: usize,
    ) -> Vec<QueriedSuspect> {
        let records = self.instances.records();
        // Choose the controls, and keep their records, because the query updates them.
        let controls = plan::choose_controls(ours, suspects, records, pass_number);
        let earlier_records: Vec<_> = controls.iter().map(|node| records.of(node)).collect();
        // Query all of them.
        let queries = suspects
            .iter()
            .chain(&controls)
            .map(|node| power_state_query(node, Duration::ZERO))
            .collect();
        let mut answers = self.instances.describe_exclusive(queries).await;
        let control_answers = answers.split_off(suspects.len());
        self.record_answers(suspects, &answers);
        // Collect the evidence for and against the deletion of each suspect.
        let stopped_ready_controls = controls
            .iter()
            .zip(&control_answers)
            .filter(|(node, answer)| {
                let observation = InstanceObservation::from_answer(answer);
                node.is_ready() && observation == InstanceObservation::ShutDown
            })
            .count();
        let control_results = ControlResults::from_answers(
            control_answers
                .iter()
                .map(InstanceObservation::from_answer)
                .zip(earlier_records),
        );
        let cluster = ClusterCount::new(ours, records);
        let down = ClusterCount::down(ours, records);
        let lost_ready_nodes = LostReadyNodes::new(ours, records);
        let stopped_ready_nodes = plan::count_stopped_ready(ours, records);
        let mut queried = Vec::new();
        for (node, answer) in suspects.iter().zip(answers) {
            let evidence = DeletionEvidence {
                controls: control_results,
                cluster,
                down,
                stopped_ready_controls,
                stopped_ready_nodes,
                lost_ready_nodes: lost_ready_nodes.count_near(node),
                record: records.of(node),
            };
            queried.push(QueriedSuspect { node: node.clone(), answer, evidence });
        }
        queried
    }

    /// Counts the answers and logs the errors among them.
    fn record_answers(
        &self,
        nodes: &[Arc<NodeView>],
        answers: &[Result<InstanceStatus, CloudError>],
    ) {
        for (node, answer) in nodes.iter().zip(answers) {
            self.metrics.record_answer(answer);
            if let Err(error) = answer {
                tracing::warn!(node = %node.name, error = error.chain(), "instance not checked");
            }
        }
    }

    /// Applies the actions, and decrements `deletions_left` for each deletion and each
    /// out-of-service mark.
    async fn apply(
        &self,
        actions: Vec<Action>,
        deletions_left: &mut usize,
        cancel: &CancellationToken,
    ) {
        let (deletions, mut others): (Vec<_>, Vec<_>) = actions
            .into_iter()
            .partition(|action| matches!(action, Action::Delete(_)));
        plan::limit_marks(&mut others, deletions_left);
        // Write taints concurrently.
        let max_concurrent = self.config.concurrent_syncs.max(MIN_CONCURRENT_TAINTS);
        stream::iter(others)
            .take_while(|_| std::future::ready(!cancel.is_cancelled()))
            .for_each_concurrent(max_concurrent, |action| self.apply_one(action))
            .await;
        // Delete nodes one after the other.
        for action in deletions {
            if *deletions_left == 0 || cancel.is_cancelled() {
                return;
            }
            *deletions_left -= 1;
            self.apply_one(action).await;
            cancel
                .run_until_cancelled(tokio::time::sleep(MIN_DELETION_INTERVAL))
                .await;
        }
    }

    async fn apply_one(&self, action: Action) {
        match action {
            Action::Taint(node) => {
                self.change_taints(&node, TaintChange::AddShutdown).await;
            }
            Action::Untaint(node) => self.untaint(&node, TaintChange::RemoveAll).await,
            Action::MarkOutOfService { node, finding } => {
                self.mark_out_of_service(&node, finding).await;
            }
            Action::UnmarkOutOfService(node) => {
                self.untaint(&node, TaintChange::RemoveOutOfService).await;
            }
            Action::RefuseOutOfService { node, reason, is_first } => {
                if is_first {
                    let note = reason.to_string();
                    tracing::error!(node = %node.name, provider_id = node.provider_id.as_deref(), "node not marked out of service: {note}");
                    self.event(&node, EventType::Warning, "OutOfServiceRefused", &note);
                }
            }
            Action::Delete(node) => self.delete(&node).await,
            Action::RefuseDeletion { node, reason, is_first } => {
                self.metrics.deletion(DeletionOutcome::Refused(reason));
                if is_first {
                    self.report_refused_deletion(&node, reason);
                }
            }
        }
    }

    /// Changes taints of a node. Returns true if anything was written.
    async fn change_taints(&self, node: &NodeView, change: TaintChange) -> bool {
        let operation = change.operation();
        match apply::change_taints(
            &self.ctx.api,
            &self.ctx.provider,
            &self.ctx.node_fields,
            node,
            change,
        )
        .await
        {
            Ok(changed) => {
                self.failed_writes.clear(&node.name);
                if changed {
                    tracing::info!(node = %node.name, operation, "taints changed");
                }
                changed
            }
            Err(error) => {
                tracing::warn!(node = %node.name, operation, error = chain(&error), "taints not changed");
                self.failed_writes
                    .record(&node.name, api_attempt(operation, &error));
                false
            }
        }
    }

    /// Removes taints, and reports it if the node was out of service.
    async fn untaint(&self, node: &NodeView, change: TaintChange) {
        let was_out_of_service = node.has_own_out_of_service_taint();
        let changed = self.change_taints(node, change).await;
        if changed && was_out_of_service {
            let why = if change == TaintChange::RemoveAll {
                "it is Ready"
            } else {
                "the cloud no longer says that its instance is shut down"
            };
            let note = format!("{why}: the out-of-service taint was removed");
            self.event(node, EventType::Normal, "NodeBackInService", &note);
        }
    }

    async fn mark_out_of_service(&self, node: &NodeView, finding: OffFinding) {
        let OffFinding { state, duration, answered_at } = finding;
        let max_age = self.config.period.max(MIN_ANSWER_AGE);
        let until = self.started_at + answered_at + max_age;
        if self
            .change_taints(node, TaintChange::AddOutOfService { until })
            .await
        {
            let note = format!(
                "its instance has been {state} for {}s, by the word of the cloud: marked out of service, so that its pods are deleted and their volumes detached",
                duration.as_secs()
            );
            let note = Cause::OutOfService.with_next_step(&note);
            self.event(node, EventType::Warning, "NodeOutOfService", &note);
        }
    }

    fn event(&self, node: &NodeView, kind: EventType, reason: &'static str, note: &str) {
        let object = ObjectRef::node(node.name.clone(), &*node.uid);
        self.ctx.events.event(&object, kind, reason, note);
    }

    async fn delete(&self, node: &NodeView) {
        let object = ObjectRef::node(node.name.clone(), &*node.uid);
        match apply::delete(&self.ctx.api, &self.ctx.provider, &self.ctx.node_fields, node).await {
            Ok(DeleteOutcome::Deleted) => {
                self.metrics.deletion(DeletionOutcome::Deleted);
                tracing::info!(node = %node.name, provider_id = node.provider_id.as_deref(), "node deleted: its instance is gone");
                let note = format!(
                    "Deleting node {} because it does not exist in the cloud provider",
                    node.name
                );
                self.ctx
                    .events
                    .event(&object, EventType::Normal, "DeletingNode", &note);
                self.event_dedup.clear(&node.name);
            }
            Ok(DeleteOutcome::Aborted(reason)) => {
                self.metrics.deletion(DeletionOutcome::Aborted);
                tracing::info!(node = %node.name, reason, "node not deleted");
            }
            Err(error) => {
                self.metrics.deletion(DeletionOutcome::Failed);
                self.failed_writes
                    .record(&node.name, api_attempt("delete the Node", &error));
                let cause = api_cause(&error);
                let error = chain(&error);
                tracing::warn!(node = %node.name, error, "node not deleted");
                let note = format!("Failed deleting node {}: {error}", node.name);
                let note = cause.with_next_step(&note);
                self.event_dedup
                    .warn_once(&self.ctx.events, node, "DeletingNodeFailed", &note);
            }
        }
    }

    fn report_refused_deletion(&self, node: &NodeView, refusal: DeletionRefusal) {
        let note = refusal.to_string();
        tracing::error!(node = %node.name, provider_id = node.provider_id.as_deref(), "node not deleted: {note}");
        self.event(node, EventType::Warning, "NodeDeletionRefused", &note);
    }
}

fn power_state_query(node: &Arc<NodeView>, max_age: Duration) -> InstanceQuery {
    InstanceQuery {
        node: node.clone(),
        scope: MetadataScope::PowerState,
        max_age,
    }
}

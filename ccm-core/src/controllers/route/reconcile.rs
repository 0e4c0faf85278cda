//! One reconcile: list, plan, apply, and report the results.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use ipnet::IpNet;
use rand::RngExt;
use tokio::time::Instant;

use super::{
    RouteController,
    apply::ChangeResult,
    backoff::{ChangeBackoff, ChangeKey},
    metrics::{SyncOutcome, SyncTrigger},
    observe::ClusterNodes,
    plan::{self, CreateResult, PlanInput, RoutePlan},
    report::ReportedProblems,
    schedule::Schedule,
};
use crate::{
    error::chain,
    explain::{AttemptRecord, api_attempt, cloud_attempt},
    k8s::NodeView,
    provider::{CloudError, ErrorKind, Progress, Route, RouteChange},
    runtime::work_queue::Backoff,
    telemetry::controller_metrics::{ReconcileOutcome, SkippedWrite, record_reason},
};

/// The period of reconciles if the feature gate is on. Up to a tenth is added at random.
pub(crate) const WATCH_BASED_PERIOD: Duration = Duration::from_secs(3600);
/// The back-off after routes or nodes could not be listed. A change of a node does not shorten it,
/// because the error does not concern a single node.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    cap: Duration::from_secs(30),
};

/// The state that is kept from one reconcile to the next.
pub(super) struct RouteSyncState {
    pub(super) schedule: Schedule,
    failures: ChangeBackoff,
    /// The number of consecutive listings that failed.
    failed_lists: u32,
    /// The time before which no listing is attempted.
    list_retry_at: Option<Instant>,
    reported: ReportedProblems,
}

impl RouteSyncState {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            schedule: Schedule::new(now),
            failures: ChangeBackoff::default(),
            failed_lists: 0,
            list_retry_at: None,
            reported: ReportedProblems::default(),
        }
    }

    /// Records that a listing failed, and defers the next one.
    fn record_list_failure(&mut self, error: &RouteSyncError) {
        self.failed_lists += 1;
        let retry_after = match error {
            RouteSyncError::Routes(error) => error.retry_after(),
            RouteSyncError::Nodes(error) => error.retry_after(),
        };
        let delay = retry_after.unwrap_or_else(|| BACKOFF.delay(self.failed_lists));
        self.list_retry_at = Some(Instant::now() + delay);
        tracing::warn!(
            error = chain(error),
            failures = self.failed_lists,
            "routes not compared with the cloud"
        );
    }
}

/// The decision whether the reconcile loop continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncControl {
    Continue,
    /// The provider does not implement routes, although it said that it does.
    Stop,
}

/// An error of a reconcile.
#[derive(Debug, thiserror::Error)]
enum RouteSyncError {
    #[error("failed to list routes")]
    Routes(#[source] CloudError),
    #[error("failed to list nodes to confirm that many routes are obsolete")]
    Nodes(#[source] crate::runtime::api::ApiError),
}

impl RouteSyncError {
    /// Returns the record of the failure, for explanations.
    fn attempt(&self) -> AttemptRecord {
        match self {
            Self::Routes(error) => cloud_attempt("list routes", error),
            Self::Nodes(error) => api_attempt("list nodes", error),
        }
    }
}

impl RouteController {
    /// Returns the time before which no reconcile may start, if there is one.
    pub(super) fn backoff_until(&self, state: &RouteSyncState) -> Option<Instant> {
        self.throttle.lock().until().max(state.list_retry_at)
    }

    /// Reconciles once and returns the outcome for the metrics.
    pub(super) async fn sync_with_outcome(
        &self,
        trigger: SyncTrigger,
        state: &mut RouteSyncState,
    ) -> (ReconcileOutcome, SyncControl) {
        record_reason(trigger.reason());
        let earlier_failed_lists = state.failed_lists;
        let control = self.run_pass(trigger, state).await;
        let list_failed = state.failed_lists > earlier_failed_lists;
        let outcome = if list_failed || state.failures.failed(self.started_at.elapsed()) > 0 {
            ReconcileOutcome::Failed
        } else {
            ReconcileOutcome::Done
        };
        (outcome, control)
    }

    /// Reconciles once, and schedules the next reconcile.
    async fn run_pass(&self, trigger: SyncTrigger, state: &mut RouteSyncState) -> SyncControl {
        // Retry at once what failed for the nodes that changed.
        for name in self.pending_changes.take() {
            if let Some(node) = self.ctx.nodes.get(&name) {
                state.failures.retry_now(&node.uid);
            }
        }
        state.schedule.started(Instant::now(), self.period());
        let mut failed_listing = None;
        let outcome = match self.reconcile(trigger, state).await {
            Ok(outcome) => outcome,
            Err(RouteSyncError::Routes(error)) if error.kind() == ErrorKind::NotImplemented => {
                tracing::warn!(
                    error = error.chain(),
                    "cloud provider does not implement routes; none are created"
                );
                return SyncControl::Stop;
            }
            // The process is stopping.
            Err(RouteSyncError::Routes(error))
                if matches!(error.kind(), ErrorKind::NotLeader | ErrorKind::Canceled) =>
            {
                return SyncControl::Continue;
            }
            Err(error) => {
                state.record_list_failure(&error);
                if let RouteSyncError::Routes(error) = &error {
                    self.report_failed_listing(error, state.failed_lists, &mut state.reported);
                }
                failed_listing = Some(AttemptRecord {
                    failures: state.failed_lists,
                    retry_at: state.list_retry_at,
                    ..error.attempt()
                });
                SyncOutcome::Error
            }
        };
        self.history
            .lock()
            .record_pass(failed_listing, &state.failures);
        // Update the metrics and the schedule.
        let failed = state.failures.failed(self.started_at.elapsed());
        self.metrics.sync(outcome, trigger);
        self.metrics
            .failing
            .set(i64::try_from(failed).unwrap_or(i64::MAX));
        if let Some(due) = state.failures.next_retry() {
            state.schedule.retry_by(self.started_at + due);
        }
        if let Some(list_retry_at) = state.list_retry_at {
            state.schedule.retry_by(list_retry_at);
        }
        SyncControl::Continue
    }

    fn period(&self) -> Duration {
        if self.config.watch_based {
            WATCH_BASED_PERIOD.mul_f64(rand::rng().random_range(1.0..1.1))
        } else {
            self.config.period
        }
    }

    /// Lists the routes, plans and applies the changes.
    async fn reconcile(
        &self,
        trigger: SyncTrigger,
        state: &mut RouteSyncState,
    ) -> Result<SyncOutcome, RouteSyncError> {
        let routes = self
            .list_routes(&self.cached_nodes())
            .await
            .map_err(RouteSyncError::Routes)?;
        // Plan with the nodes as they are after the listing, so that no route of a new node is
        // deleted. To create a route that was created since the listing does no harm.
        let mut plan = self.plan(&self.cached_nodes(), &routes, &state.failures);
        // If most routes would be deleted, the cache may lag. Plan again with the nodes from the
        // API server.
        let mut node_list_error = None;
        if plan.deletes_most_routes() {
            match self.read_nodes().await {
                Ok(nodes) => {
                    // List the routes again, too, because the provider only finds the nodes of
                    // routes among those that it is given.
                    let routes = self
                        .list_routes(&nodes)
                        .await
                        .map_err(RouteSyncError::Routes)?;
                    plan = self.plan(&nodes, &routes, &state.failures);
                }
                Err(error) => {
                    plan.keep_unclaimed();
                    node_list_error = Some(RouteSyncError::Nodes(error));
                }
            }
        }
        // Apply the plan.
        state.failures.retain(&plan.required_changes());
        self.report_rejected_cidrs(&plan, &mut state.reported);
        let changed = self.apply_plan(&plan, trigger, state).await;
        if let Some(error) = node_list_error {
            return Err(error);
        }
        state.failed_lists = 0;
        state.list_retry_at = None;
        state.reported.listing_succeeded();
        Ok(if changed {
            SyncOutcome::Changed
        } else {
            SyncOutcome::Noop
        })
    }

    pub(super) fn plan(
        &self,
        nodes: &ClusterNodes,
        routes: &[Route],
        failures: &ChangeBackoff,
    ) -> RoutePlan {
        plan::plan(&PlanInput {
            ours: &nodes.ours,
            foreign: &nodes.foreign,
            routes,
            cluster: &self.config.cluster_cidrs,
            failures,
            now: self.started_at.elapsed(),
        })
    }

    /// Applies a plan and decides the conditions. Returns true if anything changed in the cloud.
    async fn apply_plan(
        &self,
        plan: &RoutePlan,
        trigger: SyncTrigger,
        state: &mut RouteSyncState,
    ) -> bool {
        // First apply the deletions, which free space in a full route table, and then the creations
        // that wait for no deletion.
        let mut changes = Vec::new();
        for step in &plan.steps {
            changes.extend(step.delete.iter().cloned().map(RouteChange::Delete));
        }
        for step in &plan.steps {
            if step.delete.is_empty() {
                changes.extend(creation(step));
            }
        }
        let mut results = self.apply(trigger, changes).await;
        // Then apply the creations whose deletions have succeeded.
        let not_deleted: HashSet<IpNet> = results.iter().filter_map(failed_deletion).collect();
        let mut creations = Vec::new();
        for step in &plan.steps {
            if !step.delete.is_empty() && !not_deleted.contains(&step.destination) {
                creations.extend(creation(step));
            }
        }
        results.extend(self.apply(trigger, creations).await);
        let create_results = self.record_results(&results, state);
        let waiting = waiting_creations(plan, &not_deleted);
        self.report_unfinished_deletions(plan, &results, &waiting, &mut state.failures);
        self.history.lock().waiting = waiting;
        self.set_network_status(plan, &create_results);
        results.iter().any(ChangeResult::succeeded)
    }

    /// Records the results in the back-off, reports failures, and returns the results of the
    /// creations.
    fn record_results(
        &self,
        results: &[ChangeResult],
        state: &mut RouteSyncState,
    ) -> HashMap<IpNet, CreateResult> {
        let now = self.started_at.elapsed();
        let mut create_results = HashMap::new();
        let mut failures = 0;
        let mut last_error = None;
        for ChangeResult { change, result, duration } in results {
            let key = match change {
                RouteChange::Create { node, destination } => ChangeKey::create(node, *destination),
                RouteChange::Delete(route) => ChangeKey::delete(route),
            };
            let mut event_reason = None;
            match result {
                Some(Ok(Progress::Done)) => state.failures.record_success(&key),
                Some(Ok(Progress::Pending { after, reason })) => {
                    event_reason = state
                        .failures
                        .record_pending(key.clone(), *after, reason, now);
                }
                Some(Err(error)) => {
                    failures += 1;
                    last_error = Some(error);
                    event_reason = state.failures.record_failure(key.clone(), error, now);
                }
                // The change was not sent, so retry it as soon as the cloud may be called again.
                None => state.schedule.retry = Some(Instant::now()),
            }
            let unfinished = state.failures.get(&key);
            if let (Some(_), Some(unfinished)) = (result, unfinished) {
                self.report_unfinished(change, &unfinished.outcome, *duration, event_reason);
            }
            let is_pending = unfinished.is_some_and(|unfinished| unfinished.is_pending(now));
            match change {
                RouteChange::Create { node, destination } => {
                    let create_result = match result {
                        Some(Ok(Progress::Done)) => CreateResult::Created,
                        _ if is_pending => CreateResult::Pending,
                        Some(_) => CreateResult::Failed,
                        None => self.unsent_create_result(node),
                    };
                    create_results.insert(*destination, create_result);
                }
                // The creation that follows the deletion was not sent.
                RouteChange::Delete(route) if is_pending => {
                    create_results.insert(route.destination.trunc(), CreateResult::Pending);
                }
                RouteChange::Delete(_) => {}
            }
        }
        log_summary(results);
        if let Some(error) = last_error {
            tracing::warn!(
                failed = failures,
                error = error.chain(),
                "routes not changed, will be retried"
            );
        }
        create_results
    }

    /// Returns the result of a creation that was not sent.
    fn unsent_create_result(&self, node: &NodeView) -> CreateResult {
        // A node without the condition can wait for the result. To write `True` now and `False`
        // soon after would take two writes.
        if node.network_unavailable.is_none() || self.op.may_write().is_err() {
            CreateResult::Unknown
        } else {
            CreateResult::Failed
        }
    }

    /// Decides the condition of every node that has or had pod CIDRs.
    fn set_network_status(&self, plan: &RoutePlan, create_results: &HashMap<IpNet, CreateResult>) {
        for node_plan in &plan.nodes {
            let network = plan::network_status(node_plan, |destination| {
                // A creation has no result if a deletion before it failed.
                create_results
                    .get(&destination)
                    .copied()
                    .unwrap_or(CreateResult::Failed)
            });
            let Some(network) = network else {
                continue;
            };
            let node = &node_plan.node;
            if self.network.record_desired(node, network) {
                self.condition_queue.add(node.name.clone());
            } else {
                self.ctx
                    .controller_metrics
                    .count_skipped_write(SkippedWrite::NodeCondition);
            }
        }
        let node_names: HashSet<&str> = plan.nodes.iter().map(|node| &*node.node.name).collect();
        self.network.retain(|name| node_names.contains(name));
    }
}

/// Returns the destination of a deletion that failed or is pending; `None` for any other result.
fn failed_deletion(result: &ChangeResult) -> Option<IpNet> {
    match &result.change {
        RouteChange::Delete(route) if !result.succeeded() => Some(route.destination.trunc()),
        _ => None,
    }
}

/// Returns the creations that wait for a deletion: it has failed in this reconcile, or before and
/// is deferred.
fn waiting_creations(plan: &RoutePlan, not_deleted: &HashSet<IpNet>) -> HashSet<ChangeKey> {
    let mut waiting = HashSet::new();
    for step in &plan.steps {
        if let Some(node) = &step.create
            && not_deleted.contains(&step.destination)
        {
            waiting.insert(ChangeKey::create(node, step.destination));
        }
    }
    for key in &plan.backed_off {
        if matches!(key, ChangeKey::Create(..)) {
            waiting.insert(key.clone());
        }
    }
    waiting
}

/// Returns the creation of a step, if it has one.
fn creation(step: &plan::RouteStep) -> Option<RouteChange> {
    let node = step.create.clone()?;
    Some(RouteChange::Create { node, destination: step.destination })
}

/// Logs how many routes a reconcile created and deleted.
fn log_summary(results: &[ChangeResult]) {
    let mut created = 0;
    let mut deleted = 0;
    for result in results.iter().filter(|result| result.succeeded()) {
        match result.change {
            RouteChange::Create { .. } => created += 1,
            RouteChange::Delete(_) => deleted += 1,
        }
    }
    if created + deleted > 0 {
        tracing::info!(created, deleted, "routes changed");
    }
}

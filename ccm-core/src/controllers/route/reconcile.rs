//! One comparison: list, plan, change, and say what came of it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use rand::RngExt;
use tokio::time::Instant;

use super::{
    RouteController,
    apply::Answer,
    failures::{ChangeKey, Failures},
    metrics::{Sync, Trigger},
    observe::Nodes,
    plan::{self, Created, Plan, Refusal, World},
    schedule::Schedule,
};
use crate::{
    config,
    error::chain,
    k8s::NodeView,
    provider::{CloudError, ErrorKind, EventKind, Route, RouteChange},
    runtime::{events::ObjectRef, queue::Backoff},
    telemetry::controllers::{Outcome, Write, because},
};

/// Time between two comparisons without a reason when the gate is on; lengthened by up to a tenth at random.
const WATCH_BASED_PERIOD: Duration = Duration::from_secs(3600);
/// Back-off after routes or nodes could not be listed. Nothing shortens it: the trouble is the cloud's, not a node's.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), cap: Duration::from_secs(30) };

/// What is remembered from one comparison to the next.
pub(super) struct State {
    pub(super) schedule: Schedule,
    failures: Failures,
    /// Lists that failed in a row, and until when none is tried again.
    failed_lists: u32,
    list_again: Option<Instant>,
    told: HashSet<Told>,
}

/// A pod network that gets no route and whose node has been told: UID, network, why.
type Told = (Box<str>, Arc<str>, Refusal);

impl State {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            schedule: Schedule::new(now),
            failures: Failures::default(),
            failed_lists: 0,
            list_again: None,
            told: HashSet::new(),
        }
    }

    fn note_failed_list(&mut self, error: &SyncError) {
        self.failed_lists += 1;
        let delay = match error {
            SyncError::Routes(error) => error.retry_after(),
            SyncError::Nodes(error) => error.retry_after(),
        };
        let delay = delay.unwrap_or_else(|| BACKOFF.delay(self.failed_lists));
        self.list_again = Some(Instant::now() + delay);
        tracing::warn!(error = chain(error), failures = self.failed_lists, "routes not compared with the cloud");
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    /// The provider has no routes after all.
    Stop,
}

/// Why a comparison came to nothing.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error("routes cannot be listed")]
    Routes(#[source] CloudError),
    #[error("nodes cannot be read again before many routes are deleted")]
    Nodes(#[source] crate::runtime::api::ApiError),
}

impl RouteController {
    /// Returns until when no comparison may start.
    pub(super) fn pause(&self, state: &State) -> Option<Instant> {
        self.throttle.lock().until().max(state.list_again)
    }

    /// Compares once; tells how it ended, too.
    pub(super) async fn observed(&self, trigger: Trigger, state: &mut State) -> (Outcome, Flow) {
        because(trigger.reason());
        let before = state.failed_lists;
        let flow = self.pass(trigger, state).await;
        let failed = state.failed_lists > before || state.failures.len() > 0;
        (if failed { Outcome::Failed } else { Outcome::Done }, flow)
    }

    async fn pass(&self, trigger: Trigger, state: &mut State) -> Flow {
        let news = self.signals.take();
        for name in news {
            if let Some(node) = self.cx.nodes.get(&name) {
                state.failures.wake(&node.uid);
            }
        }
        state.schedule.started(Instant::now(), self.period());
        let outcome = match self.reconcile(trigger, state).await {
            Ok(outcome) => outcome,
            Err(SyncError::Routes(error)) if error.kind() == ErrorKind::NotImplemented => {
                tracing::warn!(error = error.chain(), "cloud provider does not implement routes; none are made");
                return Flow::Stop;
            }
            // The process is stopping.
            Err(SyncError::Routes(error)) if matches!(error.kind(), ErrorKind::NotLeader | ErrorKind::Canceled) => {
                return Flow::Continue;
            }
            Err(error) => {
                state.note_failed_list(&error);
                Sync::Error
            }
        };
        self.metrics.sync(outcome, trigger);
        self.metrics.failing.set(i64::try_from(state.failures.len()).unwrap_or(i64::MAX));
        let retry = state.failures.next_due().map(|due| self.began + due);
        state.schedule.retry = [state.schedule.retry, retry, state.list_again].into_iter().flatten().min();
        Flow::Continue
    }

    fn period(&self) -> Duration {
        match self.config.watch_based {
            true => WATCH_BASED_PERIOD.mul_f64(rand::rng().random_range(1.0..1.1)),
            false => self.config.period,
        }
    }

    async fn reconcile(&self, trigger: Trigger, state: &mut State) -> Result<Sync, SyncError> {
        let routes = self.list_routes(&self.nodes()).await.map_err(SyncError::Routes)?;
        // Looked at after the routes: what was created since they were listed is created again, which does no harm, and what
        // belongs to a node that is new is not deleted.
        let mut plan = self.plan(&self.nodes(), &routes, &state.failures);
        let mut nodes_unread = None;
        if plan.is_drastic() {
            match self.fresh_nodes().await {
                Ok(nodes) => {
                    // The provider names nodes by those that it is given: routes of the missing ones had no name.
                    let routes = self.list_routes(&nodes).await.map_err(SyncError::Routes)?;
                    plan = self.plan(&nodes, &routes, &state.failures);
                }
                Err(error) => {
                    plan.spare_unwanted();
                    nodes_unread = Some(SyncError::Nodes(error));
                }
            }
        }
        state.failures.retain(&plan.needed());
        self.complain(&plan, &mut state.told);
        let changed = self.carry_out(&plan, trigger, state).await;
        if let Some(error) = nodes_unread {
            return Err(error);
        }
        (state.failed_lists, state.list_again) = (0, None);
        Ok(if changed { Sync::Changed } else { Sync::Noop })
    }

    pub(super) fn plan(&self, nodes: &Nodes, routes: &[Route], failures: &Failures) -> Plan {
        let (cluster, now) = (&*self.config.cluster_cidrs, self.began.elapsed());
        plan::plan(&World { ours: &nodes.ours, foreign: &nodes.foreign, routes, cluster, failures, now })
    }

    /// Tells each node once why a network of its pods gets no route.
    fn complain(&self, plan: &Plan, told: &mut HashSet<Told>) {
        let key = |c: &plan::Complaint| (c.node.uid.clone(), c.cidr.clone(), c.why.clone());
        for complaint in plan.complaints.iter().filter(|complaint| !told.contains(&key(complaint))) {
            let note = complaint.note(&self.config.cluster_cidrs);
            tracing::warn!(node = %complaint.node.name, cidr = %complaint.cidr, "{note}");
            self.warn(&complaint.node, complaint.reason(), &note);
        }
        *told = plan.complaints.iter().map(key).collect();
    }

    fn warn(&self, node: &NodeView, reason: &'static str, note: &str) {
        self.cx.events.event(&ObjectRef::node(node.name.clone(), &*node.uid), EventKind::Warning, reason, note);
    }

    /// Makes the changes of a plan and decides the conditions. Returns whether anything changed in the cloud.
    async fn carry_out(&self, plan: &Plan, trigger: Trigger, state: &mut State) -> bool {
        let deletes = plan.steps.iter().flat_map(|step| step.delete.iter().cloned().map(RouteChange::Delete));
        let creates = |waits: bool| {
            let steps = plan.steps.iter().filter(move |step| step.delete.is_empty() != waits);
            steps.filter_map(|step| Some((step.create.clone()?, step.destination)))
        };
        let create = |(node, destination)| RouteChange::Create { node, destination };
        // Deletions in front: they make room where the table is full.
        let first = self.apply(trigger, deletes.chain(creates(false).map(create)).collect()).await;
        let not_deleted: HashSet<IpNet> = first.iter().filter_map(undeleted).collect();
        let free = creates(true).filter(|(_, destination)| !not_deleted.contains(destination));
        let second = self.apply(trigger, free.map(create).collect()).await;
        let answers: Vec<Answer> = first.into_iter().chain(second).collect();
        let created = self.record(&answers, state);
        self.decide(plan, &created);
        answers.iter().any(|answer| matches!(answer.result, Some(Ok(()))))
    }

    /// Learns from the answers, tells of failures, and returns how the creations ended.
    fn record(&self, answers: &[Answer], state: &mut State) -> HashMap<IpNet, Created> {
        let now = self.began.elapsed();
        let unsent = if self.op.may_write().is_ok() { Created::No } else { Created::Unknown };
        let mut created = HashMap::new();
        let mut failed: Option<(usize, &CloudError)> = None;
        for Answer { change, result, took } in answers {
            let key = match change {
                RouteChange::Create { node, destination } => ChangeKey::create(node, *destination),
                RouteChange::Delete(route) => ChangeKey::delete(route),
            };
            match result {
                Some(Ok(())) => state.failures.succeeded(&key),
                Some(Err(error)) => {
                    if !is_new(change) {
                        failed = Some((failed.map_or(1, |(count, _)| count + 1), error));
                    }
                    let reason = state.failures.failed(key, error, now);
                    self.tell_failure(change, error, *took, reason);
                }
                // Its turn comes when the cloud may be called again.
                None => state.schedule.retry = Some(Instant::now()),
            }
            if let RouteChange::Create { node, destination } = change {
                let outcome = match result {
                    // Bad news that is true for a moment would be a write, and then another for the good ones.
                    None if node.network_unavailable.is_none() => Created::Unknown,
                    Some(Ok(())) => Created::Yes,
                    Some(Err(_)) => Created::No,
                    None => unsent,
                };
                created.insert(*destination, outcome);
            }
        }
        summarize(answers, failed);
        created
    }

    fn tell_failure(&self, change: &RouteChange, error: &CloudError, took: Duration, reason: Option<&'static str>) {
        let RouteChange::Create { node, destination } = change else { return };
        let (uid, name, error) = (&node.uid, &node.name, error.chain());
        tracing::debug!(node = %name, %destination, error, "route not created");
        if let Some(reason) = reason {
            // Upstream's wording.
            let took = config::duration::format(took);
            let note = format!("Could not create route {uid} {destination} for node {name} after {took}: {error}");
            self.warn(node, reason, &note);
        }
    }

    /// Decides the condition of every node that has or had pod networks.
    fn decide(&self, plan: &Plan, created: &HashMap<IpNet, Created>) {
        // A creation that is not in the answers waits for a deletion that failed.
        let outcome = |destination| created.get(&destination).copied().unwrap_or(Created::No);
        for node in &plan.nodes {
            let Some(network) = plan::judge(node, outcome) else { continue };
            match self.network.decide(&node.node, network) {
                true => self.conditions.add(node.node.name.clone()),
                false => self.cx.shared.saved(Write::NodeCondition),
            }
        }
        let known: HashSet<&str> = plan.nodes.iter().map(|node| &*node.node.name).collect();
        self.network.retain(|name| known.contains(name));
    }
}

/// Tells whether a route is wanted for a node that has no address yet: it comes as soon as the node is initialised, and no
/// person has to act.
fn is_new(change: &RouteChange) -> bool {
    matches!(change, RouteChange::Create { node, .. } if node.addresses.is_empty())
}

/// Returns the destination of a deletion that did not succeed.
fn undeleted(answer: &Answer) -> Option<IpNet> {
    match &answer.change {
        RouteChange::Delete(route) if !matches!(answer.result, Some(Ok(()))) => Some(route.destination.trunc()),
        _ => None,
    }
}

/// One line for all changes of a comparison.
fn summarize(answers: &[Answer], failed: Option<(usize, &CloudError)>) {
    let count = |is_create: bool| {
        let done = answers.iter().filter(|answer| matches!(answer.result, Some(Ok(()))));
        done.filter(|answer| matches!(answer.change, RouteChange::Create { .. }) == is_create).count()
    };
    let (created, deleted) = (count(true), count(false));
    if created + deleted > 0 {
        tracing::info!(created, deleted, "routes changed");
    }
    if let Some((failed, error)) = failed {
        tracing::warn!(failed, error = error.chain(), "routes not changed, will be tried again");
    }
}

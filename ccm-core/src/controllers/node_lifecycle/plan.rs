//! Decides when a node is tainted, untainted or deleted. Keeps state, but does no I/O.
//!
//! The worst bug of this controller would be to delete a Node whose instance still runs. A deletion
//! therefore needs two things:
//!
//! - A proof of absence. The cloud must answer "not found" twice, at least one monitor period apart.
//!   The second query is not served from a cache, and it is sent in one batch with queries for
//!   other nodes, the controls.
//! - Evidence that the query itself is right (credentials, region, project). Either the cloud found
//!   the same instance before, since this process started, or it finds a control now. In a cluster
//!   of fewer than three nodes, the former counts only after [`LONG_CONFIRMATION`].
//!
//! "Terminated" counts as "not found" and needs no evidence. Nothing is deleted if the cloud does
//! not find a control that it found before, or if most of the cluster looks gone at once.

mod out_of_service;
mod repeated_answer;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

pub(crate) use self::out_of_service::{
    OffFinding, OutOfServiceRefusal, count_stopped_ready, limit_marks, nodes_to_prove,
};
use self::{out_of_service::OffState, repeated_answer::RepeatedAnswer};
use crate::{
    k8s::{MachineId, NodeView},
    provider::{
        InstanceStatus, PowerState,
        instance_records::{InstanceRecord, InstanceRecords},
    },
};

/// The maximum number of control nodes in a batch with suspects.
pub(crate) const MAX_CONTROLS: usize = 5;
/// The minimum duration of a proof about a node that was never initialised, and the minimum age of
/// that node. A cloud may take minutes to show a new instance.
pub(crate) const LONG_CONFIRMATION: Duration = Duration::from_secs(300);
/// The number of controls that are Ready nodes whose instance was not found at the last query.
const LOST_CONTROLS: usize = 2;
/// The time for which a Ready node whose instance is no longer found counts as evidence against the
/// cloud's answers.
const LOST_READY_NODE_COUNTS_FOR: Duration = Duration::from_secs(3600);
/// The minimum number of nodes for the mass-loss check. A cluster of this size does not lose most
/// of its nodes at once.
const MIN_NODES_FOR_MASS_LOSS: usize = 3;
/// The maximum number of periods between two queries of a node. While its state does not change, a
/// node is queried less and less often.
const MAX_PERIODS_BETWEEN_QUERIES: u32 = 6;

/// The proof that a deletion needs (`--node-deletion-safety`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeletionSafety {
    /// A proof of absence and evidence, as the module documentation describes.
    Strict,
    /// One "not found", as in the Go framework.
    Upstream,
}

/// The state of the nodes that are not Ready. Times are durations since the start of the
/// controller.
#[derive(Debug)]
pub(crate) struct NotReadyTracker {
    period: Duration,
    safety: DeletionSafety,
    /// The time after which a node whose instance is shut down is marked out of service; zero for
    /// never.
    out_of_service_after: Duration,
    tracked: HashMap<Arc<str>, TrackedNode>,
}

#[derive(Clone, Debug)]
struct TrackedNode {
    uid: Box<str>,
    /// The time at which this controller first saw that the node is not Ready.
    since: Duration,
    /// The machine that the node reported then, or when a confirmation last found its instance.
    machine: Option<MachineId>,
    /// The proof of absence in progress; `None` while the instance is not suspected to be absent.
    absence: Option<RepeatedAnswer>,
    next_query: Duration,
    /// The number of periods between the last query and the next.
    periods_between_queries: u32,
    /// The reason why the last deletion was refused, if it was.
    last_refusal: Option<DeletionRefusal>,
    /// The proof that the instance is shut down, and what came of it.
    off: OffState,
}

impl TrackedNode {
    fn new(node: &NodeView, now: Duration) -> Self {
        Self {
            uid: node.uid.clone(),
            since: now,
            machine: node.machine,
            absence: None,
            next_query: now,
            periods_between_queries: 1,
            last_refusal: None,
            off: OffState::default(),
        }
    }

    /// Doubles the time between queries, after an answer that changed nothing.
    fn query_less_often(&mut self) {
        self.periods_between_queries =
            (self.periods_between_queries * 2).min(MAX_PERIODS_BETWEEN_QUERIES);
    }
}

/// What is recorded about a node that is not Ready, for explanations. Times are durations since the
/// start of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotReadyStatus {
    /// The time at which this controller first saw that the node is not Ready.
    pub(crate) since: Duration,
    /// The time for which the cloud has answered "not found"; `None` while the instance is not
    /// suspected to be absent.
    pub(crate) not_found_for: Option<Duration>,
    /// The time for which the cloud must answer "not found".
    pub(crate) required: Duration,
    pub(crate) next_query: Duration,
    pub(crate) refusal: Option<DeletionRefusal>,
    /// The time for which the cloud has said that the instance is shut down; zero if it does not.
    pub(crate) off_for: Duration,
    /// The reason why the node was last not marked out of service, if it was to be.
    pub(crate) off_refusal: Option<OutOfServiceRefusal>,
    /// `--out-of-service-after`; zero if nodes are never marked.
    pub(crate) out_of_service_after: Duration,
}

/// The reason why a Node is not deleted although the cloud does not find its instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeletionRefusal {
    /// The cloud does not find instances of other nodes either, although it found them before. Its
    /// answers must be wrong.
    Contradicted,
    /// Nothing shows that the query is right. The cloud has neither found this instance before nor
    /// another one now.
    NoEvidence,
    /// Most instances of the cluster are not found.
    MostGone {
        /// The number of nodes whose instances the cloud does not find.
        gone: usize,
        /// The number of the provider's nodes that have a provider ID.
        all: usize,
    },
    /// Another machine has registered under the node's name since the cloud last found the
    /// instance, so the provider ID is stale.
    OtherMachine,
}

impl fmt::Display for DeletionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let consequence = match self {
            Self::OtherMachine => "the provider ID is stale",
            Self::Contradicted | Self::NoEvidence | Self::MostGone { .. } => "nothing is deleted",
        };
        let note = format!("{}: {consequence}", self.finding());
        f.write_str(&self.cause().with_next_step(&note))
    }
}

impl DeletionRefusal {
    /// Returns what was found, without the next step.
    pub(crate) fn finding(self) -> String {
        match self {
            Self::Contradicted => {
                "its instance was not found, but neither were others that the cloud found before"
                    .to_owned()
            }
            Self::NoEvidence => {
                "its instance was not found, but no other instance of this cluster was found either"
                    .to_owned()
            }
            Self::MostGone { gone, all } => format!(
                "its instance was not found, but neither were those of {gone} of {all} nodes"
            ),
            Self::OtherMachine => {
                "its instance was not found, but another machine has registered under its name"
                    .to_owned()
            }
        }
    }

    /// Returns true if both refusals have the same reason, even with other numbers.
    fn is_same_kind(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// The nodes to query in one pass.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PlannedQueries {
    /// Nodes without a proof of absence in progress.
    pub(crate) routine: Vec<Arc<NodeView>>,
    /// Nodes whose absence needs confirmation (suspects).
    pub(crate) confirmations: Vec<Arc<NodeView>>,
}

/// An action for one node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Add the shutdown taint.
    Taint(Arc<NodeView>),
    /// Remove the shutdown taint and our out-of-service taint.
    Untaint(Arc<NodeView>),
    /// Add the out-of-service taint.
    MarkOutOfService {
        node: Arc<NodeView>,
        /// What the cloud has said of the instance, and for how long.
        finding: OffFinding,
    },
    /// Remove our out-of-service taint, because the instance runs.
    UnmarkOutOfService(Arc<NodeView>),
    /// Report that the out-of-service taint was not added.
    RefuseOutOfService {
        node: Arc<NodeView>,
        reason: OutOfServiceRefusal,
        /// As for a refused deletion.
        is_first: bool,
    },
    /// Delete the Node object.
    Delete(Arc<NodeView>),
    /// Report that a deletion was refused.
    RefuseDeletion {
        node: Arc<NodeView>,
        reason: DeletionRefusal,
        /// True for the first of several consecutive refusals with the same reason. Only this one
        /// emits an event.
        is_first: bool,
    },
}

/// The cloud's answer about a node, reduced to what this controller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstanceObservation {
    NotFound,
    /// The instance is terminated and still listed. It counts as absent, and the answer shows that
    /// the query is right.
    Terminated,
    ShutDown,
    Running,
    /// The instance exists, in a state that is no reason for an action.
    OtherState,
    /// The query failed.
    Error,
}

impl InstanceObservation {
    pub(crate) fn from_answer<E>(answer: &Result<InstanceStatus, E>) -> Self {
        match answer {
            Err(_) => Self::Error,
            Ok(InstanceStatus::NotFound) => Self::NotFound,
            Ok(InstanceStatus::Found { power_state: PowerState::Terminated, .. }) => {
                Self::Terminated
            }
            Ok(InstanceStatus::Found { power_state: PowerState::Stopped, .. }) => Self::ShutDown,
            Ok(InstanceStatus::Found { power_state: PowerState::Running, .. }) => Self::Running,
            Ok(InstanceStatus::Found {
                power_state: PowerState::Transitional | PowerState::Unknown,
                ..
            }) => Self::OtherState,
        }
    }
}

impl NotReadyTracker {
    pub(crate) fn new(period: Duration, safety: DeletionSafety) -> Self {
        Self {
            period,
            safety,
            out_of_service_after: Duration::ZERO,
            tracked: HashMap::new(),
        }
    }

    /// Sets the time after which nodes are marked out of service (`--out-of-service-after`).
    pub(crate) fn with_out_of_service_after(self, out_of_service_after: Duration) -> Self {
        Self { out_of_service_after, ..self }
    }

    /// Starts a pass over all of the provider's nodes. Returns the nodes to query and the taints to
    /// remove, and forgets the nodes that are Ready, being deleted or deleted.
    pub(crate) fn plan_queries(
        &mut self,
        ours: &[Arc<NodeView>],
        now: Duration,
    ) -> (PlannedQueries, Vec<Action>) {
        let mut actions = Vec::new();
        let mut queries = PlannedQueries::default();
        let mut not_ready_names = HashSet::new();
        for node in ours {
            if node.is_ready() {
                if node.has_shutdown_taint() || node.has_own_out_of_service_taint() {
                    actions.push(Action::Untaint(node.clone()));
                }
                continue;
            }
            if node.deleting {
                continue;
            }
            not_ready_names.insert(node.name.clone());
            let after = self.out_of_service_after;
            let track = self.track(node, now);
            if now < track.next_query {
                continue;
            }
            if track.absence.is_some() || track.off.is_due(node, after) {
                queries.confirmations.push(node.clone());
            } else {
                queries.routine.push(node.clone());
            }
        }
        self.tracked
            .retain(|name, _| not_ready_names.contains(name));
        (queries, actions)
    }

    /// Returns the nodes with a proof of absence in progress, except those whose deletion was
    /// refused.
    pub(crate) fn suspected_gone(&self) -> impl Iterator<Item = &Arc<str>> {
        self.tracked
            .iter()
            .filter(|(_, track)| track.absence.is_some() && track.last_refusal.is_none())
            .map(|(name, _)| name)
    }

    /// Returns what is recorded about a node; `None` if it is not tracked.
    pub(crate) fn status(&self, node: &NodeView) -> Option<NotReadyStatus> {
        let track = self
            .tracked
            .get(&node.name)
            .filter(|track| track.uid == node.uid)?;
        let required = if was_initialised(node) {
            self.period
        } else {
            LONG_CONFIRMATION
        };
        Some(NotReadyStatus {
            since: track.since,
            not_found_for: track.absence.map(|absence| absence.duration),
            required,
            next_query: track.next_query,
            refusal: track.last_refusal,
            off_for: track.off.duration(),
            off_refusal: track.off.refusal,
            out_of_service_after: self.out_of_service_after,
        })
    }

    /// Returns the state of a node. A node that was deleted and registered again starts anew.
    fn track(&mut self, node: &NodeView, now: Duration) -> &mut TrackedNode {
        let track = self
            .tracked
            .entry(node.name.clone())
            .or_insert_with(|| TrackedNode::new(node, now));
        if track.uid != node.uid {
            *track = TrackedNode::new(node, now);
        }
        track
    }

    /// Records the answer to a routine query. Returns the action that follows from it, if any.
    pub(crate) fn record_routine(
        &mut self,
        node: &Arc<NodeView>,
        observation: InstanceObservation,
        now: Duration,
    ) -> Option<Action> {
        let period = self.period;
        let safety = self.safety;
        let after = self.out_of_service_after;
        let track = self.track(node, now);
        track.off.record(node, observation, now, period);
        match observation {
            InstanceObservation::NotFound | InstanceObservation::Terminated
                if safety == DeletionSafety::Upstream =>
            {
                track.next_query = now;
                return Some(Action::Delete(node.clone()));
            }
            InstanceObservation::NotFound | InstanceObservation::Terminated
                if !was_claimed(node) =>
            {
                track.query_less_often();
            }
            InstanceObservation::NotFound | InstanceObservation::Terminated => {
                track.absence = Some(RepeatedAnswer::start(now));
                track.periods_between_queries = 1;
            }
            // After an error, the next answer may be news, so query again in the next period.
            InstanceObservation::Error => track.periods_between_queries = 1,
            InstanceObservation::ShutDown
            | InstanceObservation::Running
            | InstanceObservation::OtherState => track.query_less_often(),
        }
        if track.off.is_due(node, after) {
            track.periods_between_queries = 1;
        }
        track.next_query = now + period * track.periods_between_queries;
        taint_action(node, observation)
    }

    /// Records the answer to a confirmation, which is a query without cached answers and together
    /// with controls. Returns the action that follows from it, if any.
    pub(crate) fn record_confirmation(
        &mut self,
        node: &Arc<NodeView>,
        observation: InstanceObservation,
        evidence: &DeletionEvidence,
        now: Duration,
        wall: Timestamp,
    ) -> Option<Action> {
        let (period, safety) = (self.period, self.safety);
        let after = self.out_of_service_after;
        let track = self.track(node, now);
        track.next_query = now + period;
        track.periods_between_queries = 1;
        track.off.record(node, observation, now, period);
        // Continue the proof, or end it if the instance exists.
        let proof = match observation {
            InstanceObservation::NotFound | InstanceObservation::Terminated
                if !was_claimed(node) =>
            {
                track.absence = None;
                return None;
            }
            InstanceObservation::NotFound | InstanceObservation::Terminated
                if safety == DeletionSafety::Upstream =>
            {
                return Some(Action::Delete(node.clone()));
            }
            InstanceObservation::NotFound | InstanceObservation::Terminated => {
                let proof = track.absence.get_or_insert(RepeatedAnswer::start(now));
                proof.confirm_again(now, period);
                *proof
            }
            InstanceObservation::Error => {
                if let Some(absence) = &mut track.absence {
                    absence.interrupt();
                }
                return None;
            }
            InstanceObservation::ShutDown
            | InstanceObservation::Running
            | InstanceObservation::OtherState => {
                track.absence = None;
                track.last_refusal = None;
                track.machine = node.machine;
                let action = taint_action(node, observation)
                    .or_else(|| track.off.decide(node, evidence, after, now));
                if matches!(action, Some(Action::RefuseOutOfService { is_first: false, .. })) {
                    track.next_query = now + period * MAX_PERIODS_BETWEEN_QUERIES;
                }
                return action;
            }
        };
        // Wait until the proof has lasted long enough.
        let tracked_for = now.saturating_sub(track.since);
        if proof.duration < period || is_too_new(node, proof, tracked_for, wall) {
            return None;
        }
        // Delete the node, unless the evidence forbids it.
        let Some(refusal) = evidence.refusal(node, observation, proof, track.machine) else {
            return Some(Action::Delete(node.clone()));
        };
        if refusal == DeletionRefusal::Contradicted {
            // The query itself is wrong, so the proof starts over.
            track.absence = Some(RepeatedAnswer::start(now));
        }
        let is_first = track
            .last_refusal
            .is_none_or(|last| !last.is_same_kind(refusal));
        track.last_refusal = Some(refusal);
        Some(Action::RefuseDeletion { node: node.clone(), reason: refusal, is_first })
    }

    /// Returns the action that comes before a deletion which is proved to be right: if it has been
    /// so for long enough, earlier attempts have failed, and the node's volumes should move anyway.
    pub(crate) fn plan_before_deletion(
        &self,
        node: &Arc<NodeView>,
        evidence: &DeletionEvidence,
    ) -> Option<Action> {
        let after = self.out_of_service_after;
        let absence = self.tracked.get(&node.name)?.absence?;
        let answered_at = absence.last_answer?;
        let is_due = !after.is_zero() && absence.counted >= after && node.provider_id.is_some();
        if !is_due || node.has_out_of_service_taint() || !out_of_service::may_mark(node, evidence) {
            return None;
        }
        let duration = absence.counted;
        let finding = OffFinding { state: "not found", duration, answered_at };
        Some(Action::MarkOutOfService { node: node.clone(), finding })
    }
}

/// Returns the change of taints that follows from an answer alone, if any.
fn taint_action(node: &Arc<NodeView>, observation: InstanceObservation) -> Option<Action> {
    match observation {
        InstanceObservation::ShutDown if !node.has_shutdown_taint() => {
            Some(Action::Taint(node.clone()))
        }
        InstanceObservation::Running if node.has_own_out_of_service_taint() => {
            Some(Action::UnmarkOutOfService(node.clone()))
        }
        _ => None,
    }
}

/// Returns false if no cloud-controller-manager has ever claimed the node, which then has neither a
/// provider ID nor the taint. Such a node is never deleted on a proof. Only with upstream's safety is it
/// deleted after a routine query, as upstream does.
fn was_claimed(node: &NodeView) -> bool {
    node.provider_id.is_some() || node.is_uninitialized()
}

fn was_initialised(node: &NodeView) -> bool {
    !node.is_uninitialized() && node.provider_id.is_some()
}

/// Returns true if the node was never initialised and is so new that the cloud may not show its
/// instance yet.
///
/// The wall clock may be wrong, so the time for which this controller has tracked the node must be
/// long enough, too.
fn is_too_new(
    node: &NodeView,
    proof: RepeatedAnswer,
    tracked_for: Duration,
    wall: Timestamp,
) -> bool {
    if was_initialised(node) {
        return false;
    }
    let age = wall.duration_since(node.created);
    let min_age = SignedDuration::try_from(LONG_CONFIRMATION).unwrap_or(SignedDuration::MAX);
    age < min_age || tracked_for < LONG_CONFIRMATION || proof.duration < LONG_CONFIRMATION
}

/// The evidence for and against a deletion, apart from the answer about the instance itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeletionEvidence {
    /// The answers about the controls of the same batch.
    pub(crate) controls: ControlResults,
    /// The last answers about all nodes.
    pub(crate) cluster: ClusterCount,
    /// The same count, with the instances that are shut down among those that are gone.
    pub(crate) down: ClusterCount,
    /// The number of controls that are Ready although the cloud says that their instance is shut
    /// down.
    pub(crate) stopped_ready_controls: usize,
    /// The number of nodes, among all, that have been Ready for long although the cloud says so.
    pub(crate) stopped_ready_nodes: usize,
    /// The number of Ready nodes in this node's zone whose instances the cloud found until
    /// recently and no longer finds.
    pub(crate) lost_ready_nodes: usize,
    /// The cloud's answers about the instance since this process started.
    pub(crate) record: Option<InstanceRecord>,
}

impl DeletionEvidence {
    /// Returns the reason why a node whose instance is not found must not be deleted; `None` if it
    /// may be deleted. `machine` is [`TrackedNode::machine`].
    fn refusal(
        &self,
        node: &NodeView,
        observation: InstanceObservation,
        proof: RepeatedAnswer,
        machine: Option<MachineId>,
    ) -> Option<DeletionRefusal> {
        let record = self.record.unwrap_or_default();
        // If the machine has changed, the cloud's answers are about another machine than the one
        // that the node runs on.
        let reported = record.machine.or(machine);
        if reported.is_some() && node.machine.is_some() && reported != node.machine {
            return Some(DeletionRefusal::OtherMachine);
        }
        // If the cloud reports the instance as terminated, no other evidence is needed.
        if observation == InstanceObservation::Terminated {
            return None;
        }
        // Look for evidence that the answers are wrong.
        let ClusterCount { gone, all } = self.cluster;
        if self.cluster.is_mass_loss() {
            return Some(DeletionRefusal::MostGone { gone, all });
        }
        let ControlResults { found, lost, still_lost } = self.controls;
        if lost > 0 || self.lost_ready_nodes > 0 || (found == 0 && still_lost > 0) {
            return Some(DeletionRefusal::Contradicted);
        }
        // Look for evidence that the answers are right.
        let was_found_before = record.was_found
            && (all >= MIN_NODES_FOR_MASS_LOSS || proof.duration >= LONG_CONFIRMATION);
        if found == 0 && !was_found_before {
            return Some(DeletionRefusal::NoEvidence);
        }
        None
    }
}

/// The counts of the answers about the controls of one batch. Errors do not count. Neither does a
/// control that was never found, because its instance may not be in this cloud.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControlResults {
    /// Controls that the cloud finds.
    pub(crate) found: usize,
    /// Controls that the cloud found at the last query, and does not find now.
    pub(crate) lost: usize,
    /// Controls that the cloud once found, but found neither at the last query nor now.
    pub(crate) still_lost: usize,
}

impl ControlResults {
    /// Counts the answers. Each is the new observation of a control and the record from before it.
    pub(crate) fn from_answers(
        answers: impl IntoIterator<Item = (InstanceObservation, Option<InstanceRecord>)>,
    ) -> Self {
        let mut controls = Self::default();
        for (observation, record) in answers {
            let before = record.unwrap_or_default();
            match observation {
                InstanceObservation::ShutDown
                | InstanceObservation::Running
                | InstanceObservation::OtherState
                | InstanceObservation::Terminated => controls.found += 1,
                InstanceObservation::NotFound if before.is_found() => controls.lost += 1,
                InstanceObservation::NotFound if before.was_found => controls.still_lost += 1,
                InstanceObservation::NotFound | InstanceObservation::Error => {}
            }
        }
        controls
    }
}

/// The counts of the cloud's last answers about the provider's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterCount {
    /// The number of nodes whose instance the cloud does not find.
    pub(crate) gone: usize,
    /// The number of all counted nodes.
    pub(crate) all: usize,
}

impl ClusterCount {
    /// Returns true if most nodes of the cluster seem to be gone.
    fn is_mass_loss(self) -> bool {
        self.all >= MIN_NODES_FOR_MASS_LOSS && self.gone * 2 > self.all
    }

    /// Counts the nodes that have a provider ID. A Ready node that was never found does not count,
    /// because its instance may not be in this cloud, as with virtual kubelets.
    pub(crate) fn new(ours: &[Arc<NodeView>], records: &InstanceRecords) -> Self {
        Self::count(ours, records, |record| !record.is_found())
    }

    /// Counts the nodes whose instance is shut down as gone, too.
    pub(crate) fn down(ours: &[Arc<NodeView>], records: &InstanceRecords) -> Self {
        Self::count(ours, records, |record| !record.is_found() || record.is_stopped)
    }

    fn count(
        ours: &[Arc<NodeView>],
        records: &InstanceRecords,
        is_gone: impl Fn(InstanceRecord) -> bool,
    ) -> Self {
        let mut count = Self::default();
        for node in ours.iter().filter(|node| node.provider_id.is_some()) {
            match records.of(node) {
                Some(record) if !record.was_found && node.is_ready() => {}
                Some(record) if is_gone(record) => {
                    count.gone += 1;
                    count.all += 1;
                }
                _ => count.all += 1,
            }
        }
        count
    }
}

/// The number of Ready nodes per zone whose instance the cloud found within the last hour and no
/// longer finds. While their
/// kubelets report, "not found" answers about nodes in the same zone are not trusted.
#[derive(Debug, Default)]
pub(crate) struct LostReadyNodes<'a> {
    by_zone: HashMap<Option<&'a str>, usize>,
    all: usize,
}

impl<'a> LostReadyNodes<'a> {
    /// Counts these nodes among `ours`.
    pub(crate) fn new(ours: &'a [Arc<NodeView>], records: &InstanceRecords) -> Self {
        let mut lost = Self::default();
        for node in ours.iter().filter(|node| node.is_ready()) {
            // A kubelet that outlives its instance must not block deletions indefinitely.
            if records
                .lost_for(node)
                .is_some_and(|duration| duration < LOST_READY_NODE_COUNTS_FOR)
            {
                *lost.by_zone.entry(zone(node)).or_default() += 1;
                lost.all += 1;
            }
        }
        lost
    }

    /// Counts those in the zone of a node. Nodes whose zone is unknown count as being in any zone.
    pub(crate) fn count_near(&self, node: &NodeView) -> usize {
        let zone = zone(node);
        if zone.is_none() {
            return self.all;
        }
        let in_zone = self.by_zone.get(&zone).copied().unwrap_or_default();
        let in_unknown_zone = self.by_zone.get(&None).copied().unwrap_or_default();
        in_zone + in_unknown_zone
    }
}

/// Chooses up to [`MAX_CONTROLS`] nodes to query together with suspects.
///
/// A control is an initialised node with a provider ID that is Ready, or whose instance was found
/// at the last query. Nodes in the zone of a suspect come first, because a zone may fail alone.
/// Within a zone, Ready nodes come before others. If there are enough nodes, each pass chooses
/// other ones.
///
/// Ready nodes whose instance was not found at the last query get the first two places, because a
/// new answer can show that the last one was wrong. If most of the cluster looks gone, they get the
/// first places without a limit. They also fill the places for which there are no other nodes.
pub(crate) fn choose_controls(
    ours: &[Arc<NodeView>],
    suspects: &[Arc<NodeView>],
    records: &InstanceRecords,
    pass_number: usize,
) -> Vec<Arc<NodeView>> {
    let suspect_zones: HashSet<_> = suspects.iter().filter_map(|node| zone(node)).collect();
    let suspect_names: HashSet<_> = suspects.iter().map(|node| &node.name).collect();
    // Rank the usable nodes by zone and readiness; Ready nodes that were not found are separate.
    let mut ready_near = Vec::new();
    let mut not_ready_near = Vec::new();
    let mut ready_far = Vec::new();
    let mut not_ready_far = Vec::new();
    let mut lost = Vec::new();
    for node in ours {
        let usable = node.provider_id.is_some() && !node.is_uninitialized() && !node.deleting;
        if !usable || suspect_names.contains(&node.name) {
            continue;
        }
        let record = records.of(node);
        let is_found = record.is_some_and(|record| record.is_found());
        if record.is_some() && !is_found && node.is_ready() {
            lost.push(node);
        } else if is_found || node.is_ready() {
            let is_near = zone(node).is_some_and(|zone| suspect_zones.contains(zone));
            match (is_near, node.is_ready()) {
                (true, true) => ready_near.push(node),
                (true, false) => not_ready_near.push(node),
                (false, true) => ready_far.push(node),
                (false, false) => not_ready_far.push(node),
            }
        }
    }
    // Rotate each rank, so that every pass starts with other nodes.
    for nodes in
        [&mut ready_near, &mut not_ready_near, &mut ready_far, &mut not_ready_far, &mut lost]
    {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let start = pass_number
            .wrapping_mul(MAX_CONTROLS)
            .checked_rem(nodes.len())
            .unwrap_or(0);
        nodes.rotate_left(start);
    }
    // Choose from the ranks in their order.
    let places_for_lost = if ClusterCount::new(ours, records).is_mass_loss() {
        MAX_CONTROLS
    } else {
        LOST_CONTROLS
    };
    let surplus_lost = lost.split_off(lost.len().min(places_for_lost));
    let in_order = [lost, ready_near, not_ready_near, ready_far, not_ready_far, surplus_lost];
    in_order
        .into_iter()
        .flatten()
        .take(MAX_CONTROLS)
        .cloned()
        .collect()
}

fn zone(node: &NodeView) -> Option<&str> {
    node.labels.get(crate::k8s::well_known::LABEL_ZONE)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

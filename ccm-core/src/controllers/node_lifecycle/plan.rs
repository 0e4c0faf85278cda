//! When a node is tainted, untainted or deleted: pure state and decisions.
//!
//! Deleting a Node whose machine lives is the worst thing this software can do, so a deletion needs proof: the cloud
//! answered "not found" twice, at least one monitor period apart, the second time asked fresh and in one batch with other
//! nodes, the controls. And it needs evidence that the question is right (credentials, region, project): this process has
//! seen the cloud find the same instance before, or the cloud finds a control now. If it does not find a control that it
//! found before, or most of the cluster looks gone at once, nothing is deleted.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use crate::{
    k8s::{MachineId, NodeView},
    provider::{
        InstanceStatus, PowerState,
        instance_records::{InstanceRecord, InstanceRecords},
    },
};

/// Most control nodes asked about together with suspects.
pub(crate) const MAX_CONTROLS: usize = 5;
/// How old a node that was never initialised must be, and how long the cloud must have answered that it is not there: a
/// cloud may take minutes to show a new instance.
pub(crate) const LONG_CONFIRMATION: Duration = Duration::from_secs(300);
/// How many of the controls are Ready nodes that were not found last time.
const LOST_CONTROLS: usize = 2;
/// How long a Ready node whose instance is not found any more speaks against the cloud's answers.
const DENIAL_COUNTS: Duration = Duration::from_secs(3600);
/// A cluster of so many nodes does not lose most of them at once.
const MIN_NODES_FOR_MASS_LOSS: usize = 3;
/// A node that stays as it is, is asked about less and less often, up to every so many periods.
const MAX_PERIODS_BETWEEN_QUERIES: u32 = 6;

/// How much proof a deletion needs (`--node-deletion-safety`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeletionSafety {
    /// Confirmed and controlled, as described at the top.
    Strict,
    /// One negative answer is enough, as in Go's framework.
    Upstream,
}

/// What is known about nodes that are not Ready. Time is counted from the start of the controller.
#[derive(Debug)]
pub(crate) struct NotReadyTracker {
    period: Duration,
    safety: DeletionSafety,
    tracked: HashMap<Arc<str>, TrackedNode>,
}

#[derive(Clone, Debug)]
struct TrackedNode {
    uid: Box<str>,
    /// When this controller first saw the node not Ready.
    since: Duration,
    /// The machine that the node reported then.
    machine: Option<MachineId>,
    /// How far the proof of absence has come; `None` while the instance is there.
    absence: Option<AbsenceConfirmation>,
    /// When to ask next.
    next_query: Duration,
    /// Periods between the last question and the next.
    periods_between_queries: u32,
    /// Why the last deletion was refused, if it was.
    last_refusal: Option<DeletionRefusal>,
}

/// A proof of absence. Only answers count: while the cloud answers with errors it stands still.
#[derive(Clone, Copy, Debug)]
struct AbsenceConfirmation {
    /// For how long the cloud has answered "not found".
    duration: Duration,
    /// When the last "not found" came; `None` after an error.
    last_answer: Option<Duration>,
}

impl AbsenceConfirmation {
    fn start(now: Duration) -> Self {
        Self { duration: Duration::ZERO, last_answer: Some(now) }
    }

    fn confirm_again(&mut self, now: Duration) {
        if let Some(last) = self.last_answer {
            self.duration += now.saturating_sub(last);
        }
        self.last_answer = Some(now);
    }

    fn interrupt(&mut self) {
        self.last_answer = None;
    }
}

/// Why a Node is not deleted although the cloud answers that its instance is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeletionRefusal {
    /// Instances of other nodes that the cloud found before are not found either: the answers are wrong.
    Contradicted,
    /// Nothing shows that the cloud is asked rightly: it has found neither this instance before nor another one now.
    NoEvidence,
    /// Most of the cluster looks gone.
    MostGone {
        /// Nodes whose instances the cloud does not find.
        gone: usize,
        /// All nodes of ours that have a provider ID.
        all: usize,
    },
    /// Another machine has taken the node's name since the cloud last found the instance: the provider ID is stale.
    OtherMachine,
}

impl fmt::Display for DeletionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contradicted => f.write_str(
                "its instance was not found, but neither were others that the cloud found before: \
                 nothing is deleted; check the cloud's credentials, region and health",
            ),
            Self::NoEvidence => f.write_str(
                "its instance was not found, but no other instance of this cluster was found either: \
                 nothing is deleted; check the cloud's credentials, region and project, \
                 or delete the Node yourself if its machine is gone",
            ),
            Self::MostGone { gone, all } => write!(
                f,
                "its instance was not found, but neither were those of {gone} of {all} nodes: nothing is deleted; \
                 check the cloud's credentials, region and health, \
                 or delete the Nodes yourself if their machines are gone",
            ),
            Self::OtherMachine => f.write_str(
                "its instance was not found, but another machine has registered under its name: \
                 the provider ID is stale; delete the Node and restart its kubelet to have it registered anew",
            ),
        }
    }
}

impl DeletionRefusal {
    /// Whether two refusals are for the same reason, whatever their numbers.
    fn same_kind(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// Questions of one pass.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PlannedQueries {
    /// Nodes to ask about for the first time, or again.
    pub(crate) routine: Vec<Arc<NodeView>>,
    /// Nodes whose absence is to be confirmed.
    pub(crate) confirmations: Vec<Arc<NodeView>>,
}

/// What to do about one node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Add the shutdown taint.
    Taint(Arc<NodeView>),
    /// Remove the shutdown taint.
    Untaint(Arc<NodeView>),
    /// Delete the Node object.
    Delete(Arc<NodeView>),
    /// A deletion was refused.
    RefuseDeletion {
        /// The node.
        node: Arc<NodeView>,
        /// Why.
        reason: DeletionRefusal,
        /// Whether it is the first refusal in a row for this reason, worth an event.
        first: bool,
    },
}

/// What the cloud said about a node, as far as this controller cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstanceObservation {
    NotFound,
    /// It has ended for good, and the cloud still says so: as good as absent, and proof that the question is right.
    Terminated,
    ShutDown,
    Running,
    /// Between states or unknown: nothing is done, but it is there.
    OtherState,
    /// An error: nothing is learnt.
    Error,
}

impl InstanceObservation {
    pub(crate) fn of<E>(answer: &Result<InstanceStatus, E>) -> Self {
        match answer {
            Err(_) => Self::Error,
            Ok(InstanceStatus::NotFound) => Self::NotFound,
            Ok(InstanceStatus::Found { power_state: PowerState::Terminated, .. }) => Self::Terminated,
            Ok(InstanceStatus::Found { power_state: PowerState::Stopped, .. }) => Self::ShutDown,
            Ok(InstanceStatus::Found { power_state: PowerState::Running, .. }) => Self::Running,
            Ok(InstanceStatus::Found { power_state: PowerState::Transitional | PowerState::Unknown, .. }) => {
                Self::OtherState
            }
        }
    }
}

impl NotReadyTracker {
    pub(crate) fn new(period: Duration, safety: DeletionSafety) -> Self {
        Self { period, safety, tracked: HashMap::new() }
    }

    /// Begins a pass over all nodes of ours: forgets nodes that are Ready or gone, and says whom to ask about.
    pub(crate) fn plan_queries(&mut self, ours: &[Arc<NodeView>], now: Duration) -> (PlannedQueries, Vec<Action>) {
        let mut actions = Vec::new();
        let mut questions = PlannedQueries::default();
        let mut known = HashSet::new();
        for node in ours {
            if node.is_ready() {
                if node.has_shutdown_taint() {
                    actions.push(Action::Untaint(node.clone()));
                }
                continue;
            }
            if node.deleting {
                continue;
            }
            known.insert(node.name.clone());
            let track = self.track(node, now);
            if now < track.next_query {
                continue;
            }
            match track.absence {
                Some(_) => questions.confirmations.push(node.clone()),
                None => questions.routine.push(node.clone()),
            }
        }
        self.tracked.retain(|name, _| known.contains(name));
        (questions, actions)
    }

    /// Returns the nodes whose absence is being proved. One for which that was refused is none of them.
    pub(crate) fn suspected_gone(&self) -> impl Iterator<Item = &Arc<str>> {
        self.tracked
            .iter()
            .filter(|(_, track)| track.absence.is_some() && track.last_refusal.is_none())
            .map(|(name, _)| name)
    }

    fn track(&mut self, node: &NodeView, now: Duration) -> &mut TrackedNode {
        let fresh = || TrackedNode {
            uid: node.uid.clone(),
            since: now,
            machine: node.machine,
            absence: None,
            next_query: now,
            periods_between_queries: 1,
            last_refusal: None,
        };
        let track = self.tracked.entry(node.name.clone()).or_insert_with(fresh);
        if track.uid != node.uid {
            // Deleted and registered again: what was known is about another machine.
            *track = fresh();
        }
        track
    }

    /// Takes an answer to an ordinary question.
    pub(crate) fn record_routine(
        &mut self,
        node: &Arc<NodeView>,
        seen: InstanceObservation,
        now: Duration,
    ) -> Option<Action> {
        let (period, safety) = (self.period, self.safety);
        let track = self.track(node, now);
        match seen {
            InstanceObservation::NotFound | InstanceObservation::Terminated if safety == DeletionSafety::Upstream => {
                track.next_query = now;
                return Some(Action::Delete(node.clone()));
            }
            // Neither ID nor taint: no cloud-controller-manager has ever claimed it, so it is not ours to delete.
            InstanceObservation::NotFound | InstanceObservation::Terminated
                if node.provider_id.is_none() && !node.is_uninitialized() =>
            {
                track.periods_between_queries = (track.periods_between_queries * 2).min(MAX_PERIODS_BETWEEN_QUERIES);
            }
            InstanceObservation::NotFound | InstanceObservation::Terminated => {
                track.absence = Some(AbsenceConfirmation::start(now));
                track.periods_between_queries = 1;
            }
            // Learning nothing keeps the pace: the next answer may matter.
            InstanceObservation::Error => track.periods_between_queries = 1,
            InstanceObservation::ShutDown | InstanceObservation::Running | InstanceObservation::OtherState => {
                track.periods_between_queries = (track.periods_between_queries * 2).min(MAX_PERIODS_BETWEEN_QUERIES);
            }
        }
        track.next_query = now + period * track.periods_between_queries;
        (seen == InstanceObservation::ShutDown && !node.has_shutdown_taint()).then(|| Action::Taint(node.clone()))
    }

    /// Takes an answer to a confirming question, asked fresh and together with controls.
    pub(crate) fn record_confirmation(
        &mut self,
        node: &Arc<NodeView>,
        seen: InstanceObservation,
        evidence: &DeletionEvidence,
        now: Duration,
        wall: Timestamp,
    ) -> Option<Action> {
        let period = self.period;
        let track = self.track(node, now);
        track.next_query = now + period;
        track.periods_between_queries = 1;
        let proof = match seen {
            InstanceObservation::NotFound | InstanceObservation::Terminated => {
                let proof = track.absence.get_or_insert(AbsenceConfirmation::start(now));
                proof.confirm_again(now);
                *proof
            }
            InstanceObservation::Error => {
                track.absence.iter_mut().for_each(AbsenceConfirmation::interrupt);
                return None;
            }
            InstanceObservation::ShutDown | InstanceObservation::Running | InstanceObservation::OtherState => {
                // The first answer was wrong, or the instance came back: everything starts over.
                track.absence = None;
                track.last_refusal = None;
                track.machine = node.machine;
                let taint = seen == InstanceObservation::ShutDown && !node.has_shutdown_taint();
                return taint.then(|| Action::Taint(node.clone()));
            }
        };
        if proof.duration < period || is_too_new(node, proof, now.saturating_sub(track.since), wall) {
            return None;
        }
        let Some(why) = evidence.refusal(node, seen, proof, track.machine) else {
            return Some(Action::Delete(node.clone()));
        };
        if why == DeletionRefusal::Contradicted {
            // What was "proved" was the wrong question; the proof starts over.
            track.absence = Some(AbsenceConfirmation::start(now));
        }
        let first = track.last_refusal.replace(why).is_none_or(|before| !before.same_kind(why));
        Some(Action::RefuseDeletion { node: node.clone(), reason: why, first })
    }
}

/// A node that was never initialised may belong to an instance that the cloud does not show yet. Its age must hold by the
/// wall clock and by what this controller has itself watched, because the wall clock may be wrong.
fn is_too_new(node: &NodeView, proof: AbsenceConfirmation, watched: Duration, wall: Timestamp) -> bool {
    let age = wall.duration_since(node.created);
    let limit = SignedDuration::try_from(LONG_CONFIRMATION).unwrap_or(SignedDuration::MAX);
    let never_initialised = node.is_uninitialized() || node.provider_id.is_none();
    never_initialised && (age < limit || watched < LONG_CONFIRMATION || proof.duration < LONG_CONFIRMATION)
}

/// What speaks for and against a deletion, beside the answers about the instance itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeletionEvidence {
    /// Answers about the controls of the same batch.
    pub(crate) controls: ControlResults,
    /// How much of the cluster is gone.
    pub(crate) cluster: ClusterCount,
    /// Ready nodes near this one whose instances the cloud found until lately and does not find any more.
    pub(crate) denied: usize,
    /// What the cloud has answered about the instance since this process started.
    pub(crate) record: Option<InstanceRecord>,
}

impl DeletionEvidence {
    /// Returns why a node must not be deleted whose instance is not found. `machine`: the one that it reported when its
    /// proof began.
    fn refusal(
        &self,
        node: &NodeView,
        seen: InstanceObservation,
        proof: AbsenceConfirmation,
        machine: Option<MachineId>,
    ) -> Option<DeletionRefusal> {
        let record = self.record.unwrap_or_default();
        // First the machine: whatever the cloud answers about an ID, it is about another machine than the node's.
        let reported = record.machine.or(machine);
        if reported.is_some() && node.machine.is_some() && reported != node.machine {
            return Some(DeletionRefusal::OtherMachine);
        }
        // The cloud knows the instance and says that it has ended: nothing else has to be asked.
        if seen == InstanceObservation::Terminated {
            return None;
        }
        // Next what shows that the answers are wrong.
        let ClusterCount { gone, all } = self.cluster;
        if self.cluster.is_mass_loss() {
            return Some(DeletionRefusal::MostGone { gone, all });
        }
        let ControlResults { found, lost, still_lost } = self.controls;
        if lost > 0 || self.denied > 0 || (found == 0 && still_lost > 0) {
            return Some(DeletionRefusal::Contradicted);
        }
        // Last what shows that they are right.
        let seen_before = record.was_found && (all >= MIN_NODES_FOR_MASS_LOSS || proof.duration >= LONG_CONFIRMATION);
        (found == 0 && !seen_before).then_some(DeletionRefusal::NoEvidence)
    }
}

/// Answers about the controls of one batch. An error about one says nothing, nor does it that one is not found that never
/// was: this cloud may not have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControlResults {
    /// Those that the cloud finds.
    pub(crate) found: usize,
    /// Those that the cloud found when it was last asked, and does not find now.
    pub(crate) lost: usize,
    /// Those that the cloud once found, and has not found since it was last asked.
    pub(crate) still_lost: usize,
}

impl ControlResults {
    /// Counts answers: what the cloud says of each control, and what was known of it before.
    pub(crate) fn from_answers(
        answers: impl IntoIterator<Item = (InstanceObservation, Option<InstanceRecord>)>,
    ) -> Self {
        let mut controls = Self::default();
        for (seen, before) in answers {
            let before = before.unwrap_or_default();
            match seen {
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

/// How many of our nodes have an instance, as the cloud last answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterCount {
    /// Nodes whose instance the cloud does not find.
    pub(crate) gone: usize,
    /// All nodes that have a provider ID.
    pub(crate) all: usize,
}

impl ClusterCount {
    fn is_mass_loss(self) -> bool {
        self.all >= MIN_NODES_FOR_MASS_LOSS && self.gone * 2 > self.all
    }

    /// Counts `ours`. A Ready node that was never found is left out: this cloud may not have it, as it does not have virtual
    /// kubelets.
    pub(crate) fn of(ours: &[Arc<NodeView>], records: &InstanceRecords) -> Self {
        let mut count = Self::default();
        for node in ours.iter().filter(|node| node.provider_id.is_some()) {
            match records.of(node) {
                Some(record) if !record.was_found && node.is_ready() => {}
                Some(record) if !record.is_found() => {
                    count.gone += 1;
                    count.all += 1;
                }
                _ => count.all += 1,
            }
        }
        count
    }
}

/// Ready nodes that the cloud found until lately and does not find any more, by their zones: as long as their kubelets report,
/// its answers about what is near them are not believed.
#[derive(Debug, Default)]
pub(crate) struct Denied<'a> {
    by_zone: HashMap<Option<&'a str>, usize>,
    all: usize,
}

impl<'a> Denied<'a> {
    /// Finds them among `ours`.
    pub(crate) fn of(ours: &'a [Arc<NodeView>], records: &InstanceRecords) -> Self {
        let mut denied = Self::default();
        for node in ours.iter().filter(|node| node.is_ready()) {
            // One whose kubelet outlives its instance must not keep dead nodes for ever.
            if records.lost_for(node).is_some_and(|time| time < DENIAL_COUNTS) {
                *denied.by_zone.entry(zone(node)).or_default() += 1;
                denied.all += 1;
            }
        }
        denied
    }

    /// How many are in the zone of a node, or may be.
    pub(crate) fn near(&self, node: &NodeView) -> usize {
        match zone(node) {
            None => self.all,
            zone => [zone, None].iter().filter_map(|zone| self.by_zone.get(zone)).sum(),
        }
    }
}

/// Chooses up to [`MAX_CONTROLS`] initialised nodes of ours to ask about together with suspects: nodes with a provider ID
/// that are Ready, or were found when the cloud was last asked.
///
/// Those that share a zone with a suspect come first, because a zone or cell may fail alone, Ready ones before others, and
/// others than in the last pass where there are enough. Of Ready ones that were not found last time, two have a place, and all
/// places when most of the cluster looks gone: only they can show that they are there.
pub(crate) fn choose_controls(
    ours: &[Arc<NodeView>],
    suspects: &[Arc<NodeView>],
    records: &InstanceRecords,
    turn: usize,
) -> Vec<Arc<NodeView>> {
    let zones: HashSet<_> = suspects.iter().filter_map(|node| zone(node)).collect();
    let names: HashSet<_> = suspects.iter().map(|node| &node.name).collect();
    let mut by_rank: [Vec<&Arc<NodeView>>; 4] = Default::default();
    let mut lost = Vec::new();
    for node in ours {
        let usable = node.provider_id.is_some() && !node.is_uninitialized() && !node.deleting;
        if !usable || names.contains(&node.name) {
            continue;
        }
        let record = records.of(node);
        let is_found = record.is_some_and(|record| record.is_found());
        if record.is_some() && !is_found && node.is_ready() {
            lost.push(node);
        } else if is_found || node.is_ready() {
            let is_far = !zone(node).is_some_and(|zone| zones.contains(zone));
            by_rank[usize::from(is_far) * 2 + usize::from(!node.is_ready())].push(node);
        }
    }
    for nodes in by_rank.iter_mut().chain([&mut lost]) {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let start = turn.wrapping_mul(MAX_CONTROLS).checked_rem(nodes.len()).unwrap_or(0);
        nodes.rotate_left(start);
    }
    let first = if ClusterCount::of(ours, records).is_mass_loss() { MAX_CONTROLS } else { LOST_CONTROLS };
    let others = lost.split_off(lost.len().min(first));
    let chosen = lost.into_iter().chain(by_rank.into_iter().flatten()).chain(others);
    chosen.take(MAX_CONTROLS).cloned().collect()
}

fn zone(node: &NodeView) -> Option<&str> {
    node.labels.get(crate::k8s::well_known::LABEL_ZONE)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

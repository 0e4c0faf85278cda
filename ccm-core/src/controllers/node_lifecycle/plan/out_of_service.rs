//! Decides when a node is marked out of service, so that its volumes move
//! (`--out-of-service-after`). Does no I/O.
//!
//! The taint `node.kubernetes.io/out-of-service` makes Kubernetes delete the node's pods without
//! waiting for the kubelet, and detach their volumes. If the machine still ran, two machines would
//! write to one volume. So the cloud must say that the instance is shut down, and go on saying so:
//!
//! - Only time between two such answers counts. An error pauses it, any other answer ends it. A new
//!   process counts anew.
//! - The answers are about the node's provider ID, not about its name. This process must have seen
//!   the node Ready while the cloud said that the instance runs, on the same machine. Otherwise the
//!   provider ID may be that of another machine.
//! - The kubelet must have stopped reporting: the condition `Ready` is `Unknown`, not `False`.
//! - The last answer is not cached and comes in one batch with controls, like that before a
//!   deletion, and the same observations forbid the taint.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    Action, ClusterCount, DeletionEvidence, InstanceObservation, InstanceRecord, InstanceRecords,
    RepeatedAnswer,
};
use crate::{
    explain::Cause,
    k8s::{MachineId, NodeView},
};

/// What the cloud has said of an instance, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffFinding {
    /// `shut down` or `not found`.
    pub(crate) state: &'static str,
    pub(crate) duration: Duration,
    /// The time of the last answer, since the start of the controller.
    pub(crate) answered_at: Duration,
}

/// The proof that an instance is shut down, and what came of it.
#[derive(Clone, Debug, Default)]
pub(super) struct OffState {
    proof: Option<OffProof>,
    /// The reason why the node was last not marked, if it was to be.
    pub(super) refusal: Option<OutOfServiceRefusal>,
}

#[derive(Clone, Debug)]
struct OffProof {
    answer: RepeatedAnswer,
    /// The provider ID that the answers are about.
    provider_id: Arc<str>,
    /// The machine that the node reported when the proof began.
    machine: Option<MachineId>,
}

/// The reason why a node is not marked out of service although the cloud says that its instance is
/// shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutOfServiceRefusal {
    /// The kubelet still reports that the node is not Ready, or has never reported.
    KubeletReports,
    /// The cloud contradicts itself: it says that Ready nodes are shut down, or does not find
    /// instances that it found before.
    Contradicted,
    /// Most instances of the cluster are shut down or not found.
    MostDown {
        /// The number of nodes whose instances are.
        down: usize,
        /// The number of the provider's nodes that have a provider ID.
        all: usize,
    },
    /// This process has not seen the node Ready while the cloud said that the instance runs.
    NeverSeenRunning,
    /// The cloud called the instance shut down while this node was Ready.
    WasReady,
    /// Another machine reports under the node's name than when the node was Ready and its instance
    /// ran, so the provider ID is stale.
    OtherMachine,
}

impl OutOfServiceRefusal {
    /// Returns what was found, without the next step.
    pub(crate) fn finding(self) -> String {
        match self {
            Self::KubeletReports => {
                "its instance is shut down, but its kubelet has not stopped reporting".to_owned()
            }
            Self::Contradicted => "its instance is shut down, but the cloud says so of Ready \
                                   nodes, too, or does not find instances that it found before"
                .to_owned(),
            Self::MostDown { down, all } => format!(
                "its instance is shut down, but {down} of {all} nodes are shut down or not found"
            ),
            Self::NeverSeenRunning => {
                "its instance is shut down, but this process has not seen the \
                                       node Ready while its instance ran"
                    .to_owned()
            }
            Self::WasReady => "its instance is shut down, but the cloud also said so while the \
                               node was Ready"
                .to_owned(),
            Self::OtherMachine => {
                "its instance is shut down, but another machine has registered under its name"
                    .to_owned()
            }
        }
    }

    /// Returns true if both refusals have the same reason, even with other numbers.
    fn is_same_kind(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl fmt::Display for OutOfServiceRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let note = format!("{}: it is not marked out of service", self.finding());
        f.write_str(&Cause::OutOfServiceDoubted.with_next_step(&note))
    }
}

impl OffState {
    /// Records an answer about the instance.
    pub(super) fn record(
        &mut self,
        node: &NodeView,
        observation: InstanceObservation,
        now: Duration,
        period: Duration,
    ) {
        // Without a provider ID, the cloud was asked about a name, which may be that of another
        // machine.
        let Some(provider_id) = &node.provider_id else {
            *self = Self::default();
            return;
        };
        match (observation, &mut self.proof) {
            (InstanceObservation::ShutDown, Some(proof))
                if proof.provider_id == *provider_id && proof.machine == node.machine =>
            {
                proof.answer.confirm_again(now, period);
            }
            (InstanceObservation::ShutDown, proof) => {
                *proof = Some(OffProof {
                    answer: RepeatedAnswer::start(now),
                    provider_id: provider_id.clone(),
                    machine: node.machine,
                });
            }
            (InstanceObservation::Error, Some(proof)) => proof.answer.interrupt(),
            (InstanceObservation::Error, None) => {}
            _ => *self = Self::default(),
        }
    }

    /// Returns the time for which the cloud has said that the instance is shut down.
    pub(super) fn duration(&self) -> Duration {
        self.proof
            .as_ref()
            .map_or(Duration::ZERO, |proof| proof.answer.counted)
    }

    /// Returns true if the node is to be marked once a confirmation allows it. `after` is zero for
    /// never.
    pub(super) fn is_due(&self, node: &NodeView, after: Duration) -> bool {
        !after.is_zero()
            && node.provider_id.is_some()
            && self.duration() >= after
            && !node.has_out_of_service_taint()
    }

    /// Decides after a confirmation in which the cloud found the instance.
    pub(super) fn decide(
        &mut self,
        node: &Arc<NodeView>,
        evidence: &DeletionEvidence,
        after: Duration,
        now: Duration,
    ) -> Option<Action> {
        if !self.is_due(node, after) {
            return None;
        }
        // The answers are wrong, so the time starts over, whatever else forbids the mark.
        if is_contradicted(evidence)
            && let Some(proof) = &mut self.proof
        {
            proof.answer = RepeatedAnswer::start(now);
        }
        // Wait while a Ready node is shut down by the word of the cloud. Either it stops being
        // Ready, or it counts as a contradiction soon.
        if evidence.stopped_ready_controls > 0 && evidence.stopped_ready_nodes == 0 {
            return None;
        }
        let Some(reason) = refusal(node, evidence) else {
            self.refusal = None;
            let duration = self.duration();
            let finding = OffFinding { state: "shut down", duration, answered_at: now };
            return Some(Action::MarkOutOfService { node: node.clone(), finding });
        };
        let is_first = self.refusal.is_none_or(|last| !last.is_same_kind(reason));
        self.refusal = Some(reason);
        Some(Action::RefuseOutOfService { node: node.clone(), reason, is_first })
    }
}

/// Returns the reason why a node whose instance is shut down must not be marked; `None` if it may.
fn refusal(node: &NodeView, evidence: &DeletionEvidence) -> Option<OutOfServiceRefusal> {
    if !node.is_silent() {
        return Some(OutOfServiceRefusal::KubeletReports);
    }
    // Without proof that the instance is this machine, the cloud's answers may be about another one.
    let record = evidence.record.unwrap_or_default();
    if record.was_stopped_while_ready {
        return Some(OutOfServiceRefusal::WasReady);
    }
    if record.proved_machine.is_none() {
        return Some(OutOfServiceRefusal::NeverSeenRunning);
    }
    if record.proved_machine != node.machine {
        return Some(OutOfServiceRefusal::OtherMachine);
    }
    // Look for evidence that the answers are wrong.
    let ClusterCount { gone: down, all } = evidence.down;
    if evidence.down.is_mass_loss() {
        return Some(OutOfServiceRefusal::MostDown { down, all });
    }
    is_contradicted(evidence).then_some(OutOfServiceRefusal::Contradicted)
}

/// Returns true if other nodes show that the cloud's answers are wrong.
fn is_contradicted(evidence: &DeletionEvidence) -> bool {
    evidence.controls.lost > 0 || evidence.lost_ready_nodes > 0 || evidence.stopped_ready_nodes > 0
}

/// Returns true if nothing is known that forbids to mark a node whose machine does not run.
pub(super) fn may_mark(node: &NodeView, evidence: &DeletionEvidence) -> bool {
    refusal(node, evidence).is_none()
}

/// Returns the Ready nodes to query for the proof that their instance runs on their machine, or that
/// the cloud contradicts itself. A proof of long ago does not show that the ID still leads to the
/// machine, so all are queried again and again.
pub(crate) fn nodes_to_prove(ours: &[Arc<NodeView>]) -> Vec<Arc<NodeView>> {
    ours.iter()
        .filter(|node| node.is_ready() && !node.deleting)
        .filter(|node| node.provider_id.is_some() && node.machine.is_some())
        .cloned()
        .collect()
}

/// Counts the nodes that have been Ready for long although the cloud says that their instance is
/// shut down.
pub(crate) fn count_stopped_ready(ours: &[Arc<NodeView>], records: &InstanceRecords) -> usize {
    ours.iter()
        .filter(|node| node.is_ready())
        .filter_map(|node| records.of(node))
        .filter(InstanceRecord::is_stopped_while_ready)
        .count()
}

/// Drops the marks for which `left`, the number of nodes that one pass may still delete or mark, is
/// not enough, and subtracts the others.
pub(crate) fn limit_marks(actions: &mut Vec<Action>, left: &mut usize) {
    actions.retain(|action| {
        if !matches!(action, Action::MarkOutOfService { .. }) {
            return true;
        }
        let is_allowed = *left > 0;
        *left = left.saturating_sub(1);
        is_allowed
    });
}

#[cfg(test)]
#[path = "../out_of_service_tests.rs"]
mod tests;

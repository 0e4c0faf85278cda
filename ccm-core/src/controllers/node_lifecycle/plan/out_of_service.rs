//! Decides when a node is marked out of service, so that its volumes move
//! (`--out-of-service-after`). Does no I/O.
//!
//! The taint `node.kubernetes.io/out-of-service` makes Kubernetes delete the node's pods without
//! waiting for the kubelet, and detach their volumes. If the machine still ran, two machines would
//! write to one volume. So the cloud must say that the instance is shut down, and go on saying so:
//!
//! - Only time between two such answers counts. An error pauses it, any other answer ends it. A new
//!   process counts anew.
//! - The kubelet must have stopped reporting: the condition `Ready` is `Unknown`, not `False`.
//! - The last answer is not cached and comes in one batch with controls, like that before a
//!   deletion, and the same observations forbid the taint.

use std::{fmt, sync::Arc, time::Duration};

use super::{Action, ClusterCount, DeletionEvidence, InstanceObservation, RepeatedAnswer};
use crate::{
    explain::Cause,
    k8s::{MachineId, NodeView},
};

/// The maximum number of periods between two answers that counts. If a pass took longer, the
/// instance may have run meanwhile.
const MAX_COUNTED_PERIODS: u32 = 12;

/// What the cloud has said of an instance, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffFinding {
    /// `shut down` or `not found`.
    pub(crate) state: &'static str,
    pub(crate) duration: Duration,
}

/// The proof that an instance is shut down, and what came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OffState {
    proof: Option<OffProof>,
    /// The reason why the node was last not marked, if it was to be.
    pub(super) refusal: Option<OutOfServiceRefusal>,
}

#[derive(Clone, Copy, Debug)]
struct OffProof {
    answer: RepeatedAnswer,
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
    /// Another machine has registered under the node's name since the cloud last said that the
    /// instance runs, so the provider ID is stale.
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
        match (observation, &mut self.proof) {
            (InstanceObservation::ShutDown, Some(proof)) if proof.machine == node.machine => {
                let before = proof.answer.duration;
                proof.answer.confirm_again(now);
                let longest = before + period * MAX_COUNTED_PERIODS;
                proof.answer.duration = proof.answer.duration.min(longest);
            }
            (InstanceObservation::ShutDown, proof) => {
                *proof =
                    Some(OffProof { answer: RepeatedAnswer::start(now), machine: node.machine });
            }
            (InstanceObservation::Error, Some(proof)) => proof.answer.interrupt(),
            (InstanceObservation::Error, None) => {}
            _ => *self = Self::default(),
        }
    }

    /// Returns the time for which the cloud has said that the instance is shut down.
    pub(super) fn duration(&self) -> Duration {
        self.proof
            .map_or(Duration::ZERO, |proof| proof.answer.duration)
    }

    /// Returns true if the node is to be marked once a confirmation allows it. `after` is zero for
    /// never.
    pub(super) fn is_due(&self, node: &NodeView, after: Duration) -> bool {
        !after.is_zero() && self.duration() >= after && !node.has_out_of_service_taint()
    }

    /// Decides after a confirmation in which the cloud found the instance.
    pub(super) fn decide(
        &mut self,
        node: &Arc<NodeView>,
        evidence: &DeletionEvidence,
        after: Duration,
    ) -> Option<Action> {
        if !self.is_due(node, after) {
            return None;
        }
        let Some(reason) = refusal(node, evidence) else {
            self.refusal = None;
            let finding = OffFinding { state: "shut down", duration: self.duration() };
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
    // If the machine has changed, the cloud's answers are about another machine than the one that
    // the node runs on.
    let ran_on = evidence.record.and_then(|record| record.running_machine);
    if ran_on.is_some() && node.machine.is_some() && ran_on != node.machine {
        return Some(OutOfServiceRefusal::OtherMachine);
    }
    // Look for evidence that the answers are wrong.
    let ClusterCount { gone: down, all } = evidence.down;
    if evidence.down.is_mass_loss() {
        return Some(OutOfServiceRefusal::MostDown { down, all });
    }
    let is_contradicted = evidence.controls.lost > 0
        || evidence.lost_ready_nodes > 0
        || evidence.stopped_ready_controls > 0;
    is_contradicted.then_some(OutOfServiceRefusal::Contradicted)
}

#[cfg(test)]
#[path = "out_of_service_tests.rs"]
mod tests;

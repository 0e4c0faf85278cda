//! What the node-lifecycle controller contributes to the explanation of a node.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    NodeLifecycleController,
    plan::{DeletionRefusal, NotReadyStatus, NotReadyTracker},
};
use crate::{
    config::controller_names::CLOUD_NODE_LIFECYCLE,
    explain::{
        AttemptLog, Cause, ExplainTime, ExplainedAbsence, ExplainedCause, Explainer,
        InstanceAnswer, NodeExplanation, cloud_cause,
    },
    k8s::NodeView,
    provider::{
        PowerState,
        instance_records::{AnswerContent, InstanceRecords},
    },
};

/// Explains nodes from the state of the controller.
struct NodeLifecycleExplainer {
    tracker: Arc<Mutex<NotReadyTracker>>,
    records: Arc<InstanceRecords>,
    failed_writes: AttemptLog,
    started_at: Instant,
}

impl NodeLifecycleController {
    /// Returns what explains nodes while the controller runs.
    pub(crate) fn explainer(&self) -> Arc<dyn Explainer> {
        Arc::new(NodeLifecycleExplainer {
            tracker: self.tracker.clone(),
            records: self.instances.records().clone(),
            failed_writes: self.failed_writes.clone(),
            started_at: self.started_at,
        })
    }
}

impl Explainer for NodeLifecycleExplainer {
    fn explain_node(&self, node: &NodeView, time: ExplainTime, explanation: &mut NodeExplanation) {
        explanation.controllers.push(CLOUD_NODE_LIFECYCLE);
        explanation.instance = InstanceAnswer::last(&self.records, node, time);
        if !explanation.ours || node.deleting {
            return;
        }
        let status = self.tracker.lock().status(node);
        if let Some(status) = &status {
            explanation.absence = self.explain_absence(status, time);
        }
        let last = self.records.last_answer(&node.name);
        let answer = last.as_ref().map(|last| &last.content);
        if let Some(cause) = lifecycle_cause(node, status.as_ref(), answer) {
            let until = status
                .filter(|_| cause.cause != Cause::NeverInitialised)
                .map(|status| time.at(self.started_at + status.next_query));
            explanation.add(cause.until(until));
        }
        if let Some(attempt) = self.failed_writes.get(&node.name) {
            explanation.add_attempt(CLOUD_NODE_LIFECYCLE, &attempt, time);
        }
    }
}

impl NodeLifecycleExplainer {
    fn explain_absence(
        &self,
        status: &NotReadyStatus,
        time: ExplainTime,
    ) -> Option<ExplainedAbsence> {
        let not_found_for = status.not_found_for?;
        Some(ExplainedAbsence {
            not_ready_since: time.at(self.started_at + status.since),
            not_found_for_seconds: not_found_for.as_secs(),
            required_seconds: status.required.as_secs(),
            next_query: time.at(self.started_at + status.next_query),
            refusal: status.refusal.map(|refusal| refusal.to_string()),
        })
    }
}

/// Returns the cause for which a node is tainted, about to be deleted or not Ready, from what the
/// controller holds of it; `None` if there is none.
pub(super) fn lifecycle_cause(
    node: &NodeView,
    status: Option<&NotReadyStatus>,
    answer: Option<&AnswerContent>,
) -> Option<ExplainedCause> {
    let name = &node.name;
    if node.is_ready() {
        let (cause, taint) = if node.has_own_out_of_service_taint() {
            (Cause::OutOfServiceTaintNotNeeded, "out-of-service")
        } else if node.has_shutdown_taint() {
            (Cause::ShutdownTaintNotNeeded, "shutdown")
        } else {
            return None;
        };
        let message = format!("node {name}: it is Ready and has the {taint} taint");
        return Some(ExplainedCause::new(cause, message));
    }
    // A refused deletion first, because somebody has to act.
    if let Some(refusal) = status.and_then(|status| status.refusal) {
        let message = format!("node {name}: {}", refusal.finding());
        return Some(ExplainedCause::new(refusal.cause(), message));
    }
    if let Some(not_found_for) = status.and_then(|status| status.not_found_for) {
        let required = status.map_or(Duration::ZERO, |status| status.required);
        let message = format!(
            "node {name}: the cloud has not found its instance for {}s; the Node is deleted after {}s",
            not_found_for.as_secs(),
            required.as_secs()
        );
        return Some(ExplainedCause::new(Cause::AbsenceNotConfirmed, message));
    }
    if node.has_own_out_of_service_taint() {
        let message = format!("node {name}: this manager has marked it out of service");
        return Some(ExplainedCause::new(Cause::OutOfService, message));
    }
    if let Some(refusal) = status.and_then(|status| status.off_refusal) {
        let message = format!("node {name}: {}", refusal.finding());
        return Some(ExplainedCause::new(Cause::OutOfServiceDoubted, message));
    }
    let is_stopped = matches!(answer, Some(AnswerContent::Found(PowerState::Stopped)));
    if is_stopped {
        let when = status
            .filter(|_| node.provider_id.is_some())
            .map(when_out_of_service)
            .unwrap_or_default();
        let message = format!("node {name}: its instance is shut down{when}");
        return Some(ExplainedCause::new(Cause::InstanceStopped, message));
    }
    let (cause, what) = match answer {
        _ if node.is_uninitialized() => return None,
        Some(AnswerContent::NotFound) if node.provider_id.is_none() => {
            (Cause::NeverInitialised, "it has neither a provider ID nor the uninitialized taint")
        }
        Some(AnswerContent::NotFound) => (
            Cause::AbsenceNotConfirmed,
            "the cloud did not find its instance when it was last asked",
        ),
        Some(AnswerContent::Found(PowerState::Terminated)) => {
            (Cause::InstanceNotFound, "its instance is terminated")
        }
        Some(AnswerContent::Found(_)) => {
            (Cause::KubeletNotReady, "its instance exists and is not shut down")
        }
        Some(AnswerContent::Failed(error)) => {
            (cloud_cause(error), "the cloud was asked about its instance and did not answer")
        }
        _ => (Cause::KubeletNotReady, "the cloud has not been asked about its instance since"),
    };
    Some(ExplainedCause::new(cause, format!("node {name}: {what}")))
}

/// Returns when a node whose instance is shut down is marked out of service; empty for never.
fn when_out_of_service(status: &NotReadyStatus) -> String {
    let after = status.out_of_service_after.as_secs();
    if after == 0 {
        return String::new();
    }
    let off_for = status.off_for.as_secs();
    format!(", for {off_for}s by the word of the cloud; it is marked out of service after {after}s")
}

impl DeletionRefusal {
    /// Returns the cause that the refusal stands for.
    pub(super) fn cause(self) -> Cause {
        match self {
            Self::Contradicted => Cause::DeletionContradicted,
            Self::NoEvidence => Cause::DeletionWithoutEvidence,
            Self::MostGone { .. } => Cause::MostInstancesGone,
            Self::OtherMachine => Cause::OtherMachineRegistered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controllers::node_lifecycle::plan::OutOfServiceRefusal,
        k8s::{ConditionStatus, NodeCondition, Taint, TaintEffect, well_known},
    };

    fn status(not_found_for: Option<u64>, refusal: Option<DeletionRefusal>) -> NotReadyStatus {
        NotReadyStatus {
            since: Duration::ZERO,
            not_found_for: not_found_for.map(Duration::from_secs),
            required: Duration::from_secs(5),
            next_query: Duration::from_secs(5),
            refusal,
            off_for: Duration::ZERO,
            off_refusal: None,
            out_of_service_after: Duration::ZERO,
        }
    }

    fn initialised() -> NodeView {
        NodeView { provider_id: Some("test://1".into()), ..NodeView::named("a") }
    }

    fn ready(node: NodeView) -> NodeView {
        let condition = NodeCondition { status: ConditionStatus::True, reason: Arc::from("") };
        NodeView { ready: Some(condition), ..node }
    }

    fn with_taint(key: &str, node: NodeView) -> NodeView {
        let taint = Taint {
            key: Arc::from(key),
            value: Arc::from(""),
            effect: TaintEffect::NoSchedule,
        };
        NodeView { taints: Box::new([taint]), ..node }
    }

    #[test]
    fn each_situation_of_a_node_that_is_not_ready_has_its_cause() {
        use AnswerContent::{Found, NotFound};
        let most = DeletionRefusal::MostGone { gone: 2, all: 3 };
        let stopped = with_taint(well_known::TAINT_SHUTDOWN, initialised());
        let new = with_taint(well_known::TAINT_UNINITIALIZED, NodeView::named("a"));
        let own = Taint {
            key: Arc::from(well_known::TAINT_OUT_OF_SERVICE),
            value: Arc::from(well_known::OUT_OF_SERVICE_VALUE),
            effect: TaintEffect::NoExecute,
        };
        let out = NodeView { taints: Box::new([own]), ..initialised() };
        let doubted = NotReadyStatus {
            off_refusal: Some(OutOfServiceRefusal::KubeletReports),
            ..status(None, None)
        };
        let idle = || status(None, None);
        for (node, status, answer, cause) in [
            (ready(initialised()), None, None, None),
            (ready(stopped.clone()), None, None, Some(Cause::ShutdownTaintNotNeeded)),
            (stopped, Some(idle()), Some(Found(PowerState::Stopped)), Some(Cause::InstanceStopped)),
            (
                initialised(),
                Some(idle()),
                Some(Found(PowerState::Running)),
                Some(Cause::KubeletNotReady),
            ),
            (initialised(), Some(idle()), None, Some(Cause::KubeletNotReady)),
            (
                initialised(),
                Some(status(Some(3), None)),
                Some(NotFound),
                Some(Cause::AbsenceNotConfirmed),
            ),
            (
                initialised(),
                Some(status(Some(9), Some(DeletionRefusal::Contradicted))),
                Some(NotFound),
                Some(Cause::DeletionContradicted),
            ),
            (
                initialised(),
                Some(status(Some(9), Some(DeletionRefusal::NoEvidence))),
                Some(NotFound),
                Some(Cause::DeletionWithoutEvidence),
            ),
            (
                initialised(),
                Some(status(Some(9), Some(most))),
                Some(NotFound),
                Some(Cause::MostInstancesGone),
            ),
            (
                initialised(),
                Some(status(Some(9), Some(DeletionRefusal::OtherMachine))),
                Some(NotFound),
                Some(Cause::OtherMachineRegistered),
            ),
            (NodeView::named("a"), Some(idle()), Some(NotFound), Some(Cause::NeverInitialised)),
            (ready(out.clone()), None, None, Some(Cause::OutOfServiceTaintNotNeeded)),
            (out, Some(idle()), Some(Found(PowerState::Stopped)), Some(Cause::OutOfService)),
            (
                initialised(),
                Some(doubted),
                Some(Found(PowerState::Stopped)),
                Some(Cause::OutOfServiceDoubted),
            ),
            // The cloud-node controller has the cause of these.
            (new.clone(), Some(idle()), None, None),
            (new, Some(idle()), Some(Found(PowerState::Running)), None),
        ] {
            let found = lifecycle_cause(&node, status.as_ref(), answer.as_ref());
            assert_eq!(found.as_ref().map(|found| found.cause), cause, "{node:?} {answer:?}");
            if let Some(found) = found {
                assert!(found.message.starts_with("node a: "), "{}", found.message);
            }
        }
    }

    #[test]
    fn the_event_of_a_refused_deletion_names_the_same_next_step() {
        for refusal in [
            DeletionRefusal::Contradicted,
            DeletionRefusal::NoEvidence,
            DeletionRefusal::MostGone { gone: 2, all: 3 },
            DeletionRefusal::OtherMachine,
        ] {
            let event = refusal.to_string();
            let ending = format!("; next step: {}", refusal.cause().next_step());
            assert!(event.ends_with(&ending), "{event}: {ending}");
            assert!(event.starts_with(&refusal.finding()), "{event}");
        }
    }
}

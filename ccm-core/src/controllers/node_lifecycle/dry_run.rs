//! The dry run of the node-lifecycle controller, which finds the nodes that it would taint or
//! delete.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    NodeLifecycleController,
    plan::{Action, InstanceObservation, NotReadyTracker},
};
use crate::{
    config::controller_names::CLOUD_NODE_LIFECYCLE,
    controllers::node_difference::node_difference,
    k8s::{NodeView, well_known},
    provider::{CloudError, InstanceStatus, NodeOwnership},
    runtime::shadow::{
        Difference, DryRun, DryRunFindings, ManagerDefect, NONE, NotCompared, ObjectKind,
    },
};

/// The controller in shadow mode. It queries the cloud and proves absences like the controller.
struct LifecycleDryRun {
    controller: NodeLifecycleController,
    tracker: NotReadyTracker,
    started_at: Instant,
    pass_number: usize,
    next_pass: Instant,
    /// The number of nodes in the last pass.
    node_count: usize,
    /// The difference that follows from the last answer about each node, and the time of the
    /// answer.
    current_findings: HashMap<Arc<str>, (Difference, Instant)>,
    /// The errors of the last queries, by node.
    failed_queries: BTreeMap<Arc<str>, String>,
}

impl NodeLifecycleController {
    /// Turns the controller into one that only reports what it would do.
    pub(crate) fn dry_run(self) -> Box<dyn DryRun> {
        let tracker = self.config.tracker();
        let now = Instant::now();
        Box::new(LifecycleDryRun {
            controller: self,
            tracker,
            started_at: now,
            pass_number: 0,
            next_pass: now,
            node_count: 0,
            current_findings: HashMap::new(),
            failed_queries: BTreeMap::new(),
        })
    }
}

#[async_trait]
impl DryRun for LifecycleDryRun {
    async fn compare(&mut self, now: Instant) -> DryRunFindings {
        if self.next_pass <= now {
            self.run_pass(now).await;
            self.pass_number += 1;
            self.next_pass = now + self.controller.config.period;
        }
        let mut findings = DryRunFindings {
            compared: vec![("nodes", self.node_count)],
            differences: self.current_findings.values().cloned().collect(),
            ..DryRunFindings::default()
        };
        for (name, error) in &self.failed_queries {
            let not_compared = NotCompared {
                kind: ObjectKind::Node,
                object: name.to_string(),
                controller: CLOUD_NODE_LIFECYCLE,
                why: error.clone(),
            };
            findings.uncompared.push((not_compared, now));
        }
        for name in self.tracker.suspected_gone() {
            if !self.is_proved_gone(name) {
                findings
                    .unsettled
                    .push((ObjectKind::Node, name.to_string()));
            }
        }
        findings
    }
}

impl LifecycleDryRun {
    /// Returns true if the controller would delete the node.
    fn is_proved_gone(&self, name: &str) -> bool {
        match self.current_findings.get(name) {
            Some((difference, _)) => difference.part == DELETION,
            None => false,
        }
    }

    /// Runs a pass like that of the controller, without its writes.
    async fn run_pass(&mut self, now: Instant) {
        // Query the nodes that are not Ready.
        let ctx = &self.controller.ctx;
        let mut ours = ctx.nodes.list();
        ours.retain(|node| ctx.provider.node_ownership(node) == NodeOwnership::Ours);
        self.node_count = ours.len();
        self.controller
            .query_ready_nodes(&ours, self.pass_number)
            .await;
        let (queries, mut actions) = self.tracker.plan_queries(&ours, self.started_at.elapsed());
        let answers = self.controller.query_cloud(&queries.routine).await;
        for (node, answer) in queries.routine.iter().zip(&answers) {
            actions.extend(self.tracker.record_routine(
                node,
                InstanceObservation::from_answer(answer),
                self.started_at.elapsed(),
            ));
        }
        // Query the suspects again, together with controls.
        let mut answered: Vec<_> = queries.routine.iter().cloned().zip(answers).collect();
        for suspects in queries
            .confirmations
            .chunks(self.controller.max_suspects_per_batch())
        {
            let queried = self
                .controller
                .query_with_controls(&ours, suspects, self.pass_number)
                .await;
            let wall = self.controller.ctx.clock.now();
            for suspect in queried {
                actions.extend(self.tracker.record_confirmation(
                    &suspect.node,
                    InstanceObservation::from_answer(&suspect.answer),
                    &suspect.evidence,
                    self.started_at.elapsed(),
                    wall,
                ));
                answered.push((suspect.node, suspect.answer));
            }
        }
        // Replace the findings of the nodes that were queried.
        self.drop_outdated(&ours);
        self.record_answers(&answered);
        for action in &actions {
            if let Some(difference) = action_difference(action) {
                self.current_findings
                    .insert(Arc::from(&*difference.object), (difference, now));
            }
        }
    }

    /// Removes the findings and errors of nodes that are deleted, being deleted or Ready again, and
    /// the findings about taints that somebody has added or removed.
    fn drop_outdated(&mut self, ours: &[Arc<NodeView>]) {
        let mut not_ready: HashMap<&str, &NodeView> = HashMap::new();
        for node in ours {
            if !node.is_ready() && !node.deleting {
                not_ready.insert(&node.name, node);
            }
        }
        self.failed_queries
            .retain(|name, _| not_ready.contains_key(&**name));
        self.current_findings.retain(|name, (difference, _)| {
            not_ready
                .get(&**name)
                .is_some_and(|node| is_still_open(difference, node))
        });
    }

    /// Records errors. An answer removes the earlier finding and error of its node.
    fn record_answers(&mut self, answered: &[(Arc<NodeView>, Result<InstanceStatus, CloudError>)]) {
        for (node, answer) in answered {
            match answer {
                Ok(_) => {
                    self.failed_queries.remove(&node.name);
                    self.current_findings.remove(&node.name);
                }
                Err(error) => {
                    self.failed_queries.insert(node.name.clone(), error.chain());
                }
            }
        }
    }
}

/// The value of [`Difference::part`] for the deletion of the whole Node.
const DELETION: &str = "the object";

fn taint_part(key: &str) -> String {
    format!("spec.taints[{key}]")
}

/// Returns true unless a node that is not Ready already is as the difference says.
fn is_still_open(difference: &Difference, node: &NodeView) -> bool {
    if difference.part == DELETION {
        return true;
    }
    if difference.part != taint_part(well_known::TAINT_OUT_OF_SERVICE) {
        return !node.has_shutdown_taint();
    }
    if difference.desired == NONE {
        node.has_own_out_of_service_taint()
    } else {
        !node.has_out_of_service_taint()
    }
}

/// Returns the difference that an action would resolve.
fn action_difference(action: &Action) -> Option<Difference> {
    let shutdown = taint_part(well_known::TAINT_SHUTDOWN);
    let out_of_service = taint_part(well_known::TAINT_OUT_OF_SERVICE);
    let (node, part, current, desired, reason) = match action {
        Action::Taint(node) => (node, &*shutdown, NONE, "set", "its instance is shut down"),
        Action::Untaint(node) if node.has_shutdown_taint() => {
            (node, &*shutdown, "set", NONE, "it is Ready")
        }
        Action::Untaint(node) => (node, &*out_of_service, "set", NONE, "it is Ready"),
        Action::MarkOutOfService { node, .. } => {
            (node, &*out_of_service, NONE, "set", "its instance has been shut down for long")
        }
        Action::UnmarkOutOfService(node) => {
            (node, &*out_of_service, "set", NONE, "its instance is not shut down any more")
        }
        Action::Delete(node) => (node, DELETION, "there", "deleted", "its instance is gone"),
        // A refusal is only reported.
        Action::RefuseDeletion { .. } | Action::RefuseOutOfService { .. } => return None,
    };
    let difference = node_difference(CLOUD_NODE_LIFECYCLE, node, part, current, desired, reason);
    Some(match action {
        Action::Delete(_) => difference.with_defect(ManagerDefect::NodeOfDeletedInstance, None),
        _ => difference,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::plan::OffFinding, *};
    use crate::k8s::{Taint, TaintEffect};

    fn marked(value: &str) -> NodeView {
        let taint = Taint {
            key: well_known::TAINT_OUT_OF_SERVICE.into(),
            value: value.into(),
            effect: TaintEffect::NoExecute,
        };
        NodeView { taints: [taint].into(), ..NodeView::named("n") }
    }

    #[test]
    fn a_finding_is_open_until_the_taint_is_there_or_gone() {
        let plain = NodeView::named("n");
        let ours = marked(well_known::OUT_OF_SERVICE_VALUE);
        let removal = Action::UnmarkOutOfService(Arc::new(ours.clone()));
        let removal = action_difference(&removal).unwrap();
        assert!(is_still_open(&removal, &ours) && !is_still_open(&removal, &plain));
        let finding = OffFinding {
            state: "shut down",
            duration: Duration::ZERO,
            answered_at: Duration::ZERO,
        };
        let addition = Action::MarkOutOfService { node: Arc::new(plain.clone()), finding };
        let addition = action_difference(&addition).unwrap();
        assert!(is_still_open(&addition, &plain) && !is_still_open(&addition, &ours));
        assert!(!is_still_open(&addition, &marked("nodeshutdown")));
    }
}

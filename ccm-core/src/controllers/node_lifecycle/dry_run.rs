//! Dry run of the node-lifecycle controller: finds which nodes it would taint or delete.

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
    k8s::{NodeView, well_known},
    provider::{CloudError, InstanceStatus, NodeOwnership},
    runtime::shadow::{Difference, DryRun, DryRunFindings, NONE, NotCompared, ObjectKind},
};

/// The controller in shadow mode. Its queries and proofs are the same as those of the real
/// controller.
struct LifecycleDryRun {
    controller: NodeLifecycleController,
    tracker: NotReadyTracker,
    started_at: Instant,
    pass_number: usize,
    next: Instant,
    /// Number of nodes in the last pass.
    nodes: usize,
    /// The difference that followed from the last answer about each node, if any, and when the
    /// answer came.
    current_findings: HashMap<Arc<str>, (Difference, Instant)>,
    /// Nodes whose last query failed, and the error.
    failed_queries: BTreeMap<Arc<str>, String>,
}

impl NodeLifecycleController {
    /// Turns the controller into one that only reports what it would do.
    pub(crate) fn dry_run(self) -> Box<dyn DryRun> {
        let tracker = NotReadyTracker::new(self.config.period, self.safety());
        let now = Instant::now();
        Box::new(LifecycleDryRun {
            controller: self,
            tracker,
            started_at: now,
            pass_number: 0,
            next: now,
            nodes: 0,
            current_findings: HashMap::new(),
            failed_queries: BTreeMap::new(),
        })
    }
}

#[async_trait]
impl DryRun for LifecycleDryRun {
    async fn compare(&mut self, now: Instant) -> DryRunFindings {
        if self.next <= now {
            self.pass(now).await;
            self.pass_number += 1;
            self.next = now + self.controller.config.period;
        }
        let mut findings = DryRunFindings {
            compared: vec![("nodes", self.nodes)],
            differences: self.current_findings.values().cloned().collect(),
            uncompared: Vec::new(),
            unsettled: Vec::new(),
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
    fn is_proved_gone(&self, name: &str) -> bool {
        match self.current_findings.get(name) {
            Some((difference, _)) => difference.part == DELETION,
            None => false,
        }
    }

    /// Runs a pass like that of the controller, without its writes.
    async fn pass(&mut self, now: Instant) {
        let ctx = &self.controller.ctx;
        let mut ours = ctx.nodes.list();
        ours.retain(|node| ctx.provider.node_ownership(node) == NodeOwnership::Ours);
        self.nodes = ours.len();
        let (queries, mut actions) = self.tracker.plan_queries(&ours, self.started_at.elapsed());
        let answers = self.controller.query_cloud(&queries.routine).await;
        for (node, answer) in queries.routine.iter().zip(&answers) {
            actions.extend(self.tracker.record_routine(
                node,
                InstanceObservation::of(answer),
                self.started_at.elapsed(),
            ));
        }
        let mut answered: Vec<_> = queries.routine.iter().cloned().zip(answers).collect();
        for suspects in queries.confirmations.chunks(self.controller.confirm_size()) {
            let queried = self
                .controller
                .query_with_controls(&ours, suspects, self.pass_number)
                .await;
            let wall = self.controller.ctx.clock.now();
            for suspect in queried {
                actions.extend(self.tracker.record_confirmation(
                    &suspect.node,
                    InstanceObservation::of(&suspect.answer),
                    &suspect.evidence,
                    self.started_at.elapsed(),
                    wall,
                ));
                answered.push((suspect.node, suspect.answer));
            }
        }
        self.drop_outdated(&ours);
        self.record_answers(&answered);
        for action in &actions {
            if let Some(difference) = action_difference(action) {
                self.current_findings
                    .insert(Arc::from(&*difference.object), (difference, now));
            }
        }
    }

    /// Removes findings and errors that no longer apply: of nodes that are deleted, being deleted
    /// or Ready again, and of nodes that have the taint by now.
    fn drop_outdated(&mut self, ours: &[Arc<NodeView>]) {
        let mut not_ready: HashMap<&str, &NodeView> = HashMap::new();
        for node in ours {
            if !node.is_ready() && !node.deleting {
                not_ready.insert(&node.name, node);
            }
        }
        self.failed_queries
            .retain(|name, _| not_ready.contains_key(&**name));
        self.current_findings
            .retain(|name, (difference, _)| match not_ready.get(&**name) {
                Some(node) => difference.part == DELETION || !node.has_shutdown_taint(),
                None => false,
            });
    }

    /// Records errors. Any answer removes the node's earlier finding and error.
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

/// Value of [`Difference::part`] for the deletion of the whole Node.
const DELETION: &str = "the object";

/// Returns what an action changes.
fn action_difference(action: &Action) -> Option<Difference> {
    let taint = format!("spec.taints[{}]", well_known::TAINT_SHUTDOWN);
    match action {
        Action::Taint(node) => {
            Some(difference(node, taint, NONE, "set", "its instance is shut down"))
        }
        Action::Untaint(node) => Some(difference(node, taint, "set", NONE, "it is Ready")),
        Action::Delete(node) => {
            let part = DELETION.to_owned();
            Some(difference(node, part, "there", "deleted", "its instance is gone"))
        }
        // Only reported; nothing is written.
        Action::RefuseDeletion { .. } => None,
    }
}

fn difference(
    node: &NodeView,
    part: String,
    current: &str,
    desired: &str,
    why: &str,
) -> Difference {
    Difference {
        kind: ObjectKind::Node,
        object: node.name.to_string(),
        part,
        controller: CLOUD_NODE_LIFECYCLE,
        current: Some(current.to_owned()),
        desired: desired.to_owned(),
        why: why.to_owned(),
    }
}

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
    k8s::{NodeView, well_known as wk},
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
        let standing = HashMap::new();
        let unanswered = BTreeMap::new();
        let controller = self;
        Box::new(LifecycleDryRun {
            controller,
            tracker,
            started_at: now,
            pass_number: 0,
            next: now,
            nodes: 0,
            current_findings: standing,
            failed_queries: unanswered,
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
        let uncompared = |(name, why): (&Arc<str>, &String)| {
            let object = name.to_string();
            let why = why.clone();
            (
                NotCompared {
                    kind: ObjectKind::Node,
                    object,
                    controller: CLOUD_NODE_LIFECYCLE,
                    why,
                },
                now,
            )
        };
        let proved = |name: &str| {
            self.current_findings
                .get(name)
                .is_some_and(|(found, _)| found.part == DELETION)
        };
        let doubted = self.tracker.suspected_gone().filter(|name| !proved(name));
        DryRunFindings {
            compared: vec![("nodes", self.nodes)],
            differences: self.current_findings.values().cloned().collect(),
            uncompared: self.failed_queries.iter().map(uncompared).collect(),
            unsettled: doubted
                .map(|name| (ObjectKind::Node, name.to_string()))
                .collect(),
        }
    }
}

impl LifecycleDryRun {
    async fn pass(&mut self, now: Instant) {
        let cx = &self.controller.cx;
        let mut ours = cx.nodes.list();
        ours.retain(|node| cx.provider.node_ownership(node) == NodeOwnership::Ours);
        self.nodes = ours.len();
        let elapsed = || self.started_at.elapsed();
        let (queries, mut actions) = self.tracker.plan_queries(&ours, elapsed());
        let answers = self.controller.query_cloud(&queries.routine).await;
        for (node, answer) in queries.routine.iter().zip(&answers) {
            actions.extend(self.tracker.record_routine(
                node,
                InstanceObservation::of(answer),
                elapsed(),
            ));
        }
        let mut answered: Vec<_> = queries.routine.iter().cloned().zip(answers).collect();
        for suspects in queries.confirmations.chunks(self.controller.confirm_size()) {
            let (judged, answers) = self
                .controller
                .query_with_controls(&ours, suspects, self.pass_number)
                .await;
            let wall = self.controller.cx.clock.now();
            for (node, seen, evidence) in judged {
                actions.extend(self.tracker.record_confirmation(
                    &node,
                    seen,
                    &evidence,
                    elapsed(),
                    wall,
                ));
            }
            answered.extend(suspects.iter().cloned().zip(answers));
        }
        self.drop_outdated(&ours);
        self.record_answers(&answered);
        self.current_findings.extend(
            actions
                .iter()
                .filter_map(difference)
                .map(|(node, found)| (node, (found, now))),
        );
    }

    /// Removes findings and errors that no longer apply: of nodes that are deleted, being deleted
    /// or Ready again, and of nodes that have the taint by now.
    fn drop_outdated(&mut self, ours: &[Arc<NodeView>]) {
        let nodes: HashMap<&str, &Arc<NodeView>> =
            ours.iter().map(|node| (&*node.name, node)).collect();
        let is_suspect = |name: &str| {
            nodes
                .get(name)
                .is_some_and(|node| !node.is_ready() && !node.deleting)
        };
        self.failed_queries.retain(|name, _| is_suspect(name));
        self.current_findings.retain(|name, (found, _)| {
            let tainted = nodes
                .get(&**name)
                .is_some_and(|node| node.has_shutdown_taint());
            is_suspect(name) && (found.part == DELETION || !tainted)
        });
    }

    /// Records errors. An answer, whatever it is, removes the node's earlier finding and error.
    fn record_answers(&mut self, answered: &[(Arc<NodeView>, Result<InstanceStatus, CloudError>)]) {
        for (node, answer) in answered {
            match answer {
                Ok(_) => {
                    self.failed_queries.remove(&node.name);
                    self.current_findings.remove(&node.name);
                }
                Err(error) => drop(self.failed_queries.insert(node.name.clone(), error.chain())),
            }
        }
    }
}

/// Value of [`Difference::part`] for the deletion of the whole Node.
const DELETION: &str = "the object";

fn difference(action: &Action) -> Option<(Arc<str>, Difference)> {
    let taint = || format!("spec.taints[{}]", wk::TAINT_SHUTDOWN);
    let (node, part, is, would_be, refusal) = match action {
        Action::Taint(node) => (node, taint(), NONE, "set", "its instance is shut down"),
        Action::Untaint(node) => (node, taint(), "set", NONE, "it is Ready"),
        Action::Delete(node) => {
            (node, DELETION.to_owned(), "there", "deleted", "its instance is gone")
        }
        // Only reported; nothing is written.
        Action::RefuseDeletion { .. } => return None,
    };
    let difference = Difference {
        kind: ObjectKind::Node,
        object: node.name.to_string(),
        part,
        controller: CLOUD_NODE_LIFECYCLE,
        current: Some(is.to_owned()),
        desired: would_be.to_owned(),
        why: refusal.to_owned(),
    };
    Some((node.name.clone(), difference))
}

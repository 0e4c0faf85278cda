//! Which nodes the node-lifecycle controller would taint or delete.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    NodeLifecycleController,
    plan::{Action, Seen, Tracker},
};
use crate::{
    config::controllers::CLOUD_NODE_LIFECYCLE,
    k8s::{NodeView, well_known as wk},
    provider::{CloudError, NodeClaim, Presence},
    runtime::shadow::{Difference, Findings, Kind, NONE, Preview, Uncompared},
};

/// The controller as a shadow: it asks and proves as ever.
struct LifecyclePreview {
    controller: NodeLifecycleController,
    tracker: Tracker,
    began: Instant,
    turn: usize,
    next: Instant,
    /// Nodes that were looked at in the last pass.
    nodes: usize,
    /// What the last answer about each node led to, if anything, and when it came.
    standing: HashMap<Arc<str>, (Difference, Instant)>,
    /// Nodes about which the last question was not answered.
    unanswered: BTreeMap<Arc<str>, String>,
}

impl NodeLifecycleController {
    /// Makes a controller that only says what it would do.
    pub(crate) fn preview(self) -> Box<dyn Preview> {
        let (tracker, now) = (Tracker::new(self.config.period, self.safety()), Instant::now());
        let (standing, unanswered) = (HashMap::new(), BTreeMap::new());
        let controller = self;
        Box::new(LifecyclePreview {
            controller,
            tracker,
            began: now,
            turn: 0,
            next: now,
            nodes: 0,
            standing,
            unanswered,
        })
    }
}

#[async_trait]
impl Preview for LifecyclePreview {
    async fn look(&mut self, now: Instant) -> Findings {
        if self.next <= now {
            self.pass(now).await;
            self.turn += 1;
            self.next = now + self.controller.config.period;
        }
        let uncompared = |(name, why): (&Arc<str>, &String)| {
            let (object, why) = (name.to_string(), why.clone());
            (Uncompared { kind: Kind::Node, object, controller: CLOUD_NODE_LIFECYCLE, why }, now)
        };
        let proved = |name: &str| self.standing.get(name).is_some_and(|(found, _)| found.part == DELETION);
        let doubted = self.tracker.doubted().filter(|name| !proved(name));
        Findings {
            compared: vec![("nodes", self.nodes)],
            differences: self.standing.values().cloned().collect(),
            uncompared: self.unanswered.iter().map(uncompared).collect(),
            open: doubted.map(|name| (Kind::Node, name.to_string())).collect(),
        }
    }
}

impl LifecyclePreview {
    async fn pass(&mut self, now: Instant) {
        let cx = &self.controller.cx;
        let mut ours = cx.nodes.list();
        ours.retain(|node| cx.provider.claims_node(node) == NodeClaim::Ours);
        self.nodes = ours.len();
        let elapsed = || self.began.elapsed();
        let (questions, mut actions) = self.tracker.questions(&ours, elapsed());
        let answers = self.controller.ask(&questions.ordinary).await;
        for (node, answer) in questions.ordinary.iter().zip(&answers) {
            actions.extend(self.tracker.ordinary(node, Seen::of(answer), elapsed()));
        }
        let mut answered: Vec<_> = questions.ordinary.iter().cloned().zip(answers).collect();
        for suspects in questions.confirm.chunks(self.controller.confirm_size()) {
            let (judged, answers) = self.controller.confirm(&ours, suspects, self.turn).await;
            let wall = self.controller.cx.clock.now();
            for (node, seen, evidence) in judged {
                actions.extend(self.tracker.confirm(&node, seen, &evidence, elapsed(), wall));
            }
            answered.extend(suspects.iter().cloned().zip(answers));
        }
        self.keep_standing(&ours);
        self.take(&answered);
        self.standing.extend(actions.iter().filter_map(difference).map(|(node, found)| (node, (found, now))));
    }

    /// Forgets what was said of nodes that are not any more what it was said of.
    fn keep_standing(&mut self, ours: &[Arc<NodeView>]) {
        let nodes: HashMap<&str, &Arc<NodeView>> = ours.iter().map(|node| (&*node.name, node)).collect();
        let is_suspect = |name: &str| nodes.get(name).is_some_and(|node| !node.is_ready() && !node.deleting);
        self.unanswered.retain(|name, _| is_suspect(name));
        self.standing.retain(|name, (found, _)| {
            let tainted = nodes.get(&**name).is_some_and(|node| node.has_shutdown_taint());
            is_suspect(name) && (found.part == DELETION || !tainted)
        });
    }

    /// What was said before is outdated by an answer, whatever it is.
    fn take(&mut self, answered: &[(Arc<NodeView>, Result<Presence, CloudError>)]) {
        for (node, answer) in answered {
            match answer {
                Ok(_) => {
                    self.unanswered.remove(&node.name);
                    self.standing.remove(&node.name);
                }
                Err(error) => drop(self.unanswered.insert(node.name.clone(), error.chain())),
            }
        }
    }
}

/// The part of a Node that is the Node.
const DELETION: &str = "the object";

fn difference(action: &Action) -> Option<(Arc<str>, Difference)> {
    let taint = || format!("spec.taints[{}]", wk::TAINT_SHUTDOWN);
    let (node, part, is, would_be, why) = match action {
        Action::Taint(node) => (node, taint(), NONE, "set", "its instance is shut down"),
        Action::Untaint(node) => (node, taint(), "set", NONE, "it is Ready"),
        Action::Delete(node) => (node, DELETION.to_owned(), "there", "deleted", "its instance is gone"),
        // Told, and nothing written.
        Action::Refuse { .. } => return None,
    };
    let difference = Difference {
        kind: Kind::Node,
        object: node.name.to_string(),
        part,
        controller: CLOUD_NODE_LIFECYCLE,
        is: Some(is.to_owned()),
        would_be: would_be.to_owned(),
        why: why.to_owned(),
    };
    Some((node.name.clone(), difference))
}

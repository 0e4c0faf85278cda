//! The defects of the active manager, as far as they show in the cluster and in the cloud. Pure
//! functions.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    controllers::orphans::Orphan,
    k8s::NodeView,
    provider::Owner,
    runtime::shadow::{Difference, ManagerDefect, ObjectKind, PossibleDefect},
};

/// The time after which the active manager should have finished a Node, a Service or the deletion of
/// one. Each takes a manager seconds, and a cloud minutes.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A defect of the active manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FoundDefect {
    /// Its kind.
    pub defect: ManagerDefect,
    /// The object that has it: a Node, a Service, a route or an object in the cloud.
    pub object: String,
    /// What was seen.
    pub evidence: String,
    /// What follows from it.
    pub meaning: &'static str,
    /// What this manager would do about it, or what an operator can do.
    pub remedy: &'static str,
}

impl FoundDefect {
    fn new(defect: ManagerDefect, object: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self {
            defect,
            object: object.into(),
            evidence: evidence.into(),
            meaning: meaning(defect),
            remedy: remedy(defect),
        }
    }
}

/// What follows from a defect.
fn meaning(defect: ManagerDefect) -> &'static str {
    match defect {
        ManagerDefect::ServiceWithoutAddress => "clients cannot reach the Service",
        ManagerDefect::DeletionUnfinished => {
            "the Service and its load balancer stay, and cost money"
        }
        ManagerDefect::OrphanedObject => {
            "no Service or Node of this cluster asks for it; if it is no other cluster's, it only costs money"
        }
        ManagerDefect::NodeWithoutRoute => "pods on other nodes cannot reach those of this node",
        ManagerDefect::StaleRoute => "it takes room in the route table",
        ManagerDefect::NodeUninitialized => "no pods are scheduled on the node",
        ManagerDefect::NodeOfDeletedInstance => {
            "its pods are not deleted, and do not start elsewhere"
        }
        ManagerDefect::OutdatedAddresses => {
            "the API server and users reach for wrong addresses, until a manager corrects them"
        }
    }
}

/// What this manager would do about a defect.
fn remedy(defect: ManagerDefect) -> &'static str {
    match defect {
        ManagerDefect::ServiceWithoutAddress
        | ManagerDefect::DeletionUnfinished
        | ManagerDefect::NodeWithoutRoute
        | ManagerDefect::StaleRoute
        | ManagerDefect::NodeOfDeletedInstance => {
            "this manager corrects it once it leads: see the changes"
        }
        ManagerDefect::OutdatedAddresses => {
            "compare again after --node-status-update-frequency: if it is still there, the active manager does not correct it"
        }
        ManagerDefect::OrphanedObject => {
            "make sure that no other cluster has this cluster ID, and look at the object; then the subcommand orphans deletes it"
        }
        ManagerDefect::NodeUninitialized => {
            "this manager initialises it if the cloud finds its instance: see the changes, and what was not compared"
        }
    }
}

/// Collects the defects that the differences show, if they have lasted for long enough.
pub(crate) fn of_differences(differences: &[Difference], now: Timestamp) -> Vec<FoundDefect> {
    let possible: Vec<(PossibleDefect, &Difference)> = differences
        .iter()
        .filter_map(|difference| Some((difference.defect?, difference)))
        .collect();
    let gone: BTreeSet<&str> = possible
        .iter()
        .filter(|(possible, _)| possible.defect == ManagerDefect::NodeOfDeletedInstance)
        .map(|(_, difference)| &*difference.object)
        .collect();
    let mut found = Vec::new();
    for (PossibleDefect { defect, since }, difference) in possible {
        if since.is_some_and(|since| !is_old(since, now)) {
            continue;
        }
        // No route can lead to an instance that is gone.
        if defect == ManagerDefect::NodeWithoutRoute && gone.contains(&*difference.desired) {
            continue;
        }
        found.push(FoundDefect::new(defect, title(difference), evidence(difference)));
    }
    found
}

fn title(difference: &Difference) -> String {
    let kind = match difference.kind {
        ObjectKind::Node => "Node",
        ObjectKind::Route => "Route",
        ObjectKind::Service => "Service",
    };
    format!("{kind} {}", difference.object)
}

fn evidence(difference: &Difference) -> String {
    let Difference { part, current, desired, why, .. } = difference;
    match current {
        Some(current) => format!("{part}: {current}, should be {desired}: {why}"),
        None => format!("{part}: {desired}: {why}"),
    }
}

/// Collects the Nodes that have been waiting for their initialisation for a long time.
pub(crate) fn of_nodes(nodes: &[Arc<NodeView>], now: Timestamp) -> Vec<FoundDefect> {
    let waiting = |node: &&Arc<NodeView>| node.is_uninitialized() && is_old(node.created, now);
    let describe = |node: &Arc<NodeView>| {
        let evidence = format!("has the uninitialized taint, and exists since {}", node.created);
        let object = format!("Node {}", node.name);
        FoundDefect::new(ManagerDefect::NodeUninitialized, object, evidence)
    };
    nodes.iter().filter(waiting).map(describe).collect()
}

/// Collects orphans.
pub(crate) fn of_orphans(orphans: &[Orphan]) -> Vec<FoundDefect> {
    let describe = |orphan: &Orphan| {
        let owner = match &orphan.object.owner {
            Owner::Cluster => "the cluster".to_owned(),
            Owner::Service { namespace, name, .. } => format!("Service {namespace}/{name}"),
            Owner::Node { name } => format!("Node {name}"),
        };
        let created = match orphan.object.created {
            Some(created) => format!(", created {created}"),
            None => String::new(),
        };
        let evidence = format!("was created for {owner}{created}: {}", orphan.reason);
        let object = format!("{} {}", orphan.object.kind, orphan.object.id);
        FoundDefect::new(ManagerDefect::OrphanedObject, object, evidence)
    };
    orphans.iter().map(describe).collect()
}

/// Returns true if a time is long ago. One in the future, by another clock, is not.
fn is_old(since: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(since)).is_ok_and(|age| age >= LONG)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::{
        controllers::orphans::OrphanReason,
        k8s::{Taint, TaintEffect, well_known},
        provider::OwnedObject,
    };

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn before(seconds: i64) -> Timestamp {
        NOW - SignedDuration::from_secs(seconds)
    }

    fn difference(defect: Option<(ManagerDefect, Option<Timestamp>)>) -> Difference {
        Difference {
            kind: ObjectKind::Route,
            object: "10.244.1.0/24".to_owned(),
            part: "target".to_owned(),
            controller: "node-route-controller",
            current: Some("none".to_owned()),
            desired: "n1".to_owned(),
            why: "it is missing".to_owned(),
            defect: defect.map(|(defect, since)| PossibleDefect { defect, since }),
        }
    }

    #[test]
    fn only_differences_that_are_defects_are_named() {
        let missing = difference(Some((ManagerDefect::NodeWithoutRoute, None)));
        let found = of_differences(&[difference(None), missing], NOW);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].object, "Route 10.244.1.0/24");
        assert_eq!(found[0].evidence, "target: none, should be n1: it is missing");
    }

    #[test]
    fn work_in_progress_is_no_defect() {
        for defect in [
            ManagerDefect::ServiceWithoutAddress,
            ManagerDefect::DeletionUnfinished,
            ManagerDefect::NodeWithoutRoute,
        ] {
            for (age, is_defect) in [(599, false), (600, true)] {
                let difference = difference(Some((defect, Some(before(age)))));
                let found = of_differences(&[difference], NOW);
                assert_eq!(!found.is_empty(), is_defect, "{defect:?} {age}");
            }
        }
    }

    #[test]
    fn a_node_whose_instance_is_gone_needs_no_route() {
        let route = difference(Some((ManagerDefect::NodeWithoutRoute, None)));
        let gone = |name: &str| Difference {
            kind: ObjectKind::Node,
            object: name.to_owned(),
            ..difference(Some((ManagerDefect::NodeOfDeletedInstance, None)))
        };
        for (name, count) in [("n1", 1), ("n2", 2)] {
            assert_eq!(of_differences(&[route.clone(), gone(name)], NOW).len(), count, "{name}");
        }
    }

    #[test]
    fn a_node_may_be_uninitialized_for_a_while() {
        for (age, taint, is_defect) in [
            (599, well_known::TAINT_UNINITIALIZED, false),
            (600, well_known::TAINT_UNINITIALIZED, true),
            (-600, well_known::TAINT_UNINITIALIZED, false),
            (600, "other", false),
        ] {
            let mut node = NodeView::named("n1");
            node.created = before(age);
            let effect = TaintEffect::NoSchedule;
            node.taints = [Taint { key: taint.into(), value: "".into(), effect }].into();
            let found = of_nodes(&[node.into()], NOW);
            assert_eq!(!found.is_empty(), is_defect, "{age} {taint}");
        }
    }

    #[test]
    fn orphans_are_named_with_what_they_were_created_for() {
        let owner = Owner::Service { namespace: "shop".into(), name: "old".into(), uid: None };
        let object = OwnedObject {
            kind: "load balancer".into(),
            id: "lb-1".into(),
            owner,
            created: Some(Timestamp::UNIX_EPOCH),
        };
        let found = of_orphans(&[Orphan { object, reason: OrphanReason::NoService }]);
        assert_eq!(found[0].object, "load balancer lb-1");
        assert_eq!(
            found[0].evidence,
            "was created for Service shop/old, created 1970-01-01T00:00:00Z: no Service asks for it"
        );
    }
}

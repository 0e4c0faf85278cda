//! Which nodes have to be tagged or untagged, and what follows from AWS' answer. Pure.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use ccm_core::k8s::NodeView;
use md5::{Digest, Md5};

use crate::{
    api::{InstanceId, Tags},
    provider_id::ProviderId,
};

/// Label of a node whose instance has the tags: a checksum of them.
pub const LABEL: &str = "k8s.io/cloud-provider-aws";
/// How long after a node's creation its instance may be unknown to the tagging API.
const YOUNG: Duration = Duration::from_secs(5 * 60);
/// How often a failed item is tried again.
const MOST_RETRIES: u32 = 9;

/// Checksum of tags, as upstream makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checksum(Box<str>);

impl Checksum {
    pub(super) fn of(tags: &Tags) -> Self {
        let mut pairs: Vec<String> = tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.sort();
        let digest: [u8; 16] = Md5::digest(pairs.join(",")).into();
        Self(format!("{:032x}", u128::from_be_bytes(digest)).into())
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is to be done with a node's instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    Tag,
    Untag,
}

/// One thing to do. Equal ones are in line once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Item {
    pub(super) verb: Verb,
    pub(super) node: Arc<str>,
    pub(super) provider_id: Option<Arc<str>>,
}

/// The nodes as they were when they were last looked at.
#[derive(Debug, Default)]
pub(super) struct Seen(HashMap<Arc<str>, Known>);

#[derive(Debug, PartialEq)]
struct Known {
    provider_id: Option<Arc<str>>,
    resource_version: Box<str>,
}

impl Seen {
    /// Compares with the nodes as they are now: those that are new or changed and lack the label are to be tagged, the
    /// instances of those that are gone are to be untagged. A node that came back for the same instance was not gone.
    pub(super) fn look(&mut self, nodes: &[Arc<NodeView>], checksum: &Checksum) -> Vec<Item> {
        let mut items = Vec::new();
        let mut now = HashMap::with_capacity(nodes.len());
        for node in nodes {
            let known =
                Known { provider_id: node.provider_id.clone(), resource_version: node.resource_version.clone() };
            if self.0.get(&node.name) != Some(&known) && lacks(node, checksum) {
                items.push(Item::new(Verb::Tag, &node.name, node.provider_id.as_ref()));
            }
            now.insert(node.name.clone(), known);
        }
        let is_other = |name: &str, old: &Known| {
            now.get(name).is_none_or(|new: &Known| old.provider_id.is_some() && new.provider_id != old.provider_id)
        };
        let gone = self.0.iter().filter(|(name, old)| is_other(name, old));
        items.extend(gone.map(|(name, old)| Item::new(Verb::Untag, name, old.provider_id.as_ref())));
        items.sort_by(|a, b| a.node.cmp(&b.node));
        self.0 = now;
        items
    }
}

impl Item {
    pub(super) fn new(verb: Verb, node: &Arc<str>, provider_id: Option<&Arc<str>>) -> Self {
        Self { verb, node: node.clone(), provider_id: provider_id.cloned() }
    }

    /// Returns the instance that the provider ID names.
    pub(super) fn instance(&self) -> Option<InstanceId> {
        self.provider_id.as_deref().and_then(|id| ProviderId::parse(id).ok()?.instance_id().cloned())
    }
}

/// Tells whether a node's label does not say that its instance has the tags.
pub(super) fn lacks(node: &NodeView, checksum: &Checksum) -> bool {
    node.labels.get(LABEL) != Some(&checksum.0)
}

/// Tells whether it would be the first time that the node's instance is tagged.
pub(super) fn is_first(node: &NodeView) -> bool {
    !node.labels.contains(LABEL)
}

/// What to do about an item, now that it is its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Do(InstanceId),
    /// Nothing, and why.
    Skip(&'static str),
}

/// Decides what to do about an item. `node` is the node of its name now; `nodes` are all.
pub(super) fn turn(item: &Item, node: Option<&NodeView>, nodes: &[Arc<NodeView>], checksum: &Checksum) -> Turn {
    let provider_id = match (item.verb, node) {
        (Verb::Tag, None) => return Turn::Skip("the node is gone"),
        (Verb::Tag, Some(node)) if !lacks(node, checksum) => return Turn::Skip("it was tagged earlier"),
        (Verb::Tag, Some(node)) => node.provider_id.as_deref(),
        (Verb::Untag, _) => item.provider_id.as_deref(),
    };
    let id = match provider_id.map(ProviderId::parse) {
        Some(Ok(ProviderId::Instance { id, .. })) => id,
        Some(Ok(ProviderId::Fargate { .. })) => return Turn::Skip("it is a fargate node"),
        Some(Err(_)) => return Turn::Skip("its provider ID names no instance"),
        // A change of the node brings it back.
        None => return Turn::Skip("it has no provider ID"),
    };
    let is_same = |node: &Arc<NodeView>| {
        ProviderId::of(node).ok().flatten().and_then(|known| known.instance_id().cloned()).as_ref() == Some(&id)
    };
    if item.verb == Verb::Untag && nodes.iter().any(is_same) {
        return Turn::Skip("a node has the instance again");
    }
    Turn::Do(id)
}

/// What AWS says about an instance that it does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is none, or it is too new to be known.
    NotFound,
    /// There can be none with this ID, as that of a simulated node.
    InvalidId,
}

impl Refusal {
    pub(super) fn of(code: &str) -> Option<Self> {
        match code {
            "InvalidInstanceID.NotFound" => Some(Self::NotFound),
            "InvalidID" | "InvalidInstanceID.Malformed" => Some(Self::InvalidId),
            _ => None,
        }
    }
}

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nothing: it will never succeed, or need not.
    Skip(&'static str),
    /// It is tried again.
    Retry,
    /// It was tried often enough.
    GiveUp,
}

/// Decides what follows from a failure. `age` is the node's, for tagging; `failures` counts this one.
pub(super) fn after_failure(verb: Verb, refusal: Option<Refusal>, age: Duration, failures: u32) -> Failure {
    match (verb, refusal) {
        (Verb::Untag, Some(Refusal::NotFound)) => Failure::Skip("the instance is gone"),
        (_, Some(Refusal::InvalidId)) => Failure::Skip("the instance has an invalid ID"),
        (Verb::Tag, Some(Refusal::NotFound)) if age >= YOUNG => Failure::Skip("the instance does not exist"),
        _ if failures > MOST_RETRIES => Failure::GiveUp,
        _ => Failure::Retry,
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_map, prelude::*, sample::select};

    use super::*;

    const NEW: &str = "c812faa65d1d5e5aefa6b069b3da39df";
    const OLD: &str = "9767c4972ba72e87ab553bad2afde741";

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    fn checksum() -> Checksum {
        Checksum::of(&tags(&[("key2", "value2"), ("key1", "value1")]))
    }

    fn node(name: &str, id: &str, label: &str, version: &str) -> Arc<NodeView> {
        let labels: &[(&str, &str)] =
            if label.is_empty() { &[("some-other-label", "value")] } else { &[(LABEL, label)] };
        Arc::new(NodeView {
            provider_id: (!id.is_empty()).then(|| id.into()),
            labels: labels.iter().copied().collect(),
            resource_version: version.into(),
            ..NodeView::named(name)
        })
    }

    fn item(verb: Verb, name: &str, id: &str) -> Item {
        Item { verb, node: name.into(), provider_id: (!id.is_empty()).then(|| id.into()) }
    }

    #[test]
    fn checksums_are_those_of_upstream() {
        assert_eq!(Checksum::of(&tags(&[("key1", "value1")])).to_string(), OLD);
        assert_eq!(checksum().to_string(), NEW);
    }

    // TC2
    #[test]
    fn a_node_without_the_label_was_never_tagged() {
        assert!(is_first(&NodeView::named("n")));
        assert!(is_first(&node("n", "i-1", "", "1")));
        assert!(!is_first(&node("n", "i-1", OLD, "1")));
    }

    // TC1
    #[test]
    fn nodes_are_tagged_once_until_they_change_and_untagged_when_they_are_gone() {
        let mut seen = Seen::default();
        let look = |seen: &mut Seen, nodes: &[Arc<NodeView>]| seen.look(nodes, &checksum());
        let first = [node("new", "i-1", "", "1"), node("old", "i-2", OLD, "1"), node("done", "i-3", NEW, "1")];
        let both = [item(Verb::Tag, "new", "i-1"), item(Verb::Tag, "old", "i-2")];
        assert_eq!(look(&mut seen, &first), both);
        assert_eq!(look(&mut seen, &first), []);
        let changed = [node("new", "i-1", "", "2"), node("old", "i-2", NEW, "2"), node("done", "i-3", NEW, "2")];
        assert_eq!(look(&mut seen, &changed), [item(Verb::Tag, "new", "i-1")]);
        assert_eq!(look(&mut seen, &changed[..2]), [item(Verb::Untag, "done", "i-3")]);
    }

    #[test]
    fn a_name_that_moves_to_another_instance_frees_the_first_one() {
        let mut seen = Seen::default();
        seen.look(&[node("n", "", "", "1")], &checksum());
        assert_eq!(seen.look(&[node("n", "i-1", NEW, "2")], &checksum()), []);
        let items = seen.look(&[node("n", "i-2", "", "3")], &checksum());
        assert_eq!(items, [item(Verb::Tag, "n", "i-2"), item(Verb::Untag, "n", "i-1")]);
    }

    // TC1
    #[test]
    fn whose_turn_it_is_is_looked_at_again() {
        let fargate = "aws:///us-west-2a/2ea696a557-9e55466d21eb4f83a99a9aa396bbd134/fargate-ip-10-0-55-27.us-west-2.compute.internal";
        let cases = [
            (Verb::Tag, "i-1", Some(node("n", "i-1", "", "1")), Turn::Do("i-1".into())),
            (Verb::Tag, "i-1", Some(node("n", "aws:///us-west-2a/i-2", OLD, "1")), Turn::Do("i-2".into())),
            (Verb::Tag, "i-1", Some(node("n", "i-1", NEW, "1")), Turn::Skip("it was tagged earlier")),
            (Verb::Tag, "i-1", None, Turn::Skip("the node is gone")),
            (Verb::Tag, "", Some(node("n", "", "", "1")), Turn::Skip("it has no provider ID")),
            (Verb::Tag, fargate, Some(node("n", fargate, "", "1")), Turn::Skip("it is a fargate node")),
            (
                Verb::Tag,
                "gce://x",
                Some(node("n", "gce://x", "", "1")),
                Turn::Skip("its provider ID names no instance"),
            ),
            (Verb::Untag, "i-1", None, Turn::Do("i-1".into())),
            (Verb::Untag, "i-1", Some(node("n", "i-2", "", "1")), Turn::Do("i-1".into())),
            (Verb::Untag, "i-1", Some(node("n", "aws:///a/i-1", "", "1")), Turn::Skip("a node has the instance again")),
            (Verb::Untag, fargate, None, Turn::Skip("it is a fargate node")),
        ];
        for (verb, id, node, expected) in cases {
            let nodes: Vec<_> = node.iter().cloned().collect();
            let turn = turn(&item(verb, "n", id), node.as_deref(), &nodes, &checksum());
            assert_eq!(turn, expected, "{verb:?} {id}");
        }
    }

    // TC1
    #[test]
    fn failures_are_retried_nine_times_unless_it_is_no_use() {
        let (young, old) = (Duration::from_secs(10), Duration::from_secs(300));
        let gone = Some(Refusal::NotFound);
        let invalid = Some(Refusal::InvalidId);
        let cases = [
            (Verb::Tag, None, old, 9, Failure::Retry),
            (Verb::Tag, None, old, 10, Failure::GiveUp),
            (Verb::Untag, None, old, 9, Failure::Retry),
            (Verb::Untag, None, old, 10, Failure::GiveUp),
            (Verb::Tag, gone, young, 3, Failure::Retry),
            (Verb::Tag, gone, young, 10, Failure::GiveUp),
            (Verb::Tag, gone, old, 1, Failure::Skip("the instance does not exist")),
            (Verb::Untag, gone, young, 1, Failure::Skip("the instance is gone")),
            (Verb::Tag, invalid, young, 1, Failure::Skip("the instance has an invalid ID")),
            (Verb::Untag, invalid, old, 1, Failure::Skip("the instance has an invalid ID")),
        ];
        for (verb, refusal, age, failures, expected) in cases {
            assert_eq!(after_failure(verb, refusal, age, failures), expected, "{verb:?} {refusal:?} {failures}");
        }
        assert_eq!(Refusal::of("InvalidInstanceID.NotFound"), gone);
        assert_eq!(Refusal::of("InvalidID"), invalid);
        assert_eq!(Refusal::of("RequestLimitExceeded"), None);
    }

    fn any_nodes() -> impl Strategy<Value = Vec<Arc<NodeView>>> {
        let ids = vec!["", "aws:///a/i-1", "aws:///a/i-2", "i-3", "gce://x/i-1", "aws:///a/x/fargate-1"];
        let one = (select(ids), select(vec!["", OLD, NEW]), select(vec!["1", "2"]));
        btree_map(select(vec!["a", "b", "c", "d"]), one, 0..5).prop_map(|nodes| {
            nodes.into_iter().map(|(name, (id, label, version))| node(name, id, label, version)).collect()
        })
    }

    proptest! {
        #[test]
        fn what_was_looked_at_is_not_looked_at_again_in_whatever_order(before in any_nodes(), after in any_nodes(), by in 0..5_usize) {
            let look = |turned: bool| {
                let turn = |nodes: &[Arc<NodeView>]| {
                    let mut nodes = nodes.to_vec();
                    if turned && !nodes.is_empty() {
                        let by = by % nodes.len();
                        nodes.rotate_left(by);
                    }
                    nodes
                };
                let mut seen = Seen::default();
                let first = seen.look(&turn(&before), &checksum());
                let second = seen.look(&turn(&after), &checksum());
                (first, second, seen.look(&turn(&after), &checksum()))
            };
            let (_, _, again) = look(false);
            prop_assert_eq!(again, []);
            prop_assert_eq!(look(false), look(true));
        }

        #[test]
        fn no_other_clouds_instance_and_none_that_a_node_has_is_touched(before in any_nodes(), after in any_nodes()) {
            let mut seen = Seen::default();
            let mut items = seen.look(&before, &checksum());
            items.extend(seen.look(&after, &checksum()));
            for item in items {
                let node = after.iter().find(|node| node.name == item.node);
                let Turn::Do(id) = turn(&item, node.map(|node| &**node), &after, &checksum()) else { continue };
                let has = |node: &&Arc<NodeView>| node.provider_id.as_deref().is_some_and(|known| known.ends_with(&*id));
                let holder = after.iter().find(|node| has(node) && !node.provider_id.as_deref().unwrap().contains("gce"));
                prop_assert_eq!(holder.is_some(), item.verb == Verb::Tag, "{:?} {:?}", item, id);
                let named = before.iter().chain(&after).filter(has).any(|node| {
                    node.provider_id.as_deref().is_some_and(|known| !known.contains("://") || known.starts_with("aws://"))
                });
                prop_assert!(named, "{:?} is of no node of ours", id);
            }
        }
    }
}

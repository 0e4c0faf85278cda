//! Determines which instances to tag or untag, and whether to retry after an error. Pure functions.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use ccm_core::k8s::NodeView;
use md5::{Digest, Md5};

use crate::{
    api::{InstanceId, Tags},
    provider_id::{ProviderId, instance_of},
};

/// Label of a node whose instance has the tags. Its value is the checksum of the tags.
pub const LABEL: &str = "k8s.io/cloud-provider-aws";
/// Age below which a node is new, so that AWS may not know its instance yet.
const MAX_NEW_NODE_AGE: Duration = Duration::from_secs(5 * 60);
/// Maximum number of retries of a failed item.
const MAX_RETRIES: u32 = 9;

/// Checksum of tags, as upstream computes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checksum(Box<str>);

impl Checksum {
    pub(super) fn for_tags(tags: &Tags) -> Self {
        let mut pairs: Vec<String> = tags
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
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

/// Change of the tags of a node's instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TagOperation {
    Tag,
    Untag,
}

/// A work item. The queue contains equal items only once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Item {
    pub(super) operation: TagOperation,
    pub(super) node: Arc<str>,
    pub(super) provider_id: Option<Arc<str>>,
}

/// Nodes at the time of the last comparison, by name.
#[derive(Debug, Default)]
pub(super) struct NodeSnapshot(HashMap<Arc<str>, NodeRecord>);

#[derive(Debug, PartialEq)]
struct NodeRecord {
    provider_id: Option<Arc<str>>,
    resource_version: Box<str>,
}

impl NodeSnapshot {
    /// Compares the snapshot with the current nodes, replaces it, and returns the work items.
    ///
    /// New or changed nodes that lack the label are tagged, and the instances of deleted nodes are
    /// untagged. A node that was recreated for the same instance does not count as deleted.
    pub(super) fn update(&mut self, nodes: &[Arc<NodeView>], checksum: &Checksum) -> Vec<Item> {
        let mut items = Vec::new();
        let mut current = HashMap::with_capacity(nodes.len());
        for node in nodes {
            let record = NodeRecord {
                provider_id: node.provider_id.clone(),
                resource_version: node.resource_version.clone(),
            };
            if self.0.get(&node.name) != Some(&record) && needs_tagging(node, checksum) {
                items.push(Item::new(TagOperation::Tag, &node.name, node.provider_id.as_ref()));
            }
            current.insert(node.name.clone(), record);
        }
        for (name, old) in &self.0 {
            if old.has_lost_instance(current.get(name)) {
                items.push(Item::new(TagOperation::Untag, name, old.provider_id.as_ref()));
            }
        }
        items.sort_by(|a, b| a.node.cmp(&b.node));
        self.0 = current;
        items
    }
}

impl NodeRecord {
    /// Returns true if the node of this record was deleted, or has another instance now.
    fn has_lost_instance(&self, current: Option<&Self>) -> bool {
        match current {
            Some(current) => self.provider_id.is_some() && current.provider_id != self.provider_id,
            None => true,
        }
    }
}

impl Item {
    pub(super) fn new(
        operation: TagOperation,
        node: &Arc<str>,
        provider_id: Option<&Arc<str>>,
    ) -> Self {
        Self {
            operation,
            node: node.clone(),
            provider_id: provider_id.cloned(),
        }
    }

    /// Returns the instance ID in the provider ID.
    pub(super) fn instance(&self) -> Option<InstanceId> {
        let provider_id = self.provider_id.as_deref()?;
        ProviderId::parse(provider_id).ok()?.instance_id().cloned()
    }
}

/// Returns true if the node's label is missing or differs from the checksum of the tags.
pub(super) fn needs_tagging(node: &NodeView, checksum: &Checksum) -> bool {
    node.labels.get(LABEL) != Some(&checksum.0)
}

/// Returns true if the node's instance was never tagged.
pub(super) fn was_never_tagged(node: &NodeView) -> bool {
    !node.labels.contains(LABEL)
}

/// Action for an item of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ItemAction {
    /// Send a request for this instance.
    Process(InstanceId),
    /// Send no request, for this reason.
    Skip(&'static str),
}

/// Determines the action for an item. `node` is the current node of that name, and `nodes` are all
/// current nodes.
pub(super) fn plan_item(
    item: &Item,
    node: Option<&NodeView>,
    nodes: &[Arc<NodeView>],
    checksum: &Checksum,
) -> ItemAction {
    let provider_id = match item.operation {
        TagOperation::Tag => {
            let Some(node) = node else {
                return ItemAction::Skip("the node was deleted");
            };
            if !needs_tagging(node, checksum) {
                return ItemAction::Skip("the instance is already tagged");
            }
            node.provider_id.as_deref()
        }
        TagOperation::Untag => item.provider_id.as_deref(),
    };
    let id = match provider_id.map(ProviderId::parse) {
        Some(Ok(ProviderId::Instance { id, .. })) => id,
        Some(Ok(ProviderId::Fargate { .. })) => return ItemAction::Skip("it is a Fargate node"),
        Some(Err(_)) => return ItemAction::Skip("the provider ID does not name an instance"),
        // The node is queued again when it gets a provider ID.
        None => return ItemAction::Skip("the node has no provider ID"),
    };
    if item.operation == TagOperation::Untag {
        let has_node = nodes
            .iter()
            .any(|node| instance_of(node).as_ref() == Some(&id));
        if has_node {
            return ItemAction::Skip("a node has the instance again");
        }
    }
    ItemAction::Process(id)
}

/// Kind of AWS' rejection of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RejectionKind {
    /// The instance does not exist, or is so new that AWS does not know it yet.
    NotFound,
    /// No instance can have this ID, which may be that of a simulated node.
    InvalidId,
}

impl RejectionKind {
    pub(super) fn from_code(code: &str) -> Option<Self> {
        match code {
            "InvalidInstanceID.NotFound" => Some(Self::NotFound),
            "InvalidID" | "InvalidInstanceID.Malformed" => Some(Self::InvalidId),
            _ => None,
        }
    }
}

/// Action after the failure of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryAction {
    /// Drop the item for this reason: it can never succeed, or is not necessary.
    Drop(&'static str),
    /// Retry the item after a delay.
    Retry,
    /// Drop the item, because it failed too often.
    GiveUp,
}

/// Determines the action after a failure. `age` is the node's age, and `failures` includes this
/// failure.
pub(super) fn plan_retry(
    operation: TagOperation,
    rejection: Option<RejectionKind>,
    age: Duration,
    failures: u32,
) -> RetryAction {
    match rejection {
        Some(RejectionKind::InvalidId) => {
            return RetryAction::Drop("the instance has an invalid ID");
        }
        Some(RejectionKind::NotFound) if operation == TagOperation::Untag => {
            return RetryAction::Drop("the instance was deleted");
        }
        Some(RejectionKind::NotFound) if age >= MAX_NEW_NODE_AGE => {
            return RetryAction::Drop("the instance does not exist");
        }
        Some(RejectionKind::NotFound) | None => {}
    }
    if failures > MAX_RETRIES {
        RetryAction::GiveUp
    } else {
        RetryAction::Retry
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_map, prelude::*, sample::select};

    use super::*;

    const NEW: &str = "c812faa65d1d5e5aefa6b069b3da39df";
    const OLD: &str = "9767c4972ba72e87ab553bad2afde741";

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        pairs
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect()
    }

    fn checksum() -> Checksum {
        Checksum::for_tags(&tags(&[("key2", "value2"), ("key1", "value1")]))
    }

    fn node(name: &str, id: &str, label: &str, version: &str) -> Arc<NodeView> {
        let labels: &[(&str, &str)] = if label.is_empty() {
            &[("some-other-label", "value")]
        } else {
            &[(LABEL, label)]
        };
        Arc::new(NodeView {
            provider_id: (!id.is_empty()).then(|| id.into()),
            labels: labels.iter().copied().collect(),
            resource_version: version.into(),
            ..NodeView::named(name)
        })
    }

    fn item(operation: TagOperation, name: &str, id: &str) -> Item {
        Item {
            operation,
            node: name.into(),
            provider_id: (!id.is_empty()).then(|| id.into()),
        }
    }

    #[test]
    fn checksums_are_those_of_upstream() {
        assert_eq!(Checksum::for_tags(&tags(&[("key1", "value1")])).to_string(), OLD);
        assert_eq!(checksum().to_string(), NEW);
    }

    // TC2
    #[test]
    fn a_node_without_the_label_was_never_tagged() {
        assert!(was_never_tagged(&NodeView::named("n")));
        assert!(was_never_tagged(&node("n", "i-1", "", "1")));
        assert!(!was_never_tagged(&node("n", "i-1", OLD, "1")));
    }

    // TC1
    #[test]
    fn nodes_are_tagged_once_until_they_change_and_untagged_when_they_are_gone() {
        let mut snapshot = NodeSnapshot::default();
        let first = [
            node("new", "i-1", "", "1"),
            node("old", "i-2", OLD, "1"),
            node("done", "i-3", NEW, "1"),
        ];
        let both = [item(TagOperation::Tag, "new", "i-1"), item(TagOperation::Tag, "old", "i-2")];
        assert_eq!(snapshot.update(&first, &checksum()), both);
        assert_eq!(snapshot.update(&first, &checksum()), []);
        let changed = [
            node("new", "i-1", "", "2"),
            node("old", "i-2", NEW, "2"),
            node("done", "i-3", NEW, "2"),
        ];
        let retagged = [item(TagOperation::Tag, "new", "i-1")];
        assert_eq!(snapshot.update(&changed, &checksum()), retagged);
        let untagged = [item(TagOperation::Untag, "done", "i-3")];
        assert_eq!(snapshot.update(&changed[..2], &checksum()), untagged);
    }

    #[test]
    fn a_name_that_moves_to_another_instance_frees_the_first_one() {
        let mut snapshot = NodeSnapshot::default();
        snapshot.update(&[node("n", "", "", "1")], &checksum());
        assert_eq!(snapshot.update(&[node("n", "i-1", NEW, "2")], &checksum()), []);
        let items = snapshot.update(&[node("n", "i-2", "", "3")], &checksum());
        assert_eq!(
            items,
            [item(TagOperation::Tag, "n", "i-2"), item(TagOperation::Untag, "n", "i-1")]
        );
    }

    // TC1
    #[test]
    fn an_item_is_checked_again_when_it_is_processed() {
        let fargate = "aws:///us-west-2a/2ea696a557-9e55466d21eb4f83a99a9aa396bbd134/fargate-ip-10-0-55-27.us-west-2.compute.internal";
        let cases = [
            (
                TagOperation::Tag,
                "i-1",
                Some(node("n", "i-1", "", "1")),
                ItemAction::Process("i-1".into()),
            ),
            (
                TagOperation::Tag,
                "i-1",
                Some(node("n", "aws:///us-west-2a/i-2", OLD, "1")),
                ItemAction::Process("i-2".into()),
            ),
            (
                TagOperation::Tag,
                "i-1",
                Some(node("n", "i-1", NEW, "1")),
                ItemAction::Skip("the instance is already tagged"),
            ),
            (TagOperation::Tag, "i-1", None, ItemAction::Skip("the node was deleted")),
            (
                TagOperation::Tag,
                "",
                Some(node("n", "", "", "1")),
                ItemAction::Skip("the node has no provider ID"),
            ),
            (
                TagOperation::Tag,
                fargate,
                Some(node("n", fargate, "", "1")),
                ItemAction::Skip("it is a Fargate node"),
            ),
            (
                TagOperation::Tag,
                "gce://x",
                Some(node("n", "gce://x", "", "1")),
                ItemAction::Skip("the provider ID does not name an instance"),
            ),
            (TagOperation::Untag, "i-1", None, ItemAction::Process("i-1".into())),
            (
                TagOperation::Untag,
                "i-1",
                Some(node("n", "i-2", "", "1")),
                ItemAction::Process("i-1".into()),
            ),
            (
                TagOperation::Untag,
                "i-1",
                Some(node("n", "aws:///a/i-1", "", "1")),
                ItemAction::Skip("a node has the instance again"),
            ),
            (TagOperation::Untag, fargate, None, ItemAction::Skip("it is a Fargate node")),
        ];
        for (operation, id, node, expected) in cases {
            let nodes: Vec<_> = node.iter().cloned().collect();
            let decision =
                plan_item(&item(operation, "n", id), node.as_deref(), &nodes, &checksum());
            assert_eq!(decision, expected, "{operation:?} {id}");
        }
    }

    // TC1
    #[test]
    fn failures_are_retried_nine_times_unless_it_is_no_use() {
        let (young, old) = (Duration::from_secs(10), Duration::from_secs(300));
        let gone = Some(RejectionKind::NotFound);
        let invalid = Some(RejectionKind::InvalidId);
        let cases = [
            (TagOperation::Tag, None, old, 9, RetryAction::Retry),
            (TagOperation::Tag, None, old, 10, RetryAction::GiveUp),
            (TagOperation::Untag, None, old, 9, RetryAction::Retry),
            (TagOperation::Untag, None, old, 10, RetryAction::GiveUp),
            (TagOperation::Tag, gone, young, 3, RetryAction::Retry),
            (TagOperation::Tag, gone, young, 10, RetryAction::GiveUp),
            (TagOperation::Tag, gone, old, 1, RetryAction::Drop("the instance does not exist")),
            (TagOperation::Untag, gone, young, 1, RetryAction::Drop("the instance was deleted")),
            (
                TagOperation::Tag,
                invalid,
                young,
                1,
                RetryAction::Drop("the instance has an invalid ID"),
            ),
            (
                TagOperation::Untag,
                invalid,
                old,
                1,
                RetryAction::Drop("the instance has an invalid ID"),
            ),
        ];
        for (operation, refusal, age, failures, expected) in cases {
            assert_eq!(
                plan_retry(operation, refusal, age, failures),
                expected,
                "{operation:?} {refusal:?} {failures}"
            );
        }
        assert_eq!(RejectionKind::from_code("InvalidInstanceID.NotFound"), gone);
        assert_eq!(RejectionKind::from_code("InvalidID"), invalid);
        assert_eq!(RejectionKind::from_code("RequestLimitExceeded"), None);
    }

    fn any_nodes() -> impl Strategy<Value = Vec<Arc<NodeView>>> {
        let ids =
            vec!["", "aws:///a/i-1", "aws:///a/i-2", "i-3", "gce://x/i-1", "aws:///a/x/fargate-1"];
        let one = (select(ids), select(vec!["", OLD, NEW]), select(vec!["1", "2"]));
        btree_map(select(vec!["a", "b", "c", "d"]), one, 0..5).prop_map(|nodes| {
            nodes
                .into_iter()
                .map(|(name, (id, label, version))| node(name, id, label, version))
                .collect()
        })
    }

    /// Items of the nodes before, of those after, and of those after once more.
    fn three_diffs(before: &[Arc<NodeView>], after: &[Arc<NodeView>]) -> [Vec<Item>; 3] {
        let mut snapshot = NodeSnapshot::default();
        [before, after, after].map(|nodes| snapshot.update(nodes, &checksum()))
    }

    fn rotated(nodes: &[Arc<NodeView>], by: usize) -> Vec<Arc<NodeView>> {
        let mut nodes = nodes.to_vec();
        if !nodes.is_empty() {
            let by = by % nodes.len();
            nodes.rotate_left(by);
        }
        nodes
    }

    proptest! {
        #[test]
        fn unchanged_nodes_give_no_items_and_their_order_does_not_matter(before in any_nodes(), after in any_nodes(), by in 0..5_usize) {
            let [first, second, third] = three_diffs(&before, &after);
            prop_assert_eq!(third, []);
            let [rotated_first, rotated_second, rotated_third] =
                three_diffs(&rotated(&before, by), &rotated(&after, by));
            prop_assert_eq!((first, second), (rotated_first, rotated_second));
            prop_assert_eq!(rotated_third, []);
        }

        #[test]
        fn no_other_clouds_instance_and_none_that_a_node_has_is_touched(before in any_nodes(), after in any_nodes()) {
            let mut snapshot = NodeSnapshot::default();
            let mut items = snapshot.update(&before, &checksum());
            items.extend(snapshot.update(&after, &checksum()));
            for item in items {
                let node = after.iter().find(|node| node.name == item.node);
                let ItemAction::Process(id) = plan_item(&item, node.map(|node| &**node), &after, &checksum()) else { continue };
                let has = |node: &&Arc<NodeView>| node.provider_id.as_deref().is_some_and(|known| known.ends_with(&*id));
                let holder = after.iter().find(|node| has(node) && !node.provider_id.as_deref().unwrap().contains("gce"));
                prop_assert_eq!(holder.is_some(), item.operation == TagOperation::Tag, "{:?} {:?}", item, id);
                let named = before.iter().chain(&after).filter(has).any(|node| {
                    node.provider_id.as_deref().is_some_and(|known| !known.contains("://") || known.starts_with("aws://"))
                });
                prop_assert!(named, "{:?} is of no node of ours", id);
            }
        }
    }
}

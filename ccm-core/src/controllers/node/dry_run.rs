//! The dry run of the cloud-node controller, which finds what it would write to each node.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    NodeController,
    plan::{self, InitializationError, InitializationPlan, NodeChange, addresses::AddressError},
};
use crate::{
    config::controller_names::CLOUD_NODE,
    controllers::node_difference::node_difference,
    error::chain,
    k8s::{NodeAddress, NodeView},
    provider::{
        CloudError, InstanceMetadata, InstanceQuery, InstanceStatus, MetadataScope, PowerState,
    },
    runtime::shadow::{
        CompareSchedule, Difference, DryRun, DryRunFindings, ManagerDefect, NONE, NotCompared,
        ObjectKind,
    },
};

/// The controller in shadow mode.
struct NodeDryRun {
    controller: NodeController,
    /// The nodes as they were compared, and the time of the next comparison of each.
    schedule: CompareSchedule<Arc<NodeView>>,
}

impl NodeController {
    /// Turns the controller into one that only reports what it would write. Nodes with differences
    /// are compared again after `settle`.
    pub(crate) fn dry_run(self, settle: Duration) -> Box<dyn DryRun> {
        let schedule = CompareSchedule::new(settle, self.config.status_update_period);
        Box::new(NodeDryRun { controller: self, schedule })
    }
}

#[async_trait]
impl DryRun for NodeDryRun {
    async fn compare(&mut self, now: Instant) -> DryRunFindings {
        let nodes = self.due_nodes(now);
        let queries = nodes.iter().map(|node| self.query(node)).collect();
        let answers = self.controller.instances.describe_many(queries).await;
        for (node, answer) in nodes.into_iter().zip(answers) {
            self.record_answer(node, answer, now);
        }
        self.schedule.findings("nodes", now)
    }
}

impl NodeDryRun {
    /// Returns the nodes that are due for a comparison, sorted by name.
    fn due_nodes(&mut self, now: Instant) -> Vec<Arc<NodeView>> {
        let controller = &self.controller;
        let mut nodes = controller.ctx.nodes.list();
        nodes.retain(|node| controller.is_ours(node));
        self.schedule.retain(|name| {
            controller
                .ctx
                .nodes
                .get(name)
                .is_some_and(|node| controller.is_ours(&node))
        });
        nodes.retain(|node| {
            self.schedule
                .is_due(&node.name, now, |old| !may_change_plan(old, node))
        });
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        nodes
    }

    fn query(&self, node: &Arc<NodeView>) -> InstanceQuery {
        let refresh = self.controller.config.refresh_additional_labels;
        let scope = if node.is_uninitialized() || refresh {
            MetadataScope::All
        } else {
            MetadataScope::Addresses
        };
        InstanceQuery { node: node.clone(), scope, max_age: Duration::ZERO }
    }

    /// Records what a sync would write to a node.
    fn record_answer(
        &mut self,
        node: Arc<NodeView>,
        answer: Result<InstanceStatus, CloudError>,
        now: Instant,
    ) {
        let name = node.name.clone();
        let comparison = match answer {
            // Without an instance, nothing of the cloud's would be written. The node-lifecycle
            // controller reports that the node would be deleted.
            Ok(
                InstanceStatus::NotFound
                | InstanceStatus::Found { power_state: PowerState::Terminated, .. },
            ) => Ok(Comparison::complete(label_copies(&node))),
            Ok(InstanceStatus::Found { meta, .. }) => {
                compare_node(&node, &meta, self.controller.config.refresh_additional_labels)
            }
            Err(error) => {
                let not_compared = not_compared(&name, error.chain());
                self.schedule
                    .failed(&name, node, now, not_compared, error.retry_after());
                return;
            }
        };
        match comparison {
            Ok(Comparison { differences, address_error: None }) => {
                self.schedule.compared(&name, node, now, differences);
            }
            Ok(Comparison { differences, address_error: Some(error) }) => {
                let not_compared =
                    not_compared(&name, format!("addresses cannot be chosen: {}", chain(&error)));
                self.schedule
                    .partially_compared(&name, node, now, differences, not_compared);
            }
            // The controller would write nothing, but that does not mean that the node is right.
            Err(error) => {
                let not_compared = not_compared(&name, chain(&error));
                self.schedule.failed(&name, node, now, not_compared, None);
            }
        }
    }
}

/// The result of comparing a node.
struct Comparison {
    differences: Vec<Difference>,
    /// The error because of which the addresses were not compared.
    address_error: Option<AddressError>,
}

impl Comparison {
    fn complete(differences: Vec<Difference>) -> Self {
        Self { differences, address_error: None }
    }
}

/// Returns true if an update of the node may change what would be written to it.
fn may_change_plan(old: &NodeView, new: &NodeView) -> bool {
    super::needs_sync_after(old, new) || old.addresses != new.addresses || old.taints != new.taints
}

fn not_compared(node: &str, reason: String) -> NotCompared {
    NotCompared {
        kind: ObjectKind::Node,
        object: node.to_owned(),
        controller: CLOUD_NODE,
        why: reason,
    }
}

/// Compares a node with its instance.
fn compare_node(
    node: &NodeView,
    meta: &InstanceMetadata,
    refresh_labels: bool,
) -> Result<Comparison, InitializationError> {
    // Compare a node that would be initialised with everything that an initialisation writes.
    let mut differences = Vec::new();
    if node.is_uninitialized() {
        let InitializationPlan { addresses, change, .. } = plan::plan_initialization(node, meta)?;
        if let Some(addresses) = addresses {
            differences.push(address_difference(node, &addresses));
        }
        differences.extend(change_differences(node, &change, "the node is not initialised"));
        return Ok(Comparison::complete(differences));
    }
    // Compare any other node with what is kept up to date.
    differences.extend(label_copies(node));
    let mut address_error = None;
    match plan::plan_addresses(node, &meta.addresses) {
        Ok(Some(addresses)) => {
            let difference = address_difference(node, &addresses);
            differences.push(if has_same_addresses(node, &addresses) {
                difference
            } else {
                difference.with_defect(ManagerDefect::OutdatedAddresses, None)
            });
        }
        Ok(None) => {}
        Err(error) => address_error = Some(error),
    }
    if refresh_labels {
        let (change, _) = plan::plan_label_refresh(node, meta);
        differences.extend(change_differences(node, &change, "the cloud has another value"));
    }
    Ok(Comparison { differences, address_error })
}

fn label_copies(node: &NodeView) -> Vec<Difference> {
    if node.is_uninitialized() {
        return Vec::new();
    }
    let reason = "it is a copy of the beta label";
    let mut differences = Vec::new();
    for (key, value) in plan::labels::reconciled_labels(node) {
        differences.push(label_difference(node, key, &value, reason));
    }
    differences
}

fn label_difference(node: &NodeView, key: &str, desired: &str, reason: &str) -> Difference {
    let current = node.labels.get(key).unwrap_or(NONE);
    difference(node, &format!("metadata.labels[{key}]"), current, desired, reason)
}

fn address_difference(node: &NodeView, desired: &[NodeAddress]) -> Difference {
    difference(
        node,
        "status.addresses",
        &format_addresses(&node.addresses),
        &format_addresses(desired),
        "the cloud has others",
    )
}

/// Returns true if a node has these addresses, in whatever order.
fn has_same_addresses(node: &NodeView, desired: &[NodeAddress]) -> bool {
    let current = &node.addresses;
    current.iter().all(|address| desired.contains(address))
        && desired.iter().all(|address| current.contains(address))
}

fn format_addresses(addresses: &[NodeAddress]) -> String {
    if addresses.is_empty() {
        return NONE.to_owned();
    }
    let texts: Vec<String> = addresses
        .iter()
        .map(|address| format!("{}={}", address.kind.as_str(), address.address))
        .collect();
    texts.join(",")
}

fn change_differences(node: &NodeView, change: &NodeChange, reason: &str) -> Vec<Difference> {
    let mut differences = Vec::new();
    if let Some(id) = &change.provider_id {
        differences.push(difference(node, "spec.providerID", NONE, id, reason));
    }
    for (key, value) in &change.labels {
        differences.push(label_difference(node, key, value, reason));
    }
    for (_, key) in &change.remove_taints {
        let part = format!("spec.taints[{key}]");
        differences.push(difference(node, &part, "set", NONE, reason));
    }
    differences
}

fn difference(
    node: &NodeView,
    part: &str,
    current: &str,
    desired: &str,
    reason: &str,
) -> Difference {
    node_difference(CLOUD_NODE, node, part, current, desired, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::AddressType;

    #[test]
    fn another_order_is_not_another_address() {
        let [a, b] = ["10.0.0.1", "10.0.0.2"]
            .map(|address| NodeAddress::new(AddressType::InternalIp, address));
        let mut node = NodeView::named("n1");
        node.addresses = [a.clone(), b.clone()].into();
        assert!(has_same_addresses(&node, &[b.clone(), a.clone()]));
        assert!(!has_same_addresses(&node, std::slice::from_ref(&a)), "one is gone");
        node.addresses = [a.clone()].into();
        assert!(!has_same_addresses(&node, &[a, b]), "one is new");
    }
}

//! Dry run of the cloud-node controller: finds what it would write.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    NodeController,
    plan::{self, InitializationError, InitializationPlan, NodeChange, addresses::AddressError},
};
use crate::{
    config::controller_names::CLOUD_NODE,
    error::chain,
    k8s::{NodeAddress, NodeView},
    provider::{InstanceMetadata, InstanceQuery, InstanceStatus, MetadataScope, PowerState},
    runtime::shadow::{
        CompareSchedule, Difference, DryRun, DryRunFindings, NONE, NotCompared, ObjectKind,
    },
};

/// The controller in shadow mode.
struct NodeDryRun {
    controller: NodeController,
    /// The nodes as they were when last compared, and when each is due again.
    schedule: CompareSchedule<Arc<NodeView>>,
}

impl NodeController {
    /// Turns the controller into one that only reports what it would write. Nodes with differences
    /// are compared again after `settle`.
    pub(crate) fn dry_run(self, settle: Duration) -> Box<dyn DryRun> {
        let paced = CompareSchedule::new(settle, self.config.status_update_period);
        Box::new(NodeDryRun { controller: self, schedule: paced })
    }
}

#[async_trait]
impl DryRun for NodeDryRun {
    async fn compare(&mut self, now: Instant) -> DryRunFindings {
        // First, choose the nodes that are due for a comparison.
        let controller = &self.controller;
        let mut nodes = controller.cx.nodes.list();
        nodes.retain(|node| controller.is_ours(node));
        self.schedule.retain(|name| {
            controller
                .cx
                .nodes
                .get(name)
                .is_some_and(|node| controller.is_ours(&node))
        });
        nodes.retain(|node| {
            self.schedule
                .is_due(&node.name, now, |old| !may_change_plan(old, node))
        });
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        // Then read their instances, uncached.
        let refresh = controller.config.refresh_additional_labels;
        let query = |node: &Arc<NodeView>| {
            let need = if node.is_uninitialized() || refresh {
                MetadataScope::All
            } else {
                MetadataScope::Addresses
            };
            InstanceQuery { node: node.clone(), scope: need, max_age: Duration::ZERO }
        };
        let answers = controller
            .instances
            .describe_many(nodes.iter().map(query).collect())
            .await;
        // Finally, record for each node what a sync would write.
        for (node, answer) in nodes.into_iter().zip(answers) {
            let name = node.name.clone();
            let meta = match answer {
                // No instance: nothing of the cloud's would be written. Deletion is the
                // node-lifecycle controller's.
                Ok(
                    InstanceStatus::NotFound
                    | InstanceStatus::Found { power_state: PowerState::Terminated, .. },
                ) => None,
                Ok(InstanceStatus::Found { meta, .. }) => Some(meta),
                Err(error) => {
                    self.schedule.failed(
                        &name,
                        node,
                        now,
                        not_compared(&name, error.chain()),
                        error.retry_after(),
                    );
                    continue;
                }
            };
            let copies = |node| Ok((label_copies(node), None));
            match meta.map_or_else(|| copies(&node), |meta| differences(&node, &meta, refresh)) {
                Ok((found, None)) => self.schedule.compared(&name, node, now, found),
                Ok((found, Some(error))) => {
                    let why = not_compared(
                        &name,
                        format!("addresses cannot be chosen: {}", chain(&error)),
                    );
                    self.schedule
                        .partially_compared(&name, node, now, found, why);
                }
                // The controller would write nothing, but whether the node is up to date is
                // unknown.
                Err(error) => {
                    self.schedule.failed(
                        &name,
                        node,
                        now,
                        not_compared(&name, chain(&error)),
                        None,
                    );
                }
            }
        }
        self.schedule.findings("nodes", now)
    }
}

/// Tells whether an update of the node may change what would be written.
fn may_change_plan(old: &NodeView, new: &NodeView) -> bool {
    super::needs_sync_after(old, new) || old.addresses != new.addresses || old.taints != new.taints
}

fn not_compared(node: &str, why: String) -> NotCompared {
    NotCompared {
        kind: ObjectKind::Node,
        object: node.to_owned(),
        controller: CLOUD_NODE,
        why,
    }
}

/// Returns what would be written to a node with this instance, and the reason if its addresses
/// could not be compared.
fn differences(
    node: &NodeView,
    meta: &InstanceMetadata,
    refresh: bool,
) -> Result<(Vec<Difference>, Option<AddressError>), InitializationError> {
    if node.is_uninitialized() {
        let InitializationPlan { addresses, change, .. } = plan::plan_initialization(node, meta)?;
        let mut found: Vec<_> = addresses
            .iter()
            .map(|wanted| address_difference(node, wanted))
            .collect();
        found.extend(change_differences(node, &change, "the node is not initialised"));
        return Ok((found, None));
    }
    let mut found = label_copies(node);
    // If the addresses cannot be chosen, they stay as they are.
    let (addresses, trouble) = match plan::plan_addresses(node, &meta.addresses) {
        Ok(addresses) => (addresses, None),
        Err(error) => (None, Some(error)),
    };
    found.extend(
        addresses
            .iter()
            .map(|wanted| address_difference(node, wanted)),
    );
    if refresh {
        let (change, _) = plan::plan_label_refresh(node, meta);
        found.extend(change_differences(node, &change, "the cloud has another value"));
    }
    Ok((found, trouble))
}

fn label_copies(node: &NodeView) -> Vec<Difference> {
    if node.is_uninitialized() {
        return Vec::new();
    }
    let copy = |(key, value): (&'static str, String)| {
        let is = node.labels.get(key).unwrap_or(NONE).to_owned();
        difference(
            node,
            format!("metadata.labels[{key}]"),
            is,
            value,
            "it is a copy of the beta label",
        )
    };
    plan::labels::reconciled_labels(node)
        .into_iter()
        .map(copy)
        .collect()
}

fn address_difference(node: &NodeView, wanted: &[NodeAddress]) -> Difference {
    let text = |addresses: &[NodeAddress]| match addresses {
        [] => NONE.to_owned(),
        some => some
            .iter()
            .map(|a| format!("{}={}", a.kind.as_str(), a.address))
            .collect::<Vec<_>>()
            .join(","),
    };
    let part = "status.addresses".to_owned();
    difference(node, part, text(&node.addresses), text(wanted), "the cloud has others")
}

fn change_differences(node: &NodeView, change: &NodeChange, why: &str) -> Vec<Difference> {
    let id = change.provider_id.iter().map(|id| {
        difference(node, "spec.providerID".to_owned(), NONE.to_owned(), id.to_string(), why)
    });
    let labels = change.labels.iter().map(|(key, value)| {
        let is = node.labels.get(key).unwrap_or(NONE).to_owned();
        difference(node, format!("metadata.labels[{key}]"), is, value.clone(), why)
    });
    let taints = change.remove_taints.iter().map(|(_, key)| {
        difference(node, format!("spec.taints[{key}]"), "set".to_owned(), NONE.to_owned(), why)
    });
    id.chain(labels).chain(taints).collect()
}

fn difference(
    node: &NodeView,
    part: String,
    is: String,
    would_be: String,
    why: &str,
) -> Difference {
    Difference {
        kind: ObjectKind::Node,
        object: node.name.to_string(),
        part,
        controller: CLOUD_NODE,
        current: Some(is),
        desired: would_be,
        why: why.to_owned(),
    }
}

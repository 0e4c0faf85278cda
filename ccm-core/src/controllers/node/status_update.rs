//! Updates the addresses of initialised nodes once per period, and their additional labels if that
//! is enabled.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    NodeController, apply,
    explain::address_cause,
    metrics::{NodeOperation, NodeOutcome},
    plan::{self, NodeChange},
};
use crate::{
    error::chain,
    k8s::NodeView,
    provider::{
        CloudError, InstanceMetadata, InstanceQuery, InstanceStatus, MetadataScope, PowerState,
    },
    runtime::api::ApiError,
    telemetry::controller_metrics::SkippedWrite,
};

/// The fraction of the period (one tenth) that a cached answer of the provider may be old.
const MAX_AGE_FRACTION: u32 = 10;

impl NodeController {
    /// Updates all nodes once per period until `cancel`.
    pub(super) async fn update_periodically(&self, cancel: &CancellationToken) {
        let period = self.config.status_update_period;
        cancel.run_until_cancelled(self.ctx.nodes.synced()).await;
        while !cancel.is_cancelled() {
            let started_at = Instant::now();
            self.update_all(period, cancel).await;
            // If the cloud is slow and the pass took long, wait at least half a period.
            let next = (started_at + period).max(Instant::now() + period / 2);
            cancel
                .run_until_cancelled(tokio::time::sleep_until(next))
                .await;
        }
    }

    /// Updates all nodes in slices of the provider's batch size, spread over the first half of the
    /// period. Upstream sends all queries at the start of the period.
    async fn update_all(&self, period: Duration, cancel: &CancellationToken) {
        let mut nodes = self.ctx.nodes.list();
        nodes.retain(|node| !node.is_uninitialized() && self.is_ours(node));
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let batch_size = self.instances.limits().max_batch.get();
        let slice_count = nodes.len().div_ceil(batch_size);
        let delay = period / 2 / u32::try_from(slice_count.max(1)).unwrap_or(u32::MAX);
        for (index, slice) in nodes.chunks(batch_size).enumerate() {
            if index > 0 {
                cancel.run_until_cancelled(tokio::time::sleep(delay)).await;
            }
            if cancel.is_cancelled() {
                return;
            }
            self.update_slice(slice, period / MAX_AGE_FRACTION).await;
        }
    }

    /// Queries the instances of a slice of nodes and updates these nodes.
    async fn update_slice(&self, nodes: &[Arc<NodeView>], max_age: Duration) {
        let scope = if self.config.refresh_additional_labels {
            MetadataScope::All
        } else {
            MetadataScope::Addresses
        };
        let queries = nodes
            .iter()
            .map(|node| InstanceQuery { node: node.clone(), scope, max_age })
            .collect();
        let answers = self.instances.describe_many(queries).await;
        stream::iter(nodes.iter().zip(answers))
            .for_each_concurrent(None, |(node, answer)| self.handle_answer(node, answer))
            .await;
    }

    async fn handle_answer(&self, node: &NodeView, answer: Result<InstanceStatus, CloudError>) {
        match answer {
            // Whether the instance is really gone is for the node-lifecycle controller to prove. A
            // terminated instance may still have addresses, but they are no longer the node's.
            Ok(
                InstanceStatus::NotFound
                | InstanceStatus::Found { power_state: PowerState::Terminated, .. },
            ) => {
                tracing::debug!(node = %node.name, "the cloud does not know the instance");
            }
            Ok(InstanceStatus::Found { meta, .. }) => self.update_node(node, &meta).await,
            Err(error) => {
                self.metrics
                    .count(NodeOperation::Addresses, NodeOutcome::Failed);
                tracing::warn!(node = %node.name, error = error.chain(), "addresses not compared");
                self.history.record_failed_query(node, &error);
            }
        }
    }

    /// Updates a node to the answer about its instance. The node may have changed since the query,
    /// so this plans with the current one.
    async fn update_node(&self, queried: &NodeView, meta: &InstanceMetadata) {
        let Some(node) = self.ctx.nodes.get(&queried.name) else {
            return;
        };
        if node.uid != queried.uid || node.is_uninitialized() {
            return;
        }
        match plan::plan_addresses(&node, &meta.addresses) {
            Ok(Some(addresses)) => {
                let _permit = self.status_write_permits.acquire().await;
                let network = self.network_conditions.as_ref();
                let result =
                    apply::patch_addresses(&self.ctx.api, network, &node, &addresses).await;
                self.record_result(&node, NodeOperation::Addresses, result.map(drop));
            }
            Ok(None) => {
                self.event_dedup.clear(&node.name);
                self.history.updates.clear(&node.name);
                self.metrics
                    .count(NodeOperation::Addresses, NodeOutcome::Unchanged);
                self.ctx
                    .controller_metrics
                    .count_skipped_write(SkippedWrite::NodeAddresses);
            }
            Err(error) => {
                self.metrics
                    .count(NodeOperation::Addresses, NodeOutcome::Failed);
                let text = chain(&error);
                tracing::warn!(node = %node.name, error = text, "addresses not changed");
                self.history.record_address_error(&node, &error, &text);
                let note = address_cause(&error).with_next_step(&text);
                self.event_dedup
                    .warn_once(&self.ctx.events, &node, "InvalidNodeIP", &note);
            }
        }
        if self.config.refresh_additional_labels {
            self.refresh_labels(&node, meta).await;
        }
    }

    async fn refresh_labels(&self, node: &NodeView, meta: &InstanceMetadata) {
        let (change, dropped): (NodeChange, _) = plan::plan_label_refresh(node, meta);
        for label in dropped {
            tracing::debug!(node = %node.name, label = %label.key, reason = label.reason.as_str(), "label from the cloud not set");
        }
        if change.is_empty() {
            self.ctx
                .controller_metrics
                .count_skipped_write(SkippedWrite::NodeLabels);
        } else {
            let _permit = self.status_write_permits.acquire().await;
            let result = apply::patch_node(&self.ctx.api, node, &change).await;
            self.record_result(node, NodeOperation::Labels, result);
        }
    }

    /// Counts and logs the result of a write.
    fn record_result(
        &self,
        node: &NodeView,
        operation: NodeOperation,
        result: Result<(), ApiError>,
    ) {
        match result {
            Ok(()) => {
                self.metrics.count(operation, NodeOutcome::Changed);
                self.history.updates.clear(&node.name);
                tracing::info!(node = %node.name, work = ?operation, "node updated");
            }
            // The node was deleted or changed meanwhile. The next pass plans it again.
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => {
                self.metrics.count(operation, NodeOutcome::Failed);
                tracing::warn!(node = %node.name, work = ?operation, error = chain(&error), "node not updated");
                self.history.record_failed_update(node, &error);
            }
        }
    }
}

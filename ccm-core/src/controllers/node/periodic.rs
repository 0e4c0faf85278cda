//! Compares the addresses of every node with the cloud's, once per period.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::{
    NodeController, apply,
    metrics::{Outcome, Work},
    plan::{self, NodeChange},
};
use crate::{
    k8s::NodeView,
    provider::{InstanceMetadata, Need, NodeQuery, Presence},
    runtime::api::{ApiError, ApiErrorKind},
};

/// Nodes asked about at a time. A pass over a large cluster is cut into so many and spread over the first half of the
/// period, where upstream asks about all at once (W2).
const SLICE: usize = 100;
/// A snapshot of the provider may be this part of the period old.
const MAX_AGE_PART: u32 = 10;

impl NodeController {
    pub(super) async fn update_periodically(&self) {
        let period = self.config.status_update_period;
        self.cx.nodes.synced().await;
        loop {
            let start = Instant::now();
            self.update_all(period).await;
            tokio::time::sleep_until(start + period).await;
        }
    }

    async fn update_all(&self, period: Duration) {
        let mut nodes = self.cx.nodes.list();
        nodes.retain(|node| !node.is_uninitialized() && self.is_ours(node));
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let slices = nodes.len().div_ceil(SLICE);
        let gap = period / 2 / u32::try_from(slices.max(1)).unwrap_or(u32::MAX);
        for (index, slice) in nodes.chunks(SLICE).enumerate() {
            if index > 0 {
                tokio::time::sleep(gap).await;
            }
            self.update_slice(slice, period / MAX_AGE_PART).await;
        }
    }

    async fn update_slice(&self, nodes: &[Arc<NodeView>], max_age: Duration) {
        let need = if self.config.refresh_additional_labels { Need::Initialize } else { Need::Addresses };
        let queries = nodes.iter().map(|node| NodeQuery { node: node.clone(), need, max_age }).collect();
        let answers = self.instances.describe_many(queries).await;
        let writes = match self.config.concurrent_status_updates {
            0 => self.config.concurrent_syncs,
            n => n,
        };
        stream::iter(nodes.iter().zip(answers))
            .for_each_concurrent(writes.max(super::MIN_WRITES_AT_ONCE), |(node, answer)| async move {
                match answer {
                    Ok(Presence::Found { meta, .. }) => self.update(node, &meta).await,
                    // Whether it is really gone is for the node-lifecycle controller to prove.
                    Ok(Presence::NotFound) => {
                        tracing::debug!(node = %node.name, "the cloud does not know the instance");
                    }
                    Err(error) => {
                        self.metrics.count(Work::Addresses, Outcome::Failed);
                        tracing::warn!(node = %node.name, error = error.chain(), "addresses not compared");
                    }
                }
            })
            .await;
    }

    async fn update(&self, asked: &NodeView, meta: &InstanceMetadata) {
        // The answer took its time: decide on what the node is now.
        let Some(node) = self.cx.nodes.get(&asked.name).filter(|n| n.uid == asked.uid && !n.is_uninitialized()) else {
            return;
        };
        match plan::plan_addresses(&node, &meta.addresses) {
            Ok(Some(addresses)) => {
                let _permit = self.writes.acquire().await;
                self.finish(
                    &node,
                    Work::Addresses,
                    apply::patch_addresses(&self.cx.api, &node, &addresses).await.map(drop),
                );
            }
            Ok(None) => self.metrics.count(Work::Addresses, Outcome::Unchanged),
            Err(error) => {
                self.metrics.count(Work::Addresses, Outcome::Failed);
                tracing::warn!(node = %node.name, %error, "addresses left alone");
                self.reports.warn(&self.cx.events, &node, "InvalidNodeIP", &error.to_string());
            }
        }
        if self.config.refresh_additional_labels {
            self.refresh_labels(&node, meta).await;
        }
    }

    async fn refresh_labels(&self, node: &NodeView, meta: &InstanceMetadata) {
        let (change, dropped): (NodeChange, _) = plan::plan_label_refresh(node, meta);
        for label in dropped {
            tracing::debug!(node = %node.name, label = %label.key, why = label.why.as_str(), "label of the cloud not set");
        }
        if !change.is_empty() {
            let _permit = self.writes.acquire().await;
            self.finish(node, Work::Labels, apply::patch_node(&self.cx.api, node, &change).await);
        }
    }

    fn finish(&self, node: &NodeView, work: Work, result: Result<(), ApiError>) {
        match result {
            Ok(()) => {
                self.metrics.count(work, Outcome::Changed);
                tracing::info!(node = %node.name, ?work, "node updated");
            }
            // Gone, or changed under our hands: the next pass sees it as it is then.
            Err(error) if matches!(error.kind(), ApiErrorKind::NotFound) || apply::is_race(error.kind()) => {}
            Err(error) => {
                self.metrics.count(work, Outcome::Failed);
                tracing::warn!(node = %node.name, ?work, %error, "node not updated");
            }
        }
    }
}

//! The tagging controller: puts tags on the instances of nodes, and takes them off when a node is gone.
//!
//! Optional, as upstream's: off unless `--controllers` names it. A node whose instance has the tags carries the label
//! [`LABEL`] with a checksum of them, so that a restart tags nothing again and other tags lead to a new round.
//!
//! Nodes are looked at every two seconds, in the cache that the framework lends: it has no notifications for providers, and a
//! look costs nothing but a comparison in memory. What is to be done waits in a queue, where equal items are one; up to
//! 50 instances are tagged with one request. What fails is tried again nine times, after half a second doubling, or when
//! AWS says; afterwards a change of the node brings it back. An instance of a node that went away while no process led keeps
//! its tags, as with upstream.
//!
//! It needs the right to `patch` `nodes` for the label, and of IAM `ec2:CreateTags` and `ec2:DeleteTags`.

mod apply;
mod metrics;
mod options;
mod plan;
mod rate_limiter;

use std::{sync::Arc, time::Duration};

use ccm_core::{
    k8s::NodeView,
    provider::{CacheReader, CloudError, Op, ProviderContext, ProviderController},
    runtime::work_queue::WorkQueue,
};
use futures::future;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{
    metrics::Metrics,
    plan::{Checksum, Item, NodeSnapshot, TagOperation},
    rate_limiter::RateLimiter,
};
pub use self::{
    options::{NAME, OptionError, OptionErrors, Options, flags, info},
    plan::LABEL,
};
use crate::scope::Scope;

/// Time between two looks at the nodes.
const PERIOD: Duration = Duration::from_secs(2);
/// Most instances in one request.
const MAX_BATCH: usize = 50;
/// How long a batch waits for another item, and for all of them.
const IDLE: Duration = Duration::from_millis(100);
const MAX_BATCH_WAIT: Duration = Duration::from_secs(1);

/// Makes the tagging controller.
pub fn controller(options: Options, scope: Scope) -> ProviderController {
    ProviderController::new(NAME, move |cx| run(options, scope, cx))
}

async fn run(options: Options, scope: Scope, cx: ProviderContext) -> Result<(), CloudError> {
    let metrics = Metrics::register(&cx.metrics)
        .map_err(|error| CloudError::invalid_input("metrics of the tagging controller").with_source(error))?;
    let (stop, workers) = (cx.cancel.clone(), options.workers.get());
    let tagging = TaggingController::new(options, scope, cx, metrics);
    let looks = async {
        let mut seen = NodeSnapshot::default();
        loop {
            tagging.enqueue_changed_nodes(&mut seen);
            if stop.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_none() {
                break;
            }
        }
    };
    let lanes = [&tagging.tag_queue, &tagging.untag_queue];
    let workers = lanes.iter().flat_map(|lane| (0..workers).map(|_| tagging.work(lane, &stop)));
    future::join(looks, future::join_all(workers)).await;
    Ok(())
}

/// The controller.
struct TaggingController {
    scope: Scope,
    options: Options,
    checksum: Checksum,
    nodes: Arc<dyn CacheReader<NodeView>>,
    client: kube::Client,
    op: Op,
    metrics: Metrics,
    rate_limiter: Option<Mutex<RateLimiter>>,
    started_at: Instant,
    tag_queue: TagQueue,
    untag_queue: TagQueue,
}

/// What waits for one kind of request.
struct TagQueue {
    verb: TagOperation,
    queue: WorkQueue<Item>,
}

impl TaggingController {
    fn new(options: Options, scope: Scope, cx: ProviderContext, metrics: Metrics) -> Self {
        let lane = |verb| TagQueue { verb, queue: WorkQueue::new() };
        Self {
            scope,
            checksum: options.checksum(),
            nodes: cx.nodes,
            client: cx.client,
            op: Op::new(cx.cluster_name, cx.cancel, cx.write_gate).with_reason("tagging"),
            metrics,
            rate_limiter: options.limit.map(|(rate, burst)| Mutex::new(RateLimiter::new(rate, burst))),
            started_at: Instant::now(),
            tag_queue: lane(TagOperation::Tag),
            untag_queue: lane(TagOperation::Untag),
            options,
        }
    }

    /// Puts in line what the nodes need.
    fn enqueue_changed_nodes(&self, seen: &mut NodeSnapshot) {
        for item in seen.diff(&self.nodes.list(), &self.checksum) {
            self.enqueue(item);
        }
    }

    fn enqueue(&self, item: Item) {
        let delay = self.next_slot();
        tracing::debug!(node = %item.node, verb = ?item.verb, ?delay, "node is in line");
        self.queue_for(item.verb).queue.add_after(item, delay);
    }

    fn queue_for(&self, verb: TagOperation) -> &TagQueue {
        match verb {
            TagOperation::Tag => &self.tag_queue,
            TagOperation::Untag => &self.untag_queue,
        }
    }

    /// Returns when it is the next item's turn.
    fn next_slot(&self) -> Duration {
        self.rate_limiter.as_ref().map_or(Duration::ZERO, |pace| pace.lock().reserve(self.started_at.elapsed()))
    }

    /// Works on what is in line until the process stops. What was begun ends.
    async fn work(&self, lane: &TagQueue, stop: &CancellationToken) {
        while let Some(first) = stop.run_until_cancelled(lane.queue.get()).await {
            let items = self.collect_batch(lane, first).await;
            self.process(lane, items).await;
        }
    }

    /// Waits a moment for others that can be done with the same request.
    async fn collect_batch(&self, lane: &TagQueue, first: Item) -> Vec<Item> {
        let mut items = vec![first];
        let most = if self.options.batching { MAX_BATCH } else { 1 };
        let end = Instant::now() + MAX_BATCH_WAIT;
        while items.len() < most {
            let until = end.min(Instant::now() + IDLE);
            match tokio::time::timeout_at(until, lane.queue.get()).await {
                Ok(item) => items.push(item),
                Err(_) => break,
            }
        }
        items
    }
}

#[cfg(test)]
pub(crate) mod tests;

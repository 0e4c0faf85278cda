//! The tagging controller, which adds tags to the instances of nodes, and removes the tags when a
//! node is deleted.
//!
//! As in upstream, it is disabled unless `--controllers` names it. A node whose instance has the
//! tags gets the label [`LABEL`] with a checksum of the tags. After a restart, only nodes whose
//! label lacks the current checksum are tagged.
//!
//! The controller compares the nodes in the framework's node cache every two seconds, because the
//! framework does not notify providers of changes. Each change becomes a work item in a queue. One
//! request tags up to 50 instances. A failed item is retried nine times, with a delay that starts
//! at half a second and doubles, or a longer one if AWS asks for it. After that, the item is
//! dropped until the node changes. If a node is deleted while no process leads, its instance keeps
//! its tags, as with upstream.
//!
//! The controller needs permission to `patch` `nodes` for the label, and the IAM permissions
//! `ec2:CreateTags` and `ec2:DeleteTags`.

mod apply;
mod metrics;
mod options;
mod plan;

use std::{sync::Arc, time::Duration};

use ccm_core::{
    k8s::NodeView,
    provider::{CacheReader, CloudError, Op, ProviderContext, ProviderController, RateLimiter},
    runtime::work_queue::WorkQueue,
};
use futures::{FutureExt, future};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{
    metrics::Metrics,
    plan::{Checksum, Item, NodeSnapshot, TagOperation},
};
pub use self::{
    options::{NAME, OptionError, OptionErrors, Options, flags, info},
    plan::LABEL,
};
use crate::scope::Scope;

/// Interval between two comparisons of the nodes.
const COMPARE_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of instances in one request.
const MAX_BATCH: usize = 50;
/// Maximum time that a batch waits for the next item.
const MAX_ITEM_WAIT: Duration = Duration::from_millis(100);
/// Maximum time that a batch waits for items in all.
const MAX_BATCH_WAIT: Duration = Duration::from_secs(1);

/// Creates the tagging controller.
pub fn controller(options: Options, scope: Scope) -> ProviderController {
    ProviderController::new(NAME, move |ctx| run(options, scope, ctx))
}

/// Runs the controller until the process stops: one task that compares the nodes, and the workers
/// of both queues.
async fn run(options: Options, scope: Scope, ctx: ProviderContext) -> Result<(), CloudError> {
    let metrics = Metrics::register(&ctx.metrics).map_err(|error| {
        CloudError::invalid_input("cannot register the metrics of the tagging controller")
            .with_source(error)
    })?;
    let stop = ctx.cancel.clone();
    let workers = options.workers.get();
    let tagging = TaggingController::new(options, scope, ctx, metrics);
    let mut tasks = vec![tagging.watch_nodes(&stop).boxed()];
    for queue in [&tagging.tag_queue, &tagging.untag_queue] {
        for _ in 0..workers {
            tasks.push(tagging.run_worker(queue, &stop).boxed());
        }
    }
    future::join_all(tasks).await;
    Ok(())
}

/// State of the running controller.
struct TaggingController {
    scope: Scope,
    options: Options,
    checksum: Checksum,
    nodes: Arc<dyn CacheReader<NodeView>>,
    client: kube::Client,
    op: Op,
    metrics: Metrics,
    rate_limiter: Option<RateLimiter>,
    tag_queue: TagQueue,
    untag_queue: TagQueue,
}

/// Queue of items for one kind of request.
struct TagQueue {
    operation: TagOperation,
    queue: WorkQueue<Item>,
}

impl TagQueue {
    fn new(operation: TagOperation) -> Self {
        Self { operation, queue: WorkQueue::new() }
    }

    /// Removes an item from the queue and resets its back-off.
    fn finish(&self, item: &Item) {
        self.queue.forget(item);
        self.queue.done(item);
    }
}

impl TaggingController {
    fn new(options: Options, scope: Scope, ctx: ProviderContext, metrics: Metrics) -> Self {
        let rate_limiter = options.rate.map(RateLimiter::new);
        Self {
            scope,
            checksum: options.checksum(),
            nodes: ctx.nodes,
            client: ctx.client,
            op: Op::new(ctx.cluster_name, ctx.cancel, ctx.write_gate).with_reason("tagging"),
            metrics,
            rate_limiter,
            tag_queue: TagQueue::new(TagOperation::Tag),
            untag_queue: TagQueue::new(TagOperation::Untag),
            options,
        }
    }

    /// Queues an item for every node that needs one, every
    /// [`COMPARE_INTERVAL`], until the process stops.
    async fn watch_nodes(&self, stop: &CancellationToken) {
        let mut snapshot = NodeSnapshot::default();
        loop {
            for item in snapshot.update(&self.nodes.list(), &self.checksum) {
                self.enqueue(item);
            }
            let sleep = tokio::time::sleep(COMPARE_INTERVAL);
            if stop.run_until_cancelled(sleep).await.is_none() {
                break;
            }
        }
    }

    fn enqueue(&self, item: Item) {
        let delay = self.reserve_slot();
        tracing::debug!(node = %item.node, operation = ?item.operation, ?delay, "node queued");
        self.queue_for(item.operation).queue.add_after(item, delay);
    }

    fn queue_for(&self, operation: TagOperation) -> &TagQueue {
        match operation {
            TagOperation::Tag => &self.tag_queue,
            TagOperation::Untag => &self.untag_queue,
        }
    }

    /// Reserves a slot of the rate limiter for the next item and returns the delay until then.
    fn reserve_slot(&self) -> Duration {
        match &self.rate_limiter {
            Some(rate_limiter) => rate_limiter
                .reserve(Duration::MAX)
                .unwrap_or_else(|delay| delay),
            None => Duration::ZERO,
        }
    }

    /// Processes queued items until the process stops. Items that are being processed are finished.
    async fn run_worker(&self, queue: &TagQueue, stop: &CancellationToken) {
        while let Some(first) = stop.run_until_cancelled(queue.queue.get()).await {
            let items = self.collect_batch(queue, first).await;
            self.process(queue, items).await;
        }
    }

    /// Waits briefly for further items, so that one request can process them together.
    async fn collect_batch(&self, queue: &TagQueue, first: Item) -> Vec<Item> {
        let mut items = vec![first];
        let max_items = if self.options.batching { MAX_BATCH } else { 1 };
        let batch_deadline = Instant::now() + MAX_BATCH_WAIT;
        while items.len() < max_items {
            let deadline = batch_deadline.min(Instant::now() + MAX_ITEM_WAIT);
            match tokio::time::timeout_at(deadline, queue.queue.get()).await {
                Ok(item) => items.push(item),
                Err(_) => break,
            }
        }
        items
    }
}

#[cfg(test)]
pub(crate) mod tests;

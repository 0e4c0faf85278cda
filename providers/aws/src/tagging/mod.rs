//! The tagging controller: adds tags to the instances of nodes, and removes them when a node is
//! deleted.
//!
//! Optional, as upstream: disabled unless `--controllers` names it. A node whose instance has the
//! tags gets the label [`LABEL`] with a checksum of them. So a restart does not tag again, and
//! changed tags do.
//!
//! The controller compares the nodes every two seconds in the framework's node cache: the framework
//! sends no notifications to providers, and the comparison only reads memory. Work items wait in a
//! queue, which holds equal items once; one request tags up to 50 instances. A failed item is
//! retried nine times, with a delay of half a second that doubles, or longer if AWS asks for it;
//! after that, a change of the node queues it again. If a node is deleted while no process leads,
//! its instance keeps its tags, as with upstream.
//!
//! It needs permission to `patch` `nodes` for the label, and the IAM permissions `ec2:CreateTags`
//! and `ec2:DeleteTags`.

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
use futures::{FutureExt, future};
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
use crate::{config::Rate, scope::Scope};

/// Interval between two comparisons of the nodes.
const PERIOD: Duration = Duration::from_secs(2);
/// Maximum number of instances in one request.
const MAX_BATCH: usize = 50;
/// How long a batch waits for the next item, and (`MAX_BATCH_WAIT`) in all.
const IDLE: Duration = Duration::from_millis(100);
const MAX_BATCH_WAIT: Duration = Duration::from_secs(1);

/// Creates the tagging controller.
pub fn controller(options: Options, scope: Scope) -> ProviderController {
    ProviderController::new(NAME, move |ctx| run(options, scope, ctx))
}

async fn run(options: Options, scope: Scope, ctx: ProviderContext) -> Result<(), CloudError> {
    let metrics = Metrics::register(&ctx.metrics).map_err(|error| {
        CloudError::invalid_input("metrics of the tagging controller").with_source(error)
    })?;
    let stop = ctx.cancel.clone();
    let workers = options.workers.get();
    let tagging = TaggingController::new(options, scope, ctx, metrics);
    let mut tasks = vec![tagging.watch_nodes(&stop).boxed()];
    for queue in [&tagging.tag_queue, &tagging.untag_queue] {
        for _ in 0..workers {
            tasks.push(tagging.work(queue, &stop).boxed());
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
    rate_limiter: Option<Mutex<RateLimiter>>,
    started_at: Instant,
    tag_queue: TagQueue,
    untag_queue: TagQueue,
}

/// Queue of items for one kind of request.
struct TagQueue {
    verb: TagOperation,
    queue: WorkQueue<Item>,
}

impl TagQueue {
    fn new(verb: TagOperation) -> Self {
        Self { verb, queue: WorkQueue::new() }
    }

    /// Removes an item from the queue and resets its back-off.
    fn finish(&self, item: &Item) {
        self.queue.forget(item);
        self.queue.done(item);
    }
}

impl TaggingController {
    fn new(options: Options, scope: Scope, ctx: ProviderContext, metrics: Metrics) -> Self {
        let rate_limiter = options
            .rate
            .map(|Rate { per_second, burst }| Mutex::new(RateLimiter::new(per_second, burst)));
        Self {
            scope,
            checksum: options.checksum(),
            nodes: ctx.nodes,
            client: ctx.client,
            op: Op::new(ctx.cluster_name, ctx.cancel, ctx.write_gate).with_reason("tagging"),
            metrics,
            rate_limiter,
            started_at: Instant::now(),
            tag_queue: TagQueue::new(TagOperation::Tag),
            untag_queue: TagQueue::new(TagOperation::Untag),
            options,
        }
    }

    /// Queues an item for every node that needs one, every [`PERIOD`] until the process stops.
    async fn watch_nodes(&self, stop: &CancellationToken) {
        let mut snapshot = NodeSnapshot::default();
        loop {
            for item in snapshot.diff(&self.nodes.list(), &self.checksum) {
                self.enqueue(item);
            }
            let sleep = tokio::time::sleep(PERIOD);
            if stop.run_until_cancelled(sleep).await.is_none() {
                break;
            }
        }
    }

    fn enqueue(&self, item: Item) {
        let delay = self.next_slot();
        tracing::debug!(node = %item.node, verb = ?item.verb, ?delay, "node queued");
        self.queue_for(item.verb).queue.add_after(item, delay);
    }

    fn queue_for(&self, verb: TagOperation) -> &TagQueue {
        match verb {
            TagOperation::Tag => &self.tag_queue,
            TagOperation::Untag => &self.untag_queue,
        }
    }

    /// Reserves a slot of the rate limiter for the next item and returns the delay until then.
    fn next_slot(&self) -> Duration {
        match &self.rate_limiter {
            Some(rate_limiter) => rate_limiter.lock().reserve(self.started_at.elapsed()),
            None => Duration::ZERO,
        }
    }

    /// Processes queued items until the process stops. An item in progress is finished.
    async fn work(&self, queue: &TagQueue, stop: &CancellationToken) {
        while let Some(first) = stop.run_until_cancelled(queue.queue.get()).await {
            let items = self.collect_batch(queue, first).await;
            self.process(queue, items).await;
        }
    }

    /// Waits briefly for more items that the same request can process.
    async fn collect_batch(&self, queue: &TagQueue, first: Item) -> Vec<Item> {
        let mut items = vec![first];
        let max_items = if self.options.batching { MAX_BATCH } else { 1 };
        let batch_deadline = Instant::now() + MAX_BATCH_WAIT;
        while items.len() < max_items {
            let deadline = batch_deadline.min(Instant::now() + IDLE);
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

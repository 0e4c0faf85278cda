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
mod pace;
mod plan;

use std::{sync::Arc, time::Duration};

use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, ExtraController, Index, Op, ProviderContext},
    runtime::queue::WorkQueue,
};
use futures::future;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{
    metrics::Metrics,
    pace::Pace,
    plan::{Checksum, Item, Seen, Verb},
};
pub use self::{
    options::{NAME, OptionError, OptionErrors, Options, flags, info},
    plan::LABEL,
};
use crate::scope::Scope;

/// Time between two looks at the nodes.
const PERIOD: Duration = Duration::from_secs(2);
/// Most instances in one request.
const MOST_IN_BATCH: usize = 50;
/// How long a batch waits for another item, and for all of them.
const IDLE: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Makes the tagging controller.
pub fn controller(options: Options, scope: Scope) -> ExtraController {
    ExtraController::new(NAME, move |cx| run(options, scope, cx))
}

async fn run(options: Options, scope: Scope, cx: ProviderContext) -> Result<(), CloudError> {
    let metrics = Metrics::register(&cx.metrics)
        .map_err(|error| CloudError::invalid_input("metrics of the tagging controller").with_source(error))?;
    let (stop, workers) = (cx.cancel.clone(), options.workers.get());
    let tagging = Tagging::new(options, scope, cx, metrics);
    let looks = async {
        let mut seen = Seen::default();
        loop {
            tagging.look(&mut seen);
            if stop.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_none() {
                break;
            }
        }
    };
    let lanes = [&tagging.tag, &tagging.untag];
    let workers = lanes.iter().flat_map(|lane| (0..workers).map(|_| tagging.work(lane, &stop)));
    future::join(looks, future::join_all(workers)).await;
    Ok(())
}

/// The controller.
struct Tagging {
    scope: Scope,
    options: Options,
    checksum: Checksum,
    nodes: Arc<dyn Index<NodeView>>,
    client: kube::Client,
    op: Op,
    metrics: Metrics,
    pace: Option<Mutex<Pace>>,
    began: Instant,
    tag: Lane,
    untag: Lane,
}

/// What waits for one kind of request.
struct Lane {
    verb: Verb,
    queue: WorkQueue<Item>,
}

impl Tagging {
    fn new(options: Options, scope: Scope, cx: ProviderContext, metrics: Metrics) -> Self {
        let lane = |verb| Lane { verb, queue: WorkQueue::new() };
        Self {
            scope,
            checksum: options.checksum(),
            nodes: cx.nodes,
            client: cx.client,
            op: Op::new(cx.cluster_name, cx.cancel, cx.gate).with_reason("tagging"),
            metrics,
            pace: options.limit.map(|(rate, burst)| Mutex::new(Pace::new(rate, burst))),
            began: Instant::now(),
            tag: lane(Verb::Tag),
            untag: lane(Verb::Untag),
            options,
        }
    }

    /// Puts in line what the nodes need.
    fn look(&self, seen: &mut Seen) {
        for item in seen.look(&self.nodes.list(), &self.checksum) {
            self.enqueue(item);
        }
    }

    fn enqueue(&self, item: Item) {
        let delay = self.turn();
        tracing::debug!(node = %item.node, verb = ?item.verb, ?delay, "node is in line");
        self.lane(item.verb).queue.add_after(item, delay);
    }

    fn lane(&self, verb: Verb) -> &Lane {
        match verb {
            Verb::Tag => &self.tag,
            Verb::Untag => &self.untag,
        }
    }

    /// Returns when it is the next item's turn.
    fn turn(&self) -> Duration {
        self.pace.as_ref().map_or(Duration::ZERO, |pace| pace.lock().take(self.began.elapsed()))
    }

    /// Works on what is in line until the process stops. What was begun ends.
    async fn work(&self, lane: &Lane, stop: &CancellationToken) {
        while let Some(first) = stop.run_until_cancelled(lane.queue.get()).await {
            let items = self.gather(lane, first).await;
            self.process(lane, items).await;
        }
    }

    /// Waits a moment for others that can be done with the same request.
    async fn gather(&self, lane: &Lane, first: Item) -> Vec<Item> {
        let mut items = vec![first];
        let most = if self.options.batching { MOST_IN_BATCH } else { 1 };
        let end = Instant::now() + LONGEST_WAIT;
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

//! Joins concurrent questions about single nodes into few `describe` calls (data-loader style).
//!
//! Controllers stay simple per-node code; the cloud sees batches of the provider's own size. A throttled answer slows
//! the whole capability down, not just the node that happened to be asked about.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::Instant,
};

use super::{BatchLimits, CloudError, CloudProvider, ErrorKind, NodeQuery, Op, Presence};
use crate::telemetry::metrics::CloudMetrics;

/// Longest time that one `describe` may take before it counts as failed. Five times the slowest answer that clouds
/// document for a full page; a call without a limit could hold its nodes for ever.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// First and longest pause after a throttled answer that names no time itself.
const THROTTLE_MIN: Duration = Duration::from_secs(1);
const THROTTLE_MAX: Duration = Duration::from_secs(30);

type Answer = Result<Presence, CloudError>;
type Batch = Vec<(NodeQuery, Vec<oneshot::Sender<Answer>>)>;

enum Request {
    /// May be joined with others.
    Single(NodeQuery, oneshot::Sender<Answer>),
    /// Goes as it is, in a batch of its own.
    Together(Batch),
}

/// Asks the provider about nodes, many at a time. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Coalescer {
    requests: mpsc::UnboundedSender<Request>,
    limits: BatchLimits,
}

/// The running side of a [`Coalescer`]; whoever builds it spawns [`CoalescerDriver::run`] and waits for it.
#[must_use = "questions are answered only while the driver runs"]
pub struct CoalescerDriver {
    requests: mpsc::UnboundedReceiver<Request>,
    provider: Arc<dyn CloudProvider>,
    limits: BatchLimits,
    op: Op,
    metrics: CloudMetrics,
}

impl Coalescer {
    /// Makes a coalescer over the instances of `provider`, or `None` if it has none. `op` is the template of every
    /// batch: its cancellation ends all calls.
    pub fn new(provider: Arc<dyn CloudProvider>, op: Op, metrics: CloudMetrics) -> Option<(Self, CoalescerDriver)> {
        let limits = provider.instances()?.limits();
        let (sender, requests) = mpsc::unbounded_channel();
        Some((Self { requests: sender, limits }, CoalescerDriver { requests, provider, limits, op, metrics }))
    }

    /// Asks about one node; joins the questions of others that come within the provider's window.
    ///
    /// # Errors
    /// What the provider answers for this node or for the whole batch; [`ErrorKind::Canceled`] when the driver ended.
    ///
    /// # Cancellation
    /// Dropping the future leaves the batch running for the others.
    pub async fn describe(&self, query: NodeQuery) -> Answer {
        let (reply, answer) = oneshot::channel();
        if self.requests.send(Request::Single(query, reply)).is_err() {
            return Err(stopped());
        }
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Asks about many nodes at once; one answer per query, in order.
    pub async fn describe_many(&self, queries: Vec<NodeQuery>) -> Vec<Answer> {
        futures::future::join_all(queries.into_iter().map(|query| self.describe(query))).await
    }

    /// Asks about these nodes in one batch that nothing else joins, so that whatever is wrong with the question shows
    /// on all of them; one answer per query, in order. Cut into several only where the provider's batch is smaller.
    pub async fn describe_together(&self, queries: Vec<NodeQuery>) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(queries.len());
        for group in queries.chunks(self.limits.max_batch.get()) {
            let (batch, receivers): (Batch, Vec<_>) = group
                .iter()
                .map(|query| {
                    let (reply, answer) = oneshot::channel();
                    ((query.clone(), vec![reply]), answer)
                })
                .unzip();
            // If the driver is gone it drops the replies, which answers all of them.
            let _ = self.requests.send(Request::Together(batch));
            for receiver in receivers {
                answers.push(receiver.await.unwrap_or_else(|_| Err(stopped())));
            }
        }
        answers
    }

    /// Returns how the provider wants to be asked.
    pub fn limits(&self) -> BatchLimits {
        self.limits
    }
}

fn stopped() -> CloudError {
    CloudError::new(ErrorKind::Canceled, "instances are no longer asked about: the process is stopping")
}

impl CoalescerDriver {
    /// Collects and sends batches until every [`Coalescer`] is gone or the operation is cancelled.
    pub async fn run(mut self) {
        let permits = Semaphore::new(self.limits.max_in_flight.get());
        let throttle = Throttle::default();
        let mut calls = FuturesUnordered::new();
        loop {
            let first = tokio::select! {
                () = self.op.cancelled() => break,
                Some(()) = calls.next(), if !calls.is_empty() => continue,
                request = self.requests.recv() => match request {
                    Some(request) => request,
                    None => break,
                },
            };
            let collect = collect(&mut self.requests, self.limits, first);
            tokio::pin!(collect);
            let batches = loop {
                tokio::select! {
                    batches = &mut collect => break batches,
                    Some(()) = calls.next(), if !calls.is_empty() => {}
                }
            };
            // The permit is awaited inside the call, so that collecting goes on; batches leave in order because
            // tokio's semaphore is fair.
            for batch in batches {
                calls.push(send(&self.provider, &self.op, &permits, &throttle, &self.metrics, batch));
            }
        }
        while calls.next().await.is_some() {}
    }
}

/// Collects a batch: until it is full, or the window is over. Batches that must stay as they are come along unchanged.
async fn collect(requests: &mut mpsc::UnboundedReceiver<Request>, limits: BatchLimits, first: Request) -> Vec<Batch> {
    let mut joined = Joined::default();
    let mut batches = Vec::new();
    let until = Instant::now() + limits.window;
    let mut next = Some(first);
    while let Some(request) = next {
        match request {
            Request::Single(query, reply) => joined.add(query, reply),
            Request::Together(batch) => {
                batches.push(batch);
                if joined.batch.is_empty() {
                    break;
                }
            }
        }
        if joined.batch.len() >= limits.max_batch.get() {
            break;
        }
        next = tokio::time::timeout_at(until, requests.recv()).await.ok().flatten();
    }
    if !joined.batch.is_empty() {
        batches.push(joined.batch);
    }
    batches
}

/// Single questions joined into a batch, one entry per node.
#[derive(Default)]
struct Joined {
    batch: Batch,
    index: HashMap<(Arc<str>, Box<str>), usize>,
}

impl Joined {
    fn add(&mut self, query: NodeQuery, reply: oneshot::Sender<Answer>) {
        let key = (query.node.name.clone(), query.node.uid.clone());
        if let Some(&at) = self.index.get(&key) {
            let (known, replies) = &mut self.batch[at];
            // One answer serves both if it says enough and is fresh enough for the stricter one.
            known.need = known.need.max(query.need);
            known.max_age = known.max_age.min(query.max_age);
            known.node = query.node;
            replies.push(reply);
        } else {
            self.index.insert(key, self.batch.len());
            self.batch.push((query, vec![reply]));
        }
    }
}

async fn send(
    provider: &Arc<dyn CloudProvider>,
    op: &Op,
    permits: &Semaphore,
    throttle: &Throttle,
    metrics: &CloudMetrics,
    batch: Batch,
) {
    let _permit = permits.acquire().await;
    throttle.wait(op).await;
    // Nobody may be waiting any more: workers were cancelled while the batch queued.
    let batch: Batch = batch.into_iter().filter(|(_, replies)| replies.iter().any(|r| !r.is_closed())).collect();
    if batch.is_empty() {
        return;
    }
    let (queries, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
    let answers = call(provider, op, metrics, &queries).await;
    throttle.note(&answers);
    for (answer, replies) in answers.into_iter().zip(replies) {
        for reply in replies {
            // A caller that went away needs no answer.
            let _ = reply.send(answer.clone());
        }
    }
}

async fn call(
    provider: &Arc<dyn CloudProvider>,
    op: &Op,
    metrics: &CloudMetrics,
    queries: &[NodeQuery],
) -> Vec<Answer> {
    let Some(instances) = provider.instances() else {
        return vec![Err(CloudError::new(ErrorKind::NotImplemented, "provider has no instances")); queries.len()];
    };
    let started = Instant::now();
    let op = op.clone().with_deadline(started + CALL_TIMEOUT);
    let outcome = op.run(instances.describe(&op, queries)).await.map_err(|error| match error.kind() {
        // Nobody cancelled it: the cloud was too slow, or the provider gave up by itself. Both are worth a retry.
        ErrorKind::Canceled if !op.is_cancelled() => {
            CloudError::transient(format!("no answer about {} instances", queries.len())).with_source(error)
        }
        _ => error,
    });
    let outcome = outcome.and_then(|answers| {
        if answers.len() == queries.len() {
            Ok(answers)
        } else {
            // Which answer belongs to which node is in doubt, so none of them counts.
            let (got, want) = (answers.len(), queries.len());
            Err(CloudError::transient(format!("provider answered {got} of {want} instance queries")))
        }
    });
    metrics.observe_batch("describe_instances", queries.len(), started.elapsed(), outcome.as_ref().err());
    outcome.unwrap_or_else(|error| vec![Err(error); queries.len()])
}

/// Pause of a whole capability after a throttled answer.
#[derive(Debug, Default)]
struct Throttle(parking_lot::Mutex<ThrottleState>);

#[derive(Debug, Default)]
struct ThrottleState {
    until: Option<Instant>,
    pause: Duration,
}

impl Throttle {
    async fn wait(&self, op: &Op) {
        loop {
            let until = self.0.lock().until;
            match until {
                Some(until) if Instant::now() < until => {
                    let sleep = op.run(async {
                        tokio::time::sleep_until(until).await;
                        Ok(())
                    });
                    if sleep.await.is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    fn note(&self, answers: &[Answer]) {
        let throttled = answers.iter().filter_map(|a| a.as_ref().err()).find(|e| e.kind() == ErrorKind::Throttled);
        let mut state = self.0.lock();
        match throttled {
            Some(error) => {
                state.pause = (state.pause * 2).clamp(THROTTLE_MIN, THROTTLE_MAX);
                let pause = error.retry_after().unwrap_or(state.pause);
                state.until = Some(Instant::now() + pause);
            }
            None => *state = ThrottleState::default(),
        }
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;

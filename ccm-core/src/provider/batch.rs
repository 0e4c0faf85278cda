//! Joins concurrent queries about single nodes into few `describe` calls.
//!
//! Controllers handle one node at a time, but the cloud receives batches of the provider's own
//! size. A throttled answer delays all further calls, not only those for the node of the query.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tracing::Instrument;

use super::{
    BatchLimits, CloudError, CloudProvider, ErrorKind, InstanceQuery, InstanceStatus, Instances,
    Op, Throttle, instance_records::InstanceRecords, operation,
};
use crate::{
    error::caught, provider::call_metrics::CloudMetrics, telemetry::controller_metrics::call_span,
};

/// The timeout of one `describe` call, without which a call could block its nodes indefinitely. It
/// is five times the slowest response that clouds document for a full page.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum time that a batch stays open while queries keep arriving, in windows. Nodes that
/// appear together arrive one by one from the watch. When a batch stayed open for one window only,
/// a start with 1,000 nodes took 138 calls, most of them for a handful of nodes.
const MAX_WINDOWS: u32 = 10;

/// The answer to one query.
type DescribeResult = Result<InstanceStatus, CloudError>;
/// Queries, each with the channels for its answer.
type Batch = Vec<(InstanceQuery, Vec<oneshot::Sender<DescribeResult>>)>;

enum BatchRequest {
    /// A query that may be joined with others.
    Single(InstanceQuery, oneshot::Sender<DescribeResult>),
    /// A batch that must be sent unchanged.
    Exclusive(Batch),
}

/// Queries the provider about nodes in batches. Clones share one queue.
#[derive(Clone, Debug)]
pub struct InstanceBatcher {
    requests: mpsc::UnboundedSender<BatchRequest>,
    limits: BatchLimits,
    records: Arc<InstanceRecords>,
}

/// Background part of an [`InstanceBatcher`]. Its creator spawns [`InstanceBatcherDriver::run`] and
/// waits for it.
#[must_use = "queries are answered only while the driver runs"]
pub struct InstanceBatcherDriver {
    requests: mpsc::UnboundedReceiver<BatchRequest>,
    limits: BatchLimits,
    sender: BatchSender,
}

impl InstanceBatcher {
    /// Creates a batcher for the instances of `provider`. Returns `None` if it does not support
    /// instances. The context of each call derives from `op`, whose cancellation ends all calls.
    pub fn new(
        provider: Arc<dyn CloudProvider>,
        op: Op,
        metrics: CloudMetrics,
    ) -> Option<(Self, InstanceBatcherDriver)> {
        let limits = provider.instances()?.limits();
        let (request_sender, requests) = mpsc::unbounded_channel();
        let records = Arc::new(InstanceRecords::default());
        let driver = InstanceBatcherDriver {
            requests,
            limits,
            sender: BatchSender { provider, op, metrics, records: records.clone() },
        };
        Some((Self { requests: request_sender, limits, records }, driver))
    }

    /// Queries one node, together with other queries that arrive within the provider's window.
    ///
    /// # Errors
    /// Returns the provider's error for this node or for the whole batch, or
    /// [`ErrorKind::Canceled`] if the driver has ended.
    ///
    /// # Cancellation
    /// If the future is dropped, the batch continues for the other queries.
    pub async fn describe(&self, query: InstanceQuery) -> DescribeResult {
        let (reply, answer) = oneshot::channel();
        if self
            .requests
            .send(BatchRequest::Single(query, reply))
            .is_err()
        {
            return Err(stopped_error());
        }
        answer.await.unwrap_or_else(|_| Err(stopped_error()))
    }

    /// Queries many nodes at once. Returns one answer per query, in order.
    pub async fn describe_many(&self, queries: Vec<InstanceQuery>) -> Vec<DescribeResult> {
        futures::future::join_all(queries.into_iter().map(|query| self.describe(query))).await
    }

    /// Queries these nodes in one batch that no other query joins, so that an error of the whole
    /// batch affects all of them. Returns one answer per query, in order. Splits the batch only if
    /// it exceeds the provider's maximum.
    pub async fn describe_exclusive(&self, queries: Vec<InstanceQuery>) -> Vec<DescribeResult> {
        let mut answers = Vec::with_capacity(queries.len());
        for group in queries.chunks(self.limits.max_batch.get()) {
            let (batch, receivers): (Batch, Vec<_>) = group
                .iter()
                .map(|query| {
                    let (reply, answer) = oneshot::channel();
                    ((query.clone(), vec![reply]), answer)
                })
                .unzip();
            // If the driver has ended, the replies are dropped, and every receiver below gets an
            // error.
            let _ = self.requests.send(BatchRequest::Exclusive(batch));
            for receiver in receivers {
                answers.push(receiver.await.unwrap_or_else(|_| Err(stopped_error())));
            }
        }
        answers
    }

    /// Returns the records of the cloud's answers to all queries so far.
    pub(crate) fn records(&self) -> &Arc<InstanceRecords> {
        &self.records
    }

    /// Returns the provider's limits for queries.
    pub fn limits(&self) -> BatchLimits {
        self.limits
    }
}

fn stopped_error() -> CloudError {
    CloudError::new(ErrorKind::Canceled, "instance was not queried: the process is stopping")
}

impl InstanceBatcherDriver {
    /// Collects and sends batches until every [`InstanceBatcher`] is dropped or the operation is
    /// cancelled.
    ///
    /// A batch is closed only when it can be sent: queries that arrive while the cloud is busy or
    /// throttles join it. Otherwise throttling would split the queries that wait for its end into
    /// many small calls.
    pub async fn run(mut self) {
        let mut throttle = Throttle::default();
        let mut pending = PendingQueries::default();
        let mut calls = FuturesUnordered::new();
        let mut open = true;
        while open || !pending.is_empty() || !calls.is_empty() {
            let due = if calls.len() < self.limits.max_in_flight.get() {
                pending
                    .due(self.limits)
                    .map(|due| throttle.until().map_or(due, |until| until.max(due)))
            } else {
                None
            };
            let batch_is_due = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Biased, so that a batch that is due takes along the queries that have already
                // arrived.
                biased;
                () = self.sender.op.cancelled() => break,
                request = self.requests.recv(), if open && pending.accepts(self.limits) => match request {
                    Some(request) => pending.add(request),
                    None => open = false,
                },
                Some(FinishedCall { generation, throttled }) = calls.next(), if !calls.is_empty() => {
                    throttle.record(generation, throttled.as_ref());
                }
                () = batch_is_due => {
                    let batch = pending.take();
                    calls.push(self.sender.send_batch(throttle.generation(), batch));
                }
            }
        }
        while calls.next().await.is_some() {}
    }
}

/// The queries that are not sent yet.
#[derive(Default)]
struct PendingQueries {
    /// Batches that must be sent unchanged.
    exclusive: VecDeque<Batch>,
    joined: MergedBatch,
    /// The times when the first and the last of the joined queries arrived.
    arrived: Option<(Instant, Instant)>,
}

impl PendingQueries {
    fn is_empty(&self) -> bool {
        self.exclusive.is_empty() && self.joined.batch.is_empty()
    }

    fn accepts(&self, limits: BatchLimits) -> bool {
        self.joined.batch.len() < limits.max_batch.get()
    }

    fn add(&mut self, request: BatchRequest) {
        match request {
            BatchRequest::Single(query, reply) => {
                let now = Instant::now();
                self.arrived.get_or_insert((now, now)).1 = now;
                self.joined.add(query, reply);
            }
            BatchRequest::Exclusive(batch) => self.exclusive.push_back(batch),
        }
    }

    /// Returns the time when the next batch is due, without regard to calls in flight and
    /// throttling. A batch is due when it is full, when no query has arrived for one window, or
    /// after [`MAX_WINDOWS`].
    fn due(&self, limits: BatchLimits) -> Option<Instant> {
        if !self.exclusive.is_empty() || !self.accepts(limits) {
            return Some(Instant::now());
        }
        let (first, last) = self.arrived?;
        Some((last + limits.batch_window).min(first + limits.batch_window * MAX_WINDOWS))
    }

    /// Takes the next batch.
    fn take(&mut self) -> Batch {
        self.exclusive.pop_front().unwrap_or_else(|| {
            self.arrived = None;
            std::mem::take(&mut self.joined).batch
        })
    }
}

/// Single queries joined into a batch, one entry per node.
#[derive(Default)]
struct MergedBatch {
    batch: Batch,
    index: HashMap<(Arc<str>, Box<str>), usize>,
}

impl MergedBatch {
    fn add(&mut self, query: InstanceQuery, reply: oneshot::Sender<DescribeResult>) {
        let key = (query.node.name.clone(), query.node.uid.clone());
        if let Some(&at) = self.index.get(&key) {
            let (merged, replies) = &mut self.batch[at];
            // One answer serves both queries if it covers both scopes and meets the stricter age
            // limit.
            merged.scope = merged.scope.max(query.scope);
            merged.max_age = merged.max_age.min(query.max_age);
            merged.node = query.node;
            replies.push(reply);
        } else {
            self.index.insert(key, self.batch.len());
            self.batch.push((query, vec![reply]));
        }
    }
}

/// A call that has ended.
struct FinishedCall {
    /// The generation of the [`Throttle`] when the call began.
    generation: u64,
    /// The throttled answer, if there was one.
    throttled: Option<CloudError>,
}

/// Sends batches to the provider.
struct BatchSender {
    provider: Arc<dyn CloudProvider>,
    op: Op,
    metrics: CloudMetrics,
    records: Arc<InstanceRecords>,
}

impl BatchSender {
    /// Sends a batch, records the answers, and distributes them to their receivers.
    async fn send_batch(&self, generation: u64, batch: Batch) -> FinishedCall {
        // All receivers of a query may be dropped, because workers were cancelled while the batch
        // was queued.
        let batch: Batch = batch
            .into_iter()
            .filter(|(_, replies)| replies.iter().any(|reply| !reply.is_closed()))
            .collect();
        if batch.is_empty() {
            return FinishedCall { generation, throttled: None };
        }
        let (queries, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let answers = self.query_isolating_panics(&queries).await;
        for (query, answer) in queries.iter().zip(&answers) {
            self.records.record(&query.node, answer);
        }
        let throttled = answers
            .iter()
            .filter_map(|answer| answer.as_ref().err())
            .find(|error| error.kind() == ErrorKind::Throttled)
            .cloned();
        for (answer, replies) in answers.into_iter().zip(replies) {
            for reply in replies {
                // A receiver that was dropped needs no answer.
                let _ = reply.send(answer.clone());
            }
        }
        FinishedCall { generation, throttled }
    }

    /// Queries the provider. Returns one answer for each query.
    ///
    /// A bug may make the provider panic because of a single node, which must not affect the other
    /// nodes of the batch. Therefore the batch is split in halves until that node is alone.
    async fn query_isolating_panics(&self, queries: &[InstanceQuery]) -> Vec<DescribeResult> {
        let Some(instances) = self.provider.instances() else {
            let error = CloudError::new(ErrorKind::NotImplemented, "provider has no instances");
            return vec![Err(error); queries.len()];
        };
        let mut answers = Vec::with_capacity(queries.len());
        let mut parts = vec![queries];
        while let Some(part) = parts.pop() {
            let call = self.call_provider(instances, part).await;
            if call.panicked && part.len() > 1 {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
                continue;
            }
            // Send no further requests to a cloud that throttles.
            let throttled_or_canceled = call
                .answers
                .iter()
                .filter_map(|answer| answer.as_ref().err())
                .find(|error| matches!(error.kind(), ErrorKind::Throttled | ErrorKind::Canceled))
                .cloned();
            answers.extend(call.answers);
            if let Some(error) = throttled_or_canceled {
                answers.resize(queries.len(), Err(error));
                break;
            }
        }
        answers
    }

    /// Calls the provider once, with a timeout, and measures the call.
    async fn call_provider(
        &self,
        instances: &dyn Instances,
        queries: &[InstanceQuery],
    ) -> CallOutcome {
        let started = Instant::now();
        let op = self.op.clone().for_call(started + CALL_TIMEOUT);
        let mut panicked = false;
        let call = async {
            caught(instances.describe(&op, queries))
                .await
                .unwrap_or_else(|panic| {
                    panicked = true;
                    Err(operation::panicked(&panic))
                })
        };
        let result = op
            .run(call)
            .instrument(call_span("describe_instances"))
            .await
            .map_err(|error| {
                op.as_timeout(error, || format!("no answer about {} instances", queries.len()))
            })
            .and_then(|answers| expect_count(answers, queries.len()));
        self.metrics.observe_batch(
            "describe_instances",
            queries.len(),
            started.elapsed(),
            result.as_ref().err(),
        );
        CallOutcome {
            answers: result.unwrap_or_else(|error| vec![Err(error); queries.len()]),
            panicked,
        }
    }
}

/// The outcome of one call of the provider.
struct CallOutcome {
    /// The answers, one for each query.
    answers: Vec<DescribeResult>,
    /// True if the provider panicked. Every answer is then an error.
    panicked: bool,
}

/// Returns the answers if there are as many as queries. Otherwise they cannot be assigned to the
/// nodes, and all of them are ignored.
fn expect_count(
    answers: Vec<DescribeResult>,
    queries: usize,
) -> Result<Vec<DescribeResult>, CloudError> {
    if answers.len() == queries {
        return Ok(answers);
    }
    Err(CloudError::transient(format!(
        "provider answered {} of {queries} instance queries",
        answers.len()
    )))
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;

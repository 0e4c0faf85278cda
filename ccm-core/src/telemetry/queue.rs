//! Metrics of the work queues.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry,
    core::{Collector, Desc},
    exponential_buckets,
    proto::MetricFamily,
};

use super::metrics::register;

/// The metrics of all work queues, with the names and buckets of Go's
/// (`k8s.io/component-base/metrics/prometheus/workqueue` v0.37), and two of ours. Registered once
/// per process.
///
/// As upstream, `workqueue_depth` counts queued keys, including those that were added again while a
/// worker processes them, and `workqueue_retries_total` counts keys that are requeued after a
/// failure. Keys that are deferred without a failure are only in `ccm_workqueue_delayed`.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    adds: IntCounterVec,
    waiting: HistogramVec,
    working: HistogramVec,
    retries: IntCounterVec,
    now: QueueGauges,
}

/// Counters and histograms of one queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueSeries {
    /// Keys that were added.
    pub(crate) adds: IntCounter,
    /// Time from adding a key until a worker took it.
    pub(crate) waiting: Histogram,
    /// Time for which a worker processed a key.
    pub(crate) working: Histogram,
    /// Keys requeued after a failure.
    pub(crate) retries: IntCounter,
}

/// The state of a queue when metrics are read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct QueueSnapshot {
    /// The number of queued keys.
    pub(crate) depth: usize,
    /// The number of deferred keys.
    pub(crate) delayed: usize,
    /// The time for which the oldest queued key has waited.
    pub(crate) oldest: Duration,
    /// Sum of the processing times so far of all keys being processed.
    pub(crate) unfinished: Duration,
    /// Longest processing time so far of a key being processed.
    pub(crate) longest: Duration,
}

/// A queue whose state can be read.
pub(crate) trait QueueStats: Send + Sync {
    fn state(&self) -> QueueSnapshot;
}

impl QueueMetrics {
    /// Registers, all with label `name`, `workqueue_depth`, `workqueue_adds_total`,
    /// `workqueue_queue_duration_seconds`, `workqueue_work_duration_seconds`,
    /// `workqueue_unfinished_work_seconds`, `workqueue_longest_running_processor_seconds`,
    /// `workqueue_retries_total`, `ccm_workqueue_delayed` and `ccm_workqueue_oldest_seconds`.
    ///
    /// # Errors
    /// Returns an error if a name is already registered.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            adds: counter(
                registry,
                "workqueue_adds_total",
                "Total number of keys added to the queue.",
            )?,
            waiting: histogram(
                registry,
                "workqueue_queue_duration_seconds",
                "How long keys waited in the queue before a worker processed them.",
            )?,
            working: histogram(
                registry,
                "workqueue_work_duration_seconds",
                "How long the processing of keys took.",
            )?,
            retries: counter(
                registry,
                "workqueue_retries_total",
                "Total number of retries after a failure.",
            )?,
            now: register(registry, QueueGauges::new()?)?,
        })
    }

    /// Adds a queue to the metrics under this name, until it is dropped.
    pub(crate) fn register_queue(
        &self,
        name: &'static str,
        queue: Weak<dyn QueueStats>,
    ) -> QueueSeries {
        self.now.queues.lock().push((name, queue));
        QueueSeries {
            adds: self.adds.with_label_values(&[name]),
            waiting: self.waiting.with_label_values(&[name]),
            working: self.working.with_label_values(&[name]),
            retries: self.retries.with_label_values(&[name]),
        }
    }
}

const LABELS: &[&str] = &["name"];

fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounterVec> {
    register(registry, IntCounterVec::new(Opts::new(name, help), LABELS)?)
}

fn histogram(registry: &Registry, name: &str, help: &str) -> prometheus::Result<HistogramVec> {
    let opts = HistogramOpts::new(name, help).buckets(exponential_buckets(1e-8, 10.0, 10)?);
    register(registry, HistogramVec::new(opts, LABELS)?)
}

/// Gauges that are computed when they are read.
#[derive(Clone, Debug)]
struct QueueGauges {
    depth: GaugeVec,
    delayed: GaugeVec,
    oldest: GaugeVec,
    unfinished: GaugeVec,
    longest: GaugeVec,
    queues: Queues,
}

type Named = (&'static str, Weak<dyn QueueStats>);

#[derive(Clone, Default)]
struct Queues(Arc<Mutex<Vec<Named>>>);

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.lock().iter().map(|(name, _)| name))
            .finish()
    }
}

impl std::ops::Deref for Queues {
    type Target = Mutex<Vec<Named>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

fn gauge(name: &str, help: &str) -> prometheus::Result<GaugeVec> {
    GaugeVec::new(Opts::new(name, help), LABELS)
}

impl QueueGauges {
    fn new() -> prometheus::Result<Self> {
        Ok(Self {
            depth: gauge("workqueue_depth", "Current number of keys in the queue.")?,
            delayed: gauge(
                "ccm_workqueue_delayed",
                "Current number of keys that are delayed, after a failure or until the next check.",
            )?,
            oldest: gauge(
                "ccm_workqueue_oldest_seconds",
                "How long the oldest key has waited in the queue.",
            )?,
            unfinished: gauge(
                "workqueue_unfinished_work_seconds",
                "Total duration of the work in progress. It grows steadily if a worker hangs.",
            )?,
            longest: gauge(
                "workqueue_longest_running_processor_seconds",
                "How long the longest-running worker has processed its key.",
            )?,
            queues: Queues::default(),
        })
    }

    fn families(&self) -> [&GaugeVec; 5] {
        [&self.depth, &self.delayed, &self.oldest, &self.unfinished, &self.longest]
    }
}

impl Collector for QueueGauges {
    fn desc(&self) -> Vec<&Desc> {
        self.families()
            .iter()
            .flat_map(|family| family.desc())
            .collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (name, queue) in &*self.queues.lock() {
            let Some(queue) = queue.upgrade() else {
                continue;
            };
            let state = queue.state();
            for (family, value) in [
                (&self.depth, state.depth as f64),
                (&self.delayed, state.delayed as f64),
                (&self.oldest, state.oldest.as_secs_f64()),
                (&self.unfinished, state.unfinished.as_secs_f64()),
                (&self.longest, state.longest.as_secs_f64()),
            ] {
                family.with_label_values(&[*name]).set(value);
            }
        }
        self.families()
            .iter()
            .flat_map(|family| family.collect())
            .collect()
    }
}

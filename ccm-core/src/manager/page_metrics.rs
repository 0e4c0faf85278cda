//! Reads from the metrics what the page of explanations shows. Nothing is counted for it.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus::proto::{Metric, MetricFamily};
use tokio::time::Instant;

use crate::explain::page::{CallCounts, CallRow, CallTable, QueueRow};

/// The period that counts as recent. It begins when the page was last read before it.
const RECENT: Duration = Duration::from_secs(300);
/// The minimum age of the last count before another one is kept, so that a reader in a hurry does
/// not fill the memory.
const MIN_INTERVAL: Duration = Duration::from_secs(5);

/// The counts of calls by operation.
type Totals = BTreeMap<String, CallCounts>;

/// The counts of calls when the page was read, for the last minutes.
#[derive(Debug, Default)]
pub(super) struct CallHistory(Mutex<VecDeque<(Instant, Totals)>>);

impl CallHistory {
    /// Reads the counts. Compares them with the oldest ones of the last minutes, if the page was
    /// read then.
    pub(super) fn update(&self, families: &[MetricFamily]) -> CallTable {
        let now = Instant::now();
        let totals = totals(families);
        let mut history = self.0.lock();
        while history
            .front()
            .is_some_and(|(at, _)| now.duration_since(*at) > RECENT)
        {
            history.pop_front();
        }
        let earlier = history.front().cloned();
        let is_due = |(at, _): &(Instant, Totals)| now.duration_since(*at) >= MIN_INTERVAL;
        if history.back().is_none_or(is_due) {
            history.push_back((now, totals.clone()));
        }
        drop(history);
        let mut rows = Vec::new();
        for (operation, since_start) in totals {
            let before = earlier
                .as_ref()
                .and_then(|(_, totals)| totals.get(&operation).copied())
                .unwrap_or_default();
            if since_start.calls > 0.0 {
                rows.push(CallRow { recent: since_start.since(before), since_start, operation });
            }
        }
        CallTable {
            seconds: earlier.map(|(at, _)| now.duration_since(at).as_secs()),
            rows,
        }
    }
}

fn totals(families: &[MetricFamily]) -> Totals {
    let mut totals = Totals::new();
    for metric in metrics(families, "ccm_cloud_calls_total") {
        let counts = totals.entry(label(metric, "operation")).or_default();
        let calls = metric.get_counter().get_value();
        counts.calls += calls;
        if label(metric, "outcome") != "success" {
            counts.failed += calls;
        }
    }
    for metric in metrics(families, "ccm_cloud_call_duration_seconds") {
        let counts = totals.entry(label(metric, "operation")).or_default();
        counts.seconds += metric.get_histogram().get_sample_sum();
    }
    totals
}

/// Returns the operations that were called, the number of calls of each, and the number of objects
/// in these calls for operations with batches.
pub(super) fn cloud_calls(families: &[MetricFamily]) -> Vec<(String, f64, Option<f64>)> {
    let mut objects = BTreeMap::new();
    for metric in metrics(families, "ccm_cloud_batch_size") {
        let sum = metric.get_histogram().get_sample_sum();
        objects.insert(label(metric, "operation"), sum);
    }
    totals(families)
        .into_iter()
        .filter(|(_, counts)| counts.calls > 0.0)
        .map(|(operation, counts)| {
            let objects = objects.get(&operation).copied();
            (operation, counts.calls, objects)
        })
        .collect()
}

/// Reads the state of the work queues.
pub(super) fn queues(families: &[MetricFamily]) -> Vec<QueueRow> {
    let gauges = |family: &str| -> BTreeMap<String, f64> {
        metrics(families, family)
            .map(|metric| (label(metric, "name"), metric.get_gauge().get_value()))
            .collect()
    };
    let delayed = gauges("ccm_workqueue_delayed");
    let oldest = gauges("ccm_workqueue_oldest_seconds");
    let retries: BTreeMap<String, f64> = metrics(families, "workqueue_retries_total")
        .map(|metric| (label(metric, "name"), metric.get_counter().get_value()))
        .collect();
    let value =
        |values: &BTreeMap<String, f64>, name: &str| values.get(name).copied().unwrap_or_default();
    gauges("workqueue_depth")
        .into_iter()
        .map(|(name, queued)| QueueRow {
            queued,
            delayed: value(&delayed, &name),
            oldest_seconds: value(&oldest, &name),
            retries: value(&retries, &name),
            name,
        })
        .collect()
}

fn metrics<'a>(families: &'a [MetricFamily], name: &str) -> impl Iterator<Item = &'a Metric> {
    families
        .iter()
        .filter(move |family| family.name() == name)
        .flat_map(MetricFamily::get_metric)
}

fn label(metric: &Metric, name: &str) -> String {
    metric
        .get_label()
        .iter()
        .find(|label| label.name() == name)
        .map(|label| label.value().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::{
        provider::{CloudError, ErrorKind, call_metrics::CloudMetrics},
        telemetry::queue::QueueMetrics,
    };

    fn counts(calls: f64, failed: f64, seconds: f64) -> CallCounts {
        CallCounts { calls, failed, seconds }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_the_last_minutes_are_those_since_the_page_was_read() {
        let registry = Registry::new();
        let metrics = CloudMetrics::register(&registry).unwrap();
        let history = CallHistory::default();
        let list = |error| metrics.observe("list_routes", Duration::from_secs(2), error);
        list(None);
        let first = history.update(&registry.gather());
        assert_eq!((first.seconds, first.rows.len()), (None, 1), "only what was called has a row");
        assert_eq!(first.rows[0].recent, counts(1.0, 0.0, 2.0), "all since the start");
        // A minute later.
        tokio::time::advance(Duration::from_secs(60)).await;
        list(Some(&CloudError::new(ErrorKind::Throttled, "no")));
        let second = history.update(&registry.gather());
        assert_eq!(second.seconds, Some(60));
        assert_eq!(second.rows[0].recent, counts(1.0, 1.0, 2.0));
        assert_eq!(second.rows[0].since_start, counts(2.0, 1.0, 4.0));
        // What was read more than five minutes ago is forgotten.
        tokio::time::advance(Duration::from_secs(270)).await;
        let third = history.update(&registry.gather());
        assert_eq!(third.seconds, Some(270));
        assert_eq!(third.rows[0].recent, counts(0.0, 0.0, 0.0));
    }

    #[test]
    fn calls_are_read_with_their_objects() {
        let registry = Registry::new();
        let metrics = CloudMetrics::register(&registry).unwrap();
        let batch = |size| {
            metrics.observe_batch("describe_instances", size, Duration::ZERO, None);
        };
        batch(3);
        batch(4);
        metrics.observe("plan_load_balancer", Duration::ZERO, None);
        assert_eq!(
            cloud_calls(&registry.gather()),
            [
                ("describe_instances".to_owned(), 2.0, Some(7.0)),
                ("plan_load_balancer".to_owned(), 1.0, None),
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_in_a_hurry_fills_no_memory() {
        let registry = Registry::new();
        let history = CallHistory::default();
        for _ in 0..1000 {
            history.update(&registry.gather());
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(history.0.lock().len(), 20, "one for five seconds of a hundred");
    }

    #[tokio::test(start_paused = true)]
    async fn queues_are_read_with_what_waits_in_them() {
        let registry = Registry::new();
        let metrics = QueueMetrics::register(&registry).unwrap();
        let queue = crate::runtime::work_queue::WorkQueue::named("service", &metrics);
        queue.add(1);
        queue.add_after(2, Duration::from_secs(60));
        queue.failed(&3);
        tokio::time::advance(Duration::from_secs(7)).await;
        let rows = queues(&registry.gather());
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert_eq!((&*row.name, row.queued, row.delayed), ("service", 1.0, 1.0));
        assert_eq!((row.oldest_seconds, row.retries), (7.0, 1.0));
    }
}

//! A work queue of keys, with delays and back-off.
//!
//! Each key is queued at most once, and at most one worker processes it at a time.
//!
//! The semantics are those of client-go's rate-limited work queue, except that the caller computes
//! the delays, because only the code that saw an error knows what it means.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, VecDeque},
    hash::Hash,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::telemetry::queue::{QueueMetrics, QueueSeries, QueueSnapshot, QueueStats};

/// The maximum delay of a key. It keeps the sum of the current time and the delay in range,
/// whatever delay a server requests.
const MAX_DELAY: Duration = Duration::from_secs(24 * 3600);

/// A queue of keys to process. Clones share one queue.
#[derive(Debug)]
pub struct WorkQueue<K> {
    inner: Arc<QueueInner<K>>,
}

#[derive(Debug)]
struct QueueInner<K> {
    state: Mutex<QueueState<K>>,
    wake: Notify,
}

#[derive(Debug)]
struct QueueState<K> {
    ready: VecDeque<K>,
    /// The keys to process, with the time when each was added. These are the keys in `ready` and
    /// the keys that were added again while a worker processes them.
    dirty: HashMap<K, Instant>,
    /// The keys that workers process, with the time when each was taken.
    in_progress: HashMap<K, Instant>,
    /// The time when each delayed key is due. `timers` may also contain outdated entries.
    due: HashMap<K, Instant>,
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    timer_keys: HashMap<u64, K>,
    next_timer: u64,
    failures: HashMap<K, u32>,
    series: Option<QueueSeries>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<K: Clone + Eq + Hash> Default for WorkQueue<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    /// Creates an empty queue without metrics.
    pub fn new() -> Self {
        let state = QueueState {
            ready: VecDeque::new(),
            dirty: HashMap::new(),
            in_progress: HashMap::new(),
            due: HashMap::new(),
            timers: BinaryHeap::new(),
            timer_keys: HashMap::new(),
            next_timer: 0,
            failures: HashMap::new(),
            series: None,
        };
        Self {
            inner: Arc::new(QueueInner { state: Mutex::new(state), wake: Notify::new() }),
        }
    }

    /// Creates an empty queue with metrics under this name.
    pub fn named(name: &'static str, metrics: &QueueMetrics) -> Self
    where
        K: Send + 'static,
    {
        let queue = Self::new();
        let inner: Weak<QueueInner<K>> = Arc::downgrade(&queue.inner);
        queue.inner.state.lock().series = Some(metrics.register_queue(name, inner));
        queue
    }

    /// Queues a key. A key that is already queued keeps its position. A key that a worker processes
    /// is queued again when the worker calls [`done`](Self::done).
    pub fn add(&self, key: K) {
        self.inner.state.lock().add(key);
        self.inner.wake.notify_one();
    }

    /// Queues a key after `delay`. If a key has several delays, the earliest counts, and
    /// [`add`](Self::add) overrides it.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = Instant::now() + delay.min(MAX_DELAY);
        let mut state = self.inner.state.lock();
        if state.due.get(&key).is_some_and(|due| *due <= at) {
            return;
        }
        let timer = state.next_timer;
        state.next_timer += 1;
        state.due.insert(key.clone(), at);
        state.timer_keys.insert(timer, key);
        state.timers.push(Reverse((at, timer)));
        state.drop_stale_timers();
        drop(state);
        self.inner.wake.notify_one();
    }

    /// Counts a failure of the key and returns the number of failures in a row, including this one.
    pub fn failed(&self, key: &K) -> u32 {
        let mut state = self.inner.state.lock();
        if let Some(series) = &state.series {
            series.retries.inc();
        }
        let count = state.failures.entry(key.clone()).or_default();
        *count = count.saturating_add(1);
        *count
    }

    /// Resets the failures of a key. Keeps its delay.
    pub fn succeeded(&self, key: &K) {
        self.inner.state.lock().failures.remove(key);
    }

    /// Returns the keys that workers process now.
    pub fn in_progress(&self) -> Vec<K> {
        self.inner
            .state
            .lock()
            .in_progress
            .keys()
            .cloned()
            .collect()
    }

    /// Resets the failures of a key and cancels its delay.
    pub fn forget(&self, key: &K) {
        let mut state = self.inner.state.lock();
        state.failures.remove(key);
        state.due.remove(key);
    }

    /// Waits for the next key. No other worker gets it until the caller calls [`done`](Self::done).
    ///
    /// # Cancellation
    /// Dropping the future loses no key.
    pub async fn get(&self) -> K {
        loop {
            let woken = self.inner.wake.notified();
            let next_due = {
                let mut state = self.inner.state.lock();
                state.move_due_to_ready(Instant::now());
                if let Some(key) = state.take() {
                    // Wake another worker if there are more keys: `notify_one` stores only one
                    // permit.
                    if !state.ready.is_empty() {
                        self.inner.wake.notify_one();
                    }
                    return key;
                }
                state.timers.peek().map(|Reverse((at, _))| *at)
            };
            match next_due {
                Some(at) => {
                    tokio::select! {
                        () = woken => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => woken.await,
            }
        }
    }

    /// Ends the processing of a key, and queues it again if it was added meanwhile.
    pub fn done(&self, key: &K) {
        let mut state = self.inner.state.lock();
        let taken_at = state.in_progress.remove(key);
        if let (Some(taken_at), Some(series)) = (taken_at, &state.series) {
            series.working.observe(taken_at.elapsed().as_secs_f64());
        }
        if state.dirty.contains_key(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.inner.wake.notify_one();
        }
    }

    /// Returns the number of queued keys, without delayed ones.
    pub fn len(&self) -> usize {
        self.inner.state.lock().ready.len()
    }

    /// Returns true if no key is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Clone + Eq + Hash> QueueState<K> {
    fn add(&mut self, key: K) {
        self.due.remove(&key);
        if self.dirty.contains_key(&key) {
            return;
        }
        if let Some(series) = &self.series {
            series.adds.inc();
        }
        self.dirty.insert(key.clone(), Instant::now());
        if !self.in_progress.contains_key(&key) {
            self.ready.push_back(key);
        }
    }

    /// Removes outdated timers if more than half of them are outdated. Otherwise they would use
    /// memory until their time, which may be hours away.
    fn drop_stale_timers(&mut self) {
        if self.timers.len() <= 2 * self.due.len() + 64 {
            return;
        }
        let due = &self.due;
        let timer_keys = &mut self.timer_keys;
        let mut keys_with_timer = HashSet::new();
        self.timers.retain(|Reverse((at, timer))| {
            let is_current = timer_keys
                .get(timer)
                .is_some_and(|key| due.get(key) == Some(at) && keys_with_timer.insert(key.clone()));
            if !is_current {
                timer_keys.remove(timer);
            }
            is_current
        });
    }

    /// Takes the next key for a worker.
    fn take(&mut self) -> Option<K> {
        let key = self.ready.pop_front()?;
        let now = Instant::now();
        let added_at = self.dirty.remove(&key);
        if let (Some(added_at), Some(series)) = (added_at, &self.series) {
            series.waiting.observe((now - added_at).as_secs_f64());
        }
        self.in_progress.insert(key.clone(), now);
        Some(key)
    }

    /// Queues the keys whose delay is over.
    fn move_due_to_ready(&mut self, now: Instant) {
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            // A timer is outdated if its key was added or rescheduled meanwhile.
            let is_current = self
                .timer_keys
                .get(&timer)
                .is_some_and(|key| self.due.get(key) == Some(&at));
            if is_current && at > now {
                return;
            }
            self.timers.pop();
            if let Some(key) = self.timer_keys.remove(&timer)
                && is_current
            {
                self.add(key);
            }
        }
    }
}

impl<K: Send> QueueStats for QueueInner<K> {
    fn state(&self) -> QueueSnapshot {
        let state = self.state.lock();
        let now = Instant::now();
        let waiting = state.dirty.values().map(|since| now - *since);
        let working = state.in_progress.values().map(|since| now - *since);
        QueueSnapshot {
            depth: state.dirty.len(),
            delayed: state.due.len(),
            oldest: waiting.max().unwrap_or_default(),
            unfinished: working.clone().sum(),
            longest: working.max().unwrap_or_default(),
        }
    }
}

/// Exponential back-off with a maximum and jitter.
///
/// Each controller has its own values, in a constant `BACKOFF` such as the one in
/// `controllers/service/sync_error.rs`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The delay after the first failure. It doubles with each further failure.
    pub first: Duration,
    /// The maximum delay, without jitter.
    pub cap: Duration,
}

impl Backoff {
    /// Returns the delay after `failures` failures in a row, lengthened at random by up to a tenth.
    ///
    /// The jitter keeps keys that failed together from being retried together.
    pub fn delay(&self, failures: u32) -> Duration {
        let base = self.base(failures);
        base + base.mul_f64(rand::random_range(0.0..0.1))
    }

    /// Returns the delay after `failures` failures in a row, lengthened by up to a tenth so that
    /// many keys become due at the same time.
    ///
    /// Use it for work that is cheaper in batches. `elapsed` is the time since a start time that
    /// all keys share.
    pub fn shared_delay(&self, failures: u32, elapsed: Duration) -> Duration {
        let base = self.base(failures);
        let step = (base / 10).max(Duration::from_nanos(1));
        let over = (elapsed + base).as_nanos() % step.as_nanos();
        let missing = (step.as_nanos() - over) % step.as_nanos();
        base + Duration::from_nanos(u64::try_from(missing).unwrap_or(0))
    }

    fn base(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        self.first.saturating_mul(1 << doublings).min(self.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_in_line_once_and_owned_by_one() {
        let queue = WorkQueue::new();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.get().await, "a");
        queue.add("a");
        assert_eq!(queue.get().await, "b", "an owned key waits for its owner");
        assert!(queue.is_empty());
        queue.done(&"a");
        assert_eq!(queue.get().await, "a");
        queue.done(&"a");
        queue.done(&"b");
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn outdated_timers_do_not_pile_up() {
        let queue = WorkQueue::new();
        queue.add_after("first", Duration::from_secs(3000));
        for _ in 0..1000 {
            queue.add_after("a", Duration::from_secs(3600));
            queue.add("a");
            assert_eq!(queue.get().await, "a");
            queue.done(&"a");
        }
        {
            let state = queue.inner.state.lock();
            assert!(
                state.timers.len() <= 70 && state.timer_keys.len() == state.timers.len(),
                "{}",
                state.timers.len()
            );
        }
        assert_eq!(queue.get().await, "first");
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_delay_counts_and_an_add_overrides_it() {
        let queue = WorkQueue::new();
        let start = Instant::now();
        queue.add_after("a", Duration::from_secs(10));
        queue.add_after("a", Duration::from_secs(3));
        queue.add_after("a", Duration::from_secs(5));
        assert_eq!(queue.get().await, "a");
        assert_eq!(start.elapsed(), Duration::from_secs(3));
        queue.done(&"a");
        queue.add_after("a", Duration::from_secs(10));
        queue.add("a");
        assert_eq!(queue.get().await, "a");
        assert_eq!(start.elapsed(), Duration::from_secs(3));
        queue.done(&"a");
        let again = tokio::time::timeout(Duration::from_secs(60), queue.get()).await;
        assert!(again.is_err(), "the overridden delay must not bring the key back");
    }

    #[tokio::test(start_paused = true)]
    async fn every_worker_gets_work_that_arrives_together() {
        let queue = WorkQueue::new();
        let workers: Vec<_> = (0..3)
            .map(|_| {
                tokio::spawn({
                    let queue = queue.clone();
                    async move { queue.get().await }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        for key in [1, 2, 3] {
            queue.add_after(key, Duration::from_secs(1));
        }
        let mut got = Vec::new();
        for worker in workers {
            got.push(
                tokio::time::timeout(Duration::from_secs(5), worker)
                    .await
                    .unwrap()
                    .unwrap(),
            );
        }
        got.sort_unstable();
        assert_eq!(got, [1, 2, 3]);
    }

    #[test]
    fn backoff_doubles_up_to_its_cap() {
        let backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(30) };
        for (failures, base) in [(1, 1), (2, 2), (5, 16), (6, 30), (1000, 30)] {
            let delay = backoff.delay(failures).as_secs_f64();
            assert!(
                (f64::from(base)..f64::from(base) * 1.1).contains(&delay),
                "{failures}: {delay}"
            );
        }
    }

    #[test]
    fn shared_delays_of_keys_that_failed_at_different_times_end_together() {
        let backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(30) };
        let mut ends = std::collections::BTreeSet::new();
        for millis in (0..30_000).step_by(7) {
            let elapsed = Duration::from_millis(millis);
            let delay = backoff.shared_delay(9, elapsed);
            assert!(
                (Duration::from_secs(30)..=Duration::from_secs(33)).contains(&delay),
                "{delay:?}"
            );
            ends.insert(elapsed + delay);
        }
        assert_eq!(ends.len(), 11, "{ends:?}");
        assert_eq!(backoff.shared_delay(1, Duration::ZERO), Duration::from_secs(1));
    }

    #[test]
    fn failures_count_up_until_forgotten() {
        let queue = WorkQueue::new();
        assert_eq!((queue.failed(&"a"), queue.failed(&"a"), queue.failed(&"b")), (1, 2, 1));
        queue.forget(&"a");
        assert_eq!(queue.failed(&"a"), 1);
        queue.succeeded(&"a");
        assert_eq!(queue.failed(&"a"), 1);
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small whole numbers"
    )]
    #[tokio::test(start_paused = true)]
    async fn a_named_queue_is_measured_as_upstream_measures_its_own() {
        let registry = prometheus::Registry::new();
        let metrics = QueueMetrics::register(&registry).unwrap();
        let queue = WorkQueue::named("service", &metrics);
        let value = |name: &str| {
            let families = registry.gather();
            let family = families
                .iter()
                .find(|family| family.name() == name)
                .expect(name);
            let metric = &family.get_metric()[0];
            assert_eq!(
                (metric.get_label()[0].name(), metric.get_label()[0].value()),
                ("name", "service")
            );
            match family.get_field_type() {
                prometheus::proto::MetricType::COUNTER => metric.get_counter().get_value() as u64,
                prometheus::proto::MetricType::GAUGE => metric.get_gauge().get_value() as u64,
                _ => metric.get_histogram().get_sample_sum() as u64,
            }
        };
        let seconds = Duration::from_secs;
        for name in [
            "workqueue_depth",
            "workqueue_adds_total",
            "workqueue_retries_total",
            "ccm_workqueue_delayed",
        ] {
            assert_eq!(value(name), 0, "{name} is there from the start");
        }
        for key in ["a", "a", "b"] {
            queue.add(key);
        }
        tokio::time::advance(seconds(2)).await;
        assert_eq!(queue.get().await, "a");
        queue.add("a");
        queue.failed(&"b");
        queue.add_after("c", seconds(60));
        tokio::time::advance(seconds(3)).await;
        for (name, expected) in [
            ("workqueue_depth", 2),
            ("workqueue_adds_total", 3),
            ("workqueue_queue_duration_seconds", 2),
            ("workqueue_unfinished_work_seconds", 3),
            ("workqueue_longest_running_processor_seconds", 3),
            ("workqueue_retries_total", 1),
            ("ccm_workqueue_delayed", 1),
            ("ccm_workqueue_oldest_seconds", 5),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
        queue.done(&"a");
        assert_eq!(value("workqueue_work_duration_seconds"), 3);
        assert_eq!(value("workqueue_unfinished_work_seconds"), 0);
        drop(queue);
        assert_eq!(value("workqueue_adds_total"), 3, "a queue that is gone breaks no scrape");
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_keeps_what_was_delayed_meanwhile() {
        let queue = WorkQueue::new();
        queue.add("a");
        assert_eq!(queue.get().await, "a");
        assert_eq!(queue.in_progress(), ["a"]);
        queue.add_after("a", Duration::from_secs(1));
        queue.succeeded(&"a");
        queue.done(&"a");
        assert_eq!(queue.in_progress(), [""; 0]);
        assert_eq!(tokio::time::timeout(Duration::from_secs(2), queue.get()).await, Ok("a"));
    }
}

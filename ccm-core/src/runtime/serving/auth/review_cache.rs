//! A cache of reviews in which equal reviews share one request.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    future::Future,
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The key of a cached answer: a keyed hash of the review, so that no credential stays in memory
/// and no client can choose the key.
pub(super) type Key = [u8; 32];

/// The error of a review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReviewError {
    /// The request to the API server failed. Contains the reason, without a credential, for the log
    /// only.
    Failed(Arc<str>),
    /// Too many reviews are in flight, and no request was sent.
    Busy,
}

impl ReviewError {
    pub(super) fn failed(reason: impl Into<Arc<str>>) -> Self {
        Self::Failed(reason.into())
    }
}

type PendingReview<V> = BoxFuture<'static, Result<V, ReviewError>>;
type SharedReview<V> = Shared<PendingReview<V>>;

/// Cache of the API server's answers. Each answer is cached for a limited time. The number of
/// cached answers is limited, and so is the number of reviews in flight. At most one review is in
/// flight for each key.
///
/// # Cancellation
/// A review is driven by the callers that wait for its answer; it ends when all of them are
/// dropped.
pub(super) struct ReviewCache<V: Clone> {
    state: Arc<Mutex<CacheState<V>>>,
}

struct CacheState<V: Clone> {
    capacity: usize,
    /// The maximum number of reviews in flight.
    pending: usize,
    entries: HashMap<Key, (Instant, V)>,
    /// The same keys, ordered by expiration.
    expirations: BTreeSet<(Instant, Key)>,
    in_flight: HashMap<Key, (u64, WeakShared<PendingReview<V>>)>,
    /// ID of the last review, so that one that ends late does not remove its successor.
    next_id: u64,
}

impl<V: Clone + Send + Sync + 'static> ReviewCache<V> {
    pub(super) fn new(capacity: usize, pending: usize) -> Self {
        let state = CacheState {
            capacity: capacity.max(1),
            pending,
            entries: HashMap::new(),
            expirations: BTreeSet::new(),
            in_flight: HashMap::new(),
            next_id: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the cached answer, or waits for the review in flight, or starts a review. An error
    /// goes to all callers that wait and is not cached. Fails immediately if too many reviews are
    /// in flight.
    pub(super) async fn get<F>(&self, key: Key, ask: impl FnOnce() -> F) -> Result<V, ReviewError>
    where
        F: Future<Output = Result<(V, Duration), ReviewError>> + Send + 'static,
    {
        let asking = {
            let mut state = self.state.lock();
            if let Some(value) = state.get_valid(&key, Instant::now()) {
                return Ok(value);
            }
            match state
                .in_flight
                .get(&key)
                .and_then(|(_, asking)| asking.upgrade())
            {
                Some(asking) => asking,
                None if state.in_flight.len() >= state.pending => return Err(ReviewError::Busy),
                None => self.start(&mut state, key, ask()),
            }
        };
        asking.await
    }

    fn start<F>(&self, state: &mut CacheState<V>, key: Key, ask: F) -> SharedReview<V>
    where
        F: Future<Output = Result<(V, Duration), ReviewError>> + Send + 'static,
    {
        state.next_id += 1;
        let over = InFlightGuard { state: Arc::clone(&self.state), key, number: state.next_id };
        let asking = async move {
            let (value, keep_for) = ask.await?;
            over.state
                .lock()
                .store(over.key, Instant::now(), keep_for, value.clone());
            Ok(value)
        }
        .boxed()
        .shared();
        if let Some(weak) = asking.downgrade() {
            state.in_flight.insert(key, (state.next_id, weak));
        }
        asking
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        (state.entries.len(), state.expirations.len(), state.in_flight.len())
    }
}

impl<V: Clone> CacheState<V> {
    fn get_valid(&self, key: &Key, now: Instant) -> Option<V> {
        self.entries
            .get(key)
            .filter(|(end, _)| now < *end)
            .map(|(_, value)| value.clone())
    }

    fn store(&mut self, key: Key, now: Instant, keep_for: Duration, value: V) {
        if keep_for.is_zero() {
            return;
        }
        self.forget(&key);
        while let Some((end, oldest)) = self.expirations.first().copied() {
            if now < end && self.entries.len() < self.capacity {
                break;
            }
            self.forget(&oldest);
        }
        // A time beyond the range of `Instant` cannot be represented, so such an answer is not
        // cached.
        let Some(end) = now.checked_add(keep_for) else {
            return;
        };
        self.entries.insert(key, (end, value));
        self.expirations.insert((end, key));
    }

    fn forget(&mut self, key: &Key) {
        if let Some((end, _)) = self.entries.remove(key) {
            self.expirations.remove(&(end, *key));
        }
    }
}

/// Removes a review from those in flight when it is answered, fails or is dropped.
struct InFlightGuard<V: Clone> {
    state: Arc<Mutex<CacheState<V>>>,
    key: Key,
    number: u64,
}

impl<V: Clone> Drop for InFlightGuard<V> {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        if state
            .in_flight
            .get(&self.key)
            .is_some_and(|(number, _)| *number == self.number)
        {
            state.in_flight.remove(&self.key);
        }
    }
}

impl<V: Clone> fmt::Debug for ReviewCache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answers")
    }
}

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

/// Key of an answer: a keyed hash of the question, so that no credential stays in memory and nobody can choose it.
pub(super) type Key = [u8; 32];

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unasked {
    /// The API server could not be asked. It says why, without a credential, for the log alone.
    Failed(Arc<str>),
    /// Too many questions are pending; it was not asked at all.
    Busy,
}

impl Unasked {
    pub(super) fn failed(why: impl Into<Arc<str>>) -> Self {
        Self::Failed(why.into())
    }
}

type Asked<V> = BoxFuture<'static, Result<V, Unasked>>;
type Asking<V> = Shared<Asked<V>>;

/// Answers of the API server: each kept for a time, at most so many, and asked for once at a time, at most so many at once.
///
/// # Cancellation
/// A question is carried by those who wait for its answer; it ends when all of them have gone.
pub(super) struct Answers<V: Clone> {
    state: Arc<Mutex<State<V>>>,
}

struct State<V: Clone> {
    capacity: usize,
    /// Questions that may be pending.
    pending: usize,
    kept: HashMap<Key, (Instant, V)>,
    /// The same, by the time they end.
    ends: BTreeSet<(Instant, Key)>,
    asking: HashMap<Key, (u64, WeakShared<Asked<V>>)>,
    /// Number of the last question, so that one that ends late does not forget its successor.
    asked: u64,
}

impl<V: Clone + Send + Sync + 'static> Answers<V> {
    pub(super) fn new(capacity: usize, pending: usize) -> Self {
        let state = State {
            capacity: capacity.max(1),
            pending,
            kept: HashMap::new(),
            ends: BTreeSet::new(),
            asking: HashMap::new(),
            asked: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the answer that is kept, or waits for the one that is being asked for, or asks. A failure is told to those
    /// who wait and is not kept. One question too many fails at once.
    pub(super) async fn get<F>(&self, key: Key, ask: impl FnOnce() -> F) -> Result<V, Unasked>
    where
        F: Future<Output = Result<(V, Duration), Unasked>> + Send + 'static,
    {
        let asking = {
            let mut state = self.state.lock();
            if let Some(value) = state.fresh(&key, Instant::now()) {
                return Ok(value);
            }
            match state.asking.get(&key).and_then(|(_, asking)| asking.upgrade()) {
                Some(asking) => asking,
                None if state.asking.len() >= state.pending => return Err(Unasked::Busy),
                None => self.start(&mut state, key, ask()),
            }
        };
        asking.await
    }

    fn start<F>(&self, state: &mut State<V>, key: Key, ask: F) -> Asking<V>
    where
        F: Future<Output = Result<(V, Duration), Unasked>> + Send + 'static,
    {
        state.asked += 1;
        let over = Over { state: Arc::clone(&self.state), key, number: state.asked };
        let asking = async move {
            let (value, keep_for) = ask.await?;
            over.state.lock().keep(over.key, Instant::now(), keep_for, value.clone());
            Ok(value)
        }
        .boxed()
        .shared();
        if let Some(weak) = asking.downgrade() {
            state.asking.insert(key, (state.asked, weak));
        }
        asking
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        (state.kept.len(), state.ends.len(), state.asking.len())
    }
}

impl<V: Clone> State<V> {
    fn fresh(&self, key: &Key, now: Instant) -> Option<V> {
        self.kept.get(key).filter(|(end, _)| now < *end).map(|(_, value)| value.clone())
    }

    fn keep(&mut self, key: Key, now: Instant, keep_for: Duration, value: V) {
        if keep_for.is_zero() {
            return;
        }
        self.forget(&key);
        while let Some((end, oldest)) = self.ends.first().copied() {
            if now < end && self.kept.len() < self.capacity {
                break;
            }
            self.forget(&oldest);
        }
        // An end beyond all times cannot be reached: what has none is not kept.
        let Some(end) = now.checked_add(keep_for) else { return };
        self.kept.insert(key, (end, value));
        self.ends.insert((end, key));
    }

    fn forget(&mut self, key: &Key) {
        if let Some((end, _)) = self.kept.remove(key) {
            self.ends.remove(&(end, *key));
        }
    }
}

/// Forgets the question when it is answered, failed or given up.
struct Over<V: Clone> {
    state: Arc<Mutex<State<V>>>,
    key: Key,
    number: u64,
}

impl<V: Clone> Drop for Over<V> {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        if state.asking.get(&self.key).is_some_and(|(number, _)| *number == self.number) {
            state.asking.remove(&self.key);
        }
    }
}

impl<V: Clone> fmt::Debug for Answers<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answers")
    }
}

//! A value that is read once for all concurrent callers, and cached for a limited time.

use std::{future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Op;

/// A value of the cloud that many calls need, such as the subnets of a network.
///
/// Concurrent callers share one read. Each call says how old the value may be. A provider that
/// changes what the value shows calls [`invalidate`](Self::invalidate), so that a read that began
/// before the change is not used after it.
///
/// It holds one value. A cache with a key, or one whose entries follow the provider's own changes,
/// needs a type of its own.
///
/// ```
/// use std::time::Duration;
///
/// use ccm_core::provider::{CloudError, Op, SharedRead};
///
/// const MAX_AGE: Duration = Duration::from_secs(300);
///
/// #[derive(Default)]
/// struct Cloud {
///     zones: SharedRead<Vec<String>>,
/// }
///
/// impl Cloud {
///     async fn has_zone(&self, op: &Op, name: &str) -> Result<bool, CloudError> {
///         let zones = self.zones.get(op, MAX_AGE, self.list_zones(op)).await?;
///         Ok(zones.iter().any(|zone| zone == name))
///     }
///
///     async fn list_zones(&self, _: &Op) -> Result<Vec<String>, CloudError> {
///         Ok(vec!["north".to_owned()])
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), CloudError> {
/// # let op = Op::new("kubernetes", Default::default(), ccm_core::write_gate::WriteGate::always_open());
/// # assert!(Cloud::default().has_zone(&op, "north").await?);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SharedRead<T> {
    /// Held by the caller that reads; the others wait for its result.
    read_lock: tokio::sync::Mutex<()>,
    state: Mutex<ReadState<T>>,
}

#[derive(Debug)]
struct ReadState<T> {
    last: Option<ReadValue<T>>,
    /// The number of reads that have begun.
    started: u64,
    /// Reads up to this number are no longer valid.
    invalidated: u64,
}

#[derive(Debug)]
struct ReadValue<T> {
    value: Arc<T>,
    /// The time when the read began, because the response may be as old as that.
    at: Instant,
    /// The number of the read.
    number: u64,
}

impl<T> Default for SharedRead<T> {
    fn default() -> Self {
        Self {
            read_lock: tokio::sync::Mutex::default(),
            state: Mutex::new(ReadState { last: None, started: 0, invalidated: 0 }),
        }
    }
}

impl<T> SharedRead<T> {
    /// Returns the cached value if its read began less than `max_age` ago, or after this call.
    /// Otherwise runs `read`. With [`Duration::ZERO`], the read always begins after this call.
    ///
    /// # Errors
    /// The error of `read`. The previous value stays cached, and the next waiting caller reads.
    ///
    /// # Cancellation
    /// If the caller that reads is dropped, the next waiting caller reads.
    pub async fn get<E>(
        &self,
        op: &Op,
        max_age: Duration,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<Arc<T>, E> {
        let arrived = self.state.lock().started;
        if let Some(value) = self.valid(max_age, arrived) {
            return Ok(value);
        }
        let _reading = op.wait_shared(self.read_lock.lock()).await;
        // Another caller may have read the value meanwhile.
        if let Some(value) = self.valid(max_age, arrived) {
            return Ok(value);
        }
        let number = {
            let mut state = self.state.lock();
            state.started += 1;
            state.started
        };
        let at = Instant::now();
        let value = Arc::new(read.await?);
        self.state.lock().last = Some(ReadValue { value: value.clone(), at, number });
        Ok(value)
    }

    /// Returns the cached value if its read began less than `max_age` ago, without a read.
    pub fn cached(&self, max_age: Duration) -> Option<Arc<T>> {
        self.valid(max_age, u64::MAX)
    }

    /// Drops the cached value, and later the result of a read in flight, which only the caller that
    /// reads still gets.
    pub fn invalidate(&self) {
        let mut state = self.state.lock();
        state.invalidated = state.started;
        state.last = None;
    }

    /// Returns the cached value if it is young enough, or if its read began after `arrived` others.
    fn valid(&self, max_age: Duration, arrived: u64) -> Option<Arc<T>> {
        let state = self.state.lock();
        let last = state.last.as_ref()?;
        let is_recent = last.number > arrived || last.at.elapsed() < max_age;
        if is_recent && last.number > state.invalidated {
            Some(last.value.clone())
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::write_gate::WriteGate;

    const AGE: Duration = Duration::from_secs(300);
    const FRESH: Duration = Duration::ZERO;

    /// A value whose read takes a second and returns how many reads there were.
    struct Counted {
        shared: SharedRead<u32>,
        count: AtomicU32,
        op: Op,
    }

    impl Counted {
        fn new() -> Self {
            Self {
                shared: SharedRead::default(),
                count: AtomicU32::new(0),
                op: Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open()),
            }
        }

        async fn get(&self, max_age: Duration) -> u32 {
            let read = async {
                let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<u32, ()>(number)
            };
            *self.shared.get(&self.op, max_age, read).await.unwrap()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_read() {
        let value = Counted::new();
        assert_eq!(tokio::join!(value.get(AGE), value.get(AGE)), (1, 1));
        // Calls during a read that are not content with it share the next one.
        let fresh = tokio::join!(value.get(FRESH), value.get(FRESH), value.get(FRESH));
        assert_eq!(fresh, (2, 3, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_is_read_again_when_it_is_too_old_for_the_caller() {
        let value = Counted::new();
        assert_eq!(value.get(AGE).await, 1);
        assert_eq!(value.get(AGE).await, 1);
        tokio::time::advance(AGE).await;
        assert_eq!(value.shared.cached(AGE), None);
        assert_eq!(value.get(AGE * 2).await, 1);
        assert_eq!(value.get(AGE).await, 2);
        assert_eq!(value.shared.cached(AGE).as_deref(), Some(&2));
        value.shared.invalidate();
        assert_eq!(value.shared.cached(AGE), None);
        assert_eq!(value.get(AGE).await, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_age_counts_from_the_begin_of_the_read() {
        let value = Counted::new();
        assert_eq!(value.get(AGE).await, 1);
        tokio::time::advance(Duration::from_secs(299)).await;
        assert_eq!(value.get(AGE).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_began_before_a_change_is_not_used_after_it() {
        let value = Counted::new();
        let change = async {
            tokio::task::yield_now().await;
            value.shared.invalidate();
        };
        let (first, waiting, ()) = tokio::join!(value.get(AGE), value.get(AGE), change);
        assert_eq!((first, waiting), (1, 2));
        assert_eq!(value.get(AGE).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fresh_value_comes_from_a_read_that_began_after_the_call() {
        let value = Counted::new();
        let later = async {
            tokio::task::yield_now().await;
            value.get(FRESH).await
        };
        assert_eq!(tokio::join!(value.get(AGE), later), (1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn callers_share_a_read_that_takes_longer_than_the_value_may_be_old() {
        let value = Counted::new();
        let short = Duration::from_millis(500);
        let shared = tokio::join!(value.get(short), value.get(short), value.get(short));
        assert_eq!(shared, (1, 2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_for_its_caller_alone_and_keeps_the_previous_value() {
        let value = Counted::new();
        assert_eq!(value.get(AGE).await, 1);
        let failed = value.shared.get(&value.op, FRESH, async { Err("no") });
        assert_eq!(failed.await, Err("no"));
        assert_eq!(value.get(AGE).await, 1);
        value.shared.invalidate();
        let failed = value.shared.get(&value.op, AGE, async { Err("no") });
        let (failed, other) = tokio::join!(failed, value.get(AGE));
        assert_eq!((failed, other), (Err("no"), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn if_the_reading_caller_is_dropped_the_next_one_reads() {
        let value = Counted::new();
        let dropped = tokio::time::timeout(Duration::from_millis(100), value.get(AGE));
        let (dropped, other) = tokio::join!(dropped, value.get(AGE));
        assert!(dropped.is_err());
        assert_eq!(other, 2);
    }
}

//! A value that is read from AWS once for all concurrent callers, and cached for a limited time.

use std::{future::Future, sync::Arc, time::Duration};

use ccm_core::provider::Op;
use parking_lot::Mutex;
use tokio::time::Instant;

/// A shared, cached read.
pub(crate) struct SharedRead<T> {
    max_age: Duration,
    /// Held by the caller that reads; the others wait for its result.
    read_lock: tokio::sync::Mutex<()>,
    state: Mutex<ReadState<T>>,
}

struct ReadState<T> {
    last: Option<ReadValue<T>>,
    /// The number of reads that have begun.
    started: u64,
    /// Reads up to this number are no longer valid.
    invalidated: u64,
}

struct ReadValue<T> {
    value: Arc<T>,
    at: Instant,
    number: u64,
}

impl<T> SharedRead<T> {
    /// Creates an empty cache whose value is valid for `max_age`.
    pub(crate) fn new(max_age: Duration) -> Self {
        let state = ReadState { last: None, started: 0, invalidated: 0 };
        Self {
            max_age,
            read_lock: tokio::sync::Mutex::new(()),
            state: Mutex::new(state),
        }
    }

    /// Returns the cached value, or runs `read` if there is no valid one. If `fresh` is set, the
    /// read must begin after this call.
    ///
    /// # Errors
    /// The error of `read`. The previous value stays cached.
    ///
    /// # Cancellation
    /// If the caller that reads is dropped, the next waiting caller reads.
    pub(crate) async fn get<E>(
        &self,
        op: &Op,
        fresh: bool,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<Arc<T>, E> {
        let after = if fresh { self.state.lock().started } else { 0 };
        if let Some(value) = self.valid(after) {
            return Ok(value);
        }
        let _reading = op.wait_shared(self.read_lock.lock()).await;
        if let Some(value) = self.valid(after) {
            return Ok(value);
        }
        let number = {
            let mut state = self.state.lock();
            state.started += 1;
            state.started
        };
        // The age counts from the request, because the response may be as old as that.
        let at = Instant::now();
        let value = Arc::new(read.await?);
        self.state.lock().last = Some(ReadValue { value: value.clone(), at, number });
        Ok(value)
    }

    /// Drops the cached value, and later the result of a read in flight.
    pub(crate) fn invalidate(&self) {
        let mut state = self.state.lock();
        state.invalidated = state.started;
        state.last = None;
    }

    fn valid(&self, after: u64) -> Option<Arc<T>> {
        let state = self.state.lock();
        let last = state.last.as_ref()?;
        if last.number <= after.max(state.invalidated) || last.at.elapsed() >= self.max_age {
            return None;
        }
        Some(last.value.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use ccm_core::write_gate::WriteGate;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn op() -> Op {
        Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
    }

    const AGE: Duration = Duration::from_secs(300);

    async fn slow(count: &AtomicU32) -> Result<u32, ()> {
        let number = count.fetch_add(1, Ordering::Relaxed) + 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(number)
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_ask_at_once_share_one_reading() {
        let (cached, count, op) = (SharedRead::new(AGE), AtomicU32::new(0), op());
        let (a, b) = tokio::join!(
            cached.get(&op, false, slow(&count)),
            cached.get(&op, false, slow(&count))
        );
        assert_eq!((*a.unwrap(), *b.unwrap()), (1, 1));
        // Calls during the first read wait for one read that begins after them.
        let fresh = || cached.get(&op, true, slow(&count));
        let (a, b, c) = tokio::join!(fresh(), fresh(), fresh());
        assert_eq!((*a.unwrap(), *b.unwrap(), *c.unwrap()), (2, 3, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_is_read_again_when_it_is_old_or_forgotten() {
        let (cached, count, op) = (SharedRead::new(AGE), AtomicU32::new(0), op());
        assert_eq!(*cached.get(&op, false, slow(&count)).await.unwrap(), 1);
        assert_eq!(*cached.get(&op, false, slow(&count)).await.unwrap(), 1);
        tokio::time::advance(AGE).await;
        assert_eq!(*cached.get(&op, false, slow(&count)).await.unwrap(), 2);
        cached.invalidate();
        assert_eq!(*cached.get(&op, false, slow(&count)).await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_being_read_when_it_is_forgotten_is_not_kept() {
        let (cached, count, op) = (SharedRead::new(AGE), AtomicU32::new(0), op());
        let forget = async {
            tokio::task::yield_now().await;
            cached.invalidate();
        };
        let (first, ()) = tokio::join!(cached.get(&op, false, slow(&count)), forget);
        assert_eq!(*first.unwrap(), 1);
        assert_eq!(*cached.get(&op, false, slow(&count)).await.unwrap(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_for_a_fresh_value_is_not_answered_by_a_reading_that_began_before() {
        let (cached, count, op) = (SharedRead::new(AGE), AtomicU32::new(0), op());
        let later = async {
            tokio::task::yield_now().await;
            cached.get(&op, true, slow(&count)).await
        };
        let (first, second) = tokio::join!(cached.get(&op, false, slow(&count)), later);
        assert_eq!((*first.unwrap(), *second.unwrap()), (1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_reading_is_no_answer_for_others() {
        let (cached, count, op) = (SharedRead::new(AGE), AtomicU32::new(0), op());
        let failed: Result<Arc<u32>, &str> = cached.get(&op, false, async { Err("no") }).await;
        assert_eq!(failed, Err("no"));
        assert_eq!(*cached.get(&op, false, slow(&count)).await.unwrap(), 1);
    }
}

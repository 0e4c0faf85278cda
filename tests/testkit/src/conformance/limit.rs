//! Bounds for whatever a provider or an adapter does.

use std::{
    future::{Future, poll_fn},
    panic::AssertUnwindSafe,
    pin::pin,
    sync::Arc,
    task::{Poll, Waker},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ccm_core::error::panic_text;
use futures::FutureExt;
use parking_lot::{Condvar, Mutex};

use super::report::{Problem, Verdict};

/// Longest time of a rule by the runtime's clock, which stands still or runs ahead where time is paused. Rules that spoil
/// every call of a slow cloud take days of it.
const LONGEST: Duration = Duration::from_secs(60 * 24 * 3600);

/// How long a run may take, by the wall clock, whether tokio's time is paused or not. A run ends within
/// `suite` and twice `rule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For one rule, and again for cleaning up after it. What takes longer is broken. Twenty minutes by default.
    pub rule: Duration,
    /// For the whole suite. Rules that are not begun then are broken, too. One hour by default.
    pub suite: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rule: Duration::from_secs(20 * 60), suite: Duration::from_secs(60 * 60) }
    }
}

/// Runs a part of a rule, which fails when it panics and when it takes too long, even if nothing wakes it or nothing lets
/// the paused clock go on. Only what keeps its thread is not ended: the runner sees that.
pub(super) async fn limited(limit: Duration, what: &str, work: impl Future<Output = Verdict>) -> Verdict {
    let alarm = Alarm::set(limit);
    let mut work = pin!(AssertUnwindSafe(work).catch_unwind());
    let mut longest = pin!(tokio::time::sleep(LONGEST));
    poll_fn(|cx| {
        alarm.wakes(cx.waker());
        match work.as_mut().poll(cx) {
            Poll::Ready(Ok(verdict)) => return Poll::Ready(verdict),
            Poll::Ready(Err(panic)) => {
                return Poll::Ready(Err(Problem::Failed(format!("{what} panicked: {}", panic_text(&*panic)))));
            }
            Poll::Pending => {}
        }
        if alarm.rang() {
            let seen = format!("{what} did not end within {limit:?}: something never answers, or is never done");
            return Poll::Ready(Err(Problem::Failed(seen)));
        }
        longest.as_mut().poll(cx).map(|()| {
            Err(Problem::Failed(format!(
                "{what} did not end within {LONGEST:?} of virtual time: something never answers"
            )))
        })
    })
    .await
}

/// Wakes a task when a time is over by the wall clock.
struct Alarm {
    end: Instant,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    over: bool,
    waker: Option<Waker>,
}

impl Alarm {
    fn set(limit: Duration) -> Self {
        let (end, shared) = (Instant::now() + limit, Arc::<Shared>::default());
        let own = shared.clone();
        let wait = move || {
            let mut state = own.state.lock();
            while !state.over {
                if own.changed.wait_until(&mut state, end).timed_out() {
                    state.waker.take().into_iter().for_each(Waker::wake);
                    return;
                }
            }
        };
        // Without a thread the end is seen when something else wakes the task.
        let thread = std::thread::Builder::new().name("conformance-alarm".to_owned()).spawn(wait).ok();
        Self { end, shared, thread }
    }

    fn wakes(&self, waker: &Waker) {
        self.shared.state.lock().waker = Some(waker.clone());
    }

    fn rang(&self) -> bool {
        Instant::now() >= self.end
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.shared.state.lock().over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn seen(verdict: Verdict) -> String {
        match verdict {
            Err(Problem::Failed(seen)) => seen,
            other => panic!("{other:?}"),
        }
    }

    async fn spins() -> Verdict {
        loop {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_never_wakes_or_always_does_ends_in_real_time() {
        let began = Instant::now();
        assert!(seen(limited(SHORT, "it", std::future::pending()).await).contains("it did not end within 50ms"));
        assert!(seen(limited(SHORT, "it", spins()).await).contains("it did not end within 50ms"));
        assert!(began.elapsed() < 40 * SHORT, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_never_wakes_or_always_does_ends_where_time_is_paused() {
        assert!(seen(limited(Duration::from_secs(3600), "it", std::future::pending()).await).contains("virtual time"));
        assert!(seen(limited(SHORT, "it", spins()).await).contains("within 50ms"));
    }

    #[tokio::test]
    async fn a_panic_is_told_and_an_end_is_an_end() {
        let text = seen(limited(SHORT, "it", async { panic!("a {}", "bug") }).await);
        assert_eq!(text, "it panicked: a bug");
        assert_eq!(limited(SHORT, "it", async { Ok(()) }).await, Ok(()));
    }
}

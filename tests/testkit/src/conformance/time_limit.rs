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

/// Longest time of a rule by the runtime's clock, which stands still or runs ahead where time is
/// paused. Rules that spoil every call of a slow cloud take days of it.
const LONGEST: Duration = Duration::from_secs(60 * 24 * 3600);

/// How long a run may take, by the wall clock, whether tokio's time is paused or not. A run ends
/// within `suite` and twice `rule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For one rule, and again for cleaning up after it. What takes longer is broken. Twenty
    /// minutes by default.
    pub rule: Duration,
    /// For the whole suite. Rules that are not begun then are broken, too. One hour by default.
    pub suite: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rule: Duration::from_secs(20 * 60),
            suite: Duration::from_secs(60 * 60),
        }
    }
}

/// Told, on a thread of its own, what is to be said of a part that keeps the thread on which it
/// runs.
pub(super) type Kept = Arc<dyn Fn(&str) + Send + Sync>;

/// Looks that find a part as it was, beyond its limit, until it counts as keeping its thread. They
/// are counted, so that a machine which runs neither it nor the one who looks says nothing.
const GRACE: u32 = 10;

/// How often it is looked whether a part still takes note of anything: each second, or sooner where
/// it had less time.
fn tick(limit: Duration) -> Duration {
    limit.clamp(Duration::from_millis(200), Duration::from_secs(1))
}

/// Runs a part of a rule, which fails when it panics and when it takes too long, even if nothing
/// wakes it or nothing lets the paused clock go on. What keeps its thread cannot be ended: `kept`
/// is told, and the runner sees it by itself.
pub(super) async fn limited(
    limit: Duration,
    what: &str,
    kept: Option<Kept>,
    work: impl Future<Output = Verdict>,
) -> Verdict {
    let alarm = WallClockTimer::set(limit, what, kept);
    let mut work = pin!(AssertUnwindSafe(work).catch_unwind());
    let mut longest = pin!(tokio::time::sleep(LONGEST));
    poll_fn(|ctx| {
        alarm.wakes(ctx.waker());
        match work.as_mut().poll(ctx) {
            Poll::Ready(Ok(verdict)) => return Poll::Ready(verdict),
            Poll::Ready(Err(panic)) => {
                return Poll::Ready(Err(Problem::Failed(format!(
                    "{what} panicked: {}",
                    panic_text(&*panic)
                ))));
            }
            Poll::Pending => {}
        }
        if alarm.rang() {
            let seen = format!(
                "{what} did not end within {limit:?}: something never answers, or is never done"
            );
            return Poll::Ready(Err(Problem::Failed(seen)));
        }
        longest.as_mut().poll(ctx).map(|()| {
            Err(Problem::Failed(format!(
                "{what} did not end within {LONGEST:?} of virtual time: something never answers"
            )))
        })
    })
    .await
}

/// Wakes a task when a time is over by the wall clock.
struct WallClockTimer {
    end: Instant,
    shared: Arc<TimerInner>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct TimerInner {
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TimerState {
    over: bool,
    waker: Option<Waker>,
}

impl TimerInner {
    /// Waits for the end, wakes the task, and then for as many ticks as it may take to notice;
    /// tells whether it did.
    fn watch(&self, end: Instant, tick: Duration) -> bool {
        let mut state = self.state.lock();
        while !state.over {
            if self.changed.wait_until(&mut state, end).timed_out() {
                state.waker.take().into_iter().for_each(Waker::wake);
                break;
            }
        }
        for _ in 0..GRACE {
            if state.over {
                return true;
            }
            self.changed.wait_for(&mut state, tick);
        }
        state.over
    }
}

impl WallClockTimer {
    fn set(limit: Duration, what: &str, kept: Option<Kept>) -> Self {
        let (end, shared) = (Instant::now() + limit, Arc::<TimerInner>::default());
        let (own, what) = (shared.clone(), what.to_owned());
        let wait = move || {
            if !own.watch(end, tick(limit))
                && let Some(kept) = kept
            {
                kept(&format!(
                    "{what} keeps its thread: it did not end within {limit:?}, and has not noticed for {:?} that it was \
                     woken",
                    GRACE * tick(limit)
                ));
            }
        };
        // Without a thread the end is seen when something else wakes the task.
        let thread = std::thread::Builder::new()
            .name("conformance-alarm".to_owned())
            .spawn(wait)
            .ok();
        Self { end, shared, thread }
    }

    fn wakes(&self, waker: &Waker) {
        self.shared.state.lock().waker = Some(waker.clone());
    }

    fn rang(&self) -> bool {
        Instant::now() >= self.end
    }
}

impl Drop for WallClockTimer {
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
        assert!(
            seen(limited(SHORT, "it", None, std::future::pending()).await)
                .contains("it did not end within 50ms")
        );
        assert!(
            seen(limited(SHORT, "it", None, spins()).await).contains("it did not end within 50ms")
        );
        assert!(began.elapsed() < 40 * SHORT, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_never_wakes_or_always_does_ends_where_time_is_paused() {
        assert!(
            seen(limited(Duration::from_secs(3600), "it", None, std::future::pending()).await)
                .contains("virtual time")
        );
        assert!(seen(limited(SHORT, "it", None, spins()).await).contains("within 50ms"));
    }

    /// The thread is kept until that is told, so that the test ends.
    #[tokio::test]
    async fn what_keeps_its_thread_is_told_of_and_nothing_else_is() {
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let (told, heard) = std::sync::mpsc::channel();
        let heard = Arc::new(Mutex::new(heard));
        let kept: Kept = {
            let said = said.clone();
            Arc::new(move |text| {
                said.lock().push(text.to_owned());
                told.send(()).ok();
            })
        };
        let keep = move || heard.lock().recv_timeout(Duration::from_secs(60)).is_ok();
        let (keep_it, keep_task) = (keep.clone(), keep);
        let keeps = async move {
            assert!(keep_it(), "it is told");
            Ok(())
        };
        assert!(
            seen(limited(SHORT, "it", Some(kept.clone()), std::future::pending()).await)
                .contains("50ms")
        );
        assert!(seen(limited(SHORT, "it", Some(kept.clone()), spins()).await).contains("50ms"));
        assert_eq!(said.lock().len(), 0);
        assert_eq!(limited(SHORT, "it", Some(kept.clone()), keeps).await, Ok(()));
        let spawned = async {
            let keeps = async move { assert!(keep_task(), "it is told") };
            tokio::spawn(keeps)
                .await
                .map_err(|error| Problem::Failed(error.to_string()))
        };
        assert_eq!(limited(SHORT, "a task", Some(kept), spawned).await, Ok(()));
        let said = said.lock();
        assert!(said[0].starts_with("it keeps its thread: it did not end within 50ms"), "{said:?}");
        assert!(said[1].starts_with("a task keeps its thread"), "{said:?}");
        assert_eq!(said.len(), 2);
    }

    #[tokio::test]
    async fn a_panic_is_told_and_an_end_is_an_end() {
        let text = seen(limited(SHORT, "it", None, async { panic!("a {}", "bug") }).await);
        assert_eq!(text, "it panicked: a bug");
        assert_eq!(limited(SHORT, "it", None, async { Ok(()) }).await, Ok(()));
    }
}

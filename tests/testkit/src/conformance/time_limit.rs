//! Time limits for code of a provider or an adapter.

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

/// Time limit of a rule by tokio's clock, which jumps ahead while time is paused. Rules that inject
/// a fault into every call of a slow cloud take days of it.
const MAX_VIRTUAL_TIME: Duration = Duration::from_secs(60 * 24 * 3600);

/// Time limits of a run, by the wall clock, even if tokio's time is paused. A run ends within
/// `suite` plus twice `rule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Limit of one rule, and again of the cleanup after it. A rule that takes longer is broken.
    /// Twenty minutes by default.
    pub rule: Duration,
    /// Limit of the whole suite. Rules that have not started by then are broken. One hour by
    /// default.
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

/// Called on another thread, with a message, when a part of a rule blocks its thread.
pub(super) type BlockedThreadHook = Arc<dyn Fn(&str) + Send + Sync>;

/// Number of ticks after its limit until a part that has not reacted counts as blocking its thread.
/// Counting ticks avoids a false report when the whole machine was suspended.
const GRACE_TICKS: u32 = 10;

/// Returns the length of a tick: a second, or less if the limit is shorter.
fn tick_length(limit: Duration) -> Duration {
    limit.clamp(Duration::from_millis(200), Duration::from_secs(1))
}

/// Runs a part of a rule. It fails if it panics or exceeds its limit, even if nothing wakes it or
/// the paused clock does not advance. A part that blocks its thread cannot be stopped: `on_blocked`
/// is called instead. The runner passes no hook, because it detects this itself.
pub(super) async fn run_limited(
    limit: Duration,
    what: &str,
    on_blocked: Option<BlockedThreadHook>,
    work: impl Future<Output = Verdict>,
) -> Verdict {
    let timer = WallClockTimer::start(limit, what, on_blocked);
    let mut work = pin!(AssertUnwindSafe(work).catch_unwind());
    let mut virtual_limit = pin!(tokio::time::sleep(MAX_VIRTUAL_TIME));
    poll_fn(|cx| {
        timer.set_waker(cx.waker());
        match work.as_mut().poll(cx) {
            Poll::Ready(Ok(verdict)) => return Poll::Ready(verdict),
            Poll::Ready(Err(panic)) => {
                return Poll::Ready(Err(Problem::Failed(format!(
                    "{what} panicked: {}",
                    panic_text(&*panic)
                ))));
            }
            Poll::Pending => {}
        }
        if timer.is_over() {
            let observed = format!(
                "{what} did not end within {limit:?}: something never answers, or is never done"
            );
            return Poll::Ready(Err(Problem::Failed(observed)));
        }
        virtual_limit.as_mut().poll(cx).map(|()| {
            Err(Problem::Failed(format!(
                "{what} did not end within {MAX_VIRTUAL_TIME:?} of virtual time: something never answers"
            )))
        })
    })
    .await
}

/// Wakes a task at its time limit, by the wall clock.
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
    /// Wakes the task at `end` and waits [`GRACE_TICKS`] for it to react. Returns true if the task
    /// ended.
    fn watch(&self, end: Instant, tick: Duration) -> bool {
        let mut state = self.state.lock();
        while !state.over {
            if self.changed.wait_until(&mut state, end).timed_out() {
                state.waker.take().into_iter().for_each(Waker::wake);
                break;
            }
        }
        for _ in 0..GRACE_TICKS {
            if state.over {
                return true;
            }
            self.changed.wait_for(&mut state, tick);
        }
        state.over
    }
}

impl WallClockTimer {
    fn start(limit: Duration, what: &str, on_blocked: Option<BlockedThreadHook>) -> Self {
        let (end, shared) = (Instant::now() + limit, Arc::<TimerInner>::default());
        let (inner, what) = (shared.clone(), what.to_owned());
        let watch = move || {
            if !inner.watch(end, tick_length(limit))
                && let Some(on_blocked) = on_blocked
            {
                on_blocked(&format!(
                    "{what} blocks its thread: it did not end within {limit:?}, and has not reacted for \
                     {:?} after it was woken",
                    GRACE_TICKS * tick_length(limit)
                ));
            }
        };
        // If the thread cannot be spawned, the limit is noticed when something else wakes the task.
        let thread = std::thread::Builder::new()
            .name("conformance-timer".to_owned())
            .spawn(watch)
            .ok();
        Self { end, shared, thread }
    }

    fn set_waker(&self, waker: &Waker) {
        self.shared.state.lock().waker = Some(waker.clone());
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }
}

impl Drop for WallClockTimer {
    fn drop(&mut self) {
        self.shared.state.lock().over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
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
    async fn parts_that_never_wake_or_always_wake_end_in_real_time() {
        let began = Instant::now();
        assert!(
            seen(run_limited(SHORT, "it", None, std::future::pending()).await)
                .contains("it did not end within 50ms")
        );
        assert!(
            seen(run_limited(SHORT, "it", None, spins()).await)
                .contains("it did not end within 50ms")
        );
        assert!(began.elapsed() < 40 * SHORT, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn parts_that_never_wake_or_always_wake_end_in_paused_time() {
        assert!(
            seen(run_limited(Duration::from_secs(3600), "it", None, std::future::pending()).await)
                .contains("virtual time")
        );
        assert!(seen(run_limited(SHORT, "it", None, spins()).await).contains("within 50ms"));
    }

    /// The part blocks its thread until it is reported, so that the test ends.
    #[tokio::test]
    async fn only_parts_that_block_their_thread_are_reported() {
        let messages: Arc<Mutex<Vec<String>>> = Arc::default();
        let (reported, wait_for_report) = std::sync::mpsc::channel();
        let wait_for_report = Arc::new(Mutex::new(wait_for_report));
        let hook: BlockedThreadHook = {
            let messages = messages.clone();
            Arc::new(move |text| {
                messages.lock().push(text.to_owned());
                reported.send(()).ok();
            })
        };
        let block = move || {
            wait_for_report
                .lock()
                .recv_timeout(Duration::from_secs(60))
                .is_ok()
        };
        let (block_part, block_task) = (block.clone(), block);
        let blocks = async move {
            assert!(block_part(), "it is reported");
            Ok(())
        };
        assert!(
            seen(run_limited(SHORT, "it", Some(hook.clone()), std::future::pending()).await)
                .contains("50ms")
        );
        assert!(seen(run_limited(SHORT, "it", Some(hook.clone()), spins()).await).contains("50ms"));
        assert_eq!(messages.lock().len(), 0);
        assert_eq!(run_limited(SHORT, "it", Some(hook.clone()), blocks).await, Ok(()));
        let spawned = async {
            let blocks = async move { assert!(block_task(), "it is reported") };
            tokio::spawn(blocks)
                .await
                .map_err(|error| Problem::Failed(error.to_string()))
        };
        assert_eq!(run_limited(SHORT, "a task", Some(hook), spawned).await, Ok(()));
        let messages = messages.lock();
        assert!(
            messages[0].starts_with("it blocks its thread: it did not end within 50ms"),
            "{messages:?}"
        );
        assert!(messages[1].starts_with("a task blocks its thread"), "{messages:?}");
        assert_eq!(messages.len(), 2);
    }

    #[tokio::test]
    async fn a_panic_is_reported_and_a_finished_part_succeeds() {
        let text = seen(run_limited(SHORT, "it", None, async { panic!("a {}", "bug") }).await);
        assert_eq!(text, "it panicked: a bug");
        assert_eq!(run_limited(SHORT, "it", None, async { Ok(()) }).await, Ok(()));
    }
}

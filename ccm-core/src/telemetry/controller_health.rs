//! Health of the controllers, derived from the results of their reconciles. It is for people and
//! alerts: nothing is stopped or restarted because of it (`docs/decisions/0008-health.md`).

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The number of failures in a row that make a controller degraded. One or two are normal.
const FAILURES: u32 = 3;
/// The minimum time that these failures must have lasted, so that a short outage during a burst of
/// work does not count.
const MIN_FAILING_TIME: Duration = Duration::from_secs(60);
/// The maximum time of one reconcile. Provider calls have much shorter deadlines, so a reconcile
/// that runs longer must hang.
const MAX_RECONCILE_TIME: Duration = Duration::from_secs(600);

/// Running reconciles and recent failures of each controller. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct ControllerHealth(Arc<Mutex<BTreeMap<&'static str, ControllerRecord>>>);

#[derive(Debug, Default)]
struct ControllerRecord {
    /// The start time of each running reconcile, by its ID.
    running: HashMap<u64, Instant>,
    next: u64,
    /// Failures since the last reconcile that did not fail.
    failures: u32,
    /// The time when the first of these failures ended.
    failing_since: Option<Instant>,
}

/// A running reconcile. If it is dropped, the reconcile was given up, which counts neither as
/// success nor as failure.
#[derive(Debug)]
pub struct ReconcileGuard {
    progress: ControllerHealth,
    controller: &'static str,
    id: u64,
}

impl ControllerHealth {
    /// Records that a reconcile begins.
    pub fn begin(&self, controller: &'static str) -> ReconcileGuard {
        let mut controllers = self.0.lock();
        let work = controllers.entry(controller).or_default();
        let id = work.next;
        work.next += 1;
        work.running.insert(id, Instant::now());
        ReconcileGuard { progress: self.clone(), controller, id }
    }

    /// Checks whether a controller gets work done. A controller that has nothing to do passes.
    ///
    /// # Errors
    /// Says what is wrong. The text has no names of objects and no text from a cloud, since
    /// everybody may read it.
    pub fn check(&self, controller: &str) -> Result<(), String> {
        let controllers = self.0.lock();
        let Some(work) = controllers.get(controller) else {
            return Ok(());
        };
        if let Some(since) = work.failing_since
            && work.failures >= FAILURES
            && since.elapsed() >= MIN_FAILING_TIME
        {
            let seconds = since.elapsed().as_secs();
            let failures = work.failures;
            return Err(format!(
                "nothing has succeeded for {seconds}s, {failures} attempts in a row failed"
            ));
        }
        match work.running.values().map(Instant::elapsed).max() {
            Some(longest) if longest >= MAX_RECONCILE_TIME => {
                Err(format!("one attempt has been running for {}s", longest.as_secs()))
            }
            _ => Ok(()),
        }
    }
}

impl ReconcileGuard {
    /// Records the result of the reconcile.
    pub fn end(self, failed: bool) {
        let mut controllers = self.progress.0.lock();
        let work = controllers.entry(self.controller).or_default();
        if failed {
            work.failures = work.failures.saturating_add(1);
            work.failing_since.get_or_insert_with(Instant::now);
        } else {
            work.failures = 0;
            work.failing_since = None;
        }
    }
}

impl Drop for ReconcileGuard {
    fn drop(&mut self) {
        if let Some(work) = self.progress.0.lock().get_mut(self.controller) {
            work.running.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "service-lb-controller";

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn failures_count_when_there_are_several_and_they_last() {
        let progress = ControllerHealth::default();
        let fail = || progress.begin(NAME).end(true);
        assert_eq!(progress.check(NAME), Ok(()), "nothing to do is no fault");
        (0..100).for_each(|_| fail());
        assert_eq!(progress.check(NAME), Ok(()), "a hiccup");
        pass(59).await;
        assert_eq!(progress.check(NAME), Ok(()));
        pass(1).await;
        let why = "nothing has succeeded for 60s, 100 attempts in a row failed";
        assert_eq!(progress.check(NAME), Err(why.to_owned()));
        assert_eq!(progress.check("another"), Ok(()));
        progress.begin(NAME).end(false);
        assert_eq!(progress.check(NAME), Ok(()));
        fail();
        fail();
        pass(3600).await;
        assert_eq!(progress.check(NAME), Ok(()), "two are not enough");
        fail();
        assert!(progress.check(NAME).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_runs_for_long_hangs_and_what_is_given_up_says_nothing() {
        let progress = ControllerHealth::default();
        let (hanging, given_up) = (progress.begin(NAME), progress.begin(NAME));
        pass(599).await;
        progress.begin(NAME).end(false);
        drop(given_up);
        assert_eq!(progress.check(NAME), Ok(()));
        pass(1).await;
        assert_eq!(progress.check(NAME), Err("one attempt has been running for 600s".to_owned()));
        hanging.end(false);
        assert_eq!(progress.check(NAME), Ok(()));
        assert!(progress.0.lock()[NAME].running.is_empty());
    }
}

//! The schedule of comparisons. An object is compared immediately after it changed, soon again if
//! it differed, and otherwise once per period.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Difference, DryRunFindings, NotCompared};
use crate::runtime::work_queue::Backoff;

/// The back-off of an object that could not be compared.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(60) };
/// The maximum delay between two comparisons of an object whose differences stay the same.
const MAX_DELAY: Duration = Duration::from_secs(300);

/// The result of the last comparison of each object, and the time of the next one. `T` is the state
/// that was compared.
#[derive(Debug)]
pub(crate) struct CompareSchedule<T> {
    settle: Duration,
    period: Duration,
    entries: HashMap<Arc<str>, ScheduledObject<T>>,
}

#[derive(Debug)]
struct ScheduledObject<T> {
    subject: T,
    checked: Instant,
    next: Instant,
    /// The delay after the last comparison that found the same differences as the one before.
    delay: Duration,
    differences: Vec<Difference>,
    failures: u32,
    uncompared: Option<NotCompared>,
}

impl<T> CompareSchedule<T> {
    /// Creates an empty schedule. An object with differences is compared again after `settle`, any
    /// other object after `period`.
    pub(crate) fn new(settle: Duration, period: Duration) -> Self {
        Self { settle, period, entries: HashMap::new() }
    }

    /// Returns true if an object must be compared now. `is_same` returns whether it is unchanged in
    /// everything that matters.
    pub(crate) fn is_due(&self, key: &str, now: Instant, is_same: impl FnOnce(&T) -> bool) -> bool {
        self.entries
            .get(key)
            .is_none_or(|entry| entry.next <= now || !is_same(&entry.subject))
    }

    /// Records the result of a comparison.
    pub(crate) fn compared(
        &mut self,
        key: &Arc<str>,
        about: T,
        now: Instant,
        differences: Vec<Difference>,
    ) {
        let before = self.entries.get(key);
        let delay = match before.filter(|entry| entry.differences == differences) {
            _ if differences.is_empty() => self.period,
            Some(entry) if !entry.differences.is_empty() => {
                (entry.delay * 2).min(MAX_DELAY).max(self.settle)
            }
            _ => self.settle,
        };
        let delay = delay.min(self.period.max(self.settle));
        let checked = now;
        let next = now + delay;
        let entry = ScheduledObject {
            subject: about,
            checked,
            next,
            delay,
            differences,
            failures: 0,
            uncompared: None,
        };
        self.entries.insert(key.clone(), entry);
    }

    /// Records the result of a comparison that is incomplete.
    pub(crate) fn partially_compared(
        &mut self,
        key: &Arc<str>,
        about: T,
        now: Instant,
        differences: Vec<Difference>,
        not_compared: NotCompared,
    ) {
        self.compared(key, about, now, differences);
        if let Some(entry) = self.entries.get_mut(key) {
            entry.uncompared = Some(not_compared);
        }
    }

    /// Records that an object could not be compared. Keeps the earlier differences.
    pub(crate) fn failed(
        &mut self,
        key: &Arc<str>,
        about: T,
        now: Instant,
        not_compared: NotCompared,
        retry_after: Option<Duration>,
    ) {
        let before = self.entries.remove(key);
        let failures = before.as_ref().map_or(0, |entry| entry.failures) + 1;
        let (checked, differences) =
            before.map_or((now, Vec::new()), |entry| (entry.checked, entry.differences));
        let next = now + retry_after.unwrap_or_else(|| BACKOFF.delay(failures));
        let delay = self.settle;
        let uncompared = Some(not_compared);
        self.entries.insert(
            key.clone(),
            ScheduledObject {
                subject: about,
                checked,
                next,
                delay,
                differences,
                failures,
                uncompared,
            },
        );
    }

    /// Removes the objects for which `keep` returns false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.entries.retain(|key, _| keep(key));
    }

    /// Returns all current findings. Those that could not be compared get the current time.
    pub(crate) fn findings(&self, what: &'static str, now: Instant) -> DryRunFindings {
        let mut findings = DryRunFindings {
            compared: vec![(what, self.entries.len())],
            ..DryRunFindings::default()
        };
        for entry in self.entries.values() {
            let checked = entry.checked;
            findings.differences.extend(
                entry
                    .differences
                    .iter()
                    .map(|difference| (difference.clone(), checked)),
            );
            findings.uncompared.extend(
                entry
                    .uncompared
                    .iter()
                    .map(|uncompared| (uncompared.clone(), now)),
            );
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::shadow::ObjectKind;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn difference(would_be: &str) -> Difference {
        Difference {
            kind: ObjectKind::Node,
            object: "n1".to_owned(),
            part: "p".to_owned(),
            controller: "c",
            current: None,
            desired: would_be.to_owned(),
            why: "w".to_owned(),
            defect: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_differs_is_looked_at_sooner_and_then_less_and_less_often() {
        let (key, start) = (Arc::from("n1"), Instant::now());
        let mut paced: CompareSchedule<u32> = CompareSchedule::new(secs(30), secs(3600));
        let due_after = |paced: &CompareSchedule<u32>, from: Instant| {
            (0..4000)
                .find(|s| paced.is_due("n1", from + secs(*s), |about| *about == 1))
                .unwrap()
        };
        assert!(paced.is_due("n1", start, |_| true));
        paced.compared(&key, 1, start, vec![]);
        assert_eq!(due_after(&paced, start), 3600);
        assert!(paced.is_due("n1", start, |about| *about == 2), "it changed");
        let mut pauses = Vec::new();
        for _ in 0..6 {
            paced.compared(&key, 1, start, vec![difference("a")]);
            pauses.push(due_after(&paced, start));
        }
        assert_eq!(pauses, [30, 60, 120, 240, 300, 300]);
        paced.compared(&key, 1, start, vec![difference("b")]);
        assert_eq!(due_after(&paced, start), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_keeps_what_was_found() {
        let (key, start) = (Arc::from("n1"), Instant::now());
        let mut paced: CompareSchedule<u32> = CompareSchedule::new(secs(30), secs(60));
        paced.compared(&key, 1, start, vec![difference("a")]);
        let why = NotCompared {
            kind: ObjectKind::Node,
            object: "n1".to_owned(),
            controller: "c",
            why: "down".to_owned(),
        };
        paced.failed(&key, 1, start + secs(30), why.clone(), Some(secs(5)));
        assert!(
            !paced.is_due("n1", start + secs(34), |_| true)
                && paced.is_due("n1", start + secs(35), |_| true)
        );
        let found = paced.findings("nodes", start + secs(31));
        assert_eq!(
            (found.differences, found.uncompared),
            (vec![(difference("a"), start)], vec![(why, start + secs(31))])
        );
        paced.compared(&key, 1, start + secs(35), vec![]);
        let found = paced.findings("nodes", start + secs(35));
        assert!(found.differences.is_empty() && found.uncompared.is_empty());
        paced.retain(|_| false);
        assert_eq!(paced.findings("nodes", start).compared, [("nodes", 0)]);
    }
}

//! Events that wait to be written.

use std::{collections::VecDeque, time::Duration};

use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::correlator::{CorrelatedEvent, Correlator, RecordedEvent};

/// Longest time that an event waits for writes of state, from when it was recorded.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(5);

/// An occurrence on its way from a recorder to the driver.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) occurrence: RecordedEvent,
    /// When it was recorded.
    pub(super) at: Instant,
    /// Its place among those that may wait.
    pub(super) place: OwnedSemaphorePermit,
}

/// Events in the order of their first occurrence; what repeats one that waits is written with it.
pub(super) struct Outbox {
    correlator: Correlator,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    event: CorrelatedEvent,
    /// Occurrences beyond the first.
    repetitions: u64,
    /// When it is to be written whatever else is.
    until: Instant,
    /// Held, not read.
    _place: OwnedSemaphorePermit,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self { correlator: Correlator::new(), waiting: VecDeque::new() }
    }

    /// Takes in what was recorded. Returns false when its object has had too many.
    pub(super) fn take(&mut self, recorded: Recorded, now: Instant) -> bool {
        let Recorded { occurrence, at, place } = recorded;
        let Some(event) = self.correlator.correlate(occurrence, now.into_std()) else { return false };
        match self.waiting.iter_mut().find(|waiting| waiting.event.name == event.name) {
            Some(waiting) => {
                waiting.event.repeat(event);
                waiting.repetitions += 1;
            }
            None => {
                self.waiting.push_back(Waiting { event, repetitions: 0, until: at + MAX_DELAY, _place: place });
            }
        }
        true
    }

    /// Returns when the next one is to be written whatever else is; `None` when there is none.
    pub(super) fn until(&self) -> Option<Instant> {
        self.waiting.front().map(|waiting| waiting.until)
    }

    /// Takes out the next one, with how often it was repeated since it waits.
    pub(super) fn pop(&mut self) -> Option<(CorrelatedEvent, u64)> {
        self.waiting.pop_front().map(|waiting| (waiting.event, waiting.repetitions))
    }

    /// Returns how many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

//! Events that wait to be written.

use std::{collections::VecDeque, time::Duration};

use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::correlator::{CorrelatedEvent, Correlator, RecordedEvent};

/// The maximum time that an event waits for writes of state, from when it was recorded.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(5);

/// An occurrence in the queue from a recorder to the writer.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) occurrence: RecordedEvent,
    /// When it was recorded.
    pub(super) at: Instant,
    /// Its permit from the semaphore that bounds the queue.
    pub(super) place: OwnedSemaphorePermit,
}

/// Events that wait to be written, in the order of their first occurrence. A repetition is merged
/// into the waiting event.
pub(super) struct Outbox {
    correlator: Correlator,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    event: CorrelatedEvent,
    /// Occurrences beyond the first.
    repetitions: u64,
    /// When it is written even if writes of state are in flight.
    until: Instant,
    /// Held while the event waits; not read.
    _place: OwnedSemaphorePermit,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self { correlator: Correlator::new(), waiting: VecDeque::new() }
    }

    /// Adds a recorded occurrence. Returns false when it is throttled.
    pub(super) fn take(&mut self, recorded: Recorded, now: Instant) -> bool {
        let Recorded { occurrence, at, place } = recorded;
        let Some(event) = self.correlator.correlate(occurrence, now.into_std()) else {
            return false;
        };
        match self
            .waiting
            .iter_mut()
            .find(|waiting| waiting.event.name == event.name)
        {
            Some(waiting) => {
                waiting.event.repeat(event);
                waiting.repetitions += 1;
            }
            None => {
                self.waiting.push_back(Waiting {
                    event,
                    repetitions: 0,
                    until: at + MAX_DELAY,
                    _place: place,
                });
            }
        }
        true
    }

    /// Returns when the next event is written even if writes of state are in flight. `None` when
    /// none waits.
    pub(super) fn until(&self) -> Option<Instant> {
        self.waiting.front().map(|waiting| waiting.until)
    }

    /// Removes and returns the next event, with the number of repetitions that were merged into it.
    pub(super) fn pop(&mut self) -> Option<(CorrelatedEvent, u64)> {
        self.waiting
            .pop_front()
            .map(|waiting| (waiting.event, waiting.repetitions))
    }

    /// Returns the number of waiting events.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::RwLock;
use tokio::time::Instant;

/// Where the time comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// Tokio's clock, beginning at the system's time: it stands still under paused time.
    #[default]
    Tokio,
    /// The system's clock, including changes of it and time while the machine slept.
    System,
}

/// The time of the cloud, which tests can move.
#[derive(Debug)]
pub struct Clock {
    start: Option<(Timestamp, Instant)>,
    moved: RwLock<SignedDuration>,
}

impl Clock {
    /// Starts at the system's time.
    pub fn new(source: TimeSource) -> Self {
        let start = match source {
            TimeSource::Tokio => Some((Timestamp::now(), Instant::now())),
            TimeSource::System => None,
        };
        Self { start, moved: RwLock::new(SignedDuration::ZERO) }
    }

    /// Returns the time.
    pub fn now(&self) -> Timestamp {
        let unmoved = match self.start {
            None => Timestamp::now(),
            Some((at, instant)) => later(at, signed(instant.elapsed())),
        };
        later(unmoved, *self.moved.read())
    }

    /// Advances the time, in addition to its own course.
    pub fn advance(&self, by: Duration) {
        let mut moved = self.moved.write();
        *moved = moved.saturating_add(signed(by));
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

/// Adds a time; limited to the end of the calendar.
fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

//! Wall-clock times that follow tokio's clock, so that time stamps move with paused time.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Reads the time as wall time at start plus tokio time passed since.
#[derive(Debug, Clone)]
pub struct Clock {
    base: Timestamp,
    start: Instant,
}

impl Clock {
    /// Returns a clock that starts at the present wall time.
    pub fn new() -> Self {
        Self { base: Timestamp::now(), start: Instant::now() }
    }

    /// Returns the present time.
    pub fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::MAX);
        self.base.saturating_add(passed).unwrap_or(Timestamp::MAX)
    }

    /// Returns the present time as `metav1.Time` is written: UTC, whole seconds.
    pub fn stamp(&self) -> String {
        seconds(self.now())
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Formats `time` as `metav1.Time`.
pub(crate) fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second())
        .unwrap_or(time)
        .to_string()
}

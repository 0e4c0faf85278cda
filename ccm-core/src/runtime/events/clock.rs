//! The wall clock, which tests can replace.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use tokio::time::Instant;

/// The source of the wall-clock times that are *written* to the API. It decides nothing alone: the
/// age of a Node is computed with it, but a deletion also requires that age on the monotonic clock
/// since the Node was first observed.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl WallClock {
    /// Creates a clock that shows the system's time.
    pub fn system() -> Self {
        Self::new(Timestamp::now)
    }

    /// Creates a clock that shows `start` now and follows tokio's time, including paused and
    /// advanced time.
    pub fn tokio_from(start: Timestamp) -> Self {
        let began = Instant::now();
        Self::new(move || start.checked_add(began.elapsed()).unwrap_or(Timestamp::MAX))
    }

    /// Creates a clock that shows the time that `now` returns.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallClock")
    }
}

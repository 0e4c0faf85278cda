use std::{fmt, sync::Arc};

use jiff::Timestamp;
use tokio::time::Instant;

/// Source of the wall-clock times that are *written* to the API. Nothing is decided by it alone: the age of a Node is read
/// off it, but a deletion also needs that age by what was watched on the monotonic clock.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl WallClock {
    /// The system's clock.
    pub fn system() -> Self {
        Self::new(Timestamp::now)
    }

    /// A clock that shows `start` now and goes with tokio's time, so that it stands still and jumps with paused time.
    pub fn tokio_from(start: Timestamp) -> Self {
        let began = Instant::now();
        Self::new(move || start.checked_add(began.elapsed()).unwrap_or(Timestamp::MAX))
    }

    /// Any other clock.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the time it shows.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallClock")
    }
}

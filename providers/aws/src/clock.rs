//! Points in time in the past.

use std::time::Duration;

use tokio::time::Instant;

/// Returns the instant `age` ago, or the current one if the clock does not reach that far back.
pub(crate) fn ago(age: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(age).unwrap_or(now)
}

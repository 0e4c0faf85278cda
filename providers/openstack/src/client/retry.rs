//! Quick retries, for errors that go away within a second or two. Longer waits are left to the
//! framework.

use std::time::Duration;

use super::{Class, ErrorCause, ErrorClass, OpenStackError};

/// Maximum number of attempts.
pub(super) const ATTEMPTS: u32 = 4;
/// Maximum of the first wait. It doubles, so that three waits take seven tenths of a second at
/// most.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// A read that took this long to fail is not sent again: others wait for its answer, and the next
/// attempt would make them wait as long.
const MAX_RETRYABLE_READ_TIME: Duration = Duration::from_secs(5);

/// Returns true if sending the request again is safe and may help, after an attempt that took this
/// long.
///
/// A change without an answer may have been made. It is not repeated here: the next reconcile reads
/// the state first, and finds it or makes it again.
pub(super) fn should_retry(class: Class, took: Duration, error: &OpenStackError) -> bool {
    let read = class == Class::Read && took < MAX_RETRYABLE_READ_TIME;
    match (&error.cause, error.class()) {
        (ErrorCause::RateLimited(_) | ErrorCause::Session(_), _) => false,
        (_, ErrorClass::Throttled) => true,
        (ErrorCause::NoResponse(lost), _) => {
            read || !lost.maybe_sent && took < MAX_RETRYABLE_READ_TIME
        }
        (_, ErrorClass::Transient) => read,
        _ => false,
    }
}

/// Returns how long to wait after the given number of attempts: what the cloud requests, or a
/// random time up to a limit that doubles, so that requests that failed together are not retried
/// together.
pub(super) fn delay(attempts: u32, jitter: f64, asked: Option<Duration>) -> Duration {
    let bound = FIRST_WAIT.mul_f64(f64::from(1_u32 << attempts.saturating_sub(1).min(8)));
    asked
        .unwrap_or_default()
        .max(bound.mul_f64(jitter.clamp(0.0, 1.0)))
}

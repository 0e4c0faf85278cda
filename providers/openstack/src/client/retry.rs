//! Quick retries for errors that go away within a second or two. The framework does longer waits.

use std::time::Duration;

use super::{Class, ErrorCause, ErrorClass, OpenStackError};

/// Maximum number of attempts.
pub(super) const ATTEMPTS: u32 = 4;
/// Maximum of the first delay. It doubles, so that three delays take at most 0.7 seconds.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// A read that took this long to fail is not sent again, because others wait for its answer, and the
/// next attempt could take as long.
const MAX_RETRYABLE_READ_TIME: Duration = Duration::from_secs(5);

/// Returns true if sending the request again is safe and may help, after an attempt that took this
/// long.
///
/// A change without a response may have been made, so it is not repeated here. The next reconcile
/// reads the state before it decides.
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

/// Returns the delay after the given number of attempts: the one that the cloud requests, or a
/// random one up to a limit that doubles. Randomness keeps requests that failed together from being
/// retried together.
pub(super) fn delay(attempts: u32, jitter: f64, asked: Option<Duration>) -> Duration {
    let bound = FIRST_WAIT.mul_f64(f64::from(1_u32 << attempts.saturating_sub(1).min(8)));
    asked
        .unwrap_or_default()
        .max(bound.mul_f64(jitter.clamp(0.0, 1.0)))
}

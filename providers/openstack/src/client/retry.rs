//! Quick retries: for what passes by itself within a second or two. Longer waits are the framework's.

use std::time::Duration;

use super::{Class, ErrorCause, ErrorClass, OpenStackError};

/// How often a request is sent at most.
pub(super) const ATTEMPTS: u32 = 4;
/// Bound of the first wait; it doubles, so that three waits are seven tenths of a second at most.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// A read that took this long to fail is not sent again: others wait for its answer, and the next attempt would keep them as
/// long.
const MAX_RETRYABLE_READ_TIME: Duration = Duration::from_secs(5);

/// Tells whether sending the request again is safe and may help, after an attempt that took some time.
///
/// A change whose answer is missing may have been carried out: it is not repeated here, but found or made again by the next
/// reconcile, which looks first.
pub(super) fn should_retry(class: Class, took: Duration, error: &OpenStackError) -> bool {
    let read = class == Class::Read && took < MAX_RETRYABLE_READ_TIME;
    match (&error.cause, error.class()) {
        (ErrorCause::RateLimited(_) | ErrorCause::Session(_), _) => false,
        (_, ErrorClass::Throttled) => true,
        (ErrorCause::NoResponse(lost), _) => read || !lost.maybe_sent && took < MAX_RETRYABLE_READ_TIME,
        (_, ErrorClass::Transient) => read,
        _ => false,
    }
}

/// Returns how long to wait after the given number of attempts: what the cloud asks for, or anything up to a bound that
/// doubles, so that those who failed together do not come back together.
pub(super) fn delay(attempts: u32, jitter: f64, asked: Option<Duration>) -> Duration {
    let bound = FIRST_WAIT.mul_f64(f64::from(1_u32 << attempts.saturating_sub(1).min(8)));
    asked.unwrap_or_default().max(bound.mul_f64(jitter.clamp(0.0, 1.0)))
}

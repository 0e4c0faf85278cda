//! Quick retries: for what passes by itself within a second or two. Longer waits are the framework's.

use std::time::Duration;

use super::error_kind::ErrorClass;
use crate::api::{AwsError, AwsErrorCause, RequestClass};

/// How often a request is sent at most.
pub(super) const ATTEMPTS: u32 = 5;
/// Bound of the first wait; it doubles, so that four waits are nine tenths of a second at most: less than half of what a
/// call may sleep in all.
const FIRST_WAIT: Duration = Duration::from_millis(60);

/// A read that took this long to fail is not sent again: others wait for its turn or its answer, and the next attempt would
/// keep them as long. Five attempts of a server that hangs would be minutes.
const MAX_RETRYABLE_READ_TIME: Duration = Duration::from_secs(5);

/// Tells whether sending the request again is safe and may help, after an attempt that took some time.
///
/// A change whose answer is missing may have been carried out: it is not repeated here, but found or made again by the next
/// reconcile, which looks first.
pub(super) fn should_retry(class: RequestClass, took: Duration, error: &AwsError) -> bool {
    if class == RequestClass::Read && took >= MAX_RETRYABLE_READ_TIME {
        return false;
    }
    match (&error.cause, class) {
        (AwsErrorCause::Response { code, status, .. }, class) => match ErrorClass::of(code) {
            ErrorClass::Throttled => true,
            ErrorClass::Other => class == RequestClass::Read && *status >= 500,
            _ => false,
        },
        (AwsErrorCause::NoResponse(_), RequestClass::Read) => true,
        (AwsErrorCause::NoResponse(_), RequestClass::Write)
        | (AwsErrorCause::RateLimited(_) | AwsErrorCause::NotSent(_), _) => false,
    }
}

/// Returns how long to wait after the given number of attempts: anything up to a bound that doubles, so that those who
/// failed together do not come back together.
pub(super) fn delay(attempts: u32, jitter: f64) -> Duration {
    FIRST_WAIT.mul_f64(f64::from(1_u32 << attempts.saturating_sub(1).min(8)) * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Action;

    #[test]
    fn only_what_was_surely_not_carried_out_is_sent_again() {
        let answer = |status, code: &str| AwsError::response(Action::CreateTags, status, code, "");
        let cases = [
            (RequestClass::Write, answer(503, "RequestLimitExceeded"), true),
            (RequestClass::Write, answer(400, "Throttling"), true),
            (RequestClass::Write, answer(500, "InternalError"), false),
            (RequestClass::Write, AwsError::no_response(Action::CreateTags, "reset"), false),
            (RequestClass::Read, answer(500, "InternalError"), true),
            (RequestClass::Read, answer(400, "InternalError"), false),
            (RequestClass::Read, AwsError::no_response(Action::CreateTags, "reset"), true),
            (RequestClass::Read, answer(403, "UnauthorizedOperation"), false),
            (RequestClass::Read, answer(400, "InvalidInstanceID.NotFound"), false),
        ];
        for (class, error, expected) in cases {
            assert_eq!(should_retry(class, Duration::from_secs(1), &error), expected, "{class:?} {error}");
            let slow = expected && class == RequestClass::Write;
            assert_eq!(should_retry(class, Duration::from_secs(30), &error), slow, "{class:?} {error}");
        }
    }

    #[test]
    fn all_waits_of_two_requests_stay_below_two_seconds() {
        let total: Duration = (1..ATTEMPTS).map(|attempts| delay(attempts, 1.0)).sum();
        assert_eq!(2 * total, Duration::from_millis(1800));
        assert_eq!(delay(3, 0.0), Duration::ZERO);
    }
}

//! Quick retries of errors that go away within a second or two. The framework does longer waits.

use std::time::Duration;

use crate::{
    api::{AwsError, AwsErrorCause, RequestClass},
    client::error_class::ErrorClass,
};

/// Maximum number of attempts of a request.
pub(super) const MAX_ATTEMPTS: u32 = 5;
/// Upper bound of the first delay. It doubles, so that four delays are at most 0.9 s in all, less
/// than half of what a call may sleep.
const FIRST_WAIT: Duration = Duration::from_millis(60);

/// A read that took this long to fail is not sent again: other calls wait for its token or its
/// answer, and the next attempt would delay them as long. Five attempts at a hanging server would
/// take minutes.
const MAX_RETRYABLE_READ_TIME: Duration = Duration::from_secs(5);

/// Returns whether sending the request again is safe and may help, after an attempt of this
/// duration.
///
/// A change without an answer may have been carried out. It is not repeated here: the next
/// reconcile reads first, and then finds or repeats it.
pub(super) fn should_retry(class: RequestClass, duration: Duration, error: &AwsError) -> bool {
    if class == RequestClass::Read && duration >= MAX_RETRYABLE_READ_TIME {
        return false;
    }
    match &error.cause {
        AwsErrorCause::Response { code, status, .. } => match ErrorClass::of(code) {
            ErrorClass::Throttled => true,
            ErrorClass::Other => class == RequestClass::Read && *status >= 500,
            _ => false,
        },
        AwsErrorCause::NoResponse(_) => class == RequestClass::Read,
        AwsErrorCause::RateLimited(_) | AwsErrorCause::NotSent(_) => false,
    }
}

/// Returns the delay after the given number of attempts: random, up to a bound that doubles, so
/// that calls that failed together do not retry together.
pub(super) fn delay(attempts: u32, jitter: f64) -> Duration {
    let doublings = attempts.saturating_sub(1).min(8);
    let bound = FIRST_WAIT * (1_u32 << doublings);
    bound.mul_f64(jitter.clamp(0.0, 1.0))
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
            assert_eq!(
                should_retry(class, Duration::from_secs(1), &error),
                expected,
                "{class:?} {error}"
            );
            let slow = expected && class == RequestClass::Write;
            assert_eq!(
                should_retry(class, Duration::from_secs(30), &error),
                slow,
                "{class:?} {error}"
            );
        }
    }

    #[test]
    fn all_waits_of_two_requests_stay_below_two_seconds() {
        let total: Duration = (1..MAX_ATTEMPTS).map(|attempts| delay(attempts, 1.0)).sum();
        assert_eq!(2 * total, Duration::from_millis(1800));
        assert_eq!(delay(3, 0.0), Duration::ZERO);
    }
}

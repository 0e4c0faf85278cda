//! Decides about quick retries of transient errors. Retries with longer delays are the framework's
//! task.

use std::time::Duration;

use crate::{
    api::{AwsError, AwsErrorCause, RequestClass},
    client::error_class::ErrorClass,
};

/// Maximum number of attempts to send one request.
pub(super) const MAX_ATTEMPTS: u32 = 5;
/// Maximum of the first delay. The maximum doubles with each attempt, so the four delays of a
/// request add up to at most 0.9 s. That is less than half of the time that a call may sleep.
const MAX_FIRST_DELAY: Duration = Duration::from_millis(60);

/// Duration from which a failed read is not retried. Five attempts with a server that hangs would
/// take minutes, while other calls wait for the answer.
const MAX_RETRYABLE_READ_DURATION: Duration = Duration::from_secs(5);

/// Returns true if the request should be sent again after an attempt that failed with `error` after
/// `duration`.
///
/// A write is only retried if AWS throttled it. After other errors, or without an answer, AWS
/// may have carried it out, or would reject it again. The next reconcile reads the current state and repeats the write if
/// necessary.
pub(super) fn should_retry(class: RequestClass, duration: Duration, error: &AwsError) -> bool {
    if class == RequestClass::Read && duration >= MAX_RETRYABLE_READ_DURATION {
        return false;
    }
    match &error.cause {
        AwsErrorCause::Response { code, status, .. } => match ErrorClass::from_code(code) {
            ErrorClass::Throttled => true,
            ErrorClass::Other => class == RequestClass::Read && *status >= 500,
            _ => false,
        },
        AwsErrorCause::NoResponse(_) => class == RequestClass::Read,
        AwsErrorCause::RateLimited(_) | AwsErrorCause::NotSent(_) => false,
    }
}

/// Returns the delay after the given number of attempts. `jitter` is a random number from 0 to 1
/// that scales the maximum delay, so that calls that failed together do not retry together.
pub(super) fn delay(attempts: u32, jitter: f64) -> Duration {
    let doublings = attempts.saturating_sub(1).min(8);
    let max_delay = MAX_FIRST_DELAY * (1_u32 << doublings);
    max_delay.mul_f64(jitter.clamp(0.0, 1.0))
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

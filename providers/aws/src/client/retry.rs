//! Quick retries: for what passes by itself within a second or two. Longer waits are the framework's.

use std::time::Duration;

use super::classify::Meaning;
use crate::api::{AwsError, Class, Fault};

/// How often a request is sent at most.
pub(super) const ATTEMPTS: u32 = 5;
/// Bound of the first wait; it doubles, so that four waits are nine tenths of a second at most: less than half of what a
/// call may sleep in all.
const FIRST_WAIT: Duration = Duration::from_millis(60);

/// A read that took this long to fail is not sent again: others wait for its turn or its answer, and the next attempt would
/// keep them as long. Five attempts of a server that hangs would be minutes.
const SLOW: Duration = Duration::from_secs(5);

/// Tells whether sending the request again is safe and may help, after an attempt that took some time.
///
/// A change whose answer is missing may have been carried out: it is not repeated here, but found or made again by the next
/// reconcile, which looks first.
pub(super) fn helps(class: Class, took: Duration, error: &AwsError) -> bool {
    if class == Class::Read && took >= SLOW {
        return false;
    }
    match (&error.fault, class) {
        (Fault::Answer { code, status, .. }, class) => match Meaning::of(code) {
            Meaning::Throttled => true,
            Meaning::Other => class == Class::Read && *status >= 500,
            _ => false,
        },
        (Fault::Unanswered(_), Class::Read) => true,
        (Fault::Unanswered(_), Class::Write) | (Fault::Budget(_) | Fault::Refused(_), _) => false,
    }
}

/// Returns how long to wait after the given number of attempts: anything up to a bound that doubles, so that those who
/// failed together do not come back together.
pub(super) fn wait(attempts: u32, jitter: f64) -> Duration {
    FIRST_WAIT.mul_f64(f64::from(1_u32 << attempts.saturating_sub(1).min(8)) * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Action;

    #[test]
    fn only_what_was_surely_not_carried_out_is_sent_again() {
        let answer = |status, code: &str| AwsError::answer(Action::CreateTags, status, code, "");
        let cases = [
            (Class::Write, answer(503, "RequestLimitExceeded"), true),
            (Class::Write, answer(400, "Throttling"), true),
            (Class::Write, answer(500, "InternalError"), false),
            (Class::Write, AwsError::unanswered(Action::CreateTags, "reset"), false),
            (Class::Read, answer(500, "InternalError"), true),
            (Class::Read, answer(400, "InternalError"), false),
            (Class::Read, AwsError::unanswered(Action::CreateTags, "reset"), true),
            (Class::Read, answer(403, "UnauthorizedOperation"), false),
            (Class::Read, answer(400, "InvalidInstanceID.NotFound"), false),
        ];
        for (class, error, expected) in cases {
            assert_eq!(helps(class, Duration::from_secs(1), &error), expected, "{class:?} {error}");
            let slow = expected && class == Class::Write;
            assert_eq!(helps(class, Duration::from_secs(30), &error), slow, "{class:?} {error}");
        }
    }

    #[test]
    fn all_waits_of_two_requests_stay_below_two_seconds() {
        let total: Duration = (1..ATTEMPTS).map(|attempts| wait(attempts, 1.0)).sum();
        assert_eq!(2 * total, Duration::from_millis(1800));
        assert_eq!(wait(3, 0.0), Duration::ZERO);
    }
}

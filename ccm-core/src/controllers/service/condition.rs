//! Our own condition of a Service (`--service-conditions`): what it should say, and the JSON of it.
//! Pure functions.

use std::time::Duration;

use jiff::{Timestamp, Unit};
use serde_json::{Value, json};

use crate::{
    explain::{AttemptRecord, Cause},
    k8s::{ConditionStatus, ServiceView, well_known},
};

/// The reason of a condition that is True. All other reasons are names of causes.
pub(crate) const REASON_SERVED: &str = "LoadBalancerServed";

/// The message of a condition that is True.
const MESSAGE_SERVED: &str = "The load balancer is as the Service requests";

/// The part of a condition that matters to its readers. Only a change of it is worth a write; the
/// message may differ by a request ID or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConditionMeaning {
    pub(crate) status: ConditionStatus,
    pub(crate) reason: &'static str,
    pub(crate) observed_generation: i64,
}

impl ConditionMeaning {
    /// Returns true if the Service shows a condition of this meaning.
    fn is_shown(&self, service: &ServiceView) -> bool {
        service.own_condition.as_ref().is_some_and(|shown| {
            shown.status == self.status
                && *shown.reason == *self.reason
                && shown.observed_generation == self.observed_generation
        })
    }
}

/// What this process last wrote about our condition of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WrittenCondition {
    /// Nothing, so what the Service shows is from an earlier process.
    #[default]
    Nothing,
    /// It removed the condition.
    Removed,
    /// It wrote a condition of this meaning.
    Set(ConditionMeaning),
}

/// The condition that a Service should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DesiredCondition {
    pub(crate) meaning: ConditionMeaning,
    message: String,
}

/// A change of our condition of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConditionChange {
    Set(DesiredCondition),
    Remove,
}

impl DesiredCondition {
    /// Returns the condition of a Service whose load balancer is as requested.
    pub(crate) fn served(service: &ServiceView) -> Self {
        let meaning = ConditionMeaning {
            status: ConditionStatus::True,
            reason: REASON_SERVED,
            observed_generation: service.generation,
        };
        Self { meaning, message: MESSAGE_SERVED.to_owned() }
    }

    /// Returns the condition of a Service that is not as requested, or may not be, for a cause.
    /// `text` says what is wrong.
    pub(crate) fn of_cause(
        service: &ServiceView,
        has_address: bool,
        cause: Cause,
        text: &str,
    ) -> Self {
        // Without an address nothing is served, whatever the cloud would answer.
        let status = if has_address && says_nothing_about_cloud(cause) {
            ConditionStatus::Unknown
        } else {
            ConditionStatus::False
        };
        let meaning = ConditionMeaning {
            status,
            reason: cause.name(),
            observed_generation: service.generation,
        };
        Self { meaning, message: cause.with_next_step(text) }
    }

    /// Returns the condition for the API.
    ///
    /// It has no `lastTransitionTime` if the Service certainly has a condition of the same status,
    /// so that a strategic merge patch keeps the time.
    fn to_json(&self, service: &ServiceView, written: WrittenCondition, now: Timestamp) -> Value {
        let ConditionMeaning { status, reason, observed_generation } = self.meaning;
        let mut condition = json!({
            "type": well_known::CONDITION_LOAD_BALANCER_READY,
            "status": status.as_str(),
            "reason": reason,
            "message": self.message,
        });
        if observed_generation != 0 {
            condition["observedGeneration"] = json!(observed_generation);
        }
        let shown = service.own_condition.as_ref().map(|shown| shown.status);
        let is_kept = match written {
            WrittenCondition::Nothing => true,
            WrittenCondition::Removed => false,
            WrittenCondition::Set(meaning) => meaning.status == status,
        };
        if shown != Some(status) || !is_kept {
            // Round to seconds, because `metav1.Time` has no fractions.
            let now = now.round(Unit::Second).unwrap_or(now);
            condition["lastTransitionTime"] = json!(now.to_string());
        }
        condition
    }
}

/// The number of failures in a row, and the time, after which a cause that says nothing about the
/// load balancer is worth a write. Most such causes pass sooner.
const SILENT_FAILURES: u32 = 3;
const SILENT_TIME: Duration = Duration::from_secs(60);

/// Returns true if a condition would only say that nobody knows about the load balancer, and
/// another one is likely to follow soon, or the existing one to stay right.
pub(crate) fn is_too_early(
    attempt: &AttemptRecord,
    service: &ServiceView,
    written: WrittenCondition,
) -> bool {
    if !says_nothing_about_cloud(attempt.cause) {
        return false;
    }
    // The process has just started, so it knows less than the condition of the one before.
    let shows_true = match written {
        WrittenCondition::Set(meaning) => meaning.status == ConditionStatus::True,
        WrittenCondition::Removed => false,
        WrittenCondition::Nothing => service
            .own_condition
            .as_ref()
            .is_some_and(|shown| shown.status == ConditionStatus::True),
    };
    let is_of_start =
        matches!(attempt.cause, Cause::CacheNotConfirmed | Cause::EndpointSlicesNotListed);
    (is_of_start && shows_true)
        || (attempt.failures < SILENT_FAILURES && attempt.at.elapsed() < SILENT_TIME)
}

/// Returns true for the causes after which nobody knows whether an existing load balancer is as
/// requested, because the cloud or the API server did not answer, or this process failed.
pub(crate) fn says_nothing_about_cloud(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::CloudThrottled
            | Cause::CloudUnavailable
            | Cause::CacheNotConfirmed
            | Cause::MostServicesGone
            | Cause::EndpointSlicesNotListed
            | Cause::SyncPanicked
    )
}

/// Returns the JSON that removes our condition in a strategic merge patch.
fn removal() -> Value {
    json!({ "$patch": "delete", "type": well_known::CONDITION_LOAD_BALANCER_READY })
}

impl ConditionChange {
    /// Returns true if the change needs a write. What this process wrote last counts more than what
    /// the cache shows, so that nothing is written twice, and a condition that another client
    /// changed is not fought over.
    pub(crate) fn is_due(&self, service: &ServiceView, written: WrittenCondition) -> bool {
        match (self, written) {
            (Self::Set(desired), WrittenCondition::Set(meaning)) => desired.meaning != meaning,
            (Self::Set(desired), WrittenCondition::Nothing) => !desired.meaning.is_shown(service),
            (Self::Remove, WrittenCondition::Nothing) => service.own_condition.is_some(),
            (Self::Remove, WrittenCondition::Removed) => false,
            (Self::Set(_), WrittenCondition::Removed)
            | (Self::Remove, WrittenCondition::Set(_)) => true,
        }
    }

    /// Returns the list entry of a strategic merge patch of `status.conditions`.
    pub(crate) fn patch(
        &self,
        service: &ServiceView,
        written: WrittenCondition,
        now: Timestamp,
    ) -> Value {
        match self {
            Self::Set(desired) => desired.to_json(service, written, now),
            Self::Remove => removal(),
        }
    }

    /// Returns the record of the change after it was written.
    pub(crate) fn written(&self) -> WrittenCondition {
        match self {
            Self::Set(desired) => WrittenCondition::Set(desired.meaning),
            Self::Remove => WrittenCondition::Removed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::OwnCondition;

    fn now() -> Timestamp {
        "2026-01-02T03:04:05.6Z".parse().unwrap()
    }

    fn showing(status: ConditionStatus, reason: &str) -> ServiceView {
        let condition = OwnCondition {
            index: 0,
            status,
            reason: reason.into(),
            observed_generation: 0,
        };
        ServiceView {
            own_condition: Some(condition.into()),
            ..ServiceView::named("shop", "web")
        }
    }

    fn cause(cause: Cause, text: &str) -> ConditionChange {
        let service = ServiceView::named("shop", "web");
        ConditionChange::Set(DesiredCondition::of_cause(&service, true, cause, text))
    }

    #[test]
    fn the_status_is_false_without_an_address_and_unknown_if_nobody_answered() {
        let service = ServiceView::named("shop", "web");
        for (name, has_address, status) in [
            (Cause::QuotaExceeded, true, ConditionStatus::False),
            (Cause::QuotaExceeded, false, ConditionStatus::False),
            (Cause::LoadBalancerPending, true, ConditionStatus::False),
            (Cause::CloudAccessDenied, true, ConditionStatus::False),
            (Cause::ServiceInvalid, true, ConditionStatus::False),
            (Cause::CloudUnavailable, true, ConditionStatus::Unknown),
            (Cause::CloudUnavailable, false, ConditionStatus::False),
            (Cause::CacheNotConfirmed, true, ConditionStatus::Unknown),
        ] {
            let condition = DesiredCondition::of_cause(&service, has_address, name, "no");
            assert_eq!(condition.meaning.status, status, "{name:?}, address: {has_address}");
            assert_eq!(condition.meaning.reason, name.name());
            assert!(condition.message.ends_with(name.next_step()), "{}", condition.message);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_passing_silence_is_not_written() {
        let plain = ServiceView::named("shop", "web");
        let was_true = showing(ConditionStatus::True, REASON_SERVED);
        let was_false = showing(ConditionStatus::False, "QuotaExceeded");
        let attempt = |cause, failures| AttemptRecord {
            failures,
            ..AttemptRecord::now("ensure", cause, "no")
        };
        let nothing = WrittenCondition::Nothing;
        for cause in [Cause::CloudUnavailable, Cause::CacheNotConfirmed] {
            for service in [&plain, &was_true, &was_false] {
                assert!(is_too_early(&attempt(cause, 2), service, nothing), "{cause:?}");
            }
            assert!(!is_too_early(&attempt(cause, 3), &was_false, nothing), "{cause:?}");
        }
        assert!(!is_too_early(&attempt(Cause::CloudUnavailable, 3), &was_true, nothing));
        // A process that has just started knows less than the one before.
        for cause in [Cause::CacheNotConfirmed, Cause::EndpointSlicesNotListed] {
            assert!(is_too_early(&attempt(cause, 9), &was_true, nothing), "{cause:?}");
            let served = ConditionChange::Set(DesiredCondition::served(&plain)).written();
            assert!(is_too_early(&attempt(cause, 9), &plain, served), "{cause:?}");
        }
        // An error that says something is written at once, and silence when it has lasted.
        assert!(!is_too_early(&attempt(Cause::QuotaExceeded, 1), &was_true, nothing));
        let early = attempt(Cause::CloudThrottled, 1);
        tokio::time::advance(SILENT_TIME).await;
        assert!(!is_too_early(&early, &was_true, nothing));
    }

    #[test]
    fn every_reason_is_one_that_the_api_accepts() {
        let accepted = |reason: &str| {
            let mut chars = reason.chars();
            chars
                .next()
                .is_some_and(|first| first.is_ascii_alphabetic())
                && chars.all(|c| c.is_ascii_alphanumeric())
        };
        assert!(Cause::all().all(|cause| accepted(cause.name())) && accepted(REASON_SERVED));
        assert!(Cause::all().all(|cause| cause.name() != REASON_SERVED));
    }

    #[test]
    fn only_another_meaning_is_written() {
        let plain = ServiceView::named("shop", "web");
        let served = ConditionChange::Set(DesiredCondition::served(&plain));
        let shows_served = showing(ConditionStatus::True, REASON_SERVED);
        let shows_quota = showing(ConditionStatus::False, "QuotaExceeded");
        let quota = cause(Cause::QuotaExceeded, "request 1");
        let quota_again = cause(Cause::QuotaExceeded, "request 2");
        let newer = ServiceView { generation: 2, ..plain.clone() };
        let newer = ConditionChange::Set(DesiredCondition::served(&newer));
        let nothing = WrittenCondition::Nothing;
        for (name, change, service, written, due) in [
            ("new", &served, &plain, nothing, true),
            ("same", &served, &shows_served, nothing, false),
            ("other reason", &served, &shows_quota, nothing, true),
            ("other message", &quota_again, &shows_quota, nothing, false),
            ("other message in one process", &quota_again, &plain, quota.written(), false),
            ("cache lags", &quota, &shows_served, quota.written(), false),
            ("cache lags behind another", &served, &shows_served, quota.written(), true),
            ("another generation", &newer, &shows_served, nothing, true),
            ("after removal", &served, &shows_served, WrittenCondition::Removed, true),
            ("nothing to remove", &ConditionChange::Remove, &plain, nothing, false),
            ("removal", &ConditionChange::Remove, &shows_quota, nothing, true),
            (
                "removed, cache lags",
                &ConditionChange::Remove,
                &shows_quota,
                WrittenCondition::Removed,
                false,
            ),
        ] {
            assert_eq!(change.is_due(service, written), due, "{name}");
        }
    }

    #[test]
    fn the_time_changes_with_the_status_alone() {
        let plain = ServiceView { generation: 7, ..ServiceView::named("shop", "web") };
        let nothing = WrittenCondition::Nothing;
        let change = ConditionChange::Set(DesiredCondition::served(&plain));
        let served = change.patch(&plain, nothing, now());
        let expected = json!({
            "type": "service.cloud-controller-manager/LoadBalancerReady",
            "status": "True",
            "reason": "LoadBalancerServed",
            "message": "The load balancer is as the Service requests",
            "observedGeneration": 7,
            "lastTransitionTime": "2026-01-02T03:04:06Z",
        });
        assert_eq!(served, expected);
        let failed = showing(ConditionStatus::False, "QuotaExceeded");
        let change = cause(Cause::CloudRejectedInput, "no");
        let rejected = change.patch(&failed, nothing, now());
        assert_eq!(rejected.get("lastTransitionTime"), None, "False as before");
        assert_eq!(rejected.get("observedGeneration"), None, "the server counts none");
        // The cache does not show yet that it was True, or gone, in between.
        for written in [
            ConditionChange::Set(DesiredCondition::served(&failed)).written(),
            WrittenCondition::Removed,
        ] {
            assert!(change.patch(&failed, written, now())["lastTransitionTime"].is_string());
        }
    }
}

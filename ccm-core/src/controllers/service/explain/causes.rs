//! Finds the causes for which a Service is not as requested. Pure functions.

use std::time::Duration;

use super::{
    super::plan::{
        DesiredState, DriftCheck, ServeAction, ServiceAction, ServiceSyncState, SyncGoal,
        has_finalizer, shows_desired_status,
    },
    backends::SelectedBackends,
};
use crate::{
    explain::{Cause, ExplainTime, ExplainedCause},
    k8s::{ServiceView, well_known::ANNOTATION_RETAIN},
    provider::{FieldError, RemovalPlan},
};

/// Everything from which the causes are found.
#[derive(Clone, Copy)]
pub(super) struct ServiceFacts<'a> {
    /// The Service, or its last state if it no longer exists.
    pub(super) service: &'a ServiceView,
    pub(super) exists: bool,
    pub(super) is_our_class: bool,
    pub(super) state: &'a ServiceSyncState,
    pub(super) desired: Option<&'a DesiredState>,
    pub(super) errors: &'a [FieldError],
    pub(super) backends: Option<&'a SelectedBackends>,
    pub(super) action: &'a ServiceAction,
    /// What is done with the load balancer if it is not needed.
    pub(super) removal: RemovalPlan,
    /// The time since the start of the controller.
    pub(super) now: Duration,
}

/// Returns the causes for which a Service is not as requested, the most important one first.
pub(super) fn causes(facts: &ServiceFacts<'_>, time: ExplainTime) -> Vec<ExplainedCause> {
    let mut causes = Vec::new();
    let key = facts.service.key();
    let mut add = |cause, text: &str| {
        causes.push(ExplainedCause::new(cause, format!("service {key}: {text}")));
    };
    // First, why the Service gets no load balancer, or loses it.
    if let Some((cause, text)) = ownership_cause(facts) {
        add(cause, &text);
    }
    for error in facts.errors {
        add(Cause::ServiceInvalid, &error.to_string());
    }
    // Second, the attempt that did not succeed.
    if let Some(attempt) = &facts.state.last_attempt {
        let attempt = ExplainedCause::of_attempt(&format!("service {key}"), attempt, time);
        causes.push(attempt);
    }
    let mut add = |cause, text: &str| {
        causes.push(ExplainedCause::new(cause, format!("service {key}: {text}")));
    };
    // Third, what is wrong with the backends, unless the attempt failed because they are not known.
    let attempted = facts
        .state
        .last_attempt
        .as_ref()
        .map(|attempt| attempt.cause);
    let are_unknown =
        matches!(attempted, Some(Cause::EndpointSlicesNotListed | Cause::CacheNotConfirmed));
    let mut is_unconfirmed = false;
    if let Some(backends) = facts.backends.filter(|_| !are_unknown) {
        is_unconfirmed = backends.is_unconfirmed;
        match (backends.kind, backends.fingerprint) {
            _ if is_unconfirmed => add(
                Cause::CacheNotConfirmed,
                "most of its nodes are gone from the cache, which the API server has not confirmed",
            ),
            (_, None) => add(Cause::EndpointSlicesNotListed, "its EndpointSlices are not listed"),
            ("nodes", _) if backends.members() == 0 => {
                add(Cause::NoBackendNodes, "no node is a backend");
            }
            (_, Some(_)) if backends.members() == 0 => {
                add(Cause::NoEndpoints, "no endpoint serves");
            }
            _ => {}
        }
    }
    // Last, what is about to be done, unless a failed attempt says it better.
    if facts.state.last_attempt.is_none()
        && !is_unconfirmed
        && let Some((cause, text)) = due_cause(facts)
    {
        add(cause, text);
    }
    causes
}

/// Returns the cause for which this manager does not serve the Service, if it does not.
fn ownership_cause(facts: &ServiceFacts<'_>) -> Option<(Cause, String)> {
    let ServiceFacts { service, state, .. } = facts;
    let is_deletion = match facts.action {
        ServiceAction::Delete { .. } => true,
        ServiceAction::Wait { .. } => state
            .deferred
            .is_some_and(|deferred| matches!(deferred.goal, SyncGoal::Delete(_))),
        _ => false,
    };
    if !facts.exists || (service.deleting && (is_deletion || service.has_finalizer())) {
        return Some((Cause::ServiceBeingDeleted, deletion_text(facts)));
    }
    if !service.is_load_balancer {
        let text = "it no longer has type LoadBalancer";
        return is_deletion.then(|| (Cause::LoadBalancerNotNeeded, text.to_owned()));
    }
    if !facts.is_our_class {
        let class = service.class.as_deref().unwrap_or_default();
        let text =
            format!("spec.loadBalancerClass is {class:?}, which this manager does not serve");
        return Some((Cause::OtherLoadBalancerClass, text));
    }
    if matches!(facts.desired, Some(DesiredState::ImplementedElsewhere)) {
        let text = "its annotations give it to another controller";
        return Some((Cause::ImplementedElsewhere, text.to_owned()));
    }
    is_deletion.then(|| (Cause::ServiceBeingDeleted, replacement_text(facts.removal)))
}

/// Returns what becomes of the load balancer of a Service that is deleted or being deleted.
fn deletion_text(facts: &ServiceFacts<'_>) -> String {
    match (facts.exists, facts.removal) {
        (false, RemovalPlan::Nothing) => format!(
            "it was deleted, and its load balancer still exists, because the annotation {ANNOTATION_RETAIN} could not be \
             followed; the same annotation on a new Service of this name decides"
        ),
        (false, _) => "it was deleted, and its load balancer still exists".to_owned(),
        (true, RemovalPlan::Delete) => {
            "its load balancer is deleted before the finalizer is removed".to_owned()
        }
        (true, RemovalPlan::LetGo) => {
            "it lets go of its load balancer, which is kept, before the finalizer is removed"
                .to_owned()
        }
        (true, RemovalPlan::Nothing) => format!(
            "its annotation {ANNOTATION_RETAIN} cannot be followed, so nothing is deleted and the finalizer stays until it is \
             corrected"
        ),
    }
}

/// Returns what becomes of the load balancer of an earlier Service, for which this one waits.
fn replacement_text(removal: RemovalPlan) -> String {
    match removal {
        RemovalPlan::Delete => {
            "the load balancer of an earlier Service of this name is deleted first".to_owned()
        }
        RemovalPlan::LetGo => {
            "an earlier Service of this name lets go of its load balancer first, which is kept"
                .to_owned()
        }
        RemovalPlan::Nothing => format!(
            "it is not known whether to keep the load balancer of an earlier Service of this name; the annotation \
             {ANNOTATION_RETAIN} on this Service decides"
        ),
    }
}

/// Returns the cause that an action is about to remove, if there is an action.
fn due_cause(facts: &ServiceFacts<'_>) -> Option<(Cause, &'static str)> {
    let state = facts.state;
    match facts.action {
        ServiceAction::Serve(ServeAction::Ensure { .. }) if !state.has_attempted => {
            Some((Cause::ServiceNotSyncedYet, "its first sync is queued or runs"))
        }
        ServiceAction::Serve(ServeAction::Ensure { .. }) => {
            Some((Cause::ServiceNotSyncedYet, "its last change is queued or being applied"))
        }
        ServiceAction::Serve(ServeAction::CheckDrift(DriftCheck::First)) => {
            Some((Cause::DriftCheckDue, "its first comparison since this process leads is due"))
        }
        ServiceAction::Serve(ServeAction::RestoreStatus) => {
            Some((Cause::StatusNotWritten, "another client changed its finalizer or status"))
        }
        _ if facts.spec_is_applied() && !facts.backends_are_applied() => {
            Some((Cause::BackendsNotCurrent, "a change of its backends is about to be applied"))
        }
        ServiceAction::Wait { .. }
            if facts.spec_is_applied()
                && !(has_finalizer(facts.service, state, facts.now)
                    && shows_desired_status(facts.service, state, facts.now)) =>
        {
            Some((Cause::StatusNotWritten, "another client changed its finalizer or status"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        controllers::service::plan::{LastApplied, StartEvent},
        explain::{AttemptRecord, ExplainedMember},
        k8s::well_known,
        provider::{Digest, ReadMode},
        runtime::events::WallClock,
    };

    const DIGEST: Digest = Digest(1);

    /// A Service that is served without problems.
    struct Situation {
        service: ServiceView,
        exists: bool,
        is_our_class: bool,
        state: ServiceSyncState,
        desired: Option<DesiredState>,
        errors: Vec<FieldError>,
        backends: SelectedBackends,
        action: ServiceAction,
        removal: RemovalPlan,
    }

    impl Situation {
        fn served() -> Self {
            let member =
                ExplainedMember { name: "a".to_owned(), member: true, reason: String::new() };
            Self {
                service: ServiceView {
                    finalizers: Box::new([Arc::from(well_known::FINALIZER_LOAD_BALANCER)]),
                    ..ServiceView::named("shop", "web")
                },
                exists: true,
                is_our_class: true,
                state: ServiceSyncState {
                    has_attempted: true,
                    may_exist_in_cloud: true,
                    last_applied: Some(LastApplied {
                        digest: DIGEST,
                        backend_fingerprint: Some(7),
                        verify_at: Duration::from_secs(60),
                    }),
                    ..ServiceSyncState::default()
                },
                desired: Some(DesiredState::Serve { digest: DIGEST, backends: 7 }),
                errors: Vec::new(),
                backends: SelectedBackends {
                    kind: "nodes",
                    fingerprint: Some(7),
                    is_unconfirmed: false,
                    candidates: vec![member],
                },
                action: ServiceAction::Wait { until: None },
                removal: RemovalPlan::Delete,
            }
        }

        fn with(change: impl FnOnce(&mut Self)) -> Vec<ExplainedCause> {
            let mut situation = Self::served();
            change(&mut situation);
            let facts = ServiceFacts {
                service: &situation.service,
                exists: situation.exists,
                is_our_class: situation.is_our_class,
                state: &situation.state,
                desired: situation.desired.as_ref(),
                errors: &situation.errors,
                backends: Some(&situation.backends),
                action: &situation.action,
                removal: situation.removal,
                now: Duration::ZERO,
            };
            causes(&facts, ExplainTime::new(&WallClock::system()))
        }
    }

    fn first(change: impl FnOnce(&mut Situation)) -> Option<Cause> {
        let causes = Situation::with(change);
        for cause in &causes {
            assert!(cause.message.starts_with("service shop/web: "), "{}", cause.message);
        }
        causes.first().map(|cause| cause.cause)
    }

    fn ensure(situation: &mut Situation) {
        let read_mode = ReadMode::Fresh;
        let start_event = StartEvent::Emit;
        situation.action = ServiceAction::Serve(ServeAction::Ensure { read_mode, start_event });
    }

    fn forget(situation: &mut Situation) {
        situation.state = ServiceSyncState::default();
    }

    #[test]
    fn a_served_service_has_no_cause() {
        assert_eq!(Situation::with(|_| ()), []);
    }

    #[test]
    fn a_service_of_others_says_whose_it_is() {
        let other_class = first(|s| {
            forget(s);
            s.is_our_class = false;
            s.service.class = Some(Arc::from("internal"));
            s.action = ServiceAction::Ignore;
        });
        assert_eq!(other_class, Some(Cause::OtherLoadBalancerClass));
        let elsewhere = first(|s| {
            s.desired = Some(DesiredState::ImplementedElsewhere);
            s.action = ServiceAction::Ignore;
        });
        assert_eq!(elsewhere, Some(Cause::ImplementedElsewhere));
    }

    #[test]
    fn a_load_balancer_that_is_deleted_says_why() {
        let delete = |s: &mut Situation| {
            let follow_up = crate::controllers::service::plan::AfterDelete::RemoveFinalizer;
            s.action = ServiceAction::Delete { follow_up, start_event: StartEvent::Emit };
            s.desired = None;
        };
        let deleting = first(|s| {
            delete(s);
            s.service.deleting = true;
        });
        assert_eq!(deleting, Some(Cause::ServiceBeingDeleted));
        let gone = first(|s| {
            delete(s);
            s.exists = false;
        });
        assert_eq!(gone, Some(Cause::ServiceBeingDeleted));
        // What becomes of it has three texts, and a fourth to sixth for an earlier Service's.
        for (removal, own, earlier) in [
            (RemovalPlan::Delete, "is deleted before", "is deleted first"),
            (RemovalPlan::LetGo, "which is kept, before", "first, which is kept"),
            (RemovalPlan::Nothing, "nothing is deleted", "on this Service decides"),
        ] {
            for (deleting, text) in [(true, own), (false, earlier)] {
                let causes = Situation::with(|s| {
                    delete(s);
                    s.service.deleting = deleting;
                    s.removal = removal;
                });
                assert!(causes[0].message.contains(text), "{removal:?}: {causes:?}");
            }
        }
        let other_type = first(|s| {
            delete(s);
            s.service.is_load_balancer = false;
        });
        assert_eq!(other_type, Some(Cause::LoadBalancerNotNeeded));
    }

    #[test]
    fn each_validation_error_is_named() {
        let causes = Situation::with(|s| {
            s.errors = vec![FieldError::new("spec.ports", "no"), FieldError::new("a/b", "bad")];
            s.desired = Some(DesiredState::Invalid { errors: s.errors.clone(), served: None });
        });
        let texts: Vec<_> = causes.iter().map(|cause| &*cause.message).collect();
        assert_eq!(texts, ["service shop/web: spec.ports: no", "service shop/web: a/b: bad"]);
        assert!(
            causes
                .iter()
                .all(|cause| cause.cause == Cause::ServiceInvalid)
        );
    }

    #[test]
    fn a_failed_attempt_comes_before_what_is_due() {
        let causes = Situation::with(|s| {
            ensure(s);
            let attempt = AttemptRecord::now("ensure", Cause::QuotaExceeded, "no more");
            s.state.last_attempt = Some(Arc::new(attempt));
        });
        assert_eq!(causes.len(), 1, "{causes:?}");
        assert_eq!(causes[0].cause, Cause::QuotaExceeded);
        assert_eq!(causes[0].message, "service shop/web: no more");
    }

    #[test]
    fn what_is_due_is_named() {
        let new = first(|s| {
            forget(s);
            ensure(s);
        });
        assert_eq!(new, Some(Cause::ServiceNotSyncedYet));
        let drift = first(|s| {
            forget(s);
            s.action = ServiceAction::Serve(ServeAction::CheckDrift(DriftCheck::First));
        });
        assert_eq!(drift, Some(Cause::DriftCheckDue));
        let restore = first(|s| s.action = ServiceAction::Serve(ServeAction::RestoreStatus));
        assert_eq!(restore, Some(Cause::StatusNotWritten));
        let restored_recently = first(|s| s.service.finalizers = Box::default());
        assert_eq!(restored_recently, Some(Cause::StatusNotWritten));
        let backends = first(|s| s.backends.fingerprint = Some(8));
        assert_eq!(backends, Some(Cause::BackendsNotCurrent));
    }

    #[test]
    fn missing_backends_are_named_by_their_kind() {
        let no_nodes = first(|s| s.backends.candidates.clear());
        assert_eq!(no_nodes, Some(Cause::NoBackendNodes));
        let unconfirmed = Situation::with(|s| {
            s.backends.candidates.clear();
            s.backends.fingerprint = Some(8);
            s.backends.is_unconfirmed = true;
        });
        let unconfirmed: Vec<_> = unconfirmed.iter().map(|cause| cause.cause).collect();
        assert_eq!(unconfirmed, [Cause::CacheNotConfirmed]);
        let no_endpoints = first(|s| {
            s.backends.kind = "endpoints";
            s.backends.candidates.clear();
        });
        assert_eq!(no_endpoints, Some(Cause::NoEndpoints));
        let not_listed = first(|s| {
            s.backends.kind = "endpoints";
            s.backends.fingerprint = None;
        });
        assert_eq!(not_listed, Some(Cause::EndpointSlicesNotListed));
    }
}

use std::num::NonZeroU16;

use proptest::prelude::*;

use super::*;
use crate::k8s::{ConditionStatus, LbPortStatus, OwnCondition, Protocol, well_known};

const HOUR: Duration = Duration::from_secs(3600);
const WISHED: Digest = Digest(1);
const OTHER: Digest = Digest(2);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn service() -> ServiceView {
    ServiceView {
        uid: "u".into(),
        resource_version: "10".into(),
        ..ServiceView::named("ns", "web")
    }
}

fn carrying(finalizers: &[&str], service: ServiceView) -> ServiceView {
    ServiceView {
        finalizers: finalizers.iter().map(|f| Arc::from(*f)).collect(),
        ..service
    }
}

fn status(ip: &str) -> LbStatus {
    LbStatus {
        ingress: vec![LbIngress { ip: Some(ip.parse().unwrap()), ..LbIngress::default() }],
    }
}

#[test]
fn the_condition_of_a_service_that_was_never_served_goes_with_its_type() {
    let condition = OwnCondition {
        index: 0,
        status: ConditionStatus::False,
        reason: "ServiceInvalid".into(),
        observed_generation: 0,
    };
    let was_invalid =
        cluster_ip(ServiceView { own_condition: Some(condition.into()), ..service() });
    assert_eq!(step(&was_invalid, &fresh(), &WISH), ServiceAction::RemoveCondition);
    assert_eq!(step(&cluster_ip(service()), &fresh(), &WISH), ServiceAction::Forget);
    let deleted = deleting(was_invalid.clone());
    assert_eq!(step(&deleted, &fresh(), &WISH), ServiceAction::Forget, "it goes with it");
    // That of another controller is not ours.
    let theirs = ServiceSyncState { other_controller: true, ..fresh() };
    assert_eq!(step(&was_invalid, &theirs, &WISH), ServiceAction::Ignore);
}

/// A Service that is served, as the API server shows it.
fn served_service() -> ServiceView {
    ServiceView {
        status: status("1.2.3.4"),
        ..carrying(&[well_known::FINALIZER_LOAD_BALANCER], service())
    }
}

fn cluster_ip(service: ServiceView) -> ServiceView {
    ServiceView { is_load_balancer: false, ..service }
}

fn deleting(service: ServiceView) -> ServiceView {
    ServiceView { deleting: true, ..service }
}

fn with_class(class: &str, service: ServiceView) -> ServiceView {
    ServiceView { class: Some(class.into()), ..service }
}

fn fresh() -> ServiceSyncState {
    ServiceSyncState { uid: "u".into(), ..ServiceSyncState::default() }
}

/// What is known of a Service that is served.
fn served() -> ServiceSyncState {
    ServiceSyncState {
        may_exist_in_cloud: true,
        has_attempted: true,
        last_applied: Some(LastApplied {
            digest: WISHED,
            backend_fingerprint: Some(7),
            verify_at: HOUR,
        }),
        announced_goal: Some(SyncGoal::Serve(WISHED)),
        desired_status: Some(status("1.2.3.4")),
        ..fresh()
    }
}

fn held(goal: SyncGoal, known: ServiceSyncState) -> ServiceSyncState {
    ServiceSyncState {
        deferred: Some(DeferredGoal { until: secs(300), goal, backends: None }),
        ..known
    }
}

const fn wish(digest: Digest, backends: u64) -> DesiredState {
    DesiredState::Serve { digest, backends }
}

const WISH: DesiredState = wish(WISHED, 7);

fn at(
    now: Duration,
    service: Option<&ServiceView>,
    known: &ServiceSyncState,
    wish: &DesiredState,
) -> ServiceAction {
    let fields = ServiceFields { classes: vec!["ours".into()], ..ServiceFields::default() };
    plan(PlanInput {
        service,
        state: known,
        fields: &fields,
        desired: Some(wish),
        node_sync_scheduled: false,
        now,
    })
}

fn step(service: &ServiceView, known: &ServiceSyncState, wish: &DesiredState) -> ServiceAction {
    at(secs(100), Some(service), known, wish)
}

fn ensure(read_mode: ReadMode, start_event: StartEvent) -> ServiceAction {
    ServiceAction::Serve(ServeAction::Ensure { read_mode, start_event })
}

const RESTS: ServiceAction = ServiceAction::Wait { until: Some(HOUR) };

#[test]
fn a_balancer_is_made_or_compared_or_left_alone_by_what_is_known_of_it() {
    let new_digest = ServiceSyncState { announced_goal: Some(SyncGoal::Serve(WISHED)), ..served() };
    let failed = ServiceSyncState { last_applied: None, ..served() };
    let unsure = LastApplied { digest: WISHED, backend_fingerprint: None, verify_at: HOUR };
    let only_status = ServiceView { status: status("1.2.3.4"), ..service() };
    let only_finalizer = carrying(&[well_known::FINALIZER_LOAD_BALANCER], service());
    for (name, service, known, wish, expected) in [
        ("new", service(), fresh(), WISH, ensure(ReadMode::Fresh, StartEvent::Emit)),
        (
            "finished by an earlier process",
            served_service(),
            fresh(),
            WISH,
            ServiceAction::Serve(ServeAction::CheckDrift(DriftCheck::First)),
        ),
        (
            "begun by an earlier process",
            only_finalizer,
            fresh(),
            WISH,
            ensure(ReadMode::Fresh, StartEvent::Emit),
        ),
        (
            "its finalizer was stripped meanwhile",
            only_status,
            fresh(),
            WISH,
            ensure(ReadMode::Fresh, StartEvent::Emit),
        ),
        ("nothing changed", served_service(), served(), WISH, RESTS),
        (
            "the desired state changed",
            served_service(),
            new_digest,
            wish(OTHER, 7),
            ensure(ReadMode::Cached, StartEvent::Emit),
        ),
        (
            "and the backends too",
            served_service(),
            served(),
            wish(OTHER, 8),
            ensure(ReadMode::Cached, StartEvent::Emit),
        ),
        (
            "the backends changed",
            served_service(),
            served(),
            wish(WISHED, 8),
            ServiceAction::Serve(ServeAction::UpdateBackends),
        ),
        (
            "an update of them failed",
            served_service(),
            ServiceSyncState { last_applied: Some(unsure), ..served() },
            WISH,
            ServiceAction::Serve(ServeAction::UpdateBackends),
        ),
        (
            "an ensure failed",
            served_service(),
            failed,
            WISH,
            ensure(ReadMode::Fresh, StartEvent::Skip),
        ),
    ] {
        assert_eq!(step(&service, &known, &wish), expected, "{name}");
    }
}

#[test]
fn a_balancer_is_compared_when_its_time_has_come_and_changes_come_first() {
    let service = served_service();
    assert_eq!(
        at(HOUR, Some(&service), &served(), &WISH),
        ServiceAction::Serve(ServeAction::CheckDrift(DriftCheck::Periodic))
    );
    assert_eq!(at(secs(3599), Some(&service), &served(), &WISH), RESTS);
    assert_eq!(
        at(HOUR, Some(&service), &served(), &wish(WISHED, 8)),
        ServiceAction::Serve(ServeAction::UpdateBackends)
    );
}

#[test]
fn what_somebody_changed_on_the_service_is_written_again() {
    let other_ip = ServiceView { status: status("9.9.9.9"), ..served_service() };
    let cleared = ServiceView { status: LbStatus::default(), ..served_service() };
    let stripped = carrying(&["other"], served_service());
    for (name, service) in
        [("status", other_ip), ("status cleared", cleared), ("finalizer", stripped)]
    {
        assert_eq!(
            step(&service, &served(), &WISH),
            ServiceAction::Serve(ServeAction::RestoreStatus),
            "{name}"
        );
    }
}

#[test]
fn an_observation_from_before_our_own_write_is_no_change_by_somebody_else() {
    let written = Some(LastWrite { version: 11, finalizer: true, at: secs(90) });
    let before = service();
    assert_eq!(step(&before, &ServiceSyncState { last_write: written, ..served() }, &WISH), RESTS);
    let after = ServiceView { resource_version: "11".into(), ..service() };
    assert_eq!(
        step(&after, &ServiceSyncState { last_write: written, ..served() }, &WISH),
        ServiceAction::Serve(ServeAction::RestoreStatus)
    );
}

#[test]
fn who_wants_no_balancer_loses_it_if_there_is_or_may_be_one() {
    let delete = ServiceAction::Delete {
        follow_up: AfterDelete::RemoveFinalizer,
        start_event: StartEvent::Emit,
    };
    let with_ours = || carrying(&[well_known::FINALIZER_LOAD_BALANCER], service());
    let gone_service = ServiceSyncState {
        last_write: Some(LastWrite { version: 11, finalizer: false, at: secs(90) }),
        ..fresh()
    };
    let foreign = ServiceSyncState { other_controller: true, ..fresh() };
    for (name, service, known, expected) in [
        ("no finalizer", cluster_ip(service()), fresh(), ServiceAction::Forget),
        ("finalizer and NodePort", cluster_ip(with_ours()), fresh(), delete.clone()),
        ("finalizer and deleted", deleting(with_ours()), fresh(), delete.clone()),
        ("deleted, without finalizer", deleting(service()), fresh(), ServiceAction::Forget),
        ("finalizer stripped, balancer known", deleting(service()), served(), delete.clone()),
        ("type changed", cluster_ip(served_service()), served(), delete.clone()),
        (
            "released, the cache lags",
            cluster_ip(with_ours()),
            gone_service,
            ServiceAction::Wait { until: None },
        ),
        ("a class of ours", deleting(with_class("ours", with_ours())), fresh(), delete.clone()),
        (
            "a class of another",
            deleting(with_class("other", with_ours())),
            fresh(),
            ServiceAction::Ignore,
        ),
        ("changed to another's class", with_class("other", served_service()), served(), delete),
        (
            "was another's until its type changed",
            cluster_ip(with_ours()),
            foreign,
            ServiceAction::Ignore,
        ),
    ] {
        assert_eq!(step(&service, &known, &WISH), expected, "{name}");
    }
}

#[test]
fn a_class_is_served_only_if_it_is_claimed() {
    let made = ensure(ReadMode::Fresh, StartEvent::Emit);
    for (class, expected) in [
        (Some("ours"), made.clone()),
        (Some("other"), ServiceAction::Ignore),
        (Some(""), ServiceAction::Ignore),
        (None, made),
    ] {
        let service = ServiceView { class: class.map(Arc::from), ..service() };
        assert_eq!(step(&service, &fresh(), &WISH), expected, "{class:?}");
    }
}

#[test]
fn a_service_that_is_gone_or_replaced_by_a_namesake_loses_its_balancer_first() {
    let delete = |follow_up| ServiceAction::Delete { follow_up, start_event: StartEvent::Emit };
    assert_eq!(at(secs(1), None, &fresh(), &WISH), ServiceAction::Forget);
    assert_eq!(at(secs(1), None, &served(), &WISH), delete(AfterDelete::Forget));
    let namesake = ServiceView { uid: "v".into(), ..service() };
    assert_eq!(step(&namesake, &served(), &WISH), delete(AfterDelete::Requeue));
    assert_eq!(step(&cluster_ip(namesake), &served(), &WISH), delete(AfterDelete::Requeue));
}

#[test]
fn a_failure_holds_back_the_same_attempt_and_no_other() {
    let waits = ServiceAction::Wait { until: Some(secs(300)) };
    let failed = ServiceSyncState { last_applied: None, ..served() };
    let serving = held(SyncGoal::Serve(WISHED), failed.clone());
    assert_eq!(step(&served_service(), &serving, &WISH), waits);
    assert_eq!(
        step(&served_service(), &serving, &wish(WISHED, 8)),
        waits,
        "new backends are the same attempt"
    );
    assert_eq!(
        step(&served_service(), &serving, &wish(OTHER, 7)),
        ensure(ReadMode::Fresh, StartEvent::Emit)
    );
    assert_eq!(
        at(secs(300), Some(&served_service()), &serving, &WISH),
        ensure(ReadMode::Fresh, StartEvent::Skip)
    );
    let delete = ServiceAction::Delete {
        follow_up: AfterDelete::RemoveFinalizer,
        start_event: StartEvent::Emit,
    };
    assert_eq!(step(&deleting(served_service()), &serving, &WISH), delete);
    let known = ServiceSyncState { last_observed: Some(Arc::new(served_service())), ..failed };
    let removing = held(
        SyncGoal::for_deletion(Some(&served_service()), &known, AfterDelete::RemoveFinalizer),
        known,
    );
    assert_eq!(step(&deleting(served_service()), &removing, &WISH), waits);
    assert_eq!(at(secs(100), None, &removing, &WISH), waits);
    assert_eq!(
        step(&served_service(), &removing, &WISH),
        ensure(ReadMode::Fresh, StartEvent::Skip),
        "it is wanted again"
    );
}

#[test]
fn a_deletion_that_failed_is_tried_again_at_once_when_annotations_change() {
    let annotated = |value: &str| {
        let mut service = deleting(served_service());
        service
            .annotations
            .insert("example.com/protected".into(), value.into());
        service
    };
    let known = ServiceSyncState { last_observed: Some(Arc::new(served_service())), ..served() };
    let goal =
        SyncGoal::for_deletion(Some(&annotated("true")), &known, AfterDelete::RemoveFinalizer);
    let refused = ServiceSyncState { announced_goal: Some(goal), ..held(goal, known) };
    let waits = ServiceAction::Wait { until: Some(secs(300)) };
    assert_eq!(step(&annotated("true"), &refused, &WISH), waits);
    let touched = ServiceView {
        status: status("5.6.7.8"),
        resource_version: "99".into(),
        ..annotated("true")
    };
    assert_eq!(step(&touched, &refused, &WISH), waits, "an echo of a write");
    let again = ServiceAction::Delete {
        follow_up: AfterDelete::RemoveFinalizer,
        start_event: StartEvent::Skip,
    };
    assert_eq!(step(&annotated("false"), &refused, &WISH), again);
    assert_eq!(step(&deleting(served_service()), &refused, &WISH), again);
}

#[test]
fn a_mistake_is_told_once_and_a_new_one_again() {
    let mistake = |message: &str| DesiredState::Invalid {
        errors: vec![FieldError::new("spec.ports", message)],
        served: None,
    };
    let tells = |known: &ServiceSyncState, wish: &DesiredState| match step(&service(), known, wish)
    {
        ServiceAction::ReportInvalid { .. } => true,
        ServiceAction::Wait { until: None } => false,
        other => panic!("{other:?}"),
    };
    let DesiredState::Invalid { errors: mistakes, .. } = mistake("a") else {
        unreachable!()
    };
    let told = ServiceSyncState {
        reported_invalid_digest: Some(invalid_digest(&mistakes)),
        ..fresh()
    };
    assert!(tells(&fresh(), &mistake("a")));
    assert!(!tells(&told, &mistake("a")));
    assert!(tells(&told, &mistake("b")));
    assert_eq!(step(&service(), &told, &WISH), ensure(ReadMode::Fresh, StartEvent::Emit), "mended");
    assert_eq!(
        step(&service(), &fresh(), &DesiredState::ImplementedElsewhere),
        ServiceAction::Ignore
    );
}

#[test]
fn what_was_served_before_it_was_spoilt_keeps_getting_todays_backends() {
    let mistakes = vec![FieldError::new("spec.ports", "a")];
    let refused = |backends| DesiredState::Invalid {
        errors: mistakes.clone(),
        served: Some(ServedBackends { digest: Digest(1), fingerprint: backends }),
    };
    let applied = |backends| {
        Some(LastApplied {
            digest: Digest(1),
            backend_fingerprint: Some(backends),
            verify_at: secs(9000),
        })
    };
    let known = ServiceSyncState {
        reported_invalid_digest: Some(invalid_digest(&mistakes)),
        last_applied: applied(7),
        ..fresh()
    };
    assert_eq!(step(&service(), &known, &refused(7)), ServiceAction::Wait { until: None });
    assert_eq!(
        step(&service(), &known, &refused(8)),
        ServiceAction::Serve(ServeAction::UpdateBackends)
    );
    let untold = ServiceSyncState { reported_invalid_digest: None, ..known.clone() };
    assert!(
        matches!(step(&service(), &untold, &refused(8)), ServiceAction::ReportInvalid { .. }),
        "it is told first"
    );
    let nothing = DesiredState::Invalid { errors: mistakes.clone(), served: None };
    assert_eq!(
        step(&service(), &ServiceSyncState { last_applied: None, ..known }, &nothing),
        ServiceAction::Wait { until: None }
    );
}

/// After a restart nothing is known of it but that it shows a load balancer.
#[test]
fn backends_of_a_service_that_was_invalid_at_the_start_are_followed_until_it_is_mended() {
    let mistakes = vec![FieldError::new("spec.ports", "a")];
    let refused = |backends| DesiredState::Invalid {
        errors: mistakes.clone(),
        served: Some(ServedBackends { digest: Digest(5), fingerprint: backends }),
    };
    let told = ServiceSyncState {
        reported_invalid_digest: Some(invalid_digest(&mistakes)),
        ..fresh()
    };
    assert_eq!(
        step(&served_service(), &told, &refused(7)),
        ServiceAction::Serve(ServeAction::UpdateBackends)
    );
    let applied = Some(LastApplied {
        digest: Digest(5),
        backend_fingerprint: Some(7),
        verify_at: secs(9000),
    });
    let followed = ServiceSyncState { last_applied: applied, may_exist_in_cloud: true, ..told };
    assert_eq!(
        step(&served_service(), &followed, &refused(7)),
        ServiceAction::Wait { until: None }
    );
    assert_eq!(
        step(&served_service(), &followed, &refused(8)),
        ServiceAction::Serve(ServeAction::UpdateBackends)
    );
    let hold = DeferredGoal {
        until: secs(400),
        goal: SyncGoal::Serve(Digest(5)),
        backends: None,
    };
    let failed = ServiceSyncState { deferred: Some(hold), ..followed.clone() };
    assert_eq!(
        step(&served_service(), &failed, &refused(8)),
        ServiceAction::Wait { until: Some(secs(400)) }
    );
    assert_eq!(
        step(&served_service(), &followed, &WISH),
        ServiceAction::Serve(ServeAction::CheckDrift(DriftCheck::First)),
        "mended"
    );
}

#[test]
fn a_failed_update_holds_back_other_backends_for_half_a_minute_only() {
    let applied = Some(LastApplied {
        digest: Digest(1),
        backend_fingerprint: None,
        verify_at: secs(9000),
    });
    let hold =
        |backends| DeferredGoal { until: secs(400), goal: SyncGoal::Serve(Digest(1)), backends };
    let decided = |now, hold| {
        let known = ServiceSyncState {
            uid: "u".into(),
            may_exist_in_cloud: true,
            has_attempted: true,
            last_applied: applied,
            deferred: Some(hold),
            ..fresh()
        };
        let wish = DesiredState::Serve { digest: Digest(1), backends: 8 };
        let service = service();
        let known = ServiceSyncState { uid: service.uid.clone(), ..known };
        let fields = ServiceFields::default();
        plan(PlanInput {
            service: Some(&service),
            state: &known,
            fields: &fields,
            desired: Some(&wish),
            node_sync_scheduled: false,
            now: secs(now),
        })
    };
    let same = hold(Some(DeferredBackends { tried_at: secs(100), fingerprint: 8 }));
    assert_eq!(decided(131, same), ServiceAction::Wait { until: Some(secs(400)) });
    let other = hold(Some(DeferredBackends { tried_at: secs(100), fingerprint: 7 }));
    assert_eq!(decided(129, other), ServiceAction::Wait { until: Some(secs(130)) });
    assert_eq!(decided(130, other), ServiceAction::Serve(ServeAction::UpdateBackends));
    assert_eq!(
        decided(130, hold(None)),
        ServiceAction::Wait { until: Some(secs(400)) },
        "an ensure waits"
    );
}

#[test]
fn a_write_that_never_comes_back_is_not_believed_for_ever() {
    let written = Some(LastWrite { version: u64::MAX, finalizer: true, at: secs(10) });
    let known = ServiceSyncState { last_write: written, ..fresh() };
    assert!(has_finalizer(&service(), &known, secs(69)));
    assert!(!has_finalizer(&service(), &known, secs(70)), "etcd may have been restored");
}

#[test]
fn a_status_equals_another_as_the_api_server_would_store_it() {
    let port =
        |protocol| LbPortStatus { port: NonZeroU16::new(80).unwrap(), protocol, error: None };
    let plain = LbIngress { ip: Some("1.2.3.4".parse().unwrap()), ..LbIngress::default() };
    let mode = |mode: &str| LbIngress { ip_mode: Some(mode.into()), ..plain.clone() };
    let ports = |protocols: &[Protocol]| {
        let ports = protocols.iter().map(|protocol| port(*protocol)).collect();
        LbIngress { ports, ..plain.clone() }
    };
    let other_ip = LbIngress { ip: Some("1.2.3.5".parse().unwrap()), ..plain.clone() };
    let name = |name: &str| LbIngress { hostname: Some(name.into()), ..LbIngress::default() };
    let named_vip = LbIngress { ip_mode: Some("VIP".into()), ..name("a") };
    let tcp = || ports(&[Protocol::Tcp]);
    for (case, a, b, same) in [
        ("empty", vec![], vec![], true),
        ("same ip", vec![plain.clone()], vec![plain.clone()], true),
        ("different ip", vec![plain.clone()], vec![other_ip.clone()], false),
        ("one more", vec![plain.clone()], vec![plain.clone(), other_ip.clone()], false),
        (
            "another order",
            vec![other_ip.clone(), plain.clone()],
            vec![plain.clone(), other_ip],
            false,
        ),
        ("same mode", vec![mode("Proxy")], vec![mode("Proxy")], true),
        ("the default mode", vec![plain.clone()], vec![mode("VIP")], true),
        ("a mode that is no default", vec![plain.clone()], vec![mode("Proxy")], false),
        ("different modes", vec![mode("VIP")], vec![mode("Proxy")], false),
        ("a name has no default mode", vec![name("a")], vec![named_vip], false),
        ("different names", vec![name("a")], vec![name("b")], false),
        ("same ports", vec![tcp()], vec![tcp()], true),
        ("another protocol", vec![tcp()], vec![ports(&[Protocol::Udp])], false),
        ("a port is missing", vec![tcp()], vec![plain], false),
    ] {
        let (a, b) = (LbStatus { ingress: a }, LbStatus { ingress: b });
        assert_eq!((same_status(&a, &b), same_status(&b, &a)), (same, same), "{case}");
    }
}

prop_compose! {
    fn any_service()(
        uid in prop_oneof![4 => Just("u"), 1 => Just("v")],
        is_load_balancer in prop::bool::weighted(0.8),
        deleting in prop::bool::weighted(0.2),
        class in prop_oneof![3 => Just(None), 1 => Just(Some("ours")), 1 => Just(Some("other"))],
        finalizer in any::<bool>(),
        address in any::<bool>(),
    ) -> ServiceView {
        let finalizers: &[&str] = if finalizer { &["x", well_known::FINALIZER_LOAD_BALANCER] } else { &["x"] };
        let status = if address { status("1.2.3.4") } else { LbStatus::default() };
        let class = class.map(Arc::from);
        let service = ServiceView { uid: uid.into(), is_load_balancer, deleting, class, status, ..service() };
        carrying(finalizers, service)
    }
}

fn any_subject() -> impl Strategy<Value = SyncGoal> {
    prop_oneof![
        Just(SyncGoal::Delete(Digest(1))),
        Just(SyncGoal::Serve(WISHED)),
        Just(SyncGoal::Serve(OTHER))
    ]
}

prop_compose! {
    fn any_known()(
        may_exist in any::<bool>(),
        foreign in any::<bool>(),
        attempted in any::<bool>(),
        applied in prop::option::of((any::<bool>(), prop::option::of(6_u64..8), 0_u64..200)),
        hold in prop::option::of((0_u64..200, any_subject())),
        announced in prop::option::of(any_subject()),
        published in any::<bool>(),
        written in prop::option::of((9_u64..12, any::<bool>())),
    ) -> ServiceSyncState {
        ServiceSyncState {
            may_exist_in_cloud: may_exist,
            other_controller: foreign,
            has_attempted: attempted,
            last_applied: applied.filter(|_| may_exist).map(|(wished, backends, verify_at)| LastApplied {
                digest: if wished { WISHED } else { OTHER },
                backend_fingerprint: backends,
                verify_at: secs(verify_at),
            }),
            deferred: hold.map(|(until, goal)| DeferredGoal { until: secs(until), goal, backends: None }),
            announced_goal: announced,
            desired_status: published.then(|| status("1.2.3.4")),
            last_write: written.map(|(version, finalizer)| LastWrite { version, finalizer, at: secs(90) }),
            ..fresh()
        }
    }
}

/// What doing a step, with success, makes of the world; `None` when the Service is forgotten.
fn done(
    step: &ServiceAction,
    service: &mut Option<ServiceView>,
    known: &ServiceSyncState,
    now: Duration,
) -> Option<ServiceSyncState> {
    let mut known = known.clone();
    let wished = status("1.2.3.4");
    let settled = Some(LastApplied {
        digest: WISHED,
        backend_fingerprint: Some(7),
        verify_at: now + HOUR,
    });
    let publish = |service: &mut Option<ServiceView>, known: &mut ServiceSyncState| {
        let Some(service) = service else { return };
        service.resource_version = "20".into();
        *service = ServiceView {
            status: wished.clone(),
            ..carrying(&["x", well_known::FINALIZER_LOAD_BALANCER], service.clone())
        };
        (known.desired_status, known.last_write) =
            (Some(wished.clone()), Some(LastWrite { version: 20, finalizer: true, at: secs(90) }));
    };
    match step {
        ServiceAction::Forget | ServiceAction::Ignore | ServiceAction::Wait { .. } => {}
        ServiceAction::ReportInvalid { errors } => {
            known.reported_invalid_digest = Some(invalid_digest(errors));
        }
        ServiceAction::Serve(ServeAction::Ensure { .. }) => {
            (known.may_exist_in_cloud, known.has_attempted, known.last_applied, known.deferred) =
                (true, true, settled, None);
            publish(service, &mut known);
        }
        ServiceAction::Serve(ServeAction::UpdateBackends) => {
            known.last_applied = known
                .last_applied
                .map(|applied| LastApplied { backend_fingerprint: Some(7), ..applied });
            known.deferred = None;
        }
        ServiceAction::Serve(ServeAction::CheckDrift(_)) => {
            (known.may_exist_in_cloud, known.has_attempted, known.last_applied, known.deferred) =
                (true, true, settled, None);
            known
                .desired_status
                .get_or_insert_with(|| service.as_ref().unwrap().status.clone());
        }
        ServiceAction::Serve(ServeAction::RestoreStatus) => publish(service, &mut known),
        ServiceAction::RemoveCondition => service.as_mut().unwrap().own_condition = None,
        ServiceAction::Delete { follow_up, .. } => match follow_up {
            AfterDelete::Forget => return None,
            AfterDelete::Requeue => {
                known = ServiceSyncState {
                    uid: service.as_ref().unwrap().uid.clone(),
                    ..ServiceSyncState::default()
                }
            }
            AfterDelete::RemoveFinalizer => {
                let service = service.as_mut().unwrap();
                service.resource_version = "20".into();
                *service = ServiceView {
                    status: LbStatus::default(),
                    ..carrying(&["x"], service.clone())
                };
                known = ServiceSyncState {
                    last_write: Some(LastWrite { version: 20, finalizer: false, at: secs(90) }),
                    ..fresh()
                };
                known.uid = service.uid.clone();
            }
        },
    }
    Some(known)
}

proptest! {
    /// Four steps are the longest way: a namesake's balancer goes, a comparison, its writes, and
    /// rest.
    #[test]
    fn deciding_again_after_each_step_comes_to_rest(
        service in prop::option::weighted(0.9, any_service()), known in any_known(),
    ) {
        let (mut service, mut known) = (service, known);
        let mut steps = Vec::new();
        for round in 0..5 {
            let now = secs(100 + round);
            let step = at(now, service.as_ref(), &known, &WISH);
            let rests = matches!(step, ServiceAction::Wait { .. } | ServiceAction::Forget | ServiceAction::Ignore);
            steps.push(step.clone());
            if rests {
                return Ok(());
            }
            match done(&step, &mut service, &known, now) {
                Some(next) => known = next,
                None => return Ok(()),
            }
        }
        prop_assert!(false, "{steps:?}");
    }

    #[test]
    fn nothing_is_deleted_while_it_is_wanted(service in any_service(), known in any_known()) {
        let ours = service.class.as_deref().is_none_or(|class| class == "ours");
        prop_assume!(service.is_load_balancer && !service.deleting && ours && *service.uid == *known.uid);
        let step = step(&service, &known, &WISH);
        prop_assert!(!matches!(step, ServiceAction::Delete { .. }), "{step:?}");
    }

    #[test]
    fn a_deletion_is_held_back_by_a_failed_deletion_alone(
        service in prop::option::of(any_service()), known in any_known(), digest in 0_u64..4, until in 0_u64..1000,
    ) {
        let without = ServiceSyncState { deferred: None, ..known };
        let deletes = matches!(at(secs(100), service.as_ref(), &without, &WISH), ServiceAction::Delete { .. });
        let hold = Some(DeferredGoal { until: secs(until), goal: SyncGoal::Serve(Digest(digest)), backends: None });
        let held = ServiceSyncState { deferred: hold, ..without };
        prop_assert_eq!(matches!(at(secs(100), service.as_ref(), &held, &WISH), ServiceAction::Delete { .. }), deletes);
    }

    /// W22: a Service that goes away is never given backends.
    #[test]
    fn nothing_is_made_or_changed_for_a_service_that_goes_away(service in any_service(), known in any_known()) {
        prop_assume!(service.deleting || !service.is_load_balancer);
        let step = step(&service, &known, &WISH);
        let touches = matches!(step, ServiceAction::Serve(_));
        prop_assert!(!touches, "{step:?}");
    }

    /// W22: no update of backends before there is a balancer.
    #[test]
    fn backends_are_updated_only_of_a_balancer_that_was_made(service in any_service(), known in any_known()) {
        prop_assume!(known.last_applied.is_none());
        prop_assert_ne!(step(&service, &known, &WISH), ServiceAction::Serve(ServeAction::UpdateBackends));
    }
}

#[test]
fn what_was_written_counts_as_there_until_the_cache_shows_it() {
    let ingress = vec![LbIngress { ip: Some("1.2.3.4".parse().unwrap()), ..LbIngress::default() }];
    let annotations = [("id".into(), Some("lb-1".into())), ("old".into(), None)].into();
    let sent = UnconfirmedWrites { status: Some(LbStatus { ingress }), annotations };
    let mut service = service();
    service.annotations.insert("old".into(), "x".into());
    let version = service.resource_version.parse::<u64>().unwrap();
    let known = |version| ServiceSyncState {
        unconfirmed: sent.clone(),
        last_write: Some(LastWrite { version, finalizer: true, at: secs(90) }),
        ..fresh()
    };
    let since = with_unconfirmed_write(&service, &known(version + 1), secs(100)).unwrap();
    assert_eq!(
        (&since.status, since.annotations.get("old")),
        (sent.status.as_ref().unwrap(), None)
    );
    assert_eq!(since.annotations.get("id").map(|id| &**id), Some("lb-1"));
    assert_eq!(
        with_unconfirmed_write(&service, &known(version), secs(100)),
        None,
        "the cache shows it"
    );
}

#[test]
fn changes_of_nodes_that_are_brought_together_come_with_the_pass() {
    let applied = |backends| {
        Some(LastApplied {
            digest: Digest(1),
            backend_fingerprint: backends,
            verify_at: HOUR,
        })
    };
    let decided = |backends, pass_awaited| {
        let known = ServiceSyncState {
            last_applied: applied(backends),
            may_exist_in_cloud: true,
            has_attempted: true,
            ..fresh()
        };
        let (service, fields) = (served_service(), ServiceFields::default());
        let wish = DesiredState::Serve { digest: Digest(1), backends: 8 };
        let facts = PlanInput {
            service: Some(&service),
            state: &known,
            fields: &fields,
            desired: Some(&wish),
            node_sync_scheduled: pass_awaited,
            now: secs(100),
        };
        plan(facts)
    };
    assert_eq!(decided(Some(7), false), ServiceAction::Serve(ServeAction::UpdateBackends));
    assert_eq!(decided(Some(7), true), RESTS);
    assert_eq!(
        decided(None, true),
        ServiceAction::Serve(ServeAction::UpdateBackends),
        "what is in doubt is not left so"
    );
}

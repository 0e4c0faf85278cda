//! Reserved capacity: only where the annotation says so, last, and without a request for anybody else.

use std::time::Duration;

use ccm_core::{
    k8s::ServiceView,
    provider::{Progress, ReadMode},
};
use tokio::time::Instant;

use super::fixture::{Fixture, published, service, with};
use crate::{
    api::{Action, LoadBalancerArn, elb::ModifyCapacityReservation},
    client::reason,
    config::Settings,
    lb::tests::{adopted::adopting, retained::keep},
};

const NAME: &str = "minimum-load-balancer-capacity";
const READ: Action = Action::DescribeCapacityReservation;
const WRITE: Action = Action::ModifyCapacityReservation;

fn reserving(web: ServiceView, units: u32) -> ServiceView {
    with(web, NAME, &format!("CapacityUnits={units}"))
}

fn arn(rig: &Fixture) -> LoadBalancerArn {
    rig.aws.load_balancers()[0].arn.clone()
}

fn units(rig: &Fixture) -> u32 {
    rig.aws.capacity_units(&arn(rig)).unwrap()
}

/// How often the capacity was read and changed.
fn calls(rig: &Fixture) -> (usize, usize) {
    (rig.aws.calls(READ), rig.aws.calls(WRITE))
}

async fn reserve_by_hand(rig: &Fixture, capacity_units: u32) {
    let request = ModifyCapacityReservation { arn: arn(rig), capacity_units };
    rig.aws.ask(request).await.unwrap();
    rig.aws.reset_calls();
}

#[tokio::test(start_paused = true)]
async fn capacity_follows_its_annotation() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let plain = published(&web, &rig.settle(&web).await);
    for capacity in [3000, 4000, 0] {
        let web = reserving(plain.clone(), capacity);
        rig.aws.reset_calls();
        rig.settle(&web).await;
        assert_eq!((units(&rig), rig.aws.writes()), (capacity, 1), "{capacity}");
        rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
        assert_eq!((units(&rig), rig.aws.writes()), (capacity, 1), "{capacity}: again");
    }
    // A change by hand is found by the drift check.
    let web = reserving(plain, 3000);
    reserve_by_hand(&rig, 5000).await;
    rig.settle(&web).await;
    assert_eq!((units(&rig), calls(&rig)), (3000, (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn without_the_annotation_capacity_is_neither_read_nor_changed() {
    for (what, dialect, annotation) in [
        ("none", "extended", None),
        ("an empty one", "extended", Some("")),
        ("one that upstream ignores", "upstream", Some("CapacityUnits=3000")),
    ] {
        let rig = Fixture::new(1);
        let web = with(with(service("web", &[80]), "type", "nlb"), "annotation-dialect", dialect);
        let web = match annotation {
            Some(value) => with(web, NAME, value),
            None => web,
        };
        let web = published(&web, &rig.settle(&web).await);
        reserve_by_hand(&rig, 3000).await;
        let mut rig = rig.restart();
        assert_eq!(rig.plan_in_shadow(&web).await, [], "{what}");
        assert_eq!(rig.plan(&web).await.unwrap(), [], "{what}");
        rig.settle(&web).await;
        rig.add_node();
        rig.update(&web).await.result.unwrap();
        rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
        assert_eq!((calls(&rig), units(&rig)), ((0, 0), 3000), "{what}");
        rig.remove(&web).await;
        assert_eq!(calls(&rig), (0, 0), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_stays_when_its_annotation_goes() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let reserved = reserving(web.clone(), 3000);
    let status = rig.settle(&reserved).await;
    rig.aws.reset_calls();
    rig.settle(&published(&web, &status)).await;
    assert_eq!((units(&rig), calls(&rig)), (3000, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn capacity_is_reserved_once_the_load_balancer_is_active() {
    let rig = Fixture::new(1);
    rig.aws
        .configure(|knobs| knobs.provisioning = Duration::from_secs(120));
    let web = reserving(service("web", &[80]), 3000);
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    // Everything else is there, and published.
    assert!(matches!(outcome.result, Ok(Progress::Pending { .. })), "{outcome:?}");
    assert!(outcome.status.is_some());
    assert_eq!(rig.aws.listeners(&arn(&rig)).len(), 1);
    assert_eq!(rig.aws.calls(WRITE), 0);
    rig.aws.reset_calls();
    let started = Instant::now();
    rig.settle(&web).await;
    assert_eq!((units(&rig), rig.aws.writes()), (3000, 1));
    assert!(started.elapsed() <= Duration::from_secs(180), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_that_is_too_new_to_be_read_is_not_active_yet() {
    let rig = Fixture::new(1);
    rig.aws.configure(|knobs| {
        knobs.provisioning = Duration::from_secs(60);
        knobs.describe_lag = Duration::from_secs(1);
    });
    let web = reserving(service("web", &[80]), 3000);
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    assert!(matches!(outcome.result, Ok(Progress::Pending { .. })), "{outcome:?}");
    rig.settle(&web).await;
    assert_eq!(units(&rig), 3000);
}

/// Answers of AWS while it is working on the previous reservation.
const BUSY: [&str; 2] = ["CapacityReservationPending", "PriorRequestNotComplete"];

#[tokio::test(start_paused = true)]
async fn a_reservation_waits_for_the_previous_one() {
    for code in BUSY {
        let rig = Fixture::new(1);
        let web = service("web", &[80]);
        let web = published(&web, &rig.settle(&web).await);
        let web = reserving(web, 3000);
        rig.aws.fail_next(WRITE, code);
        let outcome = rig.ensure(&web, ReadMode::Fresh).await;
        let Ok(Progress::Pending { after, .. }) = outcome.result else {
            panic!("{code}: {outcome:?}")
        };
        assert_eq!((after, rig.reasons()), (Duration::from_secs(60), vec![]), "{code}");
        rig.settle(&web).await;
        assert_eq!(units(&rig), 3000, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn subnets_wait_for_a_reservation_and_nothing_else_does() {
    for code in BUSY {
        let rig = Fixture::new(1);
        let ids: Vec<_> = rig.world.public.iter().map(ToString::to_string).collect();
        let web = with(service("web", &[80]), "subnets", &ids[..2].join(","));
        let web = published(&web, &rig.settle(&web).await);
        let more = ServiceView {
            ports: service("web", &[80, 443]).ports,
            ..with(web, "subnets", &ids.join(","))
        };
        rig.aws.fail_next(Action::SetSubnets, code);
        let outcome = rig.ensure(&more, ReadMode::Fresh).await;
        assert!(matches!(outcome.result, Ok(Progress::Pending { .. })), "{code}: {outcome:?}");
        assert_eq!(rig.aws.load_balancers()[0].zones.len(), 2, "{code}");
        assert_eq!(rig.aws.listeners(&arn(&rig)).len(), 2, "{code}");
        assert_eq!(rig.reasons(), [""; 0], "{code}");
        rig.settle(&more).await;
        assert_eq!(rig.aws.load_balancers()[0].zones.len(), ids.len(), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_aws_rejects_keeps_nothing_else_from_the_service() {
    for (code, event, seconds) in [
        ("InvalidConfigurationRequest", reason::REFUSED, 600),
        ("ValidationError", reason::REFUSED, 600),
        ("CapacityUnitsLimitExceeded", reason::QUOTA, 300),
        ("CapacityDecreaseRequestLimitExceeded", reason::QUOTA, 300),
        ("InsufficientCapacity", reason::QUOTA, 300),
        ("AccessDenied", reason::PERMISSION, 60),
    ] {
        let mut rig = Fixture::new(1);
        rig.aws.fail_always(WRITE, code);
        let mut web = reserving(service("web", &[80, 81]), 3000);
        for mode in [ReadMode::Fresh, ReadMode::Cached, ReadMode::Fresh] {
            let outcome = rig.ensure(&web, mode).await;
            web = published(&web, &outcome.status.unwrap());
            assert_eq!(outcome.result.unwrap(), Progress::Done, "{code}");
        }
        // One event says so, and nobody asks again before the delay.
        let events = std::mem::take(&mut *rig.events.0.lock());
        let [(_, found, text)] = &*events else {
            panic!("{code}: {events:?}")
        };
        assert!(*found == event && text.contains(NAME) && text.contains(code), "{events:?}");
        assert_eq!(rig.aws.calls(WRITE), 1, "{code}");
        assert_eq!(rig.aws.listeners(&arn(&rig)).len(), 2, "{code}");
        rig.add_node();
        rig.update(&web).await.result.unwrap();
        for group in rig.aws.target_groups() {
            assert_eq!(rig.aws.targets(&group.arn).len(), 2, "{code}");
        }
        assert_eq!(rig.plan(&web).await.unwrap(), [], "{code}");
        // After the delay it is a difference, and requested again.
        tokio::time::sleep(Duration::from_secs(seconds - 1)).await;
        rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
        assert_eq!((rig.aws.calls(WRITE), rig.reasons()), (1, vec![]), "{code}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(rig.plan(&web).await.unwrap().len(), 1, "{code}");
        rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
        assert_eq!((rig.aws.calls(WRITE), rig.reasons()), (2, vec![event]), "{code}");
        // Another value does not wait.
        rig.aws.clear_faults();
        let web = reserving(web, 4000);
        rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
        assert_eq!(units(&rig), 4000, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_ends_with_its_delay_without_another_change() {
    let rig = Fixture::new(1);
    let web = reserving(service("web", &[80]), 3000);
    rig.aws.fail_next(WRITE, "InsufficientCapacity");
    rig.ensure(&web, ReadMode::Fresh).await.result.unwrap();
    assert_eq!(units(&rig), 0);
    tokio::time::sleep(Duration::from_secs(300)).await;
    rig.aws.reset_calls();
    rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
    assert_eq!((units(&rig), rig.aws.writes()), (3000, 1));
    rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
    assert_eq!(rig.aws.writes(), 1);
}

#[tokio::test(start_paused = true)]
async fn too_few_units_and_tls_are_for_aws_to_reject() {
    let web = service("web", &[80]);
    for (tls, capacity, why) in [(false, 10, "At least 2750"), (true, 3000, "TLS listeners")] {
        let rig = Fixture::new(1);
        let certificate = rig.aws.certificate();
        let mut web = reserving(web.clone(), capacity);
        if tls {
            web = with(web, "ssl-cert", &certificate);
        }
        rig.ensure(&web, ReadMode::Fresh).await.result.unwrap();
        let events = rig.events.0.lock();
        assert!(events.iter().any(|(_, _, note)| note.contains(why)), "{events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_read_is_not_changed() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let web = with(reserving(web, 3000), "healthcheck-interval", "20");
    rig.aws.deny(READ);
    rig.settle(&web).await;
    rig.settle(&web).await;
    assert_eq!((calls(&rig), rig.reasons()), ((1, 0), vec![reason::PERMISSION]));
    let check = rig.aws.target_groups()[0].health_check.clone().unwrap();
    assert_eq!(check.interval, 20, "everything else is changed");
    // What is denied is asked for again after an hour.
    rig.aws.clear_faults();
    tokio::time::sleep(Duration::from_secs(3601)).await;
    rig.settle(&web).await;
    assert_eq!(units(&rig), 3000);
}

#[tokio::test(start_paused = true)]
async fn a_cloud_without_reservations_serves_everything_else() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let web = with(reserving(web, 3000), "healthcheck-interval", "20");
    rig.aws.fail_always(READ, "InvalidAction");
    rig.settle(&web).await;
    rig.settle(&web).await;
    assert_eq!((calls(&rig), rig.reasons()), ((1, 0), vec![reason::PERMISSION]));
    let check = rig.aws.target_groups()[0].health_check.clone().unwrap();
    assert_eq!(check.interval, 20, "everything else is changed");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_request_is_no_denial_of_other_reads() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let web = with(web, "healthcheck-interval", "20");
    rig.aws
        .fail_always(Action::DescribeLoadBalancerAttributes, "InvalidAction");
    rig.aws.reset_calls();
    rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
    assert_eq!(rig.aws.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_read_changes_nothing() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let web = with(reserving(web, 3000), "healthcheck-interval", "20");
    for mode in [ReadMode::Fresh, ReadMode::Cached] {
        rig.aws.reset_calls();
        rig.aws.fail_always(READ, "InternalFailure");
        rig.ensure(&web, mode).await.result.unwrap_err();
        assert_eq!(rig.aws.writes(), 0, "{mode:?}");
    }
    rig.aws.clear_faults();
    rig.settle(&web).await;
    assert_eq!(units(&rig), 3000);
}

#[tokio::test(start_paused = true)]
async fn shadow_mode_and_the_first_comparison_after_a_restart_show_it() {
    let rig = Fixture::new(1);
    let web = reserving(service("web", &[80]), 3000);
    let operations = |planned: &[ccm_core::provider::PlannedChange]| -> Vec<String> {
        planned
            .iter()
            .map(|change| change.operation.to_string())
            .collect()
    };
    let planned = rig.plan_in_shadow(&web).await;
    assert_eq!(operations(&planned).last().unwrap(), "ModifyCapacityReservation", "{planned:?}");
    let web = published(&web, &rig.settle(&web).await);
    reserve_by_hand(&rig, 5000).await;
    let rig = rig.restart();
    let planned = rig.plan(&web).await.unwrap();
    assert_eq!(operations(&planned), ["ModifyCapacityReservation"]);
    assert_eq!(calls(&rig), (1, 0));
    let rig = rig.restart();
    let planned = rig.plan_in_shadow(&web).await;
    assert_eq!(operations(&planned), ["ModifyCapacityReservation"]);
    assert_eq!(&*planned[0].reason, "5000 capacity units are reserved, 3000 are requested");
    assert_eq!(rig.aws.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_opt_in_announces_it() {
    let rig = Fixture::configured(1, Settings::default());
    let web = reserving(with(service("web", &[80]), "type", "nlb"), 3000);
    let web = published(&web, &rig.settle(&web).await);
    assert_eq!((calls(&rig), units(&rig)), ((0, 0), 0));
    rig.settle(&with(web, "annotation-dialect", "extended"))
        .await;
    assert_eq!(units(&rig), 3000);
    let events = rig.events.0.lock();
    let announced = events
        .iter()
        .find(|(_, reason, _)| *reason == "AnnotationsActivated");
    assert!(announced.unwrap().2.contains("ModifyCapacityReservation"), "{announced:?}");
}

#[tokio::test(start_paused = true)]
async fn an_adopted_load_balancer_gets_what_its_new_service_asks_for() {
    let rig = Fixture::new(1);
    let web = reserving(service("web", &[80]), 3000);
    let web = published(&web, &rig.settle(&web).await);
    let kept = keep(&rig, &web).await;
    assert_eq!(units(&rig), 3000, "a kept one keeps it");
    rig.settle(&reserving(adopting("app", &[80], &kept), 4000))
        .await;
    assert_eq!(units(&rig), 4000);
}

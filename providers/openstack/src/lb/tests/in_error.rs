//! Load balancers in ERROR: when one is deleted or failed over, and when it is only reported.

use std::time::Duration;

use ccm_core::{
    k8s::ServiceView,
    provider::{Progress, ReadMode},
};
use openstack_local::api::octavia::{LoadBalancer, OperatingStatus, ProvisioningStatus};
use openstack_local::{
    octavia::{
        self,
        rows::{LoadBalancerRow, Outcome},
    },
    server::{Fault, FaultKind},
};

use super::{
    fixture::{Fixture, service},
    trouble::{break_it, failovers, shared},
};
use crate::{config, lb::settings::LoadBalancerSettings};

/// Another cluster of the same name has a Service of the same name, whose load balancer is in
/// ERROR.
#[tokio::test(start_paused = true)]
async fn a_balancer_in_error_that_may_be_another_clusters_stays_with_its_address() {
    type Change = fn(&mut LoadBalancer, &mut ServiceView);
    let cases: [(&str, Change, &str); 5] = [
        ("with a floating IP", |_, _| (), "seems to have served"),
        (
            "older than the Service",
            |_, web| web.created = jiff::Timestamp::MAX,
            "not shown to be newer",
        ),
        ("without a time", |lb, _| lb.created_at = None, "not shown to be newer"),
        ("described by others", |lb, _| lb.description = "x".into(), "description and tags"),
        (
            "still serving",
            |lb, _| lb.operating_status = OperatingStatus::Degraded,
            "Octavia reports that it serves",
        ),
    ];
    for (what, change, reason) in cases {
        let rig = Fixture::new(1).await;
        let mut web = service("web", &[80]);
        rig.settle(&web).await;
        break_it(&rig).await;
        let id = rig.the_lb().id;
        rig.change(|state, _| {
            let update = |row: &mut LoadBalancerRow| change(&mut row.body, &mut web);
            state.octavia.load_balancers.update(&id, update);
        })
        .await;
        let rig = rig.restart().await;
        let planned = rig.plan(&web).await.unwrap();
        assert!(planned.iter().any(|change| &*change.operation == "wait"), "{what}: {planned:?}");
        let error = rig.try_settle(&web, 5).await.unwrap_err();
        assert!(error.contains(&id) && error.contains(reason), "{what}: {error}");
        assert_eq!((rig.the_lb().id, rig.floating_ips().len()), (id, 1), "{what}");
        assert!(
            rig.requests()
                .iter()
                .all(|request| request.starts_with("GET")),
            "{what}"
        );
    }
}

/// Before it is deleted it is read once more.
#[tokio::test(start_paused = true)]
async fn a_balancer_that_was_repaired_just_before_its_deletion_stays() {
    let rig = Fixture::new(1).await;
    let web = service("web", &[80]);
    rig.settle(&web).await;
    break_it(&rig).await;
    // This process created it for a Service without an address, so it would be replaced.
    assert_eq!(&*rig.plan(&web).await.unwrap()[0].operation, "loadbalancer_delete");
    let lb = rig.the_lb();
    let mut repaired = lb.clone();
    repaired.provisioning_status = ProvisioningStatus::Active;
    rig.local.cloud().faults.add(
        Fault::new(
            format!("/load-balancer/v2.0/lbaas/loadbalancers/{}", lb.id),
            FaultKind::Body {
                code: 200,
                text: serde_json::json!({"loadbalancer": repaired}).to_string(),
            },
        )
        .method("GET")
        .times(1),
    );
    let repaired = rig.ensure(&web, ReadMode::Fresh).await.result;
    assert!(matches!(repaired, Ok(Progress::Done)), "{repaired:?}");
    assert_eq!((rig.the_lb().id, rig.floating_ips().len()), (lb.id, 1));
    assert!(rig.reasons().is_empty());
}

/// Octavia does not say when it was created, or its clock is behind, but this process knows.
#[tokio::test(start_paused = true)]
async fn a_balancer_that_this_process_created_is_replaced_whatever_the_clocks_say() {
    let rig = Fixture::new(1).await;
    rig.octavia(|settings| (settings.failure, settings.failures) = (Outcome::LoadBalancerFails, 1))
        .await;
    let web = ServiceView { created: jiff::Timestamp::MAX, ..service("web", &[80]) };
    rig.settle(&web).await;
    assert_eq!(rig.the_lb().provisioning_status.as_str(), "ACTIVE");
}

#[tokio::test(start_paused = true)]
async fn a_balancer_in_error_that_still_serves_is_not_failed_over() {
    let rig = Fixture::new(1).await;
    let (first, second) = shared(&rig).await;
    break_it(&rig).await;
    let id = rig.the_lb().id;
    rig.change(|state, _| {
        state
            .octavia
            .load_balancers
            .update(&id, |row| row.body.operating_status = OperatingStatus::Online);
    })
    .await;
    rig.requests();
    for _ in 0..3 {
        let error = rig.try_settle(&first, 3).await.unwrap_err();
        assert!(error.contains(&id) && error.contains(&format!("failover {id}")), "{error}");
        let error = rig.delete(&second).await.unwrap_err().to_string();
        assert!(error.contains(&id) && error.contains(&format!("failover {id}")), "{error}");
    }
    assert_eq!((failovers(&rig), rig.listeners().len()), (0, 2));
}

/// As by Octavia's default policy.
#[tokio::test(start_paused = true)]
async fn a_failover_that_is_not_allowed_is_not_tried_again_soon_and_stops_no_deletion() {
    let rig = Fixture::new(1).await;
    rig.octavia(|settings| settings.failover_needs_admin = true)
        .await;
    let (first, second) = shared(&rig).await;
    break_it(&rig).await;
    let id = rig.the_lb().id;
    rig.requests();
    let next_step = format!("openstack loadbalancer failover {id}");
    let started = tokio::time::Instant::now();
    let error = rig.try_settle(&first, 20).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(1800));
    assert!(error.contains(&next_step) && error.contains("is in error"), "{error}");
    assert_eq!(failovers(&rig), 1);
    // Its part of what stays cannot be removed. The interval also applies to the deletion.
    for _ in 0..3 {
        let error = rig.delete(&first).await.unwrap_err().to_string();
        assert!(error.contains(&next_step), "{error}");
    }
    assert_eq!((failovers(&rig), rig.listeners().len()), (0, 2));
    // Once an administrator has allowed it, it is tried after the interval.
    rig.octavia(|settings| settings.failover_needs_admin = false)
        .await;
    tokio::time::sleep(Duration::from_secs(1800)).await;
    rig.remove(&first).await;
    assert_eq!((failovers(&rig), rig.listeners().len()), (1, 1));
    // A whole one is deleted without.
    rig.octavia(|settings| settings.failover_needs_admin = true)
        .await;
    break_it(&rig).await;
    rig.requests();
    rig.remove(&second).await;
    assert_eq!((failovers(&rig), rig.lbs().len(), rig.floating_ips().len()), (0, 0, 0));
}

#[test]
fn the_key_of_the_configuration_is_handed_on() {
    for failover_on_error in [false, true] {
        let config = config::LoadBalancer { failover_on_error, ..Default::default() };
        assert_eq!(LoadBalancerSettings::from(&config).failover_on_error, failover_on_error);
    }
}

/// As by default: only an administrator fails it over.
#[tokio::test(start_paused = true)]
async fn without_the_key_nothing_is_failed_over_and_whole_balancers_are_deleted() {
    let rig = Fixture::with(1, |settings, _| {
        settings.failover_on_error = LoadBalancerSettings::default().failover_on_error;
    })
    .await;
    let (first, second) = shared(&rig).await;
    break_it(&rig).await;
    let id = rig.the_lb().id;
    let rig = rig.restart().await;
    let texts = [
        format!("load balancer {id} is in error"),
        format!("openstack loadbalancer failover {id}"),
        "failover-on-error in [LoadBalancer]".to_owned(),
    ];
    let has_all = |error: &str| texts.iter().all(|text| error.contains(text));
    // Shadow mode says the same as the sync.
    let planned = rig.plan(&first).await.unwrap();
    assert_eq!(&*planned[0].operation, "wait", "{planned:?}");
    assert!(
        texts[1..]
            .iter()
            .all(|text| planned[0].reason.contains(text)),
        "{planned:?}"
    );
    for _ in 0..3 {
        let error = rig.try_settle(&first, 3).await.unwrap_err();
        assert!(has_all(&error), "{error}");
        // A part of what stays cannot be removed.
        let error = rig.delete(&second).await.unwrap_err().to_string();
        assert!(has_all(&error), "{error}");
    }
    let requests = rig.requests();
    assert!(requests.iter().all(|request| request.starts_with("GET")), "{requests:?}");
    assert_eq!((rig.the_lb().id, rig.listeners().len()), (id.clone(), 2));
    // Once an administrator has failed it over, both go on.
    rig.change(move |state, ctx| octavia::load_balancers::failover(state, ctx, &id).unwrap())
        .await;
    rig.remove(&second).await;
    let first = rig.settle(&first).await;
    assert_eq!((failovers(&rig), rig.listeners().len()), (0, 1));
    // A whole one is deleted in ERROR.
    break_it(&rig).await;
    rig.remove(&first).await;
    assert_eq!((failovers(&rig), rig.lbs().len(), rig.floating_ips().len()), (0, 0, 0));
}

/// What a sync does not do, shadow mode does not announce.
#[tokio::test(start_paused = true)]
async fn a_failover_that_was_not_allowed_is_not_announced() {
    let rig = Fixture::new(1).await;
    rig.octavia(|settings| settings.failover_needs_admin = true)
        .await;
    let web = rig.settle(&service("web", &[80])).await;
    break_it(&rig).await;
    let id = rig.the_lb().id;
    assert_eq!(&*rig.plan(&web).await.unwrap()[0].operation, "loadbalancer_failover");
    let error = rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("does not allow this user"), "{error}");
    let planned = rig.plan(&web).await.unwrap();
    assert_eq!(&*planned[0].operation, "wait", "{planned:?}");
    assert!(planned[0].reason.contains(&format!("failover {id}")), "{planned:?}");
}

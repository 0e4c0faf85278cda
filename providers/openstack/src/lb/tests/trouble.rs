//! A cloud that is slow, busy or broken.

use std::time::Duration;

use ccm_core::{
    k8s::ServiceView,
    provider::{BackendKind, ErrorKind, LoadBalancers, Progress, ReadMode, ServiceInterpretation},
};
use openstack_local::{
    octavia::{self, rows::Outcome},
    server::{Fault, FaultKind},
};

use super::fixture::{Fixture, address, annotation, published, service, shown, with};

#[tokio::test(start_paused = true)]
async fn waiting_is_no_sleep_and_a_long_wait_is_told_once() {
    let rig = Fixture::new(1).await;
    rig.octavia(|settings| settings.pending_ms = 600_000).await;
    let start = tokio::time::Instant::now();
    let outcome = rig.ensure(&service("web", &[80]), ReadMode::Fresh).await;
    assert!(matches!(outcome.result, Ok(Progress::Pending { .. })), "{outcome:?}");
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(outcome.annotations.is_empty(), "what is not made yet may have to go again");
    rig.settle(&service("web", &[80])).await;
    let pauses = rig
        .requests()
        .iter()
        .filter(|request| request.starts_with("GET /load-balancer/v2.0/lbaas/loadbalancers/"))
        .count();
    assert!(pauses < 80, "{pauses} looks in ten minutes");
    assert_eq!(rig.reasons(), ["LoadBalancerPendingLong"]);
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_somebody_else_keeps_busy_is_waited_for() {
    let rig = Fixture::new(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    let id = rig.the_lb().id;
    rig.octavia(|settings| settings.pending_ms = 20_000).await;
    rig.change(|state, ctx| {
        let update = openstack_local::api::octavia::LoadBalancerUpdate {
            description: "x".to_owned().into(),
            ..Default::default()
        };
        octavia::load_balancers::update(state, ctx, &id, update).unwrap();
    })
    .await;
    rig.octavia(|settings| settings.pending_ms = 500).await;
    let changed = with(web, "connection-limit", "7");
    let outcome = rig.ensure(&changed, ReadMode::Cached).await;
    assert!(
        matches!(outcome.result, Ok(Progress::Pending { .. })),
        "a refusal is no error: {outcome:?}"
    );
    rig.settle(&changed).await;
    assert_eq!(rig.listeners()[0].connection_limit, 7);
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_fails_when_it_is_made_is_made_anew() {
    let rig = Fixture::new(1).await;
    rig.octavia(|settings| (settings.failure, settings.failures) = (Outcome::LoadBalancerFails, 1))
        .await;
    let web = rig.settle(&service("web", &[80])).await;
    assert_eq!(rig.the_lb().provisioning_status.as_str(), "ACTIVE");
    assert_eq!(rig.floating_ips().len(), 1);
    assert_eq!(rig.reasons(), ["LoadBalancerCreateFailed"]);
    assert_eq!(rig.plan(&web).await.unwrap(), []);
}

/// Octavia knows a member by its address, so one in another subnet goes before it comes again.
#[tokio::test(start_paused = true)]
async fn no_member_goes_for_a_subnet_that_does_not_exist() {
    for serial in [false, true] {
        let rig = Fixture::with(2, |settings, _| settings.serial_api_calls = serial).await;
        let web = rig.settle(&service("web", &[80])).await;
        let before = rig.members(80);
        let rig = rig
            .restart_with(|settings| settings.networks.member_subnet = "misspelt".into())
            .await;
        for attempt in [rig.update(&web).await, rig.update(&web).await] {
            let error = attempt.unwrap_err().to_string();
            assert!(error.contains("subnet misspelt of members does not exist"), "{error}");
        }
        assert_eq!(rig.members(80), before, "serial: {serial}");
    }
}

/// In batches, upstream names the subnet of members. Those without one have to be created again, too.
#[tokio::test(start_paused = true)]
async fn no_member_without_a_subnet_goes_for_one_that_does_not_exist() {
    let rig = Fixture::new(2).await;
    let web = rig.settle(&service("web", &[80])).await;
    rig.change(|state, _| {
        let ids: Vec<_> = state
            .octavia
            .members
            .iter()
            .map(|row| row.body.id.clone())
            .collect();
        for id in ids {
            state
                .octavia
                .members
                .update(&id, |row| row.body.subnet_id = None);
        }
    })
    .await;
    let rig = rig
        .restart_with(|settings| settings.networks.member_subnet = "misspelt".into())
        .await;
    let before = rig.members(80);
    let error = rig.update(&web).await.unwrap_err().to_string();
    assert!(error.contains("subnet misspelt of members does not exist"), "{error}");
    assert_eq!(rig.members(80), before);
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_fails_later_is_failed_over_and_keeps_its_address() {
    let rig = Fixture::new(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    let lb = rig.the_lb();
    rig.change(|state, _| octavia::force_error(state, &lb.id).unwrap())
        .await;
    let planned = rig.plan(&web).await.unwrap();
    assert_eq!(&*planned[0].operation, "loadbalancer_failover");
    let after = rig.settle(&web).await;
    assert_eq!((rig.the_lb().id, shown(&after)), (lb.id, shown(&web)));
    assert_eq!(rig.the_lb().provisioning_status.as_str(), "ACTIVE");
    assert_eq!(rig.reasons(), ["LoadBalancerFailover"]);
}

#[tokio::test(start_paused = true)]
async fn a_failover_that_does_not_help_is_not_tried_for_ever() {
    let rig = Fixture::new(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    let id = rig.the_lb().id;
    rig.change(|state, _| octavia::force_error(state, &id).unwrap())
        .await;
    rig.octavia(|settings| {
        (settings.failure, settings.failures) = (Outcome::LoadBalancerFails, 99);
    })
    .await;
    rig.requests();
    assert!(
        rig.try_settle(&web, 20)
            .await
            .unwrap_err()
            .contains("is in error")
    );
    let failovers = rig
        .requests()
        .iter()
        .filter(|request| request.ends_with("/failover"))
        .count();
    assert_eq!((failovers, rig.lbs().len()), (1, 1), "and it is never deleted");
}

#[tokio::test(start_paused = true)]
async fn a_shared_balancer_in_error_is_left_to_its_owner() {
    let rig = Fixture::new(1).await;
    let first = rig.settle(&service("one", &[80])).await;
    let id = rig.the_lb().id;
    let second = rig
        .settle(&with(service("two", &[443]), "load-balancer-id", &id))
        .await;
    rig.change(|state, _| octavia::force_error(state, &id).unwrap())
        .await;
    rig.requests();
    let error = rig.try_settle(&second, 3).await.unwrap_err();
    assert!(error.contains("another Service's"), "{error}");
    assert!(
        rig.requests()
            .iter()
            .all(|request| request.starts_with("GET"))
    );
    rig.settle(&first).await;
    rig.settle(&second).await;
}

#[tokio::test(start_paused = true)]
async fn doubt_is_an_error_and_no_second_balancer() {
    let rig = Fixture::new(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    let rig = rig.restart().await;
    let faults = &rig.local.cloud().faults;
    faults.add(Fault::new(
        "/load-balancer",
        FaultKind::Body { code: 404, text: "<html>not here</html>".into() },
    ));
    assert!(rig.ensure(&web, ReadMode::Fresh).await.result.is_err());
    assert!(rig.delete(&web).await.is_err());
    faults.clear();
    assert_eq!(rig.lbs().len(), 1);
    faults.add(Fault::new("/load-balancer", FaultKind::status(503)).times(50));
    assert!(rig.ensure(&web, ReadMode::Fresh).await.result.is_err());
    faults.clear();
    rig.settle(&web).await;
    assert_eq!(rig.lbs().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_ended_amid_a_change_is_renewed_and_the_change_made_once() {
    let rig = Fixture::new(1).await;
    rig.local.cloud().faults.add(
        Fault::new("/load-balancer/v2.0/lbaas/loadbalancers", FaultKind::status(401))
            .method("POST")
            .times(1),
    );
    rig.settle(&service("web", &[80])).await;
    assert_eq!(rig.lbs().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn throttling_is_waited_out() {
    let rig = Fixture::new(1).await;
    let slow_down = FaultKind::Status { code: 429, retry_after: Some(7), message: None };
    rig.local
        .cloud()
        .faults
        .add(Fault::new("/load-balancer", slow_down).times(3));
    rig.settle(&service("web", &[80])).await;
    assert_eq!(rig.lbs().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_renamed_cluster_keeps_its_balancers() {
    let rig = Fixture::new(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    let (id, old) = (rig.the_lb().id, "kube_service_before_ns_web");
    rig.change(|state, _| {
        let lb = id.clone();
        state
            .octavia
            .load_balancers
            .update(&lb, |row| (row.body.name, row.body.tags) = (old.into(), vec![old.into()]));
        let ids: Vec<String> = state
            .octavia
            .listeners
            .iter()
            .map(|row| row.body.id.clone())
            .collect();
        for id in ids {
            state.octavia.listeners.update(&id, |row| {
                (row.body.name, row.body.tags) =
                    (format!("listener_0_{old}"), vec![old.into(), "team".into()]);
            });
        }
    })
    .await;
    let rig = rig.restart().await;
    let web = rig.settle(&web).await;
    let lb = rig.the_lb();
    let name = "kube_service_c1_ns_web";
    assert_eq!((lb.id, &*lb.name, &*lb.tags), (id, name, &[name.to_owned()][..]));
    assert_eq!(rig.listeners()[0].name, format!("listener_0_{name}"));
    assert_eq!(rig.listeners()[0].tags, ["team", name]);
    assert_eq!(rig.plan(&web).await.unwrap(), []);
}

pub(super) fn failovers(rig: &Fixture) -> usize {
    rig.requests()
        .iter()
        .filter(|request| request.ends_with("/failover"))
        .count()
}

/// Two Services on one balancer.
pub(super) async fn shared(rig: &Fixture) -> (ServiceView, ServiceView) {
    let first = rig.settle(&service("one", &[80])).await;
    let second = with(service("two", &[443]), "load-balancer-id", &rig.the_lb().id);
    (first, rig.settle(&second).await)
}

pub(super) async fn break_it(rig: &Fixture) {
    let id = rig.the_lb().id;
    rig.change(|state, _| octavia::force_error(state, &id).unwrap())
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_part_of_a_balancer_in_error_is_taken_away_once_that_is_failed_over() {
    for owner_goes in [true, false] {
        let rig = Fixture::new(1).await;
        let (first, second) = shared(&rig).await;
        break_it(&rig).await;
        let rig = rig.restart().await;
        let (goes, stays, port) = if owner_goes {
            (first, second, 443)
        } else {
            (second, first, 80)
        };
        rig.remove(&goes).await;
        assert_eq!(failovers(&rig), 1);
        assert_eq!(rig.the_lb().provisioning_status.as_str(), "ACTIVE");
        assert_eq!(
            rig.listeners()
                .iter()
                .map(|listener| listener.protocol_port)
                .collect::<Vec<_>>(),
            [port]
        );
        assert_eq!(rig.plan(&stays).await.unwrap(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_of_a_balancer_that_stays_in_error_is_not_asked_for_each_second() {
    let rig = Fixture::new(1).await;
    let (first, _) = shared(&rig).await;
    break_it(&rig).await;
    rig.octavia(|settings| {
        (settings.failure, settings.failures) = (Outcome::LoadBalancerFails, 99);
    })
    .await;
    rig.requests();
    let mut last = rig.delete(&first).await;
    for _ in 0..20 {
        let Ok(Progress::Pending { after, .. }) = last else {
            break;
        };
        tokio::time::sleep(after).await;
        last = rig.delete(&first).await;
    }
    for _ in 0..3 {
        assert!(last.unwrap_err().to_string().contains("is in error"));
        tokio::time::sleep(Duration::from_secs(60)).await;
        last = rig.delete(&first).await;
    }
    assert_eq!((failovers(&rig), rig.lbs().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_balancer_in_error_whose_owner_is_gone_is_mended_by_those_that_are_left() {
    let rig = Fixture::new(1).await;
    let (first, second) = shared(&rig).await;
    rig.remove(&first).await;
    break_it(&rig).await;
    let rig = rig.restart().await;
    assert_eq!(&*rig.plan(&second).await.unwrap()[0].operation, "loadbalancer_failover");
    rig.settle(&second).await;
    assert_eq!((rig.reasons(), rig.lbs().len()), (vec!["LoadBalancerFailover"], 1));
}

#[tokio::test(start_paused = true)]
async fn a_whole_balancer_in_error_goes_at_once_also_where_others_are_taken_apart() {
    let rig = Fixture::with(1, |settings, _| settings.cascade_delete = false).await;
    let web = rig.settle(&service("web", &[80])).await;
    break_it(&rig).await;
    rig.remove(&web).await;
    assert!(rig.lbs().is_empty() && rig.listeners().is_empty() && rig.floating_ips().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_failover_that_was_refused_is_asked_for_again() {
    let rig = Fixture::new(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    break_it(&rig).await;
    let path = format!("/load-balancer/v2.0/lbaas/loadbalancers/{}/failover", rig.the_lb().id);
    rig.local
        .cloud()
        .faults
        .add(Fault::new(path, FaultKind::status(503)));
    assert!(rig.ensure(&web, ReadMode::Fresh).await.result.is_err());
    rig.local.cloud().faults.clear();
    rig.try_settle(&web, 20).await.unwrap();
    assert_eq!(rig.the_lb().provisioning_status.as_str(), "ACTIVE");
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_could_not_be_made_goes_without_the_address_that_is_to_be_kept() {
    let rig = Fixture::new(1).await;
    let new = with(service("web", &[80]), "keep-floatingip", "true");
    rig.settle(&new).await;
    let kept = rig.floating_ips().remove(0).id;
    break_it(&rig).await;
    let id = rig.the_lb().id;
    // Nothing was written down of it, but this process created it.
    rig.settle(&new).await;
    assert_ne!(rig.the_lb().id, id);
    assert!(
        rig.floating_ips()
            .iter()
            .any(|floating| floating.id == kept),
        "{:?}",
        rig.floating_ips()
    );
}

#[tokio::test(start_paused = true)]
async fn a_service_that_never_had_a_balancer_leaves_the_address_that_an_earlier_one_kept() {
    let rig = Fixture::new(1).await;
    let earlier = rig
        .settle(&with(service("web", &[80]), "keep-floatingip", "true"))
        .await;
    rig.remove(&earlier).await;
    assert_eq!((rig.lbs().len(), rig.floating_ips().len()), (0, 1));
    rig.remove(&service("web", &[80])).await;
    assert_eq!(rig.floating_ips().len(), 1);
}

/// Until a Service shows an address, its balancer is found by its name.
#[tokio::test(start_paused = true)]
async fn a_balancer_that_goes_before_it_serves_is_made_anew() {
    let rig = Fixture::new(1).await;
    rig.local
        .cloud()
        .faults
        .add(Fault::new("/network/v2.0/floatingips", FaultKind::status(500)));
    let mut web = service("web", &[80]);
    for _ in 0..10 {
        let outcome = rig.ensure(&web, ReadMode::Fresh).await;
        web = published(&web, &outcome);
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let id = rig.the_lb().id;
    assert_eq!((rig.listeners().len(), annotation(&web, "load-balancer-id")), (1, None));
    rig.local.cloud().faults.clear();
    rig.change(|state, ctx| {
        octavia::load_balancers::delete(state, ctx, &id, true).unwrap();
        octavia::finish_due(state, ctx.now + jiff::SignedDuration::from_secs(60));
    })
    .await;
    let web = rig.settle(&web).await;
    assert_ne!(rig.the_lb().id, id);
    assert_eq!(annotation(&web, "load-balancer-id"), Some(&*rig.the_lb().id));
}

/// After a restart, with nothing known but that the Service shows a load balancer: its members
/// follow, and nothing else changes.
#[tokio::test(start_paused = true)]
async fn nodes_of_an_invalid_service_are_followed_and_nothing_else_changes() {
    let proxied =
        |service| with(with(service, "proxy-protocol", "true"), "x-forwarded-for", "true");
    for (wrong, managed, spoil) in [
        (
            "proxy protocol beside headers",
            false,
            Box::new(proxied) as Box<dyn Fn(ServiceView) -> ServiceView>,
        ),
        (
            "an address that is none",
            true,
            Box::new(|web| ServiceView { load_balancer_ip: Some("x".into()), ..web }),
        ),
        (
            "a network that is none",
            true,
            Box::new(|web| ServiceView { source_ranges: ["10.0.0.0/33".into()].into(), ..web }),
        ),
        ("a class that is not configured", true, Box::new(|web| with(web, "class", "gold"))),
    ] {
        let mut rig =
            Fixture::with(2, |settings, _| settings.manage_security_groups = managed).await;
        let web = spoil(rig.settle(&service("web", &[80])).await);
        rig = rig.restart().await;
        assert!(
            matches!(rig.balancers.interpret(&web), ServiceInterpretation::Invalid(_)),
            "{wrong}"
        );
        assert_eq!(
            rig.balancers.backends_of_invalid(&web),
            Some(BackendKind::Nodes(Vec::new())),
            "{wrong}"
        );
        rig.add_node().await;
        rig.nodes.remove(0);
        rig.requests();
        rig.update(&web)
            .await
            .unwrap_or_else(|error| panic!("{wrong}: {error}"));
        let found: Vec<_> = rig
            .members(80)
            .iter()
            .map(|member| member.address.clone())
            .collect();
        assert_eq!(found, [address(1), address(2)], "{wrong}");
        // Members, and the security group on the port of the node that came and of the one that
        // left.
        let mut changes = rig.requests();
        changes.retain(|request| !request.starts_with("GET"));
        let ports = changes
            .iter()
            .filter(|request| request.starts_with("PUT") && request.contains("/ports/"))
            .count();
        // An unknown class does not say where members are, for which the group would be opened.
        let expected = if managed && !wrong.contains("class") {
            (3, 2)
        } else {
            (1, 0)
        };
        assert_eq!((changes.len(), ports), expected, "{wrong}: {changes:#?}");
        let refused = rig.ensure(&web, ReadMode::Fresh).await.result;
        assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput), "{wrong}");
    }
}

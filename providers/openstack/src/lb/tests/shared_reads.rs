//! What is read once for many Services: after a restart, and while many balancers are busy.

use std::time::Duration;

use ccm_core::{k8s::ServiceView, provider::ReadMode};
use futures::future::join_all;
use openstack_local::server::{Fault, FaultKind};
use serde_json::Value;

use super::fixture::{Fixture, service, with};
use crate::config::{Limits, Rate};

/// A process that has just started and knows nothing, with Services of one port that were served
/// before.
async fn restarted(services: usize) -> (Fixture, Vec<ServiceView>) {
    let rig = Fixture::new(2).await;
    let wanted: Vec<_> = (0..services)
        .map(|n| service(&format!("web{n}"), &[80]))
        .collect();
    let served = join_all(wanted.iter().map(|service| rig.settle(service))).await;
    (rig.restart().await, served)
}

async fn all_in_line(rig: &Fixture, services: &[ServiceView]) {
    for service in services {
        assert_eq!(rig.plan(service).await.unwrap(), [], "{}", service.key());
    }
}

fn singles(requests: &[String]) -> usize {
    requests
        .iter()
        .filter(|request| request.contains("/loadbalancers/"))
        .count()
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_lists_are_read_once_and_members_for_each() {
    let (rig, services) = restarted(10).await;
    all_in_line(&rig, &services).await;
    let requests = rig.requests();
    assert_eq!(singles(&requests), 3, "the first few are looked at alone: {requests:#?}");
    // Three Services alone, four lists, and members of seven.
    assert_eq!(requests.len(), 3 * 5 + 4 + 7, "{requests:#?}");
    // What was read in common is as good for members as what was read alone.
    let mut rig = rig;
    rig.add_node().await;
    for service in &services {
        rig.update(service).await.unwrap();
    }
    let writes = rig
        .requests()
        .into_iter()
        .filter(|request| request.starts_with("PUT"))
        .count();
    assert_eq!(writes, services.len());
}

#[tokio::test(start_paused = true)]
async fn few_services_are_looked_at_alone() {
    let (rig, services) = restarted(3).await;
    all_in_line(&rig, &services).await;
    let requests = rig.requests();
    assert!(requests.iter().all(|request| !request.contains("limit=")), "{requests:#?}");
}

/// A page holds one row here, as if a thousand balancers of others were between any two of ours.
#[tokio::test(start_paused = true)]
async fn a_project_full_of_others_balancers_costs_little_more_than_looks_at_each() {
    let (rig, services) = restarted(12).await;
    rig.octavia(|settings| settings.page_max = 1).await;
    all_in_line(&rig, &services).await;
    let requests = rig.requests();
    let is_shared = |request: &&String| {
        request.contains("limit=")
            && !request.contains("loadbalancer_id=")
            && !request.contains("/members")
    };
    let listed = requests.iter().filter(is_shared).count();
    assert!(listed <= 4 * services.len(), "{listed} pages");
    // Each look alone, whose lists have a page more here, and no more than that again.
    assert!(requests.len() <= 2 * 8 * services.len(), "{}", requests.len());
}

#[tokio::test(start_paused = true)]
async fn a_service_without_a_balancer_is_not_served_by_what_was_read_before() {
    let (rig, services) = restarted(8).await;
    all_in_line(&rig, &services[..4]).await;
    let id = rig
        .lbs()
        .into_iter()
        .find(|lb| lb.name.ends_with("_web5"))
        .unwrap()
        .id;
    rig.change(|state, ctx| {
        openstack_local::octavia::load_balancers::delete(state, ctx, &id, true).unwrap();
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    // The reading shows a balancer whose members cannot be read: that is doubt, and what follows is
    // read anew.
    assert!(rig.plan(&services[5]).await.is_err());
    let planned = rig.plan(&services[5]).await.unwrap();
    assert_eq!(
        planned
            .iter()
            .map(|change| &*change.operation)
            .collect::<Vec<_>>(),
        ["loadbalancer_create"]
    );
    // The others are still shown by it.
    rig.requests();
    all_in_line(&rig, &services[6..]).await;
    let requests = rig.requests();
    assert_eq!(requests.len(), 2, "members alone: {requests:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_floating_ip_is_not_taken_away_without_a_fresh_look() {
    let (rig, services) = restarted(5).await;
    all_in_line(&rig, &services[..4]).await;
    // Meanwhile somebody makes it his own: then it is only detached.
    let description = "of somebody";
    rig.change(|state, _| {
        let all: Vec<String> = state
            .neutron
            .floating_ips
            .iter()
            .map(|floating| floating.id.clone())
            .collect();
        for id in all {
            state
                .neutron
                .floating_ips
                .update(&id, |row| row.standard.description = description.into());
        }
    })
    .await;
    let internal = with(
        services[4].clone(),
        "service.beta.kubernetes.io/openstack-internal-load-balancer",
        "true",
    );
    rig.ensure(&internal, ReadMode::Fresh).await.result.unwrap();
    let floating = rig.floating_ips();
    assert_eq!((floating.len(), floating.iter().filter(|ip| ip.port_id.is_none()).count()), (5, 1));
}

/// What a look has read so far is not read again when its turn comes.
#[tokio::test(start_paused = true)]
async fn small_budgets_delay_a_restart_and_do_not_make_it_dearer() {
    let (rig, services) = restarted(12).await;
    let rate = Rate { per_second: 5.0, burst: 2 };
    let rig = rig
        .restart_within(&Limits { read: rate, write: rate, in_flight: 4 })
        .await;
    let all = services.iter().map(|service| async {
        while let Err(error) = rig.plan(service).await {
            tokio::time::sleep(error.retry_after().unwrap_or(Duration::from_secs(5))).await;
        }
    });
    join_all(all).await;
    let requests = rig.requests();
    assert!(requests.len() <= 3 * 5 + 4 + 9 + 12, "{}: {requests:#?}", requests.len());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_taken_away_without_a_fresh_look() {
    let rig = Fixture::new(2).await;
    let wanted = ["a", "b", "c", "d", "e"].map(|name| service(name, &[80, 443]));
    let served = join_all(wanted.iter().map(|service| rig.settle(service))).await;
    let rig = rig.restart().await;
    all_in_line(&rig, &served[..4]).await;
    // Meanwhile somebody gives a listener to another Service.
    let listener = rig.peek(|state| {
        let listeners = state.octavia.listeners.iter();
        let mut of_e =
            listeners.filter(|row| row.body.name.ends_with("_e") && row.body.protocol_port == 443);
        of_e.next().unwrap().body.id.clone()
    });
    let tag = "kube_service_c1_ns_other".to_owned();
    rig.change(|state, _| {
        state
            .octavia
            .listeners
            .update(&listener, |row| row.body.tags = vec![tag])
    })
    .await;
    let mut only = served[4].clone();
    only.ports = only.ports[..1].into();
    let before = rig.listeners().len();
    rig.ensure(&only, ReadMode::Fresh).await.result.unwrap();
    assert_eq!(rig.listeners().len(), before, "it is not ours to delete");
}

#[tokio::test(start_paused = true)]
async fn lists_that_fail_lead_to_looks_at_each() {
    let (rig, services) = restarted(8).await;
    let kind = FaultKind::Body { code: 200, text: "<html>".into() };
    let path = "/load-balancer/v2.0/lbaas/listeners";
    // The first three are looked at alone, and then all listeners are asked for.
    rig.local
        .cloud()
        .faults
        .add(Fault::new(path, kind).after(3).times(1));
    all_in_line(&rig, &services).await;
    let requests = rig.requests();
    assert_eq!(singles(&requests), 7, "it is tried once more after a few: {requests:#?}");
}

#[tokio::test(start_paused = true)]
async fn many_busy_balancers_are_looked_at_together() {
    let rig = Fixture::new(2).await;
    rig.octavia(|settings| settings.pending_ms = 30_000).await;
    let names: Vec<String> = (0..40).map(|n| format!("web{n}")).collect();
    let services: Vec<_> = names.iter().map(|name| service(name, &[80])).collect();
    let served = join_all(services.iter().map(|service| rig.settle(service))).await;
    let requests = rig.requests();
    let shared = requests
        .iter()
        .filter(|request| request.contains("limit=") || request.contains("tags-any"))
        .count();
    assert!(singles(&requests) <= 10, "{requests:#?}");
    assert!((1..=40).contains(&shared), "{requests:#?}");
    assert_eq!(rig.lbs().len(), 40);

    // One alone is looked at as ever: at once, and then less and less often.
    let other = rig.settle(&service("other", &[80])).await;
    let requests = rig.requests();
    assert!(
        requests
            .iter()
            .all(|request| !request.contains("limit=") && !request.contains("tags-any"))
    );
    assert!((6..=12).contains(&singles(&requests)), "{requests:#?}");

    let served: Vec<_> = served.into_iter().chain([other]).collect();
    join_all(served.iter().map(|service| rig.remove(service))).await;
    assert!(rig.lbs().is_empty());
}

#[tokio::test(start_paused = true)]
async fn looks_at_many_that_fail_lead_to_looks_at_each() {
    let rig = Fixture::new(2).await;
    rig.octavia(|settings| settings.pending_ms = 10_000).await;
    let services: Vec<_> = (0..8).map(|n| service(&format!("web{n}"), &[80])).collect();
    for service in &services {
        drop(rig.ensure(service, ReadMode::Fresh).await);
    }
    let path = "/load-balancer/v2.0/lbaas/loadbalancers";
    let kind = FaultKind::Body { code: 200, text: "<html>".into() };
    tokio::time::sleep(Duration::from_secs(2)).await;
    rig.requests();
    rig.local
        .cloud()
        .faults
        .add(Fault::new(path, kind).method("GET").times(1));
    assert!(
        rig.ensure(&services[0], ReadMode::Fresh)
            .await
            .result
            .is_ok()
    );
    let requests = rig.requests();
    assert_eq!((requests.len(), singles(&requests)), (2, 1), "{requests:#?}");
}

/// Where Services have security groups, these and the ports of nodes are read in common too; what
/// is not in line is looked at alone, and mended.
#[tokio::test(start_paused = true)]
async fn after_a_restart_security_groups_are_read_once() {
    let rig = Fixture::with(2, |settings, _| settings.manage_security_groups = true).await;
    let wanted: Vec<_> = (0..8).map(|n| service(&format!("web{n}"), &[80])).collect();
    let served = join_all(wanted.iter().map(|service| rig.settle(service))).await;
    let rig = rig
        .restart_with(|settings| settings.manage_security_groups = true)
        .await;
    all_in_line(&rig, &served).await;
    let requests = rig.requests();
    let of = |path: &str| {
        requests
            .iter()
            .filter(|request| request.contains(path))
            .count()
    };
    // Three Services alone: group, ports of nodes, ports with the group; then one list each.
    assert_eq!((of("/security-groups"), of("/ports")), (3 + 1, 2 * 3 + 1), "{requests:#?}");

    let rig = rig
        .restart_with(|settings| settings.manage_security_groups = true)
        .await;
    let rules = rig.rules();
    let lost = rules[0].id.clone();
    rig.change(move |state, _| drop(state.neutron.security_group_rules.remove(&lost)))
        .await;
    for service in &served {
        rig.settle(service).await;
    }
    assert_eq!(rig.rules().len(), rules.len(), "the rule is back");
    let writes: Vec<_> = rig
        .requests()
        .into_iter()
        .filter(|request| !request.starts_with("GET"))
        .collect();
    assert_eq!(writes.len(), 1, "{writes:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_that_cannot_be_read_costs_its_service_alone() {
    let (rig, services) = restarted(10).await;
    let spoil = |target: &str, row: &mut Value| {
        if target.contains("/loadbalancers?") && row["name"] == "kube_service_c1_ns_web9" {
            row["tags"] = "odd".into();
        }
    };
    rig.wire.spoil(spoil);
    // Its annotation has its ID, by which it is read.
    all_in_line(&rig, &services).await;
    let rig = rig.restart().await;
    rig.wire.spoil(spoil);
    // By its name alone it can neither be found nor be missing.
    let nameless = service("web9", &[80]);
    let outcome = rig.ensure(&nameless, ReadMode::Fresh).await;
    let error = outcome.result.unwrap_err().to_string();
    assert!(
        error.contains("kube_service_c1_ns_web9") && error.contains("cannot be read"),
        "{error}"
    );
    assert!(rig.delete(&nameless).await.is_err(), "it is not deleted");
    assert_eq!(rig.lbs().len(), 10, "and not created a second time");
    rig.ensure(&service("web8", &[80]), ReadMode::Fresh)
        .await
        .result
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_floating_ip_that_cannot_be_read_is_not_missing() {
    let (rig, services) = restarted(10).await;
    rig.wire.spoil(|target, row| {
        if target.contains("/floatingips?") && target.contains("limit=") {
            row["floating_ip_address"] = "odd".into();
        }
    });
    all_in_line(&rig, &services).await;
    let requests = rig.requests();
    let shared =
        |request: &&String| request.contains("/floatingips?") && request.contains("limit=");
    assert_eq!(requests.iter().filter(shared).count(), 1, "they are listed once: {requests:#?}");
}

/// Administrators see the load balancers of every project, and a listing is a read like any other.
#[tokio::test(start_paused = true)]
async fn a_shared_listing_has_no_load_balancers_of_other_projects() {
    let (rig, services) = restarted(6).await;
    let before = rig.everything();
    let rig = rig.restart_as("admin").await;
    for service in &services {
        let error = rig
            .ensure(service, ReadMode::Fresh)
            .await
            .result
            .unwrap_err();
        assert!(error.to_string().contains("belongs to project"), "{}: {error}", service.key());
    }
    assert_eq!(rig.everything(), before);
    let requests = rig.requests();
    assert!(requests.iter().any(|request| request.contains("limit=")), "{requests:#?}");
}

//! Many Services at a time: waiting, workers, endpoints, metrics.

use std::time::Duration;

use ccm_core::provider::CloudError;
use ccm_mock::provider::annotations;
use ccm_testkit::apiserver::{Action, Match};
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    cluster::{TestCluster, secs},
    scripted_load_balancers::{ScriptedLoadBalancers, ScriptedResult},
    service_world::SERVICE,
};

const FOUR: [&str; 2] = ["--controllers=service", "--concurrent-service-syncs=4"];

#[tokio::test(start_paused = true)]
async fn a_hundred_balancers_that_are_being_made_do_not_hold_up_a_new_one() {
    let world = TestCluster::with("loadBalancerActivation: 30m\n");
    let _ccm = world.start(&FOUR);
    world.have_nodes(["a"]).await;
    for i in 0..100 {
        world.serve(&format!("slow{i}")).await;
    }
    tokio::time::sleep(secs(60)).await;
    let fast = json!({annotations::ACTIVATION_DELAY: "0s"});
    world
        .put_annotated("fast", fast, json!({"ports": [{"port": 80}]}))
        .await;
    let took = world.until_served(&["fast"], secs(60)).await;
    assert!(took < secs(1), "{took:?}");
    tokio::time::sleep(secs(1800)).await;
    let names: Vec<_> = (0..100).map(|i| format!("slow{i}")).collect();
    world.until_served(&names, secs(60)).await;
    world.settle().await;
    assert_eq!(world.cloud.calls().create_load_balancer, 101);
    let reasons = world.reasons();
    let of = |reason: &str| reasons.iter().filter(|known| *known == reason).count();
    assert_eq!(
        (of("EnsuringLoadBalancer"), of("EnsuredLoadBalancer"), reasons.len()),
        (101, 101, 202)
    );
    assert_eq!(world.service_writes().len(), 202);
}

#[tokio::test(start_paused = true)]
async fn a_provider_is_told_how_long_it_has_been_waiting() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    provider
        .answer(|call| (call.pending_for < secs(95)).then_some(ScriptedResult::Pending(secs(10))));
    let _ccm = world.start_with(provider.clone(), &SERVICE);
    world.serve("web").await;
    world.until_served(&["web"], secs(300)).await;
    let waited: Vec<_> = provider
        .take_calls()
        .iter()
        .map(|call| call.pending_for.as_secs())
        .collect();
    assert_eq!(waited, (0..=10).map(|i| i * 10).collect::<Vec<_>>());
    world.settle().await;
    world.delete_service("web").await;
    world
        .until("it is deleted", secs(300), || world.service("web").is_null())
        .await;
    let waited: Vec<_> = provider
        .take_calls()
        .iter()
        .map(|call| call.pending_for.as_secs())
        .collect();
    assert_eq!(waited, (0..=10).map(|i| i * 10).collect::<Vec<_>>(), "counted anew");
    assert!(
        !world
            .reasons()
            .iter()
            .any(|reason| reason.ends_with("Failed"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_takes_time_to_go_keeps_its_service_until_it_is_gone() {
    let world = TestCluster::with("loadBalancerDeletion: 5m\n");
    let _ccm = world.start(&SERVICE);
    world.have_nodes(["a"]).await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    world.delete_service("web").await;
    tokio::time::sleep(secs(290)).await;
    assert!(world.is_guarded("web") && world.balancers("web").len() == 1);
    world
        .until("both are gone", secs(60), || {
            world.service("web").is_null() && world.balancers("web").is_empty()
        })
        .await;
    assert_eq!(world.cloud.calls().delete_load_balancer, 1);
    assert_eq!(world.reasons()[2..], ["DeletingLoadBalancer", "DeletedLoadBalancer"]);
}

#[tokio::test(start_paused = true)]
async fn no_more_calls_are_in_flight_than_workers_and_never_two_about_one_service() {
    for (flags, workers) in [
        (&FOUR[..], 4),
        (&SERVICE[..], 8),
        (&["--controllers=service", "--concurrent-service-syncs=1"], 1),
        (&["--controllers=service", "--concurrent-service-syncs=30"], 30),
    ] {
        let world = TestCluster::with("latency: {loadBalancers: 100ms}\n");
        let provider = ScriptedLoadBalancers::over(&world);
        let _ccm = world.start_with(provider.clone(), flags);
        world.have_nodes(["a", "b"]).await;
        let names: Vec<_> = (0..200).map(|i| format!("w{i}")).collect();
        for name in &names {
            world.serve(name).await;
        }
        world.have_nodes(["c"]).await;
        for name in &names[..50] {
            world
                .patch_service(name, json!({"spec": {"ports": [{"port": 443}]}}))
                .await;
        }
        for name in &names[150..] {
            world.delete_service(name).await;
        }
        world.until_served(&names[..150], secs(120)).await;
        world.settle().await;
        assert_eq!(provider.most_at_once(), workers, "{flags:?}");
        assert_eq!(world.cloud.load_balancers().len(), 150);
        assert!(world.all_have(3));
    }
}

pub(crate) fn slice(name: &str, addresses: &[&str], ready: bool) -> Value {
    let endpoint = |address: &&str| json!({"addresses": [address], "conditions": {"ready": ready}});
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

pub(crate) const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

async fn endpoints_world()
-> (TestCluster, std::sync::Arc<ScriptedLoadBalancers>, crate::cluster::Ccm) {
    let world = TestCluster::with("features: {endpoints: true}\n");
    let provider = ScriptedLoadBalancers::over(&world);
    let ccm = world.start_with(provider.clone(), &SERVICE);
    world.have_nodes(["a"]).await;
    world
        .request("POST", SLICES, "application/json", slice("web-1", &["10.1.0.1"], true))
        .await;
    let backends = json!({annotations::BACKENDS: "endpoints"});
    world
        .put_annotated("web", backends, json!({"ports": [{"port": 80}]}))
        .await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    provider.take_calls();
    (world, provider, ccm)
}

fn members(world: &TestCluster) -> usize {
    match &world.balancers("web")[0].members {
        ccm_mock::cloud::Members::Endpoints(endpoints) => endpoints.len(),
        ccm_mock::cloud::Members::Nodes(nodes) => panic!("{nodes:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn endpoints_are_followed_losses_at_once_and_additions_together_and_nodes_do_not_matter() {
    let (world, provider, _ccm) = endpoints_world().await;
    assert_eq!(members(&world), 1);
    world.have_nodes(["b"]).await;
    world.settle().await;
    assert_eq!(provider.take_lines(), [""; 0]);
    for i in 2..=9 {
        let addresses: Vec<String> = (1..=i).map(|i| format!("10.1.0.{i}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(|address| &**address).collect();
        let body = json!({"endpoints": slice("web-1", &addresses, true)["endpoints"]});
        world
            .request("PATCH", &format!("{SLICES}/web-1"), "application/merge-patch+json", body)
            .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    world.settle().await;
    assert_eq!((members(&world), provider.take_lines()), (9, vec!["update web".to_owned()]));
    let body = json!({"endpoints": slice("web-1", &["10.1.0.1"], true)["endpoints"]});
    world
        .request("PATCH", &format!("{SLICES}/web-1"), "application/merge-patch+json", body)
        .await;
    world
        .until("they are gone", secs(1), || members(&world) == 1)
        .await;
    world
        .request("DELETE", &format!("{SLICES}/web-1"), "application/json", Value::Null)
        .await;
    world
        .until("all are gone", secs(1), || members(&world) == 0)
        .await;
}

/// As with a role of a manager that knows no endpoints: only Services that need them wait.
#[tokio::test(start_paused = true)]
async fn without_the_right_to_read_endpoints_services_of_nodes_and_nodes_are_served() {
    let world = TestCluster::with("features: {endpoints: true}\n");
    let refused = Action::Error { code: StatusCode::FORBIDDEN, retry_after: None };
    let fault = world
        .server
        .faults()
        .add(Match::resource("endpointslices").verb("list").verb("watch"), refused);
    let _ccm = world.start_with(ScriptedLoadBalancers::over(&world), &SERVICE);
    world.have_nodes(["a"]).await;
    world
        .request("POST", SLICES, "application/json", slice("pods-1", &["10.1.0.1"], true))
        .await;
    world.serve("nodes").await;
    let backends = json!({annotations::BACKENDS: "endpoints"});
    world
        .put_annotated("web", backends, json!({"ports": [{"port": 80}]}))
        .await;
    world.until_served(&["nodes"], secs(30)).await;
    tokio::time::sleep(secs(60)).await;
    assert!(world.balancers("web").is_empty());
    let notes = world.notes("SyncLoadBalancerFailed");
    assert!(notes.len() == 1 && notes[0].contains("list and watch endpointslices"), "{notes:?}");
    world.server.faults().remove(fault);
    world.until_served(&["web"], secs(400)).await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_that_come_while_a_call_is_in_flight_are_not_lost() {
    let (world, provider, _ccm) = endpoints_world().await;
    for verb in ["update", "ensure"] {
        provider.answer(move |call| (call.verb == verb).then_some(ScriptedResult::Slow(secs(10))));
        if verb == "update" {
            let body =
                json!({"endpoints": slice("web-1", &["10.1.0.1", "10.1.0.2"], true)["endpoints"]});
            world
                .request("PATCH", &format!("{SLICES}/web-1"), "application/merge-patch+json", body)
                .await;
        } else {
            world
                .patch_service("web", json!({"spec": {"ports": [{"port": 443}]}}))
                .await;
        }
        tokio::time::sleep(Duration::from_millis(10_900)).await;
        world
            .request(
                "POST",
                SLICES,
                "application/json",
                slice(&format!("web-{verb}"), &["10.1.9.9"], true),
            )
            .await;
        world.settle().await;
        let expected = if verb == "update" { 3 } else { 4 };
        assert_eq!(members(&world), expected - usize::from(verb == "ensure"), "{verb}");
    }
}

#[tokio::test(start_paused = true)]
async fn upstreams_metrics_move_and_so_do_ours() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    let ccm = world.start_with(provider.clone(), &SERVICE);
    world.have_nodes(["a"]).await;
    for name in ["x", "y"] {
        world.serve(name).await;
    }
    world.until_served(&["x", "y"], secs(60)).await;
    world.settle().await;
    let upstream = [
        "service_controller_loadbalancer_sync_total",
        "service_controller_nodesync_error_total",
        "service_controller_nodesync_latency_seconds",
        "service_controller_update_loadbalancer_host_latency_seconds",
    ];
    let values = |ccm: &crate::cluster::Ccm| upstream.map(|name| ccm.metric(name, &[]));
    assert_eq!(values(&ccm), [0.0, 0.0, 0.0, 0.0]);
    world.have_nodes(["b"]).await;
    world.settle().await;
    assert_eq!(values(&ccm), [2.0, 0.0, 1.0, 2.0]);
    provider.answer(|call| {
        (call.service == "x").then(|| ScriptedResult::Fail(CloudError::transient("no")))
    });
    world.have_nodes(["c"]).await;
    tokio::time::sleep(secs(3)).await;
    assert_eq!(values(&ccm), [4.0, 1.0, 2.0, 4.0]);
    assert_eq!(
        ccm.metric("ccm_service_syncs_total", &[("work", "ensure"), ("outcome", "done")]),
        2.0
    );
    assert_eq!(
        ccm.metric(
            "ccm_service_syncs_total",
            &[("work", "update_backends"), ("outcome", "failed")]
        ),
        1.0
    );
    assert_eq!(ccm.metric("ccm_service_address_delay_seconds", &[]), 2.0);
    assert_eq!(ccm.metric("ccm_service_backends_delay_seconds", &[]), 3.0);
    assert_eq!(
        ccm.metric(
            "ccm_cloud_calls_total",
            &[("operation", "ensure_load_balancer"), ("outcome", "success")]
        ),
        2.0
    );
    assert_eq!(
        ccm.metric(
            "ccm_cloud_calls_total",
            &[("operation", "update_load_balancer_backends"), ("outcome", "transient")]
        ),
        1.0
    );
}

//! Condition NetworkUnavailable: who writes it, how often, and what it leaves alone.

use std::time::Duration;

use ccm_mock::cloud::{FaultError, Operation};
use ccm_testkit::{
    apiserver::{Action, Change, Match},
    kubelet::NodeSpec,
};
use serde_json::{Value, json};

use crate::{
    cluster::{AGENT, TestCluster, addresses, initialized, internal, secs},
    routes::{
        CLUSTER, MINUTE, NOT_READY, READY, fault, give, join, network, start, start_watching,
        until_ready,
    },
};

const ALL: [&str; 2] =
    ["--controllers=cloud-node,cloud-node-lifecycle,node-route-controller", CLUSTER];

fn condition(world: &TestCluster, name: &str, kind: &str) -> Value {
    let node = world.node(name);
    let list = node["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let mut found = list.filter(|condition| condition["type"] == *kind);
    found.next().cloned().unwrap_or_default()
}

fn set_condition(world: &TestCluster, name: &str, status: &str, reason: &str) {
    world.edit(name, |node| {
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != "NetworkUnavailable");
        conditions.push(json!({"type": "NetworkUnavailable", "status": status, "reason": reason, "message": "m",
            "lastHeartbeatTime": "2020-01-01T00:00:00Z", "lastTransitionTime": "2020-01-01T00:00:00Z"}));
    });
}

fn new_world() -> TestCluster {
    let world = TestCluster::new(
        "region: r1\nautoProvision: true\nlatency: {instances: 300ms, routes: 20ms}\n",
    );
    world.put_instance(
        "a",
        json!({"addresses": [internal("10.0.0.1"), internal("fd00::1"), {"type": "Hostname", "address": "a"}]}),
    );
    world
}

#[tokio::test(start_paused = true)]
async fn a_new_nodes_condition_rides_in_the_patch_of_its_addresses() {
    let world = new_world();
    let ccm = world.start(&ALL);
    join(&world, NodeSpec::new("a"), &["10.244.1.0/24"]).await;
    world.until_initialized(&["a"], MINUTE).await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(network(&world, "a"), READY);
    assert_eq!(world.node_writes(), ["patch nodes/status a", "patch nodes a"]);
    assert_eq!(
        addresses(&world.node("a")),
        ["InternalIP=10.0.0.1", "InternalIP=fd00::1", "Hostname=a"]
    );
    assert_eq!(condition(&world, "a", "Ready")["status"], "True", "the kubelet's conditions stay");
    assert_eq!(ccm.metric("ccm_route_condition_writes_total", &[]), 0.0);
    world.assert_never_untainted_without_addresses();
}

/// What a merge by type would make of the addresses when the cache does not know those that are
/// there (W6).
#[tokio::test(start_paused = true)]
async fn addresses_that_a_condition_rides_with_replace_all_others() {
    let world = new_world();
    let _ccm = world.start(&ALL);
    join(&world, NodeSpec::new("a"), &["10.244.1.0/24"]).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let server = world.server.clone();
    world
        .server
        .faults()
        .freeze_watches(Match::resource("nodes").user_agent(AGENT));
    crate::cluster::edit_node(&server, "a", |node| {
        let stale = json!([{"type": "InternalIP", "address": "10.0.0.99"}, {"type": "InternalDNS", "address": "old"}]);
        node["status"]["addresses"] = stale;
    });
    world.until_initialized(&["a"], MINUTE).await;
    assert_eq!(
        addresses(&world.node("a")),
        ["InternalIP=10.0.0.1", "InternalIP=fd00::1", "Hostname=a"]
    );
    assert_eq!(network(&world, "a"), READY);
}

#[tokio::test(start_paused = true)]
async fn a_condition_does_not_wait_long_for_a_node_that_is_not_initialised() {
    let world = TestCluster::provisioned();
    world.fail_instances(FaultError::Transient, None);
    let _ccm = world.start(&ALL);
    join(&world, NodeSpec::new("a"), &["10.244.1.0/24"]).await;
    let took = until_ready(&world, &["a"], secs(10)).await;
    assert!((secs(2)..secs(5)).contains(&took), "{took:?}");
    world.cloud.set_faults(Vec::new());
    world.until_initialized(&["a"], MINUTE).await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(
        world.node_writes(),
        ["patch nodes/status a", "patch nodes/status a", "patch nodes a"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_ride_that_failed_is_repeated_with_the_addresses() {
    let world = new_world();
    let patches = Match::resource("nodes")
        .verb("patch")
        .subresource("status")
        .user_agent(AGENT);
    for action in
        [Action::Drop, Action::Error { code: http::StatusCode::CONFLICT, retry_after: None }]
    {
        world.server.faults().add_times(patches.clone(), action, 1);
    }
    let _ccm = world.start(&ALL);
    join(&world, NodeSpec::new("a"), &["10.244.1.0/24"]).await;
    world.until_initialized(&["a"], MINUTE).await;
    until_ready(&world, &["a"], MINUTE).await;
    let alone = Match::resource("nodes")
        .writes()
        .user_agent("route-controller");
    assert_eq!(world.server.log().count(&alone), 0);
}

#[tokio::test(start_paused = true)]
#[ignore = "cargo xtask test --full"]
async fn a_thousand_new_nodes_with_routes_cost_hardly_more_than_two_writes_each() {
    let world = TestCluster::new(
        "region: r1\nautoProvision: true\nlatency: {instances: 20ms, routes: 20ms}\n",
    );
    let ccm = world.start(&[&ALL[..], &["--node-status-update-frequency=24h"]].concat());
    let names: Vec<String> = (0..1000).map(|i| format!("n{i}")).collect();
    world
        .kubelets
        .register_all(names.iter().map(NodeSpec::new))
        .await
        .unwrap();
    for (i, name) in names.iter().enumerate() {
        give(&world, name, &[&format!("10.244.{}.{}/26", i / 4, i % 4 * 64)]);
    }
    world.until_initialized(&names, MINUTE).await;
    until_ready(&world, &names, MINUTE).await;
    tokio::time::sleep(MINUTE).await;
    let writes = world.node_writes().len();
    assert!((2000..=3000).contains(&writes), "{writes}");
    let alone = ccm.metric("ccm_route_condition_writes_total", &[]);
    assert_eq!(writes as f64, 2000.0 + alone);
    let applied = ccm.metric("ccm_cloud_calls_total", &[("operation", "apply_routes")]);
    assert!(applied <= 30.0, "{applied} calls");
    assert_eq!(world.cloud.calls().create_route, 1000);
    assert_eq!(world.events().len(), 1000, "one each: Synced");
}

#[tokio::test(start_paused = true)]
async fn what_another_controller_says_of_the_network_is_put_right() {
    for (status, reason) in [
        ("False", "CalicoIsUp"),
        ("False", "ExternalCNI"),
        ("True", "Other"),
        ("Unknown", "NodeStatusUnknown"),
    ] {
        let world = TestCluster::provisioned();
        let _ccm = start_watching(&world);
        join(&world, initialized("a"), &["10.244.1.0/24"]).await;
        until_ready(&world, &["a"], secs(5)).await;
        tokio::time::sleep(MINUTE).await;
        set_condition(&world, "a", status, reason);
        until_ready(&world, &["a"], secs(15)).await;
        let written = condition(&world, "a", "NetworkUnavailable");
        assert_eq!(written["message"], "RouteController created a route");
        // Only another status is a transition (W17e).
        assert_eq!(
            written["lastTransitionTime"] == "2020-01-01T00:00:00Z",
            status == "False",
            "{written}"
        );
        assert_ne!(written["lastHeartbeatTime"], "2020-01-01T00:00:00Z");
    }
}

#[tokio::test(start_paused = true)]
async fn another_reason_of_the_same_news_is_written_and_the_same_is_not() {
    let world = TestCluster::provisioned();
    world
        .cloud
        .set_faults(vec![fault(Operation::CreateRoute, FaultError::Invalid, None, None)]);
    for (name, status, reason) in [
        ("same", "True", "NoRouteCreated"),
        ("other", "True", "CalicoIsDown"),
        ("up", "False", "RouteCreated"),
    ] {
        world.kubelets.register(initialized(name)).await.unwrap();
        set_condition(&world, name, status, reason);
    }
    for (i, name) in ["same", "other", "up"].iter().enumerate() {
        give(&world, name, &[&format!("10.244.{i}.0/24")]);
    }
    let _ccm = start(&world, &[]);
    tokio::time::sleep(MINUTE).await;
    assert!(
        ["same", "other", "up"]
            .iter()
            .all(|name| network(&world, name) == NOT_READY)
    );
    let mut writes = world.node_writes();
    writes.sort();
    assert_eq!(writes, ["patch nodes/status other", "patch nodes/status up"]);
}

#[tokio::test(start_paused = true)]
async fn conditions_come_and_go_with_routes_and_never_twice() {
    let world = TestCluster::provisioned();
    let _ccm = start(&world, &[]);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    until_ready(&world, &["a"], secs(5)).await;
    // Somebody deletes the route by hand, and for a while it cannot be made again.
    world.cloud.set_faults(vec![fault(
        Operation::CreateRoute,
        FaultError::Transient,
        None,
        Some(2),
    )]);
    let name = world.cloud.routes()[0].name.clone();
    world.cloud.delete_route(&name);
    world
        .until("it is told", secs(15), || network(&world, "a") == NOT_READY)
        .await;
    until_ready(&world, &["a"], secs(30)).await;
    let mut seen = Vec::new();
    for (change, node) in world.history() {
        assert_ne!(change, Change::Deleted);
        let list = node["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let network = list
            .iter()
            .find(|condition| condition["type"] == "NetworkUnavailable");
        seen.push(network.map(|condition| condition["status"].clone()));
    }
    seen.dedup();
    assert_eq!(seen, [None, Some(json!("False")), Some(json!("True")), Some(json!("False"))]);
    assert_eq!(world.node_writes().len(), 3);
}

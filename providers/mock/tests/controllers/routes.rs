//! Routes to the nodes' pod networks: what is made, what is deleted, how often the cloud is asked.

use std::time::Duration;

use ccm_mock::cloud::{Fault, FaultError, FaultSpec, Operation, RouteBody};
use ccm_testkit::{
    apiserver::{Match, resources},
    kubelet::NodeSpec,
};
use serde_json::json;

use crate::cluster::{Ccm, TestCluster, initialized, secs};

pub(crate) const MINUTE: Duration = secs(60);
const HOUR: Duration = secs(3600);
pub(crate) const CLUSTER: &str = "--cluster-cidr=10.244.0.0/16,fd00:10::/48";
const ROUTES_ONLY: [&str; 2] = ["--controllers=node-route-controller", CLUSTER];
pub(crate) const READY: &str = "False/RouteCreated";
pub(crate) const NOT_READY: &str = "True/NoRouteCreated";

/// Starts the route controller alone, with more flags.
pub(crate) fn start(world: &TestCluster, flags: &[&str]) -> Ccm {
    world.start(&[&ROUTES_ONLY, flags].concat())
}

/// Starts it so that nothing but changes, and an hour that is over, are a reason to compare.
pub(crate) fn start_watching(world: &TestCluster) -> Ccm {
    start(world, &["--feature-gates=CloudControllerManagerWatchBasedRoutesReconciliation=true"])
}

/// Registers a node and gives it pod networks, as kube-controller-manager does.
pub(crate) async fn join(world: &TestCluster, spec: NodeSpec, cidrs: &[&str]) {
    let name = spec.name.clone();
    world.kubelets.register(spec).await.unwrap();
    give(world, &name, cidrs);
}

pub(crate) fn give(world: &TestCluster, name: &str, cidrs: &[&str]) {
    world.edit(name, |node| {
        node["spec"]["podCIDR"] = json!(cidrs[0]);
        node["spec"]["podCIDRs"] = json!(cidrs);
    });
}

/// Deletes a node and its kubelet, here and now.
pub(crate) fn remove(world: &TestCluster, name: &str) {
    world.kubelets.stop_node(name).unwrap();
    let nodes = resources::find("", "v1", "nodes").unwrap();
    world.server.store().write(|tx| {
        let object = tx.get(("", "nodes"), "", name).unwrap();
        let last = object.value();
        tx.remove(nodes, &object, last);
    });
}

/// Condition NetworkUnavailable of a node, `status/reason`; empty without one.
pub(crate) fn network(world: &TestCluster, name: &str) -> String {
    let node = world.node(name);
    let list = node["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let mut found = list.filter(|condition| condition["type"] == "NetworkUnavailable");
    let text = found.next().map_or(String::new(), |condition| {
        format!(
            "{}/{}",
            condition["status"].as_str().unwrap(),
            condition["reason"].as_str().unwrap()
        )
    });
    assert!(found.next().is_none(), "two conditions of a type: {node}");
    text
}

/// Waits until all routes of these nodes are there, as their conditions say.
pub(crate) async fn until_ready(
    world: &TestCluster,
    names: &[impl AsRef<str>],
    limit: Duration,
) -> Duration {
    let mut left: Vec<&str> = names.iter().map(AsRef::as_ref).rev().collect();
    let all = || {
        while left
            .last()
            .is_some_and(|name| network(world, name) == READY)
        {
            left.pop();
        }
        left.is_empty()
    };
    world.until("routes are there", limit, all).await
}

/// Routes of the cloud, `node destination`, sorted; `!` marks black holes.
pub(crate) fn routes(world: &TestCluster) -> Vec<String> {
    let mark = |blackhole| if blackhole { " !" } else { "" };
    let text = |route: &ccm_mock::cloud::Route| {
        format!("{} {}{}", route.node, route.destination, mark(route.blackhole))
    };
    let mut all: Vec<String> = world.cloud.routes().iter().map(text).collect();
    all.sort();
    all
}

/// Makes a route by hand.
pub(crate) fn put_route(
    world: &TestCluster,
    name: &str,
    node: &str,
    destination: &str,
    blackhole: bool,
) {
    let (node, destination) = (Some(node.to_owned()), Some(destination.parse().unwrap()));
    let body = RouteBody { name: None, node, destination, blackhole: Some(blackhole) };
    world.cloud.put_route(name, body).unwrap();
}

/// A fault of a route operation: of one node's routes or of all, so often or always.
pub(crate) fn fault(
    operation: Operation,
    error: FaultError,
    node: Option<&str>,
    times: Option<u64>,
) -> Fault {
    let object = node.map(str::to_owned);
    let spec = FaultSpec {
        operation: Some(operation),
        error: Some(error),
        times,
        object,
        ..FaultSpec::default()
    };
    Fault::new(spec).unwrap()
}

/// Number of comparisons with this outcome and trigger.
pub(crate) fn syncs(ccm: &Ccm, outcome: &str, trigger: &str) -> f64 {
    ccm.metric("route_controller_route_sync_total", &[("outcome", outcome), ("trigger", trigger)])
}

fn apply_calls(ccm: &Ccm) -> f64 {
    ccm.metric("ccm_cloud_calls_total", &[("operation", "apply_routes")])
}

#[tokio::test(start_paused = true)]
async fn routes_of_both_families_are_made_and_the_condition_follows() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &[]);
    join(&world, initialized("a"), &["10.244.1.0/24", "fd00:10:0:1::/64"]).await;
    join(&world, initialized("b"), &["fd00:10:0:2::/64", "10.244.2.0/24"]).await;
    until_ready(&world, &["a", "b"], secs(5)).await;
    assert_eq!(
        routes(&world),
        ["a 10.244.1.0/24", "a fd00:10:0:1::/64", "b 10.244.2.0/24", "b fd00:10:0:2::/64"]
    );
    tokio::time::sleep(MINUTE).await;
    assert_eq!(world.node_writes(), ["patch nodes/status a", "patch nodes/status b"]);
    assert_eq!(world.events(), []);
    assert!(ccm.is_running());
}

#[tokio::test(start_paused = true)]
async fn what_is_obsolete_goes_and_what_is_not_ours_stays() {
    let world = TestCluster::provisioned();
    put_route(&world, "gone", "x", "10.244.9.0/24", false);
    put_route(&world, "hole", "x", "10.244.8.0/24", true);
    put_route(&world, "swapped", "x", "10.244.1.0/24", false);
    // Shares its first address with the cluster's network, and is wider (W17b).
    put_route(&world, "wide", "x", "10.244.0.0/15", false);
    put_route(&world, "wider", "x", "10.0.0.0/8", false);
    put_route(&world, "hole-elsewhere", "x", "192.168.0.0/24", true);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    let ccm = start(&world, &[]);
    until_ready(&world, &["a"], secs(5)).await;
    let left = ["a 10.244.1.0/24", "x 10.0.0.0/8", "x 10.244.0.0/15", "x 192.168.0.0/24 !"];
    assert_eq!(routes(&world), left);
    tokio::time::sleep(HOUR).await;
    assert_eq!(routes(&world), left);
    assert_eq!(ccm.metric("ccm_route_changes_total", &[("outcome", "success")]), 4.0);
    assert_eq!(ccm.metric("ccm_route_changes_total", &[]), 4.0, "no change failed");
}

#[tokio::test(start_paused = true)]
async fn the_routes_of_a_deleted_node_go_at_once() {
    let world = TestCluster::provisioned();
    let _ccm = start_watching(&world);
    for (name, cidr) in [("a", "10.244.1.0/24"), ("b", "10.244.2.0/24"), ("c", "10.244.3.0/24")] {
        join(&world, initialized(name), &[cidr]).await;
    }
    until_ready(&world, &["a", "b", "c"], secs(5)).await;
    tokio::time::sleep(MINUTE).await;
    remove(&world, "b");
    world
        .until("its route is gone", secs(1), || {
            routes(&world) == ["a 10.244.1.0/24", "c 10.244.3.0/24"]
        })
        .await;
    tokio::time::sleep(HOUR).await;
    assert_eq!(world.node_writes().len(), 3);
    assert_eq!(world.events(), []);
}

/// The mock refuses a second route to a network, so a creation that does not wait for the deletion
/// fails here (W17a).
#[tokio::test(start_paused = true)]
async fn a_pod_network_that_moves_is_deleted_before_it_is_created() {
    let world = TestCluster::new("region: r1\nautoProvision: true\nlatency: {routes: 200ms}\n");
    let ccm = start_watching(&world);
    join(&world, initialized("old"), &["10.244.1.0/24"]).await;
    join(&world, initialized("other"), &["10.244.2.0/24"]).await;
    until_ready(&world, &["old", "other"], secs(5)).await;
    tokio::time::sleep(MINUTE).await;
    remove(&world, "old");
    join(&world, initialized("new"), &["10.244.1.0/24"]).await;
    until_ready(&world, &["new"], secs(5)).await;
    assert_eq!(routes(&world), ["new 10.244.1.0/24", "other 10.244.2.0/24"]);
    assert_eq!(ccm.metric("ccm_route_changes_total", &[("outcome", "conflict")]), 0.0);
    assert_eq!(ccm.metric("ccm_route_changes_total", &[]), 4.0);
}

#[tokio::test(start_paused = true)]
async fn a_restart_writes_nothing() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &[]);
    let names: Vec<String> = (0..50).map(|i| format!("n{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        join(
            &world,
            initialized(name),
            &[&format!("10.244.{i}.1/24"), &format!("fd00:10:0:{i}::/64")],
        )
        .await;
    }
    until_ready(&world, &names, secs(10)).await;
    ccm.stop().await;
    world.server.log().clear();
    let before = world.cloud.calls();
    let ccm = start(&world, &[]);
    tokio::time::sleep(secs(5)).await;
    let after = world.cloud.calls();
    assert_eq!(after.list_routes - before.list_routes, 1);
    assert_eq!(
        (after.create_route, after.delete_route),
        (before.create_route, before.delete_route)
    );
    assert_eq!(world.writes(), [""; 0]);
    assert_eq!(syncs(&ccm, "noop", "periodic"), 1.0);
    assert_eq!(apply_calls(&ccm), 0.0);
}

#[tokio::test(start_paused = true)]
async fn the_cloud_is_asked_once_a_period_and_behind_the_gate_once_an_hour() {
    for (flags, in_six_hours) in [
        (&["--route-reconciliation-period=10s"][..], 2160..=2161),
        (&["--route-reconciliation-period=5m"], 72..=73),
        (&["--feature-gates=CloudControllerManagerWatchBasedRoutesReconciliation=true"], 5..=6),
    ] {
        let world = TestCluster::provisioned();
        let ccm = start(&world, flags);
        join(&world, initialized("a"), &["10.244.1.0/24"]).await;
        until_ready(&world, &["a"], secs(5)).await;
        tokio::time::sleep(MINUTE).await;
        let before = world.cloud.calls().list_routes;
        tokio::time::sleep(6 * HOUR).await;
        let asked = world.cloud.calls().list_routes - before;
        assert!(in_six_hours.contains(&asked), "{flags:?}: {asked}");
        // The kubelet's heartbeats and the echo of the condition were no reason to ask.
        assert_eq!(world.node_writes().len(), 1, "{flags:?}");
        assert_eq!(syncs(&ccm, "changed", "node_change"), 1.0, "{flags:?}");
    }
}

/// What upstream makes 10 s of each event: 200 nodes would hold every change back for half an hour
/// (W16).
#[tokio::test(start_paused = true)]
async fn changes_share_a_comparison_and_none_waits_for_those_before_it() {
    let world = TestCluster::provisioned();
    let ccm = start_watching(&world);
    let names: Vec<String> = (0..200).map(|i| format!("n{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        join(&world, initialized(name), &[&format!("10.244.{i}.0/24")]).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    until_ready(&world, &names, secs(2)).await;
    let asked = world.cloud.calls().list_routes;
    assert!((8..=14).contains(&asked), "one a second for ten seconds, not {asked}");
    tokio::time::sleep(MINUTE).await;
    join(&world, initialized("late"), &["10.244.250.0/24"]).await;
    let took = until_ready(&world, &["late"], secs(5)).await;
    assert!(took < secs(1), "{took:?}");
    assert_eq!(ccm.metric("route_controller_route_sync_total", &[("outcome", "error")]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn only_what_concerns_routes_is_a_reason_to_ask_the_cloud() {
    let world = TestCluster::provisioned();
    let _ccm = start_watching(&world);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    join(&world, initialized("bare").label("x", "y"), &["10.244.2.0/24"]).await;
    until_ready(&world, &["a", "bare"], secs(5)).await;
    tokio::time::sleep(MINUTE).await;
    let asks = async |edit: fn(&mut serde_json::Value)| {
        let before = world.cloud.calls().list_routes;
        world.edit("a", edit);
        tokio::time::sleep(secs(20)).await;
        world.cloud.calls().list_routes - before
    };
    assert_eq!(
        asks(|node| node["status"]["images"] = json!([{"names": ["i"], "sizeBytes": 1}])).await,
        0,
        "images"
    );
    assert_eq!(asks(|node| node["metadata"]["labels"]["l"] = json!("v")).await, 0, "a label");
    assert_eq!(asks(|node| node["spec"]["unschedulable"] = json!(true)).await, 0, "cordoned");
    let address = |node: &mut serde_json::Value| {
        node["status"]["addresses"] = json!([{"type": "InternalIP", "address": "10.9.9.9"}]);
    };
    assert_eq!(asks(address).await, 1, "an address");
    let cidrs = |node: &mut serde_json::Value| {
        node["spec"]["podCIDRs"] = json!(["10.244.1.0/24", "fd00:10:0:1::/64"]);
    };
    assert_eq!(asks(cidrs).await, 1, "another pod network");
    assert_eq!(
        asks(|node| node["spec"]["providerID"] = json!("mock://r1/other")).await,
        1,
        "a provider ID"
    );
    assert_eq!(routes(&world), ["a 10.244.1.0/24", "a fd00:10:0:1::/64", "bare 10.244.2.0/24"]);
}

#[tokio::test(start_paused = true)]
#[ignore = "cargo xtask test --full"]
async fn a_thousand_nodes_are_ten_calls_of_a_hundred_changes() {
    let world = TestCluster::new("region: r1\nautoProvision: true\nlatency: {routes: 100ms}\n");
    let names: Vec<String> = (0..1000).map(|i| format!("n{i}")).collect();
    world
        .kubelets
        .register_all(names.iter().map(|name| initialized(name)))
        .await
        .unwrap();
    for (i, name) in names.iter().enumerate() {
        give(&world, name, &[&format!("10.244.{}.{}/26", i / 4, i % 4 * 64)]);
    }
    let ccm = start(&world, &[]);
    until_ready(&world, &names, MINUTE).await;
    assert_eq!(world.cloud.calls().create_route, 1000);
    assert_eq!(apply_calls(&ccm), 10.0);
    assert!(world.cloud.calls().list_routes <= 3, "{}", world.cloud.calls().list_routes);
    assert_eq!(world.node_writes().len(), 1000);
    world.server.log().clear();
    tokio::time::sleep(MINUTE).await;
    assert_eq!(world.writes(), [""; 0], "nothing is written when nothing changes");
    assert_eq!(apply_calls(&ccm), 10.0);
}

#[tokio::test(start_paused = true)]
async fn nodes_of_another_cloud_and_their_routes_are_left_alone() {
    let world = TestCluster::provisioned();
    put_route(&world, "theirs", "foreign", "10.244.1.0/24", false);
    put_route(&world, "theirs-too", "foreign", "10.244.7.0/24", false);
    put_route(&world, "hole", "x", "10.244.1.0/25", true);
    join(&world, initialized("foreign").provider_id("aws:///z/i-1"), &["10.244.1.0/24"]).await;
    join(&world, initialized("a"), &["10.244.2.0/24"]).await;
    let _ccm = start(&world, &[]);
    until_ready(&world, &["a"], secs(5)).await;
    tokio::time::sleep(HOUR).await;
    let all =
        ["a 10.244.2.0/24", "foreign 10.244.1.0/24", "foreign 10.244.7.0/24", "x 10.244.1.0/25 !"];
    assert_eq!(routes(&world), all);
    assert_eq!(network(&world, "foreign"), "");
    assert_eq!(world.node_writes(), ["patch nodes/status a"]);
}

/// The list that fills the cache is old: it lacks nodes whose routes are there.
#[tokio::test(start_paused = true)]
async fn before_most_routes_go_the_nodes_are_read_again() {
    let lagging = |world: &TestCluster| {
        // Paged lists alone can be old.
        let streams = Match::resource("nodes")
            .verb("watch")
            .user_agent("shared-informers");
        let code = http::StatusCode::BAD_REQUEST;
        let refuse = ccm_testkit::apiserver::Action::Error { code, retry_after: None };
        world.server.faults().add_times(streams.clone(), refuse, 1);
        world.server.faults().freeze_watches(streams);
    };
    let world = TestCluster::provisioned();
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    let old = world.server.store().version();
    join(&world, initialized("b"), &["10.244.2.0/24"]).await;
    join(&world, initialized("c"), &["10.244.3.0/24"]).await;
    for (i, node) in ["a", "b", "c"].iter().enumerate() {
        put_route(&world, node, node, &format!("10.244.{}.0/24", i + 1), false);
    }
    let all = routes(&world);
    lagging(&world);
    let lists = Match::resource("nodes")
        .verb("list")
        .user_agent("shared-informers");
    let stale =
        world
            .server
            .faults()
            .add_times(lists, ccm_testkit::apiserver::Action::StaleRead(old), 1);
    let _ccm = start(&world, &[]);
    tokio::time::sleep(secs(45)).await;
    assert_eq!(world.server.faults().met(stale), 1);
    assert_eq!(routes(&world), all);
    let reads = world.server.log().count(
        &Match::resource("nodes")
            .verb("list")
            .user_agent("route-controller"),
    );
    assert!(reads >= 1, "nothing was read again");
    // When they cannot be read, nothing is deleted either.
    let refuse = ccm_testkit::apiserver::Action::Drop;
    world.server.faults().add(
        Match::resource("nodes")
            .verb("list")
            .user_agent("route-controller"),
        refuse,
    );
    tokio::time::sleep(MINUTE).await;
    assert_eq!(routes(&world), all);
}

#[tokio::test(start_paused = true)]
async fn two_nodes_with_one_pod_network_do_not_take_it_from_each_other() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &[]);
    join(&world, initialized("b"), &["10.244.1.0/24"]).await;
    until_ready(&world, &["b"], secs(5)).await;
    join(&world, initialized("a"), &["10.244.1.7/24"]).await;
    world
        .until("the other is told", secs(5), || network(&world, "a") == NOT_READY)
        .await;
    tokio::time::sleep(HOUR).await;
    assert_eq!(routes(&world), ["b 10.244.1.0/24"]);
    assert_eq!([network(&world, "a"), network(&world, "b")], [NOT_READY, READY]);
    assert_eq!(world.events(), [("PodCIDRConflict".to_owned(), 1)]);
    assert_eq!(world.node_writes().len(), 2);
    assert_eq!(ccm.metric("ccm_route_changes_total", &[]), 1.0);
    // When the one goes, the other gets it.
    remove(&world, "b");
    until_ready(&world, &["a"], secs(5)).await;
    assert_eq!(routes(&world), ["a 10.244.1.0/24"]);
}

#[tokio::test(start_paused = true)]
async fn pod_networks_that_cannot_have_a_route_are_told_once_and_hold_back_no_other() {
    let world = TestCluster::provisioned();
    join(&world, initialized("outside"), &["10.9.0.0/24", "fd00:10:0:1::/64"]).await;
    join(&world, initialized("broken"), &["10.244.0.0"]).await;
    join(&world, initialized("good"), &["10.244.2.0/24"]).await;
    let _ccm = start(&world, &[]);
    until_ready(&world, &["good"], secs(5)).await;
    tokio::time::sleep(HOUR).await;
    assert_eq!(routes(&world), ["good 10.244.2.0/24", "outside fd00:10:0:1::/64"]);
    assert_eq!([network(&world, "outside"), network(&world, "broken")], [NOT_READY, NOT_READY]);
    let mut events = world.events();
    events.sort();
    assert_eq!(events, [("InvalidPodCIDR".to_owned(), 1), ("PodCIDROutOfRange".to_owned(), 1)]);
    assert_eq!(world.node_writes().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_keeps_it_from_starting_ends_nothing_else() {
    let all = "--controllers=cloud-node,node-route-controller";
    for flags in [&[all][..], &[all, CLUSTER, "--configure-cloud-routes=false"]] {
        let world = TestCluster::provisioned();
        let ccm = world.start(flags);
        join(&world, NodeSpec::new("a"), &["10.244.1.0/24"]).await;
        world.until_initialized(&["a"], MINUTE).await;
        tokio::time::sleep(MINUTE).await;
        assert!(ccm.is_running());
        assert_eq!((world.cloud.calls().list_routes, network(&world, "a")), (0, String::new()));
        assert_eq!(ccm.metric("running_managed_controllers", &[]), 1.0);
    }
    let world = TestCluster::provisioned();
    let ccm = world.start(&[all, CLUSTER]);
    join(&world, NodeSpec::new("a"), &["10.244.1.0/24"]).await;
    until_ready(&world, &["a"], MINUTE).await;
    assert_eq!(ccm.metric("running_managed_controllers", &[("name", "route")]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn the_family_of_upstream_has_its_name_type_and_labels() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &[]);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    until_ready(&world, &["a"], secs(5)).await;
    world
        .cloud
        .set_faults(vec![fault(Operation::ListRoutes, FaultError::Transient, None, None)]);
    tokio::time::sleep(MINUTE).await;
    let families = ccm.registry.gather();
    let family = families
        .iter()
        .find(|family| family.name() == "route_controller_route_sync_total")
        .unwrap();
    assert_eq!(family.get_field_type(), prometheus::proto::MetricType::COUNTER);
    let labels = |metric: &prometheus::proto::Metric| {
        metric
            .get_label()
            .iter()
            .map(|label| format!("{}={}", label.name(), label.value()))
            .collect::<Vec<_>>()
            .join(",")
    };
    let mut series: Vec<String> = family.get_metric().iter().map(labels).collect();
    series.sort();
    assert!(series.contains(&"outcome=error,trigger=periodic".to_owned()), "{series:?}");
    assert!(
        series
            .iter()
            .all(|s| s.starts_with("outcome=") && s.contains(",trigger=")),
        "{series:?}"
    );
    assert!(syncs(&ccm, "changed", "node_change") + syncs(&ccm, "changed", "periodic") >= 1.0);
}

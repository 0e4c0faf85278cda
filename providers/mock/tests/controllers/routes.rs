//! Routes to the nodes' pod networks, and the condition that says whether they are there.

use std::time::Duration;

use ccm_mock::cloud::{Fault, FaultError, FaultSpec, Operation, RouteBody};
use ccm_testkit::{
    apiserver::{Action, Change, Match},
    kubelet::NodeSpec,
};
use serde_json::{Value, json};

use crate::world::{AGENT, Ccm, World, initialized, is_initialized, secs};

const MINUTE: Duration = secs(60);
const ROUTES_ONLY: [&str; 2] = ["--controllers=node-route-controller", "--cluster-cidr=10.244.0.0/16,fd00:10::/48"];
const ALL: [&str; 2] = [
    "--controllers=cloud-node,cloud-node-lifecycle,node-route-controller",
    "--cluster-cidr=10.244.0.0/16,fd00:10::/48",
];

/// Registers a node and gives it pod networks, as kube-controller-manager does.
async fn join(world: &World, spec: NodeSpec, cidrs: &[&str]) {
    let name = spec.name.clone();
    world.kubelets.register(spec).await.unwrap();
    give(world, &name, cidrs);
}

fn give(world: &World, name: &str, cidrs: &[&str]) {
    world.edit(name, |node| {
        node["spec"]["podCIDR"] = json!(cidrs[0]);
        node["spec"]["podCIDRs"] = json!(cidrs);
    });
}

/// Condition NetworkUnavailable of a node, `status/reason`; empty without one.
fn network(world: &World, name: &str) -> String {
    let node = world.node(name);
    let list = node["status"]["conditions"].as_array().into_iter().flatten();
    let mut found = list.filter(|condition| condition["type"] == "NetworkUnavailable");
    let text = found.next().map_or(String::new(), |condition| {
        format!("{}/{}", condition["status"].as_str().unwrap(), condition["reason"].as_str().unwrap())
    });
    assert!(found.next().is_none(), "two conditions of a type: {node}");
    text
}

const READY: &str = "False/RouteCreated";
const NOT_READY: &str = "True/NoRouteCreated";

/// Routes of the cloud, `node destination`, sorted.
fn routes(world: &World) -> Vec<String> {
    let mark = |blackhole| if blackhole { " !" } else { "" };
    let text =
        |route: &ccm_mock::cloud::Route| format!("{} {}{}", route.node, route.destination, mark(route.blackhole));
    let mut all: Vec<String> = world.cloud.routes().iter().map(text).collect();
    all.sort();
    all
}

fn put_route(world: &World, name: &str, node: &str, destination: &str, blackhole: bool) {
    let (node, destination) = (Some(node.to_owned()), Some(destination.parse().unwrap()));
    let body = RouteBody { name: None, node, destination, blackhole: Some(blackhole) };
    world.cloud.put_route(name, body).unwrap();
}

#[tokio::test(start_paused = true)]
async fn routes_of_both_families_are_made_and_the_condition_follows() {
    let world = World::provisioned();
    let ccm = world.start(&ROUTES_ONLY);
    join(&world, initialized("a"), &["10.244.1.0/24", "fd00:10:0:1::/64"]).await;
    join(&world, initialized("b"), &["fd00:10:0:2::/64", "10.244.2.0/24"]).await;
    world.until("both are ready", secs(5), || ["a", "b"].iter().all(|n| network(&world, n) == READY)).await;
    assert_eq!(routes(&world), ["a 10.244.1.0/24", "a fd00:10:0:1::/64", "b 10.244.2.0/24", "b fd00:10:0:2::/64"]);
    assert_eq!(world.node_writes(), ["patch nodes/status a", "patch nodes/status b"]);
    assert_eq!(world.events(), []);
    assert!(ccm.is_running());
}

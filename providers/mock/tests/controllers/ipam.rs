//! Pod CIDRs of nodes: joining, leaving, restarts, fail-over, other allocators.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::world::{Ccm, World, secs};

/// Only this controller, with a small pool unless the test says otherwise.
const IPAM: [&str; 2] = ["--controllers=nodeipam", "--allocate-node-cidrs=true"];

fn start(world: &World, flags: &[&str]) -> Ccm {
    world.start(&[&IPAM[..], flags].concat())
}

fn pod_cidrs(node: &Value) -> Vec<String> {
    let list = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
    let cidrs: Vec<String> = list.filter_map(Value::as_str).map(str::to_owned).collect();
    assert_eq!(node["spec"]["podCIDR"].as_str().unwrap_or_default(), cidrs.first().map_or("", String::as_str));
    cidrs
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i}")).collect()
}

fn have_pod_cidrs(world: &World, names: &[String]) -> bool {
    names.iter().all(|name| !pod_cidrs(&world.node(name)).is_empty())
}

/// Every pod CIDR with the nodes that have it.
fn owners(world: &World) -> BTreeMap<String, BTreeSet<String>> {
    let (objects, _) = world.server.store().list(("", "nodes"), None);
    let mut owners: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in objects.iter().map(|object| object.value()) {
        let name = node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        for cidr in pod_cidrs(&node) {
            owners.entry(cidr).or_default().insert(name.clone());
        }
    }
    owners
}

#[tokio::test(start_paused = true)]
async fn three_hundred_nodes_get_a_block_each_by_one_write_each() {
    let world = World::provisioned();
    let _ccm = start(&world, &["--cluster-cidr=10.0.0.0/15,fd00::/48"]);
    let names = names("n", 300);
    world.join(&names).await;
    world.until("all have pod CIDRs", secs(60), || have_pod_cidrs(&world, &names)).await;
    let owners = owners(&world);
    assert_eq!(owners.len(), 600);
    assert!(owners.values().all(|nodes| nodes.len() == 1), "{owners:?}");
    assert_eq!(world.node_writes().len(), 300, "{:?}", world.node_writes());
    assert_eq!(world.events(), []);
}

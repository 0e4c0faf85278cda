//! Pod CIDRs of nodes: joining, leaving, restarts, fail-over, other allocators.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::manager::ManagerExit;
use ccm_testkit::{
    apiserver::{Action, Match, resources},
    hooks::{HookDecision, Point},
};
use http::StatusCode;
use serde_json::{Value, json};

use crate::cluster::{AGENT, Ccm, TestCluster, edit_node, secs};

const IPAM: [&str; 2] = ["--controllers=nodeipam", "--allocate-node-cidrs=true"];
/// Sixteen blocks.
const SMALL: [&str; 2] = ["--cluster-cidr=10.0.0.0/20", "--node-cidr-mask-size=24"];
const NODES: (&str, &str) = ("", "nodes");

fn start(world: &TestCluster, flags: &[&str]) -> Ccm {
    world.start(&[&IPAM[..], flags].concat())
}

fn pod_cidrs(node: &Value) -> Vec<String> {
    let list = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i}")).collect()
}

fn have_pod_cidrs(world: &TestCluster, names: &[String]) -> bool {
    names
        .iter()
        .all(|name| !pod_cidrs(&world.node(name)).is_empty())
}

/// Every pod CIDR with the nodes that have it.
fn owners(world: &TestCluster) -> BTreeMap<String, BTreeSet<String>> {
    let (objects, _) = world.server.store().list(NODES, None);
    let mut owners: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in objects.iter().map(|object| object.value()) {
        let name = node["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let cidrs = pod_cidrs(&node);
        assert_eq!(
            node["spec"]["podCIDR"].as_str(),
            cidrs.first().map(String::as_str),
            "the older field is the first"
        );
        for cidr in cidrs {
            owners.entry(cidr).or_default().insert(name.clone());
        }
    }
    owners
}

fn assert_one_owner_each(world: &TestCluster, blocks: usize) {
    let owners = owners(world);
    assert!(owners.values().all(|nodes| nodes.len() == 1), "{owners:?}");
    assert_eq!(owners.len(), blocks, "{owners:?}");
}

fn remove(world: &TestCluster, name: &str) {
    // Otherwise its kubelet registers it again.
    world
        .kubelets
        .stop_node(name)
        .expect("the node has a kubelet");
    let def = resources::find("", "v1", "nodes").expect("nodes are served");
    world.server.store().write(|tx| {
        let node = tx.get(NODES, "", name).expect("the node is there");
        tx.remove(def, &node, node.value());
    });
}

/// Writes pod CIDRs as another allocator does.
fn foreign(node: &mut Value, cidr: &str) {
    node["spec"]["podCIDR"] = json!(cidr);
    node["spec"]["podCIDRs"] = json!([cidr]);
}

fn patches() -> Match {
    Match::resource("nodes").verb("patch").user_agent(AGENT)
}

#[tokio::test(start_paused = true)]
async fn three_hundred_nodes_get_a_block_each_by_one_write_each_and_keep_it_over_a_restart() {
    let world = TestCluster::provisioned();
    let flags = [
        "--cluster-cidr=10.0.0.0/15,fd00::/48",
        "--service-cluster-ip-range=10.0.0.0/20,fd00::/60",
    ];
    let ccm = start(&world, &flags);
    let first = names("n", 300);
    world.join(&first).await;
    world
        .until("all have pod CIDRs", secs(60), || have_pod_cidrs(&world, &first))
        .await;
    assert_one_owner_each(&world, 600);
    assert_eq!(world.node_writes().len(), 300, "{:?}", world.node_writes());
    let before = owners(&world);
    let own = before
        .keys()
        .any(|cidr| cidr.starts_with("10.0.15.") || cidr.starts_with("fd00:0:0:f::"));
    assert!(!own, "nothing of the services: {before:?}");
    assert_eq!(
        ccm.metric(
            "node_ipam_controller_cidrset_cidrs_allocations_total",
            &[("clusterCIDR", "10.0.0.0/15")]
        ),
        316.0
    );
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);

    let _ccm = start(&world, &flags);
    let second = names("m", 100);
    world.join(&second).await;
    world
        .until("the others, too", secs(60), || have_pod_cidrs(&world, &second))
        .await;
    assert_one_owner_each(&world, 800);
    let after = owners(&world);
    assert!(
        before
            .iter()
            .all(|(cidr, nodes)| after.get(cidr) == Some(nodes)),
        "each keeps its own"
    );
    assert_eq!(world.node_writes().len(), 400);
    assert_eq!(world.events(), []);
}

#[tokio::test(start_paused = true)]
async fn it_does_nothing_unless_it_is_named_and_told_to_allocate() {
    for flags in [
        &["--controllers=*", "--allocate-node-cidrs=true", "--cidr-allocator-type=CloudAllocator"]
            [..],
        &["--controllers=nodeipam", "--cidr-allocator-type=CloudAllocator"],
        &["--controllers=*,-nodeipam", "--allocate-node-cidrs=true"],
    ] {
        let world = TestCluster::provisioned();
        let ccm = world.start(&[flags, &SMALL].concat());
        world.join(["a"]).await;
        tokio::time::sleep(secs(120)).await;
        assert_eq!(pod_cidrs(&world.node("a")), [""; 0], "{flags:?}");
        assert!(ccm.is_running(), "{flags:?}");
        assert_eq!(ccm.metric("running_managed_controllers", &[("name", "nodeipam")]), 0.0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_finds_nothing_is_told_once_and_gets_the_next_block_that_is_free_at_once() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &SMALL);
    let first = names("n", 16);
    world.join(&first).await;
    world
        .until("all blocks are taken", secs(60), || have_pod_cidrs(&world, &first))
        .await;
    world.join(["late"]).await;
    tokio::time::sleep(secs(600)).await;
    assert_eq!(world.events(), [("CIDRNotAvailable".to_owned(), 1)]);
    let usage = |ccm: &Ccm| {
        ccm.metric("node_ipam_controller_cidrset_usage_cidrs", &[("clusterCIDR", "10.0.0.0/20")])
    };
    assert_eq!((world.node_writes().len(), usage(&ccm)), (16, 1.0));
    let block = pod_cidrs(&world.node("n7"));
    remove(&world, "n7");
    let took = world
        .until("it gets the block", secs(60), || pod_cidrs(&world.node("late")) == block)
        .await;
    assert!(took < secs(1), "{took:?}");
    remove(&world, "late");
    world
        .until("the block is free", secs(10), || usage(&ccm) == 15.0 / 16.0)
        .await;
    assert_eq!(ccm.metric("node_ipam_controller_cidrset_cidrs_releases_total", &[]), 2.0);
    assert_eq!(ccm.metric("node_ipam_controller_cirdset_max_cidrs", &[]), 16.0);
}

/// Go loses a block of the first family with each retry while the second has nothing left, keeps
/// the block of a node that vanished before it was written, and tries three times without a pause.
#[tokio::test(start_paused = true)]
async fn nothing_leaks_however_writes_fail() {
    let down = Action::Error { code: StatusCode::INTERNAL_SERVER_ERROR, retry_after: None };
    let refused = Action::Error { code: StatusCode::FORBIDDEN, retry_after: None };
    let busy = Action::Error { code: StatusCode::TOO_MANY_REQUESTS, retry_after: Some(1) };
    let conflict = Action::Error { code: StatusCode::CONFLICT, retry_after: None };
    let ways =
        [down, refused, busy, conflict, Action::Drop, Action::DropReply, Action::Delay(secs(40))];
    for way in ways {
        let world = TestCluster::provisioned();
        let ccm = start(
            &world,
            &["--cluster-cidr=10.0.0.0/24,fd00::/62", "--node-cidr-mask-size-ipv4=28"],
        );
        let fault = world.server.faults().add(patches(), way.clone());
        let all = names("n", 6);
        world.join(&all).await;
        tokio::time::sleep(secs(100)).await;
        world.server.faults().remove(fault);
        remove(&world, "n0");
        // Four IPv6 blocks for five nodes.
        let with = || {
            (1..6)
                .filter(|i| !pod_cidrs(&world.node(&format!("n{i}"))).is_empty())
                .count()
        };
        world
            .until("four nodes have pod CIDRs", secs(300), || with() == 4)
            .await;
        tokio::time::sleep(secs(300)).await;
        assert_one_owner_each(&world, 8);
        let usage = |cluster| {
            ccm.metric("node_ipam_controller_cidrset_usage_cidrs", &[("clusterCIDR", cluster)])
        };
        assert_eq!((usage("10.0.0.0/24"), usage("fd00::/62")), (4.0 / 16.0, 1.0), "{way:?}");
        for node in 1..6 {
            remove(&world, &format!("n{node}"));
        }
        tokio::time::sleep(secs(60)).await;
        assert_eq!((usage("10.0.0.0/24"), usage("fd00::/62")), (0.0, 0.0), "{way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_once_and_tried_again_with_pauses() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &SMALL);
    let down = Action::Error { code: StatusCode::INTERNAL_SERVER_ERROR, retry_after: None };
    let fault = world.server.faults().add(patches(), down);
    world.join(["a"]).await;
    tokio::time::sleep(secs(300)).await;
    assert_eq!(world.events(), [("CIDRAssignmentFailed".to_owned(), 1)]);
    let tries = world.server.faults().met(fault);
    assert!((20..=80).contains(&tries), "{tries}");
    world.server.faults().remove(fault);
    world
        .until("it succeeds in the end", secs(40), || !pod_cidrs(&world.node("a")).is_empty())
        .await;
    let usage = ccm.metric("node_ipam_controller_cidrset_usage_cidrs", &[]);
    assert_eq!(
        (pod_cidrs(&world.node("a")).len(), usage),
        (1, 1.0 / 16.0),
        "what was tried in vain is free"
    );
}

/// Go's process dies of any of these, and each next one again.
#[tokio::test(start_paused = true)]
async fn a_node_with_bad_pod_cidrs_is_told_and_the_others_are_served() {
    let world = TestCluster::provisioned();
    let all = ["outside", "surplus", "wide", "same", "same-too"];
    world.join(all).await;
    world.edit("outside", |node| foreign(node, "192.168.0.0/24"));
    world.edit("surplus", |node| {
        foreign(node, "10.0.5.0/24");
        node["spec"]["podCIDRs"] = json!(["10.0.5.0/24", "fd00::/64"]);
    });
    world.edit("wide", |node| foreign(node, "10.0.0.0/22"));
    world.edit("same", |node| foreign(node, "10.0.4.0/24"));
    world.edit("same-too", |node| foreign(node, "10.0.4.0/24"));
    let ccm = start(&world, &SMALL);
    let good = names("n", 9);
    world.join(&good).await;
    world
        .until("the others have pod CIDRs", secs(60), || have_pod_cidrs(&world, &good))
        .await;
    tokio::time::sleep(secs(60)).await;
    assert!(ccm.is_running());
    let owners = owners(&world);
    for index in 0..6 {
        let nodes = owners
            .get(&format!("10.0.{index}.0/24"))
            .into_iter()
            .flatten();
        assert!(
            nodes.clone().all(|name| !name.starts_with('n')),
            "10.0.{index}.0/24 is given again: {owners:?}"
        );
    }
    let told = |name: &str| {
        let (events, _) = world.server.store().list(("", "events"), None);
        let about = events
            .iter()
            .map(|event| event.value())
            .filter(|event| event["involvedObject"]["name"] == name);
        about
            .map(|event| {
                (
                    event["type"].clone(),
                    event["reason"].clone(),
                    event["message"].as_str().unwrap().to_owned(),
                )
            })
            .collect::<Vec<_>>()
    };
    for (name, cidr) in [
        ("outside", "192.168.0.0/24"),
        ("surplus", "fd00::/64"),
        ("same", "10.0.4.0/24"),
        ("same-too", "10.0.4.0/24"),
    ] {
        let events = told(name);
        assert_eq!(events.len(), 1, "{name}: {events:?}");
        let (kind, reason, note) = &events[0];
        assert_eq!((kind, reason), (&json!("Warning"), &json!("InvalidPodCIDR")));
        assert!(note.contains(cidr), "{note}");
    }
    assert_eq!(told("wide"), [], "unusual, not wrong");
    remove(&world, "same");
    world.join(["late"]).await;
    world
        .until("late has a block", secs(60), || !pod_cidrs(&world.node("late")).is_empty())
        .await;
    assert_ne!(pod_cidrs(&world.node("late")), ["10.0.4.0/24"], "the other one still has it");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_gets_pod_cidrs_from_somebody_else_meanwhile_keeps_those() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &SMALL);
    let server = world.server.clone();
    world.hooks.on(move |number, point, _| {
        if (number, point) == (1, Point::Before) {
            edit_node(&server, "a", |node| foreign(node, "10.0.9.0/24"));
        }
        HookDecision::Continue
    });
    world.join(["a"]).await;
    tokio::time::sleep(secs(60)).await;
    assert_eq!(pod_cidrs(&world.node("a")), ["10.0.9.0/24"]);
    assert_eq!((world.node_writes(), world.events()), (vec![], vec![]));
    assert_eq!(
        ccm.metric("node_ipam_controller_cidrset_usage_cidrs", &[]),
        1.0 / 16.0,
        "ours is free again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_block_that_somebody_else_gives_to_another_node_meanwhile_is_not_tried_again() {
    let world = TestCluster::provisioned();
    let _ccm = start(&world, &SMALL);
    world.join(["b"]).await;
    world
        .until("b has a block", secs(10), || !pod_cidrs(&world.node("b")).is_empty())
        .await;
    let conflict = Action::Error { code: StatusCode::CONFLICT, retry_after: None };
    world
        .server
        .faults()
        .add_times(patches().name("a"), conflict, 1);
    let (server, mut other) = (world.server.clone(), world.node("b"));
    other["metadata"]["name"] = json!("c");
    other["metadata"]["uid"] = json!("c");
    foreign(&mut other, "10.0.1.0/24");
    world.hooks.on(move |_, point, operation| {
        if point == Point::Before
            && operation.object == "a"
            && server.store().get(NODES, "", "c").is_none()
        {
            let def = resources::find("", "v1", "nodes").unwrap();
            server.store().write(|tx| tx.put(def, other.clone()));
        }
        HookDecision::Continue
    });
    world.join(["a"]).await;
    world
        .until("a has a block", secs(60), || !pod_cidrs(&world.node("a")).is_empty())
        .await;
    assert_eq!(pod_cidrs(&world.node("c")), ["10.0.1.0/24"]);
    assert_eq!(pod_cidrs(&world.node("a")), ["10.0.2.0/24"]);
}

/// kube-controller-manager allocates as well. It has its own idea of what is free, so collisions
/// that it makes are told; those that can be seen in time are avoided.
#[tokio::test(start_paused = true)]
async fn beside_another_allocator_every_node_has_one_allocation_and_ours_hit_nobody() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &["--cluster-cidr=10.0.0.0/16"]);
    let all = names("n", 120);
    for (index, name) in all.iter().enumerate() {
        world.join([name]).await;
        if index % 3 == 0 && pod_cidrs(&world.node(name)).is_empty() {
            let taken = owners(&world);
            let free = (0..256)
                .map(|i| format!("10.0.{i}.0/24"))
                .find(|cidr| !taken.contains_key(cidr))
                .unwrap();
            world.edit(name, |node| foreign(node, &free));
        }
        tokio::task::yield_now().await;
    }
    world
        .until("all have pod CIDRs", secs(60), || have_pod_cidrs(&world, &all))
        .await;
    tokio::time::sleep(secs(60)).await;
    let shared: Vec<_> = owners(&world)
        .into_iter()
        .filter(|(_, nodes)| nodes.len() > 1)
        .collect();
    let told = world.event_count("InvalidPodCIDR");
    assert_eq!(
        told,
        shared
            .iter()
            .map(|(_, nodes)| nodes.len() as u64)
            .sum::<u64>(),
        "{shared:?}"
    );
    let usage = ccm.metric("node_ipam_controller_cidrset_usage_cidrs", &[]);
    assert_eq!(usage, owners(&world).len() as f64 / 256.0);
}

#[tokio::test(start_paused = true)]
async fn the_last_request_of_a_leader_that_died_hits_nobody_else() {
    let world = TestCluster::provisioned();
    let old = start(&world, &SMALL);
    // On its way when the process dies; it takes effect three seconds later.
    let server = world.server.clone();
    world.join(["a"]).await;
    world
        .until("a has a block", secs(10), || !pod_cidrs(&world.node("a")).is_empty())
        .await;
    world
        .hooks
        .on(|_, point, operation| match (point, operation.action.as_str()) {
            (Point::Before, "patch nodes") => HookDecision::Crash,
            _ => HookDecision::Continue,
        });
    world.join(["b"]).await;
    world
        .until("the request was sent", secs(10), || world.hooks.has_crashed())
        .await;
    drop(old);
    world.hooks.reset();
    let version = world.node("b")["metadata"]["resourceVersion"].clone();
    let _new = start(&world, &SMALL);
    world.join(["c"]).await;
    tokio::time::sleep(secs(3)).await;
    assert_eq!(
        world.node("b")["metadata"]["resourceVersion"],
        version,
        "the request that waits would still fit"
    );
    edit_node(&server, "b", |node| foreign(node, "10.0.1.0/24"));
    world
        .until("c has a block", secs(120), || have_pod_cidrs(&world, &["c".into()]))
        .await;
    assert_one_owner_each(&world, 3);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_nobody_changes_wait_no_longer_than_a_late_request_could_take() {
    let world = TestCluster::provisioned();
    world.join(["a"]).await;
    world
        .kubelets
        .stop_node("a")
        .expect("the node has a kubelet");
    let _ccm = start(&world, &SMALL);
    let took = world
        .until("a has a block", secs(60), || have_pod_cidrs(&world, &["a".into()]))
        .await;
    assert!((secs(34)..secs(37)).contains(&took), "{took:?}");
}

/// As the server has a node after etcd was restored from a backup that is older than our write.
fn without_networks(node: &mut Value) {
    let spec = node["spec"].as_object_mut().expect("a node has a spec");
    spec.remove("podCIDR");
    spec.remove("podCIDRs");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_a_restored_backup_shows_without_its_block_gets_the_same_again_within_minutes()
{
    let world = TestCluster::provisioned();
    let ccm = start(&world, &SMALL);
    let all = names("n", 3);
    world.join(&all).await;
    world
        .until("all have pod CIDRs", secs(60), || have_pod_cidrs(&world, &all))
        .await;
    tokio::time::sleep(secs(300)).await;
    let before = owners(&world);
    world.edit("n1", without_networks);
    world.join(["late"]).await;
    world
        .until("late has a block", secs(10), || !pod_cidrs(&world.node("late")).is_empty())
        .await;
    assert_one_owner_each(&world, 3);
    let took = world
        .until("n1 has its block again", secs(300), || have_pod_cidrs(&world, &all))
        .await;
    assert!((secs(55)..secs(62)).contains(&took), "{took:?}");
    assert_one_owner_each(&world, 4);
    let after = owners(&world);
    assert!(
        before
            .iter()
            .all(|(cidr, nodes)| after.get(cidr) == Some(nodes)),
        "{before:?} {after:?}"
    );
    assert_eq!((world.node_writes().len(), world.events()), (5, vec![]));
    assert_eq!(ccm.metric("node_ipam_controller_cidrset_usage_cidrs", &[]), 4.0 / 16.0);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_no_watch_ever_showed_is_given_again() {
    let world = TestCluster::provisioned();
    let _ccm = start(&world, &SMALL);
    world.join(["a"]).await;
    world
        .until("a has a block", secs(10), || !pod_cidrs(&world.node("a")).is_empty())
        .await;
    let server = world.server.clone();
    world.hooks.on(move |_, point, operation| {
        let watches = Match::resource("nodes").user_agent(AGENT);
        match (point, operation.object.as_str(), operation.action.as_str()) {
            (Point::Before, "b", "patch nodes") => drop(server.faults().freeze_watches(watches)),
            // Whoever follows is sent away for a new list.
            (Point::After, "b", "patch nodes") => {
                edit_node(&server, "b", without_networks);
                server.store().compact();
                server.faults().cut_watches(&watches);
                server.faults().clear();
            }
            _ => {}
        }
        HookDecision::Continue
    });
    world.join(["b"]).await;
    world
        .until("it is written", secs(10), || world.node_writes().len() == 2)
        .await;
    world.hooks.reset();
    assert_eq!(pod_cidrs(&world.node("b")), [""; 0]);
    let took = world
        .until("b has a block", secs(300), || !pod_cidrs(&world.node("b")).is_empty())
        .await;
    assert!((secs(55)..secs(65)).contains(&took), "{took:?}");
    assert_eq!(pod_cidrs(&world.node("b")), ["10.0.1.0/24"], "the same");
    assert_one_owner_each(&world, 2);
}

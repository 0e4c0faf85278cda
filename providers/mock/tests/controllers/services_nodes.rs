//! What changes of nodes cost, and that balancers end with the right ones.

use std::{sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind, NodeTarget};
use ccm_mock::provider::annotations;
use ccm_testkit::{
    apiserver::{Action, Match},
    kubelet::{NodeSpec, Ready},
};
use serde_json::{Value, json};

use crate::{
    cluster::{AGENT, Ccm, TestCluster, initialized, secs},
    scripted_load_balancers::{Call, ScriptedLoadBalancers, ScriptedResult},
    service_world::SERVICE,
};

const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
const LEAVING: &str = "ToBeDeletedByClusterAutoscaler";

/// Three Services, two of them with local traffic only, on some nodes; nothing is under way.
async fn three_services(nodes: &[&str]) -> (TestCluster, Arc<ScriptedLoadBalancers>, Ccm) {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    let ccm = world.start_with(provider.clone(), &SERVICE);
    world.have_nodes(nodes).await;
    for (name, policy) in [("l1", "Local"), ("l2", "Local"), ("c", "Cluster")] {
        world
            .put_service(name, json!({"ports": [{"port": 80}], "externalTrafficPolicy": policy}))
            .await;
    }
    world.until_served(&["l1", "l2", "c"], secs(60)).await;
    world.settle().await;
    provider.take_calls();
    (world, provider, ccm)
}

fn taint(node: &mut Value, key: &str) {
    let taint = json!({"key": key, "effect": "NoSchedule"});
    match node["spec"]["taints"].as_array_mut() {
        Some(taints) => taints.push(taint),
        None => node["spec"]["taints"] = json!([taint]),
    }
}

#[tokio::test(start_paused = true)]
async fn only_changes_of_the_node_set_cost_a_call_one_for_each_balancer() {
    type Edit = fn(&mut Value);
    let cases: [(&str, Edit, bool); 11] = [
        ("unrelated label", |node| node["metadata"]["labels"]["x"] = json!("y"), false),
        ("unrelated taint", |node| taint(node, "x"), false),
        ("autoscaler's taint", |node| taint(node, LEAVING), false),
        ("cordoned", |node| node["spec"]["unschedulable"] = json!(true), false),
        (
            "not Ready",
            |node| node["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]),
            false,
        ),
        (
            "label that excludes nobody",
            |node| node["metadata"]["labels"][EXCLUDE] = json!("false"),
            false,
        ),
        ("excluded", |node| node["metadata"]["labels"][EXCLUDE] = json!(""), true),
        (
            "being deleted",
            |node| node["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
            true,
        ),
        ("provider ID", |node| node["spec"]["providerID"] = json!("mock://r1/other"), true),
        (
            "address",
            |node| {
                node["status"]["addresses"] =
                    json!([{"type": "InternalIP", "address": "10.9.9.9"}]);
            },
            true,
        ),
        (
            "zone",
            |node| node["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!("other"),
            true,
        ),
    ];
    for (name, edit, acts) in cases {
        let (world, provider, _ccm) = three_services(&["a", "b", "c"]).await;
        let events = world.reasons().len();
        world.edit("a", edit);
        world.settle().await;
        let calls = provider.take_calls();
        assert_eq!(calls.len(), if acts { 3 } else { 0 }, "{name}");
        assert!(calls.iter().all(|call| call.verb == "update"), "{name}");
        let leaves = ["excluded", "being deleted"].contains(&name);
        let expected: &[&str] = if leaves {
            &["b", "c"]
        } else {
            &["a", "b", "c"]
        };
        assert!(
            ["l1", "l2", "c"]
                .iter()
                .all(|service| world.nodes_behind(service) == expected),
            "{name}"
        );
        // Whoever was told of the balancer a moment ago is not told of its nodes.
        assert_eq!(world.reasons().len(), events, "{name}");
    }
}

/// KEP-3458: the taint alone is no reason; with the next one the node leaves.
#[tokio::test(start_paused = true)]
async fn a_node_that_the_autoscaler_will_remove_leaves_with_the_next_change() {
    let (world, provider, _ccm) = three_services(&["a", "b"]).await;
    world.edit("a", |node| taint(node, LEAVING));
    world.settle().await;
    assert_eq!(
        (provider.count(), world.nodes_behind("c")),
        (0, vec!["a".to_owned(), "b".to_owned()])
    );
    world.have_nodes(["d"]).await;
    world.settle().await;
    assert_eq!(
        (provider.take_calls().len(), world.nodes_behind("c")),
        (3, vec!["b".to_owned(), "d".to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_joins_is_added_once_it_is_initialised() {
    let (world, provider, _ccm) = three_services(&["a"]).await;
    world.kubelets.register(NodeSpec::new("b")).await.unwrap();
    tokio::time::sleep(secs(10)).await;
    assert_eq!(provider.count(), 0, "it will change once more");
    world.edit("b", |node| {
        node["spec"]["taints"] = json!([]);
        node["spec"]["providerID"] = json!("mock://r1/b");
    });
    tokio::time::sleep(secs(1)).await;
    assert_eq!(
        (provider.take_calls().len(), world.nodes_behind("c")),
        (3, vec!["a".to_owned(), "b".to_owned()])
    );
    // One that nobody initialises is a backend all the same, as upstream, only later.
    world.kubelets.register(NodeSpec::new("d")).await.unwrap();
    tokio::time::sleep(secs(31)).await;
    assert_eq!((provider.take_calls().len(), world.nodes_behind("c").len()), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_hundred_nodes_that_join_within_a_minute_cost_a_few_calls_for_each_balancer() {
    let (world, provider, _ccm) = three_services(&["a"]).await;
    for i in 0..100 {
        world.have_nodes([format!("n{i:02}")]).await;
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    world.settle().await;
    let calls = provider.take_calls().len();
    assert!((6..=12).contains(&calls), "at first, every half minute, and in the end: {calls}");
    assert!(
        ["l1", "l2", "c"]
            .iter()
            .all(|service| world.nodes_behind(service).len() == 101)
    );
}

/// Whatever makes a service be looked at meanwhile, the echo of its own status for instance, brings
/// no part of what comes.
#[tokio::test(start_paused = true)]
async fn a_balancer_that_is_made_while_nodes_join_gets_them_all_at_once() {
    let world = TestCluster::with("latency: {loadBalancers: 300ms}");
    let _ccm = world.start(&SERVICE);
    world.have_nodes(["a", "b"]).await;
    world.settle().await;
    for i in 0..20 {
        world.serve(&format!("w{i}")).await;
        for j in 0..5 {
            world.have_nodes([format!("n{i:02}-{j}")]).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    world.settle().await;
    assert!((0..20).all(|i| world.nodes_behind(&format!("w{i}")).len() == 102));
    assert_eq!(
        world.cloud.calls().update_load_balancer,
        20,
        "one for each, when all nodes are there"
    );
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_nodes_that_turn_ready_and_back_costs_nothing() {
    let names: Vec<String> = (0..20).map(|i| format!("n{i}")).collect();
    let (world, provider, _ccm) =
        three_services(&names.iter().map(|name| &**name).collect::<Vec<_>>()).await;
    for round in 0..30 {
        for name in &names {
            let ready = if round % 2 == 0 {
                Ready::False
            } else {
                Ready::True
            };
            world.kubelets.set_ready(name, ready).await.unwrap();
        }
        tokio::time::sleep(secs(2)).await;
    }
    world.settle().await;
    assert_eq!(provider.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn removals_wait_for_nothing_and_take_along_what_waits() {
    let (world, provider, _ccm) = three_services(&["a", "b", "c", "d", "e"]).await;
    for (gone, left) in [("a", 4), ("b", 3)] {
        world.delete_node(gone).await;
        world
            .until("it is gone from all", secs(1), || {
                ["l1", "l2", "c"]
                    .iter()
                    .all(|service| world.nodes_behind(service).len() == left)
            })
            .await;
    }
    assert_eq!(provider.take_calls().len(), 6);
    world.edit("c", |node| node["metadata"]["labels"][EXCLUDE] = json!("true"));
    world
        .until("it is excluded", secs(1), || world.nodes_behind("c") == ["d", "e"])
        .await;
}

/// Upstream's case of a slow pass (11.6), with the other order too: whatever is in flight ends with
/// today's nodes.
#[tokio::test(start_paused = true)]
async fn a_node_change_while_a_call_is_in_flight_is_not_lost() {
    for verb in ["ensure", "update", "plan"] {
        let (world, provider, ccm) = three_services(&["a", "b"]).await;
        let (_old, _ccm) = match verb {
            "plan" => {
                // A new process, whose first calls are slow.
                ccm.stop().await;
                let again = ScriptedLoadBalancers::over(&world);
                again.answer(move |call| {
                    (call.verb == verb).then_some(ScriptedResult::Slow(secs(20)))
                });
                (provider, world.start_with(again, &SERVICE))
            }
            _ => {
                provider.answer(move |call| {
                    (call.verb == verb).then_some(ScriptedResult::Slow(secs(20)))
                });
                if verb == "ensure" {
                    world
                        .patch_service("c", json!({"spec": {"ports": [{"port": 443}]}}))
                        .await;
                } else {
                    world.have_nodes(["x"]).await;
                }
                (provider, ccm)
            }
        };
        tokio::time::sleep(secs(10)).await;
        world.have_nodes(["y"]).await;
        world.delete_node("a").await;
        tokio::time::sleep(secs(120)).await;
        let expected: &[&str] = if verb == "update" {
            &["b", "x", "y"]
        } else {
            &["b", "y"]
        };
        assert_eq!(world.nodes_behind("c"), expected, "{verb}");
        assert_eq!(world.nodes_behind("l1"), expected, "{verb}");
    }
}

/// The set in the end is the one that was applied before what is in flight.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_excluded_and_back_while_a_call_is_in_flight_ends_in_place() {
    let (world, provider, _ccm) = three_services(&["a", "b"]).await;
    provider.answer(|call| (call.verb == "update").then_some(ScriptedResult::Slow(secs(20))));
    world.edit("a", |node| node["metadata"]["labels"][EXCLUDE] = json!("true"));
    tokio::time::sleep(secs(10)).await;
    world.edit("a", |node| node["metadata"]["labels"][EXCLUDE] = json!("false"));
    tokio::time::sleep(secs(120)).await;
    assert_eq!(world.nodes_behind("c"), ["a", "b"]);
    let calls: Vec<_> = provider
        .take_calls()
        .into_iter()
        .filter(|call| call.service == "c")
        .collect();
    assert_eq!(
        calls
            .iter()
            .map(|call| call.nodes.len())
            .collect::<Vec<_>>(),
        [1, 2]
    );
}

/// W22: upstream updates the nodes of a balancer while it is being deleted.
#[tokio::test(start_paused = true)]
async fn nothing_brings_back_the_backends_of_a_service_that_is_being_deleted() {
    let (world, provider, _ccm) = three_services(&["a", "b"]).await;
    provider.answer(|call| (call.verb == "delete").then_some(ScriptedResult::Pending(secs(30))));
    world.delete_service("c").await;
    for i in 0..20 {
        world.have_nodes([format!("n{i}")]).await;
        tokio::time::sleep(secs(5)).await;
    }
    let about: Vec<_> = provider
        .take_calls()
        .into_iter()
        .filter(|call| call.service == "c")
        .collect();
    assert!(about.len() >= 3 && about.iter().all(|call| call.verb == "delete"), "{about:?}");
    provider.answer_well();
    world
        .until("it is gone", secs(60), || world.service("c").is_null())
        .await;
    assert_eq!(world.balancers("c").len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_selector_chooses_the_nodes_and_others_cost_nothing() {
    let world = TestCluster::with("nodeSelectorLabels: [pool]\n");
    let provider = ScriptedLoadBalancers::over(&world);
    let _ccm = world.start_with(provider.clone(), &SERVICE);
    for (name, pool) in [("a", "edge"), ("b", "edge"), ("c", "inner")] {
        world
            .kubelets
            .register(initialized(name).label("pool", pool))
            .await
            .unwrap();
    }
    let ports = || json!({"ports": [{"port": 80}]});
    world
        .put_annotated("edge", json!({annotations::NODE_SELECTOR: "pool=edge"}), ports())
        .await;
    world
        .put_annotated("any", json!({annotations::NODE_SELECTOR: "pool"}), ports())
        .await;
    world.until_served(&["edge", "any"], secs(60)).await;
    world.settle().await;
    assert_eq!((world.nodes_behind("edge").len(), world.nodes_behind("any").len()), (2, 3));
    provider.take_calls();
    world
        .kubelets
        .register(initialized("d").label("pool", "inner"))
        .await
        .unwrap();
    world.settle().await;
    assert_eq!(provider.take_lines(), ["update any"]);
    world.edit("c", |node| node["metadata"]["labels"]["pool"] = json!("edge"));
    world.settle().await;
    assert_eq!(provider.take_lines(), ["update edge"], "c is another's labels alone for the other");
    assert_eq!(world.nodes_behind("edge"), ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_without_any_node_is_told_once_and_served() {
    let world = TestCluster::provisioned();
    let _ccm = world.start(&SERVICE);
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    assert_eq!(
        world.reasons(),
        ["EnsuringLoadBalancer", "UnAvailableLoadBalancer", "EnsuredLoadBalancer"]
    );
    world.have_nodes(["a"]).await;
    world.settle().await;
    world.delete_node("a").await;
    world.settle().await;
    assert_eq!(world.reasons()[3..], ["UnAvailableLoadBalancer"]);
    assert_eq!(world.nodes_behind("web"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn new_hosts_are_told_at_most_every_ten_minutes() {
    let (world, _, _ccm) = three_services(&["a"]).await;
    for i in 0..60 {
        world.have_nodes([format!("n{i}")]).await;
        tokio::time::sleep(secs(60)).await;
    }
    let told = world
        .reasons()
        .iter()
        .filter(|reason| *reason == "UpdatedLoadBalancer")
        .count();
    assert!((15..=18).contains(&told), "three services, an hour: {told}");
}

/// Takes most nodes out of the lists and watches of the process under test, not out of the server.
#[tokio::test(start_paused = true)]
async fn most_nodes_that_vanish_from_the_watch_alone_stay_behind_every_balancer() {
    let names = ["a", "b", "c", "d", "e"];
    let (world, provider, ccm) = three_services(&names).await;
    // A watch that tells of deletions that are taken back before the server is asked.
    let nodes: Vec<_> = names.iter().map(|name| world.node(name)).collect();
    let watches = Match::resource("nodes").verb("watch").user_agent(AGENT);
    let lists = Match::resource("nodes").verb("list").user_agent(AGENT);
    let slow = world
        .server
        .faults()
        .add(lists.clone(), Action::Delay(secs(2)));
    let before = world.server.log().count(&lists);
    for name in &names[..4] {
        world.remove_node(name);
    }
    tokio::time::sleep(secs(1)).await;
    let frozen = world.server.faults().freeze_watches(watches);
    nodes
        .iter()
        .take(4)
        .for_each(|node| world.put_node(node.clone()));
    tokio::time::sleep(secs(60)).await;
    assert_eq!(provider.take_lines(), [""; 0]);
    assert!(
        ["l1", "l2", "c"]
            .iter()
            .all(|service| world.nodes_behind(service).len() == 5)
    );
    let asked = world.server.log().count(&lists) - before;
    assert!(
        (2..=14).contains(&asked),
        "again and again, with pauses, and not once for each balancer: {asked}"
    );
    world.server.faults().thaw(frozen);
    world.server.faults().remove(slow);
    world.settle().await;
    // They are the same nodes to the cloud; what changed is told to it at most once.
    assert!(provider.take_calls().len() <= 3);
    assert!(
        ["l1", "l2", "c"]
            .iter()
            .all(|service| world.nodes_behind(service).len() == 5)
    );
    drop(ccm);
}

#[tokio::test(start_paused = true)]
async fn a_real_loss_of_most_nodes_is_followed_after_one_look_at_the_server() {
    let (world, provider, _ccm) = three_services(&["a", "b", "c", "d", "e"]).await;
    let lists = Match::resource("nodes").verb("list").user_agent(AGENT);
    let before = world.server.log().count(&lists);
    for name in ["a", "b", "c", "d"] {
        world.remove_node(name);
    }
    world
        .until("the nodes are gone", secs(5), || world.nodes_behind("c") == ["e"])
        .await;
    world.settle().await;
    assert_eq!(world.server.log().count(&lists) - before, 1);
    assert_eq!(provider.take_calls().len(), 3);
}

/// W24: upstream makes each balancer anew whose update failed.
#[tokio::test(start_paused = true)]
async fn an_update_that_fails_is_repeated_as_an_update_and_one_without_balancer_is_made_anew() {
    let (world, provider, ccm) = three_services(&["a"]).await;
    provider.answer(|call| {
        (call.verb == "update").then(|| {
            ScriptedResult::Fail(CloudError::transient(format!("no answer for {}", call.service)))
        })
    });
    world.have_nodes(["b"]).await;
    tokio::time::sleep(secs(12)).await;
    let calls = provider.take_lines();
    assert_eq!(
        (calls.len(), calls.iter().all(|line| line.starts_with("update"))),
        (6, true),
        "{calls:?}"
    );
    assert_eq!(ccm.metric("service_controller_nodesync_error_total", &[]), 6.0);
    let notes = world.notes("UpdateLoadBalancerFailed");
    assert_eq!(notes.len(), 3);
    let about = "Error updating load balancer with new hosts [a b] [node names limited, total number of nodes: 2], \
                 error: no answer for c";
    assert!(notes.iter().any(|note| note.starts_with(about)), "{notes:?}");
    provider.answer_well();
    tokio::time::sleep(secs(30)).await;
    assert_eq!(world.nodes_behind("c"), ["a", "b"]);
    provider.take_calls();
    // Somebody deleted it in the cloud: NotFound.
    world
        .cloud
        .remove_load_balancer(&world.balancers("c")[0].name);
    world.have_nodes(["d"]).await;
    world.settle().await;
    let lines: Vec<_> = provider
        .take_lines()
        .into_iter()
        .filter(|line| line.ends_with(" c"))
        .collect();
    assert_eq!(lines, ["update c", "ensure c"]);
    assert_eq!(world.nodes_behind("c"), ["a", "b", "d"]);
}

/// One Service on two nodes; nothing is under way.
async fn web_on_two_nodes() -> (TestCluster, Arc<ScriptedLoadBalancers>, Ccm) {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    let ccm = world.start_with(provider.clone(), &SERVICE);
    world.have_nodes(["a", "b"]).await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    (world, provider, ccm)
}

/// Another node takes the place of one. The load balancer follows within three quarters of a minute.
async fn b_gives_way_to_c(world: &TestCluster, what: &str, limit: Duration) {
    world.delete_node("b").await;
    world.have_nodes(["c"]).await;
    let followed = || world.nodes_behind("web") == ["a", "c"];
    let took = world.until(what, limit, followed).await;
    assert!(took <= secs(45), "{what}: {took:?}");
}

/// A change that is refused for good: what there is serves on, with the nodes of the day, in this
/// process and the next.
#[tokio::test(start_paused = true)]
async fn nodes_are_followed_while_a_change_is_refused() {
    use ErrorKind::{Conflict, Denied, InvalidInput, QuotaExceeded};
    for kind in [InvalidInput, QuotaExceeded, Denied, Conflict] {
        let (world, provider, ccm) = web_on_two_nodes().await;
        let refuse = move |call: &Call| {
            let refused = matches!(call.verb, "ensure" | "plan");
            refused.then(|| ScriptedResult::Fail(CloudError::new(kind, "it says no")))
        };
        provider.answer(refuse);
        world
            .patch_service("web", json!({"spec": {"ports": [{"port": 443}]}}))
            .await;
        tokio::time::sleep(secs(5)).await;
        b_gives_way_to_c(&world, &format!("{kind}: nodes are followed"), secs(60)).await;
        ccm.stop().await;
        let _ccm = world.start_with(provider.clone(), &SERVICE);
        tokio::time::sleep(secs(5)).await;
        world.delete_node("a").await;
        world.have_nodes(["d"]).await;
        let followed = || world.nodes_behind("web") == ["c", "d"];
        world
            .until(&format!("{kind}: nodes are followed after a restart"), secs(60), followed)
            .await;
        assert_eq!(world.balancers("web")[0].ports.len(), 1);
    }
}

/// A change that fails again and again, for a reason that may last for hours: the nodes of what
/// serves are followed.
#[tokio::test(start_paused = true)]
async fn nodes_are_followed_while_a_change_fails_again_and_again() {
    let (world, provider, _ccm) = web_on_two_nodes().await;
    provider.answer(|call: &Call| {
        (call.verb == "ensure").then(|| ScriptedResult::Fail(CloudError::transient("it is broken")))
    });
    world
        .patch_service("web", json!({"spec": {"ports": [{"port": 443}]}}))
        .await;
    tokio::time::sleep(secs(600)).await;
    b_gives_way_to_c(&world, "nodes are followed", secs(400)).await;
    assert_eq!(world.balancers("web")[0].ports.len(), 1);
}

/// A change that the provider works on for long, as when two load balancers serve until old clients
/// are gone: nodes are followed meanwhile.
#[tokio::test(start_paused = true)]
async fn nodes_are_followed_while_a_change_is_pending() {
    let (world, provider, _ccm) = web_on_two_nodes().await;
    provider.answer(|call| {
        (call.verb == "ensure" && call.nodes.contains(&"b".to_owned()))
            .then(|| ScriptedResult::Pending(secs(600)))
    });
    world
        .patch_service("web", json!({"spec": {"ports": [{"port": 443}]}}))
        .await;
    tokio::time::sleep(secs(5)).await;
    b_gives_way_to_c(&world, "nodes are followed", secs(700)).await;
}

/// A comparison that fails has nothing to do with nodes that leave.
#[tokio::test(start_paused = true)]
async fn a_comparison_that_fails_holds_back_no_node() {
    let (world, provider, _ccm) = web_on_two_nodes().await;
    let refuse = |call: &Call| {
        (call.verb == "plan").then(|| ScriptedResult::Fail(CloudError::invalid_input("it says no")))
    };
    provider.answer(refuse);
    world
        .until("a comparison is due", secs(5000), || {
            provider.take_lines().contains(&"plan web".to_owned())
        })
        .await;
    world.delete_node("b").await;
    let took = world
        .until("the node is out", secs(400), || world.nodes_behind("web") == ["a"])
        .await;
    assert!(took <= secs(45), "{took:?}");
}

/// A Service that cannot be served as it is, spoilt while nobody looked or refused by this manager
/// alone: its load balancer gets the nodes of the day all the same, and what is wrong is told once
/// for each process.
#[tokio::test(start_paused = true)]
async fn nodes_of_a_service_that_was_invalid_at_the_start_are_followed() {
    const SCHEME: &str = "mock.cloud-provider.example/scheme";
    let annotate = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
    let (world, provider, ccm) = web_on_two_nodes().await;
    ccm.stop().await;
    world
        .patch_service("web", annotate(SCHEME, json!("nobody")))
        .await;
    world.delete_node("b").await;
    world.have_nodes(["c"]).await;
    provider.take_lines();
    let ccm = world.start_with(provider.clone(), &SERVICE);
    world
        .until("what changed meanwhile", secs(60), || world.nodes_behind("web") == ["a", "c"])
        .await;
    world.have_nodes(["d"]).await;
    world
        .until("what changes now", secs(60), || world.nodes_behind("web") == ["a", "c", "d"])
        .await;
    world.settle().await;
    assert_eq!(provider.take_lines(), ["update web", "update web"]);
    assert_eq!(world.notes("SyncLoadBalancerFailed").len(), 1);

    // Once it is valid, everything is compared.
    world
        .patch_service("web", annotate(SCHEME, Value::Null))
        .await;
    world.settle().await;
    assert_eq!(provider.take_lines(), ["plan web"]);
    // One that does not say which nodes it takes keeps those that it has.
    const SELECTOR: &str = "mock.cloud-provider.example/node-selector";
    world
        .patch_service("web", annotate(SELECTOR, json!("nonsense and more")))
        .await;
    ccm.stop().await;
    let _ccm = world.start_with(provider.clone(), &SERVICE);
    world.have_nodes(["e"]).await;
    world.settle().await;
    assert_eq!(world.nodes_behind("web"), ["a", "c", "d"]);
}

/// A load balancer that is gone is not made for a Service that is refused.
#[tokio::test(start_paused = true)]
async fn nothing_is_made_for_a_service_that_was_invalid_at_the_start() {
    let (world, provider, ccm) = web_on_two_nodes().await;
    ccm.stop().await;
    let wrong =
        json!({"metadata": {"annotations": {"mock.cloud-provider.example/scheme": "nobody"}}});
    world.patch_service("web", wrong).await;
    world
        .cloud
        .remove_load_balancer(&world.balancers("web")[0].name);
    provider.take_lines();
    let _ccm = world.start_with(provider.clone(), &SERVICE);
    tokio::time::sleep(secs(240)).await;
    assert_eq!(provider.take_lines(), ["update web"]);
    // "Gone" may be an answer of a moment.
    tokio::time::sleep(secs(120)).await;
    assert_eq!(provider.take_lines(), ["update web"]);
    assert!(world.balancers("web").is_empty());
}

/// One that disappears meanwhile is made when the Service is as it was, and not an hour later.
#[tokio::test(start_paused = true)]
async fn what_disappears_while_a_service_is_invalid_is_made_when_it_is_mended() {
    let scheme = |value: Value| json!({"metadata": {"annotations": {"mock.cloud-provider.example/scheme": value}}});
    let (world, provider, _ccm) = web_on_two_nodes().await;
    world.patch_service("web", scheme(json!("nobody"))).await;
    world.settle().await;
    world
        .cloud
        .remove_load_balancer(&world.balancers("web")[0].name);
    world.delete_node("b").await;
    world.have_nodes(["c"]).await;
    world.settle().await;
    assert!(world.balancers("web").is_empty());
    provider.take_lines();
    world.patch_service("web", scheme(Value::Null)).await;
    world
        .until("it is made again", secs(60), || !world.balancers("web").is_empty())
        .await;
    world.settle().await;
    assert_eq!(world.nodes_behind("web"), ["a", "c"]);
    assert_eq!(provider.take_lines()[..2], ["plan web", "ensure web"]);
}

/// The first list after a start has nothing before it to be measured by: one that is cut short must
/// not empty a load balancer.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_cut_short_at_the_start_takes_no_node_out() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    world.have_nodes(["a"]).await;
    let short = world.server.store().version();
    world.have_nodes(["b", "c", "d"]).await;
    let ccm = world.start_with(provider.clone(), &SERVICE);
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    ccm.stop().await;
    provider.take_lines();
    let nodes = |verb| Match::resource("nodes").verb(verb).user_agent(AGENT);
    let no_streams = Action::Error { code: http::StatusCode::BAD_REQUEST, retry_after: None };
    world
        .server
        .faults()
        .add_times(nodes("watch"), no_streams, 1);
    let cut = world
        .server
        .faults()
        .add_times(nodes("list"), Action::StaleRead(short), 1);
    let frozen = world.server.faults().freeze_watches(nodes("watch"));
    let before = world.server.log().count(&nodes("list"));
    let _ccm = world.start_with(provider.clone(), &SERVICE);
    tokio::time::sleep(secs(60)).await;
    assert_eq!(world.server.faults().met(cut), 1);
    assert_eq!(world.nodes_behind("web"), ["a", "b", "c", "d"]);
    assert!(provider.take_lines().iter().all(|line| line == "plan web"));
    world.server.faults().thaw(frozen);
    world.delete_node("d").await;
    world
        .until("what is really gone is out", secs(60), || {
            world.nodes_behind("web") == ["a", "b", "c"]
        })
        .await;
    let asked = world.server.log().count(&nodes("list")) - before;
    assert!((2..=14).contains(&asked), "again and again, with pauses: {asked}");
}

/// Distributions set provider IDs of their own, which cannot be changed. Where load balancers use
/// addresses, their nodes serve.
#[tokio::test(start_paused = true)]
async fn a_node_with_another_providers_id_is_a_backend_where_it_can_be_addressed() {
    for (target, behind) in [(NodeTarget::Address, &["a", "k"][..]), (NodeTarget::Instance, &["a"])]
    {
        let world = TestCluster::provisioned();
        let provider = ScriptedLoadBalancers::over(&world);
        provider.address_by(target);
        let _ccm = world.start_with(provider.clone(), &SERVICE);
        world.have_nodes(["a"]).await;
        world
            .kubelets
            .register(initialized("k").provider_id("k3s://k"))
            .await
            .expect("the node joins");
        world.serve("web").await;
        world.until_served(&["web"], secs(60)).await;
        world.settle().await;
        assert_eq!(world.nodes_behind("web"), behind, "{target:?}");

        // A change of an address concerns load balancers that use addresses.
        provider.take_lines();
        let node = world.node("a");
        world.put_node({
            let mut node = node;
            node["status"]["addresses"] = json!([{"type": "InternalIP", "address": "10.99.0.1"}]);
            node
        });
        world.settle().await;
        let updates = usize::from(target == NodeTarget::Address);
        assert_eq!(provider.take_lines().len(), updates, "{target:?}");
    }
}

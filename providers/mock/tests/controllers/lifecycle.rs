//! Shut-down taints and deletions: what is proved before anything is done, and what it costs.

use std::sync::Arc;

use ccm_mock::cloud::FaultError;
use ccm_testkit::{
    apiserver::{Change, Match, resources},
    hooks::{HookDecision, Point},
    kubelet::{NodeSpec, Ready},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    cluster::{AGENT, Ccm, TestCluster, edit_node, initialized, secs, taints},
    provider::Scripted,
};

const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
const ONLY: &str = "--controllers=cloud-node-lifecycle";

/// Ready nodes `n0`, `n1`, …, initialised, each with its instance, and the lifecycle controller
/// alone.
async fn ready_nodes(count: usize, flags: &[&str]) -> (TestCluster, Arc<Scripted>, Ccm) {
    let world = TestCluster::provisioned();
    world
        .kubelets
        .register_all((0..count).map(|i| initialized(&format!("n{i}"))))
        .await
        .unwrap();
    let provider = Scripted::over(&world.cloud);
    let flags: Vec<&str> = [ONLY].into_iter().chain(flags.iter().copied()).collect();
    let ccm = world.start_with(provider.clone(), &flags);
    (world, provider, ccm)
}

fn deletes(world: &TestCluster) -> Vec<String> {
    world
        .node_writes()
        .into_iter()
        .filter(|line| line.starts_with("delete"))
        .collect()
}

fn make_ready(node: &mut Value) {
    for condition in node["status"]["conditions"].as_array_mut().unwrap() {
        if condition["type"] == "Ready" {
            condition["status"] = json!("True");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_instance_is_gone_is_deleted_by_uid_after_two_proofs() {
    let (world, provider, ccm) = ready_nodes(4, &[]).await;
    let uid = world.node("n0")["metadata"]["uid"].clone();
    world.cloud.delete_instance("n0");
    tokio::time::sleep(secs(60)).await;
    assert!(provider.take_asked().is_empty(), "nobody asks about Ready nodes");
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    world
        .until("the node is gone", secs(30), || world.node("n0").is_null())
        .await;
    let asked = provider.take_asked();
    let suspected: Vec<_> = asked
        .iter()
        .filter(|a| a.nodes.contains(&"n0".to_owned()))
        .collect();
    assert_eq!(suspected.len(), 2);
    assert!(suspected[1].at - suspected[0].at >= secs(5), "a period apart");
    assert!(
        suspected[1].max_age.is_zero() && suspected[1].nodes.len() == 4,
        "fresh, with controls: {suspected:?}"
    );
    let log = world.write_log(Match::resource("nodes"));
    assert_eq!(log.len(), 1);
    assert_eq!(log[0].body["preconditions"]["uid"], uid);
    tokio::time::sleep(secs(60)).await;
    assert_eq!(world.events(), [("DeletingNode".to_owned(), 1)]);
    assert_eq!(ccm.metric("ccm_node_deletions_total", &[("outcome", "deleted")]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn doubt_never_deletes_whatever_the_safety() {
    for safety in ["--node-deletion-safety=strict", "--node-deletion-safety=upstream"] {
        for error in [
            FaultError::PermissionDenied,
            FaultError::Transient,
            FaultError::Throttled,
            FaultError::Invalid,
        ] {
            let (world, _, _ccm) = ready_nodes(3, &[safety]).await;
            world.fail_instances(error, None);
            world
                .kubelets
                .set_ready("n0", Ready::Unknown)
                .await
                .unwrap();
            world.kubelets.set_ready("n1", Ready::False).await.unwrap();
            tokio::time::sleep(secs(3600)).await;
            assert_eq!(world.writes(), [""; 0], "{safety} {error:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn when_everything_looks_gone_nothing_is_deleted_and_that_is_told_once() {
    let (world, _, ccm) = ready_nodes(10, &[]).await;
    world.fail_instances(FaultError::NotFound, None);
    for name in ["n0", "n1", "n2", "n3"] {
        world
            .kubelets
            .set_ready(name, Ready::Unknown)
            .await
            .unwrap();
    }
    tokio::time::sleep(secs(3600)).await;
    assert_eq!(world.node_writes(), [""; 0]);
    assert_eq!(world.event_count("NodeDeletionRefused"), 4);
    assert!(ccm.metric("ccm_node_deletions_total", &[("outcome", "refused_most_gone")]) >= 4.0);
    // The credentials are mended: three were alive all the time.
    world.cloud.set_faults(vec![]);
    world.cloud.delete_instance("n0");
    world
        .until("the dead one is gone", secs(60), || world.node("n0").is_null())
        .await;
    tokio::time::sleep(secs(600)).await;
    assert_eq!(deletes(&world), ["delete nodes n0"]);
}

#[tokio::test(start_paused = true)]
async fn a_real_loss_of_half_the_nodes_is_followed_at_a_limited_rate() {
    let (world, _, _ccm) = ready_nodes(400, &[]).await;
    let lost: Vec<String> = (0..200).map(|i| format!("n{i}")).collect();
    for name in &lost {
        world.cloud.delete_instance(name);
        world
            .kubelets
            .set_ready(name, Ready::Unknown)
            .await
            .unwrap();
    }
    world
        .until("all lost nodes are gone", secs(300), || {
            lost.iter().all(|name| world.node(name).is_null())
        })
        .await;
    let log = world.write_log(Match::resource("nodes").verb("delete"));
    assert_eq!(log.len(), 200);
    for (count, seconds) in [(10, 1.0), (50, 5.0)] {
        for few in log.windows(count + 1) {
            let apart = few[count].time.duration_since(few[0].time).as_secs_f64();
            assert!(apart >= seconds, "{count} in {apart} s");
        }
    }
    tokio::time::sleep(secs(600)).await;
    assert_eq!(deletes(&world).len(), 200, "nobody else");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_ready_again_before_the_deletion_stays() {
    let (world, _, ccm) = ready_nodes(4, &[]).await;
    world.cloud.delete_instance("n0");
    let server = world.server.clone();
    // The second call is the confirmation; the watch will be too late.
    world.after_cloud_call(2, move || {
        server
            .faults()
            .freeze_watches(Match::resource("nodes").verb("watch"));
        edit_node(&server, "n0", make_ready);
    });
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    world
        .until("confirmed", secs(60), || world.cloud.calls().describe_instances >= 2)
        .await;
    tokio::time::sleep(secs(2)).await;
    world.server.faults().clear();
    tokio::time::sleep(secs(600)).await;
    assert_eq!(world.writes(), [""; 0]);
    assert_eq!(ccm.metric("ccm_node_deletions_total", &[("outcome", "withdrawn")]), 1.0);
}

/// Even between the last look and the deletion.
#[tokio::test(start_paused = true)]
async fn a_node_that_turns_ready_while_its_deletion_is_sent_stays() {
    let (world, _, _ccm) = ready_nodes(4, &[]).await;
    world.cloud.delete_instance("n0");
    let server = world.server.clone();
    world.hooks.on(move |_, point, operation| {
        if point == Point::Before && operation.action == "delete nodes" {
            edit_node(&server, "n0", make_ready);
        }
        HookDecision::Continue
    });
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    tokio::time::sleep(secs(600)).await;
    assert!(!world.node("n0").is_null());
    assert_eq!(world.server.log().counts()[&("delete".to_owned(), "nodes".to_owned(), 409)], 1);
    assert_eq!((world.writes(), world.events()), (vec![], vec![]));
}

/// Between the last look and the deletion the machine is replaced under the same name.
#[tokio::test(start_paused = true)]
async fn a_namesake_survives_the_deletion_of_the_other() {
    let (world, _, ccm) = ready_nodes(4, &[]).await;
    world.cloud.delete_instance("n0");
    let server = world.server.clone();
    world.hooks.on(move |_, point, operation| {
        if point == Point::Before && operation.action == "delete nodes" {
            let def = resources::find("", "v1", "nodes").unwrap();
            server.store().write(|tx| {
                let old = tx.get(("", "nodes"), "", "n0").unwrap();
                let mut new = old.value();
                tx.remove(def, &old, old.value());
                new["metadata"]["uid"] = json!("another");
                make_ready(&mut new);
                tx.put(def, new);
            });
        }
        HookDecision::Continue
    });
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    tokio::time::sleep(secs(600)).await;
    assert_eq!(world.node("n0")["metadata"]["uid"], "another");
    assert_eq!(world.server.log().counts()[&("delete".to_owned(), "nodes".to_owned(), 409)], 1);
    assert_eq!((world.writes(), world.events()), (vec![], vec![]));
    assert_eq!(ccm.metric("ccm_node_deletions_total", &[("outcome", "withdrawn")]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_namesake_that_is_not_ready_either_needs_a_proof_of_its_own() {
    let (world, provider, _ccm) = ready_nodes(4, &[]).await;
    world.cloud.delete_instance("n0");
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    world
        .until("asked once", secs(20), || world.cloud.calls().describe_instances == 1)
        .await;
    world.edit("n0", |node| node["metadata"]["uid"] = json!("another"));
    world
        .until("the namesake is gone too", secs(60), || world.node("n0").is_null())
        .await;
    let asked = provider.take_asked();
    assert_eq!(
        asked.iter().map(|a| a.nodes.len()).collect::<Vec<_>>(),
        [1, 1, 4],
        "asked anew, and then confirmed"
    );
    assert!(asked[2].at - asked[1].at >= secs(5), "a period later");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_never_initialised_has_five_minutes() {
    let world = TestCluster::provisioned();
    world.cloud.delete_instance("young");
    let _ccm = world.start(&[ONLY]);
    world.kubelets.register(initialized("old")).await.unwrap();
    let start = Instant::now();
    world.join(["young"]).await;
    world
        .kubelets
        .set_ready("young", Ready::False)
        .await
        .unwrap();
    world
        .until("the young one is gone", secs(400), || world.node("young").is_null())
        .await;
    let lived = start.elapsed();
    assert!((secs(299)..secs(320)).contains(&lived), "{lived:?}");
}

/// A cluster that was installed with the credentials of another project, before its network plug-in
/// was there.
#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_that_the_cloud_never_found() {
    let (world, _, ccm) = ready_nodes(2, &[]).await;
    world.fail_instances(FaultError::NotFound, None);
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    world.kubelets.set_ready("n1", Ready::False).await.unwrap();
    tokio::time::sleep(secs(24 * 3600)).await;
    assert_eq!(world.node_writes(), [""; 0]);
    assert_eq!(world.event_count("NodeDeletionRefused"), 2, "once for each");
    assert!(
        ccm.metric("ccm_node_deletions_total", &[("outcome", "refused_without_evidence")]) > 2.0
    );

    // The right credentials: one lives, and that is evidence enough about the other.
    world.cloud.set_faults(vec![]);
    world.cloud.delete_instance("n0");
    world
        .until("the dead one is gone", secs(60), || world.node("n0").is_null())
        .await;
    tokio::time::sleep(secs(600)).await;
    assert_eq!(deletes(&world), ["delete nodes n0"]);
}

#[tokio::test(start_paused = true)]
async fn no_ready_node_is_needed_where_the_cloud_finds_others() {
    let world = TestCluster::provisioned();
    let _ccm = world.start(&[]);
    world.join(["n0", "n1", "n2"]).await;
    world.until_initialized(&["n0", "n1", "n2"], secs(60)).await;
    for name in ["n1", "n2"] {
        world.kubelets.set_ready(name, Ready::False).await.unwrap();
    }
    world.cloud.delete_instance("n0");
    let start = Instant::now();
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    world
        .until("the node is gone", secs(60), || world.node("n0").is_null())
        .await;
    assert!((secs(5)..secs(16)).contains(&start.elapsed()), "{:?}", start.elapsed());
}

/// On-premises control planes and virtual kubelets, which no cloud knows.
#[tokio::test(start_paused = true)]
async fn nodes_that_no_cloud_knows_keep_no_dead_worker_and_are_kept() {
    let world = TestCluster::provisioned();
    for name in ["virtual", "bare"] {
        world.cloud.delete_instance(name);
    }
    let unknown = NodeSpec::new("virtual")
        .initialized()
        .provider_id("mock://r1/virtual");
    let without_id = NodeSpec::new("bare").initialized();
    world
        .kubelets
        .register_all([unknown, without_id, initialized("n0"), initialized("n1")])
        .await
        .unwrap();
    let _ccm = world.start(&[ONLY]);
    world.cloud.delete_instance("n0");
    for name in ["n0", "bare"] {
        world
            .kubelets
            .set_ready(name, Ready::Unknown)
            .await
            .unwrap();
    }
    world
        .until("the dead worker is gone", secs(60), || world.node("n0").is_null())
        .await;
    tokio::time::sleep(secs(3600)).await;
    assert_eq!(world.node_writes(), ["delete nodes n0"]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_during_a_proof_pauses_it() {
    let (world, provider, _ccm) = ready_nodes(4, &[]).await;
    world.cloud.delete_instance("n0");
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    world
        .until("asked once", secs(20), || world.cloud.calls().describe_instances == 1)
        .await;
    world.fail_instances(FaultError::Transient, None);
    tokio::time::sleep(secs(600)).await;
    assert_eq!(world.node_writes(), [""; 0]);
    provider.take_asked();
    world.cloud.set_faults(vec![]);
    world
        .until("the node is gone", secs(60), || world.node("n0").is_null())
        .await;
    assert_eq!(provider.take_asked().len(), 2, "two answers more, a period apart");
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_machine_was_replaced_under_its_name_stays_and_its_stale_id_is_reported() {
    let machine = |uuid: &'static str| {
        move |node: &mut Value| node["status"]["nodeInfo"]["systemUUID"] = json!(uuid)
    };
    let world = TestCluster::provisioned();
    let ccm = world.start(&[]);
    world.join(["n0", "n1"]).await;
    for name in ["n0", "n1"] {
        world.edit(name, machine("old"));
    }
    world.until_initialized(&["n0", "n1"], secs(60)).await;
    // The next address update sees it on its first machine.
    tokio::time::sleep(secs(600)).await;
    world.cloud.delete_instance("n0");
    world.edit("n0", machine("new"));
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    tokio::time::sleep(secs(3600)).await;
    assert!(!world.node("n0").is_null());
    assert_eq!(world.event_count("NodeDeletionRefused"), 1);
    assert!(ccm.metric("ccm_node_deletions_total", &[("outcome", "refused_other_machine")]) > 1.0);
    world.edit("n0", machine("old"));
    world
        .until("the node is gone", secs(60), || world.node("n0").is_null())
        .await;
}

#[tokio::test(start_paused = true)]
async fn upstream_safety_deletes_after_one_answer_and_still_by_uid() {
    let (world, provider, _ccm) = ready_nodes(2, &["--node-deletion-safety=upstream"]).await;
    let uid = world.node("n0")["metadata"]["uid"].clone();
    world.cloud.delete_instance("n0");
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    world
        .until("the node is gone", secs(10), || world.node("n0").is_null())
        .await;
    assert_eq!(provider.take_asked().len(), 1);
    assert_eq!(world.write_log(Match::resource("nodes"))[0].body["preconditions"]["uid"], uid);
}

/// By name where the node has no provider ID.
#[tokio::test(start_paused = true)]
async fn a_stopped_instance_is_tainted_until_its_node_is_ready_and_nothing_is_read_for_it() {
    let world = TestCluster::provisioned();
    world.put_instance("a", json!({"powerState": "stopped"}));
    world
        .kubelets
        .register_all(["a", "b"].map(|name| NodeSpec::new(name).initialized()))
        .await
        .unwrap();
    let _ccm = world.start(&[ONLY]);
    tokio::time::sleep(secs(60)).await;
    assert!(taints(&world.node("a")).is_empty(), "Ready: not even asked about");
    assert_eq!(world.cloud.calls().describe_instances, 0);
    world.kubelets.set_ready("a", Ready::Unknown).await.unwrap();
    world
        .until("tainted", secs(10), || taints(&world.node("a")) == [SHUTDOWN])
        .await;
    let taint = json!({"key": SHUTDOWN, "effect": "NoSchedule"});
    assert!(
        world.node("a")["spec"]["taints"]
            .as_array()
            .unwrap()
            .contains(&taint)
    );
    world.server.log().clear();
    tokio::time::sleep(secs(3600)).await;
    let requests = Match::resource("nodes").user_agent(AGENT).name("a");
    assert_eq!(world.server.log().count(&requests), 0, "no request for a taint that is there");
    world.put_instance("a", json!({}));
    tokio::time::sleep(secs(120)).await;
    assert_eq!(taints(&world.node("a")), [SHUTDOWN], "it runs, but is not Ready");
    world.kubelets.set_ready("a", Ready::True).await.unwrap();
    world
        .until("untainted", secs(10), || taints(&world.node("a")).is_empty())
        .await;
    tokio::time::sleep(secs(60)).await;
    assert_eq!(world.writes(), ["patch nodes a"]);
}

#[tokio::test(start_paused = true)]
async fn other_taints_survive_the_shutdown_taint_even_in_a_race() {
    let (world, _, _ccm) = ready_nodes(2, &[]).await;
    world.put_instance("n0", json!({"powerState": "stopped"}));
    let server = world.server.clone();
    world.hooks.on(move |number, point, _| {
        // Before the taint is added, and again before it is removed, somebody else adds one in
        // front.
        if number <= 3 && number != 2 && point == Point::Before {
            edit_node(&server, "n0", |node| {
                let mut list = node["spec"]["taints"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                list.insert(0, json!({"key": format!("x{number}"), "effect": "NoSchedule"}));
                if number == 1 {
                    // The same key with another effect is somebody else's.
                    list.push(json!({"key": SHUTDOWN, "effect": "NoExecute"}));
                }
                node["spec"]["taints"] = Value::Array(list);
            });
        }
        HookDecision::Continue
    });
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    world
        .until("tainted", secs(30), || world.node_writes().len() == 1)
        .await;
    assert_eq!(taints(&world.node("n0")), ["x1", SHUTDOWN, SHUTDOWN]);
    world.kubelets.set_ready("n0", Ready::True).await.unwrap();
    world
        .until("untainted", secs(30), || world.node_writes().len() == 2)
        .await;
    let node = world.node("n0");
    assert_eq!(taints(&node), ["x3", "x1", SHUTDOWN]);
    let left = node["spec"]["taints"].as_array().unwrap();
    assert!(
        left.iter()
            .all(|taint| taint["key"] != SHUTDOWN || taint["effect"] == "NoExecute"),
        "{left:?}"
    );
}

#[tokio::test(start_paused = true)]
#[ignore = "cargo xtask test --full"]
async fn five_hundred_nodes_that_are_not_ready_are_one_batch_a_hundred_and_less_with_time() {
    let (world, provider, _ccm) = ready_nodes(500, &[]).await;
    let start = Instant::now();
    world.put_instance("n7", json!({"powerState": "stopped", "providerID": "mock://r1/n7"}));
    for i in 0..500 {
        world
            .kubelets
            .set_ready(&format!("n{i}"), Ready::False)
            .await
            .unwrap();
    }
    tokio::time::sleep(secs(600)).await;
    let asked = provider.take_asked();
    let in_first = |seconds| {
        asked
            .iter()
            .filter(|a| a.at - start < secs(seconds))
            .count()
    };
    assert_eq!(in_first(9), 5, "one call per hundred");
    assert_eq!(in_first(60), 15, "after 10 and 30 s again");
    assert!(asked.len() <= 5 * 23, "every half minute in the end: {}", asked.len());
    assert_eq!(world.node_writes(), ["patch nodes n7"]);
    let reads = world
        .server
        .log()
        .count(&Match::resource("nodes").user_agent(AGENT).verb("get"));
    assert_eq!(reads, 0);
}

#[tokio::test(start_paused = true)]
async fn every_event_names_its_object_in_full_and_its_component() {
    let world = TestCluster::provisioned();
    world.fail_instances(FaultError::NotFound, Some("c"));
    let _ccm = world.start(&[]);
    world.join(["a", "b", "c"]).await;
    world.until_initialized(&["a", "b"], secs(60)).await;
    let uids = ["a", "b", "c"].map(|name| world.node(name)["metadata"]["uid"].clone());
    world.cloud.delete_instance("a");
    world.kubelets.set_ready("a", Ready::Unknown).await.unwrap();
    world
        .until("a is gone", secs(60), || world.node("a").is_null())
        .await;
    tokio::time::sleep(secs(30)).await;
    let (events, _) = world.server.store().list(("", "events"), Some("default"));
    let mut reasons = Vec::new();
    for event in events.iter().map(|event| event.value()) {
        let object = &event["involvedObject"];
        assert_eq!(
            (&object["apiVersion"], &object["kind"]),
            (&json!("v1"), &json!("Node")),
            "{event}"
        );
        assert!(uids.contains(&object["uid"]), "{event}");
        let reason = event["reason"].as_str().unwrap().to_owned();
        let lifecycle = reason == "DeletingNode";
        let component = if lifecycle {
            "cloud-node-lifecycle-controller"
        } else {
            "cloud-node-controller"
        };
        assert_eq!(event["source"]["component"], component, "{event}");
        reasons.push(reason);
    }
    reasons.sort();
    assert_eq!(reasons, ["DeletingNode", "InstanceNotFound", "Synced", "Synced"]);
    let notes: Vec<_> = events
        .iter()
        .map(|event| event.value()["message"].clone())
        .collect();
    assert!(
        notes.contains(&json!("Deleting node a because it does not exist in the cloud provider"))
    );
    assert!(
        world
            .history()
            .iter()
            .filter(|(change, _)| *change == Change::Deleted)
            .count()
            == 1
    );
}

//! Nodes that are marked out of service (`--out-of-service-after`): what is proved before, and when
//! the taint goes.

use ccm_core::{explain::Cause, manager::ManagerExit};
use ccm_mock::cloud::FaultError;
use ccm_testkit::{
    apiserver::{Action, Match},
    kubelet::Ready,
};
use serde_json::{Value, json};

use crate::cluster::{Ccm, TestCluster, initialized, secs, taints};

const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const FLAGS: [&str; 2] = ["--controllers=cloud-node-lifecycle", "--out-of-service-after=10m"];
const TEN_MINUTES: u64 = 600;

/// Ready nodes `n0`, `n1`, …, initialised, each with its instance, and a manager that has seen that
/// their instances run.
async fn ready_nodes(count: usize) -> (TestCluster, Ccm) {
    let world = TestCluster::provisioned();
    world
        .kubelets
        .register_all((0..count).map(|i| initialized(&format!("n{i}"))))
        .await
        .unwrap();
    let ccm = world.start(&FLAGS);
    tokio::time::sleep(secs(10)).await;
    (world, ccm)
}

/// Shuts an instance down; its kubelet falls silent.
async fn stop(world: &TestCluster, node: &str) {
    power(world, node, "stopped");
    world
        .kubelets
        .set_ready(node, Ready::Unknown)
        .await
        .unwrap();
}

fn power(world: &TestCluster, node: &str, state: &str) {
    let id = format!("mock://r1/{node}");
    world.put_instance(node, json!({"powerState": state, "providerID": id}));
}

fn is_marked(world: &TestCluster, node: &str) -> bool {
    taints(&world.node(node)).contains(&OUT_OF_SERVICE)
}

fn no_node_is_marked(world: &TestCluster) -> bool {
    world
        .history()
        .iter()
        .all(|(_, node)| !taints(node).contains(&OUT_OF_SERVICE))
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_instance_stays_shut_down_is_marked_until_it_runs() {
    let (world, _ccm) = ready_nodes(4).await;
    stop(&world, "n0").await;
    let took = world
        .until("marked", secs(700), || is_marked(&world, "n0"))
        .await;
    assert!((secs(TEN_MINUTES)..secs(650)).contains(&took), "{took:?}");
    let mark =
        json!({"key": OUT_OF_SERVICE, "value": "cloud-controller-manager", "effect": "NoExecute"});
    let node = world.node("n0");
    let list = node["spec"]["taints"].as_array().unwrap();
    let got = list
        .iter()
        .find(|taint| taint["key"] == OUT_OF_SERVICE)
        .unwrap();
    for key in ["key", "value", "effect"] {
        assert_eq!(got[key], mark[key]);
    }
    tokio::time::sleep(secs(3600)).await;
    assert_eq!(world.node_writes(), ["patch nodes n0", "patch nodes n0"], "one for each taint");
    let notes = world.notes("NodeOutOfService");
    assert_eq!(notes.len(), 1);
    assert!(notes[0].ends_with(Cause::OutOfService.next_step()), "{notes:?}");
    // It runs, and its kubelet is not there yet: pods must be able to come.
    power(&world, "n0", "running");
    world
        .until("unmarked", secs(60), || !is_marked(&world, "n0"))
        .await;
    assert_eq!(taints(&world.node("n0")), [SHUTDOWN], "until it is Ready");
    world.kubelets.set_ready("n0", Ready::True).await.unwrap();
    world
        .until("untainted", secs(10), || taints(&world.node("n0")).is_empty())
        .await;
    tokio::time::sleep(secs(60)).await;
    assert_eq!(
        world.events(),
        [("NodeOutOfService".to_owned(), 1), ("NodeBackInService".to_owned(), 1)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_ready_again_loses_both_taints_in_one_write() {
    let (world, _ccm) = ready_nodes(4).await;
    stop(&world, "n0").await;
    world
        .until("marked", secs(700), || is_marked(&world, "n0"))
        .await;
    world.kubelets.set_ready("n0", Ready::True).await.unwrap();
    world
        .until("untainted", secs(10), || taints(&world.node("n0")).is_empty())
        .await;
    tokio::time::sleep(secs(60)).await;
    assert_eq!(world.node_writes().len(), 3);
    assert_eq!(world.event_count("NodeBackInService"), 1);
}

#[tokio::test(start_paused = true)]
async fn without_the_flag_no_node_is_marked() {
    let (world, ccm) = ready_nodes(4).await;
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    let _ccm = world.start(&FLAGS[..1]);
    stop(&world, "n0").await;
    tokio::time::sleep(secs(24 * 3600)).await;
    assert_eq!(world.node_writes(), ["patch nodes n0"], "the shutdown taint");
}

#[tokio::test(start_paused = true)]
async fn doubt_marks_no_node() {
    for error in [
        FaultError::PermissionDenied,
        FaultError::Transient,
        FaultError::Throttled,
        FaultError::NotFound,
    ] {
        let (world, _ccm) = ready_nodes(4).await;
        world.fail_instances(error, None);
        for node in ["n0", "n1"] {
            world
                .kubelets
                .set_ready(node, Ready::Unknown)
                .await
                .unwrap();
        }
        tokio::time::sleep(secs(3 * 3600)).await;
        assert!(no_node_is_marked(&world), "{error:?}");
    }
    // A node that is cut off, and whose instance runs.
    let (world, _ccm) = ready_nodes(4).await;
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    tokio::time::sleep(secs(3 * 3600)).await;
    assert_eq!(world.node_writes(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_reports_is_believed_rather_than_the_cloud() {
    let (world, ccm) = ready_nodes(4).await;
    power(&world, "n0", "stopped");
    world.kubelets.set_ready("n0", Ready::False).await.unwrap();
    tokio::time::sleep(secs(3 * 3600)).await;
    assert!(no_node_is_marked(&world));
    assert_eq!(world.event_count("OutOfServiceRefused"), 1);
    let explained = ccm.explanations.node("n0").unwrap();
    assert!(
        explained
            .causes
            .iter()
            .any(|cause| cause.cause == Cause::OutOfServiceDoubted),
        "{explained:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn when_most_nodes_are_shut_down_none_is_marked() {
    let (world, _ccm) = ready_nodes(5).await;
    for node in ["n0", "n1", "n2"] {
        stop(&world, node).await;
    }
    tokio::time::sleep(secs(3600)).await;
    assert!(no_node_is_marked(&world));
    assert_eq!(world.event_count("OutOfServiceRefused"), 3, "once for each");
    // Two of them return: the third is not most.
    for node in ["n0", "n1"] {
        power(&world, node, "running");
        world.kubelets.set_ready(node, Ready::True).await.unwrap();
    }
    tokio::time::sleep(secs(600)).await;
    assert!(!is_marked(&world, "n0") && !is_marked(&world, "n1"));
}

#[tokio::test(start_paused = true)]
async fn a_process_marks_only_nodes_that_it_has_seen_ready() {
    let (world, ccm) = ready_nodes(4).await;
    stop(&world, "n0").await;
    tokio::time::sleep(secs(590)).await;
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    let _ccm = world.start(&FLAGS);
    tokio::time::sleep(secs(3 * 3600)).await;
    assert!(no_node_is_marked(&world));
    assert_eq!(world.event_count("OutOfServiceRefused"), 1);
    // It has seen the others.
    stop(&world, "n1").await;
    let took = world
        .until("marked", secs(700), || is_marked(&world, "n1"))
        .await;
    assert!(took >= secs(TEN_MINUTES), "{took:?}");
}

/// The provider ID of `n0` is that of another machine, which is switched off.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_ready_while_the_cloud_called_it_shut_down_is_never_marked() {
    let (world, ccm) = ready_nodes(4).await;
    power(&world, "n0", "stopped");
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    let _ccm = world.start(&FLAGS);
    tokio::time::sleep(secs(600)).await;
    // While it is Ready, no other node is marked either.
    stop(&world, "n1").await;
    tokio::time::sleep(secs(3600)).await;
    assert!(no_node_is_marked(&world));
    // That the other machine runs for a while makes no difference.
    power(&world, "n0", "running");
    tokio::time::sleep(secs(120)).await;
    stop(&world, "n0").await;
    tokio::time::sleep(secs(3600)).await;
    assert!(!is_marked(&world, "n0"));
    assert!(is_marked(&world, "n1"), "nothing contradicts any more");
}

/// A node that nobody has claimed has the name of an instance that is shut down, then deleted.
#[tokio::test(start_paused = true)]
async fn a_node_without_provider_id_is_neither_marked_nor_deleted() {
    let (world, _ccm) = ready_nodes(4).await;
    world.edit("n0", |node| {
        node["spec"]
            .as_object_mut()
            .map(|spec| spec.remove("providerID"));
    });
    stop(&world, "n0").await;
    tokio::time::sleep(secs(3600)).await;
    world.cloud.delete_instance("n0");
    tokio::time::sleep(secs(3600)).await;
    assert_eq!(world.node_writes(), ["patch nodes n0"], "the shutdown taint alone");
}

/// It is asked about again and again, together with the other one.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_marked_does_not_delay_the_deletion_of_another() {
    let (world, ccm) = ready_nodes(2).await;
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    stop(&world, "n0").await;
    let _ccm = world.start(&FLAGS);
    tokio::time::sleep(secs(3600)).await;
    world.cloud.delete_instance("n1");
    world
        .kubelets
        .set_ready("n1", Ready::Unknown)
        .await
        .unwrap();
    world
        .until("deleted", secs(60), || world.node("n1").is_null())
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_next_process_knows_the_taint() {
    let (world, ccm) = ready_nodes(4).await;
    stop(&world, "n0").await;
    world
        .until("marked", secs(700), || is_marked(&world, "n0"))
        .await;
    // Without the flag, what an earlier process has marked is still unmarked.
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    let _ccm = world.start(&FLAGS[..1]);
    power(&world, "n0", "running");
    world
        .until("unmarked", secs(60), || !is_marked(&world, "n0"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_taint_of_an_administrator_stays() {
    let (world, _ccm) = ready_nodes(4).await;
    let theirs = json!({"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"});
    world.edit("n0", |node| match &mut node["spec"]["taints"] {
        Value::Array(list) => list.push(theirs.clone()),
        none => *none = json!([theirs.clone()]),
    });
    stop(&world, "n0").await;
    tokio::time::sleep(secs(3600)).await;
    power(&world, "n0", "running");
    world.kubelets.set_ready("n0", Ready::True).await.unwrap();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(taints(&world.node("n0")), [OUT_OF_SERVICE]);
    assert_eq!(world.event_count("NodeOutOfService"), 0);
}

/// A webhook keeps a Node whose instance is proved to be gone.
#[tokio::test(start_paused = true)]
async fn a_node_whose_deletion_is_rejected_is_marked_nevertheless() {
    let (world, _ccm) = ready_nodes(4).await;
    let deletion = Match::resource("nodes").verb("delete");
    let forbidden = Action::Error { code: http::StatusCode::FORBIDDEN, retry_after: None };
    world.server.faults().add(deletion, forbidden);
    world.cloud.delete_instance("n0");
    world
        .kubelets
        .set_ready("n0", Ready::Unknown)
        .await
        .unwrap();
    let took = world
        .until("marked", secs(700), || is_marked(&world, "n0"))
        .await;
    assert!(took >= secs(TEN_MINUTES), "{took:?}");
    tokio::time::sleep(secs(600)).await;
    assert!(world.notes("NodeOutOfService")[0].contains("not found"));
    // Nothing else is done about the others.
    assert_eq!(world.node_writes(), ["patch nodes n0"]);
}

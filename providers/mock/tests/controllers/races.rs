//! What others do to a node between what was seen and what is written.

use std::sync::Arc;

use ccm_core::{
    k8s::{AddressType, NodeAddress},
    provider::{InstanceMetadata, InstanceStatus, PowerState},
};
use ccm_testkit::{
    apiserver::{Action, Match},
    hooks::{HookDecision, Point},
    kubelet::{NodeSpec, UNINITIALIZED_TAINT},
};
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    cluster::{
        AGENT, TestCluster, addresses, edit_node, internal, is_initialized, label, secs, taints,
    },
    provider::Scripted,
};

const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const ZONE: &str = "topology.kubernetes.io/zone";

fn remove_taint(node: &mut Value) {
    node["spec"].as_object_mut().unwrap().remove("taints");
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_somebody_else_removes_meanwhile_means_no_second_initialisation() {
    let world = TestCluster::provisioned();
    world.join(["a"]).await;
    // The watch shows it too late.
    let _ccm = world.start(&["--controllers=cloud-node"]);
    let server = world.server.clone();
    world.after_cloud_call(1, move || {
        server.faults().freeze_watches(Match::resource("nodes"));
        edit_node(&server, "a", remove_taint);
    });
    world
        .until("the cloud was asked", secs(60), || world.cloud.calls().describe_instances > 0)
        .await;
    tokio::time::sleep(secs(60)).await;
    world.server.faults().clear();
    tokio::time::sleep(secs(600)).await;
    let node = world.node("a");
    assert_eq!(
        (label(&node, ZONE), &node["spec"]["providerID"]),
        (None, &Value::Null),
        "somebody else's node now"
    );
    assert_eq!(world.events(), []);
    assert_eq!(world.node_writes(), ["patch nodes/status a"], "the addresses were on their way");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_resolved_by_reading_the_server_not_the_cache() {
    let world = TestCluster::provisioned();
    world.join(["a"]).await;
    let _ccm = world.start(&["--controllers=cloud-node"]);
    let server = world.server.clone();
    world.after_cloud_call(1, move || {
        // From here on the cache cannot learn anything.
        server
            .faults()
            .freeze_watches(Match::resource("nodes").verb("watch"));
        edit_node(&server, "a", |node| {
            let taint = json!({"key": "x", "effect": "NoSchedule"});
            node["spec"]["taints"]
                .as_array_mut()
                .unwrap()
                .insert(0, taint);
            node["metadata"]["labels"]["fresh"] = json!("1");
        });
    });
    let took = world.until_initialized(&["a"], secs(60)).await;
    assert!(took < secs(1), "{took:?}");
    let node = world.node("a");
    assert_eq!(
        (taints(&node), label(&node, "fresh"), label(&node, ZONE)),
        (vec!["x"], Some("1"), Some("r1a"))
    );
    assert_eq!(
        world
            .server
            .log()
            .count(&Match::resource("nodes").user_agent(AGENT).verb("get")),
        1
    );
    assert_eq!(world.cloud.calls().describe_instances, 1, "the answer of the cloud is still good");
    tokio::time::sleep(secs(10)).await;
    assert_eq!(world.event_count("Synced"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_namesake_that_registers_meanwhile_gets_nothing_that_was_meant_for_the_other() {
    let world = TestCluster::provisioned();
    world.join(["a"]).await;
    let _ccm = world.start(&["--controllers=cloud-node"]);
    let server = world.server.clone();
    world.hooks.on(move |number, point, _| {
        if (number, point) == (1, Point::Before) {
            server
                .faults()
                .freeze_watches(Match::resource("nodes").verb("watch"));
            edit_node(&server, "a", |node| node["metadata"]["uid"] = json!("another"));
        }
        HookDecision::Continue
    });
    tokio::time::sleep(secs(20)).await;
    assert_eq!(world.node_writes(), [""; 0]);
    assert!(addresses(&world.node("a")).is_empty());
    world.server.faults().clear();
    world.until_initialized(&["a"], secs(60)).await;
    assert_eq!(world.node("a")["metadata"]["uid"], "another");
}

#[tokio::test(start_paused = true)]
async fn a_node_is_never_without_taint_and_addresses_however_often_writing_them_fails() {
    for times in [1, 3, 8] {
        let world = TestCluster::provisioned();
        let status = Match::resource("nodes")
            .verb("patch")
            .subresource("status")
            .user_agent(AGENT);
        let down = Action::Error { code: StatusCode::INTERNAL_SERVER_ERROR, retry_after: None };
        let fault = world.server.faults().add_times(status, down, times);
        let _ccm = world.start(&[]);
        world.join(["a", "b"]).await;
        world.until_initialized(&["a", "b"], secs(300)).await;
        tokio::time::sleep(secs(10)).await;
        assert_eq!(world.server.faults().met(fault), times);
        world.assert_never_untainted_without_addresses();
        assert_eq!(world.event_count("Synced"), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn synced_is_told_only_after_everything_is_written() {
    let world = TestCluster::provisioned();
    let patch = Match::resource("nodes")
        .verb("patch")
        .subresource("")
        .user_agent(AGENT);
    let down = Action::Error { code: StatusCode::INTERNAL_SERVER_ERROR, retry_after: None };
    let fault = world.server.faults().add(patch, down);
    let _ccm = world.start(&[]);
    world.join(["a"]).await;
    tokio::time::sleep(secs(120)).await;
    assert_eq!((world.event_count("Synced"), world.event_count("NodeUpdateFailed")), (0, 1));
    world.server.faults().remove(fault);
    world.until_initialized(&["a"], secs(60)).await;
    tokio::time::sleep(secs(10)).await;
    let log = world.write_log(Match::any());
    let number =
        |wanted: &dyn Fn(&Value) -> bool| log.iter().find(|e| wanted(&e.body)).map(|e| e.number);
    let synced = number(&|body| body["reason"] == "Synced");
    let written = log
        .iter()
        .filter(|e| e.request.resource == "nodes")
        .map(|e| e.number)
        .max();
    assert!(synced > written, "{synced:?} {written:?}");
    assert_eq!(world.event_count("Synced"), 1);
}

/// Go's strategic merge loses one of two addresses of a type where the cache has none and the
/// server has some.
#[tokio::test(start_paused = true)]
async fn both_addresses_of_a_type_survive_when_the_cache_lags() {
    let world = TestCluster::provisioned();
    world.put_instance("a", json!({"addresses": [internal("10.0.0.1"), internal("fd00::1")]}));
    world.join(["a"]).await;
    let _ccm = world.start(&["--controllers=cloud-node"]);
    let server = world.server.clone();
    world.after_cloud_call(1, move || {
        server.faults().freeze_watches(Match::resource("nodes").verb("watch"));
        edit_node(&server, "a", |node| {
            node["status"]["addresses"] =
                json!([internal("10.0.0.9"), internal("fd00::9"), {"type": "Hostname", "address": "old"}]);
        });
    });
    world.until_initialized(&["a"], secs(60)).await;
    assert_eq!(addresses(&world.node("a")), ["InternalIP=10.0.0.1", "InternalIP=fd00::1"]);
}

/// Go writes provider IDs into, and appends host names to, what the provider returned.
#[tokio::test(start_paused = true)]
async fn an_answer_that_a_provider_shares_between_nodes_is_not_changed() {
    let world = TestCluster::provisioned();
    let shared = Arc::new(InstanceMetadata {
        addresses: vec![NodeAddress::new(AddressType::InternalIp, "10.0.0.1")],
        ..InstanceMetadata::default()
    });
    let original = (*shared).clone();
    let provider = Scripted::over(&world.cloud);
    let answer = shared.clone();
    provider.answer(move |queries| {
        let found =
            InstanceStatus::Found { power_state: PowerState::Running, meta: (*answer).clone() };
        Some(Ok(queries.iter().map(|_| Ok(found.clone())).collect()))
    });
    for name in ["a", "b"] {
        let spec = NodeSpec::new(name)
            .provider_id(format!("mock://r1/{name}"))
            .provided_ip([10, 0, 0, 1].into());
        world.kubelets.register(spec).await.unwrap();
    }
    let _ccm = world.start_with(provider, &["--node-status-update-frequency=10s"]);
    world.until_initialized(&["a", "b"], secs(60)).await;
    tokio::time::sleep(secs(60)).await;
    for name in ["a", "b"] {
        let node = world.node(name);
        assert_eq!(
            addresses(&node),
            ["InternalIP=10.0.0.1".to_owned(), format!("Hostname={name}")]
        );
        assert_eq!(node["spec"]["providerID"], format!("mock://r1/{name}"));
    }
    assert_eq!(*shared, original);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_while_labels_are_reconciled_is_retried() {
    let world = TestCluster::provisioned();
    let spec = NodeSpec::new("a")
        .initialized()
        .label(BETA_ZONE, "right")
        .label(ZONE, "wrong");
    let patch = Match::resource("nodes").verb("patch").user_agent(AGENT);
    let conflict = Action::Error { code: StatusCode::CONFLICT, retry_after: None };
    let fault = world.server.faults().add_times(patch, conflict, 3);
    let _ccm = world.start(&["--controllers=cloud-node"]);
    world.kubelets.register(spec).await.unwrap();
    let mended = || label(&world.node("a"), ZONE) == Some("right");
    let took = world.until("the label is mended", secs(30), mended).await;
    assert_eq!(world.server.faults().met(fault), 3);
    assert!(took < secs(5), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_label_that_moves_while_its_copy_is_written_is_copied_anew() {
    let world = TestCluster::provisioned();
    let spec = NodeSpec::new("a").initialized().label(BETA_ZONE, "old");
    let server = world.server.clone();
    world.hooks.on(move |number, point, _| {
        if (number, point) == (1, Point::Before) {
            edit_node(&server, "a", |node| node["metadata"]["labels"][BETA_ZONE] = json!("new"));
        }
        HookDecision::Continue
    });
    let _ccm = world.start(&["--controllers=cloud-node"]);
    world.kubelets.register(spec).await.unwrap();
    world
        .until("the label is copied", secs(30), || label(&world.node("a"), ZONE).is_some())
        .await;
    tokio::time::sleep(secs(30)).await;
    let copies: Vec<_> = world
        .history()
        .iter()
        .filter_map(|(_, n)| label(n, ZONE).map(str::to_owned))
        .collect();
    assert!(copies.iter().all(|copy| copy == "new"), "{copies:?}");
    assert!(
        !taints(&world.node("a")).contains(&UNINITIALIZED_TAINT)
            && is_initialized(&world.node("a"))
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_waits_for_writes_about_other_nodes_and_at_most_five_seconds() {
    for (late, least, most) in [(secs(2), 2.0, 3.0), (secs(20), 5.0, 6.0)] {
        let world = TestCluster::provisioned();
        let slow = Match::resource("nodes")
            .verb("patch")
            .subresource("status")
            .name("slow")
            .user_agent(AGENT);
        world
            .server
            .faults()
            .add_times(slow, Action::Delay(late), 1);
        let _ccm = world.start(&[]);
        world.join(["slow", "fast"]).await;
        world.until_initialized(&["fast"], secs(1)).await;
        let told = world
            .until("it is told", secs(30), || world.event_count("Synced") > 0)
            .await;
        assert!((least..most).contains(&told.as_secs_f64()), "{late:?}: {told:?}");
        world
            .until("of the other, too", secs(30), || world.event_count("Synced") == 2)
            .await;
    }
}

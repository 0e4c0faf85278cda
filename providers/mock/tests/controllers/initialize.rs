//! What an initialisation writes, how often, and what it leaves alone.

use std::time::Duration;

use ccm_testkit::{
    apiserver::{Match, resources},
    kubelet::{NodeSpec, UNINITIALIZED_TAINT},
};
use serde_json::{Value, json};

use crate::cluster::{TestCluster, addresses, internal, label, secs, taints};

const MINUTE: Duration = secs(60);
const ZONE_LABELS: [&str; 2] =
    ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
const REGION_LABELS: [&str; 2] =
    ["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"];
const TYPE_LABELS: [&str; 2] =
    ["node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"];

#[tokio::test(start_paused = true)]
async fn an_initialisation_is_one_status_patch_then_one_patch_then_one_event() {
    let world = TestCluster::provisioned();
    let _ccm = world.start(&[]);
    world.join(["a"]).await;
    world.until_initialized(&["a"], MINUTE).await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(world.writes(), ["patch nodes/status a", "patch nodes a", "create events"]);
    assert_eq!(world.events(), [("Synced".to_owned(), 1)]);
    let reads = world
        .server
        .log()
        .count(&Match::resource("nodes").verb("get"));
    assert_eq!(reads, 0, "the cache knows the node");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_over_six_hours_when_nothing_changes() {
    let world = TestCluster::provisioned();
    world.put_instance("dual", json!({"addresses": [internal("10.0.0.1"), internal("fd00::1")]}));
    let _ccm = world.start(&["--node-status-update-frequency=1m"]);
    world.join(["a", "dual"]).await;
    world.until_initialized(&["a", "dual"], MINUTE).await;
    tokio::time::sleep(MINUTE).await;
    world.server.log().clear();
    let asked = world.cloud.calls().describe_instances;
    tokio::time::sleep(6 * 60 * MINUTE).await;
    assert_eq!(world.writes(), [""; 0]);
    assert!(
        world
            .server
            .log()
            .count(&Match::resource("nodes").verb("patch"))
            >= 144,
        "the kubelets go on reporting"
    );
    let asked = world.cloud.calls().describe_instances - asked;
    assert!((358..=362).contains(&asked), "one question for both nodes a minute, not {asked}");
}

#[tokio::test(start_paused = true)]
#[ignore = "cargo xtask test --full"]
async fn a_thousand_nodes_together_cost_tens_of_cloud_calls() {
    let world = TestCluster::new("region: r1\nautoProvision: true\nlatency: {instances: 100ms}\n");
    let names: Vec<String> = (0..1000).map(|i| format!("n{i}")).collect();
    let _ccm = world.start(&["--node-status-update-frequency=24h", "--controllers=cloud-node"]);
    world.join(names.clone()).await;
    world.until_initialized(&names, MINUTE).await;
    let calls = world.cloud.calls();
    assert_eq!(calls.describe_instances_nodes, 1000, "each is asked about once");
    assert!(calls.describe_instances <= 50, "{} calls", calls.describe_instances);
    assert_eq!(world.node_writes().len(), 2000);
}

#[tokio::test(start_paused = true)]
async fn a_node_without_the_taint_stays_as_it_is() {
    let world = TestCluster::provisioned();
    let spec = NodeSpec::new("a")
        .initialized()
        .provided_ip([10, 0, 0, 1].into());
    world.put_instance(
        "a",
        json!({"addresses": [internal("10.0.0.1"), {"type": "Hostname", "address": "a"}]}),
    );
    world.kubelets.register(spec).await.unwrap();
    let before = world.node("a");
    let _ccm = world.start(&[]);
    tokio::time::sleep(secs(250)).await;
    assert!(world.cloud.calls().describe_instances > 0, "its addresses were compared");
    assert_eq!(world.node("a"), before);
    assert_eq!(world.events(), []);
}

#[tokio::test(start_paused = true)]
async fn everything_that_the_cloud_says_is_written_and_the_rest_stays() {
    let world = TestCluster::provisioned();
    world.put_instance(
        "a",
        json!({
            "providerID": "mock://r1/i-1", "zone": "z", "region": "r1", "instanceType": "t",
            "addresses": [internal("10.0.0.1"), internal("10.0.0.2"), {"type": "ExternalIP", "address": "198.51.100.7"},
                {"type": "Hostname", "address": "a.internal"}],
            "additionalLabels": {"rack": "7", "row": "b"},
        }),
    );
    let spec = NodeSpec::new("a").label("mine", "x");
    world.kubelets.register(spec).await.unwrap();
    world.edit("a", |node| {
        let taint = json!({"key": "x", "effect": "NoExecute"});
        node["spec"]["taints"]
            .as_array_mut()
            .unwrap()
            .insert(0, taint);
    });
    let before = world.node("a");
    let _ccm = world.start(&[]);
    world.until_initialized(&["a"], MINUTE).await;
    let node = world.node("a");
    assert_eq!(node["spec"]["providerID"], "mock://r1/i-1");
    for (keys, value) in [(ZONE_LABELS, "z"), (REGION_LABELS, "r1"), (TYPE_LABELS, "t")] {
        assert!(keys.iter().all(|key| label(&node, key) == Some(value)), "{value}: {node}");
    }
    assert_eq!(
        [label(&node, "rack"), label(&node, "row"), label(&node, "mine")],
        [Some("7"), Some("b"), Some("x")]
    );
    assert_eq!(
        addresses(&node),
        [
            "InternalIP=10.0.0.1",
            "InternalIP=10.0.0.2",
            "ExternalIP=198.51.100.7",
            "Hostname=a.internal"
        ]
    );
    assert_eq!(taints(&node), ["x"]);
    assert_eq!(node["status"]["conditions"], before["status"]["conditions"]);
}

/// What Go's whole-object update loses: fields of an API version that it was not built for.
#[tokio::test(start_paused = true)]
async fn fields_that_are_not_known_here_survive() {
    let world = TestCluster::provisioned();
    world.join(["a"]).await;
    world.edit("a", |node| {
        node["metadata"]["ownerReferences"] = json!([{"apiVersion": "x/v1", "kind": "X", "name": "x", "uid": "u"}]);
        node["metadata"]["annotations"]["csi.example.com/nodeid"] = json!("7");
        node["spec"]["configSource"] = json!({"configMap": {"name": "c", "namespace": "n", "kubeletConfigKey": "k"}});
        node["status"]["runtimeHandlers"] = json!([{"name": "kata", "features": {"userNamespaces": true}}]);
        node["status"]["volumesInUse"] = json!(["v1", "v2"]);
        // Old kubelets leave a time stamp, and it has to stay as it was written.
        node["spec"]["taints"]
            .as_array_mut()
            .unwrap()
            .push(json!({"key": "x", "value": "1", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}));
    });
    let before = world.node("a");
    let _ccm = world.start(&[]);
    world.until_initialized(&["a"], MINUTE).await;
    let mut after = world.node("a");
    // Undo what an initialisation is meant to change; nothing else may differ.
    after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    after["metadata"]["labels"] = before["metadata"]["labels"].clone();
    after["spec"]["taints"]
        .as_array_mut()
        .unwrap()
        .insert(0, before["spec"]["taints"][0].clone());
    after["spec"].as_object_mut().unwrap().remove("providerID");
    after["status"].as_object_mut().unwrap().remove("addresses");
    assert_eq!(after, before);
}

#[tokio::test(start_paused = true)]
async fn the_annotation_chooses_and_orders_the_addresses() {
    let (v4, v6) = ("192.0.2.2", "2001:db8::2");
    for provided in [vec![v4], vec![v6], vec![v6, v4], vec![v4, v6]] {
        let world = TestCluster::provisioned();
        let mut all = ["192.0.2.1", v4, "192.0.2.3", "2001:db8::1", v6]
            .map(internal)
            .to_vec();
        all.push(json!({"type": "ExternalIP", "address": "198.51.100.7"}));
        world.put_instance("a", json!({"addresses": all}));
        let mut spec = NodeSpec::new("a");
        spec.provided_ips = provided.iter().map(|ip| ip.parse().unwrap()).collect();
        world.kubelets.register(spec).await.unwrap();
        let _ccm = world.start(&["--node-status-update-frequency=1m"]);
        world.until_initialized(&["a"], MINUTE).await;
        let rest = ["ExternalIP=198.51.100.7", "Hostname=a"].map(str::to_owned);
        let wanted: Vec<String> = provided
            .iter()
            .map(|ip| format!("InternalIP={ip}"))
            .chain(rest)
            .collect();
        assert_eq!(addresses(&world.node("a")), wanted);
        tokio::time::sleep(5 * MINUTE).await;
        assert_eq!(addresses(&world.node("a")), wanted, "the periodic update agrees");
        assert_eq!(world.node_writes().len(), 2, "{provided:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_cloud_leaves_the_node_unchanged_and_is_told_once() {
    use ccm_mock::cloud::FaultError;
    for (error, reason) in [
        (FaultError::NotFound, "InstanceNotFound"),
        (FaultError::PermissionDenied, "CloudAccessDenied"),
        (FaultError::Invalid, "InvalidInstanceReference"),
        (FaultError::Transient, "CloudError"),
        (FaultError::RetryAfter, "CloudError"),
        (FaultError::Throttled, "CloudThrottled"),
    ] {
        let world = TestCluster::provisioned();
        world.fail_instances(error, None);
        world.join(["a"]).await;
        let before = world.node("a");
        let _ccm = world.start(&["--controllers=cloud-node"]);
        tokio::time::sleep(4 * MINUTE).await;
        assert_eq!(world.node("a"), before, "{error:?}");
        assert_eq!(world.events(), [(reason.to_owned(), 1)], "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_being_deleted_is_not_initialised() {
    let world = TestCluster::provisioned();
    world.join(["a", "b"]).await;
    world.edit("a", |node| {
        node["metadata"]["finalizers"] = json!(["example.com/wait"]);
        node["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    });
    let _ccm = world.start(&[]);
    world.until_initialized(&["b"], MINUTE).await;
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(taints(&world.node("a")), [UNINITIALIZED_TAINT]);
    assert_eq!(
        world
            .server
            .log()
            .count(&Match::any().user_agent(crate::cluster::AGENT).name("a")),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_while_the_cloud_is_asked_is_forgotten() {
    let world = TestCluster::new("autoProvision: true\nlatency: {instances: 5s}\n");
    let ccm = world.start(&[]);
    world.join(["a"]).await;
    tokio::time::sleep(secs(2)).await;
    let def = resources::find("", "v1", "nodes").unwrap();
    world.server.store().write(|tx| {
        let object = tx.get(("", "nodes"), "", "a").unwrap();
        let last: Value = object.value();
        tx.remove(def, &object, last);
    });
    tokio::time::sleep(10 * MINUTE).await;
    assert!(ccm.is_running());
    assert_eq!(world.events(), [], "no complaint, and nothing synced");
}

//! Nodes that are not initialised, not Ready, tainted or about to be deleted.

use ccm_core::provider::{InstanceMetadata, InstanceStatus, PowerState};
use ccm_mock::cloud::FaultError;
use ccm_testkit::{
    apiserver::{Action, Match},
    kubelet::{NodeSpec, Ready},
};
use http::StatusCode;
use serde_json::json;

use super::{Arranged, Object::Node, Situation, situations};
use crate::{
    cluster::{AGENT, TestCluster, initialized, internal, secs},
    provider::Scripted,
};

const LIFECYCLE: [&str; 1] = ["--controllers=cloud-node-lifecycle"];
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

pub(super) fn situations() -> Vec<Situation> {
    let mut all = initialisation();
    all.extend(after_initialisation());
    all
}

fn initialisation() -> Vec<Situation> {
    use FaultError::{Conflict, Invalid, PermissionDenied, QuotaExceeded, Throttled, Transient};
    situations! {
        "a new node has no instance" => Node("a"), Some("InstanceNotFound"),
            [InstanceNotFound], new_node(None);
        "the cloud denies access" => Node("a"), Some("CloudAccessDenied"),
            [CloudAccessDenied], new_node(Some(PermissionDenied));
        "the cloud throttles" => Node("a"), Some("CloudThrottled"),
            [CloudThrottled], new_node(Some(Throttled));
        "the cloud is down" => Node("a"), Some("CloudError"),
            [CloudUnavailable], new_node(Some(Transient));
        "a quota is used up" => Node("a"), Some("CloudError"),
            [QuotaExceeded], new_node(Some(QuotaExceeded));
        "the instance is busy" => Node("a"), Some("CloudError"),
            [CloudConflict], new_node(Some(Conflict));
        "the cloud rejects the provider ID" => Node("a"), Some("InvalidInstanceReference"),
            [InvalidProviderId], new_node(Some(Invalid));
        "nobody has a provider ID" => Node("a"), Some("MissingProviderID"),
            [MissingProviderId], without_provider_id();
        "--node-ip is not in the cloud" => Node("a"), Some("InvalidNodeIP"),
            [NodeIpNotInCloud], with_node_ip("10.9.9.9");
        "--node-ip is malformed" => Node("a"), Some("InvalidNodeIP"),
            [InvalidProvidedNodeIp], with_node_ip("ten.zero");
        "a write is forbidden" => Node("a"), Some("NodeUpdateFailed"),
            [ApiForbidden], refused(StatusCode::FORBIDDEN);
        "a write is rejected" => Node("a"), Some("NodeUpdateFailed"),
            [ApiRejected], refused(StatusCode::UNPROCESSABLE_ENTITY);
        "the API server fails" => Node("a"), Some("NodeUpdateFailed"),
            [ApiUnavailable], refused(StatusCode::INTERNAL_SERVER_ERROR);
        "the query panics" => Node("a"), Some("CloudError"),
            [SyncPanicked], panicking();
        "the first query runs" => Node("a"), None,
            [NodeNotSyncedYet], slow_cloud();
        "the controller is off" => Node("a"), None,
            [CloudNodeControllerNotRunning], new_node_without_controller();
        "the node is of another cloud" => Node("a"), None,
            [NodeOfAnotherProvider], of_another_provider();
    }
}

fn after_initialisation() -> Vec<Situation> {
    let refused = Some("NodeDeletionRefused");
    situations! {
        "the kubelet does not report" => Node("a"), None,
            [KubeletNotReady], not_ready(json!({}));
        "the instance is shut down" => Node("a"), None,
            [InstanceStopped], not_ready(json!({"powerState": "stopped"}));
        "the absence is being confirmed" => Node("a"), None,
            [AbsenceNotConfirmed], absent();
        "nothing supports the cloud's answer" => Node("a"), refused,
            [DeletionWithoutEvidence], without_evidence();
        "the cloud contradicts itself" => Node("a"), refused,
            [DeletionContradicted], lost(&["a", "b"], &["a"]);
        "most instances are gone" => Node("a"), refused,
            [MostInstancesGone], lost(&FOUR, &FOUR);
        "another machine has the name" => Node("a"), refused,
            [OtherMachineRegistered], replaced();
        "nobody ever initialised the node" => Node("a"), None,
            [NeverInitialised], never_initialised();
        "the shutdown taint is left over" => Node("a"), None,
            [ShutdownTaintNotNeeded],
            left_over_taint(json!({"key": SHUTDOWN, "effect": "NoSchedule"}));
        "the node is marked out of service" => Node("a"), Some("NodeOutOfService"),
            [OutOfService], shut_down_for_long(Ready::Unknown);
        "the cloud says that a machine is off whose kubelet reports" => Node("a"),
            Some("OutOfServiceRefused"), [OutOfServiceDoubted], shut_down_for_long(Ready::False);
        "the out-of-service taint is left over" => Node("a"), None,
            [OutOfServiceTaintNotNeeded],
            left_over_taint(json!({"key": OUT_OF_SERVICE, "value": "cloud-controller-manager", "effect": "NoExecute"}));
        "the Node is being deleted" => Node("a"), None,
            [NodeBeingDeleted], deleting();
        "others have tainted the node" => Node("a"), None,
            [TaintedByOthers], tainted();
    }
}

/// A new node whose queries fail, or find nothing.
async fn new_node(error: Option<FaultError>) -> Arranged {
    let cluster = TestCluster::new("region: r1\nzones: [r1a]\n");
    if let Some(error) = error {
        cluster.fail_instances(error, None);
    }
    let ccm = cluster.start(&[]);
    cluster.join(["a"]).await;
    tokio::time::sleep(secs(600)).await;
    Arranged { cluster, ccm }
}

async fn scripted(status: impl Fn() -> InstanceStatus + Send + Sync + 'static) -> Arranged {
    let cluster = TestCluster::provisioned();
    let provider = Scripted::over(&cluster.cloud);
    provider.answer(move |queries| Some(Ok(queries.iter().map(|_| Ok(status())).collect())));
    let ccm = cluster.start_with(provider, &["--controllers=cloud-node"]);
    cluster.join(["a"]).await;
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

async fn without_provider_id() -> Arranged {
    scripted(|| InstanceStatus::Found {
        power_state: PowerState::Running,
        meta: InstanceMetadata::default(),
    })
    .await
}

async fn panicking() -> Arranged {
    scripted(|| panic!("a bug of the provider")).await
}

async fn with_node_ip(address: &'static str) -> Arranged {
    let cluster = TestCluster::provisioned();
    cluster.put_instance("a", json!({"addresses": [internal("10.0.0.1")]}));
    let ccm = cluster.start(&[]);
    let spec = NodeSpec::new("a").provided_ip([10, 9, 9, 9].into());
    cluster.kubelets.register(spec).await.unwrap();
    cluster.edit("a", |node| {
        node["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"] = address.into();
    });
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

/// A new node whose writes the API server answers with an error.
async fn refused(code: StatusCode) -> Arranged {
    let cluster = TestCluster::provisioned();
    let patches = Match::resource("nodes").verb("patch").user_agent(AGENT);
    cluster
        .server
        .faults()
        .add(patches, Action::Error { code, retry_after: None });
    let ccm = cluster.start(&[]);
    cluster.join(["a"]).await;
    tokio::time::sleep(secs(300)).await;
    Arranged { cluster, ccm }
}

async fn slow_cloud() -> Arranged {
    let config = "region: r1\nautoProvision: true\nlatency: {instances: 60s}\n";
    let cluster = TestCluster::new(config);
    let ccm = cluster.start(&[]);
    cluster.join(["a"]).await;
    tokio::time::sleep(secs(10)).await;
    Arranged { cluster, ccm }
}

async fn new_node_without_controller() -> Arranged {
    let cluster = TestCluster::provisioned();
    let ccm = cluster.start(&LIFECYCLE);
    cluster.join(["a"]).await;
    tokio::time::sleep(secs(30)).await;
    Arranged { cluster, ccm }
}

/// A node that is registered like this, with the lifecycle controller alone.
async fn registered(spec: NodeSpec) -> Arranged {
    let cluster = TestCluster::provisioned();
    let ccm = cluster.start(&LIFECYCLE);
    cluster.kubelets.register(spec).await.unwrap();
    tokio::time::sleep(secs(30)).await;
    Arranged { cluster, ccm }
}

async fn of_another_provider() -> Arranged {
    registered(NodeSpec::new("a").provider_id("other://1")).await
}

/// An initialised node that is not Ready, with this instance.
async fn not_ready(instance: serde_json::Value) -> Arranged {
    let cluster = TestCluster::provisioned();
    cluster.put_instance("a", instance);
    cluster.kubelets.register(initialized("a")).await.unwrap();
    let ccm = cluster.start(&[]);
    stop_kubelet(&cluster, "a").await;
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

async fn stop_kubelet(cluster: &TestCluster, node: &str) {
    cluster
        .kubelets
        .set_ready(node, Ready::Unknown)
        .await
        .unwrap();
}

const FOUR: [&str; 4] = ["a", "b", "c", "d"];

/// Four initialised nodes, which the cloud has found.
async fn four(flags: &[&str]) -> Arranged {
    let cluster = TestCluster::provisioned();
    let specs = FOUR.map(initialized);
    cluster.kubelets.register_all(specs).await.unwrap();
    let ccm = cluster.start(flags);
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

async fn absent() -> Arranged {
    let arranged = four(&["--node-monitor-period=60s"]).await;
    arranged.cluster.cloud.delete_instance("a");
    stop_kubelet(&arranged.cluster, "a").await;
    tokio::time::sleep(secs(75)).await;
    arranged
}

async fn without_evidence() -> Arranged {
    let cluster = TestCluster::new("region: r1\nzones: [r1a]\n");
    cluster.kubelets.register(initialized("a")).await.unwrap();
    let ccm = cluster.start(&LIFECYCLE);
    stop_kubelet(&cluster, "a").await;
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

/// The cloud finds these of the four no more, and those are not Ready.
async fn lost(gone: &'static [&'static str], not_ready: &'static [&'static str]) -> Arranged {
    let arranged = four(&[]).await;
    for node in gone {
        arranged.cluster.cloud.delete_instance(node);
    }
    for node in not_ready {
        stop_kubelet(&arranged.cluster, node).await;
    }
    tokio::time::sleep(secs(120)).await;
    arranged
}

async fn replaced() -> Arranged {
    let arranged = four(&[]).await;
    let machine = |uuid: &'static str| {
        arranged
            .cluster
            .edit("a", move |node| node["status"]["nodeInfo"]["systemUUID"] = json!(uuid));
    };
    machine("old");
    // The next comparison of addresses sees the node on its first machine.
    tokio::time::sleep(secs(600)).await;
    arranged.cluster.cloud.delete_instance("a");
    machine("new");
    stop_kubelet(&arranged.cluster, "a").await;
    tokio::time::sleep(secs(600)).await;
    arranged
}

async fn never_initialised() -> Arranged {
    let cluster = TestCluster::new("region: r1\nzones: [r1a]\n");
    let spec = NodeSpec::new("a").initialized();
    cluster.kubelets.register(spec).await.unwrap();
    let ccm = cluster.start(&LIFECYCLE);
    stop_kubelet(&cluster, "a").await;
    tokio::time::sleep(secs(60)).await;
    Arranged { cluster, ccm }
}

async fn shut_down_for_long(ready: Ready) -> Arranged {
    let cluster = TestCluster::provisioned();
    cluster.kubelets.register(initialized("a")).await.unwrap();
    let ccm = cluster.start(&["--out-of-service-after=5m"]);
    tokio::time::sleep(secs(10)).await;
    let id = "mock://r1/a";
    cluster.put_instance("a", json!({"powerState": "stopped", "providerID": id}));
    cluster.kubelets.set_ready("a", ready).await.unwrap();
    tokio::time::sleep(secs(600)).await;
    Arranged { cluster, ccm }
}

/// The node became Ready a moment ago, and its next pass is not due.
async fn left_over_taint(taint: serde_json::Value) -> Arranged {
    let cluster = TestCluster::provisioned();
    let ccm = cluster.start(&["--controllers=cloud-node-lifecycle", "--node-monitor-period=300s"]);
    cluster.kubelets.register(initialized("a")).await.unwrap();
    tokio::time::sleep(secs(400)).await;
    cluster.edit("a", |node| {
        node["spec"]["taints"] = json!([taint]);
    });
    tokio::time::sleep(secs(1)).await;
    Arranged { cluster, ccm }
}

async fn deleting() -> Arranged {
    let arranged = registered(initialized("a")).await;
    arranged.cluster.edit("a", |node| {
        node["metadata"]["finalizers"] = json!(["example.com/keep"]);
        node["metadata"]["deletionTimestamp"] = json!("2026-03-01T12:00:00Z");
    });
    tokio::time::sleep(secs(5)).await;
    arranged
}

async fn tainted() -> Arranged {
    let arranged = registered(initialized("a")).await;
    arranged.cluster.edit("a", |node| {
        node["spec"]["taints"] = json!([{"key": "team/gpu", "effect": "NoSchedule"}]);
    });
    tokio::time::sleep(secs(5)).await;
    arranged
}

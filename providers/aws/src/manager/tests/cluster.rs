//! The whole manager: its controllers against an API server and the in-memory AWS, in virtual time.

use std::time::Duration;

use ccm_core::{
    manager::{ClientFactory, Manager, ManagerError, ManagerExit},
    runtime::events::WallClock,
};
use ccm_testkit::{
    apiserver::{ApiServer, Options},
    kubelet::{KubeletOptions, Kubelets, NodeSpec, Ready, UNINITIALIZED_TAINT},
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::{
    InstanceId,
    ec2::{DescribeInstances, Instance},
};

pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// A cluster on AWS.
pub(super) struct Cluster {
    pub(super) world: FakeCluster,
    server: ApiServer,
    pub(super) kubelets: Kubelets,
}

/// A running manager. Dropping it stops it at once.
pub(super) struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<ManagerExit, ManagerError>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

impl Cluster {
    pub(super) fn new(nodes: usize) -> Self {
        let server = ApiServer::new(Options::default());
        let kubelets = Kubelets::new(server.client(), KubeletOptions::default());
        Self { world: FakeCluster::small(nodes), server, kubelets }
    }

    /// A cluster whose kubelets say nothing after they registered, so that a long time is short
    /// work.
    pub(super) fn quiet(nodes: usize) -> Self {
        let options = KubeletOptions { report_period: 1000 * MINUTE, ..KubeletOptions::default() };
        let cluster = Self::new(nodes);
        Self {
            kubelets: Kubelets::new(cluster.server.client(), options),
            ..cluster
        }
    }

    /// Starts the manager as the binary does, with these flags.
    pub(super) async fn start(&self, flags: &[&str]) -> Running {
        let always = ["--leader-elect=false", "--kube-api-qps=10000", "--kube-api-burst=10000"];
        let config = config(&[&always, flags].concat());
        let provider = build(config.clone(), async |_| Ok(on(&self.world)))
            .await
            .unwrap();
        let server = self.server.clone();
        let clients: ClientFactory =
            Arc::new(move |name| server.client_builder().user_agent(name).build());
        let clock = self.server.clock().clone();
        let manager =
            Manager::with_clients(product(), config, Arc::new(provider), clients, "api.test")
                .with_clock(WallClock::new(move || clock.now()));
        let stop = CancellationToken::new();
        let task = tokio::spawn(manager.run(stop.clone()));
        Running { stop, task }
    }

    async fn instances(&self) -> Vec<Instance> {
        let mut found = Vec::new();
        for ids in self.world.nodes.chunks(1000) {
            let request = DescribeInstances { ids: ids.to_vec(), ..DescribeInstances::default() };
            found.extend(self.world.aws.ask(request).await.unwrap().items);
        }
        self.world.aws.reset_calls();
        found
    }

    /// Has the kubelet of each instance register its node, and returns their names.
    pub(super) async fn join(&self, shape: impl Fn(usize, NodeSpec) -> NodeSpec) -> Vec<String> {
        let names: Vec<_> = self
            .instances()
            .await
            .iter()
            .map(|there| there.private_dns_name.to_string())
            .collect();
        let specs = names
            .iter()
            .enumerate()
            .map(|(i, name)| shape(i, NodeSpec::new(name)));
        self.kubelets.register_all(specs).await.unwrap();
        names
    }

    /// Launches an instance more, whose kubelet registers its node.
    pub(super) async fn grow(&mut self) {
        let id = self.world.add_node();
        let launched = self
            .instances()
            .await
            .into_iter()
            .find(|there| there.id == id)
            .unwrap();
        self.kubelets
            .register(NodeSpec::new(&*launched.private_dns_name))
            .await
            .unwrap();
    }

    /// Terminates an instance, whose kubelet falls silent.
    pub(super) async fn end(&self, id: &InstanceId) {
        let nodes = self
            .nodes()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items;
        let is_its = |node: &Node| {
            node.spec
                .as_ref()?
                .provider_id
                .as_ref()
                .map(|provider| provider.ends_with(&**id))
        };
        let node = nodes
            .into_iter()
            .find(|node| is_its(node) == Some(true))
            .unwrap();
        self.kubelets
            .set_ready(&node.metadata.name.unwrap(), Ready::Unknown)
            .await
            .unwrap();
        self.world.aws.terminate(id);
    }

    pub(super) fn nodes(&self) -> Api<Node> {
        Api::all(self.server.client())
    }

    pub(super) fn services(&self) -> Api<Service> {
        Api::namespaced(self.server.client(), "default")
    }

    /// Creates a Service with one port.
    pub(super) async fn serve(&self, name: &str, annotations: &serde_json::Value) {
        let service = serde_json::json!({
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"app": name}},
        });
        self.services()
            .create(&PostParams::default(), &serde_json::from_value(service).unwrap())
            .await
            .unwrap();
    }

    /// Returns the host name of a Service's load balancer.
    async fn host_name(&self, name: &str) -> Option<String> {
        let ingress = self
            .services()
            .get(name)
            .await
            .unwrap()
            .status?
            .load_balancer?
            .ingress?;
        ingress.first()?.hostname.clone()
    }

    /// Waits for a state of the nodes.
    pub(super) async fn until(&self, what: &str, mut is_so: impl FnMut(&[Node]) -> bool) {
        let api = self.nodes();
        let wait = async {
            while !is_so(&api.list(&ListParams::default()).await.unwrap().items) {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        };
        assert!(
            tokio::time::timeout(10 * MINUTE, wait).await.is_ok(),
            "not within ten minutes: {what}"
        );
    }

    pub(super) async fn until_initialized(&self) {
        self.until("nodes are initialised", |nodes| nodes.iter().all(is_initialized))
            .await;
    }
}

fn is_initialized(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    !taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == UNINITIALIZED_TAINT))
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

#[tokio::test(start_paused = true)]
async fn a_node_gets_what_its_instance_is() {
    let cluster = Cluster::new(1);
    let _running = cluster.start(&["--controllers=cloud-node"]).await;
    let name = cluster.join(|_, spec| spec).await.remove(0);
    cluster.until_initialized().await;
    let node = cluster.nodes().get(&name).await.unwrap();
    let spec = node.spec.as_ref().unwrap();
    assert_eq!(spec.provider_id, Some(format!("aws:///us-west-2a/{}", cluster.world.nodes[0])));
    let labels = [
        ("topology.kubernetes.io/region", "us-west-2"),
        ("topology.kubernetes.io/zone", "us-west-2a"),
        ("topology.k8s.aws/zone-id", "usw2-az2"),
        ("node.kubernetes.io/instance-type", "m6g.large"),
    ];
    for (key, value) in labels {
        assert_eq!(label(&node, key), Some(value), "{key}");
    }
    let addresses = node.status.unwrap().addresses.unwrap();
    let types: Vec<_> = addresses
        .iter()
        .map(|address| address.type_.as_str())
        .collect();
    assert_eq!(types, ["InternalIP", "InternalDNS", "Hostname"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_goes_when_its_instance_is_terminated_and_stays_when_aws_is_in_doubt() {
    let cluster = Cluster::new(2);
    let _running = cluster
        .start(&["--controllers=cloud-node,cloud-node-lifecycle"])
        .await;
    let names = cluster.join(|_, spec| spec).await;
    cluster.until_initialized().await;
    cluster
        .kubelets
        .set_ready(&names[0], Ready::Unknown)
        .await
        .unwrap();
    cluster
        .world
        .aws
        .fail_always(Action::DescribeInstances, "InternalError");
    cluster.world.aws.terminate(&cluster.world.nodes[0]);
    tokio::time::sleep(5 * MINUTE).await;
    assert!(cluster.nodes().get_opt(&names[0]).await.unwrap().is_some(), "doubt deletes nothing");
    cluster.world.aws.clear_faults();
    cluster
        .until("the node is gone", |nodes| nodes.len() == 1)
        .await;
    assert!(cluster.nodes().get_opt(&names[1]).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn pod_networks_get_routes() {
    let cluster = Cluster::new(2);
    let flags = [
        "--controllers=cloud-node,route",
        "--configure-cloud-routes=true",
        "--cluster-cidr=10.244.0.0/16",
    ];
    let _running = cluster.start(&flags).await;
    cluster
        .join(|i, spec| spec.pod_cidr(format!("10.244.{i}.0/24")))
        .await;
    cluster.until_initialized().await;
    let aws = &cluster.world.aws;
    cluster
        .until("both routes are there", |_| aws.calls(Action::CreateRoute) == 2)
        .await;
    tokio::time::sleep(5 * MINUTE).await;
    assert_eq!(aws.calls(Action::CreateRoute), 2, "once each");
}

#[tokio::test(start_paused = true)]
async fn tagging_controller_tags_instances_when_it_is_named() {
    let cluster = Cluster::new(2);
    let flags = ["--controllers=cloud-node,tagging", "--tags=key1=value1", "--resources=instance"];
    let _running = cluster.start(&flags).await;
    cluster.join(|_, spec| spec).await;
    let expected = Some("9767c4972ba72e87ab553bad2afde741");
    let labelled = |nodes: &[Node]| {
        nodes
            .iter()
            .all(|node| label(node, tagging::LABEL) == expected)
    };
    cluster.until("nodes carry the checksum", labelled).await;
    for instance in cluster.instances().await {
        assert_eq!(
            instance.tags.get("key1").map(|value| &**value),
            Some("value1"),
            "{}",
            instance.id
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_of_another_cloud_is_left_alone() {
    let cluster = Cluster::new(1);
    let _running = cluster
        .start(&["--controllers=cloud-node,cloud-node-lifecycle"])
        .await;
    cluster
        .kubelets
        .register_all([NodeSpec::new("n").provider_id("other:///1")])
        .await
        .unwrap();
    tokio::time::sleep(5 * MINUTE).await;
    assert!(!is_initialized(&cluster.nodes().get("n").await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_service_gets_a_load_balancer_and_leaves_nothing_behind() {
    let cluster = Cluster::new(3);
    let _running = cluster.start(&["--controllers=cloud-node,service"]).await;
    cluster.join(|_, spec| spec).await;
    cluster.until_initialized().await;
    let aws = &cluster.world.aws;
    let before = aws.snapshot();
    cluster
        .serve(
            "web",
            &serde_json::json!({"service.beta.kubernetes.io/aws-load-balancer-type": "nlb"}),
        )
        .await;
    cluster.serve("plain", &serde_json::json!({})).await;
    tokio::time::sleep(5 * MINUTE).await;
    let host = cluster.host_name("web").await.unwrap();
    assert!(host.ends_with(".elb.us-west-2.amazonaws.com"), "{host}");
    assert_eq!(aws.calls(Action::CreateLoadBalancer), 1);
    // A Service that says no type has what upstream makes.
    let host = cluster.host_name("plain").await.unwrap();
    assert!(host.ends_with(".us-west-2.elb.amazonaws.com"), "{host}");
    assert_eq!(aws.classics()[0].instances, cluster.world.nodes);
    for name in ["web", "plain"] {
        cluster
            .services()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }
    tokio::time::sleep(10 * MINUTE).await;
    for name in ["web", "plain"] {
        let left = cluster.services().get_opt(name).await.unwrap();
        assert!(left.is_none(), "the finalizer of {name} is gone");
    }
    assert_eq!(aws.snapshot(), before, "nothing is left");
}

//! Shadow mode: which differences are shown, which are not, and that nothing is written.

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    manager::ManagerExit,
    provider::{
        CloudError, CloudProvider, ErrorKind, InstanceQuery, InstanceStatus, Instances, Op,
        ProviderContext,
    },
    runtime::shadow::Verdict,
};
use ccm_mock::cloud::{FaultError, LoadBalancerEdit, Operation, PowerState, RouteBody};
use ccm_testkit::kubelet::{NodeSpec, Ready};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    cluster::{AGENT, Ccm, TestCluster, initialized, secs},
    routes::{give, join, until_ready},
};

pub(crate) const CONTROLLERS: &str = "--controllers=cloud-node-controller,cloud-node-lifecycle-controller,service-lb-controller,node-route-controller";
pub(crate) const CLUSTER: &str = "--cluster-cidr=10.244.0.0/16";
const NONE: &str = "no differences: 3 nodes, 3 routes, 1 service compared";

/// Three nodes with routes and a Service, as a manager leaves them.
pub(crate) async fn converged() -> TestCluster {
    let world = TestCluster::provisioned();
    for n in 1..=3 {
        join(&world, NodeSpec::new(format!("n{n}")), &[&format!("10.244.{n}.0/24")]).await;
    }
    world.serve("web").await;
    let ccm = world.start(&[CONTROLLERS, CLUSTER]);
    world.until_served(&["web"], secs(60)).await;
    until_ready(&world, &["n1", "n2", "n3"], secs(60)).await;
    world.settle().await;
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    world
}

/// What a shadow says, once.
async fn compare(world: &TestCluster, flags: &[&str]) -> (Verdict, Vec<String>) {
    compare_with(world, Arc::new(world.provider()), flags).await
}

async fn compare_with(
    world: &TestCluster,
    provider: Arc<dyn CloudProvider>,
    flags: &[&str],
) -> (Verdict, Vec<String>) {
    let before = Marks::of(world);
    let ccm =
        world.start_with(provider, &[&[CONTROLLERS, CLUSTER, "--shadow-once"], flags].concat());
    let printed = ccm.printed.clone();
    let ended = tokio::time::timeout(secs(900), ccm.ended())
        .await
        .expect("it comes to an end")
        .unwrap();
    before.assert_nothing_written(world);
    let ManagerExit::Compared(verdict) = ended else {
        panic!("{ended:?}")
    };
    let lines = printed.lock().clone();
    (verdict, lines)
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_addresses_cannot_be_chosen_is_not_called_the_same() {
    let world = converged().await;
    let elsewhere = |node: &mut Value| {
        node["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"] =
            "192.0.2.77".into();
    };
    world.edit("n1", elsewhere);
    let (verdict, lines) = compare(&world, &[]).await;
    let why = "addresses cannot be chosen: failed to get node address from cloud provider that matches ip: 192.0.2.77";
    assert_eq!(
        lines[0],
        format!("not compared: Node n1 (cloud-node-controller: {why})"),
        "{lines:?}"
    );
    assert_eq!((verdict, lines.len()), (Verdict::Incomplete, 2), "{lines:?}");

    world
        .kubelets
        .register(NodeSpec::new("n4").provided_ip([192, 0, 2, 78].into()))
        .await
        .unwrap();
    let (_, lines) = compare(&world, &[]).await;
    let why = "provided node ip for node \"n4\" is not valid: failed to get node address from cloud provider that matches \
               ip: 192.0.2.78";
    let wanted = format!("not compared: Node n4 (cloud-node-controller: {why})");
    assert!(lines.contains(&wanted), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn one_comparison_ends_where_nodes_join_all_the_time() {
    let world = converged().await;
    let joining = async {
        for n in 10..200 {
            world.join([format!("n{n}")]).await;
            tokio::time::sleep(secs(20)).await;
        }
    };
    tokio::select! {
        (verdict, _) = compare(&world, &[]) => assert_ne!(verdict, Verdict::Incomplete),
        () = joining => panic!("nodes joined for an hour, and nothing was said"),
    }
}

/// One world, one change, one set of lines.
async fn differs(world: &TestCluster, expected: &[&str]) {
    let (verdict, mut lines) = compare(world, &[]).await;
    let sum = lines.pop().unwrap();
    let expected: Vec<String> = expected
        .iter()
        .map(|line| format!("difference: {line}"))
        .collect();
    assert_eq!(lines, expected);
    assert_eq!(verdict, Verdict::Different);
    assert!(sum.contains(" difference"), "{sum}");
}

/// What a shadow must leave as it is.
struct Marks {
    attempts: usize,
    cloud: u64,
}

impl Marks {
    fn of(world: &TestCluster) -> Self {
        let entries = world.server.log().entries();
        let attempts = entries
            .iter()
            .filter(|e| e.request.is_write() && e.request.user_agent.contains(AGENT))
            .count();
        Self { attempts, cloud: world.cloud.calls().writes() }
    }

    /// Not even tried, events and leases included.
    fn assert_nothing_written(&self, world: &TestCluster) {
        let now = Self::of(world);
        assert_eq!((now.attempts, now.cloud), (self.attempts, self.cloud));
    }
}

#[tokio::test(start_paused = true)]
async fn a_converged_world_shows_no_difference() {
    let world = converged().await;
    assert_eq!(compare(&world, &[]).await, (Verdict::Same, vec![NONE.to_owned()]));
    // Nobody would be asked for a lease either.
    assert_eq!(
        compare(&world, &["--leader-elect=true"]).await,
        (Verdict::Same, vec![NONE.to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn a_fresh_cluster_shows_what_all_controllers_would_do() {
    let world = TestCluster::provisioned();
    join(&world, NodeSpec::new("n1"), &["10.244.1.0/24"]).await;
    world.serve("web").await;
    let instance = {
        // Made up with the first question about it.
        let (_, lines) = compare(&world, &[]).await;
        assert!(lines.len() > 8, "{lines:?}");
        world.cloud.instance("n1").unwrap()
    };
    let uid = world.service("web")["metadata"]["uid"]
        .as_str()
        .unwrap()
        .replace('-', "")[..31]
        .to_owned();
    let (verdict, lines) = compare(&world, &[]).await;
    assert_eq!(verdict, Verdict::Different);
    let zone = instance.zone;
    let label = |key: &str, value: &str| {
        format!(
            "Node n1: metadata.labels[{key}]: none -> {value} (cloud-node-controller: the node is not initialised)"
        )
    };
    let mut expected = vec![
        label("beta.kubernetes.io/instance-type", "m.large"),
        label("failure-domain.beta.kubernetes.io/region", "r1"),
        label("failure-domain.beta.kubernetes.io/zone", &zone),
        label("node.kubernetes.io/instance-type", "m.large"),
        label("topology.kubernetes.io/region", "r1"),
        label("topology.kubernetes.io/zone", &zone),
        "Node n1: spec.providerID: none -> mock://r1/n1 (cloud-node-controller: the node is not initialised)".to_owned(),
        "Node n1: spec.taints[node.cloudprovider.kubernetes.io/uninitialized]: set -> none (cloud-node-controller: the node is not initialised)".to_owned(),
    ];
    expected.push("Node n1: status.conditions[NetworkUnavailable]: none -> False/RouteCreated (node-route-controller: RouteController created a route)".to_owned());
    expected.push(
        "Route 10.244.1.0/24: target: none -> n1 (node-route-controller: the node has it as pod network)".to_owned(),
    );
    expected.push(format!("Service default/web: load balancer a{uid}, create_load_balancer: needed (service-lb-controller: service default/web has no load balancer)"));
    expected.push("Service default/web: metadata.finalizers[service.kubernetes.io/load-balancer-cleanup]: none -> set (service-lb-controller: a load balancer must be deleted before its service)".to_owned());
    expected.push("Service default/web: status.loadBalancer: none -> set (service-lb-controller: the address of its load balancer belongs there)".to_owned());
    let (addresses, others): (Vec<String>, Vec<String>) = lines
        .into_iter()
        .filter_map(|l| l.strip_prefix("difference: ").map(str::to_owned))
        .partition(|l| l.contains("status.addresses"));
    assert_eq!(others, expected);
    assert!(
        addresses[0].contains(" -> Hostname=n1") || addresses[0].contains("InternalIP=10."),
        "{addresses:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_label_that_was_taken_off_is_shown() {
    let world = converged().await;
    world.edit("n2", |node| {
        drop(
            node["metadata"]["labels"]
                .as_object_mut()
                .unwrap()
                .remove("topology.kubernetes.io/zone"),
        );
    });
    differs(&world, &[
        "Node n2: metadata.labels[topology.kubernetes.io/zone]: none -> r1a (cloud-node-controller: it is a copy of the beta label)",
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn other_addresses_are_shown() {
    let world = converged().await;
    let addresses = json!([{"type": "InternalIP", "address": "10.9.9.9"}]);
    world.put_instance("n2", json!({"addresses": addresses}));
    let (verdict, lines) = compare(&world, &[]).await;
    assert_eq!(verdict, Verdict::Different);
    assert!(
        lines[0].starts_with("difference: Node n2: status.addresses: InternalIP=10."),
        "{lines:?}"
    );
    assert!(
        lines[0].ends_with(
            "-> InternalIP=10.9.9.9,Hostname=n2 (cloud-node-controller: the cloud has others)"
        ),
        "{lines:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_without_instance_is_shown_after_it_was_proved() {
    let world = converged().await;
    world.cloud.delete_instance("n3");
    let route = "Route 10.244.3.0/24: target: n3 (leads nowhere) -> n3 (node-route-controller: the node has it as pod network, and the route does not fit)";
    // Nobody asks about Ready nodes.
    differs(&world, &[route]).await;
    world
        .kubelets
        .set_ready("n3", Ready::Unknown)
        .await
        .unwrap();
    let deletion = "Node n3: the object: there -> deleted (cloud-node-lifecycle-controller: its instance is gone)";
    differs(&world, &[deletion, route]).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_no_difference_and_no_agreement() {
    let world = converged().await;
    world
        .kubelets
        .set_ready("n3", Ready::Unknown)
        .await
        .unwrap();
    world.fail_instances(FaultError::Transient, None);
    let (verdict, lines) = compare(&world, &[]).await;
    assert_eq!(verdict, Verdict::Incomplete);
    assert!(lines[0].starts_with("not compared: Node n1 (cloud-node-controller: "), "{lines:?}");
    assert_eq!(lines.last().unwrap(), &format!("{NONE}, 4 not compared"));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_instance_is_shown() {
    let world = converged().await;
    let spec = ccm_mock::cloud::InstanceSpec {
        power_state: Some(PowerState::Stopped),
        ..world.cloud.instance("n3").unwrap().into()
    };
    world.cloud.put_instance("n3", spec).unwrap();
    world.kubelets.set_ready("n3", Ready::False).await.unwrap();
    differs(&world, &[
        "Node n3: spec.taints[node.cloudprovider.kubernetes.io/shutdown]: none -> set (cloud-node-lifecycle-controller: its instance is shut down)",
    ])
    .await;
    world.kubelets.set_ready("n3", Ready::True).await.unwrap();
    world.edit("n3", |node| {
        let taint =
            json!({"key": "node.cloudprovider.kubernetes.io/shutdown", "effect": "NoSchedule"});
        node["spec"]["taints"]
            .as_array_mut()
            .map(|taints| taints.push(taint.clone()))
            .unwrap_or_else(|| node["spec"]["taints"] = json!([taint]));
    });
    differs(&world, &[
        "Node n3: spec.taints[node.cloudprovider.kubernetes.io/shutdown]: set -> none (cloud-node-lifecycle-controller: it is Ready)",
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn routes_that_are_missing_or_left_over_are_shown() {
    let world = converged().await;
    let route = world
        .cloud
        .routes()
        .into_iter()
        .find(|route| route.node == "n1")
        .unwrap();
    assert!(world.cloud.delete_route(&route.name));
    let body = json!({"destinationCIDR": "10.244.9.0/24", "node": "n2"});
    let body: RouteBody = serde_json::from_value(body).unwrap();
    world.cloud.put_route("left-over", body).unwrap();
    differs(
        &world,
        &[
            "Route 10.244.1.0/24: target: none -> n1 (node-route-controller: the node has it as pod network)",
            "Route 10.244.9.0/24: target: n2 -> none (node-route-controller: no node has it as pod network)",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_was_changed_is_shown() {
    let world = converged().await;
    world.edit("n1", |node| {
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != "NetworkUnavailable");
    });
    differs(&world, &[
        "Node n1: status.conditions[NetworkUnavailable]: none -> False/RouteCreated (node-route-controller: RouteController created a route)",
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_was_changed_is_shown() {
    let world = converged().await;
    let balancer = world.balancers("web").remove(0);
    let edit: LoadBalancerEdit = serde_json::from_value(json!({"nodes": ["n1"]})).unwrap();
    world
        .cloud
        .edit_load_balancer(&balancer.name, edit)
        .unwrap();
    let line = format!(
        "Service default/web: load balancer {}, update_load_balancer: needed (service-lb-controller: 1 nodes become 3 nodes)",
        balancer.name
    );
    differs(&world, &[&line]).await;
}

#[tokio::test(start_paused = true)]
async fn a_status_that_was_changed_or_emptied_is_shown() {
    let world = converged().await;
    let balancer = world.balancers("web").remove(0);
    let address = |ip: &str| json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
    world
        .patch_service_status("web", address("192.0.2.1"))
        .await;
    let line = format!(
        "Service default/web: load balancer {}, publish_status: needed (service-lb-controller: the service shows other addresses than [{}])",
        balancer.name, balancer.address
    );
    differs(&world, &[&line]).await;
    world
        .patch_service_status("web", json!({"status": {"loadBalancer": null}}))
        .await;
    differs(&world, &[
        "Service default/web: status.loadBalancer: none -> set (service-lb-controller: the address of its load balancer belongs there)",
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_that_was_taken_off_is_shown() {
    let world = converged().await;
    world.edit_service("web", |service| service["metadata"]["finalizers"] = json!([]));
    differs(&world, &[
        "Service default/web: metadata.finalizers[service.kubernetes.io/load-balancer-cleanup]: none -> set (service-lb-controller: a load balancer must be deleted before its service)",
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_goes_or_wants_no_balancer_is_shown() {
    let world = converged().await;
    world
        .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
        .await;
    let (verdict, lines) = compare(&world, &[]).await;
    assert_eq!(verdict, Verdict::Different);
    let starts = |part: &str| format!("difference: Service default/web: {part}: ");
    for (line, part) in lines.iter().zip([
        "load balancer",
        "metadata.annotations[mock.cloud-provider.example/load-balancer-id]",
        "metadata.finalizers[service.kubernetes.io/load-balancer-cleanup]",
    ]) {
        assert!(
            line.starts_with(&starts(part))
                && line.ends_with("(service-lb-controller: the service needs no load balancer)"),
            "{line}"
        );
    }
    assert_eq!(lines.len(), 4, "{lines:?}");
    let world = converged().await;
    world.delete_service("web").await;
    differs(&world, &[
        "Service default/web: load balancer: deleted (service-lb-controller: the service is being deleted)",
        "Service default/web: metadata.finalizers[service.kubernetes.io/load-balancer-cleanup]: set -> none (service-lb-controller: the service is being deleted)",
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_would_be_refused_is_shown_if_it_is_served() {
    let world = converged().await;
    let mistake =
        json!({"metadata": {"annotations": {"mock.cloud-provider.example/backends": "here"}}});
    world.patch_service("web", mistake.clone()).await;
    world
        .put_annotated(
            "new",
            mistake["metadata"]["annotations"].clone(),
            json!({"ports": [{"port": 80}]}),
        )
        .await;
    let (verdict, lines) = compare(&world, &[]).await;
    assert_eq!((verdict, lines.len()), (Verdict::Different, 2), "{lines:?}");
    assert!(
        lines[0].starts_with(
            "difference: Service default/web: load balancer: served -> refused, and left as it is"
        ),
        "{lines:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn pod_networks_that_would_be_given_are_shown() {
    let world = TestCluster::provisioned();
    world
        .kubelets
        .register_all([initialized("n1"), initialized("n2"), initialized("n3")])
        .await
        .unwrap();
    give(&world, "n2", &["10.244.0.0/24"]);
    let flags = ["--controllers=node-ipam-controller", "--allocate-node-cidrs=true"];
    let (verdict, lines) = compare(&world, &flags).await;
    assert_eq!(verdict, Verdict::Different);
    let ipam: Vec<&String> = lines
        .iter()
        .filter(|line| line.contains("podCIDRs"))
        .collect();
    assert_eq!(
        ipam,
        [
            "difference: Node n1: spec.podCIDRs: none -> 10.244.1.0/24 (node-ipam-controller: it has none, and these are free)",
            "difference: Node n3: spec.podCIDRs: none -> 10.244.2.0/24 (node-ipam-controller: it has none, and these are free)",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_shadow_beside_a_leader_stays_silent_about_what_passes_and_tells_what_stays() {
    let world = converged().await;
    let leader = world.start(&[CONTROLLERS, CLUSTER]);
    let shadow = world.start(&[CONTROLLERS, CLUSTER, "--shadow"]);
    let printed = || shadow.printed.lock().clone();
    world.settle().await;
    assert_eq!(printed(), [NONE]);
    join(&world, NodeSpec::new("n4"), &["10.244.4.0/24"]).await;
    world.serve("api").await;
    world.until_served(&["api"], secs(60)).await;
    tokio::time::sleep(secs(300)).await;
    assert_eq!(printed(), [NONE], "a leader is at work");
    leader.stop().await;
    world.serve("late").await;
    tokio::time::sleep(secs(60)).await;
    let lines = printed();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert!(lines[1].starts_with("difference: Service default/late: load balancer a"), "{lines:?}");
    assert_eq!(lines[4], "3 differences: 4 nodes, 4 routes, 3 services compared");
    let leader = world.start(&[CONTROLLERS, CLUSTER]);
    tokio::time::sleep(secs(60)).await;
    let lines = printed();
    assert!(lines[5].starts_with("resolved: Service default/late: load balancer a"), "{lines:?}");
    assert_eq!(lines.last().unwrap(), "no differences: 4 nodes, 4 routes, 3 services compared");
    assert!(leader.is_running() && shadow.is_running());
    assert_eq!(shadow.stop().await, ManagerExit::Stopped);
}

#[tokio::test(start_paused = true)]
async fn an_idle_shadow_asks_no_more_than_the_controllers_do() {
    let world = converged().await;
    let ccm: Ccm = world.start(&[CONTROLLERS, CLUSTER, "--shadow"]);
    world.settle().await;
    let before = world.cloud.calls();
    tokio::time::sleep(secs(3000)).await;
    let calls = world.cloud.calls().since(&before);
    assert_eq!(
        calls.of(Operation::DescribeInstances),
        10,
        "once per --node-status-update-frequency, all nodes at once"
    );
    assert_eq!(calls.of(Operation::ListRoutes), 300, "once per --route-reconciliation-period");
    assert!(
        calls.of(Operation::GetLoadBalancer) <= 1,
        "once per --load-balancer-verify-period: {calls:?}"
    );
    assert_eq!(calls.writes(), 0);
    assert!(ccm.is_running());
}

#[tokio::test(start_paused = true)]
async fn a_comparison_that_was_stopped_is_no_agreement() {
    let world = converged().await;
    world.serve("new").await;
    let ccm = world.start(&[CONTROLLERS, CLUSTER, "--shadow-once"]);
    tokio::time::sleep(secs(10)).await;
    assert_eq!(ccm.stop().await, ManagerExit::Compared(Verdict::Incomplete));
}

/// A provider that tries to write wherever it is called.
#[derive(Default)]
struct Nosy {
    outcomes: Mutex<Vec<String>>,
    client: Mutex<Option<kube::Client>>,
}

impl Nosy {
    fn note(&self, what: &str, outcome: Result<(), String>) {
        self.outcomes
            .lock()
            .push(format!("{what}: {}", outcome.err().unwrap_or_else(|| "written".to_owned())));
    }

    async fn write(&self) -> Result<(), String> {
        let client = self.client.lock().clone().expect("it was started");
        let body = json!({"metadata": {"labels": {"nosy": "true"}}})
            .to_string()
            .into_bytes();
        let request = http::Request::patch("/api/v1/nodes/n1")
            .header("content-type", "application/merge-patch+json");
        let sent = client
            .send(request.body(kube::client::Body::from(body)).unwrap())
            .await;
        sent.map(drop).map_err(|error| error.to_string())
    }
}

#[async_trait]
impl CloudProvider for Nosy {
    fn name(&self) -> &'static str {
        "mock"
    }

    async fn start(&self, ctx: ProviderContext) -> Result<(), CloudError> {
        self.note(
            "start",
            ctx.write_gate
                .may_write()
                .map_err(|error| error.to_string()),
        );
        *self.client.lock() = Some(ctx.client);
        Ok(())
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }
}

#[async_trait]
impl Instances for Nosy {
    async fn describe(
        &self,
        op: &Op,
        asked: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
        let refused = op.may_write();
        assert!(
            refused
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::NotLeader)
        );
        self.note("describe", refused.map_err(|error| error.to_string()));
        self.note("patch", self.write().await);
        Ok(asked.iter().map(|_| Ok(InstanceStatus::NotFound)).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_tries_to_write_cannot() {
    let world = TestCluster::provisioned();
    world.join(["n1"]).await;
    let provider = Arc::new(Nosy::default());
    let (verdict, _) = compare_with(&world, provider.clone(), &[]).await;
    assert_eq!(verdict, Verdict::Same);
    let outcomes = provider.outcomes.lock().clone();
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| !outcome.ends_with("written")), "{outcomes:?}");
    assert!(
        outcomes[2].contains("a shadow changes nothing") || outcomes[2].starts_with("patch: "),
        "{outcomes:?}"
    );
    assert_eq!(world.node("n1")["metadata"]["labels"]["nosy"], Value::Null);
}

//! A shadow beside a cloud-controller-manager on Go's framework that has converged the same cluster
//! and the same cloud.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use ccm_core::k8s::AddressType;
use ccm_e2e::ccm::{Ccm, Signal};
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::server::ServerKind;
use ccm_e2e::watcher::{ingress_addresses, label};
use ccm_mock::cloud::{Address, InstanceSpec, LoadBalancerEdit};
use ccm_testkit::control_plane::GoProgram;
use ccm_testkit::kubelet::Ready;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::case;
use crate::run::{Case, Need};

/// Long enough for a watch to bring a change, and short enough for a test.
const SETTLE: &str = "--shadow-settle=2s";
const CLUSTER: &str = "--cluster-cidr=10.246.0.0/16";
/// The settle time, a deletion's two proofs, and the machine's slowness.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn cases() -> Vec<Case> {
    vec![Case {
        needs: &[Need::Go(GoProgram::Ccm)],
        ..case!(
            "shdw",
            &[ServerKind::Real],
            a_shadow_beside_a_go_manager_shows_what_differs_and_writes_nothing
        )
    }]
}

async fn a_shadow_beside_a_go_manager_shows_what_differs_and_writes_nothing(
    s: &Scenario,
) -> anyhow::Result<()> {
    let program = GoProgram::Ccm.find().map_err(anyhow::Error::msg)?;
    let names = s.names(3);
    join(s, &names).await?;
    let web = format!("{}web", s.prefix());
    s.create(&Scenario::manifest(&web)).await?;
    let go = start_go(s, &program).await?;
    s.initialized(&names, SOON).await?;
    s.routed(&[], SOON).await?;
    s.becomes("the service has its balancer", SOON, || named(s, &web))
        .await?;

    // It would repair most of what follows within seconds, and tells the cloud about nodes again
    // when it likes.
    go.kill().await?;
    let marks = s.cloud.calls();
    let clean = "no differences: 3 nodes, 3 routes, 1 service compared";
    ensure!(compare(s, &[]).await? == (0, vec![clean.to_owned()]), "a converged cluster differs");
    ensure!(
        s.cloud.calls().since(&marks).writes() == 0,
        "the cloud was written to: {:?}",
        s.cloud.calls()
    );

    let expected = disturb(s, &names, &web).await?;
    let marks = s.cloud.calls();
    let (code, lines) = compare(s, &["--leader-elect=true"]).await?;
    let differences: Vec<_> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("difference: "))
        .collect();
    ensure!(
        (code, &differences) == (2, &expected.iter().map(|line| &**line).collect()),
        "{code}: {lines:#?}"
    );
    ensure!(
        s.cloud.calls().since(&marks).writes() == 0,
        "the cloud was written to: {:?}",
        s.cloud.calls()
    );

    let go = start_go(s, &program).await?;
    s.only(&names[..2], LIMIT).await?;
    s.routed(&[], LIMIT).await?;
    s.becomes("repaired", LIMIT, || repaired(s, &names[..2]))
        .await?;
    let clean = "no differences: 2 nodes, 2 routes, 1 service compared";
    ensure!(compare(s, &[]).await? == (0, vec![clean.to_owned()]), "a repaired cluster differs");
    go.kill().await?;
    let writes = s.server.writes(&s.user("a")).await?;
    ensure!(writes.is_empty(), "a shadow wrote: {writes:?}");
    Ok(())
}

/// Registers nodes whose addresses their kubelets know: Go's framework takes the taint off before
/// it writes any.
async fn join(s: &Scenario, names: &[String]) -> anyhow::Result<()> {
    for (n, name) in names.iter().enumerate() {
        let address = format!("10.11.12.{}", n + 1);
        let addresses = Some(vec![
            Address::new(AddressType::InternalIp, address.clone()),
            Address::new(AddressType::Hostname, name.clone()),
        ]);
        s.cloud
            .put_instance(name, InstanceSpec { addresses, ..InstanceSpec::default() })?;
        s.register_one(
            s.spec(name)
                .provided_ip(address.parse()?)
                .pod_cidr(format!("10.246.{n}.0/24")),
        )
        .await?;
    }
    Ok(())
}

async fn start_go(s: &Scenario, program: &Path) -> anyhow::Result<Go> {
    let user = s.user("b");
    // Go's controllers write whole nodes, and more than the role of ours grants.
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }))?;
    let bindings: Api<ClusterRoleBinding> = Api::all(s.server.client());
    match bindings.create(&PostParams::default(), &binding).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        created => drop(created.context("grant the rights of the Go manager")?),
    }
    Ok(Go(s
        .start_go(program, "b", &[CLUSTER, "--allocate-node-cidrs=false", "--leader-elect=false"])
        .await?))
}

/// The other manager.
struct Go(Ccm);

impl Go {
    async fn kill(mut self) -> anyhow::Result<()> {
        self.0.signal(Signal::Kill).await?;
        self.0.exit(SOON).await.map(drop)
    }
}

fn repaired(s: &Scenario, names: &[String]) -> Result<(), String> {
    let nodes: Vec<Vec<String>> = s
        .cloud
        .load_balancers()
        .into_iter()
        .map(|balancer| balancer.nodes.to_vec())
        .collect();
    let labelled = s.nodes().values().all(|node| zone(node).is_some());
    if nodes == [names] && labelled {
        Ok(())
    } else {
        Err(format!("behind balancers: {nodes:?}, zones: {labelled}"))
    }
}

fn named(s: &Scenario, service: &str) -> Result<(), String> {
    let service = s.service(service)?;
    let annotation = service
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(BALANCER_ID));
    match (annotation, ingress_addresses(&service).is_empty()) {
        (Some(_), false) => Ok(()),
        (id, no_address) => Err(format!("balancer {id:?}, no address: {no_address}")),
    }
}

const BALANCER_ID: &str = "mock.cloud-provider.example/load-balancer-id";

/// Compares once; returns the exit code and what was printed.
async fn compare(s: &Scenario, flags: &[&str]) -> anyhow::Result<(i32, Vec<String>)> {
    let mut shadow = s
        .start("a", &[&["--shadow-once", SETTLE, CLUSTER], flags].concat())
        .await?;
    let status = shadow.exit(LIMIT).await?;
    let log = shadow.log();
    let is_line = |line: &&str| {
        ["difference: ", "not compared: ", "no difference"]
            .iter()
            .any(|b| line.starts_with(b))
    };
    let lines = log.lines().filter(is_line).map(str::to_owned).collect();
    Ok((
        status
            .code()
            .with_context(|| format!("ended by a signal: {log}"))?,
        lines,
    ))
}

const ZONE: &str = "topology.kubernetes.io/zone";

fn zone(node: &Node) -> Option<String> {
    label(node, ZONE).map(str::to_owned)
}

/// Changes one thing of each kind, and returns what is to be shown of it.
async fn disturb(s: &Scenario, names: &[String], web: &str) -> anyhow::Result<Vec<String>> {
    let [first, second, gone] = names else {
        anyhow::bail!("three nodes")
    };
    let zone = zone(&*s.node(first)?).context("it has a zone")?;
    let nodes: Api<Node> = Api::all(s.server.client());
    let without = Patch::Merge(json!({"metadata": {"labels": {ZONE: null}}}));
    nodes
        .patch(first, &PatchParams::default(), &without)
        .await?;

    let route = s
        .cloud
        .routes()
        .into_iter()
        .find(|route| route.node == *second)
        .context("it has a route")?;
    ensure!(s.cloud.delete_route(&route.name), "the route is there");

    s.may_go([gone]);
    ensure!(s.cloud.delete_instance(gone), "the instance is there");
    s.kubelets.set_ready(gone, Ready::Unknown).await?;

    let balancer = s
        .cloud
        .load_balancers()
        .into_iter()
        .find(|balancer| balancer.service.ends_with(web));
    let balancer = balancer.context("it has a balancer")?;
    let edit = LoadBalancerEdit {
        nodes: Some(vec![first.clone()]),
        ..LoadBalancerEdit::default()
    };
    s.cloud.edit_load_balancer(&balancer.name, edit)?;

    let (service, lifecycle) = ("service-lb-controller", "cloud-node-lifecycle-controller");
    let wrong = "the node has it as pod network, and the route does not fit";
    Ok(vec![
        format!(
            "Node {first}: metadata.labels[{ZONE}]: none -> {zone} (cloud-node-controller: it is a copy of the beta label)"
        ),
        format!("Node {gone}: the object: there -> deleted ({lifecycle}: its instance is gone)"),
        format!(
            "Route 10.246.1.0/24: target: none -> {second} (node-route-controller: the node has it as pod network)"
        ),
        format!(
            "Route 10.246.2.0/24: target: {gone} (leads nowhere) -> {gone} (node-route-controller: {wrong})"
        ),
        format!(
            "Service default/{web}: load balancer {}, update_load_balancer: needed ({service}: 1 nodes become 3 nodes)",
            balancer.name
        ),
    ])
}

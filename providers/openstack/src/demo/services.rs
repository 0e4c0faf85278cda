//! A Service of type LoadBalancer, without any pods: its nodes answer.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, PostParams};
use openstack_local::api::octavia::OperatingStatus;
use serde_json::json;
use tokio::time::Instant;

use super::{Files, environment::DemoEnvironment, http_client, print};

/// Taint of nodes whose server is stopped.
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
/// Name of the Service.
const NAME: &str = "web";

/// The Service once it has an address.
#[derive(Debug)]
pub(super) struct WebService {
    /// Address for `curl`.
    pub(super) address: SocketAddr,
    /// Port at which nodes answer.
    node_port: u16,
}

/// Creates the Service, waits for its address, and checks which nodes answer there.
pub(super) async fn create(stage: &DemoEnvironment<'_>) -> anyhow::Result<WebService> {
    print("a Service of type LoadBalancer is created");
    stage.reset_counts();
    let start = Instant::now();
    let web = make(stage).await?;
    let took = start.elapsed().as_secs_f64();
    print(&format!(
        "  {NAME}  LoadBalancer  {}  node port {}  after {took:.1} s",
        web.address, web.node_port
    ));
    let nodes: Vec<_> = stage
        .addresses
        .nodes
        .iter()
        .map(|(name, _)| name.clone())
        .collect();
    stage.curl(web.address, &nodes).await?;
    stage.print_counts();
    Ok(web)
}

async fn make(stage: &DemoEnvironment<'_>) -> anyhow::Result<WebService> {
    let api = stage.services();
    let port = stage.addresses.port;
    let service = serde_json::from_value(json!({
        "metadata": {"name": NAME},
        "spec": {"type": "LoadBalancer", "ports": [{"name": "http", "port": port, "protocol": "TCP"}]},
    }))?;
    api.create(&PostParams::default(), &service).await?;
    stage
        .wait_for("service controller", async || {
            let service = api.get(NAME).await?;
            Ok(served(&service, port).ok_or_else(|| format!("Service {NAME} has no address")))
        })
        .await
}

fn served(service: &Service, port: u16) -> Option<WebService> {
    let ingress = service
        .status
        .as_ref()?
        .load_balancer
        .as_ref()?
        .ingress
        .as_ref()?;
    let address: IpAddr = ingress.first()?.ip.as_ref()?.parse().ok()?;
    let node_port = service.spec.as_ref()?.ports.as_ref()?.first()?.node_port?;
    Some(WebService {
        address: SocketAddr::new(address, port),
        node_port: u16::try_from(node_port).ok()?,
    })
}

/// Stops a server, shows that traffic goes to the others, and starts it again.
pub(super) async fn stop_a_backend(
    stage: &DemoEnvironment<'_>,
    web: &WebService,
) -> anyhow::Result<()> {
    let (victim, address) = stage.addresses.nodes.first().context("there are nodes")?;
    let backend = SocketAddr::new(IpAddr::V4(*address), web.node_port);
    let all: Vec<_> = stage
        .addresses
        .nodes
        .iter()
        .map(|(name, _)| name.clone())
        .collect();
    print(&format!("openstack server stop {victim}"));
    stage.operator.server_action(victim, "os-stop").await?;
    stage.reset_counts();
    stage
        .wait_for("server that ends with its power", async || {
            let open = http_client::is_open(backend).await;
            Ok(if open {
                Err(format!("{backend} is still open"))
            } else {
                Ok(())
            })
        })
        .await?;
    print(&format!("  nobody listens at {backend} any more"));
    stage.curl(web.address, &all[1..]).await?;
    member_is(stage, *address, &OperatingStatus::Error).await?;
    print(&format!("  Octavia's health monitor has taken the member {address} out"));
    tainted(stage, victim, true).await?;
    print(&format!("  Node {victim} has the taint {SHUTDOWN}"));
    stage.print_counts();
    print(&format!("openstack server start {victim}"));
    stage.operator.server_action(victim, "os-start").await?;
    stage.reset_counts();
    stage.curl(web.address, &all).await?;
    tainted(stage, victim, false).await?;
    print(&format!("  Node {victim} has lost the taint"));
    stage.print_counts();
    Ok(())
}

async fn member_is(
    stage: &DemoEnvironment<'_>,
    address: std::net::Ipv4Addr,
    status: &OperatingStatus,
) -> anyhow::Result<()> {
    let address = address.to_string();
    stage
        .wait_for("health monitor", async || {
            let found = stage.cloud.cloud().store.peek(|state| {
                let mut members = state.octavia.members.iter();
                members
                    .find(|row| row.body.address == address)
                    .map(|row| row.body.operating_status.clone())
            });
            Ok(if found.as_ref() == Some(status) {
                Ok(())
            } else {
                Err(format!("member {address} is {found:?}"))
            })
        })
        .await
}

async fn tainted(stage: &DemoEnvironment<'_>, node: &str, wanted: bool) -> anyhow::Result<()> {
    let api = stage.nodes();
    stage
        .wait_for("node-lifecycle controller", async || {
            let found = api.get(node).await?;
            let mut taints = found
                .spec
                .iter()
                .flat_map(|spec| spec.taints.iter().flatten());
            let has = taints.any(|taint| taint.key == SHUTDOWN);
            Ok(if has == wanted {
                Ok(())
            } else {
                Err(format!("Node {node}: taint {SHUTDOWN} is there: {has}"))
            })
        })
        .await
}

/// Deletes the Service and checks that its address is closed and nothing is left.
pub(super) async fn delete(stage: &DemoEnvironment<'_>, web: &WebService) -> anyhow::Result<()> {
    let api = stage.services();
    print(&format!("the Service {NAME} is deleted"));
    stage.reset_counts();
    let start = Instant::now();
    api.delete(NAME, &DeleteParams::default()).await?;
    stage
        .wait_for("service controller", async || {
            let gone = api.get_opt(NAME).await?.is_none();
            Ok(if gone {
                Ok(())
            } else {
                Err(format!("Service {NAME} is still there"))
            })
        })
        .await?;
    stage
        .wait_for("local cloud that closes addresses", async || {
            let left = stage
                .cloud
                .cloud()
                .store
                .peek(|state| state.octavia.load_balancers.len());
            let open = http_client::is_open(web.address).await;
            let missing =
                format!("{left} load balancers are left, {} is open: {open}", web.address);
            Ok(if left == 0 && !open {
                Ok(())
            } else {
                Err(missing)
            })
        })
        .await?;
    let took = start.elapsed().as_secs_f64();
    print(&format!(
        "  nobody listens at {} any more, and Octavia has no load balancer, after {took:.1} s",
        web.address
    ));
    stage.print_counts();
    Ok(())
}

/// Creates the Service again for the user, and prints what to try.
pub(super) async fn recreate(stage: &DemoEnvironment<'_>, files: &Files) -> anyhow::Result<()> {
    let web = make(stage).await?;
    let kubectl = format!("kubectl --kubeconfig {}", files.kubeconfig.display());
    let openrc = files.openrc.display();
    let node = stage
        .addresses
        .nodes
        .first()
        .map_or("node-0", |(name, _)| name);
    print("The Service is there again. In another terminal:");
    print(&format!("  for i in 1 2 3 4 5 6; do curl --noproxy '*' http://{}/; done", web.address));
    print(&format!(
        "  . {openrc}; openstack server stop {node}      # and curl again, then: openstack server start {node}"
    ));
    print("  openstack loadbalancer list; openstack loadbalancer member list …");
    print(&format!("  {kubectl} describe service {NAME}"));
    print(&format!("  {kubectl} delete service {NAME}      # and curl again"));
    print("The controllers go on until Ctrl-C.");
    Ok(())
}

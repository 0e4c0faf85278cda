//! Servers that are nodes, and the routes to their pods.

use anyhow::ensure;
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, api::ListParams};
use tokio::time::Instant;

use super::{environment::DemoEnvironment, print, services::WebService};

/// Label that initialisation sets last, when it also removes the taint.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Creates servers, and prints their nodes when they are initialised.
pub(super) async fn join(stage: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    let api = stage.nodes();
    let wanted = stage.addresses.nodes.len();
    print(&format!(
        "{wanted} servers are made in Nova; each is a kubelet and a web server in this process"
    ));
    stage.reset_counts();
    stage
        .operator
        .make_servers(&stage.resources, stage.addresses)
        .await?;
    let start = Instant::now();
    let nodes = stage
        .wait_for("cloud-node controller", async || {
            let nodes = api.list(&ListParams::default().labels(ZONE)).await?.items;
            let missing = format!("{} of {wanted} nodes initialised", nodes.len());
            Ok(if nodes.len() == wanted {
                Ok(nodes)
            } else {
                Err(missing)
            })
        })
        .await?;
    for node in &nodes {
        print(&format!("  {}", describe(node)));
    }
    print(&format!("all {wanted} nodes initialised after {:.1} s", start.elapsed().as_secs_f64()));
    stage.print_counts();
    Ok(())
}

/// Waits until every node has a pod CIDR and a route to it.
pub(super) async fn routes(stage: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    let wanted = stage.addresses.nodes.len();
    let routes = stage
        .wait_for("node-IPAM and a route controller", async || {
            let routes = stage.cloud.cloud().store.peek(|state| {
                let router = state.neutron.routers.get(&stage.resources.router);
                router
                    .map(|router| router.routes.clone())
                    .unwrap_or_default()
            });
            let missing = format!("{} of {wanted} nodes have a route", routes.len());
            Ok(if routes.len() == wanted {
                Ok(routes)
            } else {
                Err(missing)
            })
        })
        .await?;
    for node in stage.nodes().list(&ListParams::default()).await? {
        let cidr = node
            .spec
            .as_ref()
            .and_then(|spec| spec.pod_cidr.clone())
            .unwrap_or_default();
        let route = routes.iter().find(|route| route.destination == cidr);
        ensure!(route.is_some(), "no route leads to the pod CIDR {cidr:?} of {}", node.name_any());
        let via = route.map(|route| route.nexthop.clone()).unwrap_or_default();
        print(&format!("  route {cidr} via {via}, {}", node.name_any()));
    }
    print(&format!("all {wanted} nodes have a pod CIDR, and the router has a route to it\n"));
    Ok(())
}

/// Deletes the last server and waits until no member and no route refers to its node.
pub(super) async fn lose_a_server(
    stage: &DemoEnvironment<'_>,
    web: &WebService,
) -> anyhow::Result<()> {
    let Some(((victim, address), others)) = stage.addresses.nodes.split_last() else {
        return Ok(());
    };
    print(&format!("openstack server delete {victim}"));
    stage.operator.delete(victim).await?;
    stage.reset_counts();
    let start = Instant::now();
    let api = stage.nodes();
    stage
        .wait_for("node-lifecycle controller", async || {
            let gone = api.get_opt(victim).await?.is_none();
            Ok(if gone {
                Ok(())
            } else {
                Err(format!("Node {victim} is still there"))
            })
        })
        .await?;
    let took = start.elapsed().as_secs_f64();
    print(&format!(
        "  Node {victim} deleted after {took:.1} s: asked twice, with living nodes as controls"
    ));
    let address = address.to_string();
    stage
        .wait_for("service and a route controller", async || {
            let (member, route) = stage.cloud.cloud().store.peek(|state| {
                let member = state
                    .octavia
                    .members
                    .iter()
                    .any(|row| row.body.address == address);
                let mut routes = state
                    .neutron
                    .routers
                    .iter()
                    .flat_map(|router| &router.routes);
                (member, routes.any(|route| route.nexthop == address))
            });
            Ok(match (member, route) {
                (false, false) => Ok(()),
                (true, _) => Err(format!("{victim} is a member of the load balancer's pool")),
                (_, true) => Err(format!("a route leads to {victim}")),
            })
        })
        .await?;
    let others: Vec<_> = others.iter().map(|(name, _)| name.clone()).collect();
    stage.curl(web.address, &others).await?;
    let took = start.elapsed().as_secs_f64();
    print(&format!("  no pool and no route leads to {victim} any more after {took:.1} s"));
    stage.print_counts();
    Ok(())
}

fn describe(node: &Node) -> String {
    let label = |key: &str| node.labels().get(key).map_or("-", String::as_str);
    let addresses: Vec<String> = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten())
        .map(|address| format!("{}={}", address.type_, address.address))
        .collect();
    let zone = label(ZONE);
    let kind = label("node.kubernetes.io/instance-type");
    format!("{}  initialised  zone={zone}  type={kind}  {}", node.name_any(), addresses.join("  "))
}

//! Scenes about nodes and the routes to them.

use std::collections::HashSet;

use anyhow::{bail, ensure};
use ccm_testkit::kubelet::{NodeSpec, Ready};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::time::Instant;

use super::{
    environment::{DemoEnvironment, Few},
    print,
};
use crate::cloud::{Calls, Capability};

/// Label that the initialisation sets in its last write, together with removing the taint.
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";

/// Registers nodes, and prints them as they are initialised.
pub(super) async fn join(stage: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    let api = stage.node_api();
    let start = Instant::now();
    let desired = stage.nodes;
    print(&format!("{desired} nodes join, tainted as uninitialized"));
    stage
        .kubelets
        .register_all((0..desired).map(|i| NodeSpec::new(format!("node-{i}"))))
        .await?;
    let mut seen = HashSet::new();
    let mut few = Few::default();
    let watch = watch_initialised(&api, |node| {
        if seen.insert(node.name_any()) {
            few.say(&describe(node));
        }
        seen.len() == desired
    });
    match tokio::time::timeout(stage.patience(), watch).await {
        Ok(ended) => ended?,
        Err(_) => {
            let what = format!("{} of {desired} nodes initialised", seen.len());
            return Err(stage.missing(&what, "cloud-node controller"));
        }
    }
    print(&format!("all {desired} nodes initialised after {:.1} s", start.elapsed().as_secs_f64()));
    print(&format!(
        "  cloud calls: {}\n",
        stage.cloud.calls().of_capability(Capability::Instances)
    ));
    Ok(())
}

/// Calls `enough` with every initialised node, and again whenever a node changes, until it returns
/// true. Uses a watch, because listing thousands of nodes repeatedly would be most of the server's
/// load.
async fn watch_initialised(
    api: &Api<Node>,
    mut enough: impl FnMut(&Node) -> bool,
) -> anyhow::Result<()> {
    let mut events = api
        .watch(&WatchParams::default().labels(ZONE), "0")
        .await?
        .boxed();
    while let Some(event) = events.try_next().await? {
        if let WatchEvent::Added(node) | WatchEvent::Modified(node) = event
            && enough(&node)
        {
            return Ok(());
        }
    }
    bail!("the watch of nodes ended early")
}

/// Waits until every node has a pod CIDR and a route to it.
pub(super) async fn routes(stage: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    let start = Instant::now();
    let desired = stage.nodes;
    let routes = stage
        .wait_for("node-IPAM and a route controller", async || {
            let routes = stage.cloud.routes();
            let missing = format!("{} of {desired} nodes have a route", routes.len());
            Ok(if routes.len() == desired {
                Ok(routes)
            } else {
                Err(missing)
            })
        })
        .await?;
    let mut few = Few::default();
    for route in &routes {
        few.say(&format!("route {} -> {}", route.destination, route.node));
    }
    for node in stage.node_api().list(&ListParams::default()).await? {
        let cidr = node.spec.as_ref().and_then(|spec| spec.pod_cidr.as_deref());
        let leads = routes.iter().any(|route| {
            route.node == node.name_any() && Some(&*route.destination.to_string()) == cidr
        });
        ensure!(
            leads,
            "no route leads to the pod CIDR {} of {}",
            cidr.unwrap_or("-"),
            node.name_any()
        );
    }
    print(&format!(
        "all {desired} nodes have a pod CIDR and a route, {:.1} s later",
        start.elapsed().as_secs_f64()
    ));
    print(&format!("  cloud calls: {}\n", stage.cloud.calls().of_capability(Capability::Routes)));
    Ok(())
}

/// Deletes the instance of the last node, and waits until nothing refers to the node any more.
pub(super) async fn lose_an_instance(stage: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    // First, delete the instance and let the kubelet stop reporting.
    let api = stage.node_api();
    let victim = format!("node-{}", stage.nodes - 1);
    print(&format!(
        "the instance of {victim} is deleted in the cloud, and its kubelet falls silent"
    ));
    let start = Instant::now();
    let before = stage.cloud.calls();
    stage.cloud.delete_instance(&victim);
    stage.kubelets.set_ready(&victim, Ready::Unknown).await?;
    // Then wait until the Node is deleted.
    stage
        .wait_for("node-lifecycle controller", async || {
            Ok(if api.get_opt(&victim).await?.is_none() {
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
    // Finally, wait until no load balancer and no route uses the node.
    stage
        .wait_for("service controller", async || {
            let holds = stage
                .cloud
                .load_balancers()
                .into_iter()
                .find(|load_balancer| load_balancer.nodes.contains(&victim));
            Ok(holds.map_or(Ok(()), |balancer| {
                Err(format!("{victim} is behind the balancer of {}", balancer.service))
            }))
        })
        .await?;
    stage
        .wait_for("route controller", async || {
            let route = stage
                .cloud
                .routes()
                .into_iter()
                .find(|route| route.node == victim);
            Ok(route.map_or(Ok(()), |route| {
                Err(format!("route {} leads to {victim}", route.destination))
            }))
        })
        .await?;
    let took = start.elapsed().as_secs_f64();
    print(&format!("  no balancer and no route leads to {victim} any more after {took:.1} s"));
    say_calls(&stage.cloud.calls().since(&before));
    Ok(())
}

/// Prints the counts of all cloud calls.
pub(super) fn say_calls(calls: &Calls) {
    print(&format!("  cloud calls: {calls}"));
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

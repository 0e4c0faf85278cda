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
    environment::{DemoEnvironment, FirstLines},
    print,
};
use crate::cloud::{Calls, Capability};

/// Label that the initialisation sets in its last write, together with removing the taint.
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";

/// Registers nodes, and prints them as they are initialised.
pub(super) async fn join(demo: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    let api = demo.node_api();
    let start = Instant::now();
    let desired = demo.nodes;
    print(&format!("{desired} nodes join, tainted as uninitialized"));
    demo.kubelets
        .register_all((0..desired).map(|i| NodeSpec::new(format!("node-{i}"))))
        .await?;
    let mut initialised = HashSet::new();
    let mut lines = FirstLines::default();
    let watch = watch_initialised(&api, |node| {
        if initialised.insert(node.name_any()) {
            lines.print(&describe(node));
        }
        initialised.len() == desired
    });
    match tokio::time::timeout(demo.timeout(), watch).await {
        Ok(ended) => ended?,
        Err(_) => {
            let what = format!("{} of {desired} nodes initialised", initialised.len());
            return Err(demo.timeout_error(&what, "cloud-node controller"));
        }
    }
    print(&format!("all {desired} nodes initialised after {:.1} s", start.elapsed().as_secs_f64()));
    print(&format!(
        "  cloud calls: {}\n",
        demo.cloud.calls().format_capability(Capability::Instances)
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
pub(super) async fn routes(demo: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    let start = Instant::now();
    let desired = demo.nodes;
    let routes = demo
        .wait_for("node-IPAM and a route controller", async || {
            let routes = demo.cloud.routes();
            if routes.len() == desired {
                Ok(Ok(routes))
            } else {
                Ok(Err(format!("{} of {desired} nodes have a route", routes.len())))
            }
        })
        .await?;
    let mut lines = FirstLines::default();
    for route in &routes {
        lines.print(&format!("route {} -> {}", route.destination, route.node));
    }
    for node in demo.node_api().list(&ListParams::default()).await? {
        let cidr = node.spec.as_ref().and_then(|spec| spec.pod_cidr.as_deref());
        let has_route = routes.iter().any(|route| {
            route.node == node.name_any() && Some(&*route.destination.to_string()) == cidr
        });
        ensure!(
            has_route,
            "no route leads to the pod CIDR {} of {}",
            cidr.unwrap_or("-"),
            node.name_any()
        );
    }
    print(&format!(
        "all {desired} nodes have a pod CIDR and a route, {:.1} s later",
        start.elapsed().as_secs_f64()
    ));
    print(&format!(
        "  cloud calls: {}\n",
        demo.cloud.calls().format_capability(Capability::Routes)
    ));
    Ok(())
}

/// Deletes the instance of the last node, and waits until nothing refers to the node any more.
pub(super) async fn lose_an_instance(demo: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    // First, delete the instance and let the kubelet stop reporting.
    let api = demo.node_api();
    let victim = format!("node-{}", demo.nodes - 1);
    print(&format!(
        "the instance of {victim} is deleted in the cloud, and its kubelet stops reporting"
    ));
    let start = Instant::now();
    let before = demo.cloud.calls();
    demo.cloud.delete_instance(&victim);
    demo.kubelets.set_ready(&victim, Ready::Unknown).await?;
    // Then wait until the Node is deleted.
    demo.wait_for("node-lifecycle controller", async || {
        if api.get_opt(&victim).await?.is_none() {
            Ok(Ok(()))
        } else {
            Ok(Err(format!("Node {victim} is still there")))
        }
    })
    .await?;
    let took = start.elapsed().as_secs_f64();
    print(&format!(
        "  Node {victim} deleted after {took:.1} s: asked twice, with living nodes as controls"
    ));
    // Finally, wait until no load balancer and no route uses the node.
    demo.wait_for("service controller", async || {
        for load_balancer in demo.cloud.load_balancers() {
            if load_balancer.nodes.contains(&victim) {
                let service = load_balancer.service;
                return Ok(Err(format!("the load balancer of {service} still uses {victim}")));
            }
        }
        Ok(Ok(()))
    })
    .await?;
    demo.wait_for("route controller", async || {
        for route in demo.cloud.routes() {
            if route.node == victim {
                return Ok(Err(format!("route {} leads to {victim}", route.destination)));
            }
        }
        Ok(Ok(()))
    })
    .await?;
    let took = start.elapsed().as_secs_f64();
    print(&format!("  no load balancer and no route leads to {victim} after {took:.1} s"));
    print_calls(&demo.cloud.calls().since(&before));
    Ok(())
}

/// Prints the counts of all cloud calls.
pub(super) fn print_calls(calls: &Calls) {
    print(&format!("  cloud calls: {calls}"));
}

fn describe(node: &Node) -> String {
    let addresses: Vec<String> = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten())
        .map(|address| format!("{}={}", address.type_, address.address))
        .collect();
    format!(
        "{}  initialised  zone={}  type={}  {}",
        node.name_any(),
        label_of(node, ZONE),
        label_of(node, "node.kubernetes.io/instance-type"),
        addresses.join("  ")
    )
}

fn label_of<'a>(node: &'a Node, key: &str) -> &'a str {
    match node.labels().get(key) {
        Some(value) => value,
        None => "-",
    }
}

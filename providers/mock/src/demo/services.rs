//! Scenes about Services of type LoadBalancer and their backends.

use std::collections::BTreeMap;

use anyhow::Context;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::time::Instant;

use super::{
    environment::DemoEnvironment,
    nodes::{ZONE, print_calls},
    print,
};
use crate::{
    cloud::{Capability, LoadBalancer},
    provider::annotations,
};

/// Label that excludes a node from load balancers.
const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The Service whose backends are the nodes of one zone.
const ZONAL: &str = "zonal";

/// Creates three Services and waits for their addresses.
pub(super) async fn create(demo: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    // First, create the Services.
    let api = api(demo);
    let zone = zones(demo)
        .await?
        .remove("node-0")
        .context("node-0 has no zone")?;
    let start = Instant::now();
    let before = demo.cloud.calls();
    print("three Services of type LoadBalancer are created");
    let udp = json!({"name": "dns", "port": 53, "protocol": "UDP"});
    let selector = json!({annotations::NODE_SELECTOR: format!("{ZONE}={zone}")});
    let services = [
        ("web", json!([tcp(80), tcp(443)]), json!({}), "every node"),
        ("dns", json!([udp]), json!({}), "every node"),
        (
            ZONAL,
            json!([tcp(8080)]),
            selector,
            &*format!("nodes of zone {zone} only, by annotation"),
        ),
    ];
    for (name, ports, annotations, backends) in &services {
        let service = serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": ports},
        }))?;
        let made = api.create(&PostParams::default(), &service).await?;
        print(&format!("  {}  backends: {backends}", row(&made)));
    }
    // Then wait for their addresses.
    let served = demo
        .wait_for("service controller", async || {
            let mut served = api.list(&ListParams::default()).await?.items;
            served.retain(|service| address(service).is_some());
            if served.len() == 3 {
                Ok(Ok(served))
            } else {
                Ok(Err(format!("{} of 3 services have an address", served.len())))
            }
        })
        .await?;
    print(&format!(
        "all 3 have an address after {:.1} s; the cloud takes 2 s for each",
        start.elapsed().as_secs_f64()
    ));
    // Finally, print what was created.
    let load_balancers = load_balancers(demo);
    for service in &served {
        let nodes = match load_balancers.get(&service.name_any()) {
            Some(load_balancer) => load_balancer.nodes.len(),
            None => 0,
        };
        print(&format!("  {}  {nodes} nodes", row(service)));
    }
    let calls = demo.cloud.calls().since(&before);
    print(&format!("  cloud calls: {}\n", calls.format_capability(Capability::LoadBalancers)));
    Ok(())
}

/// Excludes a node from the load balancers by label, and prints which load balancers changed.
pub(super) async fn exclude_a_node(demo: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    let zones = zones(demo).await?;
    let zone = zones.get("node-0").context("node-0 has no zone")?;
    // First, choose a node of another zone than node-0, so that one load balancer does not have it.
    // Not the last node: another scene deletes its instance.
    let last = format!("node-{}", demo.nodes - 1);
    let in_other_zone = zones
        .iter()
        .find(|(name, other_zone)| *other_zone != zone && **name != last);
    let victim = match in_other_zone {
        Some((name, _)) => name,
        None => "node-0",
    };
    // Then label it, and wait until no load balancer has it.
    let start = Instant::now();
    let before = demo.cloud.calls();
    let load_balancers_before = load_balancers(demo);
    print(&format!(
        "{victim}, of zone {}, is labelled {EXCLUDE}",
        zones.get(victim).map_or("-", String::as_str)
    ));
    let label = Patch::Merge(json!({"metadata": {"labels": {EXCLUDE: "true"}}}));
    demo.node_api()
        .patch(victim, &PatchParams::default(), &label)
        .await?;
    let load_balancers_after = demo
        .wait_for("service controller", async || {
            let load_balancers = load_balancers(demo);
            for (name, load_balancer) in &load_balancers {
                if load_balancer.nodes.iter().any(|node| node == victim) {
                    return Ok(Err(format!("the load balancer of {name} still uses {victim}")));
                }
            }
            Ok(Ok(load_balancers))
        })
        .await?;
    // Finally, print which load balancers changed.
    let took = start.elapsed().as_secs_f64();
    for (name, after) in &load_balancers_after {
        let before = load_balancers_before
            .get(name)
            .with_context(|| format!("service {name} had no load balancer"))?;
        let changes = after.generation - before.generation;
        if changes == 0 {
            print(&format!("  {name:<6} unchanged: it did not use {victim}"));
        } else {
            let old = before.nodes.len();
            let new = after.nodes.len();
            print(&format!("  {name:<6} {old} nodes -> {new} nodes, {changes} change(s)"));
        }
    }
    print(&format!("no load balancer leads to {victim} after {took:.1} s"));
    print_calls(&demo.cloud.calls().since(&before));
    print("");
    Ok(())
}

fn api(demo: &DemoEnvironment<'_>) -> Api<Service> {
    Api::namespaced(demo.client.clone(), "default")
}

/// Returns the load balancers by the name of their Service.
fn load_balancers(demo: &DemoEnvironment<'_>) -> BTreeMap<String, LoadBalancer> {
    let mut by_name = BTreeMap::new();
    for load_balancer in demo.cloud.load_balancers() {
        let name = load_balancer.service.trim_start_matches("default/");
        by_name.insert(name.to_owned(), load_balancer);
    }
    by_name
}

fn tcp(port: u16) -> serde_json::Value {
    json!({"name": format!("p{port}"), "port": port, "protocol": "TCP"})
}

/// Returns the zones of the nodes by node name.
async fn zones(demo: &DemoEnvironment<'_>) -> anyhow::Result<BTreeMap<String, String>> {
    let nodes = demo
        .node_api()
        .list(&ListParams::default().labels(ZONE))
        .await?
        .items;
    Ok(nodes
        .iter()
        .filter_map(|node| Some((node.name_any(), node.labels().get(ZONE)?.clone())))
        .collect())
}

/// Formats a Service similarly to `kubectl get services`.
fn row(service: &Service) -> String {
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten())
        .map(|port| {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            match port.node_port {
                Some(node_port) => format!("{}:{node_port}/{protocol}", port.port),
                None => format!("{}/{protocol}", port.port),
            }
        });
    let address = address(service).unwrap_or("<pending>");
    format!(
        "{:<6} LoadBalancer  {address:<12} {}",
        service.name_any(),
        ports.collect::<Vec<_>>().join(",")
    )
}

fn address(service: &Service) -> Option<&str> {
    let ingress = service
        .status
        .as_ref()?
        .load_balancer
        .as_ref()?
        .ingress
        .as_ref()?;
    ingress.first()?.ip.as_deref()
}

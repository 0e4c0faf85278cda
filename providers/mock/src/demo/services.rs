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
    nodes::{ZONE, say_calls},
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
pub(super) async fn create(stage: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    // First, create the Services.
    let api = api(stage);
    let zone = zones(stage)
        .await?
        .remove("node-0")
        .context("node-0 has no zone")?;
    let start = Instant::now();
    let before = stage.cloud.calls();
    print("three Services of type LoadBalancer are created");
    let tcp = |port: u16| json!({"name": format!("p{port}"), "port": port, "protocol": "TCP"});
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
    let served = stage
        .wait_for("service controller", async || {
            let services = api.list(&ListParams::default()).await?.items;
            let with_address = services
                .into_iter()
                .filter(|service| address(service).is_some());
            let served: Vec<Service> = with_address.collect();
            let missing = format!("{} of 3 services have an address", served.len());
            Ok(if served.len() == 3 {
                Ok(served)
            } else {
                Err(missing)
            })
        })
        .await?;
    print(&format!(
        "all 3 have an address after {:.1} s; the cloud takes 2 s for each",
        start.elapsed().as_secs_f64()
    ));
    // Finally, print what was created.
    let load_balancers = balancers(stage);
    for service in &served {
        let nodes = load_balancers
            .get(&service.name_any())
            .map_or(0, |load_balancer| load_balancer.nodes.len());
        print(&format!("  {}  {nodes} nodes", row(service)));
    }
    let calls = stage.cloud.calls().since(&before);
    print(&format!("  cloud calls: {}\n", calls.of_capability(Capability::LoadBalancers)));
    Ok(())
}

/// Excludes a node from the load balancers by label, and prints which load balancers changed.
pub(super) async fn exclude_a_node(stage: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    let zones = zones(stage).await?;
    let zone = zones.get("node-0").context("node-0 has no zone")?;
    // First, choose a node of another zone than node-0, so that one load balancer does not have it.
    // Not the last node: another scene deletes its instance.
    let last = format!("node-{}", stage.nodes - 1);
    let elsewhere = zones
        .iter()
        .find(|(name, other)| *other != zone && **name != last);
    let victim = elsewhere.map_or("node-0", |(name, _)| name);
    // Then label it, and wait until no load balancer has it.
    let start = Instant::now();
    let before = stage.cloud.calls();
    let seen = balancers(stage);
    print(&format!(
        "{victim}, of zone {}, is labelled {EXCLUDE}",
        zones.get(victim).map_or("-", String::as_str)
    ));
    let label = Patch::Merge(json!({"metadata": {"labels": {EXCLUDE: "true"}}}));
    stage
        .node_api()
        .patch(victim, &PatchParams::default(), &label)
        .await?;
    let now = stage
        .wait_for("service controller", async || {
            let now = balancers(stage);
            let holds = now
                .iter()
                .find(|(_, balancer)| balancer.nodes.iter().any(|node| node == victim));
            let missing =
                holds.map(|(name, _)| format!("{victim} is behind the balancer of {name}"));
            Ok(missing.map_or(Ok(now), Err))
        })
        .await?;
    // Finally, print which load balancers changed.
    let took = start.elapsed().as_secs_f64();
    for (name, balancer) in &now {
        let old = seen
            .get(name)
            .with_context(|| format!("service {name} had no balancer"))?;
        let touched = balancer.generation - old.generation;
        print(&match touched {
            0 => format!("  {name:<6} untouched: {victim} was not behind it"),
            times => {
                let old = old.nodes.len();
                let new = balancer.nodes.len();
                format!("  {name:<6} {old} nodes -> {new} nodes, {times} change(s)")
            }
        });
    }
    print(&format!("no balancer leads to {victim} any more after {took:.1} s"));
    say_calls(&stage.cloud.calls().since(&before));
    print("");
    Ok(())
}

fn api(stage: &DemoEnvironment<'_>) -> Api<Service> {
    Api::namespaced(stage.client.clone(), "default")
}

/// Returns the load balancers by the name of their Service.
fn balancers(stage: &DemoEnvironment<'_>) -> BTreeMap<String, LoadBalancer> {
    let name = |load_balancer: &LoadBalancer| {
        load_balancer
            .service
            .trim_start_matches("default/")
            .to_owned()
    };
    stage
        .cloud
        .load_balancers()
        .into_iter()
        .map(|balancer| (name(&balancer), balancer))
        .collect()
}

/// Returns the zones of the nodes by node name.
async fn zones(stage: &DemoEnvironment<'_>) -> anyhow::Result<BTreeMap<String, String>> {
    let nodes = stage
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

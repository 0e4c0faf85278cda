//! Nodes and the routes to them.

use std::collections::BTreeMap;

use ccm_testkit::kubelet::{NodeSpec, Ready};
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt, api::ListParams};
use tokio::time::Instant;

use super::{
    say,
    stage::{Stage, say_some, wait_for},
};
use crate::cloud::{Calls, Capability};

/// Label that initialisation sets last, together with taking the taint away.
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";

/// Lets nodes join, and waits until they are initialised.
pub(super) async fn join(stage: &Stage<'_>) -> anyhow::Result<()> {
    let (api, start, wanted) = (stage.node_api(), Instant::now(), stage.nodes);
    say(&format!("{wanted} nodes join, tainted as uninitialized"));
    stage.kubelets.register_all((0..wanted).map(|i| NodeSpec::new(format!("node-{i}")))).await?;
    let nodes = wait_for("cloud-node", async || {
        let nodes = api.list(&ListParams::default().labels(ZONE)).await?.items;
        Ok(if nodes.len() == wanted {
            Ok(nodes)
        } else {
            Err(format!("{} of {wanted} nodes initialised", nodes.len()))
        })
    })
    .await?;
    say_some(nodes.iter().map(describe));
    say(&format!("all {wanted} nodes initialised after {:.1} s", start.elapsed().as_secs_f64()));
    say(&format!("  cloud calls: {}\n", stage.cloud.calls().of_capability(Capability::Instances)));
    Ok(())
}

/// Waits until every node has a pod CIDR, and a route leads there.
pub(super) async fn routes(stage: &Stage<'_>) -> anyhow::Result<()> {
    let (api, start, wanted) = (stage.node_api(), Instant::now(), stage.nodes);
    let cidrs = wait_for("node IPAM", async || {
        let nodes = api.list(&ListParams::default()).await?.items;
        let cidrs: BTreeMap<String, String> =
            nodes.iter().filter_map(|node| Some((node.name_any(), node.spec.as_ref()?.pod_cidr.clone()?))).collect();
        let missing = format!("{} of {wanted} nodes have a pod CIDR", cidrs.len());
        Ok(if cidrs.len() == wanted { Ok(cidrs) } else { Err(missing) })
    })
    .await?;
    let routes = wait_for("route", async || {
        let routes = stage.cloud.routes();
        let right = |(node, cidr): (&String, &String)| {
            routes.iter().any(|route| route.node == *node && route.destination.to_string() == *cidr)
        };
        let there = cidrs.iter().filter(|pair| right(*pair)).count();
        Ok(if there == wanted { Ok(routes) } else { Err(format!("{there} of {wanted} nodes have a route")) })
    })
    .await?;
    say_some(routes.iter().map(|route| format!("route {} -> {}", route.destination, route.node)));
    say(&format!("all {wanted} nodes have a pod CIDR and a route, {:.1} s later", start.elapsed().as_secs_f64()));
    say(&format!("  cloud calls: {}\n", stage.cloud.calls().of_capability(Capability::Routes)));
    Ok(())
}

/// Deletes the instance of the last node and waits until nothing speaks of the node any more.
pub(super) async fn lose_an_instance(stage: &Stage<'_>) -> anyhow::Result<()> {
    let (api, victim) = (stage.node_api(), format!("node-{}", stage.nodes - 1));
    say(&format!("the instance of {victim} is deleted in the cloud, and its kubelet falls silent"));
    let (start, before) = (Instant::now(), stage.cloud.calls());
    stage.cloud.delete_instance(&victim);
    stage.kubelets.set_ready(&victim, Ready::Unknown).await?;
    wait_for("cloud-node-lifecycle", async || {
        Ok(if api.get_opt(&victim).await?.is_none() { Ok(()) } else { Err(format!("Node {victim} is still there")) })
    })
    .await?;
    let took = start.elapsed().as_secs_f64();
    say(&format!("  Node {victim} deleted after {took:.1} s: asked twice, with living nodes as controls"));
    wait_for("service", async || {
        let holds = stage.cloud.load_balancers().into_iter().find(|balancer| balancer.nodes.contains(&victim));
        Ok(holds.map_or(Ok(()), |balancer| Err(format!("{victim} is behind the balancer of {}", balancer.service))))
    })
    .await?;
    wait_for("route", async || {
        let route = stage.cloud.routes().into_iter().find(|route| route.node == victim);
        Ok(route.map_or(Ok(()), |route| Err(format!("route {} leads to {victim}", route.destination))))
    })
    .await?;
    let took = start.elapsed().as_secs_f64();
    say(&format!("  no balancer and no route leads to {victim} any more after {took:.1} s"));
    say_calls(&stage.cloud.calls().since(&before));
    Ok(())
}

/// Shows the calls that changed the cloud.
pub(super) fn say_calls(calls: &Calls) {
    say(&format!("  cloud calls: {calls}"));
}

fn describe(node: &Node) -> String {
    let label = |key: &str| node.labels().get(key).map_or("-", String::as_str);
    let addresses: Vec<String> = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten())
        .map(|address| format!("{}={}", address.type_, address.address))
        .collect();
    let (zone, kind) = (label(ZONE), label("node.kubernetes.io/instance-type"));
    format!("{}  initialised  zone={zone}  type={kind}  {}", node.name_any(), addresses.join("  "))
}

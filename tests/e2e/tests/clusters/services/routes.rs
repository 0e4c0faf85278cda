//! Routes to the nodes' pod networks, and the condition that tells of them.

use std::time::Duration;

use anyhow::Context as _;
use ccm_e2e::scenario::{SOON, Scenario, condition};
use ccm_mock::cloud::RouteBody;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::case;
use crate::run::{Case, EVERYWHERE};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(
            "told",
            EVERYWHERE,
            the_condition_of_a_node_that_is_initialised_comes_alone_and_spoils_no_other
        ),
        case!("routes", EVERYWHERE, routes_follow_the_nodes_and_those_of_others_stay),
    ]
}

/// Changes of nodes are followed at once; the period is for what others do in the cloud.
const FLAGS: [&str; 3] = [
    "--node-status-update-frequency=10m",
    "--cluster-cidr=10.244.0.0/16,fd00:244::/48",
    "--route-reconciliation-period=2s",
];

/// Networks of the n-th node.
fn networks(n: usize) -> Vec<String> {
    // From 1, because a zero is not written so.
    let n = n + 1;
    vec![format!("10.244.{n}.0/24"), format!("fd00:244:0:{n:x}::/64")]
}

async fn the_condition_of_a_node_that_is_initialised_comes_alone_and_spoils_no_other(
    s: &Scenario,
) -> anyhow::Result<()> {
    let name = s.name(0);
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(std::slice::from_ref(&name)).await?;
    add_condition(s, &name).await?;
    s.add_pod_cidrs(&name, &networks(1)).await?;
    s.routed(&[], SOON).await?;
    let writes = s
        .node_writes("a")
        .await?
        .into_iter()
        .filter(ccm_e2e::server::Write::succeeded);
    let resources: Vec<_> = writes.map(|write| write.resource).collect();
    anyhow::ensure!(resources == ["nodes/status", "nodes", "nodes/status"], "{resources:?}");
    let node = s.node(&name)?;
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure", THEIRS] {
        let condition = condition(&node, kind).with_context(|| format!("{kind} is lost"))?;
        anyhow::ensure!(
            condition.reason.is_some() && condition.last_heartbeat_time.is_some(),
            "{condition:?}"
        );
    }
    let ours = condition(&node, "NetworkUnavailable").context("no condition")?;
    anyhow::ensure!(ours.message.as_deref() == Some("RouteController created a route"), "{ours:?}");
    anyhow::ensure!(ours.last_transition_time.is_some(), "{ours:?}");
    ccm.terminate().await
}

const THEIRS: &str = "e2e.example/Theirs";

/// Adds a condition of somebody else's.
async fn add_condition(s: &Scenario, name: &str) -> anyhow::Result<()> {
    let condition = json!({
        "type": THEIRS,
        "status": "True",
        "reason": "BecauseOfUs",
        "lastHeartbeatTime": "2026-01-02T03:04:05Z",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    });
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    s.nodes_api()
        .patch_status(name, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

async fn routes_follow_the_nodes_and_those_of_others_stay(s: &Scenario) -> anyhow::Result<()> {
    let names = s.names(40);
    let (first, late) = names.split_at(30);
    // Outside the cluster's networks, also where only the base address is the same.
    let foreign = ["10.245.1.0/24", "10.244.0.0/14", "fd00:244::/32"];
    for (n, destination) in foreign.iter().enumerate() {
        let body = RouteBody {
            name: None,
            node: Some("gateway".to_owned()),
            destination: Some(destination.parse()?),
            blackhole: Some(n == 0),
        };
        s.cloud.put_route(&format!("foreign-{n}"), body)?;
    }
    let foreign = ["10.245.1.0/24", "10.244.0.0/14", "fd00:244::/32"];
    s.register(first).await?;
    for (n, name) in first.iter().enumerate() {
        s.add_pod_cidrs(name, &networks(n)).await?;
    }
    let mut ccm = s.start("a", &FLAGS).await?;
    s.routed(&foreign, SOON).await?;
    s.initialized(first, SOON).await?;
    anyhow::ensure!(s.cloud.calls().create_route == 60, "{}", s.cloud.calls());

    // Nodes come and go.
    s.register(late).await?;
    for (n, name) in late.iter().enumerate() {
        s.add_pod_cidrs(name, &networks(100 + n)).await?;
    }
    for name in &first[..10] {
        s.kubelets.stop_node(name)?;
        s.delete_node(name).await?;
    }
    s.routed(&foreign, SOON).await?;
    let calls = s.cloud.calls();
    anyhow::ensure!((calls.create_route, calls.delete_route) == (80, 20), "{calls}");

    // A restart changes nothing.
    ccm.signal(ccm_e2e::ccm::Signal::Term).await?;
    ccm.exit(SOON).await?;
    let (before, writes) = (s.cloud.calls(), s.node_writes("a").await?.len());
    let ccm = s.start("a", &FLAGS).await?;
    s.until("the routes are listed", SOON, || s.cloud.calls().list_routes > before.list_routes + 1)
        .await?;
    let since = s.cloud.calls().since(&before);
    anyhow::ensure!(since.writes() == 0, "{since}");
    let written = s.node_writes("a").await?.split_off(writes);
    anyhow::ensure!(written.is_empty(), "{written:?}");

    // What somebody takes away in the cloud comes back within a period.
    let lost = s
        .cloud
        .routes()
        .into_iter()
        .find(|route| route.node == late[0])
        .context("no route")?;
    s.cloud.delete_route(&lost.name);
    s.routed(&foreign, SOON).await?;
    let left = s
        .cloud
        .routes()
        .iter()
        .filter(|route| route.name.starts_with("foreign-"))
        .count();
    anyhow::ensure!(left == foreign.len(), "{left} foreign routes are left");
    s.stays("it stays so", Duration::from_secs(1), || s.in_routes(&foreign))
        .await?;
    ccm.terminate().await
}

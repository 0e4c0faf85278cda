//! Nodes, from servers of Nova.

use ccm_testkit::kubelet::{NodeSpec, Ready};
use http::Method;
use kube::ResourceExt as _;
use serde_json::json;

use crate::{
    cloud::User,
    fixture::{ClusterFixture, SOON, is_tainted},
};

/// Taint of a node whose server is stopped.
const SHUTDOWN_TAINT: &str = "node.cloudprovider.kubernetes.io/shutdown";
const FLAGS: [&str; 1] = ["--controllers=cloud-node,cloud-node-lifecycle"];

/// Nodes get provider ID, labels and addresses, a floating IP among them; a stopped server's node
/// has the taint while it is stopped, and a deleted server's node is deleted. No other node is
/// touched.
pub(crate) async fn nodes_are_initialised_and_follow_their_servers(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let cloud = stage.cloud;
    let zones = ["az-1", "az-2", "az-3"];
    for (at, zone) in zones.iter().enumerate() {
        stage
            .make(&format!("node-{at}"), json!({"availability_zone": zone}))
            .await?;
    }
    let floating =
        json!({"floating_network_id": cloud.id("public"), "port_id": stage.servers[0].port});
    let floating = cloud
        .create(User::Owner, "network", "/v2.0/floatingips", "floatingip", floating)
        .await?;
    // Neutron tells Nova of the floating IP a moment later.
    let path = format!("/servers/{}", stage.servers[0].id);
    stage
        .until("Nova knows the floating IP", SOON, async || {
            let server = cloud.get(User::Owner, "compute", &path).await?;
            let addresses = server["server"]["addresses"].to_string();
            Ok(if addresses.contains("floating") {
                Ok(())
            } else {
                Err(addresses)
            })
        })
        .await?;
    // What a start would meet is known before.
    let (code, report) = stage.report("check", &FLAGS).await?;
    anyhow::ensure!(code == Some(0), "check ends with {code:?}: {report:#}");
    stage.start(&FLAGS).await?;
    let names = ["node-0", "node-1", "node-2"];
    // The last kubelet knows its provider ID, in the form with a region.
    let given = format!("openstack://RegionOne/{}", stage.servers[2].id);
    let last = NodeSpec::new("node-2").provider_id(given.clone());
    let specs = [NodeSpec::new("node-0"), NodeSpec::new("node-1"), last];
    stage.kubelets.register_all(specs).await?;
    let ids = [stage.servers[0].provider_id(), stage.servers[1].provider_id(), given];
    for (at, node) in stage.initialized(&names).await?.iter().enumerate() {
        let found = node
            .spec
            .as_ref()
            .and_then(|spec| spec.provider_id.as_ref());
        anyhow::ensure!(found == Some(&ids[at]), "{at}: {found:?}");
        for (label, value) in [
            ("node.kubernetes.io/instance-type", "m1.tiny"),
            ("topology.kubernetes.io/zone", zones[at]),
            ("topology.kubernetes.io/region", "RegionOne"),
        ] {
            let found = node.labels().get(label);
            anyhow::ensure!(
                found.is_some_and(|found| found == value),
                "{at}: {label} is {found:?}"
            );
        }
    }
    shows_addresses(stage, floating["floating_ip_address"].as_str().unwrap_or_default()).await?;
    follows_power(stage).await?;
    follows_deletion(stage).await?;
    stage.stop().await
}

/// The first node shows its own and its floating address.
async fn shows_addresses(stage: &ClusterFixture<'_>, floating: &str) -> anyhow::Result<()> {
    stage
        .until("addresses", SOON, async || {
            let node = stage.node_api().get("node-0").await?;
            let addresses = node
                .status
                .and_then(|status| status.addresses)
                .unwrap_or_default();
            let has = |kind: &str, address: &str| {
                addresses
                    .iter()
                    .any(|a| a.type_ == kind && a.address == address)
            };
            let whole = has("InternalIP", &stage.servers[0].ip) && has("ExternalIP", floating);
            Ok(if whole {
                Ok(())
            } else {
                Err(format!("{addresses:?}"))
            })
        })
        .await
}

/// The second node has the taint while its server is stopped.
async fn follows_power(stage: &ClusterFixture<'_>) -> anyhow::Result<()> {
    let server = format!("/servers/{}/action", stage.servers[1].id);
    for (action, stopped) in [("os-stop", true), ("os-start", false)] {
        stage
            .cloud
            .must(User::Owner, Method::POST, "compute", &server, Some(json!({action: null})))
            .await?;
        stage
            .kubelets
            .set_ready("node-1", if stopped { Ready::False } else { Ready::True })
            .await?;
        stage
            .until(&format!("{action} is noticed"), SOON, async || {
                let node = stage.node_api().get("node-1").await?;
                let tainted = is_tainted(&node, SHUTDOWN_TAINT);
                Ok(if tainted == stopped {
                    Ok(())
                } else {
                    Err(format!("tainted: {tainted}"))
                })
            })
            .await?;
    }
    Ok(())
}

/// The third node goes with its server. A node that is not ready although its server is there stays.
async fn follows_deletion(stage: &ClusterFixture<'_>) -> anyhow::Result<()> {
    let path = format!("/servers/{}", stage.servers[2].id);
    stage
        .cloud
        .must(User::Owner, Method::DELETE, "compute", &path, None)
        .await?;
    stage.kubelets.set_ready("node-0", Ready::False).await?;
    stage.kubelets.set_ready("node-2", Ready::Unknown).await?;
    stage
        .until("the node of the deleted server is deleted", SOON, async || {
            let node = stage.node_api().get_opt("node-2").await?;
            Ok(if node.is_none() {
                Ok(())
            } else {
                Err("it is there".to_owned())
            })
        })
        .await?;
    for name in ["node-0", "node-1"] {
        stage.node_api().get(name).await?;
    }
    Ok(())
}

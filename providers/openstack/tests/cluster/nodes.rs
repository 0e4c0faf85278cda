//! Nodes: what upstream's manager would write, from the same servers.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use ccm_testkit::kubelet::{NodeSpec, Ready, UNINITIALIZED_TAINT};
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, api::DeleteParams};
use openstack_local::api::nova::ServerCreate;
use openstack_local::{
    nova,
    server::{Fault, FaultKind},
    state::{CloudState, RequestContext},
};

use crate::fixture::{ClusterFixture, cloud::small};

/// Taint of a node whose server is stopped.
const SHUTDOWN_TAINT: &str = "node.cloudprovider.kubernetes.io/shutdown";

const FLAGS: [&str; 1] = ["--controllers=cloud-node,cloud-node-lifecycle"];

fn is_tainted(node: &Node, with: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == with))
}

/// Type and address, in order.
fn addresses(node: &Node) -> Vec<(String, String)> {
    let addresses = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.clone());
    addresses
        .into_iter()
        .flatten()
        .map(|address| (address.type_, address.address))
        .collect()
}

pub(crate) async fn initialized(
    stage: &ClusterFixture,
    names: &[&str],
) -> anyhow::Result<Vec<Node>> {
    stage
        .until("initialised", async || {
            for name in names {
                if is_tainted(&stage.node_api().get(name).await?, UNINITIALIZED_TAINT) {
                    return Ok(Err(format!("{name} has the taint")));
                }
            }
            Ok(Ok(()))
        })
        .await?;
    let mut nodes = Vec::new();
    for name in names {
        nodes.push(stage.node_api().get(name).await?);
    }
    Ok(nodes)
}

pub(crate) async fn a_node_gets_what_upstream_writes(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    let add_zone = |state: &mut CloudState, _: &RequestContext| {
        nova::zones::add(state, "zone one");
        Ok(())
    };
    stage.cloud.change(add_zone).await?;
    let metadata = BTreeMap::from([("hostname".to_owned(), "first.example.org".to_owned())]);
    let request = ServerCreate {
        availability_zone: Some("zone one".into()),
        access_ipv4: Some("192.0.2.7".into()),
        metadata: Some(metadata),
        ..small("node-0")
    };
    let first = stage.cloud.server(request).await?;
    let second = stage
        .cloud
        .server(ServerCreate { flavor_ref: "3".into(), ..small("node-1") })
        .await?;
    let third = stage.cloud.server(small("third")).await?;
    stage.start(&FLAGS).await?;
    // By name; the last kubelet knows its provider ID, in the form with a region.
    let given = format!("openstack://RegionOne/{}", third.id);
    let specs = [
        NodeSpec::new("node-0"),
        NodeSpec::new("node-1"),
        NodeSpec::new("node-2").provider_id(given.clone()),
    ];
    stage.kubelets.register_all(specs).await?;
    let nodes = initialized(stage, &["node-0", "node-1", "node-2"]).await?;
    let ids = [first.provider_id(), second.provider_id(), given];
    let kinds = ["m1.small", "m1.medium", "m1.small"];
    let zones = ["zone-one", "nova", "nova"];
    for (at, node) in nodes.iter().enumerate() {
        let found = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
        anyhow::ensure!(found.as_ref() == Some(&ids[at]), "{at}: {found:?}");
        for (key, value) in [
            ("node.kubernetes.io/instance-type", kinds[at]),
            ("beta.kubernetes.io/instance-type", kinds[at]),
            ("topology.kubernetes.io/zone", zones[at]),
            ("topology.kubernetes.io/region", "RegionOne"),
            ("failure-domain.beta.kubernetes.io/zone", zones[at]),
            ("failure-domain.beta.kubernetes.io/region", "RegionOne"),
        ] {
            let there = node.labels();
            anyhow::ensure!(
                there.get(key).is_some_and(|found| found == value),
                "{at}: {key} of {there:?}: {value}"
            );
        }
    }
    let internal = |ip: std::net::IpAddr| ("InternalIP".to_owned(), ip.to_string());
    let wanted = [
        internal(first.ip),
        ("ExternalIP".to_owned(), "192.0.2.7".to_owned()),
        ("Hostname".to_owned(), "first.example.org".to_owned()),
    ];
    anyhow::ensure!(addresses(&nodes[0]) == wanted, "{:?}", addresses(&nodes[0]));
    anyhow::ensure!(addresses(&nodes[1]) == [internal(second.ip)], "{:?}", addresses(&nodes[1]));
    stage.stop().await
}

/// Waits until the manager has asked for servers a few times more.
async fn looked(stage: &ClusterFixture) -> anyhow::Result<()> {
    let asked = || {
        stage
            .cloud
            .local
            .cloud()
            .journal
            .count("GET", "/compute/v2.1/servers")
    };
    let before = asked();
    stage
        .until("servers are asked for", async || {
            Ok(if asked() >= before + 4 {
                Ok(())
            } else {
                Err(String::new())
            })
        })
        .await
}

/// Makes a node one of another region, which this manager must not judge.
async fn move_elsewhere(stage: &ClusterFixture, name: &str) -> anyhow::Result<()> {
    stage.kubelets.stop_node(name)?;
    let node = stage.node_api().get(name).await?;
    let id = node
        .spec
        .and_then(|spec| spec.provider_id)
        .unwrap_or_default();
    stage
        .node_api()
        .delete(name, &DeleteParams::default())
        .await?;
    let id = id.replace("openstack:///", "openstack://Elsewhere/");
    stage
        .kubelets
        .register(NodeSpec::new(name).provider_id(id).initialized())
        .await?;
    Ok(())
}

/// Stopped servers are tainted and started ones are not, deleted ones lose their Node, and doubt
/// changes nothing.
// length: one story, told in order
pub(crate) async fn nodes_follow_their_servers(stage: &mut ClusterFixture) -> anyhow::Result<()> {
    stage.nodes(6).await?;
    move_elsewhere(stage, "node-5").await?;
    stage.start(&FLAGS).await?;
    let servers = stage.servers.clone();
    stage.cloud.delete(&servers[0]).await?;
    stage.cloud.set_status(&servers[1], "SHUTOFF").await?;
    stage.cloud.set_cell_down(&servers[2], true).await?;
    stage.cloud.set_status(&servers[3], "REBUILD").await?;
    stage.cloud.delete(&servers[5]).await?;
    // The fourth is well, the proof that the cloud can be believed.
    for at in [0, 1, 2, 3, 5] {
        stage
            .kubelets
            .set_ready(&format!("node-{at}"), Ready::Unknown)
            .await?;
    }
    stage
        .until("the first is gone and the second tainted", async || {
            let gone = stage.node_api().get_opt("node-0").await?.is_none();
            let stopped = stage.node_api().get("node-1").await?;
            let fine = gone && is_tainted(&stopped, SHUTDOWN_TAINT);
            Ok(if fine {
                Ok(())
            } else {
                Err(format!("gone: {gone}; {:?}", stopped.spec))
            })
        })
        .await?;
    looked(stage).await?;
    for at in 2..6 {
        let node = stage.node_api().get_opt(&format!("node-{at}")).await?;
        let node = node.with_context(|| format!("node-{at} is gone"))?;
        anyhow::ensure!(!is_tainted(&node, SHUTDOWN_TAINT), "node-{at} is tainted");
    }
    // The cell answers again: its server is well, or gone.
    stage.cloud.set_cell_down(&servers[2], false).await?;
    stage.cloud.delete(&servers[2]).await?;
    stage.cloud.set_status(&servers[1], "ACTIVE").await?;
    stage.kubelets.set_ready("node-1", Ready::True).await?;
    stage
        .until("the third is gone and the second free", async || {
            let gone = stage.node_api().get_opt("node-2").await?.is_none();
            let tainted = is_tainted(&stage.node_api().get("node-1").await?, SHUTDOWN_TAINT);
            Ok(if gone && !tainted {
                Ok(())
            } else {
                Err(format!("gone: {gone}, tainted: {tainted}"))
            })
        })
        .await?;
    // A page in the place of an answer says nothing, least of all that a server is gone.
    let page = FaultKind::Body { code: 404, text: "<html>no such page</html>".into() };
    stage
        .cloud
        .local
        .cloud()
        .faults
        .add(Fault::new("/compute", page));
    stage.kubelets.set_ready("node-4", Ready::Unknown).await?;
    looked(stage).await?;
    stage
        .node_api()
        .get("node-4")
        .await
        .context("it is there")?;
    stage.cloud.local.cloud().faults.clear();
    // A server of the same name is another one.
    let again = stage.make("node-0").await?;
    let spec = stage.kubelets.stop_node("node-0")?;
    stage.kubelets.register(NodeSpec::new(spec.name)).await?;
    let node = initialized(stage, &["node-0"]).await?.remove(0);
    let id = node.spec.and_then(|spec| spec.provider_id);
    anyhow::ensure!(id == Some(again.provider_id()), "{id:?}");
    stage.stop().await
}

/// Addresses come in the order that is configured, internal networks alone give internal ones.
pub(crate) async fn addresses_come_in_the_order_of_the_configuration(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.config.networking = "address-sort-order = fd00:77::/64, 127.0.0.0/8\n".into();
    let [four, six] = stage.cloud.server_of_both_families("node-0").await?;
    stage.start(&FLAGS).await?;
    stage.kubelets.register(NodeSpec::new("node-0")).await?;
    let found = addresses(&initialized(stage, &["node-0"]).await?[0]);
    let wanted = [six.ip, four.ip].map(|ip| ("InternalIP".to_owned(), ip.to_string()));
    anyhow::ensure!(found == wanted, "{found:?} is not {wanted:?}");
    stage.stop().await
}

/// A token that has expired, or that the cloud no longer takes, is exchanged; requests amid that
/// are answered.
pub(crate) async fn a_token_that_expires_is_renewed(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    for at in 0..3 {
        stage.make(format!("node-{at}")).await?;
    }
    stage.start(&FLAGS).await?;
    stage.kubelets.register(NodeSpec::new("node-0")).await?;
    initialized(stage, &["node-0"]).await?;
    let cloud = stage.cloud.local.cloud().clone();
    cloud.journal.clear();
    cloud.clock.advance(Duration::from_secs(7200));
    stage.kubelets.register(NodeSpec::new("node-1")).await?;
    initialized(stage, &["node-1"]).await?;
    let tokens = cloud.journal.count("POST", "/identity/v3/auth/tokens");
    anyhow::ensure!(tokens == 1, "{tokens} requests for a token");
    let refused = Fault::new("/compute", FaultKind::status(401)).times(1);
    cloud.faults.add(refused);
    stage.kubelets.register(NodeSpec::new("node-2")).await?;
    initialized(stage, &["node-2"]).await?;
    anyhow::ensure!(cloud.faults.pending().is_empty(), "nothing was refused");
    let tokens = cloud.journal.count("POST", "/identity/v3/auth/tokens");
    anyhow::ensure!(tokens == 2, "{tokens} requests for a token");
    stage.stop().await
}

/// A password that is changed in the cloud and then in the file is used without a restart.
pub(crate) async fn a_changed_password_needs_no_restart(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    for at in 0..3 {
        stage.make(format!("node-{at}")).await?;
    }
    stage.start(&FLAGS).await?;
    stage.kubelets.register(NodeSpec::new("node-0")).await?;
    initialized(stage, &["node-0"]).await?;
    stage.cloud.change_password("another-secret").await?;
    stage.kubelets.register(NodeSpec::new("node-1")).await?;
    stage.logged(&["node-1", "authentication"]).await?;
    stage.config.password = Some("another-secret".into());
    stage.rewrite_config()?;
    // The node that was refused is asked for again after a pause; one that comes now need not wait.
    stage.kubelets.register(NodeSpec::new("node-2")).await?;
    initialized(stage, &["node-2"]).await?;
    let log = stage.log();
    let told = ["another-secret", stage.cloud.password().expose()]
        .iter()
        .any(|secret| log.contains(secret));
    anyhow::ensure!(!told, "a password is in {log}");
    stage.stop().await
}

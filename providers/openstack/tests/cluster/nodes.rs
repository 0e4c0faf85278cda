//! Nodes: what upstream's manager would write, from the same servers.

use std::collections::BTreeMap;

use ccm_testkit::kubelet::{NodeSpec, UNINITIALIZED_TAINT};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use openstack_api::nova::ServerCreate;
use openstack_local::{
    nova,
    state::{Cx, State},
};

use crate::stage::{Stage, cloud::small};

const FLAGS: [&str; 1] = ["--controllers=cloud-node,cloud-node-lifecycle"];

fn is_tainted(node: &Node, with: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == with))
}

/// Type and address, in order.
fn addresses(node: &Node) -> Vec<(String, String)> {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.clone());
    addresses.into_iter().flatten().map(|address| (address.type_, address.address)).collect()
}

async fn initialized(stage: &Stage, names: &[&str]) -> anyhow::Result<Vec<Node>> {
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

pub(crate) async fn a_node_gets_what_upstream_writes(stage: &mut Stage) -> anyhow::Result<()> {
    let add_zone = |state: &mut State, _: &Cx| {
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
    let second = stage.cloud.server(ServerCreate { flavor_ref: "3".into(), ..small("node-1") }).await?;
    let third = stage.cloud.server(small("third")).await?;
    stage.start(&FLAGS).await?;
    // By name; the last kubelet knows its provider ID, in the form with a region.
    let given = format!("openstack://RegionOne/{}", third.id);
    let specs = [NodeSpec::new("node-0"), NodeSpec::new("node-1"), NodeSpec::new("node-2").provider_id(given.clone())];
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
            anyhow::ensure!(there.get(key).is_some_and(|found| found == value), "{at}: {key} of {there:?}: {value}");
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

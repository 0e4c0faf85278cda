//! Nodes: what upstream's manager would write, from the same instances.

use std::collections::BTreeMap;

use ccm_testkit::{
    kubelet::{NodeSpec, Ready, UNINITIALIZED_TAINT},
    moto::query_api::EC2,
};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use super::fixture::ClusterFixture;

/// Taint of a node whose instance is stopped.
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
    stage: &ClusterFixture<'_>,
    names: &[String],
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

// IN4 IN11 IN12 IN14 TO1 E7 E8
pub(crate) async fn a_node_gets_what_upstream_writes(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.launch(3, "m5.large").await?;
    stage.launch(1, "p4d.24xlarge").await?;
    stage.start(&FLAGS).await?;
    let instances = stage.instances.clone();
    // By private DNS name, by ID, by ID with a domain; the last kubelet knows its provider ID, in
    // the short form.
    let names = [
        instances[0].private_dns_name.clone(),
        instances[1].id.clone(),
        format!("{}.us-west-2.compute.internal", instances[2].id),
        instances[3].private_dns_name.clone(),
    ];
    let given = format!("aws:////{}", instances[3].id);
    let specs = names.iter().map(|name| match name == &names[3] {
        true => NodeSpec::new(name).provider_id(&given),
        false => NodeSpec::new(name),
    });
    stage.kubelets.register_all(specs).await?;
    let nodes = initialized(stage, &names).await?;
    for (at, (node, instance)) in nodes.iter().zip(&instances).enumerate() {
        let zone = ["us-west-2a", "us-west-2b"][at % 2];
        let found = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
        let wanted = if at == 3 {
            given.clone()
        } else {
            format!("aws:///{zone}/{}", instance.id)
        };
        anyhow::ensure!(found.as_deref() == Some(&*wanted), "{}: {found:?}", names[at]);
        let kind = if at == 3 { "p4d.24xlarge" } else { "m5.large" };
        let subnet = &stage.network.public[at % 2].id;
        let labels = [
            ("node.kubernetes.io/instance-type", kind.to_owned()),
            ("beta.kubernetes.io/instance-type", kind.to_owned()),
            ("topology.kubernetes.io/zone", zone.to_owned()),
            ("topology.kubernetes.io/region", "us-west-2".to_owned()),
            ("failure-domain.beta.kubernetes.io/zone", zone.to_owned()),
            ("failure-domain.beta.kubernetes.io/region", "us-west-2".to_owned()),
            ("topology.k8s.aws/zone-id", ["usw2-az2", "usw2-az1"][at % 2].to_owned()),
            ("topology.k8s.aws/network-node-layer-1", "nn-us-west-2".to_owned()),
            ("topology.k8s.aws/network-node-layer-2", format!("nn-{zone}")),
            ("topology.k8s.aws/network-node-layer-3", format!("nn-{subnet}")),
        ];
        let there: BTreeMap<_, _> = node.labels().clone();
        for (key, value) in labels {
            anyhow::ensure!(
                there.get(key) == Some(&value),
                "{}: {key} of {there:?} is not {value}",
                names[at]
            );
        }
        let mut wanted = vec![("InternalIP".to_owned(), instance.private_ip.clone())];
        wanted.extend(
            public_ip(stage, &instance.id)
                .await?
                .map(|ip| ("ExternalIP".to_owned(), ip)),
        );
        for kind in ["InternalDNS", "Hostname"] {
            wanted.push((kind.to_owned(), instance.private_dns_name.clone()));
        }
        let found: Vec<_> = addresses(node)
            .into_iter()
            .filter(|(kind, _)| kind != "ExternalDNS")
            .collect();
        anyhow::ensure!(found == wanted, "{}: {found:?} is not {wanted:?}", names[at]);
    }
    stage.stop().await
}

async fn public_ip(stage: &ClusterFixture<'_>, id: &str) -> anyhow::Result<Option<String>> {
    let found = stage
        .fixture
        .wire()
        .ask(EC2, "DescribeInstances", [("InstanceId.1", id)])
        .await?;
    Ok(found.texts("ipAddress").into_iter().next())
}

// IN9 IN10
pub(crate) async fn nodes_follow_their_instances(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.nodes(3).await?;
    stage.start(&FLAGS).await?;
    let names: Vec<_> = stage
        .instances
        .iter()
        .map(|instance| instance.private_dns_name.clone())
        .collect();
    stage
        .fixture
        .instance_state("TerminateInstances", &stage.instances[0].id)
        .await?;
    stage
        .fixture
        .instance_state("StopInstances", &stage.instances[1].id)
        .await?;
    // The third is the proof that AWS can be believed.
    for name in &names[..2] {
        stage.kubelets.set_ready(name, Ready::Unknown).await?;
    }
    stage
        .until("the first is gone and the second tainted", async || {
            let gone = stage.node_api().get_opt(&names[0]).await?.is_none();
            let stopped = stage.node_api().get(&names[1]).await?;
            let fine = gone && is_tainted(&stopped, SHUTDOWN_TAINT);
            Ok(if fine {
                Ok(())
            } else {
                Err(format!("gone: {gone}; {:?}", stopped.spec))
            })
        })
        .await?;
    let third = stage.node_api().get(&names[2]).await?;
    anyhow::ensure!(!is_tainted(&third, SHUTDOWN_TAINT), "an instance that runs is no reason");
    // It starts again: the taint goes.
    stage
        .fixture
        .instance_state("StartInstances", &stage.instances[1].id)
        .await?;
    stage.kubelets.set_ready(&names[1], Ready::True).await?;
    stage
        .until("the taint is gone", async || {
            let node = stage.node_api().get(&names[1]).await?;
            Ok(if is_tainted(&node, SHUTDOWN_TAINT) {
                Err("it is there".to_owned())
            } else {
                Ok(())
            })
        })
        .await?;
    stage.stop().await
}

/// Pod networks get routes to the nodes' interfaces, which forward; the tagging controller tags.
/// Both go with the node.
pub(crate) async fn pod_networks_get_routes_and_instances_tags(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.launch(2, "m5.large").await?;
    let flags = [
        "--controllers=cloud-node,route,tagging",
        "--configure-cloud-routes=true",
        "--cluster-cidr=10.244.0.0/16",
        "--allocate-node-cidrs=true",
        "--route-reconciliation-period=1s",
        "--tags=key1=value1",
        "--resources=instance",
    ];
    stage.start(&flags).await?;
    let names: Vec<_> = stage
        .instances
        .iter()
        .map(|instance| instance.private_dns_name.clone())
        .collect();
    let specs = names
        .iter()
        .enumerate()
        .map(|(at, name)| NodeSpec::new(name).pod_cidr(format!("10.244.{at}.0/24")));
    stage.kubelets.register_all(specs).await?;
    let (main, wire) = (stage.network.vpc.main_table.clone(), stage.fixture.wire().clone());
    let networks = async || {
        let tables = wire
            .ask(EC2, "DescribeRouteTables", [("RouteTableId.1", &*main)])
            .await?;
        let found = tables.texts("destinationCidrBlock");
        anyhow::Ok(
            found
                .into_iter()
                .filter(|network| network.starts_with("10.244."))
                .collect::<Vec<_>>(),
        )
    };
    let tagged = async || {
        let filter = [("Filter.1.Name", "key"), ("Filter.1.Value.1", "key1")];
        anyhow::Ok(
            wire.ask(EC2, "DescribeTags", filter)
                .await?
                .texts("resourceId")
                .len(),
        )
    };
    stage
        .until("routes and tags are there", async || {
            let state = (networks().await?.len(), tagged().await?);
            Ok(if state == (2, 2) {
                Ok(())
            } else {
                Err(format!("{state:?}"))
            })
        })
        .await?;
    stage.kubelets.stop_node(&names[0])?;
    stage
        .node_api()
        .delete(&names[0], &kube::api::DeleteParams::default())
        .await?;
    stage
        .until("those of the node are gone", async || {
            let (networks, tagged) = (networks().await?, tagged().await?);
            let fine = networks == ["10.244.1.0/24"] && tagged == 1;
            Ok(if fine {
                Ok(())
            } else {
                Err(format!("{networks:?}, {tagged} tagged"))
            })
        })
        .await?;
    stage.stop().await
}

// CF2 IN11
pub(crate) async fn families_come_in_the_order_of_the_configuration(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.config = "NodeIPFamilies = ipv6\nNodeIPFamilies = ipv4\n".into();
    let ipv6 = dual(stage).await?;
    stage.start(&FLAGS).await?;
    let name = stage.instances[0].private_dns_name.clone();
    stage.kubelets.register(NodeSpec::new(&name)).await?;
    let found = addresses(&initialized(stage, &[name.clone()]).await?[0]);
    let first = |at: usize| {
        found
            .get(at)
            .map(|(kind, address)| (kind.as_str(), address.as_str()))
    };
    anyhow::ensure!(first(0) == Some(("InternalIP", &*ipv6)), "{found:?}");
    anyhow::ensure!(first(1) == Some(("InternalIP", &*stage.instances[0].private_ip)), "{found:?}");
    stage.stop().await
}

/// Launches an instance with an IPv6 address: moto gives one to interfaces alone, which then are
/// given to an instance.
async fn dual(stage: &mut ClusterFixture<'_>) -> anyhow::Result<String> {
    let wire = stage.fixture.wire().clone();
    let subnet = &stage.network.public[0].id;
    let block = stage
        .fixture
        .ipv6_network(&stage.network.vpc)
        .await?
        .replace("::/56", "::99");
    let wanted = [
        ("SubnetId", &**subnet),
        ("Ipv6Addresses.1.Ipv6Address", &*block),
        ("SecurityGroupId.1", &*stage.network.group),
    ];
    let interface = wire
        .ask(EC2, "CreateNetworkInterface", wanted)
        .await?
        .text("networkInterfaceId")?;
    let wanted = [
        ("ImageId", "ami-12c6146b"),
        ("MinCount", "1"),
        ("MaxCount", "1"),
        ("InstanceType", "m5.large"),
        ("NetworkInterface.1.NetworkInterfaceId", &*interface),
        ("NetworkInterface.1.DeviceIndex", "0"),
    ];
    let made = wire.ask(EC2, "RunInstances", wanted).await?;
    let instance = ccm_testkit::moto::fixture::Instance {
        id: made.text("instanceId")?,
        private_dns_name: made.text("privateDnsName")?,
        private_ip: made.text("privateIpAddress")?,
    };
    stage
        .fixture
        .tag(&instance.id, &[(super::fixture::CLUSTER_TAG, "owned")])
        .await?;
    stage.instances.push(instance);
    Ok(block)
}

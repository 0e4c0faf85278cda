//! Routes: pod networks as extra routes of a router, and address pairs of nodes' ports.

use ccm_testkit::kubelet::NodeSpec;
use kube::api::DeleteParams;
use openstack_local::api::neutron::Route;
use openstack_local::neutron;

use crate::fixture::ClusterFixture;

const FLAGS: [&str; 5] = [
    "--controllers=cloud-node,route",
    "--configure-cloud-routes=true",
    "--cluster-cidr=10.244.0.0/16",
    "--allocate-node-cidrs=true",
    "--route-reconciliation-period=1s",
];

/// Adds a route behind the manager's back.
async fn add(stage: &ClusterFixture, destination: &str, nexthop: &str) -> anyhow::Result<()> {
    let route = Route { destination: destination.into(), nexthop: nexthop.into() };
    let router = stage.cloud.net.router.clone();
    stage
        .cloud
        .change(|state, ctx| neutron::extra_routes::add(state, ctx, &router, vec![route]))
        .await
        .map(drop)
}

pub(crate) async fn pod_networks_are_routed_to_their_nodes(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    for name in ["node-0", "node-1", "gateway"] {
        stage.make(name).await?;
    }
    // Somebody else's, of which one is amid the pods' networks; and one that leads to an address
    // that nobody has.
    let gateway = stage.servers[2].ip.to_string();
    add(stage, "10.244.200.0/24", &gateway).await?;
    add(stage, "192.168.0.0/24", &gateway).await?;
    let nobody = gateway
        .rsplit_once('.')
        .map(|(start, _)| format!("{start}.99"))
        .unwrap_or_default();
    add(stage, "10.244.99.0/24", &nobody).await?;
    stage.start(&FLAGS).await?;
    let specs =
        (0..2).map(|at| NodeSpec::new(format!("node-{at}")).pod_cidr(format!("10.244.{at}.0/24")));
    stage.kubelets.register_all(specs).await?;
    let foreign = ["router: 10.244.200.0/24 via gateway", "router: 192.168.0.0/24 via gateway"];
    stage
        .holds(&[
            "router: 10.244.0.0/24 via node-0",
            "router: 10.244.1.0/24 via node-1",
            "node-0: pairs 10.244.0.0/24",
            "node-1: pairs 10.244.1.0/24",
            "!router: 10.244.99.0/24",
        ])
        .await?;
    stage
        .until("the network is available", async || {
            let node = stage.node_api().get("node-1").await?;
            let mut conditions = node
                .status
                .and_then(|status| status.conditions)
                .into_iter()
                .flatten();
            let found = conditions.find(|condition| condition.type_ == "NetworkUnavailable");
            let fine = found
                .as_ref()
                .is_some_and(|condition| condition.status == "False");
            Ok(if fine {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            })
        })
        .await?;
    stage.kubelets.stop_node("node-0")?;
    stage
        .node_api()
        .delete("node-0", &DeleteParams::default())
        .await?;
    stage
        .holds(&["!router: 10.244.0.0/24", "!node-0: pairs", "router: 10.244.1.0/24 via node-1"])
        .await?;
    // A node that comes back gets its route again, with another network.
    stage
        .kubelets
        .register(NodeSpec::new("node-0").pod_cidr("10.244.7.0/24"))
        .await?;
    stage
        .holds(&["router: 10.244.7.0/24 via node-0", "node-0: pairs 10.244.7.0/24"])
        .await?;
    stage.holds(&foreign).await?;
    let log = stage.log();
    anyhow::ensure!(!log.contains("routes not changed"), "nothing was wrong, and yet: {log}");
    stage.stop().await
}

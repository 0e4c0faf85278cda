//! Routes: pod networks as extra routes of a router, and address pairs of nodes' ports.

use ccm_testkit::kubelet::NodeSpec;
use http::Method;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::{
    cloud::User,
    fixture::{ClusterFixture, SOON},
};

const FLAGS: [&str; 5] = [
    "--controllers=cloud-node,route",
    "--configure-cloud-routes=true",
    "--cluster-cidr=10.244.0.0/16",
    "--allocate-node-cidrs=true",
    "--route-reconciliation-period=1s",
];

/// Pod networks have routes on the router of the configuration. Routes of others stay, on that
/// router and on another of the same network. The router is served by an agent without an
/// availability zone, so that Neutron answers `"availability_zones": [null]`.
pub(crate) async fn pod_networks_are_routed_and_routes_of_others_stay(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    for name in ["node-0", "node-1", "gateway"] {
        stage.make(name, Value::Null).await?;
    }
    add_routes_of_others(stage).await?;
    stage.start(&FLAGS).await?;
    let specs =
        (0..2).map(|at| NodeSpec::new(format!("node-{at}")).pod_cidr(format!("10.244.{at}.0/24")));
    stage.kubelets.register_all(specs).await?;
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
        .until("the network is available", SOON, async || {
            let node = stage.node_api().get("node-1").await?;
            let conditions = node
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let found = conditions
                .into_iter()
                .find(|c| c.type_ == "NetworkUnavailable");
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
    // A node leaves, and comes back with another network.
    stage.kubelets.stop_node("node-0")?;
    stage
        .node_api()
        .delete("node-0", &DeleteParams::default())
        .await?;
    stage
        .holds(&["!router: 10.244.0.0/24", "!node-0: pairs", "router: 10.244.1.0/24 via node-1"])
        .await?;
    stage
        .kubelets
        .register(NodeSpec::new("node-0").pod_cidr("10.244.7.0/24"))
        .await?;
    stage
        .holds(&["router: 10.244.7.0/24 via node-0", "node-0: pairs 10.244.7.0/24"])
        .await?;
    stage
        .holds(&[
            "router: 10.244.200.0/24 via gateway",
            "router: 192.168.0.0/24 via gateway",
            "other router: 10.244.50.0/24 via node-0",
            "other router: 10.244.0.0/24 via gateway",
        ])
        .await?;
    let log = stage.log();
    anyhow::ensure!(!log.contains("routes not changed"), "nothing was wrong, and yet: {log}");
    stage.stop().await
}

/// Adds routes to both routers, and checks that the answer has what an agent without a zone leads to.
async fn add_routes_of_others(stage: &ClusterFixture<'_>) -> anyhow::Result<()> {
    let cloud = stage.cloud;
    // Of others: amid the pods' networks and outside, to a server that is no node; and one of a
    // node that is gone, whose address nobody has.
    let (gateway, node) = (stage.servers[2].ip.clone(), stage.servers[0].ip.clone());
    let routes = [
        ("router", "10.244.200.0/24", &*gateway),
        ("router", "192.168.0.0/24", &*gateway),
        ("router", "10.244.99.0/24", "10.0.255.99"),
        ("other_router", "10.244.50.0/24", &*node),
        ("other_router", "10.244.0.0/24", &*gateway),
    ];
    for (router, destination, nexthop) in routes {
        let path = format!("/v2.0/routers/{}/add_extraroutes", cloud.id(router));
        let route =
            json!({"router": {"routes": [{"destination": destination, "nexthop": nexthop}]}});
        cloud
            .must(User::Owner, Method::PUT, "network", &path, Some(route))
            .await?;
    }
    let path = format!("/v2.0/routers/{}", cloud.id("router"));
    let router = &cloud.get(User::Owner, "network", &path).await?["router"];
    anyhow::ensure!(
        router["availability_zones"] == json!([null]),
        "this router is to show what an agent without a zone leads to, and shows {router}"
    );
    Ok(())
}

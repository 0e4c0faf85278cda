//! Nodes of another provider in the same cluster.

use ccm_testkit::kubelet::NodeSpec;

use super::{Controller, Scenario, services, settled};
use crate::cluster::SimulatedCluster;

pub(super) static ALL: [Scenario; 1] = [Scenario {
    name: "foreign-nodes",
    about: "nodes of another provider join and fall silent, and one takes the name of a node of ours that left",
    controllers: &[Controller::Node, Controller::Lifecycle, Controller::Service, Controller::Route],
    flags: &[
        "--controllers=cloud-node,cloud-node-lifecycle,service,node-route-controller",
        "--cluster-cidr=10.244.0.0/16",
    ],
    before: Some(|world| Box::pin(mixed(world))),
    story: |world| Box::pin(strangers(world)),
    ..services::BASE
}];

fn ours(name: &str, block: u8) -> NodeSpec {
    NodeSpec::new(name).pod_cidr(format!("10.244.{block}.0/24"))
}

/// Of which the cloud knows nothing: by its name there is no instance either.
async fn foreign_node(world: &SimulatedCluster, name: &str, block: u8) -> Result<(), String> {
    world.cloud.delete_instance(name);
    let spec = NodeSpec::new(name).provider_id(format!("other://zone/{name}"));
    world
        .join(spec.pod_cidr(format!("10.244.{block}.0/24")))
        .await
}

async fn mixed(world: &SimulatedCluster) -> Result<(), String> {
    world.join(ours("a", 1)).await?;
    world.join(ours("b", 2)).await?;
    foreign_node(world, "x", 3).await?;
    world.create_service("web").await
}

async fn strangers(world: &SimulatedCluster) -> Result<(), String> {
    world.join(ours("c", 4)).await?;
    foreign_node(world, "y", 5).await?;
    world.silence("x").await?;
    settled(world).await?;
    world.destroy("b").await?;
    settled(world).await?;
    drop(world.kubelets.stop_node("b"));
    foreign_node(world, "b", 2).await?;
    world.silence("b").await?;
    world.power("c", ccm_mock::cloud::PowerState::Stopped).await
}

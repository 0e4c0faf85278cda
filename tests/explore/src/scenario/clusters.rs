//! Clusters that others made: a role that lacks a right, a proxy before the API server, a
//! certificate that has expired, nodes of nobody, names that are used again.

use std::time::Duration;

use ccm_mock::cloud::InstanceSpec;
use ccm_testkit::kubelet::NodeSpec;

use super::{Controller, Scenario, nodes, services, settled};
use crate::{cluster::SimulatedCluster, cluster_conditions::Obstacle};

const NODES_AND_SERVICES: &[&str] = &["--controllers=cloud-node,cloud-node-lifecycle,service"];

pub(super) static ALL: [Scenario; 5] = [
    Scenario {
        name: "role-without-services",
        about: "the role says nothing of Services; a node joins, the instance of another is deleted",
        flags: NODES_AND_SERVICES,
        before: Some(|world| Box::pin(three(world))),
        between: Some(|world| {
            world.way.put(Obstacle::NoRight("services"));
            Box::pin(std::future::ready(Ok(())))
        }),
        story: |world| Box::pin(one_joins_one_leaves(world)),
        ..nodes::BASE
    },
    Scenario {
        name: "proxy-pages",
        about: "a proxy answers writes with 404 pages of its own while a node joins, and a Service is created and deleted",
        controllers: &[Controller::Node, Controller::Lifecycle, Controller::Service],
        flags: NODES_AND_SERVICES,
        before: Some(|world| Box::pin(three_and_web(world))),
        story: |world| Box::pin(pages_come_and_go(world)),
        ..services::BASE
    },
    Scenario {
        name: "standby-expired",
        about: "the certificate of a standby expires and is renewed, then the leader is taken away and a node joins",
        processes: 2,
        before: Some(|world| Box::pin(three(world))),
        story: |world| Box::pin(expired_and_renewed(world)),
        ..nodes::BASE
    },
    Scenario {
        name: "nodes-without-ids",
        about: "Ready nodes without provider ID and taint beside ours, of which two lose their instances",
        controllers: &[Controller::Lifecycle],
        flags: &["--controllers=cloud-node-lifecycle"],
        before: Some(|world| Box::pin(beside_nobodys(world))),
        story: |world| Box::pin(ours_and_nobodys_fall_silent(world)),
        ..services::BASE
    },
    Scenario {
        name: "name-reused",
        about: "a node's instance is deleted, and another joins under its name before that is proved, and falls silent",
        before: Some(|world| Box::pin(three(world))),
        story: |world| Box::pin(replaced(world)),
        ..nodes::BASE
    },
];

async fn three(world: &SimulatedCluster) -> Result<(), String> {
    nodes::join(world, &["a", "b", "c"]).await
}

async fn three_and_web(world: &SimulatedCluster) -> Result<(), String> {
    three(world).await?;
    world.create_service("web").await
}

async fn one_joins_one_leaves(world: &SimulatedCluster) -> Result<(), String> {
    world.join(NodeSpec::new("d")).await?;
    settled(world).await?;
    world.destroy("b").await
}

async fn pages_come_and_go(world: &SimulatedCluster) -> Result<(), String> {
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.way.put(Obstacle::Pages);
    world.join(NodeSpec::new("d")).await?;
    world.destroy("b").await?;
    world.delete_service("web").await?;
    world.create_service("new").await?;
    tokio::time::sleep(Duration::from_secs(20)).await;
    world.way.put(Obstacle::Nothing);
    Ok(())
}

async fn expired_and_renewed(world: &SimulatedCluster) -> Result<(), String> {
    let standby = world.standby().await?;
    world.way.put(Obstacle::Expired(standby));
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.way.put(Obstacle::Nothing);
    world.take_away_leader().await?;
    world.join(NodeSpec::new("d")).await
}

async fn nobodys(world: &SimulatedCluster, name: &str) -> Result<(), String> {
    world.join(NodeSpec::new(name).initialized()).await?;
    // By its name there is no instance either.
    world.cloud.delete_instance(name);
    Ok(())
}

async fn beside_nobodys(world: &SimulatedCluster) -> Result<(), String> {
    services::nodes(world).await?;
    for name in ["c", "d"] {
        world.join(services::initialized(name)).await?;
    }
    for name in ["x", "y", "z"] {
        nobodys(world, name).await?;
    }
    Ok(())
}

async fn ours_and_nobodys_fall_silent(world: &SimulatedCluster) -> Result<(), String> {
    world.destroy("a").await?;
    settled(world).await?;
    world.silence("z").await?;
    world.destroy("b").await
}

/// The old instance has been denied once by then, and once is no proof.
async fn replaced(world: &SimulatedCluster) -> Result<(), String> {
    world.destroy("b").await?;
    tokio::time::sleep(Duration::from_secs(6)).await;
    world.delete_node_if_there("b").await?;
    world
        .cloud
        .put_instance("b", InstanceSpec::default())
        .map_err(|error| error.to_string())?;
    world.join(NodeSpec::new("b")).await?;
    settled(world).await?;
    world.silence("b").await
}

//! Nodes that come, go and stop; their routes and pod networks.

use std::time::Duration;

use ccm_mock::cloud::PowerState;
use ccm_testkit::kubelet::NodeSpec;

use super::{Controller, Scenario, settled};
use crate::cluster::SimulatedCluster;

const NODES: &[&str] = &["--controllers=cloud-node,cloud-node-lifecycle"];
const ROUTES: &[&str] = &["--controllers=node-route-controller", "--cluster-cidr=10.244.0.0/16"];
const IPAM: &[&str] = &[
    "--controllers=nodeipam",
    "--allocate-node-cidrs=true",
    // Four blocks.
    "--cluster-cidr=10.0.0.0/22",
    "--node-cidr-mask-size=24",
];
const EVERYTHING: &[&str] = &[
    "--controllers=cloud-node,cloud-node-lifecycle,service,node-route-controller,nodeipam",
    "--allocate-node-cidrs=true",
    "--cluster-cidr=10.0.0.0/16",
];

/// Nodes alone.
pub(super) const BASE: Scenario = Scenario {
    name: "nodes-join",
    about: "three nodes join",
    controllers: &[Controller::Node, Controller::Lifecycle],
    flags: NODES,
    cloud: "",
    processes: 1,
    before: None,
    between: None,
    story: |world| Box::pin(join(world, &["a", "b", "c"])),
};

pub(super) static ALL: [Scenario; 12] = [
    BASE,
    Scenario {
        name: "node-leaves",
        about: "the instance of one node is deleted",
        before: Some(|world| Box::pin(join(world, &["a", "b", "c"]))),
        story: |world| Box::pin(world.destroy("b")),
        ..BASE
    },
    Scenario {
        name: "node-stops",
        about: "the instance of one node is shut down, and started again",
        before: Some(|world| Box::pin(join(world, &["a", "b", "c"]))),
        story: |world| Box::pin(stop_and_start(world)),
        ..BASE
    },
    Scenario {
        name: "node-out-of-service",
        about: "the instance of one node stays shut down until its volumes move, and is started again",
        flags: &["--controllers=cloud-node,cloud-node-lifecycle", "--out-of-service-after=60s"],
        before: Some(|world| Box::pin(join(world, &["a", "b", "c"]))),
        story: |world| Box::pin(stop_for_long(world)),
        ..BASE
    },
    Scenario {
        name: "out-of-service-denied",
        about: "as `cloud-denies`, while nodes that are shut down are to be marked out of service",
        flags: &[
            "--controllers=cloud-node,cloud-node-lifecycle",
            "--node-monitor-period=60s",
            "--out-of-service-after=60s",
        ],
        before: Some(|world| Box::pin(join(world, &["a", "b", "c", "d", "e"]))),
        between: Some(|world| Box::pin(all_denied(world))),
        story: |world| Box::pin(denials_end(world)),
        ..BASE
    },
    Scenario {
        name: "node-returns",
        about: "a node is deleted by an operator and joins again under its name",
        before: Some(|world| Box::pin(join(world, &["a", "b"]))),
        story: |world| Box::pin(return_to(world)),
        ..BASE
    },
    Scenario {
        name: "cloud-denies",
        about: "no node is Ready, a new process has never seen an instance, and the cloud denies all of them for a while",
        // Few questions, so that there are few points.
        flags: &["--controllers=cloud-node,cloud-node-lifecycle", "--node-monitor-period=60s"],
        before: Some(|world| Box::pin(join(world, &["a", "b", "c", "d", "e"]))),
        between: Some(|world| Box::pin(all_denied(world))),
        story: |world| Box::pin(denials_end(world)),
        ..BASE
    },
    Scenario {
        name: "routes",
        about: "nodes with pod networks come and go",
        controllers: &[Controller::Route],
        flags: ROUTES,
        before: Some(|world| Box::pin(routed(world, &[("a", 1), ("b", 2)]))),
        story: |world| Box::pin(routes_change(world)),
        ..BASE
    },
    Scenario {
        name: "ipam",
        about: "nodes get pod networks, one leaves, and another gets what is free",
        controllers: &[Controller::Ipam],
        flags: IPAM,
        before: Some(|world| Box::pin(join(world, &["a", "b"]))),
        story: |world| Box::pin(networks_change(world)),
        ..BASE
    },
    Scenario {
        name: "ipam-restored",
        about: "a node gets its pod network, etcd is restored from before that, and another node joins",
        controllers: &[Controller::Ipam],
        flags: IPAM,
        before: Some(|world| Box::pin(join(world, &["a"]))),
        story: |world| Box::pin(networks_lost(world)),
        ..BASE
    },
    Scenario {
        name: "everything",
        about: "with all controllers: a node joins, a Service is created, a node's instance is deleted",
        controllers: ALL_CONTROLLERS,
        flags: EVERYTHING,
        before: Some(|world| Box::pin(join(world, &["a", "b"]))),
        story: |world| Box::pin(everything(world)),
        ..BASE
    },
    Scenario {
        name: "fail-over",
        about: "with all controllers and two processes: as `everything`",
        controllers: ALL_CONTROLLERS,
        flags: EVERYTHING,
        processes: 2,
        before: Some(|world| Box::pin(join(world, &["a", "b"]))),
        story: |world| Box::pin(everything(world)),
        ..BASE
    },
];

const ALL_CONTROLLERS: &[Controller] = &[
    Controller::Node,
    Controller::Lifecycle,
    Controller::Service,
    Controller::Route,
    Controller::Ipam,
];

pub(super) async fn join(world: &SimulatedCluster, names: &[&str]) -> Result<(), String> {
    for name in names {
        world.join(NodeSpec::new(*name)).await?;
    }
    Ok(())
}

async fn stop_and_start(world: &SimulatedCluster) -> Result<(), String> {
    world.power("b", PowerState::Stopped).await?;
    settled(world).await?;
    world.power("b", PowerState::Running).await
}

/// The manager sees that the instances run, within a minute, before one is stopped for longer than
/// the flag says.
async fn stop_for_long(world: &SimulatedCluster) -> Result<(), String> {
    tokio::time::sleep(Duration::from_secs(70)).await;
    world.power("b", PowerState::Stopped).await?;
    settled(world).await?;
    tokio::time::sleep(Duration::from_secs(150)).await;
    world.power("b", PowerState::Running).await
}

async fn all_denied(world: &SimulatedCluster) -> Result<(), String> {
    for node in ["a", "b", "c", "d", "e"] {
        world.silence(node).await?;
    }
    world.deny_instances(true)
}

/// Longer than every proof that the framework knows of: five minutes, and two questions a minute
/// apart.
async fn denials_end(world: &SimulatedCluster) -> Result<(), String> {
    tokio::time::sleep(Duration::from_secs(500)).await;
    world.deny_instances(false)?;
    world.destroy("a").await
}

async fn return_to(world: &SimulatedCluster) -> Result<(), String> {
    world.delete_node("b").await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    join(world, &["b"]).await
}

async fn routed(world: &SimulatedCluster, nodes: &[(&str, u8)]) -> Result<(), String> {
    for (name, block) in nodes {
        let spec = NodeSpec::new(*name)
            .initialized()
            .provider_id(format!("mock://r1/{name}"));
        world
            .join(spec.pod_cidr(format!("10.244.{block}.0/24")))
            .await?;
    }
    Ok(())
}

async fn routes_change(world: &SimulatedCluster) -> Result<(), String> {
    routed(world, &[("c", 3)]).await?;
    settled(world).await?;
    world.delete_node("a").await?;
    settled(world).await?;
    // Its network goes to another.
    routed(world, &[("d", 1)]).await
}

async fn networks_change(world: &SimulatedCluster) -> Result<(), String> {
    join(world, &["c"]).await?;
    settled(world).await?;
    world.delete_node("a").await?;
    join(world, &["d", "e"]).await
}

async fn networks_lost(world: &SimulatedCluster) -> Result<(), String> {
    // By the process that is to notice.
    join(world, &["b"]).await?;
    settled(world).await?;
    world.take_networks("b")?;
    join(world, &["c"]).await
}

async fn everything(world: &SimulatedCluster) -> Result<(), String> {
    join(world, &["c"]).await?;
    world.create_service("web").await?;
    settled(world).await?;
    world.destroy("a").await?;
    settled(world).await?;
    world.delete_service("web").await
}

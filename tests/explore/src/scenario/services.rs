//! Services of type LoadBalancer.

use std::time::Duration;

use ccm_core::k8s::well_known;
use ccm_testkit::kubelet::NodeSpec;
use serde_json::json;

use super::{Controller, Scenario, settled};
use crate::cluster::SimulatedCluster;

const CONTROLLERS: &[Controller] = &[Controller::Service];
const FLAGS: &[&str] = &["--controllers=service"];
/// Long enough for a first look at a change, not for what follows from it.
const MOMENT: Duration = Duration::from_millis(1100);

/// Creation, without what makes each scenario another.
pub(super) const BASE: Scenario = Scenario {
    name: "service-created",
    about: "a Service of type LoadBalancer is created",
    controllers: CONTROLLERS,
    flags: FLAGS,
    cloud: "",
    processes: 1,
    before: Some(|world| Box::pin(nodes(world))),
    between: None,
    story: |world| Box::pin(world.create_service("web")),
};

pub(super) static ALL: [Scenario; 12] = [
    BASE,
    Scenario {
        name: "service-slow-cloud",
        about: "a Service is created and deleted, in a cloud that takes its time for both",
        cloud: "loadBalancerActivation: 20s\nloadBalancerDeletion: 20s\nlatency: {loadBalancers: 300ms}\n",
        story: |world| Box::pin(created_and_deleted(world)),
        ..BASE
    },
    Scenario {
        name: "service-changed",
        about: "the ports, then the source ranges of a Service change",
        before: Some(|world| Box::pin(served(world))),
        story: |world| Box::pin(changed(world)),
        ..BASE
    },
    Scenario {
        name: "service-deleted",
        about: "a Service is deleted",
        before: Some(|world| Box::pin(served(world))),
        story: |world| Box::pin(world.delete_service("web")),
        ..BASE
    },
    Scenario {
        name: "service-retained",
        about: "a Service lets go of its load balancer, and another one adopts it",
        before: Some(|world| Box::pin(served_for_good(world))),
        story: |world| Box::pin(let_go_and_adopted(world)),
        ..BASE
    },
    Scenario {
        name: "service-type",
        about: "a Service becomes ClusterIP and LoadBalancer again",
        before: Some(|world| Box::pin(served(world))),
        story: |world| Box::pin(unexposed_and_exposed(world)),
        ..BASE
    },
    Scenario {
        name: "service-briefly",
        about: "a Service of type ClusterIP becomes LoadBalancer and ClusterIP again",
        before: Some(|world| Box::pin(unexposed(world))),
        story: |world| Box::pin(exposed_and_unexposed(world)),
        ..BASE
    },
    Scenario {
        name: "service-hasty",
        about: "a Service is changed, deleted and created again without any wait",
        before: Some(|world| Box::pin(served(world))),
        story: |world| Box::pin(hasty(world)),
        ..BASE
    },
    Scenario {
        name: "service-nodes",
        about: "a node joins, one is excluded from load balancers, one leaves",
        before: Some(|world| Box::pin(served(world))),
        story: |world| Box::pin(nodes_change(world)),
        ..BASE
    },
    Scenario {
        name: "service-most-nodes-leave",
        about: "all nodes but one leave at once, and others come",
        before: Some(|world| Box::pin(served_by_many(world))),
        story: |world| Box::pin(most_nodes_leave(world)),
        ..BASE
    },
    Scenario {
        name: "service-invalid",
        about: "a new process finds a Service that became invalid meanwhile; nodes join and leave",
        before: Some(|world| Box::pin(served(world))),
        between: Some(|world| Box::pin(spoilt(world))),
        story: |world| Box::pin(joins_and_leaves(world)),
        ..BASE
    },
    Scenario {
        name: "services-in-turn",
        about: "three Services are created, changed and deleted at the same time",
        before: Some(|world| Box::pin(three(world))),
        story: |world| Box::pin(turns(world)),
        ..BASE
    },
];

pub(super) fn initialized(name: &str) -> NodeSpec {
    NodeSpec::new(name)
        .initialized()
        .provider_id(format!("mock://r1/{name}"))
}

/// Two initialised nodes.
pub(super) async fn nodes(world: &SimulatedCluster) -> Result<(), String> {
    for name in ["a", "b"] {
        world.join(initialized(name)).await?;
    }
    Ok(())
}

async fn served(world: &SimulatedCluster) -> Result<(), String> {
    nodes(world).await?;
    world.create_service("web").await
}

async fn served_for_good(world: &SimulatedCluster) -> Result<(), String> {
    served(world).await?;
    let annotation = json!({well_known::ANNOTATION_RETAIN: "true"});
    world
        .patch_service("web", json!({"metadata": {"annotations": annotation}}))
        .await
}

async fn let_go_and_adopted(world: &SimulatedCluster) -> Result<(), String> {
    let before = world.cloud.load_balancers();
    world.delete_service("web").await?;
    settled(world).await?;
    let [kept] = &*before else {
        return Err(format!("there were {} load balancers", before.len()));
    };
    world
        .serve_with("shop", json!({"type": "ClusterIP"}))
        .await?;
    let annotation = json!({well_known::ANNOTATION_ADOPT: &kept.id});
    let adopts = json!({"metadata": {"annotations": annotation}, "spec": {"type": "LoadBalancer"}});
    world.patch_service("shop", adopts).await?;
    settled(world).await?;
    let after = world.cloud.load_balancers();
    match &*after {
        [adopted] if adopted.id == kept.id && adopted.addresses == kept.addresses => Ok(()),
        _ => Err(format!("the load balancer {kept:?} became {after:?}")),
    }
}

async fn served_by_many(world: &SimulatedCluster) -> Result<(), String> {
    for name in ["a", "b", "c", "d", "e"] {
        world.join(initialized(name)).await?;
    }
    world.create_service("web").await
}

async fn created_and_deleted(world: &SimulatedCluster) -> Result<(), String> {
    world.create_service("web").await?;
    settled(world).await?;
    world.delete_service("web").await
}

async fn changed(world: &SimulatedCluster) -> Result<(), String> {
    world
        .patch_service("web", json!({"spec": {"ports": [{"port": 443}]}}))
        .await?;
    settled(world).await?;
    world
        .patch_service("web", json!({"spec": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}}))
        .await
}

async fn unexposed_and_exposed(world: &SimulatedCluster) -> Result<(), String> {
    world
        .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
        .await?;
    settled(world).await?;
    world
        .patch_service("web", json!({"spec": {"type": "LoadBalancer"}}))
        .await
}

async fn unexposed(world: &SimulatedCluster) -> Result<(), String> {
    nodes(world).await?;
    world.serve_with("web", json!({"type": "ClusterIP"})).await
}

async fn exposed_and_unexposed(world: &SimulatedCluster) -> Result<(), String> {
    world
        .patch_service("web", json!({"spec": {"type": "LoadBalancer"}}))
        .await?;
    settled(world).await?;
    world
        .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
        .await
}

async fn hasty(world: &SimulatedCluster) -> Result<(), String> {
    world
        .patch_service("web", json!({"spec": {"ports": [{"port": 443}]}}))
        .await?;
    world
        .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
        .await?;
    world
        .patch_service("web", json!({"spec": {"type": "LoadBalancer"}}))
        .await?;
    tokio::time::sleep(MOMENT).await;
    world.delete_service("web").await?;
    // Its name is free when its finalizer is off.
    settled(world).await?;
    world.create_service("web").await
}

async fn nodes_change(world: &SimulatedCluster) -> Result<(), String> {
    world.join(initialized("c")).await?;
    settled(world).await?;
    let label = json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""});
    world
        .patch_node("a", json!({"metadata": {"labels": label}}))
        .await?;
    settled(world).await?;
    world.delete_node("b").await
}

async fn spoilt(world: &SimulatedCluster) -> Result<(), String> {
    let wrong =
        json!({"metadata": {"annotations": {"mock.cloud-provider.example/scheme": "nobody"}}});
    world.patch_service("web", wrong).await?;
    world.join(initialized("c")).await
}

async fn joins_and_leaves(world: &SimulatedCluster) -> Result<(), String> {
    settled(world).await?;
    world.join(initialized("d")).await?;
    settled(world).await?;
    world.delete_node("a").await
}

async fn most_nodes_leave(world: &SimulatedCluster) -> Result<(), String> {
    for name in ["a", "b", "c", "d"] {
        world.delete_node(name).await?;
    }
    tokio::time::sleep(MOMENT).await;
    for name in ["f", "g"] {
        world.join(initialized(name)).await?;
    }
    Ok(())
}

async fn three(world: &SimulatedCluster) -> Result<(), String> {
    nodes(world).await?;
    world.create_service("changed").await?;
    world.create_service("deleted").await
}

async fn turns(world: &SimulatedCluster) -> Result<(), String> {
    world.create_service("created").await?;
    world
        .patch_service("changed", json!({"spec": {"ports": [{"port": 443}]}}))
        .await?;
    world.delete_service("deleted").await?;
    world.join(initialized("c")).await
}

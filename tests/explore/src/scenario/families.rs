//! Services of both address families, and of classes.

use serde_json::json;

use super::{Scenario, services, settled};
use crate::{cluster::SimulatedCluster, objects::CLASS};

pub(super) static ALL: [Scenario; 2] = [
    Scenario {
        name: "dual-stack",
        about: "Services of either family and of both are created, one gets its second family, one is deleted",
        before: Some(|world| Box::pin(single(world))),
        story: |world| Box::pin(families_change(world)),
        ..services::BASE
    },
    Scenario {
        name: "service-classes",
        about: "Services of our class and of another controller's are created, changed and deleted",
        cloud: "loadBalancerClasses: [mock.example/lb]\n",
        before: Some(|world| Box::pin(services::nodes(world))),
        story: |world| Box::pin(classes(world)),
        ..services::BASE
    },
];

async fn single(world: &SimulatedCluster) -> Result<(), String> {
    services::nodes(world).await?;
    world.create_service("growing").await
}

async fn families_change(world: &SimulatedCluster) -> Result<(), String> {
    world
        .serve_with("six", json!({"ipFamilies": ["IPv6"], "ipFamilyPolicy": "SingleStack"}))
        .await?;
    world
        .serve_with("both", json!({"ipFamilyPolicy": "RequireDualStack"}))
        .await?;
    settled(world).await?;
    world
        .patch_service("growing", json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}}))
        .await?;
    settled(world).await?;
    world.delete_service("both").await
}

async fn classes(world: &SimulatedCluster) -> Result<(), String> {
    world
        .serve_with("ours", json!({"loadBalancerClass": CLASS}))
        .await?;
    world
        .serve_with("theirs", json!({"loadBalancerClass": "other.example/lb"}))
        .await?;
    // Their controller's work.
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}]}}});
    world.patch_service_status("theirs", status).await?;
    settled(world).await?;
    for name in ["ours", "theirs"] {
        world
            .patch_service(name, json!({"spec": {"ports": [{"port": 443}]}}))
            .await?;
    }
    settled(world).await?;
    world.delete_service("ours").await
}

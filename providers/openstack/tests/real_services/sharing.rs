//! Load balancers of several Services, and of users.

use anyhow::Context as _;
use http::Method;
use serde_json::json;

use crate::{
    cloud::{User, id_of},
    fixture::{ClusterFixture, INTERNAL, SOON, full, service},
    services::FLAGS,
};

/// Services share a load balancer up to a limit, each with its own ports, until the last one is
/// gone.
pub(crate) async fn services_share_a_load_balancer(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.node(|spec| spec).await?;
    let before = stage.world().await?;
    stage.start(&FLAGS).await?;
    stage.create(&service("one", &[("TCP", 80)], &[])).await?;
    stage.served(&["one"]).await?;
    let annotations = stage
        .services()
        .get("one")
        .await?
        .metadata
        .annotations
        .unwrap_or_default();
    let id = annotations
        .get(&full("load-balancer-id"))
        .context("the ID of a load balancer")?;
    let on_it = [("load-balancer-id", &**id)];
    stage
        .create(&service("two", &[("TCP", 81)], &on_it))
        .await?;
    stage.served(&["two"]).await?;
    stage
        .holds(&[
            "default/one: tag default/one",
            "default/one: tag default/two",
            "default/one:80: tag default/one",
            "default/one:81: tag default/two",
            "default/one:81: member node-0 30081 in nodes",
        ])
        .await?;
    // Too many, and one that must not share.
    let shared = stage.world().await?;
    stage
        .create(&service("third", &[("TCP", 82)], &on_it))
        .await?;
    let inside = [on_it[0], (INTERNAL, "true")];
    stage
        .create(&service("inside", &[("TCP", 83)], &inside))
        .await?;
    stage.event("third", "", &["max-shared-lb is 2"]).await?;
    stage
        .event("inside", "", &["internal Service cannot share"])
        .await?;
    stage.gone(&["third", "inside"], &shared).await?;
    // The one that it was made for goes first.
    stage.delete("one").await?;
    stage.vanished(&["one"]).await?;
    stage
        .holds(&[
            "!default/one:80:",
            "!default/one: tag default/one",
            "default/one:81: listens TCP",
        ])
        .await?;
    stage.gone(&["two"], &before).await?;
    stage.stop().await
}

/// A load balancer of a user takes a Service, keeps what it has, and stays.
pub(crate) async fn a_users_load_balancer_stays(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let cloud = stage.cloud;
    stage.node(|spec| spec).await?;
    let own = json!({"protocol": "TCP", "protocol_port": 2080, "name": "mine"});
    let fields = json!({"name": "mine", "vip_subnet_id": cloud.id("vips"), "listeners": [own]});
    let path = "/v2/lbaas/loadbalancers";
    let made = cloud
        .create(User::Owner, "load-balancer", path, "loadbalancer", fields)
        .await?;
    let floating = json!({"floating_network_id": cloud.id("public"), "port_id": made["vip_port_id"],
        "description": "mine"});
    cloud
        .create(User::Owner, "network", "/v2.0/floatingips", "floatingip", floating)
        .await?;
    stage
        .holds(&["mine: is ACTIVE", "mine: floating ip says mine"])
        .await?;
    let before = stage.world().await?;
    stage.start(&FLAGS).await?;
    let on_it = [("load-balancer-id", id_of(&made))];
    stage
        .create(&service("web", &[("TCP", 80)], &on_it))
        .await?;
    stage.served(&["web"]).await?;
    stage
        .holds(&["mine: tag default/web", "mine:80: tag default/web", "mine:2080: listens TCP"])
        .await?;
    stage
        .create(&service("taken", &[("TCP", 2080)], &on_it))
        .await?;
    stage
        .event("taken", "", &["the listener port TCP 2080 already exists"])
        .await?;
    stage.gone(&["taken", "web"], &before).await?;
    let path = format!("{path}/{}?cascade=true", id_of(&made));
    cloud
        .must(User::Owner, Method::DELETE, "load-balancer", &path, None)
        .await?;
    stage
        .settles("the load balancer is gone", SOON, |world| world.has(&["!mine"]))
        .await?;
    stage.stop().await
}

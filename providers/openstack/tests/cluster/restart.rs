//! The local cloud on a disk, ended and started amid everything.

use std::net::SocketAddr;

use serde_json::json;

use crate::fixture::{
    ClusterFixture, INTERNAL, service,
    web::{CLIENT, get},
};

const FLAGS: [&str; 1] = ["--controllers=service"];

async fn answers(stage: &ClusterFixture, to: SocketAddr) -> anyhow::Result<()> {
    stage
        .until("an answer", async || {
            Ok(get(CLIENT, to, "/")
                .await
                .map(drop)
                .map_err(|error| error.to_string()))
        })
        .await
}

/// While the cloud is down Services change and go; when it is back, it is as it was, and then as
/// they are now.
pub(crate) async fn a_cloud_that_was_down_is_brought_in_line(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.on_disk().await?;
    stage.nodes(1).await?;
    stage.serve("TCP", 30080).await?;
    let before = stage.world();
    stage.start(&FLAGS).await?;
    for (name, port) in [("web", 80), ("gone", 81), ("other", 82)] {
        stage
            .create(&service(name, &[("TCP", port)], &[(INTERNAL, "true")]))
            .await?;
    }
    let at = SocketAddr::new(stage.address("web").await?, 80);
    stage.served(&["gone", "other"]).await?;
    answers(stage, at).await?;
    let whole = stage.world();
    stage.cloud.stop().await?;
    anyhow::ensure!(get(CLIENT, at, "/").await.is_err(), "the address is closed");
    stage
        .change(
            "web",
            json!({"spec": {"ports": [{"name": "tcp-83", "port": 83, "nodePort": 30080}]}}),
        )
        .await?;
    stage.delete("gone").await?;
    stage.event("web", "SyncLoadBalancerFailed", &[]).await?;
    stage.restart_cloud().await?;
    let again = stage.world();
    again
        .same(&whole)
        .map_err(|wrong| anyhow::anyhow!("after the restart: {wrong}"))?;
    stage.vanished(&["gone"]).await?;
    stage
        .holds(&["!default/web:80:", "default/web:83: listens TCP", "!default/gone"])
        .await?;
    answers(stage, SocketAddr::new(at.ip(), 83)).await?;
    for name in ["web", "other"] {
        stage.delete(name).await?;
    }
    stage.vanished(&["web", "other"]).await?;
    stage
        .settles("nothing is left", |world| world.same(&before))
        .await?;
    stage.stop().await
}

//! Traffic: clients reach web servers on the nodes through load balancers, as annotations say.

use std::net::SocketAddr;

use crate::stage::{
    INTERNAL, Stage, service,
    web::{CLIENT, get},
};

const FLAGS: [&str; 1] = ["--controllers=service"];

/// Clients reach every node through the load balancer; what is deleted is closed.
pub(crate) async fn reaches_the_nodes(stage: &mut Stage) -> anyhow::Result<()> {
    stage.nodes(2).await?;
    stage.serve("TCP", 30080).await?;
    let before = stage.world();
    stage.start(&FLAGS).await?;
    stage.create(&service("web", &[("TCP", 80)], &[(INTERNAL, "true")])).await?;
    let to = SocketAddr::new(stage.address("web").await?, 80);
    for node in ["node-0", "node-1"] {
        answers(stage, to, node).await?;
    }
    stage.delete("web").await?;
    stage.vanished(&["web"]).await?;
    stage.settles("nothing is left", |world| world.same(&before)).await?;
    anyhow::ensure!(get(CLIENT, to, "/").await.is_err(), "the address is closed");
    stage.stop().await
}

/// Waits until a node answers.
async fn answers(stage: &Stage, to: SocketAddr, node: &str) -> anyhow::Result<()> {
    stage
        .until(&format!("an answer of {node}"), async || {
            let answer = get(CLIENT, to, "/").await;
            Ok(answer
                .map_err(|error| error.to_string())
                .and_then(|answer| if answer["node"] == node { Ok(()) } else { Err(format!("{answer}")) }))
        })
        .await
}

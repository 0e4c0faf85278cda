//! Services: what moto has to hold for each annotation.

use crate::stage::{Stage, service};

pub(crate) async fn one_port(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    stage.config = "DefaultLoadBalancerType = nlb\n".into();
    stage.nodes(2).await?;
    let before = stage.world().await?;
    stage.start(&["--controllers=service"]).await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    stage.served(&["web"]).await?;
    let world = stage.world().await?;
    stage.delete("web").await?;
    stage.vanished(&["web"]).await?;
    stage.world().await?.same(&before).map_err(anyhow::Error::msg)?;
    stage.stop().await
}

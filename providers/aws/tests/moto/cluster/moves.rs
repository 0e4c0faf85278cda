//! Services that move from a classic to a Network Load Balancer, and back.

use std::time::Duration;

use anyhow::ensure;
use ccm_aws::api::classic::{ClassicLoadBalancer, DescribeClassic};
use serde_json::{Value, json};

use super::fixture::{ClusterFixture, full, service};

const FLAGS: [&str; 1] = ["--controllers=service"];
/// Long enough ago for any drain time of these cases.
const LONG_AGO: &str = "2020-01-01T00:00:00Z";

/// Twice the time after which nodes are followed while a Service is pending.
const NODES_WHILE_PENDING: Duration = Duration::from_secs(60);

// length: one story, step by step
/// One Service moves, another one goes back after the switch. Both load balancers follow the nodes
/// meanwhile, the one that is not wanted any more goes with its group, and nothing is left in the end.
pub(crate) async fn a_service_moves_and_another_goes_back(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.nodes(1).await?;
    let before = stage.world().await?;
    stage.start(&FLAGS).await?;
    let names = ["web", "back"];
    for (name, port) in [("web", 80), ("back", 81)] {
        stage.create(&service(name, &[("TCP", port)], &[])).await?;
    }
    stage.served(&names).await?;
    let classic = [host(stage, "web").await?, host(stage, "back").await?];
    ensure!(classics(stage).await?.len() == 2, "upstream's default is a classic load balancer");

    // Both are asked for, and the status shows the new ones.
    for name in names {
        let request = [("type", "nlb"), ("move-to", "nlb"), ("move-drain-seconds", "600")];
        stage
            .annotate(name, &request.map(|(key, value)| (key, json!(value))))
            .await?;
    }
    for (name, old) in names.iter().zip(&classic) {
        state_begins(stage, name, "switched ").await?;
        let new = host(stage, name).await?;
        ensure!(new != *old, "{name} still shows {old}");
        stage.event(name, "MovingLoadBalancer", &[]).await?;
    }

    // Both kinds follow the nodes.
    stage.nodes(1).await?;
    stage
        .settles_within(NODES_WHILE_PENDING, "targets follow", |world| {
            world.has(&[
                "default/web:80: target node-1 30080",
                "default/back:81: target node-1 30081",
            ])
        })
        .await?;
    let node = stage.instances[1].id.clone();
    stage
        .until("classic load balancers follow", async || {
            let all = classics(stage).await?;
            let has = |balancer: &&ClassicLoadBalancer| {
                balancer.instances.iter().any(|id| *id.to_string() == *node)
            };
            let following = all.iter().filter(has).count();
            Ok((following == 2).then_some(()).ok_or(format!("{all:#?}")))
        })
        .await?;

    // One goes back: the old host name is shown again, at once.
    stage.annotate("back", &[("move-to", Value::Null)]).await?;
    state_begins(stage, "back", "returned ").await?;
    ensure!(host(stage, "back").await? == classic[1], "it shows another host name");

    // Nothing goes before the drain time is over.
    let both = stage.world().await?;
    both.has(&["default/back:81: target node-1 30081"])
        .map_err(anyhow::Error::msg)?;
    ensure!(classics(stage).await?.len() == 2, "a classic load balancer went too early");

    // Another process goes on. The times are set back, instead of a wait.
    stage.stop().await?;
    for (name, word) in [("web", "switched"), ("back", "returned")] {
        let state = format!("{word} {LONG_AGO}");
        stage
            .annotate(name, &[("move-state", json!(state))])
            .await?;
    }
    stage.start(&FLAGS).await?;
    for name in names {
        stage.event(name, "LoadBalancerMoved", &[]).await?;
    }
    let left = classics(stage).await?;
    ensure!(left.len() == 1 && *left[0].dns_name == *classic[1], "the wrong ones went: {left:#?}");
    stage
        .settles("only what serves is left", |world| {
            world.has(&["default/web:80: target node-0 30080", "!default/back"])
        })
        .await?;
    for name in names {
        state_begins(stage, name, "").await?;
    }

    for name in names {
        stage.delete(name).await?;
    }
    stage.vanished(&names).await?;
    ensure!(classics(stage).await?.is_empty(), "a classic load balancer is left");
    stage
        .settles("nothing is left", |world| world.same(&before))
        .await?;
    stage.stop().await
}

/// The host name of a Service.
async fn host(stage: &ClusterFixture<'_>, name: &str) -> anyhow::Result<String> {
    let host = stage.host_name(name).await?;
    host.ok_or_else(|| anyhow::anyhow!("{name} shows no host name"))
}

/// All classic load balancers.
async fn classics(stage: &ClusterFixture<'_>) -> anyhow::Result<Vec<ClassicLoadBalancer>> {
    Ok(stage.ask(DescribeClassic::default()).await?.items)
}

/// Waits until the state of a move begins like this; nothing stands for no state.
async fn state_begins(stage: &ClusterFixture<'_>, name: &str, start: &str) -> anyhow::Result<()> {
    stage
        .until(&format!("the state of {name} is {start:?}"), async || {
            let annotations = stage.services().get(name).await?.metadata.annotations;
            let state = annotations.and_then(|all| all.get(&full("move-state")).cloned());
            let holds = match &state {
                Some(state) => !start.is_empty() && state.starts_with(start),
                None => start.is_empty(),
            };
            Ok(holds.then_some(()).ok_or(format!("{state:?}")))
        })
        .await
}

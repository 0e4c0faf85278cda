//! From the end of an instance to the end of its Node.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, ensure};
use ccm_testkit::kubelet::Ready;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    admin,
    manager::Election,
    metrics::Measurements,
    run::BenchmarkRun,
    scenario::{Scenario, node_name},
    subject::BenchmarkedManager,
};

/// Instances that end, one after the other: few enough not to look like a mistake of the cloud.
const NODES: usize = 50;
/// Pause between two of them; all together span several periods of the controller.
const PAUSE: Duration = Duration::from_millis(570);
/// Until nothing is left of the start.
const SETTLE: Duration = Duration::from_secs(10);
/// A deletion that takes longer never comes.
const LIMIT: Duration = Duration::from_secs(600);

/// Measures one manager.
pub(crate) async fn run(
    scenario: &Scenario,
    contender: &BenchmarkedManager,
) -> anyhow::Result<Measurements> {
    ensure!(scenario.size.nodes >= 10 * NODES, "this needs {} nodes or more", 10 * NODES);
    let mut world = BenchmarkRun::new(scenario, contender).await?;
    let admin = world.cloud.admin().clone();
    let mut manager = world.launch(Election::Off, "manager.log").await?;
    world.converged(&mut manager).await?;
    sleep(SETTLE).await;

    let before = admin.calls().await?;
    let (cluster, follower) = (&world.cluster, &mut world.follower);
    let end = async {
        let mut ended = BTreeMap::new();
        for name in (0..NODES).map(node_name) {
            admin.delete_instance(&name).await?;
            // The kubelet is gone, and the control plane has noticed.
            cluster.kubelets().set_ready(&name, Ready::Unknown).await?;
            ended.insert(name, Instant::now());
            sleep(PAUSE).await;
        }
        anyhow::Ok(ended)
    };
    let see = async {
        let mut deleted = Vec::new();
        while deleted.len() < NODES {
            deleted.push(follower.deleted().await?);
        }
        anyhow::Ok(deleted)
    };
    let both = async { tokio::try_join!(end, see) };
    let (ended, deleted) = timeout(LIMIT, manager.during(both))
        .await
        .context("a Node is not deleted")??;
    let waits = deleted.iter().map(|(name, at)| {
        let end = ended
            .get(name)
            .with_context(|| format!("{name} was deleted although its instance is there"))?;
        anyhow::Ok(at.saturating_duration_since(*end).as_secs_f64())
    });
    let mut figures = Measurements::default();
    figures.spread(
        "seconds from the end of an instance to that of its Node",
        waits.collect::<Result<_, _>>()?,
    );
    figures.calls(&admin::between(&before, &admin.calls().await?));
    manager.kill().await?;
    world.stop().await?;
    Ok(figures)
}

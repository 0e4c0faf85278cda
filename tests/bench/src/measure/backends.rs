//! From a node's exclusion to the last load balancer without it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::ensure;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    admin::{self, AdminClient},
    cluster,
    manager::Election,
    metrics::Measurements,
    run::BenchmarkRun,
    scenario::{Scenario, node_name},
    subject::BenchmarkedManager,
};

/// Nodes that are excluded one by one, and then so many together.
const NODES: usize = 20;
/// Pause between two looks at the cloud: small against the 100 ms of one call.
const POLL: Duration = Duration::from_millis(20);
/// Until nothing is left of what was before.
const SETTLE: Duration = Duration::from_secs(15);
/// A removal that takes longer never comes.
const LIMIT: Duration = Duration::from_secs(900);

/// Measures one manager.
pub(crate) async fn run(
    scenario: &Scenario,
    contender: &BenchmarkedManager,
) -> anyhow::Result<Measurements> {
    ensure!(scenario.has_services() && scenario.size.services > 0, "this needs services");
    ensure!(scenario.size.nodes > 2 * NODES, "this needs more than {} nodes", 2 * NODES);
    let mut world = BenchmarkRun::new(scenario, contender).await?;
    let admin = world.cloud.admin().clone();
    let mut manager = world.launch(Election::Off, "manager.log").await?;
    world.converged(&mut manager).await?;
    manager
        .during(complete(&admin, scenario.size.nodes))
        .await?;
    sleep(SETTLE).await;

    let before = admin.calls().await?;
    let mut waits = Vec::new();
    for number in 0..NODES {
        waits.extend(
            manager
                .during(removal(&world, &admin, number..number + 1))
                .await?,
        );
        // Not in step with any period of the manager.
        sleep(Duration::from_millis(137 * (number as u64 % 7))).await;
    }
    let alone = admin::between(&before, &admin.calls().await?);
    sleep(SETTLE).await;
    let before = admin.calls().await?;
    let requests = world.cluster.requests(contender)?;
    let together = manager
        .during(removal(&world, &admin, NODES..2 * NODES))
        .await?;
    sleep(SETTLE).await;
    let burst = admin::between(&before, &admin.calls().await?);

    let mut figures = Measurements::default();
    figures.spread("seconds from exclusion to removal", waits);
    figures.count(format!("cloud writes for {NODES} nodes, one by one"), admin::writes(&alone));
    figures.spread(&format!("seconds to removal, {NODES} nodes at once"), together);
    figures.count(format!("cloud writes for {NODES} nodes at once"), admin::writes(&burst));
    let asked = cluster::between(&requests, &world.cluster.requests(contender)?);
    figures.count("API writes without events, at once", cluster::writes(&asked) as u64);
    manager.kill().await?;
    world.stop().await?;
    Ok(figures)
}

/// Waits until all balancers have all nodes.
async fn complete(admin: &AdminClient, nodes: usize) -> anyhow::Result<()> {
    let wait = async {
        while !admin
            .load_balancers()
            .await?
            .iter()
            .all(|balancer| balancer.nodes.len() == nodes)
        {
            sleep(Duration::from_millis(500)).await;
        }
        anyhow::Ok(())
    };
    timeout(LIMIT, wait).await?
}

/// Excludes nodes; answers for each balancer how long it took until it had none of them.
async fn removal(
    world: &BenchmarkRun<'_>,
    admin: &AdminClient,
    numbers: std::ops::Range<usize>,
) -> anyhow::Result<Vec<f64>> {
    let names: Vec<String> = numbers.map(node_name).collect();
    let start = Instant::now();
    for name in &names {
        world.cluster.exclude(name, true).await?;
    }
    let mut waits = BTreeMap::new();
    let wait = async {
        loop {
            let balancers = admin.load_balancers().await?;
            for balancer in &balancers {
                if !balancer.nodes.iter().any(|node| names.contains(node)) {
                    waits
                        .entry(balancer.name.clone())
                        .or_insert_with(|| start.elapsed().as_secs_f64());
                }
            }
            if waits.len() == balancers.len() {
                return anyhow::Ok(());
            }
            sleep(POLL).await;
        }
    };
    timeout(LIMIT, wait).await??;
    Ok(waits.into_values().collect())
}

//! What a leader writes that has nothing to do.

use std::time::Duration;

use crate::{
    admin, cluster, manager::Election, metrics::Measurements, run::BenchmarkRun,
    scenario::Scenario, subject::BenchmarkedManager,
};

/// Until nothing is left of the start.
const SETTLE: Duration = Duration::from_secs(30);
/// How long is looked.
const WINDOW: Duration = Duration::from_secs(120);

/// Measures one manager.
pub(crate) async fn run(
    scenario: &Scenario,
    contender: &BenchmarkedManager,
) -> anyhow::Result<Measurements> {
    let mut world = BenchmarkRun::new(scenario, contender).await?;
    let admin = world.cloud.admin().clone();
    let mut manager = world.launch(Election::On, "manager.log").await?;
    world.converged(&mut manager).await?;
    manager.stays(SETTLE).await?;
    let (requests, calls, usage) =
        (world.cluster.requests(contender)?, admin.calls().await?, manager.usage()?);
    manager.stays(WINDOW).await?;
    let after = manager.usage()?;
    let mut figures = Measurements::default();
    let cpu = after.cpu.saturating_sub(usage.cpu);
    figures.amount(format!("CPU seconds in {WINDOW:?}"), cpu.as_secs_f64());
    figures.amount("RSS at the end, MiB", super::mebibytes(after.rss));
    figures.calls(&admin::between(&calls, &admin.calls().await?));
    figures.requests(&cluster::between(&requests, &world.cluster.requests(contender)?));
    manager.kill().await?;
    world.stop().await?;
    Ok(figures)
}

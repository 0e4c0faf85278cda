//! What a restart costs when nothing has changed.

use std::time::Duration;

use super::mebibytes;
use crate::{
    admin, cluster, manager::Election, metrics::Measurements, run::BenchmarkRun,
    scenario::Scenario, subject::BenchmarkedManager,
};

/// Long enough for everything that a start does, and for a few periods of the loops that never end.
const WINDOW: Duration = Duration::from_secs(60);
/// Until nothing is left of the first start.
const SETTLE: Duration = Duration::from_secs(20);

/// Measures one manager.
pub(crate) async fn run(
    scenario: &Scenario,
    contender: &BenchmarkedManager,
) -> anyhow::Result<Measurements> {
    let mut world = BenchmarkRun::new(scenario, contender).await?;
    let admin = world.cloud.admin().clone();
    let mut first = world.launch(Election::Off, "first.log").await?;
    world.converged(&mut first).await?;
    first.stays(SETTLE).await?;
    // The Go manager's cloud ends with it, and counts from nothing in the next process.
    let calls_before = if contender.is_go() {
        admin.save().await.map(|()| None)?
    } else {
        Some(admin.calls().await?)
    };
    first.terminate().await?;
    first.wait().await?;
    let requests_before = world.cluster.requests(contender)?;

    let mut second = world.launch(Election::Off, "second.log").await?;
    second.stays(WINDOW).await?;
    let own = second.usage()?;
    let calls = admin.calls().await?;
    second.kill().await?;
    let mut figures = Measurements::default();
    figures.amount(format!("CPU seconds in {WINDOW:?}"), own.cpu.as_secs_f64());
    figures.amount("peak RSS, MiB", mebibytes(own.peak_rss));
    figures.calls(&admin::between(&calls_before.unwrap_or_default(), &calls));
    figures.requests(&cluster::between(&requests_before, &world.cluster.requests(contender)?));
    world.stop().await?;
    Ok(figures)
}

//! From nothing done to everything done.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::mebibytes;
use crate::{
    admin::{self, AdminClient, Calls},
    cluster::{self, Requests},
    convergence::Progress,
    manager::Election,
    metrics::Measurements,
    run::BenchmarkRun,
    scenario::{Outage, Scenario, Size},
    subject::BenchmarkedManager,
};

/// Work goes on when the last object looks done: events are written, and balancers are told of the
/// last nodes.
const AFTER: Duration = Duration::from_secs(10);

/// Measures one manager.
pub(crate) async fn run(
    scenario: &Scenario,
    contender: &BenchmarkedManager,
    outage: Option<Outage>,
) -> anyhow::Result<Measurements> {
    let mut world = BenchmarkRun::new(scenario, contender).await?;
    let before = world.cluster.usage()?;
    let mut manager = world.launch(Election::Off, "manager.log").await?;
    let start = manager.started();
    let admin = world.cloud.admin().clone();
    let (progress, outage) =
        tokio::try_join!(world.converged(&mut manager), run_outage(&admin, outage, start))?;
    sleep_until(start + progress.all() + AFTER).await;
    let after = world.cluster.usage()?;
    let own = manager.usage()?;
    let calls = admin.calls().await?;
    manager.kill().await?;

    let mut figures = Measurements::default();
    times(&mut figures, &progress);
    if let Some(outage) = outage {
        // What was done when it began needs no time after it.
        let late = (start + progress.all()).saturating_duration_since(outage.end);
        figures.amount("seconds from the end of the outage", late.as_secs_f64());
        figures.count("cloud calls during the outage", admin::all(&outage.calls));
    }
    figures.amount("CPU seconds of the manager", own.cpu.as_secs_f64());
    figures.amount("peak RSS of the manager, MiB", mebibytes(own.peak_rss));
    figures.amount("CPU seconds of kube-apiserver", after.apiserver - before.apiserver);
    figures.amount("CPU seconds of etcd", after.etcd - before.etcd);
    if let Some(cpu) = world.cloud.cpu() {
        figures.amount("CPU seconds of the cloud's process", cpu);
    }
    let requests = world.cluster.requests(contender)?;
    shares(&mut figures, scenario, &calls, &requests);
    figures.calls(&calls);
    figures.requests(&requests);
    world.stop().await?;
    Ok(figures)
}

/// Adds what the aims are about: writes beside the fewest that there can be, and updates per
/// service.
fn shares(figures: &mut Measurements, scenario: &Scenario, calls: &Calls, requests: &Requests) {
    let Size { nodes, services } = scenario.size;
    // A node's addresses, its labels with the taint, its routes; a service's finalizer and its
    // status.
    let of_node = if scenario.has_routes() { 3 } else { 2 };
    let of_service = if scenario.has_services() { 2 } else { 0 };
    let fewest = of_node * nodes + of_service * services;
    figures.amount(
        "API writes without events, by the fewest",
        cluster::writes(requests) as f64 / fewest as f64,
    );
    if of_service > 0 && services > 0 {
        let updates = calls.get("update_load_balancer").copied().unwrap_or(0);
        figures.amount("load-balancer updates per service", updates as f64 / services as f64);
    }
}

fn times(figures: &mut Measurements, progress: &Progress) {
    figures.amount("seconds until all is done", progress.all().as_secs_f64());
    figures.amount("seconds until all nodes are initialised", progress.nodes.as_secs_f64());
    for (name, time) in
        [("services have an address", progress.services), ("routes are marked", progress.routes)]
    {
        if let Some(time) = time {
            figures.amount(format!("seconds until all {name}"), time.as_secs_f64());
        }
    }
}

/// What came of an outage.
struct OutageResult {
    /// Calls that were tried in vain.
    calls: Calls,
    end: Instant,
}

/// Lets every call fail for a while.
async fn run_outage(
    admin: &AdminClient,
    outage: Option<Outage>,
    start: Instant,
) -> anyhow::Result<Option<OutageResult>> {
    let Some(Outage { after, length }) = outage else {
        return Ok(None);
    };
    // A cloud in the manager's process is not there at once.
    admin.ready().await?;
    sleep_until(start + after).await;
    admin.begin_outage().await?;
    let before = admin.calls().await?;
    sleep(length).await;
    let calls = admin::between(&before, &admin.calls().await?);
    admin.end_outage().await?;
    Ok(Some(OutageResult { calls, end: Instant::now() }))
}

//! From SIGTERM to the leader to the work of the next one.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    cloud::Cloud, manager::Election, metrics::Measurements, run::BenchmarkRun, scenario::Scenario,
    scenario::node_name, subject::BenchmarkedManager, subject::CloudLocation,
};

/// How often the leader ends.
const TIMES: usize = 5;
/// Until a replica is a settled standby: Go's observes the Lease for its whole duration.
const SETTLE: Duration = Duration::from_secs(20);
/// Pause between two looks at the Lease.
const POLL: Duration = Duration::from_millis(20);
/// A fail-over that takes longer never comes.
const LIMIT: Duration = Duration::from_secs(300);

/// Measures two replicas of one manager.
pub(crate) async fn run(
    scenario: &Scenario,
    contender: &BenchmarkedManager,
) -> anyhow::Result<Measurements> {
    let mut world = BenchmarkRun::new(scenario, contender).await?;
    let mut leader = world.launch(Election::On, "replica-0.log").await?;
    world.converged(&mut leader).await?;
    let (mut leases, mut work) = (Vec::new(), Vec::new());
    let mut clouds = Vec::new();
    for number in 1..=TIMES {
        // Clouds in the managers' processes cannot share one address.
        if contender.place == CloudLocation::Inside {
            let folder = world.cluster.folder();
            clouds.push(
                Cloud::start(contender, scenario.setting, folder, &format!("replica-{number}"))
                    .await?,
            );
        }
        let cloud = clouds.last().unwrap_or(&world.cloud);
        let mut standby = world
            .launch_with(cloud, Election::On, &format!("replica-{number}.log"))
            .await?;
        standby.stays(SETTLE).await?;
        let api = Api::<Lease>::namespaced(world.cluster.client(), "kube-system");
        let old = holder(&api).await?;
        let probe = scenario.size.nodes + number;

        let end = Instant::now();
        leader.terminate().await?;
        let (cluster, follower) = (&world.cluster, &mut world.follower);
        let lease = async {
            // An empty name is a lease that was given up and not taken yet.
            while [old.as_str(), ""].contains(&holder(&api).await?.as_str()) {
                sleep(POLL).await;
            }
            anyhow::Ok(end.elapsed().as_secs_f64())
        };
        let initialised = async {
            cluster.add_nodes(probe..probe + 1).await?;
            let at = follower.initialised(&node_name(probe)).await?;
            anyhow::Ok(at.saturating_duration_since(end).as_secs_f64())
        };
        let both = standby.during(async { tokio::try_join!(lease, initialised) });
        let (taken, worked) = timeout(LIMIT, both).await.context("nobody takes over")??;
        leases.push(taken);
        work.push(worked);
        leader.wait().await?;
        leader = standby;
    }
    leader.kill().await?;
    let mut figures = Measurements::default();
    figures.spread("seconds from SIGTERM until another holds the Lease", leases);
    figures.spread("seconds from SIGTERM until a new node is initialised", work);
    world.stop().await?;
    Ok(figures)
}

async fn holder(api: &Api<Lease>) -> anyhow::Result<String> {
    let lease = api.get("cloud-controller-manager").await?;
    Ok(lease
        .spec
        .and_then(|spec| spec.holder_identity)
        .unwrap_or_default())
}

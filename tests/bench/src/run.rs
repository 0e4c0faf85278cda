//! Everything of one run: a cluster, a cloud, and whoever watches.

use std::time::Duration;

use anyhow::Context as _;
use tokio::time::timeout;

use crate::{
    cloud::Cloud,
    cluster::Cluster,
    convergence::{ConvergenceWatcher, Progress},
    manager::{Election, Manager},
    scenario::Scenario,
    subject::BenchmarkedManager,
};

/// A run that takes longer has failed: Go's defaults need ten minutes for 3,000 nodes.
const LIMIT: Duration = Duration::from_secs(3600);

/// A cluster and a cloud in which no manager runs yet.
pub(crate) struct BenchmarkRun<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) contender: &'a BenchmarkedManager,
    pub(crate) cluster: Cluster,
    pub(crate) cloud: Cloud,
    pub(crate) follower: ConvergenceWatcher,
}

impl<'a> BenchmarkRun<'a> {
    /// Makes one.
    pub(crate) async fn new(
        scenario: &'a Scenario,
        contender: &'a BenchmarkedManager,
    ) -> anyhow::Result<Self> {
        let cluster = Cluster::start(scenario.size).await?;
        let cloud = Cloud::start(contender, scenario.setting, cluster.folder(), "a").await?;
        let follower = ConvergenceWatcher::open(cluster.client(), scenario).await?;
        Ok(Self { scenario, contender, cluster, cloud, follower })
    }

    /// Starts a manager that uses this world's cloud.
    pub(crate) async fn launch(&self, election: Election, log: &str) -> anyhow::Result<Manager> {
        self.launch_with(&self.cloud, election, log).await
    }

    /// Starts a manager that uses another cloud.
    pub(crate) async fn launch_with(
        &self,
        cloud: &Cloud,
        election: Election,
        log: &str,
    ) -> anyhow::Result<Manager> {
        let log = self.cluster.folder().join(log);
        Manager::start(
            self.contender,
            self.scenario,
            cloud,
            self.cluster.kubeconfig(),
            election,
            log,
        )
        .await
    }

    /// Waits until all is as it should be.
    pub(crate) async fn converged(&mut self, manager: &mut Manager) -> anyhow::Result<Progress> {
        let start = manager.started();
        let wait = self.follower.converged(self.scenario, start);
        timeout(LIMIT, manager.during(wait))
            .await
            .context("the run took too long")?
    }

    /// Ends everything but the managers.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.cloud.stop().await?;
        self.cluster.stop().await
    }
}

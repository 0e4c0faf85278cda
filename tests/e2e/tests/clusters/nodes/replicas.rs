//! Two replicas: one leads, the other takes over, and never do both write.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ccm_e2e::ccm::{Ccm, Signal};
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_mock::cloud::{CallHook, Operation};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::case;
use crate::run::{Case, EVERYWHERE};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!("killed", EVERYWHERE, work_goes_on_after_the_leader_was_killed),
        case!("stopped", EVERYWHERE, the_other_replica_leads_within_three_seconds_of_sigterm),
        case!("paused", EVERYWHERE, a_leader_that_slept_past_its_lease_writes_nothing_and_ends),
    ]
}

/// A lease that runs out soon.
const SHORT_LEASE: [&str; 3] = [
    "--leader-elect-lease-duration=5s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
];

async fn work_goes_on_after_the_leader_was_killed(s: &Scenario) -> anyhow::Result<()> {
    let names = s.names(6);
    let (mut leader, standby) = leader_and_standby(s, &SHORT_LEASE).await?;
    s.register_initialized(&names[..3]).await?;
    anyhow::ensure!(s.node_writes("b").await?.is_empty(), "the standby wrote");
    leader.signal(Signal::Kill).await?;
    s.register(&names[3..]).await?;
    // The lease must run out, and the new leader fill its caches.
    s.initialized(&names[3..], Duration::from_secs(15)).await?;
    anyhow::ensure!(!s.node_writes("b").await?.is_empty(), "somebody else initialised the nodes");
    standby.terminate().await
}

async fn the_other_replica_leads_within_three_seconds_of_sigterm(
    s: &Scenario,
) -> anyhow::Result<()> {
    let names = s.names(2);
    // With the default lease of 15 s, only a lease that was given back changes hands so soon.
    let (mut leader, standby) = leader_and_standby(s, &[]).await?;
    s.register_initialized(&names[..1]).await?;
    let before = holder(s).await?;
    let begin = Instant::now();
    leader.signal(Signal::Term).await?;
    let taken = loop {
        let now = holder(s).await?;
        if now.is_some() && now != before {
            break begin.elapsed();
        }
        anyhow::ensure!(begin.elapsed() < SOON, "nobody took over");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    anyhow::ensure!(taken < Duration::from_secs(3), "taken over only after {taken:?}");
    let status = leader.exit(Duration::from_secs(5)).await?;
    anyhow::ensure!(status.success(), "ended with {status}");
    s.register_initialized(&names[1..]).await?;
    standby.terminate().await
}

/// Holds the first call, until it gets a permit, so that its answer comes to a caller that is no
/// leader any more.
struct HoldFirst {
    number: u64,
    go: Semaphore,
}

#[async_trait::async_trait]
impl CallHook for HoldFirst {
    async fn before(&self, number: u64, _: Operation) {
        if number == self.number {
            // Closed or not: the call goes on.
            let _ = self.go.acquire().await;
        }
    }

    async fn after(&self, _: u64, _: Operation) {}
}

async fn a_leader_that_slept_past_its_lease_writes_nothing_and_ends(
    s: &Scenario,
) -> anyhow::Result<()> {
    let names = s.names(4);
    let flags = [&SHORT_LEASE[..], &["--node-status-update-frequency=10m"]].concat();
    let (mut leader, standby) = leader_and_standby(s, &flags).await?;
    s.register_initialized(&names[..1]).await?;
    // The leader is about to initialise a node when it falls asleep: it lacks only the cloud's
    // answer.
    let hold = Arc::new(HoldFirst {
        number: s.cloud.calls().describe_instances + 1,
        go: Semaphore::new(0),
    });
    s.cloud.set_hook(Some(hold.clone()));
    let asked = s.cloud.calls().describe_instances;
    s.register(&names[1..2]).await?;
    s.until("the leader asks", SOON, || s.cloud.calls().describe_instances > asked)
        .await?;
    leader.signal(Signal::Stop).await?;
    hold.go.close();
    s.register(&names[2..]).await?;
    s.initialized(&names, SOON).await?;

    let before = s.server.writes(&s.user("a")).await?;
    leader.signal(Signal::Continue).await?;
    let status = leader.exit(SOON).await?;
    anyhow::ensure!(status.code() == Some(1), "ended with {status}");
    let after = s.server.writes(&s.user("a")).await?;
    let late: Vec<_> = after[before.len()..]
        .iter()
        .filter(|write| write.resource.starts_with("nodes"))
        .collect();
    anyhow::ensure!(late.is_empty(), "written after the takeover: {late:?}");
    let lease: Vec<_> = after[before.len()..]
        .iter()
        .filter(|write| write.resource == "leases" && write.succeeded())
        .collect();
    anyhow::ensure!(lease.is_empty(), "the lease was taken back: {lease:?}");
    standby.terminate().await
}

/// Starts `a`, which leads, and then `b`, which waits.
async fn leader_and_standby(s: &Scenario, flags: &[&str]) -> anyhow::Result<(Ccm, Ccm)> {
    let mut leader = s.start("a", flags).await?;
    leader.logged("became leader", SOON).await?;
    let mut standby = s.start("b", flags).await?;
    standby.logged("another process leads", SOON).await?;
    Ok((leader, standby))
}

async fn holder(s: &Scenario) -> anyhow::Result<Option<String>> {
    let leases: Api<Lease> = Api::namespaced(s.server.client(), "kube-system");
    let lease = leases.get(&s.lease()).await.context("read the lease")?;
    Ok(lease
        .spec
        .and_then(|spec| spec.holder_identity)
        .filter(|holder| !holder.is_empty()))
}

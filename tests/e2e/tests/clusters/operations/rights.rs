//! Rights that are missing at the start: named, waited for, and used when they come.

use std::ffi::OsString;
use std::time::Duration;

use ccm_e2e::ccm::Ccm;
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::server::NOBODY;
use tokio::time::Instant;

use crate::case;
use crate::run::{Case, EVERYWHERE};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!("rights", EVERYWHERE, missing_rights_are_named_and_waited_for)]
}

async fn missing_rights_are_named_and_waited_for(s: &Scenario) -> anyhow::Result<()> {
    // With an election the Lease is the first thing that is denied, without one the nodes are.
    let elsewhere =
        ["--leader-elect-retry-period=500ms", "--leader-elect-resource-namespace=kube-public"];
    let mut elector = start(s, "elector", &elsewhere).await?;
    let mut follower = start(s, "follower", &["--leader-elect=false"]).await?;
    says_in_one_line(
        &mut elector,
        &["ERROR", "get", "leases", "coordination.k8s.io", "kube-public/"],
    )
    .await?;
    says_in_one_line(&mut follower, &["ERROR", "watch", "nodes", "API group"]).await?;
    // Both are still there, and find out by themselves that they may go on.
    s.server.grant(NOBODY).await?;
    elector.logged("became leader", SOON).await?;
    follower
        .logged("cache filled", Duration::from_secs(60))
        .await?;
    elector.terminate().await?;
    follower.terminate().await
}

/// Starts a process as somebody without rights, with a cloud in its own memory.
async fn start(s: &Scenario, process: &str, flags: &[&str]) -> anyhow::Result<Ccm> {
    let kubeconfig = s.kubeconfig(process);
    s.server.write_kubeconfig(&kubeconfig, NOBODY).await?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let args = ["--secure-port=0", "--cloud-provider=mock", &kubeconfig];
    let args = args.iter().chain(flags).map(OsString::from).collect();
    s.start_program(process, s.program(), args).await
}

async fn says_in_one_line(ccm: &mut Ccm, words: &[&str]) -> anyhow::Result<()> {
    let deadline = Instant::now() + SOON;
    while !ccm
        .log()
        .lines()
        .any(|line| words.iter().all(|word| line.contains(word)))
    {
        anyhow::ensure!(Instant::now() < deadline, "no line with all of {words:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::ensure!(ccm.is_running()?, "it ended");
    Ok(())
}

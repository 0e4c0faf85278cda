//! The process dies at a change of the cloud, by SIGKILL, and the next one goes on.
//!
//! It dies when the change is carried out and the answer is not there yet. To die just before a
//! change is the same as to die just after the one before it; the first change has that case of its
//! own.

use anyhow::Context as _;
use ccm_testkit::apiserver::{Action, Match};
use openstack_local::server::{Fault, FaultKind};
use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, INTERNAL, SOON, service, snapshot::CloudSnapshot};

const FLAGS: [&str; 1] = ["--controllers=service"];

fn created() -> Value {
    service("web", &[("TCP", 80)], &[("enable-health-monitor", "true")])
}

/// Other ports, other clients, another protocol, no health monitor, no floating IP.
fn changed() -> Value {
    let annotations = [
        ("enable-health-monitor", "false"),
        ("proxy-protocol", "true"),
        ("connection-limit", "100"),
        (INTERNAL, "true"),
    ];
    let mut changed = service("web", &[("TCP", 81), ("TCP", 82)], &annotations);
    changed["spec"]["loadBalancerSourceRanges"] = json!(["10.1.0.0/16"]);
    changed
}

/// A step of a Service's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    Change,
    Delete,
}

const STEPS: [Step; 3] = [Step::Create, Step::Change, Step::Delete];

impl Step {
    async fn take(self, stage: &ClusterFixture) -> anyhow::Result<()> {
        match self {
            Self::Create => stage.create(&created()).await.map(drop),
            Self::Change => stage.change("web", changed()).await.map(drop),
            Self::Delete => stage.delete("web").await,
        }
    }

    /// Waits until the step is done as far as the API server tells.
    async fn done(self, stage: &ClusterFixture) -> anyhow::Result<()> {
        match self {
            Self::Create | Self::Change => stage.served(&["web"]).await,
            Self::Delete => stage.vanished(&["web"]).await,
        }
    }

    /// Whether the Service says that the step is done: its address, and whose it is, or that it is
    /// gone.
    async fn is_told(self, stage: &ClusterFixture) -> anyhow::Result<bool> {
        let status = stage
            .services()
            .get_opt("web")
            .await?
            .and_then(|service| service.status);
        let ingress = status.and_then(|status| status.load_balancer?.ingress?.into_iter().next());
        let shown = ingress.and_then(|ingress| ingress.ip);
        let is_floating = shown.as_ref().map(|ip| ip.starts_with("203."));
        Ok(is_floating
            == match self {
                Self::Create => Some(true),
                Self::Change => Some(false),
                Self::Delete => None,
            })
    }

    /// Waits until the cloud is as it is to be, and returns it.
    async fn settled(self, stage: &ClusterFixture) -> anyhow::Result<CloudSnapshot> {
        let lines: &[&str] = match self {
            Self::Create => &[
                "default/web: floating ip in public-a",
                "default/web:80: check TCP",
                "group lb-sg-default-web: in tcp 30080 from nodes",
                "!group lb-sg-default-web: out",
                "node-0: is in lb-sg-default-web",
                "node-1: is in lb-sg-default-web",
            ],
            Self::Change => &[
                "!default/web:80:",
                "!default/web: floating",
                "default/web:81: pool PROXY ROUND_ROBIN",
                "default/web:81: at most 100",
                "default/web:81: member node-1 30081 in nodes",
                "default/web:82: member node-1 30082 in nodes",
                "group lb-sg-default-web: in tcp 30081 from nodes",
                "group lb-sg-default-web: in tcp 30082 from nodes",
                "!group lb-sg-default-web: in tcp 30080",
                "default/web: is ACTIVE",
            ],
            Self::Delete => &["!default/web", "!group lb-sg", "!floating ip", "!node-0: is in"],
        };
        stage.holds(lines).await
    }
}

/// The first change, one in the middle, and a late one; all of them are tried by
/// [`a_kill_at_any_change_leads_to_the_same_end`].
const SOME: [u32; 3] = [0, 3, 7];

pub(crate) async fn a_kill_at_some_changes_leads_to_the_same_end(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    let peace = prepared(stage).await?;
    for n in SOME {
        anyhow::ensure!(killed_in_each_step(stage, n, &peace).await? > 0, "there is no change {n}");
    }
    stage.stop().await
}

pub(crate) async fn a_kill_at_any_change_leads_to_the_same_end(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    let peace = prepared(stage).await?;
    for n in 0.. {
        if killed_in_each_step(stage, n, &peace).await? == 0 {
            anyhow::ensure!(n > 6, "only {n} changes");
            break;
        }
    }
    stage.stop().await
}

/// Sets the stage; returns how it looks after each step when nothing goes wrong.
async fn prepared(stage: &mut ClusterFixture) -> anyhow::Result<Vec<CloudSnapshot>> {
    let public = &stage.cloud.net.public[0];
    stage.config.balancer =
        format!("manage-security-groups = true\nfloating-subnet-id = {public}\n");
    // Every change is over at the next look, so that nobody waits.
    stage
        .cloud
        .octavia(|octavia| octavia.pending_ms = 0)
        .await?;
    stage.nodes(2).await?;
    let nothing = stage.world();
    let peace = in_peace(stage).await.context("in peace")?;
    peace[2]
        .same(&nothing)
        .map_err(anyhow::Error::msg)
        .context("left behind")?;
    Ok(peace)
}

/// Takes all steps, each with a kill at the n-th change, and returns in how many of them there is
/// one.
async fn killed_in_each_step(
    stage: &mut ClusterFixture,
    n: u32,
    peace: &[CloudSnapshot],
) -> anyhow::Result<usize> {
    let mut kills = 0;
    for (step, end) in STEPS.into_iter().zip(peace) {
        kills += usize::from(
            killed(stage, step, n, end)
                .await
                .with_context(|| format!("{step:?}, change {n}"))?,
        );
    }
    Ok(kills)
}

/// What is there after each step, when nothing goes wrong.
async fn in_peace(stage: &mut ClusterFixture) -> anyhow::Result<Vec<CloudSnapshot>> {
    let mut ends = Vec::new();
    stage.start(&FLAGS).await?;
    for step in STEPS {
        step.take(stage).await?;
        step.settled(stage).await?;
        step.done(stage).await?;
        ends.push(step.settled(stage).await?);
    }
    stage.stop().await?;
    Ok(ends)
}

/// Takes a step, kills the process at the n-th change (before the first for 0) if there are so
/// many, and waits for the next process to reach the end.
async fn killed(
    stage: &mut ClusterFixture,
    step: Step,
    n: u32,
    end: &CloudSnapshot,
) -> anyhow::Result<bool> {
    if !stage.is_running() {
        stage.start(&FLAGS).await?;
    }
    let faults = &stage.cloud.local.cloud().faults;
    faults.add(Fault::of_changes(FaultKind::Stuck { done: n > 0 }).after(n.saturating_sub(1)));
    step.take(stage).await?;
    let stuck = stuck_or(stage, step, end).await?;
    if stuck {
        stage.kill().await?;
    }
    stage.cloud.local.cloud().faults.clear();
    if stuck {
        stage.start(&FLAGS).await?;
    }
    step.done(stage).await?;
    stage
        .settles("the same end", |world| world.same(end))
        .await?;
    Ok(stuck)
}

/// Waits until a change is stuck, or the step is done without.
async fn stuck_or(stage: &ClusterFixture, step: Step, end: &CloudSnapshot) -> anyhow::Result<bool> {
    let is_stuck = || stage.cloud.local.cloud().faults.stuck() > 0;
    let wait = async {
        loop {
            if is_stuck() {
                return anyhow::Ok(true);
            }
            if stage.world().same(end).is_ok() {
                // The last change may be the one that is stuck, and nothing tells but what comes
                // after it.
                tokio::select! {
                    done = step.done(stage) => done?,
                    () = stuck(stage) => {}
                }
                return Ok(is_stuck());
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, wait)
        .await
        .context("neither stuck nor done")?
}

async fn stuck(stage: &ClusterFixture) {
    while stage.cloud.local.cloud().faults.stuck() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// The same for writes to the API server: the process dies before each of them, mostly while the
/// cloud is still busy.
pub(crate) async fn a_kill_at_any_write_to_the_api_server_leads_to_the_same_end(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    let public = &stage.cloud.net.public[0];
    stage.config.balancer =
        format!("manage-security-groups = true\nfloating-subnet-id = {public}\n");
    stage.nodes(2).await?;
    let nothing = stage.world();
    let peace = in_peace(stage).await.context("in peace")?;
    peace[2]
        .same(&nothing)
        .map_err(anyhow::Error::msg)
        .context("left behind")?;
    let server = stage.server.clone();
    let faults = server.as_embedded()?.faults();
    for n in 0.. {
        let mut kills = 0;
        for (step, end) in STEPS.into_iter().zip(&peace) {
            if !stage.is_running() {
                stage.start(&FLAGS).await?;
            }
            let writes = Match::resource("services")
                .writes()
                .user_agent("ccm-openstack");
            let held =
                faults.add_after(n, writes, Action::Delay(std::time::Duration::from_secs(3600)));
            step.take(stage).await?;
            let wait = async {
                loop {
                    if faults.met(held) > 0 {
                        return anyhow::Ok(true);
                    }
                    // What the Service shows is the last thing that is written.
                    if stage.world().same(end).is_ok() && step.is_told(stage).await? {
                        return Ok(faults.met(held) > 0);
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            };
            let stuck = tokio::time::timeout(SOON, wait)
                .await
                .context("neither stuck nor done")??;
            if stuck {
                stage.kill().await?;
                kills += 1;
            }
            faults.clear();
            if stuck {
                stage.start(&FLAGS).await?;
            }
            let context = || format!("{step:?}, write {n}");
            step.done(stage).await.with_context(context)?;
            stage
                .settles("the same end", |world| world.same(end))
                .await
                .with_context(context)?;
        }
        if kills == 0 {
            anyhow::ensure!(n > 1, "only {n} writes");
            break;
        }
    }
    stage.stop().await
}

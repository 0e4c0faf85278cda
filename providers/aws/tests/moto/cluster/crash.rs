//! The process dies at a change of AWS, by SIGKILL, and the next one goes on.
//!
//! It dies when the change is carried out and the answer is not there yet. To die just before a
//! change is the same as to die just after the one before it; the first change has that case of its
//! own.

use anyhow::Context as _;
use ccm_testkit::moto::fault_proxy::{ANY_CHANGE, Fault, ProxyFault};
use serde_json::{Value, json};

use super::fixture::{ClusterFixture, SOON, service, snapshot::AccountSnapshot};

const FLAGS: [&str; 1] = ["--controllers=service"];

fn created() -> Value {
    service(
        "web",
        &[("TCP", 80)],
        &[("target-group-attributes", "preserve_client_ip.enabled=false")],
    )
}

/// Another port, another health check, other clients, an attribute, a tag.
fn changed() -> Value {
    let mut changed = service(
        "web",
        &[("TCP", 81)],
        &[
            ("healthcheck-interval", "10"),
            ("cross-zone-load-balancing-enabled", "true"),
            ("additional-resource-tags", "team=a"),
        ],
    );
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

impl Step {
    async fn take(self, stage: &ClusterFixture<'_>) -> anyhow::Result<()> {
        match self {
            Self::Create => stage.create(&created()).await.map(drop),
            Self::Change => stage.change("web", changed()).await.map(drop),
            Self::Delete => stage.delete("web").await,
        }
    }

    /// Waits until the step is done as far as the API server tells.
    async fn done(self, stage: &ClusterFixture<'_>) -> anyhow::Result<()> {
        match self {
            Self::Create | Self::Change => stage.served(&["web"]).await,
            Self::Delete => stage.vanished(&["web"]).await,
        }
    }
}

const STEPS: [Step; 3] = [Step::Create, Step::Change, Step::Delete];

/// Changes at which the process dies when not all are tried: before the first, at the first, and
/// amid the rest.
const SOME: [usize; 3] = [0, 1, 3];

// OU3
pub(crate) async fn a_kill_at_some_changes_leads_to_the_same_end(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let peace = begin(stage).await?;
    for n in SOME {
        for (step, end) in STEPS.into_iter().zip(&peace) {
            let killed = killed(stage, step, n, end)
                .await
                .with_context(|| format!("{step:?}, change {n}"))?;
            anyhow::ensure!(killed, "{step:?} was done before change {n}: nothing was killed");
        }
    }
    Ok(())
}

// OU3
pub(crate) async fn a_kill_at_any_change_leads_to_the_same_end(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let peace = begin(stage).await?;
    for n in 0.. {
        let mut kills = 0;
        for (step, end) in STEPS.into_iter().zip(&peace) {
            let killed = killed(stage, step, n, end)
                .await
                .with_context(|| format!("{step:?}, change {n}"))?;
            kills += usize::from(killed && step != Step::Change);
        }
        // The last requests of the change are left to the in-memory AWS, to save time.
        if kills == 0 {
            anyhow::ensure!(n > 6, "only {n} changes");
            return Ok(());
        }
    }
    unreachable!("the loop returns")
}

/// Makes the cluster; returns what is there after each step in peace.
async fn begin(stage: &mut ClusterFixture<'_>) -> anyhow::Result<Vec<AccountSnapshot>> {
    stage.config = "DefaultLoadBalancerType = nlb\nAnnotationDialect = extended\nNLBSecurityGroupMode = Managed\n".into();
    stage.nodes(2).await?;
    let nothing = stage.world().await?;
    let peace = in_peace(stage).await.context("in peace")?;
    peace[2]
        .same(&nothing)
        .map_err(anyhow::Error::msg)
        .context("left behind")?;
    Ok(peace)
}

/// What is there after each step, when nothing goes wrong.
async fn in_peace(stage: &mut ClusterFixture<'_>) -> anyhow::Result<Vec<AccountSnapshot>> {
    let mut ends = Vec::new();
    stage.start(&FLAGS).await?;
    for step in STEPS {
        stage.take_requests();
        step.take(stage).await?;
        step.done(stage).await?;
        let is_reached = |world: &AccountSnapshot| match step {
            Step::Change => {
                world.has(&["default/web:81: health every 10 within 10", "!default/web:80:"])
            }
            Step::Create | Step::Delete => Ok(()),
        };
        stage.settles("the step is done", is_reached).await?;
        // Nothing tells that the last change was made but that there are no more.
        let mut writes = stage.take_writes();
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(700)).await;
            let more = stage.take_writes();
            if more.is_empty() {
                break;
            }
            writes.extend(more);
        }
        ends.push(stage.world().await?);
    }
    stage.stop().await?;
    Ok(ends)
}

/// Takes a step, kills the process at the n-th change (before the first for 0) if there are so
/// many, and waits for the next process to reach the end.
async fn killed(
    stage: &mut ClusterFixture<'_>,
    step: Step,
    n: usize,
    end: &AccountSnapshot,
) -> anyhow::Result<bool> {
    stage.start(&FLAGS).await?;
    stage.take_requests();
    let (after, trouble) = if n == 0 {
        (0, ProxyFault::RequestLost)
    } else {
        (n - 1, ProxyFault::Stuck)
    };
    stage.overlay().fail(Fault {
        action: ANY_CHANGE.into(),
        after,
        times: usize::MAX,
        effect: trouble,
    });
    step.take(stage).await?;
    let stuck = stuck_or(stage, end).await?;
    stage.kill().await?;
    stage.overlay().heal();
    // AWS may be at the end when the cluster is not: a finalizer is taken off last.
    stage.start(&FLAGS).await?;
    step.done(stage).await?;
    stage
        .settles("the same end", |world| world.same(end))
        .await?;
    stage.kill().await?;
    Ok(stuck)
}

/// Waits until a change is stuck, or the end is reached without.
async fn stuck_or(stage: &ClusterFixture<'_>, end: &AccountSnapshot) -> anyhow::Result<bool> {
    let wait = async {
        loop {
            if stage
                .take_requests()
                .iter()
                .any(|request| request.status.is_none())
            {
                return anyhow::Ok(true);
            }
            if stage.world().await?.same(end).is_ok() {
                // The last change may be the one that is stuck.
                return Ok(stage
                    .take_requests()
                    .iter()
                    .any(|request| request.status.is_none()));
            }
        }
    };
    tokio::time::timeout(SOON, wait)
        .await
        .context("neither stuck nor done")?
}

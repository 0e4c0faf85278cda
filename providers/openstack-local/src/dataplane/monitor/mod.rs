//! Health checks of members.

mod icmp;
mod probe;

use std::{io, net::SocketAddr, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    ChangeNotifier,
    config::{MemberConfig, MemberId, MonitorConfig, PoolProtocol},
    frontend::message,
    plan::{Health, Streak},
    pool::{Member, Pool},
};

/// The parameters of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    monitor: MonitorConfig,
    target: SocketAddr,
    /// The PROXY header that the member expects on each connection.
    proxy: Option<PoolProtocol>,
}

/// A running check.
#[derive(Debug)]
pub(super) struct Running {
    check: Check,
    stop: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Starts, changes and stops the checks of a pool's members; unchanged checks continue.
pub(super) fn arrange(pool: &Pool, tasks: &TaskTracker, announcer: &ChangeNotifier) {
    for (config, member) in pool.slots() {
        let wanted = pool.config.monitor.as_ref().filter(|_| config.enabled);
        let wanted =
            wanted.map(|monitor| Check::new(monitor.clone(), config, pool.config.protocol));
        let mut running = member.check.lock();
        if wanted.is_some() && running.as_ref().map(|running| &running.check) == wanted.as_ref() {
            continue;
        }
        // Dropping the old one stops it before anything else is recorded.
        *running = None;
        match wanted {
            None => member.set_health(Health::Unmonitored, None, announcer),
            Some(check) => {
                let stop = member.gone.child_token();
                let streak = Streak::new(
                    member.health(),
                    check.monitor.max_retries,
                    check.monitor.max_retries_down,
                );
                member.set_health(streak.health(), None, announcer);
                *running = Some(Running { check: check.clone(), stop: stop.clone() });
                let run = run(check, member.clone(), streak, stop.clone(), announcer.clone());
                tasks.spawn(async move { stop.run_until_cancelled(run).await });
            }
        }
    }
}

/// Stops the checks of a member that is not in the pool any more.
pub(super) fn forget(member: &Member) {
    member.check.lock().take();
}

impl Check {
    fn new(monitor: MonitorConfig, member: &MemberConfig, protocol: PoolProtocol) -> Self {
        // As in haproxy: a separate listener for checks does not get the header.
        let proxy = matches!(protocol, PoolProtocol::Proxy | PoolProtocol::ProxyV2)
            && !member.monitored_elsewhere();
        Self {
            monitor,
            target: member.monitor_socket(),
            proxy: proxy.then_some(protocol),
        }
    }
}

async fn run(
    check: Check,
    member: Arc<Member>,
    mut streak: Streak,
    stop: CancellationToken,
    announcer: ChangeNotifier,
) {
    let limit = if check.monitor.timeout.is_zero() {
        check.monitor.delay
    } else {
        check.monitor.timeout
    };
    loop {
        let error = fault(limit, &member.id, Box::pin(probe::probe(&check))).await;
        let health = streak.record(error.is_none());
        {
            // Under the lock that `arrange` holds while it stops a check: a stopped check records
            // nothing more.
            let _running = member.check.lock();
            if stop.is_cancelled() {
                return;
            }
            member.set_health(health, error, &announcer);
        }
        sleep(jittered(check.monitor.delay)).await;
    }
}

/// Returns why a check failed, if it did.
async fn fault(
    limit: Duration,
    member: &MemberId,
    probing: impl Future<Output = io::Result<()>>,
) -> Option<String> {
    match AssertUnwindSafe(timeout(limit, probing))
        .catch_unwind()
        .await
    {
        Ok(Ok(Ok(()))) => None,
        Ok(Ok(Err(error))) => Some(error.to_string()),
        Ok(Err(_)) => Some(format!("no answer within {limit:?}")),
        // A member must not count as healthy when nothing checks it.
        Err(panic) => {
            let panic = message(&*panic);
            tracing::error!(%member, panic, "the check of a member has panicked");
            Some(format!("the check has panicked: {panic}"))
        }
    }
}

/// Adds or subtracts up to a tenth, so that the checks of many members are not simultaneous; never
/// so short as to spin.
fn jittered(delay: Duration) -> Duration {
    delay
        .mul_f64(rand::random_range(0.9..1.1))
        .max(Duration::from_millis(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_check_that_panics_has_failed() {
        let limit = Duration::from_secs(20);
        let broken = async { panic!("broken") };
        assert_eq!(
            fault(limit, &"m".into(), broken).await.as_deref(),
            Some("the check has panicked: broken")
        );
        assert_eq!(fault(limit, &"m".into(), async { Ok(()) }).await, None);
    }
}

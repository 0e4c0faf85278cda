//! The start of the cloud provider, retried while the cloud is down.

use std::{future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{Manager, ManagerError, telemetry::Telemetry};
use crate::{
    error::caught,
    provider::{CloudError, ErrorKind, ProviderContext},
    runtime::{
        health::{CheckKind, Health},
        work_queue::Backoff,
    },
};

/// The name of the health check that fails until the provider has been built and started.
pub const CLOUD_PROVIDER_CHECK: &str = "cloud-provider";

/// The delays between attempts. They are short so that a leader starts to work soon after its cloud
/// is available again.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(30) };

impl Manager {
    /// Starts the provider for a subcommand, which does not wait for its cloud. A panic is an error.
    pub(super) async fn start_provider_once(
        &self,
        context: ProviderContext,
    ) -> Result<(), CloudError> {
        caught(self.provider.start(context))
            .await
            .unwrap_or_else(|panic| {
                let message = format!("the provider panicked in start: {panic}");
                Err(CloudError::transient(message))
            })
    }

    /// Starts the provider. The process is not ready before that succeeds, and only
    /// [`CLOUD_PROVIDER_CHECK`] fails meanwhile.
    pub(super) async fn start_provider(
        &self,
        context: &ProviderContext,
        metrics: &Telemetry,
    ) -> Result<(), ManagerError> {
        let started = if self.config.shadow.once {
            // A single comparison does not wait until the cloud is available again.
            self.provider.start(context.clone()).await
        } else {
            retry_until_started(
                || self.provider.start(context.clone()),
                &self.health,
                || metrics.caches_synced(),
            )
            .await
        };
        started.map_err(ManagerError::Provider)
    }
}

/// Retries until the provider has started or has failed permanently. Calls `on_check_registered` as
/// soon as the health check is registered.
///
/// Transient errors are retried here, because a restart of the process would not help the cloud and
/// would lose the lease and the caches.
async fn retry_until_started<F: Future<Output = Result<(), CloudError>>>(
    mut start: impl FnMut() -> F,
    health: &Health,
    on_check_registered: impl FnOnce(),
) -> Result<(), CloudError> {
    let status = Arc::new(Mutex::new("has not started yet".to_owned()));
    let checked_status = status.clone();
    let _check = health
        .add(CheckKind::Ready, CLOUD_PROVIDER_CHECK, move || Err(checked_status.lock().clone()));
    on_check_registered();
    let mut failures = 0;
    loop {
        let error = match start().await {
            Ok(()) if failures > 0 => {
                tracing::info!(failures, "cloud provider has started");
                return Ok(());
            }
            Ok(()) => return Ok(()),
            Err(error) if !is_transient(error.kind()) => return Err(error),
            Err(error) => error,
        };
        failures += 1;
        let wait = BACKOFF
            .delay(failures)
            .max(error.retry_after().unwrap_or_default());
        let new_status = format!("could not start: {}", error.chain());
        let old_status = std::mem::replace(&mut *status.lock(), new_status.clone());
        if new_status == old_status {
            tracing::debug!(
                error = error.chain(),
                ?wait,
                "cloud provider could not start; trying again"
            );
        } else {
            tracing::warn!(
                error = error.chain(),
                ?wait,
                "cloud provider could not start; trying again"
            );
        }
        tokio::time::sleep(wait).await;
    }
}

/// Returns true if a retry may help. `Canceled` may: if the whole process is cancelled, the attempt
/// is dropped anyway.
fn is_transient(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Transient | ErrorKind::Throttled | ErrorKind::Canceled | ErrorKind::Conflict => {
            true
        }
        ErrorKind::NotFound
        | ErrorKind::NotImplemented
        | ErrorKind::ImplementedElsewhere
        | ErrorKind::QuotaExceeded
        | ErrorKind::InvalidInput
        | ErrorKind::Denied
        | ErrorKind::NotLeader => false,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn reasons(health: &Health) -> Vec<String> {
        health
            .checks()
            .iter()
            .filter_map(|check| check.run().err())
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_cloud_that_is_down_is_waited_for_and_shown() {
        let (health, begin) = (Health::default(), Instant::now());
        let attempts = Mutex::new(Vec::new());
        let start = || {
            attempts.lock().push(begin.elapsed().as_secs());
            let down = begin.elapsed() < Duration::from_secs(300);
            let kinds = [ErrorKind::Transient, ErrorKind::Throttled, ErrorKind::Canceled];
            let kind = kinds[attempts.lock().len() % 3];
            async move {
                if down {
                    Err(CloudError::new(kind, "the cloud is down"))
                } else {
                    Ok(())
                }
            }
        };
        let look = async {
            tokio::time::sleep(Duration::from_secs(200)).await;
            assert_eq!(reasons(&health), ["could not start: the cloud is down"]);
            assert_eq!(health.checks()[0].kind(), CheckKind::Ready, "it is alive");
        };
        let (started, ()) = tokio::join!(retry_until_started(start, &health, || ()), look);
        started.unwrap();
        let attempts = attempts.into_inner();
        // Each pause is up to a tenth longer.
        for (attempt, want) in attempts.iter().zip([0, 1, 3, 7, 15, 31, 61]) {
            assert!((want..=want + want / 10).contains(attempt), "{attempts:?}");
        }
        assert!((300..=333).contains(attempts.last().unwrap()), "{attempts:?}");
        assert!(health.checks().is_empty(), "what has started is no matter of readiness any more");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_cloud_wants_is_waited_for() {
        let (health, begin) = (Health::default(), Instant::now());
        let start = || async move {
            let busy = CloudError::new(ErrorKind::Throttled, "busy")
                .with_retry_after(Duration::from_secs(90));
            if begin.elapsed().is_zero() {
                Err(busy)
            } else {
                Ok(())
            }
        };
        retry_until_started(start, &health, || ()).await.unwrap();
        assert_eq!(begin.elapsed().as_secs(), 90);
    }

    #[tokio::test(start_paused = true)]
    async fn what_will_not_pass_ends_it() {
        for kind in [
            ErrorKind::InvalidInput,
            ErrorKind::Denied,
            ErrorKind::QuotaExceeded,
            ErrorKind::NotLeader,
        ] {
            let health = Health::default();
            let start = || async move { Err(CloudError::new(kind, "no")) };
            let ended = tokio::time::timeout(
                Duration::from_secs(3600),
                retry_until_started(start, &health, || ()),
            );
            assert_eq!(ended.await.expect("it ends").unwrap_err().kind(), kind);
            assert!(health.checks().is_empty());
        }
    }
}

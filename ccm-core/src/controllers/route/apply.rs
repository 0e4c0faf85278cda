//! Sends changes of routes to the cloud in batches. Each change has its own result.

use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::time::Instant;
use tracing::Instrument;

use super::{CALL_TIMEOUT, RouteController, metrics::SyncTrigger};
use crate::{
    provider::{CloudError, ErrorKind, Op, Progress, RouteChange, RouteLimits},
    telemetry::controller_metrics::call_span,
};

/// The result of a change.
pub(super) struct ChangeResult {
    pub(super) change: RouteChange,
    /// `None` if the change was not sent, or was abandoned because the process is stopping or no
    /// longer the leader.
    pub(super) result: Option<Result<Progress, CloudError>>,
    /// The duration of the call that contained the change.
    pub(super) duration: Duration,
}

impl ChangeResult {
    fn not_sent(change: RouteChange) -> Self {
        Self { change, result: None, duration: Duration::ZERO }
    }

    pub(super) fn succeeded(&self) -> bool {
        matches!(self.result, Some(Ok(Progress::Done)))
    }
}

impl RouteController {
    /// Applies changes that do not depend on each other. They are sent in the given order.
    pub(super) async fn apply(
        &self,
        trigger: SyncTrigger,
        changes: Vec<RouteChange>,
    ) -> Vec<ChangeResult> {
        let limits = match self.ctx.provider.routes() {
            Some(routes) => routes.limits(),
            None => RouteLimits::default(),
        };
        let calls = stream::iter(split_into_batches(changes, limits.max_batch.get()))
            .map(|batch| self.apply_batch(trigger, batch))
            .buffered(limits.max_in_flight.get());
        calls.flat_map(stream::iter).collect().await
    }

    /// Applies a batch in one call, unless the cloud is throttling or the process is stopping.
    async fn apply_batch(
        &self,
        trigger: SyncTrigger,
        batch: Vec<RouteChange>,
    ) -> Vec<ChangeResult> {
        // Check the throttling just before the call, because an earlier batch may have changed it.
        let started = Instant::now();
        let generation = {
            let throttle = self.throttle.lock();
            if throttle.until().is_some_and(|until| until > started) || self.op.is_cancelled() {
                return batch.into_iter().map(ChangeResult::not_sent).collect();
            }
            throttle.generation()
        };
        let op = self
            .op
            .clone()
            .for_call(started + CALL_TIMEOUT)
            .with_reason(trigger.reason());
        let results = self.call_apply(&op, &batch).await;
        // Record the errors for the throttling and the metrics.
        let duration = started.elapsed();
        let errors: Vec<&CloudError> = results
            .iter()
            .filter_map(|result| result.as_ref().err())
            .collect();
        let throttled = errors
            .iter()
            .copied()
            .find(|error| error.kind() == ErrorKind::Throttled);
        self.throttle.lock().record(generation, throttled);
        // The call counts as failed if none of its changes succeeded.
        let call_error = if errors.len() == results.len() {
            errors.first().copied()
        } else {
            None
        };
        self.cloud
            .observe_batch("apply_routes", batch.len(), duration, call_error);
        batch
            .into_iter()
            .zip(results)
            .map(|(change, result)| self.record_result(change, result, duration))
            .collect()
    }

    /// Calls the provider and returns one result per change, even if the provider does not.
    async fn call_apply(
        &self,
        op: &Op,
        batch: &[RouteChange],
    ) -> Vec<Result<Progress, CloudError>> {
        let Some(routes) = self.ctx.provider.routes() else {
            return vec![
                Err(CloudError::new(ErrorKind::NotImplemented, "provider has no routes"));
                batch.len()
            ];
        };
        let answers = op
            .run(async { Ok(routes.apply(op, batch).await) })
            .instrument(call_span("apply_routes"))
            .await;
        let results = match answers {
            Ok(results) if results.len() == batch.len() => results,
            // It is unknown which result belongs to which change, so all of them count as failed.
            Ok(results) => {
                let error = CloudError::transient(format!(
                    "provider answered {} of {} route changes",
                    results.len(),
                    batch.len()
                ));
                vec![Err(error); batch.len()]
            }
            Err(error) => vec![Err(error); batch.len()],
        };
        results
            .into_iter()
            .map(|result| result.map_err(|error| op.as_timeout(error, timeout_message)))
            .collect()
    }

    /// Counts the result of a change, unless it is pending.
    fn record_result(
        &self,
        change: RouteChange,
        result: Result<Progress, CloudError>,
        duration: Duration,
    ) -> ChangeResult {
        let is_deletion = matches!(change, RouteChange::Delete(_));
        let result = match result {
            // The route no longer exists, so it counts as deleted.
            Err(error) if is_deletion && error.kind() == ErrorKind::NotFound => Ok(Progress::Done),
            Err(error) if matches!(error.kind(), ErrorKind::NotLeader | ErrorKind::Canceled) => {
                return ChangeResult { change, result: None, duration };
            }
            result => result,
        };
        if !matches!(result, Ok(Progress::Pending { .. })) {
            self.metrics.change(&change, result.as_ref().err());
        }
        ChangeResult { change, result: Some(result), duration }
    }
}

/// Returns the error message of a call that timed out.
pub(super) fn timeout_message() -> String {
    "no answer about routes".to_owned()
}

/// Splits changes into batches. Each batch has its own allocation, because `Vec::split_off` would
/// leave the capacity of the whole list with the first one.
fn split_into_batches(changes: Vec<RouteChange>, max_batch: usize) -> Vec<Vec<RouteChange>> {
    let mut batches = Vec::with_capacity(changes.len().div_ceil(max_batch));
    let mut changes = changes.into_iter();
    while changes.len() > 0 {
        batches.push(changes.by_ref().take(max_batch).collect());
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Route;

    #[test]
    fn batches_keep_the_order_and_their_limit() {
        const MAX_BATCH: usize = 100;
        let change = |i: usize| {
            let destination = "10.0.0.0/24".parse().unwrap();
            let route = Route {
                name: i.to_string().into(),
                node: None,
                node_addresses: None,
                destination,
                blackhole: false,
            };
            RouteChange::Delete(route)
        };
        for count in [0, 1, 99, 100, 101, 250, 1000] {
            let changes: Vec<_> = (0..count).map(change).collect();
            let batches = split_into_batches(changes.clone(), MAX_BATCH);
            assert_eq!(batches.concat(), changes);
            assert_eq!(batches.len(), count.div_ceil(MAX_BATCH));
            assert!(
                batches
                    .iter()
                    .all(|batch| (1..=MAX_BATCH).contains(&batch.len())),
                "{count}"
            );
            assert!(
                batches
                    .iter()
                    .all(|batch| batch.capacity() <= 2 * MAX_BATCH),
                "{count}"
            );
        }
    }
}

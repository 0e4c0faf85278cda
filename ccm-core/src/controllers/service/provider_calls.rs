//! Provider calls: each has a deadline and is counted, and none is made while the cloud is
//! throttling.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Instrument;

use super::concurrency::ConcurrencyLimit;
use crate::{
    provider::{
        CloudError, CloudProvider, ErrorKind, LbOutcome, LbRef, LbSpec, LoadBalancers, Op,
        PlannedChange, Progress, ReadMode, Throttle, call_metrics::CloudMetrics,
    },
    telemetry::controller_metrics::call_span,
};

/// Timeout of one call. Calls do not sleep, so this is enough for many requests to a slow cloud. A
/// call that hangs longer would occupy a worker indefinitely.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Calls to the provider's load balancers.
pub(crate) struct LoadBalancerCalls {
    provider: Arc<dyn CloudProvider>,
    metrics: CloudMetrics,
    throttle: Mutex<Throttle>,
    concurrency: ConcurrencyLimit,
}

/// The cloud is throttling for this long; it was not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Throttled(pub(crate) Duration);

impl LoadBalancerCalls {
    /// Creates it with a limit of `most` concurrent syncs.
    pub(crate) fn new(
        provider: Arc<dyn CloudProvider>,
        metrics: CloudMetrics,
        most: usize,
    ) -> Self {
        Self {
            provider,
            metrics,
            throttle: Mutex::default(),
            concurrency: ConcurrencyLimit::new(most),
        }
    }

    /// Returns how many Services may be synced at once.
    pub(crate) fn concurrency(&self) -> usize {
        self.concurrency.current()
    }

    pub(crate) fn load_balancers(&self) -> Result<&dyn LoadBalancers, CloudError> {
        let missing = || {
            CloudError::new(ErrorKind::NotImplemented, "the cloud provider has no load balancers")
        };
        self.provider.load_balancers().ok_or_else(missing)
    }

    pub(crate) async fn ensure(
        &self,
        op: Op,
        spec: &LbSpec,
        read_mode: ReadMode,
    ) -> Result<LbOutcome, Throttled> {
        let op = op.for_call(Instant::now() + CALL_TIMEOUT);
        let call = async { Ok(self.load_balancers()?.ensure(&op, spec, read_mode).await) };
        self.outcome("ensure_load_balancer", &op, call).await
    }

    pub(crate) async fn update_backends(
        &self,
        op: Op,
        spec: &LbSpec,
    ) -> Result<LbOutcome, Throttled> {
        let op = op.for_call(Instant::now() + CALL_TIMEOUT);
        let call = async { Ok(self.load_balancers()?.update_backends(&op, spec).await) };
        self.outcome("update_load_balancer_backends", &op, call)
            .await
    }

    pub(crate) async fn plan(
        &self,
        op: Op,
        spec: &LbSpec,
    ) -> Result<Result<Vec<PlannedChange>, CloudError>, Throttled> {
        let op = op.for_call(Instant::now() + CALL_TIMEOUT);
        let call = async { self.load_balancers()?.plan(&op, spec).await };
        self.call("plan_load_balancer", &op, call, |_| None).await
    }

    pub(crate) async fn delete(
        &self,
        op: Op,
        lb: &LbRef,
    ) -> Result<Result<Progress, CloudError>, Throttled> {
        let op = op.for_call(Instant::now() + CALL_TIMEOUT);
        let call = async { self.load_balancers()?.delete(&op, lb).await };
        self.call("delete_load_balancer", &op, call, |_| None).await
    }

    async fn outcome(
        &self,
        operation: &'static str,
        op: &Op,
        call: impl Future<Output = Result<LbOutcome, CloudError>>,
    ) -> Result<LbOutcome, Throttled> {
        let call = async {
            let mut outcome: LbOutcome = call.await?;
            outcome.result = outcome
                .result
                .map_err(|error| op.as_timeout(error, || format!("{operation} did not end")));
            Ok(outcome)
        };
        let failed = |outcome: &LbOutcome| outcome.result.as_ref().err().cloned();
        Ok(self
            .call(operation, op, call, failed)
            .await?
            .unwrap_or_else(LbOutcome::from))
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        op: &Op,
        call: impl Future<Output = Result<T, CloudError>>,
        failed: impl Fn(&T) -> Option<CloudError>,
    ) -> Result<Result<T, CloudError>, Throttled> {
        let started = Instant::now();
        let generation = {
            let throttle = self.throttle.lock();
            if let Some(until) = throttle.until().filter(|until| *until > started) {
                return Err(Throttled(until - started));
            }
            throttle.generation()
        };
        let call = op.run(call).instrument(call_span(operation));
        let result = call
            .await
            .map_err(|error| op.as_timeout(error, || format!("{operation} did not end")));
        let error = result
            .as_ref()
            .map_or_else(|error| Some(error.clone()), failed);
        self.metrics
            .observe(operation, started.elapsed(), error.as_ref());
        let throttled = error
            .as_ref()
            .filter(|error| error.kind() == ErrorKind::Throttled);
        let mut throttle = self.throttle.lock();
        match (&error, throttled) {
            // A call that started before the last throttling says nothing about the rate since
            // then.
            _ if generation != throttle.generation() => {}
            (_, Some(_)) => self.concurrency.decrease(),
            (None, None) => self.concurrency.increase(),
            (Some(_), None) => {}
        }
        throttle.record(generation, throttled);
        drop(throttle);
        Ok(result)
    }
}

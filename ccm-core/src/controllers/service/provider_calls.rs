//! Calls of the provider's load balancers. Each call has a deadline and is counted in the metrics.
//! While the cloud is throttling, no call is made.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Instrument;

use super::concurrency::ConcurrencyLimit;
use crate::{
    provider::{
        CloudError, CloudProvider, ErrorKind, LbOutcome, LbRef, LbSpec, LoadBalancers, Op,
        PlannedChange, Progress, ReadMode, RetainOutcome, Throttle, call_metrics::CloudMetrics,
    },
    telemetry::controller_metrics::call_span,
};

/// The timeout of one call. Providers do not sleep during a call, so this is enough for many
/// requests to a slow cloud. Without it, a call that hangs would occupy a worker indefinitely.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Makes the calls of the provider's load balancers.
pub(crate) struct LoadBalancerCalls {
    provider: Arc<dyn CloudProvider>,
    metrics: CloudMetrics,
    throttle: Mutex<Throttle>,
    concurrency: ConcurrencyLimit,
}

/// The error of a call that was not made, because the cloud will be throttling for this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Throttled(pub(crate) Duration);

impl LoadBalancerCalls {
    /// Creates the calls of a controller that runs at most `max_syncs` syncs at a time.
    pub(crate) fn new(
        provider: Arc<dyn CloudProvider>,
        metrics: CloudMetrics,
        max_syncs: usize,
    ) -> Self {
        Self {
            provider,
            metrics,
            throttle: Mutex::default(),
            concurrency: ConcurrencyLimit::new(max_syncs),
        }
    }

    /// Returns the number of Services that may be synced at a time.
    pub(crate) fn concurrency(&self) -> usize {
        self.concurrency.current()
    }

    pub(crate) fn load_balancers(&self) -> Result<&dyn LoadBalancers, CloudError> {
        self.provider.load_balancers().ok_or_else(|| {
            CloudError::new(ErrorKind::NotImplemented, "the cloud provider has no load balancers")
        })
    }

    pub(crate) async fn ensure(
        &self,
        op: Op,
        spec: &LbSpec,
        read_mode: ReadMode,
    ) -> Result<LbOutcome, Throttled> {
        let op = op.for_call(Instant::now() + CALL_TIMEOUT);
        let call = async { Ok(self.load_balancers()?.ensure(&op, spec, read_mode).await) };
        self.call_for_outcome("ensure_load_balancer", &op, call)
            .await
    }

    pub(crate) async fn update_backends(
        &self,
        op: Op,
        spec: &LbSpec,
    ) -> Result<LbOutcome, Throttled> {
        let op = op.for_call(Instant::now() + CALL_TIMEOUT);
        let call = async { Ok(self.load_balancers()?.update_backends(&op, spec).await) };
        self.call_for_outcome("update_load_balancer_backends", &op, call)
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

    pub(crate) async fn retain(
        &self,
        op: Op,
        lb: &LbRef,
    ) -> Result<Result<RetainOutcome, CloudError>, Throttled> {
        let op = op.for_call(Instant::now() + CALL_TIMEOUT);
        let call = async {
            let load_balancers = self.load_balancers()?;
            if !load_balancers.supports().retain {
                let message = "the provider cannot keep load balancers";
                return Err(CloudError::new(ErrorKind::NotImplemented, message));
            }
            load_balancers.retain(&op, lb).await
        };
        self.call("retain_load_balancer", &op, call, |_| None).await
    }

    /// Makes a call that returns an `LbOutcome`, which may contain both an error and a status.
    async fn call_for_outcome(
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
        let result = self
            .call(operation, op, call, |outcome| outcome.result.as_ref().err().cloned())
            .await?;
        Ok(result.unwrap_or_else(LbOutcome::from))
    }

    /// Makes a call, unless the cloud is throttling. `error_in` returns the error that an answer
    /// contains, if any.
    async fn call<T>(
        &self,
        operation: &'static str,
        op: &Op,
        call: impl Future<Output = Result<T, CloudError>>,
        error_in: impl Fn(&T) -> Option<CloudError>,
    ) -> Result<Result<T, CloudError>, Throttled> {
        // Check that the cloud is not throttling.
        let started = Instant::now();
        let generation = {
            let throttle = self.throttle.lock();
            if let Some(until) = throttle.until()
                && until > started
            {
                return Err(Throttled(until - started));
            }
            throttle.generation()
        };
        let result = op
            .run(call)
            .instrument(call_span(operation))
            .await
            .map_err(|error| op.as_timeout(error, || format!("{operation} did not end")));
        // Count the call, and adapt the concurrency to its result.
        let error = match &result {
            Ok(answer) => error_in(answer),
            Err(error) => Some(error.clone()),
        };
        self.metrics
            .observe(operation, started.elapsed(), error.as_ref());
        self.record_throttling(generation, error.as_ref());
        Ok(result)
    }

    /// Adapts the throttling and the concurrency limit to the result of a call. `generation` is
    /// that of the throttling when the call started.
    fn record_throttling(&self, generation: u64, error: Option<&CloudError>) {
        let throttled = error.filter(|error| error.kind() == ErrorKind::Throttled);
        let mut throttle = self.throttle.lock();
        // Ignore a call that started before the cloud last throttled, because its result says
        // nothing about the request rate since then.
        if generation == throttle.generation() {
            if throttled.is_some() {
                self.concurrency.decrease();
            } else if error.is_none() {
                self.concurrency.increase();
            }
        }
        throttle.record(generation, throttled);
    }
}

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
    /// Makes the calls of at most `max_syncs` concurrent syncs.
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

    /// Returns how many Services may be synced at once.
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

    /// Makes a call whose outcome may contain an error beside other results.
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
        let result = self
            .call(operation, op, call, |outcome| outcome.result.as_ref().err().cloned())
            .await?;
        Ok(result.unwrap_or_else(LbOutcome::from))
    }

    /// Makes a call, unless the cloud is throttling. `error_in`: the error that a successful answer
    /// may contain.
    async fn call<T>(
        &self,
        operation: &'static str,
        op: &Op,
        call: impl Future<Output = Result<T, CloudError>>,
        error_in: impl Fn(&T) -> Option<CloudError>,
    ) -> Result<Result<T, CloudError>, Throttled> {
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
        let error = match &result {
            Ok(answer) => error_in(answer),
            Err(error) => Some(error.clone()),
        };
        self.metrics
            .observe(operation, started.elapsed(), error.as_ref());
        self.record_throttling(generation, error.as_ref());
        Ok(result)
    }

    /// Adapts concurrency and throttling to the end of a call. `generation` was current when the
    /// call started.
    fn record_throttling(&self, generation: u64, error: Option<&CloudError>) {
        let throttled = error.filter(|error| error.kind() == ErrorKind::Throttled);
        let mut throttle = self.throttle.lock();
        // A call that started before the last throttling says nothing about the rate since then.
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

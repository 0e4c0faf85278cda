//! Calls of the provider: each with a deadline, counted, and none while the cloud wants to be left alone.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Instrument;

use super::lanes::Lanes;
use crate::{
    provider::{
        CloudError, CloudProvider, Depth, ErrorKind, LbOutcome, LbRef, LbSpec, LoadBalancers, Op, PlannedChange,
        Progress, Throttle,
    },
    telemetry::{controllers::call_span, metrics::CloudMetrics},
};

/// Longest time of one call. Calls do not sleep, so this is many requests to a slow cloud; what hangs longer would hold a
/// worker for ever.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// The provider's load balancers.
pub(crate) struct Cloud {
    provider: Arc<dyn CloudProvider>,
    metrics: CloudMetrics,
    throttle: Mutex<Throttle>,
    lanes: Lanes,
}

/// The cloud wants to be left alone for so long; it was not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paused(pub(crate) Duration);

impl Cloud {
    /// Makes it for at most so many calls at a time.
    pub(crate) fn new(provider: Arc<dyn CloudProvider>, metrics: CloudMetrics, most: usize) -> Self {
        Self { provider, metrics, throttle: Mutex::default(), lanes: Lanes::new(most) }
    }

    /// Returns how many services may be worked on at once.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.open()
    }

    pub(crate) fn balancers(&self) -> Result<&dyn LoadBalancers, CloudError> {
        let missing = || CloudError::new(ErrorKind::NotImplemented, "the cloud provider has no load balancers");
        self.provider.load_balancers().ok_or_else(missing)
    }

    pub(crate) async fn ensure(&self, op: Op, want: &LbSpec, depth: Depth) -> Result<LbOutcome, Paused> {
        let op = op.for_call(Instant::now() + CALL_TIMEOUT);
        let call = async { Ok(self.balancers()?.ensure(&op, want, depth).await) };
        self.outcome("ensure_load_balancer", &op, call).await
    }

    pub(crate) async fn update_backends(&self, op: Op, want: &LbSpec) -> Result<LbOutcome, Paused> {
        let op = op.for_call(Instant::now() + CALL_TIMEOUT);
        let call = async { Ok(self.balancers()?.update_backends(&op, want).await) };
        self.outcome("update_load_balancer_backends", &op, call).await
    }

    pub(crate) async fn plan(&self, op: Op, want: &LbSpec) -> Result<Result<Vec<PlannedChange>, CloudError>, Paused> {
        let op = op.for_call(Instant::now() + CALL_TIMEOUT);
        let call = async { self.balancers()?.plan(&op, want).await };
        self.call("plan_load_balancer", &op, call, |_| None).await
    }

    pub(crate) async fn delete(&self, op: Op, lb: &LbRef) -> Result<Result<Progress, CloudError>, Paused> {
        let op = op.for_call(Instant::now() + CALL_TIMEOUT);
        let call = async { self.balancers()?.delete(&op, lb).await };
        self.call("delete_load_balancer", &op, call, |_| None).await
    }

    async fn outcome(
        &self,
        operation: &'static str,
        op: &Op,
        call: impl Future<Output = Result<LbOutcome, CloudError>>,
    ) -> Result<LbOutcome, Paused> {
        let call = async {
            let mut outcome: LbOutcome = call.await?;
            outcome.result =
                outcome.result.map_err(|error| op.uncanceled(error, || format!("{operation} did not end")));
            Ok(outcome)
        };
        let failed = |outcome: &LbOutcome| outcome.result.as_ref().err().cloned();
        Ok(self.call(operation, op, call, failed).await?.unwrap_or_else(LbOutcome::from))
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        op: &Op,
        call: impl Future<Output = Result<T, CloudError>>,
        failed: impl Fn(&T) -> Option<CloudError>,
    ) -> Result<Result<T, CloudError>, Paused> {
        let started = Instant::now();
        let generation = {
            let throttle = self.throttle.lock();
            if let Some(until) = throttle.until().filter(|until| *until > started) {
                return Err(Paused(until - started));
            }
            throttle.generation()
        };
        let call = op.run(call).instrument(call_span(operation));
        let result = call.await.map_err(|error| op.uncanceled(error, || format!("{operation} did not end")));
        let error = result.as_ref().map_or_else(|error| Some(error.clone()), failed);
        self.metrics.observe(operation, started.elapsed(), error.as_ref());
        let throttled = error.as_ref().filter(|error| error.kind() == ErrorKind::Throttled);
        let mut throttle = self.throttle.lock();
        match (&error, throttled) {
            // What began before the last pause says nothing about the pace since then.
            _ if generation != throttle.generation() => {}
            (_, Some(_)) => self.lanes.slower(),
            (None, None) => self.lanes.faster(),
            (Some(_), None) => {}
        }
        throttle.note(generation, throttled);
        drop(throttle);
        Ok(result)
    }
}

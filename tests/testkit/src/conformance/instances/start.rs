//! Rules for [`CloudProvider::start`]. No other rule calls it.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    k8s::NodeView,
    provider::{CacheReader, CloudError, CloudProvider, ProviderContext},
    write_gate::WriteGate,
};
use prometheus::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        InjectedFault, InstanceCloud,
        context::{CLUSTER, RuleContext, check_error_text},
        report::{Problem, Verdict, expect},
    },
    ids,
};
use crate::apiserver::{ApiServer, Match, Options};

/// Time within which start must return.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay of a slow cloud. Longer than [`START_TIMEOUT`].
const SLOW_LATENCY: Duration = Duration::from_secs(600);
/// Time within which spawned tasks must end after their cancellation.
const CANCELLATION_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which the cloud is watched after the cancellation, by tokio's clock.
const WATCH_TIME: Duration = Duration::from_secs(3600);
/// Maximum of that time by the wall clock.
const MAX_WATCH_WALL_TIME: Duration = Duration::from_secs(3);
/// Interval of the checks of the wall clock.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Context for the start of a provider, with the API server of a cluster that has one Node.
struct StartContext {
    server: ApiServer,
    provider_context: ProviderContext,
}

struct FixedNodeCache(Arc<NodeView>);

impl CacheReader<NodeView> for FixedNodeCache {
    fn get(&self, key: &str) -> Option<Arc<NodeView>> {
        (*self.0.name == *key).then(|| self.0.clone())
    }

    fn list(&self) -> Vec<Arc<NodeView>> {
        vec![self.0.clone()]
    }
}

impl StartContext {
    fn new(node: NodeView, gate: WriteGate) -> Self {
        let server = ApiServer::new(Options::default());
        let provider_context = ProviderContext {
            cluster_name: CLUSTER.into(),
            cancel: CancellationToken::new(),
            metrics: Registry::new(),
            write_gate: gate,
            nodes: Arc::new(FixedNodeCache(Arc::new(node))),
            services: None,
            endpoint_slices: None,
            client: server.client(),
        };
        Self { server, provider_context }
    }

    /// Starts the provider. The outer error means that start did not end in time.
    async fn start(
        &self,
        provider: &Arc<dyn CloudProvider>,
    ) -> Result<Result<(), CloudError>, String> {
        let started =
            tokio::time::timeout(START_TIMEOUT, provider.start(self.provider_context.clone()))
                .await;
        started.map_err(|_| format!("start did not end within {START_TIMEOUT:?}"))
    }

    /// Starts the provider. Another rule judges whether start ends.
    async fn start_or_block(
        &self,
        provider: &Arc<dyn CloudProvider>,
    ) -> Verdict<Result<(), CloudError>> {
        self.start(provider)
            .await
            .map_err(|observed| Problem::Blocked(ids::START_ENDS, observed))
    }

    /// Starts the provider. Another rule judges whether start succeeds.
    async fn start_successfully(&self, provider: &Arc<dyn CloudProvider>) -> Verdict {
        let started = self.start_or_block(provider).await?;
        started.map_err(|error| Problem::Blocked(ids::START_ENDS, show(&error)))
    }
}

impl RuleContext<'_, dyn InstanceCloud> {
    /// Creates an instance and returns a start context with its Node.
    async fn start_context(&self, gate: WriteGate) -> Verdict<StartContext> {
        let name = self.create().await?;
        Ok(StartContext::new(self.cloud.node(&name), gate))
    }
}

fn show(error: &CloudError) -> String {
    format!("start: error {}: {}", error.kind(), error.chain())
}

pub(super) async fn start_ends(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let context = ctx.start_context(WriteGate::always_open()).await?;
    let started = context
        .start(&ctx.provider().await?)
        .await
        .map_err(Problem::Failed)?;
    started.map_err(|error| Problem::Failed(show(&error)))?;
    let (context, provider) =
        (ctx.start_context(WriteGate::always_open()).await?, ctx.provider().await?);
    if ctx.cloud.slow_down(SLOW_LATENCY).await? {
        // Start may fail here.
        let started = context.start(&provider).await;
        started
            .map_err(|observed| Problem::Failed(format!("with a slow cloud: {observed}")))?
            .ok();
    }
    Ok(())
}

/// A start that failed under an injected fault.
struct FailedStart {
    fault: InjectedFault,
    context: StartContext,
    provider: Arc<dyn CloudProvider>,
    error: CloudError,
}

/// Starts a provider under each fault that the adapter can inject, and returns the failed starts. A
/// start that succeeds without the cloud is fine.
async fn under_each_fault(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict<Vec<FailedStart>> {
    // If start fails without a fault, another rule is broken.
    ctx.start_context(WriteGate::always_open())
        .await?
        .start_successfully(&ctx.provider().await?)
        .await?;
    let (mut checked, mut failed) = (0, Vec::new());
    for fault in InjectedFault::ALL {
        let (context, provider) =
            (ctx.start_context(WriteGate::always_open()).await?, ctx.provider().await?);
        if !ctx.cloud.inject(fault).await? {
            continue;
        }
        let started = context.start_or_block(&provider).await?;
        ctx.cloud.restore().await?;
        checked += 1;
        failed.extend(
            started
                .err()
                .map(|error| FailedStart { fault, context, provider, error }),
        );
    }
    match checked {
        0 => Err(Problem::Unsupported("the adapter cannot inject any fault".to_owned())),
        _ => Ok(failed),
    }
}

pub(super) async fn start_error_kinds(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    for FailedStart { fault, error, .. } in under_each_fault(ctx).await? {
        expect(error.kind() == fault.kind(), || format!("under {fault:?}: {}", show(&error)))?;
    }
    Ok(())
}

pub(super) async fn texts(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let secrets = ctx.cloud.secrets();
    for FailedStart { fault, error, .. } in under_each_fault(ctx).await? {
        check_error_text(&error, &secrets)
            .map_err(|observed| Problem::Failed(format!("start under {fault:?}: {observed}")))?;
    }
    Ok(())
}

pub(super) async fn start_again(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    for FailedStart { fault, context, provider, error: first } in under_each_fault(ctx).await? {
        // The framework passes the same context again.
        let second = context.start_or_block(&provider).await?;
        let observed = |error: &CloudError| {
            format!("after {fault:?} ({}), the second start failed: {}", show(&first), show(error))
        };
        second.map_err(|error| Problem::Failed(observed(&error)))?;
    }
    Ok(())
}

pub(super) async fn start_idempotent(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let context = ctx.start_context(WriteGate::always_open()).await?;
    context.start_successfully(&ctx.provider().await?).await?;
    let before = ctx.cloud.fingerprint().await?;
    let next = StartContext::new(ctx.cloud.node(&ctx.name()), WriteGate::always_open());
    next.start_successfully(&ctx.provider().await?).await?;
    let after = ctx.cloud.fingerprint().await?;
    expect(before == after, || {
        format!("the next process changed the cloud from {before} to {after}")
    })
}

pub(super) async fn start_without_leadership(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let (context, provider) =
        (ctx.start_context(WriteGate::always_closed()).await?, ctx.provider().await?);
    let before = ctx.cloud.fingerprint().await?;
    let started = context.start_or_block(&provider).await?;
    let after = ctx.cloud.fingerprint().await?;
    expect(before == after, || format!("the cloud changed from {before} to {after}"))?;
    let writes = context.server.log().writes(&Match::default());
    let shown = || {
        writes
            .iter()
            .map(|entry| format!("{:?}", entry.request))
            .collect::<Vec<_>>()
            .join("; ")
    };
    expect(writes.is_empty(), || format!("start wrote to the cluster: {}", shown()))?;
    let Err(error) = started else { return Ok(()) };
    // If start also fails with an open gate, another rule is broken.
    ctx.start_context(WriteGate::always_open())
        .await?
        .start_successfully(&ctx.provider().await?)
        .await?;
    Err(Problem::Failed(show(&error)))
}

pub(super) async fn start_stops(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let (context, provider) =
        (ctx.start_context(WriteGate::always_open()).await?, ctx.provider().await?);
    context.start_successfully(&provider).await?;
    context.provider_context.cancel.cancel();
    tokio::time::sleep(CANCELLATION_TIMEOUT).await;
    let (before, calls) = (ctx.cloud.fingerprint().await?, ctx.cloud.calls().await?);
    wait_while_watching().await;
    let (again, after) = (ctx.cloud.calls().await?, ctx.cloud.fingerprint().await?);
    expect(calls == again, || {
        format!("{} cloud calls after the cancellation", again.saturating_sub(calls))
    })?;
    expect(before == after, || {
        format!("the cloud changed from {before} to {after} after the cancellation")
    })
}

/// Waits for [`WATCH_TIME`], or [`MAX_WATCH_WALL_TIME`] if time is not paused.
async fn wait_while_watching() {
    let (start, wall_start) = (Instant::now(), std::time::Instant::now());
    while start.elapsed() < WATCH_TIME && wall_start.elapsed() < MAX_WATCH_WALL_TIME {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

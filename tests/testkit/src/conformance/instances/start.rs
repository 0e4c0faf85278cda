//! What [`CloudProvider::start`] promises. No other rule calls it.

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
        context::{CLUSTER, RuleContext, presentable},
        report::{Problem, Verdict, expect},
    },
    ids,
};
use crate::apiserver::{ApiServer, Match, Options};

/// Longest that a start may take.
const LONGEST: Duration = Duration::from_secs(60);
/// How slow the cloud is made: slower than any start may be.
const SLOW: Duration = Duration::from_secs(600);
/// What is begun may take this long to end once it is asked to.
const PROMPT: Duration = Duration::from_secs(2);
/// How long it is watched for what goes on, by the runtime's clock, and at most by the wall clock.
const WATCHED: Duration = Duration::from_secs(3600);
const WATCHED_REALLY: Duration = Duration::from_secs(3);
/// Between two looks at the wall clock.
const STEP: Duration = Duration::from_secs(1);

/// What a provider is lent to start with: a cluster with one Node.
struct StartContext {
    server: ApiServer,
    context: ProviderContext,
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
        let context = ProviderContext {
            cluster_name: CLUSTER.into(),
            cancel: CancellationToken::new(),
            metrics: Registry::new(),
            write_gate: gate,
            nodes: Arc::new(FixedNodeCache(Arc::new(node))),
            services: None,
            endpoint_slices: None,
            client: server.client(),
        };
        Self { server, context }
    }

    /// Starts; the outer error says that it did not end.
    async fn start(
        &self,
        provider: &Arc<dyn CloudProvider>,
    ) -> Result<Result<(), CloudError>, String> {
        let started = tokio::time::timeout(LONGEST, provider.start(self.context.clone())).await;
        started.map_err(|_| format!("start did not end within {LONGEST:?}"))
    }

    /// Starts; that it ends is another rule's matter.
    async fn started(&self, provider: &Arc<dyn CloudProvider>) -> Verdict<Result<(), CloudError>> {
        self.start(provider)
            .await
            .map_err(|seen| Problem::Blocked(ids::START_ENDS, seen))
    }

    /// Starts; that it succeeds is another rule's matter, too.
    async fn has_started(&self, provider: &Arc<dyn CloudProvider>) -> Verdict {
        let started = self.started(provider).await?;
        started.map_err(|error| Problem::Blocked(ids::START_ENDS, show(&error)))
    }
}

impl RuleContext<'_, dyn InstanceCloud> {
    /// Creates an instance, and lends a cluster with its Node.
    async fn lends(&self, gate: WriteGate) -> Verdict<StartContext> {
        let name = self.create().await?;
        Ok(StartContext::new(self.cloud.node(&name), gate))
    }
}

fn show(error: &CloudError) -> String {
    format!("start: error {}: {}", error.kind(), error.chain())
}

pub(super) async fn ends(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let lent = bench.lends(WriteGate::always_open()).await?;
    let started = lent
        .start(&bench.provider().await?)
        .await
        .map_err(Problem::Failed)?;
    started.map_err(|error| Problem::Failed(show(&error)))?;
    let (lent, provider) = (bench.lends(WriteGate::always_open()).await?, bench.provider().await?);
    if bench.cloud.slow_down(SLOW).await? {
        // It may fail then.
        let started = lent.start(&provider).await;
        started
            .map_err(|seen| Problem::Failed(format!("of a slow cloud: {seen}")))?
            .ok();
    }
    Ok(())
}

/// A start that failed.
struct Failed {
    fault: InjectedFault,
    lent: StartContext,
    provider: Arc<dyn CloudProvider>,
    error: CloudError,
}

/// Starts a provider under each fault that the cloud can have. That it does without the cloud is no
/// fault.
async fn under_each_fault(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict<Vec<Failed>> {
    // One that fails without a fault is judged for that.
    bench
        .lends(WriteGate::always_open())
        .await?
        .has_started(&bench.provider().await?)
        .await?;
    let (mut checked, mut failed) = (0, Vec::new());
    for fault in InjectedFault::ALL {
        let (lent, provider) =
            (bench.lends(WriteGate::always_open()).await?, bench.provider().await?);
        if !bench.cloud.inject(fault).await? {
            continue;
        }
        let started = lent.started(&provider).await?;
        bench.cloud.restore().await?;
        checked += 1;
        failed.extend(
            started
                .err()
                .map(|error| Failed { fault, lent, provider, error }),
        );
    }
    match checked {
        0 => Err(Problem::Unsupported("the cloud's adapter can inject no fault".to_owned())),
        _ => Ok(failed),
    }
}

pub(super) async fn error_kinds(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    for Failed { fault, error, .. } in under_each_fault(bench).await? {
        expect(error.kind() == fault.kind(), || format!("under {fault:?}: {}", show(&error)))?;
    }
    Ok(())
}

pub(super) async fn texts(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let secrets = bench.cloud.secrets();
    for Failed { fault, error, .. } in under_each_fault(bench).await? {
        presentable(&error, &secrets)
            .map_err(|seen| Problem::Failed(format!("start under {fault:?}: {seen}")))?;
    }
    Ok(())
}

pub(super) async fn again(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    for Failed { fault, lent, provider, error: first } in under_each_fault(bench).await? {
        // With the same context, as the framework has it.
        let second = lent.started(&provider).await?;
        let seen = |error: &CloudError| {
            format!("after {fault:?} ({}) again {}", show(&first), show(error))
        };
        second.map_err(|error| Problem::Failed(seen(&error)))?;
    }
    Ok(())
}

pub(super) async fn idempotent(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let lent = bench.lends(WriteGate::always_open()).await?;
    lent.has_started(&bench.provider().await?).await?;
    let before = bench.cloud.fingerprint().await?;
    let next = StartContext::new(bench.cloud.node(&bench.name()), WriteGate::always_open());
    next.has_started(&bench.provider().await?).await?;
    let after = bench.cloud.fingerprint().await?;
    expect(before == after, || {
        format!("the cloud was {before}, and with the next process became {after}")
    })
}

pub(super) async fn without_leadership(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let (lent, provider) =
        (bench.lends(WriteGate::always_closed()).await?, bench.provider().await?);
    let before = bench.cloud.fingerprint().await?;
    let started = lent.started(&provider).await?;
    let after = bench.cloud.fingerprint().await?;
    expect(before == after, || format!("the cloud was {before} and became {after}"))?;
    let writes = lent.server.log().writes(&Match::default());
    let shown = || {
        writes
            .iter()
            .map(|entry| format!("{:?}", entry.request))
            .collect::<Vec<_>>()
            .join("; ")
    };
    expect(writes.is_empty(), || format!("the cluster was written to: {}", shown()))?;
    let Err(error) = started else { return Ok(()) };
    // One that fails with an open gate, too, is judged for that.
    bench
        .lends(WriteGate::always_open())
        .await?
        .has_started(&bench.provider().await?)
        .await?;
    Err(Problem::Failed(show(&error)))
}

pub(super) async fn stops(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let (lent, provider) = (bench.lends(WriteGate::always_open()).await?, bench.provider().await?);
    lent.has_started(&provider).await?;
    lent.context.cancel.cancel();
    tokio::time::sleep(PROMPT).await;
    let (before, calls) = (bench.cloud.fingerprint().await?, bench.cloud.calls().await?);
    watched().await;
    let (again, after) = (bench.cloud.calls().await?, bench.cloud.fingerprint().await?);
    expect(calls == again, || {
        format!("{} cloud calls although nobody asks any more", again.saturating_sub(calls))
    })?;
    expect(before == after, || {
        format!("the cloud was {before} and became {after}, although nobody asks any more")
    })
}

/// Waits, in real time not long.
async fn watched() {
    let (began, really) = (Instant::now(), std::time::Instant::now());
    while began.elapsed() < WATCHED && really.elapsed() < WATCHED_REALLY {
        tokio::time::sleep(STEP).await;
    }
}

use std::{task::Poll, time::Duration};

use ccm_core::{
    provider::{ErrorKind, InstanceStatus, Op},
    write_gate::WriteGate,
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        InstanceCloud,
        context::{RuleContext, open_op},
        load_balancers::interruptions::interrupt_at,
        report::{Problem, Verdict, expect},
    },
    context::show,
    ids,
};

/// Time within which a cancelled call must end.
const CANCELLATION_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay of cloud calls that are cancelled in flight.
const SLOW_LATENCY: Duration = Duration::from_secs(20);
/// Time from the start of a call to its cancellation, and delay of cloud calls that overlap.
const SHORT_LATENCY: Duration = Duration::from_millis(100);
/// Maximum number of await points at which a call is dropped.
const MAX_AWAIT_POINTS: usize = 20;
/// Number of concurrent calls.
const CONCURRENT_CALLS: usize = 12;
/// Number of nodes in each of them.
const NODES_PER_CALL: usize = 3;

pub(super) async fn fresh_when_asked(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let (stopped, deleted) = (ctx.create().await?, ctx.create().await?);
    let late = ctx.reserve();
    ctx.metadata(&stopped).await?;
    let provider = ctx.provider().await?;
    let queries = [ctx.query(&stopped), ctx.query(&deleted), ctx.query(&late)];
    for query in &queries {
        ctx.describe(&provider, std::slice::from_ref(query)).await?;
    }
    ctx.cloud.stop(&stopped).await?;
    ctx.cloud.delete(&deleted).await?;
    ctx.cloud.create(&late).await?;
    for (what, query) in ["stopped", "deleted", "created"].into_iter().zip(&queries) {
        let fresh = ctx.check_fresh(&provider, query).await?;
        fresh.map_err(|observed| Problem::Failed(format!("just {what}: {observed}")))?;
    }
    Ok(())
}

pub(super) async fn read_only(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let names = ctx.create_many(2).await?;
    let provider = ctx.provider().await?;
    let (gate, _keeper) = WriteGate::closed();
    let op = Op::new("conformance", CancellationToken::new(), gate);
    let queries = [ctx.query(&names[0]), ctx.query(&names[1])];
    // Taken before the first query for these instances, because a provider may write only once.
    let before = ctx.cloud.fingerprint().await?;
    let answers = ctx.describe_raw(&provider, &op, &queries).await?;
    let after = ctx.cloud.fingerprint().await?;
    expect(before == after, || format!("the cloud changed from {before} to {after}"))?;
    ctx.metadata(&names[0]).await?;
    match answers {
        Ok(answers) => {
            let failed = answers.iter().find(|answer| answer.is_err());
            expect(failed.is_none(), || failed.map(show).unwrap_or_default())
        }
        Err(error) => Err(Problem::Failed(format!("error {}: {}", error.kind(), error.chain()))),
    }
}

pub(super) async fn cancellation(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = ctx.create().await?;
    ctx.metadata(&name).await?;
    let provider = ctx.provider().await?;
    let queries = [ctx.query(&name)];
    let ask = async |delay: Option<Duration>| {
        let cancel = CancellationToken::new();
        let op = Op::new("conformance", cancel.clone(), WriteGate::always_open());
        let cancelled = async {
            if let Some(delay) = delay {
                tokio::time::sleep(delay).await;
            }
            cancel.cancel();
            tokio::time::sleep(CANCELLATION_TIMEOUT).await;
        };
        if delay.is_none() {
            cancel.cancel();
        }
        tokio::select! {
            biased;
            answer = ctx.describe_raw(&provider, &op, &queries) => answer,
            () = cancelled => Err(Problem::Failed(format!("the call did not end within {CANCELLATION_TIMEOUT:?} of its cancellation"))),
        }
    };
    let check_canceled = |answers: Result<Vec<_>, ccm_core::provider::CloudError>| match answers {
        Err(error) => expect(error.kind() == ErrorKind::Canceled, || {
            format!("a cancelled call returned {}", error.kind())
        }),
        Ok(answers) => {
            // A call that completed before it noticed the cancellation is fine, but it must not
            // report an instance as not found.
            let is_expected =
                |answer: &Result<InstanceStatus, ccm_core::provider::CloudError>| match answer {
                    Ok(presence) => *presence != InstanceStatus::NotFound,
                    Err(error) => error.kind() == ErrorKind::Canceled,
                };
            let wrong = answers.iter().find(|answer| !is_expected(answer));
            expect(wrong.is_none(), || wrong.map(show).unwrap_or_default())
        }
    };
    check_canceled(ask(None).await?)?;
    if ctx.cloud.slow_down(SLOW_LATENCY).await? {
        check_canceled(ask(Some(SHORT_LATENCY)).await?)?;
        ctx.cloud.slow_down(SHORT_LATENCY).await?;
        for waits in 0..MAX_AWAIT_POINTS {
            let op = open_op();
            if interrupt_at(ctx.describe_raw(&provider, &op, &queries), waits, || Poll::Ready(()))
                .await
                .is_some()
            {
                break;
            }
        }
        ctx.cloud.restore().await?;
    }
    let again = ctx.describe_raw(&provider, &open_op(), &queries).await?;
    let usable = matches!(again.as_deref(), Ok([Ok(InstanceStatus::Found { .. })]));
    expect(usable, || format!("afterwards: {again:?}"))
}

pub(super) async fn concurrent_use(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let names = ctx.create_many(NODES_PER_CALL * 2).await?;
    let mut known = Vec::new();
    for name in &names {
        known.push((name, ctx.metadata(name).await?.addresses));
    }
    let provider = ctx.provider().await?;
    let max = provider
        .instances()
        .map_or(1, |instances| instances.limits().max_batch.get());
    // Slow answers make the calls overlap. If the adapter cannot delay them, they may still overlap.
    ctx.cloud.slow_down(SHORT_LATENCY).await?;
    let call = |first: usize| {
        let (provider, known) = (&provider, &known);
        async move {
            let part: Vec<_> = (0..NODES_PER_CALL.min(max))
                .map(|i| &known[(first + i) % known.len()])
                .collect();
            let queries: Vec<_> = part.iter().map(|(name, _)| ctx.query(name)).collect();
            let answers = ctx.describe(provider, &queries).await?;
            for ((name, addresses), answer) in part.iter().zip(&answers) {
                let is_expected = matches!(answer, Ok(InstanceStatus::Found { meta, .. }) if meta.addresses == *addresses);
                expect(is_expected, || format!("node {name}: {}", show(answer)))?;
            }
            Ok(())
        }
    };
    match call(0).await {
        Err(Problem::Failed(observed)) => {
            return Err(Problem::Blocked(ids::ANSWERS_IN_ORDER, observed));
        }
        alone => alone?,
    }
    let verdicts: Vec<Verdict> = futures::future::join_all((0..CONCURRENT_CALLS).map(call)).await;
    verdicts.into_iter().collect()
}

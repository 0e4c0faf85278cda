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
        load_balancers::trouble::cut_short,
        report::{Problem, Verdict, expect},
    },
    context::show,
    ids,
};

/// Longest that a cancelled call may take.
const PROMPT: Duration = Duration::from_secs(2);
/// How slow the cloud is made for calls that are cancelled under way.
const SLOW: Duration = Duration::from_secs(20);
/// When they are cancelled.
const UNDER_WAY: Duration = Duration::from_millis(100);
/// Await points at which a call is dropped, at most.
const MAX_WAITS: usize = 20;
/// Calls that overlap, and nodes in each.
const CALLS: usize = 12;
const NODES: usize = 3;

pub(super) async fn fresh_when_asked(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let (stopped, deleted) = (bench.create().await?, bench.create().await?);
    let late = bench.reserve();
    bench.meta(&stopped).await?;
    let provider = bench.provider().await?;
    let queries = [bench.query(&stopped), bench.query(&deleted), bench.query(&late)];
    for query in &queries {
        bench.ask(&provider, std::slice::from_ref(query)).await?;
    }
    bench.cloud.stop(&stopped).await?;
    bench.cloud.delete(&deleted).await?;
    bench.cloud.create(&late).await?;
    for (what, query) in ["stopped", "deleted", "created"].into_iter().zip(&queries) {
        let fresh = bench.is_fresh(&provider, query).await?;
        fresh.map_err(|seen| Problem::Failed(format!("just {what}: {seen}")))?;
    }
    Ok(())
}

pub(super) async fn read_only(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let names = bench.create_many(2).await?;
    let provider = bench.provider().await?;
    let (gate, _keeper) = WriteGate::closed();
    let op = Op::new("conformance", CancellationToken::new(), gate);
    let queries = [bench.query(&names[0]), bench.query(&names[1])];
    // Taken before the first question about these instances: a write may be done only once.
    let before = bench.cloud.fingerprint().await?;
    let answers = bench.ask_raw(&provider, &op, &queries).await?;
    let after = bench.cloud.fingerprint().await?;
    expect(before == after, || format!("the cloud was {before} and became {after}"))?;
    bench.meta(&names[0]).await?;
    match answers {
        Ok(answers) => {
            let failed = answers.iter().find(|answer| answer.is_err());
            expect(failed.is_none(), || failed.map(show).unwrap_or_default())
        }
        Err(error) => Err(Problem::Failed(format!("error {}: {}", error.kind(), error.chain()))),
    }
}

pub(super) async fn cancellation(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = bench.create().await?;
    bench.meta(&name).await?;
    let provider = bench.provider().await?;
    let queries = [bench.query(&name)];
    let ask = async |delay: Option<Duration>| {
        let cancel = CancellationToken::new();
        let op = Op::new("conformance", cancel.clone(), WriteGate::always_open());
        let cancelled = async {
            if let Some(delay) = delay {
                tokio::time::sleep(delay).await;
            }
            cancel.cancel();
            tokio::time::sleep(PROMPT).await;
        };
        if delay.is_none() {
            cancel.cancel();
        }
        tokio::select! {
            biased;
            answer = bench.ask_raw(&provider, &op, &queries) => answer,
            () = cancelled => Err(Problem::Failed(format!("no end within {PROMPT:?} of the cancellation"))),
        }
    };
    let canceled = |answers: Result<Vec<_>, ccm_core::provider::CloudError>| match answers {
        Err(error) => expect(error.kind() == ErrorKind::Canceled, || {
            format!("canceled, but {}", error.kind())
        }),
        Ok(answers) => {
            // Too late to be cancelled is no fault; an absence out of it is.
            let right =
                |answer: &Result<InstanceStatus, ccm_core::provider::CloudError>| match answer {
                    Ok(presence) => *presence != InstanceStatus::NotFound,
                    Err(error) => error.kind() == ErrorKind::Canceled,
                };
            let wrong = answers.iter().find(|answer| !right(answer));
            expect(wrong.is_none(), || wrong.map(show).unwrap_or_default())
        }
    };
    canceled(ask(None).await?)?;
    if bench.cloud.slow_down(SLOW).await? {
        canceled(ask(Some(UNDER_WAY)).await?)?;
        bench.cloud.slow_down(UNDER_WAY).await?;
        for waits in 0..MAX_WAITS {
            let op = open_op();
            if cut_short(bench.ask_raw(&provider, &op, &queries), waits, || Poll::Ready(()))
                .await
                .is_some()
            {
                break;
            }
        }
        bench.cloud.restore().await?;
    }
    let again = bench.ask_raw(&provider, &open_op(), &queries).await?;
    let usable = matches!(again.as_deref(), Ok([Ok(InstanceStatus::Found { .. })]));
    expect(usable, || format!("afterwards: {again:?}"))
}

pub(super) async fn concurrent_use(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let names = bench.create_many(NODES * 2).await?;
    let mut known = Vec::new();
    for name in &names {
        known.push((name, bench.meta(name).await?.addresses));
    }
    let provider = bench.provider().await?;
    let max = provider
        .instances()
        .map_or(1, |instances| instances.limits().max_batch.get());
    // Slow answers make the calls overlap; where the cloud cannot be slowed down they may do so by
    // themselves.
    bench.cloud.slow_down(UNDER_WAY).await?;
    let call = |first: usize| {
        let (provider, known) = (&provider, &known);
        async move {
            let part: Vec<_> = (0..NODES.min(max))
                .map(|i| &known[(first + i) % known.len()])
                .collect();
            let queries: Vec<_> = part.iter().map(|(name, _)| bench.query(name)).collect();
            let answers = bench.ask(provider, &queries).await?;
            for ((name, addresses), answer) in part.iter().zip(&answers) {
                let right = matches!(answer, Ok(InstanceStatus::Found { meta, .. }) if meta.addresses == *addresses);
                expect(right, || format!("node {name}: {}", show(answer)))?;
            }
            Ok(())
        }
    };
    match call(0).await {
        Err(Problem::Failed(seen)) => return Err(Problem::Blocked(ids::ANSWERS_IN_ORDER, seen)),
        alone => alone?,
    }
    let verdicts: Vec<Verdict> = futures::future::join_all((0..CALLS).map(call)).await;
    verdicts.into_iter().collect()
}

//! Interruptions: errors and lost answers at each call, cancellation at each await point, lost
//! leadership.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use ccm_core::{
    provider::{CloudError, ErrorKind, ReadMode},
    write_gate::WriteGate,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        InjectedCallFault, InjectedFault, LoadBalancerCloud,
        context::RuleContext,
        report::{Problem, Verdict, expect},
    },
    context::CloudSnapshot,
    ensure::{LONGEST_SLEEP, MAX_CALLS},
    ids,
    interpret::with_another_port,
    service_driver::{DriverCall, ErrorReaction, ServiceDriver, show},
};
use crate::conformance::load_balancers::backends_and_deletion::ENSURE;

/// Await points at which a call is cut short, at most.
const MAX_WAITS: usize = 60;
/// How long the cloud takes before and after a call's effect, so that calls can be cut short there.
const SLOWLY: Duration = Duration::from_millis(20);

type LbBench<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

/// Makes what the step needs: nothing for a first ensure, a balancer that is to change otherwise.
async fn prepare<'a>(
    bench: &'a LbBench<'_>,
    step: DriverCall,
) -> Verdict<(CloudSnapshot, ServiceDriver<'a>)> {
    let nodes = bench.nodes(2).await?;
    let before = bench.world().await?;
    let mut tenant = bench.tenant(&nodes[..1]).await?;
    if step != ENSURE {
        tenant.ensure().await?;
        tenant.nodes = nodes;
    }
    if step == DriverCall::Ensure(ReadMode::Cached) {
        tenant.service = with_another_port(&tenant.service);
    }
    Ok((before, tenant))
}

/// Checks that the step's aim is reached, and for good.
async fn reached(
    before: &CloudSnapshot,
    tenant: &ServiceDriver<'_>,
    step: DriverCall,
) -> Verdict<Result<(), String>> {
    let world = tenant.bench.world().await?;
    if step == DriverCall::Delete {
        let left = world.changes(before);
        return Ok(if left.is_empty() {
            Ok(())
        } else {
            Err(format!("after deletion {left}"))
        });
    }
    Ok(world.served(before, tenant).map(drop))
}

async fn at_each_call(bench: &LbBench<'_>, step: DriverCall) -> Verdict {
    for after in [ErrorReaction::Retry, ErrorReaction::Restart] {
        for lost in [false, true] {
            for call in (1..=MAX_CALLS).step_by(bench.cloud.stride().max(1)) {
                let (before, mut tenant) = prepare(bench, step).await?;
                let trouble = match lost {
                    true => InjectedCallFault::lose_answer(call),
                    false => InjectedCallFault::fail(call, InjectedFault::Transient),
                };
                bench.cloud.script(Some(trouble)).await?;
                let settled = tenant.settle(step, after).await?;
                let spoilt = bench.cloud.call_count().await?.calls() >= call;
                bench.cloud.script(None).await?;
                let outcome = match settled {
                    Ok(()) => reached(&before, &tenant, step).await?,
                    failed => failed,
                };
                let how = if lost { "lost its answer" } else { "failed" };
                outcome.map_err(|seen| {
                    Problem::Failed(format!("call {call} {how}, then {after:?}: {seen}"))
                })?;
                if step != DriverCall::Delete {
                    tenant.remove().await?;
                }
                if !spoilt {
                    break;
                }
                expect(call < MAX_CALLS, || {
                    format!("{step:?} takes more than {MAX_CALLS} cloud calls")
                })?;
            }
        }
    }
    Ok(())
}

pub(super) async fn ensure_resumable(bench: &LbBench<'_>) -> Verdict {
    at_each_call(bench, ENSURE).await?;
    at_each_call(bench, DriverCall::Ensure(ReadMode::Cached)).await
}

pub(super) async fn update_resumable(bench: &LbBench<'_>) -> Verdict {
    at_each_call(bench, DriverCall::Update).await
}

pub(super) async fn delete_resumable(bench: &LbBench<'_>) -> Verdict {
    at_each_call(bench, DriverCall::Delete).await
}

/// Polls until the future has waited `waits` times, then does `then`; `None` when that ends it.
pub(in super::super) async fn cut_short<F: Future>(
    future: F,
    waits: usize,
    mut then: impl FnMut() -> Poll<()>,
) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), waits);
    poll_fn(|ctx| match (future.as_mut().poll(ctx), left) {
        (Poll::Ready(output), _) => Poll::Ready(Some(output)),
        (Poll::Pending, 0) => then().map(|()| None),
        (Poll::Pending, _) => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Drops the call, or cancels its operation, after it has waited `waits` times; tells whether it
/// was still under way.
async fn interrupt(
    tenant: &mut ServiceDriver<'_>,
    step: DriverCall,
    waits: usize,
    drop_it: bool,
) -> Verdict<bool> {
    let cancel = CancellationToken::new();
    let op = tenant.op_with(cancel.clone(), WriteGate::always_open());
    let mut since = None;
    let cut = cut_short(tenant.once(&op, step), waits, || {
        if drop_it {
            return Poll::Ready(());
        }
        since.get_or_insert_with(Instant::now);
        cancel.cancel();
        Poll::Pending
    })
    .await;
    let outcome = match cut {
        None => return Ok(true),
        Some(outcome) => outcome?,
    };
    if let Some(since) = since {
        let (took, limit) = (since.elapsed(), LONGEST_SLEEP + tenant.bench.cloud.answer_time());
        expect(took <= limit, || format!("{step:?} went on for {took:?} after it was cancelled"))?;
        // Too late to be cancelled is no fault.
        if let Err(error) = &outcome.result {
            let kind = error.kind();
            expect(kind == ErrorKind::Canceled, || {
                format!("{step:?} was cancelled: {}", show(&outcome.result))
            })?;
        }
    }
    tenant.keep(&outcome);
    Ok(since.is_some())
}

pub(super) async fn cancellation(bench: &LbBench<'_>) -> Verdict {
    if !bench.cloud.slow_down(SLOWLY).await? {
        return Err(Problem::Unsupported("the cloud's adapter cannot slow calls down".to_owned()));
    }
    bench.cloud.slow_down(Duration::ZERO).await?;
    for step in [ENSURE, DriverCall::Update, DriverCall::Delete] {
        for drop_it in [true, false] {
            for waits in (0..MAX_WAITS).step_by(bench.cloud.stride().max(1)) {
                let (before, mut tenant) = prepare(bench, step).await?;
                bench.cloud.slow_down(SLOWLY).await?;
                let under_way = interrupt(&mut tenant, step, waits, drop_it).await;
                bench.cloud.slow_down(Duration::ZERO).await?;
                let under_way = under_way?;
                // Deletion must find what was left, also when ensure is not tried again.
                if step == DriverCall::Delete || waits % 2 == 0 {
                    let done = tenant.settle(step, ErrorReaction::Fail).await?;
                    let aim = match done {
                        Ok(()) => reached(&before, &tenant, step).await?,
                        failed => failed,
                    };
                    aim.map_err(|seen| Problem::Failed(cut(step, waits, &seen)))?;
                }
                let done = tenant
                    .settle(DriverCall::Delete, ErrorReaction::Fail)
                    .await?;
                let aim = match done {
                    Ok(()) => reached(&before, &tenant, DriverCall::Delete).await?,
                    failed => failed,
                };
                aim.map_err(|seen| Problem::Failed(cut(step, waits, &seen)))?;
                if !under_way {
                    break;
                }
            }
        }
    }
    Ok(())
}

fn cut(step: DriverCall, waits: usize, seen: &str) -> String {
    format!("{step:?} was cut short at await point {waits}, then {seen}")
}

/// A closed gate lets nothing through; one that closes under way lets nothing more through.
pub(super) async fn no_write_without_leadership(bench: &LbBench<'_>) -> Verdict {
    for step in
        [ENSURE, DriverCall::Ensure(ReadMode::Cached), DriverCall::Update, DriverCall::Delete]
    {
        let (_, tenant) = prepare(bench, step).await?;
        let before = bench.world().await?;
        let (gate, _keeper) = WriteGate::closed();
        bench.cloud.script(None).await?;
        let outcome = tenant
            .once(&tenant.op_with(CancellationToken::new(), gate), step)
            .await?;
        let writes = bench.cloud.call_count().await?.writes;
        let changes = bench.world().await?.changes(&before);
        expect(writes == 0 && changes.is_empty(), || {
            format!("{step:?}: {writes} writing calls; {changes}")
        })?;
        let right = matches!(&outcome.result, Err(error) if error.kind() == ErrorKind::NotLeader);
        expect(right, || format!("{step:?}: {}", show(&outcome.result)))?;
        drop(tenant);
        closes_under_way(bench, step).await?;
    }
    Ok(())
}

async fn closes_under_way(bench: &LbBench<'_>, step: DriverCall) -> Verdict {
    for waits in (0..MAX_WAITS).step_by(bench.cloud.stride().max(1)) {
        let (_, tenant) = prepare(bench, step).await?;
        if !bench.cloud.slow_down(SLOWLY).await? {
            return Ok(());
        }
        bench.cloud.script(None).await?;
        let (gate, keeper) = WriteGate::closed();
        keeper.open_until(Instant::now() + Duration::from_secs(3600));
        let op = tenant.op_with(CancellationToken::new(), gate);
        let mut call = pin!(tenant.once(&op, step));
        if let Some(outcome) = cut_short(call.as_mut(), waits, || Poll::Ready(())).await {
            outcome?;
            bench.cloud.slow_down(Duration::ZERO).await?;
            return Ok(());
        }
        keeper.close();
        let begun = bench.cloud.call_count().await?.writes;
        call.await?;
        let more = bench.cloud.call_count().await?.writes - begun;
        bench.cloud.slow_down(Duration::ZERO).await?;
        expect(more == 0, || {
            format!(
                "{step:?}: {more} writing calls were begun after leadership was lost at await point {waits}"
            )
        })?;
    }
    Ok(())
}

/// Runs each step while its first call fails for good, and returns what became of it.
async fn under_each_fault(
    bench: &LbBench<'_>,
    unnoticed: fn(String) -> Problem,
    check: impl Fn(InjectedFault, &str, &CloudError) -> Verdict,
) -> Verdict {
    for fault in InjectedFault::ALL {
        for step in [ENSURE, DriverCall::Update, DriverCall::Delete] {
            let (_, tenant) = prepare(bench, step).await?;
            // Which calls are made may depend on the first; each is failed in turn.
            for call in (1..=MAX_CALLS).step_by(bench.cloud.stride().max(1)) {
                bench
                    .cloud
                    .script(Some(InjectedCallFault::fail(call, fault).lasting()))
                    .await?;
                let outcome = tenant.once(&tenant.op(), step).await?;
                let spoilt = bench.cloud.call_count().await?.calls() >= call;
                bench.cloud.script(None).await?;
                match &outcome.result {
                    Err(error) => check(fault, &format!("{step:?}, call {call}"), error)?,
                    Ok(_) if spoilt => {
                        return Err(unnoticed(format!(
                            "{step:?}: call {call} failed with {fault:?}, unnoticed"
                        )));
                    }
                    Ok(_) => break,
                }
            }
        }
        let (_, tenant) = prepare(bench, DriverCall::Update).await?;
        bench
            .cloud
            .script(Some(InjectedCallFault::fail(1, fault).lasting()))
            .await?;
        let planned = tenant.plan().await?;
        bench.cloud.script(None).await?;
        match planned {
            Err(error) => check(fault, "plan", &error)?,
            Ok(plan) => return Err(unnoticed(format!("plan: {fault:?} went unnoticed: {plan:?}"))),
        }
    }
    Ok(())
}

pub(super) async fn error_kinds(bench: &LbBench<'_>) -> Verdict {
    under_each_fault(bench, Problem::Failed, |fault, what, error| {
        expect(error.kind() == fault.kind(), || {
            format!("{what} under {fault:?}: error {}: {}", error.kind(), error.chain())
        })
    })
    .await
}

pub(super) async fn retry_after(bench: &LbBench<'_>) -> Verdict {
    if !bench.cloud.names_pauses() {
        return Err(Problem::Unsupported("the cloud does not say when to come again".to_owned()));
    }
    let unnoticed = |seen| Problem::Blocked(ids::ERROR_KINDS, seen);
    under_each_fault(bench, unnoticed, |fault, what, error| match fault {
        InjectedFault::Throttled(pause) => {
            let named = error.retry_after();
            expect(named.is_some_and(|after| after >= pause), || {
                format!("{what}: the cloud says {pause:?}, the provider {named:?}")
            })
        }
        _ => Ok(()),
    })
    .await
}

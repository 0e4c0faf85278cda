//! Rules for interruptions: errors and lost answers at each call, cancellation at each await point,
//! lost leadership.

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
    ensure::{MAX_CALLS, MAX_SLEEP},
    ids,
    interpret::with_another_port,
    service_driver::{ErrorReaction, Operation, ServiceDriver, show},
};
use crate::conformance::load_balancers::backends_and_deletion::ENSURE;

/// Maximum number of await points at which a call is interrupted.
const MAX_AWAIT_POINTS: usize = 60;
/// Delay before and after the effect of each cloud call, which gives calls await points.
const CALL_LATENCY: Duration = Duration::from_millis(20);

type LbRuleContext<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

/// Prepares the cloud for an operation: nothing for a first ensure, otherwise a load balancer that
/// the operation changes.
async fn prepare<'a>(
    ctx: &'a LbRuleContext<'_>,
    operation: Operation,
) -> Verdict<(CloudSnapshot, ServiceDriver<'a>)> {
    let nodes = ctx.nodes(2).await?;
    let before = ctx.snapshot().await?;
    let mut driver = ctx.driver(&nodes[..1]).await?;
    if operation != ENSURE {
        driver.ensure().await?;
        driver.nodes = nodes;
    }
    if operation == Operation::Ensure(ReadMode::Cached) {
        driver.service = with_another_port(&driver.service);
    }
    Ok((before, driver))
}

/// Checks that the cloud is in the state that the operation should reach.
async fn check_reached(
    before: &CloudSnapshot,
    driver: &ServiceDriver<'_>,
    operation: Operation,
) -> Verdict<Result<(), String>> {
    let snapshot = driver.ctx.snapshot().await?;
    if operation == Operation::Delete {
        let left = snapshot.changes_since(before);
        return Ok(if left.is_empty() {
            Ok(())
        } else {
            Err(format!("after deletion: {left}"))
        });
    }
    Ok(snapshot.served_since(before, driver).map(drop))
}

async fn interrupt_each_call(ctx: &LbRuleContext<'_>, operation: Operation) -> Verdict {
    for after in [ErrorReaction::Retry, ErrorReaction::Restart] {
        for lost in [false, true] {
            for call in (1..=MAX_CALLS).step_by(ctx.cloud.stride().max(1)) {
                let (before, mut driver) = prepare(ctx, operation).await?;
                let fault = match lost {
                    true => InjectedCallFault::lose_answer(call),
                    false => InjectedCallFault::fail(call, InjectedFault::Transient),
                };
                ctx.cloud.script(Some(fault)).await?;
                let finished = driver.call_until_done(operation, after).await?;
                let fault_hit = ctx.cloud.call_count().await?.calls() >= call;
                ctx.cloud.script(None).await?;
                let outcome = match finished {
                    Ok(()) => check_reached(&before, &driver, operation).await?,
                    failed => failed,
                };
                let effect = if lost { "lost its answer" } else { "failed" };
                outcome.map_err(|observed| {
                    Problem::Failed(format!("call {call} {effect}, then {after:?}: {observed}"))
                })?;
                if operation != Operation::Delete {
                    driver.remove().await?;
                }
                if !fault_hit {
                    break;
                }
                expect(call < MAX_CALLS, || {
                    format!("{operation:?} needs more than {MAX_CALLS} cloud calls")
                })?;
            }
        }
    }
    Ok(())
}

pub(super) async fn ensure_resumable(ctx: &LbRuleContext<'_>) -> Verdict {
    interrupt_each_call(ctx, ENSURE).await?;
    interrupt_each_call(ctx, Operation::Ensure(ReadMode::Cached)).await
}

pub(super) async fn update_resumable(ctx: &LbRuleContext<'_>) -> Verdict {
    interrupt_each_call(ctx, Operation::Update).await
}

pub(super) async fn delete_resumable(ctx: &LbRuleContext<'_>) -> Verdict {
    interrupt_each_call(ctx, Operation::Delete).await
}

/// Polls a future and calls `then` at each poll after the first `waits` that returned pending.
/// Returns `None` if `then` ends the future.
pub(in super::super) async fn interrupt_at<F: Future>(
    future: F,
    waits: usize,
    mut then: impl FnMut() -> Poll<()>,
) -> Option<F::Output> {
    let (mut future, mut remaining) = (pin!(future), waits);
    poll_fn(|cx| match (future.as_mut().poll(cx), remaining) {
        (Poll::Ready(output), _) => Poll::Ready(Some(output)),
        (Poll::Pending, 0) => then().map(|()| None),
        (Poll::Pending, _) => {
            remaining -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Drops or cancels the operation after `waits` await points. Returns true if it was still in
/// flight.
async fn interrupt(
    driver: &mut ServiceDriver<'_>,
    operation: Operation,
    waits: usize,
    drop_it: bool,
) -> Verdict<bool> {
    let cancel = CancellationToken::new();
    let op = driver.op_with(cancel.clone(), WriteGate::always_open());
    let mut cancelled_at = None;
    let interrupted = interrupt_at(driver.call_once(&op, operation), waits, || {
        if drop_it {
            return Poll::Ready(());
        }
        cancelled_at.get_or_insert_with(Instant::now);
        cancel.cancel();
        Poll::Pending
    })
    .await;
    let outcome = match interrupted {
        None => return Ok(true),
        Some(outcome) => outcome?,
    };
    if let Some(cancelled_at) = cancelled_at {
        let (took, limit) = (cancelled_at.elapsed(), MAX_SLEEP + driver.ctx.cloud.answer_time());
        expect(took <= limit, || {
            format!("{operation:?} ended only {took:?} after it was cancelled")
        })?;
        // An operation that completed before it noticed the cancellation is fine.
        if let Err(error) = &outcome.result {
            let kind = error.kind();
            expect(kind == ErrorKind::Canceled, || {
                format!("{operation:?} was cancelled, but returned {}", show(&outcome.result))
            })?;
        }
    }
    driver.apply_outcome(&outcome);
    Ok(cancelled_at.is_some())
}

pub(super) async fn cancellation(ctx: &LbRuleContext<'_>) -> Verdict {
    if !ctx.cloud.slow_down(CALL_LATENCY).await? {
        return Err(Problem::Unsupported("the adapter cannot delay calls".to_owned()));
    }
    ctx.cloud.slow_down(Duration::ZERO).await?;
    for operation in [ENSURE, Operation::Update, Operation::Delete] {
        for drop_it in [true, false] {
            for waits in (0..MAX_AWAIT_POINTS).step_by(ctx.cloud.stride().max(1)) {
                let (before, mut driver) = prepare(ctx, operation).await?;
                ctx.cloud.slow_down(CALL_LATENCY).await?;
                let in_flight = interrupt(&mut driver, operation, waits, drop_it).await;
                ctx.cloud.slow_down(Duration::ZERO).await?;
                let in_flight = in_flight?;
                let failed = |observed: String| {
                    Problem::Failed(format!(
                        "{operation:?} was interrupted at await point {waits}, then {observed}"
                    ))
                };
                // Delete must also remove what an interrupted ensure left that is not retried.
                if operation == Operation::Delete || waits % 2 == 0 {
                    complete(&before, &mut driver, operation)
                        .await?
                        .map_err(failed)?;
                }
                complete(&before, &mut driver, Operation::Delete)
                    .await?
                    .map_err(failed)?;
                if !in_flight {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Repeats the operation until it is done, and checks the resulting state of the cloud.
async fn complete(
    before: &CloudSnapshot,
    driver: &mut ServiceDriver<'_>,
    operation: Operation,
) -> Verdict<Result<(), String>> {
    let done = driver
        .call_until_done(operation, ErrorReaction::Fail)
        .await?;
    match done {
        Ok(()) => check_reached(before, driver, operation).await,
        failed => Ok(failed),
    }
}

/// Checks that nothing is written through a closed gate, nor after a gate closes during a call.
pub(super) async fn no_write_without_leadership(ctx: &LbRuleContext<'_>) -> Verdict {
    for operation in
        [ENSURE, Operation::Ensure(ReadMode::Cached), Operation::Update, Operation::Delete]
    {
        let (_, driver) = prepare(ctx, operation).await?;
        let before = ctx.snapshot().await?;
        let (gate, _keeper) = WriteGate::closed();
        ctx.cloud.script(None).await?;
        let outcome = driver
            .call_once(&driver.op_with(CancellationToken::new(), gate), operation)
            .await?;
        let writes = ctx.cloud.call_count().await?.writes;
        let changes = ctx.snapshot().await?.changes_since(&before);
        expect(writes == 0 && changes.is_empty(), || {
            format!("{operation:?}: {writes} writing calls; {changes}")
        })?;
        let is_expected =
            matches!(&outcome.result, Err(error) if error.kind() == ErrorKind::NotLeader);
        expect(is_expected, || format!("{operation:?}: {}", show(&outcome.result)))?;
        drop(driver);
        check_closing_gate(ctx, operation).await?;
    }
    Ok(())
}

async fn check_closing_gate(ctx: &LbRuleContext<'_>, operation: Operation) -> Verdict {
    for waits in (0..MAX_AWAIT_POINTS).step_by(ctx.cloud.stride().max(1)) {
        let (_, driver) = prepare(ctx, operation).await?;
        if !ctx.cloud.slow_down(CALL_LATENCY).await? {
            return Ok(());
        }
        ctx.cloud.script(None).await?;
        let (gate, keeper) = WriteGate::closed();
        keeper.open_until(Instant::now() + Duration::from_secs(3600));
        let op = driver.op_with(CancellationToken::new(), gate);
        let mut call = pin!(driver.call_once(&op, operation));
        if let Some(outcome) = interrupt_at(call.as_mut(), waits, || Poll::Ready(())).await {
            outcome?;
            ctx.cloud.slow_down(Duration::ZERO).await?;
            return Ok(());
        }
        keeper.close();
        let writes_before = ctx.cloud.call_count().await?.writes;
        call.await?;
        let later_writes = ctx.cloud.call_count().await?.writes - writes_before;
        ctx.cloud.slow_down(Duration::ZERO).await?;
        expect(later_writes == 0, || {
            format!(
                "{operation:?}: {later_writes} writing calls started after leadership was lost at await point {waits}"
            )
        })?;
    }
    Ok(())
}

/// Runs each operation while a call and all later ones fail, and passes each error to `check`.
async fn under_each_fault(
    ctx: &LbRuleContext<'_>,
    unnoticed: fn(String) -> Problem,
    check: impl Fn(InjectedFault, &str, &CloudError) -> Verdict,
) -> Verdict {
    for fault in InjectedFault::ALL {
        for operation in [ENSURE, Operation::Update, Operation::Delete] {
            let (_, mut driver) = prepare(ctx, operation).await?;
            // An earlier answer may decide which calls follow, so each call fails in turn.
            for call in (1..=MAX_CALLS).step_by(ctx.cloud.stride().max(1)) {
                ctx.cloud
                    .script(Some(InjectedCallFault::fail(call, fault).lasting()))
                    .await?;
                let outcome = driver.call_once(&driver.op(), operation).await?;
                let fault_hit = ctx.cloud.call_count().await?.calls() >= call;
                let is_optional = fault_hit
                    && fault == InjectedFault::Denied
                    && ctx.cloud.are_optional_since(call).await?;
                ctx.cloud.script(None).await?;
                match &outcome.result {
                    Err(error) => check(fault, &format!("{operation:?}, call {call}"), error)?,
                    // What was done without the answer is to be done again for the next call.
                    Ok(_) if is_optional => driver = prepare(ctx, operation).await?.1,
                    Ok(_) if fault_hit => {
                        return Err(unnoticed(format!(
                            "{operation:?} succeeded although call {call} failed with {fault:?}"
                        )));
                    }
                    Ok(_) => break,
                }
            }
        }
        let (_, driver) = prepare(ctx, Operation::Update).await?;
        ctx.cloud
            .script(Some(InjectedCallFault::fail(1, fault).lasting()))
            .await?;
        let planned = driver.plan().await?;
        ctx.cloud.script(None).await?;
        match planned {
            Err(error) => check(fault, "plan", &error)?,
            Ok(plan) => return Err(unnoticed(format!("plan succeeded under {fault:?}: {plan:?}"))),
        }
    }
    Ok(())
}

pub(super) async fn error_kinds(ctx: &LbRuleContext<'_>) -> Verdict {
    under_each_fault(ctx, Problem::Failed, |fault, what, error| {
        expect(error.kind() == fault.kind(), || {
            format!("{what} under {fault:?}: error {}: {}", error.kind(), error.chain())
        })
    })
    .await
}

pub(super) async fn retry_after(ctx: &LbRuleContext<'_>) -> Verdict {
    if !ctx.cloud.reports_retry_after() {
        return Err(Problem::Unsupported(
            "the cloud's throttling errors carry no retry delay".to_owned(),
        ));
    }
    let unnoticed = |observed| Problem::Blocked(ids::ERROR_KINDS, observed);
    under_each_fault(ctx, unnoticed, |fault, what, error| match fault {
        InjectedFault::Throttled(delay) => {
            let reported = error.retry_after();
            expect(reported.is_some_and(|after| after >= delay), || {
                format!("{what}: the cloud's retry delay is {delay:?}, the provider's {reported:?}")
            })
        }
        _ => Ok(()),
    })
    .await
}

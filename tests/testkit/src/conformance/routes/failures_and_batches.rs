//! Rules for batches, errors and interruptions.

use std::{collections::BTreeSet, pin::pin, sync::Arc, task::Poll, time::Duration};

use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, CloudProvider, ErrorKind, Progress, RouteChange, Routes},
    write_gate::WriteGate,
};
use futures::future::join_all;
use ipnet::IpNet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        InjectedCallFault, InjectedFault, RouteCloud,
        context::{CLUSTER, MutationRecords, RuleContext, check_error_text},
        load_balancers::interruptions::interrupt_at,
        report::{Problem, Verdict, expect},
    },
    cloud::CloudRoute,
    context::{
        Answers, MAX_CALLS, RawAnswers, check_all_succeeded, create, fail_on_error, show,
        show_error,
    },
    ids,
};

/// Maximum sleep of one provider call.
const MAX_SLEEP: Duration = Duration::from_secs(2);
/// Maximum number of await points at which a call is interrupted.
const MAX_AWAIT_POINTS: usize = 60;
/// Delay before and after the effect of each cloud call, which gives calls await points.
const CALL_LATENCY: Duration = Duration::from_millis(20);
/// Number of concurrent batches.
const CONCURRENT_BATCHES: usize = 8;

type RouteRuleContext<'a> = RuleContext<'a, dyn RouteCloud>;

/// A batch of three routes to create and one to delete.
pub(super) struct Batch {
    before: BTreeSet<CloudRoute>,
    pub(super) changes: Vec<RouteChange>,
    made: Vec<(IpNet, Arc<NodeView>)>,
    deleted: IpNet,
}

impl Batch {
    pub(super) async fn new(
        ctx: &RouteRuleContext<'_>,
        provider: &Arc<dyn CloudProvider>,
    ) -> Verdict<Self> {
        let (first, second) = (ctx.node().await?, ctx.node().await?);
        let before = ctx.snapshot().await?;
        let old = ctx.create_and_list(provider, &first).await?;
        let deleted = old.destination;
        let made = [&first, &second, &first]
            .map(|node| (ctx.network(), node.clone()))
            .to_vec();
        let mut changes: Vec<_> = made.iter().map(|(net, node)| create(node, *net)).collect();
        changes.insert(1, RouteChange::Delete(old));
        Ok(Self { before, changes, made, deleted })
    }

    /// Checks that all changes of the batch are in the cloud.
    pub(super) async fn check_applied(
        &self,
        ctx: &RouteRuleContext<'_>,
    ) -> Verdict<Result<(), String>> {
        let wanted: Vec<_> = self.made.iter().map(|(net, node)| (*net, node)).collect();
        ctx.check_routes_in_cloud(&self.before, &wanted).await
    }

    /// Checks that every change that was answered as done is in the cloud.
    pub(super) async fn check_answers(
        &self,
        ctx: &RouteRuleContext<'_>,
        answers: &Answers,
    ) -> Verdict<Result<(), String>> {
        let answered_done: Vec<_> = answers.iter().map(Result::is_ok).collect();
        self.check_done(ctx, &answered_done).await
    }

    /// Checks that every change that one call answered as done is in the cloud.
    pub(super) async fn check_raw_answers(
        &self,
        ctx: &RouteRuleContext<'_>,
        answers: &RawAnswers,
    ) -> Verdict<Result<(), String>> {
        let is_done = |answer| matches!(answer, &Ok(Progress::Done));
        let answered_done: Vec<_> = answers.iter().map(is_done).collect();
        self.check_done(ctx, &answered_done).await
    }

    async fn check_done(
        &self,
        ctx: &RouteRuleContext<'_>,
        answered_done: &[bool],
    ) -> Verdict<Result<(), String>> {
        let destinations: BTreeSet<_> = ctx
            .snapshot()
            .await?
            .into_iter()
            .map(|route| route.destination)
            .collect();
        for (change, answered_done) in self.changes.iter().zip(answered_done) {
            let done = match change {
                RouteChange::Create { destination, .. } => destinations.contains(destination),
                RouteChange::Delete(_) => !destinations.contains(&self.deleted),
            };
            if *answered_done && !done {
                return Ok(Err(format!(
                    "answered as done, but not in the cloud: {}",
                    show(change)
                )));
            }
        }
        Ok(Ok(()))
    }
}

pub(super) async fn answers_in_order(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, provider) = (ctx.node().await?, ctx.provider().await?);
    let gone = ctx.node_without_instance().await?;
    let fails = |change: &RouteChange| matches!(change, RouteChange::Create { node, .. } if node.name == gone.name);
    for reverse in [false, true] {
        let missing = ctx.create_and_list(&provider, &node).await?;
        ctx.apply(&provider, &[RouteChange::Delete(missing.clone())])
            .await?;
        let mut changes = [
            create(&node, ctx.network()),
            create(&gone, ctx.network()),
            RouteChange::Delete(missing),
            create(&node, ctx.network()),
            create(&node, ctx.network()),
        ];
        if reverse {
            changes.reverse();
        }
        for part in [&changes[..], &changes[..1], &[]] {
            let op = ctx.op();
            let answers = ctx.apply_raw(&provider, &op, part).await?;
            let count = answers.len();
            expect(count == part.len(), || format!("{count} answers to {} changes", part.len()))?;
            let answers = ctx.finish(&provider, &op, part, answers).await?;
            for (index, (change, answer)) in part.iter().zip(&answers).enumerate() {
                // Another rule judges whether the other changes succeed. Here only the position of
                // the error counts.
                expect(!fails(change) || answer.is_err(), || {
                    format!("answer {index} is {answer:?} to {}", show(change))
                })?;
            }
        }
    }
    Ok(())
}

pub(super) async fn failure_spoils_nothing(ctx: &RouteRuleContext<'_>) -> Verdict {
    let provider = ctx.provider().await?;
    let gone = ctx.node_without_instance().await?;
    for place in 0..5 {
        let mut batch = Batch::new(ctx, &provider).await?;
        batch.changes.insert(place, create(&gone, ctx.network()));
        let mut answers = ctx.apply(&provider, &batch.changes).await?;
        let failed = answers.remove(place);
        if failed.is_ok() {
            let observed = "creating a route to a deleted instance was answered as done".to_owned();
            return Err(Problem::Blocked(ids::ANSWERS_IN_ORDER, observed));
        }
        fail_on_error(check_all_succeeded(&answers), &format!("when change {place} fails"))?;
        fail_on_error(batch.check_applied(ctx).await?, &format!("when change {place} fails"))?;
    }
    Ok(())
}

pub(super) async fn apply_resumable(ctx: &RouteRuleContext<'_>) -> Verdict {
    for restart in [false, true] {
        for lost in [false, true] {
            for call in (1..=MAX_CALLS).step_by(ctx.cloud.stride().max(1)) {
                let mut provider = ctx.provider().await?;
                let batch = Batch::new(ctx, &provider).await?;
                let fault = match lost {
                    true => InjectedCallFault::lose_answer(call),
                    false => InjectedCallFault::fail(call, InjectedFault::Transient),
                };
                ctx.cloud.script(Some(fault)).await?;
                let answers = ctx.apply(&provider, &batch.changes).await?;
                let fault_hit = ctx.cloud.call_count().await?.calls() >= call;
                ctx.cloud.script(None).await?;
                let what =
                    format!("call {call} {}", if lost { "lost its answer" } else { "failed" });
                fail_on_error(batch.check_answers(ctx, &answers).await?, &what)?;
                if restart {
                    provider = ctx.provider().await?;
                }
                fail_on_error(
                    check_all_succeeded(&ctx.apply(&provider, &batch.changes).await?),
                    &format!("{what}, retried"),
                )?;
                fail_on_error(batch.check_applied(ctx).await?, &format!("{what}, retried"))?;
                if !fault_hit {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Checks that a listing is complete or fails.
pub(super) async fn list_whole_or_error(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, provider) = (ctx.node().await?, ctx.provider().await?);
    let mut wanted = BTreeSet::new();
    for _ in 0..3 {
        wanted.insert(ctx.create_and_list(&provider, &node).await?.destination);
    }
    for call in (1..=MAX_CALLS).step_by(ctx.cloud.stride().max(1)) {
        for provider in [&provider, &ctx.provider().await?] {
            for fault in InjectedFault::ALL {
                ctx.cloud
                    .script(Some(InjectedCallFault::fail(call, fault).lasting()))
                    .await?;
                let listed = ctx.list_with(provider, &ctx.op(), &[node.clone()]).await?;
                let fault_hit = ctx.cloud.call_count().await?.calls() >= call;
                ctx.cloud.script(None).await?;
                let Ok(routes) = listed else { continue };
                let observed: BTreeSet<_> = routes.iter().map(|route| route.destination).collect();
                let what = || {
                    format!(
                        "call {call} failed with {fault:?}, but list returned {observed:?} instead of {wanted:?}"
                    )
                };
                expect(!fault_hit && observed.is_superset(&wanted), what)?;
                if !fault_hit {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Lists and applies while a call and all later ones fail, and passes each error to `check_error`.
async fn under_each_fault(
    ctx: &RouteRuleContext<'_>,
    check_error: impl Fn(InjectedFault, &str, &CloudError) -> Verdict,
) -> Verdict {
    let node = ctx.node().await?;
    for fault in InjectedFault::ALL {
        let provider = ctx.provider().await?;
        let batch = Batch::new(ctx, &provider).await?;
        for call in (1..=MAX_CALLS).step_by(ctx.cloud.stride().max(1)) {
            ctx.cloud
                .script(Some(InjectedCallFault::fail(call, fault).lasting()))
                .await?;
            let answers = ctx.apply(&provider, &batch.changes).await?;
            let fault_hit = ctx.cloud.call_count().await?.calls() >= call;
            ctx.cloud.script(None).await?;
            if !fault_hit {
                break;
            }
            let errors: Vec<_> = answers
                .iter()
                .filter_map(|answer| answer.as_ref().err())
                .collect();
            expect(!errors.is_empty(), || {
                format!("apply succeeded although call {call} failed with {fault:?}")
            })
            .map_err(|_| {
                Problem::Blocked(
                    ids::RESUMABLE,
                    format!("apply succeeded although call {call} failed with {fault:?}"),
                )
            })?;
            for error in errors {
                check_error(fault, &format!("apply, call {call}"), error)?;
            }
        }
        ctx.cloud
            .script(Some(InjectedCallFault::fail(1, fault).lasting()))
            .await?;
        let listed = ctx.list_with(&provider, &ctx.op(), &[node.clone()]).await?;
        ctx.cloud.script(None).await?;
        match listed {
            Err(error) => check_error(fault, "list", &error)?,
            Ok(routes) => {
                return Err(Problem::Blocked(ids::LIST_WHOLE, format!("{fault:?}: {routes:?}")));
            }
        }
    }
    Ok(())
}

pub(super) async fn error_kinds(ctx: &RouteRuleContext<'_>) -> Verdict {
    under_each_fault(ctx, |fault, what, error| {
        expect(error.kind() == fault.kind(), || {
            format!("{what} under {fault:?}: {}", show_error(error))
        })
    })
    .await
}

pub(super) async fn retry_after(ctx: &RouteRuleContext<'_>) -> Verdict {
    if !ctx.cloud.reports_retry_after() {
        return Err(Problem::Unsupported(
            "the cloud's throttling errors carry no retry delay".to_owned(),
        ));
    }
    under_each_fault(ctx, |fault, what, error| match fault {
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

pub(super) async fn texts_presentable(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, provider) = (ctx.node().await?, ctx.provider().await?);
    let secrets = ctx.cloud.secrets();
    for fault in InjectedFault::ALL {
        let batch = Batch::new(ctx, &provider).await?;
        ctx.cloud
            .script(Some(InjectedCallFault::fail(1, fault).lasting()))
            .await?;
        let mut answers = ctx.apply(&provider, &batch.changes).await?;
        answers.push(
            ctx.list_with(&provider, &ctx.op(), &[node.clone()])
                .await?
                .map(drop),
        );
        ctx.cloud.script(None).await?;
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            check_error_text(error, &secrets)
                .map_err(|observed| Problem::Failed(format!("under {fault:?}: {observed}")))?;
        }
    }
    Ok(())
}

pub(super) async fn changes_recorded(ctx: &RouteRuleContext<'_>) -> Verdict {
    let provider = ctx.provider().await?;
    let batch = Batch::new(ctx, &provider).await?;
    let records = MutationRecords::new(&provider)?;
    ctx.cloud.script(None).await?;
    let op = ctx.op().with_mutations(records.metrics.clone());
    let answers = ctx.apply_with(&provider, &op, &batch.changes).await?;
    check_all_succeeded(&answers)
        .map_err(|observed| Problem::Blocked(ids::FAILURE_SPOILS_NOTHING, observed))?;
    let writes = ctx.cloud.call_count().await?.writes;
    records.check(0, writes, "apply")
}

pub(super) async fn sleeps_briefly(ctx: &RouteRuleContext<'_>) -> Verdict {
    let node = ctx.node().await?;
    let provider = ctx.provider().await?;
    let throttled = InjectedFault::Throttled(Duration::from_secs(7));
    for fault in [
        None,
        Some(InjectedCallFault::fail(1, throttled)),
        Some(InjectedCallFault::fail(1, throttled).lasting()),
    ] {
        let batch = Batch::new(ctx, &provider).await?;
        for apply in [true, false] {
            ctx.cloud.script(fault).await?;
            let began = Instant::now();
            match apply {
                true => drop(ctx.apply_once(&provider, &ctx.op(), &batch.changes).await?),
                false => drop(ctx.list_with(&provider, &ctx.op(), &[node.clone()]).await?),
            }
            let took = began.elapsed();
            let calls = u32::try_from(ctx.cloud.call_count().await?.calls()).unwrap_or(u32::MAX);
            ctx.cloud.script(None).await?;
            let limit = MAX_SLEEP + ctx.cloud.answer_time() * calls.saturating_add(1);
            let what = if apply { "apply" } else { "list" };
            expect(took <= limit, || format!("{what} took {took:?} for {calls} cloud calls"))?;
        }
    }
    Ok(())
}

pub(super) async fn no_write_without_leadership(ctx: &RouteRuleContext<'_>) -> Verdict {
    let provider = ctx.provider().await?;
    let batch = Batch::new(ctx, &provider).await?;
    let before = ctx.snapshot().await?;
    let (gate, _keeper) = WriteGate::closed();
    ctx.cloud.script(None).await?;
    let op = ctx.op_with(CLUSTER, CancellationToken::new(), gate);
    let answers = ctx.apply_once(&provider, &op, &batch.changes).await?;
    let writes = ctx.cloud.call_count().await?.writes;
    expect(writes == 0 && ctx.snapshot().await? == before, || format!("{writes} writing calls"))?;
    let other = answers
        .iter()
        .find(|answer| !matches!(answer, Err(error) if error.kind() == ErrorKind::NotLeader));
    expect(other.is_none(), || format!("an answer is {other:?}"))?;
    for waits in (0..MAX_AWAIT_POINTS).step_by(ctx.cloud.stride().max(1)) {
        let batch = Batch::new(ctx, &provider).await?;
        if !ctx.cloud.slow_down(CALL_LATENCY).await? {
            return Ok(());
        }
        ctx.cloud.script(None).await?;
        let (gate, keeper) = WriteGate::closed();
        keeper.open_until(Instant::now() + Duration::from_secs(3600));
        let op = ctx.op_with(CLUSTER, CancellationToken::new(), gate);
        let mut call = pin!(ctx.apply_once(&provider, &op, &batch.changes));
        let ended = interrupt_at(call.as_mut(), waits, || Poll::Ready(())).await;
        keeper.close();
        let writes_before = ctx.cloud.call_count().await?.writes;
        let in_flight = ended.is_none();
        match ended {
            None => drop(call.await?),
            Some(answers) => drop(answers?),
        }
        let later_writes = ctx.cloud.call_count().await?.writes - writes_before;
        ctx.cloud.slow_down(Duration::ZERO).await?;
        expect(later_writes == 0, || {
            format!("{later_writes} writing calls started after leadership was lost")
        })?;
        if !in_flight {
            break;
        }
    }
    Ok(())
}

pub(super) async fn cancellation(ctx: &RouteRuleContext<'_>) -> Verdict {
    if !ctx.cloud.slow_down(CALL_LATENCY).await? {
        return Err(Problem::Unsupported("the adapter cannot delay calls".to_owned()));
    }
    ctx.cloud.slow_down(Duration::ZERO).await?;
    let provider = ctx.provider().await?;
    for drop_it in [true, false] {
        for waits in (0..MAX_AWAIT_POINTS).step_by(ctx.cloud.stride().max(1)) {
            let batch = Batch::new(ctx, &provider).await?;
            ctx.cloud.slow_down(CALL_LATENCY).await?;
            let in_flight = interrupt(ctx, &provider, &batch, waits, drop_it).await;
            ctx.cloud.slow_down(Duration::ZERO).await?;
            let in_flight = in_flight?;
            let what = format!("interrupted at await point {waits}, retried");
            fail_on_error(
                check_all_succeeded(&ctx.apply(&provider, &batch.changes).await?),
                &what,
            )?;
            fail_on_error(batch.check_applied(ctx).await?, &what)?;
            if !in_flight {
                break;
            }
        }
    }
    Ok(())
}

/// Drops or cancels the batch after `waits` await points. Returns true if it was still in flight.
async fn interrupt(
    ctx: &RouteRuleContext<'_>,
    provider: &Arc<dyn CloudProvider>,
    batch: &Batch,
    waits: usize,
    drop_it: bool,
) -> Verdict<bool> {
    let cancel = CancellationToken::new();
    let op = ctx.op_with(CLUSTER, cancel.clone(), WriteGate::always_open());
    let mut cancelled_at = None;
    let interrupted = interrupt_at(ctx.apply_once(provider, &op, &batch.changes), waits, || {
        if drop_it {
            return Poll::Ready(());
        }
        cancelled_at.get_or_insert_with(Instant::now);
        cancel.cancel();
        Poll::Pending
    })
    .await;
    let Some(answers) = interrupted else {
        return Ok(true);
    };
    let answers = answers?;
    if let Some(cancelled_at) = cancelled_at {
        let (took, limit) = (cancelled_at.elapsed(), MAX_SLEEP + ctx.cloud.answer_time());
        expect(took <= limit, || format!("apply ended only {took:?} after it was cancelled"))?;
        let other = answers
            .iter()
            .filter_map(|a| a.as_ref().err())
            .find(|e| e.kind() != ErrorKind::Canceled);
        expect(other.is_none(), || {
            format!(
                "apply was cancelled, but returned {}",
                other.map(show_error).unwrap_or_default()
            )
        })?;
        fail_on_error(batch.check_raw_answers(ctx, &answers).await?, "cancelled")?;
    }
    Ok(cancelled_at.is_some())
}

pub(super) async fn concurrent_use(ctx: &RouteRuleContext<'_>) -> Verdict {
    let provider = ctx.provider().await?;
    let alone = Batch::new(ctx, &provider).await?;
    let answers = ctx.apply(&provider, &alone.changes).await?;
    check_all_succeeded(&answers)
        .map_err(|observed| Problem::Blocked(ids::FAILURE_SPOILS_NOTHING, observed))?;
    let before = ctx.snapshot().await?;
    let limits = provider.routes().map(Routes::limits).unwrap_or_default();
    let mut batches = Vec::new();
    for _ in 0..CONCURRENT_BATCHES.min(limits.max_in_flight.get()) {
        batches.push(Batch::new(ctx, &provider).await?);
    }
    ctx.cloud.slow_down(CALL_LATENCY).await?;
    let together = join_all(
        batches
            .iter()
            .map(|batch| ctx.apply(&provider, &batch.changes)),
    )
    .await;
    ctx.cloud.slow_down(Duration::ZERO).await?;
    for answers in together {
        fail_on_error(check_all_succeeded(&answers?), "concurrently")?;
    }
    let made: Vec<_> = batches
        .iter()
        .flat_map(|batch| batch.made.iter().map(|(net, node)| (*net, node)))
        .collect();
    fail_on_error(ctx.check_routes_in_cloud(&before, &made).await?, "concurrently")
}

pub(super) async fn large_batch(ctx: &RouteRuleContext<'_>) -> Verdict {
    let (node, provider) = (ctx.node().await?, ctx.provider().await?);
    let before = ctx.snapshot().await?;
    let wanted: Vec<_> = (0..ctx.cloud.many())
        .map(|_| (ctx.network(), &node))
        .collect();
    let changes: Vec<_> = wanted
        .iter()
        .map(|(net, node)| create(node, *net))
        .collect();
    fail_on_error(check_all_succeeded(&ctx.apply(&provider, &changes).await?), "create")?;
    fail_on_error(ctx.check_routes_in_cloud(&before, &wanted).await?, "create")?;
    let listed = ctx.list(&provider, &[node.clone()]).await?;
    let ours: Vec<_> = listed
        .into_iter()
        .filter(|route| wanted.iter().any(|(net, _)| *net == route.destination))
        .collect();
    expect(ours.len() == wanted.len(), || {
        format!("{} routes were created, but {} are listed", wanted.len(), ours.len())
    })?;
    let changes: Vec<_> = ours.into_iter().map(RouteChange::Delete).collect();
    fail_on_error(check_all_succeeded(&ctx.apply(&provider, &changes).await?), "delete")?;
    fail_on_error(ctx.check_routes_in_cloud(&before, &[]).await?, "delete")
}

//! Answers to batches, and interruptions.

use std::{collections::BTreeSet, pin::pin, sync::Arc, task::Poll, time::Duration};

use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, CloudProvider, ErrorKind, RouteChange},
    write_gate::WriteGate,
};
use futures::future::join_all;
use ipnet::IpNet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        InjectedCallFault, InjectedFault, RouteCloud,
        context::{CLUSTER, MutationRecords, RuleContext, presentable},
        load_balancers::trouble::cut_short,
        report::{Problem, Verdict, expect},
    },
    bench::{Answers, MAX_CALLS, all_done, check, create, show, show_error},
    cloud::CloudRoute,
    ids,
};

/// Longest that a call may sleep.
const LONGEST_SLEEP: Duration = Duration::from_secs(2);
/// Await points at which a call is cut short, at most.
const MAX_WAITS: usize = 60;
/// How long the cloud takes before and after a call's effect, so that calls can be cut short there.
const SLOWLY: Duration = Duration::from_millis(20);
/// Calls that overlap.
const TOGETHER: usize = 8;

type RouteBench<'a> = RuleContext<'a, dyn RouteCloud>;

/// Three routes to make and one to delete.
struct Batch {
    before: BTreeSet<CloudRoute>,
    changes: Vec<RouteChange>,
    made: Vec<(IpNet, Arc<NodeView>)>,
    deleted: IpNet,
}

impl Batch {
    async fn new(bench: &RouteBench<'_>, provider: &Arc<dyn CloudProvider>) -> Verdict<Self> {
        let (first, second) = (bench.node().await?, bench.node().await?);
        let before = bench.world().await?;
        let old = bench.listed(provider, &first).await?;
        let deleted = old.destination;
        let made = [&first, &second, &first]
            .map(|node| (bench.network(), node.clone()))
            .to_vec();
        let mut changes: Vec<_> = made.iter().map(|(net, node)| create(node, *net)).collect();
        changes.insert(1, RouteChange::Delete(old));
        Ok(Self { before, changes, made, deleted })
    }

    /// Checks that all is as the batch says.
    async fn done(&self, bench: &RouteBench<'_>) -> Verdict<Result<(), String>> {
        let wanted: Vec<_> = self.made.iter().map(|(net, node)| (*net, node)).collect();
        bench.holds(&self.before, &wanted).await
    }

    /// Checks that what was answered as done is.
    async fn honest(
        &self,
        bench: &RouteBench<'_>,
        answers: &Answers,
    ) -> Verdict<Result<(), String>> {
        let there: BTreeSet<_> = bench
            .world()
            .await?
            .into_iter()
            .map(|route| route.destination)
            .collect();
        for (change, answer) in self.changes.iter().zip(answers) {
            let done = match change {
                RouteChange::Create { destination, .. } => there.contains(destination),
                RouteChange::Delete(_) => !there.contains(&self.deleted),
            };
            if answer.is_ok() && !done {
                return Ok(Err(format!("answered as done, but is not: {}", show(change))));
            }
        }
        Ok(Ok(()))
    }
}

pub(super) async fn answers_in_order(bench: &RouteBench<'_>) -> Verdict {
    let (node, provider) = (bench.node().await?, bench.provider().await?);
    let gone = bench.lost_node().await?;
    let fails = |change: &RouteChange| matches!(change, RouteChange::Create { node, .. } if node.name == gone.name);
    for reverse in [false, true] {
        let missing = bench.listed(&provider, &node).await?;
        bench
            .apply(&provider, &[RouteChange::Delete(missing.clone())])
            .await?;
        let mut changes = [
            create(&node, bench.network()),
            create(&gone, bench.network()),
            RouteChange::Delete(missing),
            create(&node, bench.network()),
            create(&node, bench.network()),
        ];
        if reverse {
            changes.reverse();
        }
        for part in [&changes[..], &changes[..1], &[]] {
            let answers = bench.apply_raw(&provider, &bench.op(), part).await?;
            let count = answers.len();
            expect(count == part.len(), || format!("{count} answers to {} changes", part.len()))?;
            for (index, (change, answer)) in part.iter().zip(&answers).enumerate() {
                // That the others succeed is another rule's matter, so that only the place of the
                // error counts.
                expect(!fails(change) || answer.is_err(), || {
                    format!("answer {index} is {answer:?} to {}", show(change))
                })?;
            }
        }
    }
    Ok(())
}

pub(super) async fn failure_spoils_nothing(bench: &RouteBench<'_>) -> Verdict {
    let provider = bench.provider().await?;
    let gone = bench.lost_node().await?;
    for place in 0..5 {
        let mut batch = Batch::new(bench, &provider).await?;
        batch.changes.insert(place, create(&gone, bench.network()));
        let mut answers = bench.apply(&provider, &batch.changes).await?;
        let failed = answers.remove(place);
        if failed.is_ok() {
            let seen = "a route to an instance that is gone was answered as made".to_owned();
            return Err(Problem::Blocked(ids::ANSWERS_IN_ORDER, seen));
        }
        check(all_done(&answers), &format!("with change {place} failing"))?;
        check(batch.done(bench).await?, &format!("with change {place} failing"))?;
    }
    Ok(())
}

pub(super) async fn resumable(bench: &RouteBench<'_>) -> Verdict {
    for restart in [false, true] {
        for lost in [false, true] {
            for call in (1..=MAX_CALLS).step_by(bench.cloud.stride().max(1)) {
                let mut provider = bench.provider().await?;
                let batch = Batch::new(bench, &provider).await?;
                let trouble = match lost {
                    true => InjectedCallFault::lose_answer(call),
                    false => InjectedCallFault::fail(call, InjectedFault::Transient),
                };
                bench.cloud.script(Some(trouble)).await?;
                let answers = bench.apply(&provider, &batch.changes).await?;
                let spoilt = bench.cloud.call_count().await?.calls() >= call;
                bench.cloud.script(None).await?;
                let what =
                    format!("call {call} {}", if lost { "lost its answer" } else { "failed" });
                check(batch.honest(bench, &answers).await?, &what)?;
                if restart {
                    provider = bench.provider().await?;
                }
                check(
                    all_done(&bench.apply(&provider, &batch.changes).await?),
                    &format!("{what}, tried again"),
                )?;
                check(batch.done(bench).await?, &format!("{what}, tried again"))?;
                if !spoilt {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Whole, or an error.
pub(super) async fn list_whole(bench: &RouteBench<'_>) -> Verdict {
    let (node, provider) = (bench.node().await?, bench.provider().await?);
    let mut wanted = BTreeSet::new();
    for _ in 0..3 {
        wanted.insert(bench.listed(&provider, &node).await?.destination);
    }
    for call in (1..=MAX_CALLS).step_by(bench.cloud.stride().max(1)) {
        for provider in [&provider, &bench.provider().await?] {
            for fault in InjectedFault::ALL {
                bench
                    .cloud
                    .script(Some(InjectedCallFault::fail(call, fault).lasting()))
                    .await?;
                let listed = bench
                    .list_with(provider, &bench.op(), &[node.clone()])
                    .await?;
                let spoilt = bench.cloud.call_count().await?.calls() >= call;
                bench.cloud.script(None).await?;
                let Ok(routes) = listed else { continue };
                let seen: BTreeSet<_> = routes.iter().map(|route| route.destination).collect();
                let what = || {
                    format!(
                        "call {call} fails with {fault:?}, listed is {seen:?} instead of {wanted:?}"
                    )
                };
                expect(!spoilt && seen.is_superset(&wanted), what)?;
                if !spoilt {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Lists and applies while calls fail for good.
async fn under_each_fault(
    bench: &RouteBench<'_>,
    judge: impl Fn(InjectedFault, &str, &CloudError) -> Verdict,
) -> Verdict {
    let node = bench.node().await?;
    for fault in InjectedFault::ALL {
        let provider = bench.provider().await?;
        let batch = Batch::new(bench, &provider).await?;
        for call in (1..=MAX_CALLS).step_by(bench.cloud.stride().max(1)) {
            bench
                .cloud
                .script(Some(InjectedCallFault::fail(call, fault).lasting()))
                .await?;
            let answers = bench.apply(&provider, &batch.changes).await?;
            let spoilt = bench.cloud.call_count().await?.calls() >= call;
            bench.cloud.script(None).await?;
            if !spoilt {
                break;
            }
            let errors: Vec<_> = answers
                .iter()
                .filter_map(|answer| answer.as_ref().err())
                .collect();
            expect(!errors.is_empty(), || {
                format!("apply: {fault:?} of call {call} went unnoticed")
            })
            .map_err(|_| {
                Problem::Blocked(ids::RESUMABLE, format!("{fault:?} of call {call} went unnoticed"))
            })?;
            for error in errors {
                judge(fault, &format!("apply, call {call}"), error)?;
            }
        }
        bench
            .cloud
            .script(Some(InjectedCallFault::fail(1, fault).lasting()))
            .await?;
        let listed = bench
            .list_with(&provider, &bench.op(), &[node.clone()])
            .await?;
        bench.cloud.script(None).await?;
        match listed {
            Err(error) => judge(fault, "list", &error)?,
            Ok(routes) => {
                return Err(Problem::Blocked(ids::LIST_WHOLE, format!("{fault:?}: {routes:?}")));
            }
        }
    }
    Ok(())
}

pub(super) async fn error_kinds(bench: &RouteBench<'_>) -> Verdict {
    under_each_fault(bench, |fault, what, error| {
        expect(error.kind() == fault.kind(), || {
            format!("{what} under {fault:?}: {}", show_error(error))
        })
    })
    .await
}

pub(super) async fn retry_after(bench: &RouteBench<'_>) -> Verdict {
    if !bench.cloud.names_pauses() {
        return Err(Problem::Unsupported("the cloud does not say when to come again".to_owned()));
    }
    under_each_fault(bench, |fault, what, error| match fault {
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

pub(super) async fn texts_presentable(bench: &RouteBench<'_>) -> Verdict {
    let (node, provider) = (bench.node().await?, bench.provider().await?);
    let secrets = bench.cloud.secrets();
    for fault in InjectedFault::ALL {
        let batch = Batch::new(bench, &provider).await?;
        bench
            .cloud
            .script(Some(InjectedCallFault::fail(1, fault).lasting()))
            .await?;
        let mut answers = bench.apply(&provider, &batch.changes).await?;
        answers.push(
            bench
                .list_with(&provider, &bench.op(), &[node.clone()])
                .await?
                .map(drop),
        );
        bench.cloud.script(None).await?;
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            presentable(error, &secrets)
                .map_err(|seen| Problem::Failed(format!("under {fault:?}: {seen}")))?;
        }
    }
    Ok(())
}

pub(super) async fn changes_recorded(bench: &RouteBench<'_>) -> Verdict {
    let provider = bench.provider().await?;
    let batch = Batch::new(bench, &provider).await?;
    let records = MutationRecords::new(&provider)?;
    bench.cloud.script(None).await?;
    let op = bench.op().with_mutations(records.metrics.clone());
    let answers = bench.apply_with(&provider, &op, &batch.changes).await?;
    all_done(&answers).map_err(|seen| Problem::Blocked(ids::FAILURE_SPOILS_NOTHING, seen))?;
    let writes = bench.cloud.call_count().await?.writes;
    records.cover(0, writes, "apply")
}

pub(super) async fn sleeps_briefly(bench: &RouteBench<'_>) -> Verdict {
    let node = bench.node().await?;
    let provider = bench.provider().await?;
    let throttled = InjectedFault::Throttled(Duration::from_secs(7));
    for trouble in [
        None,
        Some(InjectedCallFault::fail(1, throttled)),
        Some(InjectedCallFault::fail(1, throttled).lasting()),
    ] {
        let batch = Batch::new(bench, &provider).await?;
        for apply in [true, false] {
            bench.cloud.script(trouble).await?;
            let began = Instant::now();
            match apply {
                true => drop(bench.apply(&provider, &batch.changes).await?),
                false => drop(
                    bench
                        .list_with(&provider, &bench.op(), &[node.clone()])
                        .await?,
                ),
            }
            let took = began.elapsed();
            let calls = u32::try_from(bench.cloud.call_count().await?.calls()).unwrap_or(u32::MAX);
            bench.cloud.script(None).await?;
            let limit = LONGEST_SLEEP + bench.cloud.answer_time() * calls.saturating_add(1);
            let what = if apply { "apply" } else { "list" };
            expect(took <= limit, || format!("{what} took {took:?} for {calls} cloud calls"))?;
        }
    }
    Ok(())
}

pub(super) async fn no_write_without_leadership(bench: &RouteBench<'_>) -> Verdict {
    let provider = bench.provider().await?;
    let batch = Batch::new(bench, &provider).await?;
    let before = bench.world().await?;
    let (gate, _keeper) = WriteGate::closed();
    bench.cloud.script(None).await?;
    let op = bench.op_with(CLUSTER, CancellationToken::new(), gate);
    let answers = bench.apply_with(&provider, &op, &batch.changes).await?;
    let writes = bench.cloud.call_count().await?.writes;
    expect(writes == 0 && bench.world().await? == before, || format!("{writes} writing calls"))?;
    let other = answers
        .iter()
        .find(|answer| !matches!(answer, Err(error) if error.kind() == ErrorKind::NotLeader));
    expect(other.is_none(), || format!("the answer is {other:?}"))?;
    for waits in (0..MAX_WAITS).step_by(bench.cloud.stride().max(1)) {
        let batch = Batch::new(bench, &provider).await?;
        if !bench.cloud.slow_down(SLOWLY).await? {
            return Ok(());
        }
        bench.cloud.script(None).await?;
        let (gate, keeper) = WriteGate::closed();
        keeper.open_until(Instant::now() + Duration::from_secs(3600));
        let op = bench.op_with(CLUSTER, CancellationToken::new(), gate);
        let mut call = pin!(bench.apply_with(&provider, &op, &batch.changes));
        let ended = cut_short(call.as_mut(), waits, || Poll::Ready(())).await;
        keeper.close();
        let begun = bench.cloud.call_count().await?.writes;
        let under_way = ended.is_none();
        match ended {
            None => drop(call.await?),
            Some(answers) => drop(answers?),
        }
        let more = bench.cloud.call_count().await?.writes - begun;
        bench.cloud.slow_down(Duration::ZERO).await?;
        expect(more == 0, || format!("{more} writing calls were begun after leadership was lost"))?;
        if !under_way {
            break;
        }
    }
    Ok(())
}

pub(super) async fn cancellation(bench: &RouteBench<'_>) -> Verdict {
    if !bench.cloud.slow_down(SLOWLY).await? {
        return Err(Problem::Unsupported("the cloud's adapter cannot slow calls down".to_owned()));
    }
    bench.cloud.slow_down(Duration::ZERO).await?;
    let provider = bench.provider().await?;
    for drop_it in [true, false] {
        for waits in (0..MAX_WAITS).step_by(bench.cloud.stride().max(1)) {
            let batch = Batch::new(bench, &provider).await?;
            bench.cloud.slow_down(SLOWLY).await?;
            let under_way = interrupt(bench, &provider, &batch, waits, drop_it).await;
            bench.cloud.slow_down(Duration::ZERO).await?;
            let under_way = under_way?;
            let what = format!("cut short at await point {waits}, tried again");
            check(all_done(&bench.apply(&provider, &batch.changes).await?), &what)?;
            check(batch.done(bench).await?, &what)?;
            if !under_way {
                break;
            }
        }
    }
    Ok(())
}

/// Drops or cancels the batch after it has waited `waits` times; tells whether it was still under
/// way.
async fn interrupt(
    bench: &RouteBench<'_>,
    provider: &Arc<dyn CloudProvider>,
    batch: &Batch,
    waits: usize,
    drop_it: bool,
) -> Verdict<bool> {
    let cancel = CancellationToken::new();
    let op = bench.op_with(CLUSTER, cancel.clone(), WriteGate::always_open());
    let mut since = None;
    let cut = cut_short(bench.apply_with(provider, &op, &batch.changes), waits, || {
        if drop_it {
            return Poll::Ready(());
        }
        since.get_or_insert_with(Instant::now);
        cancel.cancel();
        Poll::Pending
    })
    .await;
    let Some(answers) = cut else { return Ok(true) };
    let answers = answers?;
    if let Some(since) = since {
        let (took, limit) = (since.elapsed(), LONGEST_SLEEP + bench.cloud.answer_time());
        expect(took <= limit, || format!("apply went on for {took:?} after it was cancelled"))?;
        let other = answers
            .iter()
            .filter_map(|a| a.as_ref().err())
            .find(|e| e.kind() != ErrorKind::Canceled);
        expect(other.is_none(), || {
            format!("cancelled, but {}", other.map(show_error).unwrap_or_default())
        })?;
        check(batch.honest(bench, &answers).await?, "cancelled")?;
    }
    Ok(since.is_some())
}

pub(super) async fn concurrent_use(bench: &RouteBench<'_>) -> Verdict {
    let provider = bench.provider().await?;
    let alone = Batch::new(bench, &provider).await?;
    let answers = bench.apply(&provider, &alone.changes).await?;
    all_done(&answers).map_err(|seen| Problem::Blocked(ids::FAILURE_SPOILS_NOTHING, seen))?;
    let before = bench.world().await?;
    let mut batches = Vec::new();
    for _ in 0..TOGETHER {
        batches.push(Batch::new(bench, &provider).await?);
    }
    bench.cloud.slow_down(SLOWLY).await?;
    let together = join_all(
        batches
            .iter()
            .map(|batch| bench.apply(&provider, &batch.changes)),
    )
    .await;
    bench.cloud.slow_down(Duration::ZERO).await?;
    for answers in together {
        check(all_done(&answers?), "at the same time")?;
    }
    let made: Vec<_> = batches
        .iter()
        .flat_map(|batch| batch.made.iter().map(|(net, node)| (*net, node)))
        .collect();
    check(bench.holds(&before, &made).await?, "at the same time")
}

pub(super) async fn large_batch(bench: &RouteBench<'_>) -> Verdict {
    let (node, provider) = (bench.node().await?, bench.provider().await?);
    let before = bench.world().await?;
    let wanted: Vec<_> = (0..bench.cloud.many())
        .map(|_| (bench.network(), &node))
        .collect();
    let changes: Vec<_> = wanted
        .iter()
        .map(|(net, node)| create(node, *net))
        .collect();
    check(all_done(&bench.apply(&provider, &changes).await?), "create")?;
    check(bench.holds(&before, &wanted).await?, "create")?;
    let listed = bench.list(&provider, &[node.clone()]).await?;
    let ours: Vec<_> = listed
        .into_iter()
        .filter(|route| wanted.iter().any(|(net, _)| *net == route.destination))
        .collect();
    expect(ours.len() == wanted.len(), || {
        format!("{} routes were made, {} are listed", wanted.len(), ours.len())
    })?;
    let changes: Vec<_> = ours.into_iter().map(RouteChange::Delete).collect();
    check(all_done(&bench.apply(&provider, &changes).await?), "delete")?;
    check(bench.holds(&before, &[]).await?, "delete")
}

//! Rules for ownership: clusters, Services, unmanaged load balancers, and concurrent calls.

use std::time::Duration;

use futures::future::join_all;

use super::{
    super::{
        LoadBalancerCloud,
        context::{CLUSTER, RuleContext},
        report::{Problem, Verdict, expect},
    },
    context::OTHER_CLUSTER,
    service_driver::{ErrorReaction, Operation, ServiceDriver},
};
use crate::conformance::load_balancers::backends_and_deletion::{ENSURE, delete_until_done};

/// Number of Services that are synced concurrently.
const CONCURRENT_SERVICES: usize = 6;
/// Delay of each cloud call, which makes concurrent calls overlap.
const CALL_LATENCY: Duration = Duration::from_millis(20);

type LbRuleContext<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

/// Checks that both Services get their own load balancer, and that operations on the first do not
/// change the second's.
async fn check_separate(
    ctx: &LbRuleContext<'_>,
    first: &mut ServiceDriver<'_>,
    second: &mut ServiceDriver<'_>,
) -> Verdict {
    let empty = ctx.snapshot().await?;
    second.ensure().await?;
    let alone = ctx.snapshot().await?;
    alone
        .served_since(&empty, second)
        .map_err(super::ensure::blocked)?;
    let failed =
        |what: &'static str| move |observed: String| Problem::Failed(format!("{what}: {observed}"));
    first
        .call_until_done(ENSURE, ErrorReaction::Fail)
        .await?
        .map_err(failed("ensure failed beside another load balancer"))?;
    let with_both = ctx.snapshot().await?;
    with_both
        .served_since(&alone, first)
        .map_err(failed("beside another load balancer"))?;
    check_unchanged(&with_both, &alone, "ensure")?;
    first.nodes.truncate(1);
    first
        .call_until_done(Operation::Update, ErrorReaction::Fail)
        .await?
        .map_err(failed("update"))?;
    check_unchanged(&ctx.snapshot().await?, &alone, "update")?;
    let provider = super::context::load_balancers(&first.provider)?;
    let supported = provider.supports().source_ranges;
    if supported {
        first.service.source_ranges = Box::new(["198.51.100.0/24".into()]);
        first
            .call_until_done(ENSURE, ErrorReaction::Fail)
            .await?
            .map_err(failed("a change"))?;
        check_unchanged(&ctx.snapshot().await?, &alone, "a change")?;
    }
    first
        .call_until_done(Operation::Delete, ErrorReaction::Fail)
        .await?
        .map_err(failed("delete"))?;
    check_unchanged(&ctx.snapshot().await?, &alone, "delete")
}

/// Checks that every object of `then` still exists unchanged.
fn check_unchanged(
    now: &super::context::CloudSnapshot,
    then: &super::context::CloudSnapshot,
    what: &str,
) -> Verdict {
    let mut kept = now.clone();
    kept.objects.retain(|id, _| then.objects.contains_key(id));
    kept.load_balancers
        .retain(|id, _| then.load_balancers.contains_key(id));
    let changes = kept.changes_since(then);
    expect(changes.is_empty(), || {
        format!("{what} for one owner changed objects of another: {changes}")
    })
}

pub(super) async fn clusters_apart(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    let name = ctx.name();
    let ours = ctx.service_named("conformance", &name);
    let theirs = ctx.service_named("conformance", &name);
    let mut first = ctx.driver_for(CLUSTER, ctx.provider().await?, ours, &nodes);
    let mut second = ctx.driver_for(OTHER_CLUSTER, ctx.other_provider().await?, theirs, &nodes);
    check_separate(ctx, &mut first, &mut second).await?;
    // Delete by the other cluster's UID: a copied cluster has the same UIDs.
    let before = ctx.snapshot().await?;
    let reference = second.reference();
    let deleted = delete_until_done(&first, &reference).await?;
    check_unchanged(
        &ctx.snapshot().await?,
        &before,
        &format!("delete by the other's UID ({deleted:?})"),
    )?;
    second.remove().await
}

pub(super) async fn services_apart(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    let name = ctx.name();
    // If namespace and name were simply joined with a dash, these Services would collide.
    let pairs = [
        (("conformance", name.clone()), ("conformance-b", name.clone())),
        (("conformance", format!("b-{name}")), ("conformance-b", name)),
    ];
    for (ours, theirs) in pairs {
        let provider = ctx.provider().await?;
        let mut first =
            ctx.driver_for(CLUSTER, provider.clone(), ctx.service_named(ours.0, &ours.1), &nodes);
        let mut second =
            ctx.driver_for(CLUSTER, provider, ctx.service_named(theirs.0, &theirs.1), &nodes);
        check_separate(ctx, &mut first, &mut second).await?;
        second.remove().await?;
    }
    Ok(())
}

/// Uses names of the maximum length that the API server accepts.
pub(super) async fn long_names(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    let long = |begin: &str, end: char| format!("{begin:n<62}{end}");
    let name = ctx.name();
    let (one, other) = (long(&name, 'a'), long(&name, 'b'));
    let namespace = long("conformance-", 'a');
    let provider = ctx.provider().await?;
    let mut first =
        ctx.driver_for(CLUSTER, provider.clone(), ctx.service_named(&namespace, &one), &nodes);
    let mut second =
        ctx.driver_for(CLUSTER, provider, ctx.service_named(&namespace, &other), &nodes);
    check_separate(ctx, &mut first, &mut second).await?;
    second.remove().await
}

pub(super) async fn foreign_untouched(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(1).await?;
    let mut driver = ctx.driver(&nodes).await?;
    if !ctx.cloud.add_foreign(&driver.service).await? {
        return Err(Problem::Unsupported(
            "no unmanaged load balancer can conflict with a new one".to_owned(),
        ));
    }
    let before = ctx.snapshot().await?;
    // The provider may return an error or choose another name.
    for operation in
        [Operation::Delete, Operation::Update, ENSURE, Operation::Update, Operation::Delete]
    {
        let done = driver
            .call_until_done(operation, ErrorReaction::Fail)
            .await?;
        check_unchanged(&ctx.snapshot().await?, &before, &format!("{operation:?} ({done:?})"))?;
    }
    Ok(())
}

pub(super) async fn concurrent_use(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    let empty = ctx.snapshot().await?;
    let mut alone = ctx.driver(&nodes).await?;
    alone.ensure().await?;
    ctx.snapshot()
        .await?
        .served_since(&empty, &alone)
        .map_err(super::ensure::blocked)?;
    alone.remove().await?;
    let provider = ctx.provider().await?;
    let driver = |_| ctx.driver_for(CLUSTER, provider.clone(), ctx.service(), &nodes);
    let mut drivers: Vec<_> = (0..CONCURRENT_SERVICES).map(driver).collect();
    ctx.cloud.slow_down(CALL_LATENCY).await?;
    for operation in [ENSURE, Operation::Update, Operation::Delete] {
        if operation == Operation::Update {
            for driver in &mut drivers {
                driver.nodes.truncate(1);
            }
        }
        let done = join_all(
            drivers
                .iter_mut()
                .map(|driver| driver.call_until_done(operation, ErrorReaction::Fail)),
        )
        .await;
        for result in done {
            result?.map_err(Problem::Failed)?;
        }
        let snapshot = ctx.snapshot().await?;
        if operation == Operation::Delete {
            let left = snapshot.changes_since(&empty);
            expect(left.is_empty(), || format!("after deletion: {left}"))?;
            continue;
        }
        for driver in &drivers {
            let mut own = snapshot.clone();
            let ports = super::context::desired_ports(&driver.service);
            own.load_balancers
                .retain(|_, load_balancer| !load_balancer.ports.is_disjoint(&ports));
            own.served_since(&empty, driver)
                .map_err(|observed| Problem::Failed(format!("{operation:?}: {observed}")))?;
        }
        let count = snapshot.new_since(&empty).count();
        expect(count == CONCURRENT_SERVICES, || {
            format!("{CONCURRENT_SERVICES} Services, {count} load balancers")
        })?;
    }
    Ok(())
}

//! Whose is whose: clusters, Services, things made by hand, and calls that overlap.

use std::time::Duration;

use futures::future::join_all;

use super::{
    super::{
        LoadBalancerCloud,
        context::{CLUSTER, RuleContext},
        report::{Problem, Verdict, expect},
    },
    context::OTHER_CLUSTER,
    service_driver::{DriverCall, ErrorReaction, ServiceDriver},
};
use crate::conformance::load_balancers::backends_and_deletion::{ENSURE, delete_by};

/// Services that are served at the same time.
const TOGETHER: usize = 6;
/// How long calls take then, so that they overlap.
const SLOWLY: Duration = Duration::from_millis(20);

type LbBench<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

/// Checks that both are served apart, and that what is done to the first leaves the second as it
/// is.
async fn apart(
    bench: &LbBench<'_>,
    first: &mut ServiceDriver<'_>,
    second: &mut ServiceDriver<'_>,
) -> Verdict {
    let empty = bench.world().await?;
    second.ensure().await?;
    let alone = bench.world().await?;
    alone
        .served(&empty, second)
        .map_err(super::ensure::blocked)?;
    let own = |what: &'static str| move |seen: String| Problem::Failed(format!("{what}: {seen}"));
    first
        .settle(ENSURE, ErrorReaction::Fail)
        .await?
        .map_err(own("the second could not be served beside the first"))?;
    let both = bench.world().await?;
    both.served(&alone, first)
        .map_err(own("the second, beside the first"))?;
    unchanged(&both, &alone, "ensure")?;
    first.nodes.truncate(1);
    first
        .settle(DriverCall::Update, ErrorReaction::Fail)
        .await?
        .map_err(own("update"))?;
    unchanged(&bench.world().await?, &alone, "update")?;
    let provider = super::context::balancers(&first.provider)?;
    let supported = provider.supports().source_ranges;
    if supported {
        first.service.source_ranges = Box::new(["198.51.100.0/24".into()]);
        first
            .settle(ENSURE, ErrorReaction::Fail)
            .await?
            .map_err(own("a change"))?;
        unchanged(&bench.world().await?, &alone, "a change")?;
    }
    first
        .settle(DriverCall::Delete, ErrorReaction::Fail)
        .await?
        .map_err(own("delete"))?;
    unchanged(&bench.world().await?, &alone, "delete")
}

/// Checks that everything that was there is there as it was.
fn unchanged(
    now: &super::context::CloudSnapshot,
    then: &super::context::CloudSnapshot,
    what: &str,
) -> Verdict {
    let mut kept = now.clone();
    kept.objects.retain(|id, _| then.objects.contains_key(id));
    kept.balancers
        .retain(|id, _| then.balancers.contains_key(id));
    let changes = kept.changes(then);
    expect(changes.is_empty(), || format!("{what} of one touched the other: {changes}"))
}

pub(super) async fn clusters_apart(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(2).await?;
    let name = bench.name();
    let ours = bench.service_named("conformance", &name);
    let theirs = bench.service_named("conformance", &name);
    let mut first = bench.tenant_of(CLUSTER, bench.provider().await?, ours, &nodes);
    let mut second = bench.tenant_of(OTHER_CLUSTER, bench.other_provider().await?, theirs, &nodes);
    apart(bench, &mut first, &mut second).await?;
    // Even by the other's UID: a cluster that was copied has the same ones.
    let before = bench.world().await?;
    let reference = second.reference();
    let deleted = delete_by(&first, &reference).await?;
    unchanged(&bench.world().await?, &before, &format!("delete by the other's UID ({deleted:?})"))?;
    second.remove().await
}

pub(super) async fn services_apart(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(2).await?;
    let name = bench.name();
    // Joined without care, namespace and name of the first two are the same.
    let pairs = [
        (("conformance", name.clone()), ("conformance-b", name.clone())),
        (("conformance", format!("b-{name}")), ("conformance-b", name)),
    ];
    for (ours, theirs) in pairs {
        let provider = bench.provider().await?;
        let mut first = bench.tenant_of(
            CLUSTER,
            provider.clone(),
            bench.service_named(ours.0, &ours.1),
            &nodes,
        );
        let mut second =
            bench.tenant_of(CLUSTER, provider, bench.service_named(theirs.0, &theirs.1), &nodes);
        apart(bench, &mut first, &mut second).await?;
        second.remove().await?;
    }
    Ok(())
}

/// Names that are as long as the API server takes them.
pub(super) async fn long_names(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(2).await?;
    let long = |begin: &str, end: char| format!("{begin:n<62}{end}");
    let name = bench.name();
    let (one, other) = (long(&name, 'a'), long(&name, 'b'));
    let namespace = long("conformance-", 'a');
    let provider = bench.provider().await?;
    let mut first =
        bench.tenant_of(CLUSTER, provider.clone(), bench.service_named(&namespace, &one), &nodes);
    let mut second =
        bench.tenant_of(CLUSTER, provider, bench.service_named(&namespace, &other), &nodes);
    apart(bench, &mut first, &mut second).await?;
    second.remove().await
}

pub(super) async fn foreign_untouched(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(1).await?;
    let mut tenant = bench.tenant(&nodes).await?;
    if !bench.cloud.add_foreign(&tenant.service).await? {
        return Err(Problem::Unsupported(
            "nothing made by hand can be in the way of a load balancer".to_owned(),
        ));
    }
    let before = bench.world().await?;
    // Whether it is an error or another name is found is the provider's choice.
    for step in
        [DriverCall::Delete, DriverCall::Update, ENSURE, DriverCall::Update, DriverCall::Delete]
    {
        let done = tenant.settle(step, ErrorReaction::Fail).await?;
        unchanged(&bench.world().await?, &before, &format!("{step:?} ({done:?})"))?;
    }
    Ok(())
}

pub(super) async fn concurrent_use(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(2).await?;
    let empty = bench.world().await?;
    let mut alone = bench.tenant(&nodes).await?;
    alone.ensure().await?;
    bench
        .world()
        .await?
        .served(&empty, &alone)
        .map_err(super::ensure::blocked)?;
    alone.remove().await?;
    let provider = bench.provider().await?;
    let tenant = |_| bench.tenant_of(CLUSTER, provider.clone(), bench.service(), &nodes);
    let mut tenants: Vec<_> = (0..TOGETHER).map(tenant).collect();
    bench.cloud.slow_down(SLOWLY).await?;
    for step in [ENSURE, DriverCall::Update, DriverCall::Delete] {
        if step == DriverCall::Update {
            for tenant in &mut tenants {
                tenant.nodes.truncate(1);
            }
        }
        let done = join_all(
            tenants
                .iter_mut()
                .map(|tenant| tenant.settle(step, ErrorReaction::Fail)),
        )
        .await;
        for result in done {
            result?.map_err(Problem::Failed)?;
        }
        let world = bench.world().await?;
        if step == DriverCall::Delete {
            let left = world.changes(&empty);
            expect(left.is_empty(), || format!("after deletion {left}"))?;
            continue;
        }
        for tenant in &tenants {
            let mut rest = world.clone();
            let ports = super::context::wanted_ports(&tenant.service);
            rest.balancers
                .retain(|_, balancer| !balancer.ports.is_disjoint(&ports));
            rest.served(&empty, tenant)
                .map_err(|seen| Problem::Failed(format!("{step:?}: {seen}")))?;
        }
        let count = world.new_since(&empty).count();
        expect(count == TOGETHER, || format!("{TOGETHER} Services, {count} load balancers"))?;
    }
    Ok(())
}

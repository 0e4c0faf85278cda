//! Backends, deletion, plans.

use ccm_core::{
    k8s::LbStatus,
    provider::{ErrorKind, LbRef, Progress, ReadMode},
};

use super::{
    super::{
        InjectedCallFault, InjectedFault, LoadBalancerCloud,
        context::RuleContext,
        report::{Problem, Verdict, expect},
    },
    context::{CloudSnapshot, balancers, port},
    ensure::blocked,
    interpret::{OTHER_PORT, UNREAD, with_another_port, with_settings},
    service_driver::{DriverCall, ErrorReaction, ServiceDriver, show, show_error},
};

type LbBench<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

pub(super) async fn update_members_only(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(3).await?;
    let before = bench.world().await?;
    let mut tenant = bench.tenant(&nodes[..2]).await?;
    tenant.ensure().await?;
    let ensured = bench.world().await?;
    let id = ensured
        .served(&before, &tenant)
        .map(|b| b.id.clone())
        .map_err(blocked)?;
    let service = tenant.service.clone();
    for fresh in [false, true] {
        for wanted in [&nodes[1..], &nodes[..], &nodes[..1], &[]] {
            if fresh {
                tenant.provider = bench.provider().await?;
            }
            tenant.nodes = wanted.to_vec();
            tenant
                .settle(DriverCall::Update, ErrorReaction::Fail)
                .await?
                .map_err(Problem::Failed)?;
            only_members_changed(&tenant, &id, &ensured)
                .await?
                .map_err(Problem::Failed)?;
            expect(tenant.service.status == service.status, || {
                format!("status {:?}", tenant.service.status)
            })?;
        }
    }
    Ok(())
}

/// While the cloud refuses what the owner wants now, what there is serves on, and its nodes come
/// and go.
pub(super) async fn update_while_refused(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(3).await?;
    let before = bench.world().await?;
    let mut tenant = bench.tenant(&nodes[..1]).await?;
    tenant.ensure().await?;
    let ensured = bench.world().await?;
    let id = ensured
        .served(&before, &tenant)
        .map(|b| b.id.clone())
        .map_err(blocked)?;
    let mut wishes = with_settings(bench.cloud, &tenant.service);
    wishes.push(("a new port".to_owned(), with_another_port(&tenant.service)));
    for (what, wish) in wishes {
        let refused = |seen: String| Problem::Failed(format!("with {what} refused: {seen}"));
        for (fresh, wanted) in [(false, &nodes[1..]), (true, &nodes[..2])] {
            if fresh {
                tenant.provider = bench.provider().await?;
            }
            tenant.service = wish.clone();
            bench
                .cloud
                .script(Some(InjectedCallFault::fail(1, InjectedFault::Denied).lasting()))
                .await?;
            tenant.once(&tenant.op(), ENSURE).await?;
            bench.cloud.script(None).await?;
            tenant.nodes = wanted.to_vec();
            tenant
                .settle(DriverCall::Update, ErrorReaction::Fail)
                .await?
                .map_err(refused)?;
            only_members_changed(&tenant, &id, &ensured)
                .await?
                .map_err(refused)?;
        }
    }
    Ok(())
}

/// Checks that the members are as wanted, and all else is as it was.
async fn only_members_changed(
    tenant: &ServiceDriver<'_>,
    id: &str,
    ensured: &CloudSnapshot,
) -> Verdict<Result<(), String>> {
    let world = tenant.bench.world().await?;
    let members = world
        .balancers
        .get(id)
        .map(|b| b.members.clone())
        .unwrap_or_default();
    let names = tenant.node_names();
    if members != names {
        return Ok(Err(format!("{names:?} became {members:?}")));
    }
    let changes = world
        .without_members(id)
        .changes(&ensured.clone().without_members(id));
    Ok(if changes.is_empty() {
        Ok(())
    } else {
        Err(changes)
    })
}

pub(super) async fn update_on_nothing(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(1).await?;
    for gone in [false, true] {
        let mut tenant = bench.tenant(&nodes).await?;
        let before = bench.world().await?;
        if gone {
            tenant.ensure().await?;
            tenant.remove().await?;
        }
        let outcome = tenant.once(&tenant.op(), DriverCall::Update).await?;
        let right = matches!(&outcome.result, Err(error) if error.kind() == ErrorKind::NotFound);
        let when = if gone {
            "after deletion"
        } else {
            "before the first ensure"
        };
        expect(right, || format!("{when}: {}", show(&outcome.result)))?;
        let changes = bench.world().await?.changes(&before);
        expect(changes.is_empty(), || format!("{when}: {changes}"))?;
    }
    Ok(())
}

pub(super) async fn delete_on_nothing(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(1).await?;
    for gone in [false, true] {
        let mut tenant = bench.tenant(&nodes).await?;
        let before = bench.world().await?;
        if gone {
            tenant.ensure().await?;
            let removed = tenant
                .settle(DriverCall::Delete, ErrorReaction::Fail)
                .await?;
            removed.map_err(|seen| Problem::Blocked(super::ids::DELETED, seen))?;
            let left = bench.world().await?.changes(&before);
            expect(left.is_empty(), || left)
                .map_err(|_| Problem::Blocked(super::ids::DELETED, "leaves things".into()))?;
        }
        bench.cloud.script(None).await?;
        let outcome = tenant.once(&tenant.op(), DriverCall::Delete).await?;
        let when = if gone {
            "for the second time"
        } else {
            "before the first ensure"
        };
        let done = matches!(outcome.result, Ok(Progress::Done));
        expect(done, || format!("{when}: {}", show(&outcome.result)))?;
        let writes = bench.cloud.call_count().await?.writes;
        expect(writes == 0, || format!("{when}: {writes} writing calls"))?;
        let changes = bench.world().await?.changes(&before);
        expect(changes.is_empty(), || format!("{when}: {changes}"))?;
    }
    Ok(())
}

pub(super) async fn deleted(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(2).await?;
    for fresh in [false, true] {
        let before = bench.world().await?;
        let mut tenant = bench.tenant(&nodes).await?;
        tenant.ensure().await?;
        tenant.service = with_another_port(&tenant.service);
        tenant.ensure().await?;
        if fresh {
            tenant.provider = bench.provider().await?;
        }
        tenant
            .settle(DriverCall::Delete, ErrorReaction::Fail)
            .await?
            .map_err(Problem::Failed)?;
        let left = bench.world().await?.changes(&before);
        expect(left.is_empty(), || format!("after deletion {left}"))?;
    }
    Ok(())
}

/// A Service whose type changes from LoadBalancer to another and back.
pub(super) async fn served_again(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(1).await?;
    for fresh in [false, true] {
        let before = bench.world().await?;
        let mut tenant = bench.tenant(&nodes).await?;
        tenant.service.annotations.insert(UNREAD.into(), "1".into());
        let users = tenant.service.annotations.clone();
        tenant.ensure().await?;
        let reference = tenant.reference();
        tenant.remove().await?;
        for key in balancers(&tenant.provider)?.stale_annotations(&reference) {
            expect(!users.contains_key(&*key), || {
                format!("{key} is the user's, and is to be taken off")
            })?;
            tenant.service.annotations.remove(&*key);
        }
        tenant.service.status = LbStatus::default();
        if fresh {
            tenant.provider = bench.provider().await?;
        }
        tenant
            .settle(ENSURE, ErrorReaction::Fail)
            .await?
            .map_err(Problem::Failed)?;
        bench
            .world()
            .await?
            .served(&before, &tenant)
            .map_err(Problem::Failed)?;
        tenant.remove().await?;
    }
    Ok(())
}

/// Deletes by references that know less and less.
pub(super) async fn delete_without_service(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(1).await?;
    let bad = bench.cloud.bad_annotations();
    let bad = || {
        bad.iter()
            .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
            .collect()
    };
    let unseen = |full: LbRef| LbRef { last_observed: None, ..full };
    type Change<'a> = Box<dyn Fn(LbRef) -> LbRef + Send + Sync + 'a>;
    let cases: [(&str, Change<'_>); 4] = [
        ("without the Service", Box::new(unseen)),
        (
            "without the Service and its status",
            Box::new(|full| LbRef { status: LbStatus::default(), ..unseen(full) }),
        ),
        (
            "with annotations that are invalid",
            Box::new(|full| LbRef { annotations: bad(), ..unseen(full) }),
        ),
        (
            "by namespace, name and UID alone",
            Box::new(|full| LbRef {
                annotations: std::collections::BTreeMap::new(),
                status: LbStatus::default(),
                class: None,
                ..unseen(full)
            }),
        ),
    ];
    for (what, change) in cases {
        let before = bench.world().await?;
        let mut tenant = bench.tenant(&nodes).await?;
        tenant.ensure().await?;
        tenant.provider = bench.provider().await?;
        let reference = change(tenant.reference());
        delete_by(&tenant, &reference)
            .await?
            .map_err(|seen| Problem::Failed(format!("{what}: {seen}")))?;
        let left = bench.world().await?.changes(&before);
        if left.is_empty() {
            continue;
        }
        // One that leaves things however much it knows is judged for that.
        let seen = format!("{what}: after deletion {left}");
        tenant.remove().await?;
        return Err(match bench.world().await?.changes(&before).is_empty() {
            true => Problem::Failed(seen),
            false => Problem::Blocked(super::ids::DELETED, seen),
        });
    }
    Ok(())
}

pub(super) async fn delete_by(
    tenant: &ServiceDriver<'_>,
    reference: &LbRef,
) -> Verdict<Result<(), String>> {
    for _ in 0..100 {
        match tenant.delete(&tenant.op(), reference).await?.result {
            Ok(Progress::Done) => return Ok(Ok(())),
            Ok(Progress::Pending { after, .. }) => tokio::time::sleep(after).await,
            Err(error) => return Ok(Err(show_error(&error))),
        }
    }
    Ok(Err("does not end".to_owned()))
}

async fn planned(tenant: &ServiceDriver<'_>) -> Verdict<Vec<ccm_core::provider::PlannedChange>> {
    tenant
        .plan()
        .await?
        .map_err(|error| Problem::Failed(show_error(&error)))
}

pub(super) async fn plan_is_read_only(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(2).await?;
    let mut tenant = bench.tenant(&nodes[..1]).await?;
    for there in [false, true] {
        if there {
            tenant.ensure().await?;
            tenant.nodes = nodes.clone();
        }
        let before = bench.world().await?;
        bench.cloud.script(None).await?;
        let result = tenant.plan().await?;
        let writes = bench.cloud.call_count().await?.writes;
        let changes = bench.world().await?.changes(&before);
        expect(writes == 0 && changes.is_empty(), || format!("{writes} writing calls; {changes}"))?;
        result.map_err(|error| Problem::Blocked(super::ids::PLAN_NAMES, show_error(&error)))?;
    }
    Ok(())
}

pub(super) async fn plan_empty(bench: &LbBench<'_>) -> Verdict {
    let mut tenant = bench.tenant(&bench.nodes(2).await?).await?;
    tenant.ensure().await?;
    for fresh in [false, true] {
        if fresh {
            tenant.provider = bench.provider().await?;
        }
        let plan = planned(&tenant).await?;
        expect(plan.is_empty(), || format!("nothing is to be done, but planned is {plan:?}"))?;
    }
    Ok(())
}

pub(super) async fn plan_names_changes(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(2).await?;
    let mut tenant = bench.tenant(&nodes[..1]).await?;
    let check = |what: &str, plan: Vec<ccm_core::provider::PlannedChange>| {
        let whole = |c: &ccm_core::provider::PlannedChange| {
            !c.operation.is_empty() && !c.object.is_empty() && !c.reason.is_empty()
        };
        expect(!plan.is_empty() && plan.iter().all(whole), || {
            format!("{what}: planned is {plan:?}")
        })
    };
    check("nothing is there", planned(&tenant).await?)?;
    tenant.ensure().await?;
    let ensured = (tenant.service.clone(), tenant.nodes.clone());
    let other = port(ccm_core::k8s::Protocol::Tcp, OTHER_PORT, 32001);
    tenant.service.ports = Box::new([other]);
    check("another port", planned(&tenant).await?)?;
    (tenant.service, tenant.nodes) = (ensured.0.clone(), nodes);
    check("another node", planned(&tenant).await?)?;
    if balancers(&tenant.provider)?.supports().source_ranges {
        tenant.nodes = ensured.1;
        tenant.service.source_ranges = Box::new(["198.51.100.0/24".into()]);
        check("source ranges", planned(&tenant).await?)?;
    }
    Ok(())
}

/// The step that makes a balancer as it shall be.
pub(super) const ENSURE: DriverCall = DriverCall::Ensure(ReadMode::Fresh);

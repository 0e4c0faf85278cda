//! Rules for backends, deletion and plans.

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
    context::{CloudSnapshot, load_balancers, port},
    ensure::blocked,
    interpret::{OTHER_PORT, UNREAD, with_another_port, with_settings},
    service_driver::{ErrorReaction, Operation, ServiceDriver, show, show_error},
};

type LbRuleContext<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

pub(super) async fn update_members_only(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(3).await?;
    let before = ctx.snapshot().await?;
    let mut driver = ctx.driver(&nodes[..2]).await?;
    driver.ensure().await?;
    let ensured = ctx.snapshot().await?;
    let id = ensured
        .served_since(&before, &driver)
        .map(|b| b.id.clone())
        .map_err(blocked)?;
    let service = driver.service.clone();
    for new_process in [false, true] {
        for wanted in [&nodes[1..], &nodes[..], &nodes[..1], &[]] {
            if new_process {
                driver.provider = ctx.provider().await?;
            }
            driver.nodes = wanted.to_vec();
            driver
                .call_until_done(Operation::Update, ErrorReaction::Fail)
                .await?
                .map_err(Problem::Failed)?;
            only_members_changed(&driver, &id, &ensured)
                .await?
                .map_err(Problem::Failed)?;
            expect(driver.service.status == service.status, || {
                format!("status {:?}", driver.service.status)
            })?;
        }
    }
    Ok(())
}

/// Checks that members still follow the nodes while the cloud rejects a change of the Service.
pub(super) async fn update_while_refused(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(3).await?;
    let before = ctx.snapshot().await?;
    let mut driver = ctx.driver(&nodes[..1]).await?;
    driver.ensure().await?;
    let ensured = ctx.snapshot().await?;
    let id = ensured
        .served_since(&before, &driver)
        .map(|b| b.id.clone())
        .map_err(blocked)?;
    let mut wishes = with_settings(ctx.cloud, &driver.service);
    wishes.push(("a new port".to_owned(), with_another_port(&driver.service)));
    for (what, wish) in wishes {
        let failed =
            |observed: String| Problem::Failed(format!("while {what} is rejected: {observed}"));
        for (new_process, wanted) in [(false, &nodes[1..]), (true, &nodes[..2])] {
            if new_process {
                driver.provider = ctx.provider().await?;
            }
            driver.service = wish.clone();
            ctx.cloud
                .script(Some(InjectedCallFault::fail(1, InjectedFault::Denied).lasting()))
                .await?;
            driver.call_once(&driver.op(), ENSURE).await?;
            ctx.cloud.script(None).await?;
            driver.nodes = wanted.to_vec();
            driver
                .call_until_done(Operation::Update, ErrorReaction::Fail)
                .await?
                .map_err(failed)?;
            only_members_changed(&driver, &id, &ensured)
                .await?
                .map_err(failed)?;
        }
    }
    Ok(())
}

/// Checks that the members are the driver's nodes and that nothing else changed since `ensured`.
async fn only_members_changed(
    driver: &ServiceDriver<'_>,
    id: &str,
    ensured: &CloudSnapshot,
) -> Verdict<Result<(), String>> {
    let snapshot = driver.ctx.snapshot().await?;
    let members = snapshot
        .load_balancers
        .get(id)
        .map(|b| b.members.clone())
        .unwrap_or_default();
    let names = driver.node_names();
    if members != names {
        return Ok(Err(format!("the members are {members:?} instead of {names:?}")));
    }
    let changes = snapshot
        .without_members(id)
        .changes_since(&ensured.clone().without_members(id));
    Ok(if changes.is_empty() {
        Ok(())
    } else {
        Err(changes)
    })
}

pub(super) async fn update_on_nothing(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(1).await?;
    for gone in [false, true] {
        let mut driver = ctx.driver(&nodes).await?;
        let before = ctx.snapshot().await?;
        if gone {
            driver.ensure().await?;
            driver.remove().await?;
        }
        let outcome = driver.call_once(&driver.op(), Operation::Update).await?;
        let is_expected =
            matches!(&outcome.result, Err(error) if error.kind() == ErrorKind::NotFound);
        let when = if gone {
            "after deletion"
        } else {
            "before the first ensure"
        };
        expect(is_expected, || format!("{when}: {}", show(&outcome.result)))?;
        let changes = ctx.snapshot().await?.changes_since(&before);
        expect(changes.is_empty(), || format!("{when}: {changes}"))?;
    }
    Ok(())
}

pub(super) async fn delete_on_nothing(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(1).await?;
    for gone in [false, true] {
        let mut driver = ctx.driver(&nodes).await?;
        let before = ctx.snapshot().await?;
        if gone {
            driver.ensure().await?;
            let removed = driver
                .call_until_done(Operation::Delete, ErrorReaction::Fail)
                .await?;
            removed.map_err(|observed| Problem::Blocked(super::ids::DELETED, observed))?;
            let left = ctx.snapshot().await?.changes_since(&before);
            expect(left.is_empty(), || left)
                .map_err(|_| Problem::Blocked(super::ids::DELETED, "leaves things".into()))?;
        }
        ctx.cloud.script(None).await?;
        let outcome = driver.call_once(&driver.op(), Operation::Delete).await?;
        let when = if gone {
            "after a deletion"
        } else {
            "before the first ensure"
        };
        let done = matches!(outcome.result, Ok(Progress::Done));
        expect(done, || format!("{when}: {}", show(&outcome.result)))?;
        let writes = ctx.cloud.call_count().await?.writes;
        expect(writes == 0, || format!("{when}: {writes} writing calls"))?;
        let changes = ctx.snapshot().await?.changes_since(&before);
        expect(changes.is_empty(), || format!("{when}: {changes}"))?;
    }
    Ok(())
}

pub(super) async fn delete_removes_everything(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    for new_process in [false, true] {
        let before = ctx.snapshot().await?;
        let mut driver = ctx.driver(&nodes).await?;
        driver.ensure().await?;
        driver.service = with_another_port(&driver.service);
        driver.ensure().await?;
        if new_process {
            driver.provider = ctx.provider().await?;
        }
        driver
            .call_until_done(Operation::Delete, ErrorReaction::Fail)
            .await?
            .map_err(Problem::Failed)?;
        let left = ctx.snapshot().await?.changes_since(&before);
        expect(left.is_empty(), || format!("after deletion: {left}"))?;
    }
    Ok(())
}

/// Changes the type of a Service from LoadBalancer to another one and back.
pub(super) async fn served_again(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(1).await?;
    for new_process in [false, true] {
        let before = ctx.snapshot().await?;
        let mut driver = ctx.driver(&nodes).await?;
        driver.service.annotations.insert(UNREAD.into(), "1".into());
        let users = driver.service.annotations.clone();
        driver.ensure().await?;
        let reference = driver.reference();
        driver.remove().await?;
        for key in load_balancers(&driver.provider)?.stale_annotations(&reference) {
            expect(!users.contains_key(&*key), || {
                format!("stale_annotations contains {key}, which is the user's")
            })?;
            driver.service.annotations.remove(&*key);
        }
        driver.service.status = LbStatus::default();
        if new_process {
            driver.provider = ctx.provider().await?;
        }
        driver
            .call_until_done(ENSURE, ErrorReaction::Fail)
            .await?
            .map_err(Problem::Failed)?;
        ctx.snapshot()
            .await?
            .served_since(&before, &driver)
            .map_err(Problem::Failed)?;
        driver.remove().await?;
    }
    Ok(())
}

/// Deletes by references that contain less and less.
pub(super) async fn delete_without_service(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(1).await?;
    let bad = ctx.cloud.bad_annotations();
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
        let before = ctx.snapshot().await?;
        let mut driver = ctx.driver(&nodes).await?;
        driver.ensure().await?;
        driver.provider = ctx.provider().await?;
        let reference = change(driver.reference());
        delete_until_done(&driver, &reference)
            .await?
            .map_err(|observed| Problem::Failed(format!("{what}: {observed}")))?;
        let left = ctx.snapshot().await?.changes_since(&before);
        if left.is_empty() {
            continue;
        }
        // If a complete reference leaves objects behind as well, another rule is broken.
        let observed = format!("{what}: after deletion: {left}");
        driver.remove().await?;
        return Err(match ctx.snapshot().await?.changes_since(&before).is_empty() {
            true => Problem::Failed(observed),
            false => Problem::Blocked(super::ids::DELETED, observed),
        });
    }
    Ok(())
}

pub(super) async fn delete_until_done(
    driver: &ServiceDriver<'_>,
    reference: &LbRef,
) -> Verdict<Result<(), String>> {
    for _ in 0..100 {
        match driver.delete(&driver.op(), reference).await?.result {
            Ok(Progress::Done) => return Ok(Ok(())),
            Ok(Progress::Pending { after, .. }) => tokio::time::sleep(after).await,
            Err(error) => return Ok(Err(show_error(&error))),
        }
    }
    Ok(Err("delete is still pending after 100 calls".to_owned()))
}

async fn planned(driver: &ServiceDriver<'_>) -> Verdict<Vec<ccm_core::provider::PlannedChange>> {
    driver
        .plan()
        .await?
        .map_err(|error| Problem::Failed(show_error(&error)))
}

pub(super) async fn plan_is_read_only(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    let mut driver = ctx.driver(&nodes[..1]).await?;
    for exists in [false, true] {
        if exists {
            driver.ensure().await?;
            driver.nodes = nodes.clone();
        }
        let before = ctx.snapshot().await?;
        ctx.cloud.script(None).await?;
        let result = driver.plan().await?;
        let writes = ctx.cloud.call_count().await?.writes;
        let changes = ctx.snapshot().await?.changes_since(&before);
        expect(writes == 0 && changes.is_empty(), || format!("{writes} writing calls; {changes}"))?;
        result.map_err(|error| Problem::Blocked(super::ids::PLAN_NAMES, show_error(&error)))?;
    }
    Ok(())
}

pub(super) async fn plan_empty_after_ensure(ctx: &LbRuleContext<'_>) -> Verdict {
    let mut driver = ctx.driver(&ctx.nodes(2).await?).await?;
    driver.ensure().await?;
    for new_process in [false, true] {
        if new_process {
            driver.provider = ctx.provider().await?;
        }
        let plan = planned(&driver).await?;
        expect(plan.is_empty(), || format!("there is nothing to do, but the plan is {plan:?}"))?;
    }
    Ok(())
}

pub(super) async fn plan_names_changes(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    let mut driver = ctx.driver(&nodes[..1]).await?;
    let check = |what: &str, plan: Vec<ccm_core::provider::PlannedChange>| {
        let whole = |c: &ccm_core::provider::PlannedChange| {
            !c.operation.is_empty() && !c.object.is_empty() && !c.reason.is_empty()
        };
        expect(!plan.is_empty() && plan.iter().all(whole), || {
            format!("{what}: the plan is {plan:?}")
        })
    };
    check("no load balancer exists", planned(&driver).await?)?;
    driver.ensure().await?;
    let ensured = (driver.service.clone(), driver.nodes.clone());
    let other = port(ccm_core::k8s::Protocol::Tcp, OTHER_PORT, 32001);
    driver.service.ports = Box::new([other]);
    check("another port", planned(&driver).await?)?;
    (driver.service, driver.nodes) = (ensured.0.clone(), nodes);
    check("another node", planned(&driver).await?)?;
    if load_balancers(&driver.provider)?.supports().source_ranges {
        driver.nodes = ensured.1;
        driver.service.source_ranges = Box::new(["198.51.100.0/24".into()]);
        check("source ranges", planned(&driver).await?)?;
    }
    Ok(())
}

/// Brings a load balancer to its desired state.
pub(super) const ENSURE: Operation = Operation::Ensure(ReadMode::Fresh);

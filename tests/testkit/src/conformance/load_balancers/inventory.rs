//! Rules for the inventory, by which the framework finds and deletes orphans.

use std::{collections::BTreeSet, future::Future, sync::Arc, time::Duration};

use ccm_core::{
    provider::{CloudError, CloudProvider, ErrorKind, Inventory, Op, OwnedObject, Owner, Progress},
    write_gate::WriteGate,
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        InjectedCallFault, InjectedFault, LoadBalancerCloud,
        context::{CLUSTER, RuleContext},
        report::{Problem, Verdict, expect},
    },
    context::{CloudSnapshot, OTHER_CLUSTER},
    ensure::MAX_CALLS,
    ids,
    service_driver::{ServiceDriver, show, show_error},
};

/// Maximum number of deletion rounds. Some objects can be deleted only after others.
const MAX_ROUNDS: usize = 100;

type LbRuleContext<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

fn inventory(provider: &Arc<dyn CloudProvider>) -> Verdict<&dyn Inventory> {
    let missing = || Problem::Unsupported("the provider has no inventory".to_owned());
    provider.inventory().ok_or_else(missing)
}

/// Lists the owned objects. Drops a call that exceeds its deadline.
async fn list(
    provider: &Arc<dyn CloudProvider>,
    op: &Op,
) -> Verdict<Result<Vec<OwnedObject>, CloudError>> {
    Ok(in_time(op, inventory(provider)?.list_owned(op)).await)
}

async fn delete(
    driver: &ServiceDriver<'_>,
    op: &Op,
    object: &OwnedObject,
) -> Verdict<Result<Progress, CloudError>> {
    Ok(in_time(op, inventory(&driver.provider)?.delete_owned(op, object)).await)
}

async fn in_time<T>(
    op: &Op,
    call: impl Future<Output = Result<T, CloudError>>,
) -> Result<T, CloudError> {
    let limit = op.remaining().unwrap_or_default() + Duration::from_secs(5);
    let late = |_| Err(CloudError::new(ErrorKind::Canceled, format!("no answer within {limit:?}")));
    tokio::time::timeout(limit, call).await.unwrap_or_else(late)
}

/// Returns the objects that the driver's Service owns.
fn filter_owned<'a>(
    objects: &'a [OwnedObject],
    driver: &ServiceDriver<'_>,
) -> Vec<&'a OwnedObject> {
    let service = &driver.service;
    let own = |object: &&OwnedObject| match &object.owner {
        Owner::Service { namespace, name, uid } => {
            let same = **namespace == *service.namespace && **name == *service.name;
            same && uid.as_ref().is_none_or(|uid| *uid == service.uid)
        }
        _ => false,
    };
    objects.iter().filter(own).collect()
}

/// Creates a load balancer in this cluster and one in the second cluster, and returns their
/// drivers.
async fn ensure_in_two_clusters<'a>(
    ctx: &'a LbRuleContext<'_>,
) -> Verdict<(ServiceDriver<'a>, ServiceDriver<'a>)> {
    let nodes = ctx.nodes(1).await?;
    let mut ours = ctx.driver(&nodes).await?;
    inventory(&ours.provider)?;
    ours.ensure().await?;
    let mut theirs =
        ctx.driver_for(OTHER_CLUSTER, ctx.other_provider().await?, ctx.service(), &nodes);
    theirs.ensure().await?;
    Ok((ours, theirs))
}

pub(super) async fn owned_is_listed(ctx: &LbRuleContext<'_>) -> Verdict {
    let (mut ours, theirs) = ensure_in_two_clusters(ctx).await?;
    let name = |driver: &ServiceDriver<'_>| {
        inventory(&driver.provider).map(|listed| listed.cluster_id(&driver.op()))
    };
    let names: [Box<str>; 2] = [name(&ours)?, name(&theirs)?];
    expect(!names[0].is_empty() && names[0] != names[1], || {
        format!("the cluster IDs of two clusters are {names:?}")
    })?;
    for provider in [ours.provider.clone(), ctx.provider().await?] {
        ctx.cloud.script(None).await?;
        let (gate, _keeper) = WriteGate::closed();
        let listed = list(&provider, &ours.op_with(CancellationToken::new(), gate)).await?;
        let objects = listed.map_err(|error| Problem::Failed(show_error(&error)))?;
        let writes = ctx.cloud.call_count().await?.writes;
        expect(writes == 0, || format!("list_owned made {writes} writing calls"))?;
        expect(!filter_owned(&objects, &ours).is_empty(), || {
            format!("Service {} owns none of {objects:?}", ours.service.name)
        })?;
        let foreign = filter_owned(&objects, &theirs);
        expect(foreign.is_empty(), || {
            format!("objects of another cluster are listed: {foreign:?}")
        })?;
        let ids: BTreeSet<_> = objects
            .iter()
            .map(|object| (&object.kind, &object.id))
            .collect();
        expect(ids.len() == objects.len(), || format!("an object is listed twice: {objects:?}"))?;
        check_complete_or_error(ctx, &provider, &ours).await?;
    }
    ours.remove().await?;
    let listed = list(&ours.provider, &ours.op())
        .await?
        .map_err(|error| Problem::Failed(show_error(&error)))?;
    let left = filter_owned(&listed, &ours);
    expect(left.is_empty(), || format!("after deletion: {left:?}"))
}

async fn check_complete_or_error(
    ctx: &LbRuleContext<'_>,
    provider: &Arc<dyn CloudProvider>,
    ours: &ServiceDriver<'_>,
) -> Verdict {
    for call in (1..=MAX_CALLS).step_by(ctx.cloud.stride().max(1)) {
        ctx.cloud
            .script(Some(InjectedCallFault::fail(call, InjectedFault::Denied).lasting()))
            .await?;
        let listed = list(provider, &ours.op()).await?;
        let fault_hit = ctx.cloud.call_count().await?.calls() >= call;
        ctx.cloud.script(None).await?;
        if !fault_hit {
            break;
        }
        expect(listed.is_err(), || {
            format!("call {call} failed, but list_owned returned {listed:?}")
        })?;
    }
    Ok(())
}

/// Repeats deletions until all are done, because some objects can be deleted only after others.
pub(super) async fn delete_all(
    driver: &ServiceDriver<'_>,
    objects: &[OwnedObject],
) -> Verdict<Result<(), String>> {
    let mut remaining: Vec<_> = objects.iter().collect();
    let mut observed = String::new();
    for _ in 0..MAX_ROUNDS {
        let mut pending = Vec::new();
        for object in remaining {
            match delete(driver, &driver.op(), object).await? {
                Ok(Progress::Done) => {}
                result => {
                    observed = format!("{} {}: {}", object.kind, object.id, show(&result));
                    pending.push(object);
                }
            }
        }
        if pending.is_empty() {
            return Ok(Ok(()));
        }
        remaining = pending;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    Ok(Err(observed))
}

pub(super) async fn only_owned_is_deleted(ctx: &LbRuleContext<'_>) -> Verdict {
    let empty = ctx.snapshot().await?;
    let (ours, theirs) = ensure_in_two_clusters(ctx).await?;
    let both = ctx.snapshot().await?;
    let blocked = |error: CloudError| Problem::Blocked(ids::INVENTORY, show_error(&error));
    let listed = list(&ours.provider, &ours.op()).await?.map_err(blocked)?;
    let own: Vec<_> = filter_owned(&listed, &ours).into_iter().cloned().collect();
    let foreign = list(&theirs.provider, &theirs.op())
        .await?
        .map_err(blocked)?;
    let foreign: Vec<_> = filter_owned(&foreign, &theirs)
        .into_iter()
        .cloned()
        .collect();
    let none = own.is_empty() || foreign.is_empty();
    expect(!none, String::new)
        .map_err(|_| Problem::Blocked(ids::INVENTORY, "list_owned returned nothing".to_owned()))?;
    // Delete without leadership, then objects of the other cluster, then our own.
    let (gate, _keeper) = WriteGate::closed();
    ctx.cloud.script(None).await?;
    let closed_op = ours.op_with(CancellationToken::new(), gate);
    let result = delete(&ours, &closed_op, &own[0]).await?;
    let writes = ctx.cloud.call_count().await?.writes;
    expect(writes == 0, || format!("{writes} writing calls without leadership"))?;
    let is_not_leader = matches!(&result, Err(error) if error.kind() == ErrorKind::NotLeader);
    expect(is_not_leader, || format!("without leadership: {}", show(&result)))?;
    for object in &foreign {
        let result = delete(&ours, &ours.op(), object).await?;
        let changes = ctx.snapshot().await?.changes_since(&both);
        expect(changes.is_empty(), || {
            format!(
                "deleting another cluster's {object:?} ({}) changed the cloud: {changes}",
                show(&result)
            )
        })?;
    }
    let again = own.clone();
    for objects in [own, again] {
        delete_all(&ours, &objects)
            .await?
            .map_err(Problem::Failed)?;
        let snapshot = ctx.snapshot().await?;
        let left: Vec<_> = created_for(&snapshot, &empty, &ours);
        expect(left.is_empty(), || format!("after deletion: {left:?}"))?;
        let others = created_for(&snapshot, &empty, &theirs);
        expect(others == created_for(&both, &empty, &theirs), || {
            format!("another cluster's load balancers changed to {others:?}")
        })?;
    }
    Ok(())
}

/// Returns the load balancers with ports of the Service that were created since `before`.
fn created_for(
    snapshot: &CloudSnapshot,
    before: &CloudSnapshot,
    driver: &ServiceDriver<'_>,
) -> Vec<super::CloudLoadBalancer> {
    let ports = super::context::desired_ports(&driver.service);
    snapshot
        .new_since(before)
        .filter(|load_balancer| !load_balancer.ports.is_disjoint(&ports))
        .cloned()
        .collect()
}

/// Returns the objects that the driver's Service owns. Another rule judges whether they are listed.
pub(super) async fn owned_by(driver: &ServiceDriver<'_>) -> Verdict<Vec<OwnedObject>> {
    let blocked = |observed: String| Problem::Blocked(ids::INVENTORY, observed);
    let listed = list(&driver.provider, &driver.op())
        .await?
        .map_err(|error| blocked(show_error(&error)))?;
    let own: Vec<_> = filter_owned(&listed, driver).into_iter().cloned().collect();
    match own.is_empty() {
        true => Err(blocked(format!("Service {} owns none of {listed:?}", driver.service.name))),
        false => Ok(own),
    }
}

pub(super) async fn many_are_listed(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(1).await?;
    let provider = ctx.provider().await?;
    inventory(&provider)?;
    let mut drivers = Vec::new();
    for number in 0..ctx.cloud.many().max(1) {
        let mut driver = ctx.driver_for(CLUSTER, provider.clone(), ctx.service(), &nodes);
        driver.ensure().await?;
        if number == 0 {
            owned_by(&driver).await?;
        }
        drivers.push(driver);
    }
    let listed = list(&provider, &drivers[0].op())
        .await?
        .map_err(|error| Problem::Failed(show_error(&error)))?;
    let missing = drivers
        .iter()
        .filter(|driver| filter_owned(&listed, driver).is_empty());
    let missing: Vec<_> = missing.map(|driver| &*driver.service.name).collect();
    expect(missing.is_empty(), || {
        format!("of {} Services, list_owned lists nothing for {missing:?}", drivers.len())
    })
}

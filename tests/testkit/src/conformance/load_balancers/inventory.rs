//! What the provider says that a cluster owns, as orphans are found and deleted by it.

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

/// How often deletion is asked for until it must be done; some things go only after others.
const MAX_ROUNDS: usize = 100;

type LbBench<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

fn inventory(provider: &Arc<dyn CloudProvider>) -> Verdict<&dyn Inventory> {
    let missing = || Problem::Unsupported("the provider has no inventory".to_owned());
    provider.inventory().ok_or_else(missing)
}

/// Lists, and drops a call that does not end at its deadline.
async fn list(
    provider: &Arc<dyn CloudProvider>,
    op: &Op,
) -> Verdict<Result<Vec<OwnedObject>, CloudError>> {
    Ok(in_time(op, inventory(provider)?.list_owned(op)).await)
}

async fn delete(
    tenant: &ServiceDriver<'_>,
    op: &Op,
    object: &OwnedObject,
) -> Verdict<Result<Progress, CloudError>> {
    Ok(in_time(op, inventory(&tenant.provider)?.delete_owned(op, object)).await)
}

async fn in_time<T>(
    op: &Op,
    call: impl Future<Output = Result<T, CloudError>>,
) -> Result<T, CloudError> {
    let limit = op.remaining().unwrap_or_default() + Duration::from_secs(5);
    let late = |_| Err(CloudError::new(ErrorKind::Canceled, format!("no answer within {limit:?}")));
    tokio::time::timeout(limit, call).await.unwrap_or_else(late)
}

/// Picks what a Service owns.
fn of<'a>(objects: &'a [OwnedObject], tenant: &ServiceDriver<'_>) -> Vec<&'a OwnedObject> {
    let service = &tenant.service;
    let own = |object: &&OwnedObject| match &object.owner {
        Owner::Service { namespace, name, uid } => {
            let same = **namespace == *service.namespace && **name == *service.name;
            same && uid.as_ref().is_none_or(|uid| *uid == service.uid)
        }
        _ => false,
    };
    objects.iter().filter(own).collect()
}

/// Makes a Service's balancer in this cluster and one in the other, and returns both.
async fn two_clusters<'a>(
    bench: &'a LbBench<'_>,
) -> Verdict<(ServiceDriver<'a>, ServiceDriver<'a>)> {
    let nodes = bench.nodes(1).await?;
    let mut ours = bench.tenant(&nodes).await?;
    inventory(&ours.provider)?;
    ours.ensure().await?;
    let mut theirs =
        bench.tenant_of(OTHER_CLUSTER, bench.other_provider().await?, bench.service(), &nodes);
    theirs.ensure().await?;
    Ok((ours, theirs))
}

pub(super) async fn complete(bench: &LbBench<'_>) -> Verdict {
    let (mut ours, theirs) = two_clusters(bench).await?;
    let name = |tenant: &ServiceDriver<'_>| {
        inventory(&tenant.provider).map(|listed| listed.cluster_id(&tenant.op()))
    };
    let names: [Box<str>; 2] = [name(&ours)?, name(&theirs)?];
    expect(!names[0].is_empty() && names[0] != names[1], || {
        format!("two clusters are called {names:?}")
    })?;
    for provider in [ours.provider.clone(), bench.provider().await?] {
        bench.cloud.script(None).await?;
        let (gate, _keeper) = WriteGate::closed();
        let listed = list(&provider, &ours.op_with(CancellationToken::new(), gate)).await?;
        let objects = listed.map_err(|error| Problem::Failed(show_error(&error)))?;
        let writes = bench.cloud.call_count().await?.writes;
        expect(writes == 0, || format!("listing made {writes} writing calls"))?;
        expect(!of(&objects, &ours).is_empty(), || {
            format!("{} is not an owner in {objects:?}", ours.service.name)
        })?;
        let strange = of(&objects, &theirs);
        expect(strange.is_empty(), || format!("another cluster owns {strange:?}"))?;
        let ids: BTreeSet<_> = objects
            .iter()
            .map(|object| (&object.kind, &object.id))
            .collect();
        expect(ids.len() == objects.len(), || format!("something is listed twice: {objects:?}"))?;
        whole_or_error(bench, &provider, &ours).await?;
    }
    ours.remove().await?;
    let listed = list(&ours.provider, &ours.op())
        .await?
        .map_err(|error| Problem::Failed(show_error(&error)))?;
    let left = of(&listed, &ours);
    expect(left.is_empty(), || format!("after deletion {left:?}"))
}

async fn whole_or_error(
    bench: &LbBench<'_>,
    provider: &Arc<dyn CloudProvider>,
    ours: &ServiceDriver<'_>,
) -> Verdict {
    for call in (1..=MAX_CALLS).step_by(bench.cloud.stride().max(1)) {
        bench
            .cloud
            .script(Some(InjectedCallFault::fail(call, InjectedFault::Denied).lasting()))
            .await?;
        let listed = list(provider, &ours.op()).await?;
        let spoilt = bench.cloud.call_count().await?.calls() >= call;
        bench.cloud.script(None).await?;
        if !spoilt {
            break;
        }
        expect(listed.is_err(), || format!("call {call} failed, listed is {listed:?}"))?;
    }
    Ok(())
}

/// Deletes until all is done; some things can go only after others.
pub(super) async fn delete_all(
    tenant: &ServiceDriver<'_>,
    objects: &[OwnedObject],
) -> Verdict<Result<(), String>> {
    let mut left: Vec<_> = objects.iter().collect();
    let mut seen = String::new();
    for _ in 0..MAX_ROUNDS {
        let mut still = Vec::new();
        for object in left {
            match delete(tenant, &tenant.op(), object).await? {
                Ok(Progress::Done) => {}
                result => {
                    seen = format!("{} {}: {}", object.kind, object.id, show(&result));
                    still.push(object);
                }
            }
        }
        if still.is_empty() {
            return Ok(Ok(()));
        }
        left = still;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    Ok(Err(seen))
}

pub(super) async fn deletes_only_owned(bench: &LbBench<'_>) -> Verdict {
    let empty = bench.world().await?;
    let (ours, theirs) = two_clusters(bench).await?;
    let both = bench.world().await?;
    let blocked = |error: CloudError| Problem::Blocked(ids::INVENTORY, show_error(&error));
    let listed = list(&ours.provider, &ours.op()).await?.map_err(blocked)?;
    let own: Vec<_> = of(&listed, &ours).into_iter().cloned().collect();
    let foreign = list(&theirs.provider, &theirs.op())
        .await?
        .map_err(blocked)?;
    let foreign: Vec<_> = of(&foreign, &theirs).into_iter().cloned().collect();
    let none = own.is_empty() || foreign.is_empty();
    expect(!none, String::new)
        .map_err(|_| Problem::Blocked(ids::INVENTORY, "nothing is listed".to_owned()))?;
    // Without the right to write, then what another cluster owns, then what is ours.
    let (gate, _keeper) = WriteGate::closed();
    bench.cloud.script(None).await?;
    let held = ours.op_with(CancellationToken::new(), gate);
    let result = delete(&ours, &held, &own[0]).await?;
    let writes = bench.cloud.call_count().await?.writes;
    expect(writes == 0, || format!("{writes} writing calls without leadership"))?;
    let right = matches!(&result, Err(error) if error.kind() == ErrorKind::NotLeader);
    expect(right, || format!("without leadership: {}", show(&result)))?;
    for object in &foreign {
        let result = delete(&ours, &ours.op(), object).await?;
        let changes = bench.world().await?.changes(&both);
        expect(changes.is_empty(), || {
            format!("another cluster's {object:?} ({}): {changes}", show(&result))
        })?;
    }
    let again = own.clone();
    for objects in [own, again] {
        delete_all(&ours, &objects)
            .await?
            .map_err(Problem::Failed)?;
        let world = bench.world().await?;
        let left: Vec<_> = made_for(&world, &empty, &ours);
        expect(left.is_empty(), || format!("after deletion {left:?}"))?;
        let others = made_for(&world, &empty, &theirs);
        expect(others == made_for(&both, &empty, &theirs), || {
            format!("another cluster's became {others:?}")
        })?;
    }
    Ok(())
}

/// Returns what was made since `before` with the ports of a Service.
fn made_for(
    world: &CloudSnapshot,
    before: &CloudSnapshot,
    tenant: &ServiceDriver<'_>,
) -> Vec<super::CloudLoadBalancer> {
    let ports = super::context::wanted_ports(&tenant.service);
    world
        .new_since(before)
        .filter(|balancer| !balancer.ports.is_disjoint(&ports))
        .cloned()
        .collect()
}

/// Returns what a Service owns; that it is listed is another rule's matter.
pub(super) async fn owned_by(tenant: &ServiceDriver<'_>) -> Verdict<Vec<OwnedObject>> {
    let blocked = |seen: String| Problem::Blocked(ids::INVENTORY, seen);
    let listed = list(&tenant.provider, &tenant.op())
        .await?
        .map_err(|error| blocked(show_error(&error)))?;
    let own: Vec<_> = of(&listed, tenant).into_iter().cloned().collect();
    match own.is_empty() {
        true => Err(blocked(format!("{} is not an owner in {listed:?}", tenant.service.name))),
        false => Ok(own),
    }
}

pub(super) async fn many(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(1).await?;
    let provider = bench.provider().await?;
    inventory(&provider)?;
    let mut tenants = Vec::new();
    for number in 0..bench.cloud.many().max(1) {
        let mut tenant = bench.tenant_of(CLUSTER, provider.clone(), bench.service(), &nodes);
        tenant.ensure().await?;
        if number == 0 {
            owned_by(&tenant).await?;
        }
        tenants.push(tenant);
    }
    let listed = list(&provider, &tenants[0].op())
        .await?
        .map_err(|error| Problem::Failed(show_error(&error)))?;
    let missing = tenants
        .iter()
        .filter(|tenant| of(&listed, tenant).is_empty());
    let missing: Vec<_> = missing.map(|tenant| &*tenant.service.name).collect();
    expect(missing.is_empty(), || {
        format!("of {} Services, listed is nothing of {missing:?}", tenants.len())
    })
}

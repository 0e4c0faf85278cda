//! What is recorded and told of the work: mutations, errors, events, remarks.

use ccm_core::provider::{CloudError, LoadBalancers};

use super::{
    super::{
        InjectedCallFault, InjectedFault, LoadBalancerCloud,
        context::{MutationRecords, RuleContext, event_reason, holds, presentable},
        report::{Problem, Verdict, expect},
    },
    context::balancers,
    ids, interpret, inventory,
    service_driver::{DriverCall, ErrorReaction, ServiceDriver},
};
use crate::conformance::load_balancers::backends_and_deletion::ENSURE;

/// Longest note of an event.
const LONGEST_NOTE: usize = 1024;

type LbBench<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

pub(super) async fn changes_recorded(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(2).await?;
    let mut tenant = bench.tenant(&nodes[..1]).await?;
    let records = MutationRecords::new(&tenant.provider)?;
    tenant.mutations = Some(records.metrics.clone());
    for step in [ENSURE, DriverCall::Update, DriverCall::Delete] {
        if step == DriverCall::Update {
            tenant.nodes.clone_from(&nodes);
        }
        let before = records.made();
        bench.cloud.script(None).await?;
        let done = tenant.settle(step, ErrorReaction::Fail).await?;
        done.map_err(|seen| {
            Problem::Blocked(
                if step == DriverCall::Delete {
                    ids::DELETED
                } else {
                    ids::ENSURED
                },
                seen,
            )
        })?;
        records.cover(before, bench.cloud.call_count().await?.writes, &format!("{step:?}"))?;
    }
    if tenant.provider.inventory().is_none() {
        return Ok(());
    }
    tenant = ServiceDriver { mutations: tenant.mutations, ..bench.tenant(&nodes).await? };
    tenant.ensure().await?;
    let owned = inventory::owned_by(&tenant).await?;
    let before = records.made();
    bench.cloud.script(None).await?;
    let done = inventory::delete_all(&tenant, &owned).await?;
    done.map_err(|seen| Problem::Blocked(ids::DELETES_OWNED, seen))?;
    records.cover(before, bench.cloud.call_count().await?.writes, "delete_owned")
}

/// Checks what the user was told since it was last looked at.
fn told_well(what: &str, told: Vec<(&'static str, String)>, secrets: &[String]) -> Verdict {
    for (reason, note) in told {
        let wrong = match () {
            () if note.trim().is_empty() => Err("says nothing".to_owned()),
            () if note.len() > LONGEST_NOTE => Err(format!("has {} bytes", note.len())),
            () if holds(&note, secrets) => Err("holds a secret".to_owned()),
            () => event_reason(reason),
        };
        wrong.map_err(|seen| {
            Problem::Failed(format!("{what}: event or remark {reason:?}: {seen}"))
        })?;
    }
    Ok(())
}

fn remarks(
    provider: &dyn LoadBalancers,
    tenant: &ServiceDriver<'_>,
    bench: &LbBench<'_>,
    secrets: &[String],
) -> Verdict {
    let mut services = vec![tenant.service.clone()];
    for (key, value) in bench.cloud.bad_annotations() {
        let mut service = tenant.service.clone();
        service
            .annotations
            .insert(key.as_str().into(), value.as_str().into());
        services.push(service);
    }
    services.extend(
        interpret::variations(tenant, bench)?
            .into_iter()
            .map(|(_, service)| service),
    );
    for service in services {
        // In this order.
        provider.interpret(&service);
        let (said, again) = (provider.notices(&service), provider.notices(&service));
        expect(said == again, || format!("one Service, several remarks: {said:?}, {again:?}"))?;
        let said = said
            .into_iter()
            .map(|remark| (remark.reason, remark.note.into_string()))
            .collect();
        told_well(&format!("annotations {:?}", service.annotations), said, secrets)?;
    }
    Ok(())
}

pub(super) async fn texts_presentable(bench: &LbBench<'_>) -> Verdict {
    let nodes = bench.nodes(2).await?;
    let secrets = bench.cloud.secrets();
    let tenant = bench.tenant(&nodes[..1]).await?;
    bench.cloud.script(None).await?;
    remarks(balancers(&tenant.provider)?, &tenant, bench, &secrets)?;
    let made = bench.cloud.call_count().await?.calls();
    expect(made == 0, || format!("{made} cloud calls were made for remarks"))?;
    let error = |what: &str, error: &CloudError| {
        presentable(error, &secrets).map_err(|seen| Problem::Failed(format!("{what}: {seen}")))
    };
    for fault in InjectedFault::ALL {
        let mut tenant = bench.tenant(&nodes[..1]).await?;
        for step in [ENSURE, DriverCall::Update, DriverCall::Delete] {
            let what = format!("{step:?} under {fault:?}");
            if step == DriverCall::Update {
                tenant.nodes.clone_from(&nodes);
            }
            bench
                .cloud
                .script(Some(InjectedCallFault::fail(1, fault).lasting()))
                .await?;
            let outcome = tenant.once(&tenant.op(), step).await?;
            bench.cloud.script(None).await?;
            outcome
                .result
                .as_ref()
                .err()
                .map_or(Ok(()), |seen| error(&what, seen))?;
            told_well(&what, tenant.events.take(), &secrets)?;
            match step {
                DriverCall::Delete => tenant.remove().await?,
                _ => drop(tenant.ensure().await?),
            }
            told_well(&format!("{step:?}"), tenant.events.take(), &secrets)?;
        }
    }
    Ok(())
}

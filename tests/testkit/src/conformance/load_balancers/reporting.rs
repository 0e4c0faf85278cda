//! Rules for records and texts: mutations, errors, events, notices.

use ccm_core::provider::{CloudError, LoadBalancers};

use super::{
    super::{
        InjectedCallFault, InjectedFault, LoadBalancerCloud,
        context::{
            MutationRecords, RuleContext, check_error_text, check_event_reason, contains_secret,
        },
        report::{Problem, Verdict, expect},
    },
    context::load_balancers,
    ids, interpret, inventory,
    service_driver::{ErrorReaction, Operation, ServiceDriver},
};
use crate::conformance::load_balancers::backends_and_deletion::ENSURE;

/// Maximum length of an event's note, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

type LbRuleContext<'a> = RuleContext<'a, dyn LoadBalancerCloud>;

pub(super) async fn changes_recorded(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    let mut driver = ctx.driver(&nodes[..1]).await?;
    let records = MutationRecords::new(&driver.provider)?;
    driver.mutations = Some(records.metrics.clone());
    for operation in [ENSURE, Operation::Update, Operation::Delete] {
        if operation == Operation::Update {
            driver.nodes.clone_from(&nodes);
        }
        let before = records.count();
        ctx.cloud.script(None).await?;
        let done = driver
            .call_until_done(operation, ErrorReaction::Fail)
            .await?;
        done.map_err(|observed| {
            Problem::Blocked(
                if operation == Operation::Delete {
                    ids::DELETED
                } else {
                    ids::ENSURED
                },
                observed,
            )
        })?;
        records.check(before, ctx.cloud.call_count().await?.writes, &format!("{operation:?}"))?;
    }
    if driver.provider.inventory().is_none() {
        return Ok(());
    }
    driver = ServiceDriver { mutations: driver.mutations, ..ctx.driver(&nodes).await? };
    driver.ensure().await?;
    let owned = inventory::owned_by(&driver).await?;
    let before = records.count();
    ctx.cloud.script(None).await?;
    let done = inventory::delete_all(&driver, &owned).await?;
    done.map_err(|observed| Problem::Blocked(ids::DELETES_OWNED, observed))?;
    records.check(before, ctx.cloud.call_count().await?.writes, "delete_owned")
}

/// Checks the reasons and notes of events or notices.
fn check_event_texts(
    what: &str,
    events: Vec<(&'static str, String)>,
    secrets: &[String],
) -> Verdict {
    for (reason, note) in events {
        let result = if note.trim().is_empty() {
            Err("the note is empty".to_owned())
        } else if note.len() > MAX_NOTE_BYTES {
            Err(format!("the note has {} bytes", note.len()))
        } else if contains_secret(&note, secrets) {
            Err("the note contains a secret".to_owned())
        } else {
            check_event_reason(reason)
        };
        result.map_err(|observed| {
            Problem::Failed(format!("{what}: event or notice {reason:?}: {observed}"))
        })?;
    }
    Ok(())
}

/// Checks the notices of a Service with valid and invalid annotations.
fn check_notices(
    provider: &dyn LoadBalancers,
    driver: &ServiceDriver<'_>,
    ctx: &LbRuleContext<'_>,
    secrets: &[String],
) -> Verdict {
    let mut services = vec![driver.service.clone()];
    for (key, value) in ctx.cloud.bad_annotations() {
        let mut service = driver.service.clone();
        service
            .annotations
            .insert(key.as_str().into(), value.as_str().into());
        services.push(service);
    }
    services.extend(
        interpret::variations(driver, ctx)?
            .into_iter()
            .map(|(_, service)| service),
    );
    for service in services {
        // The framework calls interpret before notices.
        provider.interpret(&service);
        let (notices, repeated) = (provider.notices(&service), provider.notices(&service));
        expect(notices == repeated, || {
            format!("different notices for the same Service: {notices:?}, {repeated:?}")
        })?;
        let texts = notices
            .into_iter()
            .map(|notice| (notice.reason, notice.note.into_string()))
            .collect();
        check_event_texts(&format!("annotations {:?}", service.annotations), texts, secrets)?;
    }
    Ok(())
}

pub(super) async fn texts_presentable(ctx: &LbRuleContext<'_>) -> Verdict {
    let nodes = ctx.nodes(2).await?;
    let secrets = ctx.cloud.secrets();
    let driver = ctx.driver(&nodes[..1]).await?;
    ctx.cloud.script(None).await?;
    check_notices(load_balancers(&driver.provider)?, &driver, ctx, &secrets)?;
    let made = ctx.cloud.call_count().await?.calls();
    expect(made == 0, || format!("notices made {made} cloud calls"))?;
    let error = |what: &str, error: &CloudError| {
        check_error_text(error, &secrets)
            .map_err(|observed| Problem::Failed(format!("{what}: {observed}")))
    };
    for fault in InjectedFault::ALL {
        let mut driver = ctx.driver(&nodes[..1]).await?;
        for operation in [ENSURE, Operation::Update, Operation::Delete] {
            let what = format!("{operation:?} under {fault:?}");
            if operation == Operation::Update {
                driver.nodes.clone_from(&nodes);
            }
            ctx.cloud
                .script(Some(InjectedCallFault::fail(1, fault).lasting()))
                .await?;
            let outcome = driver.call_once(&driver.op(), operation).await?;
            ctx.cloud.script(None).await?;
            outcome
                .result
                .as_ref()
                .err()
                .map_or(Ok(()), |observed| error(&what, observed))?;
            check_event_texts(&what, driver.events.take(), &secrets)?;
            match operation {
                Operation::Delete => driver.remove().await?,
                _ => drop(driver.ensure().await?),
            }
            check_event_texts(&format!("{operation:?}"), driver.events.take(), &secrets)?;
        }
    }
    Ok(())
}

use std::time::Duration;

use ccm_core::provider::{ErrorKind, InstanceStatus};
use tokio::time::Instant;

use super::{
    super::{
        InjectedFault, InstanceCloud,
        context::{RuleContext, check_error_text, open_op},
        report::{Problem, Verdict, expect},
    },
    context::{DescribeResult, show},
    ids, start,
};

/// Maximum sleep of one provider call.
const MAX_SLEEP: Duration = Duration::from_secs(2);

/// Queries an existing and a nonexistent instance under each fault that the adapter can inject.
async fn under_each_fault(
    ctx: &RuleContext<'_, dyn InstanceCloud>,
) -> Verdict<Vec<(InjectedFault, Vec<DescribeResult>)>> {
    let name = ctx.create().await?;
    ctx.metadata(&name).await?;
    let mut all_answers = Vec::new();
    for fault in InjectedFault::ALL {
        let provider = ctx.provider().await?;
        if !ctx.cloud.inject(fault).await? {
            continue;
        }
        let mut answers = ctx.describe(&provider, &[ctx.query(&name)]).await?;
        answers.extend(
            ctx.describe(&provider, &[ctx.query(&ctx.name()), ctx.query(&name)])
                .await?,
        );
        ctx.cloud.restore().await?;
        all_answers.push((fault, answers));
    }
    match all_answers.is_empty() {
        true => Err(Problem::Unsupported("the adapter cannot inject any fault".to_owned())),
        false => Ok(all_answers),
    }
}

pub(super) async fn no_absence_on_error(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    for (fault, answers) in under_each_fault(ctx).await? {
        for answer in answers {
            expect(!matches!(answer, Ok(InstanceStatus::NotFound)), || {
                format!("under {fault:?}: {}", show(&answer))
            })?;
        }
    }
    Ok(())
}

pub(super) async fn doubt_is_an_error(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = ctx.create().await?;
    ctx.metadata(&name).await?;
    let mut checked = 0;
    for fault in InjectedFault::ALL {
        let provider = ctx.provider().await?;
        let query = [ctx.query(&name)];
        // Fills the provider's cache, which must not be used under the fault.
        ctx.describe(&provider, &query).await?;
        if !ctx.cloud.inject(fault).await? {
            continue;
        }
        let answers = ctx.describe(&provider, &query).await?;
        ctx.cloud.restore().await?;
        checked += 1;
        if matches!(answers[0], Ok(InstanceStatus::Found { .. })) {
            let under = format!("under {fault:?}: {}", show(&answers[0]));
            ctx.cloud.stop(&name).await?;
            // If the provider never queries the cloud again, another rule is broken.
            return match ctx.check_fresh(&provider, &query[0]).await? {
                Ok(()) => Err(Problem::Failed(under)),
                Err(_) => Err(Problem::Blocked(ids::FRESH_WHEN_ASKED, under)),
            };
        }
    }
    match checked {
        0 => Err(Problem::Unsupported("the adapter cannot inject any fault".to_owned())),
        _ => Ok(()),
    }
}

pub(super) async fn error_kinds(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    for (fault, answers) in under_each_fault(ctx).await? {
        for answer in answers {
            let under = || format!("under {fault:?}: {}", show(&answer));
            match &answer {
                Err(error) => expect(error.kind() == fault.kind(), under)?,
                Ok(InstanceStatus::NotFound) => {
                    return Err(Problem::Blocked(ids::NO_ABSENCE_ON_ERROR, under()));
                }
                Ok(InstanceStatus::Found { .. }) => {
                    return Err(Problem::Blocked(ids::DOUBT_IS_AN_ERROR, under()));
                }
            }
        }
    }
    Ok(())
}

pub(super) async fn retry_after(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    if !ctx.cloud.reports_retry_after() {
        return Err(Problem::Unsupported(
            "the cloud's throttling errors carry no retry delay".to_owned(),
        ));
    }
    let name = ctx.create().await?;
    ctx.metadata(&name).await?;
    let provider = ctx.provider().await?;
    let delay = Duration::from_secs(9);
    if !ctx.cloud.inject(InjectedFault::Throttled(delay)).await? {
        return Err(Problem::Unsupported("the adapter cannot inject throttling".to_owned()));
    }
    let answers = ctx.describe(&provider, &[ctx.query(&name)]).await?;
    match &answers[0] {
        Err(error) => {
            let reported = error.retry_after();
            expect(reported.is_some_and(|after| after >= delay), || {
                format!("the cloud's retry delay is {delay:?}, the provider's {reported:?}")
            })
        }
        Ok(InstanceStatus::NotFound) => {
            Err(Problem::Blocked(ids::NO_ABSENCE_ON_ERROR, show(&answers[0])))
        }
        Ok(InstanceStatus::Found { .. }) => {
            Err(Problem::Blocked(ids::DOUBT_IS_AN_ERROR, show(&answers[0])))
        }
    }
}

pub(super) async fn texts_presentable(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let secrets = ctx.cloud.secrets();
    for (fault, answers) in under_each_fault(ctx).await? {
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            check_error_text(error, &secrets)
                .map_err(|observed| Problem::Failed(format!("under {fault:?}: {observed}")))?;
        }
    }
    start::texts(ctx).await
}

pub(super) async fn sleeps_briefly(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = ctx.create().await?;
    ctx.metadata(&name).await?;
    for fault in [
        None,
        Some(InjectedFault::Throttled(Duration::from_secs(7))),
        Some(InjectedFault::Transient),
    ] {
        let provider = ctx.provider().await?;
        if let Some(fault) = fault
            && !ctx.cloud.inject(fault).await?
        {
            continue;
        }
        let (began, before) = (Instant::now(), ctx.cloud.calls().await?);
        ctx.describe_raw(&provider, &open_op(), &[ctx.query(&name)])
            .await?
            .ok();
        let (took, calls) = (began.elapsed(), ctx.cloud.calls().await?.saturating_sub(before));
        ctx.cloud.restore().await?;
        let answers =
            ctx.cloud.answer_time() * u32::try_from(calls).unwrap_or(u32::MAX).saturating_add(1);
        expect(took <= MAX_SLEEP + answers, || {
            format!("under {fault:?}: took {took:?} for {calls} cloud calls")
        })?;
    }
    Ok(())
}

pub(super) async fn malformed_provider_id(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let good = ctx.create().await?;
    ctx.metadata(&good).await?;
    let ids = ctx.cloud.malformed_provider_ids();
    if ids.is_empty() {
        return Err(Problem::Unsupported(
            "the adapter returns no malformed provider ID".to_owned(),
        ));
    }
    for id in ids {
        let bad = ctx.name();
        let alone = ctx.describe_one(ctx.query_by_id(&bad, &id)).await?;
        let provider = ctx.provider().await?;
        let mixed = match provider
            .instances()
            .map_or(1, |instances| instances.limits().max_batch.get())
        {
            1 => Vec::new(),
            _ => {
                ctx.describe(&provider, &[ctx.query_by_id(&bad, &id), ctx.query(&good)])
                    .await?
            }
        };
        match &alone {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                expect(error.chain().contains(&id), || {
                    format!("the error does not contain {id:?}: {}", error.chain())
                })?;
            }
            other => return Err(Problem::Failed(format!("provider ID {id:?}: {}", show(other)))),
        }
        // Another rule judges the order of the answers.
        let found = mixed
            .iter()
            .filter(|answer| matches!(answer, Ok(InstanceStatus::Found { .. })))
            .count();
        let invalid = |answer: &&DescribeResult| matches!(answer, Err(error) if error.kind() == ErrorKind::InvalidInput);
        let is_expected =
            mixed.is_empty() || (found, mixed.iter().filter(invalid).count()) == (1, 1);
        let shown = || mixed.iter().map(show).collect::<Vec<_>>().join("; ");
        expect(is_expected, || format!("provider ID {id:?} beside a valid one: {}", shown()))?;
    }
    Ok(())
}

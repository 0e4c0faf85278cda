use std::time::Duration;

use ccm_core::provider::{ErrorKind, InstanceStatus};
use tokio::time::Instant;

use super::{
    super::{
        InjectedFault, InstanceCloud,
        context::{RuleContext, open_op, presentable},
        report::{Problem, Verdict, expect},
    },
    context::{DescribeResult, show},
    ids, start,
};

/// Longest that a call may sleep.
const LONGEST_SLEEP: Duration = Duration::from_secs(2);

/// Asks about one existing and one absent instance, by name and, for the first, by provider ID,
/// under each fault that the cloud can have.
async fn under_each_fault(
    bench: &RuleContext<'_, dyn InstanceCloud>,
) -> Verdict<Vec<(InjectedFault, Vec<DescribeResult>)>> {
    let name = bench.create().await?;
    bench.meta(&name).await?;
    let mut seen = Vec::new();
    for fault in InjectedFault::ALL {
        let provider = bench.provider().await?;
        if !bench.cloud.inject(fault).await? {
            continue;
        }
        let mut answers = bench.ask(&provider, &[bench.query(&name)]).await?;
        answers.extend(
            bench
                .ask(&provider, &[bench.query(&bench.name()), bench.query(&name)])
                .await?,
        );
        bench.cloud.restore().await?;
        seen.push((fault, answers));
    }
    match seen.is_empty() {
        true => Err(Problem::Unsupported("the cloud's adapter can inject no fault".to_owned())),
        false => Ok(seen),
    }
}

pub(super) async fn no_absence_on_error(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    for (fault, answers) in under_each_fault(bench).await? {
        for answer in answers {
            expect(!matches!(answer, Ok(InstanceStatus::NotFound)), || {
                format!("under {fault:?}: {}", show(&answer))
            })?;
        }
    }
    Ok(())
}

pub(super) async fn doubt_is_an_error(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = bench.create().await?;
    bench.meta(&name).await?;
    let mut checked = 0;
    for fault in InjectedFault::ALL {
        let provider = bench.provider().await?;
        let query = [bench.query(&name)];
        // What was found before must not stand in for an answer.
        bench.ask(&provider, &query).await?;
        if !bench.cloud.inject(fault).await? {
            continue;
        }
        let answers = bench.ask(&provider, &query).await?;
        bench.cloud.restore().await?;
        checked += 1;
        if matches!(answers[0], Ok(InstanceStatus::Found { .. })) {
            let under = format!("under {fault:?}: {}", show(&answers[0]));
            bench.cloud.stop(&name).await?;
            // A provider that never asks again is judged for that.
            return match bench.is_fresh(&provider, &query[0]).await? {
                Ok(()) => Err(Problem::Failed(under)),
                Err(_) => Err(Problem::Blocked(ids::FRESH_WHEN_ASKED, under)),
            };
        }
    }
    match checked {
        0 => Err(Problem::Unsupported("the cloud's adapter can inject no fault".to_owned())),
        _ => Ok(()),
    }
}

pub(super) async fn error_kinds(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    for (fault, answers) in under_each_fault(bench).await? {
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

pub(super) async fn retry_after(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    if !bench.cloud.names_pauses() {
        return Err(Problem::Unsupported("the cloud does not say when to come again".to_owned()));
    }
    let name = bench.create().await?;
    bench.meta(&name).await?;
    let provider = bench.provider().await?;
    let pause = Duration::from_secs(9);
    if !bench.cloud.inject(InjectedFault::Throttled(pause)).await? {
        return Err(Problem::Unsupported("the cloud's adapter cannot throttle".to_owned()));
    }
    let answers = bench.ask(&provider, &[bench.query(&name)]).await?;
    match &answers[0] {
        Err(error) => {
            let named = error.retry_after();
            expect(named.is_some_and(|after| after >= pause), || {
                format!("cloud says {pause:?}, provider {named:?}")
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

pub(super) async fn texts_presentable(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let secrets = bench.cloud.secrets();
    for (fault, answers) in under_each_fault(bench).await? {
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            presentable(error, &secrets)
                .map_err(|seen| Problem::Failed(format!("under {fault:?}: {seen}")))?;
        }
    }
    start::texts(bench).await
}

pub(super) async fn sleeps_briefly(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = bench.create().await?;
    bench.meta(&name).await?;
    for fault in [
        None,
        Some(InjectedFault::Throttled(Duration::from_secs(7))),
        Some(InjectedFault::Transient),
    ] {
        let provider = bench.provider().await?;
        if let Some(fault) = fault
            && !bench.cloud.inject(fault).await?
        {
            continue;
        }
        let (began, before) = (Instant::now(), bench.cloud.calls().await?);
        bench
            .ask_raw(&provider, &open_op(), &[bench.query(&name)])
            .await?
            .ok();
        let (took, calls) = (began.elapsed(), bench.cloud.calls().await?.saturating_sub(before));
        bench.cloud.restore().await?;
        let answers =
            bench.cloud.answer_time() * u32::try_from(calls).unwrap_or(u32::MAX).saturating_add(1);
        expect(took <= LONGEST_SLEEP + answers, || {
            format!("under {fault:?}: took {took:?} for {calls} cloud calls")
        })?;
    }
    Ok(())
}

pub(super) async fn malformed_provider_id(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let good = bench.create().await?;
    bench.meta(&good).await?;
    let ids = bench.cloud.malformed_provider_ids();
    if ids.is_empty() {
        return Err(Problem::Unsupported(
            "the cloud's adapter names no malformed provider ID".to_owned(),
        ));
    }
    for id in ids {
        let bad = bench.name();
        let alone = bench.ask_one(bench.query_by_id(&bad, &id)).await?;
        let provider = bench.provider().await?;
        let mixed = match provider
            .instances()
            .map_or(1, |instances| instances.limits().max_batch.get())
        {
            1 => Vec::new(),
            _ => {
                bench
                    .ask(&provider, &[bench.query_by_id(&bad, &id), bench.query(&good)])
                    .await?
            }
        };
        match &alone {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                expect(error.chain().contains(&id), || {
                    format!("{id:?} is not named: {}", error.chain())
                })?;
            }
            other => return Err(Problem::Failed(format!("provider ID {id:?}: {}", show(other)))),
        }
        // Which answer belongs to which node is judged elsewhere.
        let found = mixed
            .iter()
            .filter(|answer| matches!(answer, Ok(InstanceStatus::Found { .. })))
            .count();
        let invalid = |answer: &&DescribeResult| matches!(answer, Err(error) if error.kind() == ErrorKind::InvalidInput);
        let right = mixed.is_empty() || (found, mixed.iter().filter(invalid).count()) == (1, 1);
        let shown = || mixed.iter().map(show).collect::<Vec<_>>().join("; ");
        expect(right, || format!("provider ID {id:?} beside a good one: {}", shown()))?;
    }
    Ok(())
}

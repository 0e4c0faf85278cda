use ccm_core::provider::{InstanceStatus, PowerState};

use super::super::{
    InstanceCloud,
    context::{RuleContext, open_op},
    instances::context::{DescribeResult, show},
    report::{Problem, Verdict, expect},
};

/// Number of instances of a batch that exist. The others need not be created.
const EXISTING: usize = 4;

pub(super) async fn one_answer_per_query(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let names = ctx.create_many(EXISTING).await?;
    let provider = ctx.provider().await?;
    let max = provider
        .instances()
        .map_or(1, |instances| instances.limits().max_batch.get());
    // Existing instances are spread over the batch, so that omitting either kind is detected.
    let query = |index: usize| match index % 3 {
        0 => ctx.query(&names[index / 3 % names.len()]),
        _ => ctx.query(&ctx.name()),
    };
    let mut sizes = vec![0, 1, 2.min(max), max];
    sizes.dedup();
    for size in sizes {
        let queries: Vec<_> = (0..size).map(query).collect();
        match ctx.describe_raw(&provider, &open_op(), &queries).await? {
            Ok(answers) => expect(answers.len() == size, || {
                format!("{} answers to {size} queries", answers.len())
            })?,
            Err(error) => {
                return Err(Problem::Failed(format!(
                    "{size} queries: error {}: {}",
                    error.kind(),
                    error.chain()
                )));
            }
        }
    }
    Ok(())
}

pub(super) async fn found_by_name(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = ctx.create().await?;
    let answer = ctx.describe_one(ctx.query(&name)).await?;
    expect(
        matches!(answer, Ok(InstanceStatus::Found { power_state: PowerState::Running, .. })),
        || show(&answer),
    )
}

pub(super) async fn answers_in_order(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let names = ctx.create_many(EXISTING).await?;
    let mut known = Vec::new();
    for name in &names {
        known.push((name.clone(), Some(ctx.metadata(name).await?.addresses)));
        known.push((ctx.name(), None));
    }
    // The first instance is queried twice.
    known.push(known[0].clone());
    let max = ctx
        .provider()
        .await?
        .instances()
        .map_or(1, |instances| instances.limits().max_batch.get());
    for reverse in [false, true] {
        if reverse {
            known.reverse();
        }
        for part in known.chunks(max) {
            let provider = ctx.provider().await?;
            let queries: Vec<_> = part.iter().map(|(name, _)| ctx.query(name)).collect();
            let answers = ctx.describe(&provider, &queries).await?;
            for (index, ((name, addresses), answer)) in part.iter().zip(&answers).enumerate() {
                let is_expected = match (addresses, answer) {
                    (Some(addresses), Ok(InstanceStatus::Found { meta, .. })) => {
                        meta.addresses == *addresses
                    }
                    (Some(_), _) => false,
                    // Another rule judges whether this is NotFound.
                    (None, _) => !matches!(answer, Ok(InstanceStatus::Found { .. })),
                };
                expect(is_expected, || {
                    format!("answer {index}, about node {name}: {}", show(answer))
                })?;
            }
        }
    }
    Ok(())
}

pub(super) async fn not_found_if_never_existed(
    ctx: &RuleContext<'_, dyn InstanceCloud>,
) -> Verdict {
    let existing = ctx.create().await?;
    ctx.metadata(&existing).await?;
    let answer = ctx.describe_one(ctx.query(&ctx.name())).await?;
    expect(matches!(answer, Ok(InstanceStatus::NotFound)), || show(&answer))
}

fn is_gone(answer: &DescribeResult) -> bool {
    matches!(
        answer,
        Ok(InstanceStatus::NotFound
            | InstanceStatus::Found { power_state: PowerState::Terminated, .. })
    )
}

pub(super) async fn not_found_if_deleted(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = ctx.create().await?;
    let id = ctx.provider_id(&name).await?;
    ctx.cloud.delete(&name).await?;
    for (by, query) in [("name", ctx.query(&name)), ("provider ID", ctx.query_by_id(&name, &id))] {
        let answer = ctx.describe_one(query).await?;
        expect(matches!(answer, Ok(InstanceStatus::NotFound)), || {
            format!("by {by}: {}", show(&answer))
        })?;
    }
    Ok(())
}

pub(super) async fn stopped_exists(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let (stopped, started) = (ctx.create().await?, ctx.create().await?);
    ctx.metadata(&stopped).await?;
    ctx.cloud.stop(&stopped).await?;
    ctx.cloud.stop(&started).await?;
    ctx.cloud.start(&started).await?;
    let answer = ctx.describe_one(ctx.query(&stopped)).await?;
    let is_expected =
        matches!(answer, Ok(InstanceStatus::Found { power_state: PowerState::Stopped, .. }));
    expect(is_expected, || format!("stopped instance: {}", show(&answer)))?;
    let answer = ctx.describe_one(ctx.query(&started)).await?;
    let is_expected =
        matches!(answer, Ok(InstanceStatus::Found { power_state: PowerState::Running, .. }));
    expect(is_expected, || format!("instance started again: {}", show(&answer)))
}

pub(super) async fn terminated_is_gone(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = ctx.create().await?;
    ctx.metadata(&name).await?;
    ctx.cloud.terminate(&name).await?;
    let answer = ctx.describe_one(ctx.query(&name)).await?;
    expect(is_gone(&answer), || show(&answer))
}

pub(super) async fn all_of_many(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let names = ctx.create_many(ctx.cloud.many().max(1)).await?;
    ctx.metadata(&names[0]).await?;
    let provider = ctx.provider().await?;
    // Another rule judges whether a batch of maximum size works.
    let part = provider
        .instances()
        .map_or(1, |instances| instances.limits().max_batch.get().div_ceil(2));
    for part in names.chunks(part) {
        let queries: Vec<_> = part.iter().map(|name| ctx.query(name)).collect();
        for (name, answer) in part.iter().zip(ctx.describe(&provider, &queries).await?) {
            let found = matches!(answer, Ok(InstanceStatus::Found { .. }));
            expect(found, || {
                format!("{name}, one of {} instances: {}", names.len(), show(&answer))
            })?;
        }
    }
    Ok(())
}

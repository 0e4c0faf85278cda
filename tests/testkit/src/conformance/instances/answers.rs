use ccm_core::provider::{InstanceStatus, PowerState};

use super::super::{
    InstanceCloud,
    context::{RuleContext, open_op},
    instances::context::{DescribeResult, show},
    report::{Problem, Verdict, expect},
};

/// Instances in a batch that exist; the others cost the cloud nothing.
const EXISTING: usize = 4;

pub(super) async fn one_answer_per_query(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let names = bench.create_many(EXISTING).await?;
    let provider = bench.provider().await?;
    let max = provider
        .instances()
        .map_or(1, |instances| instances.limits().max_batch.get());
    // Existing ones are spread over the batch, so that leaving out either sort shows.
    let query = |index: usize| match index % 3 {
        0 => bench.query(&names[index / 3 % names.len()]),
        _ => bench.query(&bench.name()),
    };
    let mut sizes = vec![0, 1, 2.min(max), max];
    sizes.dedup();
    for size in sizes {
        let queries: Vec<_> = (0..size).map(query).collect();
        match bench.ask_raw(&provider, &open_op(), &queries).await? {
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

pub(super) async fn found_by_name(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = bench.create().await?;
    let answer = bench.ask_one(bench.query(&name)).await?;
    expect(
        matches!(answer, Ok(InstanceStatus::Found { power_state: PowerState::Running, .. })),
        || show(&answer),
    )
}

pub(super) async fn answers_in_order(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let names = bench.create_many(EXISTING).await?;
    let mut known = Vec::new();
    for name in &names {
        known.push((name.clone(), Some(bench.meta(name).await?.addresses)));
        known.push((bench.name(), None));
    }
    // Asked for twice.
    known.push(known[0].clone());
    let max = bench
        .provider()
        .await?
        .instances()
        .map_or(1, |instances| instances.limits().max_batch.get());
    for reverse in [false, true] {
        if reverse {
            known.reverse();
        }
        for part in known.chunks(max) {
            let provider = bench.provider().await?;
            let queries: Vec<_> = part.iter().map(|(name, _)| bench.query(name)).collect();
            let answers = bench.ask(&provider, &queries).await?;
            for (index, ((name, want), answer)) in part.iter().zip(&answers).enumerate() {
                let right = match (want, answer) {
                    (Some(addresses), Ok(InstanceStatus::Found { meta, .. })) => {
                        meta.addresses == *addresses
                    }
                    (Some(_), _) => false,
                    // Whether an absent one is proved absent is another rule's matter.
                    (None, _) => !matches!(answer, Ok(InstanceStatus::Found { .. })),
                };
                expect(right, || format!("answer {index}, about node {name}: {}", show(answer)))?;
            }
        }
    }
    Ok(())
}

pub(super) async fn not_found_if_never_existed(
    bench: &RuleContext<'_, dyn InstanceCloud>,
) -> Verdict {
    let existing = bench.create().await?;
    bench.meta(&existing).await?;
    let answer = bench.ask_one(bench.query(&bench.name())).await?;
    expect(matches!(answer, Ok(InstanceStatus::NotFound)), || show(&answer))
}

fn is_gone(answer: &DescribeResult) -> bool {
    matches!(
        answer,
        Ok(InstanceStatus::NotFound
            | InstanceStatus::Found { power_state: PowerState::Terminated, .. })
    )
}

pub(super) async fn not_found_if_deleted(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = bench.create().await?;
    let id = bench.provider_id(&name).await?;
    bench.cloud.delete(&name).await?;
    for (by, query) in
        [("name", bench.query(&name)), ("provider ID", bench.query_by_id(&name, &id))]
    {
        let answer = bench.ask_one(query).await?;
        expect(matches!(answer, Ok(InstanceStatus::NotFound)), || {
            format!("by {by}: {}", show(&answer))
        })?;
    }
    Ok(())
}

pub(super) async fn stopped_exists(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let (stopped, started) = (bench.create().await?, bench.create().await?);
    bench.meta(&stopped).await?;
    bench.cloud.stop(&stopped).await?;
    bench.cloud.stop(&started).await?;
    bench.cloud.start(&started).await?;
    let answer = bench.ask_one(bench.query(&stopped)).await?;
    let right =
        matches!(answer, Ok(InstanceStatus::Found { power_state: PowerState::Stopped, .. }));
    expect(right, || format!("stopped instance: {}", show(&answer)))?;
    let answer = bench.ask_one(bench.query(&started)).await?;
    let right =
        matches!(answer, Ok(InstanceStatus::Found { power_state: PowerState::Running, .. }));
    expect(right, || format!("instance started again: {}", show(&answer)))
}

pub(super) async fn terminated_is_gone(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = bench.create().await?;
    bench.meta(&name).await?;
    bench.cloud.terminate(&name).await?;
    let answer = bench.ask_one(bench.query(&name)).await?;
    expect(is_gone(&answer), || show(&answer))
}

pub(super) async fn all_of_many(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let names = bench.create_many(bench.cloud.many().max(1)).await?;
    bench.meta(&names[0]).await?;
    let provider = bench.provider().await?;
    // How large a batch may be is judged elsewhere.
    let part = provider
        .instances()
        .map_or(1, |instances| instances.limits().max_batch.get().div_ceil(2));
    for part in names.chunks(part) {
        let queries: Vec<_> = part.iter().map(|name| bench.query(name)).collect();
        for (name, answer) in part.iter().zip(bench.ask(&provider, &queries).await?) {
            let found = matches!(answer, Ok(InstanceStatus::Found { .. }));
            expect(found, || {
                format!("{name}, one of {} instances: {}", names.len(), show(&answer))
            })?;
        }
    }
    Ok(())
}

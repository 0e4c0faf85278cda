//! Rules for changes that the cloud accepts first and completes or fails later.

use std::time::Duration;

use super::{
    super::{
        RouteCloud,
        context::RuleContext,
        report::{Problem, Verdict},
    },
    context::{check_all_succeeded, fail_on_error, show, show_error},
    failures_and_batches::Batch,
};

type RouteRuleContext<'a> = RuleContext<'a, dyn RouteCloud>;

/// Time from the acceptance to the completion of a change in the rules about slow changes. It is
/// longer than a call may sleep.
const COMPLETION: Duration = Duration::from_secs(20);

pub(super) async fn slow_change(ctx: &RouteRuleContext<'_>) -> Verdict {
    for restart in [false, true] {
        let mut provider = ctx.provider().await?;
        let batch = Batch::new(ctx, &provider).await?;
        if !ctx.cloud.complete_after(COMPLETION).await? {
            return Err(Problem::Unsupported("the cloud's changes are never pending".to_owned()));
        }
        // First, nothing is answered as done before the cloud has completed it, and nothing fails.
        let op = ctx.op();
        let answers = ctx.apply_once(&provider, &op, &batch.changes).await?;
        fail_on_error(batch.check_raw_answers(ctx, &answers).await?, "while it is pending")?;
        for (answer, change) in answers.iter().zip(&batch.changes) {
            if let Err(error) = answer {
                let observed = format!("{}: {}", show(change), show_error(error));
                return Err(Problem::Failed(format!("while it is pending: {observed}")));
            }
        }
        // Then it is completed, also by a new process that does not know that it was begun.
        if restart {
            provider = ctx.provider().await?;
        }
        let answers = ctx.finish(&provider, &op, &batch.changes, answers).await?;
        fail_on_error(check_all_succeeded(&answers), "repeated")?;
        fail_on_error(batch.check_applied(ctx).await?, "repeated")?;
        ctx.cloud.complete_after(Duration::ZERO).await?;
    }
    Ok(())
}

pub(super) async fn late_failure(ctx: &RouteRuleContext<'_>) -> Verdict {
    for completion in [Duration::from_millis(500), COMPLETION] {
        let provider = ctx.provider().await?;
        let batch = Batch::new(ctx, &provider).await?;
        let slow = ctx.cloud.complete_after(completion).await?;
        if !slow || !ctx.cloud.fail_next_accepted().await? {
            return Err(Problem::Unsupported(
                "the cloud's accepted changes never fail later".to_owned(),
            ));
        }
        let answers = ctx.apply(&provider, &batch.changes).await?;
        fail_on_error(batch.check_answers(ctx, &answers).await?, "after it failed")?;
        let answers = ctx.apply(&provider, &batch.changes).await?;
        fail_on_error(check_all_succeeded(&answers), "repeated after it failed")?;
        fail_on_error(batch.check_applied(ctx).await?, "repeated after it failed")?;
        ctx.cloud.complete_after(Duration::ZERO).await?;
    }
    Ok(())
}

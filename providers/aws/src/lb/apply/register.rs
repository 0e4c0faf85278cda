//! Registers targets. An invalid target does not prevent the registration of the others.

use ccm_core::provider::Op;

use crate::{
    api::{
        AwsError, TargetGroupArn,
        elb::{RegisterTargets, Target},
    },
    scope::Scope,
};

/// The result of a registration.
#[derive(Debug, Default)]
pub(in crate::lb) struct RegisterOutcome {
    /// Targets that were registered.
    pub(in crate::lb) registered: Vec<Target>,
    /// Targets that AWS rejected, each with its error.
    pub(in crate::lb) rejected: Vec<(Target, AwsError)>,
    /// Targets that were left out because the target group is full, with AWS' error.
    pub(in crate::lb) target_group_full: Option<(Vec<Target>, AwsError)>,
}

/// Registers targets. If AWS rejects a request because of one of its targets, sends it again in
/// halves, until each invalid target is alone in a request. In the same way it fills a target group
/// that has not enough room for all.
///
/// # Errors
/// Any other error. Targets that were registered before it stay registered.
pub(in crate::lb) async fn register(
    scope: &Scope,
    op: &Op,
    arn: &TargetGroupArn,
    targets: &[Target],
    reason: &str,
) -> Result<RegisterOutcome, AwsError> {
    let mut outcome = RegisterOutcome::default();
    let mut unsent = vec![targets.to_vec()];
    while let Some(chunk) = unsent.pop() {
        if let Some((left_out, _)) = &mut outcome.target_group_full {
            left_out.extend(chunk);
            continue;
        }
        let request = RegisterTargets { arn: arn.clone(), targets: chunk.clone() };
        let error = match scope.client.write(op, request, reason).await {
            Ok(()) => {
                outcome.registered.extend(chunk);
                continue;
            }
            Err(error) => error,
        };
        let is_full = error.has_code("TooManyTargets");
        let has_invalid_target =
            error.has_code("InvalidTarget") || error.has_code("TooManyRegistrationsForTargetId");
        if !is_full && !has_invalid_target {
            return Err(error);
        }
        if chunk.len() > 1 {
            let (left, right) = chunk.split_at(chunk.len() / 2);
            unsent.extend([right.to_vec(), left.to_vec()]);
        } else if is_full {
            outcome.target_group_full = Some((chunk, error));
        } else {
            for target in chunk {
                outcome.rejected.push((target, error.clone()));
            }
        }
    }
    Ok(outcome)
}

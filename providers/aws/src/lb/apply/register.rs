//! Registers targets so that an invalid one does not prevent the others.

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
    /// Registered.
    pub(in crate::lb) done: Vec<Target>,
    /// Rejected, each with AWS' error.
    pub(in crate::lb) rejected: Vec<(Target, AwsError)>,
    /// Left out because the target group is full, with AWS' error.
    pub(in crate::lb) target_group_full: Option<(Vec<Target>, AwsError)>,
}

/// Registers targets. If a request is rejected because of one of them, it is sent again in halves,
/// which finds each invalid target in a few requests. The same finds how many targets fit into a
/// group that becomes full.
///
/// # Errors
/// Any other error; what was registered before it stays.
pub(in crate::lb) async fn register(
    scope: &Scope,
    op: &Op,
    arn: &TargetGroupArn,
    targets: &[Target],
    why: &str,
) -> Result<RegisterOutcome, AwsError> {
    let mut result = RegisterOutcome::default();
    let mut unsent = vec![targets.to_vec()];
    while let Some(chunk) = unsent.pop() {
        if let Some((left_out, _)) = &mut result.target_group_full {
            left_out.extend(chunk);
            continue;
        }
        let request = RegisterTargets { arn: arn.clone(), targets: chunk.clone() };
        let error = match scope.client.write(op, request, why).await {
            Ok(()) => {
                result.done.extend(chunk);
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
            result.target_group_full = Some((chunk, error));
        } else {
            for target in chunk {
                result.rejected.push((target, error.clone()));
            }
        }
    }
    Ok(result)
}

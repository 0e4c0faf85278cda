//! Registers targets so that one bad one does not keep out the others.

use ccm_core::provider::Op;

use crate::{
    api::{
        AwsError, TargetGroupArn,
        elb::{RegisterTargets, Target},
    },
    scope::Scope,
};

/// What became of targets.
#[derive(Debug, Default)]
pub(super) struct RegisterOutcome {
    /// Registered.
    pub(super) done: Vec<Target>,
    /// Refused, each with AWS' answer.
    pub(super) rejected: Vec<(Target, AwsError)>,
    /// Left out because the group is full, with AWS' answer.
    pub(super) target_group_full: Option<(Vec<Target>, AwsError)>,
}

/// Registers targets. A request that is refused for one of them is sent again in halves, so that each culprit is known in a
/// few requests. The same finds how many fit into a group that becomes full.
///
/// # Errors
/// Any other error; what was registered so far stays.
pub(super) async fn register(
    scope: &Scope,
    op: &Op,
    arn: &TargetGroupArn,
    targets: &[Target],
    why: &str,
) -> Result<RegisterOutcome, AwsError> {
    let mut result = RegisterOutcome::default();
    let mut open = vec![targets.to_vec()];
    while let Some(chunk) = open.pop() {
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
        let full = error.has_code("TooManyTargets");
        let culprit = error.has_code("InvalidTarget") || error.has_code("TooManyRegistrationsForTargetId");
        match chunk.len() {
            _ if !full && !culprit => return Err(error),
            1 if full => result.target_group_full = Some((chunk, error)),
            1 => result.rejected.extend(chunk.into_iter().map(|target| (target, error.clone()))),
            len => {
                let (left, right) = chunk.split_at(len / 2);
                open.extend([right.to_vec(), left.to_vec()]);
            }
        }
    }
    Ok(result)
}

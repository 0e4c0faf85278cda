//! STS.

use super::{convert::required, credentials::LoadedLifetime, error};
use crate::api::{
    Action, AwsError,
    sts::{CallerIdentity, GetCallerIdentity},
};

/// Client for STS, and what is known of the credentials that sign its requests.
#[derive(Clone, Debug)]
pub(super) struct StsClient {
    pub(super) sts: aws_sdk_sts::Client,
    /// Lifetime of the credentials that were loaded last.
    pub(super) lifetime: LoadedLifetime,
}

pub(super) async fn caller(
    client: &StsClient,
    _: GetCallerIdentity,
) -> Result<CallerIdentity, AwsError> {
    const ACTION: Action = Action::GetCallerIdentity;
    let answer = client.sts.get_caller_identity().send().await;
    let answer = answer.map_err(|error| error::of(ACTION, error))?;
    Ok(CallerIdentity {
        account: required(ACTION, answer.account, "the account")?,
        arn: required(ACTION, answer.arn, "the ARN of the caller")?,
        lifetime: client.lifetime.get(),
    })
}

//! What went wrong, in our words.

use std::error::Error;

use aws_smithy_runtime_api::client::{orchestrator::HttpResponse, result::SdkError};
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use aws_types::request_id::RequestId;

use crate::api::{Action, AwsError, AwsErrorCause};

/// Turns an error of the SDK into ours.
///
/// The code is the one on the wire: the SDK's types add `Exception` to many of Elastic Load Balancing's, the metadata do
/// not. An answer that is no error document, such as the page of a proxy, keeps its status and has an empty code.
pub(super) fn of<E>(action: Action, error: SdkError<E, HttpResponse>) -> AwsError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    let answer = match &error {
        // What was to be success and cannot be read: AWS did what it was asked for.
        SdkError::ServiceError(answer) if !answer.raw().status().is_success() => answer,
        _ => return AwsError::no_response(action, no_response_source(error)),
    };
    let metadata = answer.err().meta();
    let status = answer.raw().status().as_u16();
    let message = match (metadata.message(), metadata.code()) {
        (Some(message), _) => AwsError::redacted_message(message),
        (None, Some(_)) => Box::default(),
        (None, None) => format!("HTTP status {status} without an error code").into(),
    };
    let fault = AwsErrorCause::Response {
        code: metadata.code().unwrap_or_default().into(),
        message,
        status,
        request_id: metadata.request_id().or_else(|| answer.raw().request_id()).map(Into::into),
    };
    AwsError { action: Some(action), cause: fault }
}

/// What kept an answer from coming, or from being read: the SDK's own words for the phase say nothing beside the cause.
fn no_response_source<E>(error: SdkError<E, HttpResponse>) -> Box<dyn Error + Send + Sync>
where
    E: Error + Send + Sync + 'static,
{
    error.into_source().unwrap_or_else(|error| error.to_string().into())
}

/// The error of an answer that lacks what it must have, or has it in a form that cannot be read.
pub(super) fn unreadable(action: Action, what: impl std::fmt::Display) -> AwsError {
    AwsError::no_response(action, format!("the answer cannot be read: {what}"))
}

//! Converts the SDK's errors.

use std::error::Error;

use aws_smithy_runtime_api::client::{orchestrator::HttpResponse, result::SdkError};
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use aws_types::request_id::RequestId;

use crate::api::{Action, AwsError, AwsErrorCause};

/// Converts an error of the SDK.
///
/// The code comes from the SDK's error metadata, which contain it as on the wire. The SDK's types
/// add `Exception` to many codes of Elastic Load Balancing. An answer that is not an error
/// document, such as a proxy's page, keeps its status and has an empty code.
pub(super) fn of<E>(action: Action, error: SdkError<E, HttpResponse>) -> AwsError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    let answer = match &error {
        // A success answer that cannot be read counts as no answer: AWS did carry out the request.
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
        request_id: metadata
            .request_id()
            .or_else(|| answer.raw().request_id())
            .map(Into::into),
    };
    AwsError { action: Some(action), cause: fault }
}

/// Returns the reason for a missing or unreadable answer, without the SDK's text for the phase,
/// which adds nothing to the cause.
fn no_response_source<E>(error: SdkError<E, HttpResponse>) -> Box<dyn Error + Send + Sync>
where
    E: Error + Send + Sync + 'static,
{
    error
        .into_source()
        .unwrap_or_else(|error| error.to_string().into())
}

/// Returns the error of an answer that lacks a required value or has one that cannot be parsed.
pub(super) fn unreadable(action: Action, what: impl std::fmt::Display) -> AwsError {
    AwsError::no_response(action, format!("the answer cannot be read: {what}"))
}

//! Errors with Octavia's messages, which clients and users search for.

use std::fmt::Display;

use http::StatusCode;

use crate::state::ApiError;

/// Names of resources in messages.
pub(super) const LOAD_BALANCER: &str = "Load Balancer";
pub(super) const LISTENER: &str = "Listener";
pub(super) const POOL: &str = "Pool";
pub(super) const MEMBER: &str = "Member";
pub(super) const MONITOR: &str = "Health Monitor";

fn bad_request(message: impl Into<String>) -> ApiError {
    ApiError::bad_request("", message)
}

pub(super) fn not_found(resource: &str, id: &str) -> ApiError {
    ApiError::not_found("", format!("{resource} {id} not found."))
}

/// An object that a request refers to does not exist, which is an error of the request.
pub(super) fn no_such(resource: &str, id: &str) -> ApiError {
    bad_request(format!("{resource} {id} not found."))
}

pub(super) fn validation(detail: impl Display) -> ApiError {
    bad_request(format!("Validation failure: {detail}"))
}

pub(super) fn invalid_option(value: impl Display, option: impl Display) -> ApiError {
    bad_request(format!("{value} is not a valid option for {option}"))
}

pub(super) fn invalid_input(
    field: impl Display,
    value: impl Display,
    message: impl Display,
) -> ApiError {
    bad_request(format!("Invalid input for field/attribute {field}. Value: '{value}'. {message}"))
}

pub(super) fn unknown_attribute(object: &str, field: &str) -> ApiError {
    bad_request(format!("Unknown attribute for argument {object}: {field}"))
}

pub(super) fn missing_argument(object: &str) -> ApiError {
    bad_request(format!("Missing argument: \"{object}\""))
}

pub(super) fn disabled_option(option: &str, value: &str) -> ApiError {
    bad_request(format!("The selected {option} is not allowed in this deployment: {value}"))
}

pub(super) fn bad_reference(reference: &str) -> ApiError {
    bad_request(format!("Could not retrieve certificate: ['{reference}']"))
}

pub(super) fn forbidden() -> ApiError {
    ApiError::forbidden("", "Policy does not allow this request to be performed.")
}

pub(super) fn quota_met(resource: &str) -> ApiError {
    ApiError::forbidden("", format!("Quota has been met for resources: {resource}"))
}

pub(super) fn immutable(resource: &str, id: &str) -> ApiError {
    ApiError::conflict("", format!("{resource} {id} is immutable and cannot be updated."))
}

pub(super) fn pending(state: impl Display, id: &str) -> ApiError {
    ApiError::conflict("", format!("Invalid state {state} of loadbalancer resource {id}"))
}

pub(super) fn conflict(message: impl Into<String>) -> ApiError {
    ApiError::conflict("", message)
}

pub(super) fn provider_not_enabled(provider: &str) -> ApiError {
    bad_request(format!("Provider '{provider}' is not enabled."))
}

pub(super) fn unsupported_option(provider: &str, why: impl Display) -> ApiError {
    let message = format!("Provider '{provider}' does not support a requested option: {why}");
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "", message)
}

pub(super) fn unsupported_action(provider: &str, why: impl Display) -> ApiError {
    let message = format!("Provider '{provider}' does not support a requested action: {why}");
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "", message)
}

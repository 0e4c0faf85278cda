//! Functions that all resources use.

use crate::api::neutron::Standard;
use jiff::Timestamp;

use crate::state::{ApiError, RequestContext};

/// Returns a time in the service's format.
pub(super) fn stamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the common part of a new row.
pub(super) fn standard(
    ctx: &RequestContext,
    project: String,
    description: Option<String>,
    tags: Option<Vec<String>>,
) -> Standard {
    let now = stamp(ctx.now);
    let mut tags = tags.unwrap_or_default();
    tags.sort();
    tags.dedup();
    Standard {
        project_id: project.clone(),
        tenant_id: project,
        description: description.unwrap_or_default(),
        created_at: now.clone(),
        updated_at: now,
        revision_number: 1,
        tags,
    }
}

/// Records a change.
pub(super) fn touch(ctx: &RequestContext, standard: &mut Standard) {
    standard.revision_number += 1;
    standard.updated_at = stamp(ctx.now);
}

/// Returns the project of a new row: the user's, or the one that an administrator names.
///
/// # Errors
/// The user names a project of somebody else.
pub(super) fn owner(ctx: &RequestContext, asked: Option<String>) -> Result<String, ApiError> {
    match asked {
        Some(project) if !ctx.sees(&project) => Err(ApiError::forbidden(
            "AdminRequired",
            "User does not have admin privileges: Cannot create resource for another tenant.",
        )),
        Some(project) => Ok(project),
        None => Ok(ctx.project.to_string()),
    }
}

/// Rejects what only administrators may do.
///
/// # Errors
/// The user is not an administrator.
pub(super) fn admin_only(ctx: &RequestContext, rule: &str, asked: bool) -> Result<(), ApiError> {
    if asked && !ctx.admin {
        let message = format!("(rule:{rule}) is disallowed by policy");
        return Err(ApiError::forbidden("PolicyNotAuthorized", message));
    }
    Ok(())
}

/// The error for an invalid value.
pub(super) fn invalid(field: &str, reason: impl std::fmt::Display) -> ApiError {
    ApiError::bad_request("HTTPBadRequest", format!("Invalid input for {field}. Reason: {reason}."))
}

/// The error for a request that contradicts the state.
pub(super) fn invalid_input(message: impl std::fmt::Display) -> ApiError {
    ApiError::bad_request("InvalidInput", format!("Invalid input for operation: {message}."))
}

/// The error for an invalid request to a resource.
pub(super) fn bad_request(resource: &str, message: impl std::fmt::Display) -> ApiError {
    ApiError::bad_request("BadRequest", format!("Bad {resource} request: {message}."))
}

/// Returns the context of the service itself, on behalf of the user: it may do everything.
pub(super) fn service(ctx: &RequestContext) -> RequestContext {
    RequestContext { admin: true, ..ctx.clone() }
}

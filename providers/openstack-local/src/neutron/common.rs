//! What every resource needs.

use jiff::Timestamp;
use openstack_api::neutron::Standard;

use crate::state::{ApiError, Cx};

/// Writes a time as the service does.
pub(super) fn stamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Makes the common part of a new row.
pub(super) fn standard(cx: &Cx, project: String, description: Option<String>, tags: Option<Vec<String>>) -> Standard {
    let now = stamp(cx.now);
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

/// Notes a change.
pub(super) fn touch(cx: &Cx, standard: &mut Standard) {
    standard.revision_number += 1;
    standard.updated_at = stamp(cx.now);
}

/// Returns the project of a new row: the caller's, or the one that an administrator names.
///
/// # Errors
/// Somebody else names a project that is not his.
pub(super) fn owner(cx: &Cx, asked: Option<String>) -> Result<String, ApiError> {
    match asked {
        Some(project) if !cx.sees(&project) => Err(ApiError::forbidden(
            "AdminRequired",
            "User does not have admin privileges: Cannot create resource for another tenant.",
        )),
        Some(project) => Ok(project),
        None => Ok(cx.project.to_string()),
    }
}

/// Refuses what only administrators may do.
///
/// # Errors
/// The caller is none.
pub(super) fn admin_only(cx: &Cx, rule: &str, asked: bool) -> Result<(), ApiError> {
    if asked && !cx.admin {
        let message = format!("(rule:{rule}) is disallowed by policy");
        return Err(ApiError::forbidden("PolicyNotAuthorized", message));
    }
    Ok(())
}

/// A value that the API does not take.
pub(super) fn invalid(field: &str, reason: impl std::fmt::Display) -> ApiError {
    ApiError::bad_request("HTTPBadRequest", format!("Invalid input for {field}. Reason: {reason}."))
}

/// A request that makes no sense with what there is.
pub(super) fn invalid_input(message: impl std::fmt::Display) -> ApiError {
    ApiError::bad_request("InvalidInput", format!("Invalid input for operation: {message}."))
}

/// A request that makes no sense for a resource.
pub(super) fn bad_request(resource: &str, message: impl std::fmt::Display) -> ApiError {
    ApiError::bad_request("BadRequest", format!("Bad {resource} request: {message}."))
}

/// Returns the service itself, on behalf of the caller: it may do everything.
pub(super) fn service(cx: &Cx) -> Cx {
    Cx { admin: true, ..cx.clone() }
}

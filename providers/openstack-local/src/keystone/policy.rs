//! Permissions and validation, with Keystone's errors.

use std::sync::Arc;

use super::RequestUser;
use crate::state::ApiError;

/// Rejects everybody except administrators.
pub(super) fn admin(caller: &RequestUser, action: &str) -> Result<(), ApiError> {
    allow(caller.ctx.admin, action)
}

/// Rejects everybody except this user and administrators.
pub(super) fn own(caller: &RequestUser, user: &str, action: &str) -> Result<(), ApiError> {
    allow(caller.ctx.admin || &*caller.ctx.user == user, action)
}

/// Rejects the request unless `allowed`.
pub(super) fn allow(allowed: bool, action: &str) -> Result<(), ApiError> {
    let message =
        || format!("You are not authorized to perform the requested action: identity:{action}.");
    if allowed {
        Ok(())
    } else {
        Err(ApiError::forbidden("", message()))
    }
}

/// Rejects tokens of a trust or of a restricted application credential: they must not create more
/// of their kind.
pub(super) fn not_delegated(
    caller: &RequestUser,
    unrestricted: bool,
    action: &str,
) -> Result<(), ApiError> {
    let credential = caller.token.application_credential_id.is_none() || unrestricted;
    allow(caller.token.trust_id.is_none() && credential, action)
}

/// Returns the row, or 404.
pub(super) fn found<'a, R>(
    row: Option<&'a Arc<R>>,
    what: &str,
    id: &str,
) -> Result<&'a Arc<R>, ApiError> {
    row.ok_or_else(|| ApiError::not_found("", format!("Could not find {what}: {id}.")))
}

/// Rejects a second object with the same name.
pub(super) fn unique(taken: bool, what: &str, name: &str) -> Result<(), ApiError> {
    let message = || {
        format!(
            "Conflict occurred attempting to store {what} - Duplicate entry found with name {name}."
        )
    };
    if taken {
        Err(ApiError::conflict("", message()))
    } else {
        Ok(())
    }
}

/// Rejects a name that is empty or too long.
pub(super) fn name(name: &str, field: &str) -> Result<(), ApiError> {
    let message =
        || format!("Invalid input for field '{field}': between 1 and 255 characters are allowed.");
    if (1..=255).contains(&name.chars().count()) {
        Ok(())
    } else {
        Err(ApiError::bad_request("", message()))
    }
}

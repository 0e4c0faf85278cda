//! Servers: finding, changing, removing, and what tests make of them.

use std::collections::BTreeMap;

use crate::api::{neutron::PortUpdate, nova::ServerUpdate};
use http::StatusCode;

use super::{ServerRow, quotas::METADATA_ITEMS};
use crate::{
    neutron, servers,
    state::{ApiError, CloudState, RequestContext},
};

/// Longest name.
const MAX_NAME: usize = 255;

/// Returns one, even if its cell does not answer.
///
/// # Errors
/// It does not exist, or the user may not see it.
pub fn find<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s ServerRow, ApiError> {
    let row = state
        .nova
        .servers
        .get(id)
        .filter(|server| ctx.sees(&server.project));
    row.map(|row| &**row).ok_or_else(|| not_found(id))
}

/// Returns one whose cell answers.
///
/// # Errors
/// It does not exist, or the user may not see it; its cell does not answer.
pub fn get<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s ServerRow, ApiError> {
    let row = find(state, ctx, id)?;
    if row.cell_down {
        return Err(cell_down());
    }
    Ok(row)
}

/// Returns the error for a server in a cell that does not answer.
pub(super) fn cell_down() -> ApiError {
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "",
        "Cell cell1 is not responding and hence instance info is not available.",
    )
}

pub(super) fn not_found(id: &str) -> ApiError {
    ApiError::not_found("", format!("Instance {id} could not be found."))
}

/// Rejects changes of a locked server.
pub(super) fn check_unlocked(ctx: &RequestContext, row: &ServerRow) -> Result<(), ApiError> {
    if row.lock.is_some() && !ctx.admin {
        return Err(ApiError::conflict("", format!("Instance {} is locked", row.id)));
    }
    Ok(())
}

/// Rejects an invalid name.
pub(super) fn check_name(name: &str) -> Result<(), ApiError> {
    if name.trim().is_empty() || name.chars().count() > MAX_NAME {
        return Err(ApiError::bad_request(
            "",
            format!(
                "Invalid input for field/attribute name. Value: {name}. It must have 1 to {MAX_NAME} characters."
            ),
        ));
    }
    Ok(())
}

/// Rejects an invalid access address; empty means no address.
pub(super) fn check_access(address: &str, v4: bool) -> Result<(), ApiError> {
    let fits = |address: std::net::IpAddr| address.is_ipv4() == v4;
    if address.is_empty() || address.parse().is_ok_and(fits) {
        return Ok(());
    }
    let field = if v4 { "accessIPv4" } else { "accessIPv6" };
    Err(ApiError::bad_request(
        "",
        format!("Invalid input for field/attribute {field}. Value: {address}."),
    ))
}

/// Rejects metadata beyond the limits.
pub(super) fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), ApiError> {
    if metadata.len() > METADATA_ITEMS {
        return Err(ApiError::forbidden(
            "",
            format!("Maximum number of metadata items exceeds {METADATA_ITEMS}"),
        ));
    }
    if metadata
        .iter()
        .any(|(key, value)| key.is_empty() || key.len() > MAX_NAME || value.len() > MAX_NAME)
    {
        return Err(ApiError::bad_request(
            "",
            "Invalid metadata: keys have 1 to 255 characters, values at most 255.",
        ));
    }
    servers::check(metadata)
}

/// Changes a row, and records when.
pub(super) fn change(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    change: impl FnOnce(&mut ServerRow),
) {
    state.nova.servers.update(id, |row| {
        let before = row.clone();
        change(row);
        if *row != before {
            row.updated = ctx.now;
        }
    });
}

/// Changes one.
///
/// # Errors
/// It does not exist, or a value is invalid.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    request: ServerUpdate,
) -> Result<(), ApiError> {
    check_unlocked(ctx, get(state, ctx, id)?)?;
    if let Some(name) = &request.name {
        check_name(name)?;
    }
    check_access(request.access_ipv4.as_deref().unwrap_or_default(), true)?;
    check_access(request.access_ipv6.as_deref().unwrap_or_default(), false)?;
    change(state, ctx, id, |row| {
        row.name = request.name.unwrap_or_else(|| row.name.clone());
        row.access_ipv4 = request
            .access_ipv4
            .unwrap_or_else(|| row.access_ipv4.clone());
        row.access_ipv6 = request
            .access_ipv6
            .unwrap_or_else(|| row.access_ipv6.clone());
        row.description = request
            .description
            .unwrap_or_else(|| row.description.clone());
        row.hostname = request.hostname.unwrap_or_else(|| row.hostname.clone());
    });
    Ok(())
}

/// Changes the metadata of one, and returns it.
///
/// # Errors
/// It does not exist, or a limit would be exceeded.
pub fn change_metadata(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    change_it: impl FnOnce(&mut BTreeMap<String, String>),
) -> Result<BTreeMap<String, String>, ApiError> {
    let row = get(state, ctx, id)?;
    check_unlocked(ctx, row)?;
    let mut metadata = row.metadata.clone();
    change_it(&mut metadata);
    check_metadata(&metadata)?;
    change(state, ctx, id, |row| row.metadata.clone_from(&metadata));
    Ok(metadata)
}

/// Changes the tags of one, and returns them.
///
/// # Errors
/// It does not exist.
pub fn change_tags(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    change_them: impl FnOnce(&mut Vec<String>),
) -> Result<Vec<String>, ApiError> {
    let mut tags = get(state, ctx, id)?.tags.clone();
    change_them(&mut tags);
    tags.sort();
    tags.dedup();
    if tags.len() > 50
        || tags
            .iter()
            .any(|tag| tag.is_empty() || tag.len() > 60 || tag.contains(['/', ',']))
    {
        return Err(ApiError::bad_request(
            "",
            "There are at most 50 tags of 1 to 60 characters each, without '/' and ','.",
        ));
    }
    change(state, ctx, id, |row| row.tags.clone_from(&tags));
    Ok(tags)
}

/// Deletes one. Ports that were created for it are deleted, others are released.
///
/// # Errors
/// It does not exist, it is locked, or its cell does not answer.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    let row = get(state, ctx, id)?.clone();
    check_unlocked(ctx, &row)?;
    for attachment in row.ports {
        release(state, ctx, &attachment.port, attachment.owned)?;
    }
    state.nova.servers.remove(id);
    Ok(())
}

/// Deletes or releases a port.
pub(super) fn release(
    state: &mut CloudState,
    ctx: &RequestContext,
    port: &str,
    owned: bool,
) -> Result<(), ApiError> {
    let ctx = service(ctx);
    // Users may have deleted ports of their servers themselves.
    if state.neutron.ports.get(port).is_none() {
        return Ok(());
    }
    if owned {
        return neutron::ports::delete(state, &ctx, port);
    }
    let update = PortUpdate {
        device_id: Some(None),
        device_owner: Some(None),
        host_id: Some(None),
        ..PortUpdate::default()
    };
    neutron::ports::update(state, &ctx, port, update).map(drop)
}

/// Returns the context of the service itself, on behalf of the user: it may do everything.
pub(super) fn service(ctx: &RequestContext) -> RequestContext {
    RequestContext { admin: true, ..ctx.clone() }
}

/// Sets the status of a server, such as `SOFT_DELETED` or, with a fault, `ERROR`: what can happen
/// to servers in other clouds.
///
/// # Errors
/// It does not exist.
pub fn set_status(
    state: &mut CloudState,
    id: &str,
    status: &str,
    fault: Option<&str>,
) -> Result<(), ApiError> {
    let set = |row: &mut ServerRow| {
        status.clone_into(&mut row.status);
        row.fault = fault.map(str::to_owned);
    };
    state
        .nova
        .servers
        .update(id, set)
        .ok_or_else(|| not_found(id))
}

/// Makes the cell of a server stop answering, or answer again.
///
/// # Errors
/// The server does not exist.
pub fn set_cell_down(state: &mut CloudState, id: &str, down: bool) -> Result<(), ApiError> {
    state
        .nova
        .servers
        .update(id, |row| row.cell_down = down)
        .ok_or_else(|| not_found(id))
}

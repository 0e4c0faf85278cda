//! Actions on servers.

use crate::api::{
    neutron::PortUpdate,
    nova::{RebootType, ServerAction},
};

use super::{
    Lock,
    create::group,
    quotas::admin_only,
    servers::{self, change, check_unlocked, get, service},
};
use crate::{
    neutron,
    state::{ApiError, CloudState, RequestContext},
};

/// Performs an action.
///
/// # Errors
/// The server does not exist, it is locked, or its state does not permit the action.
pub fn act(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    action: ServerAction,
) -> Result<(), ApiError> {
    let row = get(state, ctx, id)?;
    if !matches!(action, ServerAction::Lock(_) | ServerAction::Unlock(())) {
        check_unlocked(ctx, row)?;
    }
    // First, handle actions that are not a change of status, and find the statuses of the others.
    let (name, from, to): (&str, &[&str], &str) = match action {
        ServerAction::Start(()) => ("start", &["SHUTOFF"], "ACTIVE"),
        ServerAction::Stop(()) => ("stop", &["ACTIVE", "RESCUE", "ERROR"], "SHUTOFF"),
        ServerAction::Reboot(reboot) if reboot.kind == RebootType::Soft => {
            ("reboot", &["ACTIVE"], "ACTIVE")
        }
        ServerAction::Reboot(_) => {
            ("reboot", &["ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED", "ERROR"], "ACTIVE")
        }
        ServerAction::Pause(()) => ("pause", &["ACTIVE"], "PAUSED"),
        ServerAction::Unpause(()) => ("unpause", &["PAUSED"], "ACTIVE"),
        ServerAction::Suspend(()) => ("suspend", &["ACTIVE"], "SUSPENDED"),
        ServerAction::Resume(()) => ("resume", &["SUSPENDED"], "ACTIVE"),
        ServerAction::Shelve(()) => {
            ("shelve", &["ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED"], "SHELVED_OFFLOADED")
        }
        ServerAction::Unshelve(_) => ("unshelve", &["SHELVED", "SHELVED_OFFLOADED"], "ACTIVE"),
        ServerAction::Restore(()) => ("restore", &["SOFT_DELETED"], "ACTIVE"),
        ServerAction::ForceDelete(()) => return servers::delete(state, ctx, id),
        ServerAction::Lock(reason) => {
            let reason =
                reason.and_then(|reason| reason["locked_reason"].as_str().map(str::to_owned));
            change(state, ctx, id, |row| row.lock = Some(Lock { reason }));
            return Ok(());
        }
        ServerAction::Unlock(()) => {
            change(state, ctx, id, |row| row.lock = None);
            return Ok(());
        }
        ServerAction::AddSecurityGroup(named) => {
            return change_group(state, ctx, id, &named.name, true);
        }
        ServerAction::RemoveSecurityGroup(named) => {
            return change_group(state, ctx, id, &named.name, false);
        }
        ServerAction::ResetState(reset) => {
            admin_only(ctx, "os_compute_api:os-admin-actions:reset_state")?;
            let status = match &*reset.state {
                "active" => "ACTIVE",
                "error" => "ERROR",
                other => return Err(ApiError::bad_request("", format!("Invalid state {other}"))),
            };
            change(state, ctx, id, |row| status.clone_into(&mut row.status));
            return Ok(());
        }
    };
    // Then change the status.
    if !from.contains(&&*row.status) {
        return Err(ApiError::conflict(
            "",
            format!("Cannot '{name}' instance {id} while it is in status {}", row.status),
        ));
    }
    change(state, ctx, id, |row| to.clone_into(&mut row.status));
    Ok(())
}

/// Adds a group to all ports of a server, or removes it.
fn change_group(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    name: &str,
    add: bool,
) -> Result<(), ApiError> {
    let group = group(state, ctx, name)
        .map_err(|error| ApiError { status: http::StatusCode::NOT_FOUND, ..error })?;
    let ports: Vec<String> = get(state, ctx, id)?
        .ports
        .iter()
        .map(|attachment| attachment.port.clone())
        .collect();
    let mut found = false;
    for port in ports {
        let Some(row) = state.neutron.ports.get(&port) else {
            continue;
        };
        let mut groups = row.security_groups.clone();
        let has = groups.contains(&group);
        found |= has;
        if has != add {
            groups.retain(|other| *other != group);
            groups.extend(add.then(|| group.clone()));
            let update = PortUpdate { security_groups: Some(groups), ..PortUpdate::default() };
            neutron::ports::update(state, &service(ctx), &port, update)?;
        }
    }
    if add || found {
        return Ok(());
    }
    let message = format!("Security group {name} is not associated with the instance {id}");
    Err(ApiError::not_found("", message))
}

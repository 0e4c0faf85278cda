//! Ports of servers.

use crate::api::nova::{FixedIp, InterfaceAttach, InterfaceAttachment, NetworkRequest};

use super::{
    Attachment, Microversion, ServerRow,
    create::{Plan, attach},
    servers::{change, check_unlocked, get, release},
};
use crate::state::{ApiError, CloudState, RequestContext};

/// Returns all ports of a server.
///
/// # Errors
/// The server does not exist.
pub fn list(
    state: &CloudState,
    ctx: &RequestContext,
    id: &str,
    version: Microversion,
) -> Result<Vec<InterfaceAttachment>, ApiError> {
    let row = get(state, ctx, id)?;
    Ok(row
        .ports
        .iter()
        .filter_map(|attachment| show(state, attachment, version))
        .collect())
}

/// Returns one port of a server.
///
/// # Errors
/// The server does not exist, or it has no such port.
pub fn one(
    state: &CloudState,
    ctx: &RequestContext,
    id: &str,
    port: &str,
    version: Microversion,
) -> Result<InterfaceAttachment, ApiError> {
    let row = get(state, ctx, id)?;
    let attachment = row.ports.iter().find(|attachment| attachment.port == port);
    attachment
        .and_then(|attachment| show(state, attachment, version))
        .ok_or_else(|| gone(row, port))
}

fn gone(row: &ServerRow, port: &str) -> ApiError {
    ApiError::not_found("", format!("Instance {} does not have a port with id {port}", row.id))
}

fn show(
    state: &CloudState,
    attachment: &Attachment,
    version: Microversion,
) -> Option<InterfaceAttachment> {
    let port = state.neutron.ports.get(&attachment.port)?;
    let fixed_ips = port.fixed_ips.iter();
    Some(InterfaceAttachment {
        port_id: port.id.clone(),
        net_id: port.network_id.clone(),
        mac_addr: port.mac_address.clone(),
        port_state: port.status.clone(),
        fixed_ips: fixed_ips
            .map(|ip| FixedIp {
                subnet_id: Some(ip.subnet_id.clone()),
                ip_address: ip.ip_address,
            })
            .collect(),
        tag: (version >= Microversion(70)).then(|| attachment.tag.clone()),
    })
}

/// Attaches another port to a server.
///
/// # Errors
/// The server, the port or the network does not exist; the port is in use; no address is left.
pub fn add(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    request: InterfaceAttach,
    version: Microversion,
) -> Result<InterfaceAttachment, ApiError> {
    let row = get(state, ctx, id)?.clone();
    check_unlocked(ctx, &row)?;
    let fixed_ip = request
        .fixed_ips
        .unwrap_or_default()
        .first()
        .map(|ip| ip.ip_address);
    if request.port_id.is_none() && request.net_id.is_none() {
        return Err(ApiError::bad_request("", "Either 'port_id' or 'net_id' is needed"));
    }
    if let Some(port) = &request.port_id {
        let used = crate::neutron::ports::get(state, ctx, port)?;
        if !used.device_id.is_empty() {
            return Err(ApiError::bad_request("", format!("Port {port} is still in use.")));
        }
    }
    let network = NetworkRequest {
        uuid: request.net_id,
        port: request.port_id,
        fixed_ip,
        tag: request.tag,
    };
    let attachment = attach(state, ctx, &Plan { id, zone: &row.zone, groups: None }, &network)?;
    let port = attachment.port.clone();
    change(state, ctx, id, |row| row.ports.push(attachment));
    one(state, ctx, id, &port, version)
}

/// Detaches a port from a server.
///
/// # Errors
/// The server does not exist, or it has no such port.
pub fn remove(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    port: &str,
) -> Result<(), ApiError> {
    let row = get(state, ctx, id)?.clone();
    check_unlocked(ctx, &row)?;
    let attachment = row
        .ports
        .iter()
        .find(|attachment| attachment.port == port)
        .ok_or_else(|| gone(&row, port))?;
    release(state, ctx, port, attachment.owned)?;
    change(state, ctx, id, |row| row.ports.retain(|other| other.port != port));
    Ok(())
}

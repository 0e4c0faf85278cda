//! Ports.

use crate::api::neutron::{Port, PortCreate, PortUpdate, SubPortDetails, TrunkDetails};

use super::{
    FLOATING_IP, ROUTER_GATEWAY, ROUTER_INTERFACE, Resource,
    common::{admin_only, invalid, owner, standard, touch},
    floating_ips, ipam, networks, port_validation,
    quotas::{self, Quotable},
    security_groups,
};
use crate::state::{ApiError, CloudState, RequestContext, new_id};

/// First half of every generated hardware address.
const MAC_PREFIX: [u8; 3] = [0xfa, 0x16, 0x3e];

/// Returns the ports that the user may see.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<Port> {
    let ports = state
        .neutron
        .ports
        .iter()
        .filter(|port| ctx.sees(&port.standard.project_id));
    ports.map(|port| show_row(state, ctx, port)).collect()
}

/// Returns one as the API shows it.
///
/// # Errors
/// It does not exist, or the user may not see it.
pub fn show(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<Port, ApiError> {
    get(state, ctx, id).map(|row| show_row(state, ctx, row))
}

/// Returns the row of one.
///
/// # Errors
/// It does not exist, or the user may not see it.
pub fn get<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s Port, ApiError> {
    let row = state
        .neutron
        .ports
        .get(id)
        .filter(|port| ctx.sees(&port.standard.project_id));
    row.map(|row| &**row)
        .ok_or_else(|| Resource::Port.not_found(id))
}

/// Returns the ports of a device, oldest first.
pub fn of_device<'s>(state: &'s CloudState, device: &str) -> Vec<&'s Port> {
    let mut ports: Vec<&Port> = state
        .neutron
        .ports
        .iter()
        .map(|port| &**port)
        .filter(|port| port.device_id == device)
        .collect();
    ports.sort_by(|a, b| a.standard.created_at.cmp(&b.standard.created_at));
    ports
}

fn show_row(state: &CloudState, ctx: &RequestContext, row: &Port) -> Port {
    let mut port = row.clone();
    if !ctx.admin {
        port.host_id = None;
        port.vif_type = None;
    }
    let trunk = state
        .neutron
        .trunks
        .iter()
        .find(|trunk| trunk.port_id == row.id);
    port.trunk_details = trunk.map(|trunk| TrunkDetails {
        trunk_id: trunk.id.clone(),
        sub_ports: trunk
            .sub_ports
            .iter()
            .map(|sub| SubPortDetails {
                port_id: sub.port_id.clone(),
                segmentation_id: sub.segmentation_id.unwrap_or_default(),
                segmentation_type: sub.segmentation_type.clone().unwrap_or_default(),
                mac_address: state
                    .neutron
                    .ports
                    .get(&sub.port_id)
                    .map(|p| p.mac_address.clone())
                    .unwrap_or_default(),
            })
            .collect(),
    });
    port
}

/// Creates one.
///
/// Ports of servers and of the network service itself are `ACTIVE` at once, others are `DOWN` until
/// something is bound.
///
/// # Errors
/// The network, a group or an address does not exist; an address or a hardware address is in use;
/// no address is left; there are too many address pairs; the quota is used up.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    request: PortCreate,
) -> Result<Port, ApiError> {
    // First, check permissions and quota.
    admin_only(ctx, "create_port:binding:host_id", request.host_id.is_some())?;
    let project = owner(ctx, request.project_id)?;
    let network = networks::get(state, ctx, &request.network_id)?;
    let by_default = network.port_security_enabled.unwrap_or(true);
    let device_owner = request.device_owner.unwrap_or_default();
    let trusted = device_owner.starts_with("network:");
    let enforced = request
        .port_security_enabled
        .unwrap_or(by_default && !trusted);
    quotas::check(state, &project, Quotable::Port, 1)?;
    // Then allocate the addresses, and check groups and pairs.
    let mac_address = mac_address(state, &request.network_id, request.mac_address)?;
    let wanted = port_validation::AddressRequest {
        network: &request.network_id,
        mac: &mac_address,
        device_owner: &device_owner,
        held: &[],
    };
    let fixed_ips = port_validation::fixed_ips(state, &wanted, request.fixed_ips)?;
    let security_groups = match request.security_groups {
        Some(groups) => {
            if !enforced && !groups.is_empty() {
                return Err(ApiError::bad_request(
                    "PortSecurityAndIPRequiredForSecurityGroups",
                    "Port security must be enabled and port must have an IP address in order to use security groups.",
                ));
            }
            port_validation::groups(state, ctx, groups)?
        }
        None if enforced && !project.is_empty() => {
            vec![security_groups::ensure_default(state, ctx, &project)]
        }
        None => Vec::new(),
    };
    let pairs = port_validation::address_pairs(
        state,
        request.allowed_address_pairs.unwrap_or_default(),
        &mac_address,
    )?;
    // Finally, create the row.
    let mut row = Port {
        id: new_id(),
        name: request.name.unwrap_or_default(),
        network_id: request.network_id,
        admin_state_up: request.admin_state_up.unwrap_or(true),
        mac_address,
        fixed_ips,
        device_id: request.device_id.unwrap_or_default(),
        device_owner,
        security_groups,
        allowed_address_pairs: pairs,
        port_security_enabled: Some(enforced),
        vnic_type: Some(request.vnic_type.unwrap_or_else(|| "normal".into())),
        host_id: Some(request.host_id.unwrap_or_default()),
        standard: standard(ctx, project, request.description, request.tags),
        ..Port::default()
    };
    port_validation::check_port_security(&row)?;
    settle(&mut row);
    state.neutron.ports.put(row.clone());
    Ok(show_row(state, ctx, &row))
}

/// Sets the fields that follow from the owner of a port.
fn settle(port: &mut Port) {
    let host = port.host_id.as_deref().unwrap_or_default();
    let bound = !host.is_empty()
        || ["compute:", "network:", "trunk:"]
            .iter()
            .any(|owner| port.device_owner.starts_with(owner));
    port.vif_type = Some(if bound { "ovs" } else { "unbound" }.into());
    port.status = match port.device_owner.as_str() {
        FLOATING_IP => "N/A",
        _ if bound && port.admin_state_up => "ACTIVE",
        _ => "DOWN",
    }
    .into();
}

/// Returns the requested hardware address, or a new one that the network does not have yet.
fn mac_address(
    state: &CloudState,
    network: &str,
    asked: Option<String>,
) -> Result<String, ApiError> {
    let in_use = |mac: &str| {
        state
            .neutron
            .ports
            .iter()
            .any(|port| port.network_id == network && port.mac_address == mac)
    };
    let Some(mac) = asked else {
        loop {
            let tail: [u8; 3] = rand::random();
            let bytes = MAC_PREFIX
                .iter()
                .chain(&tail)
                .map(|byte| format!("{byte:02x}"));
            let mac = bytes.collect::<Vec<_>>().join(":");
            if !in_use(&mac) {
                return Ok(mac);
            }
        }
    };
    let mac = mac.to_lowercase();
    if ipam::mac_bytes(&mac).is_none() {
        return Err(invalid("mac_address", format!("'{mac}' is not a valid MAC address")));
    }
    if in_use(&mac) {
        return Err(ApiError::conflict(
            "MacAddressInUse",
            format!(
                "Unable to complete operation for network {network}. The mac address {mac} is in use."
            ),
        ));
    }
    Ok(mac)
}

/// Changes one.
///
/// # Errors
/// It does not exist, it belongs to somebody else, or as for [`create`].
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    request: PortUpdate,
) -> Result<Port, ApiError> {
    admin_only(ctx, "update_port:binding:host_id", request.host_id.is_some())?;
    admin_only(ctx, "update_port:mac_address", request.mac_address.is_some())?;
    let mut row = get(state, ctx, id)?.clone();
    let before = row.clone();
    if let Some(mac) = request.mac_address.filter(|mac| *mac != row.mac_address) {
        row.mac_address = mac_address(state, &row.network_id, Some(mac))?;
    }
    // First, set the simple fields.
    row.name = request.name.unwrap_or(row.name);
    row.admin_state_up = request.admin_state_up.unwrap_or(row.admin_state_up);
    row.device_id = request
        .device_id
        .map_or(row.device_id, Option::unwrap_or_default);
    row.device_owner = request
        .device_owner
        .map_or(row.device_owner, Option::unwrap_or_default);
    row.host_id = request
        .host_id
        .map_or(row.host_id, |host| Some(host.unwrap_or_default()));
    row.vnic_type = request.vnic_type.or(row.vnic_type);
    row.port_security_enabled = request.port_security_enabled.or(row.port_security_enabled);
    row.standard.description = request.description.unwrap_or(row.standard.description);
    // Then allocate addresses, and check groups and pairs.
    if let Some(asked) = request.fixed_ips {
        let wanted = port_validation::AddressRequest {
            network: &row.network_id,
            mac: &row.mac_address,
            device_owner: &row.device_owner,
            held: &before.fixed_ips,
        };
        row.fixed_ips = port_validation::fixed_ips(state, &wanted, Some(asked))?;
    }
    if let Some(groups) = request.security_groups {
        row.security_groups = port_validation::groups(state, ctx, groups)?;
    }
    if let Some(pairs) = request.allowed_address_pairs {
        row.allowed_address_pairs = port_validation::address_pairs(state, pairs, &row.mac_address)?;
    }
    port_validation::check_port_security(&row)?;
    settle(&mut row);
    if row != before {
        touch(ctx, &mut row.standard);
        state.neutron.ports.put(row.clone());
        floating_ips::follow_port(state, ctx, id);
    }
    Ok(show_row(state, ctx, &row))
}

/// Deletes one on behalf of the owner of its device. Floating IPs stay, detached.
///
/// # Errors
/// It does not exist, or a trunk needs it.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    get(state, ctx, id)?;
    for trunk in state.neutron.trunks.iter() {
        let trunk_id = &trunk.id;
        if trunk.port_id == id {
            let message = format!("Port {id} is currently a parent port for trunk {trunk_id}.");
            return Err(ApiError::conflict("PortInUseAsTrunkParent", message));
        }
        if trunk.sub_ports.iter().any(|sub| sub.port_id == id) {
            let message = format!("Port {id} is currently a subport for trunk {trunk_id}.");
            return Err(ApiError::conflict("PortInUseAsSubPort", message));
        }
    }
    state.neutron.ports.remove(id);
    floating_ips::follow_port(state, ctx, id);
    Ok(())
}

/// Deletes one on request of a user of the API.
///
/// # Errors
/// As for [`delete`]; it belongs to a router or a floating IP.
pub fn delete_by_caller(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<(), ApiError> {
    let owner = &get(state, ctx, id)?.device_owner;
    if [ROUTER_INTERFACE, ROUTER_GATEWAY, FLOATING_IP].contains(&&**owner) {
        return Err(ApiError::conflict(
            "ServicePortInUse",
            format!(
                "Port {id} cannot be deleted directly via the port API: has device owner {owner}."
            ),
        ));
    }
    delete(state, ctx, id)
}

//! Networks.

use crate::api::neutron::{Network, NetworkCreate, NetworkUpdate};

use super::{
    Resource,
    common::{admin_only, owner, standard, touch},
    quotas::{self, Quotable},
    security_groups,
};
use crate::state::{ApiError, CloudState, RequestContext, new_id};

/// MTU in bytes.
const MTU: u32 = 1500;

/// Returns the networks that the user may see: their own, shared ones and external ones.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<Network> {
    let mut subnets = std::collections::BTreeMap::<&str, Vec<String>>::new();
    for subnet in state.neutron.subnets.iter() {
        subnets
            .entry(&subnet.network_id)
            .or_default()
            .push(subnet.id.clone());
    }
    let seen = state
        .neutron
        .networks
        .iter()
        .filter(|network| visible(ctx, network));
    seen.map(|network| show_with(ctx, network, subnets.remove(&*network.id).unwrap_or_default()))
        .collect()
}

/// Returns the row of one.
///
/// # Errors
/// It does not exist, or the user may not see it.
pub fn get<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s Network, ApiError> {
    let row = state
        .neutron
        .networks
        .get(id)
        .filter(|network| visible(ctx, network));
    row.map(|row| &**row)
        .ok_or_else(|| Resource::Network.not_found(id))
}

/// Returns one as the API shows it.
///
/// # Errors
/// It does not exist, or the user may not see it.
pub fn show(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<Network, ApiError> {
    let row = get(state, ctx, id)?;
    let subnets = state
        .neutron
        .subnets
        .iter()
        .filter(|subnet| subnet.network_id == id);
    Ok(show_with(ctx, row, subnets.map(|subnet| subnet.id.clone()).collect()))
}

fn show_with(ctx: &RequestContext, row: &Network, subnets: Vec<String>) -> Network {
    let mut network = Network { subnets, ..row.clone() };
    if !ctx.admin {
        network.network_type = None;
        network.physical_network = None;
        network.segmentation_id = None;
    }
    network
}

/// Returns whether the user may see a network.
pub(super) fn visible(ctx: &RequestContext, network: &Network) -> bool {
    ctx.sees(&network.standard.project_id) || network.shared || network.external
}

/// Creates one.
///
/// # Errors
/// The request needs an administrator, or the quota is used up.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    request: NetworkCreate,
) -> Result<Network, ApiError> {
    admin_only(ctx, "create_network:shared", request.shared == Some(true))?;
    admin_only(ctx, "create_network:router:external", request.external == Some(true))?;
    let provider = request.network_type.is_some() || request.physical_network.is_some();
    admin_only(ctx, "create_network:provider", provider || request.segmentation_id.is_some())?;
    let project = owner(ctx, request.project_id)?;
    quotas::check(state, &project, Quotable::Network, 1)?;
    security_groups::ensure_default(state, ctx, &project);
    let row = Network {
        id: new_id(),
        name: request.name.unwrap_or_default(),
        status: "ACTIVE".into(),
        admin_state_up: request.admin_state_up.unwrap_or(true),
        shared: request.shared.unwrap_or(false),
        external: request.external.unwrap_or(false),
        mtu: request.mtu.filter(|mtu| *mtu > 0).unwrap_or(MTU),
        port_security_enabled: Some(request.port_security_enabled.unwrap_or(true)),
        availability_zones: vec!["nova".into()],
        availability_zone_hints: request.availability_zone_hints.unwrap_or_default(),
        network_type: Some(request.network_type.unwrap_or_else(|| "geneve".into())),
        physical_network: request.physical_network,
        segmentation_id: request.segmentation_id,
        standard: standard(ctx, project, request.description, request.tags),
        ..Network::default()
    };
    state.neutron.networks.put(row.clone());
    Ok(show_with(ctx, &row, Vec::new()))
}

/// Changes one.
///
/// # Errors
/// It does not exist, it belongs to somebody else, or the change needs an administrator.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    request: NetworkUpdate,
) -> Result<Network, ApiError> {
    Resource::Network.writable(state, ctx, id)?;
    admin_only(ctx, "update_network:shared", request.shared.is_some())?;
    admin_only(ctx, "update_network:router:external", request.external.is_some())?;
    if request.external == Some(false) {
        let owners = [super::ROUTER_GATEWAY, super::FLOATING_IP];
        let mut ports = state
            .neutron
            .ports
            .iter()
            .filter(|port| port.network_id == id);
        if ports.any(|port| owners.contains(&&*port.device_owner)) {
            return Err(ApiError::conflict(
                "ExternalNetworkInUse",
                format!(
                    "External network {id} cannot be updated to be made non-external, since it has existing gateway ports."
                ),
            ));
        }
    }
    state.neutron.networks.update(id, |row| {
        let before = row.clone();
        row.name = request.name.unwrap_or_else(|| row.name.clone());
        row.admin_state_up = request.admin_state_up.unwrap_or(row.admin_state_up);
        row.shared = request.shared.unwrap_or(row.shared);
        row.external = request.external.unwrap_or(row.external);
        row.mtu = request.mtu.unwrap_or(row.mtu);
        row.port_security_enabled = request.port_security_enabled.or(row.port_security_enabled);
        if let Some(description) = request.description {
            row.standard.description = description;
        }
        if *row != before {
            touch(ctx, &mut row.standard);
        }
    });
    show(state, ctx, id)
}

/// Deletes one with its subnets.
///
/// # Errors
/// It does not exist, it belongs to somebody else, or it still has ports.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    Resource::Network.writable(state, ctx, id)?;
    if state.neutron.ports.iter().any(|port| port.network_id == id) {
        return Err(ApiError::conflict(
            "NetworkInUse",
            format!(
                "Unable to complete operation on network {id}. There are one or more ports still in use on the network."
            ),
        ));
    }
    let subnets = state
        .neutron
        .subnets
        .iter()
        .filter(|subnet| subnet.network_id == id);
    for subnet in subnets.map(|subnet| subnet.id.clone()).collect::<Vec<_>>() {
        state.neutron.subnets.remove(&subnet);
    }
    state.neutron.networks.remove(id);
    Ok(())
}

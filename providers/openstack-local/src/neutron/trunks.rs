//! Trunks: ports with sub-ports.

use crate::api::neutron::{SubPort, Trunk, TrunkCreate, TrunkUpdate};

use super::{
    Resource,
    common::{invalid, owner, standard, touch},
    ports,
    quotas::{self, Quotable},
};
use crate::state::{ApiError, CloudState, RequestContext, new_id};

/// `device_owner` of sub-ports.
const SUB_PORT: &str = "trunk:subport";
/// VLAN IDs.
const VLANS: std::ops::RangeInclusive<u32> = 1..=4094;

/// Returns the trunks that the user may see.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<Trunk> {
    let rows = state
        .neutron
        .trunks
        .iter()
        .filter(|trunk| ctx.sees(&trunk.standard.project_id));
    rows.map(|trunk| Trunk::clone(trunk)).collect()
}

/// Returns one.
///
/// # Errors
/// It does not exist, or the user may not see it.
pub fn get<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s Trunk, ApiError> {
    let row = state
        .neutron
        .trunks
        .get(id)
        .filter(|trunk| ctx.sees(&trunk.standard.project_id));
    row.map(|row| &**row)
        .ok_or_else(|| Resource::Trunk.not_found(id))
}

/// Creates one.
///
/// # Errors
/// The port does not exist, or a port is in use by another trunk.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    request: TrunkCreate,
) -> Result<Trunk, ApiError> {
    let project = owner(ctx, request.project_id)?;
    ports::get(state, ctx, &request.port_id)?;
    check_free(state, &request.port_id)?;
    quotas::check(state, &project, Quotable::Trunk, 1)?;
    let id = new_id();
    state.neutron.trunks.put(Trunk {
        id: id.clone(),
        name: request.name.unwrap_or_default(),
        port_id: request.port_id,
        status: "ACTIVE".into(),
        admin_state_up: request.admin_state_up.unwrap_or(true),
        sub_ports: Vec::new(),
        standard: standard(ctx, project, request.description, None),
    });
    add(state, ctx, &id, request.sub_ports.unwrap_or_default())?;
    get(state, ctx, &id).cloned()
}

/// Rejects a port that a trunk uses.
fn check_free(state: &CloudState, port: &str) -> Result<(), ApiError> {
    let used = state.neutron.trunks.iter().find(|trunk| {
        trunk.port_id == port || trunk.sub_ports.iter().any(|sub| sub.port_id == port)
    });
    used.map_or(Ok(()), |trunk| {
        let message = format!("Port {port} is in use by another trunk: {}.", trunk.id);
        Err(ApiError::conflict("TrunkPortInUse", message))
    })
}

/// Changes one.
///
/// # Errors
/// It does not exist.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    request: TrunkUpdate,
) -> Result<Trunk, ApiError> {
    get(state, ctx, id)?;
    state.neutron.trunks.update(id, |row| {
        let before = row.clone();
        row.name = request.name.unwrap_or_else(|| row.name.clone());
        row.admin_state_up = request.admin_state_up.unwrap_or(row.admin_state_up);
        if let Some(description) = request.description {
            row.standard.description = description;
        }
        if *row != before {
            touch(ctx, &mut row.standard);
        }
    });
    get(state, ctx, id).cloned()
}

/// Adds sub-ports to a trunk.
///
/// # Errors
/// The trunk or a port does not exist, a port is in use, or a VLAN ID is taken or out of range.
pub fn add(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    sub_ports: Vec<SubPort>,
) -> Result<Trunk, ApiError> {
    get(state, ctx, id)?;
    for sub in sub_ports {
        ports::get(state, ctx, &sub.port_id)?;
        check_free(state, &sub.port_id)?;
        let segmentation_type = sub.segmentation_type.unwrap_or_else(|| "vlan".into());
        let segmentation_id = sub.segmentation_id.unwrap_or_default();
        if !VLANS.contains(&segmentation_id) {
            return Err(invalid(
                "sub_ports",
                format!(
                    "Invalid segmentation details: {segmentation_id} is not between 1 and 4094"
                ),
            ));
        }
        let taken = get(state, ctx, id)?
            .sub_ports
            .iter()
            .any(|other| other.segmentation_id == Some(segmentation_id));
        if taken {
            return Err(ApiError::conflict(
                "DuplicateSubPort",
                format!(
                    "segmentation_type {segmentation_type} and segmentation_id {segmentation_id} already in use on trunk {id}."
                ),
            ));
        }
        own(state, ctx, &sub.port_id, id, SUB_PORT)?;
        state.neutron.trunks.update(id, |row| {
            row.sub_ports.push(SubPort {
                port_id: sub.port_id,
                segmentation_id: Some(segmentation_id),
                segmentation_type: Some(segmentation_type),
            });
            touch(ctx, &mut row.standard);
        });
    }
    get(state, ctx, id).cloned()
}

/// Removes sub-ports from a trunk.
///
/// # Errors
/// The trunk does not exist, or it has no such port.
pub fn remove(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    sub_ports: Vec<SubPort>,
) -> Result<Trunk, ApiError> {
    for sub in sub_ports {
        let port = sub.port_id;
        if !get(state, ctx, id)?
            .sub_ports
            .iter()
            .any(|other| other.port_id == port)
        {
            return Err(ApiError::not_found(
                "SubPortNotFound",
                format!("SubPort on trunk {id} with parent port {port} could not be found."),
            ));
        }
        own(state, ctx, &port, "", "")?;
        state.neutron.trunks.update(id, |row| {
            row.sub_ports.retain(|other| other.port_id != port);
            touch(ctx, &mut row.standard);
        });
    }
    get(state, ctx, id).cloned()
}

/// Sets the owner of a port.
fn own(
    state: &mut CloudState,
    ctx: &RequestContext,
    port: &str,
    device_id: &str,
    device_owner: &str,
) -> Result<(), ApiError> {
    let update = crate::api::neutron::PortUpdate {
        device_id: Some(Some(device_id.to_owned())),
        device_owner: Some(Some(device_owner.to_owned())),
        ..Default::default()
    };
    ports::update(state, ctx, port, update).map(drop)
}

/// Deletes one; its ports stay.
///
/// # Errors
/// It does not exist.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    let sub_ports = get(state, ctx, id)?.sub_ports.clone();
    remove(state, ctx, id, sub_ports)?;
    state.neutron.trunks.remove(id);
    Ok(())
}

//! Flavors.

use std::collections::BTreeMap;

use crate::api::nova::{Flavor, FlavorCreate, Link, Swap};

use super::{FlavorRow, Microversion, quotas::admin_only};
use crate::{
    server::Origin,
    state::{ApiError, CloudState, RequestContext, new_id},
};

/// Flavors of a new cloud: ID, name, MiB, GiB, processors.
const SEEDS: [(&str, &str, u64, u64, u64); 5] = [
    ("1", "m1.tiny", 512, 1, 1),
    ("2", "m1.small", 2_048, 20, 1),
    ("3", "m1.medium", 4_096, 40, 2),
    ("4", "m1.large", 8_192, 80, 4),
    ("5", "m1.xlarge", 16_384, 160, 8),
];

/// Adds the flavors that a new cloud has.
pub fn seed(state: &mut CloudState) {
    for (id, name, ram, disk, vcpus) in SEEDS {
        state.nova.flavors.put(FlavorRow {
            id: id.into(),
            name: name.into(),
            ram,
            vcpus,
            disk,
            swap: 0,
            ephemeral: 0,
            rxtx_factor: 1.0,
            is_public: true,
            description: None,
            extra_specs: BTreeMap::new(),
        });
    }
}

/// Returns one.
///
/// # Errors
/// It does not exist, or the user may not use it.
pub fn get<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s FlavorRow, ApiError> {
    let row = state
        .nova
        .flavors
        .get(id)
        .filter(|flavor| flavor.is_public || ctx.admin);
    row.map(|row| &**row)
        .ok_or_else(|| ApiError::not_found("", format!("Flavor {id} could not be found.")))
}

/// Returns one as the API shows it.
pub fn show(row: &FlavorRow, version: Microversion, origin: &Origin, details: bool) -> Flavor {
    let from = |minor: u16| version >= Microversion(minor);
    let flavor = Flavor {
        id: row.id.clone(),
        name: row.name.clone(),
        description: from(55).then(|| row.description.clone()),
        links: links(origin, &row.id),
        ..Flavor::default()
    };
    if !details {
        return flavor;
    }
    Flavor {
        ram: Some(row.ram),
        vcpus: Some(row.vcpus),
        disk: Some(row.disk),
        swap: Some(if row.swap == 0 && !from(75) {
            Swap::Empty
        } else {
            Swap::Mib(row.swap)
        }),
        rxtx_factor: Some(row.rxtx_factor),
        is_public: Some(row.is_public),
        disabled: Some(false),
        ephemeral: Some(row.ephemeral),
        extra_specs: from(61).then(|| row.extra_specs.clone()),
        ..flavor
    }
}

fn links(origin: &Origin, id: &str) -> Vec<Link> {
    vec![
        Link {
            rel: "self".into(),
            href: format!("{origin}/compute/v2.1/flavors/{id}"),
        },
        Link {
            rel: "bookmark".into(),
            href: format!("{origin}/compute/flavors/{id}"),
        },
    ]
}

/// Creates one.
///
/// # Errors
/// The user is not an administrator; ID or name is taken.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    request: FlavorCreate,
) -> Result<FlavorRow, ApiError> {
    admin_only(ctx, "os_compute_api:os-flavor-manage:create")?;
    let id = request.id.filter(|id| id != "auto").unwrap_or_else(new_id);
    if state.nova.flavors.get(&id).is_some() {
        return Err(ApiError::conflict("", format!("Flavor with ID {id} already exists.")));
    }
    if state
        .nova
        .flavors
        .iter()
        .any(|flavor| flavor.name == request.name)
    {
        return Err(ApiError::conflict(
            "",
            format!("Flavor with name {} already exists.", request.name),
        ));
    }
    let row = FlavorRow {
        id,
        name: request.name,
        ram: request.ram,
        vcpus: request.vcpus,
        disk: request.disk,
        swap: match request.swap {
            Some(Swap::Mib(mib)) => mib,
            Some(Swap::Empty) | None => 0,
        },
        ephemeral: request.ephemeral.unwrap_or(0),
        rxtx_factor: request.rxtx_factor.unwrap_or(1.0),
        is_public: request.is_public.unwrap_or(true),
        description: request.description,
        extra_specs: BTreeMap::new(),
    };
    state.nova.flavors.put(row.clone());
    Ok(row)
}

/// Deletes one. Servers keep their copy.
///
/// # Errors
/// It does not exist, or the user is not an administrator.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    admin_only(ctx, "os_compute_api:os-flavor-manage:delete")?;
    get(state, ctx, id)?;
    state.nova.flavors.remove(id);
    Ok(())
}

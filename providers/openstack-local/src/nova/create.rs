//! Creation of servers.

use crate::api::{
    neutron::{FixedIpRequest, PortCreate, PortUpdate},
    nova::{NetworkRequest, Networks, ServerCreate},
};

use super::{
    Attachment, Microversion, ServerRow, flavors, keypairs, quotas, server_groups,
    servers::{check_access, check_metadata, check_name, service},
    zones,
};
use crate::{
    neutron,
    state::{ApiError, CloudState, RequestContext, new_id},
};

/// Creates servers with their ports, and returns the ID of the first.
///
/// # Errors
/// A value is invalid; flavor, network, port, group or zone does not exist; a quota is used up.
// length: every field of the request, in its order
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    version: Microversion,
    request: &ServerCreate,
) -> Result<String, ApiError> {
    // First, check the request.
    check_name(&request.name)?;
    check_access(request.access_ipv4.as_deref().unwrap_or_default(), true)?;
    check_access(request.access_ipv6.as_deref().unwrap_or_default(), false)?;
    let metadata = request.metadata.clone().unwrap_or_default();
    check_metadata(&metadata)?;
    let flavor = flavors::get(state, ctx, &request.flavor_ref)
        .map_err(|error| ApiError::bad_request("", error.message))?
        .clone();
    let least = request.min_count.unwrap_or(1).max(1);
    let count = request.max_count.unwrap_or(least);
    if count < least {
        return Err(ApiError::bad_request("", "min_count must be <= max_count"));
    }
    quotas::check(state, &ctx.project, &flavor, count)?;
    // `zone:host` requests a host as well; there is one in each zone.
    let asked = request
        .availability_zone
        .as_deref()
        .and_then(|zone| zone.split(':').next());
    let asked = asked.filter(|zone| !zone.is_empty());
    let zone = asked.unwrap_or(zones::DEFAULT);
    if !zones::is_available(state, zone) {
        return Err(ApiError::bad_request("", "The requested availability zone is not available"));
    }
    let group = request
        .hints
        .group
        .clone()
        .filter(|group| !group.is_empty());
    if let Some(group) = &group {
        server_groups::find(state, ctx, group)
            .map_err(|error| ApiError::bad_request("", error.message))?;
    }
    if let Some(name) = &request.key_name
        && state
            .nova
            .key_pairs
            .get(&keypairs::key(&ctx.user, name))
            .is_none()
    {
        return Err(ApiError::bad_request("", "Invalid key_name provided."));
    }
    let networks = networks(state, ctx, version, request.networks.as_ref(), count)?;
    let groups = groups(state, ctx, request)?;
    // Then create the servers.
    let mut first = None;
    for number in 1..=count {
        let id = new_id();
        let name = if count == 1 {
            request.name.clone()
        } else {
            format!("{}-{number}", request.name)
        };
        let plan = Plan { id: &id, zone, groups: groups.as_deref() };
        let ports = networks
            .iter()
            .map(|network| attach(state, ctx, &plan, network))
            .collect::<Result<_, _>>()?;
        let row = ServerRow {
            hostname: request.hostname.clone().unwrap_or_else(|| hostname(&name)),
            name,
            project: ctx.project.to_string(),
            user: ctx.user.to_string(),
            status: "ACTIVE".to_owned(),
            fault: None,
            created: ctx.now,
            updated: ctx.now,
            flavor: flavor.clone(),
            image: request.image_ref.clone().filter(|image| !image.is_empty()),
            metadata: metadata.clone(),
            zone: zone.to_owned(),
            pinned_zone: asked.map(str::to_owned),
            key_name: request.key_name.clone(),
            access_ipv4: request.access_ipv4.clone().unwrap_or_default(),
            access_ipv6: request.access_ipv6.clone().unwrap_or_default(),
            description: request.description.clone(),
            tags: request.tags.clone().unwrap_or_default(),
            lock: None,
            ports,
            cell_down: false,
            group: group.clone(),
            id: id.clone(),
        };
        state.nova.servers.put(row);
        first.get_or_insert(id);
    }
    first.ok_or_else(|| ApiError::bad_request("", "max_count must be at least 1"))
}

/// Returns a host name for the name of a server.
fn hostname(name: &str) -> String {
    let mut host: String = name
        .to_lowercase()
        .chars()
        .map(|c| if matches!(c, ' ' | '_' | '.') { '-' } else { c })
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect();
    host.truncate(63);
    let host = host.trim_matches('-').to_owned();
    if host.is_empty() {
        "server".to_owned()
    } else {
        host
    }
}

/// Returns the requested networks and ports, checked.
fn networks(
    state: &CloudState,
    ctx: &RequestContext,
    version: Microversion,
    asked: Option<&Networks>,
    count: u32,
) -> Result<Vec<NetworkRequest>, ApiError> {
    // First, handle requests that name no networks.
    let asked = match asked {
        Some(Networks::These(these)) => these,
        Some(Networks::None) => return Ok(Vec::new()),
        None if version >= Microversion(37) => {
            return Err(ApiError::bad_request(
                "",
                "Invalid input for field/attribute server. 'networks' is a required property",
            ));
        }
        None | Some(Networks::Auto) => return only_network(state, ctx),
    };
    // Then check each network or port.
    for network in asked {
        match (&network.uuid, &network.port) {
            (_, Some(_)) if count > 1 => {
                return Err(ApiError::bad_request(
                    "",
                    "Unable to launch multiple instances with a single configured port ID. \
                     Please launch your instance one by one with different ports.",
                ));
            }
            (_, Some(port)) => {
                let row = neutron::ports::get(state, ctx, port);
                let row = row.map_err(|_| {
                    ApiError::bad_request("", format!("Port {port} could not be found."))
                })?;
                if !row.device_id.is_empty() {
                    return Err(ApiError::bad_request("", format!("Port {port} is still in use.")));
                }
            }
            (Some(id), None) => {
                neutron::networks::get(state, ctx, id).map_err(|_| {
                    ApiError::bad_request("", format!("Network {id} could not be found."))
                })?;
                if !state
                    .neutron
                    .subnets
                    .iter()
                    .any(|subnet| subnet.network_id == *id)
                {
                    let message =
                        format!("Network {id} requires a subnet in order to boot instances on.");
                    return Err(ApiError::bad_request("", message));
                }
                if network.fixed_ip.is_some() && count > 1 {
                    return Err(ApiError::bad_request(
                        "",
                        "Unable to launch multiple instances with a single fixed IP.",
                    ));
                }
            }
            (None, None) => {
                return Err(ApiError::bad_request(
                    "",
                    "Either 'uuid' or 'port' is needed for a network",
                ));
            }
        }
    }
    Ok(asked.clone())
}

/// Returns the only network of the project, if there is one.
fn only_network(state: &CloudState, ctx: &RequestContext) -> Result<Vec<NetworkRequest>, ApiError> {
    let own = state.neutron.networks.iter();
    let own = own.filter(|network| {
        !network.external && (network.shared || *network.standard.project_id == *ctx.project)
    });
    let own: Vec<_> = own.collect();
    match own.as_slice() {
        [] => Ok(Vec::new()),
        [network] => {
            Ok(vec![NetworkRequest { uuid: Some(network.id.clone()), ..NetworkRequest::default() }])
        }
        _ => Err(ApiError::conflict(
            "",
            "Multiple possible networks found, use a Network ID to be more specific.",
        )),
    }
}

/// Returns the IDs of the requested groups.
fn groups(
    state: &CloudState,
    ctx: &RequestContext,
    request: &ServerCreate,
) -> Result<Option<Vec<String>>, ApiError> {
    let Some(names) = &request.security_groups else {
        return Ok(None);
    };
    // The default group is created with the first port.
    let names = names.iter().map(|group| &*group.name);
    let found: Vec<String> = names
        .filter(|name| *name != "default")
        .map(|name| group(state, ctx, name))
        .collect::<Result<_, _>>()?;
    Ok((!found.is_empty()).then_some(found))
}

/// Finds a group of the project by name or ID.
pub(super) fn group(
    state: &CloudState,
    ctx: &RequestContext,
    name: &str,
) -> Result<String, ApiError> {
    let own = state
        .neutron
        .security_groups
        .iter()
        .filter(|group| *group.standard.project_id == *ctx.project);
    let found: Vec<_> = own
        .filter(|group| group.id == name || group.name == name)
        .collect();
    match found.as_slice() {
        [group] => Ok(group.id.clone()),
        [] => Err(ApiError::bad_request(
            "",
            format!("Security group {name} not found for project {}.", ctx.project),
        )),
        _ => Err(ApiError::conflict(
            "",
            format!(
                "Multiple security_group matches found for name '{name}', use an ID to be more specific."
            ),
        )),
    }
}

/// What the ports of a server share.
pub(super) struct Plan<'a> {
    /// Server.
    pub id: &'a str,
    /// Its zone.
    pub zone: &'a str,
    /// Groups of new ports; the project's default group when absent.
    pub groups: Option<&'a [String]>,
}

/// Attaches a server to an existing port, or to a new one.
pub(super) fn attach(
    state: &mut CloudState,
    ctx: &RequestContext,
    plan: &Plan<'_>,
    network: &NetworkRequest,
) -> Result<Attachment, ApiError> {
    let ctx = service(ctx);
    let device_owner = format!("compute:{}", plan.zone);
    let host = zones::host(plan.zone);
    if let Some(port) = &network.port {
        let update = PortUpdate {
            device_id: Some(Some(plan.id.to_owned())),
            device_owner: Some(Some(device_owner)),
            host_id: Some(Some(host)),
            ..PortUpdate::default()
        };
        neutron::ports::update(state, &ctx, port, update).map_err(from_neutron)?;
        return Ok(Attachment { port: port.clone(), owned: false, tag: network.tag.clone() });
    }
    let request = PortCreate {
        network_id: network.uuid.clone().unwrap_or_default(),
        fixed_ips: network.fixed_ip.map(|address| {
            vec![FixedIpRequest { ip_address: Some(address), ..FixedIpRequest::default() }]
        }),
        device_id: Some(plan.id.to_owned()),
        device_owner: Some(device_owner),
        security_groups: plan.groups.map(<[String]>::to_vec),
        host_id: Some(host),
        ..PortCreate::default()
    };
    let port = neutron::ports::create(state, &ctx, request).map_err(from_neutron)?;
    Ok(Attachment { port: port.id, owned: true, tag: network.tag.clone() })
}

/// Converts an error of the network service to one of the compute service.
pub(super) fn from_neutron(error: ApiError) -> ApiError {
    match &*error.kind {
        "OverQuota" => ApiError::forbidden("", "Maximum number of ports exceeded"),
        "IpAddressAlreadyAllocated"
        | "IpAddressGenerationFailure"
        | "NetworkNotFound"
        | "PortNotFound" => ApiError::bad_request("", error.message),
        _ => error,
    }
}

//! Addresses of load balancers, which are ports of Neutron: the only place where the two services
//! meet.

use std::net::IpAddr;

use crate::api::{
    neutron::{FixedIpRequest, Port, PortCreate, PortUpdate, Subnet},
    octavia::{AdditionalVip, LoadBalancerCreate},
};
use ipnet::IpNet;
use jiff::Timestamp;

use super::{
    error::{no_such, validation},
    provider_driver::PortNames,
    rows::LoadBalancerRow,
};
use crate::{
    neutron::{networks, ports, security_groups, subnets},
    state::{ApiError, CloudState, RequestContext},
};

/// The address of a load balancer.
#[derive(Clone, Debug)]
pub(super) struct Vip {
    pub(super) address: String,
    pub(super) port: String,
    pub(super) subnet: String,
    pub(super) network: String,
    pub(super) additional: Vec<AdditionalVip>,
    /// True when the port was created for it.
    pub(super) owned: bool,
}

/// Where the address is.
struct VipLocation {
    network: String,
    subnet: String,
    address: Option<IpAddr>,
    port: Option<String>,
}

/// Finds the address of a new load balancer, and creates the port that has it.
///
/// # Errors
/// 400 when network, subnet or port does not exist or does not match, 409 when the address or the
/// port is in use.
pub(super) fn allocate(
    state: &mut CloudState,
    ctx: &RequestContext,
    create: &LoadBalancerCreate,
    words: &PortNames,
    project: &str,
) -> Result<Vip, ApiError> {
    // First, find out where the addresses are.
    let place = place(state, ctx, create)?;
    let more = additional(state, ctx, create, &place)?;
    let groups = create.vip_sg_ids.clone().unwrap_or_default();
    if let Some(group) = groups
        .iter()
        .find(|group| security_groups::show(state, ctx, group).is_err())
    {
        return Err(no_such("Security Group", group));
    }
    // Then create the port, or use the given one.
    let port = match &place.port {
        Some(port) => adopt_port(state, ctx, port, words, groups)?,
        None => {
            let first = FixedIpRequest {
                subnet_id: Some(place.subnet.clone()),
                ip_address: place.address,
            };
            let request = PortCreate {
                network_id: place.network.clone(),
                name: Some(words.name.clone()),
                fixed_ips: Some(std::iter::once(first).chain(more.iter().cloned()).collect()),
                device_id: Some(words.device.clone()),
                device_owner: Some(words.owner.to_owned()),
                security_groups: Some(groups),
                project_id: Some(project.to_owned()),
                ..PortCreate::default()
            };
            // The service creates the port, whoever requested the load balancer.
            ports::create(state, &service(ctx.now), request)?
        }
    };
    // Finally, read the addresses from the port.
    let address = address_on(&port, &place.subnet, place.address).ok_or_else(|| {
        validation("No VIP address found on the specified VIP port within the specified subnet.")
    })?;
    let additional = more.iter().filter_map(|asked| {
        let subnet = asked.subnet_id.clone()?;
        let ip_address = address_on(&port, &subnet, asked.ip_address)?.to_string();
        Some(AdditionalVip {
            subnet_id: subnet,
            ip_address: Some(ip_address),
            port_id: Some(port.id.clone()),
        })
    });
    Ok(Vip {
        address: address.to_string(),
        additional: additional.collect(),
        port: port.id.clone(),
        subnet: place.subnet,
        network: place.network,
        owned: place.port.is_none(),
    })
}

/// Returns the context of the load-balancer service itself, as a user of Neutron.
fn service(now: Timestamp) -> RequestContext {
    RequestContext { now, project: "".into(), user: "octavia".into(), admin: true }
}

fn address_on(port: &Port, subnet: &str, wanted: Option<IpAddr>) -> Option<IpAddr> {
    let mut here = port
        .fixed_ips
        .iter()
        .filter(|ip| ip.subnet_id == subnet)
        .map(|ip| ip.ip_address);
    match wanted {
        Some(wanted) => here.find(|address| *address == wanted),
        None => here.next(),
    }
}

/// Reads where the address is, and fills in what the request does not say.
fn place(
    state: &CloudState,
    ctx: &RequestContext,
    create: &LoadBalancerCreate,
) -> Result<VipLocation, ApiError> {
    // The schema has accepted it, so it is an address.
    let address = create
        .vip_address
        .as_ref()
        .and_then(|address| address.parse().ok());
    if let Some(port) = &create.vip_port_id {
        return place_of_port(state, ctx, create, port, address);
    }
    if let Some(network) = &create.vip_network_id {
        if networks::get(state, ctx, network).is_err() {
            return Err(no_such("Network", network));
        }
        let subnet = match &create.vip_subnet_id {
            Some(id) if subnet_of(state, ctx, id)?.network_id != *network => {
                return Err(no_such("Subnet", id));
            }
            Some(id) => id.clone(),
            None => choose_subnet(state, network, address)?,
        };
        return Ok(VipLocation { network: network.clone(), subnet, address, port: None });
    }
    let Some(subnet) = &create.vip_subnet_id else {
        return Err(validation(
            "VIP must contain one of: vip_port_id, vip_network_id, vip_subnet_id.",
        ));
    };
    let network = subnet_of(state, ctx, subnet)?.network_id.clone();
    Ok(VipLocation { network, subnet: subnet.clone(), address, port: None })
}

fn place_of_port(
    state: &CloudState,
    ctx: &RequestContext,
    create: &LoadBalancerCreate,
    port: &str,
    address: Option<IpAddr>,
) -> Result<VipLocation, ApiError> {
    let row = ports::get(state, ctx, port).map_err(|_| no_such("Port", port))?;
    if !row.device_id.is_empty() {
        let fault = format_args!("Port {port} is already used by device {} ", row.device_id);
        return Err(validation(fault));
    }
    let fixed = match (&create.vip_subnet_id, address) {
        (Some(subnet), address) => {
            let fault =
                "No VIP address found on the specified VIP port within the specified subnet.";
            subnet_of(state, ctx, subnet)?;
            let address = address_on(row, subnet, address).ok_or_else(|| validation(fault))?;
            (subnet.clone(), address)
        }
        (None, Some(address)) => {
            let found = row.fixed_ips.iter().find(|ip| ip.ip_address == address);
            let fault = "Specified VIP address not found on the specified VIP port.";
            (found.ok_or_else(|| validation(fault))?.subnet_id.clone(), address)
        }
        (None, None) => match row.fixed_ips.as_slice() {
            [ip] => (ip.subnet_id.clone(), ip.ip_address),
            _ => {
                let fault = "VIP port's subnet could not be determined. Please specify either a VIP subnet or address.";
                return Err(validation(fault));
            }
        },
    };
    let subnet = fixed.0;
    let address = Some(fixed.1);
    Ok(VipLocation {
        network: row.network_id.clone(),
        subnet,
        address,
        port: Some(port.to_owned()),
    })
}

fn subnet_of<'a>(
    state: &'a CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'a Subnet, ApiError> {
    subnets::get(state, ctx, id).map_err(|_| no_such("Subnet", id))
}

/// Chooses a subnet of a network: the one that contains the address, else the first with IPv4, else
/// the first.
fn choose_subnet(
    state: &CloudState,
    network: &str,
    address: Option<IpAddr>,
) -> Result<String, ApiError> {
    let mut of_network: Vec<&Subnet> = state
        .neutron
        .subnets
        .iter()
        .map(|row| &**row)
        .filter(|row| row.network_id == network)
        .collect();
    of_network.sort_by(|a, b| a.standard.created_at.cmp(&b.standard.created_at));
    let holds = |row: &&&Subnet| match (address, row.cidr.parse::<IpNet>()) {
        (Some(address), Ok(range)) => range.contains(&address),
        _ => false,
    };
    let chosen = match address {
        Some(_) => of_network.iter().find(holds),
        None => of_network
            .iter()
            .find(|row| row.ip_version == 4)
            .or(of_network.first()),
    };
    chosen.map(|row| row.id.clone()).ok_or_else(|| {
        validation(if address.is_some() {
            "Supplied network does not contain a subnet for VIP address specified."
        } else {
            "Supplied network does not contain a subnet."
        })
    })
}

/// Reads further addresses, on other subnets of the same network.
fn additional(
    state: &CloudState,
    ctx: &RequestContext,
    create: &LoadBalancerCreate,
    place: &VipLocation,
) -> Result<Vec<FixedIpRequest>, ApiError> {
    let mut seen = vec![place.subnet.as_str()];
    let mut more = Vec::new();
    for vip in create.additional_vips.iter().flatten() {
        if seen.contains(&vip.subnet_id.as_str()) {
            return Err(validation(
                "Duplicate VIP subnet(s) specified. Only one IP can be bound per subnet.",
            ));
        }
        seen.push(&vip.subnet_id);
        if subnet_of(state, ctx, &vip.subnet_id)?.network_id != place.network {
            return Err(validation("All VIP subnets must belong to the same network."));
        }
        let ip_address = vip
            .ip_address
            .as_ref()
            .and_then(|address| address.parse().ok());
        more.push(FixedIpRequest { subnet_id: Some(vip.subnet_id.clone()), ip_address });
    }
    Ok(more)
}

/// Assigns an existing port to the load balancer. Octavia's own driver takes the port's security groups
/// off, in favour of its own (which this cloud does without) and those of the request, and never puts
/// them back.
fn adopt_port(
    state: &mut CloudState,
    ctx: &RequestContext,
    port: &str,
    words: &PortNames,
    groups: Vec<String>,
) -> Result<Port, ApiError> {
    let request = PortUpdate {
        security_groups: (words.owner == "Octavia").then_some(groups),
        device_id: Some(Some(words.device.clone())),
        device_owner: Some(Some(words.owner.to_owned())),
        ..PortUpdate::default()
    };
    ports::update(state, &service(ctx.now), port, request)
}

/// Releases the address of a load balancer. A floating IP on it stays, detached; a port that
/// existed before stays too.
pub(super) fn release(state: &mut CloudState, now: Timestamp, row: &LoadBalancerRow) {
    let Some(port) = &row.body.vip_port_id else {
        return;
    };
    let ctx = service(now);
    let released = if row.owns_port {
        ports::delete(state, &ctx, port)
    } else {
        let request = PortUpdate {
            device_id: Some(None),
            device_owner: Some(None),
            ..PortUpdate::default()
        };
        ports::update(state, &ctx, port, request).map(drop)
    };
    if let Err(error) = released {
        // Somebody else has deleted the port: there is nothing to release.
        tracing::debug!(load_balancer = row.body.id, %port, %error, "the port of a load balancer is gone already");
    }
}

/// Checks that a subnet exists.
pub(super) fn check_subnet(state: &CloudState, id: &str) -> Result<(), ApiError> {
    if state.neutron.subnets.get(id).is_some() {
        Ok(())
    } else {
        Err(no_such("Subnet", id))
    }
}

/// Returns the CIDR of a subnet.
pub(super) fn network_of(state: &CloudState, subnet: &str) -> Option<IpNet> {
    state.neutron.subnets.get(subnet)?.cidr.parse().ok()
}

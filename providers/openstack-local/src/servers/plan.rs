//! Which servers run, and what they do: from rows to running servers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::{
    nova::ServerRow,
    state::{ApiError, CloudState},
};

/// Metadata: `true` makes the server a node of the cluster.
pub const NODE: &str = "openstack-local:node";
/// Metadata: ports at which the server answers HTTP, separated by commas.
pub const WEB: &str = "openstack-local:web";
/// Maximum number of ports in [`WEB`].
const MOST: usize = 16;

/// A server that does something while it is switched on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningServer {
    /// ID of the server.
    pub server: String,
    /// Its name, and the node's.
    pub name: String,
    /// Its addresses that are loopback addresses of this machine.
    pub addresses: Vec<IpAddr>,
    /// Ports at which it answers.
    pub web: BTreeSet<u16>,
    /// True when it is a node.
    pub node: bool,
}

/// Returns the servers that should run now, by ID.
pub fn machines(state: &CloudState) -> BTreeMap<String, RunningServer> {
    let rows = state
        .nova
        .servers
        .iter()
        .filter(|row| row.status == "ACTIVE");
    rows.filter_map(|row| machine(state, row))
        .map(|machine| (machine.server.clone(), machine))
        .collect()
}

fn machine(state: &CloudState, row: &ServerRow) -> Option<RunningServer> {
    // The metadata was checked when it was set.
    let ServerOptions { node, web } = wishes(&row.metadata).unwrap_or_default();
    if !node && web.is_empty() {
        return None;
    }
    let ports = row
        .ports
        .iter()
        .filter_map(|attached| state.neutron.ports.get(&attached.port));
    let addresses = ports.flat_map(|port| port.fixed_ips.iter().map(|fixed| fixed.ip_address));
    let addresses = addresses.filter(IpAddr::is_loopback).collect();
    Some(RunningServer {
        server: row.id.clone(),
        name: row.name.clone(),
        addresses,
        web,
        node,
    })
}

/// Rejects invalid values.
///
/// # Errors
/// 400 with the key and its valid values.
pub(crate) fn check(metadata: &BTreeMap<String, String>) -> Result<(), ApiError> {
    wishes(metadata)
        .map(drop)
        .map_err(|message| ApiError::bad_request("", message))
}

#[derive(Debug, Default, PartialEq, Eq)]
struct ServerOptions {
    node: bool,
    web: BTreeSet<u16>,
}

fn wishes(metadata: &BTreeMap<String, String>) -> Result<ServerOptions, String> {
    let invalid = |key: &str, value: &str, takes: &str| {
        format!("Invalid metadata {key}={value}: it takes {takes}.")
    };
    let node = match metadata
        .get(NODE)
        .map(|value| (value, value.to_ascii_lowercase()))
    {
        None => false,
        Some((_, value)) if value == "true" => true,
        Some((_, value)) if value == "false" => false,
        Some((value, _)) => return Err(invalid(NODE, value, "true or false")),
    };
    let web = match metadata.get(WEB) {
        None => BTreeSet::new(),
        Some(value) => {
            let ports: Option<BTreeSet<u16>> = value
                .split(',')
                .map(|port| port.trim().parse().ok().filter(|port| *port > 0))
                .collect();
            let ports = ports.filter(|ports| ports.len() <= MOST);
            let takes = format!("at most {MOST} ports from 1 to 65535, separated by commas");
            ports.ok_or_else(|| invalid(WEB, value, &takes))?
        }
    };
    Ok(ServerOptions { node, web })
}

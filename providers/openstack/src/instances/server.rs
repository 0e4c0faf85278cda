//! The fields of Nova servers and their ports that Nodes need.

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    k8s::Interner,
    provider::{CloudError, PowerState},
};

use crate::api::{
    neutron::Port,
    nova::{Server, ServerFlavor},
};

/// Result for one server. `Ok(None)` means that Nova reported it as not found.
pub type ServerLookup = Result<Option<Arc<NovaServer>>, CloudError>;

/// The fields of a server that Nodes show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NovaServer {
    /// ID of the server.
    pub id: Arc<str>,
    /// Name of the server, by which it is found for a Node without provider ID.
    pub name: Arc<str>,
    /// Host name that Nova gave to the operating system (`OS-EXT-SRV-ATTR:hostname`, microversion
    /// 2.90 and newer, for administrators 2.3). It is often the Node's name where the server's name
    /// is not.
    pub host_name: Option<Box<str>>,
    /// Status in Nova's spelling.
    pub status: Arc<str>,
    /// False while Nova starts the server, and if its virtual machine runs on the hypervisor.
    pub may_be_off: bool,
    /// Availability zone in Nova's spelling.
    pub zone: Option<Arc<str>>,
    /// Opaque name of the hypervisor, equal for servers that share one within a project.
    pub host_id: Option<Arc<str>>,
    /// Flavor by name, or by ID where Nova shows only that.
    pub flavor: Flavor,
    /// `accessIPv4`.
    pub access_v4: Option<Box<str>>,
    /// `accessIPv6`.
    pub access_v6: Option<Box<str>>,
    /// Metadata entry `hostname`.
    pub hostname: Option<Box<str>>,
    /// Addresses on the server's networks, sorted by network name, and in Nova's order within a
    /// network.
    pub networks: Box<[NetworkAddress]>,
}

impl NovaServer {
    /// Takes the needed fields from Nova's response. Returns `None` for a server in a cell that does
    /// not answer, because its response lacks the addresses.
    pub fn from_nova(server: Server, strings: &Interner) -> Option<Self> {
        if server.is_partial() {
            return None;
        }
        // The map of addresses is sorted by network name.
        let mut networks = Vec::new();
        for (network, addresses) in server.addresses.unwrap_or_default() {
            let network = strings.intern(&network);
            for address in addresses {
                networks.push(NetworkAddress {
                    network: network.clone(),
                    floating: address.is_floating(),
                    address: address.addr.to_string().into(),
                });
            }
        }
        Some(Self {
            id: server.id.into(),
            name: server.name?.into(),
            host_name: non_empty(server.hostname),
            status: strings.intern(&server.status),
            may_be_off: server.task_state.as_deref() != Some(POWERING_ON)
                && server.power_state != Some(RUNNING),
            zone: intern_non_empty(server.availability_zone, strings),
            host_id: intern_non_empty(server.host_id, strings),
            flavor: server
                .flavor
                .map_or(Flavor::Unknown, |flavor| Flavor::from_nova(flavor, strings)),
            access_v4: non_empty(server.access_ipv4),
            access_v6: non_empty(server.access_ipv6),
            hostname: non_empty(server.metadata.hostname),
            networks: networks.into(),
        })
    }
}

fn non_empty(text: Option<String>) -> Option<Box<str>> {
    text.filter(|text| !text.is_empty()).map(Into::into)
}

fn intern_non_empty(text: Option<String>, strings: &Interner) -> Option<Arc<str>> {
    text.filter(|text| !text.is_empty())
        .map(|text| strings.intern(&text))
}

/// Flavor of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Flavor {
    /// Its name (`flavor.original_name`, microversion 2.47 and newer).
    Name(Arc<str>),
    /// Its ID; another request finds the name.
    Id(Arc<str>),
    /// Nova does not show it.
    #[default]
    Unknown,
}

impl Flavor {
    fn from_nova(flavor: ServerFlavor, strings: &Interner) -> Self {
        match (flavor.original_name, flavor.id) {
            (Some(name), _) => Self::Name(strings.intern(&name)),
            (None, Some(id)) => Self::Id(strings.intern(&id)),
            (None, None) => Self::Unknown,
        }
    }
}

/// An address on a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkAddress {
    /// Name of the network.
    pub network: Arc<str>,
    /// The address in canonical form.
    pub address: Box<str>,
    /// True when it is a floating IP.
    pub floating: bool,
}

/// A port of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerPort {
    /// True when its status is `ACTIVE`.
    pub active: bool,
    /// Fixed addresses, in Neutron's order.
    pub fixed: Box<[Box<str>]>,
    /// IDs of the sub-ports of the trunk whose parent this port is.
    pub sub_ports: Box<[Box<str>]>,
}

impl ServerPort {
    fn from_neutron(port: Port) -> Self {
        let sub_ports = port
            .trunk_details
            .map(|trunk| trunk.sub_ports)
            .unwrap_or_default();
        Self {
            active: port.status == "ACTIVE",
            fixed: port
                .fixed_ips
                .iter()
                .map(|ip| ip.ip_address.to_string().into())
                .collect(),
            sub_ports: sub_ports
                .into_iter()
                .map(|port| port.port_id.into())
                .collect(),
        }
    }
}

/// Groups ports by server ID. Each list is in Neutron's order.
pub fn group_by_server(ports: Vec<Port>) -> BTreeMap<String, Vec<ServerPort>> {
    let mut by_server: BTreeMap<String, Vec<ServerPort>> = BTreeMap::new();
    for mut port in ports {
        by_server
            .entry(std::mem::take(&mut port.device_id))
            .or_default()
            .push(ServerPort::from_neutron(port));
    }
    by_server
}

/// The power state of a virtual machine that runs on its hypervisor.
const RUNNING: i64 = 1;

/// What Nova does with a server that it starts.
const POWERING_ON: &str = "powering-on";

/// Maps a server status to the power state of a Node.
///
/// As in upstream, only `SHUTOFF` counts as stopped; unlike there, not while Nova starts the server, or
/// if its virtual machine runs nevertheless. A server that is paused, suspended, shelved or in error
/// leaves its Node unchanged: it is no proof that the machine is off, nor that it runs. No status
/// counts as terminated, because even a `SOFT_DELETED` server can be restored. Nova shows `UNKNOWN`
/// while a server's cell does not answer.
pub fn power_state(server: &NovaServer) -> PowerState {
    match &*server.status {
        "SHUTOFF" if server.may_be_off => PowerState::Stopped,
        "UNKNOWN" | "" => PowerState::Unknown,
        "ACTIVE" | "PASSWORD" | "RESCUE" | "VERIFY_RESIZE" => PowerState::Running,
        _ => PowerState::Transitional,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_being_started_is_not_stopped() {
        for (task, power, expected) in [
            (None, None, PowerState::Stopped),
            (None, Some(4), PowerState::Stopped),
            (None, Some(6), PowerState::Stopped),
            (None, Some(0), PowerState::Stopped),
            (Some(""), Some(4), PowerState::Stopped),
            (Some("image_uploading"), Some(4), PowerState::Stopped),
            (None, Some(1), PowerState::Transitional),
            (Some("powering-on"), Some(4), PowerState::Transitional),
            (Some("powering-on"), None, PowerState::Transitional),
        ] {
            let answer = serde_json::json!({
                "id": "a",
                "name": "a",
                "status": "SHUTOFF",
                "addresses": {},
                "OS-EXT-STS:task_state": task,
                "OS-EXT-STS:power_state": power,
            });
            let server: Server = serde_json::from_value(answer).unwrap();
            let server = NovaServer::from_nova(server, &Interner::default()).unwrap();
            assert_eq!(power_state(&server), expected, "{task:?} {power:?}");
        }
    }
}

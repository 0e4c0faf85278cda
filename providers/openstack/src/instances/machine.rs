//! What is kept of a Nova server, and of its ports.

use std::sync::Arc;

use ccm_core::provider::Power;

/// A server: the part of it that Nodes show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// ID.
    pub id: Arc<str>,
    /// Name, which is how a Node without provider ID is found.
    pub name: Arc<str>,
    /// Status as Nova spells it.
    pub status: Arc<str>,
    /// Availability zone, as Nova spells it.
    pub zone: Option<Arc<str>>,
    /// Opaque name of the hypervisor, the same for servers that share one within a project.
    pub host_id: Option<Arc<str>>,
    /// Flavor by name, or by ID where Nova says no more.
    pub flavor: Flavor,
    /// `accessIPv4`.
    pub access_v4: Option<Box<str>>,
    /// `accessIPv6`.
    pub access_v6: Option<Box<str>>,
    /// Metadata entry `hostname`.
    pub hostname: Option<Box<str>>,
    /// Addresses on its networks: by name of the network, ascending, and in Nova's order within one.
    pub networks: Box<[NetworkAddress]>,
}

/// Which flavor a server has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Flavor {
    /// Its name (`flavor.original_name`, microversion 2.47 and newer).
    Name(Arc<str>),
    /// Its ID, which another request turns into a name.
    Id(Arc<str>),
    /// Nova does not say.
    #[default]
    Unknown,
}

/// An address on a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkAddress {
    /// Name of the network.
    pub network: Arc<str>,
    /// The address.
    pub address: Box<str>,
    /// Whether it is a floating IP.
    pub floating: bool,
}

/// A port of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// Whether its status is `ACTIVE`.
    pub active: bool,
    /// Fixed addresses, in Neutron's order.
    pub fixed: Box<[Box<str>]>,
    /// IDs of the sub-ports of the trunk whose parent it is.
    pub sub_ports: Box<[Box<str>]>,
}

/// Says what a status means for a Node.
///
/// Only `SHUTOFF` counts as stopped, as upstream has it: a paused, suspended or shelved server keeps its Node as it is.
/// `UNKNOWN` is what Nova shows while the cell of a server does not answer. A server that Nova shows is there, whatever its
/// status: even `SOFT_DELETED` ones can be restored, so none counts as terminated.
pub fn power(status: &str) -> Power {
    match status {
        "SHUTOFF" => Power::Stopped,
        "UNKNOWN" | "" => Power::Unknown,
        "BUILD" | "HARD_REBOOT" | "MIGRATING" | "REBOOT" | "REBUILD" | "RESIZE" | "REVERT_RESIZE" => {
            Power::Transitional
        }
        _ => Power::Running,
    }
}

//! Answers of the compute service.
//!
//! Which fields a server has depends on the microversion of the request, and on whether its cell
//! answers.

use std::{collections::BTreeMap, net::IpAddr};

use serde::Deserialize;

/// A server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Server {
    /// ID of the server.
    pub id: String,
    /// Name of the server; absent if its cell does not answer.
    #[serde(default)]
    pub name: Option<String>,
    /// Host name that Nova gave to the operating system; for everybody from 2.90.
    #[serde(default, rename = "OS-EXT-SRV-ATTR:hostname")]
    pub hostname: Option<String>,
    /// Status, such as `ACTIVE` or `SHUTOFF`.
    #[serde(default)]
    pub status: String,
    /// What Nova is doing with the server, such as `powering-on`; absent if nothing.
    #[serde(default, rename = "OS-EXT-STS:task_state")]
    pub task_state: Option<String>,
    /// State of the virtual machine on its hypervisor: 1 runs, 4 is shut down, 0 is unknown.
    #[serde(default, rename = "OS-EXT-STS:power_state")]
    pub power_state: Option<i64>,
    /// Availability zone; empty while the server is not scheduled.
    #[serde(default, rename = "OS-EXT-AZ:availability_zone")]
    pub availability_zone: Option<String>,
    /// Opaque name of the hypervisor; empty while the server is not scheduled.
    #[serde(default, rename = "hostId")]
    pub host_id: Option<String>,
    /// Flavor of the server.
    #[serde(default)]
    pub flavor: Option<ServerFlavor>,
    /// Address set by the user; empty if there is none.
    #[serde(default, rename = "accessIPv4")]
    pub access_ipv4: Option<String>,
    /// Like `access_ipv4`.
    #[serde(default, rename = "accessIPv6")]
    pub access_ipv6: Option<String>,
    /// Metadata set by users.
    #[serde(default)]
    pub metadata: Metadata,
    /// Addresses by network name; absent if its cell does not answer.
    #[serde(default)]
    pub addresses: Option<BTreeMap<String, Vec<Address>>>,
}

impl Server {
    /// Returns true if the answer lacks the addresses: the cell of the server did not answer, so that
    /// nothing is known about it, least of all that it does not exist or has no addresses.
    pub fn is_partial(&self) -> bool {
        self.addresses.is_none()
    }
}

/// The metadata of a server that is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct Metadata {
    /// Host name that the user has set.
    pub hostname: Option<String>,
}

/// An address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Address {
    /// The address. A server with one that is none cannot be read: it would have fewer addresses.
    pub addr: IpAddr,
    /// `fixed` or `floating`; fixed if absent.
    #[serde(default, rename = "OS-EXT-IPS:type")]
    pub kind: String,
}

impl Address {
    /// Returns true for a floating IP.
    pub fn is_floating(&self) -> bool {
        self.kind == "floating"
    }
}

/// Flavor of a server: its name from 2.47, its ID before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct ServerFlavor {
    /// Name of the flavor when the server was created.
    pub original_name: Option<String>,
    /// ID of the flavor, which may not exist any more.
    pub id: Option<String>,
}

/// A flavor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Flavor {
    /// Name of the flavor.
    pub name: String,
}

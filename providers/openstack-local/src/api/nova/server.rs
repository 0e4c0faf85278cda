use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::IgnoredAny};

use crate::api::lenient::{nullable, or_default};

/// A server as answered.
///
/// A row of a server in a cell that does not answer (from 2.69) has `id`, `status`
/// [`UNKNOWN`](super::STATUS_UNKNOWN), `links` and, in detailed lists, `tenant_id` and `created`.
/// Where a field is `Option<Option<_>>`, the inner `None` is null and the outer one absence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Identifier, a UUID.
    pub id: String,
    /// Name; not unique.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Such as `ACTIVE` or `SHUTOFF`; empty in a list without details.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// User that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// Pairs set by users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Opaque name of the host, different in each project; empty while not scheduled.
    #[serde(default, rename = "hostId", skip_serializing_if = "Option::is_none")]
    pub host_id: Option<String>,
    /// Image that the server was created from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flavor: Option<ServerFlavor>,
    /// RFC 3339, with `Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// RFC 3339, with `Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated: Option<String>,
    /// Addresses by name of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Addresses>,
    /// Address to reach it at, by word of its user; empty when there is none.
    #[serde(
        default,
        rename = "accessIPv4",
        skip_serializing_if = "Option::is_none"
    )]
    pub access_ipv4: Option<String>,
    /// Like `access_ipv4`.
    #[serde(
        default,
        rename = "accessIPv6",
        skip_serializing_if = "Option::is_none"
    )]
    pub access_ipv6: Option<String>,
    /// Links to the object.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "or_default"
    )]
    pub links: Vec<Link>,
    /// `AUTO` or `MANUAL`.
    #[serde(
        default,
        rename = "OS-DCF:diskConfig",
        skip_serializing_if = "Option::is_none"
    )]
    pub disk_config: Option<String>,
    /// Reason why the server is in `ERROR`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Percent; only in some states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<u8>,
    /// Zone it runs in; empty while not scheduled.
    #[serde(
        default,
        rename = "OS-EXT-AZ:availability_zone",
        skip_serializing_if = "Option::is_none"
    )]
    pub availability_zone: Option<String>,
    /// `""` or `True`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_drive: Option<String>,
    /// Key pair put into it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub key_name: Option<Option<String>>,
    /// Like `2019-01-01T00:00:00.000000`, without zone.
    #[serde(
        default,
        rename = "OS-SRV-USG:launched_at",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub launched_at: Option<Option<String>>,
    /// Like `launched_at`.
    #[serde(
        default,
        rename = "OS-SRV-USG:terminated_at",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub terminated_at: Option<Option<String>>,
    /// Groups of its ports, by name; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<GroupName>>,
    /// Task in progress, such as `spawning`.
    #[serde(
        default,
        rename = "OS-EXT-STS:task_state",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub task_state: Option<Option<String>>,
    /// Such as `active`, `stopped`, `soft-delete`.
    #[serde(
        default,
        rename = "OS-EXT-STS:vm_state",
        skip_serializing_if = "Option::is_none"
    )]
    pub vm_state: Option<String>,
    /// 0 no state, 1 running, 3 paused, 4 shut down, 6 crashed, 7 suspended.
    #[serde(
        default,
        rename = "OS-EXT-STS:power_state",
        skip_serializing_if = "Option::is_none"
    )]
    pub power_state: Option<u8>,
    /// Volumes.
    #[serde(
        default,
        rename = "os-extended-volumes:volumes_attached",
        skip_serializing_if = "Option::is_none"
    )]
    pub volumes_attached: Option<Vec<AttachedVolume>>,
    /// From 2.9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<bool>,
    /// From 2.19.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub description: Option<Option<String>>,
    /// From 2.26.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// From 2.63.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub trusted_image_certificates: Option<Option<Vec<String>>>,
    /// From 2.71, when shown alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_groups: Option<Vec<String>>,
    /// From 2.73.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub locked_reason: Option<Option<String>>,
    /// From 2.90 for everybody (from 2.3 for administrators).
    #[serde(
        default,
        rename = "OS-EXT-SRV-ATTR:hostname",
        skip_serializing_if = "Option::is_none"
    )]
    pub hostname: Option<String>,
    /// For administrators: the host.
    #[serde(
        default,
        rename = "OS-EXT-SRV-ATTR:host",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub host: Option<Option<String>>,
    /// For administrators: the hypervisor's name of the host.
    #[serde(
        default,
        rename = "OS-EXT-SRV-ATTR:hypervisor_hostname",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub hypervisor_hostname: Option<Option<String>>,
    /// For administrators: the hypervisor's name of the server.
    #[serde(
        default,
        rename = "OS-EXT-SRV-ATTR:instance_name",
        skip_serializing_if = "Option::is_none"
    )]
    pub instance_name: Option<String>,
    /// For administrators, from 2.16: `UP`, `DOWN`, `MAINTENANCE`, `UNKNOWN` or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_status: Option<String>,
    /// From 2.96: zone it is bound to.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub pinned_availability_zone: Option<Option<String>>,
}

impl Server {
    /// Returns true if the cell of the server did not answer, so that nothing is known about it.
    pub fn is_partial(&self) -> bool {
        self.status == super::STATUS_UNKNOWN && self.addresses.is_none()
    }
}

/// Addresses by name of the network.
pub type Addresses = BTreeMap<String, Vec<Address>>;

/// An address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    pub addr: IpAddr,
    /// 4 or 6.
    pub version: u8,
    /// Type of the address; fixed if absent.
    #[serde(
        default,
        rename = "OS-EXT-IPS:type",
        skip_serializing_if = "Option::is_none"
    )]
    pub kind: Option<AddressType>,
    /// Hardware address of the port.
    #[serde(
        default,
        rename = "OS-EXT-IPS-MAC:mac_addr",
        skip_serializing_if = "Option::is_none"
    )]
    pub mac: Option<String>,
}

/// Type of a server's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressType {
    /// Of its port.
    Fixed,
    /// A floating IP.
    Floating,
}

/// A link to an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// `self`, `bookmark`, `next` or `previous`.
    pub rel: String,
    /// Absolute URL.
    pub href: String,
}

/// Image that a server was created from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// An image.
    Id {
        /// Identifier.
        id: String,
        /// Links to the object.
        links: Vec<Link>,
    },
    /// A volume: sent as empty text.
    Volume,
}

#[derive(Serialize, Deserialize)]
struct ImageWire {
    id: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    links: Vec<Link>,
}

impl Serialize for Image {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Id { id, links } => {
                ImageWire { id: id.clone(), links: links.clone() }.serialize(serializer)
            }
            Self::Volume => serializer.serialize_str(""),
        }
    }
}

impl<'de> Deserialize<'de> for Image {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Image(ImageWire),
            Other(IgnoredAny),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::Image(ImageWire { id, links }) => Self::Id { id, links },
            Either::Other(_) => Self::Volume,
        })
    }
}

/// Size of a server, as the server tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ServerFlavor {
    /// From 2.47: a copy of what the flavor was, which outlives the flavor. There is no id.
    Embedded {
        /// Name of the flavor.
        original_name: String,
        /// Processors.
        #[serde(default)]
        vcpus: u64,
        /// MiB.
        #[serde(default)]
        ram: u64,
        /// GiB.
        #[serde(default)]
        disk: u64,
        /// GiB.
        #[serde(default)]
        ephemeral: u64,
        /// MiB.
        #[serde(default)]
        swap: u64,
        /// For the scheduler; absent where policy hides it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        extra_specs: Option<BTreeMap<String, String>>,
    },
    /// Before 2.47.
    Reference {
        /// Identifier of the flavor, which may be gone by now.
        id: String,
        /// Links to the object.
        #[serde(default)]
        links: Vec<Link>,
    },
}

/// Reason why a server is in `ERROR`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Such as 500.
    pub code: u16,
    /// RFC 3339, with `Z`.
    pub created: String,
    /// For a person.
    pub message: String,
}

/// A security group, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupName {
    /// Name or, in requests, identifier.
    pub name: String,
}

/// A volume of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedVolume {
    /// Identifier.
    pub id: String,
    /// From 2.3: whether it goes with the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_on_termination: Option<bool>,
}

/// `{"server": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEnvelope<T = Server> {
    /// The server, or what is asked about it.
    pub server: T,
}

/// A page of servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Servers {
    /// Rows, newest first unless sorted otherwise.
    pub servers: Vec<Server>,
    /// The next page, when this one is full.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers_links: Vec<Link>,
}

impl Servers {
    /// Returns where the next page is.
    pub fn next(&self) -> Option<&str> {
        self.servers_links
            .iter()
            .find(|link| link.rel == "next")
            .map(|link| &*link.href)
    }
}

//! Rows that are stored.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::state::Row;

/// A server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerRow {
    /// ID, a UUID.
    pub id: String,
    /// Name.
    pub name: String,
    /// Project.
    pub project: String,
    /// User that created it.
    pub user: String,
    /// Status, such as `ACTIVE` or `SHUTOFF`; the other states that are shown follow from it.
    pub status: String,
    /// Why it is in `ERROR`.
    pub fault: Option<String>,
    /// When it was created.
    pub created: Timestamp,
    /// When it was last changed.
    pub updated: Timestamp,
    /// A copy of its flavor at creation.
    pub flavor: FlavorRow,
    /// Image, by ID.
    pub image: Option<String>,
    /// Metadata set by users.
    pub metadata: BTreeMap<String, String>,
    /// Zone that it runs in.
    pub zone: String,
    /// Zone that was requested.
    pub pinned_zone: Option<String>,
    /// Key pair.
    pub key_name: Option<String>,
    /// Access address set by its user; empty when there is none.
    pub access_ipv4: String,
    /// Like `access_ipv4`.
    pub access_ipv6: String,
    /// Free text.
    pub description: Option<String>,
    /// Tags set by users.
    pub tags: Vec<String>,
    /// Host name of its system.
    pub hostname: String,
    /// Lock against changes, if it is locked.
    pub lock: Option<Lock>,
    /// Ports, in the order in which they were attached.
    pub ports: Vec<Attachment>,
    /// True when its cell does not answer.
    pub cell_down: bool,
    /// Server group that it was created in.
    #[serde(default)]
    pub group: Option<String>,
}

impl Row for ServerRow {
    const TABLE: &'static str = "nova_servers";

    fn key(&self) -> &str {
        &self.id
    }
}

/// A lock against changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Reason of the lock.
    pub reason: Option<String>,
}

/// A port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Port.
    pub port: String,
    /// True when it was created for the server, and is deleted with it.
    pub owned: bool,
    /// Name of the device.
    pub tag: Option<String>,
}

/// A flavor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlavorRow {
    /// ID, any text.
    pub id: String,
    /// Name, unique.
    pub name: String,
    /// MiB.
    pub ram: u64,
    /// Processors.
    pub vcpus: u64,
    /// GiB.
    pub disk: u64,
    /// MiB.
    pub swap: u64,
    /// GiB.
    pub ephemeral: u64,
    /// Share of bandwidth.
    pub rxtx_factor: f64,
    /// True when every project may use it.
    pub is_public: bool,
    /// Free text.
    pub description: Option<String>,
    /// For the scheduler.
    pub extra_specs: BTreeMap<String, String>,
}

impl Row for FlavorRow {
    const TABLE: &'static str = "nova_flavors";

    fn key(&self) -> &str {
        &self.id
    }
}

/// A zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneRow {
    /// Name.
    pub name: String,
    /// Whether it takes servers.
    pub available: bool,
}

impl Row for ZoneRow {
    const TABLE: &'static str = "nova_zones";

    fn key(&self) -> &str {
        &self.name
    }
}

/// Quotas of a project; -1 is no limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaRow {
    /// Project.
    pub project: String,
    /// Servers.
    pub instances: i64,
    /// Processors.
    pub cores: i64,
    /// MiB.
    pub ram: i64,
}

impl Row for QuotaRow {
    const TABLE: &'static str = "nova_quotas";

    fn key(&self) -> &str {
        &self.project
    }
}

/// A key pair of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyPairRow {
    /// User and name.
    pub id: String,
    /// Name, unique for the user.
    pub name: String,
    /// User.
    pub user: String,
    /// Public key in the form of OpenSSH.
    pub public_key: String,
    /// MD5 of the key's content in hexadecimal, with colons.
    pub fingerprint: String,
    /// When it was created.
    pub created: Timestamp,
}

impl Row for KeyPairRow {
    const TABLE: &'static str = "nova_key_pairs";

    fn key(&self) -> &str {
        &self.id
    }
}

/// A server group. Servers name their group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerGroupRow {
    /// ID, a UUID.
    pub id: String,
    /// Name; not unique.
    pub name: String,
    /// Project.
    pub project: String,
    /// User that created it.
    pub user: String,
    /// Such as `anti-affinity`.
    pub policy: String,
    /// Maximum number of its servers on one host.
    pub max_server_per_host: Option<u32>,
}

impl Row for ServerGroupRow {
    const TABLE: &'static str = "nova_server_groups";

    fn key(&self) -> &str {
        &self.id
    }
}

//! What is kept.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::state::Row;

/// A server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerRow {
    /// Identifier, a UUID.
    pub id: String,
    /// Name.
    pub name: String,
    /// Project.
    pub project: String,
    /// User that made it.
    pub user: String,
    /// Such as `ACTIVE` or `SHUTOFF`; what else is shown of its state follows from it.
    pub status: String,
    /// Why it is in `ERROR`.
    pub fault: Option<String>,
    /// When it was made.
    pub created: Timestamp,
    /// When it was last changed.
    pub updated: Timestamp,
    /// A copy of what the flavor was.
    pub flavor: FlavorRow,
    /// Image, by identifier.
    pub image: Option<String>,
    /// Pairs set by users.
    pub metadata: BTreeMap<String, String>,
    /// Zone that it runs in.
    pub zone: String,
    /// Zone that was asked for.
    pub pinned_zone: Option<String>,
    /// Key pair.
    pub key_name: Option<String>,
    /// Address to reach it at, by word of its user; empty when there is none.
    pub access_ipv4: String,
    /// Like `access_ipv4`.
    pub access_ipv6: String,
    /// Free text.
    pub description: Option<String>,
    /// Words set by users.
    pub tags: Vec<String>,
    /// Name that its system has.
    pub hostname: String,
    /// Whether it is guarded against changes, and why.
    pub lock: Option<Lock>,
    /// Ports, in the order in which they were attached.
    pub ports: Vec<Attachment>,
    /// Whether the cell that it is in does not answer.
    pub cell_down: bool,
}

impl Row for ServerRow {
    const TABLE: &'static str = "nova_servers";

    fn key(&self) -> &str {
        &self.id
    }
}

/// A guard against changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Why.
    pub reason: Option<String>,
}

/// A port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Port.
    pub port: String,
    /// Whether it was made for the server, and goes with it.
    pub owned: bool,
    /// Name of the device.
    pub tag: Option<String>,
}

/// A size of servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlavorRow {
    /// Identifier: any text.
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
    /// Whether every project may use it.
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

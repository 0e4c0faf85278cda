//! Rows that are stored.

use crate::api::neutron as api;
use serde::{Deserialize, Serialize};

use crate::state::{CloudState, Row};

/// Defines the tables of rows with an `id`.
macro_rules! rows {
    ($($row:ty = $table:literal,)*) => {
        $(impl Row for $row {
            const TABLE: &'static str = $table;

            fn key(&self) -> &str {
                &self.id
            }
        })*
    };
}

rows! {
    api::Network = "neutron_networks",
    api::Subnet = "neutron_subnets",
    api::Port = "neutron_ports",
    api::Router = "neutron_routers",
    api::FloatingIp = "neutron_floating_ips",
    api::SecurityGroup = "neutron_security_groups",
    api::SecurityGroupRule = "neutron_security_group_rules",
    api::Trunk = "neutron_trunks",
}

/// Quotas of a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaRow {
    /// Project.
    pub project: String,
    /// Its quotas.
    pub quota: api::Quota,
}

impl Row for QuotaRow {
    const TABLE: &'static str = "neutron_quotas";

    fn key(&self) -> &str {
        &self.project
    }
}

/// Limits that an operator sets for all projects: one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Maximum number of routes of a router (`max_routes`). Default 30.
    pub routes: usize,
    /// Maximum number of address pairs of a port (`max_allowed_address_pair`). Default 10.
    pub address_pairs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { routes: 30, address_pairs: 10 }
    }
}

impl Row for Limits {
    const TABLE: &'static str = "neutron_limits";

    fn key(&self) -> &'static str {
        "limits"
    }
}

impl Limits {
    /// Returns the current limits.
    pub fn of(state: &CloudState) -> Self {
        state
            .neutron
            .limits
            .get("limits")
            .map_or_else(Self::default, |row| **row)
    }

    /// Sets the limits.
    pub fn set(self, state: &mut CloudState) {
        state.neutron.limits.put(self);
    }
}

//! What is kept.

use openstack_api::neutron as api;
use serde::{Deserialize, Serialize};

use crate::state::Row;

/// Names the tables of rows with an `id`.
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

/// What the operator of the cloud set for everybody: one row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsRow {
    /// Most routes of a router.
    pub max_routes: usize,
}

impl Row for LimitsRow {
    const TABLE: &'static str = "neutron_limits";

    fn key(&self) -> &'static str {
        "limits"
    }
}

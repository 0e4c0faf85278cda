//! Rows: a resource as it is returned to clients, with internal data.
//!
//! Parents have the IDs of their children, in order of creation; a pool's `listeners` are computed.

use crate::api::octavia::{
    AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile, HealthMonitor, Listener,
    LoadBalancer, Member, Pool, Quota, Stats,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::state::Row;

/// Load balancer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadBalancerRow {
    /// As it is returned.
    pub body: LoadBalancer,
    /// When the change in progress is done.
    pub due: Option<Timestamp>,
    /// How the change in progress ends.
    #[serde(default)]
    pub outcome: Outcome,
    /// True when the port of the address was created for it, and is deleted with it.
    pub owns_port: bool,
}

/// How a change ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It succeeds.
    #[default]
    Good,
    /// The load balancer and what was changed end in `ERROR`.
    LoadBalancerFails,
    /// What was changed ends in `ERROR`; the load balancer itself does not.
    ChildFails,
}

impl Row for LoadBalancerRow {
    const TABLE: &'static str = "octavia_load_balancers";

    fn key(&self) -> &str {
        &self.body.id
    }
}

/// Listener.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListenerRow {
    /// As it is returned.
    pub body: Listener,
    /// Whether the sockets could be opened; `None` before they reported anything.
    #[serde(default)]
    pub open: Option<bool>,
    /// True when the connection limit is reached.
    #[serde(default)]
    pub full: bool,
}

impl ListenerRow {
    /// Returns the ID of its load balancer.
    pub fn load_balancer(&self) -> &str {
        self.body.loadbalancers.first().map_or("", |lb| &lb.id)
    }
}

impl Row for ListenerRow {
    const TABLE: &'static str = "octavia_listeners";

    fn key(&self) -> &str {
        &self.body.id
    }
}

/// Pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolRow {
    /// As it is returned, except for its `listeners`.
    pub body: Pool,
}

impl PoolRow {
    /// Returns the ID of its load balancer.
    pub fn load_balancer(&self) -> &str {
        self.body.loadbalancers.first().map_or("", |lb| &lb.id)
    }
}

impl Row for PoolRow {
    const TABLE: &'static str = "octavia_pools";

    fn key(&self) -> &str {
        &self.body.id
    }
}

/// Member of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberRow {
    /// As it is returned.
    pub body: Member,
    /// Its pool.
    pub pool: String,
    /// Result of its health checks; `None` before the first result, and without a monitor.
    #[serde(default)]
    pub up: Option<bool>,
}

impl Row for MemberRow {
    const TABLE: &'static str = "octavia_members";

    fn key(&self) -> &str {
        &self.body.id
    }
}

/// Health monitor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MonitorRow {
    /// As it is returned.
    pub body: HealthMonitor,
}

impl MonitorRow {
    /// Returns the ID of its pool.
    pub fn pool(&self) -> &str {
        self.body.pools.first().map_or("", |pool| &pool.id)
    }
}

impl Row for MonitorRow {
    const TABLE: &'static str = "octavia_monitors";

    fn key(&self) -> &str {
        &self.body.id
    }
}

/// Counters of a listener, in a table of their own because they change all the time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CountersRow {
    /// The listener.
    pub listener: String,
    /// What was counted before the process started.
    pub before: Stats,
    /// What the process has counted.
    pub since: Stats,
}

impl CountersRow {
    /// Returns all that was counted.
    pub fn total(&self) -> Stats {
        Stats {
            active_connections: self.since.active_connections,
            bytes_in: self.before.bytes_in + self.since.bytes_in,
            bytes_out: self.before.bytes_out + self.since.bytes_out,
            request_errors: self.before.request_errors + self.since.request_errors,
            total_connections: self.before.total_connections + self.since.total_connections,
        }
    }
}

impl Row for CountersRow {
    const TABLE: &'static str = "octavia_counters";

    fn key(&self) -> &str {
        &self.listener
    }
}

/// Defines a row that consists only of the resource.
macro_rules! plain_row {
    ($(#[$doc:meta])* $row:ident($body:ty), $table:literal, $key:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $row(pub $body);

        impl Row for $row {
            const TABLE: &'static str = $table;

            fn key(&self) -> &str {
                &self.0.$key
            }
        }
    };
}

plain_row! {
    /// Flavor.
    FlavorRow(Flavor), "octavia_flavors", id
}
plain_row! {
    /// Flavor profile.
    FlavorProfileRow(FlavorProfile), "octavia_flavor_profiles", id
}
plain_row! {
    /// Availability zone.
    AvailabilityZoneRow(AvailabilityZone), "octavia_availability_zones", name
}
plain_row! {
    /// Availability zone profile.
    AvailabilityZoneProfileRow(AvailabilityZoneProfile), "octavia_availability_zone_profiles", id
}

/// Quota of a project, where it is not the default.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QuotaRow {
    /// Project.
    pub project: String,
    /// Limits; an absent limit is the default.
    pub quota: Quota,
}

impl Row for QuotaRow {
    const TABLE: &'static str = "octavia_quotas";

    fn key(&self) -> &str {
        &self.project
    }
}

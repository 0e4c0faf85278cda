//! Rows: a resource as it is answered, with what is known of it besides.
//!
//! Parents hold the identifiers of their children, in order of creation; a pool's `listeners` are worked out.

use jiff::Timestamp;
use openstack_api::octavia::{
    AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile, HealthMonitor, Listener, LoadBalancer, Member,
    Pool, Quota, Stats,
};
use serde::{Deserialize, Serialize};

use crate::state::Row;

/// Load balancer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadBalancerRow {
    /// As answered.
    pub body: LoadBalancer,
    /// When the change under way is done.
    pub due: Option<Timestamp>,
    /// How the change under way ends.
    #[serde(default)]
    pub outcome: Outcome,
    /// The port of the address was made for it, and goes with it.
    pub owns_port: bool,
}

/// How a change ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Well.
    #[default]
    Good,
    /// The load balancer and what was changed end in `ERROR`.
    LoadBalancerFails,
    /// What was changed ends in `ERROR`; the load balancer itself goes on.
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
    /// As answered.
    pub body: Listener,
    /// What the sockets say: open, or not to be opened. None before they said anything.
    #[serde(default)]
    pub open: Option<bool>,
    /// All connections that are allowed are taken.
    #[serde(default)]
    pub full: bool,
}

impl ListenerRow {
    /// Returns the identifier of its load balancer.
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
    /// As answered, but for its `listeners`.
    pub body: Pool,
}

impl PoolRow {
    /// Returns the identifier of its load balancer.
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
    /// As answered.
    pub body: Member,
    /// Its pool.
    pub pool: String,
    /// What checks of its health say. None before the first verdict, and without a monitor.
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
    /// As answered.
    pub body: HealthMonitor,
}

impl MonitorRow {
    /// Returns the identifier of its pool.
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

/// Counters of a listener. Apart from it, since they change all the time.
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

/// Makes a row that is a resource and nothing else.
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
    /// Limits; none is the default.
    pub quota: Quota,
}

impl Row for QuotaRow {
    const TABLE: &'static str = "octavia_quotas";

    fn key(&self) -> &str {
        &self.project
    }
}

//! The configuration of load balancers: section `[LoadBalancer]` of cloud.conf, and the classes.

use std::{collections::BTreeMap, time::Duration};

use super::{features::Driver, subnets::FloatingSubnet};

/// What is configured for all load balancers.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent settings, each named at its use")]
pub struct Settings {
    /// Driver; `amphora` by default.
    pub driver: Driver,
    /// Algorithm of pools; `ROUND_ROBIN` by default.
    pub method: Box<str>,
    /// Where the VIP and members are, and where floating IPs come from.
    pub placement: Placement,
    /// Whether members are checked; no by default.
    pub monitor: bool,
    /// How members are checked.
    pub checks: Checks,
    /// Whether each Service has a security group that admits the balancer to its nodes; no by default.
    pub manage_security_groups: bool,
    /// Whether every Service is internal, whatever it says; no by default.
    pub internal: bool,
    /// Nodes that are members; all by default. See [`Backends::Nodes`](ccm_core::provider::Backends::Nodes).
    pub node_selector: Box<str>,
    /// Whether a balancer is deleted in one request with all that it has; yes by default.
    pub cascade_delete: bool,
    /// Octavia flavor; empty for none.
    pub flavor: Box<str>,
    /// Octavia availability zone; empty for none.
    pub availability_zone: Box<str>,
    /// Whether a Service with proxy protocol shows a host name made of its address; no by default.
    pub ingress_hostname: bool,
    /// What follows the address in that host name; `nip.io` by default.
    pub ingress_hostname_suffix: Box<str>,
    /// Most Services of one balancer; 2 by default.
    pub max_shared: usize,
    /// Certificate of listeners where the Service names none; empty for none.
    pub tls_container_ref: Box<str>,
    /// Whether certificates are in Barbican, so that their references can be checked; yes by default.
    pub barbican: bool,
    /// Whether the driver takes one object at a time: no populated create and no batch of members; no by default.
    pub serial: bool,
    /// Classes that Services may name in their annotation, which have nothing to do with `spec.loadBalancerClass`.
    pub classes: BTreeMap<Box<str>, Placement>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            driver: Driver::parse(""),
            method: "ROUND_ROBIN".into(),
            placement: Placement::default(),
            monitor: false,
            checks: Checks::default(),
            manage_security_groups: false,
            internal: false,
            node_selector: Box::default(),
            cascade_delete: true,
            flavor: Box::default(),
            availability_zone: Box::default(),
            ingress_hostname: false,
            ingress_hostname_suffix: "nip.io".into(),
            max_shared: 2,
            tls_container_ref: Box::default(),
            barbican: true,
            serial: false,
            classes: BTreeMap::new(),
        }
    }
}

/// Where things are: of the configuration, or of one class. Empty text is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Network that floating IPs come from.
    pub floating_network: Box<str>,
    /// Subnets that they come from; `None` when nothing is said.
    pub floating_subnet: Option<FloatingSubnet>,
    /// Network of the VIP.
    pub network: Box<str>,
    /// Subnet of the VIP.
    pub subnet: Box<str>,
    /// Subnet of members.
    pub member_subnet: Box<str>,
}

/// How members are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checks {
    /// Time between checks; 5 s by default.
    pub delay: Duration,
    /// Time in which a member must answer; 3 s by default.
    pub timeout: Duration,
    /// Successes after which a member serves, 1 to 10; 1 by default.
    pub max_retries: u32,
    /// Failures after which it serves no more, 1 to 10; 3 by default.
    pub max_retries_down: u32,
}

impl Default for Checks {
    fn default() -> Self {
        Self { delay: Duration::from_secs(5), timeout: Duration::from_secs(3), max_retries: 1, max_retries_down: 3 }
    }
}

//! Configuration of load balancers: section `[LoadBalancer]` of cloud.conf, and the classes.

use std::{collections::BTreeMap, time::Duration};

use ccm_core::provider::LabelRequirement;

use super::{features::Driver, subnets::FloatingSubnet};
use crate::config;

/// Settings for all load balancers.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent settings, each named at its use"
)]
pub struct LoadBalancerSettings {
    /// Driver; `amphora` by default.
    pub driver: Driver,
    /// Algorithm of pools; `ROUND_ROBIN` by default.
    pub method: Box<str>,
    /// Networks and subnets of the VIP, members and floating IPs.
    pub networks: NetworkSettings,
    /// True when members are checked; false by default.
    pub monitor: bool,
    /// Interval, timeout and thresholds of the checks.
    pub checks: HealthMonitorSettings,
    /// True when each Service gets a security group that admits the load balancer to its nodes;
    /// false by default.
    pub manage_security_groups: bool,
    /// True when every Service is internal, whatever its annotation says; false by default.
    pub internal: bool,
    /// Labels that nodes must have to be members; none by default.
    pub node_selector: Vec<LabelRequirement>,
    /// True when a load balancer is deleted in one request with all its children; true by default.
    pub cascade_delete: bool,
    /// Octavia flavor; empty for none.
    pub flavor: Box<str>,
    /// Octavia availability zone; empty for none.
    pub availability_zone: Box<str>,
    /// True when the status of a Service with proxy protocol shows a host name made of its address;
    /// false by default.
    pub ingress_hostname: bool,
    /// Suffix of that host name; `nip.io` by default.
    pub ingress_hostname_suffix: Box<str>,
    /// Maximum number of Services on one load balancer; 2 by default.
    pub max_shared: usize,
    /// Certificate of listeners where the Service names none; empty for none.
    pub tls_container_ref: Box<str>,
    /// True when certificates are in Barbican, where their references can be checked; true by
    /// default.
    pub barbican: bool,
    /// True for drivers that accept one object at a time, with no populated create and no batch
    /// update of members; false by default.
    pub serial_api_calls: bool,
    /// True when Services may have source ranges that nothing enforces; false by default.
    pub allow_unenforced_source_ranges: bool,
    /// True when load balancers in ERROR that do not serve are failed over; false by default.
    pub failover_on_error: bool,
    /// Time that a load balancer may be busy with one change before a warning is emitted; 323 s by
    /// default.
    pub active_wait_warning: Duration,
    /// Classes that Services may name in their annotation. They are unrelated to
    /// `spec.loadBalancerClass`.
    pub classes: BTreeMap<Box<str>, NetworkSettings>,
}

impl Default for LoadBalancerSettings {
    fn default() -> Self {
        Self {
            driver: Driver::parse(""),
            method: "ROUND_ROBIN".into(),
            networks: NetworkSettings::default(),
            monitor: false,
            checks: HealthMonitorSettings::default(),
            manage_security_groups: false,
            internal: false,
            node_selector: Vec::new(),
            cascade_delete: true,
            flavor: Box::default(),
            availability_zone: Box::default(),
            ingress_hostname: false,
            ingress_hostname_suffix: "nip.io".into(),
            max_shared: 2,
            tls_container_ref: Box::default(),
            barbican: true,
            serial_api_calls: false,
            allow_unenforced_source_ranges: false,
            failover_on_error: false,
            active_wait_warning: total_poll_delay(config::LoadBalancer::default().wait_steps),
            classes: BTreeMap::new(),
        }
    }
}

/// Networks and subnets, of the configuration or of one class. Empty text means not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSettings {
    /// Network that floating IPs come from.
    pub floating_network: Box<str>,
    /// Subnets that floating IPs come from; `None` when not set.
    pub floating_subnet: Option<FloatingSubnet>,
    /// Network of the VIP.
    pub network: Box<str>,
    /// Subnet of the VIP.
    pub subnet: Box<str>,
    /// Subnet of members.
    pub member_subnet: Box<str>,
}

/// Interval, timeout and thresholds of health checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HealthMonitorSettings {
    /// Time between checks; 5 s by default.
    pub delay: Duration,
    /// Time in which a member must answer; 3 s by default.
    pub timeout: Duration,
    /// Successful checks after which a member serves, 1 to 10; 1 by default.
    pub max_retries: u32,
    /// Failed checks after which a member no longer serves, 1 to 10; 3 by default.
    pub max_retries_down: u32,
}

impl Default for HealthMonitorSettings {
    fn default() -> Self {
        Self {
            delay: Duration::from_secs(5),
            timeout: Duration::from_secs(3),
            max_retries: 1,
            max_retries_down: 3,
        }
    }
}

/// Returns the total delay of this many polls, at most an hour. The first delay is a second, and each
/// further one is a fifth longer, as in upstream.
fn total_poll_delay(polls: u32) -> Duration {
    let mut total = Duration::ZERO;
    let mut delay = 1.0;
    for _ in 0..polls.min(100) {
        total += Duration::from_secs_f64(delay);
        delay *= 1.2;
    }
    total.min(Duration::from_secs(3600))
}

impl From<&config::LoadBalancer> for LoadBalancerSettings {
    fn from(config: &config::LoadBalancer) -> Self {
        Self {
            driver: Driver::parse(&config.provider),
            method: config.method.clone(),
            networks: (&config.network).into(),
            monitor: config.create_monitor,
            checks: HealthMonitorSettings {
                delay: config.monitor_delay,
                timeout: config.monitor_timeout,
                max_retries: config.monitor_max_retries,
                max_retries_down: config.monitor_max_retries_down,
            },
            manage_security_groups: config.manage_security_groups,
            internal: config.internal,
            node_selector: config
                .node_selector
                .iter()
                .map(|(key, value)| match &**value {
                    "" => LabelRequirement::Exists(key.clone()),
                    _ => LabelRequirement::Equals(key.clone(), value.clone()),
                })
                .collect(),
            cascade_delete: config.cascade_delete,
            flavor: config.flavor.clone().unwrap_or_default(),
            availability_zone: config.availability_zone.clone().unwrap_or_default(),
            ingress_hostname: config.ingress_hostname,
            ingress_hostname_suffix: config.ingress_hostname_suffix.clone(),
            max_shared: config.max_shared as usize,
            tls_container_ref: config.tls_container.clone().unwrap_or_default(),
            barbican: config.container_store == config::ContainerStore::Barbican,
            serial_api_calls: config.serial_calls,
            allow_unenforced_source_ranges: config.allow_unenforced_source_ranges,
            failover_on_error: config.failover_on_error,
            active_wait_warning: total_poll_delay(config.wait_steps),
            classes: config
                .classes
                .iter()
                .map(|(name, network)| (name.clone(), network.into()))
                .collect(),
        }
    }
}

impl From<&config::LbNetwork> for NetworkSettings {
    fn from(network: &config::LbNetwork) -> Self {
        Self {
            floating_network: network.floating_network.clone().unwrap_or_default(),
            floating_subnet: FloatingSubnet::from_settings(
                network.floating_subnet_id.as_deref().unwrap_or_default(),
                network.floating_subnet.as_deref().unwrap_or_default(),
                network.floating_subnet_tags.as_deref().unwrap_or_default(),
            ),
            network: network.network.clone().unwrap_or_default(),
            subnet: network.subnet.clone().unwrap_or_default(),
            member_subnet: network.member_subnet.clone().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of `[LoadBalancer]` that is read is also obeyed.
    #[test]
    fn every_key_of_the_configuration_is_handed_on() {
        type Change = fn(&mut config::LoadBalancer);
        let changes: [(&str, Change); 12] = [
            ("lb-provider", |config| config.provider = "ovn".into()),
            ("lb-method", |config| config.method = "SOURCE_IP".into()),
            ("create-monitor", |config| config.create_monitor = true),
            ("manage-security-groups", |config| config.manage_security_groups = true),
            ("internal-lb", |config| config.internal = true),
            ("cascade-delete", |config| config.cascade_delete = false),
            ("enable-ingress-hostname", |config| config.ingress_hostname = true),
            ("max-shared-lb", |config| config.max_shared = 3),
            ("provider-requires-serial-api-calls", |config| config.serial_calls = true),
            ("allow-unenforced-source-ranges", |config| {
                config.allow_unenforced_source_ranges = true;
            }),
            ("failover-on-error", |config| config.failover_on_error = true),
            ("OCCM_WAIT_LB_ACTIVE_STEPS", |config| config.wait_steps = 3),
        ];
        let settings = |config: &_| format!("{:?}", LoadBalancerSettings::from(config));
        let default = settings(&config::LoadBalancer::default());
        for (key, change) in changes {
            let mut config = config::LoadBalancer::default();
            change(&mut config);
            assert_ne!(settings(&config), default, "{key}");
        }
    }
}

//! Checks the values of sections `[LoadBalancer]` and `[LoadBalancerClass "name"]`, and fills in
//! defaults. The keys are declared in `keys.rs`.

use std::{collections::BTreeMap, time::Duration};

use ccm_core::config::gcfg_keys::ConfigValue;

use super::{ConfigIssue, ContainerStore, Environment, LbNetwork, LoadBalancer, Raw, keys::Class};
use crate::config::validation_report::{ValidationReport, check_number, owned, text};

const SECTION: &str = "LoadBalancer";
/// The class that provides defaults for the others.
const DEFAULT_CLASS: &str = "default-LoadBalancerClass";
/// Provider drivers that upstream knows.
const PROVIDERS: [&str; 5] = ["amphora", "octavia", "ovn", "f5", "amphorav2"];
/// Octavia's default minimum for the delay of UDP-CONNECT health monitors
/// (`udp_connect_min_interval_health_monitor`).
const MIN_UDP_MONITOR_DELAY: Duration = Duration::from_secs(3);
/// Algorithms that Octavia supports.
const METHODS: [&str; 4] = ["ROUND_ROBIN", "LEAST_CONNECTIONS", "SOURCE_IP", "SOURCE_IP_PORT"];

/// Reads the networks and subnets from a table of keys. Both kinds of sections have these keys.
macro_rules! lb_network {
    ($keys:expr) => {
        LbNetwork {
            floating_network: owned(&$keys.floating_network),
            floating_subnet_id: owned(&$keys.floating_subnet_id),
            floating_subnet: owned(&$keys.floating_subnet),
            floating_subnet_tags: owned(&$keys.floating_subnet_tags),
            network: owned(&$keys.network),
            subnet: owned(&$keys.subnet),
            member_subnet: owned(&$keys.member_subnet),
        }
    };
}

/// Checks the sections. Returns `None` if load balancers are disabled.
// length: one line for each key
pub(super) fn check(
    raw: &Raw,
    environment: &Environment,
    report: &mut ValidationReport,
) -> Option<LoadBalancer> {
    let keys = &raw.load_balancer;
    let defaults = LoadBalancer::default();
    if !matches!(keys.version.value.as_str(), "" | "v2") {
        report.add_error(
            SECTION,
            &keys.version,
            format!("{:?} is not supported: expected v2", keys.version.value),
        );
    }
    let provider: Box<str> = text(&keys.provider).unwrap_or(&defaults.provider).into();
    if !PROVIDERS.contains(&&*provider) {
        report.warn(
            SECTION,
            &keys.provider,
            format!("unknown provider {provider:?}, which is passed on"),
        );
    }
    let method: Box<str> = text(&keys.method).unwrap_or(&defaults.method).into();
    check_method(raw, &provider, &method, report);
    let settings = LoadBalancer {
        provider,
        method,
        network: lb_network!(keys),
        create_monitor: keys.create_monitor.value,
        monitor_delay: check_monitor_delay(&keys.monitor_delay, defaults.monitor_delay, report),
        monitor_timeout: check_seconds(&keys.monitor_timeout, defaults.monitor_timeout, report),
        monitor_max_retries: check_number(
            SECTION,
            &keys.monitor_retries,
            defaults.monitor_max_retries,
            1..=10,
            report,
        ),
        monitor_max_retries_down: check_number(
            SECTION,
            &keys.monitor_retries_down,
            defaults.monitor_max_retries_down,
            1..=10,
            report,
        ),
        manage_security_groups: keys.manage_groups.value,
        internal: keys.internal.value,
        node_selector: parse_selector(&keys.node_selector.value),
        cascade_delete: keys.cascade_delete.value.unwrap_or(defaults.cascade_delete),
        flavor: owned(&keys.flavor),
        availability_zone: owned(&keys.zone),
        ingress_hostname: keys.ingress_hostname.value,
        ingress_hostname_suffix: text(&keys.ingress_suffix)
            .unwrap_or(&defaults.ingress_hostname_suffix)
            .into(),
        max_shared: check_number(SECTION, &keys.max_shared, defaults.max_shared, 0..=1000, report),
        tls_container: owned(&keys.tls_container),
        container_store: check_container_store(raw, report),
        serial_calls: keys.serial.value,
        allow_unenforced_source_ranges: keys.allow_unenforced.value,
        failover_on_error: keys.failover.value,
        wait_steps: read_wait_steps(environment, defaults.wait_steps, report),
        classes: read_classes(&raw.classes),
    };
    let is_enabled = keys.enabled.value.unwrap_or(true);
    is_enabled.then_some(settings)
}

fn check_method(raw: &Raw, provider: &str, method: &str, report: &mut ValidationReport) {
    let value = &raw.load_balancer.method;
    if !METHODS.contains(&method) {
        report.add_error(
            SECTION,
            value,
            format!("unknown method {method:?}: expected one of {}", METHODS.join(", ")),
        );
    } else if provider == "ovn" && method != "SOURCE_IP_PORT" {
        report.warn(
            SECTION,
            value,
            "provider ovn takes SOURCE_IP_PORT alone: set it here or for each Service",
        );
    }
}

/// Checks the delay of health checks. Octavia's default minimum for UDP is a warning only: TCP ports
/// may have less, and the cloud may have another minimum.
fn check_monitor_delay(
    value: &ConfigValue<Option<Duration>>,
    default: Duration,
    report: &mut ValidationReport,
) -> Duration {
    let delay = check_seconds(value, default, report);
    if !delay.is_zero() && delay < MIN_UDP_MONITOR_DELAY {
        let message = format!(
            "is less than {} s, Octavia's default minimum for health checks of UDP ports: those ports get the minimum",
            MIN_UDP_MONITOR_DELAY.as_secs()
        );
        report.warn(SECTION, value, message);
    }
    delay
}

/// Checks a duration and rounds it down, because Octavia counts whole seconds.
fn check_seconds(
    value: &ConfigValue<Option<Duration>>,
    default: Duration,
    report: &mut ValidationReport,
) -> Duration {
    let whole_seconds = Duration::from_secs(value.value.unwrap_or(default).as_secs());
    if whole_seconds.is_zero() {
        report.add_error(SECTION, value, "must be at least a second");
    }
    whole_seconds
}

fn check_container_store(raw: &Raw, report: &mut ValidationReport) -> ContainerStore {
    match text(&raw.load_balancer.container_store) {
        None | Some("barbican") => ContainerStore::Barbican,
        Some("external") => ContainerStore::External,
        Some(other) => {
            let message = format!("unknown store {other:?}: references are not checked");
            report.warn(SECTION, &raw.load_balancer.container_store, message);
            ContainerStore::Other(other.into())
        }
    }
}

/// Reads upstream's maximum number of polls of a busy load balancer from the environment.
fn read_wait_steps(environment: &Environment, default: u32, report: &mut ValidationReport) -> u32 {
    const NAME: &str = "OCCM_WAIT_LB_ACTIVE_STEPS";
    let Some(written) = environment.get(NAME) else {
        return default;
    };
    written.trim().parse().unwrap_or_else(|_| {
        let message =
            format!("{written:?} is not a number of steps: expected an integer of at least 0");
        report.errors.push(ConfigIssue::at(0, NAME, message));
        default
    })
}

/// Reads the classes. The default class provides the values that they leave out.
fn read_classes(raw: &BTreeMap<String, Class>) -> BTreeMap<Box<str>, LbNetwork> {
    let defaults = raw
        .get(DEFAULT_CLASS)
        .map(|class| lb_network!(class))
        .unwrap_or_default();
    let mut classes = BTreeMap::new();
    for (name, class) in raw {
        if name != DEFAULT_CLASS {
            let network = with_defaults(lb_network!(class), defaults.clone());
            classes.insert(name.as_str().into(), network);
        }
    }
    classes
}

fn with_defaults(class: LbNetwork, defaults: LbNetwork) -> LbNetwork {
    LbNetwork {
        floating_network: class.floating_network.or(defaults.floating_network),
        floating_subnet_id: class.floating_subnet_id.or(defaults.floating_subnet_id),
        floating_subnet: class.floating_subnet.or(defaults.floating_subnet),
        floating_subnet_tags: class.floating_subnet_tags.or(defaults.floating_subnet_tags),
        network: class.network.or(defaults.network),
        subnet: class.subnet.or(defaults.subnet),
        member_subnet: class.member_subnet.or(defaults.member_subnet),
    }
}

/// Parses labels such as `key=value,key`, and trims each key and value. A key alone has an empty
/// value.
pub fn parse_selector(written: &str) -> BTreeMap<Box<str>, Box<str>> {
    if written.trim().is_empty() {
        return BTreeMap::new();
    }
    written
        .split(',')
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key.trim().into(), value.trim().into())
        })
        .collect()
}

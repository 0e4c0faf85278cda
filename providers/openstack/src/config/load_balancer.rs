//! Sections `[LoadBalancer]` and `[LoadBalancerClass "name"]`.

use std::{collections::BTreeMap, time::Duration};

use ccm_core::config::gcfg_keys::ConfigValue;

use super::{ConfigIssue, ContainerStore, Environment, LbNetwork, LoadBalancer, Raw, keys::Class};
use crate::config::validation_report::{ValidationReport, number, owned, text};

const SECTION: &str = "LoadBalancer";
/// The class that provides defaults for the others.
const DEFAULTS: &str = "default-LoadBalancerClass";
/// Provider drivers that upstream knows.
const PROVIDERS: [&str; 5] = ["amphora", "octavia", "ovn", "f5", "amphorav2"];
/// Algorithms that Octavia supports.
const METHODS: [&str; 4] = ["ROUND_ROBIN", "LEAST_CONNECTIONS", "SOURCE_IP", "SOURCE_IP_PORT"];

/// Checks the sections; `None` where load balancers are disabled.
// length: one line for each key
pub(super) fn check(
    raw: &Raw,
    environment: &Environment,
    report: &mut ValidationReport,
) -> Option<LoadBalancer> {
    let keys = &raw.load_balancer;
    let defaults = LoadBalancer::default();
    // First, check the keys whose values have to be known.
    if !matches!(keys.version.value.as_str(), "" | "v2") {
        report.add_error(
            SECTION,
            &keys.version,
            format!("{:?} is not supported: expected v2", keys.version.value),
        );
    }
    let or = |value: &ConfigValue<String>, default: &str| text(value).unwrap_or(default).into();
    let provider: Box<str> = or(&keys.provider, &defaults.provider);
    if !PROVIDERS.contains(&&*provider) {
        report.warn(
            SECTION,
            &keys.provider,
            format!("unknown provider {provider:?}, which is passed on"),
        );
    }
    let method: Box<str> = or(&keys.method, &defaults.method);
    check_method(raw, &provider, &method, report);
    // Then build the settings; the other checks are made per key.
    let settings = LoadBalancer {
        provider,
        method,
        network: LbNetwork {
            floating_network: owned(&keys.floating_network),
            floating_subnet_id: owned(&keys.floating_subnet_id),
            floating_subnet: owned(&keys.floating_subnet),
            floating_subnet_tags: owned(&keys.floating_subnet_tags),
            network: owned(&keys.network),
            subnet: owned(&keys.subnet),
            member_subnet: owned(&keys.member_subnet),
        },
        create_monitor: keys.create_monitor.value,
        monitor_delay: seconds(&keys.monitor_delay, defaults.monitor_delay, report),
        monitor_timeout: seconds(&keys.monitor_timeout, defaults.monitor_timeout, report),
        monitor_max_retries: number(
            SECTION,
            &keys.monitor_retries,
            defaults.monitor_max_retries,
            1..=10,
            report,
        ),
        monitor_max_retries_down: number(
            SECTION,
            &keys.monitor_retries_down,
            defaults.monitor_max_retries_down,
            1..=10,
            report,
        ),
        manage_security_groups: keys.manage_groups.value,
        internal: keys.internal.value,
        node_selector: selector(&keys.node_selector.value),
        cascade_delete: keys.cascade_delete.value.unwrap_or(defaults.cascade_delete),
        flavor: owned(&keys.flavor),
        availability_zone: owned(&keys.zone),
        ingress_hostname: keys.ingress_hostname.value,
        ingress_hostname_suffix: or(&keys.ingress_suffix, &defaults.ingress_hostname_suffix),
        max_shared: number(SECTION, &keys.max_shared, defaults.max_shared, 0..=1000, report),
        tls_container: owned(&keys.tls_container),
        container_store: store(raw, report),
        serial_calls: keys.serial.value,
        wait_steps: max_active_polls(environment, defaults.wait_steps, report),
        classes: classes(&raw.classes),
    };
    keys.enabled.value.unwrap_or(true).then_some(settings)
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

/// Checks a duration: Octavia counts whole seconds.
fn seconds(
    value: &ConfigValue<Option<Duration>>,
    default: Duration,
    report: &mut ValidationReport,
) -> Duration {
    let whole = Duration::from_secs(value.value.unwrap_or(default).as_secs());
    if whole.is_zero() {
        report.add_error(SECTION, value, "must be at least a second");
    }
    whole
}

fn store(raw: &Raw, report: &mut ValidationReport) -> ContainerStore {
    match text(&raw.load_balancer.container_store) {
        None | Some("barbican") => ContainerStore::Barbican,
        Some("external") => ContainerStore::External,
        Some(other) => {
            let words = format!("unknown store {other:?}: references are not checked");
            report.warn(SECTION, &raw.load_balancer.container_store, words);
            ContainerStore::Other(other.into())
        }
    }
}

fn max_active_polls(environment: &Environment, default: u32, report: &mut ValidationReport) -> u32 {
    const NAME: &str = "OCCM_WAIT_LB_ACTIVE_STEPS";
    let Some(written) = environment.get(NAME) else {
        return default;
    };
    written.trim().parse().unwrap_or_else(|_| {
        let words = format!("{written:?} is no number of steps: expected an integer of at least 0");
        report.errors.push(ConfigIssue::at(0, NAME, words));
        default
    })
}

fn classes(raw: &BTreeMap<String, Class>) -> BTreeMap<Box<str>, LbNetwork> {
    let general = raw.get(DEFAULTS).map(network).unwrap_or_default();
    let own = raw.iter().filter(|(name, _)| *name != DEFAULTS);
    own.map(|(name, class)| (name.as_str().into(), with_defaults(network(class), &general)))
        .collect()
}

fn network(class: &Class) -> LbNetwork {
    LbNetwork {
        floating_network: owned(&class.floating_network),
        floating_subnet_id: owned(&class.floating_subnet_id),
        floating_subnet: owned(&class.floating_subnet),
        floating_subnet_tags: owned(&class.floating_subnet_tags),
        network: owned(&class.network),
        subnet: owned(&class.subnet),
        member_subnet: owned(&class.member_subnet),
    }
}

fn with_defaults(own: LbNetwork, general: &LbNetwork) -> LbNetwork {
    let or = |own: Option<Box<str>>, general: &Option<Box<str>>| own.or_else(|| general.clone());
    LbNetwork {
        floating_network: or(own.floating_network, &general.floating_network),
        floating_subnet_id: or(own.floating_subnet_id, &general.floating_subnet_id),
        floating_subnet: or(own.floating_subnet, &general.floating_subnet),
        floating_subnet_tags: or(own.floating_subnet_tags, &general.floating_subnet_tags),
        network: or(own.network, &general.network),
        subnet: or(own.subnet, &general.subnet),
        member_subnet: or(own.member_subnet, &general.member_subnet),
    }
}

/// Parses labels: `key=value,key`, each trimmed; a key alone has an empty value. Empty text has no
/// labels.
pub fn selector(written: &str) -> BTreeMap<Box<str>, Box<str>> {
    let pairs = written.split(',').filter(|_| !written.trim().is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key.trim().into(), value.trim().into())
        })
        .collect()
}

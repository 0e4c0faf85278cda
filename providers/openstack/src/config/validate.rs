//! Converts typed values to settings, and checks them all at startup. Upstream checks some of them
//! late, or never.

use std::{path::PathBuf, time::Duration};

use ccm_core::config::gcfg_keys::ConfigValue;
use ipnet::IpNet;

use super::{
    ClientPair, Cloud, Environment, Interface, Limits, Networking, Rate, Raw, Settings, Tls, auth,
    check_load_balancer,
};
use crate::config::validation_report::{ValidationReport, check_number, owned, text};

/// Values that `search-order` may contain.
const SOURCES: [&str; 2] = ["configDrive", "metadataService"];
/// Default of `request-timeout`.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Checks all values. Returns `None` if there is an error, which `report` contains.
pub(super) fn validate(
    raw: &Raw,
    environment: &Environment,
    report: &mut ValidationReport,
) -> Option<Settings> {
    let auth = auth::read_auth(&raw.global, report);
    let interface = check_interface(raw, report);
    let tls = check_tls(raw, report);
    check_search_order(&raw.metadata.search_order, report);
    let load_balancer = check_load_balancer::check(raw, environment, report);
    let networking = check_networking(raw, report);
    let limits = check_limits(raw, report);
    Some(Settings {
        cloud: Cloud {
            auth: auth?,
            region: raw.global.region.value.as_str().into(),
            interface,
            tls,
            request_timeout: raw.metadata.timeout.value.unwrap_or(TIMEOUT),
        },
        networking,
        router: owned(&raw.route.router),
        load_balancer,
        limits,
        regional_ids: environment.get("OS_CCM_REGIONAL") == Some("true"),
        sources: raw.sources.clone(),
        warnings: Vec::new(),
    })
}

fn check_interface(raw: &Raw, report: &mut ValidationReport) -> Interface {
    let global = &raw.global;
    match text(&global.endpoint_type) {
        None | Some("public") => Interface::Public,
        Some("internal") => Interface::Internal,
        Some("admin") => Interface::Admin,
        Some(other) => {
            let message =
                format!("unknown type of endpoints {other:?}: expected public, internal or admin");
            report.add_error("Global", &global.endpoint_type, message);
            Interface::Public
        }
    }
}

fn check_tls(raw: &Raw, report: &mut ValidationReport) -> Tls {
    let global = &raw.global;
    let insecure = global.insecure.value == "true";
    if !matches!(global.insecure.value.as_str(), "" | "true" | "false") {
        report.warn(
            "Global",
            &global.insecure,
            "has no effect: only `true`, spelled so, turns the checks off",
        );
    }
    let client = read_client_pair(raw, report);
    let ca_file = text(&global.ca_file).map(PathBuf::from);
    if insecure && ca_file.is_some() {
        report.warn("Global", &global.ca_file, "has no effect with tls-insecure");
    }
    Tls { ca_file, client, insecure }
}

/// Returns the client certificate and its key, if both are set.
fn read_client_pair(raw: &Raw, report: &mut ValidationReport) -> Option<ClientPair> {
    let global = &raw.global;
    let cert = text(&global.cert_file);
    let key = text(&global.key_file);
    if let Some(cert) = cert
        && let Some(key) = key
    {
        return Some(ClientPair { cert: PathBuf::from(cert), key: PathBuf::from(key) });
    }
    if cert.is_some() {
        report.warn("Global", &global.cert_file, "has no effect without key-file");
    } else if key.is_some() {
        report.warn("Global", &global.key_file, "has no effect without cert-file");
    }
    None
}

/// Checks that `search-order` has one or two elements, and only supported ones.
fn check_search_order(value: &ConfigValue<String>, report: &mut ValidationReport) {
    if value.line.is_none() {
        return;
    }
    let names: Vec<&str> = value.value.split(',').map(str::trim).collect();
    if value.value.trim().is_empty() {
        report.add_error("Metadata", value, "must not be empty");
    } else if names.len() > SOURCES.len() {
        let message =
            format!("has {} elements: at most {} are allowed", names.len(), SOURCES.len());
        report.add_error("Metadata", value, message);
    } else if let Some(other) = names.iter().find(|name| !SOURCES.contains(name)) {
        let message =
            format!("unknown element {other:?}: supported are {} and {}", SOURCES[0], SOURCES[1]);
        report.add_error("Metadata", value, message);
    }
}

fn check_networking(raw: &Raw, report: &mut ValidationReport) -> Networking {
    let keys = &raw.networking;
    let mut sort_order = Vec::new();
    for cidr in keys
        .sort_order
        .value
        .split([',', ' ', '\t'])
        .filter(|cidr| !cidr.is_empty())
    {
        match cidr.parse::<IpNet>() {
            Ok(network) => sort_order.push(network),
            // As in upstream, where it is a warning.
            Err(_) => report.warn(
                "Networking",
                &keys.sort_order,
                format!("{cidr:?} is no network and has no effect"),
            ),
        }
    }
    Networking {
        ipv6_disabled: keys.ipv6_disabled.value,
        public_networks: non_empty_names(&keys.public),
        internal_networks: non_empty_names(&keys.internal),
        sort_order,
    }
}

fn non_empty_names(value: &ConfigValue<Vec<String>>) -> Vec<Box<str>> {
    value
        .value
        .iter()
        .filter(|name| !name.is_empty())
        .map(|name| name.as_str().into())
        .collect()
}

fn check_limits(raw: &Raw, report: &mut ValidationReport) -> Limits {
    let keys = &raw.requests;
    let defaults = Limits::default();
    let read_burst = check_count(&keys.read_burst, defaults.read.burst, report);
    let write_burst = check_count(&keys.write_burst, defaults.write.burst, report);
    let in_flight = check_count(&keys.in_flight, defaults.in_flight, report);
    Limits {
        read: Rate {
            per_second: keys.read_qps.value.unwrap_or(defaults.read.per_second),
            burst: read_burst,
        },
        write: Rate {
            per_second: keys.write_qps.value.unwrap_or(defaults.write.per_second),
            burst: write_burst,
        },
        in_flight,
    }
}

fn check_count(
    value: &ConfigValue<Option<i64>>,
    default: u32,
    report: &mut ValidationReport,
) -> u32 {
    check_number("Requests", value, default, 1..=100_000, report)
}

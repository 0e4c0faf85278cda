//! Checks of values on their own and against each other, after all were parsed.

mod node_ipam;
mod tls;

use std::collections::BTreeSet;
use std::num::{NonZeroU16, NonZeroUsize};

use ipnet::IpNet;

use super::logging;
use super::types::{
    Config, DEFAULT_SERVICE_WORKERS, FlagEnum, LeaderElectionConfig, OrphansConfig, ResourceLock,
};
use super::{
    ConfigError, ConfigErrors, ControllerSelection, FeatureGates, Product, ReportFormat,
    ShadowConfig, duration, feature_gates,
};
use crate::config::kubeconfig;

pub(super) use self::tls::warnings as tls_warnings;

/// The renew deadline must allow one retry with its jitter, as in client-go.
const JITTER: f64 = 1.2;

/// Checks all values, and converts the raw values to their final types.
/// `used` has the names of the flags that were given.
pub(super) fn check(
    product: &Product,
    config: &mut Config,
    used: &BTreeSet<&'static str>,
) -> Result<(), ConfigErrors> {
    let mut errors = Vec::new();
    check_provider(product, config, &mut errors);
    check_controllers(product, config, &mut errors);
    check_feature_gates(config, &mut errors);
    check_cluster_cidrs(config, &mut errors);
    node_ipam::check(config, &mut errors);
    check_concurrency(config, used, &mut errors);
    check_orphans(config, &mut errors);
    check_report(config, &mut errors);
    check_leader_election(config, &mut errors);
    check_client(config, &mut errors);
    check_serving(config, &mut errors);
    check_request_headers(config, &mut errors);
    check_webhooks(config, &mut errors);
    tls::check(config, &mut errors);
    check_logging(config, &mut errors);
    ConfigErrors::check(errors)
}

fn rejected(
    flag: &'static str,
    value: &(impl ToString + ?Sized),
    reason: impl Into<String>,
) -> ConfigError {
    ConfigError::Rejected { flag, value: value.to_string(), reason: reason.into() }
}

fn check_provider(product: &Product, config: &Config, errors: &mut Vec<ConfigError>) {
    let name = config.generic.cloud_provider.as_str();
    if name.is_empty() {
        errors.push(ConfigError::NoCloudProvider);
    } else if !product.providers.contains(&name) {
        errors.push(ConfigError::UnknownCloudProvider {
            name: name.to_owned(),
            known: product.providers.to_vec(),
        });
    }
}

fn check_controllers(product: &Product, config: &mut Config, errors: &mut Vec<ConfigError>) {
    match ControllerSelection::new(&config.raw.controllers, &product.controllers) {
        Ok(selection) => config.generic.controllers = selection,
        Err(unknown) => errors.extend(unknown),
    }
}

fn check_feature_gates(config: &mut Config, errors: &mut Vec<ConfigError>) {
    match FeatureGates::new(&config.raw.feature_gates) {
        Ok(gates) => config.feature_gates = gates,
        Err(wrong) => errors.extend(wrong),
    }
}

fn check_cluster_cidrs(config: &Config, errors: &mut Vec<ConfigError>) {
    let cidrs = &config.generic.cluster_cidrs;
    if let Err(reason) = at_most_one_of_each_family(cidrs) {
        let value: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
        errors.push(rejected("cluster-cidr", &value.join(","), reason));
    }
}

fn at_most_one_of_each_family(networks: &[IpNet]) -> Result<(), &'static str> {
    match networks {
        [] | [_] => Ok(()),
        [first, second] if first.addr().is_ipv4() != second.addr().is_ipv4() => Ok(()),
        [_, _] => Err("two networks must be of different families, one IPv4 and one IPv6"),
        _ => Err("at most two networks are possible, one IPv4 and one IPv6"),
    }
}

/// Converts `value` to a count of workers, at least one.
fn positive(flag: &'static str, value: i32, errors: &mut Vec<ConfigError>) -> NonZeroUsize {
    usize::try_from(value)
        .ok()
        .and_then(NonZeroUsize::new)
        .unwrap_or_else(|| {
            errors.push(rejected(flag, &value, "must be a positive number"));
            NonZeroUsize::MIN
        })
}

fn check_concurrency(
    config: &mut Config,
    used: &BTreeSet<&'static str>,
    errors: &mut Vec<ConfigError>,
) {
    let raw = &config.raw;
    config.node.concurrent_syncs =
        positive("concurrent-node-syncs", raw.concurrent_node_syncs, errors);
    config.node.concurrent_status_updates =
        if let Ok(updates) = usize::try_from(raw.concurrent_node_status_updates) {
            NonZeroUsize::new(updates).unwrap_or(config.node.concurrent_syncs)
        } else {
            let value = raw.concurrent_node_status_updates;
            errors.push(rejected(
                "concurrent-node-status-updates",
                &value,
                "cannot be a negative number",
            ));
            NonZeroUsize::MIN
        };
    config.node_lifecycle.concurrent_syncs =
        positive("concurrent-node-lifecycle-syncs", raw.concurrent_node_lifecycle_syncs, errors);
    config.service.concurrent_syncs =
        positive("concurrent-service-syncs", raw.concurrent_service_syncs, errors);
    config.service.workers = if used.contains("concurrent-service-syncs") {
        config.service.concurrent_syncs.get()
    } else {
        DEFAULT_SERVICE_WORKERS
    };
    // A loop without a delay between its iterations would do nothing else.
    for (flag, period) in [
        ("node-monitor-period", config.node_lifecycle.monitor_period),
        ("node-status-update-frequency", config.node.status_update_frequency),
        ("route-reconciliation-period", config.route.reconciliation_period),
        ("load-balancer-verify-period", config.service.verify_period),
    ] {
        if period.is_zero() {
            errors.push(rejected(flag, &duration::format(period), "must be greater than zero"));
        }
    }
}

/// Without a search there are no orphans to delete, so the flag would have no effect.
fn check_orphans(config: &Config, errors: &mut Vec<ConfigError>) {
    let OrphansConfig { report_period, collect, .. } = &config.orphans;
    if *collect && report_period.is_zero() {
        let reason = "orphans are not looked for: set --orphan-report-period, too";
        errors.push(rejected("collect-orphans", collect, reason));
    }
}

/// Only a comparison that ends has a report.
fn check_report(config: &Config, errors: &mut Vec<ConfigError>) {
    let ShadowConfig { once, report, .. } = &config.shadow;
    if *report != ReportFormat::None && !once {
        let reason = "only works with --shadow-once, because the report is printed at its end";
        errors.push(rejected("report", &report.text(), reason));
    }
}

/// Checks leader election only if it is on, so that other values in a manifest without it do no
/// harm.
fn check_leader_election(config: &mut Config, errors: &mut Vec<ConfigError>) {
    if !config.leader_election.enabled || config.shadow.is_on() {
        return;
    }
    if config.raw.resource_lock == "leases" {
        config.leader_election.resource_lock = ResourceLock::Leases;
    } else {
        let value = &config.raw.resource_lock;
        errors.push(rejected(
            "leader-elect-resource-lock",
            value,
            "resourceLock value must be \"leases\"",
        ));
    }
    let LeaderElectionConfig {
        lease_duration,
        renew_deadline,
        retry_period,
        resource_name,
        resource_namespace,
        ..
    } = &config.leader_election;
    for (flag, value) in [
        ("leader-elect-resource-name", resource_name),
        ("leader-elect-resource-namespace", resource_namespace),
    ] {
        if value.is_empty() {
            errors.push(rejected(flag, value, "cannot be empty when leader election is on"));
        }
    }
    // The durations are compared below only if each is valid.
    let times = [
        ("leader-elect-lease-duration", lease_duration),
        ("leader-elect-renew-deadline", renew_deadline),
        ("leader-elect-retry-period", retry_period),
    ];
    let before = errors.len();
    for (flag, time) in times {
        if time.is_zero() {
            errors.push(rejected(flag, &duration::format(*time), "must be greater than zero"));
        }
    }
    if errors.len() > before {
        return;
    }
    // The Lease object contains whole seconds, so less would be written as zero.
    if lease_duration.as_secs() == 0 {
        let value = duration::format(*lease_duration);
        errors.push(rejected("leader-elect-lease-duration", &value, "must be at least one second"));
    }
    if lease_duration <= renew_deadline {
        let reason = format!(
            "must be greater than --leader-elect-renew-deadline={}",
            duration::format(*renew_deadline)
        );
        errors.push(rejected(
            "leader-elect-lease-duration",
            &duration::format(*lease_duration),
            reason,
        ));
    }
    if renew_deadline.as_secs_f64() <= retry_period.as_secs_f64() * JITTER {
        let reason = format!(
            "must be greater than {JITTER} times --leader-elect-retry-period={}",
            duration::format(*retry_period)
        );
        errors.push(rejected(
            "leader-elect-renew-deadline",
            &duration::format(*renew_deadline),
            reason,
        ));
    }
}

fn check_client(config: &mut Config, errors: &mut Vec<ConfigError>) {
    // The address is logged with the other flags and must not contain a password.
    if let Err(kubeconfig::MasterError { shown, reason }) =
        kubeconfig::master_uri(&config.kube_client.master, "https")
    {
        errors.push(rejected("master", &shown, reason));
    }
    match u32::try_from(config.raw.kube_api_burst) {
        Ok(burst) => config.kube_client.burst = burst,
        Err(_) => errors.push(rejected(
            "kube-api-burst",
            &config.raw.kube_api_burst,
            "cannot be a negative number",
        )),
    }
}

fn port(flag: &'static str, value: i32, errors: &mut Vec<ConfigError>) -> Option<NonZeroU16> {
    if let Ok(port) = u16::try_from(value) {
        return NonZeroU16::new(port);
    }
    errors.push(rejected(
        flag,
        &value,
        "must be between 0 and 65535, inclusive; 0 turns the server off",
    ));
    None
}

fn check_serving(config: &mut Config, errors: &mut Vec<ConfigError>) {
    config.serving.port = port("secure-port", config.raw.secure_port, errors);
    config.webhook.serving.port =
        port("webhook-secure-port", config.raw.webhook_secure_port, errors);
    if let (Some(serving), Some(webhook)) = (config.serving.port, config.webhook.serving.port)
        && serving == webhook
    {
        errors.push(rejected(
            "webhook-secure-port",
            &webhook,
            format!("must differ from --secure-port={serving}"),
        ));
    }
    match u32::try_from(config.raw.http2_max_streams) {
        Ok(streams) => config.serving.http2_max_streams_per_connection = streams,
        Err(_) => errors.push(rejected(
            "http2-max-streams-per-connection",
            &config.raw.http2_max_streams,
            "cannot be a negative number",
        )),
    }
    for (serving, certificate_flag, key_flag) in [
        (&config.serving, "tls-cert-file", "tls-private-key-file"),
        (&config.webhook.serving, "webhook-tls-cert-file", "webhook-tls-private-key-file"),
    ] {
        let certificate = &serving.tls_cert_file;
        let key = &serving.tls_private_key_file;
        if let Some(certificate) = certificate
            && key.is_none()
        {
            let reason = format!("needs --{key_flag}, too");
            errors.push(rejected(certificate_flag, &certificate.display(), reason));
        }
        if let Some(key) = key
            && certificate.is_none()
        {
            let reason = format!("needs --{certificate_flag}, too");
            errors.push(rejected(key_flag, &key.display(), reason));
        }
    }
}

fn check_request_headers(config: &Config, errors: &mut Vec<ConfigError>) {
    let authentication = &config.authentication;
    for (flag, values) in [
        ("requestheader-username-headers", &authentication.requestheader_username_headers),
        ("requestheader-group-headers", &authentication.requestheader_group_headers),
        ("requestheader-extra-headers-prefix", &authentication.requestheader_extra_headers_prefix),
        ("requestheader-uid-headers", &authentication.requestheader_uid_headers),
        ("requestheader-allowed-names", &authentication.requestheader_allowed_names),
    ] {
        if values.iter().any(|value| value.trim().is_empty()) {
            errors.push(rejected(flag, &values.join(","), "must not have blank entries"));
        }
    }
    let uid = &authentication.requestheader_uid_headers;
    if !uid.is_empty()
        && !uid
            .iter()
            .any(|header| header.eq_ignore_ascii_case("X-Remote-Uid"))
    {
        errors.push(rejected(
            "requestheader-uid-headers",
            &uid.join(","),
            "must contain X-Remote-Uid",
        ));
    }
    for path in &config.authorization.always_allow_paths {
        if path.strip_suffix('*').unwrap_or(path).contains('*') {
            errors.push(rejected(
                "authorization-always-allow-paths",
                path,
                "may have a * at its end only",
            ));
        }
    }
}

/// Rejects webhooks: one that the API server calls in vain must not appear to be served.
fn check_webhooks(config: &Config, errors: &mut Vec<ConfigError>) {
    if !config.webhook.enabled.is_empty() {
        errors.push(rejected(
            "webhooks",
            &config.webhook.enabled.join(","),
            "admission webhooks are not supported",
        ));
    }
}

fn check_logging(config: &mut Config, errors: &mut Vec<ConfigError>) {
    match u32::try_from(config.raw.verbosity) {
        Ok(verbosity) => config.logging.verbosity = verbosity,
        Err(_) => errors.push(rejected("v", &config.raw.verbosity, "cannot be a negative number")),
    }
    match logging::parse_vmodule(&config.raw.vmodule) {
        Ok(modules) => config.logging.modules = modules,
        Err(reason) => errors.push(rejected("vmodule", &config.raw.vmodule, reason)),
    }
    if config.logging.format == logging::Format::Json && !config.raw.vmodule.is_empty() {
        errors.push(rejected(
            "vmodule",
            &config.raw.vmodule,
            "only works with --logging-format=text",
        ));
    }
    if config
        .feature_gates
        .is_enabled(feature_gates::LOGGING_ALPHA_OPTIONS)
    {
        return;
    }
    for (split_flag, buffer_flag, streams) in [
        ("log-text-split-stream", "log-text-info-buffer-size", &config.logging.text),
        ("log-json-split-stream", "log-json-info-buffer-size", &config.logging.json),
    ] {
        let reason = "needs --feature-gates=LoggingAlphaOptions=true";
        if streams.split_stream {
            errors.push(rejected(split_flag, &streams.split_stream, reason));
        }
        if streams.info_buffer_size != "0" {
            errors.push(rejected(buffer_flag, &streams.info_buffer_size, reason));
        }
    }
}

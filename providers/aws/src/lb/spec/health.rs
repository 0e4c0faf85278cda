//! Parses the health check, which all target groups of a Service share: the port that is checked,
//! and how often.

use std::num::NonZeroU16;

use ccm_core::k8s::{ServicePort, TrafficPolicy};

use crate::{
    api::elb::{HealthCheck, HealthPort, HealthProtocol, TargetType},
    lb::spec::{
        DefaultsSource, SpecReader,
        annotations::{self as a, AnnotationKey, HINT},
        dialect,
    },
};

/// The error for instance targets without a node port.
pub(in crate::lb) const NO_NODE_PORT: &str =
    "unable to support instance target type with an unallocated NodePort";

/// The health check of a Service without annotations.
#[derive(Clone, Copy)]
struct HealthCheckDefaults<'a> {
    protocol: HealthProtocol,
    port: HealthPort,
    path: &'a str,
    interval: u32,
    /// `None` if it depends on the protocol.
    timeout: Option<u32>,
    thresholds: u32,
    matcher: Option<&'static str>,
    /// True if annotations for protocol, port and path are ignored.
    fixed: bool,
}

/// Parses the health check.
pub(in crate::lb) fn read(reader: &mut SpecReader<'_>) -> HealthCheck {
    // Annotations for protocol, port and path are read even if they are ignored, to report errors.
    // Upstream reports none for an ignored port.
    let defaults = default_health_check(reader);
    let requested_protocol = reader.annotations.get(&a::HEALTH_PROTOCOL);
    let mut requested_port = None;
    if !(defaults.fixed && reader.is_upstream()) {
        requested_port = reader
            .annotations
            .get(&a::HEALTH_PORT)
            .and_then(|text| parse_port(reader, &text));
    }
    let requested_path = reader.annotations.get(&a::HEALTH_PATH);
    let mut protocol = defaults.protocol;
    let mut port = defaults.port;
    let mut path: Box<str> = defaults.path.into();
    if !defaults.fixed {
        protocol = requested_protocol.unwrap_or(protocol);
        port = requested_port.unwrap_or(port);
        path = requested_path.unwrap_or(path);
    }
    let interval = read_in_range(reader, &a::HEALTH_INTERVAL, 5..=300).unwrap_or(defaults.interval);
    let timeout = if reader.is_upstream() {
        dialect::check_timeout(reader);
        None
    } else {
        read_in_range(reader, &a::HEALTH_TIMEOUT, 2..=120)
    };
    if let Some(timeout) = timeout
        && timeout > interval
    {
        let message =
            format!("health check timeout ({timeout}) must not exceed the interval ({interval})");
        reader
            .annotations
            .invalid_value(&a::HEALTH_TIMEOUT.definition, message);
    }
    let default_timeout = match defaults.timeout {
        Some(timeout) => timeout,
        None if protocol == HealthProtocol::Http => 6,
        None => 10,
    };
    let matcher = reader
        .annotations
        .get(&a::SUCCESS_CODES)
        .or(defaults.matcher.map(Into::into));
    let is_http = protocol != HealthProtocol::Tcp;
    HealthCheck {
        protocol,
        port,
        path: if is_http { Some(path) } else { None },
        interval,
        timeout: timeout.unwrap_or(default_timeout.min(interval)),
        healthy: read_in_range(reader, &a::HEALTHY_THRESHOLD, 2..=10)
            .unwrap_or(defaults.thresholds),
        unhealthy: read_unhealthy_threshold(reader).unwrap_or(defaults.thresholds),
        matcher: if is_http { matcher } else { None },
    }
}

/// Returns the defaults. With node ports they depend on the traffic policy; pods are checked
/// directly, whatever the policy.
fn default_health_check<'a>(reader: &SpecReader<'a>) -> HealthCheckDefaults<'a> {
    let (interval, timeout, matcher) = match reader.defaults_source {
        DefaultsSource::CloudProviderAws => (30, None, None),
        DefaultsSource::LoadBalancerController => (10, Some(10), Some("200-399")),
    };
    let cluster = HealthCheckDefaults {
        protocol: HealthProtocol::Tcp,
        port: HealthPort::Traffic,
        path: "/",
        interval,
        timeout,
        thresholds: 3,
        matcher,
        fixed: false,
    };
    if reader.target_type == TargetType::Ip {
        return cluster;
    }
    if reader.service.external_traffic_policy == TrafficPolicy::Local {
        let local = HealthCheckDefaults { interval: 10, thresholds: 2, ..cluster };
        return match reader.service.health_check_node_port {
            // The health check of kube-proxy.
            Some(port) => HealthCheckDefaults {
                protocol: HealthProtocol::Http,
                port: HealthPort::Number(port),
                path: "/healthz",
                timeout: Some(6),
                ..local
            },
            None => local,
        };
    }
    match &reader.settings.shared_health_probe {
        Some(probe) => HealthCheckDefaults {
            protocol: HealthProtocol::Http,
            port: HealthPort::Number(probe.port),
            path: &probe.path,
            fixed: true,
            ..cluster
        },
        None => cluster,
    }
}

/// Parses a number with limits set by AWS.
pub(super) fn read_in_range(
    reader: &mut SpecReader<'_>,
    key: &AnnotationKey<u32>,
    bounds: std::ops::RangeInclusive<u32>,
) -> Option<u32> {
    let found = reader.annotations.get(key)?;
    if bounds.contains(&found) {
        return Some(found);
    }
    let message = format!("{found} is not between {} and {}", bounds.start(), bounds.end());
    reader.annotations.invalid_value(&key.definition, message);
    None
}

/// Parses the unhealthy threshold. Upstream sends it only with others, so that a number which AWS
/// does not accept may never reach AWS.
fn read_unhealthy_threshold(reader: &mut SpecReader<'_>) -> Option<u32> {
    if reader.is_upstream() {
        reader.annotations.get(&a::UNHEALTHY_THRESHOLD)
    } else {
        read_in_range(reader, &a::UNHEALTHY_THRESHOLD, 2..=10)
    }
}

/// Parses the port: the traffic port, a number, or the target of a named Service port.
fn parse_port(reader: &mut SpecReader<'_>, text: &str) -> Option<HealthPort> {
    if text == "traffic-port" {
        return Some(HealthPort::Traffic);
    }
    if let Ok(number) = text.parse::<NonZeroU16>() {
        return Some(HealthPort::Number(number));
    }
    let found = if !is_port_name(text) {
        Err(format!("Invalid health check port '{text}'"))
    } else if reader.is_upstream() {
        Err(format!("Invalid health check port '{text}'{HINT}"))
    } else {
        find_named_port(reader, text)
    };
    match found {
        Ok(port) => Some(HealthPort::Number(port)),
        Err(message) => {
            reader
                .annotations
                .invalid_value(&a::HEALTH_PORT.definition, message);
            None
        }
    }
}

fn find_named_port(reader: &SpecReader<'_>, name: &str) -> Result<NonZeroU16, String> {
    let Some(port) = reader.service.ports.iter().find(|port| *port.name == *name) else {
        let service = reader.service.key();
        return Err(format!(
            "failed to resolve healthCheckPort: unable to find port {name} on service {service}"
        ));
    };
    match reader.target_type {
        TargetType::Instance => port.node_port.ok_or_else(|| NO_NODE_PORT.to_owned()),
        TargetType::Ip => match target_port(port) {
            Some(number) => Ok(number),
            None => {
                Err("cannot use named healthCheckPort for IP TargetType when service's targetPort is a named port"
                    .into())
            }
        },
    }
}

/// Returns the port of the pods; `None` if it is a name, which may be a different number on each
/// pod.
pub(in crate::lb) fn target_port(port: &ServicePort) -> Option<NonZeroU16> {
    match &*port.target_port {
        "" | "0" => Some(port.port),
        text => text.parse().ok(),
    }
}

/// Returns true if a text may be the name of a port rather than an invalid number.
fn is_port_name(text: &str) -> bool {
    text.chars().any(|c| c.is_ascii_lowercase())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

//! Parses the health check, which all target groups of a Service share: the port that is checked,
//! and how often.

use std::num::NonZeroU16;

use ccm_core::k8s::{ServicePort, TrafficPolicy};

use crate::{
    api::elb::{HealthCheck, HealthPort, HealthProtocol, TargetType},
    lb::spec::{
        DefaultsSource, SpecReader,
        annotations::{self as a, AnnotationKey},
    },
};

/// The error for instance targets without a node port.
pub(in crate::lb) const NO_NODE_PORT: &str =
    "unable to support instance target type with an unallocated NodePort";

/// The values that apply without annotations.
#[derive(Clone, Copy)]
struct HealthCheckDefaults<'a> {
    protocol: HealthProtocol,
    port: HealthPort,
    path: &'a str,
    interval: u32,
    /// `None`: depends on the protocol.
    timeout: Option<u32>,
    thresholds: u32,
    matcher: Option<&'static str>,
    /// Whether annotations for protocol, port and path are ignored.
    fixed: bool,
}

/// Parses the health check.
pub(in crate::lb) fn read(reader: &mut SpecReader<'_>) -> HealthCheck {
    // First, protocol, port and path.
    let defaults = defaults(reader);
    let asked = (
        reader.annotations.get(&a::HEALTH_PROTOCOL),
        reader
            .annotations
            .get(&a::HEALTH_PORT)
            .and_then(|text| port(reader, &text)),
        reader.annotations.get(&a::HEALTH_PATH),
    );
    let (protocol, port, path) = match asked {
        _ if defaults.fixed => (defaults.protocol, defaults.port, defaults.path.into()),
        (protocol, port, path) => (
            protocol.unwrap_or(defaults.protocol),
            port.unwrap_or(defaults.port),
            path.unwrap_or_else(|| defaults.path.into()),
        ),
    };
    // Then interval and timeout.
    let interval = read_in_range(reader, &a::HEALTH_INTERVAL, 5..=300).unwrap_or(defaults.interval);
    let by_protocol = if protocol == HealthProtocol::Http {
        6
    } else {
        10
    };
    let timeout = read_in_range(reader, &a::HEALTH_TIMEOUT, 2..=120);
    if timeout.is_some_and(|timeout| timeout > interval) {
        let message = format!(
            "health check timeout ({}) must not exceed the interval ({interval})",
            timeout.unwrap_or_default()
        );
        reader
            .annotations
            .invalid_value(&a::HEALTH_TIMEOUT.row, message);
    }
    // Finally, put it together with success codes and thresholds.
    let matcher = reader
        .annotations
        .get(&a::SUCCESS_CODES)
        .or(defaults.matcher.map(Into::into));
    let http = protocol != HealthProtocol::Tcp;
    HealthCheck {
        protocol,
        port,
        path: http.then_some(path),
        interval,
        timeout: timeout.unwrap_or_else(|| defaults.timeout.unwrap_or(by_protocol).min(interval)),
        healthy: read_in_range(reader, &a::HEALTHY_THRESHOLD, 2..=10)
            .unwrap_or(defaults.thresholds),
        unhealthy: read_in_range(reader, &a::UNHEALTHY_THRESHOLD, 2..=10)
            .unwrap_or(defaults.thresholds),
        matcher: matcher.filter(|_| http),
    }
}

/// Returns the defaults. With node ports they depend on the traffic policy; pods are checked
/// directly, whatever the policy.
fn defaults<'a>(reader: &SpecReader<'a>) -> HealthCheckDefaults<'a> {
    let (interval, timeout, matcher) = match reader.manner {
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
    let http = |port| HealthCheckDefaults {
        protocol: HealthProtocol::Http,
        port: HealthPort::Number(port),
        ..cluster
    };
    match (reader.service.external_traffic_policy, reader.service.health_check_node_port) {
        (TrafficPolicy::Local, Some(port)) => {
            let of_kube_proxy = http(port);
            HealthCheckDefaults {
                path: "/healthz",
                interval: 10,
                timeout: Some(6),
                thresholds: 2,
                ..of_kube_proxy
            }
        }
        (TrafficPolicy::Local, None) => {
            HealthCheckDefaults { interval: 10, thresholds: 2, ..cluster }
        }
        (TrafficPolicy::Cluster, _) => match &reader.settings.shared_health_probe {
            Some(probe) => {
                HealthCheckDefaults { path: &probe.path, fixed: true, ..http(probe.port) }
            }
            None => cluster,
        },
    }
}

/// Parses a number with limits set by AWS.
fn read_in_range(
    reader: &mut SpecReader<'_>,
    key: &AnnotationKey<u32>,
    bounds: std::ops::RangeInclusive<u32>,
) -> Option<u32> {
    let found = reader.annotations.get(key)?;
    if bounds.contains(&found) {
        return Some(found);
    }
    let message = format!("{found} is not between {} and {}", bounds.start(), bounds.end());
    reader.annotations.invalid_value(&key.row, message);
    None
}

/// Parses the port: the traffic port, a number, or the target of a named Service port.
fn port(reader: &mut SpecReader<'_>, text: &str) -> Option<HealthPort> {
    if text == "traffic-port" {
        return Some(HealthPort::Traffic);
    }
    if let Ok(number) = text.parse::<NonZeroU16>() {
        return Some(HealthPort::Number(number));
    }
    let found = if is_port_name(text) {
        named_port(reader, text)
    } else {
        Err(format!("Invalid health check port '{text}'"))
    };
    match found {
        Ok(port) => Some(HealthPort::Number(port)),
        Err(message) => {
            reader
                .annotations
                .invalid_value(&a::HEALTH_PORT.row, message);
            None
        }
    }
}

fn named_port(reader: &SpecReader<'_>, name: &str) -> Result<NonZeroU16, String> {
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

/// Tells whether a text may be the name of a port, not an invalid number.
fn is_port_name(text: &str) -> bool {
    text.chars().any(|c| c.is_ascii_lowercase())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

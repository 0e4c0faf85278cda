//! Listeners, pools and health monitors of a Service's ports.

use std::{collections::BTreeMap, ops::RangeInclusive};

use ccm_core::k8s::{Protocol, ServicePort, SessionAffinity, TrafficPolicy};
use ipnet::IpNet;

use super::{SpecReader, non_empty, tags};
use crate::lb::{
    annotations::{self as keys, Annotation},
    model::{
        DesiredListener, DesiredMonitor, DesiredPool, ListenerProtocol, MonitorKind, PoolProtocol,
        Timeouts, transport,
    },
};

/// Algorithms that Octavia supports.
pub(super) const METHODS: [&str; 4] =
    ["ROUND_ROBIN", "LEAST_CONNECTIONS", "SOURCE_IP", "SOURCE_IP_PORT"];
/// Maximum timeout in milliseconds, 24 days.
const MAX_TIMEOUT_MS: i32 = 2_073_600_000;
/// Maximum number of retries of a health monitor.
const MAX_RETRIES: i32 = 10;

/// Settings that all ports share.
struct CommonPortSettings {
    tls_container: Option<Box<str>>,
    connection_limit: i32,
    timeouts: Option<Timeouts>,
    allowed: Option<Vec<IpNet>>,
    method: Box<str>,
    listener_tags: Vec<Box<str>>,
    pool_tags: Vec<Box<str>>,
    /// Settings of the health monitors, or `None` if members are not checked. The type is a
    /// placeholder, because it depends on the port.
    monitor: Option<DesiredMonitor>,
    /// Port where kube-proxy reports whether its node has endpoints.
    health_port: Option<u16>,
}

/// Builds the desired listener of each port.
pub(super) fn read_listeners(
    reader: &mut SpecReader<'_>,
    sources: &[IpNet],
) -> Vec<DesiredListener> {
    let common = CommonPortSettings {
        tls_container: read_tls_container(reader),
        connection_limit: read_in_range(reader, &keys::CONNECTION_LIMIT, -1, -1..=i32::MAX),
        timeouts: read_timeouts(reader),
        allowed: reader.features.allowed_cidrs.then(|| sources.to_vec()),
        method: read_method(reader),
        listener_tags: tags::read_tags(reader, &keys::LISTENER_TAGS),
        pool_tags: tags::read_tags(reader, &keys::POOL_TAGS),
        monitor: read_monitor(reader),
        health_port: find_health_port(reader),
    };
    let listeners: Vec<_> = reader
        .service
        .ports
        .iter()
        .enumerate()
        .map(|(index, port)| build_listener(reader, &common, index, port))
        .collect();
    reject_port_conflicts(reader, &listeners);
    listeners
}

fn build_listener(
    reader: &SpecReader<'_>,
    common: &CommonPortSettings,
    index: usize,
    port: &ServicePort,
) -> DesiredListener {
    // The configured certificate applies only to ports that can have one.
    let tls_container = if port.protocol == Protocol::Tcp {
        common.tls_container.clone()
    } else {
        None
    };
    DesiredListener {
        index,
        protocol: ListenerProtocol::choose(
            common.tls_container.is_some(),
            reader.forwarded_for,
            port.protocol,
        ),
        port: port.port.get(),
        connection_limit: common.connection_limit,
        forwarded_for: reader.forwarded_for,
        tls_container,
        timeouts: common.timeouts,
        tags: common.listener_tags.clone(),
        allowed: common.allowed.clone(),
        pool: build_pool(reader, common, port),
    }
}

fn build_pool(
    reader: &SpecReader<'_>,
    common: &CommonPortSettings,
    port: &ServicePort,
) -> DesiredPool {
    let needs_http = reader.forwarded_for || common.tls_container.is_some();
    let mut monitor_port = None;
    let monitor = common.monitor.map(|monitor| {
        let kind = choose_monitor_kind(reader, common, port.protocol);
        // Other checks do not use the health-check port, and OVN would not keep it either.
        if kind == MonitorKind::Http {
            monitor_port = common.health_port;
        }
        let mut delay = monitor.delay;
        if kind == MonitorKind::UdpConnect {
            delay = delay.max(reader.features.min_udp_monitor_delay);
        }
        DesiredMonitor { kind, delay, ..monitor }
    });
    DesiredPool {
        protocol: PoolProtocol::choose(reader.proxy, needs_http, port.protocol),
        method: common.method.clone(),
        session_persistence: reader.service.session_affinity != SessionAffinity::None,
        node_port: port.node_port.map(Into::into),
        monitor_port,
        monitor,
        tags: common.pool_tags.clone(),
    }
}

/// Chooses the type of health check: HTTP if kube-proxy has a health-check port and the cloud
/// supports it, or else the protocol of the port.
fn choose_monitor_kind(
    reader: &SpecReader<'_>,
    common: &CommonPortSettings,
    protocol: Protocol,
) -> MonitorKind {
    let supports_http = reader.features.http_monitor
        && (protocol == Protocol::Tcp || reader.features.http_monitor_on_datagrams);
    if common.health_port.is_some() && supports_http {
        return MonitorKind::Http;
    }
    match protocol {
        Protocol::Tcp => MonitorKind::Tcp,
        Protocol::Udp => MonitorKind::UdpConnect,
        Protocol::Sctp => MonitorKind::Sctp,
    }
}

/// Reads the reference to the certificate and validates its form. In Barbican the form shows
/// whether it is a container or a secret.
fn read_tls_container(reader: &mut SpecReader<'_>) -> Option<Box<str>> {
    let text = reader
        .annotations
        .text(&keys::TLS_CONTAINER, &reader.settings.tls_container_ref);
    let reference = non_empty(text)?;
    if reader.settings.barbican && !is_barbican_ref(&reference) {
        let message = format!("{reference:?} does not end in containers/ or secrets/ and an ID");
        reader
            .annotations
            .invalid_value(&keys::TLS_CONTAINER, message);
    }
    if reference.len() > 255 {
        reader
            .annotations
            .invalid_value(&keys::TLS_CONTAINER, "is longer than 255 characters");
    }
    if reader.driver.is_ovn() {
        reader
            .annotations
            .invalid_value(&keys::TLS_CONTAINER, "load balancers of OVN do not end TLS");
    }
    Some(reference)
}

/// Returns true if a reference has the form of a container or secret in Barbican.
fn is_barbican_ref(reference: &str) -> bool {
    let mut parts = reference.rsplit('/');
    let id = parts.next().unwrap_or_default();
    let kind = parts.next().unwrap_or_default();
    !id.is_empty() && matches!(kind, "containers" | "secrets")
}

/// Reads the algorithm. Replaces an unknown one by the configured one; `notices.rs` reports that.
fn read_method(reader: &mut SpecReader<'_>) -> Box<str> {
    match reader
        .annotations
        .text(&keys::METHOD, &reader.settings.method)
    {
        method if METHODS.contains(&method) => method.into(),
        "" => "ROUND_ROBIN".into(),
        _ => reader.settings.method.clone(),
    }
}

fn read_timeouts(reader: &mut SpecReader<'_>) -> Option<Timeouts> {
    let valid = 0..=MAX_TIMEOUT_MS;
    let timeouts = Timeouts {
        client_data: read_in_range(reader, &keys::TIMEOUT_CLIENT_DATA, 50_000, valid.clone()),
        member_connect: read_in_range(reader, &keys::TIMEOUT_MEMBER_CONNECT, 5_000, valid.clone()),
        member_data: read_in_range(reader, &keys::TIMEOUT_MEMBER_DATA, 50_000, valid.clone()),
        tcp_inspect: read_in_range(reader, &keys::TIMEOUT_TCP_INSPECT, 0, valid),
    };
    reader.features.timeouts.then_some(timeouts)
}

/// Reads the settings of health monitors. Reports invalid values even if checks are off.
fn read_monitor(reader: &mut SpecReader<'_>) -> Option<DesiredMonitor> {
    let defaults = reader.settings.checks;
    let delay = defaults.delay.as_secs();
    let timeout = defaults.timeout.as_secs();
    let max_retries = defaults.max_retries.into();
    let max_retries_down = defaults.max_retries_down.into();
    let monitor = DesiredMonitor {
        kind: MonitorKind::Tcp,
        delay: read_positive(reader, &keys::MONITOR_DELAY, delay, i32::MAX),
        timeout: read_positive(reader, &keys::MONITOR_TIMEOUT, timeout, i32::MAX),
        max_retries: read_positive(reader, &keys::MONITOR_RETRIES, max_retries, MAX_RETRIES),
        max_retries_down: read_positive(
            reader,
            &keys::MONITOR_RETRIES_DOWN,
            max_retries_down,
            MAX_RETRIES,
        ),
    };
    let is_enabled = reader
        .annotations
        .boolean(&keys::MONITOR, reader.settings.monitor);
    is_enabled.then_some(monitor)
}

/// Returns the port where kube-proxy reports whether its node has endpoints of this Service.
fn find_health_port(reader: &SpecReader<'_>) -> Option<u16> {
    if reader.service.external_traffic_policy != TrafficPolicy::Local {
        return None;
    }
    reader.service.health_check_node_port.map(Into::into)
}

/// Reads a number from 1 to `max`.
fn read_positive(
    reader: &mut SpecReader<'_>,
    annotation: &Annotation,
    default: u64,
    max: i32,
) -> u32 {
    let default = i32::try_from(default).unwrap_or(i32::MAX);
    read_in_range(reader, annotation, default, 1..=max).unsigned_abs()
}

/// Reads a number. Records an error and returns the default if Octavia would reject it.
fn read_in_range(
    reader: &mut SpecReader<'_>,
    annotation: &Annotation,
    default: i32,
    valid: RangeInclusive<i32>,
) -> i32 {
    let number = reader.annotations.integer(annotation, default);
    if number == default || valid.contains(&number) {
        return number;
    }
    let (min, max) = valid.into_inner();
    reader
        .annotations
        .invalid_value(annotation, format!("{number} is not between {min} and {max}"));
    default
}

/// Records errors for ports that would need the same listener, and for ports with a protocol that
/// an annotation does not support.
fn reject_port_conflicts(reader: &mut SpecReader<'_>, listeners: &[DesiredListener]) {
    let has_tls_annotation = reader
        .annotations
        .given(&keys::TLS_CONTAINER)
        .is_some_and(|text| !text.is_empty());
    let mut tcp_only = Vec::new();
    if reader.proxy.is_some() {
        tcp_only.push(&keys::PROXY_PROTOCOL);
    }
    if reader.forwarded_for {
        tcp_only.push(&keys::X_FORWARDED_FOR);
    }
    if has_tls_annotation {
        tcp_only.push(&keys::TLS_CONTAINER);
    }
    let mut port_owners = BTreeMap::new();
    for (listener, port) in listeners.iter().zip(&*reader.service.ports) {
        let transport = transport(listener.protocol.as_str());
        if let Some(other) = port_owners.insert((transport, listener.port), listener.index) {
            let field = format!("spec.ports[{}]", listener.index);
            reader
                .annotations
                .add_error(&field, format!("would need the same listener as spec.ports[{other}]"));
        }
        if port.protocol == Protocol::Tcp {
            continue;
        }
        for annotation in &tcp_only {
            // Ports of two transports may have the same number: the index distinguishes them.
            reader.annotations.invalid_value(
                annotation,
                format!("spec.ports[{}] is not TCP and cannot have it", listener.index),
            );
        }
    }
}

//! Listeners, pools and health monitors of a Service's ports.

use std::collections::BTreeMap;

use ccm_core::k8s::{Protocol, ServicePort, SessionAffinity, TrafficPolicy};
use ipnet::IpNet;

use super::{SpecReader, some};
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
    tls: Option<Box<str>>,
    connection_limit: i32,
    timeouts: Option<Timeouts>,
    allowed: Option<Vec<IpNet>>,
    method: Box<str>,
    checks: Option<DesiredMonitor>,
    health_port: Option<u16>,
}

/// Reads all ports.
pub(super) fn read(reader: &mut SpecReader<'_>, sources: &[IpNet]) -> Vec<DesiredListener> {
    let common = CommonPortSettings {
        tls: tls(reader),
        connection_limit: read_in_range(reader, &keys::CONNECTION_LIMIT, -1, (-1, i32::MAX)),
        timeouts: timeouts(reader),
        allowed: reader.features.allowed_cidrs.then(|| sources.to_vec()),
        method: method(reader),
        checks: checks(reader),
        health_port: health_port(reader),
    };
    let listeners: Vec<_> = reader
        .service
        .ports
        .iter()
        .enumerate()
        .map(|(index, port)| listener(reader, &common, index, port))
        .collect();
    reject_port_conflicts(reader, &listeners);
    listeners
}

fn listener(
    reader: &SpecReader<'_>,
    common: &CommonPortSettings,
    index: usize,
    port: &ServicePort,
) -> DesiredListener {
    let protocol = ListenerProtocol::of(common.tls.is_some(), reader.forwarded_for, port.protocol);
    DesiredListener {
        index,
        protocol,
        port: port.port.get(),
        connection_limit: common.connection_limit,
        forwarded_for: reader.forwarded_for,
        // The configured certificate applies only to ports that can have one.
        tls_container: common
            .tls
            .clone()
            .filter(|_| port.protocol == Protocol::Tcp),
        timeouts: common.timeouts,
        allowed: common.allowed.clone(),
        pool: pool(reader, common, port),
    }
}

fn pool(reader: &SpecReader<'_>, common: &CommonPortSettings, port: &ServicePort) -> DesiredPool {
    let http = reader.forwarded_for || common.tls.is_some();
    let by_http = common.health_port.is_some() && reader.features.http_monitor;
    let by_http =
        by_http && (port.protocol == Protocol::Tcp || reader.features.http_monitor_on_datagrams);
    let kind = match port.protocol {
        _ if by_http => MonitorKind::Http,
        Protocol::Tcp => MonitorKind::Tcp,
        Protocol::Udp => MonitorKind::UdpConnect,
        Protocol::Sctp => MonitorKind::Sctp,
    };
    DesiredPool {
        protocol: PoolProtocol::of(reader.proxy, http, port.protocol),
        method: common.method.clone(),
        session_persistence: reader.service.session_affinity != SessionAffinity::None,
        node_port: port.node_port.map(Into::into),
        // Other checks do not use the health-check port, and OVN would not keep it either.
        monitor_port: common
            .health_port
            .filter(|_| by_http && common.checks.is_some()),
        monitor: common
            .checks
            .map(|checks| DesiredMonitor { kind, ..checks }),
    }
}

/// Reads the certificate. In Barbican its reference says what kind it is.
fn tls(reader: &mut SpecReader<'_>) -> Option<Box<str>> {
    let text = reader
        .annotations
        .text(&keys::TLS_CONTAINER, &reader.settings.tls_container_ref);
    let reference = some(text)?;
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
    if reader.settings.driver.is_ovn() {
        reader
            .annotations
            .invalid_value(&keys::TLS_CONTAINER, "load balancers of OVN do not end TLS");
    }
    Some(reference)
}

/// Returns whether a reference is one of a container or secret of Barbican.
fn is_barbican_ref(reference: &str) -> bool {
    let mut parts = reference.rsplit('/');
    let id = parts.next().unwrap_or_default();
    let kind = parts.next().unwrap_or_default();
    !id.is_empty() && matches!(kind, "containers" | "secrets")
}

/// Reads the algorithm. An unknown one is replaced by the configured one, with a notice.
fn method(reader: &mut SpecReader<'_>) -> Box<str> {
    match reader
        .annotations
        .text(&keys::METHOD, &reader.settings.method)
    {
        known if METHODS.contains(&known) => known.into(),
        "" => "ROUND_ROBIN".into(),
        _ => reader.settings.method.clone(),
    }
}

fn timeouts(reader: &mut SpecReader<'_>) -> Option<Timeouts> {
    let mut read = |row, default| read_in_range(reader, row, default, (0, MAX_TIMEOUT_MS));
    let timeouts = Timeouts {
        client_data: read(&keys::TIMEOUT_CLIENT_DATA, 50_000),
        member_connect: read(&keys::TIMEOUT_MEMBER_CONNECT, 5_000),
        member_data: read(&keys::TIMEOUT_MEMBER_DATA, 50_000),
        tcp_inspect: read(&keys::TIMEOUT_TCP_INSPECT, 0),
    };
    reader.features.timeouts.then_some(timeouts)
}

/// Reads how members are checked; the type depends on each port.
fn checks(reader: &mut SpecReader<'_>) -> Option<DesiredMonitor> {
    let configured = reader.settings.checks;
    let number = |number: u64| i32::try_from(number).unwrap_or(i32::MAX);
    let mut read =
        |row, default, most| read_in_range(reader, row, default, (1, most)).unsigned_abs();
    let monitor = DesiredMonitor {
        kind: MonitorKind::Tcp,
        delay: read(&keys::MONITOR_DELAY, number(configured.delay.as_secs()), i32::MAX),
        timeout: read(&keys::MONITOR_TIMEOUT, number(configured.timeout.as_secs()), i32::MAX),
        max_retries: read(
            &keys::MONITOR_RETRIES,
            number(configured.max_retries.into()),
            MAX_RETRIES,
        ),
        max_retries_down: read(
            &keys::MONITOR_RETRIES_DOWN,
            number(configured.max_retries_down.into()),
            MAX_RETRIES,
        ),
    };
    reader
        .annotations
        .boolean(&keys::MONITOR, reader.settings.monitor)
        .then_some(monitor)
}

/// Returns the port where kube-proxy reports whether its node has endpoints of this Service.
fn health_port(reader: &SpecReader<'_>) -> Option<u16> {
    let local = reader.service.external_traffic_policy == TrafficPolicy::Local;
    reader
        .service
        .health_check_node_port
        .filter(|_| local)
        .map(Into::into)
}

/// Reads a number. One that Octavia would reject is an error.
fn read_in_range(
    reader: &mut SpecReader<'_>,
    row: &Annotation,
    default: i32,
    (least, most): (i32, i32),
) -> i32 {
    let number = reader.annotations.integer(row, default);
    if number != default && !(least..=most).contains(&number) {
        reader
            .annotations
            .invalid_value(row, format!("{number} is not between {least} and {most}"));
        return default;
    }
    number
}

/// Records errors for ports that cannot be served together, or not with their protocol.
fn reject_port_conflicts(reader: &mut SpecReader<'_>, listeners: &[DesiredListener]) {
    let tls = reader
        .annotations
        .given(&keys::TLS_CONTAINER)
        .is_some_and(|text| !text.is_empty());
    let for_tcp = [
        (&keys::PROXY_PROTOCOL, reader.proxy.is_some()),
        (&keys::X_FORWARDED_FOR, reader.forwarded_for),
        (&keys::TLS_CONTAINER, tls),
    ];
    let mut taken = BTreeMap::new();
    for (listener, port) in listeners.iter().zip(&reader.service.ports) {
        if let Some(other) =
            taken.insert((transport(listener.protocol.as_str()), listener.port), listener.index)
        {
            let field = format!("spec.ports[{}]", listener.index);
            reader
                .annotations
                .add_error(&field, format!("would need the same listener as spec.ports[{other}]"));
        }
        for (key, _) in for_tcp
            .into_iter()
            .filter(|(_, is_asked)| *is_asked && port.protocol != Protocol::Tcp)
        {
            // Ports of two transports may have the same number: the index distinguishes them.
            reader.annotations.invalid_value(
                key,
                format!("spec.ports[{}] is not TCP and cannot have it", listener.index),
            );
        }
    }
}

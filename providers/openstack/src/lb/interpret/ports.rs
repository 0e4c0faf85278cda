//! Listeners, pools and health monitors of a Service's ports.

use std::collections::BTreeMap;

use ccm_core::k8s::{Protocol, ServicePort, SessionAffinity, TrafficPolicy};
use ipnet::IpNet;

use super::{Reads, some};
use crate::lb::{
    annotations::{self as keys, Annotation},
    model::{
        ListenerProtocol, MonitorKind, PoolProtocol, Timeouts, WantedListener, WantedMonitor, WantedPool, transport,
    },
};

/// Algorithms that Octavia knows.
pub(super) const METHODS: [&str; 4] = ["ROUND_ROBIN", "LEAST_CONNECTIONS", "SOURCE_IP", "SOURCE_IP_PORT"];
/// Longest timeout in milliseconds, 24 days.
const LONGEST: i32 = 2_073_600_000;
/// Most tries of a health monitor.
const MOST_RETRIES: i32 = 10;

/// What all ports have in common.
struct Common {
    tls: Option<Box<str>>,
    connection_limit: i32,
    timeouts: Option<Timeouts>,
    allowed: Option<Vec<IpNet>>,
    method: Box<str>,
    checks: Option<WantedMonitor>,
    health_port: Option<u16>,
}

/// Reads all ports.
pub(super) fn read(reads: &mut Reads<'_>, sources: &[IpNet]) -> Vec<WantedListener> {
    let common = Common {
        tls: tls(reads),
        connection_limit: within(reads, &keys::CONNECTION_LIMIT, -1, (-1, i32::MAX)),
        timeouts: timeouts(reads),
        allowed: reads.features.allowed_cidrs.then(|| sources.to_vec()),
        method: method(reads),
        checks: checks(reads),
        health_port: health_port(reads),
    };
    let listeners: Vec<_> =
        reads.service.ports.iter().enumerate().map(|(index, port)| listener(reads, &common, index, port)).collect();
    clashes(reads, &listeners);
    listeners
}

fn listener(reads: &Reads<'_>, common: &Common, index: usize, port: &ServicePort) -> WantedListener {
    let protocol = ListenerProtocol::of(common.tls.is_some(), reads.forwarded_for, port.protocol);
    WantedListener {
        index,
        protocol,
        port: port.port.get(),
        connection_limit: common.connection_limit,
        forwarded_for: reads.forwarded_for,
        // The configuration's certificate is for what can have one.
        tls_container: common.tls.clone().filter(|_| port.protocol == Protocol::Tcp),
        timeouts: common.timeouts,
        allowed: common.allowed.clone(),
        pool: pool(reads, common, port),
    }
}

fn pool(reads: &Reads<'_>, common: &Common, port: &ServicePort) -> WantedPool {
    let http = reads.forwarded_for || common.tls.is_some();
    let by_http = common.health_port.is_some() && reads.features.http_monitor;
    let by_http = by_http && (port.protocol == Protocol::Tcp || reads.features.http_monitor_on_datagrams);
    let kind = match port.protocol {
        _ if by_http => MonitorKind::Http,
        Protocol::Tcp => MonitorKind::Tcp,
        Protocol::Udp => MonitorKind::UdpConnect,
        Protocol::Sctp => MonitorKind::Sctp,
    };
    WantedPool {
        protocol: PoolProtocol::of(reads.proxy, http, port.protocol),
        method: common.method.clone(),
        sticky: reads.service.session_affinity != SessionAffinity::None,
        node_port: port.node_port.map(Into::into),
        // What is not checked by HTTP is not checked there: OVN would keep no such port either.
        monitor_port: common.health_port.filter(|_| by_http && common.checks.is_some()),
        monitor: common.checks.map(|checks| WantedMonitor { kind, ..checks }),
    }
}

/// Reads the certificate. Of one in Barbican the reference says what it is.
fn tls(reads: &mut Reads<'_>) -> Option<Box<str>> {
    let text = reads.annotations.text(&keys::TLS_CONTAINER, &reads.settings.tls_container_ref);
    let reference = some(text)?;
    if reads.settings.barbican && !refers(&reference) {
        let message = format!("{reference:?} does not end in containers/ or secrets/ and an ID");
        reads.annotations.wrong(&keys::TLS_CONTAINER, message);
    }
    if reference.len() > 255 {
        reads.annotations.wrong(&keys::TLS_CONTAINER, "is longer than 255 characters");
    }
    if reads.settings.driver.is_ovn() {
        reads.annotations.wrong(&keys::TLS_CONTAINER, "load balancers of OVN do not end TLS");
    }
    Some(reference)
}

/// Tells whether a reference is one of a container or secret of Barbican.
fn refers(reference: &str) -> bool {
    let mut parts = reference.rsplit('/');
    let (id, kind) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    !id.is_empty() && matches!(kind, "containers" | "secrets")
}

/// Reads the algorithm. One that nobody knows is left out with a remark.
fn method(reads: &mut Reads<'_>) -> Box<str> {
    match reads.annotations.text(&keys::METHOD, &reads.settings.method) {
        known if METHODS.contains(&known) => known.into(),
        "" => "ROUND_ROBIN".into(),
        _ => reads.settings.method.clone(),
    }
}

fn timeouts(reads: &mut Reads<'_>) -> Option<Timeouts> {
    let mut read = |row, default| within(reads, row, default, (0, LONGEST));
    let timeouts = Timeouts {
        client_data: read(&keys::TIMEOUT_CLIENT_DATA, 50_000),
        member_connect: read(&keys::TIMEOUT_MEMBER_CONNECT, 5_000),
        member_data: read(&keys::TIMEOUT_MEMBER_DATA, 50_000),
        tcp_inspect: read(&keys::TIMEOUT_TCP_INSPECT, 0),
    };
    reads.features.timeouts.then_some(timeouts)
}

/// Reads how members are checked; the kind is each port's own.
fn checks(reads: &mut Reads<'_>) -> Option<WantedMonitor> {
    let configured = reads.settings.checks;
    let number = |number: u64| i32::try_from(number).unwrap_or(i32::MAX);
    let mut read = |row, default, most| within(reads, row, default, (1, most)).unsigned_abs();
    let monitor = WantedMonitor {
        kind: MonitorKind::Tcp,
        delay: read(&keys::MONITOR_DELAY, number(configured.delay.as_secs()), i32::MAX),
        timeout: read(&keys::MONITOR_TIMEOUT, number(configured.timeout.as_secs()), i32::MAX),
        max_retries: read(&keys::MONITOR_RETRIES, number(configured.max_retries.into()), MOST_RETRIES),
        max_retries_down: read(&keys::MONITOR_RETRIES_DOWN, number(configured.max_retries_down.into()), MOST_RETRIES),
    };
    reads.annotations.boolean(&keys::MONITOR, reads.settings.monitor).then_some(monitor)
}

/// Returns the port where kube-proxy tells whether it has endpoints of this Service on its node.
fn health_port(reads: &Reads<'_>) -> Option<u16> {
    let local = reads.service.external_traffic_policy == TrafficPolicy::Local;
    reads.service.health_check_node_port.filter(|_| local).map(Into::into)
}

/// Reads a number. One that Octavia would refuse is a mistake.
fn within(reads: &mut Reads<'_>, row: &Annotation, default: i32, (least, most): (i32, i32)) -> i32 {
    let number = reads.annotations.integer(row, default);
    if number != default && !(least..=most).contains(&number) {
        reads.annotations.wrong(row, format!("{number} is not between {least} and {most}"));
        return default;
    }
    number
}

/// Notes ports that cannot be served beside each other, or not in this protocol.
fn clashes(reads: &mut Reads<'_>, listeners: &[WantedListener]) {
    let tls = reads.annotations.given(&keys::TLS_CONTAINER).is_some_and(|text| !text.is_empty());
    let for_tcp = [
        (&keys::PROXY_PROTOCOL, reads.proxy.is_some()),
        (&keys::X_FORWARDED_FOR, reads.forwarded_for),
        (&keys::TLS_CONTAINER, tls),
    ];
    let mut taken = BTreeMap::new();
    for (listener, port) in listeners.iter().zip(&reads.service.ports) {
        if let Some(other) = taken.insert((transport(listener.protocol.as_str()), listener.port), listener.index) {
            let field = format!("spec.ports[{}]", listener.index);
            reads.annotations.mistake(&field, format!("would need the same listener as spec.ports[{other}]"));
        }
        for (key, _) in for_tcp.into_iter().filter(|(_, is_asked)| *is_asked && port.protocol != Protocol::Tcp) {
            // Ports of two transports may have one number: the index tells them apart.
            reads.annotations.wrong(key, format!("spec.ports[{}] is not TCP and cannot have it", listener.index));
        }
    }
}

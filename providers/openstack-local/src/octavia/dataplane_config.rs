//! Converts rows to the data plane's configuration, and its reports to ours. Pure.

use std::{net::IpAddr, time::Duration};

use crate::api::octavia::{
    HealthMonitor, LbAlgorithm, Listener, ListenerProtocol, LoadBalancer, Member, MonitorType,
    PersistenceType, Pool, PoolProtocol, ProvisioningStatus, Stats,
};

use super::{
    check,
    health::{ListenerReport, MemberReport, Report},
    rows::LoadBalancerRow,
};
use crate::{
    dataplane::{self as plane},
    keystone::key_manager,
    state::{CloudState, RequestContext},
};

/// Returns the address that sockets are opened on, if it is a loopback address of this machine;
/// other addresses carry no traffic.
pub fn carried(body: &LoadBalancer) -> Option<IpAddr> {
    let address: IpAddr = body.vip_address.as_ref()?.parse().ok()?;
    address.is_loopback().then_some(address)
}

/// Returns the configuration of a load balancer without a change in progress; `None` when its
/// address carries no traffic.
pub fn load_balancer(
    state: &CloudState,
    ctx: &RequestContext,
    row: &LoadBalancerRow,
) -> Option<plane::LoadBalancerConfig> {
    let vip = carried(&row.body)?;
    let on = row.body.admin_state_up;
    let listeners = row
        .body
        .listeners
        .iter()
        .filter_map(|one| state.octavia.listeners.get(&one.id));
    let listeners =
        listeners.filter(|row| on && is_on(row.body.admin_state_up, &row.body.provisioning_status));
    let listeners = listeners
        .filter_map(|row| listener(state, ctx, &row.body))
        .collect();
    Some(plane::LoadBalancerConfig { id: row.body.id.as_str().into(), vip, listeners })
}

/// Returns whether a resource is used. One whose creation failed does not exist for the sockets.
fn is_on(switched_on: bool, status: &ProvisioningStatus) -> bool {
    switched_on && *status != ProvisioningStatus::Error
}

fn listener(
    state: &CloudState,
    ctx: &RequestContext,
    body: &Listener,
) -> Option<plane::ListenerConfig> {
    let protocol = match body.protocol {
        ListenerProtocol::Tcp => plane::ListenerProtocol::Tcp,
        ListenerProtocol::Udp => plane::ListenerProtocol::Udp,
        ListenerProtocol::Http => plane::ListenerProtocol::Http,
        ListenerProtocol::Https => plane::ListenerProtocol::Https,
        ListenerProtocol::TerminatedHttps => plane::ListenerProtocol::TerminatedHttps,
        ListenerProtocol::Sctp => plane::ListenerProtocol::Sctp,
        // There are no metrics of listeners here.
        ListenerProtocol::Prometheus | ListenerProtocol::Other(_) => return None,
    };
    let pool = body
        .default_pool_id
        .as_ref()
        .and_then(|id| state.octavia.pools.get(id));
    let pool = pool.filter(|row| is_on(row.body.admin_state_up, &row.body.provisioning_status));
    let time = |milliseconds: Option<u32>, default: u32| {
        Duration::from_millis(milliseconds.unwrap_or(default).into())
    };
    let inserts = |header: &str| {
        body.insert_headers
            .get(header)
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
    };
    Some(plane::ListenerConfig {
        id: body.id.as_str().into(),
        protocol,
        port: body.protocol_port,
        connection_limit: u32::try_from(body.connection_limit).ok(),
        timeouts: plane::Timeouts {
            client_data: time(body.timeout_client_data, 50_000),
            member_connect: time(body.timeout_member_connect, 5_000),
            member_data: time(body.timeout_member_data, 50_000),
            tcp_inspect: time(body.timeout_tcp_inspect, 0),
        },
        allowed_cidrs: body
            .allowed_cidrs
            .iter()
            .flatten()
            .filter_map(|cidr| check::network(cidr))
            .collect(),
        insert_headers: plane::InsertHeaders {
            x_forwarded_for: inserts("X-Forwarded-For"),
            x_forwarded_port: inserts("X-Forwarded-Port"),
            x_forwarded_proto: inserts("X-Forwarded-Proto"),
        },
        tls: certificate(state, ctx, body),
        pool: pool.and_then(|row| pool_config(state, &row.body)),
    })
}

/// Reads the certificate of a listener from the key manager.
fn certificate(
    state: &CloudState,
    ctx: &RequestContext,
    body: &Listener,
) -> Option<plane::TlsConfig> {
    let mut references = body
        .default_tls_container_ref
        .iter()
        .chain(&body.sni_container_refs);
    let container =
        references.find_map(|reference| key_manager::find_container(state, ctx, reference))?;
    let text = |part: &str| {
        let secret = key_manager::find_secret(state, ctx, container.secrets.get(part)?)?;
        Some(secret.payload.expose().to_owned())
    };
    let mut certificate_chain = text("certificate")?;
    if let Some(more) = text("intermediates") {
        certificate_chain.push('\n');
        certificate_chain.push_str(&more);
    }
    Some(plane::TlsConfig { certificate_chain, private_key: text("private_key")? })
}

fn pool_config(state: &CloudState, body: &Pool) -> Option<plane::PoolConfig> {
    let protocol = match body.protocol {
        PoolProtocol::Tcp => plane::PoolProtocol::Tcp,
        PoolProtocol::Udp => plane::PoolProtocol::Udp,
        PoolProtocol::Http => plane::PoolProtocol::Http,
        PoolProtocol::Https => plane::PoolProtocol::Https,
        PoolProtocol::Proxy => plane::PoolProtocol::Proxy,
        PoolProtocol::ProxyV2 => plane::PoolProtocol::ProxyV2,
        PoolProtocol::Sctp => plane::PoolProtocol::Sctp,
        PoolProtocol::Other(_) => return None,
    };
    let algorithm = match body.lb_algorithm {
        LbAlgorithm::LeastConnections => plane::Algorithm::LeastConnections,
        LbAlgorithm::SourceIp => plane::Algorithm::SourceIp,
        LbAlgorithm::SourceIpPort => plane::Algorithm::SourceIpPort,
        LbAlgorithm::RoundRobin | LbAlgorithm::Other(_) => plane::Algorithm::RoundRobin,
    };
    let persistence =
        body.session_persistence
            .as_ref()
            .and_then(|persistence| match persistence.kind {
                PersistenceType::SourceIp => Some(plane::Persistence::SourceIp),
                PersistenceType::HttpCookie => Some(plane::Persistence::HttpCookie),
                PersistenceType::AppCookie => {
                    Some(plane::Persistence::AppCookie(persistence.cookie_name.as_deref()?.into()))
                }
                PersistenceType::Other(_) => None,
            });
    let members = body
        .members
        .iter()
        .filter_map(|one| state.octavia.members.get(&one.id));
    let members = members.filter(|row| row.body.provisioning_status != ProvisioningStatus::Error);
    let monitor = body
        .monitor
        .healthmonitor_id
        .as_ref()
        .and_then(|id| state.octavia.monitors.get(id));
    let monitor =
        monitor.filter(|row| is_on(row.body.admin_state_up, &row.body.provisioning_status));
    Some(plane::PoolConfig {
        id: body.id.as_str().into(),
        protocol,
        algorithm,
        persistence,
        members: members.filter_map(|row| member(&row.body)).collect(),
        monitor: monitor.and_then(|row| monitor_config(&row.body)),
    })
}

fn member(body: &Member) -> Option<plane::MemberConfig> {
    Some(plane::MemberConfig {
        id: body.id.as_str().into(),
        address: body.address.parse().ok()?,
        port: body.protocol_port,
        weight: body.weight,
        backup: body.backup,
        enabled: body.admin_state_up,
        monitor_address: body
            .monitor_address
            .as_ref()
            .and_then(|address| address.parse().ok()),
        monitor_port: body.monitor_port,
    })
}

fn monitor_config(body: &HealthMonitor) -> Option<plane::MonitorConfig> {
    let check = || plane::HttpCheck {
        method: body
            .http_method
            .as_ref()
            .and_then(|method| method.parse().ok())
            .unwrap_or_default(),
        path: body.url_path.clone().unwrap_or_else(|| "/".to_owned()),
        expected: body
            .expected_codes
            .as_ref()
            .and_then(|codes| codes.parse().ok())
            .unwrap_or_default(),
        host: body.domain_name.clone(),
    };
    let kind = match body.kind {
        MonitorType::Tcp => plane::MonitorKind::Tcp,
        MonitorType::Http => plane::MonitorKind::Http(check()),
        MonitorType::Https => plane::MonitorKind::Https(check()),
        MonitorType::TlsHello => plane::MonitorKind::TlsHello,
        MonitorType::UdpConnect => plane::MonitorKind::UdpConnect,
        MonitorType::Ping => plane::MonitorKind::Ping,
        // SCTP is not supported here, so it is not checked.
        MonitorType::Sctp | MonitorType::Other(_) => return None,
    };
    // Zero would check without a delay.
    let seconds = |seconds: u32| Duration::from_secs(u64::from(seconds).max(1));
    Some(plane::MonitorConfig {
        kind,
        delay: seconds(body.delay),
        timeout: seconds(body.timeout),
        max_retries: body.max_retries,
        max_retries_down: body.max_retries_down,
    })
}

/// Adds what a load balancer reports. `limit`: connection limit of a listener.
pub fn add_report(
    to: &mut Report,
    from: &plane::LoadBalancerReport,
    limit: impl Fn(&str) -> Option<u64>,
) {
    for listener in &from.listeners {
        let id = listener.id.as_str();
        let counters = listener.counters;
        let said = ListenerReport {
            open: matches!(listener.state, plane::ListenerState::Listening(_)),
            full: limit(id).is_some_and(|limit| counters.active_connections >= limit),
            stats: Stats {
                active_connections: counters.active_connections,
                bytes_in: counters.bytes_in,
                bytes_out: counters.bytes_out,
                request_errors: counters.request_errors,
                total_connections: counters.total_connections,
            },
        };
        to.listeners.insert(id.to_owned(), said);
        for member in listener.pool.iter().flat_map(|pool| &pool.members) {
            let said = match member.state {
                plane::MemberState::Online => MemberReport::Up,
                plane::MemberState::Error => MemberReport::Down,
                plane::MemberState::Offline | plane::MemberState::NoMonitor => {
                    MemberReport::Unknown
                }
                // This does not show the member's health, which was reported before.
                plane::MemberState::Draining => continue,
            };
            // Under two listeners it is checked twice; the better result is used.
            let known = to
                .members
                .entry(member.id.as_str().to_owned())
                .or_insert(said);
            if said == MemberReport::Up || *known == MemberReport::Unknown {
                *known = said;
            }
        }
    }
}

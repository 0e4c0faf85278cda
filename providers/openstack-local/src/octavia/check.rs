//! Rules over several attributes, with Octavia's messages. They do not read the state.

use std::net::IpAddr;

use crate::api::octavia::{
    HealthMonitor, Listener, ListenerProtocol, MonitorType, PersistenceType, PoolProtocol,
    SessionPersistence,
};
use ipnet::IpNet;

use super::error::{bad_reference, invalid_option, validation};
use crate::state::ApiError;

/// Pool protocols that a listener may forward to.
pub(super) fn pool_protocols(listener: &ListenerProtocol) -> &'static [PoolProtocol] {
    use PoolProtocol::{Http, Https, Proxy, ProxyV2, Sctp, Tcp, Udp};
    match listener {
        ListenerProtocol::Tcp => &[Http, Https, Proxy, ProxyV2, Tcp],
        ListenerProtocol::Http | ListenerProtocol::TerminatedHttps => &[Http, Proxy, ProxyV2],
        ListenerProtocol::Https => &[Https, Proxy, ProxyV2, Tcp],
        ListenerProtocol::Udp => &[Udp],
        ListenerProtocol::Sctp => &[Sctp],
        ListenerProtocol::Prometheus | ListenerProtocol::Other(_) => &[],
    }
}

/// Checks that a listener may forward to a pool.
pub(super) fn protocols(listener: &ListenerProtocol, pool: &PoolProtocol) -> Result<(), ApiError> {
    if *listener == ListenerProtocol::Prometheus {
        return Err(ApiError::bad_request(
            "",
            "Protocol PROMETHEUS listeners cannot have child objects.",
        ));
    }
    if pool_protocols(listener).contains(pool) {
        return Ok(());
    }
    Err(validation(format_args!(
        "The pool protocol '{pool}' is invalid while the listener protocol is '{listener}'."
    )))
}

/// The transport whose port a listener occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Udp,
    Sctp,
}

/// Returns the transport of a listener's protocol.
pub(super) fn transport(protocol: &ListenerProtocol) -> Transport {
    match protocol {
        ListenerProtocol::Udp => Transport::Udp,
        ListenerProtocol::Sctp => Transport::Sctp,
        _ => Transport::Tcp,
    }
}

/// Headers that may be inserted by any HTTP listener, and those with information about TLS.
const HEADERS: &[&str] = &["X-Forwarded-For", "X-Forwarded-Port", "X-Forwarded-Proto"];
const TLS_HEADERS: &[&str] = &[
    "X-SSL-Client-Verify",
    "X-SSL-Client-Has-Cert",
    "X-SSL-Client-DN",
    "X-SSL-Client-CN",
    "X-SSL-Issuer",
    "X-SSL-Client-SHA1",
    "X-SSL-Client-Not-Before",
    "X-SSL-Client-Not-After",
];

/// Checks a listener in its future state, on a load balancer with these addresses.
pub(super) fn listener(listener: &Listener, addresses: &[IpAddr]) -> Result<(), ApiError> {
    insert_headers(listener)?;
    certificates(listener)?;
    allowed_cidrs(listener.allowed_cidrs.as_deref().unwrap_or_default(), addresses)?;
    if listener.hsts_max_age.is_none()
        && (listener.hsts_include_subdomains || listener.hsts_preload)
    {
        return Err(validation(
            "HSTS configuration options hsts_include_subdomains and hsts_preload only make sense if hsts_max_age is set as well.",
        ));
    }
    if listener.hsts_max_age.is_some() && listener.protocol != ListenerProtocol::TerminatedHttps {
        return Err(validation("The HSTS feature can only be used for TLS-enabled listeners."));
    }
    Ok(())
}

fn insert_headers(listener: &Listener) -> Result<(), ApiError> {
    let protocol = &listener.protocol;
    let headers = &listener.insert_headers;
    if headers.is_empty() {
        return Ok(());
    }
    if !matches!(protocol, ListenerProtocol::Http | ListenerProtocol::TerminatedHttps) {
        return Err(invalid_option(
            "insert-headers",
            format_args!("a {protocol} protocol listener."),
        ));
    }
    let shown = |of: &dyn Fn(&str) -> bool| {
        let names: Vec<_> = headers
            .keys()
            .filter(|name| of(name))
            .map(|name| format!("'{name}'"))
            .collect();
        format!("[{}]", names.join(", "))
    };
    let tls = |name: &str| TLS_HEADERS.contains(&name);
    if !headers
        .keys()
        .all(|name| HEADERS.contains(&name.as_str()) || tls(name))
    {
        return Err(invalid_option(shown(&|_| true), "insert_headers"));
    }
    if *protocol == ListenerProtocol::Http && headers.keys().any(|name| tls(name)) {
        return Err(invalid_option(shown(&tls), format_args!("{protocol} protocol listener.")));
    }
    Ok(())
}

fn certificates(listener: &Listener) -> Result<(), ApiError> {
    let protocol = &listener.protocol;
    let offered = listener
        .default_tls_container_ref
        .iter()
        .chain(&listener.sni_container_refs);
    let own = offered.clone().count();
    let authority = &listener.client_ca_tls_container_ref;
    let terminates = *protocol == ListenerProtocol::TerminatedHttps;
    if !terminates && (own > 0 || authority.is_some()) {
        return Err(if matches!(protocol, ListenerProtocol::Udp | ListenerProtocol::Sctp) {
            validation(format_args!("{protocol} protocol listener does not support TLS."))
        } else {
            let fault = "Certificate container references are not allowed on";
            validation(format_args!("{fault} {protocol} protocol listeners."))
        });
    }
    if terminates && own == 0 {
        let fault = "An SNI or default certificate container reference must be provided for";
        return Err(validation(format_args!("{fault} {protocol} protocol listeners.")));
    }
    let mode = listener.client_authentication.as_deref().unwrap_or("NONE");
    if mode != "NONE" && authority.is_none() {
        let fault = "requires a client CA container reference.";
        return Err(validation(format_args!("Client authentication setting {mode} {fault}")));
    }
    if listener.client_crl_container_ref.is_some() && authority.is_none() {
        let fault = "A client authentication CA reference is required to specify a client authentication revocation list.";
        return Err(validation(fault));
    }
    let revoked = &listener.client_crl_container_ref;
    offered
        .chain(authority)
        .chain(revoked)
        .try_for_each(|reference| certificate(reference))
}

/// Checks that a reference is one to Barbican: `…/v1/containers/<uuid>` or `…/v1/secrets/<uuid>`.
pub(super) fn certificate(reference: &str) -> Result<(), ApiError> {
    let mut parts = reference.rsplit('/');
    let id = parts
        .next()
        .is_some_and(|id| uuid::Uuid::try_parse(id).is_ok());
    let kind = parts
        .next()
        .is_some_and(|kind| ["containers", "secrets"].contains(&kind));
    if id && kind {
        Ok(())
    } else {
        Err(bad_reference(reference))
    }
}

fn allowed_cidrs(cidrs: &[String], addresses: &[IpAddr]) -> Result<(), ApiError> {
    for text in cidrs {
        // The schema has accepted it, so it is a network or an address.
        let Some(is_v6) = network(text).map(|network| network.addr().is_ipv6()) else {
            continue;
        };
        if !addresses.is_empty() && !addresses.iter().any(|address| address.is_ipv6() == is_v6) {
            let addresses: Vec<_> = addresses
                .iter()
                .map(|address| format!("'{address}'"))
                .collect();
            return Err(validation(format_args!(
                "CIDR {text} IP version incompatible with all VIPs [{}] IP version.",
                addresses.join(", ")
            )));
        }
    }
    Ok(())
}

/// Parses a network; a single address is a network of one.
pub(super) fn network(text: &str) -> Option<IpNet> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

/// Returns networks in Octavia's format: with prefix, without host bits.
pub(super) fn normal_cidrs(cidrs: Vec<String>) -> Option<Vec<String>> {
    let normal = |text: String| network(&text).map_or(text, |network| network.trunc().to_string());
    Some(cidrs.into_iter().map(normal).collect::<Vec<_>>()).filter(|cidrs| !cidrs.is_empty())
}

/// Checks the session persistence of a pool.
pub(super) fn persistence(
    pool: &PoolProtocol,
    persistence: Option<&SessionPersistence>,
) -> Result<(), ApiError> {
    let Some(persistence) = persistence else {
        return Ok(());
    };
    let kind = &persistence.kind;
    if matches!(pool, PoolProtocol::Udp | PoolProtocol::Sctp) {
        if persistence.cookie_name.is_some() {
            return Err(validation("Cookie names are not supported for UDP/SCTP pools."));
        }
        if *kind != PersistenceType::SourceIp {
            let fault = "is not supported for UDP/SCTP protocol pools.";
            return Err(validation(format_args!("Session persistence of type {kind} {fault}")));
        }
    } else if persistence.persistence_timeout.is_some()
        || persistence.persistence_granularity.is_some()
    {
        let fault = "persistence_timeout and persistence_granularity is only for UDP and SCTP protocol pools.";
        return Err(validation(fault));
    }
    match (kind, &persistence.cookie_name) {
        (PersistenceType::AppCookie, None) => {
            let fault = "must be specified when using the \"APP_COOKIE\" session persistence type.";
            Err(validation(format_args!("Field \"cookie_name\" {fault}")))
        }
        (PersistenceType::AppCookie, Some(_)) | (_, None) => Ok(()),
        (_, Some(_)) => {
            let fault = "can only be specified with session persistence of type \"APP_COOKIE\".";
            Err(validation(format_args!("Field \"cookie_name\" {fault}")))
        }
    }
}

/// Checks a health monitor in its future state. `minor`: UDP pools support HTTP and TCP monitors
/// from 2.16.
pub(super) fn monitor(
    monitor: &HealthMonitor,
    pool: &PoolProtocol,
    minor: u8,
) -> Result<(), ApiError> {
    let kind = &monitor.kind;
    // First, type and pool protocol.
    match pool {
        PoolProtocol::Udp | PoolProtocol::Sctp => {
            let more: &[MonitorType] = if minor >= 16 {
                &[MonitorType::Tcp, MonitorType::Http]
            } else {
                &[]
            };
            if !matches!(kind, MonitorType::UdpConnect | MonitorType::Sctp) && !more.contains(kind)
            {
                let kinds = [MonitorType::UdpConnect, MonitorType::Sctp]
                    .iter()
                    .chain(more);
                let kinds = kinds.map(ToString::to_string).collect::<Vec<_>>().join("/");
                let fault = format!("so only a {kinds} health monitor is supported.");
                return Err(validation(format_args!(
                    "The associated pool protocol is {pool}, {fault}"
                )));
            }
        }
        _ if matches!(kind, MonitorType::UdpConnect | MonitorType::Sctp) => {
            let fault = "type is only supported for pools of type UDP/SCTP.";
            return Err(validation(format_args!("The {kind} {fault}")));
        }
        _ => {}
    }
    // Then the attributes of each type.
    if *kind == MonitorType::UdpConnect && monitor.delay < 3 {
        let delay = monitor.delay;
        let fault = "should be larger than 3 for UDP-CONNECT health monitor type.";
        return Err(validation(format_args!("The request delay value {delay} {fault}")));
    }
    if !matches!(kind, MonitorType::Http | MonitorType::Https) {
        let only_http = [
            ("http_method", monitor.http_method.is_some()),
            ("url_path", monitor.url_path.is_some()),
            ("expected_codes", monitor.expected_codes.is_some()),
        ];
        if let Some((field, _)) = only_http.iter().find(|(_, present)| *present) {
            return Err(invalid_option(field, format_args!("health monitors of type {kind}")));
        }
    }
    match (&monitor.domain_name, monitor.http_version) {
        (Some(_), None) => {
            Err(validation("'http_version' must be specified when 'domain_name' is provided."))
        }
        (Some(_), Some(version)) if version < 1.1 => Err(invalid_option(
            format_args!("http_version {version:?}"),
            "health monitors HTTP 1.1 domain name health check",
        )),
        _ => Ok(()),
    }
}

/// Checks a member's address: that of the metadata service is not allowed.
pub(super) fn member_address(address: &str) -> Result<(), ApiError> {
    if address == "169.254.169.254" {
        Err(invalid_option(address, "member address"))
    } else {
        Ok(())
    }
}

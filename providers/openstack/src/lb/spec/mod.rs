//! Parses a Service: the desired state, from its spec, its annotations and the configuration alone.
//!
//! Pure: no request, no clock. All errors are found at once: an invalid value is replaced by a
//! harmless one, so that the errors after it are found too.

mod networks;
mod notices;
mod ports;

pub use self::networks::{member_subnet, vip_network, vip_subnet};

use std::net::IpAddr;

use ccm_core::{
    k8s::{IpFamily, ServiceView},
    provider::{FieldError, ServiceNotice, SourceRanges},
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    annotations::{self, AnnotationReader},
    features::Features,
    model::{DesiredLoadBalancer, ProxyProtocol, SecurityGroupSpec, ServiceKey, StatusFormat},
    names,
    settings::LoadBalancerSettings,
};

/// Result of parsing a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedService {
    /// The desired state, or every validation error.
    pub desired: Result<Box<DesiredLoadBalancer>, Vec<FieldError>>,
    /// For an invalid Service: the desired state with harmless values in place of invalid ones. It
    /// is used for the members of an existing load balancer, and for the rules that let it reach
    /// them; client networks are left out.
    pub tolerant: Option<Box<DesiredLoadBalancer>>,
    /// Notices for the owner of the Service.
    pub notices: Vec<ServiceNotice>,
}

/// State that the functions of this module share while they parse.
pub(super) struct SpecReader<'a> {
    pub(super) service: &'a ServiceView,
    pub(super) settings: &'a LoadBalancerSettings,
    pub(super) features: Features,
    pub(super) annotations: AnnotationReader<'a>,
    pub(super) remarks: Vec<ServiceNotice>,
    pub(super) internal: bool,
    pub(super) proxy: Option<ProxyProtocol>,
    pub(super) forwarded_for: bool,
}

impl SpecReader<'_> {
    /// Returns the address family of the load balancer.
    pub(super) fn family(&self) -> Option<IpFamily> {
        self.service.ip_families.first().copied()
    }
}

/// Parses a Service.
pub fn parse(
    service: &ServiceView,
    settings: &LoadBalancerSettings,
    features: Features,
    cluster: &str,
) -> ParsedService {
    let mut annotations = AnnotationReader::new(service);
    let internal =
        annotations.boolean(&annotations::INTERNAL, settings.internal) || settings.internal;
    let proxy = ProxyProtocol::parse(annotations.text(&annotations::PROXY_PROTOCOL, ""));
    let forwarded_for = annotations.boolean(&annotations::X_FORWARDED_FOR, false);
    let notices = Vec::new();
    let mut reader = SpecReader {
        service,
        settings,
        features,
        annotations,
        remarks: notices,
        internal,
        proxy,
        forwarded_for,
    };
    reject_unsupported(&mut reader);
    let desired = wanted(&mut reader, cluster);
    notices::collect_notices(&mut reader, &desired);
    let (mistakes, ignored) = reader.annotations.finish();
    let mut remarks = reader.remarks;
    notices::ignored_values(&mut remarks, &ignored);
    if mistakes.is_empty() {
        return ParsedService {
            desired: Ok(Box::new(desired)),
            tolerant: None,
            notices: remarks,
        };
    }
    // With an unknown class the subnet of members is not known, and the rules depend on it.
    let placed = !mistakes
        .iter()
        .any(|mistake| mistake.field == annotations::CLASS.key());
    let group = desired
        .security_group
        .clone()
        .filter(|group| placed && group.clients.is_none());
    ParsedService {
        desired: Err(mistakes),
        tolerant: Some(Box::new(DesiredLoadBalancer { security_group: group, ..desired })),
        notices: remarks,
    }
}

fn wanted(reader: &mut SpecReader<'_>, cluster: &str) -> DesiredLoadBalancer {
    let service = reader.service;
    let owner = ServiceKey {
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        uid: service.uid.clone(),
    };
    let sources = source_ranges(reader);
    let listeners = ports::read(reader, &sources);
    let place = networks::read(reader);
    let node_labels = match reader.annotations.given(&annotations::NODE_SELECTOR) {
        Some(text) => annotations::selector(text),
        None => reader.settings.node_selector.clone(),
    };
    DesiredLoadBalancer {
        name: names::load_balancer(cluster, &owner.namespace, &owner.name),
        description: names::description(cluster, &owner.namespace, &owner.name),
        internal: reader.internal,
        create_settings: place.front,
        floating_ip: place.floating,
        member_subnet: place.member_subnet,
        vip_subnet: place.vip_subnet,
        family: reader.family(),
        node_labels,
        security_group: group(reader, cluster, &owner, sources),
        status_format: status_format(reader),
        listeners,
        owner,
    }
}

/// Records what cannot be served at all.
fn reject_unsupported(reader: &mut SpecReader<'_>) {
    if reader.service.ports.is_empty() {
        reader
            .annotations
            .add_error("spec.ports", "there are no ports");
    }
    if reader.proxy.is_some() && reader.forwarded_for {
        reader.annotations.invalid_value(
            &annotations::PROXY_PROTOCOL,
            "cannot be had together with x-forwarded-for",
        );
    }
    if reader.settings.driver.is_ovn() {
        if reader.proxy.is_some() {
            reader.annotations.invalid_value(
                &annotations::PROXY_PROTOCOL,
                "load balancers of OVN have no proxy protocol",
            );
        }
        if reader.forwarded_for {
            reader
                .annotations
                .invalid_value(&annotations::X_FORWARDED_FOR, "load balancers of OVN have no HTTP");
        }
    }
}

/// Reads the client networks: those of the VIP's address family, and all of that family unless the
/// Service sets some.
fn source_ranges(reader: &mut SpecReader<'_>) -> Vec<IpNet> {
    let of_vip = reader.family().unwrap_or(IpFamily::V4);
    let all = match of_vip {
        IpFamily::V4 => IpNet::V4(Ipv4Net::default()),
        IpFamily::V6 => IpNet::V6(Ipv6Net::default()),
    };
    match SourceRanges::of(reader.service) {
        Ok(SourceRanges::Unset) => vec![all],
        Ok(SourceRanges::Only(networks)) => {
            let found: Vec<_> = networks
                .into_iter()
                .filter(|network| IpFamily::of(network) == of_vip)
                .collect();
            // An empty list opens the listener to everybody.
            if found.is_empty() {
                let message = "no network is of the address family of the load balancer";
                reader
                    .annotations
                    .add_error("spec.loadBalancerSourceRanges", message);
            }
            found
        }
        Err(mistakes) => {
            reader.annotations.add_errors(mistakes);
            vec![all]
        }
    }
}

fn group(
    reader: &SpecReader<'_>,
    cluster: &str,
    owner: &ServiceKey,
    sources: Vec<IpNet>,
) -> Option<SecurityGroupSpec> {
    let ports = reader
        .service
        .ports
        .iter()
        .filter_map(|port| Some((transport(port.protocol), port.node_port?.get())));
    let ports = ports.collect();
    let ovn = reader.settings.driver.is_ovn();
    reader
        .settings
        .manage_security_groups
        .then(|| SecurityGroupSpec {
            name: names::security_group(&owner.uid, &owner.namespace, &owner.name),
            description: names::security_group_description(cluster, &owner.namespace, &owner.name),
            ports,
            health_port: reader.service.health_check_node_port.map(Into::into),
            clients: ovn.then_some(sources),
        })
}

fn transport(protocol: ccm_core::k8s::Protocol) -> &'static str {
    match protocol {
        ccm_core::k8s::Protocol::Tcp => "tcp",
        ccm_core::k8s::Protocol::Udp => "udp",
        ccm_core::k8s::Protocol::Sctp => "sctp",
    }
}

fn status_format(reader: &SpecReader<'_>) -> StatusFormat {
    let hostname = reader.annotations.text(&annotations::HOSTNAME, "");
    let suffix = reader
        .settings
        .ingress_hostname
        .then(|| reader.settings.ingress_hostname_suffix.clone());
    StatusFormat {
        hostname: some(hostname),
        proxy: reader.proxy.is_some(),
        suffix,
    }
}

/// Reads the address that a Service requests.
fn requested_address(reader: &mut SpecReader<'_>) -> Option<IpAddr> {
    let text = reader
        .service
        .load_balancer_ip
        .as_deref()
        .map(str::trim)
        .filter(|text| !text.is_empty())?;
    let parsed = text.parse();
    if parsed.is_err() {
        reader
            .annotations
            .add_error("spec.loadBalancerIP", format!("{text:?} is no address"));
    }
    parsed.ok()
}

/// Returns `None` for empty text.
fn some(text: &str) -> Option<Box<str>> {
    (!text.is_empty()).then(|| text.into())
}

#[cfg(test)]
mod tests;

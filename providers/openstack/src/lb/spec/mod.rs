//! Parses a Service: the desired state, from its spec, its annotations and the configuration alone.
//!
//! Parsing is pure: it sends no request and reads no clock. It finds all errors at once, because an
//! invalid value is replaced by a harmless one and parsing continues.

mod networks;
mod notices;
mod ports;
mod tags;

pub use self::networks::{choose_member_subnet, choose_vip_network, choose_vip_subnet};

use std::{iter, net::IpAddr};

use ccm_core::{
    k8s::{IpFamily, Protocol, ServiceView, well_known::ANNOTATION_ADOPT},
    provider::{FieldError, ServiceNotice, SourceRanges, adopted_id},
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    annotations::{self, AnnotationReader},
    features::{Driver, Features},
    model::{DesiredLoadBalancer, ProxyProtocol, SecurityGroupSpec, ServiceKey, StatusFormat},
    names,
    settings::LoadBalancerSettings,
};

/// Result of parsing a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedService {
    /// The desired state, or every validation error.
    pub desired: Result<Box<DesiredLoadBalancer>, Vec<FieldError>>,
    /// The desired state of an invalid Service, with harmless values in place of invalid ones and
    /// without client networks. It is used only to update the members of an existing load balancer
    /// and the rules that let it reach them.
    pub tolerant: Option<Box<DesiredLoadBalancer>>,
    /// Notices for the owner of the Service.
    pub notices: Vec<ServiceNotice>,
}

/// Input and intermediate results that the functions of this module share.
pub(super) struct SpecReader<'a> {
    pub(super) service: &'a ServiceView,
    pub(super) settings: &'a LoadBalancerSettings,
    /// Driver of the load balancer: the Service's, or else the configured one.
    pub(super) driver: Driver,
    pub(super) features: Features,
    pub(super) annotations: AnnotationReader<'a>,
    pub(super) notices: Vec<ServiceNotice>,
    pub(super) internal: bool,
    pub(super) proxy: Option<ProxyProtocol>,
    pub(super) forwarded_for: bool,
}

impl SpecReader<'_> {
    /// Returns the address family of the load balancer.
    pub(super) fn family(&self) -> Option<IpFamily> {
        self.service.ip_families.first().copied()
    }

    /// Returns the address family of a second VIP, or `None` if the load balancer has only one.
    ///
    /// Members have the first family, and only with TCP can the load balancer send to another family
    /// than the client's. An external Service has its IPv4 address on a floating IP, which belongs to
    /// the first VIP.
    pub(super) fn second_family(&self) -> Option<IpFamily> {
        let [first, second, ..] = self.service.ip_families[..] else {
            return None;
        };
        let is_tcp = self
            .service
            .ports
            .iter()
            .all(|port| port.protocol == Protocol::Tcp);
        let has_port = !self.annotations.text(&annotations::PORT, "").is_empty();
        let is_possible = self.features.additional_vips
            && is_tcp
            && !has_port
            && (self.internal || first == IpFamily::V4);
        is_possible.then_some(second)
    }

    /// Returns the address families of the VIPs.
    fn vip_families(&self) -> Vec<IpFamily> {
        let first = self.family().unwrap_or(IpFamily::V4);
        iter::once(first).chain(self.second_family()).collect()
    }
}

/// Parses a Service into its desired state, validation errors and notices. `features` are those with
/// the configured driver.
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
    let driver = match annotations.text(&annotations::PROVIDER, "") {
        "" => settings.driver.clone(),
        named => Driver::parse(named),
    };
    let mut reader = SpecReader {
        service,
        settings,
        features: features.with_driver(&driver),
        driver,
        annotations,
        notices: Vec::new(),
        internal,
        proxy,
        forwarded_for,
    };
    reject_unsupported(&mut reader);
    let desired = build_desired(&mut reader, cluster);
    notices::collect_notices(&mut reader, &desired);
    let found = reader.annotations.finish();
    let mut notices = reader.notices;
    notices::add_ignored_values(&mut notices, &found.ignored);
    if found.errors.is_empty() {
        return ParsedService { desired: Ok(Box::new(desired)), tolerant: None, notices };
    }
    let tolerant = Box::new(without_unreliable_rules(desired, &found.errors));
    ParsedService {
        desired: Err(found.errors),
        tolerant: Some(tolerant),
        notices,
    }
}

/// Removes the security group if an invalid Service does not determine its rules. The client
/// networks may be wrong, and with an unknown class the subnet of members is unknown too.
fn without_unreliable_rules(
    desired: DesiredLoadBalancer,
    errors: &[FieldError],
) -> DesiredLoadBalancer {
    let is_class_unknown = errors
        .iter()
        .any(|error| error.field == annotations::CLASS.key());
    let security_group = desired
        .security_group
        .filter(|group| !is_class_unknown && group.clients.is_none());
    DesiredLoadBalancer { security_group, ..desired }
}

fn build_desired(reader: &mut SpecReader<'_>, cluster: &str) -> DesiredLoadBalancer {
    let service = reader.service;
    let owner = ServiceKey {
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        uid: service.uid.clone(),
    };
    let sources = read_source_ranges(reader);
    let listeners = ports::read_listeners(reader, &sources);
    let networks = networks::read_networks(reader);
    let node_labels = match reader.annotations.given(&annotations::NODE_SELECTOR) {
        Some(text) => annotations::parse_selector(text),
        None => reader.settings.node_selector.clone(),
    };
    DesiredLoadBalancer {
        name: names::load_balancer(cluster, &owner.namespace, &owner.name),
        description: names::description(cluster, &owner.namespace, &owner.name),
        adopted: read_adopted(reader),
        tags: tags::read_tags(reader, &annotations::LOAD_BALANCER_TAGS),
        requested_driver: reader
            .annotations
            .given(&annotations::PROVIDER)
            .filter(|name| !name.is_empty())
            .map(Driver::parse),
        internal: reader.internal,
        create_settings: networks.create_settings,
        floating_ip: networks.floating_ip,
        member_subnet: networks.member_subnet,
        vip_subnet: networks.vip_subnet,
        family: reader.family(),
        node_labels,
        security_group: build_security_group(reader, cluster, &owner, sources),
        status_format: read_status_format(reader),
        listeners,
        owner,
    }
}

/// Reads the ID of the load balancer that the Service adopts. A Service that has another one cannot.
fn read_adopted(reader: &mut SpecReader<'_>) -> Option<Box<str>> {
    let id = adopted_id(reader.service)?;
    let current = reader.annotations.text(&annotations::LOAD_BALANCER_ID, "");
    if !current.is_empty() && current != id {
        let message = format!("is {id}, and the Service has load balancer {current}");
        reader.annotations.add_error(ANNOTATION_ADOPT, message);
    }
    Some(id.into())
}

/// Records errors for Services that cannot be served at all.
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
    if reader.driver.is_ovn() {
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

/// Reads the client networks of the VIPs' address families. Without any in the Service, all clients
/// are admitted.
fn read_source_ranges(reader: &mut SpecReader<'_>) -> Vec<IpNet> {
    let families = reader.vip_families();
    let everywhere: Vec<IpNet> = families
        .iter()
        .map(|family| match family {
            IpFamily::V4 => IpNet::V4(Ipv4Net::default()),
            IpFamily::V6 => IpNet::V6(Ipv6Net::default()),
        })
        .collect();
    match SourceRanges::of(reader.service) {
        Ok(SourceRanges::Unset) => everywhere,
        Ok(sources) if is_unenforced(reader, &sources) => {
            report_unenforced_ranges(reader);
            everywhere
        }
        Ok(SourceRanges::Only(mut networks)) => {
            networks.retain(|network| families.contains(&IpFamily::of(network)));
            // Octavia would take an empty list as "no restriction", and admit everybody.
            if networks.is_empty() {
                let message = "no network is of the address family of the load balancer";
                reader
                    .annotations
                    .add_error("spec.loadBalancerSourceRanges", message);
            }
            networks
        }
        Err(errors) => {
            reader.annotations.add_errors(errors);
            everywhere
        }
    }
}

/// Returns true if the Service restricts its clients and nothing would enforce that: Octavia before
/// API version 2.12, and the driver `ovn` unless the nodes' security groups are managed.
fn is_unenforced(reader: &SpecReader<'_>, sources: &SourceRanges) -> bool {
    let has_security_group = reader.driver.is_ovn() && reader.settings.manage_security_groups;
    !reader.features.allowed_cidrs
        && !has_security_group
        && sources.restricts(&reader.service.ip_families)
}

/// Records an error for a Service that was never served, unless the configuration allows it. A load
/// balancer that exists serves all clients already, for example after a change from upstream, which
/// only warns. Its members have to follow the nodes, so there is only a notice.
fn report_unenforced_ranges(reader: &mut SpecReader<'_>) {
    let is_served = !reader.service.status.ingress.is_empty();
    if !is_served && !reader.settings.allow_unenforced_source_ranges {
        reader.annotations.add_error(
            "spec.loadBalancerSourceRanges",
            "this cloud's load balancers admit every client; allow-unenforced-source-ranges in [LoadBalancer] of \
             cloud.conf allows that",
        );
        return;
    }
    reader.notices.push(notices::warning(
        "LoadBalancerSourceRangesIgnored",
        "source ranges have no effect: this cloud's load balancers admit every client",
    ));
}

fn build_security_group(
    reader: &SpecReader<'_>,
    cluster: &str,
    owner: &ServiceKey,
    sources: Vec<IpNet>,
) -> Option<SecurityGroupSpec> {
    if !reader.settings.manage_security_groups {
        return None;
    }
    let mut ports = Vec::new();
    for port in &*reader.service.ports {
        if let Some(node_port) = port.node_port {
            ports.push((transport(port.protocol), node_port.get()));
        }
    }
    Some(SecurityGroupSpec {
        name: names::security_group(&owner.uid, &owner.namespace, &owner.name),
        description: names::security_group_description(cluster, &owner.namespace, &owner.name),
        ports,
        health_port: reader.service.health_check_node_port.map(Into::into),
        // Only with OVN do clients keep their addresses.
        clients: reader.driver.is_ovn().then_some(sources),
    })
}

/// Returns Neutron's spelling of a protocol.
fn transport(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

fn read_status_format(reader: &SpecReader<'_>) -> StatusFormat {
    let hostname = reader.annotations.text(&annotations::HOSTNAME, "");
    let suffix = reader
        .settings
        .ingress_hostname
        .then(|| reader.settings.ingress_hostname_suffix.clone());
    StatusFormat {
        hostname: non_empty(hostname),
        proxy: reader.proxy.is_some(),
        suffix,
    }
}

/// Reads the address that a Service requests.
fn read_requested_address(reader: &mut SpecReader<'_>) -> Option<IpAddr> {
    let text = reader
        .service
        .load_balancer_ip
        .as_deref()
        .map(str::trim)
        .filter(|text| !text.is_empty())?;
    match text.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            let message = format!("{text:?} is no address");
            reader.annotations.add_error("spec.loadBalancerIP", message);
            None
        }
    }
}

/// Converts empty text to `None`.
fn non_empty(text: &str) -> Option<Box<str>> {
    if text.is_empty() {
        return None;
    }
    Some(text.into())
}

#[cfg(test)]
mod tests;

//! What a Service wants, read from its spec and annotations and the configuration alone.
//!
//! Pure: no call, no clock. All mistakes are found at once; what is wrong is replaced by something harmless meanwhile, so
//! that whatever else is wrong is found too.

mod placement;
mod ports;
mod remarks;

pub use self::placement::{member_subnet, vip_network, vip_subnet};

use std::net::IpAddr;

use ccm_core::{
    k8s::{IpFamily, ServiceView},
    provider::{InvalidInput, Remark, SourceRanges},
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    annotations::{self, Reader},
    features::Features,
    model::{Group, OwnerName, ProxyProtocol, Shown, Wanted},
    names,
    settings::Settings,
};

/// What a Service says.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// What it wants; every mistake where it cannot be served.
    pub wanted: Result<Box<Wanted>, Vec<InvalidInput>>,
    /// Where it cannot be served: what it wants, with something harmless in place of what is wrong. For the members of a load
    /// balancer that is there, and what lets it reach them; who may be its clients is left out.
    pub tolerant: Option<Box<Wanted>>,
    /// What its owner should know, although nothing is wrong.
    pub remarks: Vec<Remark>,
}

/// Everything that reading takes, handed from part to part.
pub(super) struct Reads<'a> {
    pub(super) service: &'a ServiceView,
    pub(super) settings: &'a Settings,
    pub(super) features: Features,
    pub(super) annotations: Reader<'a>,
    pub(super) remarks: Vec<Remark>,
    pub(super) internal: bool,
    pub(super) proxy: Option<ProxyProtocol>,
    pub(super) forwarded_for: bool,
}

impl Reads<'_> {
    /// Returns the address family that counts.
    pub(super) fn family(&self) -> Option<IpFamily> {
        self.service.ip_families.first().copied()
    }
}

/// Reads a Service.
pub fn read(service: &ServiceView, settings: &Settings, features: Features, cluster: &str) -> Reading {
    let mut annotations = Reader::new(service);
    let internal = annotations.boolean(&annotations::INTERNAL, settings.internal) || settings.internal;
    let proxy = ProxyProtocol::parse(annotations.text(&annotations::PROXY_PROTOCOL, ""));
    let forwarded_for = annotations.boolean(&annotations::X_FORWARDED_FOR, false);
    let remarks = Vec::new();
    let mut reads = Reads { service, settings, features, annotations, remarks, internal, proxy, forwarded_for };
    unserved(&mut reads);
    let wanted = wanted(&mut reads, cluster);
    remarks::gather(&mut reads, &wanted);
    let (mistakes, ignored) = reads.annotations.finish();
    let mut remarks = reads.remarks;
    remarks::not_understood(&mut remarks, &ignored);
    if mistakes.is_empty() {
        return Reading { wanted: Ok(Box::new(wanted)), tolerant: None, remarks };
    }
    // An unknown class does not say where members are, and rules are for their subnet.
    let placed = !mistakes.iter().any(|mistake| mistake.field == annotations::CLASS.key());
    let group = wanted.group.clone().filter(|group| placed && group.clients.is_none());
    Reading { wanted: Err(mistakes), tolerant: Some(Box::new(Wanted { group, ..wanted })), remarks }
}

fn wanted(reads: &mut Reads<'_>, cluster: &str) -> Wanted {
    let service = reads.service;
    let owner =
        OwnerName { namespace: service.namespace.clone(), name: service.name.clone(), uid: service.uid.clone() };
    let sources = sources(reads);
    let listeners = ports::read(reads, &sources);
    let place = placement::read(reads);
    let node_labels = match reads.annotations.given(&annotations::NODE_SELECTOR) {
        Some(text) => annotations::selector(text),
        None => reads.settings.node_selector.clone(),
    };
    Wanted {
        name: names::load_balancer(cluster, &owner.namespace, &owner.name),
        description: names::description(cluster, &owner.namespace, &owner.name),
        internal: reads.internal,
        front: place.front,
        floating: place.floating,
        member_subnet: place.member_subnet,
        vip_subnet: place.vip_subnet,
        family: reads.family(),
        node_labels,
        group: group(reads, cluster, &owner, sources),
        shown: shown(reads),
        listeners,
        owner,
    }
}

/// Notes what cannot be served at all.
fn unserved(reads: &mut Reads<'_>) {
    if reads.service.ports.is_empty() {
        reads.annotations.mistake("spec.ports", "there are no ports");
    }
    if reads.proxy.is_some() && reads.forwarded_for {
        reads.annotations.wrong(&annotations::PROXY_PROTOCOL, "cannot be had together with x-forwarded-for");
    }
    if reads.settings.driver.is_ovn() {
        if reads.proxy.is_some() {
            reads.annotations.wrong(&annotations::PROXY_PROTOCOL, "load balancers of OVN have no proxy protocol");
        }
        if reads.forwarded_for {
            reads.annotations.wrong(&annotations::X_FORWARDED_FOR, "load balancers of OVN have no HTTP");
        }
    }
}

/// Reads which networks clients may come from: those of the family of the VIP, and all of it unless something is said.
fn sources(reads: &mut Reads<'_>) -> Vec<IpNet> {
    let of_vip = reads.family().unwrap_or(IpFamily::V4);
    let all = match of_vip {
        IpFamily::V4 => IpNet::V4(Ipv4Net::default()),
        IpFamily::V6 => IpNet::V6(Ipv6Net::default()),
    };
    match SourceRanges::of(reads.service) {
        Ok(SourceRanges::Unset) => vec![all],
        Ok(SourceRanges::Only(networks)) => {
            let found: Vec<_> = networks.into_iter().filter(|network| IpFamily::of(network) == of_vip).collect();
            // An empty list opens the listener to everybody.
            if found.is_empty() {
                let message = "no network is of the address family of the load balancer";
                reads.annotations.mistake("spec.loadBalancerSourceRanges", message);
            }
            found
        }
        Err(mistakes) => {
            reads.annotations.mistakes(mistakes);
            vec![all]
        }
    }
}

fn group(reads: &Reads<'_>, cluster: &str, owner: &OwnerName, sources: Vec<IpNet>) -> Option<Group> {
    let ports = reads.service.ports.iter().filter_map(|port| Some((transport(port.protocol), port.node_port?.get())));
    let (ports, ovn) = (ports.collect(), reads.settings.driver.is_ovn());
    reads.settings.manage_security_groups.then(|| Group {
        name: names::security_group(&owner.uid, &owner.namespace, &owner.name),
        description: names::security_group_description(cluster, &owner.namespace, &owner.name),
        ports,
        health_port: reads.service.health_check_node_port.map(Into::into),
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

fn shown(reads: &Reads<'_>) -> Shown {
    let hostname = reads.annotations.text(&annotations::HOSTNAME, "");
    let suffix = reads.settings.ingress_hostname.then(|| reads.settings.ingress_hostname_suffix.clone());
    Shown { hostname: some(hostname), proxy: reads.proxy.is_some(), suffix }
}

/// Reads the address that a Service asks for.
fn asked_address(reads: &mut Reads<'_>) -> Option<IpAddr> {
    let text = reads.service.load_balancer_ip.as_deref().map(str::trim).filter(|text| !text.is_empty())?;
    let parsed = text.parse();
    if parsed.is_err() {
        reads.annotations.mistake("spec.loadBalancerIP", format!("{text:?} is no address"));
    }
    parsed.ok()
}

/// Nothing, if it is empty.
fn some(text: &str) -> Option<Box<str>> {
    (!text.is_empty()).then(|| text.into())
}

#[cfg(test)]
mod tests;

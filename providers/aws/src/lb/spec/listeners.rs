//! Parses listeners and their target groups: one per port, and one for TCP and UDP on the same
//! port.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU16,
};

use ccm_core::k8s::{IpFamily, Protocol, ServicePort};

use crate::{
    api::elb::{Attributes, ElbProtocol, HealthCheck, IpAddressType, TargetType},
    lb::{
        model::{DesiredListener, DesiredTargetGroup, Tls},
        names::{self, TargetGroupName},
        spec::{
            Addressing, SpecReader, TargetAttributes, annotations as a,
            health::{NO_NODE_PORT, target_port},
            listener_attributes,
        },
    },
};

/// Maximum number of listeners that AWS allows; cannot be raised.
const MAX_LISTENERS: usize = 50;

/// The Service ports of a listener: one, or two for TCP and UDP.
struct ListenerPorts<'a> {
    protocol: ElbProtocol,
    /// The port whose name and target are used: the TCP port of two.
    port: &'a ServicePort,
    other: Option<&'a ServicePort>,
}

/// TLS settings from annotations.
struct TlsAnnotations {
    tls: Option<Tls>,
    /// Numbers and names of TLS ports; `None` for all.
    ports: Option<BTreeSet<Box<str>>>,
    /// Protocol towards targets.
    backend: ElbProtocol,
}

/// Parses the listeners, sorted by port and protocol; empty only together with a validation error.
pub(in crate::lb) fn read(
    reader: &mut SpecReader<'_>,
    placement: &Addressing,
    check: &HealthCheck,
) -> Vec<DesiredListener> {
    // First, parse the annotations, and group the Service's ports into listeners.
    let tls = tls(reader);
    let mut attributes = listener_attributes(reader);
    let targets = TargetAttributes::read(reader);
    let mut fronts = group_ports(reader, &tls);
    fronts.sort_by_key(|front| (front.port.port, front.protocol));
    reject_port_conflicts(reader, &fronts);
    if fronts.is_empty() && reader.service.ports.is_empty() {
        reader
            .annotations
            .add_error("spec.ports", "requested load balancer with no ports");
    }
    if fronts.len() > MAX_LISTENERS {
        let message = format!(
            "{} listeners are wanted, AWS allows {MAX_LISTENERS} per load balancer",
            fronts.len()
        );
        reader.annotations.add_error("spec.ports", message);
    }
    // Then build each listener with its target group.
    let family = family(reader, placement, &fronts);
    let mut taken = BTreeSet::new();
    let mut found = Vec::new();
    for front in &fronts {
        let back = if front.protocol == ElbProtocol::Tls {
            tls.backend
        } else {
            front.protocol
        };
        let Some(port) = target_group_port(reader, front) else {
            continue;
        };
        let (target_attributes, preserves_client_ip) =
            targets.of(reader, front.port, front.protocol, back);
        found.push(DesiredListener {
            port: front.port.port,
            protocol: front.protocol,
            tls: tls
                .tls
                .clone()
                .filter(|_| front.protocol == ElbProtocol::Tls),
            attributes: take_attributes(&mut attributes, front),
            target_group: DesiredTargetGroup {
                name: name(reader, front, back, port, check, &mut taken),
                protocol: back,
                port,
                target_type: reader.target_type,
                family,
                health_check: check.clone(),
                attributes: target_attributes,
                preserves_client_ip,
                service_port: (front.port.name.clone(), front.port.protocol),
            },
        });
    }
    // Finally, warn about attributes of listeners that do not exist.
    for (end, _) in attributes {
        let note = format!(
            "{}{end} has no effect: there is no such listener",
            a::LISTENER_ATTRIBUTES.row.key()
        );
        reader.warn("UnusedAnnotation", note);
    }
    found
}

/// Takes the attributes of a listener out of the list.
fn take_attributes(
    attributes: &mut Vec<(Box<str>, Attributes)>,
    front: &ListenerPorts<'_>,
) -> Attributes {
    let end = format!("{}-{}", front.protocol, front.port.port);
    let place = attributes
        .iter()
        .position(|(name, _)| name.eq_ignore_ascii_case(&end));
    place
        .map(|place| attributes.swap_remove(place).1)
        .unwrap_or_default()
}

/// Parses the TLS settings, and warns about entries of `ssl-ports` that match no port.
fn tls(reader: &mut SpecReader<'_>) -> TlsAnnotations {
    let certificates = reader.annotations.get(&a::CERTIFICATES).unwrap_or_default();
    let ports = reader.annotations.get(&a::TLS_PORTS).unwrap_or_default();
    let ssl = reader
        .annotations
        .get(&a::BACKEND_PROTOCOL)
        .is_some_and(|backend| &*backend == "ssl");
    let policy = reader.annotations.get(&a::TLS_POLICY);
    let alpn = reader.annotations.get(&a::ALPN_POLICY);
    let all = ports.is_empty() || ports.iter().any(|port| &**port == "*");
    let ports: BTreeSet<Box<str>> = ports.into_iter().filter(|port| &**port != "*").collect();
    let tcp = |service: &ServicePort| service.protocol == Protocol::Tcp;
    let used = |entry: &str| {
        reader
            .service
            .ports
            .iter()
            .filter(|port| tcp(port))
            .any(|port| is_named(port, entry))
    };
    let unused: Vec<&str> = ports
        .iter()
        .map(|entry| &**entry)
        .filter(|entry| !used(entry))
        .collect();
    if !certificates.is_empty() && !unused.is_empty() {
        let note = format!("Unused port in ssl-ports annotation [{}]", unused.join(" "));
        reader.warn("UnusedAnnotation", note);
    }
    TlsAnnotations {
        tls: certificates_in_order(certificates).map(|certificates| Tls {
            certificates,
            policy,
            alpn,
        }),
        ports: (!all).then_some(ports),
        backend: if ssl {
            ElbProtocol::Tls
        } else {
            ElbProtocol::Tcp
        },
    }
}

/// Puts the default certificate first. The order of the others does not matter.
fn certificates_in_order(found: Vec<Box<str>>) -> Option<Vec<Box<str>>> {
    let mut rest = found.into_iter();
    let first = rest.next()?;
    let others: BTreeSet<Box<str>> = rest.filter(|certificate| *certificate != first).collect();
    Some(std::iter::once(first).chain(others).collect())
}

fn is_named(port: &ServicePort, entry: &str) -> bool {
    entry.parse() == Ok(port.port.get()) || (!port.name.is_empty() && *port.name == *entry)
}

/// Groups Service ports that share a listener.
fn group_ports<'a>(reader: &mut SpecReader<'a>, tls: &TlsAnnotations) -> Vec<ListenerPorts<'a>> {
    let merge = reader.annotations.get(&a::TCP_UDP).unwrap_or(true);
    let mut plain: BTreeMap<NonZeroU16, Vec<&ServicePort>> = BTreeMap::new();
    let mut found = Vec::new();
    // First, take out TLS ports, which share nothing, and group the others by number.
    for port in &*reader.service.ports {
        let named = tls
            .ports
            .as_ref()
            .is_none_or(|ports| ports.iter().any(|entry| is_named(port, entry)));
        match port.protocol {
            Protocol::Sctp => {
                reader
                    .annotations
                    .add_error("spec.ports", "Protocol SCTP not supported by LoadBalancer");
            }
            Protocol::Tcp if named && tls.tls.is_some() => {
                let same = |other: &&ServicePort| {
                    (other.port, other.protocol) == (port.port, port.protocol)
                };
                if reader.service.ports.iter().filter(same).count() > 1 {
                    reader
                        .annotations
                        .add_error("spec.ports", "protocols can't match for merging: TLS");
                }
                found.push(ListenerPorts { protocol: ElbProtocol::Tls, port, other: None });
            }
            Protocol::Tcp | Protocol::Udp => plain.entry(port.port).or_default().push(port),
        }
    }
    // Then make one listener for each number.
    for (number, ports) in plain {
        match *ports {
            [port] => {
                found.push(ListenerPorts { protocol: wire(port.protocol), port, other: None });
            }
            [one, two] if one.protocol == two.protocol => {
                let message = format!("protocols can't match for merging: {}", wire(one.protocol));
                reader.annotations.add_error("spec.ports", message);
            }
            [one, two] if merge => {
                let (port, udp) = if one.protocol == Protocol::Tcp {
                    (one, two)
                } else {
                    (two, one)
                };
                found.push(ListenerPorts { protocol: ElbProtocol::TcpUdp, port, other: Some(udp) });
            }
            [_, _] => {
                let message = format!(
                    "TCP and UDP on port {number} take one listener for both, which this turns off"
                );
                reader.annotations.invalid_value(&a::TCP_UDP.row, message);
            }
            _ => {
                let list: Vec<_> = ports
                    .iter()
                    .map(|port| format!("{}/{}", port.port, wire(port.protocol)))
                    .collect();
                let message =
                    format!("can only merge two ports, not {} ({})", ports.len(), list.join(", "));
                reader.annotations.add_error("spec.ports", message);
            }
        }
    }
    found
}

/// Adds errors for ports that need two listeners: AWS allows one per port, and TLS cannot share one
/// with UDP.
fn reject_port_conflicts(reader: &mut SpecReader<'_>, fronts: &[ListenerPorts<'_>]) {
    let collide = |pair: &&[ListenerPorts<'_>]| {
        pair[0].port.port == pair[1].port.port && pair[0].protocol != pair[1].protocol
    };
    for pair in fronts.windows(2).filter(collide) {
        let said =
            |front: &ListenerPorts<'_>| format!("\"{}\" ({})", front.port.name, front.protocol);
        let message = format!(
            "ports {} and {} want a listener each on port {}, where AWS allows one",
            said(&pair[0]),
            said(&pair[1]),
            pair[0].port.port
        );
        reader.annotations.add_error("spec.ports", message);
    }
}

fn wire(protocol: Protocol) -> ElbProtocol {
    if protocol == Protocol::Udp {
        ElbProtocol::Udp
    } else {
        ElbProtocol::Tcp
    }
}

/// Returns the port of the target group: the node port, or the target port, with 1 for a named one.
fn target_group_port(reader: &mut SpecReader<'_>, front: &ListenerPorts<'_>) -> Option<NonZeroU16> {
    let of = |port: &ServicePort| match reader.target_type {
        TargetType::Instance => port.node_port,
        TargetType::Ip => Some(target_port(port).unwrap_or(NonZeroU16::MIN)),
    };
    let first = of(front.port);
    let second = front.other.map_or(of(front.port), of);
    let (Some(first), Some(second)) = (first, second) else {
        reader.annotations.add_error("spec.ports", NO_NODE_PORT);
        return None;
    };
    let same_name = reader.target_type == TargetType::Instance
        || front
            .other
            .is_none_or(|o| o.target_port == front.port.target_port);
    if first != second || !same_name {
        let what = if reader.target_type == TargetType::Instance {
            "node port"
        } else {
            "target port"
        };
        let written = |port: &ServicePort, number: NonZeroU16| match reader.target_type {
            TargetType::Instance => number.to_string(),
            TargetType::Ip => port.target_port.to_string(),
        };
        let message = format!(
            "TCP and UDP on port {} need the same {what}, but have {} and {}",
            front.port.port,
            written(front.port, first),
            front
                .other
                .map_or_else(String::new, |other| written(other, second))
        );
        reader.annotations.add_error("spec.ports", message);
        return None;
    }
    Some(first)
}

/// Returns the address family of the targets: the Service's first one.
fn family(
    reader: &mut SpecReader<'_>,
    placement: &Addressing,
    fronts: &[ListenerPorts<'_>],
) -> IpFamily {
    let family = reader
        .service
        .ip_families
        .first()
        .copied()
        .unwrap_or(IpFamily::V4);
    let dual = placement.ip_address_type == IpAddressType::Dualstack;
    if family == IpFamily::V6 && !dual {
        reader
            .annotations
            .add_error("spec.ipFamilies", "unsupported IPv6 configuration, lb not dual-stack");
    }
    let udp = |front: &ListenerPorts<'_>| {
        matches!(front.protocol, ElbProtocol::Udp | ElbProtocol::TcpUdp)
    };
    if dual && placement.ipv6_source_nat != Some(true) && fronts.iter().any(udp) {
        let message =
            "UDP on a dualstack load balancer takes enable-prefix-for-ipv6-source-nat: on";
        reader
            .annotations
            .invalid_value(&a::SOURCE_NAT.row, message);
    }
    family
}

/// Generates the name of a target group. Upstream concatenates the inputs without separators, so
/// two ports of one Service may get the same name; the second one then gets another.
fn name(
    reader: &SpecReader<'_>,
    front: &ListenerPorts<'_>,
    protocol: ElbProtocol,
    target_port: NonZeroU16,
    check: &HealthCheck,
    taken: &mut BTreeSet<Box<str>>,
) -> Box<str> {
    let mut of = TargetGroupName {
        port: front.port.port.get(),
        target_port: target_port.get(),
        protocol,
        target_type: reader.target_type,
        health: Some((check.protocol, check.interval)),
    };
    loop {
        let name = names::target_group(reader.cluster, &reader.owner, &of);
        if taken.insert(name.clone()) {
            return name;
        }
        of.health = of
            .health
            .map(|(protocol, interval)| (protocol, interval + 1000));
    }
}

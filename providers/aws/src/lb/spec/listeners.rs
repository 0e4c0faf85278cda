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

impl ListenerPorts<'_> {
    fn describe(&self) -> String {
        format!("\"{}\" ({})", self.port.name, self.protocol)
    }
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
    let mut grouped_ports = group_ports(reader, &tls);
    grouped_ports.sort_by_key(|ports| (ports.port.port, ports.protocol));
    reject_port_conflicts(reader, &grouped_ports);
    if grouped_ports.is_empty() && reader.service.ports.is_empty() {
        reader
            .annotations
            .add_error("spec.ports", "requested load balancer with no ports");
    }
    if grouped_ports.len() > MAX_LISTENERS {
        let message = format!(
            "{} listeners are wanted, AWS allows {MAX_LISTENERS} per load balancer",
            grouped_ports.len()
        );
        reader.annotations.add_error("spec.ports", message);
    }
    // Then build each listener with its target group.
    let family = family(reader, placement, &grouped_ports);
    let mut used_names = BTreeSet::new();
    let mut listeners = Vec::new();
    for ports in &grouped_ports {
        let is_tls = ports.protocol == ElbProtocol::Tls;
        let backend_protocol = if is_tls { tls.backend } else { ports.protocol };
        let Some(port) = target_group_port(reader, ports) else {
            continue;
        };
        let target_attributes = targets.of(reader, ports.port, ports.protocol, backend_protocol);
        listeners.push(DesiredListener {
            port: ports.port.port,
            protocol: ports.protocol,
            tls: if is_tls { tls.tls.clone() } else { None },
            attributes: take_attributes(&mut attributes, ports),
            target_group: DesiredTargetGroup {
                name: name(reader, ports, backend_protocol, port, check, &mut used_names),
                protocol: backend_protocol,
                port,
                target_type: reader.target_type,
                family,
                health_check: check.clone(),
                attributes: target_attributes.attributes,
                preserves_client_ip: target_attributes.preserves_client_ip,
                service_port: (ports.port.name.clone(), ports.port.protocol),
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
    listeners
}

/// Takes the attributes of a listener out of the list.
fn take_attributes(
    attributes: &mut Vec<(Box<str>, Attributes)>,
    ports: &ListenerPorts<'_>,
) -> Attributes {
    let key_end = format!("{}-{}", ports.protocol, ports.port.port);
    let index = attributes
        .iter()
        .position(|(end, _)| end.eq_ignore_ascii_case(&key_end));
    match index {
        Some(index) => attributes.swap_remove(index).1,
        None => Attributes::new(),
    }
}

/// Parses the TLS settings, and warns about entries of `ssl-ports` that match no port.
fn tls(reader: &mut SpecReader<'_>) -> TlsAnnotations {
    let certificates = reader.annotations.get(&a::CERTIFICATES).unwrap_or_default();
    let ports = reader.annotations.get(&a::TLS_PORTS).unwrap_or_default();
    let backend = match reader.annotations.get(&a::BACKEND_PROTOCOL).as_deref() {
        Some("ssl") => ElbProtocol::Tls,
        _ => ElbProtocol::Tcp,
    };
    let policy = reader.annotations.get(&a::TLS_POLICY);
    let alpn = reader.annotations.get(&a::ALPN_POLICY);
    let is_for_all_ports = ports.is_empty() || ports.iter().any(|port| &**port == "*");
    let ports: BTreeSet<Box<str>> = ports.into_iter().filter(|port| &**port != "*").collect();
    let unused: Vec<&str> = ports
        .iter()
        .map(|entry| &**entry)
        .filter(|entry| !names_tcp_port(reader, entry))
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
        ports: if is_for_all_ports { None } else { Some(ports) },
        backend,
    }
}

/// Tells whether an entry of `ssl-ports` names a TCP port of the Service.
fn names_tcp_port(reader: &SpecReader<'_>, entry: &str) -> bool {
    let mut ports = reader.service.ports.iter();
    ports.any(|port| port.protocol == Protocol::Tcp && is_named(port, entry))
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

impl TlsAnnotations {
    /// Tells whether the annotation makes a TCP port a TLS port.
    fn is_for(&self, port: &ServicePort) -> bool {
        match &self.ports {
            Some(entries) => entries.iter().any(|entry| is_named(port, entry)),
            None => true,
        }
    }
}

fn count_tcp_ports(reader: &SpecReader<'_>, number: NonZeroU16) -> usize {
    let ports = reader.service.ports.iter();
    ports
        .filter(|port| port.port == number && port.protocol == Protocol::Tcp)
        .count()
}

/// Groups Service ports that share a listener.
fn group_ports<'a>(reader: &mut SpecReader<'a>, tls: &TlsAnnotations) -> Vec<ListenerPorts<'a>> {
    let may_merge = reader.annotations.get(&a::TCP_UDP).unwrap_or(true);
    let mut plain: BTreeMap<NonZeroU16, Vec<&ServicePort>> = BTreeMap::new();
    let mut found = Vec::new();
    // First, take out TLS ports, which share nothing, and group the others by number.
    for port in &*reader.service.ports {
        let is_tls = tls.tls.is_some() && tls.is_for(port);
        match port.protocol {
            Protocol::Sctp => {
                reader
                    .annotations
                    .add_error("spec.ports", "Protocol SCTP not supported by LoadBalancer");
            }
            Protocol::Tcp if is_tls => {
                if count_tcp_ports(reader, port.port) > 1 {
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
                found.push(ListenerPorts {
                    protocol: listener_protocol(port.protocol),
                    port,
                    other: None,
                });
            }
            [one, two] if one.protocol == two.protocol => {
                let message = format!(
                    "protocols can't match for merging: {}",
                    listener_protocol(one.protocol)
                );
                reader.annotations.add_error("spec.ports", message);
            }
            [one, two] if may_merge => {
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
                    .map(|port| format!("{}/{}", port.port, listener_protocol(port.protocol)))
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
fn reject_port_conflicts(reader: &mut SpecReader<'_>, grouped_ports: &[ListenerPorts<'_>]) {
    for pair in grouped_ports.windows(2) {
        let [first, second] = pair else { continue };
        if first.port.port != second.port.port || first.protocol == second.protocol {
            continue;
        }
        let message = format!(
            "ports {} and {} want a listener each on port {}, where AWS allows one",
            first.describe(),
            second.describe(),
            first.port.port
        );
        reader.annotations.add_error("spec.ports", message);
    }
}

fn listener_protocol(protocol: Protocol) -> ElbProtocol {
    if protocol == Protocol::Udp {
        ElbProtocol::Udp
    } else {
        ElbProtocol::Tcp
    }
}

/// Returns the port of the target group: the node port, or the target port, with 1 for a named one.
fn target_group_port(reader: &mut SpecReader<'_>, ports: &ListenerPorts<'_>) -> Option<NonZeroU16> {
    let udp_port = ports.other.unwrap_or(ports.port);
    let first = backend_port(reader.target_type, ports.port);
    let second = backend_port(reader.target_type, udp_port);
    let (Some(first), Some(second)) = (first, second) else {
        reader.annotations.add_error("spec.ports", NO_NODE_PORT);
        return None;
    };
    let has_same_name = reader.target_type == TargetType::Instance
        || udp_port.target_port == ports.port.target_port;
    if first == second && has_same_name {
        return Some(first);
    }
    let (kind, first, second) = match reader.target_type {
        TargetType::Instance => ("node port", first.to_string(), second.to_string()),
        TargetType::Ip => {
            ("target port", ports.port.target_port.to_string(), udp_port.target_port.to_string())
        }
    };
    let message = format!(
        "TCP and UDP on port {} need the same {kind}, but have {first} and {second}",
        ports.port.port
    );
    reader.annotations.add_error("spec.ports", message);
    None
}

fn backend_port(target_type: TargetType, port: &ServicePort) -> Option<NonZeroU16> {
    match target_type {
        TargetType::Instance => port.node_port,
        TargetType::Ip => Some(target_port(port).unwrap_or(NonZeroU16::MIN)),
    }
}

/// Returns the address family of the targets: the Service's first one.
fn family(
    reader: &mut SpecReader<'_>,
    placement: &Addressing,
    grouped_ports: &[ListenerPorts<'_>],
) -> IpFamily {
    let family = reader
        .service
        .ip_families
        .first()
        .copied()
        .unwrap_or(IpFamily::V4);
    let is_dualstack = placement.ip_address_type == IpAddressType::Dualstack;
    if family == IpFamily::V6 && !is_dualstack {
        reader
            .annotations
            .add_error("spec.ipFamilies", "unsupported IPv6 configuration, lb not dual-stack");
    }
    let has_udp = grouped_ports
        .iter()
        .any(|ports| matches!(ports.protocol, ElbProtocol::Udp | ElbProtocol::TcpUdp));
    if is_dualstack && placement.ipv6_source_nat != Some(true) && has_udp {
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
    ports: &ListenerPorts<'_>,
    protocol: ElbProtocol,
    target_port: NonZeroU16,
    check: &HealthCheck,
    used_names: &mut BTreeSet<Box<str>>,
) -> Box<str> {
    let mut interval = check.interval;
    loop {
        let distinction = TargetGroupName {
            port: ports.port.port.get(),
            target_port: target_port.get(),
            protocol,
            target_type: reader.target_type,
            health: Some((check.protocol, interval)),
        };
        let name = names::target_group(reader.cluster, &reader.owner, &distinction);
        if used_names.insert(name.clone()) {
            return name;
        }
        interval += 1000;
    }
}

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
            dialect::{self, TlsTexts},
            health::{NO_NODE_PORT, target_port},
            listener_attributes,
        },
    },
};

/// Maximum number of listeners that AWS allows; cannot be raised.
const MAX_LISTENERS: usize = 50;

/// The Service ports that share a listener: one port, or two for TCP and UDP.
struct ListenerPorts<'a> {
    protocol: ElbProtocol,
    /// The port whose name and target are used. For a TCP_UDP listener this is the TCP port.
    port: &'a ServicePort,
    /// The UDP port of a TCP_UDP listener.
    udp_port: Option<&'a ServicePort>,
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
    addressing: &Addressing,
    check: &HealthCheck,
) -> Vec<DesiredListener> {
    // Parse the annotations, and group the Service's ports into listeners.
    let tls = read_tls(reader);
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
            "{} listeners are requested, AWS allows {MAX_LISTENERS} per load balancer",
            grouped_ports.len()
        );
        reader.annotations.add_error("spec.ports", message);
    }
    // Build each listener with its target group.
    let family = target_family(reader, addressing, &grouped_ports);
    let mut used_names = BTreeSet::new();
    let mut listeners = Vec::new();
    for ports in &grouped_ports {
        let is_tls = ports.protocol == ElbProtocol::Tls;
        let backend_protocol = if is_tls { tls.backend } else { ports.protocol };
        let Some(port) = target_group_port(reader, ports) else {
            continue;
        };
        let target_attributes =
            targets.for_port(reader, ports.port, ports.protocol, backend_protocol);
        listeners.push(DesiredListener {
            port: ports.port.port,
            protocol: ports.protocol,
            tls: if is_tls { tls.tls.clone() } else { None },
            attributes: take_attributes(&mut attributes, ports),
            target_group: DesiredTargetGroup {
                name: target_group_name(
                    reader,
                    ports,
                    backend_protocol,
                    port,
                    check,
                    &mut used_names,
                ),
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
    // Attributes that no listener took have no effect.
    for (key_end, _) in attributes {
        let note = format!(
            "{}{key_end} has no effect: there is no such listener",
            a::LISTENER_ATTRIBUTES.definition.key()
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
        .position(|(other, _)| other.eq_ignore_ascii_case(&key_end));
    match index {
        Some(index) => attributes.swap_remove(index).1,
        None => Attributes::new(),
    }
}

/// Reads the TLS settings, and warns about entries of `ssl-ports` that match no port.
fn read_tls(reader: &mut SpecReader<'_>) -> TlsAnnotations {
    let TlsTexts { certificates, ports, is_for_all_ports } = if reader.is_upstream() {
        dialect::tls_texts(reader)
    } else {
        tls_texts(reader)
    };
    let backend = match reader.annotations.get(&a::BACKEND_PROTOCOL).as_deref() {
        Some("ssl") => ElbProtocol::Tls,
        _ => ElbProtocol::Tcp,
    };
    let policy = reader.annotations.get(&a::TLS_POLICY);
    let alpn = reader.annotations.get(&a::ALPN_POLICY);
    let unused: Vec<&str> = ports
        .iter()
        .map(|entry| &**entry)
        .filter(|entry| !matches_tcp_port(reader, entry))
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

fn tls_texts(reader: &mut SpecReader<'_>) -> TlsTexts {
    let certificates = reader.annotations.get(&a::CERTIFICATES).unwrap_or_default();
    let ports = reader.annotations.get(&a::TLS_PORTS).unwrap_or_default();
    TlsTexts {
        certificates,
        is_for_all_ports: ports.is_empty() || ports.iter().any(|port| &**port == "*"),
        ports: ports.into_iter().filter(|port| &**port != "*").collect(),
    }
}

/// Returns true if an entry of `ssl-ports` is the number or name of a TCP port of the Service.
fn matches_tcp_port(reader: &SpecReader<'_>, entry: &str) -> bool {
    let mut ports = reader.service.ports.iter();
    ports.any(|port| port.protocol == Protocol::Tcp && matches_port(port, entry))
}

/// Puts the default certificate first. The order of the others does not matter.
fn certificates_in_order(found: Vec<Box<str>>) -> Option<Vec<Box<str>>> {
    let mut certificates = found.into_iter();
    let default = certificates.next()?;
    let others: BTreeSet<Box<str>> = certificates
        .filter(|certificate| *certificate != default)
        .collect();
    Some(std::iter::once(default).chain(others).collect())
}

fn matches_port(port: &ServicePort, entry: &str) -> bool {
    // Only upstream's reading has empty entries. They name a port without name.
    entry.parse() == Ok(port.port.get()) || *port.name == *entry
}

impl TlsAnnotations {
    /// Returns true if the annotation makes a TCP port a TLS port.
    fn is_for(&self, port: &ServicePort) -> bool {
        match &self.ports {
            Some(entries) => entries.iter().any(|entry| matches_port(port, entry)),
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
    let served = dialect::served_ports(reader);
    let mut ports_by_number: BTreeMap<NonZeroU16, Vec<&ServicePort>> = BTreeMap::new();
    let mut grouped_ports = Vec::new();
    // TLS ports share no listener. The other ports are grouped by number.
    for port in served {
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
                grouped_ports.push(ListenerPorts {
                    protocol: ElbProtocol::Tls,
                    port,
                    udp_port: None,
                });
            }
            Protocol::Tcp | Protocol::Udp => {
                ports_by_number.entry(port.port).or_default().push(port);
            }
        }
    }
    // Each number gets one listener.
    for (number, ports) in ports_by_number {
        match *ports {
            [port] => {
                grouped_ports.push(ListenerPorts {
                    protocol: listener_protocol(port.protocol),
                    port,
                    udp_port: None,
                });
            }
            [first, second] if first.protocol == second.protocol => {
                let message = format!(
                    "protocols can't match for merging: {}",
                    listener_protocol(first.protocol)
                );
                reader.annotations.add_error("spec.ports", message);
            }
            [first, second] if may_merge => {
                let (port, udp_port) = if first.protocol == Protocol::Tcp {
                    (first, second)
                } else {
                    (second, first)
                };
                grouped_ports.push(ListenerPorts {
                    protocol: ElbProtocol::TcpUdp,
                    port,
                    udp_port: Some(udp_port),
                });
            }
            [_, _] => {
                let message = format!(
                    "TCP and UDP on port {number} take one listener for both, which this turns off"
                );
                reader
                    .annotations
                    .invalid_value(&a::TCP_UDP.definition, message);
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
    grouped_ports
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
            "ports {} and {} need one listener each on port {}, where AWS allows one",
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
    // A listener for one port has no second port to compare with.
    let second_port = ports.udp_port.unwrap_or(ports.port);
    let first = backend_port(reader.target_type, ports.port);
    let second = backend_port(reader.target_type, second_port);
    let (Some(first), Some(second)) = (first, second) else {
        reader.annotations.add_error("spec.ports", NO_NODE_PORT);
        return None;
    };
    let has_same_target = reader.target_type == TargetType::Instance
        || second_port.target_port == ports.port.target_port;
    if first == second && has_same_target {
        return Some(first);
    }
    let (kind, first, second) = match reader.target_type {
        TargetType::Instance => ("node port", first.to_string(), second.to_string()),
        TargetType::Ip => {
            ("target port", ports.port.target_port.to_string(), second_port.target_port.to_string())
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

/// Returns the address family of the targets, which is the Service's first one, and adds errors if
/// the load balancer cannot have it.
fn target_family(
    reader: &mut SpecReader<'_>,
    addressing: &Addressing,
    grouped_ports: &[ListenerPorts<'_>],
) -> IpFamily {
    // Upstream knows only IPv4 targets.
    if reader.is_upstream() {
        return IpFamily::V4;
    }
    let family = reader
        .service
        .ip_families
        .first()
        .copied()
        .unwrap_or(IpFamily::V4);
    let is_dualstack = addressing.ip_address_type == IpAddressType::Dualstack;
    if family == IpFamily::V6 && !is_dualstack {
        reader
            .annotations
            .add_error("spec.ipFamilies", "unsupported IPv6 configuration, lb not dual-stack");
    }
    let has_udp = grouped_ports.iter().any(|ports| ports.protocol.has_udp());
    if is_dualstack && addressing.ipv6_source_nat != Some(true) && has_udp {
        let message =
            "UDP on a dualstack load balancer takes enable-prefix-for-ipv6-source-nat: on";
        reader
            .annotations
            .invalid_value(&a::SOURCE_NAT.definition, message);
    }
    family
}

/// Generates the name of a target group. cloud-provider-aws concatenates the inputs without
/// separators, so two ports of one Service may get the same name; the second one then gets another.
fn target_group_name(
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

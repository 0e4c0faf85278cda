//! Desired state of a load balancer: everything that a Service and the configuration say, with
//! defaults filled in.

use std::{net::IpAddr, sync::Arc};

use ccm_core::{
    k8s::{IpFamily, Protocol},
    provider::LabelRequirement,
};
use ipnet::IpNet;

use super::subnets::FloatingSubnet;

/// Service that a load balancer is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceKey {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Box<str>,
}

/// A desired load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredLoadBalancer {
    /// Service that it is for.
    pub owner: ServiceKey,
    /// Name of the load balancer, and tag of the load balancer and its listeners.
    pub name: Box<str>,
    /// Description of the load balancer.
    pub description: Box<str>,
    /// True when it has no floating IP.
    pub internal: bool,
    /// What takes effect only when it is created.
    pub create_settings: CreateSettings,
    /// Its floating IP.
    pub floating_ip: FloatingIpSpec,
    /// One for each port, in the order of the Service.
    pub listeners: Vec<DesiredListener>,
    /// Subnet of members, if one is set. Members in another subnet are moved there.
    pub member_subnet: Option<Box<str>>,
    /// Subnet of new members where none is set for members: the one that is set for the VIP.
    pub vip_subnet: Option<Box<str>>,
    /// Address family of members; any when `None`.
    pub family: Option<IpFamily>,
    /// Labels of the nodes that are members.
    pub node_labels: Vec<LabelRequirement>,
    /// Security group of the Service; `None` when it has none.
    pub security_group: Option<SecurityGroupSpec>,
    /// How the status shows the address.
    pub status_format: StatusFormat,
}

/// What takes effect only when a load balancer is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CreateSettings {
    /// Driver, in Octavia's spelling.
    pub driver: Box<str>,
    /// Port of the VIP; with it, subnet and network are ignored.
    pub port: Option<Box<str>>,
    /// Subnet of the VIP.
    pub subnet: Option<Box<str>>,
    /// Network of the VIP.
    pub network: Option<Box<str>>,
    /// Address of the VIP.
    pub address: Option<IpAddr>,
    /// Flavor.
    pub flavor: Option<Box<str>>,
    /// Availability zone.
    pub availability_zone: Option<Box<str>>,
}

/// Floating IP of a load balancer that is not internal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FloatingIpSpec {
    /// External network; searched for when `None`.
    pub network: Option<Box<str>>,
    /// Subnets of that network to take it from.
    pub subnet: FloatingSubnet,
    /// Address that the Service requests.
    pub address: Option<IpAddr>,
    /// True when it stays after the Service is deleted or becomes internal.
    pub keep: bool,
}

/// A desired listener with its pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredListener {
    /// Index of the port in the Service, which is part of the names.
    pub index: usize,
    /// Protocol.
    pub protocol: ListenerProtocol,
    /// Port.
    pub port: u16,
    /// Maximum number of connections; -1 for no limit.
    pub connection_limit: i32,
    /// True when requests get the client's address in `X-Forwarded-For`.
    pub forwarded_for: bool,
    /// Reference to the certificate.
    pub tls_container: Option<Box<str>>,
    /// Timeouts; `None` where the cloud does not support them.
    pub timeouts: Option<Timeouts>,
    /// Networks that clients may come from, sorted; `None` where the cloud cannot restrict them.
    pub allowed: Option<Vec<IpNet>>,
    /// Pool.
    pub pool: DesiredPool,
}

impl DesiredListener {
    /// Returns a name of the port for messages, such as `TCP 80`.
    pub fn label(&self) -> String {
        format!("{} {}", self.protocol.as_str(), self.port)
    }
}

/// Timeouts of a listener in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// Client inactivity.
    pub client_data: i32,
    /// Connecting to a member.
    pub member_connect: i32,
    /// Member inactivity.
    pub member_data: i32,
    /// Waiting for more of a request.
    pub tcp_inspect: i32,
}

/// A desired pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredPool {
    /// Protocol between load balancer and members.
    pub protocol: PoolProtocol,
    /// Algorithm, in Octavia's spelling.
    pub method: Box<str>,
    /// True when a client stays with one member, by its address.
    pub session_persistence: bool,
    /// Port of members; without one there are no members.
    pub node_port: Option<u16>,
    /// Port for health checks, if it is another.
    pub monitor_port: Option<u16>,
    /// Health monitor; `None` when members are not checked.
    pub monitor: Option<DesiredMonitor>,
}

/// A desired health monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DesiredMonitor {
    /// Type.
    pub kind: MonitorKind,
    /// Seconds between checks.
    pub delay: u32,
    /// Seconds to wait for an answer.
    pub timeout: u32,
    /// Successful checks until a member serves.
    pub max_retries: u32,
    /// Failed checks until it serves no more.
    pub max_retries_down: u32,
}

/// Protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListenerProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// HTTP.
    Http,
    /// HTTPS, terminated at the load balancer.
    TerminatedHttps,
}

impl ListenerProtocol {
    /// Chooses the protocol. Only TCP can carry TLS and HTTP headers.
    pub fn of(tls: bool, forwarded_for: bool, protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp if tls => Self::TerminatedHttps,
            Protocol::Tcp if forwarded_for => Self::Http,
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
            Protocol::Sctp => Self::Sctp,
        }
    }

    /// Returns Octavia's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
            Self::Http => "HTTP",
            Self::TerminatedHttps => "TERMINATED_HTTPS",
        }
    }
}

/// Returns the transport of a listener's protocol: two listeners of one transport cannot share a
/// port. `TCP` for unknown protocols.
pub fn transport(listener_protocol: &str) -> &'static str {
    match listener_protocol {
        "UDP" => "UDP",
        "SCTP" => "SCTP",
        _ => "TCP",
    }
}

/// Protocol of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// HTTP.
    Http,
    /// TCP with the proxy protocol, version 1.
    Proxy,
    /// TCP with the proxy protocol, version 2.
    ProxyV2,
}

impl PoolProtocol {
    /// Chooses the protocol. `http`: needed for TLS or X-Forwarded-For.
    pub fn of(proxy: Option<ProxyProtocol>, http: bool, protocol: Protocol) -> Self {
        match (proxy, protocol) {
            (Some(ProxyProtocol::V1), _) => Self::Proxy,
            (Some(ProxyProtocol::V2), _) => Self::ProxyV2,
            (None, Protocol::Tcp) if http => Self::Http,
            (None, Protocol::Tcp) => Self::Tcp,
            (None, Protocol::Udp) => Self::Udp,
            (None, Protocol::Sctp) => Self::Sctp,
        }
    }

    /// Returns Octavia's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
            Self::Http => "HTTP",
            Self::Proxy => "PROXY",
            Self::ProxyV2 => "PROXYV2",
        }
    }
}

/// Version of the proxy protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyProtocol {
    /// Version 1, text.
    V1,
    /// Version 2, binary.
    V2,
}

impl ProxyProtocol {
    /// Parses the annotation; off for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "true" | "v1" => Some(Self::V1),
            "v2" => Some(Self::V2),
            _ => None,
        }
    }
}

/// Type of a health monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MonitorKind {
    /// A TCP connection.
    Tcp,
    /// An SCTP association.
    Sctp,
    /// A UDP datagram.
    UdpConnect,
    /// `GET /healthz`, which must answer 200.
    Http,
}

impl MonitorKind {
    /// Returns Octavia's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Sctp => "SCTP",
            Self::UdpConnect => "UDP-CONNECT",
            Self::Http => "HTTP",
        }
    }
}

/// What the security group of a Service admits to nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecurityGroupSpec {
    /// Name.
    pub name: Box<str>,
    /// Description.
    pub description: Box<str>,
    /// Protocols in Neutron's spelling, with node ports.
    pub ports: Vec<(&'static str, u16)>,
    /// Port of kube-proxy's health check, open to the members' subnet.
    pub health_port: Option<u16>,
    /// Client networks, where clients keep their addresses; `None` when all traffic comes from the
    /// members' subnet.
    pub clients: Option<Vec<IpNet>>,
}

/// What the status shows instead of the plain address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StatusFormat {
    /// This host name.
    pub hostname: Option<Box<str>>,
    /// True with the proxy protocol: members see the load balancer's address, and the client's in a
    /// header.
    pub proxy: bool,
    /// With the proxy protocol: suffix of a host name made of the address.
    pub suffix: Option<Box<str>>,
}

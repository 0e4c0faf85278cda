//! Desired state of a load balancer, as the Service and the configuration determine it, with
//! defaults filled in.

use std::{net::IpAddr, sync::Arc};

use ccm_core::{
    k8s::{IpFamily, Protocol},
    provider::LabelRequirement,
};
use ipnet::IpNet;

use super::{features::Driver, subnets::FloatingSubnet};

/// The Service that a load balancer belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceKey {
    /// Namespace of the Service.
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub name: Arc<str>,
    /// UID of the Service, or empty if it is not known.
    pub uid: Box<str>,
}

/// A desired load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredLoadBalancer {
    /// The Service that the load balancer belongs to.
    pub owner: ServiceKey,
    /// Name of the load balancer, and tag of the load balancer and its listeners.
    pub name: Box<str>,
    /// Description of the load balancer.
    pub description: Box<str>,
    /// ID of the load balancer that the Service adopts.
    pub adopted: Option<Box<str>>,
    /// Tags that the Service requests for its own load balancer, beside our own.
    pub tags: Vec<Box<str>>,
    /// Driver that the Service itself requests. A load balancer of another driver is rejected.
    pub requested_driver: Option<Driver>,
    /// True when the load balancer has no floating IP.
    pub internal: bool,
    /// Settings that take effect only when the load balancer is created.
    pub create_settings: CreateSettings,
    /// Settings of the floating IP, unless the Service is internal.
    pub floating_ip: FloatingIpSpec,
    /// One listener for each port, in the order of the Service.
    pub listeners: Vec<DesiredListener>,
    /// Subnet of members, if one is set. Members in another subnet are moved there.
    pub member_subnet: Option<Box<str>>,
    /// Subnet that is set for the VIP. New members are in it if `member_subnet` is not set.
    pub vip_subnet: Option<Box<str>>,
    /// Address family of members, or `None` for any.
    pub family: Option<IpFamily>,
    /// Labels of the nodes that are members.
    pub node_labels: Vec<LabelRequirement>,
    /// Security group of the Service, or `None` if security groups are not managed.
    pub security_group: Option<SecurityGroupSpec>,
    /// Format of the address in the Service's status.
    pub status_format: StatusFormat,
}

/// Settings that take effect only when a load balancer is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CreateSettings {
    /// Driver, in Octavia's spelling.
    pub driver: Box<str>,
    /// ID of the VIP's port. If it is set, subnet and network are ignored.
    pub port: Option<Box<str>>,
    /// ID of the VIP's subnet.
    pub subnet: Option<Box<str>>,
    /// ID of the VIP's network.
    pub network: Option<Box<str>>,
    /// Address of the VIP.
    pub address: Option<IpAddr>,
    /// ID of the Octavia flavor.
    pub flavor: Option<Box<str>>,
    /// Octavia availability zone.
    pub availability_zone: Option<Box<str>>,
    /// Second address of the load balancer, or `None` for a load balancer with one.
    pub second_vip: Option<SecondVip>,
}

/// Second address of a load balancer, of the other address family.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecondVip {
    /// Address family.
    pub family: IpFamily,
    /// ID of the subnet, or `None` to search for one in the network of the first address.
    pub subnet: Option<Box<str>>,
}

/// Floating IP of a load balancer that is not internal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FloatingIpSpec {
    /// ID of the external network, or `None` to search for one.
    pub network: Option<Box<str>>,
    /// Subnets of that network to take the address from.
    pub subnet: FloatingSubnet,
    /// Address that the Service requests.
    pub address: Option<IpAddr>,
    /// True when the floating IP stays after the Service is deleted or becomes internal.
    pub keep: bool,
}

/// A desired listener with its pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredListener {
    /// Index of the port in the Service, which is part of the names.
    pub index: usize,
    /// Protocol between clients and load balancer.
    pub protocol: ListenerProtocol,
    /// Port that clients connect to.
    pub port: u16,
    /// Maximum number of connections; -1 for no limit.
    pub connection_limit: i32,
    /// True when requests get the client's address in `X-Forwarded-For`.
    pub forwarded_for: bool,
    /// Reference to the certificate of a listener that terminates TLS.
    pub tls_container: Option<Box<str>>,
    /// Timeouts, or `None` where the cloud does not support them.
    pub timeouts: Option<Timeouts>,
    /// Tags that the Service requests, beside our own.
    pub tags: Vec<Box<str>>,
    /// Networks that clients may come from, sorted. `None` where the cloud cannot restrict them.
    pub allowed: Option<Vec<IpNet>>,
    /// Pool that the listener forwards to.
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
    /// Inactivity of a client.
    pub client_data: i32,
    /// Connection to a member.
    pub member_connect: i32,
    /// Inactivity of a member.
    pub member_data: i32,
    /// Wait for the rest of a request that is inspected.
    pub tcp_inspect: i32,
}

/// A desired pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredPool {
    /// Protocol between load balancer and members.
    pub protocol: PoolProtocol,
    /// Algorithm, in Octavia's spelling.
    pub method: Box<str>,
    /// True when all connections from a client's address go to the same member.
    pub session_persistence: bool,
    /// Port of members. Without one the pool has no members.
    pub node_port: Option<u16>,
    /// Port for health checks, or `None` to check the members' port.
    pub monitor_port: Option<u16>,
    /// Health monitor, or `None` when members are not checked.
    pub monitor: Option<DesiredMonitor>,
    /// Tags that the Service requests.
    pub tags: Vec<Box<str>>,
}

/// A desired health monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DesiredMonitor {
    /// Type of the checks.
    pub kind: MonitorKind,
    /// Interval between checks in seconds.
    pub delay: u32,
    /// Timeout of a check in seconds.
    pub timeout: u32,
    /// Number of successful checks after which a member serves.
    pub max_retries: u32,
    /// Number of failed checks after which it no longer serves.
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
    pub fn choose(tls: bool, forwarded_for: bool, protocol: Protocol) -> Self {
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

/// Returns the transport of a listener's protocol, and `TCP` for unknown protocols. Two listeners
/// of the same transport cannot share a port.
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
    /// Chooses the protocol. `http` is true when the load balancer terminates TLS or adds
    /// `X-Forwarded-For`.
    pub fn choose(proxy: Option<ProxyProtocol>, http: bool, protocol: Protocol) -> Self {
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
    /// Parses the annotation's value. Any text other than `true`, `v1` and `v2` turns the protocol
    /// off.
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

/// Desired security group of a Service, which admits traffic to its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecurityGroupSpec {
    /// Name of the group.
    pub name: Box<str>,
    /// Description of the group, which names the Service and the cluster.
    pub description: Box<str>,
    /// Node ports with their protocols in Neutron's spelling.
    pub ports: Vec<(&'static str, u16)>,
    /// Port of kube-proxy's health check, open to the members' subnet.
    pub health_port: Option<u16>,
    /// Client networks, for drivers that keep the clients' addresses. `None` when all traffic comes
    /// from the members' subnet.
    pub clients: Option<Vec<IpNet>>,
}

/// Format of the address in the Service's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StatusFormat {
    /// Host name to show instead of the address.
    pub hostname: Option<Box<str>>,
    /// True with the proxy protocol, where members see the load balancer's address, and the
    /// client's only in a header.
    pub proxy: bool,
    /// Suffix for a host name made of the address, with the proxy protocol.
    pub suffix: Option<Box<str>>,
}

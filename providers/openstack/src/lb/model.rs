//! What is wanted of a load balancer: everything that a Service and the configuration say, with defaults filled in.

use std::{net::IpAddr, sync::Arc};

use ccm_core::{
    k8s::{IpFamily, Protocol},
    provider::LabelRequirement,
};
use ipnet::IpNet;

use super::subnets::FloatingSubnet;

/// Service that a balancer is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceKey {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Box<str>,
}

/// A wanted load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredLoadBalancer {
    /// Service that it is for.
    pub owner: ServiceKey,
    /// Name of the balancer, and tag of balancer and listeners.
    pub name: Box<str>,
    /// Description of the balancer.
    pub description: Box<str>,
    /// Whether it has no floating IP.
    pub internal: bool,
    /// What counts when it is made.
    pub create_settings: CreateSettings,
    /// Its floating IP.
    pub floating_ip: FloatingIpSpec,
    /// One for each port, in the order of the Service.
    pub listeners: Vec<DesiredListener>,
    /// Subnet of members, as far as somebody names it. Members elsewhere are moved there.
    pub member_subnet: Option<Box<str>>,
    /// Subnet of new members where nobody names one for members: the named subnet of the VIP.
    pub vip_subnet: Option<Box<str>>,
    /// Family of members' addresses; any when `None`.
    pub family: Option<IpFamily>,
    /// Nodes that are members.
    pub node_labels: Vec<LabelRequirement>,
    /// What the security group of the Service admits; `None` when there is none to be.
    pub security_group: Option<SecurityGroupSpec>,
    /// What the status shows.
    pub status_format: StatusFormat,
}

/// What counts when a balancer is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CreateSettings {
    /// Driver, in Octavia's spelling.
    pub driver: Box<str>,
    /// Port of the VIP; subnet and network do not count then.
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

/// Floating IP of a balancer that is not internal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FloatingIpSpec {
    /// External network; looked for when `None`.
    pub network: Option<Box<str>>,
    /// Where in it.
    pub subnet: FloatingSubnet,
    /// Address that the Service asks for.
    pub address: Option<IpAddr>,
    /// Whether it stays when the Service goes or becomes internal.
    pub keep: bool,
}

/// A wanted listener with its pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredListener {
    /// Index of the port in the Service, which is in the names.
    pub index: usize,
    /// Protocol.
    pub protocol: ListenerProtocol,
    /// Port.
    pub port: u16,
    /// Most connections; -1 for no limit.
    pub connection_limit: i32,
    /// Whether requests tell the client's address.
    pub forwarded_for: bool,
    /// Certificate.
    pub tls_container: Option<Box<str>>,
    /// Timeouts; `None` where the cloud has none.
    pub timeouts: Option<Timeouts>,
    /// Networks that clients may come from, sorted; `None` where the cloud cannot tell.
    pub allowed: Option<Vec<IpNet>>,
    /// Pool.
    pub pool: DesiredPool,
}

impl DesiredListener {
    /// Names the port for people, such as `TCP 80`.
    pub fn label(&self) -> String {
        format!("{} {}", self.protocol.as_str(), self.port)
    }
}

/// Timeouts of a listener in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// Idle client.
    pub client_data: i32,
    /// Connection to a member.
    pub member_connect: i32,
    /// Idle member.
    pub member_data: i32,
    /// More of a request.
    pub tcp_inspect: i32,
}

/// A wanted pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredPool {
    /// Protocol to members.
    pub protocol: PoolProtocol,
    /// Algorithm, in Octavia's spelling.
    pub method: Box<str>,
    /// Whether clients stay with a member by their address.
    pub session_persistence: bool,
    /// Port of members; no members without one.
    pub node_port: Option<u16>,
    /// Port where members are checked, if it is another.
    pub monitor_port: Option<u16>,
    /// How members are checked.
    pub monitor: Option<DesiredMonitor>,
}

/// A wanted health monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DesiredMonitor {
    /// Kind.
    pub kind: MonitorKind,
    /// Seconds between checks.
    pub delay: u32,
    /// Seconds for an answer.
    pub timeout: u32,
    /// Successes to serve.
    pub max_retries: u32,
    /// Failures to serve no more.
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
    /// HTTPS that ends here.
    TerminatedHttps,
}

impl ListenerProtocol {
    /// Chooses it. Only TCP can be taken apart.
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

/// Returns the transport of a listener's protocol: no two of one transport share a port. `TCP` for those not known here.
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
    /// TCP with a header that names the client, as text.
    Proxy,
    /// The same as bytes.
    ProxyV2,
}

impl PoolProtocol {
    /// Chooses it; `http`: by TLS or X-Forwarded-For.
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
    /// Text.
    V1,
    /// Bytes.
    V2,
}

impl ProxyProtocol {
    /// Reads the annotation; off for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "true" | "v1" => Some(Self::V1),
            "v2" => Some(Self::V2),
            _ => None,
        }
    }
}

/// Kind of a health monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MonitorKind {
    /// A connection.
    Tcp,
    /// An association.
    Sctp,
    /// A datagram.
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
    /// Protocols in Neutron's spelling with node ports.
    pub ports: Vec<(&'static str, u16)>,
    /// Port of kube-proxy's health check, from the members' subnet.
    pub health_port: Option<u16>,
    /// Clients' networks where they keep their addresses; `None`: all comes from the members' subnet.
    pub clients: Option<Vec<IpNet>>,
}

/// What the status shows in place of the bare address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StatusFormat {
    /// This host name.
    pub hostname: Option<Box<str>>,
    /// Whether members see the balancer's address, and the client's in a header.
    pub proxy: bool,
    /// With proxy protocol: a host name that ends like this.
    pub suffix: Option<Box<str>>,
}

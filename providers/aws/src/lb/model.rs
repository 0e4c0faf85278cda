//! What a Service wants of AWS, as plain data: the result of reading its spec and annotations, before anything is known of
//! the VPC or of what exists. Equal values need no call.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    num::NonZeroU16,
    sync::Arc,
};

use ccm_core::{
    k8s::{IpFamily, Protocol},
    provider::{BackendKind, LabelRequirement},
};
use ipnet::IpNet;

use crate::api::{
    AllocationId, Tags,
    elb::{Attributes, ElbProtocol, HealthCheck, IpAddressType, Scheme, TargetType},
};

/// Whose a load balancer is, and therefore how it and its parts are called and tagged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceKey {
    /// Namespace of the Service.
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub name: Arc<str>,
    /// UID of the Service.
    pub uid: Box<str>,
}

impl ServiceKey {
    /// Returns `namespace/name`, the value of the Service's tag.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A wanted network load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredLoadBalancer {
    /// Whose it is.
    pub owner: ServiceKey,
    /// Name; has an effect at creation only.
    pub name: Box<str>,
    /// Scheme.
    pub scheme: Scheme,
    /// Address families.
    pub ip_address_type: IpAddressType,
    /// Subnets.
    pub subnets: SubnetChoice,
    /// Elastic IP addresses, one per subnet in the order of the subnets, or none.
    pub allocations: Vec<AllocationId>,
    /// Private IPv4 addresses, one per subnet in any order, or none.
    pub private_ipv4: Vec<Ipv4Addr>,
    /// IPv6 addresses, one per subnet in any order, or none.
    pub ipv6: Vec<Ipv6Addr>,
    /// `EnablePrefixForIpv6SourceNat`; `None` leaves it alone.
    pub ipv6_source_nat: Option<bool>,
    /// Security groups.
    pub security: SecurityGroupSpec,
    /// Listeners, sorted by port and protocol; at least one.
    pub listeners: Vec<DesiredListener>,
    /// Attributes of the load balancer that are looked after, with the values that they shall have.
    pub attributes: Attributes,
    /// Whether the Service asks for deletion protection.
    pub deletion_protection: bool,
    /// Tags of the load balancer and all its parts, without the cluster's and the Service's own.
    pub extra_tags: Tags,
    /// Which clients may connect: `0.0.0.0/0` (and `::/0` for dual stack) when the Service says nothing; empty only when it
    /// names prefix lists and no ranges, which takes a managed security group.
    pub sources: Vec<IpNet>,
    /// Which nodes are targets (type `instance`); empty means all.
    pub node_labels: Vec<LabelRequirement>,
    /// Type of all its targets.
    pub target_type: TargetType,
}

impl DesiredLoadBalancer {
    /// Returns what the framework shall hand over as backends.
    pub fn backends(&self) -> BackendKind {
        match self.target_type {
            TargetType::Instance => BackendKind::Nodes(self.node_labels.clone()),
            TargetType::Ip => BackendKind::Endpoints,
        }
    }
}

/// How subnets are chosen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SubnetChoice {
    /// By tags and route tables for a new load balancer; an existing one keeps its subnets.
    Discover,
    /// Exactly these, in this order.
    Named(Vec<SubnetName>),
}

/// A subnet as an annotation names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SubnetName {
    /// By ID.
    Id(crate::api::SubnetId),
    /// By tag `Name`.
    Name(Box<str>),
}

/// Security groups of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecurityGroupSpec {
    /// Which ones.
    pub groups: SecurityGroupChoice,
    /// `EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic`; `None` leaves it alone.
    pub private_link_rules: Option<bool>,
    /// Prefix lists that may connect, in a managed group.
    pub prefix_lists: Vec<Box<str>>,
    /// Whether rules of the nodes' groups are looked after (`manage-backend-security-group-rules`); the load balancer
    /// controller's Services with given groups alone say no unless asked.
    pub manage_backend_rules: bool,
    /// How nodes admit a load balancer that has groups.
    pub node_rules: NodeRuleSource,
}

/// How nodes admit a load balancer that has security groups. One without is admitted by networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeRuleSource {
    /// By the networks of its clients, in upstream's words: whoever goes back to upstream finds its own rules.
    Networks,
    /// By its group, where upstream serves no such Service.
    Group,
}

/// Which security groups a load balancer gets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SecurityGroupChoice {
    /// None for a new one; what is there stays.
    Keep,
    /// None; one that has some is a conflict (`disable-nlb-sg`).
    None,
    /// One that we make and fill, unless the balancer exists without any, which cannot be changed.
    Managed,
    /// These, given by ID or by tag `Name`, never changed, unless the balancer exists without any.
    Given(Vec<Box<str>>),
}

/// A wanted listener with its target group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredListener {
    /// Port.
    pub port: NonZeroU16,
    /// Protocol.
    pub protocol: ElbProtocol,
    /// TLS settings, for `TLS` only.
    pub tls: Option<Tls>,
    /// Attributes that are looked after.
    pub attributes: Attributes,
    /// Target group.
    pub target_group: DesiredTargetGroup,
}

impl DesiredListener {
    /// Returns where it is.
    pub fn key(&self) -> ListenerKey {
        (self.port, self.protocol)
    }
}

/// TLS settings of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tls {
    /// Certificate ARNs: the default one, then those for SNI. Never empty.
    pub certificates: Vec<Box<str>>,
    /// Security policy; AWS' default and not compared when `None`.
    pub policy: Option<Box<str>>,
    /// ALPN policy; not compared when `None`.
    pub alpn: Option<Box<str>>,
}

/// A wanted target group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredTargetGroup {
    /// Name that a new one gets; one that exists may have another.
    pub name: Box<str>,
    /// Protocol.
    pub protocol: ElbProtocol,
    /// Port: the node port for instances; the target port, or 1 for a named one, for addresses.
    pub port: NonZeroU16,
    /// What its targets are.
    pub target_type: TargetType,
    /// Family of its targets: the Service's first one.
    pub family: IpFamily,
    /// Health check.
    pub health_check: HealthCheck,
    /// Attributes that are looked after.
    pub attributes: Attributes,
    /// Whether clients' addresses reach the targets, after attributes and AWS' defaults.
    pub preserves_client_ip: bool,
    /// Name and protocol of the Service port whose endpoints are targets (type `ip`).
    pub service_port: (Arc<str>, Protocol),
}

/// Where a listener is on its load balancer. A port has one listener, whatever its protocol.
pub type ListenerKey = (NonZeroU16, ElbProtocol);

/// Targets of each wanted target group, by the port and protocol of its listener.
pub type Targets = BTreeMap<ListenerKey, Vec<crate::api::elb::Target>>;

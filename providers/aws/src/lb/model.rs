//! The desired state of a Service in AWS, as plain data: the result of parsing its spec and
//! annotations, before the VPC or existing objects are known. If two values are equal, AWS needs no
//! request.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    num::NonZeroU16,
    sync::Arc,
};

use ccm_core::{
    k8s::{IpFamily, Protocol, ServiceView},
    provider::{BackendKind, LabelRequirement},
};
use ipnet::IpNet;

use crate::api::{
    AllocationId, Tags,
    elb::{
        Attributes, ElbProtocol, HealthCheck, IpAddressType, Scheme, SourceNatPrefix, TargetType,
    },
};

/// The Service that owns a load balancer, from which the names and tags of all its objects derive.
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
    /// Returns the key of a Service.
    pub fn of(service: &ServiceView) -> Self {
        Self {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            uid: service.uid.clone(),
        }
    }

    /// Returns `namespace/name`, the value of the Service's tag.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A desired Network Load Balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredLoadBalancer {
    /// The Service that owns it.
    pub owner: ServiceKey,
    /// Its name at creation; an existing load balancer may have another name.
    pub name: Box<str>,
    /// `internet-facing` or `internal`; cannot be changed.
    pub scheme: Scheme,
    /// Its address families.
    pub ip_address_type: IpAddressType,
    /// Its subnets.
    pub subnets: SubnetChoice,
    /// Elastic IP addresses, one per subnet in the order of the subnets, or none.
    pub allocations: Vec<AllocationId>,
    /// Private IPv4 addresses, one per subnet in any order, or none.
    pub private_ipv4: Vec<Ipv4Addr>,
    /// IPv6 addresses, one per subnet in any order, or none.
    pub ipv6: Vec<Ipv6Addr>,
    /// `EnablePrefixForIpv6SourceNat`; `None` keeps the current value.
    pub ipv6_source_nat: Option<bool>,
    /// IPv6 prefixes for source NAT, one per subnet in the order of the named subnets, or none.
    pub source_nat_prefixes: Vec<SourceNatPrefix>,
    /// Its security groups, and the rules that admit it.
    pub security: SecurityGroupSpec,
    /// Listeners, sorted by port and protocol; at least one.
    pub listeners: Vec<DesiredListener>,
    /// Managed attributes of the load balancer, with their desired values.
    pub attributes: Attributes,
    /// True if the Service requests deletion protection.
    pub deletion_protection: bool,
    /// Minimum capacity units to reserve, 0 to end a reservation; `None` neither reads nor changes it.
    pub capacity_units: Option<u32>,
    /// Tags of the load balancer and all its parts, without the ownership tags of cluster and
    /// Service.
    pub extra_tags: Tags,
    /// Client networks that may connect: `0.0.0.0/0` (and `::/0` for dual stack) if the Service
    /// names none; empty only if it names prefix lists and no ranges, which requires a managed
    /// security group.
    pub sources: Vec<IpNet>,
    /// Labels that a node needs to be a target of type `instance`; empty selects all nodes.
    pub node_labels: Vec<LabelRequirement>,
    /// Type of all targets.
    pub target_type: TargetType,
    /// The settings of existing objects that follow the Service.
    pub updates: UpdateScope,
    /// Errors in settings that count only when the load balancer is created. They prevent nothing
    /// else. Each names its annotation.
    pub creation_errors: Vec<Box<str>>,
    /// The ARN of the kept load balancer that the Service adopts. It then never gets a new one.
    pub adopts: Option<Box<str>>,
}

/// The settings of existing objects that follow a Service. New objects get all settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpdateScope {
    /// Every setting that AWS can change.
    All,
    /// The settings that cloud-provider-aws changes. A load balancer keeps its scheme, subnets,
    /// addresses and address families, listeners keep their certificates for SNI, all objects keep
    /// their tags. A health check keeps its timeout, and the unhealthy threshold too unless the
    /// healthy one changes.
    AsCloudProviderAws,
}

impl DesiredLoadBalancer {
    /// Returns the port of a listener's targets; `None` for addresses behind a named port, because
    /// each may have another port.
    pub(crate) fn target_port(&self, listener: &DesiredListener) -> Option<u16> {
        let port = listener.target_group.port.get();
        (self.target_type == TargetType::Instance || port != 1).then_some(port)
    }

    /// Returns the kind of backends that the framework must pass.
    pub fn backends(&self) -> BackendKind {
        match self.target_type {
            TargetType::Instance => BackendKind::Nodes(self.node_labels.clone()),
            TargetType::Ip => BackendKind::Endpoints,
        }
    }
}

/// The choice of a load balancer's subnets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SubnetChoice {
    /// By tags and route tables for a new load balancer; an existing one keeps its subnets.
    Discover,
    /// Exactly these subnets, in this order.
    Named(Vec<SubnetName>),
}

/// A subnet as written in an annotation.
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
    /// The groups of the load balancer.
    pub groups: SecurityGroupChoice,
    /// `EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic`; `None` keeps the current value.
    pub private_link_rules: Option<bool>,
    /// Prefix lists that may connect, through a managed group.
    pub prefix_lists: Vec<Box<str>>,
    /// True if rules of the nodes' groups are managed (`manage-backend-security-group-rules`). The
    /// default is true, except for Services with given groups that are claimed from the AWS load
    /// balancer controller.
    pub manage_backend_rules: bool,
    /// The source of the rules by which nodes admit the load balancer, if it has security groups.
    pub node_rules: NodeRuleSource,
}

/// The source of the rules by which nodes admit a load balancer that has security groups. A load
/// balancer without any is admitted by CIDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeRuleSource {
    /// By the CIDRs of its clients, with upstream's rule descriptions, so that upstream finds its
    /// own rules after a return to upstream.
    Networks,
    /// By its security group, for Services that upstream does not serve.
    Group,
}

/// The choice of a load balancer's security groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SecurityGroupChoice {
    /// None for a new load balancer; an existing one keeps its groups.
    Keep,
    /// None; an existing load balancer with groups is a conflict (`disable-nlb-sg`).
    None,
    /// One that we create and fill, unless the load balancer exists without groups, which AWS
    /// cannot change.
    Managed,
    /// These, given by ID or by tag `Name`. Their rules are never changed. Ignored if the load
    /// balancer exists without groups.
    Given(Vec<Box<str>>),
}

/// A desired listener with its target group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredListener {
    /// The port on the load balancer.
    pub port: NonZeroU16,
    /// The protocol towards clients.
    pub protocol: ElbProtocol,
    /// TLS settings, for `TLS` only.
    pub tls: Option<Tls>,
    /// Attributes that the Service sets. Others stay unchanged.
    pub attributes: Attributes,
    /// The target group that it forwards to.
    pub target_group: DesiredTargetGroup,
}

impl DesiredListener {
    /// Returns the port and protocol.
    pub fn key(&self) -> ListenerKey {
        (self.port, self.protocol)
    }
}

/// TLS settings of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tls {
    /// Certificate ARNs: the default one, then those for SNI. Never empty.
    pub certificates: Vec<Box<str>>,
    /// Security policy; if `None`, AWS' default is used and it is not compared.
    pub policy: Option<Box<str>>,
    /// ALPN policy; not compared when `None`.
    pub alpn: Option<Box<str>>,
}

/// A desired target group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredTargetGroup {
    /// Name of a new target group; an existing one may have another name.
    pub name: Box<str>,
    /// The protocol towards targets.
    pub protocol: ElbProtocol,
    /// The node port for instances. For addresses the target port, or 1 if that is a name.
    pub port: NonZeroU16,
    /// Type of its targets.
    pub target_type: TargetType,
    /// Address family of its targets: the Service's first one.
    pub family: IpFamily,
    /// The health check of the targets.
    pub health_check: HealthCheck,
    /// Attributes that the Service sets. Others stay unchanged.
    pub attributes: Attributes,
    /// True if the targets see the clients' addresses, according to attributes and AWS' defaults.
    pub preserves_client_ip: bool,
    /// Name and protocol of the Service port whose endpoints are targets (type `ip`).
    pub service_port: (Arc<str>, Protocol),
}

/// Port and protocol of a listener, which identify it on its load balancer. A port has one
/// listener, whatever its protocol.
pub type ListenerKey = (NonZeroU16, ElbProtocol);

/// Targets of each desired target group, by the port and protocol of its listener.
pub type Targets = BTreeMap<ListenerKey, Vec<crate::api::elb::Target>>;

// length: one table of plain requests and answers, with a line of meaning each
//! Requests and answers of Elastic Load Balancing, with only the fields that the provider uses.

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    num::NonZeroU16,
};

use ipnet::Ipv6Net;
use jiff::Timestamp;

use super::{
    AllocationId, ListenerArn, LoadBalancerArn, SecurityGroupId, SubnetId, Tags, TargetGroupArn,
    VpcId,
};

/// Attributes of a load balancer, target group or listener: key and value as AWS spells them.
pub type Attributes = BTreeMap<Box<str>, Box<str>>;

/// Defines an enum with the names of its values on the wire.
macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $wire:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns AWS' spelling.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $wire),* }
            }

            /// Parses AWS' spelling; `None` for a value that this version does not know.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($wire => Some(Self::$variant),)* _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

wire_enum! {
    /// Who can reach a load balancer. Cannot be changed.
    Scheme {
        /// The internet.
        InternetFacing = "internet-facing",
        /// The VPC and networks connected to it.
        Internal = "internal",
    }
}

wire_enum! {
    /// Address families of a load balancer or of a target group, which has `ipv4` or `ipv6`.
    IpAddressType {
        /// IPv4.
        Ipv4 = "ipv4",
        /// Both.
        Dualstack = "dualstack",
        /// IPv6, only for target groups.
        Ipv6 = "ipv6",
    }
}

wire_enum! {
    /// Protocol of a listener or a target group.
    ElbProtocol {
        /// TCP.
        Tcp = "TCP",
        /// UDP.
        Udp = "UDP",
        /// TCP and UDP.
        TcpUdp = "TCP_UDP",
        /// TLS.
        Tls = "TLS",
    }
}

impl ElbProtocol {
    /// Returns true if it is UDP, alone or with TCP.
    pub fn has_udp(self) -> bool {
        matches!(self, Self::Udp | Self::TcpUdp)
    }
}

wire_enum! {
    /// Protocol of a health check.
    HealthProtocol {
        /// TCP.
        Tcp = "TCP",
        /// HTTP.
        Http = "HTTP",
        /// HTTPS.
        Https = "HTTPS",
    }
}

wire_enum! {
    /// Kind of targets of a target group.
    TargetType {
        /// IDs of the instances.
        Instance = "instance",
        /// IP addresses.
        Ip = "ip",
    }
}

wire_enum! {
    /// State of a load balancer.
    LoadBalancerState {
        /// Being created; the DNS name exists already.
        Provisioning = "provisioning",
        /// Serving.
        Active = "active",
        /// Serving, but unable to scale.
        ActiveImpaired = "active_impaired",
        /// Could not be created.
        Failed = "failed",
    }
}

/// Describes load balancers: by name or by ARN (at most 20; a missing one fails the request with
/// `LoadBalancerNotFound`), or all of the region, 400 per page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeLoadBalancers {
    /// By name.
    pub names: Vec<Box<str>>,
    /// By ARN.
    pub arns: Vec<LoadBalancerArn>,
    /// Token of the page to read; `None` for the first page.
    pub token: Option<String>,
}

/// A load balancer of the v2 API. Not necessarily a network load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadBalancer {
    /// ARN of the load balancer.
    pub arn: LoadBalancerArn,
    /// Name of the load balancer.
    pub name: Box<str>,
    /// DNS name; empty if there is none.
    pub dns_name: Box<str>,
    /// `network`, `application`, `gateway`.
    pub kind: Box<str>,
    /// Scheme; `None` for one that this version does not know.
    pub scheme: Option<Scheme>,
    /// State; `None` for one that this version does not know.
    pub state: Option<LoadBalancerState>,
    /// Reason for the state; empty if AWS returned none.
    pub state_reason: Box<str>,
    /// VPC in which the load balancer is.
    pub vpc: Option<VpcId>,
    /// Address families of the load balancer.
    pub ip_address_type: Option<IpAddressType>,
    /// Subnets, with the addresses in each.
    pub zones: Vec<LoadBalancerZone>,
    /// IDs of the security groups of the load balancer.
    pub security_groups: Vec<SecurityGroupId>,
    /// `EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic`: `on` or `off`.
    pub private_link_rules: Option<bool>,
    /// `EnablePrefixForIpv6SourceNat`: `on` or `off`.
    pub ipv6_source_nat: Option<bool>,
    /// Time of creation.
    pub created: Option<Timestamp>,
}

/// A load balancer in one zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancerZone {
    /// Zone.
    pub zone: Box<str>,
    /// Subnet.
    pub subnet: Option<SubnetId>,
    /// Elastic IP addresses there.
    pub allocations: Vec<AllocationId>,
    /// Private IPv4 addresses there, if they were requested on creation.
    pub private_ipv4: Vec<Box<str>>,
    /// IPv6 addresses there.
    pub ipv6: Vec<Box<str>>,
    /// IPv6 prefixes for source NAT there.
    pub source_nat_prefixes: Vec<Box<str>>,
}

impl LoadBalancerZone {
    /// Returns the zone that is in a subnet.
    pub fn find<'a>(zones: &'a [Self], subnet: &SubnetId) -> Option<&'a Self> {
        zones
            .iter()
            .find(|zone| zone.subnet.as_ref() == Some(subnet))
    }
}

/// Creates a network load balancer. Idempotent with identical settings; otherwise fails with
/// `DuplicateLoadBalancerName`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateLoadBalancer {
    /// Name, at most 32 characters.
    pub name: Box<str>,
    /// Scheme.
    pub scheme: Scheme,
    /// Address families.
    pub ip_address_type: IpAddressType,
    /// One subnet per zone.
    pub subnets: Vec<SubnetMapping>,
    /// Security groups. An NLB that is created without any can never have one.
    pub security_groups: Vec<SecurityGroupId>,
    /// `EnablePrefixForIpv6SourceNat`.
    pub ipv6_source_nat: Option<bool>,
    /// Tags of the new load balancer.
    pub tags: Tags,
}

/// A subnet of a load balancer, and the desired addresses in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SubnetMapping {
    /// Subnet.
    pub subnet: SubnetId,
    /// Elastic IP address.
    pub allocation: Option<AllocationId>,
    /// Private IPv4 address.
    pub private_ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// IPv6 prefix for source NAT.
    pub source_nat_prefix: Option<SourceNatPrefix>,
}

/// The IPv6 prefix of a load balancer in a subnet, from which it takes source addresses for UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceNatPrefix {
    /// One that AWS chooses from the subnet's network.
    AutoAssigned,
    /// This one, which has 80 bits.
    Network(Ipv6Net),
}

impl SourceNatPrefix {
    /// AWS' spelling of [`AutoAssigned`](Self::AutoAssigned).
    pub const AUTO_ASSIGNED: &'static str = "auto_assigned";
}

impl fmt::Display for SourceNatPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AutoAssigned => f.write_str(Self::AUTO_ASSIGNED),
            Self::Network(network) => network.fmt(f),
        }
    }
}

/// Sets the subnets of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSubnets {
    /// Load balancer to change.
    pub arn: LoadBalancerArn,
    /// All subnets.
    pub subnets: Vec<SubnetMapping>,
    /// `EnablePrefixForIpv6SourceNat`.
    pub ipv6_source_nat: Option<bool>,
    /// Address families, if they change as well.
    pub ip_address_type: Option<IpAddressType>,
}

/// Sets the address families of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetIpAddressType {
    /// Load balancer to change.
    pub arn: LoadBalancerArn,
    /// Address families.
    pub ip_address_type: IpAddressType,
}

/// Sets the security groups of a load balancer that already has some (`InvalidConfigurationRequest`
/// otherwise).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSecurityGroups {
    /// Load balancer to change.
    pub arn: LoadBalancerArn,
    /// All groups.
    pub groups: Vec<SecurityGroupId>,
    /// `EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic`.
    pub private_link_rules: Option<bool>,
}

macro_rules! by_arn {
    ($($(#[$doc:meta])* $name:ident($arn:ty)),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            /// ARN of the object.
            pub arn: $arn,
        }
    )*};
}

by_arn! {
    /// Describes the attributes of a load balancer.
    DescribeLoadBalancerAttributes(LoadBalancerArn),
    /// Deletes a load balancer with its listeners. Succeeds if it does not exist
    /// (`OperationNotPermitted` with deletion protection).
    DeleteLoadBalancer(LoadBalancerArn),
    /// Describes the capacity units that are reserved for a load balancer; 0 for none.
    DescribeCapacityReservation(LoadBalancerArn),
    /// Describes the attributes of a target group.
    DescribeTargetGroupAttributes(TargetGroupArn),
    /// Describes the targets of a target group and their health.
    DescribeTargetHealth(TargetGroupArn),
    /// Deletes a target group that no listener uses (`ResourceInUse` otherwise). Succeeds if it
    /// does not exist.
    DeleteTargetGroup(TargetGroupArn),
    /// Describes the attributes of a listener.
    DescribeListenerAttributes(ListenerArn),
    /// Describes all certificates of a TLS listener.
    DescribeListenerCertificates(ListenerArn),
    /// Deletes a listener (`ListenerNotFound`).
    DeleteListener(ListenerArn),
}

macro_rules! set_attributes {
    ($($(#[$doc:meta])* $name:ident($arn:ty)),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            /// ARN of the object.
            pub arn: $arn,
            /// Attributes to set; others keep their values.
            pub attributes: Attributes,
        }
    )*};
}

set_attributes! {
    /// Sets attributes of a load balancer.
    ModifyLoadBalancerAttributes(LoadBalancerArn),
    /// Sets attributes of a target group.
    ModifyTargetGroupAttributes(TargetGroupArn),
    /// Sets attributes of a listener.
    ModifyListenerAttributes(ListenerArn),
}

/// Reserves capacity for a load balancer (`CapacityReservationPending` until AWS has carried out the
/// previous request, `CapacityUnitsLimitExceeded`, `InsufficientCapacity`, …).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModifyCapacityReservation {
    /// Load balancer to change.
    pub arn: LoadBalancerArn,
    /// Minimum number of capacity units; 0 ends the reservation.
    pub capacity_units: u32,
}

/// Describes target groups: of a load balancer, by ARN or name (at most 20), or all of the region,
/// 400 per page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeTargetGroups {
    /// Load balancer whose target groups to describe. The answer is empty if it has none.
    pub load_balancer: Option<LoadBalancerArn>,
    /// ARNs; an unknown one fails the request (`TargetGroupNotFound`).
    pub arns: Vec<TargetGroupArn>,
    /// Names; an unknown one fails the request (`TargetGroupNotFound`).
    pub names: Vec<Box<str>>,
    /// Token of the page to read; `None` for the first page.
    pub token: Option<String>,
}

/// A target group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetGroup {
    /// ARN of the target group.
    pub arn: TargetGroupArn,
    /// Name of the target group.
    pub name: Box<str>,
    /// Protocol; `None` for one that this version does not know.
    pub protocol: Option<ElbProtocol>,
    /// Port; 0 if there is none.
    pub port: u16,
    /// VPC in which the target group is.
    pub vpc: Option<VpcId>,
    /// Kind of its targets; `None` for one that this version does not know.
    pub target_type: Option<TargetType>,
    /// Address family of its targets.
    pub ip_address_type: Option<IpAddressType>,
    /// Health check; `None` for a protocol that this version does not know.
    pub health_check: Option<HealthCheck>,
    /// Load balancers that use it.
    pub load_balancers: Vec<LoadBalancerArn>,
}

/// A health check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HealthCheck {
    /// Protocol of the health check.
    pub protocol: HealthProtocol,
    /// `traffic-port` or a number.
    pub port: HealthPort,
    /// Path; `None` for TCP.
    pub path: Option<Box<str>>,
    /// Seconds between two checks.
    pub interval: u32,
    /// Seconds to wait for an answer.
    pub timeout: u32,
    /// Successful checks in a row until a target is healthy.
    pub healthy: u32,
    /// Failed checks in a row until a target is unhealthy.
    pub unhealthy: u32,
    /// Accepted status codes, such as `200-399`; `None` for TCP, or for AWS' default.
    pub matcher: Option<Box<str>>,
}

/// Port of a health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HealthPort {
    /// The port of each target.
    Traffic,
    /// A fixed port.
    Number(NonZeroU16),
}

impl fmt::Display for HealthPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Traffic => f.write_str("traffic-port"),
            Self::Number(port) => port.fmt(f),
        }
    }
}

/// Creates a target group. Idempotent with identical settings; otherwise fails with
/// `DuplicateTargetGroupName`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTargetGroup {
    /// Name, at most 32 characters.
    pub name: Box<str>,
    /// Protocol of the new target group.
    pub protocol: ElbProtocol,
    /// Port of the new target group.
    pub port: NonZeroU16,
    /// VPC in which to create it.
    pub vpc: VpcId,
    /// Kind of its targets.
    pub target_type: TargetType,
    /// Address family; `None` for AWS' default (IPv4).
    pub ip_address_type: Option<IpAddressType>,
    /// Health check of the targets.
    pub health_check: HealthCheck,
    /// Tags of the new target group.
    pub tags: Tags,
}

/// Changes the health check of a target group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModifyTargetGroup {
    /// ARN of the target group.
    pub arn: TargetGroupArn,
    /// New health check.
    pub health_check: HealthCheck,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Instance ID or address.
    pub id: Box<str>,
    /// Port of the target.
    pub port: u16,
    /// `all` for an address outside the VPC.
    pub zone: Option<Box<str>>,
}

/// A target and its health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetHealth {
    /// The target.
    pub target: Target,
    /// `initial`, `healthy`, `unhealthy`, `draining`, `unused`, `unavailable`.
    pub state: Box<str>,
    /// Reason code, such as `Target.DeregistrationInProgress`; empty if AWS returned none.
    pub reason: Box<str>,
}

/// Registers targets (`InvalidTarget`, `TooManyTargets`). A target that is already registered is
/// not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterTargets {
    /// ARN of the target group.
    pub arn: TargetGroupArn,
    /// Targets, at most 200.
    pub targets: Vec<Target>,
}

/// Deregisters targets. A target that is not registered is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeregisterTargets {
    /// ARN of the target group.
    pub arn: TargetGroupArn,
    /// Targets, at most 200.
    pub targets: Vec<Target>,
}

/// Describes the listeners of one load balancer, page by page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribeListeners {
    /// Load balancer (`LoadBalancerNotFound`).
    pub load_balancer: LoadBalancerArn,
    /// Token of the page to read; `None` for the first page.
    pub token: Option<String>,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// ARN of the listener.
    pub arn: ListenerArn,
    /// Port of the listener.
    pub port: u16,
    /// Protocol; `None` for one that this version does not know.
    pub protocol: Option<ElbProtocol>,
    /// Default certificate of a TLS listener.
    pub certificate: Option<Box<str>>,
    /// Security policy of a TLS listener.
    pub ssl_policy: Option<Box<str>>,
    /// ALPN policy of a TLS listener.
    pub alpn_policy: Option<Box<str>>,
    /// Target group of the default action; `None` if there is none or more than one.
    pub target_group: Option<TargetGroupArn>,
}

/// Settings of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListenerSpec {
    /// Port of the listener.
    pub port: NonZeroU16,
    /// Protocol of the listener.
    pub protocol: ElbProtocol,
    /// Target group to which it forwards.
    pub target_group: TargetGroupArn,
    /// Default certificate, for TLS.
    pub certificate: Option<Box<str>>,
    /// Security policy, for TLS; `None` for AWS' default.
    pub ssl_policy: Option<Box<str>>,
    /// ALPN policy, for TLS.
    pub alpn_policy: Option<Box<str>>,
}

/// Creates a listener (`DuplicateListener`, `CertificateNotFound`, …).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateListener {
    /// ARN of the load balancer.
    pub load_balancer: LoadBalancerArn,
    /// Settings of the listener.
    pub spec: ListenerSpec,
    /// Tags of the new listener.
    pub tags: Tags,
}

/// Changes a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModifyListener {
    /// ARN of the listener.
    pub arn: ListenerArn,
    /// Settings of the listener.
    pub spec: ListenerSpec,
}

/// A certificate of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// ARN of the certificate.
    pub arn: Box<str>,
    /// True for the listener's default certificate.
    pub default: bool,
}

macro_rules! certificates {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            /// Listener (`ListenerNotFound`, which may be wrong just after the listener was
            /// created).
            pub arn: ListenerArn,
            /// Certificate ARNs.
            pub certificates: Vec<Box<str>>,
        }
    )*};
}

certificates! {
    /// Adds certificates for SNI.
    AddListenerCertificates,
    /// Removes certificates for SNI.
    RemoveListenerCertificates
}

/// Maximum number of objects in one request about tags (AWS).
pub const MAX_TAGGED: usize = 20;

/// Describes the tags of load balancers, target groups and listeners, at most [`MAX_TAGGED`] ARNs.
/// A missing one fails the whole request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribeElbTags {
    /// ARNs of the objects.
    pub arns: Vec<Box<str>>,
}

/// Adds tags to load balancers, target groups and listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddElbTags {
    /// ARNs, at most 20.
    pub arns: Vec<Box<str>>,
    /// Tags to add.
    pub tags: Tags,
}

/// Removes tags from load balancers, target groups and listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveElbTags {
    /// ARNs, at most 20.
    pub arns: Vec<Box<str>>,
    /// Keys of the tags to remove.
    pub keys: Vec<Box<str>>,
}

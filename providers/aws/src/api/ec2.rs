//! Requests and answers of EC2, with only the fields that the provider uses.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{EniId, Filter, InstanceId, RouteTableId, SecurityGroupId, SubnetId, Tags, VpcId};

/// Describes instances: by ID (at most 1,000), or by filters, page by page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeInstances {
    /// By ID; an unknown one fails the whole request (`InvalidInstanceID.NotFound`).
    pub ids: Vec<InstanceId>,
    /// Filters.
    pub filters: Vec<Filter>,
    /// Instances per page, 5 to 1,000; not together with `ids`.
    pub max_results: Option<u16>,
    /// Token of the page.
    pub token: Option<String>,
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// ID.
    pub id: InstanceId,
    /// State; `None` if the answer has none.
    pub state: Option<InstanceState>,
    /// Type, such as `m6g.large`; empty if the answer has none.
    pub instance_type: Box<str>,
    /// Zone, such as `us-west-2a`.
    pub zone: Box<str>,
    /// VPC.
    pub vpc: Option<VpcId>,
    /// Subnet of the primary interface.
    pub subnet: Option<SubnetId>,
    /// Private DNS name; empty if there is none, like the other strings.
    pub private_dns_name: Box<str>,
    /// Public DNS name.
    pub public_dns_name: Box<str>,
    /// Private IPv4 address.
    pub private_ip: Box<str>,
    /// Public IPv4 address.
    pub public_ip: Box<str>,
    /// Network interfaces, in the order of the answer.
    pub interfaces: Vec<InstanceInterface>,
    /// Security groups of the primary interface: ID and name.
    pub security_groups: Vec<(SecurityGroupId, Box<str>)>,
    /// Whether the source/destination check of the primary interface is on.
    pub source_dest_check: Option<bool>,
    /// Tags.
    pub tags: Tags,
}

/// State of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// `pending`.
    Pending,
    /// `running`.
    Running,
    /// `shutting-down`.
    ShuttingDown,
    /// `stopping`.
    Stopping,
    /// `stopped`.
    Stopped,
    /// `terminated`.
    Terminated,
    /// One that this version does not know.
    Unknown,
}

/// A network interface in the description of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceInterface {
    /// ID.
    pub id: EniId,
    /// `attachment.deviceIndex`; `None` without attachment.
    pub device_index: Option<i32>,
    /// Whether its status is `in-use`.
    pub in_use: bool,
    /// Private IPv4 addresses, primary first.
    pub private_ips: Vec<Box<str>>,
    /// IPv6 addresses.
    pub ipv6_addresses: Vec<Box<str>>,
    /// Delegated prefixes, IPv4 and IPv6.
    pub prefixes: Vec<IpNet>,
    /// Whether its source/destination check is on.
    pub source_dest_check: Option<bool>,
    /// Security groups.
    pub security_groups: Vec<SecurityGroupId>,
}

/// Describes network interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeNetworkInterfaces {
    /// Filters.
    pub filters: Vec<Filter>,
    /// Token of the page.
    pub token: Option<String>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    /// ID.
    pub id: EniId,
    /// Zone.
    pub zone: Box<str>,
    /// Private DNS name; empty if there is none.
    pub private_dns_name: Box<str>,
    /// Private IPv4 address; empty if there is none.
    pub private_ip: Box<str>,
    /// All private IPv4 addresses.
    pub private_ips: Vec<Box<str>>,
    /// IPv6 addresses.
    pub ipv6_addresses: Vec<Box<str>>,
    /// Security groups.
    pub security_groups: Vec<SecurityGroupId>,
    /// Instance that it is attached to.
    pub instance: Option<InstanceId>,
}

/// Describes all zones of the region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeAvailabilityZones;

/// A zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailabilityZone {
    /// Name, such as `us-west-2a`.
    pub name: Box<str>,
    /// ID, such as `usw2-az1`.
    pub id: Box<str>,
    /// `availability-zone`, `local-zone`, `wavelength-zone`.
    pub zone_type: Box<str>,
}

/// Describes the network topology of instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeInstanceTopology {
    /// By ID, at most 100.
    pub ids: Vec<InstanceId>,
    /// Token of the page.
    pub token: Option<String>,
}

/// Network topology of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceTopology {
    /// The instance.
    pub id: InstanceId,
    /// Network nodes, outermost first.
    pub network_nodes: Vec<Box<str>>,
}

/// Describes subnets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeSubnets {
    /// By ID.
    pub ids: Vec<SubnetId>,
    /// By filters.
    pub filters: Vec<Filter>,
    /// Token of the page.
    pub token: Option<String>,
}

/// A subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// ID.
    pub id: SubnetId,
    /// VPC.
    pub vpc: VpcId,
    /// Zone.
    pub zone: Box<str>,
    /// IPv4 CIDR; `None` in an IPv6-only subnet.
    pub cidr: Option<Ipv4Net>,
    /// Associated IPv6 CIDRs.
    pub ipv6_cidrs: Vec<Ipv6Net>,
    /// Free IPv4 addresses.
    pub free_ips: u32,
    /// Tags.
    pub tags: Tags,
}

/// Describes VPCs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeVpcs {
    /// By ID.
    pub ids: Vec<VpcId>,
    /// Token of the page.
    pub token: Option<String>,
}

/// A VPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vpc {
    /// ID.
    pub id: VpcId,
    /// Associated CIDRs, IPv4 and IPv6.
    pub cidrs: Vec<IpNet>,
}

/// Describes route tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeRouteTables {
    /// By ID.
    pub ids: Vec<RouteTableId>,
    /// By filters.
    pub filters: Vec<Filter>,
    /// Token of the page.
    pub token: Option<String>,
}

/// A route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTable {
    /// ID.
    pub id: RouteTableId,
    /// VPC.
    pub vpc: VpcId,
    /// Subnets with an explicit association.
    pub subnets: Vec<SubnetId>,
    /// Whether it is the VPC's main table.
    pub main: bool,
    /// Routes.
    pub routes: Vec<Route>,
    /// Tags.
    pub tags: Tags,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination, v4 or v6; `None` for prefix lists.
    pub destination: Option<IpNet>,
    /// Whether its state is `blackhole`.
    pub blackhole: bool,
    /// Target instance.
    pub instance: Option<InstanceId>,
    /// Target network interface.
    pub interface: Option<EniId>,
    /// Target gateway (`igw-…`, `local`, …).
    pub gateway: Option<Box<str>>,
}

/// Target of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// An instance with one interface.
    Instance(InstanceId),
    /// A network interface.
    Interface(EniId),
}

macro_rules! route_requests {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            /// Table.
            pub table: RouteTableId,
            /// Destination.
            pub destination: IpNet,
            /// Target.
            pub target: RouteTarget,
        }
    )*};
}

route_requests! {
    /// Creates a route (`RouteAlreadyExists`, `RouteLimitExceeded`).
    CreateRoute,
    /// Replaces the target of a route.
    ReplaceRoute
}

/// Deletes a route (`InvalidRoute.NotFound`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteRoute {
    /// Table.
    pub table: RouteTableId,
    /// Destination.
    pub destination: IpNet,
}

/// Turns the source/destination check of an instance with one interface on or off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModifyInstanceAttribute {
    /// Which one.
    pub id: InstanceId,
    /// New value.
    pub source_dest_check: bool,
}

/// Turns the source/destination check of a network interface on or off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModifyNetworkInterfaceAttribute {
    /// Which one.
    pub id: EniId,
    /// New value.
    pub source_dest_check: bool,
}

/// Describes security groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeSecurityGroups {
    /// By ID (`InvalidGroup.NotFound`).
    pub ids: Vec<SecurityGroupId>,
    /// By filters.
    pub filters: Vec<Filter>,
    /// Token of the page.
    pub token: Option<String>,
}

/// A security group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityGroup {
    /// ID.
    pub id: SecurityGroupId,
    /// Name.
    pub name: Box<str>,
    /// Description.
    pub description: Box<str>,
    /// VPC.
    pub vpc: Option<VpcId>,
    /// Ingress rules, one per source.
    pub ingress: Vec<Rule>,
    /// Tags.
    pub tags: Tags,
}

/// One ingress rule: protocol, ports, and one source.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// `tcp`, `udp`, `icmp`, `icmpv6`, `-1` (all) or a number.
    pub protocol: Box<str>,
    /// First and last port; for ICMP, type and code. `None` for all.
    pub ports: Option<(i32, i32)>,
    /// Source.
    pub source: RuleSource,
    /// Description; empty if there is none.
    pub description: Box<str>,
}

/// Source of an ingress rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuleSource {
    /// A CIDR.
    Cidr(IpNet),
    /// Members of a security group, with the owner's account if the answer names it.
    Group(SecurityGroupId, Option<Box<str>>),
    /// A prefix list.
    PrefixList(Box<str>),
}

/// Creates a security group with its tags (`InvalidGroup.Duplicate`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateSecurityGroup {
    /// Name.
    pub name: Box<str>,
    /// Description.
    pub description: Box<str>,
    /// VPC.
    pub vpc: VpcId,
    /// Tags.
    pub tags: Tags,
}

/// Deletes a security group (`DependencyViolation`, `InvalidGroup.NotFound`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteSecurityGroup {
    /// Which one.
    pub id: SecurityGroupId,
}

/// Adds ingress rules, all or none (`InvalidPermission.Duplicate`,
/// `RulesPerSecurityGroupLimitExceeded`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizeSecurityGroupIngress {
    /// Group.
    pub id: SecurityGroupId,
    /// Rules.
    pub rules: Vec<Rule>,
}

/// Removes ingress rules (`InvalidPermission.NotFound`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeSecurityGroupIngress {
    /// Group.
    pub id: SecurityGroupId,
    /// Rules.
    pub rules: Vec<Rule>,
}

/// Adds tags to EC2 objects, at most 1,000.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTags {
    /// IDs.
    pub resources: Vec<Box<str>>,
    /// Tags.
    pub tags: Tags,
}

/// Removes tags with these keys and values from EC2 objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTags {
    /// IDs.
    pub resources: Vec<Box<str>>,
    /// Tags.
    pub tags: Tags,
}

//! Requests and answers of EC2, with only the fields that the provider uses.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{EniId, Filter, InstanceId, RouteTableId, SecurityGroupId, SubnetId, Tags, VpcId};

/// Describes instances: by ID (at most 1,000), or by filters, page by page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeInstances {
    /// IDs; an unknown one fails the whole request (`InvalidInstanceID.NotFound`).
    pub ids: Vec<InstanceId>,
    /// Filters that the result has to match; empty for no restriction.
    pub filters: Vec<Filter>,
    /// Instances per page, 5 to 1,000; not together with `ids`.
    pub max_results: Option<u16>,
    /// Token of the page to read; `None` for the first page.
    pub token: Option<String>,
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// ID of the instance.
    pub id: InstanceId,
    /// State; `None` if AWS returned none.
    pub state: Option<InstanceState>,
    /// Instance type, such as `m6g.large`; empty if AWS returned none.
    pub instance_type: Box<str>,
    /// Zone, such as `us-west-2a`.
    pub zone: Box<str>,
    /// VPC in which the instance is.
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
    /// True if the source/destination check of the primary interface is on.
    pub source_dest_check: Option<bool>,
    /// Tags of the instance.
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
    /// ID of the network interface.
    pub id: EniId,
    /// `attachment.deviceIndex`; `None` without attachment.
    pub device_index: Option<i32>,
    /// True if the status is `in-use`.
    pub in_use: bool,
    /// Private IPv4 addresses, primary first.
    pub private_ips: Vec<Box<str>>,
    /// IPv6 addresses.
    pub ipv6_addresses: Vec<Box<str>>,
    /// Delegated prefixes, IPv4 and IPv6.
    pub prefixes: Vec<IpNet>,
    /// True if the source/destination check is on.
    pub source_dest_check: Option<bool>,
    /// IDs of the security groups of the network interface.
    pub security_groups: Vec<SecurityGroupId>,
}

/// Describes network interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeNetworkInterfaces {
    /// Filters that the result has to match; empty for no restriction.
    pub filters: Vec<Filter>,
    /// Token of the page to read; `None` for the first page.
    pub token: Option<String>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    /// ID of the network interface.
    pub id: EniId,
    /// Zone in which the network interface is.
    pub zone: Box<str>,
    /// Private DNS name; empty if there is none.
    pub private_dns_name: Box<str>,
    /// Private IPv4 address; empty if there is none.
    pub private_ip: Box<str>,
    /// All private IPv4 addresses.
    pub private_ips: Vec<Box<str>>,
    /// IPv6 addresses.
    pub ipv6_addresses: Vec<Box<str>>,
    /// IDs of the security groups of the network interface.
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
    /// IDs of the instances, at most 100.
    pub ids: Vec<InstanceId>,
    /// Token of the page to read; `None` for the first page.
    pub token: Option<String>,
}

/// Network topology of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceTopology {
    /// ID of the instance.
    pub id: InstanceId,
    /// Network nodes above the instance, outermost first.
    pub network_nodes: Vec<Box<str>>,
}

/// Describes subnets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeSubnets {
    /// IDs of the subnets; empty for no restriction.
    pub ids: Vec<SubnetId>,
    /// Filters that the result has to match; empty for no restriction.
    pub filters: Vec<Filter>,
    /// Token of the page to read; `None` for the first page.
    pub token: Option<String>,
}

/// A subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// ID of the subnet.
    pub id: SubnetId,
    /// VPC in which the subnet is.
    pub vpc: VpcId,
    /// Zone in which the subnet is.
    pub zone: Box<str>,
    /// IPv4 CIDR; `None` in an IPv6-only subnet.
    pub cidr: Option<Ipv4Net>,
    /// Associated IPv6 CIDRs.
    pub ipv6_cidrs: Vec<Ipv6Net>,
    /// Free IPv4 addresses.
    pub free_ips: u32,
    /// Tags of the subnet.
    pub tags: Tags,
}

/// Describes VPCs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeVpcs {
    /// IDs of the VPCs; empty for no restriction.
    pub ids: Vec<VpcId>,
    /// Token of the page to read; `None` for the first page.
    pub token: Option<String>,
}

/// A VPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vpc {
    /// ID of the VPC.
    pub id: VpcId,
    /// Associated CIDRs, IPv4 and IPv6.
    pub cidrs: Vec<IpNet>,
}

/// Describes route tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeRouteTables {
    /// IDs of the route tables; empty for no restriction.
    pub ids: Vec<RouteTableId>,
    /// Filters that the result has to match; empty for no restriction.
    pub filters: Vec<Filter>,
    /// Token of the page to read; `None` for the first page.
    pub token: Option<String>,
}

/// A route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTable {
    /// ID of the route table.
    pub id: RouteTableId,
    /// VPC in which the route table is.
    pub vpc: VpcId,
    /// Subnets with an explicit association.
    pub subnets: Vec<SubnetId>,
    /// True for the VPC's main route table.
    pub main: bool,
    /// All routes of the table.
    pub routes: Vec<Route>,
    /// Tags of the route table.
    pub tags: Tags,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination, v4 or v6; `None` for prefix lists.
    pub destination: Option<IpNet>,
    /// True if the state is `blackhole`, because the target does not exist or is stopped.
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
            /// Route table to change.
            pub table: RouteTableId,
            /// Destination of the route.
            pub destination: IpNet,
            /// Target of the route.
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
    /// Route table to change.
    pub table: RouteTableId,
    /// Destination of the route.
    pub destination: IpNet,
}

/// Turns the source/destination check of an instance with one interface on or off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModifyInstanceAttribute {
    /// ID of the instance.
    pub id: InstanceId,
    /// New value.
    pub source_dest_check: bool,
}

/// Turns the source/destination check of a network interface on or off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModifyNetworkInterfaceAttribute {
    /// ID of the network interface.
    pub id: EniId,
    /// New value.
    pub source_dest_check: bool,
}

/// Describes security groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeSecurityGroups {
    /// IDs; an unknown one fails the request (`InvalidGroup.NotFound`).
    pub ids: Vec<SecurityGroupId>,
    /// Filters that the result has to match; empty for no restriction.
    pub filters: Vec<Filter>,
    /// Token of the page to read; `None` for the first page.
    pub token: Option<String>,
}

/// A security group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityGroup {
    /// ID of the security group.
    pub id: SecurityGroupId,
    /// Name of the security group.
    pub name: Box<str>,
    /// Description of the security group.
    pub description: Box<str>,
    /// VPC in which the security group is.
    pub vpc: Option<VpcId>,
    /// Ingress rules, one per source.
    pub ingress: Vec<Rule>,
    /// Tags of the security group.
    pub tags: Tags,
}

/// One ingress rule: protocol, ports, and one source.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// `tcp`, `udp`, `icmp`, `icmpv6`, `-1` (all) or a number.
    pub protocol: Box<str>,
    /// First and last port; for ICMP, type and code. `None` for all.
    pub ports: Option<(i32, i32)>,
    /// Source of the admitted traffic.
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
    /// Name of the new security group.
    pub name: Box<str>,
    /// Description of the new security group.
    pub description: Box<str>,
    /// VPC in which to create it.
    pub vpc: VpcId,
    /// Tags of the new security group.
    pub tags: Tags,
}

/// Deletes a security group (`DependencyViolation`, `InvalidGroup.NotFound`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteSecurityGroup {
    /// ID of the security group.
    pub id: SecurityGroupId,
}

/// Adds ingress rules, all or none (`InvalidPermission.Duplicate`,
/// `RulesPerSecurityGroupLimitExceeded`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizeSecurityGroupIngress {
    /// ID of the security group.
    pub id: SecurityGroupId,
    /// Rules to add.
    pub rules: Vec<Rule>,
}

/// Removes ingress rules (`InvalidPermission.NotFound`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeSecurityGroupIngress {
    /// ID of the security group.
    pub id: SecurityGroupId,
    /// Rules to remove.
    pub rules: Vec<Rule>,
}

/// Adds tags to EC2 objects, at most 1,000.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTags {
    /// IDs of the objects.
    pub resources: Vec<Box<str>>,
    /// Tags to add.
    pub tags: Tags,
}

/// Removes tags with these keys and values from EC2 objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTags {
    /// IDs of the objects.
    pub resources: Vec<Box<str>>,
    /// Tags to remove.
    pub tags: Tags,
}

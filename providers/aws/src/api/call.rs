//! Defines all requests in one table, from which their actions and the types of their answers are
//! generated.

#[allow(
    clippy::wildcard_imports,
    reason = "the table below names nearly every type of these modules"
)]
use super::{Page, Tags, classic::*, ec2::*, elb::*, sts::*};
use crate::api::SecurityGroupId;

/// A request, which determines the type of its answer.
pub trait Request: Clone + Send + 'static {
    /// Type of the answer.
    type Reply: Send;
    /// Action of the request.
    const ACTION: Action;

    /// Wraps the request.
    fn into_call(self) -> Call;

    /// Unwraps the answer. Returns `None` if it belongs to another kind of request.
    fn from_reply(reply: Reply) -> Option<Self::Reply>;
}

/// An AWS service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Service {
    /// Elastic Compute Cloud.
    Ec2,
    /// Elastic Load Balancing v2.
    Elb,
    /// Elastic Load Balancing (classic).
    Classic,
    /// Security Token Service.
    Sts,
}

impl Service {
    /// Returns the SDK's service ID.
    pub fn id(self) -> &'static str {
        match self {
            Self::Ec2 => "EC2",
            Self::Elb => "Elastic Load Balancing v2",
            Self::Classic => "Elastic Load Balancing",
            Self::Sts => "STS",
        }
    }

    /// Returns the prefix of IAM actions.
    pub fn iam_prefix(self) -> &'static str {
        match self {
            Self::Ec2 => "ec2",
            Self::Elb | Self::Classic => "elasticloadbalancing",
            Self::Sts => "sts",
        }
    }
}

/// Class of a request, for rate limits, retries and the write gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestClass {
    /// Changes nothing.
    Read,
    /// Changes something, and therefore has to pass the write gate.
    Write,
}

macro_rules! calls {
    ($($name:ident = $service:ident $wire:literal $class:ident $operation:literal -> $reply:ty),* $(,)?) => {
        /// A request of any kind.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Call {
            $(#[doc = concat!("`", $wire, "`.")] $name($name)),*
        }

        /// An answer to a request of any kind.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Reply {
            $(#[doc = concat!("Answer to `", $wire, "`.")] $name($reply)),*
        }

        /// Kind of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Action {
            $(#[doc = concat!("`", $wire, "`.")] $name),*
        }

        impl Action {
            /// Every action.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the name on the wire, such as `DescribeInstances`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $wire),* }
            }

            /// Returns the name of the operation in snake case, for metrics and the log of
            /// mutations.
            pub fn operation(self) -> &'static str {
                match self { $(Self::$name => $operation),* }
            }

            /// Returns the service to which the action belongs.
            pub fn service(self) -> Service {
                match self { $(Self::$name => Service::$service),* }
            }

            /// Returns the class of the action's requests.
            pub fn class(self) -> RequestClass {
                match self { $(Self::$name => RequestClass::$class),* }
            }
        }

        impl Call {
            /// Returns the action of the request.
            pub fn action(&self) -> Action {
                match self { $(Self::$name(_) => Action::$name),* }
            }
        }

        $(impl Request for $name {
            type Reply = $reply;
            const ACTION: Action = Action::$name;

            fn into_call(self) -> Call {
                Call::$name(self)
            }

            fn from_reply(reply: Reply) -> Option<$reply> {
                match reply {
                    Reply::$name(reply) => Some(reply),
                    _ => None,
                }
            }
        })*
    };
}

calls! {
    DescribeInstances = Ec2 "DescribeInstances" Read "describe_instance" -> Page<Instance>,
    DescribeNetworkInterfaces = Ec2 "DescribeNetworkInterfaces" Read "describe_network_interfaces" -> Page<NetworkInterface>,
    DescribeAvailabilityZones = Ec2 "DescribeAvailabilityZones" Read "describe_availability_zones" -> Vec<AvailabilityZone>,
    DescribeInstanceTopology = Ec2 "DescribeInstanceTopology" Read "describe_instance_topology" -> Page<InstanceTopology>,
    DescribeSubnets = Ec2 "DescribeSubnets" Read "describe_subnets" -> Page<Subnet>,
    DescribeRouteTables = Ec2 "DescribeRouteTables" Read "describe_route_tables" -> Page<RouteTable>,
    DescribeVpcs = Ec2 "DescribeVpcs" Read "describe_vpcs" -> Page<Vpc>,
    DescribeSecurityGroups = Ec2 "DescribeSecurityGroups" Read "describe_security_groups" -> Page<SecurityGroup>,
    CreateSecurityGroup = Ec2 "CreateSecurityGroup" Write "create_security_group" -> SecurityGroupId,
    DeleteSecurityGroup = Ec2 "DeleteSecurityGroup" Write "delete_security_group" -> (),
    AuthorizeSecurityGroupIngress = Ec2 "AuthorizeSecurityGroupIngress" Write "authorize_security_group_ingress" -> (),
    RevokeSecurityGroupIngress = Ec2 "RevokeSecurityGroupIngress" Write "revoke_security_group_ingress" -> (),
    CreateTags = Ec2 "CreateTags" Write "create_tags" -> (),
    DeleteTags = Ec2 "DeleteTags" Write "delete_tags" -> (),
    CreateRoute = Ec2 "CreateRoute" Write "create_route" -> (),
    ReplaceRoute = Ec2 "ReplaceRoute" Write "replace_route" -> (),
    DeleteRoute = Ec2 "DeleteRoute" Write "delete_route" -> (),
    ModifyInstanceAttribute = Ec2 "ModifyInstanceAttribute" Write "modify_instance_attribute" -> (),
    ModifyNetworkInterfaceAttribute = Ec2 "ModifyNetworkInterfaceAttribute" Write "modify_network_interface_attribute" -> (),

    DescribeLoadBalancers = Elb "DescribeLoadBalancers" Read "describe_load_balancers" -> Page<LoadBalancer>,
    DescribeLoadBalancerAttributes = Elb "DescribeLoadBalancerAttributes" Read "describe_load_balancer_attributes" -> Attributes,
    DescribeCapacityReservation = Elb "DescribeCapacityReservation" Read "describe_capacity_reservation" -> u32,
    DescribeTargetGroups = Elb "DescribeTargetGroups" Read "describe_target_groups" -> Page<TargetGroup>,
    DescribeTargetGroupAttributes = Elb "DescribeTargetGroupAttributes" Read "describe_target_group_attributes" -> Attributes,
    DescribeTargetHealth = Elb "DescribeTargetHealth" Read "describe_target_health" -> Vec<TargetHealth>,
    DescribeListeners = Elb "DescribeListeners" Read "describe_listeners" -> Page<Listener>,
    DescribeListenerAttributes = Elb "DescribeListenerAttributes" Read "describe_listener_attributes" -> Attributes,
    DescribeListenerCertificates = Elb "DescribeListenerCertificates" Read "describe_listener_certificates" -> Page<Certificate>,
    DescribeElbTags = Elb "DescribeTags" Read "describe_tags" -> Vec<(Box<str>, Tags)>,
    CreateLoadBalancer = Elb "CreateLoadBalancer" Write "create_load_balancer" -> LoadBalancer,
    DeleteLoadBalancer = Elb "DeleteLoadBalancer" Write "delete_load_balancer" -> (),
    ModifyLoadBalancerAttributes = Elb "ModifyLoadBalancerAttributes" Write "modify_load_balancer_attributes" -> (),
    ModifyCapacityReservation = Elb "ModifyCapacityReservation" Write "modify_capacity_reservation" -> (),
    SetSubnets = Elb "SetSubnets" Write "set_subnets" -> (),
    SetIpAddressType = Elb "SetIpAddressType" Write "set_ip_address_type" -> (),
    SetSecurityGroups = Elb "SetSecurityGroups" Write "set_security_groups" -> (),
    CreateTargetGroup = Elb "CreateTargetGroup" Write "create_target_group" -> TargetGroup,
    ModifyTargetGroup = Elb "ModifyTargetGroup" Write "modify_target_group" -> (),
    ModifyTargetGroupAttributes = Elb "ModifyTargetGroupAttributes" Write "modify_target_group_attributes" -> (),
    DeleteTargetGroup = Elb "DeleteTargetGroup" Write "delete_target_group" -> (),
    RegisterTargets = Elb "RegisterTargets" Write "register_targets" -> (),
    DeregisterTargets = Elb "DeregisterTargets" Write "deregister_targets" -> (),
    CreateListener = Elb "CreateListener" Write "create_listener" -> Listener,
    ModifyListener = Elb "ModifyListener" Write "modify_listener" -> (),
    ModifyListenerAttributes = Elb "ModifyListenerAttributes" Write "modify_listener_attributes" -> (),
    DeleteListener = Elb "DeleteListener" Write "delete_listener" -> (),
    AddListenerCertificates = Elb "AddListenerCertificates" Write "add_listener_certificates" -> (),
    RemoveListenerCertificates = Elb "RemoveListenerCertificates" Write "remove_listener_certificates" -> (),
    AddElbTags = Elb "AddTags" Write "add_tags" -> (),
    RemoveElbTags = Elb "RemoveTags" Write "remove_tags" -> (),

    DescribeClassic = Classic "DescribeLoadBalancers" Read "describe_classic_load_balancers" -> Page<ClassicLoadBalancer>,
    DescribeClassicTags = Classic "DescribeTags" Read "describe_classic_tags" -> Vec<(Box<str>, Tags)>,
    DescribeClassicAttributes = Classic "DescribeLoadBalancerAttributes" Read "describe_classic_attributes" -> ClassicAttributes,
    CreateClassic = Classic "CreateLoadBalancer" Write "create_classic_load_balancer" -> Box<str>,
    CreateClassicListeners = Classic "CreateLoadBalancerListeners" Write "create_classic_listeners" -> (),
    DeleteClassicListeners = Classic "DeleteLoadBalancerListeners" Write "delete_classic_listeners" -> (),
    ConfigureClassicHealthCheck = Classic "ConfigureHealthCheck" Write "configure_classic_health_check" -> (),
    ModifyClassicAttributes = Classic "ModifyLoadBalancerAttributes" Write "modify_classic_attributes" -> (),
    SetClassicSecurityGroups = Classic "ApplySecurityGroupsToLoadBalancer" Write "set_classic_security_groups" -> (),
    AttachClassicSubnets = Classic "AttachLoadBalancerToSubnets" Write "attach_classic_subnets" -> (),
    DetachClassicSubnets = Classic "DetachLoadBalancerFromSubnets" Write "detach_classic_subnets" -> (),
    CreateClassicPolicy = Classic "CreateLoadBalancerPolicy" Write "create_classic_policy" -> (),
    SetClassicListenerPolicies = Classic "SetLoadBalancerPoliciesOfListener" Write "set_classic_listener_policies" -> (),
    SetClassicBackendPolicies = Classic "SetLoadBalancerPoliciesForBackendServer" Write "set_classic_backend_policies" -> (),
    AddClassicTags = Classic "AddTags" Write "add_classic_tags" -> (),
    RegisterClassic = Classic "RegisterInstancesWithLoadBalancer" Write "register_classic_instances" -> (),
    DeregisterClassic = Classic "DeregisterInstancesFromLoadBalancer" Write "deregister_classic_instances" -> (),
    DeleteClassic = Classic "DeleteLoadBalancer" Write "delete_classic_load_balancer" -> (),

    GetCallerIdentity = Sts "GetCallerIdentity" Read "get_caller_identity" -> CallerIdentity,
}

/// Returns the object that a write changes, for the log of mutations. Returns empty text for reads.
pub(crate) fn object_of(call: &Call) -> String {
    fn list<T: std::fmt::Display>(objects: &[T]) -> String {
        match objects {
            [object] => object.to_string(),
            [first, ..] => format!("{first} and {} more", objects.len() - 1),
            [] => String::new(),
        }
    }
    fn at(table: &impl std::fmt::Display, destination: &impl std::fmt::Display) -> String {
        format!("{table} {destination}")
    }
    match call {
        Call::CreateSecurityGroup(c) => c.name.to_string(),
        Call::DeleteSecurityGroup(c) => c.id.to_string(),
        Call::AuthorizeSecurityGroupIngress(c) => c.id.to_string(),
        Call::RevokeSecurityGroupIngress(c) => c.id.to_string(),
        Call::CreateTags(c) => list(&c.resources),
        Call::DeleteTags(c) => list(&c.resources),
        Call::CreateRoute(c) => at(&c.table, &c.destination),
        Call::ReplaceRoute(c) => at(&c.table, &c.destination),
        Call::DeleteRoute(c) => at(&c.table, &c.destination),
        Call::ModifyInstanceAttribute(c) => c.id.to_string(),
        Call::ModifyNetworkInterfaceAttribute(c) => c.id.to_string(),
        Call::CreateLoadBalancer(c) => c.name.to_string(),
        Call::DeleteLoadBalancer(c) => c.arn.to_string(),
        Call::ModifyLoadBalancerAttributes(c) => c.arn.to_string(),
        Call::ModifyCapacityReservation(c) => c.arn.to_string(),
        Call::SetSubnets(c) => c.arn.to_string(),
        Call::SetIpAddressType(c) => c.arn.to_string(),
        Call::SetSecurityGroups(c) => c.arn.to_string(),
        Call::CreateTargetGroup(c) => c.name.to_string(),
        Call::ModifyTargetGroup(c) => c.arn.to_string(),
        Call::ModifyTargetGroupAttributes(c) => c.arn.to_string(),
        Call::DeleteTargetGroup(c) => c.arn.to_string(),
        Call::RegisterTargets(c) => c.arn.to_string(),
        Call::DeregisterTargets(c) => c.arn.to_string(),
        Call::CreateListener(c) => {
            format!("{} {}/{}", c.load_balancer, c.spec.protocol, c.spec.port)
        }
        Call::ModifyListener(c) => c.arn.to_string(),
        Call::ModifyListenerAttributes(c) => c.arn.to_string(),
        Call::DeleteListener(c) => c.arn.to_string(),
        Call::AddListenerCertificates(c) => c.arn.to_string(),
        Call::RemoveListenerCertificates(c) => c.arn.to_string(),
        Call::AddElbTags(c) => list(&c.arns),
        Call::RemoveElbTags(c) => list(&c.arns),
        Call::CreateClassic(c) => c.name.to_string(),
        Call::CreateClassicListeners(c) => c.name.to_string(),
        Call::DeleteClassicListeners(c) => c.name.to_string(),
        Call::ConfigureClassicHealthCheck(c) => c.name.to_string(),
        Call::ModifyClassicAttributes(c) => c.name.to_string(),
        Call::SetClassicSecurityGroups(c) => c.name.to_string(),
        Call::AttachClassicSubnets(c) => c.name.to_string(),
        Call::DetachClassicSubnets(c) => c.name.to_string(),
        Call::CreateClassicPolicy(c) => format!("{} {}", c.name, c.policy),
        Call::SetClassicListenerPolicies(c) => format!("{} {}", c.name, c.port),
        Call::SetClassicBackendPolicies(c) => format!("{} {}", c.name, c.instance_port),
        Call::AddClassicTags(c) => c.name.to_string(),
        Call::RegisterClassic(c) => c.name.to_string(),
        Call::DeregisterClassic(c) => c.name.to_string(),
        Call::DeleteClassic(c) => c.name.to_string(),
        // Reads change nothing.
        _ => String::new(),
    }
}

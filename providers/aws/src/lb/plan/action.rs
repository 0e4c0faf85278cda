//! The actions of a plan. Each is a single request with all its parameters.

use ccm_core::provider::PlannedChange;

use super::super::model::ListenerKey;
use crate::api::{
    Action as Request, ListenerArn, SecurityGroupId, Tags, TargetGroupArn,
    elb::{
        Attributes, CreateLoadBalancer, CreateTargetGroup, HealthCheck, IpAddressType,
        SubnetMapping, Target,
    },
};

/// An action of a plan, with its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedAction {
    /// The request to send.
    pub action: ActionKind,
    /// The difference that it removes, for logs and dry runs.
    pub reason: Box<str>,
}

/// A single request. Actions without an ARN change the Service's load balancer, which exists or is
/// created earlier in the plan.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionKind {
    /// Create the load balancer.
    CreateLoadBalancer(Box<CreateLoadBalancer>),
    /// Set its address families.
    SetIpAddressType(IpAddressType),
    /// Set its subnets and the settings that belong to them.
    SetSubnets(SubnetChange),
    /// Set its security groups, and whether their rules apply to PrivateLink traffic.
    SetSecurityGroups(Vec<SecurityGroupId>, Option<bool>),
    /// Set its attributes.
    ModifyLoadBalancerAttributes(Attributes),
    /// Reserve capacity units; 0 ends the reservation.
    ReserveCapacity(u32),
    /// Add tags to objects.
    AddTags(Vec<Box<str>>, Tags),
    /// Remove tags from objects.
    RemoveTags(Vec<Box<str>>, Vec<Box<str>>),
    /// Create the target group of a listener.
    CreateTargetGroup(ListenerKey, Box<CreateTargetGroup>),
    /// Change a health check.
    ModifyTargetGroup(TargetGroupArn, HealthCheck),
    /// Set attributes of a target group.
    ModifyTargetGroupAttributes(TargetGroupRef, Attributes),
    /// Deregister targets, at most 200.
    DeregisterTargets(TargetGroupArn, Vec<Target>),
    /// Register targets, at most 200.
    RegisterTargets(TargetGroupRef, Vec<Target>),
    /// Add missing security group rules.
    AddSecurityGroupRules,
    /// Create a listener.
    CreateListener(ListenerSettings),
    /// Change a listener.
    ModifyListener(ListenerArn, ListenerSettings),
    /// Set attributes of a listener.
    ModifyListenerAttributes(ListenerRef, Attributes),
    /// Add a certificate for SNI.
    AddListenerCertificate(ListenerRef, Box<str>),
    /// Remove a certificate for SNI.
    RemoveListenerCertificate(ListenerArn, Box<str>),
    /// Delete a listener.
    DeleteListener(ListenerArn),
    /// Delete a target group.
    DeleteTargetGroup(TargetGroupArn),
    /// Remove security group rules that are no longer desired.
    RemoveSecurityGroupRules,
    /// Clean up security groups that are no longer on the load balancer.
    CleanUpSecurityGroups(Vec<SecurityGroupId>),
    /// Remove the marks from the load balancer's security groups that were kept with it.
    RemoveSecurityGroupMarks,
}

/// The subnets of a load balancer and the settings that AWS changes together with them.
#[derive(Clone, Debug, PartialEq)]
pub struct SubnetChange {
    /// All subnets, with the addresses in them.
    pub subnets: Vec<SubnetMapping>,
    /// True if it gets IPv6 prefixes for source NAT; `None` keeps the current setting.
    pub ipv6_source_nat: Option<bool>,
    /// Address families, if they change together with the prefixes.
    pub ip_address_type: Option<IpAddressType>,
    /// True if the load balancer loses a subnet, which is reported in an event.
    pub removes: bool,
}

/// A reference to a target group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetGroupRef {
    /// A group that existed before the plan.
    Existing(TargetGroupArn),
    /// The group that this plan creates for a listener.
    New(ListenerKey),
}

/// A reference to a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerRef {
    /// A listener that existed before the plan.
    Existing(ListenerArn),
    /// The listener that this plan creates.
    New(ListenerKey),
}

/// Settings of a listener.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerSettings {
    /// Its port and protocol.
    pub key: ListenerKey,
    /// Target group that it forwards to.
    pub group: TargetGroupRef,
    /// Default certificate, for TLS.
    pub certificate: Option<Box<str>>,
    /// Security policy, for TLS; `None` means AWS' default, or the current one.
    pub ssl_policy: Option<Box<str>>,
    /// ALPN policy, for TLS.
    pub alpn_policy: Option<Box<str>>,
    /// Tags, for a new listener.
    pub tags: Tags,
}

impl ActionKind {
    /// Returns the AWS request; `None` for actions that the security group manager plans in detail.
    pub fn request(&self) -> Option<Request> {
        Some(match self {
            Self::CreateLoadBalancer(_) => Request::CreateLoadBalancer,
            Self::SetIpAddressType(_) => Request::SetIpAddressType,
            Self::SetSubnets(..) => Request::SetSubnets,
            Self::SetSecurityGroups(..) => Request::SetSecurityGroups,
            Self::ModifyLoadBalancerAttributes(_) => Request::ModifyLoadBalancerAttributes,
            Self::ReserveCapacity(_) => Request::ModifyCapacityReservation,
            Self::AddTags(..) => Request::AddElbTags,
            Self::RemoveTags(..) => Request::RemoveElbTags,
            Self::CreateTargetGroup(..) => Request::CreateTargetGroup,
            Self::ModifyTargetGroup(..) => Request::ModifyTargetGroup,
            Self::ModifyTargetGroupAttributes(..) => Request::ModifyTargetGroupAttributes,
            Self::DeregisterTargets(..) => Request::DeregisterTargets,
            Self::RegisterTargets(..) => Request::RegisterTargets,
            Self::CreateListener(_) => Request::CreateListener,
            Self::ModifyListener(..) => Request::ModifyListener,
            Self::ModifyListenerAttributes(..) => Request::ModifyListenerAttributes,
            Self::AddListenerCertificate(..) => Request::AddListenerCertificates,
            Self::RemoveListenerCertificate(..) => Request::RemoveListenerCertificates,
            Self::DeleteListener(_) => Request::DeleteListener,
            Self::DeleteTargetGroup(_) => Request::DeleteTargetGroup,
            Self::AddSecurityGroupRules
            | Self::RemoveSecurityGroupRules
            | Self::CleanUpSecurityGroups(_)
            | Self::RemoveSecurityGroupMarks => {
                return None;
            }
        })
    }

    /// Returns the tags that the action sets.
    pub fn tags(&self) -> Option<&Tags> {
        match self {
            Self::CreateLoadBalancer(create) => Some(&create.tags),
            Self::CreateTargetGroup(_, create) => Some(&create.tags),
            Self::CreateListener(settings) => Some(&settings.tags),
            Self::AddTags(_, tags) => Some(tags),
            _ => None,
        }
    }

    /// Describes the object that the action changes.
    fn describe_object(&self, load_balancer: &str) -> String {
        match self {
            Self::AddTags(arns, _) | Self::RemoveTags(arns, _) => arns.join(", "),
            Self::CreateTargetGroup(_, create) => create.name.to_string(),
            Self::ModifyTargetGroup(arn, _)
            | Self::DeregisterTargets(arn, _)
            | Self::DeleteTargetGroup(arn) => arn.to_string(),
            Self::ModifyTargetGroupAttributes(group, _) | Self::RegisterTargets(group, _) => {
                group.describe(load_balancer)
            }
            Self::CreateListener(settings) => describe_listener(settings.key, load_balancer),
            Self::ModifyListener(arn, _)
            | Self::RemoveListenerCertificate(arn, _)
            | Self::DeleteListener(arn) => arn.to_string(),
            Self::ModifyListenerAttributes(listener, _)
            | Self::AddListenerCertificate(listener, _) => listener.describe(load_balancer),
            _ => load_balancer.to_owned(),
        }
    }
}

impl TargetGroupRef {
    fn describe(&self, load_balancer: &str) -> String {
        match self {
            Self::Existing(arn) => arn.to_string(),
            Self::New(key) => {
                format!("target group of {}", describe_listener(*key, load_balancer))
            }
        }
    }
}

impl ListenerRef {
    fn describe(&self, load_balancer: &str) -> String {
        match self {
            Self::Existing(arn) => arn.to_string(),
            Self::New(key) => describe_listener(*key, load_balancer),
        }
    }
}

fn describe_listener((port, protocol): ListenerKey, load_balancer: &str) -> String {
    format!("listener {protocol}/{port} of {load_balancer}")
}

impl PlannedAction {
    /// Describes the action for a dry run; `None` for actions that the security group manager plans
    /// in detail.
    pub fn describe(&self, load_balancer: &str) -> Option<PlannedChange> {
        Some(PlannedChange {
            operation: self.action.request()?.name().into(),
            object: self.action.describe_object(load_balancer).into(),
            reason: self.reason.clone(),
        })
    }
}

//! Single changes, so specific that making them needs no choice.

use ccm_core::provider::PlannedChange;

use super::super::model::ListenerKey;
use crate::api::{
    Action as Request, ListenerArn, SecurityGroupId, Tags, TargetGroupArn,
    elb::{Attributes, CreateLoadBalancer, CreateTargetGroup, HealthCheck, IpAddressType, SubnetMapping, Target},
};

/// One change and why it is made.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedAction {
    /// The change.
    pub action: ActionKind,
    /// Why, in words.
    pub reason: Box<str>,
}

/// One change. What concerns the load balancer means the one of the Service, made earlier in the plan or before.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionKind {
    /// Make the load balancer.
    CreateLoadBalancer(Box<CreateLoadBalancer>),
    /// Set its address families.
    SetIpAddressType(IpAddressType),
    /// Set its subnets, and what goes with them.
    SetSubnets(SubnetChange),
    /// Set its security groups, and whether their rules hold for PrivateLink.
    SetSecurityGroups(Vec<SecurityGroupId>, Option<bool>),
    /// Set its attributes.
    ModifyLoadBalancerAttributes(Attributes),
    /// Put tags on objects.
    AddTags(Vec<Box<str>>, Tags),
    /// Take tags off objects.
    RemoveTags(Vec<Box<str>>, Vec<Box<str>>),
    /// Make the target group of a listener.
    CreateTargetGroup(ListenerKey, Box<CreateTargetGroup>),
    /// Change a health check.
    ModifyTargetGroup(TargetGroupArn, HealthCheck),
    /// Set attributes of a target group.
    ModifyTargetGroupAttributes(TargetGroupRef, Attributes),
    /// Deregister targets, at most 200.
    DeregisterTargets(TargetGroupArn, Vec<Target>),
    /// Register targets, at most 200.
    RegisterTargets(TargetGroupRef, Vec<Target>),
    /// Grant in security groups what is missing.
    AddSecurityGroupRules,
    /// Make a listener.
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
    /// Revoke in security groups what is not wanted any more.
    RemoveSecurityGroupRules,
    /// Give up security groups that are not on the load balancer any more.
    CleanUpSecurityGroups(Vec<SecurityGroupId>),
}

/// How a load balancer stands in its subnets.
#[derive(Clone, Debug, PartialEq)]
pub struct SubnetChange {
    /// All subnets, with the addresses there.
    pub subnets: Vec<SubnetMapping>,
    /// Whether it has IPv6 prefixes there; `None` leaves that alone.
    pub ipv6_source_nat: Option<bool>,
    /// Address families, where these change together with the prefixes.
    pub ip_address_type: Option<IpAddressType>,
    /// Whether it has a subnet that is not among these.
    pub removes: bool,
}

/// A target group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetGroupRef {
    /// One that was there before.
    Existing(TargetGroupArn),
    /// The one that this plan makes for the listener at this place.
    New(ListenerKey),
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerRef {
    /// One that was there before.
    Existing(ListenerArn),
    /// The one that this plan makes at this place.
    New(ListenerKey),
}

/// Settings of a listener.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerSettings {
    /// Its place.
    pub key: ListenerKey,
    /// Where it forwards to.
    pub group: TargetGroupRef,
    /// Default certificate, for TLS.
    pub certificate: Option<Box<str>>,
    /// Security policy, for TLS; AWS' default, or the one it has, when `None`.
    pub ssl_policy: Option<Box<str>>,
    /// ALPN policy, for TLS.
    pub alpn_policy: Option<Box<str>>,
    /// Tags of a new one.
    pub tags: Tags,
}

impl ActionKind {
    /// Returns which request it is; `None` for what other parts plan in detail.
    pub fn request(&self) -> Option<Request> {
        Some(match self {
            Self::CreateLoadBalancer(_) => Request::CreateLoadBalancer,
            Self::SetIpAddressType(_) => Request::SetIpAddressType,
            Self::SetSubnets(..) => Request::SetSubnets,
            Self::SetSecurityGroups(..) => Request::SetSecurityGroups,
            Self::ModifyLoadBalancerAttributes(_) => Request::ModifyLoadBalancerAttributes,
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
            Self::AddSecurityGroupRules | Self::RemoveSecurityGroupRules | Self::CleanUpSecurityGroups(_) => {
                return None;
            }
        })
    }

    /// Returns the tags that it sets.
    pub fn tags(&self) -> Option<&Tags> {
        match self {
            Self::CreateLoadBalancer(create) => Some(&create.tags),
            Self::CreateTargetGroup(_, create) => Some(&create.tags),
            Self::CreateListener(settings) => Some(&settings.tags),
            Self::AddTags(_, tags) => Some(tags),
            _ => None,
        }
    }

    fn object(&self, balancer: &str) -> String {
        let place = |(port, protocol): &ListenerKey| format!("listener {protocol}/{port} of {balancer}");
        let group = |group: &TargetGroupRef| match group {
            TargetGroupRef::Existing(arn) => arn.to_string(),
            TargetGroupRef::New(key) => format!("target group of {}", place(key)),
        };
        let listener = |listener: &ListenerRef| match listener {
            ListenerRef::Existing(arn) => arn.to_string(),
            ListenerRef::New(key) => place(key),
        };
        match self {
            Self::AddTags(arns, _) | Self::RemoveTags(arns, _) => arns.join(", "),
            Self::CreateTargetGroup(_, create) => create.name.to_string(),
            Self::ModifyTargetGroup(arn, _) | Self::DeregisterTargets(arn, _) | Self::DeleteTargetGroup(arn) => {
                arn.to_string()
            }
            Self::ModifyTargetGroupAttributes(of, _) | Self::RegisterTargets(of, _) => group(of),
            Self::CreateListener(settings) => place(&settings.key),
            Self::ModifyListener(arn, _) | Self::RemoveListenerCertificate(arn, _) | Self::DeleteListener(arn) => {
                arn.to_string()
            }
            Self::ModifyListenerAttributes(of, _) | Self::AddListenerCertificate(of, _) => listener(of),
            _ => balancer.to_owned(),
        }
    }
}

impl PlannedAction {
    /// Says it in words; `None` for what other parts plan in detail.
    pub fn describe(&self, balancer: &str) -> Option<PlannedChange> {
        Some(PlannedChange {
            operation: self.action.request()?.name().into(),
            object: self.action.object(balancer).into(),
            reason: self.reason.clone(),
        })
    }
}

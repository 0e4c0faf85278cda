//! The observed state of one Service in AWS, as plain data. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::provider::Digest;

use crate::api::{
    ListenerArn, SecurityGroupId, Tags, TargetGroupArn,
    elb::{Attributes, Listener, LoadBalancer, Target, TargetGroup},
};
use crate::lb::model::ListenerKey;

/// Everything in AWS that belongs to one Service.
///
/// A part that was not read is `None`. It is neither compared nor changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedState {
    /// The load balancer; `None` if none exists.
    pub load_balancer: Option<ObservedLoadBalancer>,
    /// The Service's target groups, including those that no listener uses.
    pub target_groups: Vec<ObservedTargetGroup>,
    /// Digest of the inputs for which security group rules were last applied; `None` if unknown.
    pub rules_digest: Option<Digest>,
    /// Keys of tags that we set and that must be removed once the Service no longer requests them.
    pub removable_tag_keys: BTreeSet<Box<str>>,
    /// Target groups whose health check AWS refuses to change, so that they must be replaced.
    pub unmodifiable_groups: BTreeSet<TargetGroupArn>,
    /// Security groups that were removed from the load balancer and may have to be deleted.
    pub detached_security_groups: BTreeSet<SecurityGroupId>,
    /// Names of target groups that are no longer the Service's, because they were kept with their
    /// load balancer or adopted by another Service. New groups get other names.
    pub reserved_group_names: BTreeSet<Box<str>>,
}

/// A load balancer with its listeners.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedLoadBalancer {
    /// The load balancer, as `DescribeLoadBalancers` returns it.
    pub resource: LoadBalancer,
    /// Its tags; `None` if they are not known.
    pub tags: Option<Tags>,
    /// Its attributes; `None` if they are not known.
    pub attributes: Option<Attributes>,
    /// The capacity units that are reserved for it; `None` if that was not read.
    pub capacity_units: Option<u32>,
    /// All its listeners.
    pub listeners: Vec<ObservedListener>,
}

/// A listener with its tags, attributes and certificates.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedListener {
    /// The listener, as `DescribeListeners` returns it.
    pub resource: Listener,
    /// Its tags; `None` if they are not known.
    pub tags: Option<Tags>,
    /// Its attributes; `None` if they are not known.
    pub attributes: Option<Attributes>,
    /// ARNs of the certificates for SNI, without the default one.
    pub certificates: Option<BTreeSet<Box<str>>>,
}

/// A target group of the Service, with its targets.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedTargetGroup {
    /// The target group, as `DescribeTargetGroups` returns it.
    pub resource: TargetGroup,
    /// Its tags; `None` if they are not known.
    pub tags: Option<Tags>,
    /// Its attributes; `None` if they are not known.
    pub attributes: Option<Attributes>,
    /// Targets that are registered and not draining.
    pub targets: Option<RegisteredTargets>,
}

/// Registered targets by ID and port, which together identify a target.
pub(crate) type RegisteredTargets = BTreeMap<(Box<str>, u16), Target>;

/// Collects targets by ID and port.
pub(crate) fn registered_targets<'a>(
    targets: impl IntoIterator<Item = &'a Target>,
) -> RegisteredTargets {
    targets
        .into_iter()
        .map(|target| ((target.id.clone(), target.port), target.clone()))
        .collect()
}

impl ObservedListener {
    /// Creates an observed listener whose tags, attributes and certificates were not read.
    pub fn bare(resource: Listener) -> Self {
        Self { resource, tags: None, attributes: None, certificates: None }
    }

    /// Returns the port and protocol; `None` for a protocol or port that we never create.
    pub fn key(&self) -> Option<ListenerKey> {
        Some((self.resource.port.try_into().ok()?, self.resource.protocol?))
    }

    fn is_complete(&self) -> bool {
        self.tags.is_some() && self.attributes.is_some() && self.certificates.is_some()
    }
}

impl ObservedLoadBalancer {
    /// Creates an observed load balancer whose tags, attributes and listeners were not read.
    pub fn bare(resource: LoadBalancer) -> Self {
        Self {
            resource,
            tags: None,
            attributes: None,
            capacity_units: None,
            listeners: Vec::new(),
        }
    }

    fn is_complete(&self) -> bool {
        self.tags.is_some()
            && self.attributes.is_some()
            && self.listeners.iter().all(ObservedListener::is_complete)
    }
}

impl ObservedTargetGroup {
    /// Creates an observed target group whose tags, attributes and targets were not read.
    pub fn bare(resource: TargetGroup) -> Self {
        Self { resource, tags: None, attributes: None, targets: None }
    }

    fn is_complete(&self) -> bool {
        self.tags.is_some() && self.attributes.is_some() && self.targets.is_some()
    }
}

impl ObservedState {
    /// Returns the listener with the given port and protocol.
    pub fn listener(&self, key: ListenerKey) -> Option<&ObservedListener> {
        self.load_balancer
            .as_ref()?
            .listeners
            .iter()
            .find(|listener| listener.key() == Some(key))
    }

    /// Returns the listener with the given ARN, to update it after a change.
    pub fn listener_mut(&mut self, arn: &ListenerArn) -> Option<&mut ObservedListener> {
        self.load_balancer
            .as_mut()?
            .listeners
            .iter_mut()
            .find(|listener| listener.resource.arn == *arn)
    }

    /// Returns the target group with the given ARN.
    pub fn group(&self, arn: &TargetGroupArn) -> Option<&ObservedTargetGroup> {
        self.target_groups
            .iter()
            .find(|group| group.resource.arn == *arn)
    }

    /// Returns the target group with the given name.
    pub fn group_by_name(&self, name: &str) -> Option<&ObservedTargetGroup> {
        self.target_groups
            .iter()
            .find(|group| *group.resource.name == *name)
    }

    /// Returns the target group with the given ARN, to update it after a change.
    pub fn group_mut(&mut self, arn: &TargetGroupArn) -> Option<&mut ObservedTargetGroup> {
        self.target_groups
            .iter_mut()
            .find(|group| group.resource.arn == *arn)
    }

    /// Returns true if everything was read that a change of the Service may need.
    pub fn is_complete(&self) -> bool {
        match &self.load_balancer {
            Some(load_balancer) => {
                load_balancer.is_complete()
                    && self
                        .target_groups
                        .iter()
                        .all(ObservedTargetGroup::is_complete)
            }
            None => true,
        }
    }
}

/// Updates observed attributes after a change, if they were read.
pub(crate) fn set_attributes(observed: &mut Option<Attributes>, set: &Attributes) {
    if let Some(attributes) = observed {
        attributes.extend(set.clone());
    }
}

/// Updates observed tags after a change, if they were read.
pub(crate) fn set_tags(observed: &mut Option<Tags>, set: &Tags, remove: &[Box<str>]) {
    if let Some(tags) = observed {
        tags.extend(set.clone());
        tags.retain(|key, _| !remove.contains(key));
    }
}

//! The observed state of one Service in AWS, as plain data. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::provider::Digest;

use crate::api::{
    ListenerArn, SecurityGroupId, Tags, TargetGroupArn,
    elb::{Attributes, Listener, LoadBalancer, Target, TargetGroup},
};
use crate::lb::model::ListenerKey;

/// Everything in AWS that belongs to one Service. What was not read is `None`, and is not changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedState {
    /// The load balancer.
    pub load_balancer: Option<ObservedLoadBalancer>,
    /// Its target groups, including those of the Service that no listener uses.
    pub target_groups: Vec<ObservedTargetGroup>,
    /// Digest of the security group rules that were last applied; `None` if that is unknown.
    pub rules_digest: Option<Digest>,
    /// Keys of tags that we set and that the Service may no longer request.
    pub removable_tag_keys: BTreeSet<Box<str>>,
    /// Target groups whose health check AWS does not let us change: they must be replaced.
    pub unmodifiable_groups: BTreeSet<TargetGroupArn>,
    /// Security groups that were removed from the load balancer and may have to be deleted.
    pub detached_security_groups: BTreeSet<SecurityGroupId>,
}

/// A load balancer with its listeners.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedLoadBalancer {
    /// The load balancer itself.
    pub load_balancer: LoadBalancer,
    /// Tags.
    pub tags: Option<Tags>,
    /// Attributes.
    pub attributes: Option<Attributes>,
    /// Listeners.
    pub listeners: Vec<ObservedListener>,
}

/// A listener.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedListener {
    /// The listener itself.
    pub listener: Listener,
    /// Tags.
    pub tags: Option<Tags>,
    /// Attributes.
    pub attributes: Option<Attributes>,
    /// Certificates beside the default one.
    pub certificates: Option<BTreeSet<Box<str>>>,
}

/// A target group of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedTargetGroup {
    /// The target group itself.
    pub group: TargetGroup,
    /// Tags.
    pub tags: Option<Tags>,
    /// Attributes.
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
    /// Makes one of which only the listener itself was read.
    pub fn bare(listener: Listener) -> Self {
        Self { listener, tags: None, attributes: None, certificates: None }
    }

    /// Returns its port and protocol; `None` for a protocol or port that we never create.
    pub fn key(&self) -> Option<ListenerKey> {
        Some((self.listener.port.try_into().ok()?, self.listener.protocol?))
    }
}

impl ObservedLoadBalancer {
    /// Makes one of which only the load balancer itself was read.
    pub fn bare(load_balancer: LoadBalancer) -> Self {
        Self {
            load_balancer,
            tags: None,
            attributes: None,
            listeners: Vec::new(),
        }
    }
}

impl ObservedTargetGroup {
    /// Makes one of which only the target group itself was read.
    pub fn new(group: TargetGroup) -> Self {
        Self { group, tags: None, attributes: None, targets: None }
    }
}

impl ObservedState {
    /// Returns the listener with a port and protocol.
    pub fn listener(&self, key: ListenerKey) -> Option<&ObservedListener> {
        self.load_balancer
            .as_ref()?
            .listeners
            .iter()
            .find(|listener| listener.key() == Some(key))
    }

    /// Returns the listener with an ARN, to update it after a change.
    pub fn listener_mut(&mut self, arn: &ListenerArn) -> Option<&mut ObservedListener> {
        self.load_balancer
            .as_mut()?
            .listeners
            .iter_mut()
            .find(|listener| listener.listener.arn == *arn)
    }

    /// Returns the target group with an ARN.
    pub fn group(&self, arn: &TargetGroupArn) -> Option<&ObservedTargetGroup> {
        self.target_groups
            .iter()
            .find(|group| group.group.arn == *arn)
    }

    /// Returns the target group with a name.
    pub fn group_by_name(&self, name: &str) -> Option<&ObservedTargetGroup> {
        self.target_groups
            .iter()
            .find(|group| *group.group.name == *name)
    }

    /// Returns the target group with an ARN, to update it after a change.
    pub fn group_mut(&mut self, arn: &TargetGroupArn) -> Option<&mut ObservedTargetGroup> {
        self.target_groups
            .iter_mut()
            .find(|group| group.group.arn == *arn)
    }

    /// Tells whether everything was read that a change of the Service may need.
    pub fn is_complete(&self) -> bool {
        let Some(load_balancer) = &self.load_balancer else {
            return true;
        };
        let has_listeners = load_balancer.listeners.iter().all(|listener| {
            listener.tags.is_some()
                && listener.attributes.is_some()
                && listener.certificates.is_some()
        });
        let has_groups = self.target_groups.iter().all(|group| {
            group.tags.is_some() && group.attributes.is_some() && group.targets.is_some()
        });
        load_balancer.tags.is_some()
            && load_balancer.attributes.is_some()
            && has_listeners
            && has_groups
    }
}

/// Sets attributes, if they were read.
pub(crate) fn set_attributes(observed: &mut Option<Attributes>, set: &Attributes) {
    if let Some(attributes) = observed {
        attributes.extend(set.clone());
    }
}

/// Sets and removes tags, if they were read.
pub(crate) fn set_tags(observed: &mut Option<Tags>, set: &Tags, remove: &[Box<str>]) {
    if let Some(tags) = observed {
        tags.extend(set.clone());
        tags.retain(|key, _| !remove.contains(key));
    }
}

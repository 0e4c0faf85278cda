//! What there is of one Service in AWS, as plain data, and how each change alters it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::provider::Digest;

use super::model::ListenerKey;
use crate::api::{
    ListenerArn, SecurityGroupId, Tags, TargetGroupArn,
    elb::{Attributes, Listener, LoadBalancer, Target, TargetGroup},
};

/// Everything of one Service that is ours. What was not read is `None`, and is left alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedState {
    /// The load balancer.
    pub load_balancer: Option<ObservedLoadBalancer>,
    /// Its target groups, and those of the Service that no listener uses.
    pub target_groups: Vec<ObservedTargetGroup>,
    /// Security-group rules as they were last brought in line; `None` when that is not known.
    pub rules_digest: Option<Digest>,
    /// Keys of tags that we put there and that the Service may no longer ask for.
    pub removable_tag_keys: BTreeSet<Box<str>>,
    /// Target groups whose health check AWS does not let us change: they have to be replaced.
    pub unmodifiable_groups: BTreeSet<TargetGroupArn>,
    /// Security groups that were taken off the balancer and that may have to be given up.
    pub detached_security_groups: BTreeSet<SecurityGroupId>,
}

/// A load balancer with its listeners.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedLoadBalancer {
    /// Itself.
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
    /// Itself.
    pub listener: Listener,
    /// Tags.
    pub tags: Option<Tags>,
    /// Attributes.
    pub attributes: Option<Attributes>,
    /// Certificates beside the default one.
    pub certificates: Option<BTreeSet<Box<str>>>,
}

/// A target group that is ours.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedTargetGroup {
    /// Itself.
    pub group: TargetGroup,
    /// Tags.
    pub tags: Option<Tags>,
    /// Attributes.
    pub attributes: Option<Attributes>,
    /// Targets that are registered and not on their way out.
    pub targets: Option<RegisteredTargets>,
}

/// Registered targets by ID and port, which is what makes a target another one.
pub type RegisteredTargets = BTreeMap<(Box<str>, u16), Target>;

/// Collects targets by what tells them apart.
pub fn registered_targets<'a>(targets: impl IntoIterator<Item = &'a Target>) -> RegisteredTargets {
    targets.into_iter().map(|target| ((target.id.clone(), target.port), target.clone())).collect()
}

impl ObservedListener {
    /// Makes one of which only the listener itself is known.
    pub fn bare(listener: Listener) -> Self {
        Self { listener, tags: None, attributes: None, certificates: None }
    }

    /// Returns its place; `None` for a protocol or port that we never make.
    pub fn key(&self) -> Option<ListenerKey> {
        Some((self.listener.port.try_into().ok()?, self.listener.protocol?))
    }
}

impl ObservedLoadBalancer {
    /// Makes one of which nothing else is known.
    pub fn bare(load_balancer: LoadBalancer) -> Self {
        Self { load_balancer, tags: None, attributes: None, listeners: Vec::new() }
    }
}

impl ObservedTargetGroup {
    /// Makes one of which nothing else is known.
    pub fn new(group: TargetGroup) -> Self {
        Self { group, tags: None, attributes: None, targets: None }
    }
}

impl ObservedState {
    /// Returns the listener at a place.
    pub fn listener(&self, key: ListenerKey) -> Option<&ObservedListener> {
        self.load_balancer.as_ref()?.listeners.iter().find(|listener| listener.key() == Some(key))
    }

    /// Returns the listener with an ARN, to note what became of it.
    pub fn listener_mut(&mut self, arn: &ListenerArn) -> Option<&mut ObservedListener> {
        self.load_balancer.as_mut()?.listeners.iter_mut().find(|listener| listener.listener.arn == *arn)
    }

    /// Returns the target group with an ARN.
    pub fn group(&self, arn: &TargetGroupArn) -> Option<&ObservedTargetGroup> {
        self.target_groups.iter().find(|group| group.group.arn == *arn)
    }

    /// Returns the target group with an ARN, to note what became of it.
    pub fn group_mut(&mut self, arn: &TargetGroupArn) -> Option<&mut ObservedTargetGroup> {
        self.target_groups.iter_mut().find(|group| group.group.arn == *arn)
    }

    /// Tells whether everything was read that a change of the Service might need.
    pub fn is_complete(&self) -> bool {
        let Some(balancer) = &self.load_balancer else { return true };
        let listeners = balancer.listeners.iter().all(|listener| {
            listener.tags.is_some() && listener.attributes.is_some() && listener.certificates.is_some()
        });
        let groups = self
            .target_groups
            .iter()
            .all(|group| group.tags.is_some() && group.attributes.is_some() && group.targets.is_some());
        balancer.tags.is_some() && balancer.attributes.is_some() && listeners && groups
    }
}

/// Sets attributes among those that were read.
pub fn set_attributes(seen: &mut Option<Attributes>, set: &Attributes) {
    if let Some(seen) = seen {
        seen.extend(set.clone());
    }
}

/// Sets and removes tags among those that were read.
pub fn set_tags(seen: &mut Option<Tags>, set: &Tags, remove: &[Box<str>]) {
    if let Some(seen) = seen {
        seen.extend(set.clone());
        seen.retain(|key, _| !remove.contains(key));
    }
}

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
pub struct Observed {
    /// The load balancer.
    pub balancer: Option<SeenBalancer>,
    /// Its target groups, and those of the Service that no listener uses.
    pub groups: Vec<SeenGroup>,
    /// Security-group rules as they were last brought in line; `None` when that is not known.
    pub exposure: Option<Digest>,
    /// Keys of tags that we put there and that the Service may no longer ask for.
    pub recorded_tags: BTreeSet<Box<str>>,
    /// Target groups whose health check AWS does not let us change: they have to be replaced.
    pub frozen: BTreeSet<TargetGroupArn>,
    /// Security groups that were taken off the balancer and that may have to be given up.
    pub detached: BTreeSet<SecurityGroupId>,
}

/// A load balancer with its listeners.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenBalancer {
    /// Itself.
    pub balancer: LoadBalancer,
    /// Tags.
    pub tags: Option<Tags>,
    /// Attributes.
    pub attributes: Option<Attributes>,
    /// Listeners.
    pub listeners: Vec<SeenListener>,
}

/// A listener.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenListener {
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
pub struct SeenGroup {
    /// Itself.
    pub group: TargetGroup,
    /// Tags.
    pub tags: Option<Tags>,
    /// Attributes.
    pub attributes: Option<Attributes>,
    /// Targets that are registered and not on their way out.
    pub targets: Option<Members>,
}

/// Registered targets by ID and port, which is what makes a target another one.
pub type Members = BTreeMap<(Box<str>, u16), Target>;

/// Collects targets by what tells them apart.
pub fn members<'a>(targets: impl IntoIterator<Item = &'a Target>) -> Members {
    targets.into_iter().map(|target| ((target.id.clone(), target.port), target.clone())).collect()
}

impl SeenListener {
    /// Makes one of which only the listener itself is known.
    pub fn bare(listener: Listener) -> Self {
        Self { listener, tags: None, attributes: None, certificates: None }
    }

    /// Returns its place; `None` for a protocol or port that we never make.
    pub fn key(&self) -> Option<ListenerKey> {
        Some((self.listener.port.try_into().ok()?, self.listener.protocol?))
    }
}

impl SeenBalancer {
    /// Makes one of which nothing else is known.
    pub fn bare(balancer: LoadBalancer) -> Self {
        Self { balancer, tags: None, attributes: None, listeners: Vec::new() }
    }
}

impl SeenGroup {
    /// Makes one of which nothing else is known.
    pub fn bare(group: TargetGroup) -> Self {
        Self { group, tags: None, attributes: None, targets: None }
    }
}

impl Observed {
    /// Returns the listener at a place.
    pub fn listener(&self, key: ListenerKey) -> Option<&SeenListener> {
        self.balancer.as_ref()?.listeners.iter().find(|listener| listener.key() == Some(key))
    }

    /// Returns the listener with an ARN, to note what became of it.
    pub fn listener_mut(&mut self, arn: &ListenerArn) -> Option<&mut SeenListener> {
        self.balancer.as_mut()?.listeners.iter_mut().find(|listener| listener.listener.arn == *arn)
    }

    /// Returns the target group with an ARN.
    pub fn group(&self, arn: &TargetGroupArn) -> Option<&SeenGroup> {
        self.groups.iter().find(|group| group.group.arn == *arn)
    }

    /// Returns the target group with an ARN, to note what became of it.
    pub fn group_mut(&mut self, arn: &TargetGroupArn) -> Option<&mut SeenGroup> {
        self.groups.iter_mut().find(|group| group.group.arn == *arn)
    }

    /// Tells whether everything was read that a change of the Service might need.
    pub fn is_full(&self) -> bool {
        let Some(balancer) = &self.balancer else { return true };
        let listeners = balancer.listeners.iter().all(|listener| {
            listener.tags.is_some() && listener.attributes.is_some() && listener.certificates.is_some()
        });
        let groups = self
            .groups
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

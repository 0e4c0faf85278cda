//! Tells by name, description and tags which security group is the managed one of a Service.

use std::sync::Arc;

use super::cache::GroupsById;
use crate::{
    api::ec2::SecurityGroup,
    lb::{model::ServiceKey, ownership},
    ownership_tags::ADOPTER_TAG,
};

/// Description of a managed group, the same as upstream's.
pub const MANAGED_DESCRIPTION: &str = "[k8s] Managed SecurityGroup for LoadBalancer";

/// Finds a group by its name, which is unique in a VPC.
pub(super) fn find(groups: &GroupsById, name: &str) -> Option<Arc<SecurityGroup>> {
    groups.values().find(|group| *group.name == *name).cloned()
}

/// Finds the managed group of a Service: the one that it adopted, or else the one with the name that
/// it gets.
pub(super) fn find_managed(
    groups: &GroupsById,
    owner: &ServiceKey,
    name: &str,
) -> Option<Arc<SecurityGroup>> {
    groups
        .values()
        .find(|group| is_adopted(group, owner))
        .cloned()
        .or_else(|| find(groups, name))
}

/// Returns true if the Service adopted a group, with a load balancer that was kept.
pub(super) fn is_adopted(group: &SecurityGroup, owner: &ServiceKey) -> bool {
    !owner.uid.is_empty()
        && group.tags.get(ADOPTER_TAG) == Some(&owner.uid)
        && *group.description == *MANAGED_DESCRIPTION
}

/// Returns why a group is not the Service's, whatever its name is: it was kept, or another Service
/// adopted it.
pub(super) fn handed_over(group: &SecurityGroup, owner: &ServiceKey) -> Option<String> {
    ownership::handed_over(owner, &group.tags)
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::Tags, lb::security_groups::managed, ownership_tags::Cluster};

    #[test]
    fn a_group_that_was_handed_over_is_nobodys_by_its_name() {
        let owner = ServiceKey {
            namespace: "default".into(),
            name: "web".into(),
            uid: "u".into(),
        };
        let own: [(&str, &str); 2] =
            [("kubernetes.io/cluster/c", "owned"), ("kubernetes.io/service-name", "default/web")];
        for (more, is_own) in [
            (&[][..], true),
            (&[("kubernetes.io/retained-from", "u")], true),
            (&[("kubernetes.io/retained-from", "v")], false),
            (&[("kubernetes.io/adopted-by", "u")], true),
            (&[("kubernetes.io/adopted-by", "v")], false),
        ] {
            let pairs = own.iter().chain(more);
            let tags: Tags = pairs
                .map(|(key, value)| ((*key).into(), (*value).into()))
                .collect();
            let group = SecurityGroup {
                id: "sg-1".into(),
                name: "web".into(),
                description: MANAGED_DESCRIPTION.into(),
                vpc: None,
                ingress: Vec::new(),
                tags,
            };
            let cluster = Cluster::new("c", false);
            let kept = SecurityGroup {
                tags: [("kubernetes.io/retained-from".into(), "u".into())].into(),
                ..group.clone()
            };
            let check = managed::check_adoptable(&cluster, &kept, &owner, MANAGED_DESCRIPTION);
            assert!(check.is_err(), "what was let go of is nobody's");
            let check = managed::check_adoptable(&cluster, &group, &owner, MANAGED_DESCRIPTION);
            assert_eq!(check.is_ok(), is_own, "{more:?}");
        }
    }
}

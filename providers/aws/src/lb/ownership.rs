//! Decides by tags which load balancers and target groups belong to a Service.

use super::{model::ServiceKey, names};
use crate::{
    api::{Tags, elb::Scheme},
    ownership_tags::{
        ADOPTER_TAG, Cluster, OTHER_CONTROLLER_TAG, RETAINED_TAG, SERVICE_TAG, have_owner,
    },
};

/// The reason why an object that was let go belongs to nobody.
const RETAINED: &str = "it was kept when its Service went, and belongs to nobody";

/// The way in which an object was found. It decides how much the tags must prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundBy {
    /// By a name that only this Service gets, or as a part of the Service's load balancer. The
    /// cluster's ownership tag can be enough.
    GeneratedName,
    /// By a name that the Service requests and that any object may have. A tag must name the
    /// Service.
    RequestedName,
    /// In a listing of all objects. The tags must also name the cluster, because another cluster
    /// may have a Service of the same name.
    Listing,
}

impl FoundBy {
    /// Returns how a load balancer was found that has the given name of a Service.
    pub(super) fn by_name(cluster: &Cluster, owner: &ServiceKey, name: &str) -> Self {
        let is_generated = *names::load_balancer(&owner.uid) == *name
            || Scheme::ALL
                .iter()
                .any(|scheme| *names::lbc_load_balancer(cluster, owner, *scheme) == *name);
        if is_generated {
            Self::GeneratedName
        } else {
            Self::RequestedName
        }
    }
}

/// Checks that an object belongs to a Service, and returns the reason if it does not.
///
/// The object needs the tags of both Service and cluster. If it has no cluster's tag at all, the
/// Service's tag is enough, unless it was found in a listing. Under a generated name the cluster's
/// tag with value `owned` is enough. Objects with another Service's tag, or of another controller,
/// never belong to the Service, nor do those that were [handed over](handed_over).
pub(super) fn check_owner(
    cluster: &Cluster,
    owner: &ServiceKey,
    tags: &Tags,
    found_by: FoundBy,
) -> Result<(), String> {
    if tags.contains_key(OTHER_CONTROLLER_TAG) {
        return Err("the AWS load balancer controller created it".to_owned());
    }
    if let Some(reason) = handed_over(owner, tags) {
        return Err(reason);
    }
    let service = tags.get(SERVICE_TAG).map(|value| &**value);
    let has_cluster_tag = !cluster.id().is_empty() && cluster.has(tags);
    // The UID of its adopter tells the Service from one of another cluster.
    let is_listed = found_by == FoundBy::Listing && !tags.contains_key(ADOPTER_TAG);
    match service {
        Some(other) if other != owner.key() => Err(format!("it belongs to service {other}")),
        Some(_) if has_cluster_tag => Ok(()),
        Some(_) if !Cluster::any(tags) && !is_listed => Ok(()),
        None if cluster.owns(tags) && found_by == FoundBy::GeneratedName => Ok(()),
        None if has_cluster_tag => {
            Err("it belongs to this cluster, but its tags do not name the service".to_owned())
        }
        _ if Cluster::any(tags) => Err("it belongs to another cluster".to_owned()),
        _ if tags.contains_key(RETAINED_TAG) => Err(RETAINED.to_owned()),
        _ => Err("it has no tag of this cluster".to_owned()),
    }
}

/// Returns why an object is not the Service's, whatever the other tags say: another Service let go of
/// it or adopted it. Clusters of the same ID have Services of the same name, so that only the UID
/// tells them apart.
pub(in crate::lb) fn handed_over(owner: &ServiceKey, tags: &Tags) -> Option<String> {
    match (tags.get(ADOPTER_TAG), tags.get(RETAINED_TAG)) {
        (Some(adopter), _) if *adopter != owner.uid => {
            Some(format!("the Service with UID {adopter} adopted it"))
        }
        (None, Some(former)) if *former != owner.uid => Some(RETAINED.to_owned()),
        _ => None,
    }
}

/// Returns true if an object belongs to nobody since this Service let go of it.
pub(super) fn is_let_go(owner: &ServiceKey, tags: &Tags) -> bool {
    tags.get(RETAINED_TAG) == Some(&owner.uid) && !have_owner(tags)
}

/// Returns true if a Service may claim an object on its load balancer that was let go of: it is
/// nobody's, or the Service is the load balancer's adopter (`is_adopter`) and another one claimed the
/// object, which adopted at the same time.
pub(super) fn may_claim(owner: &ServiceKey, tags: &Tags, is_adopter: bool) -> bool {
    let is_free = match tags.get(ADOPTER_TAG) {
        Some(adopter) => is_adopter && *adopter != owner.uid,
        None => !have_owner(tags),
    };
    tags.contains_key(RETAINED_TAG) && is_free && !tags.contains_key(OTHER_CONTROLLER_TAG)
}

/// Returns true if the Service is the one that adopts an object, or adopted it.
pub(super) fn is_adopter(owner: &ServiceKey, tags: &Tags) -> bool {
    tags.get(ADOPTER_TAG) == Some(&owner.uid)
}

/// Returns true if the Service's adoption of an object is not finished: it still has the mark.
pub(super) fn is_being_adopted(owner: &ServiceKey, tags: &Tags) -> bool {
    tags.contains_key(RETAINED_TAG) && is_adopter(owner, tags)
}

/// Returns true if tags name somebody else than the Service: another Service, another cluster or
/// another controller, also as the one who let go. Missing tags name nobody, so that whoever fails [`check_owner`] without this is
/// in doubt: somebody may have removed the tags of the Service's own object.
pub(super) fn names_another_owner(cluster: &Cluster, owner: &ServiceKey, tags: &Tags) -> bool {
    let is_other_service = tags
        .get(SERVICE_TAG)
        .is_some_and(|service| **service != *owner.key());
    tags.contains_key(OTHER_CONTROLLER_TAG)
        || handed_over(owner, tags).is_some()
        || is_other_service
        || (Cluster::any(tags) && !cluster.has(tags))
}

/// Checks that a load balancer whose tags cannot be read belongs to a Service: it has the name that
/// upstream computes from the Service's UID, and upstream asks for no other proof. This is enough to
/// change the load balancer, never to delete it.
pub(super) fn check_owner_by_name(owner: &ServiceKey, name: &str) -> Result<(), String> {
    if *names::load_balancer(&owner.uid) == *name {
        return Ok(());
    }
    Err("its tags cannot be read, and its name is not the one that is computed from the service's UID".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        pairs
            .iter()
            .map(|(k, v)| ((*k).into(), (*v).into()))
            .collect()
    }

    // OU9
    #[test]
    fn only_tags_of_this_cluster_and_this_service_make_it_ours() {
        const OWN: (&str, &str) = ("kubernetes.io/cluster/c", "owned");
        const SERVICE: (&str, &str) = (SERVICE_TAG, "default/web");
        let owner = ServiceKey {
            namespace: "default".into(),
            name: "web".into(),
            uid: "u".into(),
        };
        // By a generated name, by a requested name, in a listing.
        type Case = (&'static [(&'static str, &'static str)], [bool; 3]);
        let cases: [Case; 19] = [
            (&[], [false; 3]),
            (&[OWN], [true, false, false]),
            (&[("kubernetes.io/cluster/c", "shared")], [false; 3]),
            (&[OWN, SERVICE], [true; 3]),
            (&[("kubernetes.io/cluster/c", "shared"), SERVICE], [true; 3]),
            (&[SERVICE], [true, true, false]),
            (&[("kubernetes.io/cluster/d", "owned"), SERVICE], [false; 3]),
            (&[("kubernetes.io/cluster/d", "owned")], [false; 3]),
            (&[OWN, (SERVICE_TAG, "default/other")], [false; 3]),
            (&[OWN, SERVICE, (OTHER_CONTROLLER_TAG, "c")], [false; 3]),
            (&[("Name", "web")], [false; 3]),
            // While it is let go of, and then.
            (&[OWN, SERVICE, (RETAINED_TAG, "u")], [true; 3]),
            (&[(RETAINED_TAG, "u")], [false; 3]),
            (&[OWN, SERVICE, (RETAINED_TAG, "v")], [false; 3]),
            // While it is adopted, and then.
            (&[OWN, SERVICE, (RETAINED_TAG, "v"), (ADOPTER_TAG, "u")], [true; 3]),
            (&[OWN, SERVICE, (ADOPTER_TAG, "u")], [true; 3]),
            (&[SERVICE, (ADOPTER_TAG, "u")], [true; 3]),
            (&[OWN, SERVICE, (ADOPTER_TAG, "v")], [false; 3]),
            (&[("kubernetes.io/cluster/d", "owned"), SERVICE, (ADOPTER_TAG, "u")], [false; 3]),
        ];
        let ways = [FoundBy::GeneratedName, FoundBy::RequestedName, FoundBy::Listing];
        let ask = |cluster: &Cluster, pairs: &[(&str, &str)]| {
            ways.map(|found| check_owner(cluster, &owner, &tags(pairs), found).is_ok())
        };
        for (pairs, ours) in cases {
            assert_eq!(ask(&Cluster::new("c", false), pairs), ours, "{pairs:?}");
        }
        let nobody = Cluster::new("", false);
        assert_eq!(
            ask(&nobody, &[SERVICE]),
            [true, true, false],
            "another cluster may have such a Service"
        );
        assert_eq!(
            ask(&nobody, &[]),
            [false; 3],
            "without a cluster ID only the Service's tag says so"
        );
        assert_eq!(
            ask(&Cluster::new("c", true), &[("KubernetesCluster", "c")]),
            [true, false, false]
        );
    }

    #[test]
    fn what_was_handed_over_names_somebody_else() {
        let owner = ServiceKey {
            namespace: "default".into(),
            name: "web".into(),
            uid: "u".into(),
        };
        let cluster = Cluster::new("c", false);
        for (pairs, let_go, adopted, others) in [
            (&[(RETAINED_TAG, "u")][..], true, false, false),
            (&[(RETAINED_TAG, "v")], false, false, true),
            (&[(RETAINED_TAG, "u"), (SERVICE_TAG, "default/web")], false, false, false),
            (&[(RETAINED_TAG, "v"), (ADOPTER_TAG, "u")], false, true, false),
            (&[(RETAINED_TAG, "u"), (ADOPTER_TAG, "v")], false, false, true),
            (&[(ADOPTER_TAG, "v")], false, false, true),
            (&[(ADOPTER_TAG, "u")], false, false, false),
        ] {
            let tags = tags(pairs);
            assert_eq!(is_let_go(&owner, &tags), let_go, "{pairs:?}");
            assert_eq!(is_being_adopted(&owner, &tags), adopted, "{pairs:?}");
            assert_eq!(names_another_owner(&cluster, &owner, &tags), others, "{pairs:?}");
        }
    }

    #[test]
    fn a_name_says_whose_it_is_only_if_nobody_chose_it() {
        let owner = ServiceKey {
            namespace: "default".into(),
            name: "web".into(),
            uid: "u-1".into(),
        };
        let cluster = Cluster::new("c", false);
        let claimed = names::lbc_load_balancer(&cluster, &owner, Scheme::Internal);
        for (name, found) in [
            ("au1", FoundBy::GeneratedName),
            (&*claimed, FoundBy::GeneratedName),
            ("api", FoundBy::RequestedName),
        ] {
            assert_eq!(FoundBy::by_name(&cluster, &owner, name), found, "{name}");
        }
    }
}

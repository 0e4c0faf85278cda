//! Which balancers and target groups are a Service's: by their tags. Pure.

use super::{model::ServiceKey, names};
use crate::{
    api::{Tags, elb::Scheme},
    cluster::{Cluster, OTHER_CONTROLLER_TAG, SERVICE_TAG},
};

/// How an object was found, which decides how much its tags have to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundBy {
    /// Under a name that nobody but this Service gets, or as a part of what is its: the cluster's tag may do.
    GeneratedName,
    /// Under a name that the Service asks for, which may be anybody's: its tag has to name the Service.
    RequestedName,
    /// Among all that there is: its tags have to name the cluster as well, since another one may have a Service of the same
    /// name.
    Listing,
}

impl FoundBy {
    /// Tells how a load balancer was found that has one of the names of a Service.
    pub(super) fn by_name(cluster: &Cluster, owner: &ServiceKey, name: &str) -> Self {
        let claimed = |scheme: &Scheme| *names::lbc_load_balancer(cluster, owner, *scheme) == *name;
        let computed = *names::load_balancer(&owner.uid) == *name || Scheme::ALL.iter().any(claimed);
        if computed { Self::GeneratedName } else { Self::RequestedName }
    }
}

/// Tells whether an object is a Service's, or why not.
///
/// It carries the Service's tag with the cluster's, or with no cluster's at all; where its name says enough, the cluster's
/// tag as of something that the cluster made. One that carries another Service's is not its, whatever its name is, and
/// neither is one that another controller made.
pub(super) fn check_owner(cluster: &Cluster, owner: &ServiceKey, tags: &Tags, found: FoundBy) -> Result<(), String> {
    if tags.contains_key(OTHER_CONTROLLER_TAG) {
        return Err("the AWS load balancer controller made it".to_owned());
    }
    let service = tags.get(SERVICE_TAG).map(|value| &**value);
    let ours = !cluster.id().is_empty() && cluster.has(tags);
    match service {
        Some(other) if other != owner.key() => Err(format!("it is of service {other}")),
        Some(_) if ours => Ok(()),
        Some(_) if !Cluster::any(tags) && found != FoundBy::Listing => Ok(()),
        None if cluster.owns(tags) && found == FoundBy::GeneratedName => Ok(()),
        None if ours => Err("it is of this cluster, but its tags do not name the service".to_owned()),
        _ if Cluster::any(tags) => Err("it is of another cluster".to_owned()),
        _ => Err("it has no tag of this cluster".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    // OU9
    #[test]
    fn only_tags_of_this_cluster_and_this_service_make_it_ours() {
        const OWN: (&str, &str) = ("kubernetes.io/cluster/c", "owned");
        const SERVICE: (&str, &str) = (SERVICE_TAG, "default/web");
        let owner = ServiceKey { namespace: "default".into(), name: "web".into(), uid: "u".into() };
        // Under a computed name, under a chosen one, among all.
        type Case = (&'static [(&'static str, &'static str)], [bool; 3]);
        let cases: [Case; 11] = [
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
        ];
        let ways = [FoundBy::GeneratedName, FoundBy::RequestedName, FoundBy::Listing];
        let ask = |cluster: &Cluster, pairs: &[(&str, &str)]| {
            ways.map(|found| check_owner(cluster, &owner, &tags(pairs), found).is_ok())
        };
        for (pairs, ours) in cases {
            assert_eq!(ask(&Cluster::new("c", false), pairs), ours, "{pairs:?}");
        }
        let nobody = Cluster::new("", false);
        assert_eq!(ask(&nobody, &[SERVICE]), [true, true, false], "another cluster may have such a Service");
        assert_eq!(ask(&nobody, &[]), [false; 3], "without a cluster ID only the Service's tag says so");
        assert_eq!(ask(&Cluster::new("c", true), &[("KubernetesCluster", "c")]), [true, false, false]);
    }

    #[test]
    fn a_name_says_whose_it_is_only_if_nobody_chose_it() {
        let owner = ServiceKey { namespace: "default".into(), name: "web".into(), uid: "u-1".into() };
        let cluster = Cluster::new("c", false);
        let claimed = names::lbc_load_balancer(&cluster, &owner, Scheme::Internal);
        for (name, found) in
            [("au1", FoundBy::GeneratedName), (&*claimed, FoundBy::GeneratedName), ("api", FoundBy::RequestedName)]
        {
            assert_eq!(FoundBy::by_name(&cluster, &owner, name), found, "{name}");
        }
    }
}

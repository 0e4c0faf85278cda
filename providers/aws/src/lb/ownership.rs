//! Which balancers and target groups are a Service's: by their tags. Pure.

use super::model::OwnerName;
use crate::{
    api::Tags,
    cluster::{Cluster, OTHER_CONTROLLER_TAG, SERVICE_TAG},
};

/// Tells whether an object is a Service's, or why not.
///
/// It carries the cluster's tag, or no cluster's at all and the Service's. One that carries another Service's is not its,
/// whatever its name is, and neither is one that another controller made.
pub(super) fn belongs(cluster: &Cluster, owner: &OwnerName, tags: &Tags) -> Result<(), String> {
    if tags.contains_key(OTHER_CONTROLLER_TAG) {
        return Err("the AWS load balancer controller made it".to_owned());
    }
    let service = tags.get(SERVICE_TAG).map(|value| &**value);
    let ours = !cluster.id().is_empty() && cluster.has(tags);
    match service {
        Some(other) if other != owner.key() => Err(format!("it is of service {other}")),
        Some(_) if ours || !Cluster::any(tags) => Ok(()),
        None if ours => Ok(()),
        _ if Cluster::any(tags) => Err("it is of another cluster".to_owned()),
        _ => Err("it has no tag of this cluster".to_owned()),
    }
}

/// Returns how names of a Service's target groups begin.
pub(super) fn group_prefix(owner: &OwnerName) -> String {
    let part = |text: &str| -> String { text.chars().filter(char::is_ascii_alphanumeric).take(8).collect() };
    format!("k8s-{}-{}-", part(&owner.namespace), part(&owner.name))
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
        let owner = OwnerName { namespace: "default".into(), name: "web".into(), uid: "u".into() };
        let cases: [(&[(&str, &str)], bool); 10] = [
            (&[], false),
            (&[OWN], true),
            (&[OWN, SERVICE], true),
            (&[("kubernetes.io/cluster/c", "shared"), SERVICE], true),
            (&[SERVICE], true),
            (&[("kubernetes.io/cluster/d", "owned"), SERVICE], false),
            (&[("kubernetes.io/cluster/d", "owned")], false),
            (&[OWN, (SERVICE_TAG, "default/other")], false),
            (&[OWN, SERVICE, (OTHER_CONTROLLER_TAG, "c")], false),
            (&[("Name", "web")], false),
        ];
        for (pairs, ours) in cases {
            let found = belongs(&Cluster::new("c", false), &owner, &tags(pairs));
            assert_eq!(found.is_ok(), ours, "{pairs:?}: {found:?}");
        }
        let nobody = Cluster::new("", false);
        assert!(belongs(&nobody, &owner, &tags(&[SERVICE])).is_ok());
        assert!(belongs(&nobody, &owner, &tags(&[])).is_err(), "without a cluster ID only the Service's tag says so");
        assert!(belongs(&Cluster::new("c", true), &owner, &tags(&[("KubernetesCluster", "c")])).is_ok());
    }
}

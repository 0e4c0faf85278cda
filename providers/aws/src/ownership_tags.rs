//! Ownership tags, which show whether an AWS object belongs to the cluster.

use std::sync::Arc;

use crate::api::{Filter, Tags};

/// Prefix of the key of the cluster tag.
pub const CLUSTER_TAG_PREFIX: &str = "kubernetes.io/cluster/";
/// Key of the legacy cluster tag.
pub const LEGACY_CLUSTER_TAG: &str = "KubernetesCluster";
/// Key of the tag that names the Service of an object, as `namespace/name`.
pub const SERVICE_TAG: &str = "kubernetes.io/service-name";
/// Key of the tag that the AWS load balancer controller puts on its objects, which are never
/// changed.
pub const OTHER_CONTROLLER_TAG: &str = "elbv2.k8s.aws/cluster";
/// Key of the mark on objects that were let go when their Service went. The value is the UID of that
/// Service. Together with its owner's tags, an object with the mark is still its owner's.
pub const RETAINED_TAG: &str = "kubernetes.io/retained-from";
/// Key of the tag that names the Service that adopted an object, by UID.
pub const ADOPTER_TAG: &str = "kubernetes.io/adopted-by";
/// Value of the cluster tag on objects that the cluster created.
pub const OWNED: &str = "owned";

/// The cluster ID and the form of its ownership tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    id: Arc<str>,
    /// True if the legacy tag is used.
    legacy: bool,
}

impl Cluster {
    /// Creates a cluster. With `legacy`, the tag `KubernetesCluster` is also written, and used as
    /// filter. An empty ID means that there is no cluster ID (`--allow-untagged-cloud`). Every
    /// object belongs to such a cluster, but the cluster owns none.
    pub fn new(id: impl Into<Arc<str>>, legacy: bool) -> Self {
        Self { id: id.into(), legacy }
    }

    /// Returns the cluster ID, or empty text if there is none.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns true if an object with these tags belongs to this cluster, owned or shared. Such an
    /// object has the legacy tag with our ID, or the cluster tag with any value. Without a cluster
    /// ID, every object belongs to the cluster.
    pub fn has(&self, tags: &Tags) -> bool {
        self.id.is_empty() || self.has_legacy_tag(tags) || tags.contains_key(&*self.key())
    }

    /// Returns true if this cluster created an object with these tags. Such an object has the
    /// legacy tag with our ID, or the cluster tag with value `owned`. Without a cluster ID, the
    /// cluster owns no object.
    pub fn owns(&self, tags: &Tags) -> bool {
        if self.id.is_empty() {
            return false;
        }
        let cluster_tag = tags.get(&*self.key());
        self.has_legacy_tag(tags) || cluster_tag.is_some_and(|value| **value == *OWNED)
    }

    /// Returns true if the tags contain the cluster tag of any cluster.
    pub fn any(tags: &Tags) -> bool {
        tags.keys().any(|key| key.starts_with(CLUSTER_TAG_PREFIX))
    }

    /// Returns true if the tags name another cluster.
    pub fn names_another(&self, tags: &Tags) -> bool {
        let own_key = self.key();
        let has_other_legacy_tag = tags
            .get(LEGACY_CLUSTER_TAG)
            .is_some_and(|id| **id != *self.id);
        let mut keys = tags.keys();
        has_other_legacy_tag
            || keys.any(|key| key.starts_with(CLUSTER_TAG_PREFIX) && **key != *own_key)
    }

    /// Returns those of the tags by which a Service of this cluster owns an object. Without them, the
    /// object belongs to nobody.
    pub fn owner_tags(&self, tags: &Tags) -> Tags {
        let own_key = self.key();
        let mut found = tags.clone();
        found.retain(|key, value| match &**key {
            SERVICE_TAG | ADOPTER_TAG => true,
            LEGACY_CLUSTER_TAG => **value == *self.id,
            key => *key == *own_key,
        });
        found
    }

    /// Returns those of the tags that name another cluster.
    pub fn foreign_tags(&self, tags: &Tags) -> Tags {
        let own_key = self.key();
        let mut found = tags.clone();
        found.retain(|key, value| match &**key {
            LEGACY_CLUSTER_TAG => **value != *self.id,
            key => key.starts_with(CLUSTER_TAG_PREFIX) && *key != *own_key,
        });
        found
    }

    /// Returns the ownership tags for objects that the cluster creates, without the Service's tag.
    pub fn tags(&self) -> Tags {
        let mut tags = Tags::new();
        if !self.id.is_empty() {
            tags.insert(self.key(), OWNED.into());
            if self.legacy {
                tags.insert(LEGACY_CLUSTER_TAG.into(), (&*self.id).into());
            }
        }
        tags
    }

    /// Returns the filter for objects of the cluster, or `None` if there is no cluster ID.
    pub fn filter(&self) -> Option<Filter> {
        if self.id.is_empty() {
            None
        } else if self.legacy {
            Some(Filter::new(format!("tag:{LEGACY_CLUSTER_TAG}"), [&*self.id]))
        } else {
            Some(Filter::new("tag-key", [self.key()]))
        }
    }

    fn key(&self) -> Box<str> {
        format!("{CLUSTER_TAG_PREFIX}{}", self.id).into()
    }

    fn has_legacy_tag(&self, tags: &Tags) -> bool {
        tags.get(LEGACY_CLUSTER_TAG)
            .is_some_and(|value| **value == *self.id)
    }
}

/// Returns those of the tags that name an owner.
pub fn owner_tags(tags: &Tags) -> Tags {
    let mut found = tags.clone();
    found.retain(|key, value| have_owner(&[(key.clone(), value.clone())].into()));
    found
}

/// Returns true if the tags name an owner: a Service, a cluster, or another controller.
pub fn have_owner(tags: &Tags) -> bool {
    let keys = [SERVICE_TAG, LEGACY_CLUSTER_TAG, OTHER_CONTROLLER_TAG, ADOPTER_TAG];
    keys.iter().any(|key| tags.contains_key(*key)) || Cluster::any(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs = &'static [(&'static str, &'static str)];

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        pairs
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect()
    }

    const OWN: &str = "kubernetes.io/cluster/c";
    const OTHER: &str = "kubernetes.io/cluster/d";
    const LEGACY: &str = LEGACY_CLUSTER_TAG;

    // TA2
    #[test]
    fn an_object_is_of_the_cluster_by_either_tag() {
        let cases: [(Pairs, bool, bool); 9] = [
            (&[], false, false),
            (&[("Name", "c")], false, false),
            (&[(LEGACY, "c")], true, false),
            (&[(LEGACY, "d")], false, false),
            (&[(OWN, "owned")], true, true),
            (&[(OWN, "")], true, true),
            (&[(LEGACY, "d"), (OWN, "owned")], true, true),
            (&[(OWN, "shared"), (OTHER, "owned")], true, true),
            (&[(OTHER, "owned")], false, true),
        ];
        for (pairs, has, any) in cases {
            assert_eq!(Cluster::new("c", false).has(&tags(pairs)), has, "{pairs:?}");
            assert_eq!(Cluster::any(&tags(pairs)), any, "{pairs:?}");
            assert!(
                Cluster::new("", false).has(&tags(pairs)),
                "without an ID everything is: {pairs:?}"
            );
        }
    }

    // TA3
    #[test]
    fn only_the_exact_tag_with_the_exact_value_makes_an_object_the_clusters_own() {
        let cases: [(Pairs, bool); 13] = [
            (&[], false),
            (&[(LEGACY, "c")], true),
            (&[(LEGACY, "d")], false),
            (&[(LEGACY, "")], false),
            (&[(OWN, "owned")], true),
            (&[(OWN, "shared")], false),
            (&[(OWN, "")], false),
            (&[(OWN, "Owned")], false),
            (&[(OTHER, "owned")], false),
            (&[("Kubernetes.io/cluster/c", "owned")], false),
            (&[(LEGACY, "d"), (OWN, "owned")], true),
            (&[(LEGACY, "c"), (OWN, "shared")], true),
            (&[("Name", "x"), (OTHER, "owned"), (OWN, "owned")], true),
        ];
        for (pairs, owns) in cases {
            assert_eq!(Cluster::new("c", false).owns(&tags(pairs)), owns, "{pairs:?}");
            assert!(
                !Cluster::new("", false).owns(&tags(pairs)),
                "without an ID nothing is: {pairs:?}"
            );
        }
    }

    #[test]
    fn the_tags_of_the_owner_are_those_of_service_and_cluster() {
        let own = Cluster::new("c", true);
        let others = [(RETAINED_TAG, "u"), ("team", "red"), (OTHER, "owned")];
        let owners = [(OWN, "shared"), (LEGACY, "c"), (SERVICE_TAG, "a/b"), (ADOPTER_TAG, "u")];
        let all: Vec<_> = others.into_iter().chain(owners).collect();
        assert_eq!(own.owner_tags(&tags(&all)), tags(&owners));
        assert_eq!(own.owner_tags(&tags(&[(LEGACY, "d")])), Tags::new());
        for (pairs, another, owner) in [
            (&[][..], false, false),
            (&[(RETAINED_TAG, "u"), ("team", "red")], false, false),
            (&[(OWN, "owned")], false, true),
            (&[(OWN, "owned"), (OTHER, "shared")], true, true),
            (&[(LEGACY, "c")], false, true),
            (&[(LEGACY, "d")], true, true),
            (&[(SERVICE_TAG, "a/b")], false, true),
            (&[(ADOPTER_TAG, "u")], false, true),
            (&[(OTHER_CONTROLLER_TAG, "c")], false, true),
        ] {
            assert_eq!(own.names_another(&tags(pairs)), another, "{pairs:?}");
            assert_eq!(have_owner(&tags(pairs)), owner, "{pairs:?}");
        }
    }

    #[test]
    fn the_legacy_tag_is_written_and_filtered_by_only_where_it_is_configured() {
        let own = Cluster::new("c", false);
        assert_eq!(own.tags(), tags(&[(OWN, "owned")]));
        assert_eq!(own.filter(), Some(Filter::new("tag-key", [OWN])));
        let legacy = Cluster::new("c", true);
        assert_eq!(legacy.tags(), tags(&[(OWN, "owned"), (LEGACY, "c")]));
        assert_eq!(legacy.filter(), Some(Filter::new("tag:KubernetesCluster", ["c"])));
        let nobody = Cluster::new("", true);
        assert_eq!((nobody.tags(), nobody.filter()), (Tags::new(), None));
    }
}

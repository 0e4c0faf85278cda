//! Which AWS objects belong to the cluster: the tags that say so.

use std::sync::Arc;

use crate::api::{Filter, Tags};

/// Prefix of the key of the cluster tag.
pub const CLUSTER_TAG_PREFIX: &str = "kubernetes.io/cluster/";
/// Key of the legacy cluster tag.
pub const LEGACY_CLUSTER_TAG: &str = "KubernetesCluster";
/// Key of the tag that names the Service of an object, as `namespace/name`.
pub const SERVICE_TAG: &str = "kubernetes.io/service-name";
/// Key of the tag by which the AWS load balancer controller knows its own; what carries it is never touched.
pub const OTHER_CONTROLLER_TAG: &str = "elbv2.k8s.aws/cluster";
/// Value of the cluster tag on what the cluster made.
pub const OWNED: &str = "owned";

/// The cluster as its tags name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    id: Arc<str>,
    legacy: bool,
}

impl Cluster {
    /// Names the cluster. With `legacy` the tag `KubernetesCluster` is read and written as well. An empty ID stands for no
    /// cluster at all (`--allow-untagged-cloud`): every object matches, and none is owned.
    pub fn new(id: impl Into<Arc<str>>, legacy: bool) -> Self {
        Self { id: id.into(), legacy }
    }

    /// Returns the ID; empty when there is none.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Tells whether an object is of this cluster, owned or shared: it has the legacy tag with our ID, or the cluster tag
    /// with any value. Without an ID everything is.
    pub fn has(&self, tags: &Tags) -> bool {
        self.id.is_empty() || self.legacy_tag(tags) || tags.contains_key(&*self.key())
    }

    /// Tells whether an object was made by this cluster: the legacy tag with our ID, or the cluster tag with value `owned`.
    /// Without an ID nothing is.
    pub fn owns(&self, tags: &Tags) -> bool {
        let owned = || tags.get(&*self.key()).is_some_and(|value| **value == *OWNED);
        !self.id.is_empty() && (self.legacy_tag(tags) || owned())
    }

    /// Tells whether any cluster's tag is there.
    pub fn any(tags: &Tags) -> bool {
        tags.keys().any(|key| key.starts_with(CLUSTER_TAG_PREFIX))
    }

    /// Returns the tags of what the cluster makes, without the Service's.
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

    /// Returns the filter for objects of the cluster; `None` without an ID.
    pub fn filter(&self) -> Option<Filter> {
        match (self.id.is_empty(), self.legacy) {
            (true, _) => None,
            (false, true) => Some(Filter::new(format!("tag:{LEGACY_CLUSTER_TAG}"), [&*self.id])),
            (false, false) => Some(Filter::new("tag-key", [self.key()])),
        }
    }

    fn key(&self) -> Box<str> {
        format!("{CLUSTER_TAG_PREFIX}{}", self.id).into()
    }

    fn legacy_tag(&self, tags: &Tags) -> bool {
        tags.get(LEGACY_CLUSTER_TAG).is_some_and(|value| **value == *self.id)
    }
}

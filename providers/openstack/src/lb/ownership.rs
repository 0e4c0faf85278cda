//! Whose a load balancer and its listeners are, by name and tags.

use openstack_api::octavia::{Listener, LoadBalancer};

use super::{model::ServiceKey, names};

/// How a Service stands to a balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOwnership {
    /// Whether the balancer is called as this Service's. Others may have listeners on it nevertheless.
    pub owner: bool,
    /// The Service's name for balancers, which is its tag.
    pub name: Box<str>,
    /// The same as it was under another name of the cluster; `None` unless the balancer still has that.
    pub former_names: Option<FormerNames>,
}

/// How things were called under another name of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerNames {
    /// Name of the cluster.
    pub cluster: Box<str>,
    /// Name of the balancer, and tag.
    pub name: Box<str>,
}

/// Tells how a Service stands to a balancer. `shown`: it shows an address, so that a balancer that carries its name but for
/// that of the cluster is its own, and not another cluster's: a copy of a Service has its annotations, and shows nothing.
pub fn service_ownership(cluster: &str, who: &ServiceKey, shown: bool, balancer: &LoadBalancer) -> ServiceOwnership {
    let name = names::load_balancer(cluster, &who.namespace, &who.name);
    let legacy = !who.uid.is_empty() && *balancer.name == *names::legacy_load_balancer(&who.uid);
    let owner = *balancer.name == *name || legacy;
    let former = former(cluster, who, balancer).filter(|_| shown && !owner);
    ServiceOwnership {
        owner: owner || former.as_ref().is_some_and(|former| *former.name == *balancer.name),
        name,
        former_names: former,
    }
}

/// Finds the name that a Service had under another name of the cluster: that of the balancer, or a tag of it.
fn former(cluster: &str, who: &ServiceKey, balancer: &LoadBalancer) -> Option<FormerNames> {
    let before = names::cluster_of(&balancer.name);
    if before.is_empty() || before == cluster || !balancer.name.starts_with(names::PREFIX) {
        return None;
    }
    let name = names::load_balancer(before, &who.namespace, &who.name);
    let known = *balancer.name == *name || balancer.tags.iter().any(|tag| **tag == *name);
    known.then(|| FormerNames { cluster: before.into(), name })
}

impl ServiceOwnership {
    /// Tells whether a tag is this Service's.
    pub fn is_own_tag(&self, tag: &str) -> bool {
        *tag == *self.name || self.former_names.as_ref().is_some_and(|former| *former.name == *tag)
    }

    /// Tells whether a listener is this Service's: it has the tag, or none at all on a balancer of this Service.
    pub fn owns_listener(&self, listener: &Listener) -> bool {
        listener.tags.iter().any(|tag| self.is_own_tag(tag)) || (listener.tags.is_empty() && self.owner)
    }

    /// Tells whether a balancer was made for a Service that is gone, and this one is on it.
    pub fn is_orphaned_by_owner(&self, balancer: &LoadBalancer) -> bool {
        let has = |name: &str| balancer.tags.iter().any(|tag| tag == name);
        let listed = balancer.tags.iter().any(|tag| self.is_own_tag(tag));
        listed && balancer.name.starts_with(names::PREFIX) && !has(&balancer.name)
    }

    /// Tells whether a listener has the tag of another Service.
    pub fn is_other_services(&self, listener: &Listener) -> bool {
        listener.tags.iter().any(|tag| tag.starts_with(names::PREFIX) && !self.is_own_tag(tag))
    }

    /// Returns the tags of other Services.
    pub fn other_service_tags<'a>(&'a self, balancer: &'a LoadBalancer) -> impl Iterator<Item = &'a str> {
        let tags = balancer.tags.iter().map(|tag| &**tag);
        tags.filter(|tag| tag.starts_with(names::PREFIX) && !self.is_own_tag(tag))
    }

    /// Returns the new name of something that is called after the cluster's former name; `None` for all else.
    pub fn renamed(&self, name: &str) -> Option<Box<str>> {
        let former = &self.former_names.as_ref()?.cluster;
        let renamed = names::rename(former, names::cluster_of(&self.name), name);
        (names::cluster_of(name) == &**former && *renamed != *name).then_some(renamed)
    }

    /// Tells whether this Service renames what others have on its balancer: once that has its new name, nothing says any more
    /// how theirs was called.
    pub fn renames_all(&self) -> bool {
        self.owner && self.former_names.is_some()
    }

    /// Returns tags of another Service as they are to be.
    pub fn retagged(&self, tags: &[String]) -> Vec<String> {
        let renamed = |tag: &String| self.renamed(tag).filter(|_| self.renames_all() && tag.starts_with(names::PREFIX));
        tags.iter().map(|tag| renamed(tag).map_or_else(|| tag.clone(), Into::into)).collect()
    }

    /// Returns tags with this Service's among them, each once, and all others as they are, but for the name of the cluster.
    pub fn tagged(&self, tags: &[String]) -> Vec<String> {
        let former = |tag: &&String| self.former_names.as_ref().is_none_or(|former| *former.name != ***tag);
        let mut tags = self.retagged(&tags.iter().filter(former).cloned().collect::<Vec<_>>());
        if !tags.iter().any(|tag| **tag == *self.name) {
            tags.push(self.name.to_string());
        }
        tags
    }
}

/// Tells whether a balancer was made for Services and not by a person.
pub fn is_made_for_services(balancer: &LoadBalancer, who: &ServiceKey) -> bool {
    let legacy = !who.uid.is_empty() && *balancer.name == *names::legacy_load_balancer(&who.uid);
    balancer.name.starts_with(names::PREFIX) || legacy
}

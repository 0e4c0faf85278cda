//! Ownership of a load balancer and its listeners, by name and tags.

use openstack_api::octavia::{Listener, LoadBalancer};

use super::{model::ServiceKey, names};

/// How a Service relates to a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOwnership {
    /// True when the load balancer has this Service's name. Others may have listeners on it
    /// nevertheless.
    pub owner: bool,
    /// Name of the Service's load balancer, which is its tag.
    pub name: Box<str>,
    /// The same under a former name of the cluster; `None` unless the load balancer still has it.
    pub former_names: Option<FormerNames>,
}

/// Names under a former name of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerNames {
    /// Former name of the cluster.
    pub cluster: Box<str>,
    /// Former name of the load balancer, and its tag.
    pub name: Box<str>,
}

/// Returns how a Service relates to a load balancer. `published_address`: the Service's status
/// shows an address; then a load balancer that has its name but for the cluster's is its own, and
/// not another cluster's. A copy of a Service has its annotations, but its status shows no address.
pub fn service_ownership(
    cluster: &str,
    who: &ServiceKey,
    published_address: bool,
    load_balancer: &LoadBalancer,
) -> ServiceOwnership {
    let name = names::load_balancer(cluster, &who.namespace, &who.name);
    let legacy =
        !who.uid.is_empty() && *load_balancer.name == *names::legacy_load_balancer(&who.uid);
    let owner = *load_balancer.name == *name || legacy;
    let former = former(cluster, who, load_balancer).filter(|_| published_address && !owner);
    ServiceOwnership {
        owner: owner
            || former
                .as_ref()
                .is_some_and(|former| *former.name == *load_balancer.name),
        name,
        former_names: former,
    }
}

/// Finds the Service's name under a former name of the cluster: it is the load balancer's name or
/// one of its tags.
fn former(cluster: &str, who: &ServiceKey, load_balancer: &LoadBalancer) -> Option<FormerNames> {
    let before = names::cluster_of(&load_balancer.name);
    if before.is_empty() || before == cluster || !load_balancer.name.starts_with(names::PREFIX) {
        return None;
    }
    let name = names::load_balancer(before, &who.namespace, &who.name);
    let has_former_name =
        *load_balancer.name == *name || load_balancer.tags.iter().any(|tag| **tag == *name);
    has_former_name.then(|| FormerNames { cluster: before.into(), name })
}

impl ServiceOwnership {
    /// Returns whether a tag is this Service's.
    pub fn is_own_tag(&self, tag: &str) -> bool {
        *tag == *self.name
            || self
                .former_names
                .as_ref()
                .is_some_and(|former| *former.name == *tag)
    }

    /// Returns whether a listener is this Service's: it has the tag, or no tags at all on a load
    /// balancer of this Service.
    pub fn owns_listener(&self, listener: &Listener) -> bool {
        listener.tags.iter().any(|tag| self.is_own_tag(tag))
            || (listener.tags.is_empty() && self.owner)
    }

    /// Returns whether a load balancer was created for a Service that is deleted, and this one
    /// shares it.
    pub fn is_orphaned_by_owner(&self, load_balancer: &LoadBalancer) -> bool {
        let has = |name: &str| load_balancer.tags.iter().any(|tag| tag == name);
        let listed = load_balancer.tags.iter().any(|tag| self.is_own_tag(tag));
        listed && load_balancer.name.starts_with(names::PREFIX) && !has(&load_balancer.name)
    }

    /// Returns whether a listener has the tag of another Service.
    pub fn is_other_services(&self, listener: &Listener) -> bool {
        listener
            .tags
            .iter()
            .any(|tag| tag.starts_with(names::PREFIX) && !self.is_own_tag(tag))
    }

    /// Returns the tags of other Services.
    pub fn other_service_tags<'a>(
        &'a self,
        load_balancer: &'a LoadBalancer,
    ) -> impl Iterator<Item = &'a str> {
        let tags = load_balancer.tags.iter().map(|tag| &**tag);
        tags.filter(|tag| tag.starts_with(names::PREFIX) && !self.is_own_tag(tag))
    }

    /// Returns the new name of an object that has the cluster's former name in its name; `None` for
    /// all others.
    pub fn renamed(&self, name: &str) -> Option<Box<str>> {
        let former = &self.former_names.as_ref()?.cluster;
        let renamed = names::rename(former, names::cluster_of(&self.name), name);
        (names::cluster_of(name) == &**former && *renamed != *name).then_some(renamed)
    }

    /// Returns whether this Service renames what others have on its load balancer: once that has
    /// its new name, nothing shows the former one any more.
    pub fn renames_all(&self) -> bool {
        self.owner && self.former_names.is_some()
    }

    /// Returns the tags of another Service, with the cluster's new name.
    pub fn retagged(&self, tags: &[String]) -> Vec<String> {
        let renamed = |tag: &String| {
            self.renamed(tag)
                .filter(|_| self.renames_all() && tag.starts_with(names::PREFIX))
        };
        tags.iter()
            .map(|tag| renamed(tag).map_or_else(|| tag.clone(), Into::into))
            .collect()
    }

    /// Returns the tags including this Service's, once. All others stay as they are, except for the
    /// name of the cluster.
    pub fn tagged(&self, tags: &[String]) -> Vec<String> {
        let former = |tag: &&String| {
            self.former_names
                .as_ref()
                .is_none_or(|former| *former.name != ***tag)
        };
        let mut tags = self.retagged(&tags.iter().filter(former).cloned().collect::<Vec<_>>());
        if !tags.iter().any(|tag| **tag == *self.name) {
            tags.push(self.name.to_string());
        }
        tags
    }
}

/// Returns whether a load balancer was created for Services and not by a user.
pub fn is_made_for_services(load_balancer: &LoadBalancer, who: &ServiceKey) -> bool {
    let legacy =
        !who.uid.is_empty() && *load_balancer.name == *names::legacy_load_balancer(&who.uid);
    load_balancer.name.starts_with(names::PREFIX) || legacy
}

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

/// Returns how a Service relates to a load balancer. `shows_address`: the Service's status shows an
/// address; then a load balancer that has its name but for the cluster's is its own, and not another
/// cluster's. A copy of a Service has its annotations, but its status shows no address.
pub fn service_ownership(
    cluster: &str,
    service: &ServiceKey,
    shows_address: bool,
    load_balancer: &LoadBalancer,
) -> ServiceOwnership {
    let name = names::load_balancer(cluster, &service.namespace, &service.name);
    if *load_balancer.name == *name || has_legacy_name(load_balancer, service) {
        return ServiceOwnership { owner: true, name, former_names: None };
    }
    let mut former_names = None;
    if shows_address {
        former_names = find_former_names(cluster, service, load_balancer);
    }
    let owner = former_names
        .as_ref()
        .is_some_and(|former| *former.name == *load_balancer.name);
    ServiceOwnership { owner, name, former_names }
}

/// Returns true if a load balancer has the name that releases before 2018 gave to a Service's.
fn has_legacy_name(load_balancer: &LoadBalancer, service: &ServiceKey) -> bool {
    !service.uid.is_empty() && *load_balancer.name == *names::legacy_load_balancer(&service.uid)
}

/// Finds the Service's name under a former name of the cluster: it is the load balancer's name or
/// one of its tags.
fn find_former_names(
    cluster: &str,
    service: &ServiceKey,
    load_balancer: &LoadBalancer,
) -> Option<FormerNames> {
    let former = names::cluster_of(&load_balancer.name);
    if former.is_empty() || former == cluster || !load_balancer.name.starts_with(names::PREFIX) {
        return None;
    }
    let name = names::load_balancer(former, &service.namespace, &service.name);
    if *load_balancer.name != *name && load_balancer.tags.iter().all(|tag| **tag != *name) {
        return None;
    }
    Some(FormerNames { cluster: former.into(), name })
}

impl ServiceOwnership {
    /// Returns true if a tag is this Service's.
    pub fn is_own_tag(&self, tag: &str) -> bool {
        *tag == *self.name
            || self
                .former_names
                .as_ref()
                .is_some_and(|former| *former.name == *tag)
    }

    /// Returns true if a listener is this Service's: it has the tag, or no tags at all on a load
    /// balancer of this Service.
    pub fn owns_listener(&self, listener: &Listener) -> bool {
        listener.tags.iter().any(|tag| self.is_own_tag(tag))
            || (listener.tags.is_empty() && self.owner)
    }

    /// Returns true if a load balancer was created for a Service that is deleted, and this one
    /// shares it.
    pub fn is_orphaned_by_owner(&self, load_balancer: &LoadBalancer) -> bool {
        let tags = &load_balancer.tags;
        load_balancer.name.starts_with(names::PREFIX)
            && !tags.contains(&load_balancer.name)
            && tags.iter().any(|tag| self.is_own_tag(tag))
    }

    /// Returns true if a listener has the tag of another Service.
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
        let former_cluster = &*self.former_names.as_ref()?.cluster;
        if names::cluster_of(name) != former_cluster {
            return None;
        }
        let renamed = names::rename(former_cluster, names::cluster_of(&self.name), name);
        if *renamed == *name {
            return None;
        }
        Some(renamed)
    }

    /// Returns true if this Service renames what others have on its load balancer: once that has
    /// its new name, nothing shows the former one any more.
    pub fn renames_all(&self) -> bool {
        self.owner && self.former_names.is_some()
    }

    /// Returns the tags of another Service, with the cluster's new name.
    pub fn retagged(&self, tags: &[String]) -> Vec<String> {
        tags.iter()
            .map(|tag| match self.retagged_one(tag) {
                Some(retagged) => retagged.into(),
                None => tag.clone(),
            })
            .collect()
    }

    fn retagged_one(&self, tag: &str) -> Option<Box<str>> {
        if !self.renames_all() || !tag.starts_with(names::PREFIX) {
            return None;
        }
        self.renamed(tag)
    }

    /// Returns the tags including this Service's, once. All others stay as they are, except for the
    /// name of the cluster.
    pub fn tagged(&self, tags: &[String]) -> Vec<String> {
        let mut tags = tags.to_vec();
        if let Some(former) = &self.former_names {
            tags.retain(|tag| **tag != *former.name);
        }
        let mut tags = self.retagged(&tags);
        if !tags.iter().any(|tag| **tag == *self.name) {
            tags.push(self.name.to_string());
        }
        tags
    }
}

/// Returns true if a load balancer was created for Services and not by a user.
pub fn is_made_for_services(load_balancer: &LoadBalancer, service: &ServiceKey) -> bool {
    load_balancer.name.starts_with(names::PREFIX) || has_legacy_name(load_balancer, service)
}

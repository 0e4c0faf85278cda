//! Ownership of a load balancer and its listeners, by name and tags.

use jiff::Timestamp;

use super::{model::ServiceKey, names, retention_tags};
use crate::api::octavia::{Listener, LoadBalancer};

/// The relation of a Service to a load balancer: it owns the load balancer, shares it, or neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOwnership {
    /// True when the load balancer was created for this Service and has its name. Other Services
    /// may share it.
    pub owner: bool,
    /// Name of a load balancer of this Service. It is also the Service's tag on shared ones.
    pub name: Box<str>,
    /// Names from before the cluster was renamed, if the load balancer still has any of them.
    pub former_names: Option<FormerNames>,
    /// While the Service adopts the load balancer: tags with the names of the Services that had it.
    pub adopted_names: Vec<Box<str>>,
}

/// Names that were built with a former name of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerNames {
    /// Former name of the cluster.
    pub cluster: Box<str>,
    /// Former name of the load balancer, and its tag.
    pub name: Box<str>,
}

/// Determines how a Service relates to a load balancer.
///
/// The load balancer may have the Service's name with another cluster's name in it: either the
/// cluster was renamed, or the Service was copied from another cluster together with its
/// annotations. `shows_address` tells the two apart. It is true when the Service's status shows an
/// address, which a copy does not have.
///
/// A load balancer that was let go has no owner, and one that was adopted has only the Service with
/// the UID in its tags, whatever their names are.
pub fn service_ownership(
    cluster: &str,
    service: &ServiceKey,
    shows_address: bool,
    load_balancer: &LoadBalancer,
) -> ServiceOwnership {
    let name = names::load_balancer(cluster, &service.namespace, &service.name);
    let mut ownership = ServiceOwnership {
        owner: false,
        name,
        former_names: None,
        adopted_names: Vec::new(),
    };
    if retention_tags::is_retained(load_balancer)
        || retention_tags::is_adopted_by_other(load_balancer, &service.uid)
    {
        return ownership;
    }
    if *load_balancer.name == *ownership.name || has_legacy_name(load_balancer, service) {
        ownership.owner = true;
        return ownership;
    }
    let is_adopter = retention_tags::is_adopted_by(load_balancer, &service.uid);
    if shows_address || is_adopter {
        ownership.former_names = find_former_names(cluster, service, load_balancer);
    }
    let has_former_name = |former: &FormerNames| *former.name == *load_balancer.name;
    ownership.owner = is_adopter || ownership.former_names.as_ref().is_some_and(has_former_name);
    ownership
}

/// Returns true if a load balancer has the name that upstream gave to this Service's load balancer
/// before 2018.
fn has_legacy_name(load_balancer: &LoadBalancer, service: &ServiceKey) -> bool {
    !service.uid.is_empty() && *load_balancer.name == *names::legacy_load_balancer(&service.uid)
}

/// Looks for the Service's name with a former name of the cluster, in the load balancer's name and
/// tags.
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
    /// Returns the relation of a Service to a load balancer that was let go and that it adopts. It owns
    /// the listeners that the former Services had. Those that people made have other tags.
    #[must_use]
    pub fn adopting(self, load_balancer: &LoadBalancer) -> Self {
        Self {
            owner: true,
            former_names: None,
            adopted_names: retention_tags::former_name_tags(load_balancer),
            ..self
        }
    }

    /// Returns true if a tag names this Service.
    pub fn is_own_tag(&self, tag: &str) -> bool {
        *tag == *self.name
            || self
                .former_names
                .as_ref()
                .is_some_and(|former| *former.name == *tag)
            || self.is_adopted_name(tag)
    }

    /// Returns true if a name is one of a Service that had the load balancer which this one adopts.
    fn is_adopted_name(&self, name: &str) -> bool {
        !self.adopted_names.is_empty()
            && self
                .adopted_names
                .contains(&retention_tags::former_name_tag(name))
    }

    /// Returns true if a listener belongs to this Service. Without tags it belongs to the owner of
    /// the load balancer.
    pub fn owns_listener(&self, listener: &Listener) -> bool {
        listener.tags.iter().any(|tag| self.is_own_tag(tag))
            || (listener.tags.is_empty() && self.owner)
    }

    /// Returns true if this Service shares a load balancer whose owner was deleted.
    pub fn is_orphaned_by_owner(&self, load_balancer: &LoadBalancer) -> bool {
        let tags = &load_balancer.tags;
        load_balancer.name.starts_with(names::PREFIX)
            && !tags.contains(&load_balancer.name)
            && tags.iter().any(|tag| self.is_own_tag(tag))
    }

    /// Returns true if a listener has the tag of another Service.
    pub fn is_of_other_service(&self, listener: &Listener) -> bool {
        listener
            .tags
            .iter()
            .any(|tag| tag.starts_with(names::PREFIX) && !self.is_own_tag(tag))
    }

    /// Returns the tags by which other Services share a load balancer.
    pub fn other_service_tags<'a>(
        &'a self,
        load_balancer: &'a LoadBalancer,
    ) -> impl Iterator<Item = &'a str> {
        let tags = load_balancer.tags.iter().map(|tag| &**tag);
        tags.filter(|tag| tag.starts_with(names::PREFIX) && !self.is_own_tag(tag))
    }

    /// Returns the new name of an object with the cluster's former name in it, or with the name of a
    /// Service that had the load balancer, or `None` if the object needs no new name.
    pub fn new_name(&self, name: &str) -> Option<Box<str>> {
        let owner_at = name.find(names::PREFIX).unwrap_or(name.len());
        if self.is_adopted_name(&name[owner_at..]) && name[owner_at..] != *self.name {
            return Some(names::truncate(&format!("{}{}", &name[..owner_at], self.name)));
        }
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

    /// Returns true if this Service also renames the objects of others on its load balancer. It
    /// must, because the former name of the cluster is lost once the load balancer has its new
    /// name.
    pub fn renames_all(&self) -> bool {
        self.owner && self.former_names.is_some()
    }

    /// Replaces the cluster's former name in the tags of other Services.
    pub fn rename_tags(&self, tags: &[String]) -> Vec<String> {
        tags.iter()
            .map(|tag| match self.new_tag(tag) {
                Some(renamed) => renamed.into(),
                None => tag.clone(),
            })
            .collect()
    }

    fn new_tag(&self, tag: &str) -> Option<Box<str>> {
        if !self.renames_all() || !tag.starts_with(names::PREFIX) {
            return None;
        }
        self.new_name(tag)
    }

    /// Adds this Service's tag to tags that lack it. Others stay, except for the cluster's former
    /// name in them.
    pub fn with_own_tag(&self, tags: &[String]) -> Vec<String> {
        let mut tags = tags.to_vec();
        tags.retain(|tag| **tag == *self.name || !self.is_own_tag(tag));
        let mut tags = self.rename_tags(&tags);
        if !tags.iter().any(|tag| **tag == *self.name) {
            tags.push(self.name.to_string());
        }
        tags
    }
}

/// Adds tags that a Service requests to tags that lack them. Others stay: somebody else may have set
/// them.
pub fn with_requested_tags(mut tags: Vec<String>, requested: &[Box<str>]) -> Vec<String> {
    for tag in requested {
        if !tags.iter().any(|existing| **existing == **tag) {
            tags.push(tag.to_string());
        }
    }
    tags
}

/// Returns the creation time of a load balancer, or `None` if Octavia does not report it.
pub fn created_at(load_balancer: &LoadBalancer) -> Option<Timestamp> {
    parse_time(load_balancer.created_at.as_deref()?)
}

/// Parses a time of Octavia. Without a time zone it is in UTC.
pub fn parse_time(time: &str) -> Option<Timestamp> {
    time.parse()
        .ok()
        .or_else(|| format!("{time}Z").parse().ok())
}

/// Returns true if a load balancer was created for a Service, and not by a user.
pub fn is_made_for_services(load_balancer: &LoadBalancer, service: &ServiceKey) -> bool {
    load_balancer.name.starts_with(names::PREFIX) || has_legacy_name(load_balancer, service)
}

//! Load balancers that were let go, and their adoption. Pure.
//!
//! A Service lets go of its load balancer by one update, which removes the Service's name and tag and
//! sets a mark. From then on no Service finds it by name, and none may use it by its ID, except one
//! that adopts it.
//!
//! An adoption has three steps. First, the load balancer gets the name and tag of its new Service.
//! Then its listeners and pools do. Last, the mark is removed. As long as it has the mark, nobody
//! else may use it, and it is not deleted with its new Service.

use ccm_core::{
    k8s::well_known::{ANNOTATION_ADOPT, ANNOTATION_RETAIN},
    provider::CloudError,
};
use openstack_api::octavia::{ListenerUpdate, LoadBalancerUpdate, Patch, PoolUpdate};

use super::{ActionKind, PlanInput, PlannedAction};
use crate::{
    api::octavia::{Listener, LoadBalancer, Pool},
    lb::{model::DesiredLoadBalancer, names, ownership::ServiceOwnership},
};

/// Tag of a load balancer that was let go.
pub const MARK: &str = "retained-load-balancer";
/// Prefix of the tag with the UID of the Service that let go. The security group of that Service has
/// the UID in its name, and is still needed.
const FORMER_UID: &str = "retained-by-uid-";
/// Prefix of the name. With it no Service finds the load balancer by its name.
const NAME_PREFIX: &str = "retained_";

/// Returns true if a load balancer was let go, and has not been adopted completely.
pub fn is_retained(load_balancer: &LoadBalancer) -> bool {
    load_balancer.tags.iter().any(|tag| tag == MARK)
}

/// Returns the UID of the Service that let go of a load balancer; `None` if none did, or if it has
/// been adopted completely.
pub fn former_uid(load_balancer: &LoadBalancer) -> Option<&str> {
    if !is_retained(load_balancer) {
        return None;
    }
    load_balancer
        .tags
        .iter()
        .find_map(|tag| tag.strip_prefix(FORMER_UID))
}

/// Returns the name that a load balancer gets when its Service lets go of it. `name` is the name of
/// the Service's load balancer.
pub fn retained_name(name: &str) -> Box<str> {
    names::truncate(&format!("{NAME_PREFIX}{name}"))
}

/// A load balancer whose Service asks to keep it, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct RetainInput<'a> {
    /// The load balancer.
    pub load_balancer: &'a LoadBalancer,
    /// Relation of the Service to the load balancer.
    pub ownership: &'a ServiceOwnership,
    /// UID of the Service.
    pub uid: &'a str,
    /// True if it is not in doubt that the load balancer is this Service's, and not a namesake's.
    pub is_proven: bool,
    /// True if listeners on it are other Services'.
    pub has_other_services: bool,
    /// True if Octavia supports tags.
    pub tags: bool,
}

/// Plans the update by which a Service lets go of its load balancer.
///
/// # Errors
/// Returns an error, and nothing is changed, if the load balancer is not certainly the Service's
/// alone, or if Octavia has no tags.
pub fn plan_retain(input: &RetainInput<'_>) -> Result<PlannedAction, CloudError> {
    let RetainInput { load_balancer, ownership, .. } = *input;
    let is_shared =
        input.has_other_services || ownership.other_service_tags(load_balancer).next().is_some();
    let reason = if !input.tags {
        Some("this cloud's load balancers have no tags to mark them by")
    } else if !ownership.owner {
        Some("it was not created for this Service")
    } else if is_shared {
        Some("other Services use it, too")
    } else if !input.is_proven {
        Some("it is not shown to be newer than the Service, which shows no address")
    } else {
        None
    };
    if let Some(reason) = reason {
        return Err(CloudError::invalid_input(format!(
            "load balancer {} cannot be let go, because {reason}; nothing is changed as long as the Service has the \
             annotation {ANNOTATION_RETAIN}",
            load_balancer.id
        )));
    }
    let mut tags = load_balancer.tags.clone();
    tags.retain(|tag| !tag.starts_with(names::PREFIX));
    tags.push(MARK.to_owned());
    if !input.uid.is_empty() {
        tags.push(format!("{FORMER_UID}{}", input.uid));
    }
    let update = LoadBalancerUpdate {
        name: Patch::Set(retained_name(&ownership.name).into()),
        tags: Patch::Set(tags),
        ..LoadBalancerUpdate::default()
    };
    let reason = "its Service lets go of it";
    Ok(PlannedAction::new(ActionKind::UpdateLoadBalancer(update), &*load_balancer.name, reason))
}

/// The error for a Service that adopts a load balancer and has another one, which would be left behind.
pub fn has_another(adopted: &str, own: &str) -> CloudError {
    CloudError::invalid_input(format!(
        "the Service cannot adopt load balancer {adopted}, because it has load balancer {own}"
    ))
}

/// Checks that a Service may use the load balancer that was found for it. `adopted` is the ID that it
/// adopts, and `name` the name of its own load balancer.
///
/// # Errors
/// Returns an error for a load balancer that was let go and that the Service does not adopt, and for
/// one that the Service adopts and that nobody has let go.
pub fn check_use(
    load_balancer: &LoadBalancer,
    name: &str,
    adopted: Option<&str>,
) -> Result<(), CloudError> {
    let LoadBalancer { id, name: current, .. } = load_balancer;
    let is_adopted = adopted == Some(&**id);
    let has_own_name = **current == *name;
    if is_retained(load_balancer) {
        if !is_adopted {
            return Err(CloudError::invalid_input(format!(
                "load balancer {id} was let go by its Service, and belongs to nobody; the annotation {ANNOTATION_ADOPT}: \
                 {id} adopts it"
            )));
        }
        if !has_own_name && current.starts_with(names::PREFIX) {
            return Err(CloudError::invalid_input(format!(
                "load balancer {id} is being adopted by another Service, as {current}"
            )));
        }
    } else if is_adopted && !has_own_name {
        return Err(CloudError::invalid_input(format!(
            "load balancer {id} cannot be adopted, because no Service has let go of it: it is {current}; annotate that \
             Service with {ANNOTATION_RETAIN}: true and delete it"
        )));
    }
    Ok(())
}

/// Plans the adoption of a load balancer that has the mark. What else differs is planned after that.
pub(super) fn plan_adoption(
    input: &PlanInput<'_>,
    desired: &DesiredLoadBalancer,
) -> Vec<PlannedAction> {
    let mut actions = Vec::new();
    actions.extend(plan_claim(input, desired));
    for listener in &input.observed.listeners {
        actions.extend(move_listener(input, listener));
    }
    for pool in &input.observed.pools {
        actions.extend(move_pool(input, pool));
    }
    // The mark goes last.
    let load_balancer = &input.observed.load_balancer;
    let mut tags = with_tag(&load_balancer.tags, input.name);
    tags.retain(|tag| tag != MARK && !tag.starts_with(FORMER_UID));
    let update = LoadBalancerUpdate { tags: Patch::Set(tags), ..LoadBalancerUpdate::default() };
    actions.push(PlannedAction::new(
        ActionKind::UpdateLoadBalancer(update),
        input.name,
        "the Service has adopted it",
    ));
    actions
}

/// Plans to give the load balancer the name and tag of the Service that adopts it.
fn plan_claim(input: &PlanInput<'_>, desired: &DesiredLoadBalancer) -> Option<PlannedAction> {
    let load_balancer = &input.observed.load_balancer;
    let tags = with_tag(&load_balancer.tags, input.name);
    if *load_balancer.name == *input.name && tags == load_balancer.tags {
        return None;
    }
    let update = LoadBalancerUpdate {
        name: Patch::Set(input.name.to_owned()),
        description: Patch::Set(desired.description.to_string()),
        tags: Patch::Set(tags),
        ..LoadBalancerUpdate::default()
    };
    let reason = "the Service adopts it";
    Some(PlannedAction::new(ActionKind::UpdateLoadBalancer(update), &*load_balancer.name, reason))
}

/// Plans to give a listener the name and tag of the Service. Only one Service used the load balancer,
/// so all listeners were its own.
fn move_listener(input: &PlanInput<'_>, listener: &Listener) -> Option<PlannedAction> {
    let mut tags = listener.tags.clone();
    tags.retain(|tag| !tag.starts_with(names::PREFIX));
    let tags = with_tag(&tags, input.name);
    let name = moved_name(&listener.name, input.name);
    if has_same(&tags, &listener.tags) && name.is_none() {
        return None;
    }
    let mut update = ListenerUpdate { tags: Patch::Set(tags), ..ListenerUpdate::default() };
    if let Some(name) = name {
        update.name = Patch::Set(name.into());
    }
    Some(PlannedAction::new(
        ActionKind::UpdateListener(listener.id.clone(), Box::new(update)),
        &*listener.name,
        "the Service adopts its load balancer",
    ))
}

/// Plans to give a pool the name of the Service, by which unused pools are found.
fn move_pool(input: &PlanInput<'_>, pool: &Pool) -> Option<PlannedAction> {
    let name = moved_name(&pool.name, input.name)?;
    let update = PoolUpdate { name: Patch::Set(name.into()), ..PoolUpdate::default() };
    Some(PlannedAction::new(
        ActionKind::UpdatePool(pool.id.clone(), Box::new(update)),
        &*pool.name,
        "the Service adopts its load balancer",
    ))
}

/// Replaces the name of a load balancer in the name of one of its children. Returns `None` if it is
/// not in there, or the right one already.
fn moved_name(child: &str, load_balancer: &str) -> Option<Box<str>> {
    let at = child.find(names::PREFIX)?;
    let moved = names::truncate(&format!("{}{load_balancer}", &child[..at]));
    (*moved != *child).then_some(moved)
}

fn with_tag(tags: &[String], tag: &str) -> Vec<String> {
    let mut tags = tags.to_vec();
    if !tags.iter().any(|existing| existing == tag) {
        tags.push(tag.to_owned());
    }
    tags
}

/// Returns true if both have the same tags, in any order.
fn has_same(a: &[String], b: &[String]) -> bool {
    a.len() == b.len() && a.iter().all(|tag| b.contains(tag))
}

#[cfg(test)]
#[path = "retention_tests.rs"]
mod tests;

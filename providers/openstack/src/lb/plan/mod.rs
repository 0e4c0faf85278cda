//! Plans the actions that change a load balancer from its observed to its desired state. Pure.
//!
//! Only the first action of a plan is applied, and then a new plan is made, because Octavia takes
//! one change at a time and its response is part of the observed state.

mod action;
pub mod floating_ip;
mod listeners;
mod pools;
pub mod recovery;
mod renames;
pub mod retention;

use std::{borrow::Cow, collections::BTreeSet};

use ccm_core::{
    k8s::IpFamily,
    provider::{CloudError, ErrorKind},
};
use openstack_api::octavia::{LoadBalancerUpdate, Patch};

pub use self::action::{ActionKind, PlannedAction, PoolMethod};
pub(in crate::lb) use self::pools::has_members_in_wrong_subnet;
use super::{
    body,
    features::Features,
    model::{DesiredListener, DesiredLoadBalancer, SecurityGroupSpec, transport},
    names,
    ownership::{ServiceOwnership, with_requested_tags},
    retention_tags,
};
use crate::{
    api::octavia::{Listener, Pool},
    lb::{
        desired_members::DesiredMember,
        observed::{ObservedLoadBalancer, family_of},
    },
};

/// Input of a plan besides the desired state.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// Observed state of the load balancer and its children.
    pub observed: &'a ObservedLoadBalancer,
    /// Relation of the Service to the load balancer.
    pub ownership: &'a ServiceOwnership,
    /// Features that the cloud supports.
    pub features: Features,
    /// True when members are changed one by one.
    pub serial_api_calls: bool,
    /// Name of the Service's own load balancer. It is part of the names of children, on shared load
    /// balancers too.
    pub name: &'a str,
    /// ID of the subnet of new members.
    pub subnet: Option<&'a str>,
    /// ID of the subnet that members must be in, if one is set.
    pub exact_subnet: Option<&'a str>,
}

impl<'a> PlanInput<'a> {
    /// Returns the listeners of this Service.
    fn own_listeners(&self) -> impl Iterator<Item = &'a Listener> {
        let ownership = self.ownership;
        self.observed
            .listeners
            .iter()
            .filter(|listener| ownership.owns_listener(listener))
    }

    /// Returns this Service's listener with the desired port and protocol.
    pub fn listener_of(&self, desired: &DesiredListener) -> Option<&'a Listener> {
        self.own_listeners().find(|listener| {
            listener.protocol.as_str() == desired.protocol.as_str()
                && listener.protocol_port == desired.port
        })
    }

    /// Returns this Service's listener that serves a port now, even if it has to be replaced.
    fn current_listener(&self, desired: &DesiredListener) -> Option<&'a Listener> {
        self.own_listeners()
            .find(|listener| has_port_of(listener, desired))
    }

    /// Returns the security group for the ports that are served now, which may be fewer than the
    /// desired ones.
    pub fn current_security_group(
        &self,
        desired: &DesiredLoadBalancer,
    ) -> Option<SecurityGroupSpec> {
        let mut group = desired.security_group.clone()?;
        group
            .ports
            .retain(|(protocol, port)| self.is_served(desired, protocol, *port));
        Some(group)
    }

    /// Returns true if an existing listener sends to a node port.
    fn is_served(&self, desired: &DesiredLoadBalancer, protocol: &str, node_port: u16) -> bool {
        desired.listeners.iter().any(|listener| {
            transport(listener.protocol.as_str()).eq_ignore_ascii_case(protocol)
                && listener.pool.node_port == Some(node_port)
                && self.current_listener(listener).is_some()
        })
    }
}

/// Plans all actions for an existing load balancer. `members` are the desired members of each
/// listener, and `max_shared` is the maximum number of Services on one load balancer.
///
/// # Errors
/// Returns an error if the Service cannot share the load balancer, because the cloud has no tags,
/// there are too many Services, the Service is internal, or a port is in use.
pub fn plan_load_balancer(
    input: &PlanInput<'_>,
    desired: &DesiredLoadBalancer,
    members: &[Vec<DesiredMember>],
    max_shared: usize,
) -> Result<Vec<PlannedAction>, CloudError> {
    let families = input
        .observed
        .addresses()
        .into_iter()
        .map(family_of)
        .collect();
    let desired = &for_address_families(desired, &families);
    check_sharing(input, desired, max_shared)?;
    check_driver(input, desired)?;
    for listener in &desired.listeners {
        check_port_conflict(input, listener)?;
    }
    let mut actions = Vec::new();
    if retention_tags::is_retained(&input.observed.load_balancer) {
        // A load balancer that the Service adopts is claimed before anything else is changed.
        actions.extend(retention::plan_claim(input, desired));
    } else if input.ownership.former_names.is_none() {
        actions.extend(plan_tags(input, desired));
    }
    actions.extend(renames::plan_renames(input));
    // Octavia allows one listener on a port, so the old one is deleted before the new one is
    // created. Other listeners are deleted last, so that the Service is served as long as possible.
    let (blocking, unused): (Vec<_>, Vec<_>) = find_undesired_listeners(input, desired)
        .into_iter()
        .partition(|listener| blocks_new_listener(input, desired, listener));
    for listener in blocking {
        let reason = "its port needs another protocol";
        actions.extend(plan_listener_deletion(input.observed, listener, reason));
    }
    for (listener, members) in desired.listeners.iter().zip(members) {
        actions.extend(plan_listener(input, listener, members));
    }
    for listener in unused {
        actions.extend(plan_listener_deletion(input.observed, listener, "no Service port uses it"));
    }
    actions.extend(plan_unused_pools(input));
    if input.ownership.former_names.is_some() {
        actions.extend(plan_tags(input, desired));
    }
    Ok(actions)
}

/// Plans only the members of existing pools, even if other parts differ.
pub fn plan_members_only(
    input: &PlanInput<'_>,
    desired: &DesiredLoadBalancer,
    members: &[Vec<DesiredMember>],
) -> Vec<PlannedAction> {
    let mut actions = Vec::new();
    for existing in find_existing_pools(input, desired, members) {
        actions.extend(pools::plan_members(
            input,
            existing.listener,
            existing.members,
            Some(existing.pool),
        ));
    }
    actions
}

/// Plans the members of existing pools for an invalid Service. Their port, monitor port and subnet
/// are copied from an existing member, because the Service's own values may be wrong.
pub fn plan_members_of_invalid(
    input: &PlanInput<'_>,
    desired: &DesiredLoadBalancer,
    members: &[Vec<DesiredMember>],
) -> Vec<PlannedAction> {
    let mut actions = Vec::new();
    for existing in find_existing_pools(input, desired, members) {
        let Some(serving) = input
            .observed
            .members
            .get(&existing.pool.id)
            .and_then(|observed| observed.first())
        else {
            continue;
        };
        let members: Vec<_> = existing
            .members
            .iter()
            .map(|member| DesiredMember {
                port: serving.port,
                monitor_port: serving.monitor_port,
                ..member.clone()
            })
            .collect();
        let input = PlanInput {
            subnet: serving.subnet.as_deref().or(input.subnet),
            exact_subnet: None,
            ..*input
        };
        actions.extend(pools::plan_members(
            &input,
            existing.listener,
            &members,
            Some(existing.pool),
        ));
    }
    actions
}

/// A pool that exists, the listener that it serves, and its desired members.
struct ExistingPool<'a> {
    pool: &'a Pool,
    listener: &'a DesiredListener,
    members: &'a [DesiredMember],
}

/// Finds the existing pools of the desired listeners. Ports without a node port are left out. Their
/// desired members are unknown, so the existing ones stay.
fn find_existing_pools<'a>(
    input: &PlanInput<'a>,
    desired: &'a DesiredLoadBalancer,
    members: &'a [Vec<DesiredMember>],
) -> Vec<ExistingPool<'a>> {
    let mut existing = Vec::new();
    for (listener, members) in desired.listeners.iter().zip(members) {
        if listener.pool.node_port.is_some()
            && let Some(current) = input.current_listener(listener)
            && let Some(pool) = input.observed.pool_of(current)
        {
            existing.push(ExistingPool { pool, listener, members });
        }
    }
    existing
}

/// Plans to remove a Service's listeners and tag from a load balancer that stays. `supports_tags` is
/// true if the cloud supports tags.
pub fn plan_removal_from_shared(
    observed: &ObservedLoadBalancer,
    ownership: &ServiceOwnership,
    supports_tags: bool,
    may_remove: impl Fn(&Listener) -> bool,
) -> Vec<PlannedAction> {
    let mut actions = Vec::new();
    let mut keeps_listener = false;
    for listener in &observed.listeners {
        if !ownership.owns_listener(listener) {
            continue;
        }
        if may_remove(listener) {
            actions.extend(plan_listener_deletion(observed, listener, "its Service is deleted"));
        } else {
            keeps_listener = true;
        }
    }
    if keeps_listener {
        return actions;
    }
    let mut other_tags = observed.load_balancer.tags.clone();
    other_tags.retain(|tag| {
        let goes_with_owner = ownership.owner && retention_tags::is_adopter_tag(tag);
        !ownership.is_own_tag(tag) && !goes_with_owner
    });
    if supports_tags && other_tags.len() != observed.load_balancer.tags.len() {
        let update = LoadBalancerUpdate {
            tags: Patch::Set(other_tags),
            ..LoadBalancerUpdate::default()
        };
        actions.push(PlannedAction::new(
            ActionKind::UpdateLoadBalancer(update),
            &*observed.load_balancer.name,
            "the Service of a tag is deleted",
        ));
    }
    actions
}

/// Plans to delete all children of a load balancer, for clouds that do not delete it together with
/// them.
pub fn plan_clear(observed: &ObservedLoadBalancer) -> Vec<PlannedAction> {
    let reason = "its load balancer is to be deleted";
    let mut actions = Vec::new();
    for pool in &observed.pools {
        if let Some(monitor) = &pool.healthmonitor_id {
            let delete_monitor = ActionKind::DeleteMonitor(monitor.clone());
            actions.push(PlannedAction::new(delete_monitor, &**monitor, reason));
        }
        let delete_pool = ActionKind::DeletePool(pool.id.clone());
        actions.push(PlannedAction::new(delete_pool, &*pool.name, reason));
    }
    for listener in &observed.listeners {
        let delete_listener = ActionKind::DeleteListener(listener.id.clone());
        actions.push(PlannedAction::new(delete_listener, &*listener.name, reason));
    }
    actions
}

/// Checks that this Service may use the load balancer.
fn check_sharing(
    input: &PlanInput<'_>,
    desired: &DesiredLoadBalancer,
    max_shared: usize,
) -> Result<(), CloudError> {
    let load_balancer = &input.observed.load_balancer;
    let ownership = input.ownership;
    if ownership.owner {
        return Ok(());
    }
    let id = &load_balancer.id;
    if !input.features.tags {
        return Err(CloudError::invalid_input(format!(
            "load balancer {id} is not this Service's, and this cloud has no tags to share it by"
        )));
    }
    if desired.internal {
        let message = format!("internal Service cannot share load balancer {id}");
        return Err(CloudError::invalid_input(message));
    }
    let is_tagged = load_balancer
        .tags
        .iter()
        .any(|tag| ownership.is_own_tag(tag));
    let others = ownership.other_service_tags(load_balancer).count();
    if !is_tagged && others + 1 > max_shared {
        return Err(CloudError::invalid_input(format!(
            "load balancer {id} already has {others} Services, and max-shared-lb is {max_shared}"
        )));
    }
    Ok(())
}

/// Returns the desired state of a load balancer that has addresses of these families only. A second
/// address cannot be added to an existing load balancer.
///
/// Client networks of the other family are left out, because Octavia rejects them. If nothing would
/// be left, the networks stay: Octavia takes an empty list as "no restriction".
pub fn for_address_families<'a>(
    desired: &'a DesiredLoadBalancer,
    families: &BTreeSet<IpFamily>,
) -> Cow<'a, DesiredLoadBalancer> {
    if desired.create_settings.second_vip.is_none() || families.len() != 1 {
        return Cow::Borrowed(desired);
    }
    let mut desired = desired.clone();
    for listener in &mut desired.listeners {
        if let Some(allowed) = &mut listener.allowed
            && allowed
                .iter()
                .any(|network| families.contains(&IpFamily::of(network)))
        {
            allowed.retain(|network| families.contains(&IpFamily::of(network)));
        }
    }
    Cow::Owned(desired)
}

/// Checks that the load balancer has the driver that the Service itself requests. The driver cannot
/// change, and what the Service requests was read for the requested one.
fn check_driver(input: &PlanInput<'_>, desired: &DesiredLoadBalancer) -> Result<(), CloudError> {
    let load_balancer = &input.observed.load_balancer;
    let Some(requested) = &desired.requested_driver else {
        return Ok(());
    };
    if load_balancer.provider.is_empty() || requested.is_same(&load_balancer.provider) {
        return Ok(());
    }
    Err(CloudError::invalid_input(format!(
        "load balancer {} has the provider {}, and the Service requests {}: a provider cannot change",
        load_balancer.id,
        load_balancer.provider,
        requested.as_str()
    )))
}

/// Returns true if a listener is on the port of a desired one. Like Octavia, compares transports,
/// where HTTP counts as TCP.
fn has_port_of(observed: &Listener, desired: &DesiredListener) -> bool {
    transport(observed.protocol.as_str()) == transport(desired.protocol.as_str())
        && observed.protocol_port == desired.port
}

/// Checks that no listener of another Service is on the port.
pub fn check_port_conflict(
    input: &PlanInput<'_>,
    desired: &DesiredListener,
) -> Result<(), CloudError> {
    let on_port = input
        .observed
        .listeners
        .iter()
        .find(|observed| has_port_of(observed, desired));
    if on_port.is_none_or(|listener| input.ownership.owns_listener(listener)) {
        return Ok(());
    }
    let port = desired.label();
    let id = &input.observed.load_balancer.id;
    let message = format!("the listener port {port} already exists on load balancer {id}");
    Err(CloudError::new(ErrorKind::Conflict, message))
}

/// Plans to set the Service's tag on the load balancer, and the tags that the owner requests. If the
/// cluster was renamed, also plans the new name.
fn plan_tags(input: &PlanInput<'_>, desired: &DesiredLoadBalancer) -> Option<PlannedAction> {
    let load_balancer = &input.observed.load_balancer;
    let ownership = input.ownership;
    let mut update = LoadBalancerUpdate::default();
    let mut reasons = Vec::new();
    let own = ownership.with_own_tag(&load_balancer.tags);
    if own != load_balancer.tags {
        reasons.push("the Service's tag is missing");
    }
    // Others that share the load balancer do not decide about its tags.
    let requested: &[Box<str>] = if ownership.owner { &desired.tags } else { &[] };
    let tags = with_requested_tags(own.clone(), requested);
    if tags != own {
        reasons.push("a requested tag is missing");
    }
    if input.features.tags && !reasons.is_empty() {
        update.tags = Patch::Set(tags);
    } else {
        reasons.clear();
    }
    if let Some(former) = &ownership.former_names
        && *former.name == *load_balancer.name
    {
        update.name = Patch::Set(ownership.name.to_string());
        reasons.push("the cluster was renamed");
    }
    if reasons.is_empty() {
        return None;
    }
    Some(PlannedAction::new(
        ActionKind::UpdateLoadBalancer(update),
        &*load_balancer.name,
        reasons.join(", "),
    ))
}

/// Plans one listener with its pool.
fn plan_listener(
    input: &PlanInput<'_>,
    desired: &DesiredListener,
    members: &[DesiredMember],
) -> Vec<PlannedAction> {
    let mut actions = Vec::new();
    let observed = input.listener_of(desired);
    match observed {
        None => {
            let body = Box::new(body::listener(desired, input.name, input.features));
            actions.push(PlannedAction::new(
                ActionKind::CreateListener(body),
                names::listener(desired.index, input.name),
                format!("port {} has none", desired.label()),
            ));
        }
        Some(listener) => {
            if let Some((update, fields)) = listeners::diff_listener(input, desired, listener) {
                actions.push(PlannedAction::new(
                    ActionKind::UpdateListener(listener.id.clone(), Box::new(update)),
                    &*listener.name,
                    format!("differs: {}", fields.join(", ")),
                ));
            }
        }
    }
    let pool = observed.and_then(|listener| input.observed.pool_of(listener));
    actions.extend(pools::plan_pool(input, desired, members, pool));
    actions
}

/// Finds listeners of this Service that no port of the Service needs.
fn find_undesired_listeners<'a>(
    input: &PlanInput<'a>,
    desired: &DesiredLoadBalancer,
) -> Vec<&'a Listener> {
    let used: BTreeSet<&str> = desired
        .listeners
        .iter()
        .filter_map(|listener| input.listener_of(listener))
        .map(|observed| &*observed.id)
        .collect();
    input
        .own_listeners()
        .filter(|listener| !used.contains(&*listener.id))
        .collect()
}

/// Returns true if a listener is on the port of a desired listener that has to be created.
fn blocks_new_listener(
    input: &PlanInput<'_>,
    desired: &DesiredLoadBalancer,
    observed: &Listener,
) -> bool {
    desired
        .listeners
        .iter()
        .any(|listener| input.listener_of(listener).is_none() && has_port_of(observed, listener))
}

/// Plans to delete a listener. Its pool is deleted first, because a pool without its listener is
/// hard to find again after an interruption.
fn plan_listener_deletion(
    observed: &ObservedLoadBalancer,
    listener: &Listener,
    reason: &str,
) -> Vec<PlannedAction> {
    let mut actions = Vec::new();
    if let Some(pool) = observed.pool_of(listener)
        && !serves_another_listener(observed, pool, listener)
    {
        let delete_pool = ActionKind::DeletePool(pool.id.clone());
        actions.push(PlannedAction::new(delete_pool, &*pool.name, reason));
    }
    let delete_listener = ActionKind::DeleteListener(listener.id.clone());
    actions.push(PlannedAction::new(delete_listener, &*listener.name, reason));
    actions
}

/// Plans to delete pools with this Service's name that serve no listener. An interrupted sync may
/// have left them.
fn plan_unused_pools(input: &PlanInput<'_>) -> Vec<PlannedAction> {
    let mut actions = Vec::new();
    for pool in &input.observed.pools {
        if names::is_pool_of(&pool.name, input.name) && !serves_listener(input.observed, pool) {
            let delete_pool = ActionKind::DeletePool(pool.id.clone());
            actions.push(PlannedAction::new(delete_pool, &*pool.name, "it serves no listener"));
        }
    }
    actions
}

/// Returns true if a pool serves another listener than this one.
fn serves_another_listener(
    observed: &ObservedLoadBalancer,
    pool: &Pool,
    listener: &Listener,
) -> bool {
    let mut parents = pool.listeners.iter().flatten();
    let mut others = observed
        .listeners
        .iter()
        .filter(|other| other.id != listener.id);
    parents.any(|parent| parent.id != listener.id)
        || others.any(|other| other.default_pool_id.as_deref() == Some(&*pool.id))
}

/// Returns true if a pool serves a listener, or does not show whether it does.
fn serves_listener(observed: &ObservedLoadBalancer, pool: &Pool) -> bool {
    pool.listeners
        .as_ref()
        .is_none_or(|listeners| !listeners.is_empty())
        || observed
            .listeners
            .iter()
            .any(|listener| listener.default_pool_id.as_deref() == Some(&*pool.id))
}

#[cfg(test)]
mod tests;

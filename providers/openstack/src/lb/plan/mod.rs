//! Plans the actions that bring a load balancer from its observed to its desired state. Pure: both
//! states go in, actions come out. Only the first action is applied before the plan is made again,
//! because Octavia takes one change at a time and its answer is part of the observed state.

mod action;
pub mod floating_ip;
mod listeners;
mod pools;

use std::collections::BTreeSet;

use ccm_core::provider::{CloudError, ErrorKind};
use openstack_api::octavia::{
    HealthMonitorUpdate, Listener, ListenerUpdate, LoadBalancerUpdate, Patch, Pool, PoolUpdate,
};

pub use self::action::{ActionKind, PlannedAction, PoolMethod};
use super::{
    body,
    features::Features,
    model::{DesiredListener, DesiredLoadBalancer, SecurityGroupSpec, transport},
    names,
    ownership::ServiceOwnership,
};
use crate::lb::{desired_members::DesiredMember, observed::ObservedLoadBalancer};

/// Input of a plan besides the desired state.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// Observed state.
    pub observed: &'a ObservedLoadBalancer,
    /// How the Service relates to the load balancer.
    pub ownership: &'a ServiceOwnership,
    /// What the cloud supports.
    pub features: Features,
    /// True when members are changed one by one.
    pub serial_api_calls: bool,
    /// Name in the names of children: the Service's, on shared load balancers too.
    pub name: &'a str,
    /// Subnet of new members.
    pub subnet: Option<&'a str>,
    /// Subnet that members must be in, if one is set.
    pub exact_subnet: Option<&'a str>,
}

impl<'a> PlanInput<'a> {
    /// Returns this Service's listener with the desired port and protocol.
    pub fn listener_of(&self, desired: &DesiredListener) -> Option<&'a Listener> {
        let key = (desired.protocol.as_str(), desired.port);
        let mut mine = self
            .observed
            .listeners
            .iter()
            .filter(|listener| self.ownership.owns_listener(listener));
        mine.find(|listener| (listener.protocol.as_str(), listener.protocol_port) == key)
    }

    /// Returns this Service's listener that serves a port now, although it may have to be replaced.
    fn current_listener(&self, desired: &DesiredListener) -> Option<&'a Listener> {
        let mut mine = self
            .observed
            .listeners
            .iter()
            .filter(|listener| self.ownership.owns_listener(listener));
        mine.find(|listener| has_port_of(listener, desired))
    }

    /// Returns what the security group has to admit for the ports that are served now.
    pub fn current_security_group(
        &self,
        desired: &DesiredLoadBalancer,
    ) -> Option<SecurityGroupSpec> {
        let is_served = |(protocol, port): &(&str, u16)| {
            let leads_there = |listener: &&DesiredListener| {
                let transport = transport(listener.protocol.as_str());
                transport.eq_ignore_ascii_case(protocol) && listener.pool.node_port == Some(*port)
            };
            desired
                .listeners
                .iter()
                .filter(leads_there)
                .any(|listener| self.current_listener(listener).is_some())
        };
        let group = desired.security_group.as_ref()?;
        Some(SecurityGroupSpec {
            ports: group.ports.iter().copied().filter(is_served).collect(),
            ..group.clone()
        })
    }
}

/// Plans everything of an existing load balancer. `members`: by listener; `most`: how many Services
/// may share it.
///
/// # Errors
/// The load balancer cannot be shared like this: no tags, too many Services, an internal Service, a
/// port in use.
pub fn plan(
    input: &PlanInput<'_>,
    desired: &DesiredLoadBalancer,
    members: &[Vec<DesiredMember>],
    most: usize,
) -> Result<Vec<PlannedAction>, CloudError> {
    check_sharing(input, desired, most)?;
    for listener in &desired.listeners {
        check_port_conflict(input, listener)?;
    }
    let mut steps = Vec::new();
    if input.ownership.former_names.is_none() {
        steps.extend(own_tag(input));
    }
    steps.extend(renamed_children(input));
    let (in_the_way, others): (Vec<_>, Vec<_>) =
        unwanted_listeners(input, desired).partition(|observed| {
            let mut missing = desired
                .listeners
                .iter()
                .filter(|wanted| input.listener_of(wanted).is_none());
            missing.any(|wanted| has_port_of(observed, wanted))
        });
    // Octavia allows one listener on a port: the old one is deleted first.
    for listener in in_the_way {
        steps.extend(delete_listener(
            input.observed,
            listener,
            "another protocol is wanted on its port",
        ));
    }
    for (listener, members) in desired.listeners.iter().zip(members) {
        steps.extend(one_listener(input, listener, members));
    }
    for listener in others {
        steps.extend(delete_listener(input.observed, listener, "no port wants it"));
    }
    steps.extend(unused_pools(input));
    if input.ownership.former_names.is_some() {
        steps.extend(own_tag(input));
    }
    Ok(steps)
}

/// Plans only the members of existing pools, whatever else has to change.
pub fn plan_members_only(
    input: &PlanInput<'_>,
    desired: &DesiredLoadBalancer,
    members: &[Vec<DesiredMember>],
) -> Vec<PlannedAction> {
    let one = |(wanted, members, pool): (&DesiredListener, &Vec<DesiredMember>, &Pool)| {
        pools::plan_members(input, wanted, members, Some(pool))
    };
    pools_there(input, desired, members).flat_map(one).collect()
}

/// Plans the members of existing pools for an invalid Service. Their port, monitor port and subnet
/// are copied from a member that serves, because the Service's own may be wrong.
pub fn plan_members_of_invalid(
    input: &PlanInput<'_>,
    desired: &DesiredLoadBalancer,
    members: &[Vec<DesiredMember>],
) -> Vec<PlannedAction> {
    let one = |(wanted, members, pool): (&DesiredListener, &Vec<DesiredMember>, &Pool)| {
        let Some(first) = input
            .observed
            .members
            .get(&pool.id)
            .and_then(|observed| observed.first())
        else {
            return Vec::new();
        };
        let like = |member: &DesiredMember| DesiredMember {
            port: first.port,
            monitor_port: first.monitor_port,
            ..member.clone()
        };
        let members: Vec<_> = members.iter().map(like).collect();
        let side = PlanInput {
            subnet: first.subnet.as_deref().or(input.subnet),
            exact_subnet: None,
            ..*input
        };
        pools::plan_members(&side, wanted, &members, Some(pool))
    };
    pools_there(input, desired, members).flat_map(one).collect()
}

/// Returns the existing pools, each with the listener that it serves and its desired members. Ports
/// without a node port are left out: their members are not known, so those that serve stay.
fn pools_there<'a>(
    input: &'a PlanInput<'_>,
    desired: &'a DesiredLoadBalancer,
    members: &'a [Vec<DesiredMember>],
) -> impl Iterator<Item = (&'a DesiredListener, &'a Vec<DesiredMember>, &'a Pool)> {
    let there = |(wanted, members): (&'a DesiredListener, &'a Vec<DesiredMember>)| {
        let pool = input
            .current_listener(wanted)
            .and_then(|listener| input.observed.pool_of(listener))?;
        wanted
            .pool
            .node_port
            .is_some()
            .then_some((wanted, members, pool))
    };
    desired.listeners.iter().zip(members).filter_map(there)
}

/// Plans to remove a Service's listeners and tag from a load balancer that stays.
pub fn plan_removal_from_shared(
    observed: &ObservedLoadBalancer,
    ownership: &ServiceOwnership,
    tags: bool,
) -> Vec<PlannedAction> {
    let mine = observed
        .listeners
        .iter()
        .filter(|listener| ownership.owns_listener(listener));
    let mut steps: Vec<_> = mine
        .flat_map(|listener| delete_listener(observed, listener, "its Service is gone"))
        .collect();
    let left: Vec<String> = observed
        .load_balancer
        .tags
        .iter()
        .filter(|tag| !ownership.is_own_tag(tag))
        .cloned()
        .collect();
    if tags && left.len() != observed.load_balancer.tags.len() {
        let update = LoadBalancerUpdate { tags: Patch::Set(left), ..LoadBalancerUpdate::default() };
        steps.push(PlannedAction::new(
            ActionKind::UpdateLoadBalancer(update),
            &*observed.load_balancer.name,
            "the Service of a tag is gone",
        ));
    }
    steps
}

/// Plans to remove everything from a load balancer that is to be deleted.
pub fn plan_clear(observed: &ObservedLoadBalancer) -> Vec<PlannedAction> {
    let mut steps = Vec::new();
    for pool in &observed.pools {
        if let Some(monitor) = &pool.monitor.healthmonitor_id {
            let change = ActionKind::DeleteMonitor(monitor.clone());
            steps.push(PlannedAction::new(
                change,
                &**monitor,
                "its load balancer is to be deleted",
            ));
        }
        let change = ActionKind::DeletePool(pool.id.clone());
        steps.push(PlannedAction::new(change, &*pool.name, "its load balancer is to be deleted"));
    }
    for listener in &observed.listeners {
        let change = ActionKind::DeleteListener(listener.id.clone());
        steps.push(PlannedAction::new(
            change,
            &*listener.name,
            "its load balancer is to be deleted",
        ));
    }
    steps
}

/// Checks that this Service may use the load balancer.
fn check_sharing(
    input: &PlanInput<'_>,
    desired: &DesiredLoadBalancer,
    most: usize,
) -> Result<(), CloudError> {
    let load_balancer = &input.observed.load_balancer;
    let ownership = input.ownership;
    if ownership.owner {
        return Ok(());
    }
    let refuse = |message: String| Err(CloudError::invalid_input(message));
    let id = &load_balancer.id;
    if !input.features.tags {
        return refuse(format!(
            "load balancer {id} is not this Service's, and this cloud has no tags to share it by"
        ));
    }
    if desired.internal {
        return refuse(format!("internal Service cannot share load balancer {id}"));
    }
    let others = ownership.other_service_tags(load_balancer).count();
    let listed = load_balancer.tags.iter().any(|t| ownership.is_own_tag(t));
    if !listed && others + 1 > most {
        return refuse(format!(
            "load balancer {id} already has {others} Services, and max-shared-lb is {most}"
        ));
    }
    Ok(())
}

/// Returns whether a listener is on the port of a desired one. Octavia compares transports: HTTP
/// counts as TCP.
fn has_port_of(observed: &Listener, desired: &DesiredListener) -> bool {
    let place = (transport(observed.protocol.as_str()), observed.protocol_port);
    place == (transport(desired.protocol.as_str()), desired.port)
}

/// Checks that no listener of another Service has the port.
pub fn check_port_conflict(
    input: &PlanInput<'_>,
    desired: &DesiredListener,
) -> Result<(), CloudError> {
    match input
        .observed
        .listeners
        .iter()
        .find(|observed| has_port_of(observed, desired))
    {
        Some(seen) if !input.ownership.owns_listener(seen) => {
            let port = desired.label();
            let id = &input.observed.load_balancer.id;
            let message = format!("the listener port {port} already exists on load balancer {id}");
            Err(CloudError::new(ErrorKind::Conflict, message))
        }
        _ => Ok(()),
    }
}

/// Plans to set the Service's tag on the load balancer, and its new name if the cluster was
/// renamed.
fn own_tag(input: &PlanInput<'_>) -> Option<PlannedAction> {
    let load_balancer = &input.observed.load_balancer;
    let ownership = input.ownership;
    let mut update = LoadBalancerUpdate::default();
    let mut why = Vec::new();
    let tags = ownership.tagged(&load_balancer.tags);
    if input.features.tags && tags != load_balancer.tags {
        update.tags = Patch::Set(tags);
        why.push("the Service's tag is missing");
    }
    if let Some(former) = &ownership.former_names
        && *former.name == *load_balancer.name
    {
        update.name = Patch::Set(ownership.name.to_string());
        why.push("the cluster was renamed");
    }
    (!why.is_empty()).then(|| {
        PlannedAction::new(
            ActionKind::UpdateLoadBalancer(update),
            &*load_balancer.name,
            why.join(", "),
        )
    })
}

/// Plans to put the cluster's new name into the names of this Service's listeners, pools and
/// monitors, and on its own load balancer into those of others too. The tags of this Service's
/// listeners are compared with their other fields.
fn renamed_children(input: &PlanInput<'_>) -> Vec<PlannedAction> {
    let ownership = input.ownership;
    let goes_along =
        |listener: &&Listener| ownership.owns_listener(listener) || ownership.renames_all();
    let why = "the cluster was renamed";
    let mut steps = Vec::new();
    for listener in input.observed.listeners.iter().filter(goes_along) {
        let pool = input.observed.pool_of(listener);
        if let Some(monitor) = pool.and_then(|pool| input.observed.monitor_of(pool))
            && let Some(name) = ownership.renamed(&monitor.name)
        {
            let update = HealthMonitorUpdate {
                name: Patch::Set(name.into()),
                ..HealthMonitorUpdate::default()
            };
            let change = ActionKind::UpdateMonitor(monitor.id.clone(), Box::new(update));
            steps.push(PlannedAction::new(change, &*monitor.name, why));
        }
        if let Some(pool) = pool
            && let Some(name) = ownership.renamed(&pool.name)
        {
            let update = PoolUpdate { name: Patch::Set(name.into()), ..PoolUpdate::default() };
            steps.push(PlannedAction::new(
                ActionKind::UpdatePool(pool.id.clone(), Box::new(update)),
                &*pool.name,
                why,
            ));
        }
        steps.extend(renamed_listener(input, listener, why));
    }
    steps
}

fn renamed_listener(
    input: &PlanInput<'_>,
    listener: &Listener,
    why: &str,
) -> Option<PlannedAction> {
    let ownership = input.ownership;
    let mine = ownership.owns_listener(listener);
    let tags = if mine {
        ownership.tagged(&listener.tags)
    } else {
        ownership.retagged(&listener.tags)
    };
    let name = ownership.renamed(&listener.name);
    // For listeners of others the tags alone may be left to change.
    if name.is_none() && (mine || !input.features.tags || tags == listener.tags) {
        return None;
    }
    let update = ListenerUpdate {
        name: name.map_or(Patch::Keep, |name| Patch::Set(name.into())),
        tags: if input.features.tags {
            Patch::Set(tags)
        } else {
            Patch::Keep
        },
        ..ListenerUpdate::default()
    };
    Some(PlannedAction::new(
        ActionKind::UpdateListener(listener.id.clone(), Box::new(update)),
        &*listener.name,
        why,
    ))
}

fn one_listener(
    input: &PlanInput<'_>,
    desired: &DesiredListener,
    members: &[DesiredMember],
) -> Vec<PlannedAction> {
    let mut steps = Vec::new();
    let observed = input.listener_of(desired);
    match observed {
        None => {
            let body = Box::new(body::listener(desired, input.name, input.features));
            let name = names::listener(desired.index, input.name);
            steps.push(PlannedAction::new(
                ActionKind::CreateListener(body),
                name,
                format!("port {} has none", desired.label()),
            ));
        }
        Some(seen) => {
            if let Some((update, why)) = listeners::differences(input, desired, seen) {
                let change = ActionKind::UpdateListener(seen.id.clone(), Box::new(update));
                steps.push(PlannedAction::new(
                    change,
                    &*seen.name,
                    format!("differs: {}", why.join(", ")),
                ));
            }
        }
    }
    let pool = observed.and_then(|listener| input.observed.pool_of(listener));
    steps.extend(pools::plan(input, desired, members, pool));
    steps
}

/// Returns listeners of this Service that no port needs.
fn unwanted_listeners<'a>(
    input: &'a PlanInput<'a>,
    desired: &'a DesiredLoadBalancer,
) -> impl Iterator<Item = &'a Listener> {
    let used: BTreeSet<&str> = desired
        .listeners
        .iter()
        .filter_map(|wanted| input.listener_of(wanted))
        .map(|observed| &*observed.id)
        .collect();
    let mine = input
        .observed
        .listeners
        .iter()
        .filter(|listener| input.ownership.owns_listener(listener));
    mine.filter(move |listener| !used.contains(&*listener.id))
}

/// Plans to delete a listener: its pool first, since a pool without its listener is hard to find
/// again.
fn delete_listener(
    observed: &ObservedLoadBalancer,
    listener: &Listener,
    why: &str,
) -> Vec<PlannedAction> {
    let pool = observed
        .pool_of(listener)
        .filter(|pool| pool.listeners.iter().all(|of| of.id == listener.id));
    let pool = pool
        .map(|pool| PlannedAction::new(ActionKind::DeletePool(pool.id.clone()), &*pool.name, why));
    let listener =
        PlannedAction::new(ActionKind::DeleteListener(listener.id.clone()), &*listener.name, why);
    pool.into_iter().chain([listener]).collect()
}

/// Plans to delete pools that are named as this Service's and serve no listener.
fn unused_pools<'a>(input: &'a PlanInput<'a>) -> impl Iterator<Item = PlannedAction> + 'a {
    let is_used = |pool: &Pool| {
        let by = |listener: &Listener| listener.default_pool_id.as_deref() == Some(&*pool.id);
        !pool.listeners.is_empty() || input.observed.listeners.iter().any(by)
    };
    let orphaned = input
        .observed
        .pools
        .iter()
        .filter(move |pool| names::is_pool_of(&pool.name, input.name) && !is_used(pool));
    orphaned.map(|pool| {
        PlannedAction::new(
            ActionKind::DeletePool(pool.id.clone()),
            &*pool.name,
            "it serves no listener",
        )
    })
}

#[cfg(test)]
mod tests;

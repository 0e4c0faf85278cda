//! Applies one action of a plan and updates the observed state.

use openstack_api::octavia::{ListenerCreate, PoolCreate, ProvisioningStatus};
use serde::Serialize;
use serde_json::Value;

use super::{
    api::Api,
    plan::{ActionKind, PlannedAction},
};
use crate::{
    api::octavia::{HealthMonitor, Listener, LoadBalancer, Member, Pool},
    client::OpenStackError,
    lb::observed::{ObservedLoadBalancer, ObservedMember},
};

/// Result of applying an action.
pub(super) enum ApplyResult {
    /// Octavia accepted the change, and the load balancer is busy with it.
    Done,
    /// The object does not exist, or has changed since it was read. It has to be read and planned
    /// again.
    Replan,
}

/// Sends the request of an action. If Octavia accepts it, the observed state is updated with the
/// response, and shows a busy load balancer. After an error it is unchanged.
// length: one arm for each kind of change
pub(super) async fn apply(
    api: Api<'_>,
    observed: &mut ObservedLoadBalancer,
    action: &PlannedAction,
) -> Result<ApplyResult, OpenStackError> {
    let call = action.kind.call();
    let object = &*action.object;
    let reason = &*action.reason;
    match &action.kind {
        ActionKind::UpdateLoadBalancer(update) => {
            let id = observed.load_balancer.id.clone();
            // An update replaces all tags, and another Service may have added its own since they
            // were read.
            if !update.tags.is_keep() {
                let current = api.load_balancer(&id).await?;
                if current.is_none_or(|current| current.tags != observed.load_balancer.tags) {
                    return Ok(ApplyResult::Replan);
                }
            }
            let updated: LoadBalancer = api
                .update(call, &["loadbalancers", &id], update, reason)
                .await?;
            observed.load_balancer = updated;
        }
        ActionKind::CreateListener(body) => {
            let body = ListenerCreate {
                loadbalancer_id: Some(observed.load_balancer.id.clone()),
                ..(**body).clone()
            };
            let created: Listener = api
                .create(call, &["listeners"], to_json(&body), (object, reason))
                .await?;
            observed.listeners.push(created);
        }
        ActionKind::UpdateListener(id, update) => {
            let updated: Listener = api.update(call, &["listeners", id], update, reason).await?;
            replace(&mut observed.listeners, |listener| listener.id == *id, updated);
        }
        ActionKind::DeleteListener(id) => {
            api.delete(call, &["listeners", id], reason).await?;
            observed.remove_listener(id);
        }
        ActionKind::CreatePool(Some(listener), body) => {
            let body = PoolCreate { listener_id: Some(listener.clone()), ..(**body).clone() };
            let created: Pool = api
                .create(call, &["pools"], to_json(&body), (object, reason))
                .await?;
            observed.members.insert(created.id.clone(), Vec::new());
            for parent in &mut observed.listeners {
                if parent.id == *listener {
                    parent.default_pool_id = Some(created.id.clone());
                }
            }
            observed.pools.push(created);
        }
        ActionKind::UpdatePool(id, update) => {
            let updated: Pool = api.update(call, &["pools", id], update, reason).await?;
            replace(&mut observed.pools, |pool| pool.id == *id, updated);
        }
        ActionKind::DeletePool(id) => {
            api.delete(call, &["pools", id], reason).await?;
            observed.remove_pool(id);
        }
        ActionKind::SetMembers(Some(pool), members) => {
            api.set_members(pool, members, reason).await?;
            observed
                .members
                .insert(pool.clone(), members.iter().map(ObservedMember::from).collect());
        }
        ActionKind::CreateMember(Some(pool), body) => {
            let created: Member = api
                .create(call, &["pools", pool, "members"], to_json(body), (object, reason))
                .await?;
            observed
                .members
                .entry(pool.clone())
                .or_default()
                .push(created.into());
        }
        ActionKind::UpdateMember(pool, id, update) => {
            let updated: Member = api
                .update(call, &["pools", pool, "members", id], update, reason)
                .await?;
            let members = observed.members.entry(pool.clone()).or_default();
            replace(members, |member| member.id.as_deref() == Some(&**id), updated.into());
        }
        ActionKind::DeleteMember(pool, id) => {
            api.delete(call, &["pools", pool, "members", id], reason)
                .await?;
            let members = observed.members.entry(pool.clone()).or_default();
            members.retain(|member| member.id.as_deref() != Some(&**id));
        }
        ActionKind::CreateMonitor(Some(pool), body) => {
            let mut body = to_json(body);
            body["pool_id"] = Value::from(pool.as_str());
            let created: HealthMonitor = api
                .create(call, &["healthmonitors"], body, (object, reason))
                .await?;
            set_monitor(observed, pool, Some(created));
        }
        ActionKind::UpdateMonitor(id, update) => {
            let updated: HealthMonitor = api
                .update(call, &["healthmonitors", id], update, reason)
                .await?;
            observed.monitors.insert(id.clone(), updated);
        }
        ActionKind::DeleteMonitor(id) => {
            api.delete(call, &["healthmonitors", id], reason).await?;
            let pool = observed
                .pools
                .iter()
                .find(|pool| pool.healthmonitor_id.as_deref() == Some(id));
            if let Some(pool) = pool.map(|pool| pool.id.clone()) {
                set_monitor(observed, &pool, None);
            }
        }
        ActionKind::CreatePool(None, _)
        | ActionKind::SetMembers(None, _)
        | ActionKind::CreateMember(None, _)
        | ActionKind::CreateMonitor(None, _) => return Ok(ApplyResult::Replan),
    }
    // Octavia is busy with the change from here on.
    observed.load_balancer.provisioning_status = ProvisioningStatus::PendingUpdate;
    Ok(ApplyResult::Done)
}

/// Replaces the first object that matches.
fn replace<T>(objects: &mut [T], matches: impl Fn(&T) -> bool, updated: T) {
    if let Some(object) = objects.iter_mut().find(|object| matches(object)) {
        *object = updated;
    }
}

/// Sets or removes the monitor of a pool in the observed state.
fn set_monitor(observed: &mut ObservedLoadBalancer, pool: &str, monitor: Option<HealthMonitor>) {
    for parent in observed.pools.iter_mut().filter(|parent| parent.id == pool) {
        let healthmonitor_id = monitor.as_ref().map(|monitor| monitor.id.clone());
        let previous = std::mem::replace(&mut parent.healthmonitor_id, healthmonitor_id);
        if let Some(id) = previous {
            observed.monitors.remove(&id);
        }
    }
    if let Some(monitor) = monitor {
        observed.monitors.insert(monitor.id.clone(), monitor);
    }
}

fn to_json(body: &impl Serialize) -> Value {
    // Cannot fail, because our bodies contain only text, numbers, lists and maps with text as keys.
    serde_json::to_value(body).unwrap_or_default()
}

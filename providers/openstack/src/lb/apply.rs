//! Applies one action and updates the observed state.

use openstack_api::octavia::{
    HealthMonitor, Listener, ListenerCreate, LoadBalancer, Member, MonitorRef, Patch, Pool,
    PoolCreate, ProvisioningStatus,
};
use serde::Serialize;
use serde_json::Value;

use super::{
    api::Api,
    plan::{ActionKind, PlannedAction},
};
use crate::{
    client::OpenStackError,
    lb::observed::{ObservedLoadBalancer, ObservedMember},
};

/// Result of applying an action.
pub(super) enum ApplyResult {
    /// It was applied; the load balancer is busy with it.
    Done,
    /// Its object does not exist any more, or not yet, or has changed: the observed state is wrong.
    Replan,
}

/// Applies an action. Afterwards the observed state includes its effect, and shows a busy load
/// balancer.
// length: one arm for each kind of change
pub(super) async fn apply(
    api: Api<'_>,
    observed: &mut ObservedLoadBalancer,
    step: &PlannedAction,
) -> Result<ApplyResult, OpenStackError> {
    let call = step.kind.call();
    let object = &*step.object;
    let why = &*step.reason;
    match &step.kind {
        ActionKind::UpdateLoadBalancer(update) => {
            let id = observed.load_balancer.id.clone();
            // Tags are written as a whole, and another Service may have added its own meanwhile.
            if !update.tags.is_keep() {
                let now = api.load_balancer(&id).await?;
                if now.is_none_or(|now| now.tags != observed.load_balancer.tags) {
                    return Ok(ApplyResult::Replan);
                }
            }
            let answer: LoadBalancer = api
                .update(call, &["loadbalancers", &id], update, why)
                .await?;
            observed.load_balancer = answer;
        }
        ActionKind::CreateListener(body) => {
            let body = ListenerCreate {
                loadbalancer_id: Some(observed.load_balancer.id.clone()),
                ..(**body).clone()
            };
            let made: Listener = api
                .create(call, &["listeners"], value(&body), (object, why))
                .await?;
            observed.listeners.push(made);
        }
        ActionKind::UpdateListener(id, update) => {
            let made: Listener = api.update(call, &["listeners", id], update, why).await?;
            replace(&mut observed.listeners, |listener| listener.id == *id, made);
        }
        ActionKind::DeleteListener(id) => {
            api.delete(call, &["listeners", id], why).await?;
            observed.remove_listener(id);
        }
        ActionKind::CreatePool(Some(listener), body) => {
            let body = PoolCreate { listener_id: Some(listener.clone()), ..(**body).clone() };
            let made: Pool = api
                .create(call, &["pools"], value(&body), (object, why))
                .await?;
            observed.members.insert(made.id.clone(), Vec::new());
            for seen in observed
                .listeners
                .iter_mut()
                .filter(|seen| seen.id == *listener)
            {
                seen.default_pool_id = Some(made.id.clone());
            }
            observed.pools.push(made);
        }
        ActionKind::UpdatePool(id, update) => {
            let made: Pool = api.update(call, &["pools", id], update, why).await?;
            replace(&mut observed.pools, |pool| pool.id == *id, made);
        }
        ActionKind::DeletePool(id) => {
            api.delete(call, &["pools", id], why).await?;
            observed.remove_pool(id);
        }
        ActionKind::SetMembers(Some(pool), members) => {
            api.set_members(pool, members, why).await?;
            observed
                .members
                .insert(pool.clone(), members.iter().map(ObservedMember::from).collect());
        }
        ActionKind::CreateMember(Some(pool), body) => {
            let made: Member = api
                .create(call, &["pools", pool, "members"], value(body), (object, why))
                .await?;
            observed
                .members
                .entry(pool.clone())
                .or_default()
                .push(made.into());
        }
        ActionKind::UpdateMember(pool, id, update) => {
            let made: Member = api
                .update(call, &["pools", pool, "members", id], update, why)
                .await?;
            let members = observed.members.entry(pool.clone()).or_default();
            replace(members, |member| member.id.as_deref() == Some(&**id), made.into());
        }
        ActionKind::DeleteMember(pool, id) => {
            api.delete(call, &["pools", pool, "members", id], why)
                .await?;
            let members = observed.members.entry(pool.clone()).or_default();
            members.retain(|member| member.id.as_deref() != Some(&**id));
        }
        ActionKind::CreateMonitor(Some(pool), body) => {
            let mut body = value(body);
            body["pool_id"] = Value::from(pool.as_str());
            let made: HealthMonitor = api
                .create(call, &["healthmonitors"], body, (object, why))
                .await?;
            set_monitor(observed, pool, Some(made));
        }
        ActionKind::UpdateMonitor(id, update) => {
            let made: HealthMonitor = api
                .update(call, &["healthmonitors", id], update, why)
                .await?;
            observed.monitors.insert(id.clone(), made);
        }
        ActionKind::DeleteMonitor(id) => {
            api.delete(call, &["healthmonitors", id], why).await?;
            let of = observed
                .pools
                .iter()
                .find(|pool| pool.monitor.healthmonitor_id.as_deref() == Some(id));
            if let Some(pool) = of.map(|pool| pool.id.clone()) {
                set_monitor(observed, &pool, None);
            }
        }
        ActionKind::CreatePool(None, _)
        | ActionKind::SetMembers(None, _)
        | ActionKind::CreateMember(None, _) => {
            return Ok(ApplyResult::Replan);
        }
        ActionKind::CreateMonitor(None, _) => return Ok(ApplyResult::Replan),
    }
    // Octavia is busy with the change from here on.
    observed.load_balancer.provisioning_status = ProvisioningStatus::PendingUpdate;
    Ok(ApplyResult::Done)
}

fn replace<T>(all: &mut [T], is: impl Fn(&T) -> bool, with: T) {
    if let Some(found) = all.iter_mut().find(|one| is(one)) {
        *found = with;
    }
}

fn set_monitor(observed: &mut ObservedLoadBalancer, pool: &str, monitor: Option<HealthMonitor>) {
    for found in observed.pools.iter_mut().filter(|found| found.id == pool) {
        let healthmonitor_id = monitor.as_ref().map(|monitor| monitor.id.clone());
        let before = std::mem::replace(&mut found.monitor, MonitorRef { healthmonitor_id });
        if let Some(id) = before.healthmonitor_id {
            observed.monitors.remove(&id);
        }
    }
    observed
        .monitors
        .extend(monitor.map(|monitor| (monitor.id.clone(), monitor)));
}

/// Returns pool and algorithm of an action that only sets another algorithm, which a cloud may not
/// support.
pub(super) fn is_method_change(step: &PlannedAction) -> Option<(&str, &str)> {
    let ActionKind::UpdatePool(pool, update) = &step.kind else {
        return None;
    };
    let alone = update.session_persistence.is_keep() && update.name.is_keep();
    match &update.lb_algorithm {
        Patch::Set(method) if alone => Some((pool, method.as_str())),
        _ => None,
    }
}

fn value(body: &impl Serialize) -> Value {
    // This cannot fail: our bodies are text, numbers, lists, and maps with text as keys.
    serde_json::to_value(body).unwrap_or_default()
}

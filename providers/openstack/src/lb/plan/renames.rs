//! Plans new names for the children of a load balancer after its cluster was renamed, and while a
//! Service adopts it.

use openstack_api::octavia::{HealthMonitorUpdate, ListenerUpdate, Patch, PoolUpdate};

use super::{ActionKind, PlanInput, PlannedAction};
use crate::{
    api::octavia::{HealthMonitor, Listener, Pool},
    lb::ownership::ServiceOwnership,
};

/// Plans to put the cluster's new name, or the name of the Service that adopts the load balancer, into
/// the names of this Service's listeners, pools and monitors. After a rename of the cluster, those of
/// other Services on its own load balancer are renamed too. The tags of this Service's listeners are
/// not planned here, but together with their other fields.
pub(super) fn plan_renames(input: &PlanInput<'_>) -> Vec<PlannedAction> {
    let ownership = input.ownership;
    let mut actions = Vec::new();
    for listener in &input.observed.listeners {
        if !ownership.owns_listener(listener) && !ownership.renames_all() {
            continue;
        }
        if let Some(pool) = input.observed.pool_of(listener) {
            let monitor = input.observed.monitor_of(pool);
            actions.extend(monitor.and_then(|monitor| rename_monitor(ownership, monitor)));
            actions.extend(rename_pool(ownership, pool));
        }
        actions.extend(rename_listener(input, listener));
    }
    actions
}

fn reason(ownership: &ServiceOwnership) -> &'static str {
    if ownership.adopted_names.is_empty() {
        "the cluster was renamed"
    } else {
        "the Service adopts its load balancer"
    }
}

fn rename_monitor(ownership: &ServiceOwnership, monitor: &HealthMonitor) -> Option<PlannedAction> {
    let name = ownership.new_name(&monitor.name)?;
    let update = HealthMonitorUpdate {
        name: Patch::Set(name.into()),
        ..HealthMonitorUpdate::default()
    };
    Some(PlannedAction::new(
        ActionKind::UpdateMonitor(monitor.id.clone(), Box::new(update)),
        &*monitor.name,
        reason(ownership),
    ))
}

fn rename_pool(ownership: &ServiceOwnership, pool: &Pool) -> Option<PlannedAction> {
    let name = ownership.new_name(&pool.name)?;
    let update = PoolUpdate { name: Patch::Set(name.into()), ..PoolUpdate::default() };
    Some(PlannedAction::new(
        ActionKind::UpdatePool(pool.id.clone(), Box::new(update)),
        &*pool.name,
        reason(ownership),
    ))
}

fn rename_listener(input: &PlanInput<'_>, listener: &Listener) -> Option<PlannedAction> {
    let ownership = input.ownership;
    let is_own = ownership.owns_listener(listener);
    let name = ownership.new_name(&listener.name);
    let tags = if is_own {
        ownership.with_own_tag(&listener.tags)
    } else {
        ownership.rename_tags(&listener.tags)
    };
    // A listener of another Service may need only new tags.
    let changes_tags = input.features.tags && !is_own && tags != listener.tags;
    if name.is_none() && !changes_tags {
        return None;
    }
    let mut update = ListenerUpdate::default();
    if let Some(name) = name {
        update.name = Patch::Set(name.into());
    }
    if input.features.tags {
        update.tags = Patch::Set(tags);
    }
    Some(PlannedAction::new(
        ActionKind::UpdateListener(listener.id.clone(), Box::new(update)),
        &*listener.name,
        reason(ownership),
    ))
}

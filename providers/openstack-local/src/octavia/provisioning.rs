//! The state machine: a change locks the whole load balancer, and takes effect when it is due.

use crate::api::octavia::{OperatingStatus, ProvisioningStatus};
use jiff::{SignedDuration, Timestamp};

use super::{
    error::{self, LOAD_BALANCER, POOL},
    health, pools,
    rows::{LoadBalancerRow, Outcome},
    settings::Settings,
    vip,
};
use crate::state::{ApiError, CloudState, RequestContext};

/// Returns a time in Octavia's format: UTC, without zone and fractions.
pub(super) fn written(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S").to_string()
}

/// Locks a load balancer to change or delete it as a whole.
///
/// # Errors
/// 409 in a state that does not allow it.
pub(super) fn lock_whole(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    to: ProvisioningStatus,
) -> Result<(), ApiError> {
    let now = status_of(state, id)?;
    let also_error = to == ProvisioningStatus::PendingDelete;
    if now != ProvisioningStatus::Active && !(also_error && now == ProvisioningStatus::Error) {
        return Err(error::pending(now, id));
    }
    begin(state, ctx, id, to);
    Ok(())
}

/// Locks a load balancer to fail it over.
///
/// # Errors
/// 409 in a state that does not allow it.
pub(super) fn lock_failover(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<(), ApiError> {
    let now = status_of(state, id)?;
    if !matches!(now, ProvisioningStatus::Active | ProvisioningStatus::Error) {
        return Err(error::pending(now, id));
    }
    begin(state, ctx, id, ProvisioningStatus::PendingUpdate);
    Ok(())
}

/// Checks that a child of a load balancer may be changed; `pool` is the pool that the change
/// affects.
///
/// # Errors
/// 409 in a state that does not allow it.
pub(super) fn check_below(
    state: &CloudState,
    id: &str,
    pool: Option<&str>,
) -> Result<(), ApiError> {
    if status_of(state, id)? != ProvisioningStatus::Active {
        return Err(error::immutable(LOAD_BALANCER, id));
    }
    // A pool can be in `ERROR` by itself.
    match pool.and_then(|pool| state.octavia.pools.get(pool)) {
        Some(row) if row.body.provisioning_status != ProvisioningStatus::Active => {
            Err(error::immutable(POOL, &row.body.id))
        }
        _ => Ok(()),
    }
}

/// Locks a load balancer to change a child; `listeners` and `pool` are locked with it.
///
/// # Errors
/// 409 in a state that does not allow it.
pub(super) fn lock_below(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    listeners: &[String],
    pool: Option<&str>,
) -> Result<(), ApiError> {
    check_below(state, id, pool)?;
    begin(state, ctx, id, ProvisioningStatus::PendingUpdate);
    for listener in listeners {
        state.octavia.listeners.update(listener, |row| {
            row.body.provisioning_status = ProvisioningStatus::PendingUpdate;
        });
    }
    if let Some(pool) = pool {
        state
            .octavia
            .pools
            .update(pool, |row| row.body.provisioning_status = ProvisioningStatus::PendingUpdate);
    }
    Ok(())
}

fn status_of(state: &CloudState, id: &str) -> Result<ProvisioningStatus, ApiError> {
    match state.octavia.load_balancers.get(id) {
        Some(row) => Ok(row.body.provisioning_status.clone()),
        None => Err(error::not_found(LOAD_BALANCER, id)),
    }
}

/// Starts a change, and decides how it will end.
pub(super) fn begin(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    to: ProvisioningStatus,
) {
    let (due, outcome) = plan_end(state, ctx.now);
    state.octavia.load_balancers.update(id, |row| {
        row.body.provisioning_status = to;
        row.body.updated_at = Some(written(ctx.now));
        row.due = Some(due);
        row.outcome = outcome;
    });
}

/// Returns when a change that starts now is done, and how it ends.
pub(super) fn plan_end(state: &mut CloudState, now: Timestamp) -> (Timestamp, Outcome) {
    let settings = Settings::of(state);
    let pending = SignedDuration::try_from(settings.pending()).unwrap_or(SignedDuration::ZERO);
    let due = now.checked_add(pending).unwrap_or(Timestamp::MAX);
    if settings.failures == 0 {
        return (due, Outcome::Good);
    }
    Settings::change(state, |settings| settings.failures -= 1);
    (due, settings.failure)
}

/// Sets both statuses of a load balancer to `ERROR` at once, as when its provider reports that it
/// does not work any more.
///
/// # Errors
/// 404 when there is none.
pub fn force_error(state: &mut CloudState, id: &str) -> Result<(), ApiError> {
    let change = |row: &mut LoadBalancerRow| {
        row.body.provisioning_status = ProvisioningStatus::Error;
        row.body.operating_status = OperatingStatus::Error;
        row.due = None;
        row.outcome = Outcome::Good;
    };
    state
        .octavia
        .load_balancers
        .update(id, change)
        .ok_or_else(|| error::not_found(LOAD_BALANCER, id))
}

/// Ends every change that is due, and returns when the next one is.
///
/// To be called before each request, and at the time that it returned.
pub fn finish_due(state: &mut CloudState, now: Timestamp) -> Option<Timestamp> {
    let due = |row: &LoadBalancerRow| row.due.is_some_and(|due| due <= now);
    let ready: Vec<String> = state
        .octavia
        .load_balancers
        .iter()
        .filter(|row| due(row))
        .map(|row| row.body.id.clone())
        .collect();
    for id in ready {
        finish(state, now, &id);
    }
    state
        .octavia
        .load_balancers
        .iter()
        .filter_map(|row| row.due)
        .min()
}

/// Ends the change that is in progress.
fn finish(state: &mut CloudState, now: Timestamp, id: &str) {
    let Some(row) = state.octavia.load_balancers.get(id).cloned() else {
        return;
    };
    let fails = row.outcome != Outcome::Good;
    if row.body.provisioning_status == ProvisioningStatus::PendingDelete && !fails {
        remove_whole(state, now, &row);
        return;
    }
    let end = if row.outcome == Outcome::LoadBalancerFails {
        ProvisioningStatus::Error
    } else {
        ProvisioningStatus::Active
    };
    state.octavia.load_balancers.update(id, |row| {
        row.body.provisioning_status = end;
        row.due = None;
        row.outcome = Outcome::Good;
    });
    for listener in &row.body.listeners {
        finish_listener(state, &listener.id, fails);
    }
    for pool in &row.body.pools {
        finish_pool(state, &pool.id, fails);
    }
    health::refresh(state, id);
}

/// Returns the final status of a resource; `None` when it is deleted.
fn end_of(status: &ProvisioningStatus, fails: bool) -> Option<ProvisioningStatus> {
    match status {
        ProvisioningStatus::PendingDelete if !fails => None,
        ProvisioningStatus::PendingCreate | ProvisioningStatus::PendingDelete if fails => {
            Some(ProvisioningStatus::Error)
        }
        status if status.is_pending() => Some(ProvisioningStatus::Active),
        status => Some(status.clone()),
    }
}

/// Ends the change of one row, if there is one.
macro_rules! finish_row {
    ($state:ident, $table:ident, $id:expr, $fails:expr, $remove:expr) => {
        if let Some(status) = $state
            .octavia
            .$table
            .get($id)
            .map(|row| row.body.provisioning_status.clone())
        {
            if status.is_pending() {
                match end_of(&status, $fails) {
                    None => $remove($state, $id),
                    Some(end) => {
                        $state
                            .octavia
                            .$table
                            .update($id, |row| row.body.provisioning_status = end);
                    }
                }
            }
        }
    };
}

fn finish_listener(state: &mut CloudState, id: &str, fails: bool) {
    finish_row!(state, listeners, id, fails, remove_listener);
}

fn finish_pool(state: &mut CloudState, id: &str, fails: bool) {
    let Some(pool) = state.octavia.pools.get(id).cloned() else {
        return;
    };
    for member in &pool.body.members {
        finish_row!(state, members, &member.id, fails, remove_member);
    }
    if let Some(monitor) = &pool.body.monitor.healthmonitor_id {
        finish_row!(state, monitors, monitor, fails, remove_monitor);
    }
    finish_row!(state, pools, id, fails, remove_pool);
}

fn remove_listener(state: &mut CloudState, id: &str) {
    let Some(row) = state.octavia.listeners.remove(id) else {
        return;
    };
    state.octavia.counters.remove(id);
    state
        .octavia
        .load_balancers
        .update(row.load_balancer(), |lb| lb.body.listeners.retain(|one| one.id != id));
}

fn remove_pool(state: &mut CloudState, id: &str) {
    let listeners = pools::listeners_of(state, id);
    let Some(row) = state.octavia.pools.remove(id) else {
        return;
    };
    for member in &row.body.members {
        state.octavia.members.remove(&member.id);
    }
    if let Some(monitor) = &row.body.monitor.healthmonitor_id {
        state.octavia.monitors.remove(monitor);
    }
    for listener in listeners {
        state
            .octavia
            .listeners
            .update(&listener, |row| row.body.default_pool_id = None);
    }
    state
        .octavia
        .load_balancers
        .update(row.load_balancer(), |lb| lb.body.pools.retain(|one| one.id != id));
}

fn remove_member(state: &mut CloudState, id: &str) {
    let Some(row) = state.octavia.members.remove(id) else {
        return;
    };
    state
        .octavia
        .pools
        .update(&row.pool, |pool| pool.body.members.retain(|one| one.id != id));
}

fn remove_monitor(state: &mut CloudState, id: &str) {
    let Some(row) = state.octavia.monitors.remove(id) else {
        return;
    };
    state
        .octavia
        .pools
        .update(row.pool(), |pool| pool.body.monitor.healthmonitor_id = None);
}

/// Deletes a load balancer with everything below it, and releases its address.
fn remove_whole(state: &mut CloudState, now: Timestamp, row: &LoadBalancerRow) {
    for pool in &row.body.pools {
        remove_pool(state, &pool.id);
    }
    for listener in &row.body.listeners {
        remove_listener(state, &listener.id);
    }
    state.octavia.load_balancers.remove(&row.body.id);
    vip::release(state, now, row);
}

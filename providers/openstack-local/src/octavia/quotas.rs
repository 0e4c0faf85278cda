//! Quotas of projects.

use crate::api::octavia::{Patch, Quota, QuotaUpdate};

use super::{
    error::{self, LISTENER, LOAD_BALANCER, MEMBER, MONITOR, POOL},
    rows::QuotaRow,
    settings::Settings,
};
use crate::state::{ApiError, CloudState, RequestContext};

/// Kinds of resources with a quota.
#[derive(Clone, Copy, Debug)]
pub(super) enum QuotaKind {
    LoadBalancer,
    Listener,
    Pool,
    Member,
    Monitor,
}

/// Checks that a project may have `more` resources of a kind.
///
/// # Errors
/// 403 when the quota would be exceeded.
pub(super) fn check(
    state: &CloudState,
    project: &str,
    kind: QuotaKind,
    more: usize,
) -> Result<(), ApiError> {
    let quota = effective(state, project);
    let (limit, name) = match kind {
        QuotaKind::LoadBalancer => (quota.loadbalancer, LOAD_BALANCER),
        QuotaKind::Listener => (quota.listener, LISTENER),
        QuotaKind::Pool => (quota.pool, POOL),
        QuotaKind::Member => (quota.member, MEMBER),
        QuotaKind::Monitor => (quota.healthmonitor, MONITOR),
    };
    // A negative limit is no limit.
    let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else {
        return Ok(());
    };
    if more > 0 && used(state, project, kind) + more > limit {
        Err(error::quota_met(name))
    } else {
        Ok(())
    }
}

fn used(state: &CloudState, project: &str, kind: QuotaKind) -> usize {
    let rows = &state.octavia;
    match kind {
        QuotaKind::LoadBalancer => rows
            .load_balancers
            .iter()
            .filter(|row| row.body.project_id == project)
            .count(),
        QuotaKind::Listener => rows
            .listeners
            .iter()
            .filter(|row| row.body.project_id == project)
            .count(),
        QuotaKind::Pool => rows
            .pools
            .iter()
            .filter(|row| row.body.project_id == project)
            .count(),
        QuotaKind::Monitor => rows
            .monitors
            .iter()
            .filter(|row| row.body.project_id == project)
            .count(),
        QuotaKind::Member => {
            let pools = rows
                .pools
                .iter()
                .filter(|row| row.body.project_id == project);
            pools.map(|row| row.body.members.len()).sum()
        }
    }
}

/// Returns the effective limits of a project.
fn effective(state: &CloudState, project: &str) -> Quota {
    let own = state
        .octavia
        .quotas
        .get(project)
        .map(|row| row.quota.clone())
        .unwrap_or_default();
    filled(&own, &Settings::of(state).default_quota, project)
}

/// Fills in defaults; without a default there is no limit.
fn filled(own: &Quota, default: &Quota, project: &str) -> Quota {
    let of = |field: fn(&Quota) -> Option<i64>| Some(field(own).or(field(default)).unwrap_or(-1));
    let loadbalancer = of(|quota| quota.loadbalancer);
    let healthmonitor = of(|quota| quota.healthmonitor);
    Quota {
        project_id: Some(project.to_owned()),
        loadbalancer,
        load_balancer: loadbalancer,
        listener: of(|quota| quota.listener),
        member: of(|quota| quota.member),
        pool: of(|quota| quota.pool),
        healthmonitor,
        health_monitor: healthmonitor,
        l7policy: of(|quota| quota.l7policy),
        l7rule: of(|quota| quota.l7rule),
    }
}

/// Returns the limits of a project.
///
/// # Errors
/// 403 for another project.
pub fn show(state: &CloudState, ctx: &RequestContext, project: &str) -> Result<Quota, ApiError> {
    if !ctx.sees(project) {
        return Err(error::forbidden());
    }
    Ok(effective(state, project))
}

/// Returns the limits of a project that has none of its own.
///
/// # Errors
/// 403 for another project.
pub fn show_default(
    state: &CloudState,
    ctx: &RequestContext,
    project: &str,
) -> Result<Quota, ApiError> {
    if !ctx.sees(project) {
        return Err(error::forbidden());
    }
    Ok(filled(&Quota::default(), &Settings::of(state).default_quota, project))
}

/// Returns the limits of all projects that have their own, as far as the user may see them.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<Quota> {
    let rows = state
        .octavia
        .quotas
        .iter()
        .filter(|row| ctx.sees(&row.project));
    rows.map(|row| effective(state, &row.project)).collect()
}

/// Changes the limits of a project.
///
/// # Errors
/// 403 unless the user is an administrator.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    project: &str,
    update: &QuotaUpdate,
) -> Result<Quota, ApiError> {
    if !ctx.admin {
        return Err(error::forbidden());
    }
    let mut quota = state
        .octavia
        .quotas
        .get(project)
        .map(|row| row.quota.clone())
        .unwrap_or_default();
    let fields: [(&Patch<i64>, &mut Option<i64>); 7] = [
        (&update.loadbalancer, &mut quota.loadbalancer),
        (&update.listener, &mut quota.listener),
        (&update.member, &mut quota.member),
        (&update.pool, &mut quota.pool),
        (&update.healthmonitor, &mut quota.healthmonitor),
        (&update.l7policy, &mut quota.l7policy),
        (&update.l7rule, &mut quota.l7rule),
    ];
    for (patch, field) in fields {
        patch.apply_opt(field);
    }
    state
        .octavia
        .quotas
        .put(QuotaRow { project: project.to_owned(), quota });
    Ok(effective(state, project))
}

/// Resets the limits of a project to the defaults.
///
/// # Errors
/// 403 unless the user is an administrator.
pub fn reset(state: &mut CloudState, ctx: &RequestContext, project: &str) -> Result<(), ApiError> {
    if !ctx.admin {
        return Err(error::forbidden());
    }
    state.octavia.quotas.remove(project);
    Ok(())
}

//! Health monitors.

use crate::api::octavia::{
    HealthMonitor, HealthMonitorCreate, HealthMonitorUpdate, IdRef, MonitorType, OperatingStatus,
    Patch, ProvisioningStatus,
};

use super::{
    check,
    error::{self, MONITOR, POOL, invalid_option},
    load_balancers, members, pools,
    provider_driver::Provider,
    provisioning::written,
    quotas,
    rows::MonitorRow,
};
use crate::state::{ApiError, CloudState, RequestContext, new_id};

fn find<'a>(
    state: &'a CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'a MonitorRow, ApiError> {
    let row = state
        .octavia
        .monitors
        .get(id)
        .ok_or_else(|| error::not_found(MONITOR, id))?;
    if ctx.sees(&row.body.project_id) {
        Ok(row)
    } else {
        Err(error::forbidden())
    }
}

/// Returns one.
///
/// # Errors
/// 404, or 403 for another project's.
pub fn show(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<HealthMonitor, ApiError> {
    find(state, ctx, id).map(|row| row.body.clone())
}

/// Returns all that the user may see.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<HealthMonitor> {
    let rows = state.octavia.monitors.iter();
    rows.filter(|row| ctx.sees(&row.body.project_id))
        .map(|row| row.body.clone())
        .collect()
}

/// Creates one.
///
/// # Errors
/// 400, 403, 404, 409 (also when the pool has one already) or 501, with Octavia's message.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    mut create: HealthMonitorCreate,
) -> Result<HealthMonitor, ApiError> {
    let pool = create.pool_id.take().unwrap_or_default();
    let row = pools::find(state, ctx, &pool)?;
    let project = row.body.project_id.clone();
    let provider =
        load_balancers::provider(state, load_balancers::find(state, ctx, row.load_balancer())?)?;
    quotas::check(state, &project, quotas::QuotaKind::Monitor, 1)?;
    members::lock_pool(state, ctx, &pool)?;
    let id = insert(state, ctx, &provider, &pool, create)?;
    show(state, ctx, &id)
}

/// Adds a monitor to a pool that is locked. Returns its ID.
pub(super) fn insert(
    state: &mut CloudState,
    ctx: &RequestContext,
    provider: &Provider,
    pool: &str,
    create: HealthMonitorCreate,
) -> Result<String, ApiError> {
    let row = state
        .octavia
        .pools
        .get(pool)
        .ok_or_else(|| error::not_found(POOL, pool))?;
    if row.body.monitor.healthmonitor_id.is_some() {
        return Err(error::conflict("This pool already has a health monitor"));
    }
    let mut body = build(ctx, &row.body.project_id, pool, create);
    check::monitor(&body, &row.body.protocol, provider.minor)?;
    provider.monitor(&body)?;
    complete(&mut body);
    let id = body.id.clone();
    state.octavia.monitors.put(MonitorRow { body });
    state
        .octavia
        .pools
        .update(pool, |row| row.body.monitor.healthmonitor_id = Some(id.clone()));
    Ok(id)
}

fn build(
    ctx: &RequestContext,
    project: &str,
    pool: &str,
    create: HealthMonitorCreate,
) -> HealthMonitor {
    HealthMonitor {
        id: new_id(),
        name: create.name.unwrap_or_default(),
        kind: create.kind.unwrap_or(MonitorType::Tcp),
        delay: create.delay,
        timeout: create.timeout,
        max_retries: create.max_retries,
        max_retries_down: create.max_retries_down.unwrap_or(3),
        http_method: create.http_method,
        url_path: create.url_path,
        expected_codes: create.expected_codes,
        admin_state_up: create.admin_state_up.unwrap_or(true),
        project_id: project.to_owned(),
        pools: vec![IdRef::from(pool)],
        provisioning_status: ProvisioningStatus::PendingCreate,
        operating_status: OperatingStatus::Offline,
        created_at: Some(written(ctx.now)),
        updated_at: None,
        tags: load_balancers::unique(create.tags.unwrap_or_default()),
        http_version: create.http_version,
        domain_name: create.domain_name,
    }
}

/// Sets the defaults of an HTTP check.
fn complete(body: &mut HealthMonitor) {
    if matches!(body.kind, MonitorType::Http | MonitorType::Https) {
        body.http_method.get_or_insert_with(|| "GET".to_owned());
        body.url_path.get_or_insert_with(|| "/".to_owned());
        body.expected_codes.get_or_insert_with(|| "200".to_owned());
    }
}

/// Changes one. Its type stays.
///
/// # Errors
/// 400, 403, 404 or 409, with Octavia's message.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    update: HealthMonitorUpdate,
) -> Result<HealthMonitor, ApiError> {
    let row = find(state, ctx, id)?;
    let pool = pools::find(state, ctx, row.pool())?;
    let provider =
        load_balancers::provider(state, load_balancers::find(state, ctx, pool.load_balancer())?)?;
    let mut body = row.body.clone();
    apply(&mut body, update)?;
    check::monitor(&body, &pool.body.protocol, provider.minor)?;
    complete(&mut body);
    let pool = pool.body.id.clone();
    members::lock_pool(state, ctx, &pool)?;
    body.provisioning_status = ProvisioningStatus::PendingUpdate;
    body.updated_at = Some(written(ctx.now));
    state.octavia.monitors.update(id, |row| row.body = body);
    show(state, ctx, id)
}

fn apply(body: &mut HealthMonitor, update: HealthMonitorUpdate) -> Result<(), ApiError> {
    let never_null = [
        ("delay", update.delay),
        ("timeout", update.timeout),
        ("max_retries", widened(update.max_retries)),
    ];
    if let Some((field, _)) = never_null.iter().find(|(_, patch)| *patch == Patch::Clear) {
        return Err(invalid_option("None", field));
    }
    update.name.apply(&mut body.name);
    update.delay.apply(&mut body.delay);
    update.timeout.apply(&mut body.timeout);
    update.max_retries.apply(&mut body.max_retries);
    update
        .max_retries_down
        .apply_or(&mut body.max_retries_down, 3);
    update.http_method.apply_opt(&mut body.http_method);
    update.url_path.apply_opt(&mut body.url_path);
    update.expected_codes.apply_opt(&mut body.expected_codes);
    update.admin_state_up.apply(&mut body.admin_state_up);
    update.tags.apply(&mut body.tags);
    body.tags = load_balancers::unique(std::mem::take(&mut body.tags));
    update.http_version.apply_opt(&mut body.http_version);
    update.domain_name.apply_opt(&mut body.domain_name);
    Ok(())
}

fn widened(patch: Patch<u8>) -> Patch<u32> {
    match patch {
        Patch::Keep => Patch::Keep,
        Patch::Clear => Patch::Clear,
        Patch::Set(value) => Patch::Set(value.into()),
    }
}

/// Deletes one.
///
/// # Errors
/// 403, 404 or 409.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    let pool = find(state, ctx, id)?.pool().to_owned();
    members::lock_pool(state, ctx, &pool)?;
    state
        .octavia
        .monitors
        .update(id, |row| row.body.provisioning_status = ProvisioningStatus::PendingDelete);
    Ok(())
}

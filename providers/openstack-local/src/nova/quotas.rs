//! Quotas of projects.

use crate::api::nova::{AbsoluteLimits, QuotaSet, QuotaSetUpdate};
use http::StatusCode;

use super::{FlavorRow, Microversion, QuotaRow};
use crate::state::{ApiError, CloudState, RequestContext};

/// Default quotas of servers, processors and MiB.
const DEFAULTS: (i64, i64, i64) = (1_000, 8_000, 16_000_000);
/// Maximum number of metadata items.
pub(super) const METADATA_ITEMS: usize = 128;

/// Returns the quotas of a project: its own, or the defaults.
pub fn get(state: &CloudState, project: &str) -> QuotaRow {
    state.nova.quotas.get(project).map_or_else(
        || {
            let (instances, cores, ram) = DEFAULTS;
            QuotaRow { project: project.to_owned(), instances, cores, ram }
        },
        |row| QuotaRow::clone(row),
    )
}

/// Returns the quotas as the API shows them.
pub fn show(row: &QuotaRow, version: Microversion) -> QuotaSet {
    let before = |minor: u16, limit: i64| (version < Microversion(minor)).then_some(limit);
    QuotaSet {
        id: Some(row.project.clone()),
        instances: row.instances,
        cores: row.cores,
        ram: row.ram,
        metadata_items: i64::try_from(METADATA_ITEMS).unwrap_or(i64::MAX),
        key_pairs: 100,
        server_groups: 10,
        server_group_members: 10,
        injected_files: before(57, 5),
        injected_file_content_bytes: before(57, 10_240),
        injected_file_path_bytes: before(57, 255),
        floating_ips: before(36, -1),
        fixed_ips: before(36, -1),
        security_groups: before(36, -1),
        security_group_rules: before(36, -1),
    }
}

/// Changes the quotas of a project.
///
/// # Errors
/// The user is not an administrator.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    project: &str,
    update: &QuotaSetUpdate,
) -> Result<QuotaRow, ApiError> {
    admin_only(ctx, "os_compute_api:os-quota-sets:update")?;
    let mut row = get(state, project);
    row.instances = update.instances.unwrap_or(row.instances);
    row.cores = update.cores.unwrap_or(row.cores);
    row.ram = update.ram.unwrap_or(row.ram);
    state.nova.quotas.put(row.clone());
    Ok(row)
}

/// Rejects what only administrators may do.
pub(super) fn admin_only(ctx: &RequestContext, rule: &str) -> Result<(), ApiError> {
    if ctx.admin {
        return Ok(());
    }
    Err(ApiError::forbidden("", format!("Policy doesn't allow {rule} to be performed.")))
}

/// Returns the servers, processors and MiB in use.
fn used(state: &CloudState, project: &str) -> (i64, i64, i64) {
    let servers = state
        .nova
        .servers
        .iter()
        .filter(|server| server.project == project);
    servers.fold((0, 0, 0), |(instances, cores, ram), server| {
        (instances + 1, cores + signed(server.flavor.vcpus), ram + signed(server.flavor.ram))
    })
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Rejects servers that would exceed the quota.
pub(super) fn check(
    state: &CloudState,
    project: &str,
    flavor: &FlavorRow,
    count: u32,
) -> Result<(), ApiError> {
    let quota = get(state, project);
    let used = used(state, project);
    let count = i64::from(count);
    for (name, limit, used, more) in [
        ("instances", quota.instances, used.0, count),
        ("cores", quota.cores, used.1, count.saturating_mul(signed(flavor.vcpus))),
        ("ram", quota.ram, used.2, count.saturating_mul(signed(flavor.ram))),
    ] {
        if limit >= 0 && used.saturating_add(more) > limit {
            let message = format!(
                "Quota exceeded for {name}: Requested {more}, but already used {used} of {limit} {name}"
            );
            return Err(ApiError::new(StatusCode::FORBIDDEN, "", message));
        }
    }
    Ok(())
}

/// Returns limits with their use.
pub fn limits(state: &CloudState, project: &str) -> AbsoluteLimits {
    let quota = get(state, project);
    let (instances, cores, ram) = used(state, project);
    AbsoluteLimits {
        max_total_instances: quota.instances,
        total_instances_used: instances,
        max_total_cores: quota.cores,
        total_cores_used: cores,
        max_total_ram_size: quota.ram,
        total_ram_used: ram,
        max_server_meta: i64::try_from(METADATA_ITEMS).unwrap_or(i64::MAX),
        max_total_keypairs: 100,
        max_server_groups: 10,
        max_server_group_members: 10,
        total_server_groups_used: 0,
    }
}

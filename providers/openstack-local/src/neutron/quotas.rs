//! Quotas of projects.

use crate::api::neutron::{Quota, QuotaDetail, QuotaDetails, QuotaUpdate, Standard};

use super::{QuotaRow, common::admin_only};
use crate::state::{ApiError, CloudState, RequestContext};

/// A kind of resource with a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quotable {
    Network,
    Subnet,
    Port,
    Router,
    FloatingIp,
    SecurityGroup,
    SecurityGroupRule,
    Trunk,
}

/// Returns the quotas of a project.
pub fn get(state: &CloudState, project: &str) -> Quota {
    state
        .neutron
        .quotas
        .get(project)
        .map_or_else(Quota::default, |row| row.quota)
}

/// Rejects requests for quotas of other projects.
///
/// # Errors
/// The user may not see them.
pub fn visible(ctx: &RequestContext, project: &str) -> Result<(), ApiError> {
    if ctx.sees(project) {
        return Ok(());
    }
    Err(ApiError::forbidden(
        "AdminRequired",
        "User does not have admin privileges: Non-admin is not authorized to access quotas for another tenant.",
    ))
}

/// Returns the quotas of a project with their use.
pub fn details(state: &CloudState, project: &str) -> QuotaDetails {
    let quota = get(state, project);
    let detail = |limit, kind| QuotaDetail { limit, used: used(state, project, kind), reserved: 0 };
    QuotaDetails {
        network: detail(quota.network, Quotable::Network),
        subnet: detail(quota.subnet, Quotable::Subnet),
        subnetpool: QuotaDetail { limit: quota.subnetpool, used: 0, reserved: 0 },
        port: detail(quota.port, Quotable::Port),
        router: detail(quota.router, Quotable::Router),
        floatingip: detail(quota.floatingip, Quotable::FloatingIp),
        security_group: detail(quota.security_group, Quotable::SecurityGroup),
        security_group_rule: detail(quota.security_group_rule, Quotable::SecurityGroupRule),
        rbac_policy: QuotaDetail { limit: quota.rbac_policy, used: 0, reserved: 0 },
        trunk: detail(quota.trunk, Quotable::Trunk),
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
    update: &QuotaUpdate,
) -> Result<Quota, ApiError> {
    admin_only(ctx, "update_quota", true)?;
    let mut quota = get(state, project);
    quota.apply(update);
    state
        .neutron
        .quotas
        .put(QuotaRow { project: project.to_owned(), quota });
    Ok(quota)
}

/// Rejects quotas below what is in use.
///
/// # Errors
/// The first kind whose use exceeds the quota.
pub(super) fn check_use(state: &CloudState, project: &str) -> Result<(), ApiError> {
    let details = details(state, project);
    for (name, detail) in [
        ("network", details.network),
        ("subnet", details.subnet),
        ("port", details.port),
        ("router", details.router),
        ("floatingip", details.floatingip),
        ("security_group", details.security_group),
        ("security_group_rule", details.security_group_rule),
        ("trunk", details.trunk),
    ] {
        if detail.limit >= 0 && detail.used > detail.limit {
            return Err(ApiError::bad_request(
                "InvalidQuotaValue",
                format!(
                    "The quota of {name} cannot be {}: {} are in use.",
                    detail.limit, detail.used
                ),
            ));
        }
    }
    Ok(())
}

/// Resets the quotas of a project to the defaults.
///
/// # Errors
/// The user is not an administrator, or the quotas were never changed.
pub fn reset(state: &mut CloudState, ctx: &RequestContext, project: &str) -> Result<(), ApiError> {
    admin_only(ctx, "delete_quota", true)?;
    state
        .neutron
        .quotas
        .remove(project)
        .map(drop)
        .ok_or_else(|| {
            ApiError::not_found(
                "TenantQuotaNotFound",
                format!("Quota for tenant {project} could not be found."),
            )
        })
}

/// Rejects `more` resources of a kind if they would exceed the quota of a project.
pub(super) fn check(
    state: &CloudState,
    project: &str,
    kind: Quotable,
    more: usize,
) -> Result<(), ApiError> {
    let quota = get(state, project);
    let (limit, name) = match kind {
        Quotable::Network => (quota.network, "network"),
        Quotable::Subnet => (quota.subnet, "subnet"),
        Quotable::Port => (quota.port, "port"),
        Quotable::Router => (quota.router, "router"),
        Quotable::FloatingIp => (quota.floatingip, "floatingip"),
        Quotable::SecurityGroup => (quota.security_group, "security_group"),
        Quotable::SecurityGroupRule => (quota.security_group_rule, "security_group_rule"),
        Quotable::Trunk => (quota.trunk, "trunk"),
    };
    // What belongs to no project (ports of gateways and floating IPs) is not counted.
    if limit < 0 || project.is_empty() {
        return Ok(());
    }
    if used(state, project, kind) + i64::try_from(more).unwrap_or(i64::MAX) <= limit {
        return Ok(());
    }
    Err(ApiError::conflict("OverQuota", format!("Quota exceeded for resources: ['{name}'].")))
}

/// Counts what a project has of a kind.
fn used(state: &CloudState, project: &str, kind: Quotable) -> i64 {
    fn of<'r>(project: &str, rows: impl Iterator<Item = &'r Standard>) -> usize {
        rows.filter(|row| row.project_id == project).count()
    }
    let tables = &state.neutron;
    let count = match kind {
        Quotable::Network => of(project, tables.networks.iter().map(|row| &row.standard)),
        Quotable::Subnet => of(project, tables.subnets.iter().map(|row| &row.standard)),
        Quotable::Port => of(project, tables.ports.iter().map(|row| &row.standard)),
        Quotable::Router => of(project, tables.routers.iter().map(|row| &row.standard)),
        Quotable::FloatingIp => of(project, tables.floating_ips.iter().map(|row| &row.standard)),
        Quotable::SecurityGroup => {
            of(project, tables.security_groups.iter().map(|row| &row.standard))
        }
        Quotable::SecurityGroupRule => {
            of(project, tables.security_group_rules.iter().map(|row| &row.standard))
        }
        Quotable::Trunk => of(project, tables.trunks.iter().map(|row| &row.standard)),
    };
    i64::try_from(count).unwrap_or(i64::MAX)
}

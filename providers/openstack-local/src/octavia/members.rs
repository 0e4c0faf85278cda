//! Members of pools.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::octavia::{
    IdRef, Member, MemberBatch, MemberCreate, MemberUpdate, OperatingStatus, ProvisioningStatus,
};

use super::{
    check,
    error::{self, MEMBER, POOL},
    load_balancers, pools,
    provider_driver::Provider,
    provisioning::{self, written},
    quotas,
    rows::{MemberRow, PoolRow},
    vip,
};
use crate::state::{ApiError, CloudState, RequestContext, new_id};

fn find<'a>(
    state: &'a CloudState,
    ctx: &RequestContext,
    pool: &str,
    id: &str,
) -> Result<&'a MemberRow, ApiError> {
    pools::find(state, ctx, pool)?;
    let row = state.octavia.members.get(id).filter(|row| row.pool == pool);
    row.map(|row| &**row)
        .ok_or_else(|| error::not_found(MEMBER, id))
}

/// Returns one.
///
/// # Errors
/// 404, or 403 for another project's.
pub fn show(
    state: &CloudState,
    ctx: &RequestContext,
    pool: &str,
    id: &str,
) -> Result<Member, ApiError> {
    find(state, ctx, pool, id).map(|row| row.body.clone())
}

/// Returns all of a pool.
///
/// # Errors
/// 404, or 403 for another project's.
pub fn list(state: &CloudState, ctx: &RequestContext, pool: &str) -> Result<Vec<Member>, ApiError> {
    let pool = pools::find(state, ctx, pool)?;
    Ok(rows_of(state, pool).map(|row| row.body.clone()).collect())
}

fn rows_of<'a>(state: &'a CloudState, pool: &'a PoolRow) -> impl Iterator<Item = &'a MemberRow> {
    pool.body
        .members
        .iter()
        .filter_map(|one| state.octavia.members.get(&one.id))
        .map(|row| &**row)
}

/// Creates one.
///
/// # Errors
/// 400, 403, 404, 409 or 501, with Octavia's message.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    pool: &str,
    create: MemberCreate,
) -> Result<Member, ApiError> {
    let provider = provider(state, ctx, pool)?;
    let project = pools::find(state, ctx, pool)?.body.project_id.clone();
    quotas::check(state, &project, quotas::QuotaKind::Member, 1)?;
    lock_pool(state, ctx, pool)?;
    let ids = insert(state, ctx, &provider, pool, vec![create])?;
    show(state, ctx, pool, ids.first().map_or("", String::as_str))
}

fn provider(state: &CloudState, ctx: &RequestContext, pool: &str) -> Result<Provider, ApiError> {
    let load_balancer = pools::find(state, ctx, pool)?.load_balancer();
    load_balancers::provider(state, load_balancers::find(state, ctx, load_balancer)?)
}

/// Locks the load balancer of a pool for a change of its members or its monitor.
pub(super) fn lock_pool(
    state: &mut CloudState,
    ctx: &RequestContext,
    pool: &str,
) -> Result<(), ApiError> {
    let load_balancer = pools::find(state, ctx, pool)?.load_balancer().to_owned();
    let listeners = pools::listeners_of(state, pool);
    provisioning::lock_below(state, ctx, &load_balancer, &listeners, Some(pool))
}

/// Adds members to a pool that is locked. Returns their IDs.
pub(super) fn insert(
    state: &mut CloudState,
    ctx: &RequestContext,
    provider: &Provider,
    pool: &str,
    creates: Vec<MemberCreate>,
) -> Result<Vec<String>, ApiError> {
    let row = state
        .octavia
        .pools
        .get(pool)
        .ok_or_else(|| error::not_found(POOL, pool))?
        .clone();
    let mut keys: BTreeSet<(String, u16)> = rows_of(state, &row)
        .map(|row| owned_key(&row.body))
        .collect();
    let mut ids = Vec::new();
    for create in creates {
        let body = build(ctx, &row, create);
        let (address, port) = owned_key(&body);
        if !keys.insert((address.clone(), port)) {
            return Err(error::conflict(format!(
                "Another member on this pool is already using ip {address} on protocol_port {port}"
            )));
        }
        check_body(state, provider, &row, &body)?;
        ids.push(body.id.clone());
        state
            .octavia
            .members
            .put(MemberRow { body, pool: pool.to_owned(), up: None });
    }
    state.octavia.pools.update(pool, |row| {
        row.body
            .members
            .extend(ids.iter().map(|id| IdRef::from(&**id)));
    });
    Ok(ids)
}

fn build(ctx: &RequestContext, pool: &PoolRow, create: MemberCreate) -> Member {
    let watched = pool.body.monitor.healthmonitor_id.is_some();
    Member {
        id: new_id(),
        name: create.name.unwrap_or_default(),
        operating_status: if watched {
            OperatingStatus::Offline
        } else {
            OperatingStatus::NoMonitor
        },
        provisioning_status: ProvisioningStatus::PendingCreate,
        admin_state_up: create.admin_state_up.unwrap_or(true),
        address: create.address,
        protocol_port: create.protocol_port,
        weight: create.weight.unwrap_or(1),
        backup: create.backup.unwrap_or_default(),
        subnet_id: create.subnet_id,
        project_id: pool.body.project_id.clone(),
        created_at: Some(written(ctx.now)),
        updated_at: None,
        monitor_address: create.monitor_address,
        monitor_port: create.monitor_port,
        tags: load_balancers::unique(create.tags.unwrap_or_default()),
        vnic_type: Some("normal".to_owned()),
    }
}

fn check_body(
    state: &CloudState,
    provider: &Provider,
    pool: &PoolRow,
    body: &Member,
) -> Result<(), ApiError> {
    check::member_address(&body.address)?;
    if let Some(subnet) = &body.subnet_id {
        vip::check_subnet(state, subnet)?;
    }
    let lb = state.octavia.load_balancers.get(pool.load_balancer());
    let vip = lb
        .and_then(|lb| lb.body.vip_subnet_id.as_deref())
        .and_then(|subnet| vip::network_of(state, subnet));
    provider.member(body, vip)
}

/// Returns what distinguishes a member within its pool.
fn owned_key(member: &Member) -> (String, u16) {
    (member.address.clone(), member.protocol_port)
}

/// Changes one. Its address, port and subnet stay.
///
/// # Errors
/// 400, 403, 404, 409 or 501, with Octavia's message.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    pool: &str,
    id: &str,
    update: MemberUpdate,
) -> Result<Member, ApiError> {
    let mut body = find(state, ctx, pool, id)?.body.clone();
    update.name.apply(&mut body.name);
    update.admin_state_up.apply(&mut body.admin_state_up);
    update.weight.apply_or(&mut body.weight, 1);
    update.backup.apply(&mut body.backup);
    update.monitor_address.apply_opt(&mut body.monitor_address);
    update.monitor_port.apply_opt(&mut body.monitor_port);
    update.tags.apply(&mut body.tags);
    body.tags = load_balancers::unique(std::mem::take(&mut body.tags));
    provider(state, ctx, pool)?.member(&body, None)?;
    lock_pool(state, ctx, pool)?;
    changed(ctx, &mut body);
    state.octavia.members.update(id, |row| row.body = body);
    show(state, ctx, pool, id)
}

fn changed(ctx: &RequestContext, body: &mut Member) {
    body.provisioning_status = ProvisioningStatus::PendingUpdate;
    body.updated_at = Some(written(ctx.now));
}

/// Deletes one.
///
/// # Errors
/// 403, 404 or 409.
pub fn delete(
    state: &mut CloudState,
    ctx: &RequestContext,
    pool: &str,
    id: &str,
) -> Result<(), ApiError> {
    find(state, ctx, pool, id)?;
    lock_pool(state, ctx, pool)?;
    state
        .octavia
        .members
        .update(id, |row| row.body.provisioning_status = ProvisioningStatus::PendingDelete);
    Ok(())
}

/// Replaces the members of a pool by those of the batch: existing ones are changed, new ones are
/// created, and the rest is deleted unless `additive`. An empty batch for an empty pool changes
/// nothing.
///
/// # Errors
/// 400, 403, 404, 409 or 501, with Octavia's message.
pub fn batch(
    state: &mut CloudState,
    ctx: &RequestContext,
    pool: &str,
    batch: MemberBatch,
    additive: bool,
) -> Result<(), ApiError> {
    let provider = provider(state, ctx, pool)?;
    let row = pools::find(state, ctx, pool)?.clone();
    // A busy load balancer is rejected whatever the batch contains.
    provisioning::check_below(state, row.load_balancer(), Some(pool))?;
    // First, compare the batch with the existing members.
    let old: BTreeMap<(String, u16), String> = rows_of(state, &row)
        .map(|row| (owned_key(&row.body), row.body.id.clone()))
        .collect();
    let mut seen = BTreeSet::new();
    let mut changes = Vec::new();
    let mut creates = Vec::new();
    for member in batch.members {
        let key = (member.address.clone(), member.protocol_port);
        if !seen.insert(key.clone()) {
            return Err(error::validation("Member must be updated only once in the same request."));
        }
        match old.get(&key) {
            Some(id) => changes.push((id.clone(), member)),
            None => creates.push(member),
        }
    }
    let gone: Vec<&String> = old
        .iter()
        .filter(|(key, _)| !seen.contains(*key))
        .map(|(_, id)| id)
        .collect();
    if changes.is_empty() && creates.is_empty() && gone.is_empty() {
        return Ok(());
    }
    // Then check the quota, lock the load balancer, and apply the changes.
    let removed = if additive { 0 } else { gone.len() };
    quotas::check(
        state,
        &row.body.project_id,
        quotas::QuotaKind::Member,
        creates.len().saturating_sub(removed),
    )?;
    lock_pool(state, ctx, pool)?;
    for (id, member) in changes {
        replace(state, ctx, &provider, &row, &id, member)?;
    }
    insert(state, ctx, &provider, pool, creates)?;
    for id in gone.into_iter().filter(|_| !additive) {
        state
            .octavia
            .members
            .update(id, |row| row.body.provisioning_status = ProvisioningStatus::PendingDelete);
    }
    Ok(())
}

/// Replaces a member by that of the batch. What the batch leaves out is reset to its default,
/// except name, tags and subnet, which stay.
fn replace(
    state: &mut CloudState,
    ctx: &RequestContext,
    provider: &Provider,
    pool: &PoolRow,
    id: &str,
    create: MemberCreate,
) -> Result<(), ApiError> {
    let Some(old) = state.octavia.members.get(id).map(|row| row.body.clone()) else {
        return Ok(());
    };
    let create = MemberCreate {
        name: create.name.or(Some(old.name)),
        tags: create.tags.or(Some(old.tags)),
        subnet_id: old.subnet_id,
        ..create
    };
    let mut body = Member {
        id: old.id,
        created_at: old.created_at,
        operating_status: old.operating_status,
        ..build(ctx, pool, create)
    };
    changed(ctx, &mut body);
    check_body(state, provider, pool, &body)?;
    state.octavia.members.update(id, |row| row.body = body);
    Ok(())
}

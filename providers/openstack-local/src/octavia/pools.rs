//! Pools.

use crate::api::octavia::{
    HealthMonitor, IdRef, LbAlgorithm, Member, MonitorObject, MonitorRef, OperatingStatus, Pool,
    PoolCreate, PoolProtocol, PoolTree, PoolUpdate, ProvisioningStatus,
};

use super::{
    check,
    error::{self, LISTENER, LOAD_BALANCER, POOL},
    listeners, load_balancers, members, monitors,
    provider_driver::Provider,
    provisioning::{self, written},
    quotas,
    rows::PoolRow,
};
use crate::state::{ApiError, CloudState, RequestContext, new_id};

/// Finds a pool that the user may see.
pub(super) fn find<'a>(
    state: &'a CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'a PoolRow, ApiError> {
    let row = state
        .octavia
        .pools
        .get(id)
        .ok_or_else(|| error::not_found(POOL, id))?;
    if ctx.sees(&row.body.project_id) {
        Ok(row)
    } else {
        Err(error::forbidden())
    }
}

/// Returns the listeners that forward to a pool.
pub(super) fn listeners_of(state: &CloudState, pool: &str) -> Vec<String> {
    let Some(row) = state.octavia.pools.get(pool) else {
        return Vec::new();
    };
    let Some(lb) = state.octavia.load_balancers.get(row.load_balancer()) else {
        return Vec::new();
    };
    let listeners = lb
        .body
        .listeners
        .iter()
        .filter_map(|one| state.octavia.listeners.get(&one.id));
    let of_pool = listeners.filter(|row| row.body.default_pool_id.as_deref() == Some(pool));
    of_pool.map(|row| row.body.id.clone()).collect()
}

fn answered(state: &CloudState, row: &PoolRow) -> Pool {
    let listeners = listeners_of(state, &row.body.id)
        .into_iter()
        .map(IdRef::from)
        .collect();
    Pool { listeners, ..row.body.clone() }
}

/// Returns one.
///
/// # Errors
/// 404, or 403 for another project's.
pub fn show(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<Pool, ApiError> {
    find(state, ctx, id).map(|row| answered(state, row))
}

/// Returns all that the user may see.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<Pool> {
    let rows = state.octavia.pools.iter();
    rows.filter(|row| ctx.sees(&row.body.project_id))
        .map(|row| answered(state, row))
        .collect()
}

/// Returns one with its members and its monitor.
pub(super) fn tree(state: &CloudState, id: &str) -> Option<PoolTree> {
    let Pool {
        id,
        name,
        description,
        provisioning_status,
        operating_status,
        admin_state_up,
        protocol,
        lb_algorithm,
        session_persistence,
        project_id,
        loadbalancers: _,
        listeners,
        created_at,
        updated_at,
        monitor,
        members,
        tags,
        tls_container_ref,
        ca_tls_container_ref,
        crl_container_ref,
        tls_enabled,
        tls_ciphers,
        tls_versions,
        alpn_protocols,
    } = answered(state, state.octavia.pools.get(id)?);
    Some(PoolTree {
        id,
        name,
        description,
        provisioning_status,
        operating_status,
        admin_state_up,
        protocol,
        lb_algorithm,
        session_persistence,
        project_id,
        loadbalancers: Vec::new(),
        listeners,
        created_at,
        updated_at,
        monitor: MonitorObject { healthmonitor: monitor_of(state, monitor) },
        members: members_of(state, &members),
        tags,
        tls_container_ref,
        ca_tls_container_ref,
        crl_container_ref,
        tls_enabled,
        tls_ciphers,
        tls_versions,
        alpn_protocols,
    })
}

fn members_of(state: &CloudState, members: &[IdRef]) -> Vec<Member> {
    members
        .iter()
        .filter_map(|one| state.octavia.members.get(&one.id))
        .map(|row| row.body.clone())
        .collect()
}

fn monitor_of(state: &CloudState, monitor: MonitorRef) -> Option<HealthMonitor> {
    let mut body = state
        .octavia
        .monitors
        .get(&monitor.healthmonitor_id?)?
        .body
        .clone();
    body.pools.clear();
    Some(body)
}

/// Creates one.
///
/// # Errors
/// 400, 403, 404, 409 or 501, with Octavia's message.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    create: PoolCreate,
) -> Result<Pool, ApiError> {
    let load_balancer = match (&create.loadbalancer_id, &create.listener_id) {
        (Some(load_balancer), _) => load_balancer.clone(),
        (None, Some(listener)) => listeners::find(state, ctx, listener)?
            .load_balancer()
            .to_owned(),
        (None, None) => {
            return Err(error::validation(
                "Must provide at least one of: loadbalancer_id, listener_id",
            ));
        }
    };
    let lb = load_balancers::find(state, ctx, &load_balancer)?;
    let provider = load_balancers::provider(state, lb)?;
    let project = lb.body.project_id.clone();
    quotas::check(state, &project, quotas::QuotaKind::Pool, 1)?;
    let listeners: Vec<String> = create.listener_id.iter().cloned().collect();
    for listener in &listeners {
        let row = listeners::find(state, ctx, listener)?;
        if row.load_balancer() != load_balancer {
            return Err(error::no_such(LISTENER, listener));
        }
        if row.body.default_pool_id.is_some() {
            return Err(error::conflict("This listener already has a default pool"));
        }
    }
    provisioning::lock_below(state, ctx, &load_balancer, &listeners, None)?;
    let id = insert(state, ctx, &provider, &load_balancer, create)?;
    show(state, ctx, &id)
}

/// Adds a pool, its monitor and its members to a load balancer that is locked. Returns its ID.
pub(super) fn insert(
    state: &mut CloudState,
    ctx: &RequestContext,
    provider: &Provider,
    load_balancer: &str,
    mut create: PoolCreate,
) -> Result<String, ApiError> {
    let lb = state
        .octavia
        .load_balancers
        .get(load_balancer)
        .ok_or_else(|| error::not_found(LOAD_BALANCER, load_balancer))?;
    let project = lb.body.project_id.clone();
    let listener = create.listener_id.take();
    let members = std::mem::take(&mut create.members);
    let monitor = create.healthmonitor.take();
    let body = build(ctx, load_balancer, &project, create)?;
    check_body(&body)?;
    provider.pool(&body)?;
    if let Some(listener) = listener
        .as_ref()
        .and_then(|id| state.octavia.listeners.get(id))
    {
        check::protocols(&listener.body.protocol, &body.protocol)?;
    }
    let id = body.id.clone();
    state.octavia.pools.put(PoolRow { body });
    state
        .octavia
        .load_balancers
        .update(load_balancer, |lb| lb.body.pools.push(IdRef::from(&*id)));
    if let Some(listener) = listener {
        state
            .octavia
            .listeners
            .update(&listener, |row| row.body.default_pool_id = Some(id.clone()));
    }
    if let Some(monitor) = monitor {
        quotas::check(state, &project, quotas::QuotaKind::Monitor, 1)?;
        monitors::insert(state, ctx, provider, &id, monitor)?;
    }
    quotas::check(state, &project, quotas::QuotaKind::Member, members.len())?;
    members::insert(state, ctx, provider, &id, members)?;
    Ok(id)
}

fn build(
    ctx: &RequestContext,
    load_balancer: &str,
    project: &str,
    create: PoolCreate,
) -> Result<Pool, ApiError> {
    let name = create.name.unwrap_or_default();
    let missing = |attribute: &str| {
        error::validation(format_args!(
            "Pool definition for '{name}' missing required attribute: {attribute}"
        ))
    };
    let protocol: PoolProtocol = create.protocol.ok_or_else(|| missing("protocol"))?;
    let lb_algorithm: LbAlgorithm = create.lb_algorithm.ok_or_else(|| missing("lb_algorithm"))?;
    Ok(Pool {
        id: new_id(),
        name,
        description: create.description.unwrap_or_default(),
        provisioning_status: ProvisioningStatus::PendingCreate,
        operating_status: OperatingStatus::Offline,
        admin_state_up: create.admin_state_up.unwrap_or(true),
        protocol,
        lb_algorithm,
        session_persistence: create.session_persistence,
        project_id: project.to_owned(),
        loadbalancers: vec![IdRef::from(load_balancer)],
        listeners: Vec::new(),
        created_at: Some(written(ctx.now)),
        updated_at: None,
        monitor: MonitorRef::default(),
        members: Vec::new(),
        tags: load_balancers::unique(create.tags.unwrap_or_default()),
        tls_container_ref: create.tls_container_ref,
        ca_tls_container_ref: create.ca_tls_container_ref,
        crl_container_ref: create.crl_container_ref,
        tls_enabled: create.tls_enabled.unwrap_or_default(),
        tls_ciphers: create.tls_ciphers,
        tls_versions: create.tls_versions.unwrap_or_default(),
        alpn_protocols: create.alpn_protocols.unwrap_or_default(),
    })
}

/// Checks a pool in its future state.
fn check_body(body: &Pool) -> Result<(), ApiError> {
    check::persistence(&body.protocol, body.session_persistence.as_ref())?;
    if body.crl_container_ref.is_some() && body.ca_tls_container_ref.is_none() {
        return Err(error::validation(
            "A CA certificate reference is required to specify a revocation list.",
        ));
    }
    let references = [&body.tls_container_ref, &body.ca_tls_container_ref, &body.crl_container_ref];
    references
        .into_iter()
        .flatten()
        .try_for_each(|reference| check::certificate(reference))
}

/// Changes one. Its protocol stays.
///
/// # Errors
/// 400, 403, 404, 409 or 501, with Octavia's message.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    update: PoolUpdate,
) -> Result<Pool, ApiError> {
    let row = find(state, ctx, id)?;
    let load_balancer = row.load_balancer().to_owned();
    let provider =
        load_balancers::provider(state, load_balancers::find(state, ctx, &load_balancer)?)?;
    let mut body = row.body.clone();
    apply(&mut body, update);
    check_body(&body)?;
    provider.pool(&body)?;
    provisioning::lock_below(state, ctx, &load_balancer, &listeners_of(state, id), Some(id))?;
    body.provisioning_status = ProvisioningStatus::PendingUpdate;
    body.updated_at = Some(written(ctx.now));
    state.octavia.pools.update(id, |row| row.body = body);
    show(state, ctx, id)
}

fn apply(body: &mut Pool, update: PoolUpdate) {
    update.name.apply(&mut body.name);
    update.description.apply(&mut body.description);
    update.admin_state_up.apply(&mut body.admin_state_up);
    if let Some(algorithm) = update.lb_algorithm.value() {
        body.lb_algorithm = algorithm.clone();
    }
    update
        .session_persistence
        .apply_opt(&mut body.session_persistence);
    update.tags.apply(&mut body.tags);
    body.tags = load_balancers::unique(std::mem::take(&mut body.tags));
    update
        .tls_container_ref
        .apply_opt(&mut body.tls_container_ref);
    update
        .ca_tls_container_ref
        .apply_opt(&mut body.ca_tls_container_ref);
    update
        .crl_container_ref
        .apply_opt(&mut body.crl_container_ref);
    update.tls_enabled.apply(&mut body.tls_enabled);
    update.tls_ciphers.apply_opt(&mut body.tls_ciphers);
    update.tls_versions.apply(&mut body.tls_versions);
    update.alpn_protocols.apply(&mut body.alpn_protocols);
}

/// Deletes one, with its members and its monitor. Listeners that forwarded to it stay, without a
/// pool.
///
/// # Errors
/// 403, 404 or 409.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    let load_balancer = find(state, ctx, id)?.load_balancer().to_owned();
    let listeners = listeners_of(state, id);
    provisioning::lock_below(state, ctx, &load_balancer, &listeners, None)?;
    state
        .octavia
        .pools
        .update(id, |row| row.body.provisioning_status = ProvisioningStatus::PendingDelete);
    Ok(())
}

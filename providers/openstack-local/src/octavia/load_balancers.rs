//! Load balancers.

use crate::api::octavia::{
    AdditionalVip, LoadBalancer, LoadBalancerCreate, LoadBalancerTree, LoadBalancerUpdate,
    OperatingStatus, PoolTree, ProvisioningStatus, Stats, StatusTree,
};

use super::{
    catalog,
    error::{self, LOAD_BALANCER},
    graph, health, listeners, pools,
    provider_driver::Provider,
    provisioning::{self, written},
    quotas,
    rows::LoadBalancerRow,
    settings::Settings,
    vip,
};
use crate::state::{ApiError, CloudState, RequestContext, new_id};

/// Finds a load balancer that the user may see.
///
/// # Errors
/// 404, or 403 for another project's.
pub(super) fn find<'a>(
    state: &'a CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'a LoadBalancerRow, ApiError> {
    let row = state
        .octavia
        .load_balancers
        .get(id)
        .ok_or_else(|| error::not_found(LOAD_BALANCER, id))?;
    if ctx.sees(&row.body.project_id) {
        Ok(row)
    } else {
        Err(error::forbidden())
    }
}

/// Returns the provider driver of a load balancer.
pub(super) fn provider(state: &CloudState, row: &LoadBalancerRow) -> Result<Provider, ApiError> {
    Provider::find(&Settings::of(state), Some(&row.body.provider))
}

/// Returns one.
///
/// # Errors
/// 404, or 403 for another project's.
pub fn show(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<LoadBalancer, ApiError> {
    find(state, ctx, id).map(|row| row.body.clone())
}

/// Returns all that the user may see.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<LoadBalancer> {
    let rows = state.octavia.load_balancers.iter();
    rows.filter(|row| ctx.sees(&row.body.project_id))
        .map(|row| row.body.clone())
        .collect()
}

/// Creates one, with all children in the request: all or nothing.
///
/// # Errors
/// 400, 403, 409 or 501, as in Octavia.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    create: LoadBalancerCreate,
) -> Result<LoadBalancerTree, ApiError> {
    // First, check everything that the request refers to.
    let project = create
        .project_id
        .clone()
        .unwrap_or_else(|| ctx.project.to_string());
    if !ctx.sees(&project) {
        return Err(error::forbidden());
    }
    let provider = choose_provider(state, &create)?;
    if let Some(zone) = &create.availability_zone {
        catalog::check_availability_zone(state, zone)?;
    }
    quotas::check(state, &project, quotas::QuotaKind::LoadBalancer, 1)?;
    // Then create the address and the row.
    let id = new_id();
    let vip = vip::allocate(state, ctx, &create, &provider.port(&id), &project)?;
    let (due, outcome) = provisioning::plan_end(state, ctx.now);
    let LoadBalancerCreate { listeners, pools, .. } = create;
    let body = LoadBalancer {
        id: id.clone(),
        name: create.name.unwrap_or_default(),
        description: create.description.unwrap_or_default(),
        provisioning_status: ProvisioningStatus::PendingCreate,
        operating_status: OperatingStatus::Offline,
        admin_state_up: create.admin_state_up.unwrap_or(true),
        project_id: project,
        created_at: Some(written(ctx.now)),
        updated_at: None,
        vip_address: Some(vip.address),
        vip_port_id: Some(vip.port),
        vip_subnet_id: Some(vip.subnet),
        vip_network_id: Some(vip.network),
        vip_sg_ids: create.vip_sg_ids.unwrap_or_default(),
        additional_vips: vip.additional,
        listeners: Vec::new(),
        pools: Vec::new(),
        provider: provider.name.clone(),
        flavor_id: create.flavor_id,
        vip_qos_policy_id: create.vip_qos_policy_id,
        tags: unique(create.tags.unwrap_or_default()),
        availability_zone: create.availability_zone,
        vip_vnic_type: Some("normal".to_owned()),
    };
    state.octavia.load_balancers.put(LoadBalancerRow {
        body,
        due: Some(due),
        outcome,
        owns_port: vip.owned,
    });
    // Finally, create the children.
    graph::create(state, ctx, &provider, &id, listeners, pools)?;
    tree(state, &id).ok_or_else(|| error::not_found(LOAD_BALANCER, &id))
}

/// Chooses the provider. A flavor belongs to a provider, so both must agree.
fn choose_provider(state: &CloudState, create: &LoadBalancerCreate) -> Result<Provider, ApiError> {
    let settings = Settings::of(state);
    let Some(flavor) = &create.flavor_id else {
        return Provider::find(&settings, create.provider.as_deref());
    };
    let of_flavor = catalog::provider_of_flavor(state, flavor)?;
    match &create.provider {
        Some(provider) if *provider != of_flavor => Err(ApiError::bad_request(
            "",
            format!("Flavor '{flavor}' is not compatible with provider '{provider}'"),
        )),
        _ => Provider::find(&settings, Some(&of_flavor)),
    }
}

/// Removes duplicate tags and keeps their order.
pub(super) fn unique(tags: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    tags.into_iter()
        .filter(|tag| seen.insert(tag.clone()))
        .collect()
}

/// Returns one with everything below it.
// length: every field once, so that a new one cannot be forgotten
fn tree(state: &CloudState, id: &str) -> Option<LoadBalancerTree> {
    let LoadBalancer {
        id,
        name,
        description,
        provisioning_status,
        operating_status,
        admin_state_up,
        project_id,
        created_at,
        updated_at,
        vip_address,
        vip_port_id,
        vip_subnet_id,
        vip_network_id,
        vip_sg_ids,
        additional_vips,
        listeners,
        pools,
        provider,
        flavor_id,
        vip_qos_policy_id,
        tags,
        availability_zone,
        vip_vnic_type,
    } = state.octavia.load_balancers.get(id)?.body.clone();
    let listeners = listeners
        .iter()
        .filter_map(|one| state.octavia.listeners.get(&one.id))
        .map(|row| {
            let mut body = row.body.clone();
            body.loadbalancers.clear();
            body
        });
    let pools: Vec<PoolTree> = pools
        .iter()
        .filter_map(|one| pools::tree(state, &one.id))
        .collect();
    Some(LoadBalancerTree {
        id,
        name,
        description,
        provisioning_status,
        operating_status,
        admin_state_up,
        project_id,
        created_at,
        updated_at,
        vip_address,
        vip_port_id,
        vip_subnet_id,
        vip_network_id,
        vip_sg_ids,
        additional_vips,
        listeners: listeners.collect(),
        pools,
        provider,
        flavor_id,
        vip_qos_policy_id,
        tags,
        availability_zone,
        vip_vnic_type,
    })
}

/// Changes one.
///
/// # Errors
/// 404, 403, or 409 in a state that does not allow it.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    update: LoadBalancerUpdate,
) -> Result<LoadBalancer, ApiError> {
    find(state, ctx, id)?;
    provisioning::lock_whole(state, ctx, id, ProvisioningStatus::PendingUpdate)?;
    state.octavia.load_balancers.update(id, |row| {
        let body = &mut row.body;
        update.name.apply(&mut body.name);
        update.description.apply(&mut body.description);
        update.admin_state_up.apply(&mut body.admin_state_up);
        update
            .vip_qos_policy_id
            .apply_opt(&mut body.vip_qos_policy_id);
        update.vip_sg_ids.apply(&mut body.vip_sg_ids);
        update.tags.apply(&mut body.tags);
        body.tags = unique(std::mem::take(&mut body.tags));
    });
    show(state, ctx, id)
}

/// Deletes one; `cascade`: with everything below it.
///
/// # Errors
/// 404, 403, 409 in a state that does not allow it, 400 when there are children and `cascade` is
/// false.
pub fn delete(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    cascade: bool,
) -> Result<(), ApiError> {
    let row = find(state, ctx, id)?;
    let childless = row.body.listeners.is_empty() && row.body.pools.is_empty();
    if !cascade && !childless {
        return Err(error::validation(format_args!(
            "Cannot delete Load Balancer {id} - it has children"
        )));
    }
    provisioning::lock_whole(state, ctx, id, ProvisioningStatus::PendingDelete)
}

/// Fails one over: builds it again, even from `ERROR`.
///
/// # Errors
/// 404, 403 for users other than administrators unless the settings allow it, 409 in a state that does not allow it, 501 when its provider does not support it.
pub fn failover(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    let row = find(state, ctx, id)?;
    if !ctx.admin && Settings::of(state).failover_needs_admin {
        return Err(error::forbidden());
    }
    let provider = provider(state, row)?;
    provider.failover()?;
    provisioning::lock_failover(state, ctx, id)
}

/// Returns the states of everything below one.
///
/// # Errors
/// 404, or 403 for another project's.
pub fn status(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<StatusTree, ApiError> {
    find(state, ctx, id).map(|row| health::status_tree(state, row))
}

/// Returns the counters of one: the sum over its listeners.
///
/// # Errors
/// 404, or 403 for another project's.
pub fn stats(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<Stats, ApiError> {
    let row = find(state, ctx, id)?;
    let counters = row
        .body
        .listeners
        .iter()
        .map(|one| listeners::counters(state, &one.id));
    Ok(counters.fold(Stats::default(), |sum, one| Stats {
        active_connections: sum.active_connections + one.active_connections,
        bytes_in: sum.bytes_in + one.bytes_in,
        bytes_out: sum.bytes_out + one.bytes_out,
        request_errors: sum.request_errors + one.request_errors,
        total_connections: sum.total_connections + one.total_connections,
    }))
}

/// Returns all addresses of a load balancer.
pub(super) fn addresses(body: &LoadBalancer) -> Vec<std::net::IpAddr> {
    let more = body
        .additional_vips
        .iter()
        .filter_map(|AdditionalVip { ip_address, .. }| ip_address.as_ref());
    body.vip_address
        .iter()
        .chain(more)
        .filter_map(|address| address.parse().ok())
        .collect()
}

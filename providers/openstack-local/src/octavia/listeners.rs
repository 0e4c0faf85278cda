//! Listeners.

use crate::api::octavia::{
    IdRef, Listener, ListenerCreate, ListenerProtocol, ListenerUpdate, OperatingStatus, PoolCreate,
    ProvisioningStatus, Stats,
};

use super::{
    check,
    error::{self, LISTENER, LOAD_BALANCER, POOL},
    load_balancers, pools,
    provider_driver::Provider,
    provisioning::{self, written},
    quotas,
    rows::{ListenerRow, LoadBalancerRow},
};
use crate::{
    keystone::key_manager,
    state::{ApiError, CloudState, RequestContext, new_id},
};

/// Default timeouts in milliseconds: client data, member connect, member data, TCP inspection.
const TIMEOUTS: [u32; 4] = [50_000, 5_000, 50_000, 0];
const TLS_VERSIONS: &[&str] = &["TLSv1.2", "TLSv1.3"];
const ALPN: &[&str] = &["h2", "http/1.1", "http/1.0"];
const CIPHERS: &str = "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256:\
                       ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256:\
                       ECDHE-RSA-AES128-GCM-SHA256";

/// Finds a listener that the user may see.
pub(super) fn find<'a>(
    state: &'a CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'a ListenerRow, ApiError> {
    let row = state
        .octavia
        .listeners
        .get(id)
        .ok_or_else(|| error::not_found(LISTENER, id))?;
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
pub fn show(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<Listener, ApiError> {
    find(state, ctx, id).map(|row| row.body.clone())
}

/// Returns all that the user may see.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<Listener> {
    let rows = state.octavia.listeners.iter();
    rows.filter(|row| ctx.sees(&row.body.project_id))
        .map(|row| row.body.clone())
        .collect()
}

/// Creates one.
///
/// # Errors
/// 400, 403, 404, 409 or 501, with Octavia's message.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    mut create: ListenerCreate,
) -> Result<Listener, ApiError> {
    let load_balancer = create.loadbalancer_id.take().unwrap_or_default();
    let lb = load_balancers::find(state, ctx, &load_balancer)?;
    let provider = load_balancers::provider(state, lb)?;
    let project = lb.body.project_id.clone();
    quotas::check(state, &project, quotas::QuotaKind::Listener, 1)?;
    provisioning::lock_below(state, ctx, &load_balancer, &[], None)?;
    let pool = create.default_pool.take();
    let id = insert(state, ctx, &provider, &load_balancer, create)?;
    if let Some(pool) = pool {
        add_pool(state, ctx, &provider, &id, pool)?;
    }
    show(state, ctx, &id)
}

fn add_pool(
    state: &mut CloudState,
    ctx: &RequestContext,
    provider: &Provider,
    listener: &str,
    mut create: PoolCreate,
) -> Result<(), ApiError> {
    create.listener_id = Some(listener.to_owned());
    let row = find(state, ctx, listener)?;
    let load_balancer = row.load_balancer().to_owned();
    let project = row.body.project_id.clone();
    quotas::check(state, &project, quotas::QuotaKind::Pool, 1)?;
    pools::insert(state, ctx, provider, &load_balancer, create).map(|_| ())
}

/// Adds a listener to a load balancer that is locked. Returns its ID.
pub(super) fn insert(
    state: &mut CloudState,
    ctx: &RequestContext,
    provider: &Provider,
    load_balancer: &str,
    create: ListenerCreate,
) -> Result<String, ApiError> {
    let lb = state
        .octavia
        .load_balancers
        .get(load_balancer)
        .ok_or_else(|| error::not_found(LOAD_BALANCER, load_balancer))?;
    let body = build(ctx, lb, create);
    check::listener(&body, &load_balancers::addresses(&lb.body))?;
    check_certificates(state, ctx, &body)?;
    if !lb.body.vip_sg_ids.is_empty() && body.allowed_cidrs.is_some() {
        return Err(error::validation(
            "Allowed CIDRs are not allowed when using custom VIP Security Groups.",
        ));
    }
    provider.listener(&body)?;
    check_port(state, lb, &body)?;
    if let Some(pool) = &body.default_pool_id {
        check_pool(state, &body, load_balancer, pool)?;
    }
    let id = body.id.clone();
    state
        .octavia
        .load_balancers
        .update(load_balancer, |lb| lb.body.listeners.push(IdRef::from(&*id)));
    state
        .octavia
        .listeners
        .put(ListenerRow { body, open: None, full: false });
    Ok(id)
}

fn build(ctx: &RequestContext, lb: &LoadBalancerRow, create: ListenerCreate) -> Listener {
    let protocol = create.protocol.unwrap_or(ListenerProtocol::Tcp);
    let tls = protocol == ListenerProtocol::TerminatedHttps;
    let defaults = |words: &[&str]| {
        if tls {
            words.iter().map(ToString::to_string).collect()
        } else {
            Vec::new()
        }
    };
    let [client, connect, member, inspect] = TIMEOUTS;
    Listener {
        id: new_id(),
        name: create.name.unwrap_or_default(),
        description: create.description.unwrap_or_default(),
        provisioning_status: ProvisioningStatus::PendingCreate,
        operating_status: OperatingStatus::Offline,
        admin_state_up: create.admin_state_up.unwrap_or(true),
        protocol,
        protocol_port: create.protocol_port,
        connection_limit: create.connection_limit.unwrap_or(-1),
        default_tls_container_ref: create.default_tls_container_ref,
        sni_container_refs: create.sni_container_refs.unwrap_or_default(),
        project_id: lb.body.project_id.clone(),
        default_pool_id: create.default_pool_id,
        l7policies: Vec::new(),
        insert_headers: create.insert_headers.unwrap_or_default(),
        created_at: Some(written(ctx.now)),
        updated_at: None,
        loadbalancers: vec![IdRef::from(&*lb.body.id)],
        timeout_client_data: create.timeout_client_data.or(Some(client)),
        timeout_member_connect: create.timeout_member_connect.or(Some(connect)),
        timeout_member_data: create.timeout_member_data.or(Some(member)),
        timeout_tcp_inspect: create.timeout_tcp_inspect.or(Some(inspect)),
        tags: load_balancers::unique(create.tags.unwrap_or_default()),
        client_ca_tls_container_ref: create.client_ca_tls_container_ref,
        client_authentication: create
            .client_authentication
            .or_else(|| Some("NONE".to_owned())),
        client_crl_container_ref: create.client_crl_container_ref,
        allowed_cidrs: create.allowed_cidrs.and_then(check::normal_cidrs),
        tls_ciphers: create
            .tls_ciphers
            .or_else(|| tls.then(|| CIPHERS.to_owned())),
        tls_versions: create
            .tls_versions
            .unwrap_or_else(|| defaults(TLS_VERSIONS)),
        alpn_protocols: create.alpn_protocols.unwrap_or_else(|| defaults(ALPN)),
        hsts_max_age: create.hsts_max_age,
        hsts_include_subdomains: create.hsts_include_subdomains.unwrap_or_default(),
        hsts_preload: create.hsts_preload.unwrap_or_default(),
    }
}

/// Checks that all certificates are in the key manager.
fn check_certificates(
    state: &CloudState,
    ctx: &RequestContext,
    body: &Listener,
) -> Result<(), ApiError> {
    let own = body
        .default_tls_container_ref
        .iter()
        .chain(&body.sni_container_refs);
    let mut all = own
        .chain(&body.client_ca_tls_container_ref)
        .chain(&body.client_crl_container_ref);
    let is_there = |reference: &str| {
        key_manager::find_container(state, ctx, reference).is_some()
            || key_manager::find_secret(state, ctx, reference).is_some()
    };
    match all.find(|reference| !is_there(reference)) {
        Some(reference) => Err(error::bad_reference(reference)),
        None => Ok(()),
    }
}

/// Checks that there is one listener per port and transport.
fn check_port(state: &CloudState, lb: &LoadBalancerRow, new: &Listener) -> Result<(), ApiError> {
    let others = lb
        .body
        .listeners
        .iter()
        .filter_map(|one| state.octavia.listeners.get(&one.id));
    for other in others {
        let body = &other.body;
        let transport = check::transport(&other.body.protocol);
        if body.protocol_port == new.protocol_port && transport == check::transport(&new.protocol) {
            return Err(error::conflict(format!(
                "Another Listener on this Load Balancer is already using protocol {} and protocol_port {}",
                body.protocol, body.protocol_port
            )));
        }
    }
    Ok(())
}

/// Checks that the pool belongs to the same load balancer, and that the listener can forward to its
/// protocol.
fn check_pool(
    state: &CloudState,
    listener: &Listener,
    load_balancer: &str,
    pool: &str,
) -> Result<(), ApiError> {
    match state
        .octavia
        .pools
        .get(pool)
        .filter(|row| row.load_balancer() == load_balancer)
    {
        Some(row) => check::protocols(&listener.protocol, &row.body.protocol),
        None => Err(error::not_found(POOL, pool)),
    }
}

/// Changes one. Its protocol and port stay.
///
/// # Errors
/// 400, 403, 404 or 409, with Octavia's message.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    update: ListenerUpdate,
) -> Result<Listener, ApiError> {
    let row = find(state, ctx, id)?;
    let load_balancer = row.load_balancer().to_owned();
    let lb = load_balancers::find(state, ctx, &load_balancer)?;
    let mut body = row.body.clone();
    apply(&mut body, update);
    check::listener(&body, &load_balancers::addresses(&lb.body))?;
    check_certificates(state, ctx, &body)?;
    load_balancers::provider(state, lb)?.listener(&body)?;
    if let Some(pool) = body
        .default_pool_id
        .as_ref()
        .filter(|pool| row.body.default_pool_id.as_ref() != Some(pool))
    {
        check_pool(state, &body, &load_balancer, pool)?;
    }
    provisioning::lock_below(state, ctx, &load_balancer, &[id.to_owned()], None)?;
    body.provisioning_status = ProvisioningStatus::PendingUpdate;
    body.updated_at = Some(written(ctx.now));
    state.octavia.listeners.update(id, |row| row.body = body);
    show(state, ctx, id)
}

fn apply(body: &mut Listener, update: ListenerUpdate) {
    let [client, connect, member, inspect] = TIMEOUTS;
    update.name.apply(&mut body.name);
    update.description.apply(&mut body.description);
    update.admin_state_up.apply(&mut body.admin_state_up);
    update
        .connection_limit
        .apply_or(&mut body.connection_limit, -1);
    update
        .default_tls_container_ref
        .apply_opt(&mut body.default_tls_container_ref);
    update
        .sni_container_refs
        .apply(&mut body.sni_container_refs);
    update.default_pool_id.apply_opt(&mut body.default_pool_id);
    update.insert_headers.apply(&mut body.insert_headers);
    for (patch, field, default) in [
        (update.timeout_client_data, &mut body.timeout_client_data, client),
        (update.timeout_member_connect, &mut body.timeout_member_connect, connect),
        (update.timeout_member_data, &mut body.timeout_member_data, member),
        (update.timeout_tcp_inspect, &mut body.timeout_tcp_inspect, inspect),
    ] {
        patch.apply_opt(field);
        field.get_or_insert(default);
    }
    update.tags.apply(&mut body.tags);
    body.tags = load_balancers::unique(std::mem::take(&mut body.tags));
    update
        .client_ca_tls_container_ref
        .apply_opt(&mut body.client_ca_tls_container_ref);
    update
        .client_authentication
        .apply_opt(&mut body.client_authentication);
    body.client_authentication
        .get_or_insert_with(|| "NONE".to_owned());
    update
        .client_crl_container_ref
        .apply_opt(&mut body.client_crl_container_ref);
    update.allowed_cidrs.apply_opt(&mut body.allowed_cidrs);
    body.allowed_cidrs = body.allowed_cidrs.take().and_then(check::normal_cidrs);
    update.tls_ciphers.apply_opt(&mut body.tls_ciphers);
    update.tls_versions.apply(&mut body.tls_versions);
    update.alpn_protocols.apply(&mut body.alpn_protocols);
    update.hsts_max_age.apply_opt(&mut body.hsts_max_age);
    update
        .hsts_include_subdomains
        .apply(&mut body.hsts_include_subdomains);
    update.hsts_preload.apply(&mut body.hsts_preload);
}

/// Deletes one. Its pool stays.
///
/// # Errors
/// 403, 404 or 409.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    let load_balancer = find(state, ctx, id)?.load_balancer().to_owned();
    provisioning::lock_below(state, ctx, &load_balancer, &[], None)?;
    state
        .octavia
        .listeners
        .update(id, |row| row.body.provisioning_status = ProvisioningStatus::PendingDelete);
    Ok(())
}

/// Returns the counters of one.
///
/// # Errors
/// 404, or 403 for another project's.
pub fn stats(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<Stats, ApiError> {
    find(state, ctx, id).map(|row| counters(state, &row.body.id))
}

/// Returns the counters of a listener; zero when nothing was counted yet.
pub(super) fn counters(state: &CloudState, id: &str) -> Stats {
    state
        .octavia
        .counters
        .get(id)
        .map(|row| row.total())
        .unwrap_or_default()
}

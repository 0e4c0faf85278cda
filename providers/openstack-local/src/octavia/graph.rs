//! The children that a load balancer is created with: listeners and pools, which refer to each
//! other by name.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::octavia::{ListenerCreate, PoolCreate};

use super::{error::validation, listeners, pools, provider_driver::Provider, quotas};
use crate::state::{ApiError, CloudState, RequestContext};

/// Creates all children of a new load balancer. After an error the caller undoes everything.
pub(super) fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    provider: &Provider,
    load_balancer: &str,
    mut listeners: Vec<ListenerCreate>,
    mut pools: Vec<PoolCreate>,
) -> Result<(), ApiError> {
    let names = gather(&mut listeners, &mut pools)?;
    let project = state
        .octavia
        .load_balancers
        .get(load_balancer)
        .map(|row| row.body.project_id.clone());
    let project = project.unwrap_or_default();
    quotas::check(state, &project, quotas::QuotaKind::Pool, pools.len())?;
    let mut ids = BTreeMap::new();
    for pool in pools {
        let name = pool.name.clone().unwrap_or_default();
        ids.insert(name, pools::insert(state, ctx, provider, load_balancer, pool)?);
    }
    quotas::check(state, &project, quotas::QuotaKind::Listener, listeners.len())?;
    for (mut listener, name) in listeners.into_iter().zip(names) {
        if let Some(name) = name {
            listener.default_pool_id = ids.get(&name).cloned();
        }
        listeners::insert(state, ctx, provider, load_balancer, listener)?;
    }
    Ok(())
}

/// Moves pools out of listeners, and returns the name of each listener's pool.
fn gather(
    listeners: &mut [ListenerCreate],
    pools: &mut Vec<PoolCreate>,
) -> Result<Vec<Option<String>>, ApiError> {
    let mut names = Vec::new();
    for listener in listeners {
        let Some(pool) = listener.default_pool.take() else {
            names.push(None);
            continue;
        };
        let Some(name) = pool.name.clone().filter(|name| !name.is_empty()) else {
            return Err(validation(
                "Pools must be named when creating a fully populated loadbalancer.",
            ));
        };
        names.push(Some(name.clone()));
        // A name alone refers to the pool that has it.
        if pool != (PoolCreate { name: Some(name), ..PoolCreate::default() }) {
            pools.push(pool);
        }
    }
    let unique: BTreeSet<_> = pools
        .iter()
        .map(|pool| pool.name.as_deref().unwrap_or_default())
        .collect();
    if unique.len() != pools.len() {
        return Err(validation(
            "Pool names must be unique when creating a fully populated loadbalancer.",
        ));
    }
    match names
        .iter()
        .flatten()
        .find(|name| !unique.contains(name.as_str()))
    {
        Some(name) => Err(validation(format_args!(
            "Pool '{name}' was referenced but no full definition was found."
        ))),
        None => Ok(names),
    }
}

//! Reads the observed state of a Service's load balancer.

use ccm_core::{
    k8s::ServiceView,
    provider::{CloudError, ErrorKind},
};
use openstack_api::octavia::{LoadBalancer, ProvisioningStatus};
use tokio::time::Instant;

use super::{
    annotations, api::Api, model::ServiceKey, names, ownership::ServiceOwnership,
    sync_state::LoadBalancerSyncState,
};
use crate::{
    client::OpenStackError,
    lb::observed::{ObservedLoadBalancer, ObservedMember},
};

/// Which load balancer to find.
#[derive(Clone, Debug)]
pub(super) struct LoadBalancerQuery<'a> {
    pub(super) cluster: &'a str,
    pub(super) service_key: &'a ServiceKey,
    /// ID in the Service's annotation.
    pub(super) id: Option<&'a str>,
    /// True when the Service was served before.
    pub(super) served: bool,
}

impl<'a> LoadBalancerQuery<'a> {
    /// Builds the query for a Service.
    pub(super) fn of(
        cluster: &'a str,
        service_key: &'a ServiceKey,
        service: &'a ServiceView,
    ) -> Self {
        let id = service
            .annotations
            .get(&*annotations::LOAD_BALANCER_ID.key())
            .map(|id| id.trim())
            .filter(|id| !id.is_empty());
        Self { cluster, service_key, id, served: was_served(service) }
    }
}

/// Returns whether a Service was served before: its status shows an address, or its annotations
/// have one.
pub(super) fn was_served(service: &ServiceView) -> bool {
    shows_address(service)
        || service
            .annotations
            .contains_key(&*annotations::LOAD_BALANCER_ADDRESS.key())
}

/// Returns whether a Service's status shows an address. A copy of a Service has its annotations,
/// but not its status.
pub(super) fn shows_address(service: &ServiceView) -> bool {
    !service.status.ingress.is_empty()
}

/// Finds the load balancer: by ID, else by its names. One that is being deleted counts only by ID.
pub(super) async fn find_load_balancer(
    api: Api<'_>,
    query: &LoadBalancerQuery<'_>,
) -> Result<Option<LoadBalancer>, CloudError> {
    if let Some(id) = query.id {
        match api.load_balancer(id).await? {
            Some(found) if found.provisioning_status != ProvisioningStatus::Deleted => {
                return Ok(Some(found));
            }
            // For a Service that was served, the ID is out of date. For others, a load balancer to
            // be shared has to exist.
            _ if query.served => {}
            _ => {
                let message =
                    format!("load balancer {id}, which the Service names, does not exist");
                return Err(CloudError::invalid_input(message));
            }
        }
    }
    let name =
        names::load_balancer(query.cluster, &query.service_key.namespace, &query.service_key.name);
    let mut found = find_by_name(api, &name).await?;
    if found.is_empty() && query.served && !query.service_key.uid.is_empty() {
        found = find_by_name(api, &names::legacy_load_balancer(&query.service_key.uid)).await?;
    }
    if found.len() > 1 {
        let ids: Vec<_> = found
            .iter()
            .map(|load_balancer| &*load_balancer.id)
            .collect();
        let message = format!("there are several load balancers {name}: {}", ids.join(", "));
        return Err(CloudError::new(ErrorKind::Conflict, message));
    }
    Ok(found.pop())
}

async fn find_by_name(api: Api<'_>, name: &str) -> Result<Vec<LoadBalancer>, OpenStackError> {
    let mut found = api.load_balancers(&[("name", name)]).await?;
    // A service that does not support the filter would list everything.
    found.retain(|load_balancer| {
        load_balancer.name == name
            && !matches!(
                load_balancer.provisioning_status,
                ProvisioningStatus::Deleted | ProvisioningStatus::PendingDelete
            )
    });
    Ok(found)
}

/// Reads the children of a load balancer: listeners and pools, and members and monitors of this
/// Service's pools.
///
/// # Errors
/// Those of the requests; `observed` is unchanged then.
pub(super) async fn read_children(
    api: Api<'_>,
    observed: &mut ObservedLoadBalancer,
    ownership: &ServiceOwnership,
) -> Result<(), OpenStackError> {
    let mut found = ObservedLoadBalancer::new(observed.load_balancer.clone());
    found.listeners = api.listeners(&observed.load_balancer.id).await?;
    found.pools = api.pools(&observed.load_balancer.id).await?;
    read_members(api, &mut found, ownership).await?;
    *observed = found;
    Ok(())
}

/// Reads members and monitors of this Service's pools, where they are not known.
///
/// # Errors
/// Those of the requests; what was read stays.
pub(super) async fn read_members(
    api: Api<'_>,
    observed: &mut ObservedLoadBalancer,
    ownership: &ServiceOwnership,
) -> Result<(), OpenStackError> {
    let unread_pools: Vec<_> = observed
        .listeners
        .iter()
        .filter(|listener| ownership.owns_listener(listener))
        .filter_map(|listener| observed.pool_of(listener))
        .filter(|pool| !observed.members.contains_key(&pool.id))
        .cloned()
        .collect();
    for pool in unread_pools {
        // The pool's own list of members says whether there are any to request.
        let members = if pool.members.is_empty() {
            Vec::new()
        } else {
            api.members(&pool.id).await?
        };
        if let Some(id) = &pool.monitor.healthmonitor_id
            && !observed.monitors.contains_key(id)
            && let Some(monitor) = api.monitor(id).await?
        {
            observed.monitors.insert(id.clone(), monitor);
        }
        observed
            .members
            .insert(pool.id, members.into_iter().map(ObservedMember::from).collect());
    }
    if ownership.renames_all() {
        read_all_monitors(api, observed).await?;
    }
    Ok(())
}

/// Reads the monitors of all pools, because those of others are renamed too.
async fn read_all_monitors(
    api: Api<'_>,
    observed: &mut ObservedLoadBalancer,
) -> Result<(), OpenStackError> {
    let ids: Vec<String> = observed
        .pools
        .iter()
        .filter_map(|pool| pool.monitor.healthmonitor_id.clone())
        .collect();
    for id in ids {
        if !observed.monitors.contains_key(&id)
            && let Some(monitor) = api.monitor(&id).await?
        {
            observed.monitors.insert(id, monitor);
        }
    }
    Ok(())
}

/// Reads a load balancer again whose children are known. They are unchanged if its `updated_at` is,
/// because every change of a child is one of the load balancer. Returns false when the load
/// balancer does not exist any more.
pub(super) async fn refresh(
    api: Api<'_>,
    state: &mut LoadBalancerSyncState,
) -> Result<bool, OpenStackError> {
    let Some(observed) = &mut state.observed else {
        return Ok(false);
    };
    let before = &observed.load_balancer;
    let Some(current) = api.load_balancer(&before.id).await? else {
        return Ok(false);
    };
    // While it is busy with our own change, `updated_at` is expected to change.
    let is_our_change = state.unfinished || before.provisioning_status.is_pending();
    let is_changed =
        current.updated_at != before.updated_at || current.provisioning_status.is_pending();
    if is_changed && !is_our_change {
        state.children_known = false;
    }
    observed.load_balancer = current;
    state.read_at = Some(Instant::now());
    Ok(true)
}

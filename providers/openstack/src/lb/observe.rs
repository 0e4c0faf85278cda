//! Reads the observed state of a Service's load balancer.

use std::net::IpAddr;

use ccm_core::{
    k8s::{ServiceView, well_known::ANNOTATION_ADOPT},
    provider::{CloudError, ErrorKind, EventType, adopted_id},
};
use openstack_api::octavia::ProvisioningStatus;
use tokio::time::Instant;

use super::{
    annotations, api::Api, model::ServiceKey, names, ownership::ServiceOwnership, plan::retention,
    sync_state::LoadBalancerSyncState,
};
use crate::{
    api::octavia::LoadBalancer,
    client::OpenStackError,
    lb::observed::{ObservedLoadBalancer, ObservedMember},
};

/// Query for the load balancer of a Service.
#[derive(Clone, Debug)]
pub(super) struct LoadBalancerQuery<'a> {
    pub(super) cluster: &'a str,
    pub(super) service_key: &'a ServiceKey,
    /// ID in the Service's annotation.
    pub(super) id: Option<&'a str>,
    /// ID of the load balancer that the Service adopts. A deletion looks for none.
    pub(super) adopted: Option<&'a str>,
    /// True when the Service was served before. Then an ID that does not exist is no error.
    pub(super) served: bool,
    /// True when the Service is being deleted. Then an ID of another project is no error, and nothing
    /// is found.
    pub(super) is_deletion: bool,
}

impl<'a> LoadBalancerQuery<'a> {
    /// Builds the query for a Service.
    pub(super) fn for_service(
        cluster: &'a str,
        service_key: &'a ServiceKey,
        service: &'a ServiceView,
    ) -> Self {
        let id = service
            .annotations
            .get(&*annotations::LOAD_BALANCER_ID.key())
            .map(|id| id.trim())
            .filter(|id| !id.is_empty());
        Self {
            cluster,
            service_key,
            id,
            adopted: adopted_id(service),
            served: was_served(service),
            is_deletion: false,
        }
    }
}

/// Returns true if a Service was served before, because its status or its annotations show an
/// address.
pub(super) fn was_served(service: &ServiceView) -> bool {
    shows_address(service)
        || service
            .annotations
            .contains_key(&*annotations::LOAD_BALANCER_ADDRESS.key())
}

/// Returns true if a Service's status shows an address. In contrast to the annotations, the status
/// is not part of a copy of the Service, for example in another cluster.
pub(super) fn shows_address(service: &ServiceView) -> bool {
    !service.status.ingress.is_empty()
}

/// Returns the addresses that a Service shows in its status and its annotation. The annotation may
/// be part of a copy, so alone it counts for nothing.
pub(super) fn shown_addresses(service: &ServiceView) -> Vec<IpAddr> {
    if !shows_address(service) {
        return Vec::new();
    }
    let annotated = service
        .annotations
        .get(&*annotations::LOAD_BALANCER_ADDRESS.key())
        .and_then(|text| text.trim().parse().ok());
    let ingress = service.status.ingress.iter();
    ingress
        .filter_map(|ingress| ingress.ip)
        .chain(annotated)
        .collect()
}

/// Finds a load balancer by its ID, or else by its name or legacy name. By name, load balancers
/// that are being deleted are not found. A deletion never looks by name if the ID leads to another
/// project: what has the name in this one is another cluster's.
///
/// # Errors
/// Returns an error if a Service that was never served names an ID that does not exist, if a Service
/// names a load balancer of another project, or if several load balancers have the name.
pub(super) async fn find_load_balancer(
    api: Api<'_>,
    query: &LoadBalancerQuery<'_>,
) -> Result<Option<LoadBalancer>, CloudError> {
    if let Some(id) = query.adopted {
        return find_adopted(api, query, id).await.map(Some);
    }
    if let Some(id) = query.id {
        match api.load_balancer(id).await? {
            Some(found) if found.provisioning_status != ProvisioningStatus::Deleted => {
                if api.is_of_own_project(&found).await? {
                    return Ok(Some(found));
                }
                if query.is_deletion {
                    report_other_project(api, &found);
                    return Ok(None);
                }
                return Err(other_project_error(&found));
            }
            // The ID is out of date. For a Service that was never served, a user wrote the ID to
            // share a load balancer, which must exist.
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

/// Finds the load balancer that a Service adopts. It is never created, and never taken while the
/// Service has another one.
async fn find_adopted(
    api: Api<'_>,
    query: &LoadBalancerQuery<'_>,
    id: &str,
) -> Result<LoadBalancer, CloudError> {
    let found = api.load_balancer(id).await?;
    let found = found.filter(|found| found.provisioning_status != ProvisioningStatus::Deleted);
    let Some(found) = found else {
        return Err(CloudError::invalid_input(format!(
            "load balancer {id}, which the Service adopts, does not exist; remove the annotation {ANNOTATION_ADOPT} to get \
             a new one"
        )));
    };
    if !api.is_of_own_project(&found).await? {
        return Err(other_project_error(&found));
    }
    let service = query.service_key;
    let name = names::load_balancer(query.cluster, &service.namespace, &service.name);
    if *found.name == *name {
        return Ok(found);
    }
    match find_by_name(api, &name).await?.first() {
        None => Ok(found),
        Some(own) => Err(retention::has_another(id, &own.id)),
    }
}

/// The error for a Service that names a load balancer of another project, as after a change of the
/// credentials. A second load balancer would take the Service's address away.
fn other_project_error(load_balancer: &LoadBalancer) -> CloudError {
    CloudError::invalid_input(format!(
        "load balancer {}, which the Service names, belongs to project {}, and not to the one of the credentials; \
         change the credentials, or remove the annotation {} to get a new load balancer",
        load_balancer.id,
        load_balancer.project_id,
        annotations::LOAD_BALANCER_ID.key(),
    ))
}

/// Reports that the load balancer of a deleted Service stays, because it belongs to another project.
fn report_other_project(api: Api<'_>, load_balancer: &LoadBalancer) {
    let LoadBalancer { id, project_id, .. } = load_balancer;
    let note = format!(
        "load balancer {id}, which the Service names, belongs to project {project_id}, and not to the one of the \
         credentials, and is not deleted"
    );
    tracing::warn!(load_balancer = id, project = project_id, "{note}");
    api.op
        .event(EventType::Warning, "LoadBalancerOfOtherProject", &note);
}

async fn find_by_name(api: Api<'_>, name: &str) -> Result<Vec<LoadBalancer>, OpenStackError> {
    let mut found = api.load_balancers(&[("name", name)]).await?;
    // An Octavia that does not support the filter would list everything.
    found.retain(|load_balancer| load_balancer.name == name && !is_gone(load_balancer));
    Ok(found)
}

/// Finds load balancers by a tag. Those that are being deleted are not found.
pub(super) async fn find_by_tag(
    api: Api<'_>,
    tag: &str,
) -> Result<Vec<LoadBalancer>, OpenStackError> {
    let mut found = api.load_balancers(&[("tags", tag)]).await?;
    found.retain(|load_balancer| {
        load_balancer.tags.iter().any(|found| found == tag) && !is_gone(load_balancer)
    });
    Ok(found)
}

fn is_gone(load_balancer: &LoadBalancer) -> bool {
    matches!(
        load_balancer.provisioning_status,
        ProvisioningStatus::Deleted | ProvisioningStatus::PendingDelete
    )
}

/// Reads the children of a load balancer: all listeners and pools, but members and monitors only of
/// this Service's pools.
///
/// # Errors
/// Returns the error of the first request that fails. `observed` is unchanged then.
pub(super) async fn read_children(
    api: Api<'_>,
    observed: &mut ObservedLoadBalancer,
    ownership: &ServiceOwnership,
) -> Result<(), OpenStackError> {
    let mut current = ObservedLoadBalancer::new(observed.load_balancer.clone());
    current.listeners = api.listeners(&observed.load_balancer.id).await?;
    current.pools = api.pools(&observed.load_balancer.id).await?;
    read_members(api, &mut current, ownership).await?;
    *observed = current;
    Ok(())
}

/// Reads the members and monitors of this Service's pools that were not read yet.
///
/// # Errors
/// Returns the error of the first request that fails. `observed` keeps what was read before.
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
        // The pool lists its members' IDs. Without any there is nothing to request.
        let members = if pool.members.as_ref().is_some_and(Vec::is_empty) {
            Vec::new()
        } else {
            api.members(&pool.id).await?
        };
        if let Some(id) = &pool.healthmonitor_id
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

/// Reads the monitors of all pools. After the cluster was renamed, those of other Services are
/// renamed too.
async fn read_all_monitors(
    api: Api<'_>,
    observed: &mut ObservedLoadBalancer,
) -> Result<(), OpenStackError> {
    let ids: Vec<String> = observed
        .pools
        .iter()
        .filter_map(|pool| pool.healthmonitor_id.clone())
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

/// Reads a load balancer again whose children are known, and finds out whether they are still
/// valid. Octavia updates `updated_at` of the load balancer with every change of a child, so if it
/// is the same, the children are unchanged. Returns false if the load balancer does not exist any
/// more.
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
    let has_changed =
        current.updated_at != before.updated_at || current.provisioning_status.is_pending();
    // A change of our own also changes `updated_at`, and the children already include it.
    let expects_change = state.unfinished || before.provisioning_status.is_pending();
    if has_changed && !expects_change {
        state.children_known = false;
    }
    observed.load_balancer = current;
    state.read_at = Some(Instant::now());
    Ok(true)
}

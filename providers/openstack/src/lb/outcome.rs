//! Builds the outcome of a reconcile: status and annotations of the Service.

use std::{collections::BTreeMap, net::IpAddr};

use ccm_core::{
    k8s::ServiceView,
    provider::{CloudError, LbOutcome, Progress},
};
use openstack_api::octavia::ProvisioningStatus;

use super::{
    annotations::{self, Annotation},
    floating_ip_sync, observe,
    observed::{ObservedLoadBalancer, family_of},
    reconcile_input::ReconcileInput,
    retention_tags, status,
    sync_state::LoadBalancerSyncState,
};

/// Builds the outcome, with the ID and the address as soon as the load balancer serves.
///
/// Before that, the Service gets no ID, and the load balancer is found by its name. Otherwise the
/// next sync would take the ID for one that a user wrote, and fail if the load balancer does not
/// exist. Nor does it get the ID of one that it has not adopted completely.
pub(super) fn build(
    input: &ReconcileInput<'_>,
    state: &LoadBalancerSyncState,
    published_address: Option<IpAddr>,
    result: Result<Progress, CloudError>,
) -> LbOutcome {
    let service = input.service;
    let mut outcome = LbOutcome { status: None, annotations: BTreeMap::new(), result };
    if let Some(observed) = &state.observed
        && observed.load_balancer.provisioning_status != ProvisioningStatus::PendingCreate
        && !retention_tags::is_retained(&observed.load_balancer)
        && (published_address.is_some() || observe::was_served(service))
    {
        let id = &observed.load_balancer.id;
        annotate(&mut outcome, service, &annotations::LOAD_BALANCER_ID, id);
    }
    if let Some(address) = published_address {
        let text = address.to_string();
        annotate(&mut outcome, service, &annotations::LOAD_BALANCER_ADDRESS, &text);
        let second = state
            .observed
            .as_ref()
            .and_then(|observed| second_address(input, observed));
        outcome.status = Some(status::build(address, second, &input.desired.status_format));
    }
    let id_key = annotations::LOAD_BALANCER_ID.key();
    if state.replaced_failed && service.annotations.contains_key(&*id_key) {
        outcome.annotations.insert(id_key, None);
    }
    outcome
}

/// Sets an annotation, unless the Service already has it with this value.
fn annotate(outcome: &mut LbOutcome, service: &ServiceView, annotation: &Annotation, value: &str) {
    let key = annotation.key();
    let current = service.annotations.get(&*key);
    if current.is_none_or(|current| **current != *value) {
        outcome.annotations.insert(key, Some(value.into()));
    }
}

/// Returns the second address of a Service with two address families, or `None` if its load balancer
/// has only one.
pub(super) fn second_address(
    input: &ReconcileInput<'_>,
    observed: &ObservedLoadBalancer,
) -> Option<IpAddr> {
    let second = input.desired.create_settings.second_vip.as_ref()?;
    observed
        .addresses()
        .into_iter()
        .skip(1)
        .find(|address| family_of(*address) == second.family)
}

/// Returns the Service's address according to the sync state.
pub(super) fn known_address(
    input: &ReconcileInput<'_>,
    state: &LoadBalancerSyncState,
) -> Option<IpAddr> {
    if !input.desired.internal
        && let Some(floating_ip) = state.floating_ip.get()
        && let Some(address) = floating_ip.floating_ip_address
    {
        return Some(address);
    }
    floating_ip_sync::vip_address(state.observed.as_ref()?).ok()
}

//! Plans the changes of a load balancer. Pure functions.

use ccm_core::{
    k8s::ServiceView,
    provider::{CloudError, PlannedChange},
};

use super::annotations::LOAD_BALANCER_ID;
use crate::cloud::{
    LoadBalancer, LoadBalancerSettings, LoadBalancerSpec, LoadBalancerState, Members, Operation,
};

/// One request that changes the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Create the load balancer with its members.
    Create,
    /// Change the settings to these, for a reason.
    Modify(Box<LoadBalancerSettings>, String),
    /// Replace the members with these, for a reason.
    SetMembers(Members, String),
}

/// Compares the observed with the desired state and returns the actions. The plan is empty while a
/// previous load balancer is being deleted, because its name is not free yet.
pub(super) fn plan(observed: Option<&LoadBalancer>, desired: &LoadBalancerSpec) -> Vec<Action> {
    let Some(observed) = observed else {
        return vec![Action::Create];
    };
    if observed.state == LoadBalancerState::Deleting {
        return Vec::new();
    }
    let mut actions = Vec::new();
    if observed.settings != desired.settings {
        let reason = describe_differences(&observed.settings, &desired.settings);
        actions.push(Action::Modify(Box::new(desired.settings.clone()), reason));
    }
    if observed.members != desired.members {
        let reason = format!(
            "{} become {}",
            describe_count(&observed.members),
            describe_count(&desired.members)
        );
        actions.push(Action::SetMembers(desired.members.clone(), reason));
    }
    actions
}

/// Returns the ID of the load balancer that has to be adopted first; `None` if none has to be.
///
/// # Errors
/// Returns an error if the Service has another load balancer, which would be left behind.
pub(super) fn plan_adoption<'a>(
    observed: Option<&LoadBalancer>,
    adopted: Option<&'a str>,
) -> Result<Option<&'a str>, CloudError> {
    match (observed, adopted) {
        (Some(observed), Some(id)) if observed.id != id => {
            let own = &observed.id;
            Err(CloudError::invalid_input(format!(
                "the service cannot adopt load balancer {id}, because it has load balancer {own}"
            )))
        }
        (Some(_), _) | (None, None) => Ok(None),
        (None, Some(id)) => Ok(Some(id)),
    }
}

/// Describes the adoption of a load balancer. What would be changed afterwards is not known before.
pub(super) fn describe_adoption(desired: &LoadBalancerSpec, id: &str) -> PlannedChange {
    let operation = Operation::AdoptLoadBalancer.as_str();
    planned_change(desired, operation, format!("the service adopts load balancer {id}"))
}

/// Describes the changes that a sync would make.
///
/// If the Service has the identifier or the addresses of another load balancer, updating the
/// Service is listed as a change, too. This happens if somebody else, or a process that stopped
/// before it wrote the Service, has created the load balancer again.
pub(super) fn describe(
    observed: Option<&LoadBalancer>,
    desired: &LoadBalancerSpec,
    service: &ServiceView,
) -> Vec<PlannedChange> {
    let mut changes: Vec<_> = plan(observed, desired)
        .iter()
        .map(|action| action.describe(desired))
        .collect();
    let Some(observed) = observed else {
        return changes;
    };
    if observed.state == LoadBalancerState::Deleting {
        let operation = Operation::CreateLoadBalancer.as_str();
        let reason = "the previous load balancer is being deleted; another follows".to_owned();
        changes.push(planned_change(desired, operation, reason));
        return changes;
    }
    // A Service that was never published has no addresses to compare.
    let ingress = &service.status.ingress;
    if ingress.is_empty() {
        return changes;
    }
    let published = ingress.iter().map(|ingress| ingress.ip);
    if !published.eq(observed.addresses.iter().copied().map(Some)) {
        let reason = format!("the service shows other addresses than {:?}", observed.addresses);
        changes.push(planned_change(desired, "publish_status", reason));
    }
    let id = service.annotations.get(LOAD_BALANCER_ID);
    if id.is_none_or(|id| **id != *observed.id) {
        let reason = format!("the service does not name load balancer {}", observed.id);
        changes.push(planned_change(desired, "annotate", reason));
    }
    changes
}

fn planned_change(desired: &LoadBalancerSpec, operation: &str, reason: String) -> PlannedChange {
    PlannedChange {
        operation: operation.into(),
        object: desired.key.name.clone().into(),
        reason: reason.into(),
    }
}

impl Action {
    fn describe(&self, desired: &LoadBalancerSpec) -> PlannedChange {
        let (operation, reason) = match self {
            Self::Create => (
                Operation::CreateLoadBalancer,
                format!("service {} has no load balancer", desired.key.service),
            ),
            Self::Modify(_, reason) => (Operation::ModifyLoadBalancer, reason.clone()),
            Self::SetMembers(_, reason) => (Operation::UpdateLoadBalancer, reason.clone()),
        };
        planned_change(desired, operation.as_str(), reason)
    }
}

/// Names the settings that differ.
fn describe_differences(observed: &LoadBalancerSettings, desired: &LoadBalancerSettings) -> String {
    let settings = [
        ("listeners", observed.listeners != desired.listeners),
        ("source ranges", observed.source_ranges != desired.source_ranges),
        ("health check", observed.health_check_node_port != desired.health_check_node_port),
        ("affinity", observed.affinity_seconds != desired.affinity_seconds),
        ("families", observed.families != desired.families),
        ("requested address", observed.requested_address != desired.requested_address),
        ("scheme", observed.internal != desired.internal),
    ];
    let mut differing = Vec::new();
    for (name, differs) in settings {
        if differs {
            differing.push(name);
        }
    }
    format!("{} differ", differing.join(", "))
}

fn describe_count(members: &Members) -> String {
    match members {
        Members::Nodes(nodes) => format!("{} nodes", nodes.len()),
        Members::Endpoints(endpoints) => format!("{} endpoints", endpoints.len()),
    }
}

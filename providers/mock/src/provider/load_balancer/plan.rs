//! Plans the changes of a load balancer. Pure functions.

use ccm_core::{k8s::ServiceView, provider::PlannedChange};

use super::annotations::LOAD_BALANCER_ID;
use crate::cloud::{
    LoadBalancer, LoadBalancerSettings, LoadBalancerSpec, LoadBalancerState, Members, Operation,
};

/// One request that changes the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Create it, with its members.
    Create,
    /// Change its settings; with the reason.
    Modify(Box<LoadBalancerSettings>, String),
    /// Replace its members; with the reason.
    SetMembers(Members, String),
}

/// Compares the observed with the desired state. The plan is empty while a previous load balancer
/// is being deleted, because its name is not free yet.
pub(super) fn plan(seen: Option<&LoadBalancer>, want: &LoadBalancerSpec) -> Vec<Action> {
    let Some(seen) = seen else {
        return vec![Action::Create];
    };
    if seen.state == LoadBalancerState::Deleting {
        return Vec::new();
    }
    let mut actions = Vec::new();
    if seen.settings != want.settings {
        let why = differences(&seen.settings, &want.settings);
        actions.push(Action::Modify(Box::new(want.settings.clone()), why));
    }
    if seen.members != want.members {
        let why = format!("{} become {}", count(&seen.members), count(&want.members));
        actions.push(Action::SetMembers(want.members.clone(), why));
    }
    actions
}

/// Describes what would be done. If the Service has the identifier or the addresses of another load
/// balancer, this is listed as a change too, although the cloud does not change: somebody else
/// created the load balancer again, or a process that stopped before it wrote the Service.
pub(super) fn describe(
    seen: Option<&LoadBalancer>,
    want: &LoadBalancerSpec,
    service: &ServiceView,
) -> Vec<PlannedChange> {
    let published = &service.status;
    let mut changes: Vec<_> = plan(seen, want)
        .iter()
        .map(|action| action.describe(want))
        .collect();
    let change = |operation: &str, reason: String| PlannedChange {
        operation: operation.into(),
        object: want.key.name.clone().into(),
        reason: reason.into(),
    };
    match seen {
        Some(seen) if seen.state == LoadBalancerState::Deleting => {
            let reason = "the previous load balancer is being deleted; another follows".to_owned();
            changes.push(change(Operation::CreateLoadBalancer.as_str(), reason));
        }
        Some(seen) if !published.ingress.is_empty() => {
            let shown: Vec<_> = published.ingress.iter().map(|ingress| ingress.ip).collect();
            if !shown
                .iter()
                .copied()
                .eq(seen.addresses.iter().copied().map(Some))
            {
                let reason = format!("the service shows other addresses than {:?}", seen.addresses);
                changes.push(change("publish_status", reason));
            }
            if service
                .annotations
                .get(LOAD_BALANCER_ID)
                .is_none_or(|id| **id != *seen.id)
            {
                let reason = format!("the service does not name load balancer {}", seen.id);
                changes.push(change("annotate", reason));
            }
        }
        _ => {}
    }
    changes
}

impl Action {
    fn describe(&self, want: &LoadBalancerSpec) -> PlannedChange {
        let (operation, reason) = match self {
            Self::Create => (
                Operation::CreateLoadBalancer,
                format!("service {} has no load balancer", want.key.service),
            ),
            Self::Modify(_, why) => (Operation::ModifyLoadBalancer, why.clone()),
            Self::SetMembers(_, why) => (Operation::UpdateLoadBalancer, why.clone()),
        };
        PlannedChange {
            operation: operation.as_str().into(),
            object: want.key.name.clone().into(),
            reason: reason.into(),
        }
    }
}

fn differences(seen: &LoadBalancerSettings, want: &LoadBalancerSettings) -> String {
    let mut words = Vec::new();
    let mut compare = |what: &str, differ: bool| {
        if differ {
            words.push(what.to_owned());
        }
    };
    compare("listeners", seen.listeners != want.listeners);
    compare("source ranges", seen.source_ranges != want.source_ranges);
    compare("health check", seen.health_check_node_port != want.health_check_node_port);
    compare("affinity", seen.affinity_seconds != want.affinity_seconds);
    compare("families", seen.families != want.families);
    compare("requested address", seen.requested_address != want.requested_address);
    compare("scheme", seen.internal != want.internal);
    format!("{} differ", words.join(", "))
}

fn count(members: &Members) -> String {
    match members {
        Members::Nodes(nodes) => format!("{} nodes", nodes.len()),
        Members::Endpoints(endpoints) => format!("{} endpoints", endpoints.len()),
    }
}

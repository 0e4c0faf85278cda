//! Warning events about routes, on the Nodes that they concern.
//!
//! While a problem lasts, a Node gets one event per reason, however often the attempt is repeated.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;

use super::{
    RouteController,
    apply::ChangeResult,
    backoff::{ChangeBackoff, ChangeKey, ChangeOutcome, FAILED_TO_CREATE, is_worth_an_event},
    explain::{outcome_cause, route_cause},
    plan::{NetworkStatus, RejectReason, RejectedPodCidr, RoutePlan},
};
use crate::{
    config,
    explain::cloud_cause,
    k8s::{ConditionStatus, NodeView},
    provider::{CloudError, EventType, NodeOwnership, Route, RouteChange},
    runtime::events::ObjectRef,
};

/// The event reason of a route that was not deleted. Upstream only logs it.
const FAILED_TO_DELETE: &str = "FailedToDeleteRoute";

/// The problems that were reported by events, and last.
#[derive(Default)]
pub(super) struct ReportedProblems {
    cidrs: HashSet<ReportedCidr>,
    /// The nodes with an event about listings that fail, by UID, with the event's reason.
    listings: HashSet<(Box<str>, &'static str)>,
}

/// A pod CIDR that gets no route.
#[derive(PartialEq, Eq, Hash)]
struct ReportedCidr {
    node_uid: Box<str>,
    cidr: Arc<str>,
    reason: RejectReason,
}

impl ReportedCidr {
    fn from_rejected(rejected: &RejectedPodCidr) -> Self {
        Self {
            node_uid: rejected.node.uid.clone(),
            cidr: rejected.cidr.clone(),
            reason: rejected.reason.clone(),
        }
    }
}

impl ReportedProblems {
    /// Records that a listing succeeded, so that the next failure is news.
    pub(super) fn listing_succeeded(&mut self) {
        self.listings.clear();
    }
}

impl RouteController {
    /// Reports each pod CIDR that gets no route by an event of its node, once.
    pub(super) fn report_rejected_cidrs(&self, plan: &RoutePlan, reported: &mut ReportedProblems) {
        for rejected in &plan.rejected_cidrs {
            if reported
                .cidrs
                .contains(&ReportedCidr::from_rejected(rejected))
            {
                continue;
            }
            let note = rejected.note(&self.config.cluster_cidrs);
            tracing::warn!(node = %rejected.node.name, cidr = %rejected.cidr, "{note}");
            let note = rejected.cause().with_next_step(&note);
            self.warn(&rejected.node, rejected.event_reason(), &note);
        }
        reported.cidrs = plan
            .rejected_cidrs
            .iter()
            .map(ReportedCidr::from_rejected)
            .collect();
        let mut history = self.history.lock();
        history.rejected.clone_from(&plan.rejected_cidrs);
        history.managed_routes = plan.managed_routes;
    }

    /// Reports that the routes cannot be listed, by an event of each node that waits for a route.
    /// The other nodes miss nothing. `failures` is the number of consecutive listings that failed.
    pub(super) fn report_failed_listing(
        &self,
        error: &CloudError,
        failures: u32,
        reported: &mut ReportedProblems,
    ) {
        if !is_worth_an_event(error, failures) {
            return;
        }
        let reason = error.reason().unwrap_or(FAILED_TO_CREATE);
        let text = error.chain();
        let rejected: HashSet<&str> = reported
            .cidrs
            .iter()
            .map(|rejected| &*rejected.node_uid)
            .collect();
        let mut waiting = self.cached_nodes().ours;
        waiting.retain(|node| self.waits_for_route(node) && !rejected.contains(&*node.uid));
        for node in waiting {
            if reported.listings.insert((node.uid.clone(), reason)) {
                let name = &node.name;
                let note = format!(
                    "Could not create routes for node {name}, because the routes cannot be listed: {text}"
                );
                self.warn(&node, reason, &cloud_cause(error).with_next_step(&note));
            }
        }
    }

    /// Returns true if a node is to get routes and may lack one. Before the first comparison, its
    /// condition says so, which the process before wrote.
    fn waits_for_route(&self, node: &NodeView) -> bool {
        if node.deleting || node.pod_cidrs.is_empty() {
            return false;
        }
        match self.network.status(node) {
            Some(status) => status == NetworkStatus::NotReady,
            None => node
                .network_unavailable
                .as_ref()
                .is_none_or(|condition| condition.status != ConditionStatus::False),
        }
    }

    /// Logs a creation that failed or is pending, and emits the event if one is due.
    pub(super) fn report_unfinished(
        &self,
        change: &RouteChange,
        outcome: &ChangeOutcome,
        duration: Duration,
        event_reason: Option<&'static str>,
    ) {
        let RouteChange::Create { node, destination } = change else {
            return;
        };
        let uid = &node.uid;
        let name = &node.name;
        let text = outcome.text();
        tracing::debug!(node = %name, %destination, cause = text, "route not created");
        if let Some(event_reason) = event_reason {
            // Upstream's wording.
            let duration = config::duration::format(duration);
            let note = format!(
                "Could not create route {uid} {destination} for node {name} after {duration}: {text}"
            );
            let note = route_cause(node, outcome).with_next_step(&note);
            self.warn(node, event_reason, &note);
        }
    }

    /// Reports each deletion that failed, or has been pending for too long, by an event of the node
    /// that waits for it, or else of the node to which the route leads.
    ///
    /// If there is neither, there is no object for an event: the log, the metric of failing changes
    /// and the explanation of the routes show it.
    pub(super) fn report_unfinished_deletions(
        &self,
        plan: &RoutePlan,
        results: &[ChangeResult],
        waiting: &HashSet<ChangeKey>,
        failures: &mut ChangeBackoff,
    ) {
        let mut unfinished = results.iter().filter_map(unfinished_deletion).peekable();
        if unfinished.peek().is_none() {
            return;
        }
        let waiting = waiting_nodes(plan, waiting);
        let now = self.started_at.elapsed();
        for route in unfinished {
            let key = ChangeKey::delete(route);
            let Some(outcome) = failures.get(&key).map(|change| change.outcome.clone()) else {
                continue;
            };
            let Route { name: route_name, destination, .. } = route;
            let text = outcome.text();
            // First the node that waits for the deletion.
            let waiting = waiting.get(&destination.trunc());
            let (node, reason, note) = if let Some(node) = waiting {
                let note = format!(
                    "Could not create route {} {destination} for node {}: the other route {route_name} must be deleted first: {text}",
                    node.uid, node.name
                );
                (Arc::clone(node), FAILED_TO_CREATE, note)
            // Otherwise the node to which the route leads.
            } else if let Some(node) = self.node_of_route(route) {
                let note = format!(
                    "Could not delete the obsolete route {route_name} {destination} to node {}: {text}",
                    node.name
                );
                (node, FAILED_TO_DELETE, note)
            } else {
                continue;
            };
            if let Some(reason) = failures.deletion_event(&key, &node.uid, reason, now) {
                self.warn(&node, reason, &outcome_cause(&outcome).with_next_step(&note));
            }
        }
    }

    /// Returns the node of ours to which a route leads, if it still exists.
    fn node_of_route(&self, route: &Route) -> Option<Arc<NodeView>> {
        let node = self.ctx.nodes.get(route.node.as_ref()?)?;
        let is_ours = self.ctx.provider.node_ownership(&node) == NodeOwnership::Ours;
        is_ours.then_some(node)
    }

    /// Emits a Warning event of a node.
    fn warn(&self, node: &NodeView, reason: &'static str, note: &str) {
        self.ctx.events.event(
            &ObjectRef::node(node.name.clone(), &*node.uid),
            EventType::Warning,
            reason,
            note,
        );
    }
}

/// Returns the route of a deletion that was sent and is not done.
fn unfinished_deletion(result: &ChangeResult) -> Option<&Route> {
    match &result.change {
        RouteChange::Delete(route) if result.result.is_some() && !result.succeeded() => Some(route),
        _ => None,
    }
}

/// Returns the nodes whose creations wait for a deletion, by destination.
fn waiting_nodes<'a>(
    plan: &'a RoutePlan,
    waiting: &HashSet<ChangeKey>,
) -> HashMap<IpNet, &'a Arc<NodeView>> {
    let by_uid: HashMap<&str, &Arc<NodeView>> = plan
        .nodes
        .iter()
        .map(|plan| (&*plan.node.uid, &plan.node))
        .collect();
    let mut nodes = HashMap::new();
    for change in waiting {
        if let ChangeKey::Create(uid, destination) = change
            && let Some(node) = by_uid.get(&**uid)
        {
            nodes.insert(*destination, *node);
        }
    }
    nodes
}

//! What the route controller contributes to explanations.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    NetworkConditions, RouteController, RouteControllerConfig,
    backoff::{ChangeBackoff, ChangeKey, ChangeOutcome, UnfinishedChange},
    plan::{NetworkStatus, RejectReason, RejectedPodCidr},
};
use crate::{
    config::controller_names::{NODE_IPAM, NODE_ROUTE},
    explain::{
        AttemptRecord, Cause, ExplainTime, ExplainedCause, Explainer, FailedRoute, NodeExplanation,
        RoutePass, RoutesExplanation, cloud_attempt, cloud_cause,
    },
    k8s::NodeView,
    provider::{CloudProvider, ErrorKind, NodeOwnership},
    runtime::cache::Cache,
};

/// The results of the last reconciles, for explanations alone. Only what went wrong has an entry.
#[derive(Debug, Default)]
pub(super) struct RouteHistory {
    last_pass: Option<PassRecord>,
    /// The number of routes that the last successful listing found.
    pub(super) managed_routes: usize,
    /// The pod CIDRs that get no route.
    pub(super) rejected: Vec<RejectedPodCidr>,
    /// The creations that wait for the deletion of another route to their destination.
    pub(super) waiting: HashSet<ChangeKey>,
    failed: Vec<FailedRouteRecord>,
}

#[derive(Debug)]
struct PassRecord {
    at: Instant,
    /// The listing, if it failed.
    failed_listing: Option<AttemptRecord>,
}

/// A change that failed or is pending.
#[derive(Debug)]
struct FailedRouteRecord {
    change: ChangeKey,
    attempt: UnfinishedChange,
}

impl RouteHistory {
    /// Records a reconcile that ended now, and the changes that are to be retried.
    pub(super) fn record_pass(
        &mut self,
        failed_listing: Option<AttemptRecord>,
        failures: &ChangeBackoff,
    ) {
        self.last_pass = Some(PassRecord { at: Instant::now(), failed_listing });
        self.failed.clear();
        for (change, attempt) in failures.iter() {
            self.failed
                .push(FailedRouteRecord { change: change.clone(), attempt: attempt.clone() });
        }
    }

    /// Returns the changes that keep routes of a node from being as they should: their creations,
    /// and the deletions for which these wait.
    fn unfinished_for(&self, node: &NodeView) -> impl Iterator<Item = &FailedRouteRecord> {
        self.failed.iter().filter(|failed| match &failed.change {
            ChangeKey::Create(uid, _) => *uid == node.uid,
            ChangeKey::Delete(_, destination) => self.waits(node, destination.trunc()),
        })
    }

    /// Returns true if the creation of this route waits for a deletion.
    fn waits(&self, node: &NodeView, destination: IpNet) -> bool {
        self.waiting.contains(&ChangeKey::create(node, destination))
    }

    /// Describes the route for a pod CIDR of a node.
    fn describe_route(
        &self,
        node: &NodeView,
        cidr: &str,
        status: Option<NetworkStatus>,
    ) -> &'static str {
        let is_rejected =
            |rejected: &RejectedPodCidr| rejected.node.uid == node.uid && *rejected.cidr == *cidr;
        if self.rejected.iter().any(is_rejected) {
            return "will not be created";
        }
        // The condition of the node stays while a route is replaced, so it says less than a change
        // that is not done.
        if let Ok(network) = cidr.parse::<IpNet>() {
            let destination = network.trunc();
            let mut unfinished = self
                .unfinished_for(node)
                .filter(|failed| failed.change.destination().trunc() == destination)
                .peekable();
            if unfinished.peek().is_some() {
                let is_failed = unfinished
                    .any(|failed| matches!(failed.attempt.outcome, ChangeOutcome::Failed(_)));
                return if is_failed {
                    "could not be created or replaced"
                } else {
                    "is being created or replaced"
                };
            }
            if self.waits(node, destination) {
                return "waits for the deletion of another route";
            }
        }
        match status {
            Some(NetworkStatus::Ready) => "exists",
            Some(NetworkStatus::NotReady) => "missing, or one of the node's others is",
            None => "not compared yet",
        }
    }
}

/// Returns the cause for which the cloud did not create a route. A node without addresses is often
/// none that the cloud can route to.
pub(super) fn route_cause(node: &NodeView, outcome: &ChangeOutcome) -> Cause {
    let ChangeOutcome::Failed(error) = outcome else {
        return Cause::RoutePending;
    };
    let is_about_account =
        matches!(error.kind(), ErrorKind::Denied | ErrorKind::Throttled | ErrorKind::QuotaExceeded);
    if node.addresses.is_empty() && !is_about_account {
        Cause::RouteWaitsForAddresses
    } else {
        cloud_cause(error)
    }
}

/// Returns the cause of an outcome for itself, as of a deletion.
pub(super) fn outcome_cause(outcome: &ChangeOutcome) -> Cause {
    match outcome {
        ChangeOutcome::Failed(error) => cloud_cause(error),
        ChangeOutcome::Pending { .. } => Cause::RoutePending,
    }
}

impl RejectReason {
    fn cause(&self) -> Cause {
        match self {
            Self::NotANetwork => Cause::PodCidrInvalid,
            Self::OutsideCluster => Cause::PodCidrOutOfRange,
            Self::Foreign => Cause::PodCidrOfAnotherCloud,
            Self::OwnedByNode(_) => Cause::PodCidrOfAnotherNode,
        }
    }
}

impl RejectedPodCidr {
    /// Returns the cause for which the pod CIDR gets no route.
    pub(super) fn cause(&self) -> Cause {
        self.reason.cause()
    }
}

/// Explains routes from the state of the controller.
struct RouteExplainer {
    history: Arc<Mutex<RouteHistory>>,
    network: NetworkConditions,
    nodes: Cache<NodeView>,
    provider: Arc<dyn CloudProvider>,
    config: RouteControllerConfig,
    started_at: Instant,
}

impl RouteController {
    /// Returns what explains routes while the controller runs.
    pub(crate) fn explainer(&self) -> Arc<dyn Explainer> {
        Arc::new(RouteExplainer {
            history: self.history.clone(),
            network: self.network.clone(),
            nodes: self.ctx.nodes.clone(),
            provider: self.ctx.provider.clone(),
            config: self.config.clone(),
            started_at: self.started_at,
        })
    }
}

impl Explainer for RouteExplainer {
    fn explain_node(&self, node: &NodeView, time: ExplainTime, explanation: &mut NodeExplanation) {
        explanation.controllers.push(NODE_ROUTE);
        if !explanation.ours || node.deleting {
            return;
        }
        if node.pod_cidrs.is_empty() {
            // The allocator explains its own nodes.
            if !explanation.controllers.contains(&NODE_IPAM) {
                let message = format!("node {}: spec.podCIDRs is empty", node.name);
                explanation.add(ExplainedCause::new(Cause::NoPodCidr, message));
            }
            return;
        }
        let status = self.network.status(node);
        let history = self.history.lock();
        let causes = self.causes_of_node(&history, node, status, time);
        for pod_cidr in &mut explanation.pod_cidrs {
            let route = history.describe_route(node, &pod_cidr.cidr, status);
            pod_cidr.route = Some(route.to_owned());
        }
        for cause in causes {
            explanation.add(cause);
        }
        for failed in history.unfinished_for(node) {
            if let Some(attempt) = self.attempt_of(failed) {
                explanation.attempts.push(attempt.explain(NODE_ROUTE, time));
            }
        }
    }

    fn explain_routes(&self, time: ExplainTime) -> Option<RoutesExplanation> {
        let history = self.history.lock();
        let mut causes: Vec<_> = history
            .rejected
            .iter()
            .map(|rejected| self.cause_of_rejection(rejected))
            .collect();
        causes.extend(listing_cause("routes", &history, time));
        if history.last_pass.is_none() {
            let message = "routes: the first comparison has not ended";
            causes.push(ExplainedCause::new(Cause::RoutesNotComparedYet, message));
        }
        let nodes = self.nodes.list();
        let mut without_pod_cidr = Vec::new();
        let mut by_uid = HashMap::new();
        for node in &nodes {
            let is_ours = self.provider.node_ownership(node) == NodeOwnership::Ours;
            if is_ours && node.pod_cidrs.is_empty() && !node.deleting {
                without_pod_cidr.push(node.name.to_string());
            }
            by_uid.insert(&*node.uid, &**node);
        }
        without_pod_cidr.sort();
        let mut failed = Vec::new();
        for record in &history.failed {
            let node = record.node_uid().and_then(|uid| by_uid.get(uid).copied());
            let explained = self.explain_failure(record, node, time);
            let of = explained.node.as_deref().unwrap_or("no node");
            let message = format!(
                "route {} of {of}: {}: {}",
                explained.destination, explained.operation, explained.error
            );
            let cause = ExplainedCause::new(record.cause(node), message);
            causes.push(cause.until(Some(explained.retry_at)));
            failed.push(explained);
        }
        Some(RoutesExplanation {
            at: time.wall(),
            summary: format!(
                "{} routes managed, {} changes failed or pending, {} pod CIDRs get no route",
                history.managed_routes,
                failed.len(),
                history.rejected.len()
            ),
            causes,
            cluster_cidrs: self
                .config
                .cluster_cidrs
                .iter()
                .map(ToString::to_string)
                .collect(),
            last_pass: history.explain_pass(time),
            failed,
            nodes_without_pod_cidr: without_pod_cidr,
        })
    }
}

impl RouteExplainer {
    /// Returns the causes for which a node with pod CIDRs lacks routes.
    fn causes_of_node(
        &self,
        history: &RouteHistory,
        node: &NodeView,
        status: Option<NetworkStatus>,
        time: ExplainTime,
    ) -> Vec<ExplainedCause> {
        let mut causes = Vec::new();
        for rejected in &history.rejected {
            if rejected.node.uid == node.uid {
                causes.push(self.cause_of_rejection(rejected));
            }
        }
        for failed in history.unfinished_for(node) {
            let text = failed.attempt.outcome.text();
            let message = match &failed.change {
                ChangeKey::Create(_, destination) => {
                    format!("node {}: route {destination}: {text}", node.name)
                }
                ChangeKey::Delete(name, destination) => format!(
                    "node {}: route {destination}: the other route {name} must be deleted first: {text}",
                    node.name
                ),
            };
            let until = time.at(self.started_at + failed.attempt.retry_at);
            let cause = ExplainedCause::new(failed.cause(Some(node)), message);
            causes.push(cause.until(Some(until)));
        }
        if !causes.is_empty() || status == Some(NetworkStatus::Ready) {
            return causes;
        }
        // No route failed by itself, so the whole comparison did, or has not been made.
        let listing = listing_cause(&format!("node {}", node.name), history, time);
        causes.push(listing.unwrap_or_else(|| {
            let cause = if history.last_pass.is_none() {
                Cause::RoutesNotComparedYet
            } else {
                Cause::RouteNotCreated
            };
            ExplainedCause::new(cause, format!("node {}: its route does not exist yet", node.name))
        }));
        causes
    }

    fn cause_of_rejection(&self, rejected: &RejectedPodCidr) -> ExplainedCause {
        ExplainedCause::new(rejected.cause(), rejected.note(&self.config.cluster_cidrs))
    }

    /// Returns the last attempt, if it failed.
    fn attempt_of(&self, failed: &FailedRouteRecord) -> Option<AttemptRecord> {
        let ChangeOutcome::Failed(error) = &failed.attempt.outcome else {
            return None;
        };
        let operation = match &failed.change {
            ChangeKey::Create(..) => "create route",
            ChangeKey::Delete(..) => "delete route",
        };
        Some(AttemptRecord {
            at: self.started_at + failed.attempt.at,
            failures: failed.attempt.failures,
            retry_at: Some(self.started_at + failed.attempt.retry_at),
            ..cloud_attempt(operation, error)
        })
    }

    /// Explains a change that failed or is pending. `node` is the one for which a route is created,
    /// if it still exists.
    fn explain_failure(
        &self,
        failed: &FailedRouteRecord,
        node: Option<&NodeView>,
        time: ExplainTime,
    ) -> FailedRoute {
        FailedRoute {
            operation: failed.verb(),
            node: node.map(|node| node.name.to_string()),
            destination: failed.change.destination().to_string(),
            error: failed.attempt.outcome.text(),
            request_id: match &failed.attempt.outcome {
                ChangeOutcome::Failed(error) => error.request_id().map(str::to_owned),
                ChangeOutcome::Pending { .. } => None,
            },
            at: time.at(self.started_at + failed.attempt.at),
            failures: failed.attempt.failures,
            retry_at: time.at(self.started_at + failed.attempt.retry_at),
        }
    }
}

impl FailedRouteRecord {
    /// Returns the UID of the node for which a route is created; `None` for a deletion.
    fn node_uid(&self) -> Option<&str> {
        match &self.change {
            ChangeKey::Create(uid, _) => Some(uid),
            ChangeKey::Delete(..) => None,
        }
    }

    /// Returns the cause for which the change is not done. `node` is the one for which a route is
    /// created, if it still exists.
    fn cause(&self, node: Option<&NodeView>) -> Cause {
        match (&self.change, node) {
            (ChangeKey::Create(..), Some(node)) => route_cause(node, &self.attempt.outcome),
            _ => outcome_cause(&self.attempt.outcome),
        }
    }

    fn verb(&self) -> &'static str {
        match &self.change {
            ChangeKey::Create(..) => "create",
            ChangeKey::Delete(..) => "delete",
        }
    }
}

impl RouteHistory {
    fn explain_pass(&self, time: ExplainTime) -> Option<RoutePass> {
        let pass = self.last_pass.as_ref()?;
        let failed = pass.failed_listing.as_ref();
        Some(RoutePass {
            at: time.at(pass.at),
            error: failed.map(|failed| failed.error.to_string()),
            request_id: failed
                .and_then(|failed| failed.request_id.as_deref())
                .map(str::to_owned),
            retry_at: failed
                .and_then(|failed| failed.retry_at)
                .map(|at| time.at(at)),
            managed_routes: self.managed_routes,
        })
    }
}

/// Returns the cause for which the last listing failed; `None` if it did not.
fn listing_cause(
    object: &str,
    history: &RouteHistory,
    time: ExplainTime,
) -> Option<ExplainedCause> {
    let failed = history.last_pass.as_ref()?.failed_listing.as_ref()?;
    let object = format!("{object}: the {} request failed", failed.operation);
    Some(ExplainedCause::of_attempt(&object, failed, time))
}

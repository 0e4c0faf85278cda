//! The dry run of the route controller, which finds the routes that it would create and delete, and
//! the conditions that it would write.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    RouteController,
    backoff::ChangeBackoff,
    plan::{self, CreateResult, NodePlan, RoutePlan, RouteStep},
};
use crate::{
    config::controller_names::NODE_ROUTE,
    controllers::node_difference::node_difference,
    k8s::well_known,
    provider::{CloudError, ErrorKind, Route},
    runtime::{
        shadow::{
            Difference, DryRun, DryRunFindings, ManagerDefect, NONE, NotCompared, ObjectKind,
            PossibleDefect,
        },
        work_queue::Backoff,
    },
};

/// The back-off after routes could not be listed.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(60) };

/// The route controller in a dry run.
struct RouteDryRun {
    controller: RouteController,
    next_listing: Instant,
    /// The time at which the differences were found.
    compared_at: Instant,
    /// The number of consecutive listings that failed.
    failures: u32,
    differences: Vec<Difference>,
    /// The error of the last listing, if it failed.
    list_error: Option<String>,
    route_count: usize,
}

impl RouteController {
    /// Turns the controller into a dry run, which only reports what the controller would do.
    pub(crate) fn dry_run(self) -> Box<dyn DryRun> {
        let now = Instant::now();
        Box::new(RouteDryRun {
            controller: self,
            next_listing: now,
            compared_at: now,
            failures: 0,
            differences: Vec::new(),
            list_error: None,
            route_count: 0,
        })
    }

    /// Lists the routes and plans as if no change had failed before.
    async fn plan_without_backoff(&self) -> Result<RoutePlan, CloudError> {
        let routes = self.list_routes(&self.cached_nodes()).await?;
        Ok(self.plan(&self.cached_nodes(), &routes, &ChangeBackoff::default()))
    }
}

#[async_trait]
impl DryRun for RouteDryRun {
    async fn compare(&mut self, now: Instant) -> DryRunFindings {
        if self.next_listing <= now {
            self.list_and_plan(now).await;
        }
        let mut uncompared = Vec::new();
        if let Some(error) = &self.list_error {
            let not_compared = NotCompared {
                kind: ObjectKind::Route,
                object: String::new(),
                controller: NODE_ROUTE,
                why: error.clone(),
            };
            uncompared.push((not_compared, now));
        }
        DryRunFindings {
            compared: vec![("routes", self.route_count)],
            differences: self
                .differences
                .iter()
                .map(|difference| (difference.clone(), self.compared_at))
                .collect(),
            uncompared,
            ..DryRunFindings::default()
        }
    }
}

impl RouteDryRun {
    async fn list_and_plan(&mut self, now: Instant) {
        match self.controller.plan_without_backoff().await {
            Ok(plan) => {
                self.compared_at = now;
                self.next_listing = now + self.controller.config.period;
                self.failures = 0;
                self.list_error = None;
                self.route_count = plan.managed_routes;
                self.differences = plan.steps.iter().map(route_difference).collect();
                self.differences
                    .extend(plan.nodes.iter().filter_map(condition_difference));
            }
            // Without support for routes, the controller would do nothing.
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                self.next_listing = now + self.controller.config.period;
            }
            Err(error) => {
                self.failures += 1;
                let delay = error
                    .retry_after()
                    .unwrap_or_else(|| BACKOFF.delay(self.failures));
                self.next_listing = now + delay;
                self.list_error = Some(error.chain());
            }
        }
    }
}

/// Returns the changes of the routes with one destination.
fn route_difference(step: &RouteStep) -> Difference {
    let current = if step.delete.is_empty() {
        NONE.to_owned()
    } else {
        let targets: Vec<String> = step.delete.iter().map(format_target).collect();
        targets.join(", ")
    };
    let desired = match &step.create {
        Some(node) => node.name.to_string(),
        None => NONE.to_owned(),
    };
    let defect = match &step.create {
        Some(node) => PossibleDefect {
            defect: ManagerDefect::NodeWithoutRoute,
            since: Some(node.created),
        },
        None => PossibleDefect { defect: ManagerDefect::StaleRoute, since: None },
    };
    let reason = if step.create.is_some() && step.delete.is_empty() {
        "the node has it as pod network"
    } else if step.create.is_some() {
        "the node has it as pod network, and the route does not fit"
    } else if step.is_unclaimed {
        "no node has it as pod network"
    } else {
        "another route leads there already"
    };
    Difference {
        kind: ObjectKind::Route,
        object: step.destination.to_string(),
        part: "target".to_owned(),
        controller: NODE_ROUTE,
        current: Some(current),
        desired,
        why: reason.to_owned(),
        defect: Some(defect),
    }
}

fn format_target(route: &Route) -> String {
    match &route.node {
        Some(node) if route.blackhole => format!("{node} (leads nowhere)"),
        Some(node) => node.to_string(),
        None => format!("no node ({})", route.name),
    }
}

/// Returns the difference between a node's condition and the one that it would have once all its
/// routes exist.
fn condition_difference(plan: &NodePlan) -> Option<Difference> {
    let network = plan::network_status(plan, |_| CreateResult::Created)?;
    let condition = plan.node.network_unavailable.as_ref();
    if network.matches_condition(condition) {
        return None;
    }
    let part = format!("status.conditions[{}]", well_known::CONDITION_NETWORK_UNAVAILABLE);
    let current = match condition {
        Some(condition) => format!("{}/{}", condition.status.as_str(), condition.reason),
        None => NONE.to_owned(),
    };
    let desired = format!("{}/{}", network.status().as_str(), network.reason());
    Some(node_difference(NODE_ROUTE, &plan.node, &part, &current, &desired, network.message()))
}

//! Dry run: which routes the route controller would create and delete, and which conditions it
//! would write.

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
    k8s::well_known as wk,
    provider::{CloudError, ErrorKind, Route},
    runtime::{
        shadow::{Difference, DryRun, DryRunFindings, NONE, NotCompared, ObjectKind},
        work_queue::Backoff,
    },
};

/// Back-off after routes could not be listed.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(60) };

/// The route controller in a dry run.
struct RouteDryRun {
    controller: RouteController,
    next: Instant,
    checked: Instant,
    failures: u32,
    differences: Vec<Difference>,
    failed: Option<String>,
    routes: usize,
}

impl RouteController {
    /// Makes a dry run that only reports what the controller would do.
    pub(crate) fn dry_run(self) -> Box<dyn DryRun> {
        let now = Instant::now();
        Box::new(RouteDryRun {
            controller: self,
            next: now,
            checked: now,
            failures: 0,
            differences: Vec::new(),
            failed: None,
            routes: 0,
        })
    }

    /// Plans as if no change had failed before.
    async fn plan_without_backoff(&self) -> Result<RoutePlan, CloudError> {
        let routes = self.list_routes(&self.cached_nodes()).await?;
        Ok(self.plan(&self.cached_nodes(), &routes, &ChangeBackoff::default()))
    }
}

#[async_trait]
impl DryRun for RouteDryRun {
    async fn compare(&mut self, now: Instant) -> DryRunFindings {
        if self.next <= now {
            self.compare(now).await;
        }
        let uncompared = self.failed.iter().map(|why| {
            let object = String::new();
            let why = why.clone();
            (NotCompared { kind: ObjectKind::Route, object, controller: NODE_ROUTE, why }, now)
        });
        DryRunFindings {
            compared: vec![("routes", self.routes)],
            differences: self
                .differences
                .iter()
                .map(|difference| (difference.clone(), self.checked))
                .collect(),
            uncompared: uncompared.collect(),
            unsettled: Vec::new(),
        }
    }
}

impl RouteDryRun {
    async fn compare(&mut self, now: Instant) {
        match self.controller.plan_without_backoff().await {
            Ok(plan) => {
                self.checked = now;
                self.next = now + self.controller.config.period;
                self.failures = 0;
                self.failed = None;
                self.routes = plan.managed_routes;
                self.differences = plan.steps.iter().map(route_difference).collect();
                self.differences
                    .extend(plan.nodes.iter().filter_map(condition_difference));
            }
            // Then the controller would not create routes either.
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                self.next = now + self.controller.config.period;
            }
            Err(error) => {
                self.failures += 1;
                self.next = now
                    + error
                        .retry_after()
                        .unwrap_or_else(|| BACKOFF.delay(self.failures));
                self.failed = Some(error.chain());
            }
        }
    }
}

fn route_difference(step: &RouteStep) -> Difference {
    let target = |route: &Route| match (&route.node, route.blackhole) {
        (Some(node), false) => node.to_string(),
        (Some(node), true) => format!("{node} (leads nowhere)"),
        (None, _) => format!("no node ({})", route.name),
    };
    let is: Vec<String> = step.delete.iter().map(target).collect();
    let why = match (&step.create, is.is_empty()) {
        (Some(_), true) => "the node has it as pod network",
        (Some(_), false) => "the node has it as pod network, and the route does not fit",
        (None, _) if step.is_unclaimed => "no node has it as pod network",
        (None, _) => "another route leads there already",
    };
    Difference {
        kind: ObjectKind::Route,
        object: step.destination.to_string(),
        part: "target".to_owned(),
        controller: NODE_ROUTE,
        current: Some(if is.is_empty() {
            NONE.to_owned()
        } else {
            is.join(", ")
        }),
        desired: step
            .create
            .as_ref()
            .map_or_else(|| NONE.to_owned(), |node| node.name.to_string()),
        why: why.to_owned(),
    }
}

/// Returns what differs in the condition once every route exists.
fn condition_difference(plan: &NodePlan) -> Option<Difference> {
    let network = plan::network_status(plan, |_| CreateResult::Created)?;
    let have = plan.node.network_unavailable.as_ref();
    if network.matches_condition(have) {
        return None;
    }
    Some(Difference {
        kind: ObjectKind::Node,
        object: plan.node.name.to_string(),
        part: format!("status.conditions[{}]", wk::CONDITION_NETWORK_UNAVAILABLE),
        controller: NODE_ROUTE,
        current: Some(have.map_or_else(
            || NONE.to_owned(),
            |have| format!("{}/{}", have.status.as_str(), have.reason),
        )),
        desired: format!("{}/{}", network.status().as_str(), network.reason()),
        why: network.message().to_owned(),
    })
}

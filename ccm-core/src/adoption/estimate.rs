//! Estimates the calls and writes per hour of this manager and of one on Go's `k8s.io/cloud-provider`,
//! in a cluster in which nothing changes. Pure functions.
//!
//! Ours follows from the configured periods and from the batches that the provider accepts; the
//! other one from the fixed loops of the Go framework.

use std::time::Duration;

use serde::Serialize;

const SECONDS_PER_HOUR: f64 = 3600.0;
/// The calls of a Go manager about a node that is not Ready: whether its instance exists, and
/// whether it is shut down.
const GO_CALLS_PER_NOT_READY_NODE: usize = 2;

/// The numbers from which the estimate is made.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EstimateInputs {
    /// The Nodes of this provider.
    pub nodes: usize,
    /// Those of them that are not Ready.
    pub not_ready_nodes: usize,
    /// The Nodes of other providers, about which a Go manager asks, too.
    pub foreign_nodes: usize,
    /// Those of them that are not Ready.
    pub foreign_not_ready_nodes: usize,
    /// Those of them with several addresses of one type, as in a dual-stack cluster.
    pub nodes_with_repeated_address_types: usize,
    /// The Services with a load balancer of this provider.
    pub services: usize,
    /// The maximum number of instances in one call of this provider.
    pub instances_per_call: usize,
    /// `--node-status-update-frequency`, in seconds; `None` if the controller does not run.
    pub node_status_update_seconds: Option<f64>,
    /// `--node-monitor-period`, in seconds; `None` if the controller does not run.
    pub node_monitor_seconds: Option<f64>,
    /// The period of our comparison of routes, in seconds; `None` if the controller does not run.
    pub route_seconds: Option<f64>,
    /// The same of a Go manager, which has no such loop if routes are watched.
    pub go_route_seconds: Option<f64>,
    /// `--load-balancer-verify-period`, in seconds; `None` if it is 0 or the controller does not run.
    pub load_balancer_verify_seconds: Option<f64>,
    /// `--orphan-report-period`, in seconds; `None` if orphans are not searched for.
    pub orphan_report_seconds: Option<f64>,
    /// The Leases of leader election: two with leader migration.
    pub leases: usize,
    /// `--leader-elect-retry-period`, in seconds; `None` without leader election.
    pub lease_retry_seconds: Option<f64>,
}

/// What a row of the estimate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Counted {
    /// Calls of the cloud provider that read.
    CloudCalls,
    /// Calls of the cloud provider that change the cloud.
    CloudWrites,
    /// Requests that write to the API server.
    ApiWrites,
}

impl Counted {
    /// Every kind, in the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::CloudCalls, Self::CloudWrites, Self::ApiWrites];
}

/// A number per hour, and how it was calculated.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HourlyRate {
    /// The number per hour.
    pub per_hour: f64,
    /// The formula with its numbers, or the reason why there is none to count.
    pub formula: String,
}

impl HourlyRate {
    fn none(reason: &str) -> Self {
        Self { per_hour: 0.0, formula: reason.to_owned() }
    }

    /// `times` in each period.
    fn each(seconds: f64, times: usize, what: &str) -> Self {
        Self {
            per_hour: SECONDS_PER_HOUR / seconds * times as f64,
            formula: format!("3600 s / {} s × {what}", number(seconds)),
        }
    }
}

/// One line of the estimate.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EstimateRow {
    /// What is counted.
    pub counted: Counted,
    /// The purpose.
    pub purpose: &'static str,
    /// The number of this manager.
    pub ours: HourlyRate,
    /// The number of a manager on Go's framework.
    pub go_manager: HourlyRate,
}

/// The sum of the rows of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EstimateTotal {
    /// What is counted.
    pub counted: Counted,
    /// The number per hour of this manager.
    pub ours: f64,
    /// The number per hour of a manager on Go's framework.
    pub go_manager: f64,
}

/// The calls of one operation that the comparison itself made.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredCalls {
    /// The operation, as in the metric `ccm_cloud_calls_total`.
    pub operation: String,
    /// The number of calls.
    pub calls: f64,
    /// The number of objects in these calls, for operations with batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<f64>,
}

/// The estimate of both managers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    /// The numbers from which it is made.
    pub inputs: EstimateInputs,
    /// One row for each loop.
    pub rows: Vec<EstimateRow>,
    /// The sums.
    pub totals: Vec<EstimateTotal>,
    /// What is assumed.
    pub assumptions: Vec<&'static str>,
    /// The calls that the comparison itself made, counted and not estimated.
    pub measured: Vec<MeasuredCalls>,
}

/// What the estimate assumes.
const ASSUMPTIONS: [&str; 5] = [
    "Nothing changes: no Node joins or leaves, no Service or cloud object is changed. What the takeover changes once is not counted.",
    "A call is one call of the cloud provider's interface. One call may be several requests to the cloud's API.",
    "The active manager is built on Go's k8s.io/cloud-provider (instances v2) and has the periods of this process. Its resync of Services (30 s) and Nodes (100 s) compares objects in memory and calls no cloud.",
    "Each Node that joins or leaves costs a Go manager one update and one event for each Service with a load balancer, and this manager one update for each load balancer whose backends change.",
    "Reads of the API server, events, standbys, webhooks, the provider's own controllers and retries after errors are not counted.",
];

/// Estimates both managers.
pub fn estimate(inputs: EstimateInputs, measured: Vec<MeasuredCalls>) -> Estimate {
    let rows = vec![
        addresses(&inputs),
        not_ready_nodes(&inputs),
        routes(&inputs),
        load_balancers(&inputs),
        orphans(&inputs),
        cloud_writes(),
        lease(&inputs),
        node_patches(&inputs),
    ];
    let totals = Counted::ALL.map(|counted| {
        let sum = |rate: fn(&EstimateRow) -> f64| {
            let rows = rows.iter().filter(|row| row.counted == counted);
            rows.map(rate).sum()
        };
        EstimateTotal {
            counted,
            ours: sum(|row| row.ours.per_hour),
            go_manager: sum(|row| row.go_manager.per_hour),
        }
    });
    Estimate {
        inputs,
        totals: totals.to_vec(),
        rows,
        assumptions: ASSUMPTIONS.to_vec(),
        measured,
    }
}

const NOT_RUNNING: &str = "the controller does not run";

/// The calls that update the addresses of all Nodes: ours in batches, a Go manager's one by one.
fn addresses(inputs: &EstimateInputs) -> EstimateRow {
    let EstimateInputs { nodes, instances_per_call, .. } = *inputs;
    let (mut ours, mut go_manager) = (HourlyRate::none(NOT_RUNNING), HourlyRate::none(NOT_RUNNING));
    if let Some(seconds) = inputs.node_status_update_seconds {
        let batches = format!("⌈{nodes} nodes / {instances_per_call} per call⌉");
        ours = HourlyRate::each(seconds, calls_for(nodes, instances_per_call), &batches);
        let all = nodes + inputs.foreign_nodes;
        go_manager = HourlyRate::each(seconds, all, &format!("{all} nodes"));
    }
    EstimateRow {
        counted: Counted::CloudCalls,
        purpose: "addresses of all nodes",
        ours,
        go_manager,
    }
}

/// The calls about nodes that are not Ready.
fn not_ready_nodes(inputs: &EstimateInputs) -> EstimateRow {
    let EstimateInputs { not_ready_nodes: nodes, instances_per_call, .. } = *inputs;
    let (mut ours, mut go_manager) = (HourlyRate::none(NOT_RUNNING), HourlyRate::none(NOT_RUNNING));
    if let Some(seconds) = inputs.node_monitor_seconds {
        let batches = format!("⌈{nodes} nodes not Ready / {instances_per_call} per call⌉");
        ours = HourlyRate::each(seconds, calls_for(nodes, instances_per_call), &batches);
        let all = nodes + inputs.foreign_not_ready_nodes;
        let calls = all * GO_CALLS_PER_NOT_READY_NODE;
        let each = format!("{all} nodes not Ready × {GO_CALLS_PER_NOT_READY_NODE}");
        go_manager = HourlyRate::each(seconds, calls, &each);
    }
    EstimateRow {
        counted: Counted::CloudCalls,
        purpose: "nodes that are not Ready, at most",
        ours,
        go_manager,
    }
}

fn routes(inputs: &EstimateInputs) -> EstimateRow {
    let rate = |seconds: Option<f64>, otherwise| match seconds {
        Some(seconds) => HourlyRate::each(seconds, 1, "1 list"),
        None => HourlyRate::none(otherwise),
    };
    let go_otherwise = if inputs.route_seconds.is_some() {
        "only after changes of Nodes, and every 12 to 24 hours"
    } else {
        NOT_RUNNING
    };
    EstimateRow {
        counted: Counted::CloudCalls,
        purpose: "lists of routes",
        ours: rate(inputs.route_seconds, NOT_RUNNING),
        go_manager: rate(inputs.go_route_seconds, go_otherwise),
    }
}

fn load_balancers(inputs: &EstimateInputs) -> EstimateRow {
    let services = inputs.services;
    let mut ours =
        HourlyRate::none("--load-balancer-verify-period is 0, or the controller does not run");
    if let Some(seconds) = inputs.load_balancer_verify_seconds {
        ours = HourlyRate::each(seconds, services, &format!("{services} Services"));
    }
    EstimateRow {
        counted: Counted::CloudCalls,
        purpose: "comparisons of load balancers",
        ours,
        go_manager: HourlyRate::none("it compares nothing: drift in the cloud stays"),
    }
}

fn orphans(inputs: &EstimateInputs) -> EstimateRow {
    let mut ours = HourlyRate::none("they are not searched for");
    if let Some(seconds) = inputs.orphan_report_seconds {
        ours = HourlyRate::each(seconds, 1, "1 list");
    }
    EstimateRow {
        counted: Counted::CloudCalls,
        purpose: "searches for orphans",
        ours,
        go_manager: HourlyRate::none("it does not search for them"),
    }
}

fn cloud_writes() -> EstimateRow {
    EstimateRow {
        counted: Counted::CloudWrites,
        purpose: "changes of the cloud",
        ours: HourlyRate::none("nothing differs, so nothing is changed"),
        go_manager: HourlyRate::none("without a change it calls nothing"),
    }
}

fn lease(inputs: &EstimateInputs) -> EstimateRow {
    let rate = match inputs.lease_retry_seconds {
        Some(seconds) => {
            let leases = inputs.leases;
            HourlyRate::each(seconds, leases, &format!("{leases} Leases"))
        }
        None => HourlyRate::none("no leader is elected"),
    };
    EstimateRow {
        counted: Counted::ApiWrites,
        purpose: "renewals of the Lease",
        ours: rate.clone(),
        go_manager: rate,
    }
}

fn node_patches(inputs: &EstimateInputs) -> EstimateRow {
    let nodes = inputs.nodes_with_repeated_address_types;
    let mut go_manager = HourlyRate::none(NOT_RUNNING);
    if let Some(seconds) = inputs.node_status_update_seconds {
        let what = format!("{nodes} nodes with several addresses of one type");
        go_manager = HourlyRate::each(seconds, nodes, &what);
    }
    EstimateRow {
        counted: Counted::ApiWrites,
        purpose: "patches of Nodes that change nothing",
        ours: HourlyRate::none("what is the same is not written"),
        go_manager,
    }
}

/// The number of calls for so many objects.
fn calls_for(objects: usize, per_call: usize) -> usize {
    objects.div_ceil(per_call.max(1))
}

/// Returns a period in seconds; `None` for zero, which stands for "never".
pub(crate) fn seconds(period: Duration) -> Option<f64> {
    (!period.is_zero()).then_some(period.as_secs_f64())
}

/// Formats a number without decimals that say nothing.
pub(crate) fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0');
    text.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> EstimateInputs {
        EstimateInputs {
            nodes: 1000,
            not_ready_nodes: 3,
            foreign_nodes: 0,
            foreign_not_ready_nodes: 0,
            nodes_with_repeated_address_types: 10,
            services: 300,
            instances_per_call: 400,
            node_status_update_seconds: Some(300.0),
            node_monitor_seconds: Some(5.0),
            route_seconds: Some(10.0),
            go_route_seconds: Some(10.0),
            load_balancer_verify_seconds: Some(3600.0),
            orphan_report_seconds: Some(86400.0),
            leases: 1,
            lease_retry_seconds: Some(2.0),
        }
    }

    fn rates(inputs: EstimateInputs) -> Vec<(&'static str, f64, f64)> {
        let rows = estimate(inputs, Vec::new()).rows;
        rows.iter()
            .map(|row| (row.purpose, row.ours.per_hour, row.go_manager.per_hour))
            .collect()
    }

    #[test]
    fn each_loop_is_counted_by_its_period() {
        let expected = [
            ("addresses of all nodes", 36.0, 12_000.0),
            ("nodes that are not Ready, at most", 720.0, 4320.0),
            ("lists of routes", 360.0, 360.0),
            ("comparisons of load balancers", 300.0, 0.0),
            ("searches for orphans", 1.0 / 24.0, 0.0),
            ("changes of the cloud", 0.0, 0.0),
            ("renewals of the Lease", 1800.0, 1800.0),
            ("patches of Nodes that change nothing", 0.0, 120.0),
        ];
        assert_eq!(rates(inputs()), expected);
        let totals = estimate(inputs(), Vec::new()).totals;
        assert_eq!(
            (totals[0].counted, totals[0].go_manager),
            (Counted::CloudCalls, 12_000.0 + 4320.0 + 360.0)
        );
        assert!((totals[0].ours - (36.0 + 720.0 + 360.0 + 300.0 + 1.0 / 24.0)).abs() < 1e-9);
        assert_eq!((totals[2].ours, totals[2].go_manager), (1800.0, 1920.0));
    }

    #[test]
    fn a_formula_gives_its_number() {
        let rows = estimate(inputs(), Vec::new()).rows;
        let formulas = (&*rows[0].ours.formula, &*rows[0].go_manager.formula);
        let ours = "3600 s / 300 s × ⌈1000 nodes / 400 per call⌉";
        assert_eq!(formulas, (ours, "3600 s / 300 s × 1000 nodes"));
        assert_eq!(rows[1].go_manager.formula, "3600 s / 5 s × 3 nodes not Ready × 2");
    }

    #[test]
    fn a_controller_that_does_not_run_makes_no_calls() {
        let all = rates(EstimateInputs { nodes: 5, services: 5, ..EstimateInputs::default() });
        assert!(all.iter().all(|(_, ours, go)| (*ours, *go) == (0.0, 0.0)), "{all:?}");
        let watched = EstimateInputs { go_route_seconds: None, ..inputs() };
        assert_eq!(rates(watched)[2], ("lists of routes", 360.0, 0.0));
    }

    #[test]
    fn a_go_manager_asks_about_the_nodes_of_others_too() {
        let foreign = EstimateInputs {
            foreign_nodes: 100,
            foreign_not_ready_nodes: 2,
            leases: 2,
            ..inputs()
        };
        let rates = rates(foreign);
        assert_eq!(rates[0], ("addresses of all nodes", 36.0, 13_200.0));
        assert_eq!(rates[1], ("nodes that are not Ready, at most", 720.0, 7200.0));
        assert_eq!(rates[6], ("renewals of the Lease", 3600.0, 3600.0));
    }

    #[test]
    fn numbers_have_no_decimals_that_say_nothing() {
        let texts = [0.0, 1.0 / 24.0, 360.0, 1800.5].map(number);
        assert_eq!(texts, ["0", "0.04", "360", "1800.5"]);
    }
}

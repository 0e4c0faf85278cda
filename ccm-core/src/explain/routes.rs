//! The explanation of the routes.

use jiff::Timestamp;
use serde::Serialize;

use super::ExplainedCause;

/// The explanation of the routes of all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RoutesExplanation {
    /// When this was explained.
    pub at: Timestamp,
    /// One sentence.
    pub summary: String,
    /// What is wrong. Empty if nothing is.
    pub causes: Vec<ExplainedCause>,
    /// `--cluster-cidr`.
    pub cluster_cidrs: Vec<String>,
    /// The last comparison with the cloud.
    pub last_pass: Option<RoutePass>,
    /// The changes that failed or are pending, and are repeated.
    pub failed: Vec<FailedRoute>,
    /// The nodes without a pod CIDR.
    pub nodes_without_pod_cidr: Vec<String>,
}

/// A comparison of the routes with the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RoutePass {
    /// When it ended.
    pub at: Timestamp,
    /// The error, if the routes could not be listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The ID of the failed request in the cloud's own logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// When it is repeated after an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// The number of routes within the cluster CIDRs that the last successful listing found.
    pub managed_routes: usize,
}

/// A change of a route that failed and is retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedRoute {
    /// `create` or `delete`.
    pub operation: &'static str,
    /// The name of the node, if the route is to be created for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The destination.
    pub destination: String,
    /// The last error.
    pub error: String,
    /// The ID of the failed request in the cloud's own logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// When it failed last.
    pub at: Timestamp,
    /// The number of failures in a row.
    pub failures: u32,
    /// When it is retried.
    pub retry_at: Timestamp,
}

//! The controllers. Each one observes, plans with the pure functions of its `plan` module, and
//! applies the plan. None depends on a particular cloud.

mod event_dedup;
pub mod node;
mod node_difference;
pub mod node_ipam;
pub mod node_lifecycle;
pub mod orphans;
pub mod route;
pub mod service;

use std::sync::Arc;

use crate::{
    k8s::{NodeFields, NodeView},
    provider::CloudProvider,
    runtime::{
        api::ApiClient,
        cache::Cache,
        events::{EventRecorder, WallClock},
    },
    telemetry::controller_metrics::ControllerMetrics,
};

/// The dependencies that all controllers have in common. As upstream, each controller has its own
/// API client, event recorder and rate limits.
#[derive(Clone)]
pub struct ControllerContext {
    /// The cloud provider.
    pub provider: Arc<dyn CloudProvider>,
    /// The cache of the Nodes.
    pub nodes: Cache<NodeView>,
    /// The Node fields that the cache keeps. A Node that is read from the API server is reduced to
    /// the same fields.
    pub node_fields: NodeFields,
    /// The API client of this controller.
    pub api: ApiClient,
    /// The event recorder of this controller.
    pub events: EventRecorder,
    /// The Prometheus registry of the process.
    pub metrics: prometheus::Registry,
    /// The metrics that all controllers have in common.
    pub controller_metrics: ControllerMetrics,
    /// The wall clock, for the age of Nodes.
    pub clock: WallClock,
}

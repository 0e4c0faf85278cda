//! The controllers. Each one observes, plans (pure functions, in `plan`) and applies; none depends
//! on a particular cloud.

mod event_dedup;
pub mod node;
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

/// What every controller needs. API client, event recorder and rate limits are separate for each
/// controller, as upstream.
#[derive(Clone)]
pub struct ControllerContext {
    /// The cloud provider.
    pub provider: Arc<dyn CloudProvider>,
    /// Cache of the Nodes.
    pub nodes: Cache<NodeView>,
    /// The Node fields that the cache keeps; Nodes that are read directly from the API server are
    /// reduced to the same.
    pub node_fields: NodeFields,
    /// API client of this controller.
    pub api: ApiClient,
    /// Event recorder of this controller.
    pub events: EventRecorder,
    /// Prometheus registry of the process.
    pub metrics: prometheus::Registry,
    /// Metrics that all controllers have in common.
    pub controller_metrics: ControllerMetrics,
    /// Wall clock, for the age of nodes.
    pub clock: WallClock,
}

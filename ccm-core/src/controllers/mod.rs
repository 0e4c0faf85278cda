//! The controllers. Each observes, plans (pure, in `plan`), and applies; none names a cloud.

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
    telemetry::controllers::ControllerMetrics,
};

/// What every controller is given. Client, events and rate budgets are each controller's own, as upstream.
#[derive(Clone)]
pub struct ControllerContext {
    /// The cloud.
    pub provider: Arc<dyn CloudProvider>,
    /// Nodes.
    pub nodes: Cache<NodeView>,
    /// What the node cache keeps; objects that are read again are cut down to the same.
    pub node_fields: NodeFields,
    /// API client of this controller.
    pub api: ApiClient,
    /// Event recorder of this controller.
    pub events: EventRecorder,
    /// Registry of the process.
    pub metrics: prometheus::Registry,
    /// What all controllers count alike.
    pub controller_metrics: ControllerMetrics,
    /// Wall clock, for the age of nodes.
    pub clock: WallClock,
}

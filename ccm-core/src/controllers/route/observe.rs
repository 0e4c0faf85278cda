//! Reads the observed state, which is the routes in the cloud and the nodes in the cache or on the
//! API server.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::Instrument;

use super::{CALL_TIMEOUT, RouteController, apply::timeout_message};
use crate::{
    k8s::NodeView,
    provider::{CloudError, ErrorKind, NodeOwnership, Route},
    runtime::api::ApiError,
    telemetry::controller_metrics::call_span,
};

/// All nodes of the cluster.
pub(super) struct ClusterNodes {
    /// The nodes that the provider claims.
    pub(super) ours: Vec<Arc<NodeView>>,
    /// All other nodes.
    pub(super) foreign: Vec<Arc<NodeView>>,
}

impl RouteController {
    /// Returns the nodes from the cache.
    pub(super) fn cached_nodes(&self) -> ClusterNodes {
        self.split_by_ownership(self.ctx.nodes.list())
    }

    /// Reads the nodes from the API server.
    pub(super) async fn read_nodes(&self) -> Result<ClusterNodes, ApiError> {
        let nodes = self.ctx.api.list_nodes(&self.ctx.node_fields).await?;
        Ok(self.split_by_ownership(nodes.into_iter().map(Arc::new).collect()))
    }

    fn split_by_ownership(&self, nodes: Vec<Arc<NodeView>>) -> ClusterNodes {
        let (ours, foreign) = nodes
            .into_iter()
            .partition(|node| self.ctx.provider.node_ownership(node) == NodeOwnership::Ours);
        ClusterNodes { ours, foreign }
    }

    /// Lists the routes in the cloud.
    pub(super) async fn list_routes(&self, nodes: &ClusterNodes) -> Result<Vec<Route>, CloudError> {
        let Some(routes) = self.ctx.provider.routes() else {
            return Err(CloudError::new(ErrorKind::NotImplemented, "provider has no routes"));
        };
        let nodes = &nodes.ours;
        let started = Instant::now();
        let generation = self.throttle.lock().generation();
        let op = self.op.clone().for_call(started + CALL_TIMEOUT);
        let result = op
            .run(routes.list(&op, nodes))
            .instrument(call_span("list_routes"))
            .await
            .map_err(|error| op.as_timeout(error, timeout_message));
        let error = result.as_ref().err();
        let throttled = error.filter(|error| error.kind() == ErrorKind::Throttled);
        self.throttle.lock().record(generation, throttled);
        self.cloud
            .observe_batch("list_routes", nodes.len(), started.elapsed(), error);
        result
    }
}

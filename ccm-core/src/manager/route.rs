//! Builds the route controller.

use super::{ManagerError, wiring::ControllerBuilder};
use crate::{
    config::{controller_names as names, feature_gates::WATCH_BASED_ROUTES},
    controllers::route::{NetworkConditions, RouteController, RouteControllerConfig},
    k8s::well_known,
};

/// The client name of the route controller. Its ServiceAccount and user agent derive from it, as
/// upstream.
pub(super) const ROUTE_CLIENT: &str = "route-controller";

impl ControllerBuilder<'_> {
    /// Adds the route controller if it is enabled and has what it needs. Returns the
    /// `NetworkUnavailable` conditions that the node controller reads when it writes addresses.
    pub(super) fn route_controller(&mut self) -> Result<Option<NetworkConditions>, ManagerError> {
        let config = &self.manager.config;
        if !self.is_enabled(names::NODE_ROUTE) {
            return Ok(None);
        }
        if !config.route.configure_cloud_routes {
            tracing::info!("route controller does not run: --configure-cloud-routes=false");
            return Ok(None);
        }
        if self.manager.provider.routes().is_none() {
            tracing::warn!("route controller does not run: cloud provider has no routes");
            return Ok(None);
        }
        let cluster_cidrs = config.generic.cluster_cidrs.clone();
        if cluster_cidrs.is_empty() {
            // Upstream ends the whole process here. We keep the other controllers running.
            tracing::error!(
                "route controller does not run: set --cluster-cidr, or --configure-cloud-routes=false"
            );
            return Ok(None);
        }
        let config = RouteControllerConfig {
            cluster_cidrs,
            period: config.route.reconciliation_period,
            watch_based: config.feature_gates.is_enabled(WATCH_BASED_ROUTES),
        };
        let lock = self.lock(names::NODE_ROUTE);
        // The node controller writes conditions and addresses together only if it runs under the
        // same lock. If it waited for another lock, it would delay conditions that are due.
        let same_lock = self.is_enabled(names::CLOUD_NODE) && self.lock(names::CLOUD_NODE) == lock;
        let combines_with_addresses = same_lock && self.manager.provider.instances().is_some();
        let network = NetworkConditions::new(self.manager.clock.clone(), combines_with_addresses);
        let ctx = self.controller_context(well_known::COMPONENT_ROUTE, ROUTE_CLIENT, lock);
        let op = self.op(lock);
        let cloud = self.cloud_metrics.clone();
        let controller = RouteController::new(ctx, config, op, cloud, network.clone())?;
        self.add_controller(lock, names::NODE_ROUTE, controller);
        Ok(same_lock.then_some(network))
    }
}

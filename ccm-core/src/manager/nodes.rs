//! Builds the node and node-lifecycle controllers.

use super::{ManagerError, NODE_CLIENT, wiring::ControllerBuilder};
use crate::{
    config::{self, controller_names as names, leader_migration::ControllerLock},
    controllers::{
        node::{NodeController, NodeControllerConfig},
        node_lifecycle::{NodeLifecycleController, NodeLifecycleOptions},
        route::NetworkConditions,
    },
    k8s::well_known,
    provider::InstanceBatcher,
};

impl ControllerBuilder<'_> {
    /// Adds the node controllers that are enabled. `network` contains the `NetworkUnavailable`
    /// conditions of the route controller.
    pub(super) fn node_controllers(
        &mut self,
        network: Option<NetworkConditions>,
    ) -> Result<(), ManagerError> {
        let node = self.is_enabled(names::CLOUD_NODE);
        let lifecycle = self.is_enabled(names::CLOUD_NODE_LIFECYCLE);
        if !node && !lifecycle {
            return Ok(());
        }
        let provider = self.manager.provider.clone();
        // The batcher only reads, so it needs no particular lock. Both controllers share it.
        let Some((instances, driver)) = InstanceBatcher::new(
            provider,
            self.op(ControllerLock::Main),
            self.cloud_metrics.clone(),
        ) else {
            tracing::warn!("node controllers do not run: cloud provider has no instances");
            return Ok(());
        };
        self.add(ControllerLock::Main, "instances", driver.run());
        if node {
            let lock = self.lock(names::CLOUD_NODE);
            let ctx = self.controller_context(well_known::COMPONENT_NODE, NODE_CLIENT, lock);
            let mut controller = NodeController::new(ctx, self.node_config(), instances.clone())?;
            if let Some(network) = network {
                controller = controller.with_network_conditions(network);
            }
            self.add_controller(lock, names::CLOUD_NODE, controller);
        }
        if lifecycle {
            let lock = self.lock(names::CLOUD_NODE_LIFECYCLE);
            let ctx =
                self.controller_context(well_known::COMPONENT_NODE_LIFECYCLE, NODE_CLIENT, lock);
            let controller = NodeLifecycleController::new(ctx, self.lifecycle_config(), instances)?;
            self.add_controller(lock, names::CLOUD_NODE_LIFECYCLE, controller);
        }
        Ok(())
    }

    fn node_config(&self) -> NodeControllerConfig {
        let config = &self.manager.config.node;
        NodeControllerConfig {
            concurrent_syncs: config.concurrent_syncs.get(),
            concurrent_status_updates: config.concurrent_status_updates.get(),
            status_update_period: config.status_update_frequency,
            refresh_additional_labels: self.manager.refreshes_labels(),
        }
    }

    fn lifecycle_config(&self) -> NodeLifecycleOptions {
        let config = &self.manager.config.node_lifecycle;
        NodeLifecycleOptions {
            period: config.monitor_period,
            out_of_service_after: config.out_of_service_after,
            concurrent_syncs: config.concurrent_syncs.get(),
            upstream_deletion: config.deletion_safety == config::DeletionSafety::Upstream,
        }
    }
}

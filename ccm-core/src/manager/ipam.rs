//! Builds the node-IPAM controller.

use super::{ManagerError, NODE_CLIENT, wiring::ControllerBuilder};
use crate::{
    config::controller_names as names, controllers::node_ipam::NodeIpamController, k8s::well_known,
};

impl ControllerBuilder<'_> {
    /// Adds the node IPAM controller if `--controllers` names it and `--allocate-node-cidrs` is
    /// set.
    pub(super) fn node_ipam_controller(&mut self) -> Result<(), ManagerError> {
        if !self.is_enabled(names::NODE_IPAM) {
            return Ok(());
        }
        let Some(config) = &self.manager.config.node_ipam.pools else {
            tracing::info!(
                controller = names::NODE_IPAM,
                "controller is not started: --allocate-node-cidrs is not set"
            );
            return Ok(());
        };
        let lock = self.lock(names::NODE_IPAM);
        let ctx = self.controller_context(well_known::COMPONENT_NODE_IPAM, NODE_CLIENT, lock);
        let controller = NodeIpamController::new(ctx, config)?;
        self.add_controller(lock, names::NODE_IPAM, controller);
        Ok(())
    }
}

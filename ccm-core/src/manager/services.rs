//! Builds the service controller and the scan for orphans.

use std::sync::Arc;

use super::{
    ManagerError,
    wiring::{ControllerBuilder, RunMode},
};
use crate::{
    config::controller_names as names,
    controllers::service::{EndpointSliceIndex, ServiceController, ServiceControllerConfig},
    k8s::{EndpointSliceView, ServiceFields, ServiceView, well_known},
    runtime::cache::Cache,
};

/// The client name of the service controller. Its ServiceAccount and user agent derive from it, as
/// upstream.
pub(super) const SERVICE_CLIENT: &str = "service-controller";

impl ControllerBuilder<'_> {
    /// Adds the service controller if it is enabled and the provider has load balancers.
    pub(super) fn service_controller(&mut self) -> Result<(), ManagerError> {
        if !self.is_enabled(names::SERVICE_LB) {
            return Ok(());
        }
        let provider = self.manager.provider.clone();
        let Some(balancers) = provider.load_balancers() else {
            tracing::warn!("service controller does not run: cloud provider has no load balancers");
            return Ok(());
        };
        let conditions = self.manager.config.service.conditions;
        let fields = ServiceFields { classes: balancers.classes(), own_condition: conditions };
        let services = Cache::<ServiceView>::new(fields.clone());
        match self.mode {
            // The node and route controllers must work without the permission to read Services.
            RunMode::Lead => self.watch_optional("service-cache", &services),
            // A comparison without Services would be incomplete, so this is an error in shadow
            // mode.
            RunMode::DryRun { .. } => self.watch("service-cache", &services),
        }
        self.context.services = Some(Arc::new(services.clone()));
        self.services = Some(services.clone());
        let slices = if balancers.supports_endpoint_backends() {
            let cache = Cache::<EndpointSliceView>::new(());
            self.watch_optional("endpoint-slice-cache", &cache);
            self.context.endpoint_slices = Some(Arc::new(cache.clone()));
            Some(EndpointSliceIndex::new(cache))
        } else {
            None
        };
        let config = ServiceControllerConfig {
            workers: self.manager.config.service.workers,
            verify_period: self.manager.config.service.verify_period,
            conditions,
        };
        let lock = self.lock(names::SERVICE_LB);
        let ctx = self.controller_context(well_known::COMPONENT_SERVICE, SERVICE_CLIENT, lock);
        let op = self.op(lock);
        let metrics = self.cloud_metrics.clone();
        let controller = ServiceController::new(
            ctx.clone(),
            config,
            services.clone(),
            fields.clone(),
            slices,
            op,
            metrics,
        )?;
        let retaining = controller.retaining_services();
        self.orphan_controller(&ctx, &services, &fields, retaining, lock)?;
        self.add_controller(lock, names::SERVICE_LB, controller);
        Ok(())
    }
}

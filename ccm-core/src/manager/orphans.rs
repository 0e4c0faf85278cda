//! Scans for orphans: periodically while this process leads, and once for the subcommand `orphans`.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    API_SERVER_WAIT, DRAIN_LIMIT, Manager, ManagerError,
    election::{self, WriteGates},
    services::SERVICE_CLIENT,
    telemetry::Telemetry,
    wiring::{ControllerBuilder, RunMode},
};
use crate::{
    config::leader_migration::ControllerLock,
    controllers::{
        ControllerContext,
        orphans::{
            CollectOutcome, Orphan, OrphanAction, OrphanController, OrphanReport, OrphanScanError,
            scanner::OrphanScanner,
        },
        service::RetainingServices,
    },
    k8s::{ServiceFields, ServiceView, well_known},
    provider::LoadBalancers,
    runtime::{cache::Cache, events::WallClock, tasks::Tasks},
};

/// The parameters of the subcommand `orphans`.
#[derive(Clone, Debug)]
pub struct OrphanRequest {
    /// The ID of the cluster whose orphans to delete, as
    /// [`Inventory::cluster_id`](crate::provider::Inventory::cluster_id) returns it. If it is
    /// `None`, orphans are only listed.
    pub delete: Option<String>,
    /// The minimum age of an orphan to delete. An orphan of unknown age has age zero.
    pub minimum_age: Duration,
    /// The deadline of the whole command.
    pub limit: Instant,
}

impl ControllerBuilder<'_> {
    /// Adds the periodic scan for orphans, which uses the caches of the service controller.
    pub(super) fn orphan_controller(
        &mut self,
        ctx: &ControllerContext,
        services: &Cache<ServiceView>,
        fields: &ServiceFields,
        retaining: RetainingServices,
        lock: ControllerLock,
    ) -> Result<(), ManagerError> {
        let settings = self.manager.config.orphans.clone();
        if ctx.provider.inventory().is_none() {
            return Ok(());
        }
        let scanner = OrphanScanner {
            retaining,
            ..self.orphan_scanner(ctx, services, fields, lock)
        };
        if let RunMode::DryRun { .. } = self.mode {
            // The adoption report scans once.
            self.orphans = Some(scanner);
            return Ok(());
        }
        if settings.report_period.is_zero() {
            return Ok(());
        }
        let controller = OrphanController::new(scanner, settings, &ctx.metrics, ctx.clock.clone())?;
        self.add(lock, "orphans", controller.run(self.stop.clone()));
        Ok(())
    }

    fn orphan_scanner(
        &self,
        ctx: &ControllerContext,
        services: &Cache<ServiceView>,
        fields: &ServiceFields,
        lock: ControllerLock,
    ) -> OrphanScanner {
        OrphanScanner {
            provider: ctx.provider.clone(),
            services: services.clone(),
            service_fields: fields.clone(),
            nodes: ctx.nodes.clone(),
            node_fields: ctx.node_fields.clone(),
            api: ctx.api.clone(),
            events: ctx.events.clone(),
            op: self.op(lock).with_reason("nobody asks for it"),
            cloud: self.cloud_metrics.clone(),
            retaining: RetainingServices::default(),
        }
    }
}

impl Manager {
    /// Scans for orphans once, and deletes them if requested. Needs no lease, because an orphan has
    /// no Service or Node, and therefore no sync of the leader changes it.
    ///
    /// # Errors
    /// Returns an error if the cloud or the cluster could not be read in time. The report, not the
    /// error, contains orphans that could not be deleted.
    pub async fn orphans(
        self,
        request: OrphanRequest,
        stop: CancellationToken,
    ) -> Result<OrphanReport, ManagerError> {
        if self.provider.inventory().is_none() {
            return Err(ManagerError::NoInventory(self.provider.name().to_owned()));
        }
        if !self.provider.has_cluster_id() {
            return Err(ManagerError::OrphansWithoutClusterId(self.provider.name().to_owned()));
        }
        let mut tasks = Tasks::new(stop.child_token());
        let prepare = async {
            self.wait_for_api_server(API_SERVER_WAIT).await?;
            self.prepare_scanner(&mut tasks, request.delete.is_some())
                .await
        };
        let prepare = tokio::time::timeout_at(request.limit, prepare);
        let scanner = match stop.run_until_cancelled(prepare).await {
            Some(Ok(scanner)) => scanner?,
            Some(Err(_)) => return Err(ManagerError::OrphansTimedOut),
            None => return Err(ManagerError::OrphansStopped),
        };
        let report: Arc<Mutex<Option<Result<OrphanReport, ManagerError>>>> = Arc::default();
        let task_report = report.clone();
        let token = tasks.stop().clone();
        let cluster = self.config.generic.cluster_name.clone();
        let clock = self.clock.clone();
        tasks.spawn("orphans", async move {
            *task_report.lock() =
                Some(scan_and_collect_once(&scanner, cluster, &request, clock).await);
            token.cancel();
            Ok(())
        });
        election::task_result(tasks.run(DRAIN_LIMIT).await)?;
        let report = report.lock().take();
        report.unwrap_or(Err(ManagerError::OrphansStopped))
    }

    /// Fills the caches, starts the provider and returns a scanner.
    async fn prepare_scanner(
        &self,
        tasks: &mut Tasks,
        may_write: bool,
    ) -> Result<OrphanScanner, ManagerError> {
        let telemetry = Telemetry::register(self)?;
        let gates = if may_write {
            WriteGates::always_open()
        } else {
            WriteGates::always_closed()
        };
        let mut builder =
            ControllerBuilder::new(self, &gates, &telemetry, tasks.stop(), RunMode::Lead);
        let classes = self
            .provider
            .load_balancers()
            .map(LoadBalancers::classes)
            .unwrap_or_default();
        let fields = ServiceFields { classes, ..ServiceFields::default() };
        let services = Cache::<ServiceView>::new(fields.clone());
        builder.watch("service-cache", &services);
        builder.context.services = Some(Arc::new(services.clone()));
        let ctx = builder.controller_context(
            well_known::COMPONENT_SERVICE,
            SERVICE_CLIENT,
            ControllerLock::Main,
        );
        let scanner = builder.orphan_scanner(&ctx, &services, &fields, ControllerLock::Main);
        let ControllerBuilder { controllers, caches, context, .. } = builder;
        caches.start(tasks).await?;
        self.start_provider_once(context)
            .await
            .map_err(ManagerError::Provider)?;
        // These tasks write events, which are needed only if something may be deleted.
        if may_write {
            for (_, task) in controllers {
                tasks.spawn(task.name, task.run);
            }
        }
        Ok(scanner)
    }
}

/// Scans, deletes orphans if requested, and verifies that the cloud no longer lists them.
async fn scan_and_collect_once(
    scanner: &OrphanScanner,
    cluster: String,
    request: &OrphanRequest,
    clock: WallClock,
) -> Result<OrphanReport, ManagerError> {
    let cluster_id = scanner.cluster_id();
    if let Some(confirmed) = &request.delete
        && **confirmed != *cluster_id
    {
        return Err(ManagerError::ClusterNotConfirmed { confirmed: confirmed.clone(), cluster_id });
    }
    let scan = tokio::time::timeout_at(request.limit, scanner.scan()).await;
    let listing = scan.map_err(|_| ManagerError::OrphansTimedOut)??;
    let at = clock.now();
    let mut orphans = Vec::with_capacity(listing.orphans.len());
    for orphan in listing.orphans {
        let action = if request.delete.is_none() {
            OrphanAction::Listed
        } else if orphan.age(at, Duration::ZERO) < request.minimum_age {
            OrphanAction::TooYoung
        } else {
            OrphanAction::Collected(scanner.collect(&orphan, request.limit).await)
        };
        orphans.push((orphan, action));
    }
    verify_deletions(scanner, &mut orphans, request.limit).await;
    Ok(OrphanReport { cluster, cluster_id, owned: listing.owned, at, orphans })
}

/// Replaces a successful deletion by an error if the cloud still lists the object or cannot be
/// read.
async fn verify_deletions(
    scanner: &OrphanScanner,
    orphans: &mut [(Orphan, OrphanAction)],
    limit: Instant,
) {
    let deleted: Vec<_> = orphans
        .iter()
        .filter(|(_, action)| is_deleted(action))
        .map(|(orphan, _)| orphan.object.clone())
        .collect();
    // While the process is stopping there is no time to verify the deletions.
    if deleted.is_empty() || scanner.op.is_cancelled() {
        return;
    }
    let still_listed = scanner.find_still_listed(&deleted, limit).await;
    for (orphan, action) in orphans.iter_mut().filter(|(_, action)| is_deleted(action)) {
        let error = match &still_listed {
            Ok(ids) if !ids.contains(&orphan.object.id) => continue,
            Ok(_) => OrphanScanError::StillListed,
            Err(error) => OrphanScanError::DeletionUnconfirmed(error.clone()),
        };
        *action = OrphanAction::Collected(Err(error));
    }
}

fn is_deleted(action: &OrphanAction) -> bool {
    matches!(action, OrphanAction::Collected(Ok(CollectOutcome::Deleted)))
}

impl From<OrphanScanError> for ManagerError {
    fn from(error: OrphanScanError) -> Self {
        Self::Orphans(Box::new(error))
    }
}

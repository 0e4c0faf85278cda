//! Adds the finalizer to a Service, and writes its status and annotations. The `delete` module
//! removes the finalizer.

use std::collections::BTreeMap;

use super::{
    super::{
        ServiceController,
        condition::ConditionChange,
        metrics::{ServiceOutcome, SyncKind},
        patches,
        plan::{LastWrite, UnconfirmedWrites, has_finalizer, with_unconfirmed_write},
        sync_error::{ServiceOperation, ServiceSyncError},
    },
    DesiredLoadBalancer, ServiceSync, SyncResult, WAIT_FOR_CHANGE, condition,
};
use crate::{
    error::chain,
    k8s::{LbStatus, ServiceView},
    runtime::api::{ApiError, ApiErrorKind, Patch, Patched},
    telemetry::controller_metrics::SkippedWrite,
};

impl ServiceController {
    /// Writes the finalizer, the status and the annotations again after another client changed
    /// them.
    pub(super) async fn restore_status(
        &self,
        sync: &mut ServiceSync,
        desired: &DesiredLoadBalancer,
    ) -> Result<SyncResult, ServiceSyncError> {
        sync.kind = SyncKind::PublishStatus;
        sync.state.restored_at = Some(self.now());
        let needs_load_balancer = self.add_finalizer(sync, &desired.service).await?;
        if !needs_load_balancer {
            return Ok(WAIT_FOR_CHANGE);
        }
        let status = sync.state.desired_status.clone();
        let annotations = sync.state.desired_annotations.clone();
        self.publish_status(sync, &desired.service, status.as_ref(), &annotations)
            .await?;
        sync.state.deferred = None;
        sync.state.last_attempt = None;
        sync.state.last_failure_event = None;
        self.metrics
            .count(SyncKind::PublishStatus, ServiceOutcome::Done);
        if sync.state.completion_event_due {
            self.complete_announced(sync, &desired.service);
        }
        Ok(sync.wait_for_drift_check())
    }

    /// Adds the finalizer if it is missing. Returns false if the Service no longer exists or no
    /// longer needs a load balancer.
    pub(super) async fn add_finalizer(
        &self,
        sync: &mut ServiceSync,
        service: &ServiceView,
    ) -> Result<bool, ServiceSyncError> {
        if has_finalizer(service, &sync.state, self.now()) {
            self.ctx
                .controller_metrics
                .count_skipped_write(SkippedWrite::ServiceFinalizer);
            return Ok(true);
        }
        let error = match patches::add_finalizer(&self.ctx.api, service).await {
            Ok(version) => {
                sync.state.last_write = self.last_write(&version);
                sync.state.unconfirmed = UnconfirmedWrites::default();
                return Ok(true);
            }
            Err(error) => error,
        };
        if self.no_longer_needs_load_balancer(&error, service).await {
            return Ok(false);
        }
        Err(ServiceSyncError::api(ServiceOperation::AddFinalizer, error))
    }

    /// Returns true if a write was rejected because the Service is deleted, is being deleted, or no
    /// longer needs a load balancer. Such a change arrives through the watch and queues the Service
    /// again.
    async fn no_longer_needs_load_balancer(&self, error: &ApiError, service: &ServiceView) -> bool {
        if !matches!(error.kind(), ApiErrorKind::Invalid(_)) {
            return error.is_not_found();
        }
        match self
            .ctx
            .api
            .get_service(&service.namespace, &service.name, &self.fields)
            .await
        {
            Ok(fresh) => fresh.uid != service.uid || fresh.deleting || !fresh.is_load_balancer,
            Err(error) => error.is_not_found(),
        }
    }

    /// Writes the status and the annotations, if they differ from those of the Service.
    pub(super) async fn publish_status(
        &self,
        sync: &mut ServiceSync,
        service: &ServiceView,
        status: Option<&LbStatus>,
        annotations: &BTreeMap<Box<str>, Option<Box<str>>>,
    ) -> Result<(), ServiceSyncError> {
        // Compare with our last write if the cache does not show it yet, so that nothing is written
        // twice.
        let unconfirmed = with_unconfirmed_write(service, &sync.state, self.now());
        let current = unconfirmed.as_ref().unwrap_or(service);
        let Some(patch) = patches::status_patch(current, status, annotations) else {
            self.ctx
                .controller_metrics
                .count_skipped_write(SkippedWrite::ServiceStatus);
            return Ok(());
        };
        let (patched, condition_change) = match self.patch_status(sync, service, patch).await {
            Ok(written) => written,
            Err(error) if self.no_longer_needs_load_balancer(&error, service).await => {
                return Ok(());
            }
            Err(error) => return Err(ServiceSyncError::api(ServiceOperation::Publish, error)),
        };
        // Remember what was written until the cache shows it.
        if let Some(change) = condition_change {
            sync.state.written_condition = change.written();
        }
        sync.state.last_write = self.last_write(&patched.resource_version);
        if unconfirmed.is_none() {
            sync.state.unconfirmed = UnconfirmedWrites::default();
        }
        if let Some(status) = status {
            sync.state.unconfirmed.status = Some(status.clone());
        }
        sync.state
            .unconfirmed
            .annotations
            .extend(annotations.clone());
        Ok(())
    }

    /// Writes the status together with the planned change of the condition, which is returned. If
    /// that is rejected, the status is written alone: a policy may forbid the condition, and the
    /// address must not wait for a report about it.
    async fn patch_status(
        &self,
        sync: &mut ServiceSync,
        service: &ServiceView,
        patch: Patch,
    ) -> Result<(Patched, Option<ConditionChange>), ApiError> {
        let change = sync
            .condition_change
            .take()
            .filter(|change| sync.state.rejected_condition != Some(change.written()));
        let api = &self.ctx.api;
        let Some(change) = change else {
            let patched = api
                .patch_service_status(&service.namespace, &service.name, &patch)
                .await?;
            return Ok((patched, None));
        };
        let entry = change.patch(service, sync.state.written_condition, self.ctx.clock.now());
        let both = patches::with_condition(service, Some(patch.clone()), entry);
        let error = match api
            .patch_service_status(&service.namespace, &service.name, &both)
            .await
        {
            Ok(patched) => return Ok((patched, Some(change))),
            Err(error) if condition::is_rejection(&error) => error,
            Err(error) => return Err(error),
        };
        let patched = api
            .patch_service_status(&service.namespace, &service.name, &patch)
            .await?;
        tracing::warn!(service = %sync.key, error = chain(&error), "condition of service not written");
        sync.state.rejected_condition = Some(change.written());
        Ok((patched, None))
    }

    /// Returns the record of a write, kept until the cache shows the write.
    fn last_write(&self, version: &str) -> Option<LastWrite> {
        let version = version.parse().ok()?;
        Some(LastWrite { version, finalizer: true, at: self.now() })
    }
}

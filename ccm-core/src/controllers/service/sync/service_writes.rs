//! Adds the finalizer to the Service, and writes its status and annotations. `delete` takes the
//! finalizer off, with a patch of `patches`.

use std::collections::BTreeMap;

use super::{
    super::{
        ServiceController,
        metrics::{ServiceOperationKind, ServiceOutcome},
        patches,
        plan::{LastWrite, UnconfirmedWrites, has_finalizer, with_unconfirmed_write},
        sync_failure::{ServiceOperation, ServiceSyncError},
    },
    DesiredLoadBalancer, ServiceSync, SyncResult, WAIT_FOR_CHANGE,
};
use crate::{
    k8s::{LbStatus, ServiceView},
    runtime::api::{ApiError, ApiErrorKind},
    telemetry::controller_metrics::SkippedWrite,
};

impl ServiceController {
    /// Restores what another client changed on the Service.
    pub(super) async fn restore_status(
        &self,
        sync: &mut ServiceSync,
        desired: &DesiredLoadBalancer,
    ) -> Result<SyncResult, ServiceSyncError> {
        sync.operation = ServiceOperationKind::PublishStatus;
        sync.state.restored_at = Some(self.now());
        if !self.add_finalizer(sync, &desired.service).await? {
            return Ok(WAIT_FOR_CHANGE);
        }
        let status = sync.state.desired_status.clone();
        let annotations = sync.state.desired_annotations.clone();
        self.publish_status(sync, &desired.service, status.as_ref(), &annotations)
            .await?;
        sync.state.deferred = None;
        sync.state.last_failure_event = None;
        self.metrics
            .count(ServiceOperationKind::PublishStatus, ServiceOutcome::Done);
        if sync.state.completion_event_due {
            self.complete_announced(sync, &desired.service);
        }
        Ok(SyncResult::RequeueAt {
            until: sync.state.applied.map(|applied| applied.verify_at),
            resets_failures: true,
        })
    }

    /// Adds the finalizer if it is missing. Returns false if the Service no longer exists or needs
    /// no load balancer any more.
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
        match patches::add_finalizer(&self.ctx.api, service).await {
            Ok(version) => {
                sync.state.last_write = self.last_write(&version);
                sync.state.unconfirmed = UnconfirmedWrites::default();
                Ok(true)
            }
            Err(error) if self.needs_no_load_balancer_any_more(&error, service).await => Ok(false),
            Err(error) => Err(ServiceSyncError::api(ServiceOperation::AddFinalizer, error)),
        }
    }

    /// Tells whether a write was rejected because the Service is gone, is being deleted, or needs
    /// no load balancer any more. The watch reports that change, which queues the Service again.
    async fn needs_no_load_balancer_any_more(
        &self,
        error: &ApiError,
        service: &ServiceView,
    ) -> bool {
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

    /// Writes status and annotations, if they differ from those of the Service.
    pub(super) async fn publish_status(
        &self,
        sync: &mut ServiceSync,
        service: &ServiceView,
        status: Option<&LbStatus>,
        annotations: &BTreeMap<Box<str>, Option<Box<str>>>,
    ) -> Result<(), ServiceSyncError> {
        // What we wrote but do not see yet must not be written again.
        let unconfirmed = with_unconfirmed_write(service, &sync.state, self.now());
        let current = unconfirmed.as_ref().unwrap_or(service);
        let Some(patch) = patches::status_patch(current, status, annotations) else {
            self.ctx
                .controller_metrics
                .count_skipped_write(SkippedWrite::ServiceStatus);
            return Ok(());
        };
        match self
            .ctx
            .api
            .patch_service_status(&service.namespace, &service.name, &patch)
            .await
        {
            Ok(patched) => {
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
            Err(error) if self.needs_no_load_balancer_any_more(&error, service).await => Ok(()),
            Err(error) => Err(ServiceSyncError::api(ServiceOperation::Publish, error)),
        }
    }

    /// Makes the record of a write that is kept until the cache shows it.
    fn last_write(&self, version: &str) -> Option<LastWrite> {
        let version = version.parse().ok()?;
        Some(LastWrite { version, finalizer: true, at: self.now() })
    }
}

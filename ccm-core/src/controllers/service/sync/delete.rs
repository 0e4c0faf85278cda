//! Deletes load balancers.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    super::{
        ServiceController,
        backend_node_cache::StaleCacheError,
        metrics::{ServiceOperationKind, ServiceOutcome},
        patches::{self, ReleaseOutcome},
        plan::{AfterDelete, Attempt, LastWrite, ServiceSyncState, StartEvent},
        sync_failure::{ServiceOperation, ServiceSyncError},
    },
    ServiceSync, SyncResult, WAIT_FOR_CHANGE,
};
use crate::{
    k8s::{LbStatus, ServiceView},
    provider::{ErrorKind, EventType, LbRef, Progress},
};

/// If this many Services disappear without having been released, and they are more than half of
/// all, the cache is not trusted.
const MIN_MASS_DELETION: usize = 3;

impl ServiceController {
    /// Deletes the load balancer. The finalizer is removed last.
    pub(super) async fn delete_load_balancer(
        &self,
        sync: &mut ServiceSync,
        follow_up: AfterDelete,
        start_event: StartEvent,
    ) -> Result<SyncResult, ServiceSyncError> {
        let attempt = Attempt::for_delete(sync.service.as_deref(), &sync.state, follow_up);
        sync.operation = ServiceOperationKind::Delete;
        sync.attempt = Some(attempt);
        // The cache may lag: confirm that the load balancer is not needed any more.
        match follow_up {
            AfterDelete::Forget => self.confirm_deleted(sync).await?,
            AfterDelete::RemoveFinalizer => self.confirm_not_needed(sync).await?,
            AfterDelete::Requeue => {}
        }
        let load_balancer = self.load_balancer_ref(sync, follow_up);
        if start_event == StartEvent::Emit {
            self.emit_event(
                sync,
                EventType::Normal,
                "DeletingLoadBalancer",
                "Deleting load balancer",
            );
            sync.state.announced_attempt = Some(attempt);
            sync.state.pending_since = None;
        }
        sync.state.may_exist_in_cloud = true;
        sync.state.applied = None;
        sync.state.has_attempted = true;
        let progress = self
            .delete_in_cloud(sync, &load_balancer, follow_up)
            .await?;
        if let Progress::Pending { after, why } = progress {
            tracing::debug!(service = %sync.key, ?after, %why, "load balancer is being deleted");
            return Ok(self.requeue_pending(sync, after));
        }
        sync.state.deleted = true;
        let mut last_write = None;
        if follow_up == AfterDelete::RemoveFinalizer
            && let Some(service) = sync.service.clone()
        {
            last_write = self.release(&service, &load_balancer).await?;
        }
        tracing::info!(service = %sync.key, "load balancer deleted");
        self.emit_event(sync, EventType::Normal, "DeletedLoadBalancer", "Deleted load balancer");
        self.metrics
            .count(ServiceOperationKind::Delete, ServiceOutcome::Done);
        match follow_up {
            AfterDelete::Forget => Ok(SyncResult::Forget),
            AfterDelete::Requeue => {
                sync.state = ServiceSyncState::default();
                Ok(SyncResult::RequeueNow)
            }
            AfterDelete::RemoveFinalizer => {
                let uid = sync.state.uid.clone();
                sync.state = ServiceSyncState { uid, last_write, ..ServiceSyncState::default() };
                // Any change of the Service comes through the watch.
                Ok(WAIT_FOR_CHANGE)
            }
        }
    }

    async fn delete_in_cloud(
        &self,
        sync: &ServiceSync,
        load_balancer: &LbRef,
        follow_up: AfterDelete,
    ) -> Result<Progress, ServiceSyncError> {
        let result = self
            .cloud
            .delete(self.op_for_service(sync), load_balancer)
            .await?;
        match result {
            Ok(progress) => Ok(progress),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::ImplementedElsewhere
                ) =>
            {
                Ok(Progress::Done)
            }
            Err(error) => {
                let service_deleted = follow_up != AfterDelete::RemoveFinalizer;
                Err(ServiceSyncError::cloud(ServiceOperation::Delete { service_deleted }, error))
            }
        }
    }

    /// Removes finalizer, status and our annotations from the Service. Returns the write, if it may
    /// not be in the cache yet.
    async fn release(
        &self,
        service: &ServiceView,
        load_balancer: &LbRef,
    ) -> Result<Option<LastWrite>, ServiceSyncError> {
        let load_balancers = self
            .cloud
            .load_balancers()
            .map_err(|error| ServiceSyncError::cloud(ServiceOperation::RemoveFinalizer, error))?;
        let stale_annotations = load_balancers.stale_annotations(load_balancer);
        let released = patches::release(&self.ctx.api, &self.fields, service, &stale_annotations)
            .await
            .map_err(|error| ServiceSyncError::api(ServiceOperation::RemoveFinalizer, error))?;
        let version = match released {
            ReleaseOutcome::Written(version) => version.parse().unwrap_or(0),
            // The Service or the finalizer is gone already: ignore what the cache still shows.
            ReleaseOutcome::NothingToRemove => u64::MAX,
            ReleaseOutcome::LoadBalancerNeeded => return Ok(None),
        };
        Ok(Some(LastWrite { version, finalizer: false, at: self.now() }))
    }

    /// Confirms that a Service whose load balancer is to be deleted no longer exists.
    ///
    /// The finalizer keeps a Service until its load balancer is deleted, so it is rare that the
    /// Service disappears first. Either its finalizer was removed by hand or added after the
    /// deletion had begun, or the cache or etcd went back in time. The last case must not cost all
    /// load balancers.
    async fn confirm_deleted(&self, sync: &ServiceSync) -> Result<(), ServiceSyncError> {
        if !sync.state.deleted {
            self.confirm_no_mass_deletion()?;
        }
        let (namespace, name) = sync.key.split_once('/').unwrap_or(("", &sync.key));
        match self
            .read_service(namespace, name, ServiceOperation::Delete { service_deleted: true })
            .await?
        {
            Some(fresh) if fresh.uid == sync.state.uid && fresh.is_load_balancer => {
                Err(ServiceSyncError::StaleCache(StaleCacheError::ServiceExists))
            }
            _ => Ok(()),
        }
    }

    fn confirm_no_mass_deletion(&self) -> Result<(), ServiceSyncError> {
        let mut all = 0;
        let mut missing = 0;
        for (key, state) in &*self.states.lock() {
            if !state.may_exist_in_cloud || state.deleted {
                continue;
            }
            all += 1;
            if self.services.get(key).is_none() {
                missing += 1;
            }
        }
        if missing >= MIN_MASS_DELETION && missing * 2 > all {
            return Err(ServiceSyncError::StaleCache(StaleCacheError::MostServicesGone {
                missing,
                all,
            }));
        }
        Ok(())
    }

    /// Confirms that a Service whose type or class changed is not to be served again: an attempt
    /// may have been deferred for minutes, and the cache may lag. A deletion of the Service cannot
    /// be undone, so that needs no confirmation.
    async fn confirm_not_needed(&self, sync: &ServiceSync) -> Result<(), ServiceSyncError> {
        let Some(service) = &sync.service else {
            return Ok(());
        };
        if service.deleting {
            return Ok(());
        }
        match self
            .read_service(
                &service.namespace,
                &service.name,
                ServiceOperation::Delete { service_deleted: false },
            )
            .await?
        {
            Some(fresh) if fresh.uid == service.uid && self.fields.is_managed(&fresh) => {
                Err(ServiceSyncError::StaleCache(StaleCacheError::LoadBalancerNeeded))
            }
            _ => Ok(()),
        }
    }

    /// Reads the current Service from the API server; `None` if it does not exist. `operation`
    /// is named in an error.
    async fn read_service(
        &self,
        namespace: &str,
        name: &str,
        operation: ServiceOperation,
    ) -> Result<Option<ServiceView>, ServiceSyncError> {
        match self
            .ctx
            .api
            .get_service(namespace, name, &self.fields)
            .await
        {
            Ok(fresh) => Ok(Some(fresh)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(ServiceSyncError::api(operation, error)),
        }
    }

    /// Identifies the load balancer to delete, by the Service as it is, or as it was when it last
    /// had the right type and class.
    pub(super) fn load_balancer_ref(&self, sync: &ServiceSync, follow_up: AfterDelete) -> LbRef {
        let described_by = self.describing_service(sync, follow_up);
        let (namespace, name) = sync.key.split_once('/').unwrap_or(("", &sync.key));
        let mut load_balancer = LbRef {
            uid: sync.state.uid.clone(),
            namespace: namespace.into(),
            name: name.into(),
            class: None,
            annotations: BTreeMap::new(),
            status: LbStatus::default(),
            last_observed: None,
        };
        if let Some(service) = described_by {
            load_balancer.class.clone_from(&service.class);
            load_balancer.annotations.clone_from(&service.annotations);
            load_balancer.status.clone_from(&service.status);
            load_balancer.last_observed = Some(service.clone());
        }
        load_balancer
    }

    /// Returns the Service that describes the load balancer to delete.
    fn describing_service<'a>(
        &self,
        sync: &'a ServiceSync,
        follow_up: AfterDelete,
    ) -> Option<&'a Arc<ServiceView>> {
        let mut current = None;
        // After any other deletion, a Service of this name is another one.
        if follow_up == AfterDelete::RemoveFinalizer {
            current = sync.service.as_ref();
        }
        if let Some(service) = current
            && service.is_load_balancer
            && self.fields.claims_class(service.class.as_deref())
        {
            return current;
        }
        match &sync.state.last_observed {
            Some(last) if *last.uid == *sync.state.uid => Some(last),
            _ => current,
        }
    }
}

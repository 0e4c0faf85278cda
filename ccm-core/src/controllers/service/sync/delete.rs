//! Deletes load balancers.

use super::{
    super::{
        ServiceController,
        backend_node_cache::StaleCacheError,
        metrics::{ServiceOperationKind, ServiceOutcome},
        patches::{self, ReleaseOutcome},
        plan::{AfterDelete, Attempt, LastWrite, ServiceSyncState},
    },
    ServiceSync, SyncResult, WAIT_FOR_CHANGE,
};
use crate::{
    controllers::service::sync_failure::{ServiceOperation, ServiceSyncError},
    k8s::ServiceView,
    provider::{ErrorKind, EventType, LbRef, Progress},
};

/// If this many Services disappear without having been released, and they are more than half of
/// all, the cache is not trusted.
const MIN_MASS_DELETION: usize = 3;

impl ServiceController {
    /// Deletes the load balancer. The finalizer is removed last.
    // length: a sequence of steps, each with its own early return
    pub(super) async fn delete_load_balancer(
        &self,
        sync: &mut ServiceSync,
        then: AfterDelete,
        announce: bool,
    ) -> Result<SyncResult, ServiceSyncError> {
        let subject = Attempt::for_delete(sync.service.as_deref(), &sync.state, then);
        sync.operation = ServiceOperationKind::Delete;
        sync.attempt = Some(subject);
        // First, confirm with the API server that the load balancer is not needed any more.
        match then {
            AfterDelete::Forget => self.confirm_deleted(sync).await?,
            AfterDelete::RemoveFinalizer => self.confirm_not_needed(sync).await?,
            AfterDelete::Requeue => {}
        }
        let lb = self.lb_ref(sync, then);
        // Then announce the deletion, and delete in the cloud. A pending deletion is requeued.
        if announce {
            self.emit_event(
                sync,
                EventType::Normal,
                "DeletingLoadBalancer",
                "Deleting load balancer",
            );
            sync.state.announced_attempt = Some(subject);
            sync.state.pending_since = None;
        }
        sync.state.may_exist_in_cloud = true;
        sync.state.applied = None;
        sync.state.has_attempted = true;
        let doing =
            ServiceOperation::Delete { service_deleted: then != AfterDelete::RemoveFinalizer };
        match self.cloud.delete(self.op_for_service(sync), &lb).await? {
            Ok(Progress::Done) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::ImplementedElsewhere
                ) => {}
            Err(error) => return Err(ServiceSyncError::cloud(doing, error)),
            Ok(Progress::Pending { after, why }) => {
                tracing::debug!(service = %sync.key, ?after, %why, "load balancer is being deleted");
                return Ok(self.requeue_pending(sync, after));
            }
        }
        // Then remove finalizer, status and our annotations from the Service.
        sync.state.deleted = true;
        let mut written = None;
        if let (AfterDelete::RemoveFinalizer, Some(service)) = (then, sync.service.clone()) {
            let balancers = self.cloud.load_balancers().map_err(|error| {
                ServiceSyncError::cloud(ServiceOperation::RemoveFinalizer, error)
            })?;
            let stale = balancers.stale_annotations(&lb);
            let released = patches::release(&self.cx.api, &self.fields, &service, &stale)
                .await
                .map_err(|error| ServiceSyncError::api(ServiceOperation::RemoveFinalizer, error))?;
            let written_at = |version| LastWrite { version, finalizer: false, at: self.now() };
            written = match released {
                ReleaseOutcome::Written(version) => Some(written_at(version.parse().unwrap_or(0))),
                // The Service or the finalizer is gone already: ignore what the cache still shows.
                ReleaseOutcome::NothingToRemove => Some(written_at(u64::MAX)),
                ReleaseOutcome::LoadBalancerNeeded => None,
            };
        }
        // Finally, report the deletion and drop the sync state.
        tracing::info!(service = %sync.key, "load balancer deleted");
        self.emit_event(sync, EventType::Normal, "DeletedLoadBalancer", "Deleted load balancer");
        self.metrics
            .count(ServiceOperationKind::Delete, ServiceOutcome::Done);
        match then {
            AfterDelete::Forget => return Ok(SyncResult::Forget),
            AfterDelete::Requeue => sync.state = ServiceSyncState::default(),
            AfterDelete::RemoveFinalizer => {
                sync.state = ServiceSyncState {
                    uid: sync.state.uid.clone(),
                    last_write: written,
                    ..ServiceSyncState::default()
                }
            }
        }
        // A new Service of the same name is synced now. Any other change comes through the watch.
        Ok(if then == AfterDelete::Requeue {
            SyncResult::RequeueNow
        } else {
            WAIT_FOR_CHANGE
        })
    }

    /// Confirms that a Service whose load balancer is to be deleted no longer exists.
    ///
    /// The finalizer keeps a Service until its load balancer is deleted, so it is rare that the
    /// Service disappears first. Either its finalizer was removed by hand or added after the
    /// deletion had begun, or the cache or etcd went back in time. The last case must not cost all
    /// load balancers.
    async fn confirm_deleted(&self, sync: &ServiceSync) -> Result<(), ServiceSyncError> {
        let (all, gone) = {
            let state = self.states.lock();
            let served = state
                .iter()
                .filter(|(_, known)| known.may_exist_in_cloud && !known.deleted);
            let gone = served
                .clone()
                .filter(|(key, _)| self.services.get(key).is_none());
            (served.count(), gone.count())
        };
        if !sync.state.deleted && gone >= MIN_MASS_DELETION && gone * 2 > all {
            return Err(ServiceSyncError::StaleCache(StaleCacheError::MostServicesGone {
                missing: gone,
                all,
            }));
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

    /// Confirms that a Service whose type or class changed is not to be served again: an attempt
    /// may have been deferred for minutes, and the cache may lag. A deletion of the Service cannot
    /// be undone, so that needs no confirmation.
    async fn confirm_not_needed(&self, sync: &ServiceSync) -> Result<(), ServiceSyncError> {
        let Some(service) = sync.service.as_ref().filter(|service| !service.deleting) else {
            return Ok(());
        };
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

    /// Reads the current Service from the API server; `None` if it does not exist. `doing`: the
    /// operation to name in an error.
    async fn read_service(
        &self,
        namespace: &str,
        name: &str,
        doing: ServiceOperation,
    ) -> Result<Option<ServiceView>, ServiceSyncError> {
        match self.cx.api.get_service(namespace, name, &self.fields).await {
            Ok(fresh) => Ok(Some(fresh)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(ServiceSyncError::api(doing, error)),
        }
    }

    /// Identifies the load balancer to delete, by the Service as it is, or as it was when it last
    /// had the right type and class.
    pub(super) fn lb_ref(&self, sync: &ServiceSync, then: AfterDelete) -> LbRef {
        let current = sync
            .service
            .as_ref()
            .filter(|_| then == AfterDelete::RemoveFinalizer);
        let last = sync
            .state
            .last_observed
            .as_ref()
            .filter(|last| *last.uid == *sync.state.uid);
        let seen = match current {
            Some(service)
                if service.is_load_balancer
                    && self.fields.claims_class(service.class.as_deref()) =>
            {
                Some(service)
            }
            _ => last.or(current),
        };
        let (namespace, name) = sync.key.split_once('/').unwrap_or(("", &sync.key));
        LbRef {
            uid: sync.state.uid.clone(),
            namespace: namespace.into(),
            name: name.into(),
            class: seen.and_then(|service| service.class.clone()),
            annotations: seen
                .map(|service| service.annotations.clone())
                .unwrap_or_default(),
            status: seen
                .map(|service| service.status.clone())
                .unwrap_or_default(),
            last_observed: seen.cloned(),
        }
    }
}

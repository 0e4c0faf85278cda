//! Deletes load balancers.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    super::{
        ServiceController,
        backend_node_cache::StaleCacheError,
        metrics::{ServiceOutcome, SyncKind},
        patches::{self, ReleaseOutcome},
        plan::{AfterDelete, LastWrite, ServiceSyncState, StartEvent, SyncGoal},
        sync_error::{ServiceOperation, ServiceSyncError},
    },
    ServiceSync, SyncResult, WAIT_FOR_CHANGE,
    retain::{self, Removal},
};
use crate::{
    k8s::{LbStatus, ServiceView},
    provider::{ErrorKind, EventType, LbRef, Progress},
};

/// The minimum number of Services that disappear at once before the cache is suspected to be wrong.
/// They must also be more than half of all Services with load balancers.
const MIN_MASS_DELETION: usize = 3;

impl ServiceController {
    /// Deletes the load balancer, or lets go of it, and then removes the finalizer.
    pub(super) async fn delete_load_balancer(
        &self,
        sync: &mut ServiceSync,
        follow_up: AfterDelete,
        start_event: StartEvent,
    ) -> Result<SyncResult, ServiceSyncError> {
        let goal = SyncGoal::for_deletion(sync.service.as_deref(), &sync.state, follow_up);
        sync.kind = SyncKind::Delete;
        sync.goal = Some(goal);
        // The cache may lag, so confirm with the API server that the load balancer is not needed.
        match follow_up {
            AfterDelete::Forget => self.confirm_deleted(sync).await?,
            AfterDelete::RemoveFinalizer => self.confirm_not_needed(sync).await?,
            AfterDelete::Requeue => {}
        }
        // Delete the load balancer in the cloud, which may take several syncs.
        let load_balancer = self.load_balancer_ref(sync, follow_up);
        if start_event == StartEvent::Emit {
            if let Some((reason, note)) = retain::start_event(self.removal_plan(sync)) {
                self.emit_event(sync, EventType::Normal, reason, note);
                sync.state.announced_goal = Some(goal);
            }
            sync.state.pending_since = None;
        }
        sync.state.may_exist_in_cloud = true;
        sync.state.last_applied = None;
        sync.state.has_attempted = true;
        let removal = self
            .remove_in_cloud(sync, &load_balancer, follow_up)
            .await?;
        if let Removal::Pending { after, reason } = &removal {
            tracing::debug!(service = %sync.key, ?after, %reason, "load balancer is being removed");
            return Ok(self.requeue_pending(sync, *after, reason));
        }
        sync.state.deleted = true;
        // Remove the finalizer if the Service still exists, and report the removal.
        let mut last_write = None;
        if follow_up == AfterDelete::RemoveFinalizer
            && let Some(service) = sync.service.clone()
        {
            last_write = self.release(&service, &load_balancer).await?;
        }
        if matches!(removal, Removal::Deleted) {
            tracing::info!(service = %sync.key, "load balancer deleted");
        }
        let (reason, note) = removal.event();
        self.emit_event(sync, EventType::Normal, reason, &note);
        self.metrics.count(SyncKind::Delete, ServiceOutcome::Done);
        // Reset the sync state.
        match follow_up {
            AfterDelete::Forget => Ok(SyncResult::Forget),
            AfterDelete::Requeue => {
                sync.state = ServiceSyncState::default();
                Ok(SyncResult::RequeueNow)
            }
            AfterDelete::RemoveFinalizer => {
                let uid = sync.state.uid.clone();
                sync.state = ServiceSyncState { uid, last_write, ..ServiceSyncState::default() };
                Ok(WAIT_FOR_CHANGE)
            }
        }
    }

    /// Sends the deletion to the provider. A load balancer that does not exist, or that another
    /// controller implements, counts as deleted.
    pub(super) async fn delete_in_cloud(
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

    /// Removes finalizer, status and our annotations from the Service. Returns the write if the
    /// cache may not show it yet.
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
            // The Service or the finalizer no longer exists, so the cache is outdated.
            ReleaseOutcome::NothingToRemove => u64::MAX,
            ReleaseOutcome::LoadBalancerNeeded => return Ok(None),
        };
        Ok(Some(LastWrite { version, finalizer: false, at: self.now() }))
    }

    /// Confirms that a Service whose load balancer is to be deleted no longer exists.
    ///
    /// The finalizer keeps a Service until its load balancer is deleted, so a Service rarely
    /// disappears first. Somebody may have removed the finalizer by hand, or it was added after the
    /// deletion had begun. But the cache or etcd may also have gone back in time, and that must not
    /// delete all load balancers.
    async fn confirm_deleted(&self, sync: &mut ServiceSync) -> Result<(), ServiceSyncError> {
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
            Some(fresh) => {
                sync.confirm_retention(&fresh);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Returns an error if so many Services disappeared without being deleted that the cache is
    /// probably wrong.
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

    /// Confirms that a Service still needs no load balancer. Its type or class may have changed
    /// back since, because the deletion may have been deferred for minutes and the cache may lag.
    ///
    /// A Service that is being deleted needs no confirmation, because that cannot be undone.
    async fn confirm_not_needed(&self, sync: &mut ServiceSync) -> Result<(), ServiceSyncError> {
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
            Some(fresh) => {
                sync.confirm_retention(&fresh);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Reads a Service from the API server; `None` if it does not exist. An error says that
    /// `operation` failed.
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

    /// Returns a reference to the load balancer to delete.
    pub(super) fn load_balancer_ref(&self, sync: &ServiceSync, follow_up: AfterDelete) -> LbRef {
        let described_by = self.find_describing_service(sync, follow_up);
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

    /// Returns the Service that describes the load balancer to delete: the current one if it still
    /// has the right type and class, otherwise the last one that did.
    fn find_describing_service<'a>(
        &self,
        sync: &'a ServiceSync,
        follow_up: AfterDelete,
    ) -> Option<&'a Arc<ServiceView>> {
        // For every other follow-up, the current Service of this name is another one.
        let mut current = None;
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

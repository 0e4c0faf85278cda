//! Scans the cloud for orphans, and deletes single orphans.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::plan::{LiveOwners, Orphan, OrphanReason, find_orphans};
use crate::{
    controllers::service::RetainingServices,
    k8s::{NodeFields, NodeView, ServiceFields, ServiceView},
    provider::{
        CloudError, CloudProvider, ErrorKind, Inventory, Op, OwnedObject, Owner, Progress,
        call_metrics::CloudMetrics,
    },
    runtime::{
        api::{ApiClient, ApiError, ApiErrorKind},
        cache::Cache,
        events::{EventRecorder, ObjectRef},
    },
};

/// The timeout of one provider call.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// The minimum interval between two requests to delete one object, even if the provider requests a
/// shorter one.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of listings to check that deleted objects are gone. A listing may lag.
const MAX_LISTINGS: usize = 7;
/// The delay between these listings.
const LISTING_INTERVAL: Duration = Duration::from_secs(5);

/// Compares the objects in the cloud with the cluster.
pub(crate) struct OrphanScanner {
    pub(crate) provider: Arc<dyn CloudProvider>,
    pub(crate) services: Cache<ServiceView>,
    pub(crate) service_fields: ServiceFields,
    pub(crate) nodes: Cache<NodeView>,
    pub(crate) node_fields: NodeFields,
    pub(crate) api: ApiClient,
    pub(crate) events: EventRecorder,
    /// The template for the `Op` of each provider call.
    pub(crate) op: Op,
    pub(crate) cloud: CloudMetrics,
    /// The Services that ask to keep their load balancers; none if this process syncs no Services.
    pub(crate) retaining: RetainingServices,
}

/// The result of a scan.
#[derive(Clone, Debug, Default)]
pub struct OrphanScan {
    /// The number of objects that the cluster owns.
    pub owned: usize,
    /// The number of those that were created for a Service or a Node, orphans included.
    pub with_owner: usize,
    /// The orphans among the objects.
    pub orphans: Vec<Orphan>,
    /// The Services and Nodes that the objects were compared with.
    pub(crate) live_owners: LiveOwners,
}

/// The outcome of deleting an orphan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectOutcome {
    /// The object is deleted.
    Deleted,
    /// The cloud had not finished at the deadline or when the process stopped. Contains what it
    /// waits for.
    Pending(Box<str>),
    /// The object was not changed, because a Service or Node needs it again.
    StillInUse,
}

/// An error of a scan or a deletion.
#[derive(Debug, thiserror::Error)]
pub enum OrphanScanError {
    /// The API server did not answer whether the owner exists.
    #[error("failed to check whether its owner still exists")]
    OwnerUnknown(#[source] ApiError),
    /// The cloud rejected the request or failed.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// The provider reported an object as deleted but still lists it.
    #[error("the provider reported it as deleted, but still lists it")]
    StillListed,
    /// The provider reported an object as deleted, but the listing to confirm that failed.
    #[error("the provider reported it as deleted, but that could not be confirmed")]
    DeletionUnconfirmed(#[source] CloudError),
}

impl OrphanScanner {
    /// Compares the objects in the cloud with the Services and Nodes of the cluster.
    ///
    /// The cloud is listed before the caches are read, because an object is younger than the
    /// Service that it was created for. The caches may lag nevertheless, so the API server has to
    /// confirm each orphan.
    pub(crate) async fn scan(&self) -> Result<OrphanScan, OrphanScanError> {
        // Find the orphans according to the caches.
        let owned = self.list(Instant::now() + CALL_TIMEOUT).await?;
        let live_owners = LiveOwners::new(self.services.list(), self.nodes.list());
        let owned_count = owned.len();
        let with_owner = owned
            .iter()
            .filter(|object| object.owner != Owner::Cluster)
            .count();
        let mut orphans = find_orphans(owned, &live_owners);
        // Keep those that the API server confirms. Each owner is only read once.
        let mut confirmed_reasons = HashMap::new();
        for orphan in &orphans {
            let owner = &orphan.object.owner;
            if !confirmed_reasons.contains_key(owner) {
                let reason = self
                    .read_orphan_reason(owner)
                    .await
                    .map_err(OrphanScanError::OwnerUnknown)?;
                confirmed_reasons.insert(owner.clone(), reason);
            }
        }
        orphans.retain(|orphan| {
            confirmed_reasons
                .get(&orphan.object.owner)
                .is_some_and(Option::is_some)
        });
        Ok(OrphanScan { owned: owned_count, with_owner, orphans, live_owners })
    }

    /// Deletes an orphan, if the API server confirms that it still is one. Waits for the cloud
    /// until `deadline`.
    pub(crate) async fn collect(
        &self,
        orphan: &Orphan,
        deadline: Instant,
    ) -> Result<CollectOutcome, OrphanScanError> {
        let object = &orphan.object;
        let mut pending_reason = Box::from("the time limit was reached");
        loop {
            if Instant::now() >= deadline {
                return Ok(CollectOutcome::Pending(pending_reason));
            }
            // Confirm this before each request, because a Service may be created while the cloud is
            // still deleting the object.
            let orphan_reason = self
                .read_orphan_reason(&object.owner)
                .await
                .map_err(OrphanScanError::OwnerUnknown)?;
            if orphan_reason.is_none() {
                return Ok(CollectOutcome::StillInUse);
            }
            // Send the request, and wait until the provider wants the next one.
            let Progress::Pending { after, reason } = self.delete(object, deadline).await? else {
                return Ok(CollectOutcome::Deleted);
            };
            let delay = after.max(MIN_POLL_INTERVAL);
            if self.op.is_cancelled() || Instant::now() + delay > deadline {
                return Ok(CollectOutcome::Pending(reason));
            }
            tokio::select! {
                () = self.op.cancelled() => return Ok(CollectOutcome::Pending(reason)),
                () = tokio::time::sleep(delay) => pending_reason = reason,
            }
        }
    }

    async fn delete(
        &self,
        object: &OwnedObject,
        deadline: Instant,
    ) -> Result<Progress, CloudError> {
        self.call("delete_owned", deadline, |inventory, op| async move {
            let op = self.with_events(op, &object.owner);
            inventory.delete_owned(&op, object).await
        })
        .await
    }

    /// Returns the IDs of deleted objects that the cloud still lists. Lists the cloud until there
    /// are none, a few times and at most until `deadline`.
    pub(crate) async fn find_still_listed(
        &self,
        deleted: &[OwnedObject],
        deadline: Instant,
    ) -> Result<HashSet<Box<str>>, CloudError> {
        let mut listings = 0;
        loop {
            let listed = self.list(deadline).await?;
            let mut still_listed = HashSet::new();
            for object in deleted {
                let is_listed = listed
                    .iter()
                    .any(|other| other.kind == object.kind && other.id == object.id);
                if is_listed {
                    still_listed.insert(object.id.clone());
                }
            }
            listings += 1;
            let is_last = listings == MAX_LISTINGS
                || Instant::now() + LISTING_INTERVAL > deadline
                || self.op.is_cancelled();
            if still_listed.is_empty() || is_last {
                return Ok(still_listed);
            }
            tokio::time::sleep(LISTING_INTERVAL).await;
        }
    }

    async fn list(&self, deadline: Instant) -> Result<Vec<OwnedObject>, CloudError> {
        self.call(
            "list_owned",
            deadline,
            |inventory, op| async move { inventory.list_owned(&op).await },
        )
        .await
    }

    /// Returns the cluster ID in the cloud; empty if the provider has no inventory.
    pub(crate) fn cluster_id(&self) -> Box<str> {
        match self.provider.inventory() {
            Some(inventory) => inventory.cluster_id(&self.op),
            None => Box::default(),
        }
    }

    /// Returns the reason why the objects of this owner are orphans, according to the API server
    /// instead of the caches; `None` if they are needed, or to be kept.
    async fn read_orphan_reason(&self, owner: &Owner) -> Result<Option<OrphanReason>, ApiError> {
        let live_owners = match owner {
            Owner::Cluster => LiveOwners::default(),
            Owner::Service { namespace, name, uid }
                if self.retaining.contains(namespace, name, uid.as_deref()) =>
            {
                return Ok(None);
            }
            Owner::Service { namespace, name, .. } => {
                let found = self
                    .api
                    .get_service(namespace, name, &self.service_fields)
                    .await;
                LiveOwners::new(none_if_not_found(found)?, None::<Arc<NodeView>>)
            }
            Owner::Node { name } => {
                let found = self.api.get_node_by_list(name, &self.node_fields).await;
                LiveOwners::new(None::<Arc<ServiceView>>, none_if_not_found(found)?)
            }
        };
        Ok(live_owners.orphan_reason(owner))
    }

    fn with_events(&self, op: Op, owner: &Owner) -> Op {
        match object_ref(owner) {
            Some(object) => op.with_events(self.events.for_object(object)),
            None => op,
        }
    }

    /// Calls the provider and counts the call. Returns at the deadline even if the provider hangs.
    async fn call<'a, T, F>(
        &'a self,
        operation: &'static str,
        deadline: Instant,
        call: impl FnOnce(&'a dyn Inventory, Op) -> F,
    ) -> Result<T, CloudError>
    where
        F: Future<Output = Result<T, CloudError>>,
    {
        let started = Instant::now();
        let op = self
            .op
            .clone()
            .for_call(deadline.min(started + CALL_TIMEOUT));
        let call_inventory = async {
            let Some(inventory) = self.provider.inventory() else {
                return Err(CloudError::new(
                    ErrorKind::NotImplemented,
                    "the cloud provider keeps no inventory",
                ));
            };
            call(inventory, op.clone()).await
        };
        let result = op
            .run(call_inventory)
            .await
            .map_err(|error| op.as_timeout(error, || format!("{operation} did not end")));
        self.cloud
            .observe(operation, started.elapsed(), result.as_ref().err());
        result
    }
}

/// Returns `None` if the API server reports that the object does not exist. Other errors stay
/// errors.
fn none_if_not_found<T>(found: Result<T, ApiError>) -> Result<Option<Arc<T>>, ApiError> {
    match found {
        Ok(found) => Ok(Some(Arc::new(found))),
        Err(error) if *error.kind() == ApiErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns a reference for events about an owner, which may no longer exist.
pub(crate) fn object_ref(owner: &Owner) -> Option<ObjectRef> {
    match owner {
        Owner::Cluster => None,
        Owner::Service { namespace, name, uid } => {
            Some(ObjectRef::service(&**namespace, &**name, uid.as_deref().unwrap_or_default()))
        }
        Owner::Node { name } => Some(ObjectRef::node(&**name, "")),
    }
}

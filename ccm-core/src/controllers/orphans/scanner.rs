//! Scans the cloud for orphans, and deletes single orphans.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::plan::{LiveOwners, Orphan, OrphanReason, find_orphans};
use crate::{
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

/// Timeout of one provider call.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Minimum interval between two requests about one object, even if the provider names a shorter
/// one.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often the cloud is listed to check that deleted objects are gone, and the delay between; a
/// listing may lag.
const MAX_LISTINGS: usize = 7;
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
    /// Template of the `Op` of each provider call.
    pub(crate) op: Op,
    pub(crate) cloud: CloudMetrics,
}

/// Result of a scan.
#[derive(Clone, Debug, Default)]
pub struct OrphanScan {
    /// How many objects the cluster owns.
    pub owned: usize,
    /// How many of them were made for a Service or a Node, orphans included.
    pub in_use: usize,
    /// The orphans among them.
    pub orphans: Vec<Orphan>,
    /// The Services and Nodes that the objects were compared with.
    pub(crate) live_owners: LiveOwners,
}

/// Result of deleting an orphan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectOutcome {
    /// It is deleted.
    Deleted,
    /// The cloud had not finished at the deadline or when the process stopped; what it waits for.
    Pending(Box<str>),
    /// It is not an orphan any more, because a Service or Node needs it. It was not changed.
    StillInUse,
}

/// Why a scan or a deletion failed.
#[derive(Debug, thiserror::Error)]
pub enum OrphanScanError {
    /// The API server could not be asked whether its owner exists.
    #[error("whether its owner still exists could not be confirmed")]
    OwnerUnknown(#[source] ApiError),
    /// The cloud rejected the request or failed.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// The provider reported an object as deleted, but still lists it.
    #[error("it is said to be deleted, but is still listed")]
    StillListed,
    /// It is unknown whether an object that was reported as deleted is gone.
    #[error("it is said to be deleted, but whether it is gone could not be found out")]
    DeletionUnconfirmed(#[source] CloudError),
}

impl OrphanScanner {
    /// Compares the objects in the cloud with the Services and Nodes of the cluster.
    ///
    /// The cloud is listed first, because an object is younger than the Service that it was made
    /// for. The caches may lag nevertheless, so each orphan is confirmed with the API server.
    pub(crate) async fn scan(&self) -> Result<OrphanScan, OrphanScanError> {
        let owned = self.list(Instant::now() + CALL_TIMEOUT).await?;
        let live_owners = LiveOwners::new(self.services.list(), self.nodes.list());
        let owned_count = owned.len();
        let with_owner = owned
            .iter()
            .filter(|object| object.owner != Owner::Cluster)
            .count();
        let mut orphans = find_orphans(owned, &live_owners);
        let mut confirmed_reasons = HashMap::new();
        for orphan in &orphans {
            let owner = &orphan.object.owner;
            if !confirmed_reasons.contains_key(owner) {
                let reason = self
                    .confirmed_reason(owner)
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
        Ok(OrphanScan { owned: owned_count, in_use: with_owner, orphans, live_owners })
    }

    /// Deletes an orphan, if the API server confirms that it still is one, and waits for the cloud
    /// until `limit`.
    pub(crate) async fn collect(
        &self,
        orphan: &Orphan,
        limit: Instant,
    ) -> Result<CollectOutcome, OrphanScanError> {
        let object = &orphan.object;
        let mut waits_for = Box::from("the time limit was reached");
        loop {
            if Instant::now() >= limit {
                return Ok(CollectOutcome::Pending(waits_for));
            }
            // Confirmed before each request: a Service may be created while the cloud is still
            // deleting.
            let reason = self
                .confirmed_reason(&object.owner)
                .await
                .map_err(OrphanScanError::OwnerUnknown)?;
            if reason.is_none() {
                return Ok(CollectOutcome::StillInUse);
            }
            let Progress::Pending { after, why } = self.delete(object, limit).await? else {
                return Ok(CollectOutcome::Deleted);
            };
            let delay = after.max(MIN_POLL_INTERVAL);
            if self.op.is_cancelled() || Instant::now() + delay > limit {
                return Ok(CollectOutcome::Pending(why));
            }
            tokio::select! {
                () = self.op.cancelled() => return Ok(CollectOutcome::Pending(why)),
                () = tokio::time::sleep(delay) => waits_for = why,
            }
        }
    }

    async fn delete(&self, object: &OwnedObject, limit: Instant) -> Result<Progress, CloudError> {
        self.call("delete_owned", limit, |inventory, op| async move {
            let op = self.with_events(op, &object.owner);
            inventory.delete_owned(&op, object).await
        })
        .await
    }

    /// Returns which of these objects, reported as deleted, are still listed. Lists several times,
    /// until `limit`.
    pub(crate) async fn still_listed(
        &self,
        deleted: &[OwnedObject],
        limit: Instant,
    ) -> Result<HashSet<Box<str>>, CloudError> {
        let mut rounds = 0;
        loop {
            let listed = self.list(limit).await?;
            let mut still_listed = HashSet::new();
            for object in deleted {
                let is_listed = listed
                    .iter()
                    .any(|other| other.kind == object.kind && other.id == object.id);
                if is_listed {
                    still_listed.insert(object.id.clone());
                }
            }
            rounds += 1;
            if still_listed.is_empty()
                || rounds == MAX_LISTINGS
                || Instant::now() + LISTING_INTERVAL > limit
                || self.op.is_cancelled()
            {
                return Ok(still_listed);
            }
            tokio::time::sleep(LISTING_INTERVAL).await;
        }
    }

    async fn list(&self, limit: Instant) -> Result<Vec<OwnedObject>, CloudError> {
        self.call(
            "list_owned",
            limit,
            |inventory, op| async move { inventory.list_owned(&op).await },
        )
        .await
    }

    /// Returns the cluster ID in the cloud.
    pub(crate) fn cluster(&self) -> Box<str> {
        match self.provider.inventory() {
            Some(inventory) => inventory.cluster_id(&self.op),
            None => Box::default(),
        }
    }

    /// Asks the API server, not a cache, why the objects of this owner are orphans; `None` if they
    /// are needed.
    async fn confirmed_reason(&self, owner: &Owner) -> Result<Option<OrphanReason>, ApiError> {
        let live_owners = match owner {
            Owner::Cluster => LiveOwners::default(),
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

    /// Calls the provider with a deadline and counts the call. Returns even if the provider hangs.
    async fn call<'a, T, F>(
        &'a self,
        operation: &'static str,
        limit: Instant,
        call: impl FnOnce(&'a dyn Inventory, Op) -> F,
    ) -> Result<T, CloudError>
    where
        F: Future<Output = Result<T, CloudError>>,
    {
        let started = Instant::now();
        let op = self.op.clone().for_call(limit.min(started + CALL_TIMEOUT));
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

/// Returns `None` if the API server proves that the object does not exist; every other failure
/// stays an error.
fn none_if_not_found<T>(found: Result<T, ApiError>) -> Result<Option<Arc<T>>, ApiError> {
    match found {
        Ok(found) => Ok(Some(Arc::new(found))),
        Err(error) if *error.kind() == ApiErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the object that events about an owner are recorded on; it may not exist.
pub(crate) fn object_ref(owner: &Owner) -> Option<ObjectRef> {
    match owner {
        Owner::Cluster => None,
        Owner::Service { namespace, name, uid } => {
            Some(ObjectRef::service(&**namespace, &**name, uid.as_deref().unwrap_or_default()))
        }
        Owner::Node { name } => Some(ObjectRef::node(&**name, "")),
    }
}

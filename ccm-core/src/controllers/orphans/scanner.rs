//! What the cloud holds and what the cluster asks for: looks at both, and deletes single orphans.

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
        CloudError, CloudProvider, ErrorKind, Inventory, Op, OwnedObject, Owner, Progress, metrics::CloudMetrics,
    },
    runtime::{
        api::{ApiClient, ApiError, ApiErrorKind},
        cache::Cache,
        events::{EventRecorder, ObjectRef},
    },
};

/// Longest time of one provider call.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Shortest wait between two requests about one object, whatever the provider says.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often the cloud is asked whether what was deleted is still listed, and the pause between; a listing may lag.
const MAX_LISTINGS: usize = 7;
const LISTING_INTERVAL: Duration = Duration::from_secs(5);

/// What looks at the cloud and at the cluster.
pub(crate) struct OrphanScanner {
    pub(crate) provider: Arc<dyn CloudProvider>,
    pub(crate) services: Cache<ServiceView>,
    pub(crate) service_fields: ServiceFields,
    pub(crate) nodes: Cache<NodeView>,
    pub(crate) node_fields: NodeFields,
    pub(crate) api: ApiClient,
    pub(crate) events: EventRecorder,
    /// From which those of the provider calls are derived.
    pub(crate) op: Op,
    pub(crate) cloud: CloudMetrics,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct OrphanScan {
    /// How many objects the cluster owns.
    pub owned: usize,
    /// How many of them were made for a Service or a Node.
    pub in_use: usize,
    /// Those that nobody asks for.
    pub orphans: Vec<Orphan>,
    /// What was compared with.
    pub(crate) live_owners: LiveOwners,
}

/// What became of an orphan that was to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectOutcome {
    /// It is gone.
    Deleted,
    /// The cloud had not ended when the time was over; what it waits for.
    Pending(Box<str>),
    /// It is none any more: somebody asks for it. It was left alone.
    StillInUse,
}

/// Why orphans could not be looked for, or one could not be deleted.
#[derive(Debug, thiserror::Error)]
pub enum OrphanScanError {
    /// Whether somebody asks for it could not be found out.
    #[error("it could not be made sure that nobody asks for it")]
    OwnerUnknown(#[source] ApiError),
    /// The cloud refused or failed.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// The provider said that it deleted an object, and lists it all the same.
    #[error("it is said to be deleted, but is still listed")]
    StillListed,
    /// Whether an object that is said to be deleted is gone could not be found out.
    #[error("it is said to be deleted, but whether it is gone could not be found out")]
    DeletionUnconfirmed(#[source] CloudError),
}

impl OrphanScanner {
    /// Compares what the cloud holds with what the cluster asks for.
    ///
    /// The cloud is asked first, because what is made for a Service is younger than the Service; the caches may lag all the
    /// same, so what is no orphan by the API server's own word is none.
    pub(crate) async fn scan(&self) -> Result<OrphanScan, OrphanScanError> {
        let owned = self.list(Instant::now() + CALL_TIMEOUT).await?;
        let standing = LiveOwners::new(self.services.list(), self.nodes.list());
        let for_somebody = |owner: &Owner| !matches!(owner, Owner::Cluster);
        let made_for_somebody = owned.iter().filter(|object| for_somebody(&object.owner)).count();
        let count = owned.len();
        let mut orphans = find_orphans(owned, &standing);
        let mut confirmed = HashMap::new();
        for owner in orphans.iter().map(|orphan| &orphan.object.owner) {
            if !confirmed.contains_key(owner) {
                let cause = self.cause(owner).await.map_err(OrphanScanError::OwnerUnknown)?;
                confirmed.insert(owner.clone(), cause);
            }
        }
        orphans.retain(|orphan| confirmed.get(&orphan.object.owner).is_some_and(Option::is_some));
        Ok(OrphanScan { owned: count, in_use: made_for_somebody, orphans, live_owners: standing })
    }

    /// Deletes an orphan, if it still is one by the API server's own word, and waits for the cloud until `limit`.
    pub(crate) async fn collect(&self, orphan: &Orphan, limit: Instant) -> Result<CollectOutcome, OrphanScanError> {
        let object = &orphan.object;
        let mut waits_for = Box::from("the time for it is over");
        loop {
            if Instant::now() >= limit {
                return Ok(CollectOutcome::Pending(waits_for));
            }
            // Before each request: a Service may be created while the cloud takes its time.
            if self.cause(&object.owner).await.map_err(OrphanScanError::OwnerUnknown)?.is_none() {
                return Ok(CollectOutcome::StillInUse);
            }
            let call = |inventory, op: Op| async move {
                let inventory: &dyn Inventory = inventory;
                inventory.delete_owned(&self.with_events(op, &object.owner), object).await
            };
            match self.call("delete_owned", limit, call).await? {
                Progress::Done => return Ok(CollectOutcome::Deleted),
                Progress::Pending { after, why } => {
                    let after = after.max(MIN_POLL_INTERVAL);
                    if self.op.is_cancelled() || Instant::now() + after > limit {
                        return Ok(CollectOutcome::Pending(why));
                    }
                    tokio::select! {
                        () = self.op.cancelled() => return Ok(CollectOutcome::Pending(why)),
                        () = tokio::time::sleep(after) => waits_for = why,
                    }
                }
            }
        }
    }

    /// Tells which of these objects, which are said to be deleted, are still listed; asks several times, until `limit`.
    pub(crate) async fn still_listed(
        &self,
        deleted: &[OwnedObject],
        limit: Instant,
    ) -> Result<HashSet<Box<str>>, CloudError> {
        let mut rounds = 0;
        loop {
            let listed = self.list(limit).await?;
            let there = |gone: &&OwnedObject| listed.iter().any(|o| (&o.kind, &o.id) == (&gone.kind, &gone.id));
            let left: HashSet<_> = deleted.iter().filter(there).map(|object| object.id.clone()).collect();
            rounds += 1;
            if left.is_empty()
                || rounds == MAX_LISTINGS
                || Instant::now() + LISTING_INTERVAL > limit
                || self.op.is_cancelled()
            {
                return Ok(left);
            }
            tokio::time::sleep(LISTING_INTERVAL).await;
        }
    }

    async fn list(&self, limit: Instant) -> Result<Vec<OwnedObject>, CloudError> {
        self.call("list_owned", limit, |inventory, op| async move { inventory.list_owned(&op).await }).await
    }

    /// Names the cluster as the cloud has it.
    pub(crate) fn cluster(&self) -> Box<str> {
        self.provider.inventory().map(|inventory| inventory.cluster_id(&self.op)).unwrap_or_default()
    }

    /// Asks the API server itself, not a cache, whether somebody asks for what was made for this owner.
    async fn cause(&self, owner: &Owner) -> Result<Option<OrphanReason>, ApiError> {
        let standing = match owner {
            Owner::Cluster => LiveOwners::default(),
            Owner::Service { namespace, name, .. } => {
                let found = self.api.get_service(namespace, name, &self.service_fields).await;
                LiveOwners::new(none_if_not_found(found)?, None::<Arc<NodeView>>)
            }
            Owner::Node { name } => {
                let found = self.api.get_node_by_list(name, &self.node_fields).await;
                LiveOwners::new(None::<Arc<ServiceView>>, none_if_not_found(found)?)
            }
        };
        Ok(standing.orphan_reason(owner))
    }

    fn with_events(&self, op: Op, owner: &Owner) -> Op {
        match object_ref(owner) {
            Some(object) => op.with_events(self.events.for_object(object)),
            None => op,
        }
    }

    /// Calls the provider: with a deadline, counted, and whatever it does, this returns.
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
        let asked = async {
            let missing = || CloudError::new(ErrorKind::NotImplemented, "the cloud provider keeps no inventory");
            call(self.provider.inventory().ok_or_else(missing)?, op.clone()).await
        };
        let result = op.run(asked).await.map_err(|error| op.as_timeout(error, || format!("{operation} did not end")));
        self.cloud.observe(operation, started.elapsed(), result.as_ref().err());
        result
    }
}

/// Takes what the API server proves absent for nothing; every other failure is one.
fn none_if_not_found<T>(found: Result<T, ApiError>) -> Result<Option<Arc<T>>, ApiError> {
    match found {
        Ok(found) => Ok(Some(Arc::new(found))),
        Err(error) if *error.kind() == ApiErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The object that events about an owner are recorded on, which may not exist.
pub(crate) fn object_ref(owner: &Owner) -> Option<ObjectRef> {
    match owner {
        Owner::Cluster => None,
        Owner::Service { namespace, name, uid } => {
            Some(ObjectRef::service(&**namespace, &**name, uid.as_deref().unwrap_or_default()))
        }
        Owner::Node { name } => Some(ObjectRef::node(&**name, "")),
    }
}

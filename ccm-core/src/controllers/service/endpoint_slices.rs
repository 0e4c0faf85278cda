//! An index of the EndpointSlices by Service.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use super::backend_nodes::removes_endpoints;
use crate::{
    k8s::{EndpointSliceView, ServiceView},
    runtime::{
        cache::{Cache, Change},
        work_queue::WorkQueue,
    },
};

/// The delay before added endpoints are synced, so that pods of one rollout share a sync.
const BATCH_DELAY: Duration = Duration::from_secs(1);

type ByService = HashMap<Arc<str>, BTreeMap<Arc<str>, Arc<EndpointSliceView>>>;

/// The EndpointSlices of each Service. Clones share the index.
#[derive(Clone)]
pub struct EndpointSliceIndex {
    cache: Cache<EndpointSliceView>,
    by_service: Arc<Mutex<ByService>>,
}

impl EndpointSliceIndex {
    /// Creates an index over a cache.
    pub fn new(cache: Cache<EndpointSliceView>) -> Self {
        Self { cache, by_service: Arc::default() }
    }

    /// Returns the slices of a Service, sorted by name; `None` until the cache is synced.
    pub(crate) fn for_service(&self, service: &str) -> Option<Vec<Arc<EndpointSliceView>>> {
        if !self.cache.is_synced() {
            return None;
        }
        match self.by_service.lock().get(service) {
            Some(slices) => Some(slices.values().cloned().collect()),
            None => Some(Vec::new()),
        }
    }

    /// Updates the index whenever a slice changes, and queues the Service.
    ///
    /// A lost endpoint queues it at once, any other change after a short delay. Services that are
    /// not in `services` have no load balancer and are not queued.
    pub(crate) fn watch(&self, services: &Cache<ServiceView>, queue: WorkQueue<Arc<str>>) {
        let index = self.by_service.clone();
        let services = services.clone();
        self.cache.on_change(move |change| {
            update_index(&mut index.lock(), change);
            for (service, delay) in affected_services(change) {
                if services.get(&service).is_some() {
                    queue.add_after(service, delay);
                }
            }
        });
    }
}

fn update_index(index: &mut ByService, change: &Change<EndpointSliceView>) {
    match change {
        Change::Added(new) => insert(index, new),
        Change::Deleted(old) => remove(index, old),
        Change::Updated { old, new } => {
            remove(index, old);
            insert(index, new);
        }
    }
}

fn insert(index: &mut ByService, slice: &Arc<EndpointSliceView>) {
    index
        .entry(service_key(slice))
        .or_default()
        .insert(slice.name.clone(), slice.clone());
}

fn remove(index: &mut ByService, slice: &EndpointSliceView) {
    let key = service_key(slice);
    if let Some(slices) = index.get_mut(&key) {
        slices.remove(&slice.name);
        if slices.is_empty() {
            index.remove(&key);
        }
    }
}

/// Returns the Services that a change affects, each with the delay before its sync.
fn affected_services(change: &Change<EndpointSliceView>) -> Vec<(Arc<str>, Duration)> {
    match change {
        Change::Added(new) => vec![(service_key(new), BATCH_DELAY)],
        Change::Deleted(old) => vec![(service_key(old), Duration::ZERO)],
        Change::Updated { old, new } => {
            // A slice that moves to another Service removes endpoints from the old one.
            if old.service != new.service || removes_endpoints(old, new) {
                vec![(service_key(old), Duration::ZERO), (service_key(new), Duration::ZERO)]
            } else {
                vec![(service_key(new), BATCH_DELAY)]
            }
        }
    }
}

fn service_key(slice: &EndpointSliceView) -> Arc<str> {
    format!("{}/{}", slice.namespace, slice.service).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::ServiceFields;

    #[tokio::test(start_paused = true)]
    async fn services_without_a_load_balancer_are_not_queued() {
        let services = Cache::<ServiceView>::new(ServiceFields::default());
        services.apply(ServiceView::named("shop", "balanced"));
        let cache = Cache::<EndpointSliceView>::new(());
        let (slices, queue) = (EndpointSliceIndex::new(cache.clone()), WorkQueue::new());
        slices.watch(&services, queue.clone());
        for service in ["balanced", "plain"] {
            let slice = EndpointSliceView::named("shop", &format!("{service}-1"), service);
            cache.apply(slice.clone());
            cache.apply(EndpointSliceView { resource_version: "2".into(), ..slice });
            cache.remove(&format!("shop/{service}-1"), "");
        }
        assert_eq!(queue.len(), 1);
        assert_eq!(&*queue.get().await, "shop/balanced");
    }
}

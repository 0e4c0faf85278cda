use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use super::node_set::loses_endpoints;
use crate::{
    k8s::EndpointSliceView,
    runtime::{
        cache::{Cache, Change},
        queue::WorkQueue,
    },
};

/// How long endpoints that are added wait for others: pods of one rollout come one by one.
const GATHER: Duration = Duration::from_secs(1);

type ByService = HashMap<Arc<str>, BTreeMap<Arc<str>, Arc<EndpointSliceView>>>;

/// The EndpointSlices of each Service.
pub struct Slices {
    cache: Cache<EndpointSliceView>,
    by_service: Arc<Mutex<ByService>>,
}

impl Slices {
    /// Makes an index over a cache.
    pub fn new(cache: Cache<EndpointSliceView>) -> Self {
        Self { cache, by_service: Arc::default() }
    }

    /// Returns the slices of a Service, sorted by name; `None` as long as the first complete list has not arrived.
    pub(crate) fn of(&self, service: &str) -> Option<Vec<Arc<EndpointSliceView>>> {
        if !self.cache.is_synced() {
            return None;
        }
        Some(self.by_service.lock().get(service).map(|slices| slices.values().cloned().collect()).unwrap_or_default())
    }

    /// Keeps the index, and puts Services in line whose endpoints change: at once where one is lost, otherwise together
    /// with what follows shortly.
    pub(crate) fn follow(&self, queue: WorkQueue<Arc<str>>) {
        let index = self.by_service.clone();
        self.cache.on_change(move |change: &Change<EndpointSliceView>| {
            let (old, new) = match change {
                Change::Added(new) => (None, Some(new)),
                Change::Updated { old, new } => (Some(old), Some(new)),
                Change::Deleted(old) => (Some(old), None),
            };
            if let Some(old) = old {
                forget(&mut index.lock(), old);
            }
            if let Some(new) = new {
                index.lock().entry(service_of(new)).or_default().insert(new.name.clone(), new.clone());
            }
            match (old, new) {
                // A slice of another Service is not this one's new state.
                (Some(old), Some(new)) if old.service == new.service && !loses_endpoints(old, new) => {
                    queue.add_after(service_of(new), GATHER);
                }
                (None, Some(new)) => queue.add_after(service_of(new), GATHER),
                (old, new) => old.into_iter().chain(new).for_each(|slice| queue.add(service_of(slice))),
            }
        });
    }
}

fn forget(index: &mut ByService, slice: &EndpointSliceView) {
    let key = service_of(slice);
    if let Some(slices) = index.get_mut(&key) {
        slices.remove(&slice.name);
        if slices.is_empty() {
            index.remove(&key);
        }
    }
}

fn service_of(slice: &EndpointSliceView) -> Arc<str> {
    format!("{}/{}", slice.namespace, slice.service).into()
}

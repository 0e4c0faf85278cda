//! The objects, one global resource version, and the history watches read. In memory only.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use super::allocate::Allocations;
use super::object::Object;
use super::resources::{self, ResourceDef};

/// Group and plural objects are stored under.
pub type ResourceKey = (&'static str, &'static str);
/// Namespace and name; the order of lists.
pub type ObjectKey = (String, String);

/// Version of the empty store. Real clusters never show versions near 1, which would read like a
/// count.
const FIRST: u64 = 100;

/// Kind of a change of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The object was created.
    Added,
    /// The object was updated.
    Modified,
    /// The object was deleted.
    Deleted,
}

/// One entry of the history.
#[derive(Debug)]
pub struct Event {
    /// The write's version.
    pub version: u64,
    /// Kind of the change.
    pub change: Change,
    /// The object after the write; for a deletion its last state, under the deletion's version.
    pub object: Arc<Object>,
    /// The object before the write.
    pub previous: Option<Arc<Object>>,
}

/// The asked-for version is no longer in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// Oldest version that can still be asked for.
    pub oldest: u64,
}

/// Events that a watch has not delivered yet.
#[derive(Debug)]
pub struct Backlog {
    /// Events after the watch's position, oldest first.
    pub events: Vec<Arc<Event>>,
    /// The version up to which the events are complete.
    pub upto: u64,
}

/// Holds every object; shared by all requests.
#[derive(Debug)]
pub struct Store {
    state: Mutex<StoreState>,
    changed: HashMap<ResourceKey, watch::Sender<()>>,
}

/// Exclusive access to the objects: what one write reads and changes is one step for everyone else.
#[derive(Debug)]
pub struct Transaction<'a> {
    state: &'a mut StoreState,
    touched: Vec<ResourceKey>,
}

#[derive(Debug)]
struct StoreState {
    version: u64,
    tables: HashMap<ResourceKey, Table>,
    allocations: Allocations,
    history_limit: usize,
}

#[derive(Debug, Default)]
struct Table {
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    history: VecDeque<Arc<Event>>,
    /// Version of the newest event that was dropped from the history.
    dropped: u64,
}

impl Store {
    /// Returns an empty store that keeps up to `history_limit` events of each resource.
    pub(crate) fn new(history_limit: usize, allocations: Allocations) -> Self {
        let keys = || {
            resources::all()
                .iter()
                .filter(|d| d.is_stored())
                .map(ResourceDef::storage_key)
        };
        Self {
            state: Mutex::new(StoreState {
                version: FIRST,
                tables: keys()
                    .map(|k| (k, Table { dropped: FIRST, ..Table::default() }))
                    .collect(),
                allocations,
                history_limit,
            }),
            changed: keys().map(|k| (k, watch::Sender::new(()))).collect(),
        }
    }

    /// Returns version of the last write to any object.
    pub fn version(&self) -> u64 {
        self.state.lock().version
    }

    /// Returns an object.
    pub fn get(&self, key: ResourceKey, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.state
            .lock()
            .table(key)?
            .objects
            .get(&(namespace.to_owned(), name.to_owned()))
            .cloned()
    }

    /// Returns all objects of a resource, of one namespace or of all, with the version at which
    /// this is true.
    pub fn list(&self, key: ResourceKey, namespace: Option<&str>) -> (Vec<Arc<Object>>, u64) {
        let state = self.state.lock();
        let objects = state
            .table(key)
            .map(|t| t.range(namespace))
            .unwrap_or_default();
        (objects, state.version)
    }

    /// Returns all objects of a resource as they were at `version`, by undoing what came later.
    ///
    /// # Errors
    /// The history no longer reaches back that far.
    pub fn list_at(
        &self,
        key: ResourceKey,
        namespace: Option<&str>,
        version: u64,
    ) -> Result<Vec<Arc<Object>>, Expired> {
        let state = self.state.lock();
        let Some(table) = state.table(key) else {
            return Ok(Vec::new());
        };
        if version < table.dropped {
            return Err(Expired { oldest: table.dropped });
        }
        let mut objects: BTreeMap<ObjectKey, Arc<Object>> = table
            .range(namespace)
            .into_iter()
            .map(|o| ((o.namespace.clone(), o.name.clone()), o))
            .collect();
        for event in table
            .history
            .iter()
            .rev()
            .take_while(|e| e.version > version)
        {
            if namespace.is_some_and(|n| n != event.object.namespace) {
                continue;
            }
            let key = (event.object.namespace.clone(), event.object.name.clone());
            match &event.previous {
                Some(previous) => objects.insert(key, previous.clone()),
                None => objects.remove(&key),
            };
        }
        Ok(objects.into_values().collect())
    }

    /// Returns up to `limit` events after `position`.
    ///
    /// # Errors
    /// The history no longer reaches back that far.
    pub fn backlog(
        &self,
        key: ResourceKey,
        position: u64,
        limit: usize,
    ) -> Result<Backlog, Expired> {
        let state = self.state.lock();
        let Some(table) = state.table(key) else {
            return Ok(Backlog { events: Vec::new(), upto: position });
        };
        if position < table.dropped {
            return Err(Expired { oldest: table.dropped });
        }
        let start = table.history.partition_point(|e| e.version <= position);
        let events: Vec<_> = table.history.range(start..).take(limit).cloned().collect();
        let cut = start + events.len() < table.history.len();
        let upto = if cut {
            events.last().map_or(position, |e| e.version)
        } else {
            state.version.max(position)
        };
        Ok(Backlog { events, upto })
    }

    /// Returns a receiver that is notified after every write to the resource.
    pub fn subscribe(&self, key: ResourceKey) -> watch::Receiver<()> {
        self.changed
            .get(&key)
            .map_or_else(|| watch::channel(()).1, watch::Sender::subscribe)
    }

    /// Runs `write` with everything else held off. What it changed stays changed even if it returns
    /// an error, so it checks first and changes last.
    pub fn write<T>(&self, write: impl FnOnce(&mut Transaction<'_>) -> T) -> T {
        let (result, touched) = {
            let mut state = self.state.lock();
            let mut transaction = Transaction { state: &mut state, touched: Vec::new() };
            let result = write(&mut transaction);
            (result, transaction.touched)
        };
        for key in touched {
            if let Some(sender) = self.changed.get(&key) {
                sender.send_replace(());
            }
        }
        result
    }

    /// Drops the whole history, as etcd's compaction does: watches and lists from any earlier
    /// version get 410.
    pub fn compact(&self) {
        let mut state = self.state.lock();
        let version = state.version;
        for table in state.tables.values_mut() {
            table.history.clear();
            table.dropped = version;
        }
    }

    /// Advances the version without touching an object, as a write to something not served here
    /// would.
    pub fn skip_versions(&self, count: u64) {
        self.state.lock().version += count;
    }
}

impl StoreState {
    fn table(&self, key: ResourceKey) -> Option<&Table> {
        self.tables.get(&key)
    }
}

impl Table {
    fn range(&self, namespace: Option<&str>) -> Vec<Arc<Object>> {
        match namespace {
            None => self.objects.values().cloned().collect(),
            Some(namespace) => self
                .objects
                .range((Bound::Included((namespace.to_owned(), String::new())), Bound::Unbounded))
                .take_while(|((n, _), _)| n == namespace)
                .map(|(_, o)| o.clone())
                .collect(),
        }
    }

    fn record(&mut self, event: Event, limit: usize) {
        self.history.push_back(Arc::new(event));
        while self.history.len() > limit {
            if let Some(old) = self.history.pop_front() {
                self.dropped = old.version;
            }
        }
    }
}

impl Transaction<'_> {
    /// Returns an object.
    pub fn get(&self, key: ResourceKey, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.state
            .table(key)?
            .objects
            .get(&(namespace.to_owned(), name.to_owned()))
            .cloned()
    }

    /// Returns all objects of a resource, of one namespace or of all.
    pub fn list(&self, key: ResourceKey, namespace: Option<&str>) -> Vec<Arc<Object>> {
        self.state
            .table(key)
            .map(|t| t.range(namespace))
            .unwrap_or_default()
    }

    /// Returns the cluster IPs and node ports in use.
    pub(crate) fn allocations(&mut self) -> &mut Allocations {
        &mut self.state.allocations
    }

    /// Creates or replaces an object under a new version.
    pub fn put(&mut self, def: &'static ResourceDef, value: Value) -> Arc<Object> {
        let key = def.storage_key();
        self.state.version += 1;
        let version = self.state.version;
        if key == ("", "services") {
            self.state.allocations.claim(&value);
        }
        let object = Arc::new(Object::new(def, value, version));
        let limit = self.state.history_limit;
        let table = self.state.tables.entry(key).or_default();
        let previous = table
            .objects
            .insert((object.namespace.clone(), object.name.clone()), object.clone());
        let change = if previous.is_some() {
            Change::Modified
        } else {
            Change::Added
        };
        table.record(Event { version, change, object: object.clone(), previous }, limit);
        self.touched.push(key);
        object
    }

    /// Removes an object under a new version and returns its last state, carrying that version.
    pub fn remove(
        &mut self,
        def: &'static ResourceDef,
        object: &Object,
        last: Value,
    ) -> Arc<Object> {
        let key = def.storage_key();
        self.state.version += 1;
        let version = self.state.version;
        if key == ("", "services") {
            self.state
                .allocations
                .release(&object.namespace, &object.name);
        }
        let last = Arc::new(Object::new(def, last, version));
        let limit = self.state.history_limit;
        let table = self.state.tables.entry(key).or_default();
        let previous = table
            .objects
            .remove(&(object.namespace.clone(), object.name.clone()));
        table.record(
            Event {
                version,
                change: Change::Deleted,
                object: last.clone(),
                previous,
            },
            limit,
        );
        self.touched.push(key);
        last
    }
}

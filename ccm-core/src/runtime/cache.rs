//! A shared, read-only cache of all objects of one kind.
//!
//! A [`Reflector`](super::reflector::Reflector) fills a [`Cache`], and everything else reads it.
//! The cache guarantees:
//!
//! - It only contains states that the API server reported. It never goes back to an older state of
//!   an object, unless the server itself does, because etcd was restored from a backup.
//! - Handlers receive every difference between two states of the cache exactly once and in order,
//!   after the cache has changed. They may miss intermediate states: an interrupted watch turns ten
//!   changes into one.
//! - For an object that was deleted and created again under the same name, handlers receive
//!   `Deleted` and then `Added`, never `Updated`.
//! - An object that is not [relevant](CachedObject::is_relevant) is not in the cache. An object
//!   that stops being relevant is `Deleted` with its last relevant state. An object that becomes
//!   relevant is `Added`.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::{
    provider::CacheReader,
    runtime::encoding::{CachedObject, Decoder},
};

#[cfg(test)]
mod tests;

/// A difference between two states of a cache.
#[derive(Debug, PartialEq)]
pub enum Change<T> {
    /// The object is new.
    Added(Arc<T>),
    /// The object or only its resource version changed.
    Updated {
        /// The state before the change.
        old: Arc<T>,
        /// The state after the change.
        new: Arc<T>,
    },
    /// The object was deleted. Contains its last known state.
    Deleted(Arc<T>),
}

impl<T> Clone for Change<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Added(new) => Self::Added(new.clone()),
            Self::Updated { old, new } => Self::Updated { old: old.clone(), new: new.clone() },
            Self::Deleted(old) => Self::Deleted(old.clone()),
        }
    }
}

type Handler<T> = Box<dyn Fn(&Change<T>) + Send + Sync>;

/// All objects of one kind, by key. Clones share the objects.
pub struct Cache<T: CachedObject>(Arc<CacheInner<T>>);

struct CacheInner<T: CachedObject> {
    objects: RwLock<HashMap<Arc<str>, Arc<T>>>,
    /// Locked during each change and its notifications, so that handlers receive changes in order.
    handlers: Mutex<Vec<Handler<T>>>,
    synced: watch::Sender<bool>,
    decoder: Decoder<T>,
}

impl<T: CachedObject> Clone for Cache<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: CachedObject> fmt::Debug for Cache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("resource", &T::RESOURCE)
            .field("len", &self.len())
            .field("synced", &self.is_synced())
            .finish_non_exhaustive()
    }
}

impl<T: CachedObject> Cache<T> {
    /// Creates an empty cache that stores these fields of each object.
    pub fn new(fields: T::Fields) -> Self {
        Self(Arc::new(CacheInner {
            objects: RwLock::default(),
            handlers: Mutex::default(),
            synced: watch::Sender::new(false),
            decoder: Decoder::new(fields),
        }))
    }

    /// Returns the object with this key.
    pub fn get(&self, key: &str) -> Option<Arc<T>> {
        self.0.objects.read().get(key).cloned()
    }

    /// Returns all objects, in no particular order.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.0.objects.read().values().cloned().collect()
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.0.objects.read().len()
    }

    /// Returns true if the cache has no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the first complete list has been stored.
    pub fn is_synced(&self) -> bool {
        *self.0.synced.borrow()
    }

    /// Waits until the first complete list has been stored and all handlers have received it.
    pub async fn synced(&self) {
        let mut synced = self.0.synced.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        let _ = synced.wait_for(|s| *s).await;
    }

    /// Registers a handler for changes. Calls it at once with `Added` for each object in the cache,
    /// and later with every change.
    ///
    /// The handler blocks the reflector's task, so it should only put a key into a queue and
    /// return. It may read the cache. It must not register handlers, which would deadlock.
    pub fn on_change(&self, handler: impl Fn(&Change<T>) + Send + Sync + 'static) {
        let mut handlers = self.0.handlers.lock();
        for object in self.list() {
            handler(&Change::Added(object));
        }
        handlers.push(Box::new(handler));
    }

    /// Returns the decoder that turns the server's bytes into objects of this cache.
    pub(crate) fn decoder(&self) -> &Decoder<T> {
        &self.0.decoder
    }

    /// Replaces the state of the cache with a complete list, and notifies the handlers of the
    /// differences.
    pub(crate) fn replace(&self, listed: ListSnapshot<T>) {
        let ListSnapshot { objects: listed, unreadable, has_unidentified } = listed;
        let handlers = self.0.handlers.lock();
        let changes = {
            let mut objects = self.0.objects.write();
            let mut changes = Vec::new();
            objects.retain(|key, old| {
                let may_exist =
                    has_unidentified || listed.contains_key(key) || unreadable.contains(&**key);
                if !may_exist {
                    changes.push(Change::Deleted(old.clone()));
                }
                may_exist
            });
            for (key, new) in listed {
                let old = objects.insert(key, new.clone());
                push_difference(&mut changes, old, new);
            }
            changes
        };
        notify(&handlers, &changes);
        self.0.synced.send_replace(true);
    }

    /// Stores the newest state of one object, or removes it if it is not relevant.
    pub(crate) fn apply(&self, object: T) {
        let handlers = self.0.handlers.lock();
        let mut changes = Vec::with_capacity(2);
        if object.is_relevant() {
            let new = Arc::new(object);
            let old = self.0.objects.write().insert(new.key(), new.clone());
            push_difference(&mut changes, old, new);
        } else {
            // Remove the object even if the cached one has another UID. Only one object of a name
            // exists at a time, and this is its newest state.
            changes.extend(
                self.0
                    .objects
                    .write()
                    .remove(&*object.key())
                    .map(Change::Deleted),
            );
        }
        notify(&handlers, &changes);
    }

    /// Removes an object. Keeps an object of the same name with another UID, because it is newer.
    pub(crate) fn remove(&self, key: &str, uid: &str) {
        let handlers = self.0.handlers.lock();
        let old = {
            let mut objects = self.0.objects.write();
            match objects.get(key) {
                Some(old) if old.uid() == uid => objects.remove(key),
                _ => None,
            }
        };
        if let Some(old) = old {
            notify(&handlers, &[Change::Deleted(old)]);
        }
    }
}

/// A complete list while it is collected object by object. Contains only relevant objects.
pub(crate) struct ListSnapshot<T> {
    objects: HashMap<Arc<str>, Arc<T>>,
    /// The keys of objects that could not be decoded. The cache keeps their last states.
    unreadable: HashSet<String>,
    /// True if not even the key of some object could be decoded. That object may be any of those
    /// that seem to be missing.
    has_unidentified: bool,
}

impl<T: CachedObject> ListSnapshot<T> {
    /// Creates an empty list.
    pub(crate) fn new() -> Self {
        Self {
            objects: HashMap::new(),
            unreadable: HashSet::new(),
            has_unidentified: false,
        }
    }

    /// Adds an object, or replaces it with a newer state.
    pub(crate) fn upsert(&mut self, object: T) {
        let key = object.key();
        if object.is_relevant() {
            self.unreadable.remove(&*key);
            self.objects.insert(key, Arc::new(object));
        } else {
            self.remove(&key);
        }
    }

    /// Removes an object that was deleted while the list was collected.
    pub(crate) fn remove(&mut self, key: &str) {
        self.unreadable.remove(key);
        self.objects.remove(key);
    }

    /// Records an object that could not be decoded. If its key is unknown, the cache removes no
    /// objects, because each object that seems to be missing may be this one.
    pub(crate) fn add_unreadable(&mut self, key: Option<String>) {
        match key {
            Some(key) => {
                self.unreadable.insert(key);
            }
            None => self.has_unidentified = true,
        }
    }
}

impl<T: CachedObject> CacheReader<T> for Cache<T> {
    fn get(&self, key: &str) -> Option<Arc<T>> {
        self.get(key)
    }

    fn list(&self) -> Vec<Arc<T>> {
        self.list()
    }
}

/// Appends the changes that replace `old` by `new`: none if the resource version is the same.
fn push_difference<T: CachedObject>(
    changes: &mut Vec<Change<T>>,
    old: Option<Arc<T>>,
    new: Arc<T>,
) {
    match old {
        None => changes.push(Change::Added(new)),
        Some(old) if old.uid() != new.uid() => {
            changes.extend([Change::Deleted(old), Change::Added(new)]);
        }
        Some(old) if old.resource_version() == new.resource_version() => {}
        Some(old) => changes.push(Change::Updated { old, new }),
    }
}

/// Calls every handler with every change.
fn notify<T>(handlers: &[Handler<T>], changes: &[Change<T>]) {
    for change in changes {
        for handler in handlers {
            handler(change);
        }
    }
}

//! Shared, read-only cache of one kind of object.
//!
//! A [`Cache`] is filled by a [`Reflector`](super::reflector::Reflector) and read by everything
//! else. It guarantees:
//!
//! - It only holds states that the API server reported. It never goes back to an older state of an
//!   object, unless the server itself did (etcd restored from a backup): see the reflector.
//! - Once the cache can be read, handlers receive every difference between two states of the cache
//!   exactly once and in order. States in between may be missing: an interrupted watch turns ten
//!   changes into one.
//! - An object that was deleted and created again under its name is `Deleted` and then `Added`,
//!   never `Updated`.
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
#[derive(Debug)]
pub enum Change<T> {
    /// The object is new.
    Added(Arc<T>),
    /// The object changed, or only its resource version did.
    Updated {
        /// The state before the change.
        old: Arc<T>,
        /// The state after the change.
        new: Arc<T>,
    },
    /// The object was deleted. Holds its last known state.
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

impl<T: PartialEq> PartialEq for Change<T> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Added(a), Self::Added(b)) | (Self::Deleted(a), Self::Deleted(b)) => a == b,
            (Self::Updated { old, new }, Self::Updated { old: o, new: n }) => old == o && new == n,
            _ => false,
        }
    }
}

type Handler<T> = Box<dyn Fn(&Change<T>) + Send + Sync>;

/// All objects of one kind, by key. Clones share the objects.
pub struct Cache<T: CachedObject>(Arc<CacheInner<T>>);

struct CacheInner<T: CachedObject> {
    objects: RwLock<HashMap<Arc<str>, Arc<T>>>,
    /// Locked during a whole change and its notifications, which keeps them in order.
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
    /// Makes an empty cache that stores these fields of each object.
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

    /// Calls `handler` with every later change, and at once with `Added` for each object in the
    /// cache.
    ///
    /// The handler runs on the reflector's task and blocks it, so it should only put a key into a
    /// queue and return. It may read the cache. It must not register handlers: that would be a
    /// deadlock.
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
        let ListSnapshot { objects: listed, unreadable, has_unidentified: nameless } = listed;
        let handlers = self.0.handlers.lock();
        let changes = {
            let mut objects = self.0.objects.write();
            let mut changes = Vec::new();
            objects.retain(|key, old| {
                let stays = nameless || listed.contains_key(key) || unreadable.contains(&**key);
                if !stays {
                    changes.push(Change::Deleted(old.clone()));
                }
                stays
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
            // Remove it whatever the UID in the cache: only one object of a name exists at a time,
            // and this is the newest.
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

    /// Removes an object. An object of the same name with another UID stays, as it is newer.
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

/// A list that is collected object by object. Holds only relevant objects.
pub(crate) struct ListSnapshot<T> {
    objects: HashMap<Arc<str>, Arc<T>>,
    /// Keys of objects that exist in a state that could not be decoded. The cache keeps what it has
    /// of them.
    unreadable: HashSet<String>,
    /// True if an object exists of which not even the key could be decoded. It may be any object
    /// that seems to be missing.
    has_unidentified: bool,
}

impl<T: CachedObject> ListSnapshot<T> {
    /// Makes an empty list.
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

    /// Records an object that could not be decoded. Without a key it may be any object that seems
    /// to be missing, so the cache then removes no objects.
    pub(crate) fn unreadable(&mut self, key: Option<String>) {
        match key {
            Some(key) => drop(self.unreadable.insert(key)),
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

fn notify<T>(handlers: &[Handler<T>], changes: &[Change<T>]) {
    for change in changes {
        for handler in handlers {
            handler(change);
        }
    }
}

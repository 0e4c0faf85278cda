//! A map of limited size that removes the least recently used entry.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// A map of at most `capacity` entries that removes the least recently used one.
#[derive(Debug)]
pub(super) struct Lru<K, V> {
    capacity: usize,
    /// Increases with every use. Each entry has the value of its last use, which is its key in
    /// `order`.
    clock: u64,
    entries: HashMap<K, (u64, V)>,
    order: BTreeMap<u64, K>,
}

impl<K: Clone + Eq + Hash, V> Lru<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            clock: 0,
            entries: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// Returns the entry of `key` and marks it as used. `new` makes it if there is none.
    pub(super) fn entry(&mut self, key: &K, new: impl FnOnce() -> V) -> &mut V {
        if !self.entries.contains_key(key)
            && self.entries.len() >= self.capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.clock += 1;
        let (used, value) = self
            .entries
            .entry(key.clone())
            .or_insert_with(|| (0, new()));
        self.order.remove(used);
        *used = self.clock;
        self.order.insert(self.clock, key.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_what_was_used_longest_ago() {
        let mut lru = Lru::new(2);
        *lru.entry(&"a", || 1) += 10;
        lru.entry(&"b", || 2);
        assert_eq!(*lru.entry(&"a", || 0), 11);
        lru.entry(&"c", || 3);
        assert_eq!(*lru.entry(&"a", || 0), 11, "used after b");
        assert_eq!(*lru.entry(&"b", || 7), 7, "forgotten");
        assert_eq!((lru.entries.len(), lru.order.len()), (2, 2));
    }
}

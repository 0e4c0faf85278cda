//! Rows of one kind, with what a change has touched so far, so that it can be undone or written to
//! disk.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};

/// A row of a table.
pub trait Row: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Name of the table in the database. Never changed once released: it is how rows are found
    /// again.
    const TABLE: &'static str;

    /// Returns the key, unique in the table.
    fn key(&self) -> &str;
}

/// Rows by key.
///
/// Changes are recorded until [`Table::commit`] or [`Table::undo`].
#[derive(Debug)]
pub struct Table<R> {
    rows: BTreeMap<Arc<str>, Arc<R>>,
    /// The previous row of each key that was touched since the last commit.
    before: BTreeMap<Arc<str>, Option<Arc<R>>>,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), before: BTreeMap::new() }
    }
}

impl<R: Row> Table<R> {
    /// Returns the row with this key.
    pub fn get(&self, key: &str) -> Option<&Arc<R>> {
        self.rows.get(key)
    }

    /// Returns all rows, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<R>> {
        self.rows.values()
    }

    /// Returns how many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a row, or replaces the one with its key.
    pub fn put(&mut self, row: R) {
        let key: Arc<str> = row.key().into();
        let before = self.rows.insert(key.clone(), Arc::new(row));
        self.before.entry(key).or_insert(before);
    }

    /// Changes a row in place; the key must stay. Returns `None` when there is no such row.
    pub fn update<T>(&mut self, key: &str, change: impl FnOnce(&mut R) -> T) -> Option<T> {
        let mut row = R::clone(self.rows.get(key)?);
        let result = change(&mut row);
        debug_assert_eq!(row.key(), key, "a row keeps its key");
        self.put(row);
        Some(result)
    }

    /// Removes a row.
    pub fn remove(&mut self, key: &str) -> Option<Arc<R>> {
        let (key, row) = self.rows.remove_entry(key)?;
        self.before.entry(key).or_insert_with(|| Some(row.clone()));
        Some(row)
    }

    /// Removes all rows that match.
    pub fn remove_where(&mut self, mut is_like: impl FnMut(&R) -> bool) {
        let keys: Vec<Arc<str>> = self
            .rows
            .iter()
            .filter(|(_, row)| is_like(row))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.remove(&key);
        }
    }

    /// Returns what was touched since the last commit: key, and the row as it is now (`None`:
    /// removed).
    pub fn touched(&self) -> impl Iterator<Item = (&str, Option<&Arc<R>>)> {
        self.before.keys().map(|key| (&**key, self.rows.get(key)))
    }

    /// Keeps what was touched.
    pub fn commit(&mut self) {
        self.before.clear();
    }

    /// Restores what was touched.
    pub fn undo(&mut self) {
        for (key, before) in std::mem::take(&mut self.before) {
            match before {
                Some(row) => self.rows.insert(key, row),
                None => self.rows.remove(&key),
            };
        }
    }
}

//! Strings that are stored once and shared.

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;

/// Shares equal strings: label keys and values, zones and types repeat on every node.
///
/// Owned by the cache that decodes objects, and dropped together with it. Entries without another
/// owner are removed when the table has doubled since the last removal, which bounds the table
/// under churn.
#[derive(Debug, Default)]
pub struct Interner {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    strings: HashSet<Arc<str>>,
    prune_at: usize,
}

/// Below this many strings, unused entries are not removed: it is not worth the time.
const FIRST_PRUNE: usize = 4096;

impl Interner {
    /// Returns the shared copy of `text`, creating it on first use.
    pub fn intern(&self, text: &str) -> Arc<str> {
        let mut table = self.table.lock();
        if let Some(known) = table.strings.get(text) {
            return known.clone();
        }
        if table.strings.len() >= table.prune_at.max(FIRST_PRUNE) {
            table.strings.retain(|s| Arc::strong_count(s) > 1);
            table.prune_at = table.strings.len() * 2;
        }
        let shared: Arc<str> = Arc::from(text);
        table.strings.insert(shared.clone());
        shared
    }

    /// Returns the number of strings in the table.
    pub fn len(&self) -> usize {
        self.table.lock().strings.len()
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_share_one_allocation() {
        let interner = Interner::default();
        assert!(Arc::ptr_eq(&interner.intern("a"), &interner.intern("a")));
        assert_eq!(interner.len(), 1);
    }

    #[test]
    fn strings_that_nobody_holds_are_swept() {
        let interner = Interner::default();
        let kept = interner.intern("kept");
        for i in 0..3 * FIRST_PRUNE {
            interner.intern(&format!("gone-{i}"));
        }
        assert!(interner.len() <= FIRST_PRUNE + 1, "{}", interner.len());
        assert!(Arc::ptr_eq(&kept, &interner.intern("kept")));
    }
}

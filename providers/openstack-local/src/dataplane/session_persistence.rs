//! Member by application cookie.

use std::{collections::HashMap, mem, sync::Arc};

use parking_lot::Mutex;

use super::config::MemberId;

/// Minimum number of cookies that are remembered; the maximum is twice as many. The default of
/// Octavia's own driver.
const SIZE: usize = 10_000;

/// Longer values are cut, as that driver does.
const LENGTH: usize = 64;

/// Remembers cookies. When there are too many, those that were not seen for the longest time are
/// forgotten.
#[derive(Debug, Clone, Default)]
pub(super) struct CookieStore(Arc<Mutex<Generations>>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Box<[u8]>, MemberId>,
    old: HashMap<Box<[u8]>, MemberId>,
}

impl CookieStore {
    pub(super) fn find(&self, cookie: &[u8]) -> Option<MemberId> {
        let key = key(cookie);
        let mut generations = self.0.lock();
        if let Some(member) = generations.young.get(key) {
            return Some(member.clone());
        }
        let (cookie, member) = generations.old.remove_entry(key)?;
        generations.put(cookie, member.clone());
        Some(member)
    }

    pub(super) fn put(&self, cookie: &[u8], member: MemberId) {
        self.0.lock().put(key(cookie).into(), member);
    }
}

fn key(cookie: &[u8]) -> &[u8] {
    &cookie[..cookie.len().min(LENGTH)]
}

impl Generations {
    fn put(&mut self, cookie: Box<[u8]>, member: MemberId) {
        if self.young.len() >= SIZE {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(cookie, member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_seen_stay_and_the_others_make_room() {
        let memory = CookieStore::default();
        memory.put(b"first", "a".into());
        memory.put(b"seen", "b".into());
        for number in 0..3 * SIZE {
            memory.put(format!("{number}").as_bytes(), "c".into());
            assert_eq!(memory.find(b"seen"), Some("b".into()));
        }
        assert_eq!(memory.find(b"first"), None);
        let generations = memory.0.lock();
        assert!(generations.young.len() + generations.old.len() <= 2 * SIZE);
    }

    #[test]
    fn the_latest_member_counts_and_long_cookies_are_cut() {
        let memory = CookieStore::default();
        memory.put(b"x", "a".into());
        memory.put(b"x", "b".into());
        assert_eq!(memory.find(b"x"), Some("b".into()));
        memory.put(&[b'y'; 100], "a".into());
        assert_eq!(memory.find(&[b'y'; 64]), Some("a".into()));
    }
}

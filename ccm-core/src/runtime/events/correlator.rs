//! Decides which occurrences become which writes: counts, combines and throttles them, with pure
//! functions of the given time.
//!
//! The rules and numbers are those of client-go's `tools/record/events_cache.go` (v0.37).

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::{ObjectRef, lru::Lru};
use crate::{k8s::is_dns_subdomain, provider::EventType};

/// The entries in each of the correlator's caches.
const CACHE: usize = 4096;
/// The number of distinct notes with the same object, type and reason from which on they are
/// combined.
const SIMILAR: usize = 10;
/// Time without a similar event after which the count of distinct notes starts again.
const SIMILAR_INTERVAL: Duration = Duration::from_secs(600);
/// Events of one object and one type that may be written at once.
const BURST: f64 = 25.0;
/// The interval at which one more of these may be written.
const REFILL: Duration = Duration::from_secs(300);
/// The prefix of the note of a combined event.
const COMBINED: &str = "(combined from similar events): ";
/// The maximum length of a note in bytes: the API requires less than 1 kB.
const NOTE_LIMIT: usize = 1023;

/// One occurrence of an event, as recorded.
#[derive(Clone, Debug)]
pub(super) struct RecordedEvent {
    pub(super) object: ObjectRef,
    pub(super) kind: EventType,
    pub(super) reason: &'static str,
    pub(super) note: String,
    /// Wall-clock time of the occurrence.
    pub(super) at: Timestamp,
}

/// The desired state of an event on the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CorrelatedEvent {
    pub(super) object: ObjectRef,
    pub(super) kind: EventType,
    pub(super) reason: &'static str,
    pub(super) note: String,
    pub(super) name: Arc<str>,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    pub(super) count: i32,
    /// True if the event must be created. Otherwise it exists, and its count is updated.
    pub(super) is_new: bool,
}

impl CorrelatedEvent {
    /// Merges a later occurrence of the same event into this one before it is written, so that one
    /// write covers both.
    pub(super) fn repeat(&mut self, later: Self) {
        *self = Self { is_new: self.is_new, ..later };
    }
}

/// The key of similar events: same object, type and reason. With the hash of the note it is the key
/// of one event. A hash instead of the note bounds the memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EventKey {
    object: ObjectRef,
    kind: EventType,
    reason: &'static str,
    note: Option<u64>,
}

#[derive(Debug)]
struct SimilarEvents {
    notes: VecDeque<u64>,
    last: Instant,
}

#[derive(Debug)]
struct LoggedEvent {
    name: Arc<str>,
    first: Timestamp,
    count: i32,
}

#[derive(Debug)]
struct SpamBucket {
    tokens: f64,
    at: Instant,
}

/// Remembers recent events, in bounded memory.
#[derive(Debug)]
pub(super) struct Correlator {
    similar: Lru<EventKey, SimilarEvents>,
    logged: Lru<EventKey, LoggedEvent>,
    buckets: Lru<(ObjectRef, EventType), SpamBucket>,
    /// Nanoseconds in the last name. Names must differ even for events at the same time, since an
    /// existing name counts as a repeated attempt.
    last_name_nanos: i128,
}

impl Correlator {
    pub(super) fn new() -> Self {
        Self {
            similar: Lru::new(CACHE),
            logged: Lru::new(CACHE),
            buckets: Lru::new(CACHE),
            last_name_nanos: 0,
        }
    }

    /// Returns the event to write for an occurrence, or `None` if its object is throttled.
    ///
    /// As upstream, an occurrence is counted before it is throttled: if it is not written, the next
    /// count includes it.
    pub(super) fn correlate(
        &mut self,
        occurrence: RecordedEvent,
        now: Instant,
    ) -> Option<CorrelatedEvent> {
        let RecordedEvent { object, kind, reason, note, at } = occurrence;
        let hash = hash(&note);
        let key = EventKey { object: object.clone(), kind, reason, note: None };
        let (key, note) = if self.should_aggregate(&key, hash, now) {
            (key, format!("{COMBINED}{note}"))
        } else {
            (EventKey { note: Some(hash), ..key }, note)
        };
        let named = at.as_nanosecond().max(self.last_name_nanos + 1);
        let logged = self.logged.entry(&key, || LoggedEvent {
            name: event_name(&object.name, named).into(),
            first: at,
            count: 0,
        });
        self.last_name_nanos = named;
        logged.count = logged.count.saturating_add(1);
        let name = logged.name.clone();
        let first = logged.first;
        let count = logged.count;
        self.take_token(&object, kind, now)
            .then(|| CorrelatedEvent {
                object,
                kind,
                reason,
                note: cut(note),
                name,
                first,
                last: at,
                count,
                is_new: count == 1,
            })
    }

    /// Returns true if an occurrence is one of many that differ only in their note, so that it is
    /// combined with them.
    fn should_aggregate(&mut self, key: &EventKey, note: u64, now: Instant) -> bool {
        let similar = self
            .similar
            .entry(key, || SimilarEvents { notes: VecDeque::new(), last: now });
        if now.duration_since(similar.last) > SIMILAR_INTERVAL {
            similar.notes.clear();
        }
        similar.last = now;
        if !similar.notes.contains(&note) {
            similar.notes.push_back(note);
        }
        if similar.notes.len() < SIMILAR {
            return false;
        }
        similar.notes.pop_front();
        true
    }

    fn take_token(&mut self, object: &ObjectRef, kind: EventType, now: Instant) -> bool {
        let bucket = self
            .buckets
            .entry(&(object.clone(), kind), || SpamBucket { tokens: BURST, at: now });
        let refill = now.duration_since(bucket.at).as_secs_f64() / REFILL.as_secs_f64();
        bucket.tokens = (bucket.tokens + refill).min(BURST);
        bucket.at = now;
        let granted = bucket.tokens >= 1.0;
        if granted {
            bucket.tokens -= 1.0;
        }
        granted
    }
}

/// Names an event `<object>.<hex nanoseconds>`, or with a UUID if that is no valid name (as
/// client-go does).
fn event_name(object: &str, nanoseconds: i128) -> String {
    let name = format!("{object}.{nanoseconds:x}");
    if is_dns_subdomain(&name) {
        name
    } else {
        uuid::Uuid::new_v4().to_string()
    }
}

/// Cuts a note to the maximum length, between two characters.
fn cut(mut note: String) -> String {
    note.truncate(note.floor_char_boundary(NOTE_LIMIT));
    note
}

fn hash(note: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    note.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
#[path = "correlator_tests.rs"]
mod tests;

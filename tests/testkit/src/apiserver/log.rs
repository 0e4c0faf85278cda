//! What clients asked for, so that tests can assert exact numbers of requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

use super::faults::Match;
use super::request::RequestInfo;

/// One request that was answered or broken.
#[derive(Debug, Clone)]
pub struct LogEntry {
    /// Number of the request, from 0.
    pub number: u64,
    /// When it ended, by the server's clock; for a watch, when it was opened.
    pub time: Timestamp,
    /// What it asked for.
    pub request: RequestInfo,
    /// Who asked; empty when the token was unknown.
    pub user: String,
    /// HTTP status; none when the connection was broken.
    pub status: Option<u16>,
    /// Body of a write; null for other requests and for bodies that are no JSON. Never a token or a
    /// secret.
    pub body: Value,
}

impl LogEntry {
    /// Whether this was a write that succeeded or whose answer was lost.
    pub fn is_successful_write(&self) -> bool {
        self.request.is_write() && self.status.is_none_or(|s| s < 300)
    }
}

/// Verb, resource with subresource, and status (0: connection broken).
pub type CountKey = (String, String, u16);

/// The log; cheap to clone, all clones are one. Entries are bounded, counts are not.
#[derive(Debug, Clone)]
pub struct RequestLog {
    shared: Arc<Mutex<RequestLogState>>,
}

#[derive(Debug)]
struct RequestLogState {
    next: u64,
    limit: usize,
    entries: VecDeque<Arc<LogEntry>>,
    counts: BTreeMap<CountKey, u64>,
}

impl RequestLog {
    pub(crate) fn new(limit: usize) -> Self {
        let state = RequestLogState {
            next: 0,
            limit,
            entries: VecDeque::new(),
            counts: BTreeMap::new(),
        };
        Self { shared: Arc::new(Mutex::new(state)) }
    }

    /// The newest entries, oldest first.
    pub fn entries(&self) -> Vec<Arc<LogEntry>> {
        self.shared.lock().entries.iter().cloned().collect()
    }

    /// Entries that match, of those still kept.
    pub fn matching(&self, matching: &Match) -> Vec<Arc<LogEntry>> {
        self.shared
            .lock()
            .entries
            .iter()
            .filter(|e| matching.matches(&e.request))
            .cloned()
            .collect()
    }

    /// How many kept entries match.
    pub fn count(&self, matching: &Match) -> usize {
        self.matching(matching).len()
    }

    /// Matching writes that took effect, of those still kept.
    pub fn writes(&self, matching: &Match) -> Vec<Arc<LogEntry>> {
        let mut entries = self.matching(matching);
        entries.retain(|e| e.is_successful_write());
        entries
    }

    /// All requests since the start or the last [`clear`](Self::clear).
    pub fn counts(&self) -> BTreeMap<CountKey, u64> {
        self.shared.lock().counts.clone()
    }

    /// Forgets entries and counts.
    pub fn clear(&self) {
        let mut state = self.shared.lock();
        state.entries.clear();
        state.counts.clear();
    }

    pub(crate) fn record(
        &self,
        time: Timestamp,
        request: RequestInfo,
        user: String,
        status: Option<u16>,
        body: &[u8],
    ) {
        let kept = request.is_write() && request.resource != "secrets";
        let body = if kept {
            serde_json::from_slice(body).unwrap_or_default()
        } else {
            Value::Null
        };
        let mut state = self.shared.lock();
        let number = state.next;
        state.next += 1;
        *state
            .counts
            .entry((request.verb.clone(), request.target(), status.unwrap_or(0)))
            .or_default() += 1;
        state
            .entries
            .push_back(Arc::new(LogEntry { number, time, request, user, status, body }));
        while state.entries.len() > state.limit {
            state.entries.pop_front();
        }
    }
}

//! Log of the clients' requests, with which tests can assert exact numbers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

use super::faults::Match;
use super::request::RequestInfo;

/// A request that was answered or whose connection was broken.
#[derive(Debug, Clone)]
pub struct LogEntry {
    /// Number of the request, from 0.
    pub number: u64,
    /// Time at which the request ended, by the server's clock; for a watch, when it was opened.
    pub time: Timestamp,
    /// The request without its body.
    pub request: RequestInfo,
    /// User name; empty if the token was unknown.
    pub user: String,
    /// HTTP status; none if the connection was broken.
    pub status: Option<u16>,
    /// Body of a write; null for other requests and for bodies that are not JSON. Never contains a
    /// token or a secret.
    pub body: Value,
}

impl LogEntry {
    /// Returns true if this was a write that succeeded or whose answer was lost.
    pub fn is_successful_write(&self) -> bool {
        self.request.is_write() && self.status.is_none_or(|s| s < 300)
    }
}

/// Verb, resource with subresource, and status (0: connection broken).
pub type CountKey = (String, String, u16);

/// Log of requests. Clones share it. The number of entries is bounded, the counts are not.
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

    /// Returns the newest entries, oldest first.
    pub fn entries(&self) -> Vec<Arc<LogEntry>> {
        self.shared.lock().entries.iter().cloned().collect()
    }

    /// Returns the kept entries that match.
    pub fn matching(&self, matching: &Match) -> Vec<Arc<LogEntry>> {
        self.shared
            .lock()
            .entries
            .iter()
            .filter(|e| matching.matches(&e.request))
            .cloned()
            .collect()
    }

    /// Returns how many kept entries match.
    pub fn count(&self, matching: &Match) -> usize {
        self.matching(matching).len()
    }

    /// Returns the kept entries of matching writes that took effect.
    pub fn writes(&self, matching: &Match) -> Vec<Arc<LogEntry>> {
        let mut entries = self.matching(matching);
        entries.retain(|e| e.is_successful_write());
        entries
    }

    /// Returns the counts of all requests since the start or the last [`clear`](Self::clear).
    pub fn counts(&self) -> BTreeMap<CountKey, u64> {
        self.shared.lock().counts.clone()
    }

    /// Clears entries and counts.
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

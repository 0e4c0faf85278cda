use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

/// Maximum number of requests that are kept; the counts continue.
const KEPT: usize = 10_000;

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoggedRequest {
    /// When it was answered, by the cloud's clock.
    pub at: Timestamp,
    /// Method.
    pub method: String,
    /// Route, such as `/compute/v2.1/servers/{id}`; the path when there is none.
    pub route: String,
    /// Path as requested.
    pub path: String,
    /// Query as requested; empty without one.
    pub query: String,
    /// Status of the answer.
    pub status: u16,
}

/// Requests so far, and how many there were by route.
#[derive(Debug, Default)]
pub struct RequestLog(Mutex<RequestLogInner>);

#[derive(Debug, Default)]
struct RequestLogInner {
    entries: VecDeque<LoggedRequest>,
    counts: BTreeMap<String, u64>,
}

impl RequestLog {
    pub(super) fn add(&self, entry: LoggedRequest) {
        let mut inner = self.0.lock();
        *inner
            .counts
            .entry(format!("{} {}", entry.method, entry.route))
            .or_default() += 1;
        if inner.entries.len() == KEPT {
            inner.entries.pop_front();
        }
        inner.entries.push_back(entry);
    }

    /// Returns the last requests, oldest first.
    pub fn entries(&self) -> Vec<LoggedRequest> {
        self.0.lock().entries.iter().cloned().collect()
    }

    /// Returns how many requests there were, by method and route, such as `GET
    /// /compute/v2.1/servers/{id}`.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.0.lock().counts.clone()
    }

    /// Returns how many of the requests that are kept have this method, and a path with this
    /// prefix.
    pub fn count(&self, method: &str, path: &str) -> usize {
        let inner = self.0.lock();
        inner
            .entries
            .iter()
            .filter(|entry| entry.method == method && entry.path.starts_with(path))
            .count()
    }

    /// Forgets everything.
    pub fn clear(&self) {
        *self.0.lock() = RequestLogInner::default();
    }
}

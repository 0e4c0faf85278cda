//! Cached responses of an interrupted sync, so that it continues where it stopped.
//!
//! A sync of one Service takes many requests, and a call may sleep two seconds for the rate
//! limiter. If each call began anew while hundreds of Services compete for tokens, each would get
//! only its first few requests and none would ever finish.

use std::{sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    api::{AwsError, Call, Reply},
    client::error_class::ErrorClass,
};

/// Age limit of a response.
const TTL: Duration = Duration::from_secs(600);

/// AWS' responses to the reads of one sync. Clones share the content.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseCache(Arc<Mutex<Vec<CachedResponse>>>);

#[derive(Debug)]
struct CachedResponse {
    to: Call,
    at: Instant,
    reply: Result<Reply, AwsError>,
}

impl ResponseCache {
    /// Returns the cached response to a request, if there is one.
    pub(super) fn get(&self, call: &Call) -> Option<Result<Reply, AwsError>> {
        let all = self.0.lock();
        all.iter()
            .find(|answer| answer.to == *call && answer.at.elapsed() < TTL)
            .map(|answer| answer.reply.clone())
    }

    /// Stores a response, if it is an object or "not found".
    pub(super) fn store(&self, to: Call, reply: &Result<Reply, AwsError>) {
        if reply
            .as_ref()
            .err()
            .is_none_or(|error| ErrorClass::of(error.code()) == ErrorClass::Absent)
        {
            let mut all = self.0.lock();
            all.retain(|answer| answer.to != to);
            all.push(CachedResponse { to, at: Instant::now(), reply: reply.clone() });
        }
    }

    /// Removes everything, because the sync is over or something is about to be changed.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Ends a sync. Its responses are kept for the next one if it failed because of throttling.
    pub(crate) fn finish<T>(&self, look: Result<T, CloudError>) -> Result<T, CloudError> {
        if look
            .as_ref()
            .err()
            .is_none_or(|error| error.kind() != ErrorKind::Throttled)
        {
            self.clear();
        }
        look
    }
}

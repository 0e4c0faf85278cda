//! Cached responses of an interrupted sync, so that the next one continues where it stopped.
//!
//! A sync of one Service takes many requests, but may wait only two seconds for the rate limiter.
//! While hundreds of Services compete for tokens, a sync often cannot complete its requests. If
//! each sync started from scratch, it would repeat the first few requests and never finish.

use std::{sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    api::{AwsError, Call, Reply},
    client::error_class::ErrorClass,
};

/// Maximum age of a response.
const TTL: Duration = Duration::from_secs(600);

/// AWS' responses to the reads of one sync. Clones share the responses.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseCache(Arc<Mutex<Vec<CachedResponse>>>);

#[derive(Debug)]
struct CachedResponse {
    call: Call,
    received_at: Instant,
    reply: Result<Reply, AwsError>,
}

impl ResponseCache {
    /// Returns the cached response to a request, unless it is too old.
    pub(super) fn get(&self, call: &Call) -> Option<Result<Reply, AwsError>> {
        let responses = self.0.lock();
        let response = responses
            .iter()
            .find(|response| response.call == *call && response.received_at.elapsed() < TTL)?;
        Some(response.reply.clone())
    }

    /// Stores a response. Errors are not stored, except "not found".
    pub(super) fn store(&self, call: Call, reply: &Result<Reply, AwsError>) {
        if let Err(error) = reply
            && ErrorClass::from_code(error.code()) != ErrorClass::NotFound
        {
            return;
        }
        let mut responses = self.0.lock();
        responses.retain(|response| response.call != call);
        responses.push(CachedResponse { call, received_at: Instant::now(), reply: reply.clone() });
    }

    /// Removes all responses. Must be called before anything is changed.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Ends a sync, and returns its result unchanged. If it was throttled, its responses are kept
    /// for the next sync.
    pub(crate) fn finish<T>(&self, sync_result: Result<T, CloudError>) -> Result<T, CloudError> {
        let is_throttled =
            matches!(&sync_result, Err(error) if error.kind() == ErrorKind::Throttled);
        if !is_throttled {
            self.clear();
        }
        sync_result
    }
}

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
    call: Call,
    received_at: Instant,
    reply: Result<Reply, AwsError>,
}

impl ResponseCache {
    /// Returns the cached response to a request, if there is one.
    pub(super) fn get(&self, call: &Call) -> Option<Result<Reply, AwsError>> {
        let responses = self.0.lock();
        let response = responses
            .iter()
            .find(|response| response.call == *call && response.received_at.elapsed() < TTL)?;
        Some(response.reply.clone())
    }

    /// Stores a response, if it is an object or "not found".
    pub(super) fn store(&self, call: Call, reply: &Result<Reply, AwsError>) {
        if let Err(error) = reply
            && ErrorClass::of(error.code()) != ErrorClass::NotFound
        {
            return;
        }
        let mut responses = self.0.lock();
        responses.retain(|response| response.call != call);
        responses.push(CachedResponse { call, received_at: Instant::now(), reply: reply.clone() });
    }

    /// Removes everything, because the sync is over or something is about to be changed.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Ends a sync. Its responses are kept for the next one if it failed because of throttling.
    pub(crate) fn finish<T>(&self, sync_result: Result<T, CloudError>) -> Result<T, CloudError> {
        let is_throttled =
            matches!(&sync_result, Err(error) if error.kind() == ErrorKind::Throttled);
        if !is_throttled {
            self.clear();
        }
        sync_result
    }
}

//! Answers to a look that was broken off, so that it goes on where it ended.
//!
//! A look at one Service takes many requests, and a call sleeps two seconds for their turns. Were each call to begin anew while
//! hundreds of Services want turns, each would get its first few and none would ever see the end.

use std::{sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::error_kind::ErrorClass;
use crate::api::{AwsError, Call, Reply};

/// How old an answer may be.
const TTL: Duration = Duration::from_secs(600);

/// What AWS answered to the requests of one look. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseCache(Arc<Mutex<Vec<CachedResponse>>>);

#[derive(Debug)]
struct CachedResponse {
    to: Call,
    at: Instant,
    reply: Result<Reply, AwsError>,
}

impl ResponseCache {
    /// Returns the answer to a request that was answered.
    pub(super) fn get(&self, call: &Call) -> Option<Result<Reply, AwsError>> {
        let all = self.0.lock();
        all.iter().find(|answer| answer.to == *call && answer.at.elapsed() < TTL).map(|answer| answer.reply.clone())
    }

    /// Keeps what AWS said about what there is, and is not.
    pub(super) fn store(&self, to: Call, reply: &Result<Reply, AwsError>) {
        if reply.as_ref().err().is_none_or(|error| ErrorClass::of(error.code()) == ErrorClass::Absent) {
            let mut all = self.0.lock();
            all.retain(|answer| answer.to != to);
            all.push(CachedResponse { to, at: Instant::now(), reply: reply.clone() });
        }
    }

    /// Forgets everything: the look is over, or something is going to be changed.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Ends a look. What it was told is kept for the next one if this one was broken off for want of turns.
    pub(crate) fn finish<T>(&self, look: Result<T, CloudError>) -> Result<T, CloudError> {
        if look.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::Throttled) {
            self.clear();
        }
        look
    }
}

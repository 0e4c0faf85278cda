//! Answers to a look that was broken off, so that it goes on where it ended.
//!
//! A look at one Service takes many requests, and a call sleeps two seconds for their turns. Were each call to begin anew while
//! hundreds of Services want turns, each would get its first few and none would ever see the end.

use std::{sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::classify::Meaning;
use crate::api::{AwsError, Call, Reply};

/// How old an answer may be.
const KEEP: Duration = Duration::from_secs(600);

/// What AWS answered to the requests of one look. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers(Arc<Mutex<Vec<Answer>>>);

#[derive(Debug)]
struct Answer {
    to: Call,
    at: Instant,
    reply: Result<Reply, AwsError>,
}

impl Answers {
    /// Returns the answer to a request that was answered.
    pub(super) fn to(&self, call: &Call) -> Option<Result<Reply, AwsError>> {
        let all = self.0.lock();
        all.iter().find(|answer| answer.to == *call && answer.at.elapsed() < KEEP).map(|answer| answer.reply.clone())
    }

    /// Keeps what AWS said about what there is, and is not.
    pub(super) fn keep(&self, to: Call, reply: &Result<Reply, AwsError>) {
        if reply.as_ref().err().is_none_or(|error| Meaning::of(error.code()) == Meaning::Absent) {
            let mut all = self.0.lock();
            all.retain(|answer| answer.to != to);
            all.push(Answer { to, at: Instant::now(), reply: reply.clone() });
        }
    }

    /// Forgets everything: the look is over, or something is going to be changed.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Ends a look. What it was told is kept for the next one if this one was broken off for want of turns.
    pub(crate) fn end<T>(&self, look: Result<T, CloudError>) -> Result<T, CloudError> {
        if look.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::Throttled) {
            self.clear();
        }
        look
    }
}

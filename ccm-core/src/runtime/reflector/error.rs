use std::time::Duration;

use super::watch_stream::StreamError;
use crate::runtime::{
    api::{ApiError, ApiErrorKind},
    encoding::decode::DecodeError,
};

/// Why a list or watch did not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReflectorError {
    /// The server refused, or could not be reached.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The answer cannot be read.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The watch broke.
    #[error("watch broken")]
    Stream(#[from] StreamError),
    /// A streaming list broke off or did not come to its end.
    #[error("the initial events of the watch did not end")]
    IncompleteList,
    /// The watch ended at once and without a word.
    #[error("watch ended at once")]
    WatchTooShort,
    /// Nothing arrived for this long.
    #[error("nothing arrived for {0:?}")]
    WatchIdle(Duration),
    /// The server is at an earlier resource version than it once was.
    #[error("the server went back from resource version {from} to {to}")]
    ResourceVersionDecreased {
        /// Last seen.
        from: u64,
        /// Seen now.
        to: u64,
    },
}

impl ReflectorError {
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Api(error) => error.retry_after(),
            _ => None,
        }
    }

    /// Tells whether the server does not do streaming lists. 400 and 422 are what servers without the feature answer.
    pub(crate) fn rejects_streaming_list(&self) -> bool {
        matches!(self, Self::Api(error) if matches!(error.code(), Some(400 | 405 | 406 | 415 | 422)))
    }

    /// Tells whether a watch cannot be resumed where it was, so that everything must be listed.
    ///
    /// That is 410, and every answer that will not become another by waiting: a resource version that the server takes
    /// for malformed (400) or for one of the future (504 with reason `Timeout`).
    pub(crate) fn needs_relist(&self) -> bool {
        match self {
            Self::Api(error) => match error.kind() {
                ApiErrorKind::Gone | ApiErrorKind::Other | ApiErrorKind::Invalid(_) | ApiErrorKind::NotFound => true,
                ApiErrorKind::Timeout => error.code().is_some(),
                _ => false,
            },
            Self::ResourceVersionDecreased { .. } => true,
            _ => false,
        }
    }

    /// Tells whether the position in the watch expired, or is not on the server's line any more.
    pub(crate) fn is_expiry(&self) -> bool {
        match self {
            Self::Api(error) => *error.kind() == ApiErrorKind::Gone,
            Self::ResourceVersionDecreased { .. } => true,
            _ => false,
        }
    }

    /// Tells whether a right is missing, or the credentials are not accepted: only a person can mend that.
    pub(crate) fn is_forbidden(&self) -> bool {
        let Self::Api(error) = self else { return false };
        matches!(error.kind(), ApiErrorKind::Forbidden | ApiErrorKind::Unauthorized)
    }
}

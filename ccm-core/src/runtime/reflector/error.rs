//! Errors of a reflector.

use std::time::Duration;

use super::watch_stream::StreamError;
use crate::runtime::{
    api::{ApiError, ApiErrorKind},
    encoding::decode::DecodeError,
};

/// The error that ended a list or a watch.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReflectorError {
    /// The server rejected the request, or could not be reached.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The response cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The stream of the watch broke.
    #[error("watch interrupted")]
    Stream(#[from] StreamError),
    /// A streaming list ended, or exceeded its time limit, before all initial events had arrived.
    #[error("the initial events of the watch did not end")]
    IncompleteList,
    /// The watch ended at once, without a newer resource version.
    #[error("watch ended immediately")]
    WatchTooShort,
    /// Nothing arrived on the watch for this long.
    #[error("nothing arrived for {0:?}")]
    WatchIdle(Duration),
    /// The server is at an older resource version than before.
    #[error("the server went back from resource version {from} to {to}")]
    ResourceVersionDecreased {
        /// Latest resource version before.
        from: u64,
        /// Resource version now.
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

    /// Returns true if the server does not support streaming lists. Servers without the feature
    /// answer 400 or 422.
    pub(crate) fn rejects_streaming_list(&self) -> bool {
        matches!(self, Self::Api(error) if matches!(error.code(), Some(400 | 405 | 406 | 415 | 422)))
    }

    /// Returns true if a watch cannot be resumed at its resource version, and everything must be
    /// listed again.
    ///
    /// This is the case for 410, and for every error that would be the same after a delay. For
    /// example, the server may consider the resource version to be malformed (400) or in the future
    /// (504 with reason `Timeout`).
    pub(crate) fn needs_relist(&self) -> bool {
        match self {
            Self::Api(error) => match error.kind() {
                ApiErrorKind::Gone
                | ApiErrorKind::Other
                | ApiErrorKind::Invalid(_)
                | ApiErrorKind::NotFound => true,
                ApiErrorKind::Timeout => error.code().is_some(),
                _ => false,
            },
            Self::ResourceVersionDecreased { .. } => true,
            _ => false,
        }
    }

    /// Returns true if the resource version of the watch has expired, or the server went back
    /// behind it.
    pub(crate) fn is_expiry(&self) -> bool {
        match self {
            Self::Api(error) => *error.kind() == ApiErrorKind::Gone,
            Self::ResourceVersionDecreased { .. } => true,
            _ => false,
        }
    }

    /// Returns true if a permission is missing or the credentials are rejected. Only a person can
    /// fix that.
    pub(crate) fn is_forbidden(&self) -> bool {
        let Self::Api(error) = self else { return false };
        matches!(error.kind(), ApiErrorKind::Forbidden | ApiErrorKind::Unauthorized)
    }
}

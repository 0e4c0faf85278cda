//! The watch part of list and watch.

use std::time::Duration;

use http::{Method, StatusCode};
use rand::RngExt as _;
use tokio::time::Instant;

use super::{
    ListPosition, Reflector,
    error::ReflectorError,
    watch_stream::{StreamError, WatchEvent, WatchStream},
};
use crate::{
    percent::encode,
    runtime::{
        api::{ACCEPT_WATCH, ApiError, ApiRequest, RequestInfo, status::Status},
        encoding::decode::CachedObject,
    },
};

/// A watch that ends sooner than this without a newer resource version failed, whatever its status
/// was.
const MIN_WATCH_TIME: Duration = Duration::from_secs(1);

/// The minimum age of the last list for listing again without a delay.
const MIN_LIST_AGE: Duration = Duration::from_secs(10);

impl<T: CachedObject> Reflector<T> {
    /// Applies the events of one watch until it ends, and returns how to continue.
    pub(super) async fn watch(
        &mut self,
        resource_version: String,
        stream: Option<WatchStream>,
    ) -> ListPosition {
        let started = Instant::now();
        let mut at = resource_version;
        let before = at.clone();
        let end = match stream {
            Some(stream) => self.apply_events(stream, &mut at).await,
            None => self.resume(&mut at).await,
        };
        match end {
            Err(failure) if failure.needs_relist() => {
                let reason = super::chain(&failure);
                tracing::info!(
                    resource = T::RESOURCE,
                    reason,
                    "cannot resume the watch; listing everything"
                );
                // An expired resource version allows one list at once. If the last list is recent,
                // or for any other error, the same error may come again and again, so back off.
                if !failure.is_expiry()
                    || self.last_list.is_some_and(|t| t.elapsed() < MIN_LIST_AGE)
                {
                    self.back_off(&failure).await;
                }
                return ListPosition::Relist;
            }
            // The server throttles, denies access, or cannot be reached.
            Err(failure @ ReflectorError::Api(_)) => self.back_off(&failure).await,
            Err(failure) if started.elapsed() < MIN_WATCH_TIME && at == before => {
                self.back_off(&failure).await;
            }
            Err(failure) => {
                let reason = super::chain(&failure);
                tracing::debug!(resource = T::RESOURCE, reason, "opening the watch again");
            }
            Ok(()) if started.elapsed() < MIN_WATCH_TIME && at == before => {
                self.back_off(&ReflectorError::WatchTooShort).await;
            }
            Ok(()) => {}
        }
        self.metrics.restarted(T::RESOURCE);
        ListPosition::At { resource_version: at, stream: None }
    }

    /// Opens a watch from a resource version, and applies its events.
    async fn resume(&mut self, at: &mut String) -> Result<(), ReflectorError> {
        let stream = self
            .open(&format!("&resourceVersion={}", encode(at)))
            .await?;
        self.apply_events(stream, at).await
    }

    /// Opens a watch.
    pub(super) async fn open(&self, query: &str) -> Result<WatchStream, ReflectorError> {
        // Random as in client-go, so that watches that were opened together do not end together.
        let seconds = rand::rng().random_range(300..600);
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}{query}",
            T::PATH
        );
        let (encoding, body) = self
            .client
            .open(ApiRequest::get(path).accept(ACCEPT_WATCH))
            .await?;
        Ok(WatchStream::new(encoding, body))
    }

    /// Waits for the next event, for at most the idle timeout. Returns `None` if the server ended
    /// the watch.
    pub(super) async fn next(
        &self,
        stream: &mut WatchStream,
        idle: Duration,
    ) -> Result<Option<WatchEvent<T>>, ReflectorError> {
        let frame = tokio::time::timeout(idle, stream.next())
            .await
            .map_err(|_| ReflectorError::WatchIdle(idle))??;
        let Some(frame) = frame else { return Ok(None) };
        let event = self
            .cache
            .decoder()
            .event(stream.encoding(), &frame)
            .map_err(StreamError::from)?;
        self.metrics.record_event(T::RESOURCE, self.cache.len());
        Ok(Some(event))
    }

    /// Applies the events of a watch to the cache, and keeps the resource version of the last one
    /// in `at`, which the caller needs even after an error.
    async fn apply_events(
        &mut self,
        mut stream: WatchStream,
        at: &mut String,
    ) -> Result<(), ReflectorError> {
        while let Some(event) = self
            .next(&mut stream, self.options.watch_idle_timeout)
            .await?
        {
            match event {
                WatchEvent::Applied(object) => {
                    self.advance(at, object.resource_version())?;
                    self.cache.apply(object);
                }
                WatchEvent::Deleted(deleted) => {
                    self.advance(at, &deleted.resource_version)?;
                    self.cache.remove(&deleted.key, &deleted.uid);
                }
                WatchEvent::Bookmark { resource_version, .. } => {
                    self.advance(at, &resource_version)?;
                }
                WatchEvent::Failed(status) => return Err(Self::error_from_status(status)),
                WatchEvent::Unreadable(malformed) => self.log_unreadable(&malformed),
                WatchEvent::Unknown(kind) => {
                    self.cache
                        .decoder()
                        .log_unknown_field("", "watch event type", &kind);
                }
            }
            self.metrics.record_event(T::RESOURCE, self.cache.len());
        }
        Ok(())
    }

    /// Advances to a newer resource version.
    fn advance(&mut self, at: &mut String, to: &str) -> Result<(), ReflectorError> {
        self.latest.advance(to)?;
        if !to.is_empty() {
            to.clone_into(at);
        }
        Ok(())
    }

    /// Creates the error for an ERROR event.
    pub(super) fn error_from_status(status: Status) -> ReflectorError {
        let code = status
            .code
            .and_then(|c| StatusCode::from_u16(c).ok())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let request = RequestInfo::from_request(&Method::GET, &format!("{}?watch=true", T::PATH));
        ApiError::from_response(request, code, status, None, false).into()
    }
}

//! The list part of list and watch.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    ListPosition, Reflector,
    error::ReflectorError,
    resource_version::LatestResourceVersion,
    watch_stream::{WatchEvent, WatchStream},
};
use crate::{
    percent::encode,
    runtime::{
        api::{ACCEPT_OBJECT, ApiErrorKind, ApiRequest},
        cache::ListSnapshot,
        encoding::decode::{CachedObject, UnreadableObject},
    },
};

/// Number of streaming lists in a row that may break before paged lists are used. A proxy that
/// buffers streams does not delay pages.
const MAX_BROKEN_STREAMS: u32 = 2;

/// Idle timeout between the initial events of a streaming list. The server sends them as fast as
/// they are read.
const INITIAL_IDLE: Duration = Duration::from_secs(30);

/// Timeout of all initial events together. A server that neither supports nor rejects streaming
/// lists sends events indefinitely. On a connection that is too slow for this timeout, pages work
/// better.
const INITIAL_LIMIT: Duration = Duration::from_secs(60);

/// Number of lists in a row that are older than the latest resource version, of which the last is
/// accepted. With the delays between them this takes half a minute to a minute, by which time a
/// lagging API server has caught up.
const MAX_STALE_LISTS: u32 = 5;

impl<T: CachedObject> Reflector<T> {
    /// Lists everything once and stores it in the cache.
    pub(super) async fn list(&mut self) -> Result<ListPosition, ReflectorError> {
        if self.streaming && self.broken_streams < MAX_BROKEN_STREAMS {
            match self.streaming_list().await {
                Err(failure) if failure.rejects_streaming_list() => {
                    let reason = super::chain(&failure);
                    tracing::info!(
                        resource = T::RESOURCE,
                        reason,
                        "the API server does not stream lists; using pages"
                    );
                    self.streaming = false;
                }
                Err(failure) => {
                    // Count only streams that broke after they were opened: an unreachable server
                    // may still support streaming.
                    if !matches!(
                        failure,
                        ReflectorError::Api(_) | ReflectorError::ResourceVersionDecreased { .. }
                    ) {
                        self.broken_streams += 1;
                    }
                    return Err(failure);
                }
                Ok(position) => return Ok(position),
            }
        }
        self.paged_list().await
    }

    /// Lists with a watch that begins with all existing objects. The stream continues as a watch.
    async fn streaming_list(&mut self) -> Result<ListPosition, ReflectorError> {
        let query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let stream = self.open(query).await?;
        tokio::time::timeout(INITIAL_LIMIT, self.initial_events(stream))
            .await
            .unwrap_or(Err(ReflectorError::IncompleteList))
    }

    async fn initial_events(
        &mut self,
        mut stream: WatchStream,
    ) -> Result<ListPosition, ReflectorError> {
        let idle = self.options.watch_idle_timeout.min(INITIAL_IDLE);
        let mut listed = ListSnapshot::new();
        loop {
            match self
                .next(&mut stream, idle)
                .await?
                .ok_or(ReflectorError::IncompleteList)?
            {
                WatchEvent::Applied(item) => listed.upsert(item),
                WatchEvent::Unreadable(malformed) => self.record_unreadable(malformed, &mut listed),
                WatchEvent::Bookmark { resource_version, initial_events_end: true } => {
                    self.store_list(listed, &resource_version)?;
                    return Ok(ListPosition::At { resource_version, stream: Some(stream) });
                }
                WatchEvent::Failed(status) => return Err(Self::failed(status)),
                // A deletion is not an initial event, but it also means that the object is not in
                // the list.
                WatchEvent::Deleted(gone) => listed.remove(&gone.key),
                WatchEvent::Bookmark { .. } | WatchEvent::Unknown(_) => {}
            }
        }
    }

    /// Lists page by page, all pages of one state of the server. If that state expires meanwhile,
    /// lists everything in one request.
    async fn paged_list(&mut self) -> Result<ListPosition, ReflectorError> {
        let mut listed = ListSnapshot::new();
        let mut query = format!("?limit={}", self.options.page_size);
        loop {
            let request = ApiRequest::get(format!("{}{query}", T::PATH)).accept(ACCEPT_OBJECT);
            let response = match self.client.send(request).await {
                Err(error)
                    if *error.kind() == ApiErrorKind::Gone && query.contains("continue=") =>
                {
                    tracing::debug!(
                        resource = T::RESOURCE,
                        "the list expired between pages; taking it in one piece"
                    );
                    listed = ListSnapshot::new();
                    query.clear();
                    continue;
                }
                other => other?,
            };
            let page = self
                .cache
                .decoder()
                .page(response.encoding(), response.body())?;
            self.metrics.record_event(T::RESOURCE, self.cache.len());
            for malformed in page.malformed {
                self.record_unreadable(malformed, &mut listed);
            }
            page.items.into_iter().for_each(|item| listed.upsert(item));
            if page.r#continue.is_empty() {
                self.store_list(listed, &page.resource_version)?;
                return Ok(ListPosition::At {
                    resource_version: page.resource_version,
                    stream: None,
                });
            }
            query =
                format!("?limit={}&continue={}", self.options.page_size, encode(&page.r#continue));
        }
    }

    fn record_unreadable(&self, malformed: UnreadableObject, listed: &mut ListSnapshot<T>) {
        self.log_unreadable(&malformed);
        listed.unreadable(malformed.key);
    }

    /// Stores a complete list in the cache, unless it is older than the latest resource version of
    /// the cache.
    fn store_list(
        &mut self,
        listed: ListSnapshot<T>,
        resource_version: &str,
    ) -> Result<(), ReflectorError> {
        if let Err(failure) = self.latest.advance(resource_version) {
            self.stale_lists += 1;
            if self.stale_lists < MAX_STALE_LISTS {
                return Err(failure);
            }
            let reason = super::chain(&failure);
            tracing::warn!(
                resource = T::RESOURCE,
                reason,
                "taking older lists for the truth, as after a restored backup"
            );
            self.latest = LatestResourceVersion::default();
            self.latest.advance(resource_version)?;
        }
        self.stale_lists = 0;
        self.cache.replace(listed);
        self.broken_streams = 0;
        self.last_list = Some(Instant::now());
        self.metrics.relisted(T::RESOURCE);
        self.metrics.record_event(T::RESOURCE, self.cache.len());
        Ok(())
    }
}

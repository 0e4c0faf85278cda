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

/// Streaming lists that may break in a row before pages are tried. A proxy that holds back streams does not hold those.
const MAX_BROKEN_STREAMS: u32 = 2;

/// How long the initial events of a streaming list may pause. The server sends them as fast as they are read.
const INITIAL_IDLE: Duration = Duration::from_secs(30);

/// How long the initial events may take in all. A server that does not know streaming lists and does not refuse them
/// either sends events for ever; a connection that is too slow for this does better with pages.
const INITIAL_LIMIT: Duration = Duration::from_secs(60);

/// Lists in a row that may be refused because they are older than what was seen, before they are believed. With the
/// pauses between them this lasts half a minute to a minute: an API server that lags has caught up by then.
const MAX_STALE_LISTS: u32 = 5;

impl<T: CachedObject> Reflector<T> {
    /// Lists everything once and puts it into the cache.
    pub(super) async fn list(&mut self) -> Result<ListPosition, ReflectorError> {
        if self.streaming && self.broken_streams < MAX_BROKEN_STREAMS {
            match self.streaming_list().await {
                Err(failure) if failure.rejects_streaming_list() => {
                    let reason = super::chain(&failure);
                    tracing::info!(resource = T::RESOURCE, reason, "the API server does not stream lists; using pages");
                    self.streaming = false;
                }
                Err(failure) => {
                    // Only what ended an open stream counts; a server that is away is not one that cannot stream.
                    if !matches!(failure, ReflectorError::Api(_) | ReflectorError::ResourceVersionDecreased { .. }) {
                        self.broken_streams += 1;
                    }
                    return Err(failure);
                }
                Ok(position) => return Ok(position),
            }
        }
        self.paged_list().await
    }

    /// Lists through a watch that begins with everything there is, and goes on as a watch.
    async fn streaming_list(&mut self) -> Result<ListPosition, ReflectorError> {
        let query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let stream = self.open(query).await?;
        tokio::time::timeout(INITIAL_LIMIT, self.initial_events(stream))
            .await
            .unwrap_or(Err(ReflectorError::IncompleteList))
    }

    async fn initial_events(&mut self, mut stream: WatchStream) -> Result<ListPosition, ReflectorError> {
        let idle = self.options.watch_idle_timeout.min(INITIAL_IDLE);
        let mut listed = ListSnapshot::new();
        loop {
            match self.next(&mut stream, idle).await?.ok_or(ReflectorError::IncompleteList)? {
                WatchEvent::Applied(item) => listed.upsert(item),
                WatchEvent::Unreadable(malformed) => self.record_unreadable(malformed, &mut listed),
                WatchEvent::Bookmark { resource_version, initial_events_end: true } => {
                    self.store_list(listed, &resource_version)?;
                    return Ok(ListPosition::At { resource_version, stream: Some(stream) });
                }
                WatchEvent::Failed(status) => return Err(Self::failed(status)),
                // A deletion is no initial event; the object is in no list either.
                WatchEvent::Deleted(gone) => listed.remove(&gone.key),
                WatchEvent::Bookmark { .. } | WatchEvent::Unknown(_) => {}
            }
        }
    }

    /// Lists page by page, all of one state of the server. If that state expires on the way, everything in one piece.
    async fn paged_list(&mut self) -> Result<ListPosition, ReflectorError> {
        let mut listed = ListSnapshot::new();
        let mut query = format!("?limit={}", self.options.page_size);
        loop {
            let request = ApiRequest::get(format!("{}{query}", T::PATH)).accept(ACCEPT_OBJECT);
            let response = match self.client.send(request).await {
                Err(error) if *error.kind() == ApiErrorKind::Gone && query.contains("continue=") => {
                    tracing::debug!(resource = T::RESOURCE, "the list expired between pages; taking it in one piece");
                    listed = ListSnapshot::new();
                    query.clear();
                    continue;
                }
                other => other?,
            };
            let page = self.cache.decoder().page(response.encoding(), response.body())?;
            self.metrics.record_event(T::RESOURCE, self.cache.len());
            for malformed in page.malformed {
                self.record_unreadable(malformed, &mut listed);
            }
            page.items.into_iter().for_each(|item| listed.upsert(item));
            if page.r#continue.is_empty() {
                self.store_list(listed, &page.resource_version)?;
                return Ok(ListPosition::At { resource_version: page.resource_version, stream: None });
            }
            query = format!("?limit={}&continue={}", self.options.page_size, encode(&page.r#continue));
        }
    }

    fn record_unreadable(&self, malformed: UnreadableObject, listed: &mut ListSnapshot<T>) {
        self.log_unreadable(&malformed);
        listed.unreadable(malformed.key);
    }

    /// Puts a complete list into the cache, unless it is older than what the cache has had.
    fn store_list(&mut self, listed: ListSnapshot<T>, resource_version: &str) -> Result<(), ReflectorError> {
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

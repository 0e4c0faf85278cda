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

/// The number of streaming lists in a row that may break before paged lists are used. Pages also
/// work through a proxy that buffers streams.
const MAX_BROKEN_STREAMS: u32 = 2;

/// The idle timeout between the initial events of a streaming list. The server sends them as fast
/// as they are read.
const INITIAL_IDLE: Duration = Duration::from_secs(30);

/// The timeout of all initial events together. It is needed for servers that neither support nor
/// reject streaming lists, because these send events indefinitely. On a connection that is too slow
/// for it, pages work better.
const INITIAL_LIMIT: Duration = Duration::from_secs(60);

/// The number of lists in a row that must be older than the latest resource version for the last of
/// them to be accepted. With the delays between them this takes half a minute to a minute, in which
/// an API server that lags behind catches up.
const MAX_STALE_LISTS: u32 = 5;

impl<T: CachedObject> Reflector<T> {
    /// Lists all objects once and stores them in the cache.
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

    /// Opens a watch that begins with all existing objects, and lists these. The stream continues
    /// as a watch.
    async fn streaming_list(&mut self) -> Result<ListPosition, ReflectorError> {
        let query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let stream = self.open(query).await?;
        tokio::time::timeout(INITIAL_LIMIT, self.initial_events(stream))
            .await
            .unwrap_or(Err(ReflectorError::IncompleteList))
    }

    /// Reads the initial events of a streaming list, and stores the list in the cache.
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
                WatchEvent::Failed(status) => return Err(Self::error_from_status(status)),
                // A deletion is not an initial event, but it also means that the object is not in
                // the list.
                WatchEvent::Deleted(deleted) => listed.remove(&deleted.key),
                WatchEvent::Bookmark { .. } | WatchEvent::Unknown(_) => {}
            }
        }
    }

    /// Lists page by page. All pages show one state of the server. If that state expires between
    /// two pages, lists everything in one request.
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
                        "the list expired between pages; listing again without pages"
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
        listed.add_unreadable(malformed.key);
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
                "accepting an older list, because etcd must have been restored from a backup"
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

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Position, Reflector,
    decode::{Malformed, Watched},
    failure::Failure,
    frames::{Event, Frames},
    newest::Newest,
};
use crate::{
    percent::encode,
    runtime::{
        api::{ACCEPT_OBJECT, ApiErrorKind, ApiRequest},
        cache::Listed,
    },
};

/// Streaming lists that may break in a row before pages are tried. A proxy that holds back streams does not hold those.
const BROKEN_STREAMS: u32 = 2;

/// How long the initial events of a streaming list may pause. The server sends them as fast as they are read.
const INITIAL_IDLE: Duration = Duration::from_secs(30);

/// How long the initial events may take in all. A server that does not know streaming lists and does not refuse them
/// either sends events for ever; a connection that is too slow for this does better with pages.
const INITIAL_LIMIT: Duration = Duration::from_secs(60);

/// Lists in a row that may be refused because they are older than what was seen, before they are believed. With the
/// pauses between them this lasts half a minute to a minute: an API server that lags has caught up by then.
const OLDER_LISTS: u32 = 5;

impl<T: Watched> Reflector<T> {
    /// Lists everything once and puts it into the cache.
    pub(super) async fn list(&mut self) -> Result<Position, Failure> {
        if self.streaming && self.broken_streams < BROKEN_STREAMS {
            match self.streaming_list().await {
                Err(failure) if failure.refuses_streaming() => {
                    let reason = super::chain(&failure);
                    tracing::info!(resource = T::RESOURCE, reason, "the API server does not stream lists; using pages");
                    self.streaming = false;
                }
                Err(failure) => {
                    // Only what ended an open stream counts; a server that is away is not one that cannot stream.
                    if !matches!(failure, Failure::Api(_) | Failure::WentBack { .. }) {
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
    async fn streaming_list(&mut self) -> Result<Position, Failure> {
        let query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let stream = self.open(query).await?;
        tokio::time::timeout(INITIAL_LIMIT, self.initial_events(stream)).await.unwrap_or(Err(Failure::Incomplete))
    }

    async fn initial_events(&mut self, mut stream: Frames) -> Result<Position, Failure> {
        let idle = self.options.idle.min(INITIAL_IDLE);
        let mut listed = Listed::new();
        loop {
            match self.next(&mut stream, idle).await?.ok_or(Failure::Incomplete)? {
                Event::Applied(item) => listed.apply(item),
                Event::Unreadable(malformed) => self.note(malformed, &mut listed),
                Event::Bookmark { resource_version, initial_events_end: true } => {
                    self.take(listed, &resource_version)?;
                    return Ok(Position::At { resource_version, stream: Some(stream) });
                }
                Event::Failed(status) => return Err(Self::failed(status)),
                // A deletion is no initial event; the object is in no list either.
                Event::Deleted(gone) => listed.remove(&gone.key),
                Event::Bookmark { .. } | Event::Unknown(_) => {}
            }
        }
    }

    /// Lists page by page, all of one state of the server. If that state expires on the way, everything in one piece.
    async fn paged_list(&mut self) -> Result<Position, Failure> {
        let mut listed = Listed::new();
        let mut query = format!("?limit={}", self.options.page_size);
        loop {
            let request = ApiRequest::get(format!("{}{query}", T::PATH)).accept(ACCEPT_OBJECT);
            let response = match self.client.send(request).await {
                Err(error) if *error.kind() == ApiErrorKind::Gone && query.contains("continue=") => {
                    tracing::debug!(resource = T::RESOURCE, "the list expired between pages; taking it in one piece");
                    listed = Listed::new();
                    query.clear();
                    continue;
                }
                other => other?,
            };
            let page = self.cache.decoder().page(response.encoding(), response.body())?;
            self.metrics.heard(T::RESOURCE, self.cache.len());
            for malformed in page.malformed {
                self.note(malformed, &mut listed);
            }
            page.items.into_iter().for_each(|item| listed.apply(item));
            if page.r#continue.is_empty() {
                self.take(listed, &page.resource_version)?;
                return Ok(Position::At { resource_version: page.resource_version, stream: None });
            }
            query = format!("?limit={}&continue={}", self.options.page_size, encode(&page.r#continue));
        }
    }

    fn note(&self, malformed: Malformed, listed: &mut Listed<T>) {
        self.unreadable(&malformed);
        listed.unreadable(malformed.key);
    }

    /// Puts a complete list into the cache, unless it is older than what the cache has had.
    fn take(&mut self, listed: Listed<T>, resource_version: &str) -> Result<(), Failure> {
        if let Err(failure) = self.newest.advance(resource_version) {
            self.older_lists += 1;
            if self.older_lists < OLDER_LISTS {
                return Err(failure);
            }
            let reason = super::chain(&failure);
            tracing::warn!(
                resource = T::RESOURCE,
                reason,
                "taking older lists for the truth, as after a restored backup"
            );
            self.newest = Newest::default();
            self.newest.advance(resource_version)?;
        }
        self.older_lists = 0;
        self.cache.replace(listed);
        self.broken_streams = 0;
        self.listed = Some(Instant::now());
        self.metrics.relisted(T::RESOURCE);
        self.metrics.heard(T::RESOURCE, self.cache.len());
        Ok(())
    }
}

use std::{collections::HashSet, time::Duration};

use tokio::time::Instant;

use super::{
    Position, Reflector,
    decode::{Malformed, Watched},
    failure::Failure,
    frames::Event,
};
use crate::runtime::api::{ACCEPT_OBJECT, ApiErrorKind, ApiRequest, segment};

/// Streaming lists that may break in a row before pages are tried. A proxy that holds back streams does not hold those.
const BROKEN_STREAMS: u32 = 2;

/// How long the initial events of a streaming list may pause. The server sends them as fast as they are read.
const INITIAL_IDLE: Duration = Duration::from_secs(30);

/// Objects of a list as they come in.
struct Listed<T> {
    items: Vec<T>,
    unreadable: HashSet<String>,
}

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
                    if !matches!(failure, Failure::Api(_)) {
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
        let mut stream = self.open(query).await?;
        let idle = self.options.idle.min(INITIAL_IDLE);
        let mut listed = Listed { items: Vec::new(), unreadable: HashSet::new() };
        loop {
            match self.next(&mut stream, idle).await?.ok_or(Failure::Incomplete)? {
                Event::Applied(item) => listed.items.push(item),
                Event::Unreadable(malformed) => self.note(malformed, &mut listed),
                Event::Bookmark { resource_version, initial_events_end: true } => {
                    self.take(listed);
                    return Ok(Position::At { resource_version, stream: Some(stream) });
                }
                Event::Failed(status) => return Err(Self::failed(status)),
                // A deletion is no initial event; the object is in no list either.
                Event::Deleted(gone) => listed.items.retain(|item| item.key() != gone.key()),
                Event::Bookmark { .. } | Event::Unknown(_) => {}
            }
        }
    }

    /// Lists page by page, all of one state of the server. If that state expires on the way, everything in one piece.
    async fn paged_list(&mut self) -> Result<Position, Failure> {
        let mut listed = Listed { items: Vec::new(), unreadable: HashSet::new() };
        let mut query = format!("?limit={}", self.options.page_size);
        loop {
            let request = ApiRequest::get(format!("{}{query}", T::PATH)).accept(ACCEPT_OBJECT);
            let response = match self.client.send(request).await {
                Err(error) if *error.kind() == ApiErrorKind::Gone && query.contains("continue=") => {
                    tracing::debug!(resource = T::RESOURCE, "the list expired between pages; taking it in one piece");
                    listed = Listed { items: Vec::new(), unreadable: HashSet::new() };
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
            listed.items.extend(page.items);
            if page.r#continue.is_empty() {
                self.take(listed);
                return Ok(Position::At { resource_version: page.resource_version, stream: None });
            }
            query = format!("?limit={}&continue={}", self.options.page_size, segment(&page.r#continue));
        }
    }

    fn note(&self, malformed: Malformed, listed: &mut Listed<T>) {
        self.unreadable(&malformed);
        listed.unreadable.extend(malformed.key);
    }

    fn take(&mut self, listed: Listed<T>) {
        self.cache.replace(listed.items, &listed.unreadable);
        self.broken_streams = 0;
        self.listed = Some(Instant::now());
        self.metrics.relisted(T::RESOURCE);
        self.metrics.heard(T::RESOURCE, self.cache.len());
    }
}

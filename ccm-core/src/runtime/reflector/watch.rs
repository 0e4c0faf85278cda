use std::time::Duration;

use http::{Method, StatusCode};
use rand::RngExt as _;
use tokio::time::Instant;

use super::{
    Position, Reflector,
    decode::Watched,
    failure::Failure,
    frames::{Event, Frames, StreamError},
};
use crate::{
    percent::encode,
    runtime::api::{ACCEPT_WATCH, ApiError, ApiRequest, Target, status::Status},
};

/// A watch that ends sooner than this without a word did not work, whatever its status was.
const SHORTEST: Duration = Duration::from_secs(1);

/// How long ago a list must be to be repeated without a pause.
const LISTED_LATELY: Duration = Duration::from_secs(10);

impl<T: Watched> Reflector<T> {
    /// Follows one watch to its end and tells where to go on.
    pub(super) async fn watch(&mut self, resource_version: String, stream: Option<Frames>) -> Position {
        let started = Instant::now();
        let mut at = resource_version;
        let before = at.clone();
        let end = match stream {
            Some(stream) => self.consume(stream, &mut at).await,
            None => self.resume(&mut at).await,
        };
        match end {
            Err(failure) if failure.loses_position() => {
                let reason = super::chain(&failure);
                tracing::info!(resource = T::RESOURCE, reason, "cannot resume the watch; listing everything");
                // An expiry is worth one list at once. After a list that is just over, or for any other answer, the same
                // may come again and again.
                if !failure.is_expiry() || self.listed.is_some_and(|t| t.elapsed() < LISTED_LATELY) {
                    self.pause(&failure).await;
                }
                return Position::Lost;
            }
            // A server that asks to wait, or denies, or cannot be reached.
            Err(failure @ Failure::Api(_)) => self.pause(&failure).await,
            Err(failure) if started.elapsed() < SHORTEST && at == before => self.pause(&failure).await,
            Err(failure) => {
                let reason = super::chain(&failure);
                tracing::debug!(resource = T::RESOURCE, reason, "opening the watch again");
            }
            Ok(()) if started.elapsed() < SHORTEST && at == before => self.pause(&Failure::TooShort).await,
            Ok(()) => {}
        }
        self.metrics.restarted(T::RESOURCE);
        Position::At { resource_version: at, stream: None }
    }

    async fn resume(&mut self, at: &mut String) -> Result<(), Failure> {
        let stream = self.open(&format!("&resourceVersion={}", encode(at))).await?;
        self.consume(stream, at).await
    }

    /// Opens a watch.
    pub(super) async fn open(&self, query: &str) -> Result<Frames, Failure> {
        // As client-go: spread, so that watches opened together do not end together.
        let seconds = rand::rng().random_range(300..600);
        let path = format!("{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}{query}", T::PATH);
        let (encoding, body) = self.client.open(ApiRequest::get(path).accept(ACCEPT_WATCH)).await?;
        Ok(Frames::new(encoding, body))
    }

    /// Waits for the next event, not longer than a watch may be silent. `None` when the server ended the watch.
    pub(super) async fn next(&self, stream: &mut Frames, idle: Duration) -> Result<Option<Event<T>>, Failure> {
        let frame = tokio::time::timeout(idle, stream.next()).await.map_err(|_| Failure::Silent(idle))??;
        let Some(frame) = frame else { return Ok(None) };
        let event = self.cache.decoder().event(stream.encoding(), &frame).map_err(StreamError::from)?;
        self.metrics.heard(T::RESOURCE, self.cache.len());
        Ok(Some(event))
    }

    /// Puts the events of a watch into the cache, keeping `at` at the last one.
    async fn consume(&mut self, mut stream: Frames, at: &mut String) -> Result<(), Failure> {
        while let Some(event) = self.next(&mut stream, self.options.idle).await? {
            match event {
                Event::Applied(object) => {
                    self.advance(at, object.resource_version())?;
                    self.cache.apply(object);
                }
                Event::Deleted(gone) => {
                    self.advance(at, &gone.resource_version)?;
                    self.cache.remove(&gone.key, &gone.uid);
                }
                Event::Bookmark { resource_version, .. } => self.advance(at, &resource_version)?,
                Event::Failed(status) => return Err(Self::failed(status)),
                Event::Unreadable(malformed) => self.unreadable(&malformed),
                Event::Unknown(kind) => self.cache.decoder().report("", "watch event type", &kind),
            }
            self.metrics.heard(T::RESOURCE, self.cache.len());
        }
        Ok(())
    }

    /// Moves on to a newer resource version.
    fn advance(&mut self, at: &mut String, to: &str) -> Result<(), Failure> {
        self.newest.advance(to)?;
        if !to.is_empty() {
            to.clone_into(at);
        }
        Ok(())
    }

    /// Makes the error for an ERROR event.
    pub(super) fn failed(status: Status) -> Failure {
        let code = status.code.and_then(|c| StatusCode::from_u16(c).ok()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let target = Target::of(&Method::GET, &format!("{}?watch=true", T::PATH));
        ApiError::answered(target, code, status, None, false).into()
    }
}

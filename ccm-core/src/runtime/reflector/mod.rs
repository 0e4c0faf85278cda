//! Keeps a [`Cache`] equal to what the API server has: list, watch, and recovery from everything that can go wrong with
//! either.
//!
//! # What is guaranteed
//!
//! - *Lists are consistent reads.* They never ask for `resourceVersion=0`, so no API server answers from a cache that lags
//!   behind what another one has shown before a fail-over. After a list the cache is at least as new as the moment at
//!   which the list was asked for.
//! - *A watch continues where the last event or bookmark was*, at whichever API server: everything since is sent, or 410
//!   is answered, which leads to a new list.
//! - *The cache never goes back* behind the newest resource version that it has had. A list or an event that is older
//!   leads to another list; only when five lists in a row are older, over half a minute to a minute, are they believed:
//!   then etcd was restored from a backup, and what the server has now is the truth. (Resource versions are compared as
//!   numbers, which the API guarantees since 1.35 and etcd always did; versions that are no numbers are not compared.)
//! - *Silence is noticed.* A watch on which nothing arrives for [`ReflectorOptions::watch_idle_timeout`], no bookmark either (the server
//!   sends one a minute), is opened again. The server ends each watch after a random 5 to 10 minutes.
//! - *Failures back off* from 0.8 s to 30 s with jitter, and never end the reflector, save when the very first list does
//!   not arrive within [`ReflectorOptions::first_sync`]. A server that denies access has answered: that time does not count,
//!   because no restart grants a right.

mod backoff;
mod endpoint_slice;
mod error;
mod list;
mod metrics;
mod node;
mod resource_version;
mod service;
#[cfg(test)]
pub(crate) mod tests;
mod watch;
pub(crate) mod watch_stream;

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use metrics::CacheMetrics;

use self::{
    backoff::ReflectorBackoff, error::ReflectorError, resource_version::LatestResourceVersion,
    watch_stream::WatchStream,
};
use super::{
    api::ApiClient,
    cache::Cache,
    encoding::{CachedObject, decode},
};
use crate::error::chain;

/// How often a denial that lasts is told again.
const DENIAL_LOG_INTERVAL: Duration = Duration::from_secs(600);
const DENIED: &str = "the API server denies access to a watched resource; trying again";

/// How a [`Reflector`] behaves.
#[derive(Clone, Debug)]
pub struct ReflectorOptions {
    /// Objects per page of a list, where the server does not stream lists. Default 500, as in client-go.
    pub page_size: u32,
    /// Whether to ask for streaming lists (`sendInitialEvents`) at all. Default true; a server that refuses them is asked
    /// once.
    pub streaming: bool,
    /// How long the first complete list may take, retries included, before [`Reflector::run`] fails. Default five minutes:
    /// longer than an API server takes to start, short enough for an orchestrator to show the restarts.
    pub first_sync: Duration,
    /// Whether time in which the server denied access counts towards that limit. Default false; a process whose end is
    /// waited for sets it.
    pub count_denials: bool,
    /// How long a watch may be silent. Default 150 s: two bookmarks of the server and some.
    pub watch_idle_timeout: Duration,
}

impl Default for ReflectorOptions {
    fn default() -> Self {
        let (first_sync, idle) = (Duration::from_secs(300), Duration::from_secs(150));
        Self { page_size: 500, streaming: true, first_sync, count_denials: false, watch_idle_timeout: idle }
    }
}

/// The first complete list did not arrive in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot list {resource}: not complete after {after:?}, last failure: {last}")]
pub struct FirstSyncTimedOut {
    /// Resource.
    pub resource: &'static str,
    /// How long it was tried.
    pub after: Duration,
    /// The last failure with its causes.
    pub last: String,
}

/// Fills a cache. RBAC: `list` and `watch` on the resource.
pub struct Reflector<T: CachedObject> {
    client: ApiClient,
    cache: Cache<T>,
    options: ReflectorOptions,
    metrics: CacheMetrics,
    backoff: ReflectorBackoff,
    last_failure: Option<String>,
    /// What was last said of a denial, and when.
    last_denial: Option<(String, Instant)>,
    /// Whether the server may do streaming lists.
    streaming: bool,
    /// Streaming lists that broke since the last complete one.
    broken_streams: u32,
    latest: LatestResourceVersion,
    /// Lists in a row that were older than that.
    stale_lists: u32,
    /// When the last complete list was taken.
    last_list: Option<Instant>,
}

/// Where the reflector stands.
enum ListPosition {
    /// Everything has to be listed.
    Relist,
    /// Everything up to the resource version is in the cache; the stream, if any, goes on from there.
    At { resource_version: String, stream: Option<WatchStream> },
}

impl<T: CachedObject> Reflector<T> {
    /// Makes a reflector that fills `cache` through `client`. One cache has one reflector.
    pub fn new(client: ApiClient, cache: Cache<T>, options: ReflectorOptions, metrics: CacheMetrics) -> Self {
        let streaming = options.streaming;
        Self {
            client,
            cache,
            options,
            metrics,
            backoff: ReflectorBackoff::new(),
            last_failure: None,
            last_denial: None,
            streaming,
            broken_streams: 0,
            latest: LatestResourceVersion::default(),
            stale_lists: 0,
            last_list: None,
        }
    }

    /// Follows the resource until `shutdown`. The caller spawns this and treats an early end as the end of the process.
    ///
    /// # Errors
    /// [`FirstSyncTimedOut`]; nothing else ends it.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), FirstSyncTimedOut> {
        shutdown.run_until_cancelled(self.list_and_watch()).await.unwrap_or(Ok(()))
    }

    async fn list_and_watch(&mut self) -> Result<(), FirstSyncTimedOut> {
        let started = Instant::now();
        let mut position = self.first_sync().await?;
        tracing::info!(resource = T::RESOURCE, objects = self.cache.len(), took = ?started.elapsed(), "cache filled");
        loop {
            position = match position {
                ListPosition::Relist => self.relist().await,
                ListPosition::At { resource_version, stream } => self.watch(resource_version, stream).await,
            };
        }
    }

    /// Lists until it works or lasts too long.
    async fn first_sync(&mut self) -> Result<ListPosition, FirstSyncTimedOut> {
        let after = self.options.first_sync;
        let mut deadline = Instant::now() + after;
        loop {
            let began = Instant::now();
            let attempt = tokio::time::timeout_at(deadline, self.list()).await;
            let waited = match attempt {
                Ok(Ok(position)) => return Ok(position),
                Ok(Err(failure)) if failure.is_forbidden() && !self.options.count_denials => {
                    self.back_off(&failure).await;
                    deadline += began.elapsed();
                    Ok(())
                }
                Ok(Err(failure)) => tokio::time::timeout_at(deadline, self.back_off(&failure)).await,
                Err(late) => Err(late),
            };
            if waited.is_err() {
                let last = self.last_failure.take().unwrap_or_else(|| "no answer".to_owned());
                return Err(FirstSyncTimedOut { resource: T::RESOURCE, after, last });
            }
        }
    }

    /// Lists until it works.
    async fn relist(&mut self) -> ListPosition {
        loop {
            match self.list().await {
                Ok(position) => return position,
                Err(failure) => self.back_off(&failure).await,
            }
        }
    }

    /// Reports a failure and waits before the next attempt.
    async fn back_off(&mut self, failure: &ReflectorError) {
        let wait = self.backoff.failure(failure.retry_after());
        let error = chain(failure);
        if failure.is_forbidden() {
            self.log_denial(&error, wait);
        } else {
            tracing::warn!(resource = T::RESOURCE, error, ?wait, "cannot follow a resource; trying again");
        }
        self.last_failure = Some(error);
        tokio::time::sleep(wait).await;
    }

    /// Reports that a person has to grant a right: when that begins, when it changes, and seldom in between.
    fn log_denial(&mut self, error: &str, wait: Duration) {
        let known = |(told, at): &(String, Instant)| told == error && at.elapsed() < DENIAL_LOG_INTERVAL;
        if self.last_denial.as_ref().is_some_and(known) {
            tracing::debug!(resource = T::RESOURCE, error, ?wait, "{DENIED}");
            return;
        }
        tracing::error!(resource = T::RESOURCE, error, ?wait, "{DENIED}");
        self.last_denial = Some((error.to_owned(), Instant::now()));
    }

    /// Reports an object that cannot be read.
    fn log_unreadable(&self, malformed: &decode::UnreadableObject) {
        self.metrics.unreadable(T::RESOURCE);
        let object = malformed.key.as_deref().unwrap_or_default();
        let error = chain(&malformed.error);
        tracing::error!(resource = T::RESOURCE, object, error, "cannot read an object; its last readable state stays");
    }
}

//! The reflector, which keeps a [`Cache`] equal to the objects on the API server. It lists and
//! watches them, and recovers from every error.
//!
//! # Guarantees
//!
//! - *Lists are consistent reads.* They never request `resourceVersion=0`, so no API server answers
//!   from a cache that is older than what another one returned before a fail-over. After a list the
//!   cache is at least as new as the time at which the list was requested.
//! - *A watch continues after the last event or bookmark*, on any API server. The server sends all
//!   later events, or answers 410, which leads to a new list.
//! - *The cache never goes back* to an older resource version. An older list or event leads to
//!   another list. If five lists in a row are older, which takes half a minute to a minute, the last
//!   of them is accepted, because etcd must have been restored from a backup. Resource versions are
//!   compared as numbers, which the API guarantees since 1.35 and which etcd always used. Versions
//!   that are not numbers are not compared.
//! - *Silence is detected.* A watch on which nothing arrives for
//!   [`ReflectorOptions::watch_idle_timeout`], not even a bookmark (the server sends one per
//!   minute), is opened again. The server ends each watch after a random 5 to 10 minutes.
//! - *Failures back off* from 0.8 s to 30 s with jitter. They never end the reflector, except when
//!   the very first list does not arrive within [`ReflectorOptions::first_sync`]. By default the
//!   time in which the server denies access does not count, because the server is reachable and a
//!   restart would not grant a permission.

mod backoff;
mod error;
mod list;
mod metrics;
mod resource_version;
#[cfg(test)]
pub(crate) mod tests;
mod watch;
pub(crate) mod watch_stream;

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
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

/// The interval at which persistent denial of access is logged again.
const DENIAL_LOG_INTERVAL: Duration = Duration::from_secs(600);
const DENIED: &str = "the API server denies access to a watched resource, retrying";

/// The options of a [`Reflector`].
#[derive(Clone, Debug)]
pub struct ReflectorOptions {
    /// The number of objects in one page of a list, if the server does not stream lists. Default
    /// 500, as in client-go.
    pub page_size: u32,
    /// True if streaming lists (`sendInitialEvents`) are requested. Default true. If the server
    /// rejects one, no more are requested.
    pub streaming: bool,
    /// The timeout of the first complete list, including retries, after which [`Reflector::run`]
    /// fails. The default of five minutes is longer than the start of an API server takes.
    pub first_sync: Duration,
    /// True if the time in which the server denies access counts towards `first_sync`. Default
    /// false. Set for a run that must end by itself, such as a single comparison.
    pub count_denials: bool,
    /// The idle timeout of a watch. The default of 150 s is more than two intervals of the server's
    /// bookmarks.
    pub watch_idle_timeout: Duration,
}

impl Default for ReflectorOptions {
    fn default() -> Self {
        let first_sync = Duration::from_secs(300);
        let idle = Duration::from_secs(150);
        Self {
            page_size: 500,
            streaming: true,
            first_sync,
            count_denials: false,
            watch_idle_timeout: idle,
        }
    }
}

/// The error of a first complete list that did not arrive in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot list {resource}: not complete after {after:?}, last failure: {last}")]
pub struct FirstSyncTimedOut {
    /// The resource.
    pub resource: &'static str,
    /// The timeout.
    pub after: Duration,
    /// The last error with its causes.
    pub last: String,
}

/// Fills a cache and keeps it up to date. RBAC: `list` and `watch` on the resource.
pub struct Reflector<T: CachedObject> {
    client: ApiClient,
    cache: Cache<T>,
    options: ReflectorOptions,
    metrics: CacheMetrics,
    backoff: ReflectorBackoff,
    last_failure: Option<String>,
    /// The last logged error about denied access, and the time when it was logged.
    last_denial: Option<(String, Instant)>,
    /// True unless the server has rejected streaming lists, or the options disable them.
    streaming: bool,
    /// The number of streaming lists that broke since the last complete list.
    broken_streams: u32,
    latest: LatestResourceVersion,
    /// The number of lists in a row that were older than `latest`.
    stale_lists: u32,
    /// The time when the last complete list was stored.
    last_list: Option<Instant>,
}

/// The point from which the reflector continues.
enum ListPosition {
    /// The start: list everything again.
    Relist,
    /// A resource version: watch from there, because the cache contains everything up to it. A
    /// stream that is already open continues there.
    At { resource_version: String, stream: Option<WatchStream> },
}

impl<T: CachedObject> Reflector<T> {
    /// Creates a reflector that fills `cache` through `client`. Each cache must have only one
    /// reflector.
    pub fn new(
        client: ApiClient,
        cache: Cache<T>,
        options: ReflectorOptions,
        metrics: CacheMetrics,
    ) -> Self {
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

    /// Lists and watches the resource until `shutdown` is cancelled. The caller should spawn this
    /// as a task, and end the process if it returns earlier.
    ///
    /// # Errors
    /// Returns [`FirstSyncTimedOut`]. No other error ends the reflector.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), FirstSyncTimedOut> {
        shutdown
            .run_until_cancelled(self.list_and_watch())
            .await
            .unwrap_or(Ok(()))
    }

    async fn list_and_watch(&mut self) -> Result<(), FirstSyncTimedOut> {
        let started = Instant::now();
        let mut position = self.first_sync().await?;
        tracing::info!(resource = T::RESOURCE, objects = self.cache.len(), took = ?started.elapsed(), "cache filled");
        loop {
            position = match position {
                ListPosition::Relist => self.relist().await,
                ListPosition::At { resource_version, stream } => {
                    self.watch(resource_version, stream).await
                }
            };
        }
    }

    /// Retries the list until it succeeds or the timeout of the first list is over.
    async fn first_sync(&mut self) -> Result<ListPosition, FirstSyncTimedOut> {
        let mut deadline = Instant::now() + self.options.first_sync;
        loop {
            let began = Instant::now();
            let failure = match timeout_at(deadline, self.list()).await {
                Ok(Ok(position)) => return Ok(position),
                Ok(Err(failure)) => failure,
                Err(_) => return Err(self.first_sync_timed_out()),
            };
            if failure.is_forbidden() && !self.options.count_denials {
                // The time in which access is denied does not count.
                self.back_off(&failure).await;
                deadline += began.elapsed();
            } else if timeout_at(deadline, self.back_off(&failure)).await.is_err() {
                return Err(self.first_sync_timed_out());
            }
        }
    }

    fn first_sync_timed_out(&mut self) -> FirstSyncTimedOut {
        let last = self
            .last_failure
            .take()
            .unwrap_or_else(|| "no answer".to_owned());
        FirstSyncTimedOut { resource: T::RESOURCE, after: self.options.first_sync, last }
    }

    /// Retries the list until it succeeds.
    async fn relist(&mut self) -> ListPosition {
        loop {
            match self.list().await {
                Ok(position) => return position,
                Err(failure) => self.back_off(&failure).await,
            }
        }
    }

    /// Logs a failure and waits before the next attempt.
    async fn back_off(&mut self, failure: &ReflectorError) {
        let wait = self.backoff.failure(failure.retry_after());
        let error = chain(failure);
        if failure.is_forbidden() {
            self.log_denial(&error, wait);
        } else {
            tracing::warn!(
                resource = T::RESOURCE,
                error,
                ?wait,
                "could not list or watch a resource, retrying"
            );
        }
        self.last_failure = Some(error);
        tokio::time::sleep(wait).await;
    }

    /// Logs that access is denied, which only a person can fix. The log level is error at first,
    /// when the message changes and every 10 minutes, and debug otherwise.
    fn log_denial(&mut self, error: &str, wait: Duration) {
        if let Some((last_error, logged_at)) = &self.last_denial
            && last_error == error
            && logged_at.elapsed() < DENIAL_LOG_INTERVAL
        {
            tracing::debug!(resource = T::RESOURCE, error, ?wait, "{DENIED}");
            return;
        }
        tracing::error!(resource = T::RESOURCE, error, ?wait, "{DENIED}");
        self.last_denial = Some((error.to_owned(), Instant::now()));
    }

    /// Logs an object that cannot be decoded.
    fn log_unreadable(&self, malformed: &decode::UnreadableObject) {
        self.metrics.unreadable(T::RESOURCE);
        let object = malformed.key.as_deref().unwrap_or_default();
        let error = chain(&malformed.error);
        tracing::error!(
            resource = T::RESOURCE,
            object,
            error,
            "could not decode an object; its last decoded state is kept"
        );
    }
}

//! What the connections of a listener share.

use std::{
    any::Any,
    fmt,
    net::{IpAddr, SocketAddr},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::FutureExt as _;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    config::{ListenerConfig, ListenerId},
    pool::Pool,
    relay::Traffic,
    report::Counters,
};

/// Delay between a panic and the next try: short enough to go unnoticed, long enough not to spin.
const PAUSE: Duration = Duration::from_millis(20);

/// A listener, as its connections use it.
#[derive(Debug)]
pub(super) struct Frontend {
    id: ListenerId,
    settings: watch::Sender<Arc<Settings>>,
    /// Open connections, and those that are about to be accepted.
    places: AtomicU64,
    active: AtomicU64,
    total: AtomicU64,
    refused: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    errors: AtomicU64,
    panics: AtomicU64,
    /// Notified when there may be room for another connection.
    room: Notify,
    /// The listener is being closed: tasks that wait for more work have to end.
    pub(super) stop: CancellationToken,
    /// Ends every connection.
    pub(super) kill: CancellationToken,
    /// Tracks the tasks of the connections.
    pub(super) tasks: TaskTracker,
}

/// Settings of a listener at one time. A connection keeps those that it began with.
pub(super) struct Settings {
    /// Its pool is removed: `pool` is used instead.
    pub(super) config: ListenerConfig,
    pub(super) pool: Option<Arc<Pool>>,
    /// Accepts TLS from clients.
    pub(super) tls: Option<TlsAcceptor>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("config", &self.config)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Returns whether this client may connect.
    pub(super) fn admits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        self.config.allowed_cidrs.is_empty()
            || self
                .config
                .allowed_cidrs
                .iter()
                .any(|cidr| cidr.contains(&client))
    }
}

impl Frontend {
    /// Creates it. `tasks` tracks what is spawned.
    pub(super) fn new(
        id: ListenerId,
        settings: Settings,
        stop: CancellationToken,
        kill: CancellationToken,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            id,
            settings: watch::Sender::new(Arc::new(settings)),
            places: AtomicU64::new(0),
            active: AtomicU64::new(0),
            total: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            room: Notify::new(),
            stop,
            kill,
            tasks,
        }
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        self.settings.borrow().clone()
    }

    /// Returns a receiver for the settings and their changes.
    pub(super) fn watch(&self) -> watch::Receiver<Arc<Settings>> {
        self.settings.subscribe()
    }

    pub(super) fn set(&self, settings: Settings) {
        self.settings.send_replace(Arc::new(settings));
    }

    /// Takes a permit for a connection; `None` while the limit is reached.
    pub(super) fn acquire(self: &Arc<Self>, settings: &Settings) -> Option<ConnectionPermit> {
        let limit = settings.config.connection_limit.map_or(u64::MAX, u64::from);
        let taken = self
            .places
            .fetch_update(Relaxed, Relaxed, |taken| (taken < limit).then_some(taken + 1));
        taken.is_ok().then(|| ConnectionPermit(self.clone()))
    }

    /// Waits until it makes sense to try [`acquire`](Self::acquire) again, unless the settings
    /// change before.
    pub(super) async fn wait_for_capacity(&self) {
        self.room.notified().await;
    }

    /// Waits for `task`, which is one of this listener's. If it panics, that is logged and counted,
    /// and the result is `None`.
    pub(super) async fn guard<T>(
        &self,
        doing: &'static str,
        task: impl Future<Output = T>,
    ) -> Option<T> {
        // The task's own state is dropped with it; what is shared are counters and data under
        // locks.
        AssertUnwindSafe(task)
            .catch_unwind()
            .await
            .map_err(|panic| self.panicked(doing, &*panic))
            .ok()
    }

    /// Runs a task of this listener, and restarts it after each panic, so that its port is always
    /// served.
    pub(super) async fn keep<T: Future>(&self, doing: &'static str, start: impl Fn() -> T) {
        while self.guard(doing, start()).await.is_none() {
            sleep(PAUSE).await;
        }
    }

    fn panicked(&self, doing: &'static str, panic: &(dyn Any + Send)) {
        self.panics.fetch_add(1, Relaxed);
        self.error();
        tracing::error!(listener = %self.id, doing, panic = message(panic), "a task of a listener has panicked");
    }

    /// Counts a client that may not connect.
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Counts a connection or request that no member accepted, or that was invalid.
    pub(super) fn error(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    pub(super) fn counters(&self) -> Counters {
        Counters {
            active_connections: self.active.load(Relaxed),
            total_connections: self.total.load(Relaxed),
            refused_connections: self.refused.load(Relaxed),
            bytes_in: self.bytes_in.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            request_errors: self.errors.load(Relaxed),
            panics: self.panics.load(Relaxed),
        }
    }
}

impl Traffic for Frontend {
    fn received(&self, bytes: u64) {
        self.bytes_in.fetch_add(bytes, Relaxed);
    }

    fn sent(&self, bytes: u64) {
        self.bytes_out.fetch_add(bytes, Relaxed);
    }
}

/// Returns the message of a panic.
pub(super) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// A permit for a connection, returned when dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit(Arc<Frontend>);

impl ConnectionPermit {
    /// Counts a connection until the returned value is dropped.
    pub(super) fn open(self) -> OpenConnection {
        self.0.active.fetch_add(1, Relaxed);
        self.0.total.fetch_add(1, Relaxed);
        OpenConnection(self)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.places.fetch_sub(1, Relaxed);
        self.0.room.notify_one();
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) struct OpenConnection(ConnectionPermit);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.active.fetch_sub(1, Relaxed);
    }
}

/// Both ends of a client's connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Endpoints {
    /// The client.
    pub(super) client: SocketAddr,
    /// Where it connected to.
    pub(super) local: SocketAddr,
}

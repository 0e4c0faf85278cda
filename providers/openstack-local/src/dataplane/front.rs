//! What the connections of a listener share.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{config::ListenerConfig, pool::Pool, relay::Traffic, report::Counters};

/// A listener from the side of its connections.
#[derive(Debug)]
pub(super) struct Front {
    settings: RwLock<Arc<Settings>>,
    active: AtomicU64,
    total: AtomicU64,
    refused: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    errors: AtomicU64,
    /// Rings when there may be room for another connection.
    room: Notify,
    /// The listener is going: what waits for more to do is to end.
    pub(super) stop: CancellationToken,
    /// Ends every connection.
    pub(super) kill: CancellationToken,
    /// Owns the tasks of the connections.
    pub(super) tasks: TaskTracker,
}

/// What was asked of a listener at one time. A connection keeps what it began with.
pub(super) struct Settings {
    /// The pool in it is left out: `pool` is what counts.
    pub(super) config: ListenerConfig,
    pub(super) pool: Option<Arc<Pool>>,
    /// Speaks TLS with clients.
    pub(super) tls: Option<TlsAcceptor>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("config", &self.config).field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Settings {
    /// Whether this client may connect.
    pub(super) fn admits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        self.config.allowed_cidrs.is_empty() || self.config.allowed_cidrs.iter().any(|cidr| cidr.contains(&client))
    }
}

impl Front {
    pub(super) fn new(
        settings: Settings,
        stop: CancellationToken,
        kill: CancellationToken,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            settings: RwLock::new(Arc::new(settings)),
            active: AtomicU64::new(0),
            total: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            room: Notify::new(),
            stop,
            kill,
            tasks,
        }
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    pub(super) fn set(&self, settings: Settings) {
        *self.settings.write() = Arc::new(settings);
        self.room.notify_one();
    }

    /// Whether another connection may be open.
    pub(super) fn has_room(&self) -> bool {
        let limit = self.settings.read().config.connection_limit;
        limit.is_none_or(|limit| self.active.load(Relaxed) < u64::from(limit))
    }

    /// Waits until another connection may be open. One task waits at a time.
    pub(super) async fn room(&self) {
        while !self.has_room() {
            self.room.notified().await;
        }
    }

    /// Counts a connection until what is returned is dropped.
    pub(super) fn open(self: &Arc<Self>) -> Open {
        self.active.fetch_add(1, Relaxed);
        self.total.fetch_add(1, Relaxed);
        Open(self.clone())
    }

    /// Counts a client that may not connect.
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Counts a connection or request that no member took, or that was none.
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
        }
    }
}

impl Traffic for Front {
    fn received(&self, bytes: u64) {
        self.bytes_in.fetch_add(bytes, Relaxed);
    }

    fn sent(&self, bytes: u64) {
        self.bytes_out.fetch_add(bytes, Relaxed);
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) struct Open(Arc<Front>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Relaxed);
        self.0.room.notify_one();
    }
}

/// A client as its connection saw it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    /// The client.
    pub(super) client: SocketAddr,
    /// Where it connected to.
    pub(super) local: SocketAddr,
}

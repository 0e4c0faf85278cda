//! Load balancers that carry traffic: the desired state goes in as plain data, and sockets are
//! opened and closed.
//!
//! Whenever something about a load balancer changes, a [`DataPlane`] gets its complete
//! [`LoadBalancerConfig`]. It compares that with what runs and changes only what differs:
//! connections of other listeners, and those of a listener whose settings change, continue. This
//! module depends on nothing else in the crate.
//!
//! What happens to connections:
//! - A member that is removed, disabled, set to weight 0 or found unhealthy gets no new connections
//!   and keeps those that it has. After its removal they are closed when [`Options::drain`] has
//!   passed, unless it has been added again by then. UDP flows move to another member at once,
//!   except at weight 0.
//! - A listener that is removed, or whose address or protocol changes, closes its socket before
//!   [`DataPlane::apply`] returns; its connections have the same time to end.
//! - [`DataPlane::remove`] and [`DataPlane::shutdown`] close everything at once, because the
//!   address itself is removed.
//!
//! An open connection keeps the timeouts with which it began.

pub mod config;
mod frontend;
mod http;
mod load_balancer;
mod monitor;
mod plan;
mod pool;
mod proxy;
mod relay;
pub mod report;
mod scratch;
mod session_persistence;
mod tcp;
mod tls;
mod udp;
mod workers;

use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc, thread, time::Duration};

use parking_lot::RwLock;
use tokio::sync::{Mutex, watch};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub use self::{
    config::{
        Algorithm, BalancerId, ExpectedCodes, ExpectedCodesError, HttpCheck, InsertHeaders,
        ListenerConfig, ListenerId, ListenerProtocol, LoadBalancerConfig, MemberConfig, MemberId,
        MonitorConfig, MonitorKind, Persistence, PoolConfig, PoolId, PoolProtocol, Timeouts,
        TlsConfig,
    },
    report::{
        Counters, ListenError, ListenErrorKind, ListenerReport, ListenerState, LoadBalancerReport,
        MemberReport, MemberState, PoolReport,
    },
};
use self::{
    load_balancer::{Env, LoadBalancer},
    workers::Workers,
};

/// Settings of a [`DataPlane`], independent of its load balancers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How long connections may continue after their member or listener was removed. 300 s, as with
    /// other load balancers.
    pub drain: Duration,
    /// Number of threads that carry connections; they start when the first listener does. As many
    /// as the machine has cores available.
    pub workers: NonZeroUsize,
}

impl Default for Options {
    fn default() -> Self {
        let workers = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self { drain: Duration::from_secs(300), workers }
    }
}

/// Load balancers, and the tasks and sockets that they are made of.
///
/// Must be used within a tokio runtime, on which members are checked; connections are carried by
/// its own [threads](Options::workers). Dropping it ends everything at once;
/// [`shutdown`](Self::shutdown) also waits until everything has ended.
#[derive(Debug)]
pub struct DataPlane {
    env: Env,
    /// Held during a change: one at a time.
    changing: Mutex<()>,
    /// Replaced one load balancer at a time, so that reports never wait.
    balancers: RwLock<BTreeMap<BalancerId, Arc<LoadBalancer>>>,
    _stop: DropGuard,
}

impl Default for DataPlane {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl DataPlane {
    /// Creates a data plane without load balancers.
    pub fn new(options: Options) -> Self {
        let stop = CancellationToken::new();
        let workers = Workers::new(options.workers, stop.clone());
        let tasks = TaskTracker::new();
        let announcer = ChangeNotifier::default();
        let env = Env { options, tasks, stop: stop.clone(), announcer, workers };
        Self {
            env,
            changing: Mutex::default(),
            balancers: RwLock::default(),
            _stop: stop.drop_guard(),
        }
    }

    /// Brings a load balancer to the state in `config`, and returns its report after that.
    ///
    /// When this returns, every listener of the report listens or has
    /// [failed](ListenerState::Failed), and nothing listens any more where it should not. A failed
    /// listener does not stop any other. Idempotent: applying the same again changes nothing,
    /// except that failed listeners are tried again.
    ///
    /// # Cancellation
    /// If it is dropped before it is ready, listeners to be removed are closed, and new ones may be
    /// missing; apply again.
    pub async fn apply(&self, config: &LoadBalancerConfig) -> LoadBalancerReport {
        let _one = self.changing.lock().await;
        let old = self.balancers.read().get(&config.id).cloned();
        let before = old.as_ref().map(|old| old.report().without_counters());
        let (kept, gone) = LoadBalancer::split_listeners(old.as_deref(), config, &self.env);
        if !gone.is_empty() {
            self.balancers
                .write()
                .insert(config.id.clone(), Arc::new(kept.clone()));
            load_balancer::close(&gone, &self.env);
            load_balancer::closed(&gone).await;
        }
        let (new, gone) = kept.start_listeners(config, &self.env);
        let new = Arc::new(new);
        self.balancers.write().insert(new.id().clone(), new.clone());
        let report = new.report();
        if before != Some(report.clone().without_counters()) {
            self.env.announcer.announce();
        }
        load_balancer::closed(&gone).await;
        report
    }

    /// Removes a load balancer with its sockets and connections. Returns whether there was one.
    ///
    /// # Cancellation
    /// If it is dropped before it is ready, everything is still being closed.
    pub async fn remove(&self, id: &BalancerId) -> bool {
        let _one = self.changing.lock().await;
        let Some(balancer) = self.balancers.write().remove(id) else {
            return false;
        };
        self.env.announcer.announce();
        balancer.kill().await;
        true
    }

    /// Returns the existing load balancers.
    pub fn balancers(&self) -> Vec<BalancerId> {
        self.balancers.read().keys().cloned().collect()
    }

    /// Returns the current report of a load balancer; `None` when it does not exist. Never waits.
    pub fn report(&self, id: &BalancerId) -> Option<LoadBalancerReport> {
        let balancer = self.balancers.read().get(id).cloned();
        balancer.map(|balancer| balancer.report())
    }

    /// Returns a number that changes whenever a report differs in more than its counters; then read
    /// the [reports](Self::report).
    ///
    /// The number has no other meaning.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.env.announcer.0.subscribe()
    }

    /// Closes everything and waits for every task to end. After that, [`apply`](Self::apply) fails
    /// with [`ListenErrorKind::Stopped`].
    ///
    /// # Cancellation
    /// If it is dropped before it is ready, everything still ends, but nobody waits for it.
    pub async fn shutdown(&self) {
        self.env.stop.cancel();
        let _one = self.changing.lock().await;
        self.balancers.write().clear();
        self.env.announcer.announce();
        self.env.tasks.close();
        self.env.tasks.wait().await;
        self.env.workers.ended().await;
    }
}

/// Notifies readers of reports that something has changed.
#[derive(Debug, Clone)]
struct ChangeNotifier(Arc<watch::Sender<u64>>);

impl Default for ChangeNotifier {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl ChangeNotifier {
    fn announce(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests;

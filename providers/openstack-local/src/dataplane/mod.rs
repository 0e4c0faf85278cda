//! Load balancers that carry traffic: what is wanted as plain data in, sockets out.
//!
//! A [`DataPlane`] is given a [`LoadBalancerConfig`] per balancer, whole, each time something about it changes. It compares that
//! with what runs and touches what differs: connections of other listeners, and those of a listener whose settings change,
//! go on. Nothing else of this crate is known here.
//!
//! What happens to connections:
//! - A member that is removed, disabled, given weight 0 or found unwell gets no new ones and keeps those that it has; after
//!   its removal they are closed when [`Options::drain`] is over, unless it has come back by then. UDP flows move to another member at once, except at weight 0.
//! - A listener that is removed, or whose address or protocol changes, closes its socket before [`DataPlane::apply`] returns;
//!   its connections have the same time to end.
//! - [`DataPlane::remove`] and [`DataPlane::shutdown`] close everything at once: there the address itself goes away.
//!
//! A connection that is open keeps the time limits with which it began.

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
        Algorithm, BalancerId, ExpectedCodes, ExpectedCodesError, HttpCheck, InsertHeaders, ListenerConfig, ListenerId,
        ListenerProtocol, LoadBalancerConfig, MemberConfig, MemberId, MonitorConfig, MonitorKind, Persistence,
        PoolConfig, PoolId, PoolProtocol, Timeouts, TlsConfig,
    },
    report::{
        Counters, ListenError, ListenErrorKind, ListenerReport, ListenerState, LoadBalancerReport, MemberReport,
        MemberState, PoolReport,
    },
};
use self::{
    load_balancer::{Env, LoadBalancer},
    workers::Workers,
};

/// How a [`DataPlane`] works, whatever it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How long connections may go on after their member or listener was removed. 300 s, as with other load balancers.
    pub drain: Duration,
    /// Threads that carry connections; they start when something is to listen. As many as the machine runs at a time.
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
/// Must be used within a tokio runtime, on which members are checked; connections are carried by [threads](Options::workers)
/// of its own. Dropping it ends everything at once; [`shutdown`](Self::shutdown) also waits for what runs elsewhere.
#[derive(Debug)]
pub struct DataPlane {
    env: Env,
    /// One change at a time.
    changing: Mutex<()>,
    /// Replaced balancer by balancer, so that reports never wait.
    balancers: RwLock<BTreeMap<BalancerId, Arc<LoadBalancer>>>,
    _stop: DropGuard,
}

impl Default for DataPlane {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl DataPlane {
    /// One without balancers.
    pub fn new(options: Options) -> Self {
        let stop = CancellationToken::new();
        let workers = Workers::new(options.workers, stop.clone());
        let (tasks, announcer) = (TaskTracker::new(), ChangeNotifier::default());
        let env = Env { options, tasks, stop: stop.clone(), announcer, workers };
        Self { env, changing: Mutex::default(), balancers: RwLock::default(), _stop: stop.drop_guard() }
    }

    /// Makes a balancer be as `config` says, and tells how it does then.
    ///
    /// When this returns, every listener of the report listens or has [failed](ListenerState::Failed), and nothing listens
    /// any more where it should not. A listener that fails stops no other one. Idempotent: the same again changes nothing
    /// except that failed listeners are tried again.
    ///
    /// # Cancellation
    /// When dropped before it is ready, what was to go has gone and what was to come may be missing; apply again.
    pub async fn apply(&self, config: &LoadBalancerConfig) -> LoadBalancerReport {
        let _one = self.changing.lock().await;
        let old = self.balancers.read().get(&config.id).cloned();
        let before = old.as_ref().map(|old| old.report().without_counters());
        let (kept, gone) = LoadBalancer::split_listeners(old.as_deref(), config, &self.env);
        if !gone.is_empty() {
            self.balancers.write().insert(config.id.clone(), Arc::new(kept.clone()));
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

    /// Takes a balancer away, its sockets and connections with it. Returns whether there was one.
    ///
    /// # Cancellation
    /// When dropped before it is ready, everything is on its way to be closed.
    pub async fn remove(&self, id: &BalancerId) -> bool {
        let _one = self.changing.lock().await;
        let Some(balancer) = self.balancers.write().remove(id) else { return false };
        self.env.announcer.announce();
        balancer.kill().await;
        true
    }

    /// The balancers there are.
    pub fn balancers(&self) -> Vec<BalancerId> {
        self.balancers.read().keys().cloned().collect()
    }

    /// How a balancer does now; `None` when there is no such balancer. Never waits.
    pub fn report(&self, id: &BalancerId) -> Option<LoadBalancerReport> {
        let balancer = self.balancers.read().get(id).cloned();
        balancer.map(|balancer| balancer.report())
    }

    /// Changes whenever a report has become different in more than its counters: after a change, ask for the [reports](Self::report).
    ///
    /// The number means nothing but that.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.env.announcer.0.subscribe()
    }

    /// Closes everything and waits for every task to end. What is applied afterwards fails with [`ListenErrorKind::Stopped`].
    ///
    /// # Cancellation
    /// When dropped before it is ready, everything still ends, without anybody waiting.
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

/// Tells whoever looks at reports that there is something new.
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

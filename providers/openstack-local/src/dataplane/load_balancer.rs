//! A running load balancer: its listeners, and how a change affects them.

use std::{io, net::SocketAddr, sync::Arc};

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{
    ChangeNotifier, Options,
    config::{
        BalancerId, ListenerConfig, ListenerId, ListenerProtocol, LoadBalancerConfig, PoolProtocol,
    },
    frontend::{Frontend, Settings},
    http, monitor,
    pool::{Member, Pool},
    report::{
        Counters, ListenError, ListenErrorKind, ListenerReport, ListenerState, LoadBalancerReport,
    },
    tcp, tls, udp,
    workers::Workers,
};

/// What all load balancers of a data plane share.
#[derive(Debug)]
pub(super) struct Env {
    pub(super) options: Options,
    /// Owns every task.
    pub(super) tasks: TaskTracker,
    /// Ends every task.
    pub(super) stop: CancellationToken,
    pub(super) announcer: ChangeNotifier,
    /// The threads that carry connections.
    pub(super) workers: Workers,
}

/// A load balancer at one time. A change creates a new one, which shares the listeners that stay.
#[derive(Debug, Clone)]
pub(super) struct LoadBalancer {
    id: BalancerId,
    vip: std::net::IpAddr,
    listeners: Vec<Arc<Listener>>,
    /// Ends every connection, including those of removed listeners.
    kill: CancellationToken,
}

/// A listener that listens, or the reason why it does not.
#[derive(Debug)]
pub(super) struct Listener {
    id: ListenerId,
    place: ListenerAddress,
    state: Result<Serving, ListenError>,
}

/// What cannot change while a listener listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ListenerAddress {
    address: SocketAddr,
    protocol: ListenerProtocol,
}

#[derive(Debug)]
struct Serving {
    local: SocketAddr,
    front: Arc<Frontend>,
    /// Removed members that may still have connections; dropping an entry ends its draining.
    leaving: Mutex<Vec<(Arc<Member>, DropGuard)>>,
    /// Tracks the tasks that own the socket.
    socket: TaskTracker,
}

impl LoadBalancer {
    pub(super) fn id(&self) -> &BalancerId {
        &self.id
    }

    /// Divides the listeners into those that may stay under `config` and those that must be closed.
    pub(super) fn split_listeners(
        old: Option<&Self>,
        config: &LoadBalancerConfig,
        env: &Env,
    ) -> (Self, Vec<Arc<Listener>>) {
        let stays = |listener: &Arc<Listener>| {
            let wanted = config
                .listeners
                .iter()
                .find(|wanted| wanted.id == listener.id);
            listener.state.is_ok()
                && wanted
                    .is_some_and(|wanted| ListenerAddress::new(config, wanted) == listener.place)
        };
        let (listeners, gone) = old
            .map(|old| old.listeners.clone())
            .unwrap_or_default()
            .into_iter()
            .partition(stays);
        let kill = old.map_or_else(|| env.stop.child_token(), |old| old.kill.clone());
        (Self { id: config.id.clone(), vip: config.vip, listeners, kill }, gone)
    }

    /// Updates the listeners that stayed and starts the others. Also returns those that stayed but
    /// failed to update.
    pub(super) fn start_listeners(
        self,
        config: &LoadBalancerConfig,
        env: &Env,
    ) -> (Self, Vec<Arc<Listener>>) {
        let mut gone = Vec::new();
        let mut listeners = Vec::with_capacity(config.listeners.len());
        for wanted in &config.listeners {
            let place = ListenerAddress::new(config, wanted);
            let kept = self.listeners.iter().find(|kept| kept.id == wanted.id);
            let listener = match kept {
                Some(kept) => kept.update(wanted, env).map(|()| kept.clone()),
                None => Listener::start(place, wanted, &self.kill, env).map(Arc::new),
            };
            listeners.push(listener.unwrap_or_else(|error| {
                gone.extend(kept.cloned());
                tracing::warn!(balancer = %config.id, listener = %wanted.id, %error, "listener failed");
                Arc::new(Listener { id: wanted.id.clone(), place, state: Err(error) })
            }));
        }
        (Self { listeners, ..self }, gone)
    }

    pub(super) fn report(&self) -> LoadBalancerReport {
        let listeners = self
            .listeners
            .iter()
            .map(|listener| listener.report())
            .collect();
        LoadBalancerReport { id: self.id.clone(), vip: self.vip, listeners }
    }

    /// Closes every socket and connection.
    pub(super) async fn kill(&self) {
        self.kill.cancel();
        serving(&self.listeners).for_each(|serving| serving.front.stop.cancel());
        closed(&self.listeners).await;
    }
}

/// Begins to close the sockets of listeners, and lets their connections end within the drain time.
pub(super) fn close(listeners: &[Arc<Listener>], env: &Env) {
    serving(listeners).for_each(|serving| serving.shut_down(env));
}

/// Waits until their sockets are closed.
pub(super) async fn closed(listeners: &[Arc<Listener>]) {
    join_all(serving(listeners).map(Serving::closed)).await;
}

fn serving(listeners: &[Arc<Listener>]) -> impl Iterator<Item = &Serving> {
    listeners
        .iter()
        .filter_map(|listener| listener.state.as_ref().ok())
}

impl ListenerAddress {
    fn new(balancer: &LoadBalancerConfig, listener: &ListenerConfig) -> Self {
        Self {
            address: SocketAddr::new(balancer.vip, listener.port),
            protocol: listener.protocol,
        }
    }

    fn transport(self) -> &'static str {
        match self.protocol {
            ListenerProtocol::Udp => "UDP",
            ListenerProtocol::Sctp => "SCTP",
            ListenerProtocol::Tcp
            | ListenerProtocol::Http
            | ListenerProtocol::Https
            | ListenerProtocol::TerminatedHttps => "TCP",
        }
    }

    fn error(self, kind: ListenErrorKind, reason: impl Into<String>) -> ListenError {
        ListenError {
            kind,
            address: self.address,
            protocol: self.transport(),
            reason: reason.into(),
        }
    }
}

impl Listener {
    fn start(
        place: ListenerAddress,
        config: &ListenerConfig,
        balancer: &CancellationToken,
        env: &Env,
    ) -> Result<Self, ListenError> {
        if env.stop.is_cancelled() {
            return Err(place.error(ListenErrorKind::Stopped, "the data plane is shut down"));
        }
        if place.protocol == ListenerProtocol::Sctp {
            return Err(place
                .error(ListenErrorKind::Unsupported, "SCTP is not carried here; use TCP or UDP"));
        }
        let kill = balancer.child_token();
        let settings = settings(place, config, None, &[], &kill)?;
        let stop = env.stop.child_token();
        let front =
            Arc::new(Frontend::new(config.id.clone(), settings, stop, kill, env.tasks.clone()));
        let socket = TaskTracker::new();
        let local = listen(place, &front, &socket, env)
            .map_err(|error| ListenError::bind(place.address, place.transport(), &error))?;
        socket.close();
        if let Some(pool) = &front.settings().pool {
            monitor::arrange(pool, &env.tasks, &env.announcer);
        }
        Ok(Self {
            id: config.id.clone(),
            place,
            state: Ok(Serving { local, front, leaving: Mutex::default(), socket }),
        })
    }

    /// Changes a listener that listens. If the new settings cannot be used, it stops.
    fn update(&self, config: &ListenerConfig, env: &Env) -> Result<(), ListenError> {
        let serving = self.state.as_ref().map_err(Clone::clone)?;
        let old = serving.front.settings();
        let mut leaving = serving.leaving.lock();
        leaving.retain(|(member, _)| !member.gone.is_cancelled());
        let known: Vec<_> = members(&old)
            .chain(leaving.iter().map(|(member, _)| member))
            .cloned()
            .collect();
        let new = settings(self.place, config, Some(&old), &known, &serving.front.kill)
            .inspect_err(|_| serving.shut_down(env))?;
        let stays = |member: &Arc<Member>| members(&new).any(|new| Arc::ptr_eq(new, member));
        // A member that was added again stays.
        leaving.retain(|(member, _)| !stays(member));
        let removed: Vec<_> = members(&old)
            .filter(|member| !stays(member))
            .cloned()
            .collect();
        let pool = new.pool.clone();
        serving.front.set(new);
        if let Some(pool) = pool {
            monitor::arrange(&pool, &env.tasks, &env.announcer);
        }
        for member in removed {
            monitor::forget(&member);
            let stay = env.stop.child_token();
            drain(member.gone.clone(), stay.clone(), env);
            leaving.push((member, stay.drop_guard()));
        }
        Ok(())
    }

    fn report(&self) -> ListenerReport {
        let (state, counters, pool) = match &self.state {
            Ok(serving) => {
                let pool = serving
                    .front
                    .settings()
                    .pool
                    .as_ref()
                    .map(|pool| pool.report());
                (ListenerState::Listening(serving.local), serving.front.counters(), pool)
            }
            Err(error) => (ListenerState::Failed(error.clone()), Counters::default(), None),
        };
        ListenerReport { id: self.id.clone(), state, counters, pool }
    }
}

impl Serving {
    /// Begins to close the socket, ends the checks, and lets connections end within the drain time.
    fn shut_down(&self, env: &Env) {
        self.front.stop.cancel();
        members(&self.front.settings()).for_each(|member| monitor::forget(member));
        drain(self.front.kill.clone(), CancellationToken::new(), env);
    }

    /// Waits until the socket is closed.
    async fn closed(&self) {
        self.socket.wait().await;
    }
}

fn members(settings: &Settings) -> impl Iterator<Item = &Arc<Member>> {
    settings.pool.iter().flat_map(|pool| pool.members())
}

/// Cancels `gone` when the drain time is over, unless `stay` is cancelled before.
fn drain(gone: CancellationToken, stay: CancellationToken, env: &Env) {
    let limit = env.options.drain;
    env.tasks.spawn(async move {
        tokio::select! {
            () = gone.cancelled() => {}
            () = stay.cancelled() => {}
            () = sleep(limit) => gone.cancel(),
        }
    });
}

/// Returns the settings for connections. The pool stays the same object when nothing about it
/// changes.
fn settings(
    place: ListenerAddress,
    config: &ListenerConfig,
    old: Option<&Settings>,
    known: &[Arc<Member>],
    kill: &CancellationToken,
) -> Result<Settings, ListenError> {
    let tls = tls(place, config, old)?;
    let mut config = config.clone();
    let pool = config.pool.take();
    if let Some(pool) = &pool {
        compatible(place, pool.protocol)?;
    }
    let old = old.and_then(|old| old.pool.as_ref());
    let pool = pool.map(|pool| match old {
        Some(old) if old.config == pool => old.clone(),
        _ => Arc::new(Pool::new(pool, old.map(AsRef::as_ref), known, kill)),
    });
    Ok(Settings { config, pool, tls })
}

/// Returns the TLS acceptor, where the protocol needs one; the same object while the certificate is
/// unchanged.
fn tls(
    place: ListenerAddress,
    config: &ListenerConfig,
    old: Option<&Settings>,
) -> Result<Option<TlsAcceptor>, ListenError> {
    if place.protocol != ListenerProtocol::TerminatedHttps {
        return Ok(None);
    }
    if let Some(old) = old.filter(|old| old.config.tls == config.tls) {
        return Ok(old.tls.clone());
    }
    let acceptor = match &config.tls {
        Some(certificate) => tls::acceptor(certificate),
        None => Err("there is no certificate".to_owned()),
    };
    acceptor
        .map(Some)
        .map_err(|reason| place.error(ListenErrorKind::Certificate, reason))
}

/// Opens the socket and starts the tasks that own it.
fn listen(
    place: ListenerAddress,
    front: &Arc<Frontend>,
    tasks: &TaskTracker,
    env: &Env,
) -> io::Result<SocketAddr> {
    if place.protocol == ListenerProtocol::Udp {
        let worker = env.workers.next()?;
        let _on = worker.enter();
        let socket = udp::bind(place.address)?;
        let local = socket.local_addr()?;
        front.tasks.spawn_on(
            tasks.track_future(udp::serve(socket, front.clone(), tasks.clone())),
            &worker,
        );
        return Ok(local);
    }
    let workers = env.workers.all()?;
    let listener = tcp::bind(place.address)?;
    match place.protocol {
        ListenerProtocol::Http => tcp::listen(&listener, front, &workers, tasks, http::serve),
        ListenerProtocol::TerminatedHttps => {
            tcp::listen(&listener, front, &workers, tasks, http::serve_tls)
        }
        _ => tcp::listen(&listener, front, &workers, tasks, tcp::serve),
    }?;
    listener.local_addr()
}

/// Checks that the listener can use such a pool.
fn compatible(place: ListenerAddress, pool: PoolProtocol) -> Result<(), ListenError> {
    use ListenerProtocol as L;
    use PoolProtocol as P;
    let fine = match place.protocol {
        L::Tcp => matches!(pool, P::Tcp | P::Http | P::Https | P::Proxy | P::ProxyV2),
        L::Https => matches!(pool, P::Tcp | P::Https | P::Proxy | P::ProxyV2),
        L::Http | L::TerminatedHttps => matches!(pool, P::Http | P::Proxy | P::ProxyV2),
        L::Udp => matches!(pool, P::Udp),
        L::Sctp => false,
    };
    if fine {
        return Ok(());
    }
    let reason = format!(
        "a listener of protocol {:?} cannot use a pool of protocol {pool:?}",
        place.protocol
    );
    Err(place.error(ListenErrorKind::Unsupported, reason))
}

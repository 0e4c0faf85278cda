//! TCP: accepts connections, finds a member, carries bytes.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    time::{Instant, sleep, timeout},
};
use tokio_util::task::TaskTracker;

use super::{
    config::{PoolProtocol, Timeouts},
    frontend::{ConnectionPermit, Endpoints, Frontend, Settings},
    pool::{MemberConnection, Pool},
    proxy,
    relay::{IdleTimeouts, relay},
    workers::Worker,
};

/// Connections that the kernel has set up and that are not accepted yet; this is usually also the
/// system's limit.
const BACKLOG: i32 = 4096;

/// Delay after an accept failed for lack of descriptors or memory: long enough for some to be
/// freed, short enough to go unnoticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// While one member after another fails, the search ends after this many times the connect timeout.
pub(super) const SEARCH_FACTOR: u32 = 4;

/// Binds a listening socket.
pub(super) fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let kind = Type::STREAM.nonblocking();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    // Connections of a previous listener on this address may still be closing.
    socket.set_reuse_address(true)?;
    // Small messages must not wait for acknowledgements. Accepted sockets inherit this at no
    // further cost.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Accepts on each of `workers` until stopped; the socket closes when every task of `tasks` has
/// ended.
///
/// They share the socket and so its queue. (Separate sockets would split the connections evenly,
/// but then another process of the same user could listen there as well.)
///
/// # Errors
/// There are not enough descriptors.
pub(super) fn listen<F, T>(
    listener: &std::net::TcpListener,
    front: &Arc<Frontend>,
    workers: &Arc<[Worker]>,
    tasks: &TaskTracker,
    serve: F,
) -> io::Result<()>
where
    F: Fn(TcpStream, Endpoints, Arc<Frontend>, Arc<Settings>) -> T + Copy + Send + Sync + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let on = |worker: &Worker| {
        let _on = worker.runtime.enter();
        TcpListener::from_std(listener.try_clone()?)
    };
    let listeners: Vec<_> = workers.iter().map(on).collect::<io::Result<_>>()?;
    let local = listener.local_addr()?;
    for (index, listener) in listeners.into_iter().enumerate() {
        let acceptor = Acceptor {
            listener,
            local,
            front: front.clone(),
            index,
            workers: workers.clone(),
            serve,
        };
        front
            .tasks
            .spawn_on(tasks.track_future(acceptor.run()), &workers[index].runtime);
    }
    Ok(())
}

/// Accepts the connections of a listener on one thread.
struct Acceptor<F> {
    listener: TcpListener,
    local: SocketAddr,
    front: Arc<Frontend>,
    /// Index of this thread in `workers`.
    index: usize,
    workers: Arc<[Worker]>,
    serve: F,
}

impl<F, T> Acceptor<F>
where
    F: Fn(TcpStream, Endpoints, Arc<Frontend>, Arc<Settings>) -> T + Copy + Send + Sync + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    /// Accepts until stopped, and restarts after a panic.
    async fn run(self) {
        self.front
            .stop
            .run_until_cancelled(self.front.keep("accept", || self.accept()))
            .await;
    }

    /// Accepts connections up to the limit.
    async fn accept(&self) {
        let mut watch = self.front.watch();
        let mut failing = false;
        loop {
            let mut settings = watch.borrow_and_update().clone();
            let (place, accepted) = tokio::select! {
                // The connection limit may have changed.
                changed = watch.changed() => match changed {
                    Ok(()) => continue,
                    // The listener was dropped.
                    Err(_) => return,
                },
                next = self.next(&settings) => next,
            };
            if watch.has_changed().is_ok_and(|changed| changed) {
                // The connection arrived after the change, so the new settings apply.
                settings = watch.borrow_and_update().clone();
            }
            match accepted {
                Ok((stream, client)) => {
                    failing = false;
                    self.admit(stream, Endpoints { client, local: self.local }, place, settings);
                }
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "cannot accept connections for now");
                    }
                    failing = true;
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Returns the next connection, when there is a permit for it.
    async fn next(
        &self,
        settings: &Settings,
    ) -> (ConnectionPermit, io::Result<(TcpStream, SocketAddr)>) {
        loop {
            match self.front.acquire(settings) {
                Some(place) => return (place, self.listener.accept().await),
                None => self.front.wait_for_capacity().await,
            }
        }
    }

    fn admit(
        &self,
        stream: TcpStream,
        ends: Endpoints,
        place: ConnectionPermit,
        settings: Arc<Settings>,
    ) {
        if !settings.admits(ends.client.ip()) {
            self.front.refuse();
            // Reset rather than closed: nothing from the client is read, and the socket does not
            // linger.
            let _ = stream.set_zero_linger();
            return;
        }
        let open = place.open();
        let front = self.front.clone();
        let serve = self.serve;
        let chosen = Worker::choose(self.index, &self.workers);
        let carried = self.workers[chosen].count_connection();
        if chosen == self.index {
            let serving = serve(stream, ends, front.clone(), settings);
            self.front.tasks.spawn(async move {
                front
                    .guard("serve", front.kill.run_until_cancelled(serving))
                    .await;
                drop((open, carried));
            });
            return;
        }
        // If the socket cannot be moved to the other thread, it is lost.
        let Ok(stream) = stream.into_std() else {
            return;
        };
        let serving = async move {
            let Ok(stream) = TcpStream::from_std(stream) else {
                return front.error();
            };
            let serving = serve(stream, ends, front.clone(), settings);
            front
                .guard("serve", front.kill.run_until_cancelled(serving))
                .await;
            drop((open, carried));
        };
        self.front
            .tasks
            .spawn_on(serving, &self.workers[chosen].runtime);
    }
}

/// Errors of a connection that ended before it was accepted.
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Carries a client's bytes to a member and back.
pub(super) async fn serve(
    mut client: TcpStream,
    ends: Endpoints,
    front: Arc<Frontend>,
    settings: Arc<Settings>,
) {
    let timeouts = settings.config.timeouts;
    let Some((mut member, used)) = connect(settings.pool.as_deref(), ends, timeouts).await else {
        front.error();
        return;
    };
    // A connection that serves does not keep the listener's settings alive.
    drop(settings);
    let silence = IdleTimeouts { client: timeouts.client_data, member: timeouts.member_data };
    let relaying = relay(client.split(), member.split(), silence, &*front);
    // How a connection ends matters only to its two ends; nobody here needs the result.
    let _ = used.member.gone.run_until_cancelled(relaying).await;
}

/// Opens a connection to a member: the chosen one, or else the next. `None` when no member accepts.
pub(super) async fn connect(
    pool: Option<&Pool>,
    ends: Endpoints,
    timeouts: Timeouts,
) -> Option<(TcpStream, MemberConnection)> {
    let pool = pool?;
    let mut tried = Vec::new();
    let begin = Instant::now();
    while let Some(used) = pool.choose(ends.client, &mut tried) {
        match open(used.member.socket, pool.config.protocol, ends, timeouts.member_connect).await {
            Ok(stream) => return Some((stream, used)),
            Err(error) => {
                tracing::debug!(member = %used.member.id, %error, "cannot connect to member");
            }
        }
        let limit = timeouts.member_connect * SEARCH_FACTOR;
        if !limit.is_zero() && begin.elapsed() >= limit {
            break;
        }
    }
    None
}

/// Opens a connection to one member and sends the header that its pool requires.
pub(super) async fn open(
    member: SocketAddr,
    protocol: PoolProtocol,
    ends: Endpoints,
    limit: Duration,
) -> io::Result<TcpStream> {
    let opening = async {
        let mut stream = TcpStream::connect(member).await?;
        stream.set_nodelay(true)?;
        if let Some(header) = proxy::header(protocol, Some(ends))? {
            stream.write_all(&header).await?;
        }
        Ok(stream)
    };
    if limit.is_zero() {
        opening.await
    } else {
        timeout(limit, opening).await?
    }
}

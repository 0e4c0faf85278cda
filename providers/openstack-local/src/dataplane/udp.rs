//! UDP: datagrams of a client form a flow, which one member answers.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    net::UdpSocket,
    task::yield_now,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{
    frontend::{Frontend, OpenConnection, Settings},
    plan::Health,
    pool::MemberConnection,
    relay::Traffic as _,
    scratch,
};

/// Maximum number of datagrams that are handled before other tasks run.
const BATCH: usize = 64;

/// Receive buffer of a listener in the kernel, if the system permits as much.
const RECEIVE_BUFFER: usize = 4 << 20;

/// How often expired flows are removed.
const SWEEP: Duration = Duration::from_millis(500);

/// How long a flow is remembered when there is no limit: a flow has no end of its own.
const LONGEST_SILENCE: Duration = Duration::from_secs(300);

/// Binds a socket for clients' datagrams.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    // As much as the system permits; with less, more datagrams are lost under overload.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    UdpSocket::from_std(socket.into())
}

/// Carries datagrams until stopped; the socket closes when every task of `tasks` has ended.
pub(super) async fn serve(socket: UdpSocket, front: Arc<Frontend>, tasks: TaskTracker) {
    let socket = Arc::new(socket);
    let begin = Instant::now();
    // A panic loses the flows, which begin again with their next datagrams.
    let serving = front.keep("receive datagrams", || {
        let socket = socket.clone();
        let tasks = tasks.clone();
        Listener {
            socket,
            settings: front.settings(),
            front: front.clone(),
            tasks,
            begin,
        }
        .run()
    });
    front.stop.run_until_cancelled(serving).await;
}

struct Listener {
    socket: Arc<UdpSocket>,
    front: Arc<Frontend>,
    /// The settings with which `flows` were last compared.
    settings: Arc<Settings>,
    /// Tracks the tasks that hold the socket.
    tasks: TaskTracker,
    begin: Instant,
}

/// The connection between a client's address and a member.
struct Flow {
    socket: Arc<UdpSocket>,
    used: MemberConnection,
    shared: Arc<Shared>,
    _open: OpenConnection,
    _end: DropGuard,
}

/// State that both directions of a flow share.
struct Shared {
    /// Milliseconds from the listener's start to the last datagram.
    last: AtomicU64,
    /// True when the member cannot be reached.
    failed: AtomicBool,
}

impl Listener {
    async fn run(mut self) {
        let mut flows = HashMap::new();
        let mut sweep = interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                readable = self.socket.readable() => match readable {
                    Ok(()) => self.receive(&mut flows),
                    Err(error) => {
                        tracing::warn!(%error, "cannot receive datagrams");
                        sweep.tick().await;
                    }
                },
                _ = sweep.tick() => self.expire_flows(&mut flows),
            }
            yield_now().await;
        }
    }

    /// Forwards the datagrams that have arrived.
    fn receive(&mut self, flows: &mut HashMap<SocketAddr, Flow>) {
        if !Arc::ptr_eq(&self.settings, &self.front.settings()) {
            self.expire_flows(flows);
        }
        scratch::with(|buffer| {
            for _ in 0..BATCH {
                match self.socket.try_recv_from(buffer) {
                    Ok((length, client)) => self.datagram(flows, client, &buffer[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                    // The error of an earlier datagram of ours that could not be delivered.
                    Err(_) => {}
                }
            }
        });
    }

    fn datagram(&self, flows: &mut HashMap<SocketAddr, Flow>, client: SocketAddr, datagram: &[u8]) {
        let flow = match flows.get(&client).filter(|flow| flow.is_well()) {
            Some(flow) => flow,
            None => {
                flows.remove(&client);
                let Some(flow) = self.open(client) else {
                    return;
                };
                flows.entry(client).insert_entry(flow).into_mut()
            }
        };
        self.front.received(datagram.len() as u64);
        flow.shared.touch(self.begin);
        // A full buffer loses the datagram, as any router on the path may; an unreachable member is
        // recorded. Not the runtime's `try_send`, which refuses until the runtime knows that a new
        // socket is writable.
        if let Err(error) = SockRef::from(&*flow.socket).send(datagram)
            && error.kind() != io::ErrorKind::WouldBlock
        {
            flow.shared.failed.store(true, Relaxed);
            self.front.error();
        }
    }

    /// Begins a flow; `None` when the client may not connect, there are too many flows, or no
    /// member accepts it.
    fn open(&self, client: SocketAddr) -> Option<Flow> {
        if !self.settings.admits(client.ip()) {
            self.front.refuse();
            return None;
        }
        let place = self.front.acquire(&self.settings)?;
        let mut tried = Vec::new();
        let Some(pool) = &self.settings.pool else {
            self.front.error();
            return None;
        };
        while let Some(used) = pool.choose(client, &mut tried) {
            match connect(used.member.socket) {
                Ok(socket) => return Some(self.flow(client, used, Arc::new(socket), place.open())),
                Err(error) => {
                    tracing::debug!(member = %used.member.id, %error, "cannot open a socket to member");
                }
            }
        }
        self.front.error();
        None
    }

    fn flow(
        &self,
        client: SocketAddr,
        used: MemberConnection,
        socket: Arc<UdpSocket>,
        open: OpenConnection,
    ) -> Flow {
        let end = CancellationToken::new();
        let shared = Arc::new(Shared { last: AtomicU64::new(0), failed: AtomicBool::new(false) });
        let answers = Answers {
            from: socket.clone(),
            to: self.socket.clone(),
            client,
            shared: shared.clone(),
            front: self.front.clone(),
            begin: self.begin,
        };
        let stop = end.clone();
        let tasks = self.tasks.clone();
        let front = self.front.clone();
        let task = tasks.track_future(async move {
            let shared = answers.shared.clone();
            let answering = stop.run_until_cancelled(answers.run());
            if front.guard("hand on answers", answering).await.is_none() {
                shared.failed.store(true, Relaxed);
            }
        });
        self.front.tasks.spawn(task);
        Flow { socket, used, shared, _open: open, _end: end.drop_guard() }
    }

    /// Ends flows that are silent, and those that the current settings do not allow.
    fn expire_flows(&mut self, flows: &mut HashMap<SocketAddr, Flow>) {
        self.settings = self.front.settings();
        let limit = match self.settings.config.timeouts.client_data {
            Duration::ZERO => LONGEST_SILENCE,
            limit => limit,
        };
        let now = self.begin.elapsed();
        flows.retain(|client, flow| {
            let silent = now.saturating_sub(Duration::from_millis(flow.shared.last.load(Relaxed)));
            let keeps = self
                .settings
                .pool
                .as_ref()
                .is_some_and(|pool| pool.keeps(&flow.used.member));
            silent <= limit && keeps && flow.is_well() && self.settings.admits(client.ip())
        });
    }
}

impl Flow {
    fn is_well(&self) -> bool {
        self.used.member.health() != Health::Down && !self.shared.failed.load(Relaxed)
    }
}

impl Shared {
    fn touch(&self, begin: Instant) {
        self.last
            .store(u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX), Relaxed);
    }
}

/// Opens a socket that communicates with one member only.
fn connect(member: SocketAddr) -> io::Result<UdpSocket> {
    let any = if member.is_ipv4() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    };
    let socket = std::net::UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(member)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// The direction from a member to a client.
struct Answers {
    from: Arc<UdpSocket>,
    to: Arc<UdpSocket>,
    client: SocketAddr,
    shared: Arc<Shared>,
    front: Arc<Frontend>,
    begin: Instant,
}

impl Answers {
    async fn run(self) {
        while self.from.readable().await.is_ok() && self.hand_on().is_ok() {
            yield_now().await;
        }
        self.shared.failed.store(true, Relaxed);
    }

    /// Forwards the datagrams that have arrived.
    fn hand_on(&self) -> io::Result<()> {
        scratch::with(|buffer| {
            for _ in 0..BATCH {
                let length = match self.from.try_recv(buffer) {
                    Ok(length) => length,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                };
                self.shared.touch(self.begin);
                if self.to.try_send_to(&buffer[..length], self.client).is_ok() {
                    self.front.sent(length as u64);
                }
            }
            Ok(())
        })
    }
}

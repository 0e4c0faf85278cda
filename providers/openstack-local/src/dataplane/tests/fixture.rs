//! A balancer under test: members with real sockets, and short words for configurations.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use crate::dataplane::{
    Algorithm, DataPlane, InsertHeaders, ListenerConfig, ListenerProtocol, ListenerState,
    LoadBalancerConfig, LoadBalancerReport, MemberConfig, MemberState, MonitorConfig, MonitorKind,
    Options, PoolConfig, PoolProtocol, Timeouts,
};

/// Longer than anything here takes on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Limits a test's wait.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("must happen soon")
}

/// The balancers' address: not the members', so that it shows who is who.
pub(crate) const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 7, 0, 1));

/// The members' address.
pub(crate) const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 8, 0, 1));

/// A member that says its name to whoever connects, and then sends back what it gets.
pub(crate) struct Echo {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    /// Connections accepted.
    pub(crate) accepted: Arc<AtomicUsize>,
    serving: AbortOnDropHandle<()>,
}

impl Echo {
    pub(crate) async fn new(name: &'static str) -> Self {
        Self::at(name, SocketAddr::new(NODE, 0)).await
    }

    pub(crate) async fn at(name: &'static str, address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, SeqCst);
                connections.spawn(async move {
                    let (mut read, mut write) = stream.split();
                    write.write_all(format!("{name}\n").as_bytes()).await?;
                    tokio::io::copy(&mut read, &mut write).await?;
                    write.shutdown().await
                });
            }
        });
        Self {
            name,
            address,
            accepted,
            serving: AbortOnDropHandle::new(serving),
        }
    }

    pub(crate) fn member(&self) -> MemberConfig {
        MemberConfig::new(self.name, self.address)
    }

    /// Closes the socket and every connection; returns the address.
    pub(crate) async fn end(self) -> SocketAddr {
        self.serving.abort();
        let _ = self.serving.await;
        self.address
    }
}

/// An address at which nothing listens.
pub(crate) async fn nobody() -> SocketAddr {
    TcpListener::bind(SocketAddr::new(NODE, 0))
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}

pub(crate) fn pool(members: impl IntoIterator<Item = MemberConfig>) -> PoolConfig {
    PoolConfig {
        id: "pool".into(),
        protocol: PoolProtocol::Tcp,
        algorithm: Algorithm::RoundRobin,
        persistence: None,
        members: members.into_iter().collect(),
        monitor: None,
    }
}

pub(crate) fn listener(id: &str, pool: PoolConfig) -> ListenerConfig {
    ListenerConfig {
        id: id.into(),
        protocol: ListenerProtocol::Tcp,
        port: 0,
        connection_limit: None,
        timeouts: Timeouts::default(),
        allowed_cidrs: Vec::new(),
        insert_headers: InsertHeaders::default(),
        tls: None,
        pool: Some(pool),
    }
}

pub(crate) fn balancer(listeners: impl IntoIterator<Item = ListenerConfig>) -> LoadBalancerConfig {
    LoadBalancerConfig {
        id: "balancer".into(),
        vip: VIP,
        listeners: listeners.into_iter().collect(),
    }
}

/// A monitor that finds out quickly.
pub(crate) fn monitor(kind: MonitorKind) -> MonitorConfig {
    let delay = Duration::from_millis(20);
    MonitorConfig {
        kind,
        delay,
        timeout: Duration::from_secs(5),
        max_retries: 2,
        max_retries_down: 2,
    }
}

/// A data plane with one balancer, ended with the test.
pub(crate) struct Fixture {
    pub(crate) plane: DataPlane,
    pub(crate) config: LoadBalancerConfig,
}

impl Fixture {
    pub(crate) async fn new(config: LoadBalancerConfig) -> Self {
        Self::with(Options::default(), config).await
    }

    pub(crate) async fn with(options: Options, config: LoadBalancerConfig) -> Self {
        let rig = Self { plane: DataPlane::new(options), config };
        rig.plane.apply(&rig.config).await;
        rig
    }

    /// One listener before these members.
    pub(crate) async fn tcp(members: &[&Echo]) -> Self {
        Self::new(balancer([listener("l", pool(members.iter().map(|echo| echo.member())))])).await
    }

    /// Changes what is wanted.
    pub(crate) async fn change(
        &mut self,
        change: impl FnOnce(&mut LoadBalancerConfig),
    ) -> LoadBalancerReport {
        change(&mut self.config);
        self.plane.apply(&self.config).await
    }

    /// Changes the first listener's pool.
    pub(crate) async fn change_pool(
        &mut self,
        change: impl FnOnce(&mut PoolConfig),
    ) -> LoadBalancerReport {
        self.change(|config| change(config.listeners[0].pool.as_mut().unwrap()))
            .await
    }

    pub(crate) fn report(&self) -> LoadBalancerReport {
        self.plane.report(&self.config.id).unwrap()
    }

    /// Where the listener listens.
    pub(crate) fn address(&self, listener: usize) -> SocketAddr {
        match &self.report().listeners[listener].state {
            ListenerState::Listening(address) => *address,
            ListenerState::Failed(error) => panic!("{error}"),
        }
    }

    pub(crate) async fn connect(&self) -> Client {
        Client::connect(self.address(0)).await.unwrap()
    }

    /// A connection that must have come to the member with this name. (Of two that are opened at
    /// once either may be the first to be accepted.)
    pub(crate) async fn connected(&self, name: &str) -> Client {
        let mut client = self.connect().await;
        assert_eq!(client.name().await, name);
        client
    }

    /// The names that so many connections, one after the other, are greeted with.
    pub(crate) async fn names(&self, count: usize) -> String {
        let mut names = String::new();
        for _ in 0..count {
            names += &self.connect().await.name().await;
        }
        names
    }

    /// Waits until reports say so.
    pub(crate) async fn until(&self, what: impl Fn(&LoadBalancerReport) -> bool) {
        let mut changes = self.plane.changes();
        soon(async {
            while !what(&self.report()) {
                changes.changed().await.unwrap();
            }
        })
        .await;
    }

    /// Waits until the first listener's members are in these states.
    pub(crate) async fn states(&self, states: &[MemberState]) {
        self.until(|report| {
            let members = &report.listeners[0].pool.as_ref().unwrap().members;
            members
                .iter()
                .map(|member| member.state)
                .eq(states.iter().copied())
        })
        .await;
    }

    /// Waits until counters, of which changes are not announced, say so.
    pub(crate) async fn counted(&self, what: impl Fn(&LoadBalancerReport) -> bool) {
        soon(async {
            while !what(&self.report()) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

/// A client of an [`Echo`].
pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> io::Result<Self> {
        soon(TcpStream::connect(address)).await.map(Self)
    }

    /// Reads a line; empty at the end.
    pub(crate) async fn line(&mut self) -> String {
        let mut line = Vec::new();
        while let Ok(byte) = soon(self.0.read_u8()).await {
            if byte == b'\n' {
                break;
            }
            line.push(byte);
        }
        String::from_utf8(line).unwrap()
    }

    /// Reads the name that the member says.
    pub(crate) async fn name(&mut self) -> String {
        self.line().await
    }

    /// Sends a line and expects it back.
    pub(crate) async fn echoes(&mut self) -> bool {
        self.0.write_all(b"hello\n").await.is_ok() && self.line().await == "hello"
    }

    /// Waits until the other side has closed; anything that comes before is thrown away.
    pub(crate) async fn closed(&mut self) {
        let mut buffer = [0; 1024];
        while matches!(soon(self.0.read(&mut buffer)).await, Ok(1..)) {}
    }
}

/// What a member is sent before the client's own bytes.
async fn header(protocol: PoolProtocol, vip: IpAddr) -> (Vec<u8>, SocketAddr, SocketAddr) {
    let member = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
    let member_config = MemberConfig::new("m", member.local_addr().unwrap());
    let mut wanted = pool([member_config]);
    wanted.protocol = protocol;
    let mut config = balancer([listener("l", wanted)]);
    config.vip = vip;
    let rig = Fixture::new(config).await;
    let mut client = rig.connect().await;
    client.0.write_all(b"body").await.unwrap();
    client.0.shutdown().await.unwrap();
    let (mut served, _) = soon(member.accept()).await.unwrap();
    let mut all = Vec::new();
    soon(served.read_to_end(&mut all)).await.unwrap();
    assert!(all.ends_with(b"body"));
    all.truncate(all.len() - 4);
    (all, client.0.local_addr().unwrap(), rig.address(0))
}

/// Checks what a member of a PROXY pool is sent about a client.
pub(crate) async fn text_header(vip: IpAddr, family: &str) {
    let (header, client, local) = header(PoolProtocol::Proxy, vip).await;
    let (from, to) = (client.ip(), local.ip());
    let expected = format!("PROXY {family} {from} {to} {} {}\r\n", client.port(), local.port());
    assert_eq!(String::from_utf8(header).unwrap(), expected);
}

/// The same of a PROXYV2 pool.
pub(crate) async fn binary_header(vip: IpAddr, family: &[u8]) {
    let (header, client, local) = header(PoolProtocol::ProxyV2, vip).await;
    let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    expected.extend(family);
    for end in [client, local] {
        match end.ip() {
            IpAddr::V4(ip) => expected.extend(ip.octets()),
            IpAddr::V6(ip) => expected.extend(ip.octets()),
        }
    }
    expected.extend(client.port().to_be_bytes());
    expected.extend(local.port().to_be_bytes());
    assert_eq!(header, expected);
}

/// A member that puts its name before what it gets and sends it back.
pub(crate) struct Namer {
    name: &'static str,
    address: SocketAddr,
    /// What it was sent.
    pub(crate) heard: Arc<Mutex<Vec<Vec<u8>>>>,
    serving: AbortOnDropHandle<()>,
}

impl Namer {
    pub(crate) async fn new(name: &'static str) -> Self {
        Self::at(name, SocketAddr::new(NODE, 0)).await
    }

    pub(crate) async fn at(name: &'static str, address: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).await.unwrap();
        let address = socket.local_addr().unwrap();
        let heard: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let all = heard.clone();
        let serving = tokio::spawn(async move {
            let mut buffer = vec![0; 65_536];
            while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
                all.lock().push(buffer[..length].to_vec());
                let answer = [name.as_bytes(), &buffer[..length]].concat();
                let _ = socket.send_to(&answer, client).await;
            }
        });
        Self {
            name,
            address,
            heard,
            serving: AbortOnDropHandle::new(serving),
        }
    }

    pub(crate) fn member(&self) -> MemberConfig {
        MemberConfig::new(self.name, self.address)
    }

    pub(crate) async fn end(self) -> SocketAddr {
        self.serving.abort();
        let _ = self.serving.await;
        self.address
    }
}

/// A UDP listener before these members.
pub(crate) fn udp(members: &[&Namer]) -> LoadBalancerConfig {
    let mut pool = pool(members.iter().map(|member| member.member()));
    pool.protocol = PoolProtocol::Udp;
    let mut listener = listener("l", pool);
    listener.protocol = ListenerProtocol::Udp;
    balancer([listener])
}

/// A client of the first listener, which receives only what comes from there.
pub(crate) async fn client(rig: &Fixture) -> UdpSocket {
    let socket = UdpSocket::bind(SocketAddr::new(rig.config.vip, 0))
        .await
        .unwrap();
    socket.connect(rig.address(0)).await.unwrap();
    socket
}

/// Asks, and asks again when something was lost or is late, as clients of UDP must.
pub(crate) async fn ask(client: &UdpSocket, question: &str) -> String {
    let mut buffer = vec![0; 65_536];
    // What was asked twice before may have been answered twice.
    while client.try_recv(&mut buffer).is_ok() {}
    soon(async {
        loop {
            let _ = client.send(question.as_bytes()).await;
            let answer = timeout(Duration::from_millis(500), client.recv(&mut buffer)).await;
            if let Ok(Ok(length)) = answer
                && buffer[..length].ends_with(question.as_bytes())
            {
                return String::from_utf8(buffer[..length].to_vec()).unwrap();
            }
        }
    })
    .await
}

//! The processes besides the clients.

use std::{future::pending, net::SocketAddr, num::NonZeroUsize};

use anyhow::ensure;
use openstack_local::dataplane::{
    Algorithm, DataPlane, InsertHeaders, ListenerConfig, ListenerProtocol, ListenerState,
    LoadBalancerConfig, MemberConfig, Options, PoolConfig, PoolProtocol, Timeouts,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};

/// What a client says first: send back what comes.
pub(crate) const ECHO: u8 = b'e';
/// What a client says first: send without end.
pub(crate) const SOURCE: u8 = b's';

/// What a process says on its standard output when it can be used.
pub(crate) const READY: &str = "ready";

/// Serves until the process is killed.
pub(crate) async fn serve(listen: SocketAddr) -> anyhow::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(listen)?;
    let listener = socket.listen(4096)?;
    println!("{READY}");
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                connections.spawn(connection(stream));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    match stream.read_u8().await? {
        SOURCE => {
            let block = vec![7; 128 * 1024];
            loop {
                stream.write_all(&block).await?;
            }
        }
        _ => {
            // Small, as there are thousands.
            let mut buffer = vec![0; 2048];
            loop {
                match stream.read(&mut buffer).await? {
                    0 => return Ok(()),
                    length => stream.write_all(&buffer[..length]).await?,
                }
            }
        }
    }
}

/// Balances until the process is killed.
pub(crate) async fn balance(
    listen: SocketAddr,
    member: SocketAddr,
    workers: NonZeroUsize,
) -> anyhow::Result<()> {
    let pool = PoolConfig {
        id: "pool".into(),
        protocol: PoolProtocol::Tcp,
        algorithm: Algorithm::RoundRobin,
        persistence: None,
        members: vec![MemberConfig::new("member", member)],
        monitor: None,
    };
    let listener = ListenerConfig {
        id: "listener".into(),
        protocol: ListenerProtocol::Tcp,
        port: listen.port(),
        connection_limit: None,
        timeouts: Timeouts::default(),
        allowed_cidrs: Vec::new(),
        insert_headers: InsertHeaders::default(),
        tls: None,
        pool: Some(pool),
    };
    let plane = DataPlane::new(Options { workers, ..Options::default() });
    let config = LoadBalancerConfig {
        id: "balancer".into(),
        vip: listen.ip(),
        listeners: vec![listener],
    };
    let report = plane.apply(&config).await;
    ensure!(matches!(report.listeners[0].state, ListenerState::Listening(_)), "{report:?}");
    println!("{READY}");
    pending().await
}

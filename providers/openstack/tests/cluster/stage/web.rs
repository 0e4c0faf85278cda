//! Web servers on the nodes' ports, and clients of load balancers.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    task::JoinSet,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

/// Longest a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How binary PROXY headers begin.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Servers by address and transport. Dropping them closes their sockets.
#[derive(Default)]
pub(crate) struct Web {
    tcp: BTreeMap<SocketAddr, AbortOnDropHandle<()>>,
    udp: BTreeMap<SocketAddr, AbortOnDropHandle<()>>,
}

impl Web {
    /// Begins to serve HTTP; says who answers, who asked, and with which headers.
    pub(crate) fn open(&mut self, name: &str, address: SocketAddr) -> anyhow::Result<()> {
        let listener = listen(address)?;
        let name: Arc<str> = name.into();
        let serve = async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, peer)) = listener.accept().await {
                connections.spawn(converse(stream, peer, name.clone()));
                while connections.try_join_next().is_some() {}
            }
        };
        self.tcp.insert(address, AbortOnDropHandle::new(tokio::spawn(serve)));
        Ok(())
    }

    /// Begins to answer each datagram with the name.
    pub(crate) async fn open_udp(&mut self, name: &str, address: SocketAddr) -> anyhow::Result<()> {
        let socket = UdpSocket::bind(address).await?;
        let name = name.to_owned();
        let serve = async move {
            let mut buffer = [0; 2048];
            while let Ok((_, peer)) = socket.recv_from(&mut buffer).await {
                // A client that is gone is no trouble.
                let _ = socket.send_to(name.as_bytes(), peer).await;
            }
        };
        self.udp.insert(address, AbortOnDropHandle::new(tokio::spawn(serve)));
        Ok(())
    }

    /// Ends a server, with its connections.
    pub(crate) async fn close(&mut self, address: SocketAddr) {
        for serving in [self.tcp.remove(&address), self.udp.remove(&address)].into_iter().flatten() {
            serving.abort();
            // It was told to end.
            let _ = serving.await;
        }
    }
}

/// Listens at an address that another server may have left just now.
fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket.listen(64)?)
}

/// Answers requests on one connection until it ends. Nothing that goes wrong there is of interest here.
async fn converse(stream: TcpStream, peer: SocketAddr, name: Arc<str>) {
    let mut stream = BufReader::new(stream);
    let Ok(proxy) = proxy_header(&mut stream).await else { return };
    while let Ok(Some((path, headers))) = request(&mut stream).await {
        if let Some(ms) = path.strip_prefix("/slow/").and_then(|ms| ms.parse().ok()) {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        let answer = json!({"node": &*name, "peer": peer.ip(), "proxy": proxy, "headers": headers, "path": path});
        let body = answer.to_string();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads the header of the PROXY protocol, if there is one: version and client's address.
async fn proxy_header(stream: &mut BufReader<TcpStream>) -> io::Result<Value> {
    let begin = stream.fill_buf().await?;
    if begin.starts_with(b"PROXY ") {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        return Ok(json!({"version": 1, "client": line.split(' ').nth(2)}));
    }
    if !begin.starts_with(SIGNATURE) {
        return Ok(Value::Null);
    }
    let mut head = [0; 16];
    stream.read_exact(&mut head).await?;
    let mut rest = vec![0; usize::from(u16::from_be_bytes([head[14], head[15]]))];
    stream.read_exact(&mut rest).await?;
    let client = rest.first_chunk::<4>().map(|octets| IpAddr::from(*octets));
    Ok(json!({"version": 2, "client": client}))
}

/// Reads a request without a body: path and headers. `None` at the end.
async fn request(stream: &mut BufReader<TcpStream>) -> io::Result<Option<(String, BTreeMap<String, String>)>> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.trim().to_owned()),
            None => return Ok(Some((path, headers))),
        };
    }
}

/// A connection to a load balancer.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects from an address of this machine.
    pub(crate) async fn open(from: IpAddr, to: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(from, 0))?;
        let stream = timeout(PATIENCE, socket.connect(to)).await.map_err(|_| io::ErrorKind::TimedOut)??;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a request and returns what the web server says.
    pub(crate) async fn get(&mut self, path: &str) -> io::Result<Value> {
        timeout(PATIENCE, self.exchange(path)).await.map_err(|_| io::ErrorKind::TimedOut)?
    }

    async fn exchange(&mut self, path: &str) -> io::Result<Value> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).await?;
        let mut status = String::new();
        if self.0.read_line(&mut status).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut length = 0;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap_or_default();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await?;
        if !status.contains(" 200 ") {
            return Err(io::Error::other(status));
        }
        Ok(serde_json::from_slice(&body)?)
    }

    /// Waits until the other side closes the connection.
    pub(crate) async fn ends(&mut self) -> io::Result<()> {
        let mut rest = Vec::new();
        match timeout(PATIENCE, self.0.read_to_end(&mut rest)).await {
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
            // A reset is an end, too.
            Ok(_) => Ok(()),
        }
    }
}

/// The client that most tests have.
pub(crate) const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Sends one request over a new connection.
pub(crate) async fn get(from: IpAddr, to: SocketAddr, path: &str) -> io::Result<Value> {
    Connection::open(from, to).await?.get(path).await
}

/// Sends a datagram and returns the answer.
pub(crate) async fn ask_udp(from: IpAddr, to: SocketAddr) -> io::Result<String> {
    let socket = UdpSocket::bind(SocketAddr::new(from, 0)).await?;
    socket.connect(to).await?;
    socket.send(b"who").await?;
    let mut buffer = [0; 2048];
    // Datagrams may be lost: the caller asks again.
    let length =
        timeout(Duration::from_secs(1), socket.recv(&mut buffer)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

//! Single health checks.

use std::{fmt, io, time::Duration};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::timeout,
};
use tokio_rustls::client::TlsStream;

use super::{Check, icmp};
use crate::dataplane::{
    config::{HttpCheck, MonitorKind},
    proxy, tls,
};

/// How long "port unreachable" may take to arrive, if the check's timeout is not shorter: no answer
/// means healthy.
const UNREACHABLE: Duration = Duration::from_secs(1);

/// Checks once. The caller applies the timeout.
///
/// # Errors
/// Why the member is unhealthy.
pub(super) async fn probe(check: &Check) -> io::Result<()> {
    match &check.monitor.kind {
        MonitorKind::Tcp => connect(check).await.map(drop),
        MonitorKind::Http(http) => request(check, http, connect(check).await?).await,
        MonitorKind::Https(http) => request(check, http, handshake(check).await?).await,
        MonitorKind::TlsHello => handshake(check).await.map(drop),
        MonitorKind::UdpConnect => udp(check).await,
        MonitorKind::Ping => icmp::ping(check.target.ip()).await,
    }
}

async fn connect(check: &Check) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(check.target).await?;
    stream.set_nodelay(true)?;
    let header = check
        .proxy
        .map(|protocol| proxy::header(protocol, None))
        .transpose()?
        .flatten();
    if let Some(header) = header {
        stream.write_all(&header).await?;
    }
    Ok(stream)
}

async fn handshake(check: &Check) -> io::Result<TlsStream<TcpStream>> {
    // A new one each time, so that each check is a full handshake.
    let tls = tls::unverified().map_err(io::Error::other)?;
    tls.connect(ServerName::IpAddress(check.target.ip().into()), connect(check).await?)
        .await
}

async fn request<S>(check: &Check, http: &HttpCheck, stream: S) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let host = http
        .host
        .clone()
        .unwrap_or_else(|| check.target.to_string());
    let request = Request::builder()
        .method(http.method.clone())
        .uri(&http.path)
        .header(header::HOST, host)
        .header(header::CONNECTION, "close")
        .header(header::USER_AGENT, "openstack-local health check")
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let mut connection = std::pin::pin!(connection);
    let mut answer = std::pin::pin!(sender.send_request(request));
    let answer = tokio::select! {
        biased;
        answer = &mut answer => answer,
        // The connection may end at the moment when the answer arrives.
        result = &mut connection => match result {
            Ok(()) => answer.await,
            Err(error) => Err(error),
        },
    };
    let status = answer
        .map_err(|error| io::Error::other(Chain(&error).to_string()))?
        .status();
    if http.expected.contains(status.as_u16()) {
        Ok(())
    } else {
        Err(io::Error::other(format!("answered {status}")))
    }
}

/// An error with its causes, for a single line of text.
struct Chain<'a>(&'a dyn std::error::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(error) = next {
            write!(f, ": {error}")?;
            next = error.source();
        }
        Ok(())
    }
}

/// Sends an empty datagram; an answer or none means healthy, "port unreachable" does not.
async fn udp(check: &Check) -> io::Result<()> {
    let socket = UdpSocket::bind((
        if check.target.is_ipv4() {
            "0.0.0.0"
        } else {
            "::"
        },
        0,
    ))
    .await?;
    socket.connect(check.target).await?;
    socket.send(&[]).await?;
    let wait = (check.monitor.timeout / 2).min(UNREACHABLE);
    match timeout(wait, socket.recv(&mut [0; 1])).await {
        Ok(result) => result.map(drop),
        Err(_) => Ok(()),
    }
}

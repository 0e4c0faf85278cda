//! Sockets of a server, which answer with its name.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    io::{self, Cursor},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream, UdpSocket},
    sync::watch,
    task::JoinSet,
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    RETRY, RunningServer,
    cluster::{Ports, Transport},
    proxy,
};

/// Delay after an accept failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Maximum length of a datagram that is answered.
const DATAGRAM: usize = 2048;

/// Transport and address of a socket.
type SocketKey = (Transport, SocketAddr);

/// Content of a socket's answers: which server, at which address, and for what.
#[derive(Debug)]
struct ResponseText {
    name: String,
    at: SocketAddr,
    what: String,
}

impl ResponseText {
    fn to(&self, client: SocketAddr, headers: &HeaderMap) -> String {
        let Self { name, at, what } = self;
        let forwarded = headers
            .get("x-forwarded-for")
            .and_then(|value| value.to_str().ok());
        let forwarded = forwarded
            .map(|value| format!(" (X-Forwarded-For: {value})"))
            .unwrap_or_default();
        format!("{name} answers at {at} for {what}, to {client}{forwarded}\n")
    }
}

/// Answers at the server's own ports and, for a node, those of the cluster, until `off`. Then
/// everything is closed.
pub(super) async fn serve(
    machine: &RunningServer,
    ports: Option<watch::Receiver<Arc<Ports>>>,
    off: &CancellationToken,
) {
    let mut ports = ports;
    let mut open: BTreeMap<SocketKey, (String, AbortOnDropHandle<()>)> = BTreeMap::new();
    let mut failed = BTreeSet::new();
    loop {
        // First, close the sockets that are not needed any more.
        let known = ports
            .as_mut()
            .map(|ports| ports.borrow_and_update().clone())
            .unwrap_or_default();
        let wanted = wanted(machine, &known);
        for (_, (_, socket)) in
            open.extract_if(.., |place, (what, _)| wanted.get(place) != Some(what))
        {
            close(socket).await;
        }
        // Then open those that are missing.
        failed.retain(|place| wanted.contains_key(place));
        for (place, what) in wanted {
            if open.contains_key(&place) {
                continue;
            }
            match listen(machine, place, &what).await {
                Ok(socket) => {
                    failed.remove(&place);
                    open.insert(place, (what, AbortOnDropHandle::new(socket)));
                }
                Err(error) => {
                    // Logged once, however often it is tried.
                    if failed.insert(place) {
                        tracing::warn!(server = %machine.name, at = %place.1, %error, "server cannot listen, for now");
                    }
                }
            }
        }
        // Finally, wait until the ports change or a retry is due.
        let changed = async {
            let changed = match &mut ports {
                Some(ports) => ports.changed().await.is_ok(),
                None => false,
            };
            if !changed {
                // Nothing will change any more.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = off.cancelled() => break,
            () = changed => {}
            () = sleep(RETRY), if !failed.is_empty() => {}
        }
    }
    for (_, socket) in open.into_values() {
        close(socket).await;
    }
}

/// Closes a socket and its connections, and returns when they are closed.
async fn close(socket: AbortOnDropHandle<()>) {
    socket.abort();
    // It ends by being cancelled, which is no error.
    drop(socket.await);
}

/// Returns the sockets that the server should have, and what each is for.
fn wanted(machine: &RunningServer, ports: &Ports) -> BTreeMap<SocketKey, String> {
    let own = machine
        .web
        .iter()
        .map(|port| ((Transport::Tcp, *port), "itself".to_owned()));
    let all: Ports = ports
        .iter()
        .map(|(port, what)| (*port, what.clone()))
        .chain(own)
        .collect();
    let at = |address: &IpAddr| {
        let address = *address;
        all.iter().map(move |((transport, port), what)| {
            ((*transport, SocketAddr::new(address, *port)), what.clone())
        })
    };
    machine.addresses.iter().flat_map(at).collect()
}

/// Opens a socket and starts the task that owns it.
async fn listen(
    machine: &RunningServer,
    (transport, at): SocketKey,
    what: &str,
) -> io::Result<tokio::task::JoinHandle<()>> {
    let words = Arc::new(ResponseText { name: machine.name.clone(), at, what: what.to_owned() });
    match transport {
        Transport::Tcp => {
            let listener = TcpListener::bind(at).await?;
            Ok(tokio::spawn(accept(listener, words)))
        }
        Transport::Udp => {
            let socket = UdpSocket::bind(at).await?;
            Ok(tokio::spawn(echo(socket, words)))
        }
    }
}

/// Accepts connections indefinitely. They end with the task.
async fn accept(listener: TcpListener, words: Arc<ResponseText>) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let words = words.clone();
                connections.spawn(async move {
                    if let Err(error) = answer(stream, client, &words).await {
                        tracing::debug!(error, "a connection ended");
                    }
                });
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Answers the requests of a connection, whose client may be given by the PROXY protocol.
async fn answer(stream: TcpStream, peer: SocketAddr, words: &ResponseText) -> Result<(), String> {
    let (mut reader, writer) = stream.into_split();
    let start = proxy::start(&mut reader)
        .await
        .map_err(|error| error.to_string())?;
    let client = start.client.unwrap_or(peer);
    let stream = tokio::io::join(Cursor::new(start.rest).chain(reader), writer);
    let service = service_fn(|request: Request<Incoming>| {
        let text = words.to(client, request.headers());
        let answer = Response::builder().header(header::CONTENT_TYPE, "text/plain; charset=utf-8");
        // These values are always valid headers.
        let answer = answer
            .body(Full::new(Bytes::from(text)))
            .unwrap_or_default();
        async move { Ok::<_, Infallible>(answer) }
    });
    http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(|error| error.to_string())
}

/// Answers datagrams indefinitely.
async fn echo(socket: UdpSocket, words: Arc<ResponseText>) {
    let mut buffer = vec![0; DATAGRAM];
    loop {
        match socket.recv_from(&mut buffer).await {
            // A client that is not there any more needs no answer.
            Ok((_, client)) => drop(
                socket
                    .send_to(words.to(client, &HeaderMap::new()).as_bytes(), client)
                    .await,
            ),
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

//! HTTP listeners, with TLS and without.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

use super::fixture::{Echo, Fixture, NODE, balancer, listener, nobody, pool, soon};
use crate::dataplane::{
    InsertHeaders, ListenErrorKind, ListenerProtocol, ListenerState, LoadBalancerConfig,
    MemberConfig, PoolProtocol, TlsConfig,
};

/// A member that tells what it was asked, and counts its connections: `<name> <connection> <method>
/// <uri> <body length>`, then a line for each header field that is not `host` or `content-length`.
/// `/set?<cookie>` sets a cookie, `/ill` fails.
pub(super) struct Web {
    name: &'static str,
    address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

impl Web {
    pub(super) async fn new(name: &'static str) -> Self {
        let listener = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            let mut number = 0;
            while let Ok((stream, _)) = listener.accept().await {
                number += 1;
                let service = service_fn(move |request| tell(name, number, request));
                let connection = http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades();
                connections.spawn(connection);
            }
        });
        Self { name, address, _serving: AbortOnDropHandle::new(serving) }
    }

    pub(super) fn member(&self) -> MemberConfig {
        MemberConfig::new(self.name, self.address)
    }
}

async fn tell(
    name: &str,
    number: u32,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let length = body.collect().await?.to_bytes().len();
    let mut text = format!("{name} {number} {} {} {length}\n", parts.method, parts.uri);
    let ignored = ["host", "content-length"];
    for (field, value) in parts
        .headers
        .iter()
        .filter(|(field, _)| !ignored.contains(&field.as_str()))
    {
        text.extend([field.as_str(), ": ", value.to_str().unwrap(), "\n"]);
    }
    let status = if parts.uri.path() == "/ill" { 500 } else { 200 };
    let mut answer = Response::builder()
        .status(status)
        .header("keep-alive", "timeout=9");
    if let Some(cookie) = parts.uri.to_string().strip_prefix("/set?") {
        answer = answer.header("set-cookie", cookie);
    }
    Ok(answer.body(Full::from(text)).unwrap())
}

pub(super) fn wanted(members: impl IntoIterator<Item = MemberConfig>) -> LoadBalancerConfig {
    let mut pool = pool(members);
    pool.protocol = PoolProtocol::Http;
    let mut listener = listener("l", pool);
    listener.protocol = ListenerProtocol::Http;
    balancer([listener])
}

/// Sends what is to be sent and reads one answer: head, body.
pub(super) async fn exchange(
    stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin),
    request: &str,
) -> (String, String) {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match soon(stream.read_u8()).await {
            Ok(byte) => head.push(byte),
            Err(error) => panic!("{error} after {}", String::from_utf8_lossy(&head)),
        }
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| {
        line.to_lowercase()
            .strip_prefix("content-length: ")?
            .parse()
            .ok()
    });
    let mut body = vec![0; length.unwrap_or(0)];
    soon(stream.read_exact(&mut body)).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}

async fn get(rig: &Fixture) -> (String, String) {
    let mut stream = TcpStream::connect(rig.address(0)).await.unwrap();
    exchange(&mut stream, "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await
}

#[tokio::test]
async fn each_request_of_a_connection_goes_to_the_next_member_over_kept_connections() {
    let (a, b) = (Web::new("a").await, Web::new("b").await);
    let rig = Fixture::new(wanted([a.member(), b.member()])).await;
    let mut stream = TcpStream::connect(rig.address(0)).await.unwrap();
    for expected in ["a 1 GET /x?y 0\n", "b 1 GET /x?y 0\n", "a 1 GET /x?y 0\n", "b 1 GET /x?y 0\n"]
    {
        let (head, body) = exchange(&mut stream, "GET /x?y HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(!head.contains("keep-alive"), "that field was for us: {head}");
        assert_eq!(body, expected);
    }
    let (_, body) =
        exchange(&mut stream, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody").await;
    assert_eq!(body, "a 1 POST / 4\n");
    let counters = rig.report().listeners[0].counters;
    assert_eq!((counters.total_connections, counters.active_connections), (1, 1));
    assert!(counters.bytes_in > 100 && counters.bytes_out > 100);
}

#[tokio::test]
async fn the_client_is_forwarded_when_asked_for() {
    let a = Web::new("a").await;
    let mut rig = Fixture::new(wanted([a.member()])).await;
    assert_eq!(get(&rig).await.1, "a 1 GET / 0\n");
    let headers = InsertHeaders {
        x_forwarded_for: true,
        x_forwarded_port: true,
        x_forwarded_proto: true,
    };
    rig.change(|config| config.listeners[0].insert_headers = headers)
        .await;
    let mut stream = TcpStream::connect(rig.address(0)).await.unwrap();
    let client = stream.local_addr().unwrap().ip();
    let request = "GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 10.0.0.1\r\n\r\n";
    let (_, body) = exchange(&mut stream, request).await;
    let port = rig.address(0).port();
    let expected = format!(
        "a 2 GET / 0\nx-forwarded-for: 10.0.0.1, {client}\nx-forwarded-port: {port}\nx-forwarded-proto: http\n"
    );
    let sorted = |text: &str| {
        text.lines()
            .map(str::to_owned)
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(sorted(&body), sorted(&expected));
}

#[tokio::test]
async fn bodies_stream_both_ways() {
    let member = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
    let rig = Fixture::new(wanted([MemberConfig::new("m", member.local_addr().unwrap())])).await;
    let mut client = TcpStream::connect(rig.address(0)).await.unwrap();
    client
        .write_all(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        .await
        .unwrap();
    let (mut served, _) = soon(member.accept()).await.unwrap();
    read_until(&mut served, "one\r\n").await;
    client.write_all(b"3\r\ntwo\r\n0\r\n\r\n").await.unwrap();
    read_until(&mut served, "two\r\n0\r\n\r\n").await;
    served
        .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nthree\r\n")
        .await
        .unwrap();
    read_until(&mut client, "three\r\n").await;
    served.write_all(b"4\r\nfour\r\n0\r\n\r\n").await.unwrap();
    read_until(&mut client, "four\r\n0\r\n\r\n").await;
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    soon(async {
        while !read.ends_with(end.as_bytes()) {
            match stream.read_u8().await {
                Ok(byte) => read.push(byte),
                Err(error) => panic!("{error} after {}", String::from_utf8_lossy(&read)),
            }
        }
    })
    .await;
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn a_change_of_protocol_passes_and_then_bytes_do() {
    let member = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
    let rig = Fixture::new(wanted([MemberConfig::new("m", member.local_addr().unwrap())])).await;
    let mut client = TcpStream::connect(rig.address(0)).await.unwrap();
    client
        .write_all(b"GET /chat HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\nearly")
        .await
        .unwrap();
    let (mut served, _) = soon(member.accept()).await.unwrap();
    let request = read_until(&mut served, "\r\n\r\n").await.to_lowercase();
    assert!(
        request.contains("connection: upgrade\r\n") && request.contains("upgrade: websocket\r\n"),
        "{request}"
    );
    let answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nfrom member";
    served.write_all(answer).await.unwrap();
    let head = read_until(&mut client, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    read_until(&mut client, "from member").await;
    read_until(&mut served, "early").await;
    client.write_all(b"from client").await.unwrap();
    read_until(&mut served, "from client").await;
    let report = rig.report();
    assert_eq!(report.listeners[0].pool.as_ref().unwrap().members[0].active_connections, 1);
    drop(served);
    assert_eq!(soon(client.read(&mut [0; 1])).await.unwrap_or(0), 0);
    drop(client);
    rig.counted(|report| report.listeners[0].counters.active_connections == 0)
        .await;
}

#[tokio::test]
async fn the_next_member_gets_a_request_that_one_refuses() {
    let a = Web::new("a").await;
    let dead = MemberConfig::new("dead", nobody().await);
    let mut rig = Fixture::new(wanted([dead, a.member()])).await;
    for _ in 0..3 {
        assert!(get(&rig).await.1.starts_with("a "));
    }
    assert_eq!(rig.report().listeners[0].counters.request_errors, 0);
    rig.change_pool(|pool| pool.members.truncate(1)).await;
    assert!(get(&rig).await.0.starts_with("HTTP/1.1 503 "));
    rig.change(|config| config.listeners[0].pool = None).await;
    assert!(get(&rig).await.0.starts_with("HTTP/1.1 503 "));
    assert_eq!(rig.report().listeners[0].counters.request_errors, 2);
}

#[tokio::test]
async fn a_kept_connection_that_the_member_has_closed_is_replaced() {
    let member = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
    let rig = Fixture::new(wanted([MemberConfig::new("m", member.local_addr().unwrap())])).await;
    let serving = tokio::spawn(async move {
        for _ in 0..3 {
            let (mut stream, _) = member.accept().await.unwrap();
            read_until(&mut stream, "\r\n\r\n").await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await
                .unwrap();
        }
    });
    let mut client = TcpStream::connect(rig.address(0)).await.unwrap();
    for _ in 0..3 {
        let (head, body) = exchange(&mut client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 ") && body == "ok", "{head}");
    }
    serving.await.unwrap();
}

#[tokio::test]
async fn what_a_kept_connection_loses_is_asked_again_only_where_that_is_harmless() {
    for (method, status) in [("GET", "200"), ("POST", "502")] {
        let member = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
        let rig =
            Fixture::new(wanted([MemberConfig::new("m", member.local_addr().unwrap())])).await;
        let mut client = TcpStream::connect(rig.address(0)).await.unwrap();
        let request = format!("{method} / HTTP/1.1\r\nhost: a\r\n\r\n");
        let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        let (mut first, serving) = {
            let (_, (mut first, _)) = tokio::join!(client.write_all(request.as_bytes()), async {
                member.accept().await.unwrap()
            });
            read_until(&mut first, "\r\n\r\n").await;
            first.write_all(ok).await.unwrap();
            let serving = tokio::spawn(async move {
                let (mut second, _) = member.accept().await.unwrap();
                read_until(&mut second, "\r\n\r\n").await;
                second.write_all(ok).await.unwrap();
                second
            });
            (first, AbortOnDropHandle::new(serving))
        };
        read_until(&mut client, "ok").await;
        client.write_all(request.as_bytes()).await.unwrap();
        // It has the request and goes.
        read_until(&mut first, "\r\n\r\n").await;
        drop(first);
        let head = read_until(&mut client, "\r\n\r\n").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{method}: {head}");
        drop(serving);
    }
}

#[tokio::test]
async fn silence_and_nonsense_of_members_are_answered_for_them() {
    let member = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
    let mut config = wanted([MemberConfig::new("m", member.local_addr().unwrap())]);
    config.listeners[0].timeouts.member_data = Duration::from_millis(200);
    let rig = Fixture::new(config).await;
    let (answer, (mut served, _)) =
        tokio::join!(get(&rig), async { member.accept().await.unwrap() });
    assert!(answer.0.starts_with("HTTP/1.1 504 "), "{}", answer.0);
    read_until(&mut served, "\r\n\r\n").await;
    let nonsense = async {
        let (mut served, _) = member.accept().await.unwrap();
        // Before the request it would be no answer to it, and the request be another member's.
        read_until(&mut served, "\r\n\r\n").await;
        served.write_all(b"SSH-2.0-x\r\n").await.unwrap();
    };
    let (answer, ()) = tokio::join!(get(&rig), nonsense);
    assert!(answer.0.starts_with("HTTP/1.1 502 "), "{}", answer.0);
}

#[tokio::test]
async fn clients_that_wait_too_long_are_shown_out_and_those_that_wait_for_an_answer_are_not() {
    let a = Web::new("a").await;
    let mut config = wanted([a.member()]);
    config.listeners[0].timeouts.client_data = Duration::from_millis(300);
    let rig = Fixture::new(config).await;
    // Between two requests.
    let mut client = TcpStream::connect(rig.address(0)).await.unwrap();
    exchange(&mut client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(soon(client.read(&mut [0; 1])).await.unwrap_or(0), 0);
    // Within a head.
    let mut client = TcpStream::connect(rig.address(0)).await.unwrap();
    client.write_all(b"GET / HT").await.unwrap();
    soon(client.read_to_end(&mut Vec::new())).await.unwrap();
    // Within a body.
    let mut client = TcpStream::connect(rig.address(0)).await.unwrap();
    let (head, _) =
        exchange(&mut client, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nbody").await;
    assert!(head.starts_with("HTTP/1.1 408 "), "{head}");

    let member = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
    let mut rig = rig;
    rig.change_pool(|pool| {
        pool.members = vec![MemberConfig::new("m", member.local_addr().unwrap())];
    })
    .await;
    let slow = async {
        let (mut served, _) = member.accept().await.unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
        served
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            .await
            .unwrap();
    };
    let (answer, ()) = tokio::join!(get(&rig), slow);
    assert_eq!(answer.1, "ok");
}

#[tokio::test]
async fn what_is_no_request_is_refused_and_counted() {
    let a = Web::new("a").await;
    let rig = Fixture::new(wanted([a.member()])).await;
    for (request, status) in
        [("nonsense\r\n\r\n", "400"), ("CONNECT b:1 HTTP/1.1\r\nhost: b:1\r\n\r\n", "501")]
    {
        let mut client = TcpStream::connect(rig.address(0)).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        let head = read_until(&mut client, "\r\n\r\n").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
    rig.counted(|report| report.listeners[0].counters.request_errors == 2)
        .await;
}

#[tokio::test]
async fn members_of_proxy_pools_are_sent_the_header_first() {
    let member = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
    let mut config = wanted([MemberConfig::new("m", member.local_addr().unwrap())]);
    config.listeners[0].pool.as_mut().unwrap().protocol = PoolProtocol::Proxy;
    let rig = Fixture::new(config).await;
    let mut client = TcpStream::connect(rig.address(0)).await.unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let (mut served, _) = soon(member.accept()).await.unwrap();
    let head = read_until(&mut served, "\r\n\r\n").await;
    let from = client.local_addr().unwrap();
    let expected = format!("PROXY TCP4 {} {} {} ", from.ip(), rig.address(0).ip(), from.port());
    assert!(head.starts_with(&expected) && head.contains("\r\nGET / HTTP/1.1\r\n"), "{head}");
}

#[tokio::test]
async fn a_removed_listener_lets_a_request_end_and_keeps_no_idle_client() {
    let member = TcpListener::bind(SocketAddr::new(NODE, 0)).await.unwrap();
    let mut rig =
        Fixture::new(wanted([MemberConfig::new("m", member.local_addr().unwrap())])).await;
    let mut client = TcpStream::connect(rig.address(0)).await.unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let (mut served, _) = soon(member.accept()).await.unwrap();
    read_until(&mut served, "\r\n\r\n").await;
    rig.change(|config| config.listeners.clear()).await;
    served
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        .await
        .unwrap();
    let mut answer = String::new();
    soon(client.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
}

pub(super) fn certificate() -> TlsConfig {
    let made = rcgen::generate_simple_self_signed(["balancer.test".to_owned()]).unwrap();
    TlsConfig {
        certificate_chain: made.cert.pem(),
        private_key: made.signing_key.serialize_pem(),
    }
}

#[tokio::test]
async fn tls_ends_at_the_balancer() {
    let a = Web::new("a").await;
    let mut config = wanted([a.member()]);
    config.listeners[0].protocol = ListenerProtocol::TerminatedHttps;
    config.listeners[0].insert_headers.x_forwarded_proto = true;
    config.listeners[0].tls = Some(certificate());
    let mut rig = Fixture::new(config).await;
    let connect = async |rig: &Fixture| {
        let stream = TcpStream::connect(rig.address(0)).await.unwrap();
        let name = "balancer.test".try_into().unwrap();
        crate::dataplane::tls::unverified()
            .unwrap()
            .connect(name, stream)
            .await
            .unwrap()
    };
    let mut client = connect(&rig).await;
    let (_, body) = exchange(&mut client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(body, "a 1 GET / 0\nx-forwarded-proto: https\n");
    let shown = |client: &tokio_rustls::client::TlsStream<TcpStream>| {
        client.get_ref().1.peer_certificates().unwrap()[0]
            .as_ref()
            .to_vec()
    };
    let before = shown(&client);

    // Another certificate is for new connections; those there are go on.
    rig.change(|config| config.listeners[0].tls = Some(certificate()))
        .await;
    assert_ne!(shown(&connect(&rig).await), before);
    exchange(&mut client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;

    for broken in [None, Some(TlsConfig { certificate_chain: String::new(), ..certificate() })] {
        let report = rig.change(|config| config.listeners[0].tls = broken).await;
        let ListenerState::Failed(error) = &report.listeners[0].state else {
            panic!("{report:?}")
        };
        assert_eq!(error.kind, ListenErrorKind::Certificate);
    }
}

#[tokio::test]
async fn tls_passes_through_https_listeners_untouched() {
    let echo = Arc::new(Echo::new("a").await);
    let mut wanted = listener("l", pool([echo.member()]));
    wanted.protocol = ListenerProtocol::Https;
    wanted.pool.as_mut().unwrap().protocol = PoolProtocol::Https;
    let rig = Fixture::new(balancer([wanted])).await;
    let mut client = rig.connect().await;
    assert_eq!(client.name().await, "a");
    assert!(client.echoes().await);
}

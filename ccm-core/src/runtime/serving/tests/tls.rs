//! TLS, connections and limits, with a real client on loopback.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{Extension, Router, body::Body, routing::get};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, DigitallySignedStruct, NamedGroup, ProtocolVersion, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
};
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    sync::Notify,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

use super::pages::config;
use crate::runtime::serving::{PeerCertificates, Server, ServingErrors, connection::Limits};

/// More than any answer takes.
const SOON: Duration = Duration::from_secs(20);

/// What a client without TLS 1.3 speaks.
static OLD: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS12];

/// A certificate for a name, with its key.
struct Pair {
    certificate: String,
    key: String,
}

fn pair(name: &str) -> Pair {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec![name.to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    Pair { certificate: certificate.pem(), key: key.serialize_pem() }
}

impl Pair {
    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()
    }

    fn write(&self, directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) =
            (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")));
        std::fs::write(&certificate, &self.certificate).unwrap();
        std::fs::write(&key, &self.key).unwrap();
        (certificate, key)
    }
}

/// A directory of this test alone.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("ccm-serving-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn flag(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.0.join(name).display())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that runs until it is dropped.
struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    /// That the slow page was asked for.
    asked: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Binds any free port with these flags.
fn bind(flags: &[&str]) -> Result<Server, ServingErrors> {
    let flags: Vec<_> = ["--bind-address=127.0.0.1"]
        .iter()
        .chain(flags)
        .copied()
        .collect();
    Server::bind_port(&config(&flags).serving, 0)
}

fn run(server: Server) -> Running {
    let asked: Arc<Notify> = Arc::default();
    let slow = {
        let asked = asked.clone();
        move || {
            asked.notify_one();
            tokio::time::sleep(Duration::from_millis(500))
        }
    };
    let routes = Router::new()
        .route("/", get(async || "hello"))
        .route("/slow", get(slow))
        .route(
            "/peers",
            get(async |Extension(peer): Extension<PeerCertificates>| peer.0.len().to_string()),
        )
        .route("/echo", axum::routing::put(async |body: String| body));
    let (address, stop) = (server.address(), CancellationToken::new());
    Running {
        address,
        stop: stop.clone(),
        asked,
        task: tokio::spawn(server.run(routes, stop)),
    }
}

fn serve(flags: &[&str]) -> Running {
    run(bind(flags).unwrap())
}

/// Takes any certificate and remembers it.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A client that trusts anybody.
struct Client {
    provider: CryptoProvider,
    versions: &'static [&'static rustls::SupportedProtocolVersion],
    alpn: Vec<&'static str>,
    name: &'static str,
    identity: Option<Pair>,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            provider: ring::default_provider(),
            versions: rustls::ALL_VERSIONS,
            alpn: vec!["h2", "http/1.1"],
            name: "localhost",
            identity: None,
        }
    }
}

impl Client {
    async fn connect(self, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let provider = Arc::new(self.provider);
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(self.versions)
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(provider)));
        let mut config = match self.identity {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                builder
                    .with_client_auth_cert(vec![pair.der()], key)
                    .unwrap()
            }
        };
        config.alpn_protocols = self
            .alpn
            .iter()
            .map(|protocol| protocol.as_bytes().to_vec())
            .collect();
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from(self.name).unwrap();
        timeout(SOON, TlsConnector::from(Arc::new(config)).connect(name, stream)).await?
    }
}

async fn connect(running: &Running) -> TlsStream<TcpStream> {
    Client::default().connect(running.address).await.unwrap()
}

fn served(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0]
        .clone()
        .into_owned()
}

async fn request(
    stream: TlsStream<TcpStream>,
    request: Request<Body>,
) -> hyper::Result<Response<Incoming>> {
    let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let io = TokioIo::new(stream);
    if h2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
        tokio::spawn(connection);
        sender.send_request(request).await
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
        tokio::spawn(connection);
        sender.send_request(request).await
    }
}

async fn ask(stream: TlsStream<TcpStream>, path: &str) -> (StatusCode, String) {
    let uri = format!("https://localhost{path}");
    let response = request(stream, Request::get(uri).body(Body::empty()).unwrap())
        .await
        .unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn both_protocols_are_served_unless_one_is_off() {
    for (flags, alpn, chosen) in [
        (&[][..], vec!["h2", "http/1.1"], Some(&b"h2"[..])),
        (&[], vec!["http/1.1"], Some(b"http/1.1")),
        (&[], vec![], None),
        (&["--disable-http2-serving"], vec!["h2", "http/1.1"], Some(b"http/1.1")),
    ] {
        let running = serve(flags);
        let stream = Client { alpn, ..Client::default() }
            .connect(running.address)
            .await
            .unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), chosen, "{flags:?}");
        assert_eq!(ask(stream, "/").await, (StatusCode::OK, "hello".to_owned()));
    }
}

#[tokio::test]
async fn the_certificate_made_in_memory_is_for_loopback_and_the_bind_address() {
    let server = Server::bind_port(&config(&["--bind-address=127.0.0.2"]).serving, 0).unwrap();
    let running = run(server);
    let certificate = served(&connect(&running).await);
    let parsed = rustls::server::ParsedCertificate::try_from(&certificate).unwrap();
    let is_for = |name: &str| {
        rustls::client::verify_server_name(&parsed, &ServerName::try_from(name.to_owned()).unwrap())
            .is_ok()
    };
    for (name, expected) in [
        ("localhost", true),
        ("127.0.0.1", true),
        ("::1", true),
        ("127.0.0.2", true),
        ("127.0.0.3", false),
    ] {
        assert_eq!(is_for(name), expected, "{name}");
    }
}

#[tokio::test]
async fn the_lowest_version_is_the_one_asked_for() {
    for (flag, served) in [
        ("--tls-min-version=", true),
        ("--tls-min-version=VersionTLS10", true),
        ("--tls-min-version=VersionTLS12", true),
        ("--tls-min-version=VersionTLS13", false),
    ] {
        let running = serve(&[flag]);
        let result = Client { versions: OLD, ..Client::default() }
            .connect(running.address)
            .await;
        assert_eq!(result.is_ok(), served, "{flag}");
        let newest = connect(&running).await;
        assert_eq!(newest.get_ref().1.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    }
}

#[tokio::test]
async fn suites_and_groups_are_those_asked_for() {
    let suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    let running = serve(&[&format!("--tls-cipher-suites={suite}"), "--tls-curve-preferences=24"]);
    let stream = Client { versions: OLD, ..Client::default() }
        .connect(running.address)
        .await
        .unwrap();
    let negotiated = stream
        .get_ref()
        .1
        .negotiated_cipher_suite()
        .unwrap()
        .suite();
    assert_eq!(negotiated.as_str(), Some(suite));
    let group = stream
        .get_ref()
        .1
        .negotiated_key_exchange_group()
        .unwrap()
        .name();
    assert_eq!(group, NamedGroup::secp384r1);
    let mut provider = ring::default_provider();
    provider
        .cipher_suites
        .retain(|other| other.suite().as_str() != Some(suite));
    let refused = Client { provider, versions: OLD, ..Client::default() }
        .connect(running.address)
        .await;
    assert!(refused.is_err(), "no other suite of TLS 1.2 is served");
    assert!(
        connect(&running)
            .await
            .get_ref()
            .1
            .negotiated_cipher_suite()
            .unwrap()
            .tls13()
            .is_some()
    );
}

#[cfg(feature = "fips")]
fn is_chacha(suite: rustls::SupportedCipherSuite) -> bool {
    let name = suite.suite().as_str();
    name.is_some_and(|name| name.contains("CHACHA20"))
}

#[cfg(feature = "fips")]
#[tokio::test]
async fn a_fips_build_serves_only_what_is_approved() {
    let running = serve(&[]);
    let with = |limit: fn(&mut CryptoProvider)| {
        let mut provider = ring::default_provider();
        limit(&mut provider);
        Client { provider, ..Client::default() }.connect(running.address)
    };
    let chacha = with(|provider| {
        provider.cipher_suites.retain(|suite| is_chacha(*suite));
    });
    assert!(chacha.await.is_err());
    let x25519 = with(|provider| {
        provider
            .kx_groups
            .retain(|group| group.name() == NamedGroup::X25519);
    });
    assert!(x25519.await.is_err());
    // The client prefers both.
    let stream = with(|provider| {
        provider
            .cipher_suites
            .sort_by_key(|suite| !is_chacha(*suite));
    });
    let stream = stream.await.unwrap();
    let session = stream.get_ref().1;
    assert!(!is_chacha(session.negotiated_cipher_suite().unwrap()));
    let group = session.negotiated_key_exchange_group().unwrap().name();
    assert_eq!(group, NamedGroup::secp256r1);
}

#[tokio::test]
async fn the_certificate_is_chosen_by_the_name_asked_for() {
    let directory = Directory::new();
    let (main, named, wild, own) = (pair("main"), pair("x"), pair("y"), pair("own.example.com"));
    let flags: Vec<_> = [
        (&named, "named", ":a.example.com"),
        (&wild, "wild", ":*.example.com"),
        (&own, "own", ""),
    ]
    .into_iter()
    .map(|(pair, file, names)| {
        let (certificate, key) = pair.write(&directory.0, file);
        format!("--tls-sni-cert-key={},{}{names}", certificate.display(), key.display())
    })
    .collect();
    main.write(&directory.0, "main");
    let mut flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let files = [
        directory.flag("tls-cert-file", "main.crt"),
        directory.flag("tls-private-key-file", "main.key"),
    ];
    flags.extend(files.iter().map(String::as_str));
    let running = serve(&flags);
    for (name, pair) in [
        ("a.example.com", &named),
        ("A.example.com", &named),
        ("b.example.com", &wild),
        ("a.b.example.com", &main),
        ("example.com", &main),
        ("127.0.0.1", &main),
    ] {
        let stream = Client { name, ..Client::default() }
            .connect(running.address)
            .await
            .unwrap();
        assert_eq!(served(&stream), pair.der(), "{name}");
    }
    drop(running);
    let without_wildcard: Vec<_> = flags
        .iter()
        .copied()
        .filter(|flag| !flag.contains('*'))
        .collect();
    let running = serve(&without_wildcard);
    let stream = Client { name: "own.example.com", ..Client::default() }
        .connect(running.address)
        .await
        .unwrap();
    assert_eq!(served(&stream), own.der(), "without names those in the certificate count");
}

#[tokio::test]
async fn a_directory_gets_a_pair_once() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = Directory::new();
    let flag = directory.flag("cert-dir", "deep/inside");
    let first = served(&connect(&serve(&[&flag])).await);
    let file = |name: &str| directory.0.join("deep/inside").join(name);
    let mode = std::fs::metadata(file("cloud-controller-manager.key"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(served(&connect(&serve(&[&flag])).await), first, "it is read, not made again");
    std::fs::remove_file(file("cloud-controller-manager.crt")).unwrap();
    let error = bind(&[&flag]).unwrap_err().to_string();
    assert!(
        error.starts_with("--cert-dir: read the certificate ") && error.contains("No such file"),
        "{error}"
    );
    assert!(!file("cloud-controller-manager.crt").exists(), "nothing is put beside somebody's key");
}

#[tokio::test]
async fn everything_that_is_wrong_is_said_at_once() {
    let directory = Directory::new();
    let (one, two) = (pair("one"), pair("two"));
    one.write(&directory.0, "one");
    two.write(&directory.0, "two");
    std::fs::write(directory.0.join("empty.crt"), "").unwrap();
    let running = serve(&[]);
    let port = running.address.port();
    let taken = config(&[
        "--bind-address=127.0.0.1",
        &directory.flag("tls-cert-file", "one.crt"),
        &directory.flag("tls-private-key-file", "two.key"),
        &format!(
            "{},{}",
            directory.flag("tls-sni-cert-key", "none.crt"),
            directory.0.join("one.key").display()
        ),
        &format!(
            "{},{}",
            directory.flag("tls-sni-cert-key", "empty.crt"),
            directory.0.join("one.key").display()
        ),
        &format!(
            "{},{}",
            directory.flag("tls-sni-cert-key", "one.crt"),
            directory.0.join("empty.crt").display()
        ),
    ]);
    let text = Server::bind_port(&taken.serving, port)
        .unwrap_err()
        .to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    let listen =
        format!("--secure-port={port}, --bind-address=127.0.0.1: listen on 127.0.0.1:{port}: ");
    assert!(lines[0].starts_with(&listen) && lines[0].contains("in use"), "{text}");
    for (line, (flag, what)) in lines[1..].iter().zip([
        ("--tls-cert-file: use the certificate with its key", "one.crt"),
        ("--tls-sni-cert-key: read the certificate", "none.crt: No such file"),
        ("--tls-sni-cert-key: use the certificate", "empty.crt: there is none in the file"),
        ("--tls-sni-cert-key: use the key", "empty.crt: there is no private key in the file"),
    ]) {
        assert!(line.starts_with(flag) && line.contains(what), "{flag} {what}: {line}");
    }
}

#[tokio::test]
async fn a_changed_pair_is_served_and_a_bad_one_is_not() {
    let directory = Directory::new();
    let (first, second) = (pair("first"), pair("second"));
    first.write(&directory.0, "tls");
    let flags = [
        directory.flag("tls-cert-file", "tls.crt"),
        directory.flag("tls-private-key-file", "tls.key"),
    ];
    let server = bind(&[&flags[0], &flags[1]]).unwrap();
    let (certificates, provider) = (server.certificates.clone(), server.provider.clone());
    let running = run(server);
    let now_served = async || {
        certificates.refresh(&provider);
        served(&connect(&running).await)
    };
    assert_eq!(now_served().await, first.der());
    std::fs::write(directory.0.join("tls.crt"), &second.certificate).unwrap();
    assert_eq!(now_served().await, first.der(), "the key is not there yet");
    std::fs::write(directory.0.join("tls.key"), &second.key).unwrap();
    assert_eq!(now_served().await, second.der());
    std::fs::write(directory.0.join("tls.crt"), "rubbish").unwrap();
    assert_eq!(now_served().await, second.der());
    std::fs::remove_file(directory.0.join("tls.crt")).unwrap();
    assert_eq!(now_served().await, second.der());
    first.write(&directory.0, "tls");
    assert_eq!(now_served().await, first.der());
}

/// The same with the server's own clock, which is virtual: nothing but the files is looked at.
#[tokio::test(start_paused = true)]
async fn files_are_looked_at_every_few_seconds() {
    let directory = Directory::new();
    let (first, second) = (pair("first"), pair("second"));
    first.write(&directory.0, "tls");
    let flags = [
        directory.flag("tls-cert-file", "tls.crt"),
        directory.flag("tls-private-key-file", "tls.key"),
    ];
    let server = bind(&[&flags[0], &flags[1]]).unwrap();
    let certificates = server.certificates.clone();
    let running = run(server);
    tokio::time::sleep(Duration::from_secs(60)).await;
    second.write(&directory.0, "tls");
    assert_eq!(certificates.choose("").cert[0], first.der());
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(certificates.choose("").cert[0], second.der());
    drop(running);
}

#[tokio::test]
async fn a_client_certificate_is_asked_for_and_handed_on() {
    let running = serve(&[]);
    assert_eq!(ask(connect(&running).await, "/peers").await.1, "0", "none is demanded");
    let client = Client { identity: Some(pair("anybody")), ..Client::default() };
    let stream = client.connect(running.address).await.unwrap();
    assert_eq!(ask(stream, "/peers").await.1, "1");
    // Somebody else's certificate: the key does not fit.
    let stolen = Pair {
        certificate: pair("admin").certificate,
        key: pair("thief").key,
    };
    let provider = ring::default_provider();
    let key = PrivateKeyDer::from_pem_slice(stolen.key.as_bytes()).unwrap();
    let signer = provider.key_provider.load_private_key(key).unwrap();
    let certified = rustls::sign::CertifiedKey::new(vec![stolen.der()], signer);
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(Arc::new(provider))))
        .with_client_cert_resolver(Arc::new(Thief(Arc::new(certified))));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let tcp = TcpStream::connect(running.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let answer = match TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await
    {
        // In TLS 1.3 the client learns of the refusal with its first read.
        Ok(mut stream) => stream.read_u8().await.map(drop),
        Err(error) => Err(error),
    };
    assert!(answer.is_err());
}

/// Presents a certificate whose key it does not have.
#[derive(Debug)]
struct Thief(Arc<rustls::sign::CertifiedKey>);

impl rustls::client::ResolvesClientCert for Thief {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn requests_that_were_begun_are_answered_when_the_server_ends() {
    let mut running = serve(&[]);
    let stream = connect(&running).await;
    let _idle = connect(&running).await;
    let slow = tokio::spawn(async move { ask(stream, "/slow").await.0 });
    timeout(SOON, running.asked.notified()).await.unwrap();
    let begin = Instant::now();
    running.stop.cancel();
    timeout(SOON, &mut running.task).await.unwrap().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert_eq!(slow.await.unwrap(), StatusCode::OK);
    assert!(TcpStream::connect(running.address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn large_bodies_slow_callers_and_too_many_are_turned_away() {
    let mut server = bind(&[]).unwrap();
    server.limits = Limits {
        per_address: 3,
        handshake: Duration::from_millis(300),
        header: Duration::from_millis(300),
        answer: Duration::from_millis(100),
        ..Limits::default()
    };
    let running = run(server);
    let put = |size: usize| {
        Request::put("https://localhost/echo")
            .body(Body::from("x".repeat(size)))
            .unwrap()
    };
    for (size, status) in
        [(64 * 1024, StatusCode::OK), (64 * 1024 + 1, StatusCode::PAYLOAD_TOO_LARGE)]
    {
        let http1 = Client { alpn: vec!["http/1.1"], ..Client::default() };
        let stream = http1.connect(running.address).await.unwrap();
        assert_eq!(request(stream, put(size)).await.unwrap().status(), status);
    }
    assert_eq!(ask(connect(&running).await, "/slow").await.0, StatusCode::SERVICE_UNAVAILABLE);
    // One says nothing at all, one nothing after the handshake.
    let mut mute = TcpStream::connect(running.address).await.unwrap();
    let read = timeout(SOON, mute.read(&mut [0; 16])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    let http1 = Client { alpn: vec!["http/1.1"], ..Client::default() };
    let mut shy = http1.connect(running.address).await.unwrap();
    let read = timeout(SOON, shy.read(&mut [0; 256])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    // Those before may not have left quite yet.
    let deadline = Instant::now() + SOON;
    let held = Mutex::new(Vec::new());
    loop {
        let taken = connect_to(running.address).await;
        match taken {
            Some(stream) => held.lock().push(stream),
            None if held.lock().len() == 3 => break,
            None => {}
        }
        assert!(Instant::now() < deadline && held.lock().len() <= 3, "{}", held.lock().len());
    }
}

async fn connect_to(address: SocketAddr) -> Option<TlsStream<TcpStream>> {
    Client::default().connect(address).await.ok()
}

#[tokio::test]
async fn no_port_no_server() {
    assert!(
        Server::bind(&config(&["--secure-port=0"]).serving)
            .unwrap()
            .is_none()
    );
    let taken = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let text = Server::bind(&config(&[&format!("--secure-port={port}")]).serving)
        .unwrap_err()
        .to_string();
    assert!(text.starts_with(&format!(
        "--secure-port={port}, --bind-address=0.0.0.0: listen on 0.0.0.0:{port}: "
    )));
}

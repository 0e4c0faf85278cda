//! The transport over sockets, against small servers on loopback.

use std::{net::SocketAddr, path::Path};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::config::{ClientPair, Cloud, Tls};

/// An authority.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate and its key.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()])
            .unwrap()
            .signed_by(&key, &self.issuer)
            .unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// A server that this authority signed; with `clients`, for those alone that the other one
    /// signed.
    fn server(&self, clients: Option<&Ca>) -> Arc<ServerConfig> {
        let (certificate, key) = self.sign("127.0.0.1");
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let mut roots = RootCertStore::empty();
                roots
                    .add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap())
                    .unwrap();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        Arc::new(
            builder
                .with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
                .unwrap(),
        )
    }
}

/// A server that reads one request of each connection, says always the same, and hangs up.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) heads: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(super) async fn start(tls: Option<Arc<ServerConfig>>, says: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, heads) =
            (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let seen = heads.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                match &tls {
                    None => speak(stream, says, &seen).await,
                    Some(config) => {
                        if let Ok(stream) = TlsAcceptor::from(config.clone()).accept(stream).await {
                            speak(stream, says, &seen).await;
                        }
                    }
                }
            }
        });
        Self { address, heads, task }
    }

    pub(super) fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}/v3?secret=1", self.address)
    }
}

async fn speak(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    says: &str,
    seen: &Mutex<Vec<String>>,
) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).await.is_ok_and(|read| read > 0) {
        head.push(byte[0]);
    }
    if says.is_empty() {
        // Never an answer; until the client gives up.
        while stream.read(&mut byte).await.is_ok_and(|read| read > 0) {}
        return;
    }
    seen.lock()
        .push(String::from_utf8_lossy(&head).into_owned());
    // The client may have gone already.
    let _ = stream.write_all(says.as_bytes()).await;
    let _ = stream.shutdown().await;
}

pub(super) const GOOD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";

pub(super) fn https(tls: Tls) -> Https {
    let local = cloud();
    let cloud = Cloud {
        tls,
        request_timeout: Duration::from_millis(800),
        ..Cloud::new(auth(&local, "demo"))
    };
    Https::new(&cloud, &[])
        .unwrap_or_else(|error| panic!("{}", chain(&error)))
        .with_constant_checks()
}

fn trusting(folder: &Path, ca: &Ca) -> Tls {
    let file = folder.join("ca.pem");
    std::fs::write(&file, &ca.pem).unwrap();
    Tls { ca_file: Some(file), ..Tls::default() }
}

pub(super) async fn ask(https: &Https, url: &str) -> Result<Response<Bytes>, TransportError> {
    https
        .send(http::Request::get(url).body(Bytes::new()).unwrap())
        .await
}

#[tokio::test]
async fn the_authorities_of_the_file_are_trusted_and_no_others() {
    let (folder, ca, other) = (tempfile::tempdir().unwrap(), Ca::new(), Ca::new());
    let server = Server::start(Some(ca.server(None)), GOOD).await;
    let url = server.url("https");
    let https = https(trusting(folder.path(), &ca));
    assert_eq!(ask(&https, &url).await.unwrap().into_body(), "{}");
    // The authority changes, and so do what is trusted and what is not.
    trusting(folder.path(), &other);
    let error = ask(&https, &url).await.unwrap_err();
    assert!(chain(&error).contains("invalid peer certificate"), "{}", chain(&error));
    assert_eq!(
        (error.maybe_sent, error.to_string()),
        (false, format!("no connection to https://{}", server.address))
    );
    assert!(!chain(&error).contains("secret"), "{}", chain(&error));
    // Half-written: what was read last stays.
    std::fs::write(folder.path().join("ca.pem"), "-----BEGIN").unwrap();
    let error = ask(&https, &url).await.unwrap_err();
    assert!(chain(&error).contains("invalid peer certificate"), "{}", chain(&error));
    trusting(folder.path(), &ca);
    ask(&https, &url).await.unwrap();
}

/// A server with a self-signed certificate that calls itself an authority, as `openssl req -x509`
/// makes it.
fn self_signed(name: &str, is_expired: bool) -> (Arc<ServerConfig>, String) {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    if is_expired {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    }
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (Arc::new(config), certificate.pem())
}

#[tokio::test]
async fn a_self_signed_certificate_in_the_file_is_good_for_its_own_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let tls = Tls { ca_file: Some(file.clone()), ..Tls::default() };
    let other = self_signed("127.0.0.1", false).1;
    let cases = [
        ("127.0.0.1", false, true, true),
        ("127.0.0.1", false, false, false),
        ("127.0.0.2", false, true, false),
        ("127.0.0.1", true, true, false),
    ];
    for (name, is_expired, is_in_file, is_good) in cases {
        let (config, pem) = self_signed(name, is_expired);
        let own = if is_in_file { &*pem } else { "" };
        std::fs::write(&file, format!("{other}{own}")).unwrap();
        let server = Server::start(Some(config), GOOD).await;
        let result = ask(&https(tls.clone()), &server.url("https")).await;
        assert_eq!(result.is_ok(), is_good, "{name} {is_expired} {is_in_file}");
        if let Err(error) = result {
            assert!(chain(&error).contains("invalid peer certificate"), "{}", chain(&error));
        }
    }
}

#[tokio::test]
async fn without_checks_any_server_is_good() {
    let server = Server::start(Some(Ca::new().server(None)), GOOD).await;
    let careful = ask(&https(Tls::default()), &server.url("https"))
        .await
        .unwrap_err();
    assert!(chain(&careful).contains("invalid peer certificate"), "{}", chain(&careful));
    ask(&https(Tls { insecure: true, ..Tls::default() }), &server.url("https"))
        .await
        .unwrap();
}

#[tokio::test]
async fn the_client_certificate_is_shown_and_may_be_rotated() {
    let (folder, ca, clients) = (tempfile::tempdir().unwrap(), Ca::new(), Ca::new());
    let server = Server::start(Some(ca.server(Some(&clients))), GOOD).await;
    let url = server.url("https");
    let tls = trusting(folder.path(), &ca);
    ask(&https(tls.clone()), &url).await.unwrap_err();
    let pair = ClientPair {
        cert: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
    };
    let write = |(certificate, key): (String, String)| {
        std::fs::write(&pair.cert, certificate).unwrap();
        std::fs::write(&pair.key, key).unwrap();
    };
    write(Ca::new().sign("somebody"));
    let https = https(Tls { client: Some(pair.clone()), ..tls });
    ask(&https, &url).await.unwrap_err();
    write(clients.sign("us"));
    ask(&https, &url).await.unwrap();
}

#[tokio::test]
async fn files_that_cannot_be_used_keep_it_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let local = cloud();
    let refused = |tls: Tls, agents: &[String]| {
        let cloud = Cloud { tls, ..Cloud::new(auth(&local, "demo")) };
        chain(&Https::new(&cloud, agents).unwrap_err())
    };
    let file = folder.path().join("x.pem");
    let ca = |file: &Path| Tls { ca_file: Some(file.to_owned()), ..Tls::default() };
    assert!(
        refused(ca(&file), &[])
            .starts_with(&format!("read ca-file {}: No such file", file.display()))
    );
    std::fs::write(&file, "hunter2").unwrap();
    assert_eq!(refused(ca(&file), &[]), format!("ca-file {} holds no certificate", file.display()));
    let cert = folder.path().join("cert.pem");
    std::fs::write(&cert, Ca::new().pem).unwrap();
    let client = Some(ClientPair { cert, key: file.clone() });
    let expected =
        format!("key-file {} holds no private key in PEM without password", file.display());
    assert_eq!(refused(Tls { client, ..Tls::default() }, &[]), expected);
    let agents = ["a\nb".to_owned()];
    assert_eq!(
        refused(Tls::default(), &agents),
        "--user-agent \"a\\nb\" cannot be sent in a header"
    );
}

#[tokio::test]
async fn answers_that_end_early_are_no_answers() {
    let cases = [
        ("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"ports\": [", "was cut short"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"a\":", "was cut short"),
        ("HTTP/1.1 200 OK\r\nconte", "broke the connection off"),
        ("", "did not answer within 800ms"),
    ];
    for (says, expected) in cases {
        let server = Server::start(None, says).await;
        let error = ask(&https(Tls::default()), &server.url("http"))
            .await
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(expected) && text.contains(&server.address.to_string()),
            "{says:?}: {}",
            chain(&error)
        );
        assert!(error.maybe_sent, "a change may have been made");
        assert!(!chain(&error).contains("secret"), "{}", chain(&error));
    }
}

#[tokio::test]
async fn nobody_there_is_surely_nothing_sent() {
    let address = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let error = ask(&https(Tls::default()), &format!("http://{address}/"))
        .await
        .unwrap_err();
    assert_eq!(
        (error.maybe_sent, error.to_string()),
        (false, format!("no connection to http://{address}"))
    );
}

#[tokio::test]
async fn redirections_are_answers() {
    let elsewhere = Server::start(None, GOOD).await;
    let says = format!(
        "HTTP/1.1 302 Found\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n",
        elsewhere.url("http")
    );
    let server = Server::start(None, String::leak(says)).await;
    let response = ask(&https(Tls::default()), &server.url("http"))
        .await
        .unwrap();
    assert_eq!((response.status(), elsewhere.heads.lock().len()), (StatusCode::FOUND, 0));
}

#[tokio::test]
async fn user_agents_go_before_our_own_the_last_first() {
    let server = Server::start(None, GOOD).await;
    let local = cloud();
    let agents = ["one".to_owned(), "two (x y)".to_owned()];
    let https = Https::new(&Cloud::new(auth(&local, "demo")), &agents).unwrap();
    ask(&https, &server.url("http")).await.unwrap();
    let head = server.heads.lock().concat();
    let expected =
        concat!("user-agent: two (x y) one ccm-openstack/v", env!("CARGO_PKG_VERSION"), "\r\n");
    assert!(head.to_lowercase().contains(expected), "{head}");
}

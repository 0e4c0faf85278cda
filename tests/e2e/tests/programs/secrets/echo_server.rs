//! An API server that lets a process begin, refuses everything else, and repeats what it was sent.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};
use tokio_rustls::TlsAcceptor;

/// A client's certificate with its key, in PEM.
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

/// A running server. Dropping it ends it.
pub(crate) struct EchoServer {
    port: u16,
    ca: String,
    issuer: Issuer<'static, KeyPair>,
    shared: Arc<EchoInner>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct EchoInner {
    /// Requests that were refused, as they came.
    refused: Mutex<Vec<String>>,
    /// Connections of clients that proved to have the key of a certificate.
    certified: AtomicUsize,
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EchoServer {
    pub(crate) async fn start() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&ca_key).unwrap();
        let issuer = Issuer::new(params, ca_key);
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let clients = clients.allow_unauthenticated().build().unwrap();
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()])
            .unwrap()
            .signed_by(&key, &issuer)
            .unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = config
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(EchoInner::default());
        let task =
            tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(config)), shared.clone()));
        Self { port, ca: ca.pem(), issuer, shared, task }
    }

    /// Makes a certificate that it takes.
    pub(crate) fn client(&self) -> Pair {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Pair {
            cert: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    /// The entry of a kubeconfig.
    pub(crate) fn cluster(&self) -> Value {
        let server = format!("https://127.0.0.1:{}", self.port);
        json!({"server": server, "certificate-authority-data": STANDARD.encode(&self.ca)})
    }

    /// Requests that were refused so far, as they came.
    pub(crate) fn refused(&self) -> String {
        self.shared.refused.lock().concat()
    }

    /// How many connections there were of clients with a certificate.
    pub(crate) fn certified(&self) -> usize {
        self.shared.certified.load(Ordering::SeqCst)
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<EchoInner>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, shared) = (acceptor.clone(), shared.clone());
        connections.spawn(async move {
            // A client that goes away is none of the test's business.
            let _ = connection(stream, acceptor, &shared).await;
        });
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    shared: &EchoInner,
) -> std::io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    if stream.get_ref().1.peer_certificates().is_some() {
        shared.certified.fetch_add(1, Ordering::SeqCst);
    }
    let mut read = Vec::new();
    loop {
        while let Some((request, length)) = whole(&read) {
            read.drain(..length);
            let (status, kind, body) = answer(&request, shared);
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all((head + &body).as_bytes()).await?;
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
    }
}

/// The first request, and its length; `None` while it is not whole.
fn whole(read: &[u8]) -> Option<(String, usize)> {
    let text = String::from_utf8_lossy(read);
    let (head, _) = text.split_once("\r\n\r\n")?;
    let of_body = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length:")?
            .trim()
            .parse()
            .ok()
    });
    let length = head.len() + 4 + of_body.unwrap_or(0);
    (read.len() >= length).then(|| (String::from_utf8_lossy(&read[..length]).into_owned(), length))
}

fn answer(request: &str, shared: &EchoInner) -> (u16, &'static str, String) {
    let path = request.split(' ').nth(1).unwrap_or_default();
    if ["/healthz", "/livez", "/readyz", "/version"]
        .iter()
        .any(|open| path.starts_with(open))
    {
        return (200, "text/plain", "ok".to_owned());
    }
    let words = format!("refused {request}");
    let count = {
        let mut refused = shared.refused.lock();
        refused.push(words.clone());
        refused.len()
    };
    let status = [401, 403, 500][count % 3];
    // As the server itself says it, and as something in front of it does.
    if count % 2 == 0 {
        return (status, "text/plain", words);
    }
    let said = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": words, "reason": "X", "code": status});
    (status, "application/json", said.to_string())
}

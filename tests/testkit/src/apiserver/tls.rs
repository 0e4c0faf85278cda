//! The server over TLS on a socket, for other processes: HTTP/1.1 and HTTP/2, bearer tokens.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::client::ClientIdentity;
use super::{ApiServer, Match};

/// Time for which a stop waits for connections to end by themselves.
const GRACE: Duration = Duration::from_secs(3);

/// Time a client has for its TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Reason why the server could not listen on a socket.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Cause of the failure.
        source: io::Error,
    },
    /// No certificate could be made.
    #[error("make a serving certificate")]
    Certificate(#[from] rcgen::Error),
    /// The certificate is not usable.
    #[error("set up TLS")]
    Tls(#[from] rustls::Error),
}

/// A server on a socket. Owns its tasks: dropping it ends them at once, [`stop`](Self::stop) lets
/// requests finish.
#[derive(Debug)]
pub struct Serving {
    server: ApiServer,
    address: SocketAddr,
    ca_pem: String,
    tasks: Tasks,
}

impl ApiServer {
    /// Serves on `address` (port 0: any free one) with a certificate made for loopback.
    ///
    /// # Errors
    /// The address is taken, or the certificate could not be made.
    pub async fn serve(&self, address: SocketAddr) -> Result<Serving, ServeError> {
        let listen = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let identity = Identity::new(address)?;
        let tasks = Tasks::default();
        tasks.spawn(accept(listener, identity.acceptor, self.clone(), tasks.clone()));
        Ok(Serving {
            server: self.clone(),
            address,
            ca_pem: identity.ca_pem,
            tasks,
        })
    }
}

impl Serving {
    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL, `https://host:port`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Returns the certificate authority to trust, in PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Returns a kubeconfig with this bearer token.
    pub fn kubeconfig(&self, token: &str) -> String {
        let cluster = json!({"server": self.url(), "certificate-authority-data": STANDARD.encode(&self.ca_pem)});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "embedded",
            "clusters": [{"name": "embedded", "cluster": cluster}],
            "users": [{"name": "embedded", "user": {"token": token}}],
            "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "embedded"}}],
        });
        // JSON is YAML; pretty, because people open it.
        format!("{config:#}\n")
    }

    /// Writes the administrator's kubeconfig, readable by the owner alone.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_kubeconfig(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.write_kubeconfig_for(path, self.server.admin_token())
    }

    /// Writes a kubeconfig with this bearer token, readable by the owner alone.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_kubeconfig_for(&self, path: impl AsRef<Path>, token: &str) -> io::Result<()> {
        use std::io::Write as _;
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options
            .open(path)?
            .write_all(self.kubeconfig(token).as_bytes())
    }

    /// Stops accepting connections, ends watches, lets requests finish for up to three seconds, and
    /// then closes all connections.
    pub async fn stop(self) {
        self.tasks.stopping.cancel();
        self.server.faults().close_watches(&Match::any());
        self.tasks.tracker.close();
        let _ = tokio::time::timeout(GRACE, self.tasks.tracker.wait()).await;
        self.tasks.killed.cancel();
        self.tasks.tracker.wait().await;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.tasks.stopping.cancel();
        self.tasks.killed.cancel();
    }
}

/// All tasks of one [`Serving`], those that hyper starts for HTTP/2 streams included.
#[derive(Debug, Clone, Default)]
struct Tasks {
    tracker: TaskTracker,
    /// Ask connections to finish.
    stopping: CancellationToken,
    /// End tasks where they stand.
    killed: CancellationToken,
}

impl Tasks {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let killed = self.killed.clone();
        self.tracker.spawn(async move {
            killed.run_until_cancelled(task).await;
        });
    }
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        self.spawn(async move {
            future.await;
        });
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, server: ApiServer, tasks: Tasks) {
    while let Some(accepted) = tasks.stopping.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                tasks.spawn(connection(stream, acceptor.clone(), server.clone(), tasks.clone()));
            }
            Err(error) => {
                // Out of file descriptors, most likely: it passes.
                tracing::warn!(%error, "the embedded API server could not accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, server: ApiServer, tasks: Tasks) {
    // Small answers must not wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake took too long"),
    };
    let service = server.map_request(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(ClientIdentity::Network);
        request
    });
    let mut builder = Builder::new(tasks.clone());
    builder.http1().timer(TokioTimer::new());
    builder.http2().timer(TokioTimer::new());
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = tasks.stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // Scripted faults end connections this way.
        tracing::debug!(%error, "connection ended");
    }
}

struct Identity {
    acceptor: TlsAcceptor,
    ca_pem: String,
}

impl Identity {
    fn new(address: SocketAddr) -> Result<Self, ServeError> {
        let mut ca = CertificateParams::new(Vec::<String>::new())?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name
            .push(DnType::CommonName, "embedded-api-server-ca");
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_key = KeyPair::generate()?;
        let ca_pem = ca.self_signed(&ca_key)?.pem();
        let issuer = Issuer::new(ca, ca_key);

        let names = [
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "::1".to_owned(),
            address.ip().to_string(),
        ];
        let mut leaf = CertificateParams::new(names.to_vec())?;
        leaf.distinguished_name
            .push(DnType::CommonName, "embedded-api-server");
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Go's verifier wants it once the issuer has a key identifier.
        leaf.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &issuer)?;

        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), ca_pem })
    }
}

//! Files that change, with a TLS server on loopback.

use std::{convert::Infallible, net::SocketAddr, path::Path};

use http::{Request, Response, header};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use rustls::{ServerConfig, server::WebPkiClientVerifier};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    config::{
        KubeClientConfig, Product,
        kubeconfig::{
            ClientConfigError,
            connect::{self, HttpVersions},
            in_cluster, load,
        },
    },
    error::chain,
    telemetry::{log_capture::LogCapture, logging},
};

/// More than any answer takes.
const SOON: Duration = Duration::from_secs(20);

/// Who signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, as PEM.
struct Pair {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, uuid::Uuid::new_v4().to_string());
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn pair(&self, usage: ExtendedKeyUsagePurpose) -> Pair {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        Pair {
            certificate: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    fn client(&self) -> Pair {
        self.pair(ExtendedKeyUsagePurpose::ClientAuth)
    }
}

impl Pair {
    fn chain(&self) -> Vec<CertificateDer<'static>> {
        certificates(self.certificate.as_bytes()).unwrap()
    }
}

/// What the server saw of a request.
#[derive(Clone, Debug)]
struct Seen {
    connection: usize,
    certificate: Option<CertificateDer<'static>>,
    authorization: Option<String>,
}

/// An API server with certificates of its own choice.
struct Server {
    address: SocketAddr,
    clients: Authority,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    tls: Mutex<Arc<ServerConfig>>,
    seen: Mutex<Vec<Seen>>,
    /// Connections that are open.
    open: watch::Sender<usize>,
    /// Ends the answer to `/watch`, whose head is sent at once.
    end: Notify,
}

impl Server {
    /// Serves with a certificate of this authority.
    async fn start(authority: &Authority) -> Self {
        let clients = Authority::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            tls: Mutex::new(tls(authority, &clients)),
            seen: Mutex::default(),
            open: watch::Sender::new(0),
            end: Notify::new(),
        });
        let of_task = shared.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            for number in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(of_task.clone().connection(number, stream));
            }
        });
        Self { address, clients, shared, task }
    }

    /// Has new connections see a certificate of this authority.
    fn signed_by(&self, authority: &Authority) {
        *self.shared.tls.lock() = tls(authority, &self.clients);
    }

    fn last(&self) -> Seen {
        self.shared.seen.lock().last().unwrap().clone()
    }

    /// Waits until so many connections are open.
    async fn open(&self, count: usize) {
        let mut open = self.shared.open.subscribe();
        timeout(SOON, open.wait_for(|open| *open == count))
            .await
            .expect("connections stay open")
            .unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn tls(authority: &Authority, clients: &Authority) -> Arc<ServerConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(clients.0.der().clone()).unwrap();
    let provider = Arc::new(crypto::provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let pair = authority.pair(ExtendedKeyUsagePurpose::ServerAuth);
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier);
    Arc::new(config.with_single_cert(pair.chain(), key).unwrap())
}

impl Shared {
    async fn connection(self: Arc<Self>, number: usize, stream: TcpStream) {
        let acceptor = TlsAcceptor::from(self.tls.lock().clone());
        let Ok(stream) = acceptor.accept(stream).await else {
            return;
        };
        let certificate = stream
            .get_ref()
            .1
            .peer_certificates()
            .map(|chain| chain[0].clone().into_owned());
        self.open.send_modify(|open| *open += 1);
        let answer = service_fn(|request| {
            std::future::ready(Ok::<_, Infallible>(self.clone().answer(
                number,
                certificate.clone(),
                &request,
            )))
        });
        // It ends with an error when the client just goes.
        let _ = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), answer)
            .await;
        self.open.send_modify(|open| *open -= 1);
    }

    fn answer(
        self: Arc<Self>,
        connection: usize,
        certificate: Option<CertificateDer<'static>>,
        request: &Request<Incoming>,
    ) -> Response<axum::body::Body> {
        let authorization = request.headers().get(header::AUTHORIZATION);
        let authorization = authorization.map(|value| value.to_str().unwrap().to_owned());
        self.seen
            .lock()
            .push(Seen { connection, certificate, authorization });
        if request.uri().path() == "/watch" {
            let end = futures::stream::once(async move {
                self.end.notified().await;
                Ok::<_, Infallible>("end")
            });
            return Response::new(axum::body::Body::from_stream(end));
        }
        Response::new("ok".into())
    }
}

/// A kubeconfig and its files, in a directory of its own.
struct Files {
    directory: tempfile::TempDir,
    server: SocketAddr,
}

impl Files {
    fn new(server: &Server, authority: &Authority) -> Self {
        let files = Self {
            directory: tempfile::tempdir().unwrap(),
            server: server.address,
        };
        files.write("ca.crt", &authority.pem());
        files
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).unwrap();
    }

    fn write_pair(&self, pair: &Pair) {
        self.write("client.crt", &pair.certificate);
        self.write("client.key", &pair.key);
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Loads a kubeconfig whose user "u" of cluster "k" has this.
    async fn load(&self, user: &str) -> Result<ClientConfig, ClientConfigError> {
        let server = self.server;
        self.write(
            "kubeconfig",
            &format!(
                "{{current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}], clusters: [{{name: k, \
                 cluster: {{server: 'https://{server}', certificate-authority: ca.crt}}}}], users: [{{name: u, user: {user}}}]}}"
            ),
        );
        let path = Some(self.path().join("kubeconfig"));
        let flags = KubeClientConfig { kubeconfig: path, ..KubeClientConfig::default() };
        load(&flags, &Product::new("ccm-test", "v1.2.3", &["mock"]), "x").await
    }

    async fn client(&self, user: &str) -> kube::Client {
        connect::client(&self.load(user).await.unwrap(), HttpVersions::Any).unwrap()
    }
}

const CERTIFIED: &str = "{client-certificate: client.crt, client-key: client.key}";

/// Sends a request; the answer's body is still to come.
async fn send(client: &kube::Client, path: &str) -> Result<Response<Body>, String> {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let sent = async { client.send(request).await.map_err(|error| chain(&error)) };
    timeout(SOON, sent).await.expect("no answer")
}

/// Sends a request; returns what went wrong.
async fn ask(client: &kube::Client, path: &str) -> Result<(), String> {
    send(client, path)
        .await?
        .into_body()
        .collect()
        .await
        .map(drop)
        .map_err(|error| error.to_string())
}

/// Has so much time go by that files are read again.
async fn later() {
    tokio::time::pause();
    tokio::time::advance(RELOAD_INTERVAL).await;
    tokio::time::resume();
}

/// Takes what this thread logs.
fn captured() -> (LogCapture, tracing::dispatcher::DefaultGuard) {
    let log = LogCapture::default();
    let writer = log.clone();
    let config = crate::config::LoggingConfig { verbosity: 10, ..Default::default() };
    let (dispatch, _) = logging::dispatch(&config, move || writer.clone());
    (log, tracing::dispatcher::set_default(&dispatch))
}

#[tokio::test]
async fn a_new_client_certificate_is_presented_and_connections_with_the_old_one_are_closed() {
    let authority = Authority::new();
    let server = Server::start(&authority).await;
    let files = Files::new(&server, &authority);
    let (old, new) = (server.clients.client(), server.clients.client());
    files.write_pair(&old);
    let client = files.client(CERTIFIED).await;
    ask(&client, "/").await.unwrap();
    assert_eq!(server.last().certificate.as_ref(), old.chain().first());
    let watch = send(&client, "/watch").await.unwrap();
    ask(&client, "/").await.unwrap();
    server.open(2).await;

    files.write_pair(&new);
    later().await;
    ask(&client, "/").await.unwrap();
    let seen = server.last();
    assert_eq!(seen.certificate.as_ref(), new.chain().first());
    assert_eq!(seen.connection, 2, "an old connection was used");
    // The idle one goes at once, the one of the watch when that ends.
    server.open(2).await;
    server.shared.end.notify_one();
    assert_eq!(watch.into_body().collect().await.unwrap().to_bytes(), "end");
    server.open(1).await;
    ask(&client, "/").await.unwrap();
    assert_eq!(server.last().connection, 2, "the new connection is kept");
}

#[tokio::test]
async fn a_new_ca_bundle_decides_on_new_connections() {
    let (old, new) = (Authority::new(), Authority::new());
    let server = Server::start(&old).await;
    let files = Files::new(&server, &old);
    let client = files.client("{}").await;
    ask(&client, "/").await.unwrap();

    server.signed_by(&new);
    let unknown = ask(&files.client("{}").await, "/").await.unwrap_err();
    assert!(unknown.contains("UnknownIssuer"), "{unknown}");

    files.write("ca.crt", &format!("{}{}", old.pem(), new.pem()));
    later().await;
    ask(&client, "/").await.unwrap();
    assert_eq!(server.last().connection, 2);

    // The old one goes.
    files.write("ca.crt", &new.pem());
    later().await;
    ask(&client, "/").await.unwrap();
    server.signed_by(&old);
    files.write("ca.crt", &format!("{}\n", new.pem()));
    later().await;
    let unknown = ask(&client, "/").await.unwrap_err();
    assert!(unknown.contains("UnknownIssuer"), "{unknown}");
}

#[tokio::test]
async fn a_token_file_is_followed_and_an_in_line_token_stays() {
    let authority = Authority::new();
    let server = Server::start(&authority).await;
    let files = Files::new(&server, &authority);
    let sent = || server.last().authorization.unwrap();
    files.write("token", "one\n");
    let both = files.client("{token: in-line, tokenFile: token}").await;
    let in_line = files.client("{token: in-line}").await;
    // As client-go: a file that is not there leaves the token beside it.
    let missing = files.client("{token: in-line, tokenFile: gone}").await;
    for (client, expected) in
        [(&both, "Bearer one"), (&in_line, "Bearer in-line"), (&missing, "Bearer in-line")]
    {
        ask(client, "/").await.unwrap();
        assert_eq!(sent(), expected);
    }

    files.write("token", " two");
    ask(&both, "/").await.unwrap();
    assert_eq!(sent(), "Bearer one", "read at every request");
    later().await;
    for (client, expected) in
        [(&both, "Bearer two"), (&in_line, "Bearer in-line"), (&missing, "Bearer in-line")]
    {
        ask(client, "/").await.unwrap();
        assert_eq!(sent(), expected);
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_leaves_the_last_one_and_is_logged_once() {
    let authority = Authority::new();
    let server = Server::start(&authority).await;
    let files = Files::new(&server, &authority);
    let (old, new) = (server.clients.client(), server.clients.client());
    let cut = |text: &str| text[..text.len() / 2].to_owned();
    let cases = [
        ("ca.crt", Some(cut(&authority.pem())), "cluster"),
        ("client.crt", Some(cut(&new.certificate)), "user"),
        ("client.key", Some(cut(&new.key)), "user"),
        ("client.key", Some(new.key.clone()), "user"),
        ("client.crt", None, "user"),
        ("token", Some(String::new()), "user"),
        ("token", Some("t0\nhalf-a-secret".to_owned()), "user"),
    ];
    for (name, content, owner) in cases {
        files.write("ca.crt", &authority.pem());
        files.write_pair(&old);
        files.write("token", "secret-t0ken");
        let config = files
            .load("{client-certificate: client.crt, client-key: client.key, tokenFile: token}")
            .await
            .unwrap();
        let clients = [(); 2].map(|()| connect::client(&config, HttpVersions::Any).unwrap());
        let (log, _guard) = captured();
        match &content {
            Some(text) => files.write(name, text),
            None => fs::remove_file(files.path().join(name)).unwrap(),
        }
        for client in clients.iter().chain(&clients) {
            later().await;
            ask(client, "/").await.unwrap();
            let seen = server.last();
            assert_eq!(seen.certificate.as_ref(), old.chain().first(), "{name}");
            assert_eq!(seen.authorization.as_deref(), Some("Bearer secret-t0ken"), "{name}");
        }
        let text = log.text();
        let warnings: Vec<_> = text
            .lines()
            .filter(|line| line.contains("cannot be used"))
            .collect();
        assert_eq!(warnings.len(), 1, "{name}: {text}");
        let path = files.path().join(name).display().to_string();
        assert!(warnings[0].contains(&path) && warnings[0].contains(owner), "{text}");
        assert!(warnings[0].contains("--kubeconfig="), "{text}");
        let secrets = [&new.key, &old.key, "secret-t0ken", "t0\nhalf-a-secret"];
        let lines = secrets
            .iter()
            .flat_map(|secret| secret.lines())
            .filter(|line| !line.starts_with("---"));
        lines.for_each(|line| assert!(!text.contains(line), "{name}: {line} in {text}"));
        // Mended.
        files.write("ca.crt", &authority.pem());
        files.write_pair(&new);
        files.write("token", "another");
        later().await;
        ask(&clients[0], "/").await.unwrap();
        assert_eq!(server.last().certificate.as_ref(), new.chain().first(), "{name}");
        assert_eq!(server.last().authorization.as_deref(), Some("Bearer another"), "{name}");
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_at_the_start_is_an_error_that_names_it() {
    let authority = Authority::new();
    let server = Server::start(&authority).await;
    let files = Files::new(&server, &authority);
    files.write_pair(&server.clients.client());
    files.write("other.key", &server.clients.client().key);
    for (user, part) in [
        (
            "{client-certificate: gone.crt, client-key: client.key}",
            "gone.crt of user \"u\" cannot be read",
        ),
        (
            "{client-certificate: client.crt, client-key: gone.key}",
            "gone.key of user \"u\" cannot be read",
        ),
        (
            "{client-certificate: client.crt, client-key: client.crt}",
            "client.crt of user \"u\" holds no private key",
        ),
        (
            "{client-certificate: client.key, client-key: client.key}",
            "client.key of user \"u\" holds no certificate",
        ),
        (
            "{client-certificate: client.crt, client-key: other.key}",
            "other.key of user \"u\" cannot be used",
        ),
        ("{client-certificate: client.crt}", "client.crt of user \"u\" cannot be used"),
        ("{tokenFile: gone}", "gone of user \"u\" cannot be read"),
    ] {
        let error = files.load(user).await.unwrap_err().to_string();
        assert!(error.starts_with("--kubeconfig=") && error.contains(part), "{part}: {error}");
    }
}

#[tokio::test]
async fn a_pods_service_account_is_followed_and_lends_nobody_its_token() {
    let (old, new) = (Authority::new(), Authority::new());
    let server = Server::start(&old).await;
    let files = Files::new(&server, &old);
    files.write("token", "one");
    let mut config = kube::Config::new(format!("https://{}", server.address).parse().unwrap());
    config.root_cert_file = Some(files.path().join("ca.crt"));
    config.auth_info.token_file = Some(files.path().join("token").display().to_string());
    let config = in_cluster(config).unwrap();
    let mut without = config.clone();
    without.kube.auth_info = AuthInfo::default();
    let [own, anonymous] =
        [&config, &without].map(|config| connect::client(config, HttpVersions::Any).unwrap());
    for (authority, token) in [(&old, "one"), (&new, "two")] {
        server.signed_by(authority);
        files.write("ca.crt", &authority.pem());
        files.write("token", token);
        later().await;
        ask(&anonymous, "/").await.unwrap();
        assert_eq!(server.last().authorization, None);
        ask(&own, "/").await.unwrap();
        assert_eq!(server.last().authorization, Some(format!("Bearer {token}")));
    }
    assert!(!format!("{config:?}").contains("two"));
}

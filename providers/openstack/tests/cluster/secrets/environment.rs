//! What is around the process: a local cloud that gives tokens and can repeat what it was sent,
//! with TLS where that is asked for, and an API server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use axum::{
    body::{Body, Bytes, to_bytes},
    extract::Request,
    middleware::{Next, from_fn},
    response::{IntoResponse as _, Response},
    serve::Listener,
};
use ccm_e2e::secrets::Secrets;
use ccm_testkit::apiserver::{ApiServer, MASTERS, Options, Serving, User};
use http::{HeaderMap, StatusCode};
use openstack_local::server::{LocalCloud, Origin, Settings};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

pub(crate) const SOON: Duration = Duration::from_secs(60);
/// Of the user, with characters that URLs and JSON escape.
pub(crate) const PASSWORD: &str = "pw/+Kq7\"Zx2=rV9";
/// Of whom the user trusts.
const TRUSTEE_PASSWORD: &str = "tp/+Ry6\"Lc3=sF8";
pub(crate) const CREDENTIAL_SECRET: &str = "acs/+Jm5&Wt8=bN3";
/// In the place of any of these.
const WRONG: &str = "wrong/+Hd9&Px4=uG7";
/// Of the process towards the API server, and of those who call the process.
pub(crate) const KUBE_TOKEN: &str = "kube.Tk4/Qp9+Lz6=";
pub(crate) const CALLER_TOKEN: &str = "caller.Hx3/Dv8+Sn1=";
pub(crate) const STRANGER_TOKEN: &str = "stranger.Bw2/Fy7+Gc5=";
/// What does no harm to show: that the test can find something at all.
const USER: &str = "demo";
const TRUSTEE: &str = "admin";

/// How the process proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthMethod {
    Password,
    CloudsYaml,
    Credential,
    Token,
    Trust,
    /// A password, over TLS for which the process must have the key of a certificate.
    Certificate,
}

/// Everything around the process.
pub(crate) struct SecretsEnvironment {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) api: ApiServer,
    serving: Serving,
    /// Scheme, host and port of the cloud.
    origin: String,
    /// The cloud, without a socket.
    router: axum::Router,
    /// Status with which the cloud refuses everything, and repeats it; 0 while it does not.
    pub(crate) refusing: Arc<AtomicU16>,
    /// How often it did, and how many tokens it gave.
    pub(crate) refused: Arc<AtomicUsize>,
    pub(crate) issued: Arc<AtomicUsize>,
    pub(crate) secrets: Arc<Mutex<Secrets>>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl SecretsEnvironment {
    // length: everything that is started, in order
    pub(crate) async fn new(proof: AuthMethod) -> anyhow::Result<Self> {
        let mut secrets = Secrets::default();
        let known = [
            ("the password", PASSWORD),
            ("the trustee's password", TRUSTEE_PASSWORD),
            ("the secret of the application credential", CREDENTIAL_SECRET),
            ("the wrong secret", WRONG),
            ("the token for the API server", KUBE_TOKEN),
            ("a caller's token", CALLER_TOKEN),
            ("a stranger's token", STRANGER_TOKEN),
        ];
        for (name, secret) in known {
            secrets.add(name, secret);
        }
        let folder = tempfile::tempdir()?;
        let tls = match proof {
            AuthMethod::Certificate => Some(certificates(folder.path(), &mut secrets)?),
            _ => None,
        };
        let secrets = Arc::new(Mutex::new(secrets));
        let api = ApiServer::new(Options::default());
        let serving = api
            .serve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .await?;
        api.users().add(KUBE_TOKEN, User::new("ccm", &[MASTERS]));
        api.users()
            .add(CALLER_TOKEN, User::new("reader", &[MASTERS]));
        let settings = Settings {
            admin_password: Some(TRUSTEE_PASSWORD.into()),
            member_password: Some(PASSWORD.into()),
            // Renewed again and again while the test runs.
            token_lifetime: Duration::from_secs(3),
            pending: Duration::from_millis(5),
            ..Settings::default()
        };
        let local = LocalCloud::in_memory(settings);
        let (refusing, refused, issued) = (
            Arc::new(AtomicU16::new(0)),
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicUsize::new(0)),
        );
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let origin = format!("{scheme}://{}", listener.local_addr()?);
        let around = FrontServer {
            origin: Origin::new(&origin),
            refusing: refusing.clone(),
            refused: refused.clone(),
            issued: issued.clone(),
            secrets: secrets.clone(),
        };
        let router = local
            .router()
            .layer(from_fn(move |request: Request, next: Next| {
                around.clone().answer(request, next)
            }));
        let stop = CancellationToken::new();
        let (until, serve) = (stop.clone().cancelled_owned(), router.clone());
        let cloud = tokio::spawn(async move {
            let _ = match tls {
                Some(acceptor) => {
                    let listener = Guarded { listener, acceptor };
                    axum::serve(listener, serve)
                        .with_graceful_shutdown(until)
                        .await
                }
                None => {
                    axum::serve(listener, serve)
                        .with_graceful_shutdown(until)
                        .await
                }
            };
        });
        Ok(Self {
            folder,
            api,
            serving,
            origin,
            router,
            refusing,
            refused,
            issued,
            secrets,
            stop,
            tasks: vec![cloud],
        })
    }

    /// Writes the kubeconfig of the process; returns its path.
    pub(crate) fn kubeconfig(&self) -> anyhow::Result<PathBuf> {
        let kubeconfig = self.folder.path().join("kubeconfig");
        self.serving.write_kubeconfig_for(&kubeconfig, KUBE_TOKEN)?;
        Ok(kubeconfig)
    }

    /// Writes `cloud.conf` and what it names; returns its path.
    pub(crate) async fn cloud_config(&self, proof: AuthMethod) -> anyhow::Result<PathBuf> {
        let folder = self.folder.path();
        let url = format!("{}/identity/v3", self.origin);
        let scope = "tenant-name = demo\ndomain-id = default\n";
        let quoted =
            |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let auth = match proof {
            AuthMethod::Password => {
                format!(
                    "auth-url = {url}\nusername = {USER}\npassword = {}\n{scope}",
                    quoted(PASSWORD)
                )
            }
            AuthMethod::Certificate => {
                let file = |name| folder.join(name).display().to_string();
                let tls = format!(
                    "ca-file = {}\ncert-file = {}\nkey-file = {}\n",
                    file(CA),
                    file(CERT),
                    file(KEY)
                );
                format!(
                    "auth-url = {url}\nusername = {USER}\npassword = {}\n{scope}{tls}",
                    quoted(PASSWORD)
                )
            }
            AuthMethod::Trust => {
                let (trust, trustee) = self.make_trust().await?;
                format!(
                    "auth-url = {url}\nusername = {USER}\npassword = {}\n{scope}trust-id = {trust}\n\
                     trustee-id = {trustee}\ntrustee-password = {}\n",
                    quoted(PASSWORD),
                    quoted(TRUSTEE_PASSWORD)
                )
            }
            AuthMethod::CloudsYaml => {
                let auth = json!({
                    "auth_url": url, "username": USER, "project_name": "demo",
                    "user_domain_id": "default", "project_domain_id": "default",
                });
                let file = folder.join("clouds.yaml");
                std::fs::write(
                    &file,
                    json!({"clouds": {"one": {"auth": auth, "region_name": "RegionOne"}}})
                        .to_string(),
                )?;
                let secure = json!({"clouds": {"one": {"auth": {"password": PASSWORD}}}});
                std::fs::write(folder.join("secure.yaml"), secure.to_string())?;
                format!("use-clouds = true\nclouds-file = \"{}\"\ncloud = one\n", file.display())
            }
            AuthMethod::Credential => {
                let id = self.make_credential().await?;
                let secret = quoted(CREDENTIAL_SECRET);
                format!(
                    "auth-url = {url}\napplication-credential-id = {id}\napplication-credential-secret = {secret}\n"
                )
            }
            AuthMethod::Token => {
                let Login { token, .. } = self.login(USER, PASSWORD).await?;
                format!("auth-url = {url}\ntoken = {}\n{scope}", quoted(&token))
            }
        };
        let file = folder.join("cloud.conf");
        let rest = "[Networking]\n[LoadBalancer]\nenabled = true\nsubnet-id = none\n";
        std::fs::write(&file, format!("[Global]\n{auth}region = RegionOne\n{rest}"))?;
        Ok(file)
    }

    /// Writes a wrong secret in the place of each one in these files.
    pub(crate) fn spoil(&self, config: &Path) -> anyhow::Result<()> {
        for file in [config.to_owned(), self.folder.path().join("secure.yaml")] {
            let Ok(mut text) = std::fs::read_to_string(&file) else {
                continue;
            };
            for secret in [PASSWORD, TRUSTEE_PASSWORD, CREDENTIAL_SECRET] {
                for form in [secret.to_owned(), secret.replace('"', "\\\"")] {
                    text = text.replace(&form, WRONG);
                }
            }
            ensure!(!text.contains(PASSWORD), "{text}");
            std::fs::write(&file, text)?;
        }
        Ok(())
    }

    /// Gets a token as a user, in the project of the same name.
    async fn login(&self, name: &str, password: &str) -> anyhow::Result<Login> {
        let user = json!({"name": name, "domain": {"id": "default"}, "password": password});
        let scope = json!({"project": {"name": name, "domain": {"id": "default"}}});
        let auth = json!({"auth": {"identity": {"methods": ["password"], "password": {"user": user}}, "scope": scope}});
        let (headers, body) = self.post("/identity/v3/auth/tokens", None, &auth).await?;
        let token = headers
            .get("x-subject-token")
            .and_then(|token| token.to_str().ok())
            .context("no token")?;
        let id = |of: &str| {
            body["token"][of]["id"]
                .as_str()
                .map(str::to_owned)
                .context("no ID")
        };
        Ok(Login {
            token: token.to_owned(),
            user: id("user")?,
            project: id("project")?,
        })
    }

    async fn make_credential(&self) -> anyhow::Result<String> {
        let Login { token, user, .. } = self.login(USER, PASSWORD).await?;
        let body = json!({"application_credential": {"name": "ccm", "secret": CREDENTIAL_SECRET}});
        let path = format!("/identity/v3/users/{user}/application_credentials");
        let (_, body) = self.post(&path, Some(&token), &body).await?;
        Ok(body["application_credential"]["id"]
            .as_str()
            .context("no credential")?
            .to_owned())
    }

    /// Has the user trust another one; returns the IDs of the trust and of the other.
    async fn make_trust(&self) -> anyhow::Result<(String, String)> {
        let Login { user: trustee, .. } = self.login(TRUSTEE, TRUSTEE_PASSWORD).await?;
        let Login { token, user, project } = self.login(USER, PASSWORD).await?;
        let trust = json!({
            "trustor_user_id": user, "trustee_user_id": trustee, "project_id": project,
            "impersonation": true, "roles": [{"name": "member"}],
        });
        let (_, body) = self
            .post("/identity/v3/OS-TRUST/trusts", Some(&token), &json!({"trust": trust}))
            .await?;
        Ok((body["trust"]["id"].as_str().context("no trust")?.to_owned(), trustee))
    }

    async fn post(
        &self,
        path: &str,
        token: Option<&str>,
        body: &Value,
    ) -> anyhow::Result<(HeaderMap, Value)> {
        let mut request = http::Request::post(path)
            .header("host", self.origin.split_once("://").map_or("", |(_, host)| host));
        request = request.header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("x-auth-token", token);
        }
        let (head, body) = self
            .router
            .clone()
            .oneshot(request.body(Body::from(body.to_string()))?)
            .await?
            .into_parts();
        let (status, headers, text) = (head.status, head.headers, to_bytes(body, 1 << 20).await?);
        let text = String::from_utf8_lossy(&text);
        ensure!(status.is_success(), "{path}: {status}: {text}");
        Ok((headers, serde_json::from_str(&text)?))
    }

    pub(crate) async fn close(self) -> anyhow::Result<()> {
        self.stop.cancel();
        for task in self.tasks {
            task.await?;
        }
        Ok(())
    }
}

/// Who somebody is after a login.
struct Login {
    token: String,
    user: String,
    project: String,
}

/// Files of TLS.
const CA: &str = "ca.pem";
const CERT: &str = "client.pem";
const KEY: &str = "client.key";

/// Writes the files of TLS. Each line of the client's key is a secret.
fn certificates(folder: &Path, secrets: &mut Secrets) -> anyhow::Result<TlsAcceptor> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate()?;
    let ca = params.self_signed(&ca_key)?;
    let issuer = Issuer::new(params, ca_key);
    std::fs::write(folder.join(CA), ca.pem())?;
    let key = KeyPair::generate()?;
    let mut client = CertificateParams::new(Vec::<String>::new())?;
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    std::fs::write(folder.join(CERT), client.signed_by(&key, &issuer)?.pem())?;
    let pem = key.serialize_pem();
    for line in pem
        .lines()
        .filter(|line| !line.starts_with("-----") && line.len() >= 16)
    {
        secrets.add("a line of the client's key", line);
    }
    std::fs::write(folder.join(KEY), pem)?;
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &issuer)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut roots = RootCertStore::empty();
    roots.add(ca.der().clone())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![leaf.der().clone()], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Takes only clients with a certificate.
struct Guarded {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Guarded {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.listener).await;
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// What stands in front of the cloud.
#[derive(Clone)]
struct FrontServer {
    origin: Origin,
    refusing: Arc<AtomicU16>,
    refused: Arc<AtomicUsize>,
    issued: Arc<AtomicUsize>,
    secrets: Arc<Mutex<Secrets>>,
}

impl FrontServer {
    async fn answer(self, mut request: Request, next: Next) -> Response {
        let status = self.refusing.load(Ordering::SeqCst);
        if let (Ok(status), true) = (StatusCode::from_u16(status), status > 0) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return echo(request, status).await;
        }
        request.extensions_mut().insert(self.origin);
        let response = next.run(request).await;
        if let Some(token) = response
            .headers()
            .get("x-subject-token")
            .and_then(|token| token.to_str().ok())
        {
            self.issued.fetch_add(1, Ordering::SeqCst);
            self.secrets.lock().add("a token of Keystone", token);
        }
        response
    }
}

/// Refuses a request and repeats all of it.
async fn echo(request: Request, status: StatusCode) -> Response {
    let (head, body) = request.into_parts();
    let body: Bytes = to_bytes(body, 1 << 20).await.unwrap_or_default();
    let headers: Vec<String> = head
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
        .collect();
    let message = format!(
        "refused {} {} [{}] {}",
        head.method,
        head.uri,
        headers.join("; "),
        String::from_utf8_lossy(&body)
    );
    let title = format!("Refused {}", headers.join(" "));
    let error = json!({"error": {"code": status.as_u16(), "title": title, "message": message}});
    (status, [("content-type", "application/json")], Body::from(error.to_string())).into_response()
}

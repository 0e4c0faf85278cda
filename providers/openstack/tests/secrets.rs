//! Credentials are shown nowhere: the whole process at the highest verbosity, in both formats, with a cloud and an API server
//! that repeat what they were sent in their errors.

use std::{
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr, TcpListener as Port},
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
};
use ccm_e2e::{ccm::Ccm, secrets::Secrets};
use ccm_testkit::apiserver::{Access, ApiServer, MASTERS, Options, Rule, Serving, User};
use http::{HeaderMap, StatusCode};
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::{Api, api::PostParams};
use openstack_local::server::{LocalCloud, Settings};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

const SOON: Duration = Duration::from_secs(60);
/// Of the user, with characters that URLs and JSON escape.
const PASSWORD: &str = "pw/+Kq7\"Zx2=rV9";
const CREDENTIAL_SECRET: &str = "acs/+Jm5&Wt8=bN3";
/// Of the process towards the API server, and of those who call the process.
const KUBE_TOKEN: &str = "kube.Tk4/Qp9+Lz6=";
const CALLER_TOKEN: &str = "caller.Hx3/Dv8+Sn1=";
const STRANGER_TOKEN: &str = "stranger.Bw2/Fy7+Gc5=";
/// What does no harm to show: that the test can find something at all.
const USER: &str = "demo";

/// How the process proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    Password,
    CloudsYaml,
    Credential,
    Token,
}

/// Everything around the process.
struct World {
    folder: tempfile::TempDir,
    api: ApiServer,
    serving: Serving,
    address: SocketAddr,
    /// The cloud, without a socket.
    router: axum::Router,
    /// Status with which the cloud refuses everything, and repeats it; 0 while it does not.
    refusing: Arc<AtomicU16>,
    /// How often it did, and how many tokens it gave.
    refused: Arc<AtomicUsize>,
    issued: Arc<AtomicUsize>,
    secrets: Arc<Mutex<Secrets>>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl World {
    async fn new() -> anyhow::Result<Self> {
        let mut secrets = Secrets::default();
        let known = [
            ("the password", PASSWORD),
            ("the secret of the application credential", CREDENTIAL_SECRET),
            ("the token for the API server", KUBE_TOKEN),
            ("a caller's token", CALLER_TOKEN),
            ("a stranger's token", STRANGER_TOKEN),
        ];
        for (name, secret) in known {
            secrets.add(name, secret);
        }
        let secrets = Arc::new(Mutex::new(secrets));
        let api = ApiServer::new(Options::default());
        let serving = api.serve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        api.users().add(KUBE_TOKEN, User::new("ccm", &[MASTERS]));
        api.users().add(CALLER_TOKEN, User::new("reader", &[MASTERS]));
        let settings = Settings {
            member_password: Some(PASSWORD.into()),
            // Renewed again and again while the test runs.
            token_lifetime: Duration::from_secs(3),
            pending: Duration::from_millis(5),
            ..Settings::default()
        };
        let local = LocalCloud::in_memory(settings);
        let (refusing, refused, issued) =
            (Arc::new(AtomicU16::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let around = Around {
            refusing: refusing.clone(),
            refused: refused.clone(),
            issued: issued.clone(),
            secrets: secrets.clone(),
        };
        let router =
            local.router().layer(from_fn(move |request: Request, next: Next| around.clone().answer(request, next)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (address, stop) = (listener.local_addr()?, CancellationToken::new());
        let until = stop.clone().cancelled_owned();
        let serve = router.clone();
        let cloud = tokio::spawn(async move {
            let _ = axum::serve(listener, serve).with_graceful_shutdown(until).await;
        });
        let folder = tempfile::tempdir()?;
        Ok(Self { folder, api, serving, address, router, refusing, refused, issued, secrets, stop, tasks: vec![cloud] })
    }

    /// Writes the kubeconfig of the process; returns its path.
    fn kubeconfig(&self) -> anyhow::Result<PathBuf> {
        let kubeconfig = self.folder.path().join("kubeconfig");
        self.serving.write_kubeconfig_for(&kubeconfig, KUBE_TOKEN)?;
        Ok(kubeconfig)
    }

    /// Writes `cloud.conf` and what it names; returns its path.
    async fn cloud_config(&self, proof: Proof) -> anyhow::Result<PathBuf> {
        let folder = self.folder.path();
        let url = format!("http://{}/identity/v3", self.address);
        let scope = "tenant-name = demo\ndomain-id = default\n";
        let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let auth = match proof {
            Proof::Password => format!("auth-url = {url}\nusername = {USER}\npassword = {}\n{scope}", quoted(PASSWORD)),
            Proof::CloudsYaml => {
                let auth = json!({
                    "auth_url": url, "username": USER, "project_name": "demo",
                    "user_domain_id": "default", "project_domain_id": "default",
                });
                let file = folder.join("clouds.yaml");
                std::fs::write(
                    &file,
                    json!({"clouds": {"one": {"auth": auth, "region_name": "RegionOne"}}}).to_string(),
                )?;
                let secure = json!({"clouds": {"one": {"auth": {"password": PASSWORD}}}});
                std::fs::write(folder.join("secure.yaml"), secure.to_string())?;
                format!("use-clouds = true\nclouds-file = \"{}\"\ncloud = one\n", file.display())
            }
            Proof::Credential => {
                let id = self.make_credential().await?;
                let secret = quoted(CREDENTIAL_SECRET);
                format!(
                    "auth-url = {url}\napplication-credential-id = {id}\napplication-credential-secret = {secret}\n"
                )
            }
            Proof::Token => {
                let (token, _) = self.token().await?;
                format!("auth-url = {url}\ntoken = {}\n{scope}", quoted(&token))
            }
        };
        let file = folder.join("cloud.conf");
        let rest = "[Networking]\n[LoadBalancer]\nenabled = true\nsubnet-id = none\n";
        std::fs::write(&file, format!("[Global]\n{auth}region = RegionOne\n{rest}"))?;
        Ok(file)
    }

    /// Gets a token as the user, and the user's ID.
    async fn token(&self) -> anyhow::Result<(String, String)> {
        let user = json!({"name": USER, "domain": {"id": "default"}, "password": PASSWORD});
        let scope = json!({"project": {"name": "demo", "domain": {"id": "default"}}});
        let auth = json!({"auth": {"identity": {"methods": ["password"], "password": {"user": user}}, "scope": scope}});
        let (headers, body) = self.post("/identity/v3/auth/tokens", None, &auth).await?;
        let token = headers.get("x-subject-token").and_then(|token| token.to_str().ok()).context("no token")?;
        let user = body["token"]["user"]["id"].as_str().context("no user")?;
        Ok((token.to_owned(), user.to_owned()))
    }

    async fn make_credential(&self) -> anyhow::Result<String> {
        let (token, user) = self.token().await?;
        let body = json!({"application_credential": {"name": "ccm", "secret": CREDENTIAL_SECRET}});
        let path = format!("/identity/v3/users/{user}/application_credentials");
        let (_, body) = self.post(&path, Some(&token), &body).await?;
        Ok(body["application_credential"]["id"].as_str().context("no credential")?.to_owned())
    }

    async fn post(&self, path: &str, token: Option<&str>, body: &Value) -> anyhow::Result<(HeaderMap, Value)> {
        let mut request = http::Request::post(path).header("host", self.address.to_string());
        request = request.header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("x-auth-token", token);
        }
        let (head, body) = self.router.clone().oneshot(request.body(Body::from(body.to_string()))?).await?.into_parts();
        let (status, headers, text) = (head.status, head.headers, to_bytes(body, 1 << 20).await?);
        let text = String::from_utf8_lossy(&text);
        ensure!(status.is_success(), "{path}: {status}: {text}");
        Ok((headers, serde_json::from_str(&text)?))
    }

    /// Waits until something holds.
    async fn until(&self, what: &str, process: &mut Ccm, holds: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let limit = Instant::now() + SOON;
        while !holds(self) {
            ensure!(process.is_running()? && Instant::now() < limit, "{what}:\n{}", tail(&process.log()));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn close(self) -> anyhow::Result<()> {
        self.stop.cancel();
        for task in self.tasks {
            task.await?;
        }
        Ok(())
    }
}

fn tail(log: &str) -> &str {
    let from = log.len().saturating_sub(4000);
    log.get(from..).unwrap_or(log)
}

/// What stands in front of the cloud.
#[derive(Clone)]
struct Around {
    refusing: Arc<AtomicU16>,
    refused: Arc<AtomicUsize>,
    issued: Arc<AtomicUsize>,
    secrets: Arc<Mutex<Secrets>>,
}

impl Around {
    async fn answer(self, request: Request, next: Next) -> Response {
        let status = self.refusing.load(Ordering::SeqCst);
        if let (Ok(status), true) = (StatusCode::from_u16(status), status > 0) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return echo(request, status).await;
        }
        let response = next.run(request).await;
        if let Some(token) = response.headers().get("x-subject-token").and_then(|token| token.to_str().ok()) {
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
    let message =
        format!("refused {} {} [{}] {}", head.method, head.uri, headers.join("; "), String::from_utf8_lossy(&body));
    let title = format!("Refused {}", headers.join(" "));
    let error = json!({"error": {"code": status.as_u16(), "title": title, "message": message}});
    (status, [("content-type", "application/json")], Body::from(error.to_string())).into_response()
}

async fn journey(proof: Proof, format: &str) -> anyhow::Result<()> {
    let world = World::new().await?;
    let port = Port::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let kubeconfig = world.kubeconfig()?;
    let config = world.cloud_config(proof).await?;
    let args = arguments(&kubeconfig, &config, port, format);
    let program = Path::new(env!("CARGO_BIN_EXE_ccm-openstack"));
    let mut process = Ccm::start(program, world.folder.path(), "ccm", args.clone()).await?;
    let issued = world.issued.load(Ordering::SeqCst);
    world.until("a token", &mut process, |world| world.issued.load(Ordering::SeqCst) > issued).await?;
    objects(&world).await?;
    let mut pages = vec![served(&mut process, port).await?];
    // A bare token cannot be had anew for longer than it lives.
    if proof != Proof::Token {
        let now = world.issued.load(Ordering::SeqCst);
        world.until("renewal", &mut process, |world| world.issued.load(Ordering::SeqCst) > now).await?;
    }
    for status in [401, 403, 500, 400] {
        // Written again, credentials are tried at once, also after a refusal.
        std::fs::write(&config, std::fs::read(&config)?)?;
        let before = world.refused.load(Ordering::SeqCst);
        world.refusing.store(status, Ordering::SeqCst);
        let seen = |world: &World| world.refused.load(Ordering::SeqCst) > before;
        world.until("requests that are refused", &mut process, seen).await?;
    }
    // The API server does not know the process any more, then again.
    world.api.users().set_access("ccm", Access::Rules(Rule::of_role(&json!({"rules": []}))?));
    world.api.users().revoke(KUBE_TOKEN);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    world.api.users().add(KUBE_TOKEN, User::new("ccm", &[MASTERS]));
    pages.push(served(&mut process, port).await?);
    let events: Api<Event> = Api::all(world.api.client());
    let events = serde_json::to_string(&events.list(&kube::api::ListParams::default()).await?.items)?;
    let log = process.log();
    process.terminate().await?;
    // A process whose credentials are refused from the start says so, and ends.
    world.refusing.store(401, Ordering::SeqCst);
    let mut second = Ccm::start(program, world.folder.path(), "second", args).await?;
    ensure!(!second.exit(SOON).await?.success(), "credentials that are refused end the start");
    let secrets = world.secrets.lock().clone();
    secrets.check("the log", &log)?;
    secrets.check("the log of a refused start", &second.log())?;
    secrets.check("an event", &events)?;
    secrets.check("a page", &pages.concat())?;
    // The search is for nothing if there was nothing to see: of the HTTP client, and of what the cloud repeated.
    for (what, text) in [("idle connection for", &log), ("refused POST", &log)] {
        ensure!(text.contains(what), "the log says nothing of {what}");
    }
    ensure!(events.contains("\"reason\""), "no event was written");
    world.close().await
}

fn arguments(kubeconfig: &Path, config: &Path, port: u16, format: &str) -> Vec<OsString> {
    let (kubeconfig, config) = (kubeconfig.display(), config.display());
    [
        "--cloud-provider=openstack".to_owned(),
        "--cluster-name=test".to_owned(),
        "--leader-elect=false".to_owned(),
        "--node-monitor-period=1s".to_owned(),
        "--node-status-update-frequency=1s".to_owned(),
        "--v=10".to_owned(),
        format!("--logging-format={format}"),
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--cloud-config={config}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
    ]
    .map(OsString::from)
    .to_vec()
}

/// A Node and a Service that make the process ask the cloud.
async fn objects(world: &World) -> anyhow::Result<()> {
    let client = world.api.client();
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "node-0"},
        "spec": {
            "providerID": "openstack:///7b9cf879-7146-417c-abfd-cb4272f0c935",
            "taints": [{"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}],
        },
    }))?;
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await?;
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]},
    }))?;
    Api::<Service>::namespaced(client, "default").create(&PostParams::default(), &service).await?;
    Ok(())
}

/// All pages that the process serves, for a caller that may see them and for a stranger.
async fn served(process: &mut Ccm, port: u16) -> anyhow::Result<String> {
    const PAGES: [&str; 8] = [
        "/metrics",
        "/metrics/slis",
        "/configz",
        "/statusz",
        "/flagz",
        "/healthz?verbose",
        "/readyz?verbose",
        "/livez?verbose",
    ];
    let mut all = String::new();
    let limit = Instant::now() + SOON;
    while get(port, "/healthz", None).await.is_err() {
        ensure!(process.is_running()? && Instant::now() < limit, "nothing is served:\n{}", tail(&process.log()));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for page in PAGES {
        // Whoever asks is answered, and what depends on how the cloud does.
        let is_health = page.ends_with("?verbose");
        let (status, text) = get(port, page, Some(CALLER_TOKEN)).await?;
        ensure!(is_health || status == 200, "{page}: {status} {text}");
        all += &text;
        let (status, text) = get(port, page, Some(STRANGER_TOKEN)).await?;
        ensure!(is_health || status == 401, "{page}: {status} {text}");
        all += &text;
    }
    Ok(all)
}

async fn get(port: u16, path: &str, token: Option<&str>) -> anyhow::Result<(u16, String)> {
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
    // Its certificate is its own.
    config.accept_invalid_certs = true;
    config.auth_info.token = token.map(|token| token.to_owned().into());
    let request = http::Request::get(path).body(kube::client::Body::empty())?;
    let answer = kube::Client::try_from(config)?.send(request).await?;
    let status = answer.status().as_u16();
    let body = http_body_util::BodyExt::collect(answer.into_body()).await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_password_is_shown_in_text() {
    journey(Proof::Password, "text").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_clouds_yaml_is_shown_in_json() {
    journey(Proof::CloudsYaml, "json").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_of_an_application_credential_is_shown_in_json() {
    journey(Proof::Credential, "json").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_is_shown_in_text() {
    journey(Proof::Token, "text").await.unwrap();
}

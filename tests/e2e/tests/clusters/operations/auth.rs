//! Who may call the HTTPS server: tokens, client certificates and a front proxy of a real cluster.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use ccm_e2e::ccm::Ccm;
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::server::ServerKind;
use ccm_testkit::control_plane::Identity;
use ccm_testkit::supervised::free_port;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::{Api, DeleteParams, PostParams};
use kube::client::Body;
use kube::config::AuthInfo;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::run::Case;

/// Group whose members may read metrics.
const READERS: &str = "e2e:metrics-readers";
/// How long the process keeps answers.
const TTL: Duration = Duration::from_secs(1);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        crate::case!("auth", &[ServerKind::Real], callers_see_what_the_cluster_lets_them),
        crate::case!(
            "authr",
            &[ServerKind::Real],
            a_config_map_that_may_not_be_read_ends_the_start
        ),
    ]
}

// length: one table of callers and what follows for one of them
async fn callers_see_what_the_cluster_lets_them(s: &Scenario) -> anyhow::Result<()> {
    let client = s.server.client();
    may_ask(&client, &s.user("a")).await?;
    let role = json!({"metadata": {"name": READERS}, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]});
    create::<ClusterRole>(&Api::all(client.clone()), role).await?;
    let (reader, other) =
        (account(&client, "e2e-reader").await?, account(&client, "e2e-other").await?);
    let subject = json!({"kind": "ServiceAccount", "namespace": "default", "name": "e2e-reader"});
    bind(&client, "e2e-reader", READERS, &subject).await?;
    bind(&client, READERS, READERS, &json!({"kind": "Group", "name": READERS})).await?;
    let jane = s.server.client_identity("jane", READERS).await?;
    let joe = s.server.client_identity("joe", "others").await?;
    let root = s.server.client_identity("root", "system:masters").await?;
    let proxy = s.server.proxy_identity().await?;

    let directory = tempfile::tempdir()?;
    let (mut ccm, port) = start(s, directory.path(), &[]).await?;
    let at = Server { port };
    at.answers(&mut ccm).await?;
    let nobody = Credential::default;
    let stranger = nobody().user("root", "system:masters");
    for (case, credential, path, want) in [
        ("anonymous", nobody(), "/healthz", 200),
        ("anonymous", nobody(), "/livez", 200),
        ("anonymous", nobody(), "/metrics", 403),
        ("anonymous", nobody(), "/configz", 403),
        ("a token with the right", nobody().token(&reader), "/metrics", 200),
        ("a token with another right", nobody().token(&reader), "/configz", 403),
        ("a token without", nobody().token(&other), "/metrics", 403),
        ("a token of nobody", nobody().token("e2e-invented-token"), "/metrics", 401),
        ("a certificate with the right", nobody().certificate(&jane), "/metrics", 200),
        ("a certificate with another right", nobody().certificate(&jane), "/configz", 403),
        ("a certificate without", nobody().certificate(&joe), "/metrics", 403),
        ("a certificate without", nobody().certificate(&joe), "/explain/nodes/a", 403),
        ("a certificate of masters", nobody().certificate(&root), "/configz", 200),
        (
            "a proxy for somebody with the right",
            nobody().certificate(&proxy).user("x", READERS),
            "/metrics",
            200,
        ),
        (
            "a proxy for somebody without",
            nobody().certificate(&proxy).user("x", "others"),
            "/metrics",
            403,
        ),
        ("a proxy for nobody", nobody().certificate(&proxy), "/metrics", 401),
        ("headers alone", stranger.clone(), "/configz", 403),
        (
            "headers with a certificate of no proxy",
            stranger.clone().certificate(&joe),
            "/configz",
            403,
        ),
        ("headers with a token", stranger.token(&reader), "/configz", 403),
    ] {
        let (status, body) = at
            .get(path, &credential)
            .await
            .with_context(|| case.to_owned())?;
        anyhow::ensure!(status == want, "{case}, {path}: {status}, not {want}: {body}");
    }
    let (_, body) = at.get("/configz", &nobody().certificate(&jane)).await?;
    anyhow::ensure!(body.contains(r#"User \"jane\" cannot get path \"/configz\""#), "{body}");

    let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
    accounts
        .delete("e2e-reader", &DeleteParams::default())
        .await?;
    at.forgets(&nobody().token(&reader)).await?;
    let log = ccm.log();
    for secret in [&*reader, &*other, "e2e-invented-token", "PRIVATE KEY"] {
        anyhow::ensure!(!log.contains(secret), "a secret is in the log");
    }
    anyhow::ensure!(
        log.contains("credentials are not accepted"),
        "no refusal is in the log:\n{log}"
    );
    ccm.terminate().await
}

async fn a_config_map_that_may_not_be_read_ends_the_start(s: &Scenario) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let (mut ccm, _) = start(s, directory.path(), &[]).await?;
    let status = ccm.exit(SOON).await?;
    anyhow::ensure!(status.code() == Some(1), "{status}");
    for part in [
        "kube-system/extension-apiserver-authentication",
        "extension-apiserver-authentication-reader",
        "--authentication-tolerate-lookup-failure",
    ] {
        anyhow::ensure!(ccm.log().contains(part), "{part}: {}", ccm.log());
    }
    let (mut ccm, port) =
        start(s, directory.path(), &["--authentication-tolerate-lookup-failure"]).await?;
    let at = Server { port };
    at.answers(&mut ccm).await?;
    // Without the right to ask, nothing is guessed.
    let (status, body) = at.get("/metrics", &Credential::default()).await?;
    anyhow::ensure!(status == 500, "{status}: {body}");
    let (status, body) = at
        .get("/metrics", &Credential::default().token("e2e-invented-token"))
        .await?;
    anyhow::ensure!(status == 401, "{status}: {body}");
    anyhow::ensure!(!ccm.log().contains("e2e-invented-token"), "a secret is in the log");
    ccm.terminate().await
}

/// Starts a process that serves and asks the cluster about callers, and returns its port.
async fn start(s: &Scenario, directory: &Path, more: &[&str]) -> anyhow::Result<(Ccm, u16)> {
    let kubeconfig = directory.join("auth.kubeconfig");
    s.server.write_kubeconfig(&kubeconfig, &s.user("a")).await?;
    let port = free_port()?;
    let flags = [
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--authentication-kubeconfig={}", kubeconfig.display()),
        format!("--authorization-kubeconfig={}", kubeconfig.display()),
        format!("--authentication-token-webhook-cache-ttl={}s", TTL.as_secs()),
    ];
    let flags: Vec<&str> = flags
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect();
    Ok((s.start("a", &flags).await?, port))
}

/// Lets a user ask about callers, with the cluster's own roles.
async fn may_ask(client: &kube::Client, user: &str) -> anyhow::Result<()> {
    let subject = json!({"kind": "User", "name": user});
    bind(client, "e2e-auth", "system:auth-delegator", &subject).await?;
    let binding = json!({
        "metadata": {"name": "e2e-auth"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role",
            "name": "extension-apiserver-authentication-reader"},
        "subjects": [subject],
    });
    create::<RoleBinding>(&Api::namespaced(client.clone(), "kube-system"), binding).await
}

async fn bind(
    client: &kube::Client,
    name: &str,
    role: &str,
    subject: &Value,
) -> anyhow::Result<()> {
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    });
    create::<ClusterRoleBinding>(&Api::all(client.clone()), binding).await
}

async fn create<K>(api: &Api<K>, object: Value) -> anyhow::Result<()>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    Ok(())
}

/// Makes a service account and returns a token of it.
async fn account(client: &kube::Client, name: &str) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    create(&accounts, json!({"metadata": {"name": name}})).await?;
    let request = accounts
        .create_token_request(name, &PostParams::default(), &TokenRequest::default())
        .await?;
    request
        .status
        .and_then(|status| status.token)
        .context("no token")
}

/// What a caller shows.
#[derive(Clone, Default)]
struct Credential {
    token: Option<String>,
    identity: Option<Identity>,
    headers: Vec<(&'static str, String)>,
}

impl Credential {
    fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    fn certificate(mut self, identity: &Identity) -> Self {
        self.identity = Some(identity.clone());
        self
    }

    fn user(mut self, name: &str, group: &str) -> Self {
        self.headers =
            vec![("x-remote-user", name.to_owned()), ("x-remote-group", group.to_owned())];
        self
    }
}

/// The HTTPS server of a process.
struct Server {
    port: u16,
}

impl Server {
    /// Waits until it answers.
    async fn answers(&self, ccm: &mut Ccm) -> anyhow::Result<()> {
        let deadline = Instant::now() + SOON;
        loop {
            // A process that has just begun to listen may not know yet whom to ask.
            if let Ok((status, _)) = self.get("/metrics", &Credential::default()).await
                && status != 503
            {
                return Ok(());
            }
            anyhow::ensure!(ccm.is_running()?, "the process ended:\n{}", ccm.log());
            anyhow::ensure!(Instant::now() < deadline, "no answer:\n{}", ccm.log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until a credential that was let in is let in no more: its answer is kept for a moment.
    async fn forgets(&self, credential: &Credential) -> anyhow::Result<()> {
        let deadline = Instant::now() + SOON;
        while self.get("/metrics", credential).await?.0 != 401 {
            anyhow::ensure!(Instant::now() < deadline, "a deleted account is still let in");
            tokio::time::sleep(TTL / 4).await;
        }
        Ok(())
    }

    async fn get(&self, path: &str, credential: &Credential) -> anyhow::Result<(u16, String)> {
        let mut config = kube::Config::new(format!("https://127.0.0.1:{}", self.port).parse()?);
        // Its certificate is its own.
        config.accept_invalid_certs = true;
        let mut auth = AuthInfo::default();
        if let Some(token) = &credential.token {
            auth.token = Some(token.clone().into());
        }
        let directory = tempfile::tempdir()?;
        if let Some(identity) = &credential.identity {
            let file = |name: &str, text: &str| -> anyhow::Result<Option<String>> {
                let path = directory.path().join(name);
                std::fs::write(&path, text)?;
                Ok(Some(path.display().to_string()))
            };
            auth.client_certificate = file("client.crt", &identity.certificate)?;
            auth.client_key = file("client.key", &identity.key)?;
        }
        config.auth_info = auth;
        let mut request = http::Request::get(path);
        for (name, value) in &credential.headers {
            request = request.header(*name, value);
        }
        let response = kube::Client::try_from(config)?
            .send(request.body(Body::empty())?)
            .await?;
        let status = response.status().as_u16();
        let body = http_body_util::BodyExt::collect(response.into_body())
            .await?
            .to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

//! Credentials for the API server are shown nowhere: the whole process at the highest verbosity,
//! with a server that takes them, with one that refuses and repeats them, and with credentials that
//! cannot be used.

mod echo_server;

use std::{
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ccm_e2e::{ccm::Ccm, https_endpoints, secrets::Secrets};
use ccm_testkit::{
    apiserver::{ApiServer, MASTERS, Match, Options, User},
    supervised::free_port,
};
use serde_json::{Value, json};

use echo_server::EchoServer;

use crate::async_cases;
use crate::plain::Case;

pub(crate) fn cases() -> Vec<Case> {
    async_cases![
        a_token_is_not_shown_while_it_works,
        a_file_with_a_token_is_not_shown_while_it_works,
        the_token_of_a_plug_in_is_not_shown_while_it_works,
        a_wrong_token_is_not_shown,
        a_file_with_a_wrong_token_is_not_shown,
        a_wrong_token_of_a_plug_in_is_not_shown,
        a_wrong_password_is_not_shown,
        the_key_of_a_client_certificate_is_not_shown,
        the_key_that_a_plug_in_gives_is_not_shown,
        credentials_that_cannot_be_used_are_not_shown,
        a_plug_in_that_fails_later_shows_nothing,
        the_password_of_a_proxy_is_not_shown,
    ]
}

/// How long anything may take that needs a few round trips.
const SOON: Duration = Duration::from_secs(60);
/// How the process proves who it is.
const TOKEN: &str = "kube.Tk4/Qp9+Lz6=";
const PASSWORD: &str = "basic:Pq8/Zn4+Vx5=";
/// What a plug-in knows, and may say where nobody asked for it.
const INNER: &str = "plugin.Yd7\"Kc2/Jt9+";
const CALLER_TOKEN: &str = "caller.Hx3/Dv8+Sn1=";
const STRANGER_TOKEN: &str = "stranger.Bw2/Fy7+Gc5=";

struct SecretsFixture {
    folder: tempfile::TempDir,
    secrets: Secrets,
}

impl SecretsFixture {
    fn new() -> Self {
        let mut secrets = Secrets::default();
        for (name, secret) in [
            ("the token", TOKEN),
            ("the password", PASSWORD),
            ("the plug-in's secret", INNER),
            ("a caller's token", CALLER_TOKEN),
            ("a stranger's token", STRANGER_TOKEN),
        ] {
            secrets.add(name, secret);
        }
        Self { folder: tempfile::tempdir().unwrap(), secrets }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Each line of a private key is a secret.
    fn add_key(&mut self, pem: &str) {
        for line in pem
            .lines()
            .filter(|line| !line.starts_with("-----") && line.len() >= 16)
        {
            self.secrets.add("a line of the client's key", line);
        }
    }

    /// A kubeconfig; returns its path.
    fn kubeconfig(&self, cluster: &Value, user: &Value) -> PathBuf {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        self.file("kubeconfig", &config.to_string())
    }

    /// An entry of a kubeconfig for a plug-in that is this script.
    fn plugin(&self, script: &str) -> Value {
        let file = self.file("plugin.sh", script);
        json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "/bin/sh",
            "args": [file.display().to_string(), INNER],
            "env": [{"name": "INNER", "value": INNER}],
            "interactiveMode": "Never",
        }})
    }

    /// A plug-in that says this.
    fn plugin_with(&self, status: &Value) -> Value {
        let credential = json!({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status});
        let said = self.file("credential", &credential.to_string());
        self.plugin(&format!("cat {}\n", said.display()))
    }

    async fn start(&self, kubeconfig: &Path, format: &str, port: u16) -> Ccm {
        let kubeconfig = kubeconfig.display();
        let args = [
            "--cloud-provider=mock".to_owned(),
            format!(
                "--cloud-config={}",
                self.file("cloud.yaml", "autoProvision: true\n").display()
            ),
            "--leader-elect=false".to_owned(),
            "--use-service-account-credentials=true".to_owned(),
            "--v=10".to_owned(),
            format!("--logging-format={format}"),
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--authentication-tolerate-lookup-failure=true".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
        ];
        let program = Path::new(env!("CARGO_BIN_EXE_ccm-under-test"));
        Ccm::start(program, self.folder.path(), "ccm", args.map(OsString::from).to_vec())
            .await
            .unwrap()
    }

    /// Checks what a process printed; it must have said these as well, so that there was something
    /// to find.
    fn check(&self, what: &str, log: &str, said: &[&str]) {
        self.secrets.check(what, log).unwrap();
        for text in said {
            assert!(log.contains(text), "{what}: nothing of {text:?} in\n{log}");
        }
    }
}

/// With credentials that the server takes: the process works, and shows itself.
async fn at_work(user: impl FnOnce(&SecretsFixture) -> Value, format: &str) {
    let bench = SecretsFixture::new();
    let api = ApiServer::new(Options::default());
    let serving = api
        .serve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .await
        .unwrap();
    api.users().add(TOKEN, User::new("ccm", &[MASTERS]));
    api.users()
        .add(CALLER_TOKEN, User::new("reader", &[MASTERS]));
    let cluster = json!({
        "server": serving.url(),
        "certificate-authority-data": STANDARD.encode(serving.ca_pem()),
    });
    let port = free_port().unwrap();
    let mut process = bench
        .start(&bench.kubeconfig(&cluster, &user(&bench)), format, port)
        .await;
    let nodes = Match::resource("nodes");
    process
        .until("no node is asked for", SOON, |_| api.log().count(&nodes) > 0)
        .await
        .unwrap();
    let shown = https_endpoints::all(&mut process, port, CALLER_TOKEN, STRANGER_TOKEN, SOON)
        .await
        .unwrap();
    // The server forgets it, and then knows it again.
    api.users().revoke(TOKEN);
    let unknown = |api: &ApiServer| {
        api.log()
            .entries()
            .iter()
            .filter(|entry| entry.status == Some(401))
            .count()
    };
    api.faults().close_watches(&Match::any());
    process
        .until("nothing is refused", SOON, |_| unknown(&api) > 2)
        .await
        .unwrap();
    api.users().add(TOKEN, User::new("ccm", &[MASTERS]));
    let log = process.log();
    process.terminate().await.unwrap();
    bench.check("a page", &shown, &["apiserver"]);
    bench.check("the log", &log, &["/api/v1/nodes", "401"]);
}

async fn a_token_is_not_shown_while_it_works() {
    at_work(|_| json!({"token": TOKEN}), "text").await;
}

async fn a_file_with_a_token_is_not_shown_while_it_works() {
    at_work(|bench| json!({"tokenFile": bench.file("token", TOKEN)}), "json").await;
}

async fn the_token_of_a_plug_in_is_not_shown_while_it_works() {
    at_work(|bench| bench.plugin_with(&json!({"token": TOKEN})), "json").await;
}

/// With a server that refuses all and repeats it, in the form in which this stands on the wire.
async fn refused(
    user: impl FnOnce(&mut SecretsFixture, &EchoServer) -> Value,
    on_the_wire: Option<&str>,
    format: &str,
) {
    let mut bench = SecretsFixture::new();
    let echo = EchoServer::start().await;
    let user = user(&mut bench, &echo);
    let port = free_port().unwrap();
    let mut process = bench
        .start(&bench.kubeconfig(&echo.cluster(), &user), format, port)
        .await;
    let enough = |echo: &EchoServer| {
        let seen = echo.refused();
        seen.matches("refused ").count() > 3 && seen.contains("/configmaps/")
    };
    process
        .until("too little is asked for", SOON, |_| enough(&echo))
        .await
        .unwrap();
    let log = process.log();
    drop(process);
    match on_the_wire {
        Some(text) => {
            assert!(echo.refused().contains(text), "nothing was sent that could be repeated");
        }
        None => assert!(echo.certified() > 0, "the key was not used"),
    }
    bench.check("the log", &log, &["refused GET /api", "requesting"]);
}

async fn a_wrong_token_is_not_shown() {
    refused(|_, _| json!({"token": TOKEN}), Some(TOKEN), "text").await;
}

async fn a_file_with_a_wrong_token_is_not_shown() {
    refused(|bench, _| json!({"tokenFile": bench.file("token", TOKEN)}), Some(TOKEN), "json").await;
}

async fn a_wrong_token_of_a_plug_in_is_not_shown() {
    let ended = json!({"token": TOKEN, "expirationTimestamp": "2020-01-01T00:00:00Z"});
    refused(|bench, _| bench.plugin_with(&ended), Some(TOKEN), "text").await;
}

async fn a_wrong_password_is_not_shown() {
    let sent = STANDARD.encode(format!("somebody:{PASSWORD}"));
    refused(|_, _| json!({"username": "somebody", "password": PASSWORD}), Some(&sent), "json")
        .await;
}

async fn the_key_of_a_client_certificate_is_not_shown() {
    let user = |bench: &mut SecretsFixture, echo: &EchoServer| {
        let pair = echo.client();
        bench.add_key(&pair.key);
        json!({
            "client-certificate-data": STANDARD.encode(pair.cert),
            "client-key-data": STANDARD.encode(pair.key),
        })
    };
    refused(user, None, "text").await;
}

async fn the_key_that_a_plug_in_gives_is_not_shown() {
    let user = |bench: &mut SecretsFixture, echo: &EchoServer| {
        let pair = echo.client();
        bench.add_key(&pair.key);
        bench.plugin_with(&json!({"clientCertificateData": pair.cert, "clientKeyData": pair.key}))
    };
    refused(user, None, "json").await;
}

/// What cannot be used ends the process with a reason, without what it is.
async fn credentials_that_cannot_be_used_are_not_shown() {
    type Make = fn(&SecretsFixture, &EchoServer) -> PathBuf;
    let cases: [(&str, Make, &str); 11] = [
        (
            "a plug-in that fails",
            |b, e| b.kubeconfig(&e.cluster(), &b.plugin(FAILS)),
            "exec plug-in",
        ),
        (
            "a plug-in that says no credential",
            |b, e| b.kubeconfig(&e.cluster(), &b.plugin(BABBLES)),
            "exec plug-in",
        ),
        (
            "a plug-in with another form",
            |b, e| b.kubeconfig(&e.cluster(), &b.plugin(ANOTHER)),
            "exec plug-in",
        ),
        (
            "a plug-in that is not there",
            |b, e| b.kubeconfig(&e.cluster(), &missing(b)),
            "auth exec",
        ),
        (
            "a token that is none",
            |b, e| b.kubeconfig(&e.cluster(), &json!({"token": format!("{TOKEN}\n")})),
            "token",
        ),
        ("a key that is none", |b, e| b.kubeconfig(&e.cluster(), &key(e, INNER)), "error"),
        ("a key that is cut", |b, e| b.kubeconfig(&e.cluster(), &key(e, &cut())), "error"),
        (
            "a kubeconfig that is none",
            |b, _| b.file("kubeconfig", &format!("users: [{{user: {{token: {TOKEN}")),
            "is no kubeconfig",
        ),
        (
            "another type",
            |b, _| b.file("kubeconfig", &format!("users: {{token: {TOKEN}}}\n")),
            "is no kubeconfig",
        ),
        (
            "an address with a password",
            |b, _| b.kubeconfig(&json!({"server": with_password()}), &json!({})),
            "server",
        ),
        (
            "a proxy of an unknown kind",
            |b, e| b.kubeconfig(&proxied(e, "ftp"), &json!({})),
            "proxy-url",
        ),
    ];
    let echo = EchoServer::start().await;
    let each = cases.map(async |(name, make, said)| {
        let bench = SecretsFixture::new();
        let mut process = bench.start(&make(&bench, &echo), "text", 0).await;
        let status = process.exit(SOON).await.unwrap();
        let log = process.log();
        if let Err(shown) = bench.secrets.check(name, &log) {
            return Some(format!("{shown:#}"));
        }
        // There was something to see.
        let error = log
            .lines()
            .filter(|line| line.starts_with("error: "))
            .collect::<String>();
        let is_told =
            status.code() == Some(1) && error.contains(said) && log.contains("flag=v value=10");
        (!is_told).then(|| format!("{name}: {status}: {log}"))
    });
    let wrong: Vec<String> = futures::future::join_all(each)
        .await
        .into_iter()
        .flatten()
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Both of a plug-in's streams, its arguments and its environment hold the secret.
const FAILS: &str = "echo \"out $INNER\"; echo \"err $1\" >&2; exit 3\n";
const BABBLES: &str =
    "printf '{\"status\": {\"token\": \"kube.Tk4/Qp9+Lz6=\", \"x\": %s' \"$INNER\"\n";
const ANOTHER: &str =
    "echo '{\"kind\": \"ExecCredential\", \"status\": [\"kube.Tk4/Qp9+Lz6=\"]}'\n";

fn missing(bench: &SecretsFixture) -> Value {
    let mut user = bench.plugin("");
    user["exec"]["command"] = "/nowhere/plugin".into();
    user
}

fn key(echo: &EchoServer, key: &str) -> Value {
    let pair = echo.client();
    json!({"client-certificate-data": STANDARD.encode(pair.cert), "client-key-data": STANDARD.encode(key)})
}

fn cut() -> String {
    format!("-----BEGIN PRIVATE KEY-----\n{TOKEN}\n{INNER}\n-----END PRIVATE KEY-----\n")
}

fn with_password() -> String {
    "https://somebody:basic%3APq8%2FZn4%2BVx5%3D@127.0.0.1:1".to_owned()
}

/// Through a proxy that is not there.
fn proxied(echo: &EchoServer, scheme: &str) -> Value {
    let mut cluster = echo.cluster();
    cluster["proxy-url"] =
        format!("{scheme}://somebody:basic%3APq8%2FZn4%2BVx5%3D@127.0.0.1:1").into();
    cluster
}

/// A proxy that does not answer is waited for, as the API server is, and its password stays out of
/// the log.
async fn the_password_of_a_proxy_is_not_shown() {
    let bench = SecretsFixture::new();
    let echo = EchoServer::start().await;
    let mut process = bench
        .start(&bench.kubeconfig(&proxied(&echo, "http"), &json!({})), "text", 0)
        .await;
    let tried = |process: &Ccm| process.log().contains("could not reach the API server");
    process
        .until("the proxy is not tried", SOON, tried)
        .await
        .unwrap();
    let log = process.log();
    drop(process);
    bench.check("the log", &log, &["could not reach the API server"]);
    assert!(echo.refused().is_empty(), "the API server was reached without the proxy");
}

/// A plug-in that works at first and fails later: its failure is told with each request that it
/// keeps from being sent.
async fn a_plug_in_that_fails_later_shows_nothing() {
    let bench = SecretsFixture::new();
    let echo = EchoServer::start().await;
    let ended = json!({"token": TOKEN, "expirationTimestamp": "2020-01-01T00:00:00Z"});
    let mut user = bench.plugin_with(&ended);
    let broken = bench.folder.path().join("broken");
    let script = format!(
        "if [ -e {0} ]; then {FAILS} fi\ncat {1}\n",
        broken.display(),
        bench.folder.path().join("credential").display()
    );
    user["exec"]["args"][0] = bench
        .file("later.sh", &script.replace("3\n fi", "3; fi"))
        .display()
        .to_string()
        .into();
    let mut process = bench
        .start(&bench.kubeconfig(&echo.cluster(), &user), "text", 0)
        .await;
    process
        .until("nothing is asked for", SOON, |_| !echo.refused().is_empty())
        .await
        .unwrap();
    std::fs::write(&broken, "").unwrap();
    let told = |process: &Ccm| process.log().contains("the exec plug-in");
    process
        .until("its failure is not told", SOON, told)
        .await
        .unwrap();
    let log = process.log();
    drop(process);
    bench.check("the log", &log, &["the exec plug-in"]);
}

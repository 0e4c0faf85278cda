//! A process of `openstack-local`, and a small client.

use std::{collections::BTreeMap, net::SocketAddr, path::Path, process::Stdio, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::Mutex,
    time::timeout,
};

/// Longest wait for a process to do anything.
const DEADLINE: Duration = Duration::from_secs(20);

pub(super) struct Cloud {
    child: Mutex<Child>,
    pub(super) address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_openstack-local"));
    command.env("RUST_LOG", "warn").kill_on_drop(true);
    command
}

/// Runs the binary to its end, and returns its code and what it complained about.
pub(super) async fn run(args: &[&str]) -> (i32, String) {
    let output = timeout(DEADLINE, command().args(args).stdin(Stdio::null()).output())
        .await
        .unwrap()
        .unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// Reads a password as a shell would get it.
pub(super) fn password(dir: &Path, user: &str) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_openstack-local"))
        .args(["credentials", "--listen", "127.0.0.1:1", "--user", user, "--state"])
        .arg(dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    assert!(lines.contains("export OS_AUTH_URL='http://127.0.0.1:1/identity/v3'"), "{lines}");
    let line = lines
        .lines()
        .find_map(|line| line.strip_prefix("export OS_PASSWORD='"))
        .unwrap();
    line.trim_end_matches('\'').to_owned()
}

impl Cloud {
    pub(super) async fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[]).await
    }

    pub(super) async fn start_with(dir: &Path, more: &[&str]) -> Self {
        Self::spawn(command(), dir, more).await
    }

    /// Starts one that logs everything, into this file.
    pub(super) async fn talkative(dir: &Path, more: &[&str], log: &Path) -> Self {
        let mut command = command();
        command
            .env("RUST_LOG", "trace")
            .stderr(std::fs::File::create(log).unwrap());
        Self::spawn(command, dir, more).await
    }

    async fn spawn(mut command: Command, dir: &Path, more: &[&str]) -> Self {
        let mut child = command
            .args(["serve", "--listen", "127.0.0.1:0", "--state"])
            .arg(dir)
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(DEADLINE, lines.next_line())
            .await
            .unwrap()
            .unwrap()
            .expect("the cloud says where it listens");
        let address = line
            .strip_prefix("listening on http://")
            .unwrap()
            .parse()
            .unwrap();
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { child: Mutex::new(child), address, client }
    }

    /// Kills the process, as `kill -9` does.
    pub(super) async fn kill(&self) {
        self.child.lock().await.kill().await.unwrap();
    }

    /// Asks the process to end, and sees it do so without complaint.
    pub(super) async fn terminate(self) {
        let mut child = self.child.lock().await;
        let id = child.id().unwrap().to_string();
        let sent = Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .await
            .unwrap();
        assert!(sent.success());
        let status = timeout(DEADLINE, child.wait()).await.unwrap().unwrap();
        assert!(status.success(), "{status}");
    }

    /// Sends a request. `None`: there was no complete answer.
    pub(super) async fn try_send(
        &self,
        method: &str,
        target: &str,
        token: &str,
        body: Option<Value>,
    ) -> Option<(u16, Value)> {
        let (status, _, body) = self.exchange(method, target, token, body).await?;
        Some((status, body))
    }

    async fn exchange(
        &self,
        method: &str,
        target: &str,
        token: &str,
        body: Option<Value>,
    ) -> Option<(u16, http::HeaderMap, Value)> {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("http://{}{target}", self.address));
        let request = request.header("x-auth-token", token);
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let answer = timeout(DEADLINE, self.client.request(request.body(Full::new(body)).unwrap()));
        let (parts, body) = answer.await.unwrap().ok()?.into_parts();
        let bytes = body.collect().await.ok()?.to_bytes();
        let body = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes).unwrap()
        };
        Some((parts.status.as_u16(), parts.headers, body))
    }

    pub(super) async fn get(&self, target: &str, token: &str) -> (u16, Value) {
        self.try_send("GET", target, token, None).await.unwrap()
    }

    /// Makes a token in the project with the user's name.
    pub(super) async fn token(&self, user: &str, password: &str) -> String {
        let default = json!({"id": "default"});
        let body = json!({"auth": {
            "identity": {"methods": ["password"],
                "password": {"user": {"name": user, "domain": default, "password": password}}},
            "scope": {"project": {"name": user, "domain": default}}}});
        let (status, headers, body) = self
            .exchange("POST", "/identity/v3/auth/tokens", "", Some(body))
            .await
            .unwrap();
        assert_eq!(status, 201, "{body}");
        headers["x-subject-token"].to_str().unwrap().to_owned()
    }

    /// Lists the projects: name by ID.
    pub(super) async fn projects(&self, token: &str) -> BTreeMap<String, String> {
        let (status, body) = self.get("/identity/v3/projects", token).await;
        assert_eq!(status, 200, "{body}");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        body["projects"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (text(&row["id"]), text(&row["name"])))
            .collect()
    }
}

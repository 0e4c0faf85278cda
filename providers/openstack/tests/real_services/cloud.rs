//! OpenStack's own services: started, asked as their users do, disturbed, emptied, and ended.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context as _;
use axum::body::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
    sync::Mutex,
    time::{Instant, timeout},
};

/// Names the state of the services that `setup.sh` made; `cargo xtask test --nightly` sets it.
const VARIABLE: &str = "CCM_OPENSTACK_REAL";
/// Longest time of a start, which takes about a minute on an idle machine, and of the end.
const START: Duration = Duration::from_secs(420);
/// Longest time that one request takes: Neutron's first ones are slow.
const REQUEST: Duration = Duration::from_secs(60);
/// Longest time that the deletion of everything takes.
const CLEAN: Duration = Duration::from_secs(400);
/// Pause between two looks.
pub(crate) const PAUSE: Duration = Duration::from_millis(300);

/// Pause between two looks at the whole cloud, which take the services about a second of work each.
pub(crate) const PAUSE_OF_CLOUD: Duration = Duration::from_secs(2);

/// Finds the state of the services.
///
/// # Errors
/// It is not there: how to get it.
pub(crate) fn find() -> Result<PathBuf, String> {
    let state = std::env::var_os(VARIABLE)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from);
    state
        .filter(|state| state.join("version").is_file())
        .ok_or_else(|| {
            format!(
                "{VARIABLE} does not name what tests/control-plane/openstack-real/setup.sh made; \
             `cargo xtask test --nightly` runs it, it needs root on Debian"
            )
        })
}

/// Where what is in the cloud from the beginning.
#[derive(Debug, Deserialize)]
pub(crate) struct Access {
    pub(crate) auth_url: String,
    pub(crate) region: String,
    /// Password of every user.
    pub(crate) password: String,
    database_port: u16,
    memcached_port: u16,
    ids: BTreeMap<String, String>,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum User {
    /// The cloud's administrator.
    Admin,
    /// The owner of the project, whose credentials the manager has as well.
    Owner,
}

/// A token, and where the services are.
#[derive(Clone, Debug)]
struct Session {
    token: String,
    endpoints: BTreeMap<String, String>,
}

/// The running services.
pub(crate) struct RealCloud {
    pub(crate) access: Access,
    state: PathBuf,
    http: Client<HttpConnector, Full<Bytes>>,
    sessions: Mutex<BTreeMap<User, Session>>,
    /// Ends everything when its standard input ends, which only this process holds.
    holder: Child,
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/control-plane/openstack-real")
}

impl RealCloud {
    /// Starts the services with what is there after the set-up.
    pub(crate) async fn start(state: &Path) -> anyhow::Result<Self> {
        let access = std::fs::read(state.join("cloud.json")).context("read cloud.json")?;
        let mut holder = Command::new("bash")
            .arg(scripts().join("hold.sh"))
            .env(VARIABLE, state)
            // A group of its own: Ctrl-C at the terminal does not interrupt how it ends everything.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("run hold.sh")?;
        let output = holder.stdout.take().context("its output")?;
        let mut lines = BufReader::new(output).lines();
        let ready = async {
            while let Some(line) = lines.next_line().await? {
                if line == "ready" {
                    return Ok(());
                }
            }
            anyhow::bail!(
                "OpenStack's services did not start; logs are in {}",
                state.join("log").display()
            )
        };
        timeout(START, ready)
            .await
            .context("OpenStack's services did not start in time")??;
        Ok(Self {
            access: serde_json::from_slice(&access).context("read cloud.json")?,
            state: state.to_owned(),
            http: Client::builder(TokioExecutor::new()).build_http(),
            sessions: Mutex::default(),
            holder,
        })
    }

    /// Ends everything that was started.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.holder.stdin.take());
        let status = timeout(START, self.holder.wait())
            .await
            .context("OpenStack's services do not end")??;
        anyhow::ensure!(status.success(), "hold.sh: {status}");
        Ok(())
    }

    /// The ID of something that is there from the beginning.
    pub(crate) fn id(&self, name: &str) -> &str {
        self.access.ids.get(name).map_or("", String::as_str)
    }

    async fn session(&self, user: User, renewed: bool) -> anyhow::Result<Session> {
        let mut sessions = self.sessions.lock().await;
        if let Some(session) = sessions.get(&user).filter(|_| !renewed) {
            return Ok(session.clone());
        }
        let (token, answer) = self.authenticate(user).await?;
        let mut endpoints = BTreeMap::new();
        for service in answer["token"]["catalog"].as_array().into_iter().flatten() {
            let public = service["endpoints"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|endpoint| endpoint["interface"] == "public");
            if let (Some(kind), Some(url)) =
                (service["type"].as_str(), public.and_then(|public| public["url"].as_str()))
            {
                endpoints.insert(kind.to_owned(), url.trim_end_matches('/').to_owned());
            }
        }
        let session = Session { token, endpoints };
        sessions.insert(user, session.clone());
        Ok(session)
    }

    /// Asks Keystone for a token: the token and the answer.
    async fn authenticate(&self, user: User) -> anyhow::Result<(String, Value)> {
        let (name, project) = match user {
            User::Admin => ("admin", "admin"),
            User::Owner => ("ccm", "kube"),
        };
        let domain = json!({"id": "default"});
        let body = json!({"auth": {
            "identity": {"methods": ["password"], "password": {"user": {
                "name": name, "domain": domain, "password": self.access.password}}},
            "scope": {"project": {"name": project, "domain": domain}}}});
        let url = format!("{}/auth/tokens", self.access.auth_url);
        let (status, headers, answer) = self.send(Method::POST, &url, None, Some(body)).await?;
        anyhow::ensure!(status == 201, "no token for {name}: {status} {answer}");
        let token = headers
            .get("x-subject-token")
            .context("a token")?
            .to_str()?
            .to_owned();
        Ok((token, answer))
    }

    /// What Keystone answers to the project's owner, whose token is in a header.
    pub(crate) async fn token_answer(&self) -> anyhow::Result<Value> {
        let (_, mut answer) = self.authenticate(User::Owner).await?;
        // They are made from the token.
        answer["token"]
            .as_object_mut()
            .and_then(|token| token.remove("audit_ids"));
        Ok(answer)
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        token: Option<&str>,
        body: Option<Value>,
    ) -> anyhow::Result<(u16, http::HeaderMap, Value)> {
        let mut request = Request::builder()
            .method(method)
            .uri(url)
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .header("openstack-api-version", "compute 2.90");
        if let Some(token) = token {
            request = request.header("x-auth-token", token);
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let answer = timeout(REQUEST, self.http.request(request.body(Full::from(body))?));
        let (parts, body) = answer.await.context("no answer in time")??.into_parts();
        let body = timeout(REQUEST, body.collect())
            .await
            .context("half an answer")??
            .to_bytes();
        let body = serde_json::from_slice(&body)
            .unwrap_or_else(|_| String::from_utf8_lossy(&body).into_owned().into());
        Ok((parts.status.as_u16(), parts.headers, body))
    }

    /// Sends a request to a service of the catalog: the status and the answer.
    pub(crate) async fn ask(
        &self,
        user: User,
        method: Method,
        service: &str,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<(u16, Value)> {
        let mut renewed = false;
        loop {
            let session = self.session(user, renewed).await?;
            let base = session
                .endpoints
                .get(service)
                .with_context(|| format!("no {service} in the catalog"))?;
            let url = format!("{base}{path}");
            let answer = self.send(method.clone(), &url, Some(&session.token), body.clone());
            let (status, _, answer) = answer.await.with_context(|| format!("{method} {url}"))?;
            if status == 401 && !renewed {
                renewed = true;
                continue;
            }
            return Ok((status, answer));
        }
    }

    /// Sends a request that must succeed.
    pub(crate) async fn must(
        &self,
        user: User,
        method: Method,
        service: &str,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<Value> {
        let what = format!("{method} {service} {path}");
        let (status, answer) = self.ask(user, method, service, path, body).await?;
        anyhow::ensure!(status < 300, "{what}: {status} {answer}");
        Ok(answer)
    }

    /// Creates something, and returns what the answer has under this key.
    pub(crate) async fn create(
        &self,
        user: User,
        service: &str,
        path: &str,
        key: &str,
        fields: Value,
    ) -> anyhow::Result<Value> {
        let body = Some(json!({ key: fields }));
        let mut answer = self.must(user, Method::POST, service, path, body).await?;
        Ok(answer[key].take())
    }

    /// Reads one thing.
    pub(crate) async fn get(&self, user: User, service: &str, path: &str) -> anyhow::Result<Value> {
        self.must(user, Method::GET, service, path, None).await
    }

    /// Reads a list, which the answer has under this key.
    pub(crate) async fn list(
        &self,
        service: &str,
        path: &str,
        key: &str,
    ) -> anyhow::Result<Vec<Value>> {
        match self.get(User::Admin, service, path).await?[key].take() {
            Value::Array(list) => Ok(list),
            other => anyhow::bail!("{service} {path}: no list {key}, but {other}"),
        }
    }

    /// Reads a list of the project's things in Octavia or Neutron.
    pub(crate) async fn of_project(
        &self,
        service: &str,
        path: &str,
        key: &str,
    ) -> anyhow::Result<Vec<Value>> {
        self.list(service, &format!("{path}?project_id={}", self.id("project")), key)
            .await
    }

    /// Runs a statement in the database, as nobody but a test would.
    pub(crate) async fn sql(&self, statement: &str) -> anyhow::Result<()> {
        let port = self.access.database_port.to_string();
        let status = Command::new("mariadb")
            .args(["--no-defaults", "-h", "127.0.0.1", "-u", "root", "-P", &port, "-e", statement])
            .stdin(Stdio::null())
            .status();
        let status = timeout(REQUEST, status).await.context("the database")??;
        anyhow::ensure!(status.success(), "{statement}: {status}");
        Ok(())
    }

    /// Ends (`stop`) or starts (`start`) a service.
    pub(crate) async fn service(&self, verb: &str, name: &str) -> anyhow::Result<()> {
        let status = Command::new("bash")
            .arg(scripts().join("service.sh"))
            .args([verb, name])
            .env(VARIABLE, &self.state)
            .stdin(Stdio::null())
            .status();
        let status = timeout(START, status)
            .await
            .with_context(|| format!("{verb} {name}"))??;
        anyhow::ensure!(status.success(), "{verb} {name}: {status}");
        Ok(())
    }

    /// Revokes every token of the project's owner: the services forget what they have cached.
    pub(crate) async fn revoke_tokens(&self) -> anyhow::Result<()> {
        let path = format!("/users/{}", self.id("user"));
        for enabled in [false, true] {
            let body = json!({"user": {"enabled": enabled}});
            self.must(User::Admin, Method::PATCH, "identity", &path, Some(body))
                .await?;
        }
        let mut cache = TcpStream::connect(("127.0.0.1", self.access.memcached_port)).await?;
        cache.write_all(b"flush_all\r\n").await?;
        let mut answer = String::new();
        timeout(REQUEST, BufReader::new(cache).read_line(&mut answer)).await??;
        anyhow::ensure!(answer.trim() == "OK", "the cache of tokens says {answer:?}");
        Ok(())
    }

    /// Makes a server with an address in the subnet of nodes: its ID, its port and its address.
    pub(crate) async fn server(&self, name: &str, more: Value) -> anyhow::Result<Instance> {
        let port = json!({"network_id": self.id("network"), "name": name,
            "fixed_ips": [{"subnet_id": self.id("nodes")}]});
        let port = self
            .create(User::Owner, "network", "/v2.0/ports", "port", port)
            .await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut fields = json!({"name": name, "imageRef": self.id("image"), "flavorRef": "1",
            "networks": [{"port": port["id"]}]});
        for (field, value) in more.as_object().into_iter().flatten() {
            fields[field] = value.clone();
        }
        let made = self
            .create(User::Owner, "compute", "/servers", "server", fields)
            .await?;
        let id = text(&made["id"]);
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let server = &self
                .get(User::Owner, "compute", &format!("/servers/{id}"))
                .await?["server"];
            match server["status"].as_str() {
                Some("ACTIVE") => break,
                Some("ERROR") => anyhow::bail!("server {name} failed: {}", server["fault"]),
                _ => anyhow::ensure!(Instant::now() < deadline, "server {name} is {server}"),
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(Instance {
            id,
            name: name.to_owned(),
            port: text(&port["id"]),
            ip: text(&port["fixed_ips"][0]["ip_address"]),
        })
    }

    async fn delete(&self, service: &str, path: &str) -> anyhow::Result<()> {
        let (status, answer) = self
            .ask(User::Admin, Method::DELETE, service, path, None)
            .await?;
        // What is busy is deleted at the next turn.
        anyhow::ensure!(
            status < 300 || matches!(status, 404 | 409),
            "DELETE {service} {path}: {status} {answer}"
        );
        Ok(())
    }

    /// Deletes load balancers and servers, and what is attached to them.
    async fn delete_servers(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + CLEAN;
        for row in self
            .of_project("network", "/v2.0/floatingips", "floatingips")
            .await?
        {
            self.delete("network", &format!("/v2.0/floatingips/{}", id_of(&row)))
                .await?;
        }
        let stuck = "UPDATE octavia.load_balancer SET provisioning_status='ERROR' WHERE provisioning_status='PENDING_UPDATE'";
        loop {
            let rows = self
                .list("load-balancer", "/v2/lbaas/loadbalancers", "loadbalancers")
                .await?;
            if rows.is_empty() {
                break;
            }
            anyhow::ensure!(Instant::now() < deadline, "load balancers are not deleted: {rows:?}");
            self.sql(stuck).await?;
            for row in rows {
                let path = format!("/v2/lbaas/loadbalancers/{}?cascade=true", id_of(&row));
                self.delete("load-balancer", &path).await?;
            }
            tokio::time::sleep(PAUSE_OF_CLOUD).await;
        }
        loop {
            let rows = self
                .list("compute", "/servers?all_tenants=1", "servers")
                .await?;
            if rows.is_empty() {
                break;
            }
            anyhow::ensure!(Instant::now() < deadline, "servers are not deleted: {rows:?}");
            for row in rows {
                self.delete("compute", &format!("/servers/{}", id_of(&row)))
                    .await?;
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Deletes everything that is not there from the beginning.
    pub(crate) async fn clean(&self) -> anyhow::Result<()> {
        self.delete_servers().await?;
        for router in ["router", "other_router"] {
            let path = format!("/v2.0/routers/{}", self.id(router));
            let body = json!({"router": {"routes": []}});
            self.must(User::Admin, Method::PUT, "network", &path, Some(body))
                .await?;
        }
        for row in self.list("network", "/v2.0/ports", "ports").await? {
            let owner = row["device_owner"].as_str().unwrap_or_default();
            if !owner.starts_with("network:") {
                self.delete("network", &format!("/v2.0/ports/{}", id_of(&row)))
                    .await?;
            }
        }
        for row in self
            .list("network", "/v2.0/security-groups", "security_groups")
            .await?
        {
            let name = row["name"].as_str().unwrap_or_default();
            if name != "default" && name != "lb-mgmt" {
                self.delete("network", &format!("/v2.0/security-groups/{}", id_of(&row)))
                    .await?;
            }
        }
        for (kind, reference) in [("containers", "container_ref"), ("secrets", "secret_ref")] {
            let path = format!("/v1/{kind}?limit=100");
            let mut list = self.get(User::Owner, "key-manager", &path).await?;
            for row in list[kind].as_array_mut().into_iter().flatten() {
                let id = row[reference]
                    .as_str()
                    .and_then(|url| url.rsplit('/').next());
                let path = format!("/v1/{kind}/{}", id.unwrap_or_default());
                self.must(User::Owner, Method::DELETE, "key-manager", &path, None)
                    .await?;
            }
        }
        for service in ["load-balancer", "network"] {
            let path = if service == "network" {
                "/v2.0/quotas"
            } else {
                "/v2/lbaas/quotas"
            };
            self.delete(service, &format!("{path}/{}", self.id("project")))
                .await?;
        }
        Ok(())
    }
}

/// The ID in an answer.
pub(crate) fn id_of(row: &Value) -> &str {
    row["id"].as_str().unwrap_or_default()
}

/// A server.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) port: String,
    pub(crate) ip: String,
}

impl Instance {
    pub(crate) fn provider_id(&self) -> String {
        format!("openstack:///{}", self.id)
    }
}

/// IDs that Services of the take-over name.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    pub(crate) nodes_subnet: String,
    pub(crate) vip_network: String,
    pub(crate) vip_subnet: String,
    pub(crate) vip_port: String,
    pub(crate) public: String,
    pub(crate) public_subnet: String,
    pub(crate) flavor: String,
    pub(crate) certificate: String,
    /// A load balancer that an operator made.
    pub(crate) manual: String,
    /// A floating IP that an operator made.
    pub(crate) fixed_address: String,
}

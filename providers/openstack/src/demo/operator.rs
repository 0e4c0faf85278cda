//! The cloud's operator: creates the network and the servers, stops and deletes them, through the
//! REST APIs.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use openstack_local::{server::LocalCloud, servers::NODE};
use serde_json::{Value, json};

use super::addresses::DemoAddresses;
use crate::{
    client::{Https, Transport as _},
    config::{Auth, Cloud, Domain, Identity, Scope, User},
};

/// Flavor of the servers.
const FLAVOR: &str = "2";

/// Cloud resources in the controllers' configuration.
#[derive(Clone, Debug)]
pub(super) struct CloudResources {
    network: String,
    pub(super) subnet: String,
    pub(super) router: String,
}

/// A user with a token.
pub(super) struct Operator {
    transport: Https,
    base: String,
    token: String,
}

impl Operator {
    /// Gets a token for a user of the local cloud.
    pub(super) async fn authenticate(
        cloud: &LocalCloud,
        user: &str,
        address: SocketAddr,
    ) -> anyhow::Result<Self> {
        let password = cloud
            .credentials()
            .password(user)
            .context("the user is there")?;
        let base = format!("http://{address}");
        let domain = Domain::Id("default".into());
        let auth = Auth {
            url: format!("{base}/identity/v3").parse()?,
            identity: Identity::Password {
                user: User::Name { name: user.into(), domain: domain.clone() },
                password: password.expose().into(),
            },
            scope: Scope::ProjectName { name: user.into(), domain },
        };
        let transport = Https::new(&Cloud::new(auth), &["demo".to_owned()])?;
        let mut operator = Self { transport, base, token: String::new() };
        let default = json!({"id": "default"});
        let body = json!({"auth": {
            "identity": {"methods": ["password"],
                "password": {"user": {"name": user, "domain": default, "password": password.expose()}}},
            "scope": {"project": {"name": user, "domain": default}}}});
        let (headers, _) = operator
            .send(Method::POST, "/identity/v3/auth/tokens", Some(body))
            .await?;
        let token = headers
            .get("x-subject-token")
            .and_then(|token| token.to_str().ok());
        token
            .context("an answer without a token")?
            .clone_into(&mut operator.token);
        Ok(operator)
    }

    /// Creates a network with a subnet, and a router on it.
    pub(super) async fn prepare(&self, place: &DemoAddresses) -> anyhow::Result<CloudResources> {
        let network = self
            .make("/network/v2.0/networks", "network", json!({"name": "nodes"}))
            .await?;
        let (start, end) = place.load_balancers;
        let subnet = json!({
            "name": "nodes", "network_id": network, "ip_version": 4, "cidr": place.network.to_string(),
            "allocation_pools": [{"start": start.to_string(), "end": end.to_string()}],
        });
        let subnet = self.make("/network/v2.0/subnets", "subnet", subnet).await?;
        let router = self
            .make("/network/v2.0/routers", "router", json!({"name": "nodes"}))
            .await?;
        let interface = json!({"subnet_id": subnet});
        let path = format!("/network/v2.0/routers/{router}/add_router_interface");
        self.send(Method::PUT, &path, Some(interface)).await?;
        Ok(CloudResources { network, subnet, router })
    }

    /// Creates the servers, each a node.
    pub(super) async fn make_servers(
        &self,
        ground: &CloudResources,
        place: &DemoAddresses,
    ) -> anyhow::Result<()> {
        for (name, address) in &place.nodes {
            let server = json!({
                "name": name, "flavorRef": FLAVOR, "metadata": {NODE: "true"},
                "networks": [{"uuid": ground.network, "fixed_ip": address.to_string()}],
            });
            self.make("/compute/v2.1/servers", "server", server).await?;
        }
        Ok(())
    }

    /// Sends an action to a server: `os-stop`, `os-start`.
    pub(super) async fn server_action(&self, server: &str, action: &str) -> anyhow::Result<()> {
        let path = format!("/compute/v2.1/servers/{}/action", self.id(server).await?);
        self.send(Method::POST, &path, Some(json!({action: null})))
            .await
            .map(drop)
    }

    /// Deletes a server.
    pub(super) async fn delete(&self, server: &str) -> anyhow::Result<()> {
        let path = format!("/compute/v2.1/servers/{}", self.id(server).await?);
        self.send(Method::DELETE, &path, None).await.map(drop)
    }

    async fn id(&self, server: &str) -> anyhow::Result<String> {
        let path = format!("/compute/v2.1/servers?name=%5E{server}%24");
        let (_, found) = self.send(Method::GET, &path, None).await?;
        Ok(found["servers"][0]["id"]
            .as_str()
            .with_context(|| format!("there is no server {server}"))?
            .to_owned())
    }

    /// Creates an object and returns its ID.
    async fn make(&self, path: &str, kind: &str, body: Value) -> anyhow::Result<String> {
        let (_, made) = self
            .send(Method::POST, path, Some(json!({kind: body})))
            .await?;
        Ok(made[kind]["id"]
            .as_str()
            .with_context(|| format!("no {kind} in {made}"))?
            .to_owned())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<(HeaderMap, Value)> {
        let what = format!("{method} {path}");
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base));
        let request = request
            .header("content-type", "application/json")
            .header("x-auth-token", &self.token);
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let answer = self
            .transport
            .send(request.body(body)?)
            .await
            .with_context(|| what.clone())?;
        let status = answer.status();
        let text = String::from_utf8_lossy(answer.body());
        ensure!(status.is_success(), "{what}: {status}: {text}");
        let body = if text.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&text).context(what)?
        };
        Ok((answer.headers().clone(), body))
    }
}

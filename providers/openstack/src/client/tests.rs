//! The client on the local cloud, in process, and on small clouds of its own where that does not go
//! wrong in the same way.

mod auth;
mod compute;
mod discovery;
mod pages;
mod recordings;
mod sockets;
mod tls;
mod trouble;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::{error::chain, provider::ErrorKind, write_gate::WriteGate};
use http::{Response, StatusCode};
use openstack_local::server::{Fault as Trouble, FaultKind, LocalCloud, Settings as CloudSettings};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    in_process::{HOST, InProcess, auth, settings},
    *,
};
use crate::api::neutron::Network;

fn cloud() -> LocalCloud {
    LocalCloud::in_memory(CloudSettings::default())
}

fn op() -> Op {
    Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
}

async fn client(cloud: &LocalCloud) -> Client {
    Client::connect(&settings(cloud), InProcess::new(cloud))
        .await
        .expect("a token")
}

const NETWORKS: Request<'static> = Request {
    call: Call::NetworkList,
    path: &["networks"],
    query: &[],
    revision: None,
    object: None,
    detail: "",
};

async fn networks(client: &Client) -> Result<Vec<Network>, OpenStackError> {
    client.get_all(&op(), &NETWORKS).await
}

async fn create(client: &Client, op: &Op) -> Result<Value, OpenStackError> {
    let body = json!({"name": "n", "description": ""});
    client
        .post(
            op,
            &Request::new(Call::SecurityGroupCreate, &["security-groups"])
                .object("n")
                .with_detail("test"),
            &body,
        )
        .await
}

fn status(code: u16, retry_after: Option<u64>) -> FaultKind {
    FaultKind::Status { code, retry_after, message: None }
}

/// A cloud whose every answer is a function of the request and of how many there were before.
/// Tokens are always good.
struct Tiny<F>(Mutex<usize>, F);

impl<F> Tiny<F> {
    fn new(answer: F) -> Arc<Self> {
        Arc::new(Self(Mutex::new(0), answer))
    }

    fn requests(&self) -> usize {
        *self.0.lock()
    }
}

#[async_trait]
impl<F> Transport for Tiny<F>
where
    F: Fn(&http::Request<Bytes>, usize) -> Result<Response<Bytes>, TransportError>
        + Send
        + Sync
        + 'static,
{
    async fn send(&self, request: http::Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        if request.uri().path().ends_with("/auth/tokens") {
            return Ok(token(
                &json!([{"type": "network", "endpoints": [endpoint("public", "RegionOne", "http://net.test")]}]),
            ));
        }
        let before = {
            let mut count = self.0.lock();
            *count += 1;
            *count - 1
        };
        (self.1)(&request, before)
    }
}

fn endpoint(interface: &str, region: &str, url: &str) -> Value {
    json!({"interface": interface, "region": region, "region_id": region, "url": url})
}

/// Keystone's answer, for an hour.
fn token(catalog: &Value) -> Response<Bytes> {
    let named = json!({"id": "default", "name": "Default"});
    let user = json!({"id": "u", "name": "u", "domain": named});
    let token = json!({"user": user, "issued_at": "2026-01-01T00:00:00.000000Z",
        "expires_at": "2026-01-01T01:00:00.000000Z", "catalog": catalog});
    let body = json!({"token": token}).to_string();
    Response::builder()
        .status(201)
        .header("x-subject-token", "t")
        .body(body.into())
        .expect("an answer")
}

fn answer(code: u16, body: impl Into<Bytes>) -> Response<Bytes> {
    Response::builder()
        .status(code)
        .body(body.into())
        .expect("an answer")
}

/// A client of such a cloud, without budgets.
async fn tiny<F>(tiny: &Arc<Tiny<F>>) -> Client
where
    Tiny<F>: Transport,
{
    let local = cloud();
    let client = Client::connect(&settings(&local), tiny.clone())
        .await
        .expect("a token");
    client.with_limits(None)
}

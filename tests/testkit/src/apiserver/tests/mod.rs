//! In process, in virtual time, through `kube::Client`, as the controllers see the server.

use std::time::Duration;

use futures::{Stream, StreamExt as _, TryStreamExt as _};
use http::Request;
use k8s_openapi::api::core::v1::Node;
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::Status;
use serde_json::{Value, json};

use super::*;

mod access;
mod faults;
mod forms;
mod load;
mod network;
mod objects;
mod services;
mod watches;

fn server() -> ApiServer {
    ApiServer::new(Options::default())
}

fn nodes(server: &ApiServer) -> Api<Node> {
    Api::all(server.client())
}

fn node(name: &str) -> Node {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

/// Sends a request that kube has no call for, and returns status and body.
async fn send(
    server: &ApiServer,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Value,
) -> (u16, Value) {
    let (code, text) = send_text(server, method, path, headers, body).await;
    (code, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

async fn send_text(
    server: &ApiServer,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Value,
) -> (u16, String) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let request = request
        .body(http_body_util::Full::new(Bytes::from(body)))
        .unwrap();
    let response = tower::ServiceExt::oneshot(server.clone(), request)
        .await
        .unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(bytes.to_vec()).unwrap())
}

async fn json_patch(server: &ApiServer, path: &str, operations: Value) -> (u16, Value) {
    send(server, "PATCH", path, &[("content-type", "application/json-patch+json")], operations)
        .await
}

fn refused<T: fmt::Debug>(result: Result<T, kube::Error>) -> Status {
    match result.unwrap_err() {
        kube::Error::Api(status) => *status,
        other => panic!("not refused by the server: {other}"),
    }
}

/// Returns the name and kind of the next event.
async fn next_event<S>(stream: &mut S) -> String
where
    S: Stream<Item = Result<WatchEvent<Node>, kube::Error>> + Unpin,
{
    match stream.try_next().await.unwrap() {
        None => "end".into(),
        Some(WatchEvent::Added(n)) => format!("added {}", n.metadata.name.unwrap()),
        Some(WatchEvent::Modified(n)) => format!("modified {}", n.metadata.name.unwrap()),
        Some(WatchEvent::Deleted(n)) => format!("deleted {}", n.metadata.name.unwrap()),
        Some(WatchEvent::Bookmark(b)) => format!("bookmark {:?}", b.metadata.annotations),
        Some(WatchEvent::Error(e)) => format!("error {} {} {}", e.code, e.reason, e.message),
    }
}

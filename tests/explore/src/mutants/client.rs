//! A client that lies to its process.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

use bytes::Bytes;
use ccm_testkit::apiserver::{Action, ApiServer, Body, Match, RequestInfo};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::{BoxError, Service as _};

use super::Bug;
use crate::{
    cluster_conditions,
    interceptor::Interceptor,
    objects::{FINALIZER, has_finalizer, is_nobodys, text},
    process::{AGENT, Process},
};

/// How the client of a process lies to it; by default not at all.
#[derive(Clone, Debug, Default)]
pub(crate) struct MutantClient {
    bug: Option<Bug>,
    /// A request that was answered before it was sent.
    held: Arc<Mutex<Option<Request<Full<Bytes>>>>>,
    /// Pod networks that this process gave.
    given: Arc<AtomicU8>,
    /// Nodes that this process gave pod networks.
    served: Arc<Mutex<BTreeSet<String>>>,
    /// Its credentials were refused.
    refused: Arc<AtomicBool>,
}

impl MutantClient {
    pub(crate) fn of(bug: Option<Bug>) -> Self {
        Self { bug, ..Self::default() }
    }

    /// The status that a request is answered with on its way, if it is: what is in the way, or what
    /// the process makes of it.
    pub(crate) async fn barred(
        &self,
        bars: Option<StatusCode>,
        info: &RequestInfo,
    ) -> Option<StatusCode> {
        let refused = match bars {
            Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                self.refused.fetch_or(true, Ordering::Relaxed)
            }
            _ => self.refused.load(Ordering::Relaxed),
        };
        match self.bug {
            Some(Bug::ExpiredForGood) if refused => Some(StatusCode::UNAUTHORIZED),
            Some(Bug::EveryCacheNeeded) if refused && info.resource == "nodes" => {
                std::future::pending().await
            }
            _ => bars,
        }
    }

    /// A page of a proxy that knows no such path.
    pub(crate) fn page(&self) -> Response<Body> {
        if self.bug == Some(Bug::PagesBelieved) {
            cluster_conditions::answer(StatusCode::NOT_FOUND, None)
        } else {
            cluster_conditions::page()
        }
    }

    /// An answer without a question to the server.
    pub(crate) fn instead(
        &self,
        server: &ApiServer,
        process: &Process,
        info: &RequestInfo,
        request: &Request<Full<Bytes>>,
        body: &Bytes,
    ) -> Option<Response<Body>> {
        match self.bug? {
            Bug::FinalizerLate if adds_finalizer(info, body) => {
                let object = server
                    .store()
                    .get(("", "services"), &info.namespace, &info.name)?;
                let mut service = object.value();
                service["metadata"]["finalizers"] = json!([FINALIZER]);
                *self.held.lock() = Some(request.clone());
                Some(respond(service.to_string().into()))
            }
            Bug::NetworksRemembered
                if gives_networks(info, body) && !self.served.lock().insert(info.name.clone()) =>
            {
                let node = server.store().get(("", "nodes"), "", &info.name)?;
                Some(respond(node.value().to_string().into()))
            }
            Bug::LeaseUnchecked
                if info.resource == "leases" && info.is_write() && process.is_cut_off() =>
            {
                Some(respond(body.clone()))
            }
            _ => None,
        }
    }

    /// What a cache that lags answers in the server's place.
    pub(crate) fn answer_from_the_past(
        &self,
        server: &ApiServer,
        info: &RequestInfo,
        query: &str,
        seam: &Interceptor,
    ) {
        let is_one = info.verb == "list" && query.contains("fieldSelector=metadata.name");
        if self.bug == Some(Bug::ReadFromCache)
            && is_one
            && let Some(version) = seam.stands()
        {
            let this = Match::resource(&info.resource)
                .verb("list")
                .user_agent(AGENT);
            server
                .faults()
                .add_times(this, Action::StaleRead(version), 1);
        }
    }

    /// What the process makes of an answer.
    pub(crate) fn believed(
        &self,
        answer: Result<Response<Body>, BoxError>,
        info: &RequestInfo,
        body: &Bytes,
    ) -> Result<Response<Body>, BoxError> {
        let writes = info.is_write() && info.resource == "services";
        if answer.is_err() && writes && self.bug == Some(Bug::LostCountsAsMade) {
            return Ok(respond(body.clone()));
        }
        answer
    }

    /// What is sent before this request, late.
    pub(crate) async fn catch_up(&self, server: &mut ApiServer, info: &RequestInfo) {
        if self.bug == Some(Bug::NobodysDeleted)
            && info.resource == "nodes"
            && info.verb == "delete"
        {
            let nodes = server.store().list(("", "nodes"), None).0;
            for node in nodes.iter().map(|node| node.value()).filter(is_nobodys) {
                let path = format!("/api/v1/nodes/{}", text(&node["metadata"]["name"]));
                let request = Request::delete(path).body(Full::new(Bytes::new()));
                // Whether it succeeds is of no interest to somebody who does wrong.
                let _ = server.call(request.expect("it is one")).await;
            }
        }
        if info.resource != "services" || !info.is_write() {
            return;
        }
        let held = self.held.lock().take();
        if let Some(held) = held {
            // Whether it succeeds is of no interest to somebody who said so already.
            let _ = server.call(held).await;
        }
    }

    /// What is sent in place of this body.
    pub(crate) fn rewritten(&self, info: &RequestInfo, body: Bytes) -> Bytes {
        if self.bug == Some(Bug::Unconditional) && info.is_write() {
            return unconditional(body);
        }
        if self.bug != Some(Bug::NetworksForgotten) || !gives_networks(info, &body) {
            return body;
        }
        let mut patch: Value = serde_json::from_slice(&body).unwrap_or_default();
        let network = format!("10.0.{}.0/24", self.given.fetch_add(1, Ordering::Relaxed));
        for operation in patch
            .as_array_mut()
            .into_iter()
            .flatten()
            .filter(|operation| is_network(operation))
        {
            let is_list = operation["value"].is_array();
            operation["value"] = if is_list {
                json!([network])
            } else {
                json!(network)
            };
        }
        patch.to_string().into()
    }
}

fn is_network(operation: &Value) -> bool {
    text(&operation["path"]).starts_with("/spec/podCIDR")
}

fn gives_networks(info: &RequestInfo, body: &Bytes) -> bool {
    let patch: Value = serde_json::from_slice(body).unwrap_or_default();
    info.verb == "patch"
        && info.resource == "nodes"
        && patch.as_array().into_iter().flatten().any(is_network)
}

fn adds_finalizer(info: &RequestInfo, body: &Bytes) -> bool {
    let patch: Value = serde_json::from_slice(body).unwrap_or_default();
    info.verb == "patch" && info.resource == "services" && has_finalizer(&patch)
}

/// A write without what it expects.
fn unconditional(body: Bytes) -> Bytes {
    let Ok(mut write) = serde_json::from_slice::<Value>(&body) else {
        return body;
    };
    if let Some(operations) = write.as_array_mut() {
        operations.retain(|operation| operation["op"] != "test");
    }
    // A lease is not written without its version at all.
    if write["kind"] != "Lease"
        && let Some(metadata) = write.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.remove("uid");
        metadata.remove("resourceVersion");
    }
    write.to_string().into()
}

fn respond(body: Bytes) -> Response<Body> {
    cluster_conditions::json(StatusCode::OK, body)
}

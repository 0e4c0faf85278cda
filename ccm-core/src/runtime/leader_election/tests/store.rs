//! A Lease store behind `kube::Client`: optimistic concurrency, and faults that are injected, not
//! scripted results.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Fault {
    /// Time on the way there.
    pub(super) before: Duration,
    /// Answer with this status instead of doing it.
    pub(super) refuse: Option<u16>,
    /// Time on the way back.
    pub(super) after: Duration,
    /// Do it, and never answer.
    pub(super) lose_answer: bool,
}

impl Fault {
    pub(super) fn refuse(code: u16) -> Self {
        Self { refuse: Some(code), ..Self::default() }
    }
}

type Chooser = Box<dyn FnMut(&str) -> Fault + Send>;

#[derive(Default)]
struct LeaseStoreState {
    version: u64,
    objects: BTreeMap<String, Value>,
    requests: Vec<String>,
    next: VecDeque<Fault>,
    chooser: Option<Chooser>,
}

/// The store. Clones share the state.
#[derive(Clone, Default)]
pub(super) struct Store(Arc<Mutex<LeaseStoreState>>);

impl Store {
    pub(super) fn client(&self) -> Client {
        let store = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let store = store.clone();
            async move { store.serve(request).await }
        });
        Client::new(service, "default")
    }

    /// Applies faults to the next requests, in order.
    pub(super) fn next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.0.lock().next.extend(faults);
    }

    /// Chooses a fault for every request by its verb (`GET`, `PUT`, `POST`).
    pub(super) fn choose(&self, chooser: impl FnMut(&str) -> Fault + Send + 'static) {
        self.0.lock().chooser = Some(Box::new(chooser));
    }

    /// Ends what [`Store::choose`] began.
    pub(super) fn heal(&self) {
        self.0.lock().chooser = None;
    }

    /// Returns the verbs of all requests since the last call.
    pub(super) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().requests)
    }

    pub(super) fn lease(&self) -> Option<Value> {
        self.0.lock().objects.get("ccm").cloned()
    }

    pub(super) fn spec(&self) -> Value {
        self.lease().map_or(Value::Null, |l| l["spec"].clone())
    }

    /// Writes the spec as another client would, whatever is there.
    pub(super) fn put_spec(&self, spec: Value) {
        let mut state = self.0.lock();
        state.version += 1;
        let version = state.version.to_string();
        let lease = state.objects.entry("ccm".to_owned()).or_insert_with(|| {
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "ccm", "namespace": "kube-system", "uid": "u1"}})
        });
        lease["spec"] = spec;
        lease["metadata"]["resourceVersion"] = version.into();
    }

    /// Annotates the Lease as another client would.
    pub(super) fn annotate(&self, key: &str, value: &str) {
        let mut state = self.0.lock();
        state.version += 1;
        let version = state.version.to_string();
        let metadata = &mut state.objects.get_mut("ccm").expect("a lease")["metadata"];
        metadata["annotations"][key] = value.into();
        metadata["resourceVersion"] = version.into();
    }

    pub(super) fn delete(&self) {
        self.0.lock().objects.clear();
    }

    async fn serve(
        self,
        request: Request<Body>,
    ) -> Result<Response<Body>, std::convert::Infallible> {
        let (parts, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .expect("a request body in memory")
            .to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let name = parts
            .uri
            .path()
            .split("/leases")
            .nth(1)
            .unwrap_or_default()
            .trim_start_matches('/')
            .to_owned();
        let fault = {
            let mut state = self.0.lock();
            state.requests.push(parts.method.to_string());
            let queued = state.next.pop_front();
            let chosen = state
                .chooser
                .as_mut()
                .map(|choose| choose(parts.method.as_str()));
            queued.or(chosen).unwrap_or_default()
        };
        // Once sent, a request goes its way even if the client stops waiting: it lives in a task of
        // its own.
        let done = tokio::spawn(async move {
            sleep(fault.before).await;
            let answer = match fault.refuse {
                Some(code) => status(code),
                None => self.apply(&parts.method, &name, body),
            };
            sleep(fault.after).await;
            if fault.lose_answer {
                std::future::pending::<()>().await;
            }
            answer
        });
        let (code, answer) = done.await.expect("the request's task");
        let body = Body::from(serde_json::to_vec(&answer).expect("JSON"));
        Ok(Response::builder()
            .status(code)
            .body(body)
            .expect("a response"))
    }

    fn apply(&self, method: &Method, name: &str, mut body: Value) -> (StatusCode, Value) {
        let mut state = self.0.lock();
        let name = match name {
            "" => body["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            name => name.to_owned(),
        };
        let current = state.objects.get(&name).cloned();
        match (method, current) {
            (&Method::GET, Some(lease)) => (StatusCode::OK, lease),
            (&Method::POST, Some(_)) => status(409),
            (&Method::POST, None) => {
                state.version += 1;
                body["metadata"]["resourceVersion"] = state.version.to_string().into();
                body["metadata"]["uid"] = "u1".into();
                state.objects.insert(name, body.clone());
                (StatusCode::CREATED, body)
            }
            (&Method::PUT, Some(lease)) => {
                if body["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"] {
                    return status(409);
                }
                state.version += 1;
                body["metadata"]["resourceVersion"] = state.version.to_string().into();
                state.objects.insert(name, body.clone());
                (StatusCode::OK, body)
            }
            _ => status(404),
        }
    }
}

fn status(code: u16) -> (StatusCode, Value) {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "injected or real",
        "reason": reason, "code": code});
    (StatusCode::from_u16(code).expect("a status code"), body)
}

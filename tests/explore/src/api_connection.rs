//! The way of a process to the API server, through the seam.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use ccm_testkit::apiserver::{ApiServer, Body, RequestInfo};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use serde_json::Value;
use tokio::time::Instant;
use tower::{BoxError, Service as _};

use crate::{
    cluster_conditions::{self, Way},
    fault::Fault,
    interceptor::{FaultResponse, Interceptor, Operation, OperationKind, Side},
    invariants::InvariantChecker,
    mutants::MutantClient,
    process::{LeaseTerm, Process},
};

/// Seconds that a refusal asks to wait.
const RETRY_AFTER: u32 = 2;

type Reply = Result<Response<Body>, BoxError>;

/// The connection of one process.
#[derive(Clone)]
pub(crate) struct ApiConnection {
    pub(crate) server: ApiServer,
    pub(crate) process: Arc<Process>,
    pub(crate) seam: Interceptor,
    pub(crate) way: Way,
    pub(crate) witness: InvariantChecker,
    pub(crate) lies: MutantClient,
}

impl ApiConnection {
    /// A client over it. Must be called inside a runtime.
    pub(crate) fn client(self) -> kube::Client {
        kube::Client::new(self, "default")
    }

    async fn send(self, request: Request<kube::client::Body>) -> Reply {
        let (mut parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        if let Ok(agent) = HeaderValue::from_str(&self.process.agent()) {
            parts.headers.insert(header::USER_AGENT, agent);
        }
        let info = RequestInfo::parse(&parts.method, &parts.uri, &parts.headers);
        let bars = self.way.bars(&self.process, &info);
        if let Some(status) = self.lies.barred(bars, &info).await {
            self.process.lives().await;
            // Nobody but a proxy says so of what it does not know.
            return Ok(if status == StatusCode::NOT_FOUND {
                self.lies.page()
            } else {
                cluster_conditions::answer(status, None)
            });
        }
        let body = self.lies.rewritten(&info, body);
        let request = Request::from_parts(parts, Full::new(body.clone()));
        let mut server = self.server.clone();
        let Some(operation) = operation(&info, &body) else {
            self.process.lives().await;
            self.process.reaches().await;
            return server.call(request).await;
        };
        if let Some(answer) = self
            .lies
            .instead(&server, &self.process, &info, &request, &body)
        {
            return Ok(answer);
        }
        let (process, witness, lies, seam) =
            (self.process.clone(), self.witness.clone(), self.lies.clone(), self.seam.clone());
        let (sent, changes) = (Instant::now(), info.is_write());
        let name = operation.name.clone();
        let (told, written) = (info.clone(), body.clone());
        let call = async move {
            lies.catch_up(&mut server, &info).await;
            lies.answer_from_the_past(
                &server,
                &info,
                request.uri().query().unwrap_or_default(),
                &seam,
            );
            let answer = server.call(request).await;
            if changes {
                witness.check_changes(Some((&process, &name)));
            }
            note_tenure(&process, &info, &body, sent, &answer);
            answer
        };
        let answer = self.seam.intercept(&self.process, operation, call).await;
        self.lies.believed(answer, &told, &written)
    }
}

impl tower::Service<Request<kube::client::Body>> for ApiConnection {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Reply> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

impl FaultResponse for Reply {
    fn refused(fault: Fault, operation: &Operation) -> Self {
        let status = match fault {
            Fault::Status(status) => {
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
            _ => return Self::broken(operation),
        };
        let retry_after = (status == StatusCode::TOO_MANY_REQUESTS).then_some(RETRY_AFTER);
        Ok(cluster_conditions::answer(status, retry_after))
    }

    fn broken(operation: &Operation) -> Self {
        Err(format!("connection broken at {}", operation.name).into())
    }
}

/// What a request is, or none for one to a path that is no resource.
fn operation(info: &RequestInfo, body: &Bytes) -> Option<Operation> {
    if info.resource.is_empty() {
        return None;
    }
    let kind = match info.verb.as_str() {
        "get" => OperationKind::Read,
        "list" => OperationKind::List,
        "watch" => OperationKind::Watch,
        _ if info.resource == "events" => OperationKind::Event,
        _ if info.resource == "leases" => OperationKind::Lease,
        _ => OperationKind::Write,
    };
    let mut words = vec!["api", &info.verb, &info.resource, &info.subresource, &info.namespace];
    // Names of events are made up.
    let told = if kind == OperationKind::Event {
        serde_json::from_slice(body).unwrap_or_default()
    } else {
        Value::Null
    };
    match kind {
        OperationKind::Event => {
            let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
            let about = [text(&told["involvedObject"]["name"]), text(&told["reason"])].join(".");
            // A repeated event is a patch that names neither.
            words.push(if about.len() > 1 { &about } else { "again" });
            return Some(named(kind, &words));
        }
        _ => words.push(&info.name),
    }
    Some(named(kind, &words))
}

fn named(kind: OperationKind, words: &[&str]) -> Operation {
    let words: Vec<&str> = words
        .iter()
        .copied()
        .filter(|word| !word.is_empty())
        .collect();
    Operation { side: Side::Api, kind, name: words.join(".") }
}

/// Remembers what a process knows of its lease.
fn note_tenure(process: &Process, info: &RequestInfo, body: &Bytes, sent: Instant, answer: &Reply) {
    let took = info.is_write()
        && info.resource == "leases"
        && answer.as_ref().is_ok_and(|a| a.status().is_success());
    if !took {
        return;
    }
    let lease: Value = serde_json::from_slice(body).unwrap_or_default();
    let identity = lease["spec"]["holderIdentity"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    process.renewed(LeaseTerm { identity, renewed: sent });
}

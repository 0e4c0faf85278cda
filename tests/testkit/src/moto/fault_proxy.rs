//! A proxy in front of moto. It records each request, injects faults, and corrects answers of moto
//! that differ from those of AWS:
//!
//! - `DescribeInstanceTopology`, which moto does not know: three nodes by region, zone and subnet.
//! - Terminated instances, which keep their interfaces, addresses and names in moto, so that routes
//!   to them would be created.
//! - Networks of new routes, in which moto keeps the host bits.
//! - `CreateLoadBalancer` and `CreateTargetGroup` with a name that is in use: the existing object or
//!   an error.
//! - `ModifyListener` of TLS and UDP listeners (moto cannot change such a listener's protocol, nor
//!   its ALPN policy).
//! - Host names of network load balancers, which moto generates like those of classic ones.
//! - Health checks of new classic load balancers, which moto makes without any.
//! - Protocols to instances of classic listeners, which moto forgets.
//! - The timeout of HTTP health checks that is chosen for who names none.
//! - Security policies, which moto gives listeners without TLS too.
//! - Attributes with their defaults, some of which moto does not know until they are set.
//! - `DescribeTargetGroups` of a load balancer without any, and `DeleteTargetGroup` of one that is
//!   gone: no error.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    instance_protocols::InstanceProtocols,
    query_api::{CLASSIC, QueryClient, parameters},
    response_fixes,
};

/// A request that came by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Service in the scope of the signature, such as `elasticloadbalancing`.
    pub service: String,
    /// Version of the API, which tells classic load balancers from others.
    pub version: String,
    /// Action, such as `DescribeInstances`.
    pub action: String,
    /// Other parameters, in order.
    pub parameters: Vec<(String, String)>,
    /// Status of the answer; `None` when it was dropped.
    pub status: Option<u16>,
}

impl Recorded {
    /// Returns the value of a parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| &**value)
    }

    /// Returns true if the request changes nothing: a read, the question whose credentials signed
    /// it, or the question whether it would be allowed.
    pub fn is_read_or_dry_run(&self) -> bool {
        self.action.starts_with("Describe")
            || self.action == "GetCallerIdentity"
            || self.parameter("DryRun") == Some("true")
    }

    /// Returns the action as IAM policies name it.
    pub fn permission(&self) -> String {
        format!("{}:{}", self.service, self.action)
    }
}

/// A fault in requests of one action.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Action, such as `CreateListener`, or [`ANY_CHANGE`]; empty for requests that have none.
    pub action: String,
    /// Requests that still get through.
    pub after: usize,
    /// Requests that it happens to then.
    pub times: usize,
    /// Effect of the fault.
    pub effect: ProxyFault,
}

impl Fault {
    /// Returns the fault that refuses all requests of an action.
    pub fn refused(action: &str, status: u16, code: &str) -> Self {
        Self {
            action: action.into(),
            after: 0,
            times: usize::MAX,
            effect: ProxyFault::Refused(status, code.into()),
        }
    }
}

/// In place of an action: every request that may change something.
pub const ANY_CHANGE: &str = "*";

/// Effect of a fault on a request.
#[derive(Debug, Clone)]
pub enum ProxyFault {
    /// It is refused with this status and error code.
    Refused(u16, String),
    /// It is answered with the status and the body that this makes of it: for services that moto
    /// does not have, and for refusals in words of their own.
    Answered(fn(&http::request::Parts, &[u8]) -> Response<String>),
    /// It is carried out, and the answer is lost.
    AnswerLost,
    /// It is lost on its way.
    RequestLost,
    /// It is carried out, and the sender waits for the answer for ever: the moment to kill it. It
    /// is recorded at once.
    Stuck,
}

#[derive(Debug, Default)]
struct ProxyState {
    recorded: Vec<Recorded>,
    faults: Vec<Fault>,
    /// Shared with the proxies beside this one.
    instance_protocols: Arc<Mutex<InstanceProtocols>>,
}

/// A running proxy. Dropping it ends it.
#[derive(Debug)]
pub struct FaultProxy {
    url: String,
    state: Arc<Mutex<ProxyState>>,
    _stop: DropGuard,
}

impl FaultProxy {
    /// Starts a proxy on a free port.
    ///
    /// # Errors
    /// There is no port.
    pub async fn start(to: QueryClient) -> io::Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), to).await
    }

    /// Starts a proxy on a free port with records and faults of its own, whose answers show what was
    /// created through this one.
    ///
    /// # Errors
    /// There is no port.
    pub async fn start_beside(&self, to: QueryClient) -> io::Result<Self> {
        let instance_protocols = Arc::clone(&self.state.lock().instance_protocols);
        let state = ProxyState { instance_protocols, ..ProxyState::default() };
        Self::start_with((Ipv4Addr::LOCALHOST, 0).into(), to, state).await
    }

    /// Starts a proxy on an address of this machine.
    ///
    /// # Errors
    /// It cannot be listened on.
    pub async fn start_at(address: SocketAddr, to: QueryClient) -> io::Result<Self> {
        Self::start_with(address, to, ProxyState::default()).await
    }

    async fn start_with(
        address: SocketAddr,
        to: QueryClient,
        state: ProxyState,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let stop = CancellationToken::new();
        let state = Arc::new(Mutex::new(state));
        tokio::spawn(stop.clone().run_until_cancelled_owned(serve(
            listener,
            to,
            Arc::clone(&state),
        )));
        Ok(Self { url, state, _stop: stop.drop_guard() })
    }

    /// Returns the URL of the proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the recorded requests and clears them.
    pub fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.state.lock().recorded)
    }

    /// Returns the number of recorded requests of each action and clears them.
    pub fn take_counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for request in self.take() {
            *counts.entry(request.action).or_default() += 1;
        }
        counts
    }

    /// Injects a fault. Several faults for one action take effect one after the other.
    pub fn fail(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// Forgets records and faults.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        let instance_protocols = Arc::clone(&state.instance_protocols);
        *instance_protocols.lock() = InstanceProtocols::default();
        *state = ProxyState { instance_protocols, ..ProxyState::default() };
    }
}

async fn serve(listener: TcpListener, to: QueryClient, state: Arc<Mutex<ProxyState>>) {
    // Ends with the proxy: dropping the set ends its connections.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        while connections.try_join_next().is_some() {}
        let (to, state) = (to.clone(), Arc::clone(&state));
        connections.spawn(async move {
            let service = service_fn(|request| answer(&to, &state, request));
            // A connection that breaks is the client's to notice.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// Answers a request; an error closes the connection without an answer.
async fn answer(
    to: &QueryClient,
    state: &Mutex<ProxyState>,
    request: Request<Incoming>,
) -> io::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let mut recorded = record(&head, &body);
    let effect = next_effect(&mut state.lock().faults, &recorded.action);
    let answer = match &effect {
        Some(ProxyFault::RequestLost) => None,
        Some(ProxyFault::Refused(status, code)) => Some(refusal(&recorded, *status, code)),
        Some(ProxyFault::Answered(make)) => {
            let answer = make(&head, &body).map(Full::from);
            let status = answer.status().as_u16();
            Some(with_id(answer, status))
        }
        Some(ProxyFault::AnswerLost) => {
            carry_out(to, state, head, body, &recorded).await?;
            None
        }
        Some(ProxyFault::Stuck) => {
            carry_out(to, state, head, body, &recorded).await?;
            state.lock().recorded.push(recorded);
            return std::future::pending().await;
        }
        None => Some(carry_out(to, state, head, body, &recorded).await?),
    };
    recorded.status = answer.as_ref().map(|answer| answer.status().as_u16());
    state.lock().recorded.push(recorded);
    answer.ok_or_else(|| io::Error::other("the connection is cut"))
}

/// Has moto answer a request, and corrects the answer.
async fn carry_out(
    to: &QueryClient,
    state: &Mutex<ProxyState>,
    head: http::request::Parts,
    body: Bytes,
    request: &Recorded,
) -> io::Result<Response<Full<Bytes>>> {
    let protocols = Arc::clone(&state.lock().instance_protocols);
    protocols.lock().record(request);
    let answer = response_fixes::answer(to, head, body, request).await?;
    if request.version != CLASSIC.version || request.action != "DescribeLoadBalancers" {
        return Ok(answer);
    }
    let (head, body) = answer.into_parts();
    let text = response_fixes::text(body).await?;
    let text = protocols.lock().correct(&text);
    Ok(Response::from_parts(head, Full::from(text)))
}

fn record(head: &http::request::Parts, body: &Bytes) -> Recorded {
    let scope = head
        .headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let service = scope.split('/').nth(3).unwrap_or_default().to_owned();
    let mut parameters = parameters(&String::from_utf8_lossy(body));
    let mut take = |name: &str| {
        let at = parameters.iter().position(|(known, _)| known == name);
        at.map(|at| parameters.remove(at).1).unwrap_or_default()
    };
    let (action, version) = (take("Action"), take("Version"));
    Recorded { service, version, action, parameters, status: None }
}

/// Returns the effect on this request, from the first fault for its action that is not used up.
fn next_effect(faults: &mut [Fault], action: &str) -> Option<ProxyFault> {
    let is_change = !action.starts_with("Describe");
    let concerns =
        |fault: &Fault| fault.action == action || fault.action == ANY_CHANGE && is_change;
    let fault = faults
        .iter_mut()
        .find(|fault| concerns(fault) && fault.times > 0)?;
    if fault.after > 0 {
        fault.after -= 1;
        return None;
    }
    fault.times -= 1;
    Some(fault.effect.clone())
}

/// Forwards a request to moto.
pub(super) async fn forward(
    to: &QueryClient,
    head: http::request::Parts,
    body: Bytes,
) -> io::Result<Response<Full<Bytes>>> {
    let path = head
        .uri
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str);
    let mut request = Request::builder()
        .method(head.method)
        .uri(format!("{}{path}", to.url()));
    for (name, value) in &head.headers {
        // moto takes the service from the scope; the host has to be its own.
        if name != header::HOST && name != header::CONTENT_LENGTH {
            request = request.header(name, value);
        }
    }
    let request = request.body(Full::from(body)).map_err(io::Error::other)?;
    let mut answer = to
        .forward(request)
        .await
        .map_err(io::Error::other)?
        .map(Full::new);
    for name in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION] {
        answer.headers_mut().remove(name);
    }
    Ok(answer)
}

const REQUEST_ID: &str = "11111111-2222-3333-4444-555555555555";

/// Returns an error as the service would say it.
pub(super) fn refusal(to: &Recorded, status: u16, code: &str) -> Response<Full<Bytes>> {
    let error =
        format!("<Error><Code>{code}</Code><Message>{code} on request of a test</Message></Error>");
    let body = match &*to.service {
        "ec2" => format!(
            "<Response><Errors>{error}</Errors><RequestID>{REQUEST_ID}</RequestID></Response>"
        ),
        _ => format!("<ErrorResponse>{error}<RequestId>{REQUEST_ID}</RequestId></ErrorResponse>"),
    };
    with_id(Response::new(Full::from(body)), status)
}

fn with_id(mut answer: Response<Full<Bytes>>, status: u16) -> Response<Full<Bytes>> {
    answer
        .headers_mut()
        .insert("x-amzn-requestid", http::HeaderValue::from_static(REQUEST_ID));
    *answer.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer
}

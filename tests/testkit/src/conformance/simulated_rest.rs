//! What adapters to a simulated REST cloud share: the way to it inside the process, with a
//! [`CallScript`] on it, and mistakes on that way.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use ccm_core::provider::{CloudError, rest::Transport};
use http::{Method, Request, Response, StatusCode, request::Parts};
use serde_json::Value;

use super::{CallFaultKind, CallScript, InjectedFault};

/// A cloud's REST API in memory.
pub trait SimulatedApi: Send + Sync + 'static {
    /// Carries out a request at once and returns the response, which may be an error of the API.
    fn respond(&self, request: &Request<Bytes>) -> Response<Bytes>;

    /// Returns the API's response to a request that fails, without effect, because of this fault.
    fn fault_response(&self, fault: InjectedFault) -> Response<Bytes>;
}

/// The transport to a [`SimulatedApi`]. Counts, fails and delays requests as a [`CallScript`] says,
/// which the adapter returns from [`FaultyCloud::call_script`](super::FaultyCloud::call_script).
/// Requests other than `GET` count as writes. If an answer is lost, the caller gets the error page
/// of a gateway.
#[derive(Clone, Debug)]
pub struct ScriptedRest<A> {
    api: A,
    script: CallScript,
}

impl<A: SimulatedApi> ScriptedRest<A> {
    /// Creates a transport to `api`.
    pub fn new(api: A) -> Self {
        Self { api, script: CallScript::default() }
    }

    /// Returns the script that all requests follow.
    pub fn script(&self) -> &CallScript {
        &self.script
    }

    /// Returns the response to a request, as the script says. A server of the same API calls this.
    pub async fn answer(&self, request: Request<Bytes>) -> Response<Bytes> {
        let writes = request.method() != Method::GET;
        let respond = async { self.api.respond(&request) };
        match self.script.around(writes, respond).await {
            Ok(response) => response,
            Err(CallFaultKind::Fails(fault)) => self.api.fault_response(fault),
            Err(CallFaultKind::AnswerLost) => {
                let mut response = Response::new("<html>Bad Gateway</html>".into());
                *response.status_mut() = StatusCode::BAD_GATEWAY;
                response
            }
        }
    }
}

#[async_trait]
impl<A: SimulatedApi> Transport for ScriptedRest<A> {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CloudError> {
        Ok(self.answer(request).await)
    }
}

/// A mistake that a provider could have been written with, made on the way between the provider and
/// the cloud. The kit must name the rule that it breaks.
pub trait TransportMutant: Send + Sync + 'static {
    /// Changes a request before it is sent. By default it stays as it is.
    fn edit_request(&self, request: Request<Bytes>) -> Request<Bytes> {
        request
    }

    /// Changes the response to a request. `sent` is the request before it was changed.
    fn edit_response(&self, sent: &Parts, response: Response<Bytes>) -> Response<Bytes>;
}

/// A transport with a mistake in it.
pub struct MutantTransport<M> {
    inner: Arc<dyn Transport>,
    mutant: M,
}

impl<M: TransportMutant> MutantTransport<M> {
    /// Creates a transport that sends requests through `inner`.
    pub fn new(inner: Arc<dyn Transport>, mutant: M) -> Self {
        Self { inner, mutant }
    }
}

#[async_trait]
impl<M: TransportMutant> Transport for MutantTransport<M> {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CloudError> {
        let (sent, body) = request.into_parts();
        let request = Request::from_parts(sent.clone(), body);
        let response = self.inner.send(self.mutant.edit_request(request)).await?;
        Ok(self.mutant.edit_response(&sent, response))
    }
}

/// Returns a response with a JSON body, or without a body if it is `null`.
///
/// # Errors
/// An invalid status.
pub fn json_response(status: u16, body: &Value) -> Result<Response<Bytes>, http::Error> {
    let body = match body {
        Value::Null => Bytes::new(),
        body => body.to_string().into(),
    };
    Response::builder().status(status).body(body)
}

/// Returns a JSON body with changes. A body that is no JSON, such as an empty one, stays as it is.
pub fn edit_json(body: &Bytes, edit: impl FnOnce(&mut Value)) -> Bytes {
    match serde_json::from_slice(body) {
        Ok(mut json) => {
            edit(&mut json);
            Bytes::from(json.to_string())
        }
        Err(_) => body.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conformance::{CallCount, InjectedCallFault};

    /// Returns the method and the path of each request.
    #[derive(Clone)]
    struct Echo;

    impl SimulatedApi for Echo {
        fn respond(&self, request: &Request<Bytes>) -> Response<Bytes> {
            let body = json!({"method": request.method().as_str(), "path": request.uri().path()});
            Response::new(body.to_string().into())
        }

        fn fault_response(&self, _: InjectedFault) -> Response<Bytes> {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::FORBIDDEN;
            response
        }
    }

    fn request(method: Method, path: &'static str) -> Request<Bytes> {
        let mut request = Request::new(Bytes::new());
        *request.method_mut() = method;
        *request.uri_mut() = http::Uri::from_static(path);
        request
    }

    #[tokio::test]
    async fn requests_are_counted_and_follow_the_script() {
        let rest = ScriptedRest::new(Echo);
        rest.script()
            .start(Some(InjectedCallFault::fail(2, InjectedFault::Denied)));
        let mut statuses = Vec::new();
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let response = rest.send(request(method, "/a")).await.unwrap();
            statuses.push(response.status().as_u16());
        }
        assert_eq!(statuses, [200, 403, 200]);
        assert_eq!(rest.script().tally(), CallCount { reads: 1, writes: 2 });
        rest.script().start(Some(InjectedCallFault::lose_answer(1)));
        let lost = rest.send(request(Method::GET, "/a")).await.unwrap();
        assert_eq!(lost.status(), StatusCode::BAD_GATEWAY);
    }

    struct WrongPath;

    impl TransportMutant for WrongPath {
        fn edit_request(&self, mut request: Request<Bytes>) -> Request<Bytes> {
            *request.uri_mut() = http::Uri::from_static("/wrong");
            request
        }

        fn edit_response(&self, sent: &Parts, response: Response<Bytes>) -> Response<Bytes> {
            response.map(|body| edit_json(&body, |answer| answer["sent"] = sent.uri.path().into()))
        }
    }

    #[tokio::test]
    async fn a_mutant_changes_the_request_and_its_response() {
        let rest = MutantTransport::new(Arc::new(ScriptedRest::new(Echo)), WrongPath);
        let response = rest.send(request(Method::PUT, "/a")).await.unwrap();
        let answer: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(answer, json!({"method": "PUT", "path": "/wrong", "sent": "/a"}));
        assert_eq!(edit_json(&"no json".into(), |_| {}), Bytes::from("no json"));
    }
}

//! What stands between the processes and the API server for a while: not a fault at a point, but
//! how a cluster is.

use std::sync::Arc;

use bytes::Bytes;
use ccm_testkit::apiserver::{ApiError, Body, RequestInfo};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use serde_json::Value;

use crate::process::Process;

/// What a proxy answers that knows no such path.
const PAGE: &str = "<html><body>404 page not found</body></html>\n";

/// What is in the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Obstacle {
    /// Nothing.
    #[default]
    Nothing,
    /// The role of the processes says nothing of this resource.
    NoRight(&'static str),
    /// The client certificate of the process of this number has expired.
    Expired(usize),
    /// A proxy answers every write itself, with a page.
    Pages,
}

/// The way of all processes of a world; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Way(Arc<Mutex<Obstacle>>);

impl Way {
    /// Puts this in the way, and takes away what was there.
    pub fn put(&self, obstacle: Obstacle) {
        *self.0.lock() = obstacle;
    }

    /// The status that this request of a process is answered with before it reaches the server;
    /// none if it does.
    pub(crate) fn bars(&self, process: &Process, info: &RequestInfo) -> Option<StatusCode> {
        match *self.0.lock() {
            Obstacle::NoRight(resource) if info.resource == resource => Some(StatusCode::FORBIDDEN),
            Obstacle::Expired(number) if process.number == number => Some(StatusCode::UNAUTHORIZED),
            Obstacle::Pages if info.is_write() => Some(StatusCode::NOT_FOUND),
            _ => None,
        }
    }
}

/// The API server's own answer of this status.
pub(crate) fn answer(status: StatusCode, retry_after: Option<u32>) -> Response<Body> {
    let body: Value = ApiError::injected(status, retry_after).to_value();
    let mut answer = json(status, body.to_string());
    if let Some(seconds) = retry_after {
        answer
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    response(status, "application/json", body.into())
}

/// The answer of a proxy.
pub(crate) fn page() -> Response<Body> {
    response(StatusCode::NOT_FOUND, "text/html", Bytes::from_static(PAGE.as_bytes()))
}

fn response(status: StatusCode, content: &'static str, body: Bytes) -> Response<Body> {
    let mut answer = Response::new(
        Full::new(body)
            .map_err(|never| match never {})
            .boxed_unsync(),
    );
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content));
    answer
}

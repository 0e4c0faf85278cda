//! Writes down every request that reaches the local cloud, with its body.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
};
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::Value;

/// Largest body that is read.
const MOST: usize = 1 << 20;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
    pub(crate) status: u16,
    /// What the cloud said, where it refused.
    pub(crate) refusal: String,
}

impl Recorded {
    /// Whether it opens the way to a service: tokens and versions.
    pub(crate) fn is_opening(&self) -> bool {
        let path = self.path.trim_end_matches('/');
        path.starts_with("/identity") || path.split('/').count() <= 2 || path == "/compute/v2.1"
    }
}

#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Vec<Recorded>>);

impl Recorder {
    /// Returns what came since the last time.
    pub(crate) fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Puts itself in front of a service.
    pub(crate) fn around(self: &Arc<Self>, service: Router) -> Router {
        Router::new()
            .fallback_service(service)
            .layer(middleware::from_fn_with_state(self.clone(), record))
    }
}

async fn record(State(recorder): State<Arc<Recorder>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(bytes) = to_bytes(body, MOST).await else {
        return broken();
    };
    let mut recorded = Recorded {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
        status: 0,
        refusal: String::new(),
    };
    let response = next
        .run(Request::from_parts(parts, Body::from(bytes)))
        .await;
    let (parts, body) = response.into_parts();
    let Ok(bytes) = to_bytes(body, MOST).await else {
        return broken();
    };
    recorded.status = parts.status.as_u16();
    if parts.status.is_client_error() || parts.status.is_server_error() {
        recorded.refusal = String::from_utf8_lossy(&bytes).into_owned();
    }
    recorder.0.lock().push(recorded);
    Response::from_parts(parts, Body::from(bytes))
}

/// A body that is not whole: the test fails by what the client makes of this.
fn broken() -> Response {
    let mut response = Response::new(Body::from("the body is not whole"));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}

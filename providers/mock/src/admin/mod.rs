//! The admin API, an HTTP API for scripting the cloud from any language.
//!
//! | request | body and response |
//! |---|---|
//! | `GET /v1/instances` | list of [`Instance`](crate::cloud::Instance): those that were put or queried |
//! | `GET`, `PUT`, `DELETE /v1/instances/{node}` | one instance; `PUT` takes [`InstanceSpec`] and returns the result |
//! | `GET /v1/load-balancers` | list of [`LoadBalancer`](crate::cloud::LoadBalancer) |
//! | `GET`, `PUT`, `DELETE /v1/load-balancers/{name}` | one load balancer; `PUT` takes [`LoadBalancerEdit`] |
//! | `GET /v1/routes` | list of [`Route`](crate::cloud::Route) |
//! | `PUT`, `DELETE /v1/routes/{name}` | one route |
//! | `GET /v1/calls` | [`Calls`](crate::cloud::Calls) |
//! | `PUT /v1/faults` | list of [`FaultSpec`], replaces all faults; returns the list |
//! | `DELETE /v1/faults` | removes all faults |
//!
//! `PUT` of a load balancer changes an existing one without the provider. `DELETE` returns 204, or
//! 404 if the object does not exist (always 204 for faults). Errors are `{"error", "field"}` with
//! status 400, 404 or 405. `field` is the invalid key, and is missing if the error does not concern
//! a key.
//!
//! `POST /v1/rpc/…` (module `rpc`) is internal. It receives the provider calls of another process
//! of this program, and may change with any version.

mod body;
pub(crate) mod rpc;

use std::{io, time::Duration};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, put},
};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::body::{decode, decode_list};
use crate::cloud::{
    Fault, FaultSpec, FieldError, InstanceSpec, LoadBalancerEdit, MockCloud, RouteBody,
    config::HostPort,
};

/// Time limit for requests in flight after the server was canceled.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Binds a listener for the admin API to an address. Port 0 means any free port.
///
/// # Errors
/// Returns an error if the address cannot be bound.
pub async fn bind_admin(address: &HostPort) -> io::Result<TcpListener> {
    TcpListener::bind((&*address.host, address.port)).await
}

/// Serves the admin API of `cloud` until `cancel` is canceled, and then waits at most five seconds
/// for requests in flight. Logs the bound address.
///
/// # Errors
/// Returns an error if the listener fails.
pub async fn serve_admin(
    cloud: MockCloud,
    listener: TcpListener,
    cancel: CancellationToken,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    tracing::info!(%address, "serving the admin API of the mock cloud");
    let server = axum::serve(listener, router(cloud))
        .with_graceful_shutdown(cancel.clone().cancelled_owned());
    tokio::select! {
        ended = server.into_future() => ended,
        () = async { cancel.cancelled().await; tokio::time::sleep(SHUTDOWN_TIMEOUT).await } => Ok(()),
    }
}

/// Returns the admin API as a router, for callers that have their own server.
pub fn router(cloud: MockCloud) -> Router {
    Router::new()
        .route("/v1/instances", get(list_instances))
        .route("/v1/instances/{node}", get(get_instance).put(put_instance).delete(delete_instance))
        .route("/v1/load-balancers", get(list_load_balancers))
        .route(
            "/v1/load-balancers/{name}",
            get(get_load_balancer)
                .put(edit_load_balancer)
                .delete(remove_load_balancer),
        )
        .route("/v1/routes", get(list_routes))
        .route("/v1/routes/{name}", put(put_route).delete(delete_route))
        .route("/v1/calls", get(calls))
        .route("/v1/faults", put(put_faults).delete(delete_faults))
        .merge(rpc::router())
        .fallback(|| async { ApiError::NotFound("this path does not exist".to_owned()) })
        .method_not_allowed_fallback(|| async { ApiError::MethodNotAllowed })
        .with_state(cloud)
}

/// An error response.
#[derive(Debug)]
enum ApiError {
    BadField(FieldError),
    NotFound(String),
    MethodNotAllowed,
}

#[derive(Serialize)]
struct ErrorBody {
    error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        Self::BadField(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, error, field) = match self {
            // Without a key, the body as a whole is invalid.
            Self::BadField(e) if e.field.is_empty() => (StatusCode::BAD_REQUEST, e.message, None),
            Self::BadField(e) => (StatusCode::BAD_REQUEST, e.to_string(), Some(e.field)),
            Self::NotFound(message) => (StatusCode::NOT_FOUND, message, None),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "this path does not support this method".to_owned(),
                None,
            ),
        };
        (status, Json(ErrorBody { error, field })).into_response()
    }
}

/// Returns the response to a deletion. `deleted` is false if the object did not exist.
fn deletion_status(kind: &str, name: &str, deleted: bool) -> Result<StatusCode, ApiError> {
    if deleted {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(not_found(kind, name))
    }
}

fn not_found(kind: &str, name: &str) -> ApiError {
    ApiError::NotFound(format!("there is no {kind} {name}"))
}

async fn list_instances(State(cloud): State<MockCloud>) -> impl IntoResponse {
    Json(cloud.instances())
}

async fn get_instance(
    State(cloud): State<MockCloud>,
    Path(node): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    match cloud.instance(&node) {
        Some(instance) => Ok(Json(instance)),
        None => Err(not_found("instance", &node)),
    }
}

async fn put_instance(
    State(cloud): State<MockCloud>,
    Path(node): Path<String>,
    body: Bytes,
) -> Result<impl IntoResponse, ApiError> {
    let spec: InstanceSpec = decode(&body)?;
    Ok(Json(cloud.put_instance(&node, spec)?))
}

async fn delete_instance(
    State(cloud): State<MockCloud>,
    Path(node): Path<String>,
) -> Result<StatusCode, ApiError> {
    deletion_status("instance", &node, cloud.delete_instance(&node))
}

async fn list_load_balancers(State(cloud): State<MockCloud>) -> impl IntoResponse {
    Json(cloud.load_balancers())
}

async fn get_load_balancer(
    State(cloud): State<MockCloud>,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    for load_balancer in cloud.load_balancers() {
        if load_balancer.name == name {
            return Ok(Json(load_balancer));
        }
    }
    Err(not_found("load balancer", &name))
}

async fn edit_load_balancer(
    State(cloud): State<MockCloud>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<impl IntoResponse, ApiError> {
    let edit: LoadBalancerEdit = decode(&body)?;
    match cloud.edit_load_balancer(&name, edit)? {
        Some(load_balancer) => Ok(Json(load_balancer)),
        None => Err(not_found("load balancer", &name)),
    }
}

async fn remove_load_balancer(
    State(cloud): State<MockCloud>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    deletion_status("load balancer", &name, cloud.remove_load_balancer(&name))
}

async fn list_routes(State(cloud): State<MockCloud>) -> impl IntoResponse {
    Json(cloud.routes())
}

async fn put_route(
    State(cloud): State<MockCloud>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<impl IntoResponse, ApiError> {
    let body: RouteBody = decode(&body)?;
    Ok(Json(cloud.put_route(&name, body)?))
}

async fn delete_route(
    State(cloud): State<MockCloud>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    deletion_status("route", &name, cloud.delete_route(&name))
}

async fn calls(State(cloud): State<MockCloud>) -> impl IntoResponse {
    Json(cloud.calls())
}

async fn put_faults(
    State(cloud): State<MockCloud>,
    body: Bytes,
) -> Result<impl IntoResponse, ApiError> {
    let specs: Vec<FaultSpec> = decode_list(&body)?;
    let mut faults = Vec::with_capacity(specs.len());
    for (index, spec) in specs.iter().enumerate() {
        let fault =
            Fault::new(spec.clone()).map_err(|error| error.nested_in(&format!("[{index}]")))?;
        faults.push(fault);
    }
    cloud.set_faults(faults);
    Ok(Json(specs))
}

async fn delete_faults(State(cloud): State<MockCloud>) -> StatusCode {
    cloud.set_faults(Vec::new());
    StatusCode::NO_CONTENT
}

#[cfg(test)]
mod tests;

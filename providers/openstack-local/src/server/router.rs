//! The router of all services, and the middleware of each request.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    middleware::{self, Next},
    response::Response,
};
use http::Uri;

use super::{Cloud, FaultKind, LoggedRequest, Origin, Shape, admin, errors, faults};
use crate::{glance, keystone, neutron, nova, octavia, state::ApiError};

/// Returns the router of all services: identity, compute, network, image, load balancer and key
/// manager, each below its path.
pub fn router(cloud: Arc<Cloud>) -> Router {
    let mut services = Router::new()
        .nest("/identity", service(Shape::Keystone, "identity", &cloud, keystone::routes()))
        .nest("/compute", service(Shape::Nova, "compute", &cloud, nova::routes(&cloud)))
        .nest("/network", service(Shape::Neutron, "network", &cloud, neutron::routes()))
        .nest("/image", service(Shape::Keystone, "image", &cloud, glance::routes()))
        .nest("/load-balancer", service(Shape::Octavia, "load-balancer", &cloud, octavia::routes()))
        .nest(
            "/key-manager",
            service(Shape::Barbican, "key-manager", &cloud, keystone::key_manager::routes()),
        );
    if cloud.settings().admin_endpoint {
        services =
            services.nest("/admin", service(Shape::Keystone, "admin", &cloud, admin::routes()));
    }
    let around = middleware::from_fn_with_state(cloud.clone(), handle_request);
    let services = services.layer(around).with_state(cloud);
    // A slash at the end has no meaning. It is removed before a route is searched.
    let services = tower::util::MapRequest::new(services, without_slash as fn(Request) -> Request);
    Router::new().fallback_service(services)
}

/// Adds the middleware of a service: errors get its format, and a service that the cloud lacks does
/// not exist.
fn service(
    shape: Shape,
    kind: &'static str,
    cloud: &Arc<Cloud>,
    routes: Router<Arc<Cloud>>,
) -> Router<Arc<Cloud>> {
    let frame = move |State(cloud): State<Arc<Cloud>>,
                      origin: Origin,
                      request: Request,
                      next: Next| async move {
        if cloud.settings().without.contains(kind) {
            return shape.answer(&nothing_here(), &origin);
        }
        let response = match request
            .extensions()
            .get::<InjectedResponse>()
            .and_then(|InjectedResponse(fault)| fault.instead())
        {
            Some(instead) => instead,
            None => next.run(request).await,
        };
        errors::shaped(shape, &origin, response)
    };
    routes
        .fallback(async || nothing_here())
        .layer(middleware::from_fn_with_state(cloud.clone(), frame))
}

fn nothing_here() -> ApiError {
    ApiError::not_found("", "The resource could not be found.")
}

fn without_slash(mut request: Request) -> Request {
    let Some(path) = request
        .uri()
        .path()
        .strip_suffix('/')
        .filter(|path| !path.is_empty())
    else {
        return request;
    };
    let target = match request.uri().query() {
        None => path.to_owned(),
        Some(query) => format!("{path}?{query}"),
    };
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = target.parse().ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

/// The fault that the service's middleware answers with, in its format, instead of the service.
#[derive(Clone)]
struct InjectedResponse(FaultKind);

/// Middleware of each request: origin, faults, request log.
async fn handle_request(State(cloud): State<Arc<Cloud>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let origin = Origin::of(&parts);
    parts.extensions.insert(origin);
    let method = parts.method.to_string();
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let route = parts
        .extensions
        .get::<MatchedPath>()
        .map_or(&*path, MatchedPath::as_str)
        .to_owned();
    let answered = answer(&cloud, &method, &path, Request::from_parts(parts, body), next).await;
    let status = answered.status().as_u16();
    cloud
        .journal
        .add(LoggedRequest { at: cloud.clock.now(), method, route, path, query, status });
    answered
}

async fn answer(
    cloud: &Cloud,
    method: &str,
    path: &str,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(fault) = cloud.faults.take(method, path) else {
        return next.run(request).await;
    };
    if fault.instead().is_some() {
        request.extensions_mut().insert(InjectedResponse(fault));
        return next.run(request).await;
    }
    match fault {
        FaultKind::Latency { ms } => {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            next.run(request).await
        }
        FaultKind::Stuck { done } => {
            if done {
                drop(next.run(request).await);
            }
            let _held = cloud.faults.hang();
            std::future::pending().await
        }
        FaultKind::Cut { after } => faults::cut(next.run(request).await, after),
        FaultKind::Status { .. } | FaultKind::Body { .. } => next.run(request).await,
    }
}

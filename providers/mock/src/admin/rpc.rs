//! Provider calls over HTTP, between two processes of this program. This protocol is internal.
//!
//! For every call, its arguments are sent as JSON with `POST` to `/v1/rpc/<operation>`. Only
//! `/v1/rpc/info` is a `GET` request. The response is 200 with `{"Ok": …}` or `{"Err": …}`, so that
//! an error of the cloud keeps its kind and cannot be confused with a connection error.

use std::time::Duration;

use axum::{
    Json, Router,
    extract::State,
    routing::{get, post},
};
use ccm_core::provider::{CloudError, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::cloud::{
    CloudApi, CloudInstanceQuery, DeleteResult, Instance, LoadBalancer, LoadBalancerKey,
    LoadBalancerSettings, LoadBalancerSpec, Members, MockCloud, OwnedRoute, RouteBatch,
};

/// Serialized form of a [`CloudError`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WireError {
    kind: String,
    message: String,
    retry_after: Option<Duration>,
}

impl From<CloudError> for WireError {
    fn from(error: CloudError) -> Self {
        Self {
            kind: error.kind().as_str().to_owned(),
            message: error.chain(),
            retry_after: error.retry_after(),
        }
    }
}

impl From<WireError> for CloudError {
    fn from(wire: WireError) -> Self {
        // A kind that this version does not know must not be taken for proof of absence.
        let kind = ErrorKind::ALL
            .into_iter()
            .find(|kind| kind.as_str() == wire.kind)
            .unwrap_or(ErrorKind::Transient);
        let error = Self::new(kind, wire.message);
        match wire.retry_after {
            Some(after) => error.with_retry_after(after),
            None => error,
        }
    }
}

/// Serialized form of the result of a call.
pub(crate) type Wire<T> = Result<T, WireError>;

/// Response of `GET /v1/rpc/info`, which a provider needs before its first call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Info {
    pub(crate) region: String,
}

/// Arguments of `modify_load_balancer`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ModifyLoadBalancer {
    pub(crate) key: LoadBalancerKey,
    pub(crate) settings: LoadBalancerSettings,
}

/// Arguments of `update_load_balancer`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UpdateLoadBalancer {
    pub(crate) key: LoadBalancerKey,
    pub(crate) members: Members,
}

/// Arguments of `adopt_load_balancer`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AdoptLoadBalancer {
    pub(crate) id: String,
    pub(crate) key: LoadBalancerKey,
}

pub(super) fn router() -> Router<MockCloud> {
    Router::new()
        .route("/v1/rpc/info", get(info))
        .route("/v1/rpc/describe_instances", post(describe_instances))
        .route("/v1/rpc/list_routes", post(list_routes))
        .route("/v1/rpc/apply_routes", post(apply_routes))
        .route("/v1/rpc/get_load_balancer", post(get_load_balancer))
        .route("/v1/rpc/create_load_balancer", post(create_load_balancer))
        .route("/v1/rpc/modify_load_balancer", post(modify_load_balancer))
        .route("/v1/rpc/update_load_balancer", post(update_load_balancer))
        .route("/v1/rpc/delete_load_balancer", post(delete_load_balancer))
        .route("/v1/rpc/retain_load_balancer", post(retain_load_balancer))
        .route("/v1/rpc/adopt_load_balancer", post(adopt_load_balancer))
        .route("/v1/rpc/list_load_balancers", post(list_load_balancers))
}

fn to_response<T>(result: Result<T, CloudError>) -> Json<Wire<T>> {
    Json(result.map_err(WireError::from))
}

fn to_batch_response<T>(
    result: Result<Vec<Result<T, CloudError>>, CloudError>,
) -> Json<Wire<Vec<Wire<T>>>> {
    to_response(result.map(|answers| {
        answers
            .into_iter()
            .map(|answer| answer.map_err(WireError::from))
            .collect()
    }))
}

async fn info(State(cloud): State<MockCloud>) -> Json<Wire<Info>> {
    Json(Ok(Info { region: cloud.region() }))
}

async fn describe_instances(
    State(cloud): State<MockCloud>,
    Json(queries): Json<Vec<CloudInstanceQuery>>,
) -> Json<Wire<Vec<Wire<Option<Instance>>>>> {
    to_batch_response(cloud.describe_instances(&queries).await)
}

async fn list_routes(
    State(cloud): State<MockCloud>,
    Json(cluster): Json<String>,
) -> Json<Wire<Vec<OwnedRoute>>> {
    to_response(cloud.list_routes(&cluster).await)
}

async fn apply_routes(
    State(cloud): State<MockCloud>,
    Json(batch): Json<RouteBatch>,
) -> Json<Wire<Vec<Wire<()>>>> {
    to_batch_response(cloud.apply_routes(&batch).await)
}

async fn get_load_balancer(
    State(cloud): State<MockCloud>,
    Json(key): Json<LoadBalancerKey>,
) -> Json<Wire<Option<LoadBalancer>>> {
    to_response(cloud.get_load_balancer(&key).await)
}

async fn create_load_balancer(
    State(cloud): State<MockCloud>,
    Json(spec): Json<LoadBalancerSpec>,
) -> Json<Wire<LoadBalancer>> {
    to_response(cloud.create_load_balancer(&spec).await)
}

async fn modify_load_balancer(
    State(cloud): State<MockCloud>,
    Json(modify): Json<ModifyLoadBalancer>,
) -> Json<Wire<LoadBalancer>> {
    to_response(
        cloud
            .modify_load_balancer(&modify.key, &modify.settings)
            .await,
    )
}

async fn update_load_balancer(
    State(cloud): State<MockCloud>,
    Json(update): Json<UpdateLoadBalancer>,
) -> Json<Wire<LoadBalancer>> {
    to_response(
        cloud
            .update_load_balancer(&update.key, &update.members)
            .await,
    )
}

async fn delete_load_balancer(
    State(cloud): State<MockCloud>,
    Json(key): Json<LoadBalancerKey>,
) -> Json<Wire<DeleteResult>> {
    to_response(cloud.delete_load_balancer(&key).await)
}

async fn retain_load_balancer(
    State(cloud): State<MockCloud>,
    Json(key): Json<LoadBalancerKey>,
) -> Json<Wire<Option<LoadBalancer>>> {
    to_response(cloud.retain_load_balancer(&key).await)
}

async fn adopt_load_balancer(
    State(cloud): State<MockCloud>,
    Json(adopt): Json<AdoptLoadBalancer>,
) -> Json<Wire<LoadBalancer>> {
    to_response(cloud.adopt_load_balancer(&adopt.id, &adopt.key).await)
}

async fn list_load_balancers(
    State(cloud): State<MockCloud>,
    Json(cluster): Json<String>,
) -> Json<Wire<Vec<LoadBalancer>>> {
    to_response(cloud.list_load_balancers(&cluster).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_kind_survives_the_wire() {
        for kind in ErrorKind::ALL {
            let error = CloudError::new(kind, "what").with_retry_after(Duration::from_millis(1500));
            let json = serde_json::to_string(&WireError::from(error)).unwrap();
            let back = CloudError::from(serde_json::from_str::<WireError>(&json).unwrap());
            let seen = (back.kind(), back.to_string(), back.retry_after());
            assert_eq!(seen, (kind, "what".to_owned(), Some(Duration::from_millis(1500))));
        }
    }

    #[test]
    fn an_unknown_kind_is_transient() {
        let wire = WireError {
            kind: "new".to_owned(),
            message: "m".to_owned(),
            retry_after: None,
        };
        assert_eq!(CloudError::from(wire).kind(), ErrorKind::Transient);
    }
}

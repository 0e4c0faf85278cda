//! Test hooks over HTTP, if the settings enable them: request log, faults, time.

use std::{sync::Arc, time::Duration};

use axum::{Json, Router, extract::State, routing};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Cloud, Fault, Input};
use crate::state::ApiError;

pub(super) fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/journal", routing::get(journal).delete(clear_journal))
        .route("/faults", routing::get(faults).post(add_fault).delete(clear_faults))
        .route("/clock", routing::get(clock).post(advance))
}

async fn journal(State(cloud): State<Arc<Cloud>>) -> Json<Value> {
    Json(json!({"counts": cloud.journal.counts(), "entries": cloud.journal.entries()}))
}

async fn clear_journal(State(cloud): State<Arc<Cloud>>) -> StatusCode {
    cloud.journal.clear();
    StatusCode::NO_CONTENT
}

async fn faults(State(cloud): State<Arc<Cloud>>) -> Json<Vec<Fault>> {
    Json(cloud.faults.pending())
}

async fn add_fault(State(cloud): State<Arc<Cloud>>, Input(fault): Input<Fault>) -> StatusCode {
    cloud.faults.add(fault);
    StatusCode::NO_CONTENT
}

async fn clear_faults(State(cloud): State<Arc<Cloud>>) -> StatusCode {
    cloud.faults.clear();
    StatusCode::NO_CONTENT
}

async fn clock(State(cloud): State<Arc<Cloud>>) -> Json<Value> {
    Json(json!({"now": cloud.clock.now()}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Advance {
    seconds: u64,
}

async fn advance(
    State(cloud): State<Arc<Cloud>>,
    Input(advance): Input<Advance>,
) -> Result<Json<Value>, ApiError> {
    cloud.clock.advance(Duration::from_secs(advance.seconds));
    Ok(Json(json!({"now": cloud.clock.now()})))
}

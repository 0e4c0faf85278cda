//! `/debug`: changes the log verbosity, and explains that Go's profiles do not exist here.

use axum::{Router, extract::State, http::StatusCode, routing::put};

use crate::telemetry::logging::Verbosity;

const NO_PROFILES: &str = "404 there are no profiles here: /debug/pprof belongs to Go's runtime, which this program does not \
                           have; take a profile with perf\n";

pub(super) fn routes(verbosity: Verbosity) -> Router {
    let no_profiles = || async { (StatusCode::NOT_FOUND, NO_PROFILES) };
    Router::new()
        .route("/debug/flags/v", put(set_verbosity))
        .with_state(verbosity)
        .route("/debug/pprof", axum::routing::any(no_profiles))
        .route("/debug/pprof/{*profile}", axum::routing::any(no_profiles))
}

async fn set_verbosity(State(verbosity): State<Verbosity>, body: String) -> (StatusCode, String) {
    let before = verbosity.get();
    match body.trim().parse() {
        Ok(number) => {
            verbosity.set(number);
            tracing::info!(before, now = number, "verbosity of logs was changed");
            (StatusCode::OK, format!("successfully set -v to {number}\n"))
        }
        Err(_) => (
            StatusCode::BAD_REQUEST,
            "the body must be a number, the verbosity as -v takes it\n".to_owned(),
        ),
    }
}

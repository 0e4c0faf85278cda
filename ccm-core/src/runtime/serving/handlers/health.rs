//! `/healthz`, `/livez`, `/readyz`. The response texts are upstream's, since scripts parse them.

use std::{collections::BTreeSet, fmt::Write as _};

use axum::{
    Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};

use super::{metrics::HealthSlis, not_found};
use crate::runtime::health::{Check, CheckKind, Health};

/// The health endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HealthEndpoint {
    /// What upstream includes: the lease, and each controller.
    Healthz,
    /// The process and its lease.
    Livez,
    /// All checks.
    Readyz,
}

impl HealthEndpoint {
    fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }

    fn shows(self, kind: CheckKind) -> bool {
        match self {
            Self::Healthz => kind != CheckKind::Ready,
            Self::Livez => kind == CheckKind::Live,
            Self::Readyz => true,
        }
    }
}

#[derive(Clone)]
struct HealthState {
    health: Health,
    slis: HealthSlis,
}

impl HealthState {
    fn checks(&self, page: HealthEndpoint) -> Vec<Check> {
        let mut checks = self.health.checks();
        checks.retain(|check| page.shows(check.kind()));
        checks
    }
}

pub(super) fn routes(health: Health, slis: HealthSlis) -> Router {
    let state = HealthState { health, slis };
    let mut router = Router::new();
    for endpoint in [HealthEndpoint::Healthz, HealthEndpoint::Livez, HealthEndpoint::Readyz] {
        let all_checks =
            async move |State(state): State<HealthState>,
                        Query(query): Query<Vec<(String, String)>>| {
                respond(endpoint, &state, &query)
            };
        let single_check = async move |State(state): State<HealthState>,
                                       Path(name): Path<String>| {
            respond_single(endpoint, &state, &name)
        };
        let path = format!("/{}", endpoint.name());
        router = router
            .route(&path, get(all_checks))
            .route(&format!("{path}/{{check}}"), get(single_check));
    }
    router.with_state(state)
}

/// The result of one check.
struct CheckResult {
    name: String,
    outcome: CheckOutcome,
}

#[derive(Debug, PartialEq, Eq)]
enum CheckOutcome {
    Good,
    Excluded,
    Degraded(String),
    Failed,
}

fn respond(page: HealthEndpoint, state: &HealthState, query: &[(String, String)]) -> Response {
    let verbose = query.iter().any(|(key, _)| key == "verbose");
    let excluded: BTreeSet<&str> = query
        .iter()
        .filter(|(key, _)| key == "exclude")
        .map(|(_, value)| value.as_str())
        .collect();
    let mut results = Vec::new();
    for check in state.checks(page) {
        let outcome = if excluded.contains(check.name()) {
            CheckOutcome::Excluded
        } else {
            run_check(page, state, &check)
        };
        results.push(CheckResult { name: check.name().to_owned(), outcome });
    }
    if results.is_empty() {
        // As upstream: without checks, `ping` shows that the server answers.
        results.push(CheckResult { name: "ping".to_owned(), outcome: CheckOutcome::Good });
    }
    let unknown: Vec<_> = excluded
        .iter()
        .filter(|name| results.iter().all(|said| said.name != **name))
        .map(|name| format!("{name:?}"))
        .collect();
    let (status, text) = render(page, &results, &unknown, verbose);
    (status, text).into_response()
}

/// Runs one check, and counts it unless it is only informative.
fn run_check(page: HealthEndpoint, state: &HealthState, check: &Check) -> CheckOutcome {
    let result = check.run();
    if check.kind() == CheckKind::Progress {
        return result
            .err()
            .map_or(CheckOutcome::Good, CheckOutcome::Degraded);
    }
    state
        .slis
        .observe(check.name(), page.name(), result.is_ok());
    match result {
        Ok(()) => CheckOutcome::Good,
        Err(reason) => {
            // The endpoint is open to everybody, so the reason is only logged.
            tracing::warn!(check = check.name(), page = page.name(), reason, "health check failed");
            CheckOutcome::Failed
        }
    }
}

fn render(
    page: HealthEndpoint,
    results: &[CheckResult],
    unknown: &[String],
    verbose: bool,
) -> (StatusCode, String) {
    let mut text = String::new();
    for CheckResult { name, outcome } in results {
        let _ = match outcome {
            CheckOutcome::Good => writeln!(text, "[+]{name} ok"),
            CheckOutcome::Excluded => writeln!(text, "[+]{name} excluded: ok"),
            CheckOutcome::Degraded(reason) => writeln!(text, "[!]{name} degraded: {reason}"),
            CheckOutcome::Failed => writeln!(text, "[-]{name} failed: reason withheld"),
        };
    }
    if !unknown.is_empty() {
        let names = unknown.join(",");
        let _ =
            writeln!(text, "warn: some health checks cannot be excluded: no matches for {names}");
    }
    if results
        .iter()
        .any(|said| said.outcome == CheckOutcome::Failed)
    {
        let _ = writeln!(text, "{} check failed", page.name());
        return (StatusCode::INTERNAL_SERVER_ERROR, text);
    }
    if !verbose {
        return (StatusCode::OK, "ok".to_owned());
    }
    let _ = writeln!(text, "{} check passed", page.name());
    (StatusCode::OK, text)
}

/// Runs the check with this name. The response contains the reason of a failure, so these paths are
/// not open to everybody.
fn respond_single(page: HealthEndpoint, state: &HealthState, name: &str) -> Response {
    let checks = state.checks(page);
    let namesakes: Vec<_> = checks.iter().filter(|check| check.name() == name).collect();
    if namesakes.is_empty() && !(checks.is_empty() && name == "ping") {
        return not_found();
    }
    match namesakes.into_iter().try_for_each(Check::run) {
        Ok(()) => "ok".into_response(),
        Err(reason) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {reason}\n"))
                .into_response()
        }
    }
}

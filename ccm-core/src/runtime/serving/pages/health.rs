//! `/healthz`, `/livez`, `/readyz`: the texts are upstream's, since scripts read them.

use std::{collections::BTreeSet, fmt::Write as _};

use axum::{
    Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};

use super::{metrics::Slis, not_found};
use crate::runtime::health::{Check, Health, Kind};

/// The pages about health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    /// All that upstream shows there: the lease, and each controller.
    Healthz,
    /// The process and its lease.
    Livez,
    /// Everything.
    Readyz,
}

impl Page {
    fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }

    fn shows(self, kind: Kind) -> bool {
        match self {
            Self::Healthz => kind != Kind::Ready,
            Self::Livez => kind == Kind::Live,
            Self::Readyz => true,
        }
    }
}

#[derive(Clone)]
struct Asked {
    health: Health,
    slis: Slis,
}

impl Asked {
    fn checks(&self, page: Page) -> Vec<Check> {
        let mut checks = self.health.checks();
        checks.retain(|check| page.shows(check.kind()));
        checks
    }
}

pub(super) fn routes(health: Health, slis: Slis) -> Router {
    let asked = Asked { health, slis };
    [Page::Healthz, Page::Livez, Page::Readyz]
        .into_iter()
        .fold(Router::new(), |router, page| {
            let all = async move |State(asked): State<Asked>, Query(query): Query<Vec<(String, String)>>| {
                answer(page, &asked, &query)
            };
            let one = async move |State(asked): State<Asked>, Path(name): Path<String>| answer_one(page, &asked, &name);
            let path = format!("/{}", page.name());
            router.route(&path, get(all)).route(&format!("{path}/{{check}}"), get(one))
        })
        .with_state(asked)
}

/// What one check said.
struct Said {
    name: String,
    outcome: Outcome,
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Good,
    Excluded,
    Degraded(String),
    Failed,
}

fn answer(page: Page, asked: &Asked, query: &[(String, String)]) -> Response {
    let verbose = query.iter().any(|(key, _)| key == "verbose");
    let excluded: BTreeSet<&str> =
        query.iter().filter(|(key, _)| key == "exclude").map(|(_, value)| value.as_str()).collect();
    let mut said = Vec::new();
    for check in asked.checks(page) {
        let outcome = if excluded.contains(check.name()) { Outcome::Excluded } else { ask(page, asked, &check) };
        said.push(Said { name: check.name().to_owned(), outcome });
    }
    if said.is_empty() {
        // As upstream: that there is an answer is one.
        said.push(Said { name: "ping".to_owned(), outcome: Outcome::Good });
    }
    let unknown: Vec<_> = excluded
        .iter()
        .filter(|name| said.iter().all(|said| said.name != **name))
        .map(|name| format!("{name:?}"))
        .collect();
    let (status, text) = render(page, &said, &unknown, verbose);
    (status, text).into_response()
}

/// Asks one check and counts what decides.
fn ask(page: Page, asked: &Asked, check: &Check) -> Outcome {
    let result = check.run();
    if check.kind() == Kind::Progress {
        return result.err().map_or(Outcome::Good, Outcome::Degraded);
    }
    asked.slis.observe(check.name(), page.name(), result.is_ok());
    match result {
        Ok(()) => Outcome::Good,
        Err(why) => {
            // The page is open to everybody, the log is not.
            tracing::warn!(check = check.name(), page = page.name(), why, "health check failed");
            Outcome::Failed
        }
    }
}

fn render(page: Page, said: &[Said], unknown: &[String], verbose: bool) -> (StatusCode, String) {
    let mut text = String::new();
    for Said { name, outcome } in said {
        let _ = match outcome {
            Outcome::Good => writeln!(text, "[+]{name} ok"),
            Outcome::Excluded => writeln!(text, "[+]{name} excluded: ok"),
            Outcome::Degraded(why) => writeln!(text, "[!]{name} degraded: {why}"),
            Outcome::Failed => writeln!(text, "[-]{name} failed: reason withheld"),
        };
    }
    if !unknown.is_empty() {
        let names = unknown.join(",");
        let _ = writeln!(text, "warn: some health checks cannot be excluded: no matches for {names}");
    }
    if said.iter().any(|said| said.outcome == Outcome::Failed) {
        let _ = writeln!(text, "{} check failed", page.name());
        return (StatusCode::INTERNAL_SERVER_ERROR, text);
    }
    if !verbose {
        return (StatusCode::OK, "ok".to_owned());
    }
    let _ = writeln!(text, "{} check passed", page.name());
    (StatusCode::OK, text)
}

/// One check by its name, with the reason, which is why these paths are not open to everybody.
fn answer_one(page: Page, asked: &Asked, name: &str) -> Response {
    let checks = asked.checks(page);
    let namesakes: Vec<_> = checks.iter().filter(|check| check.name() == name).collect();
    if namesakes.is_empty() && !(checks.is_empty() && name == "ping") {
        return not_found();
    }
    match namesakes.into_iter().try_for_each(Check::run) {
        Ok(()) => "ok".into_response(),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")).into_response(),
    }
}

//! The HTTP handlers of the page of explanations, and what it shows.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Router,
    extract::{Query, State},
    http::{HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Redirect, Response},
    routing::get,
};
use jiff::Timestamp;
use prometheus::Registry;

use super::{
    explain::{ExplainState, Explanations, internal_error},
    page_metrics::{CallHistory, queues},
};
use crate::{
    error::caught,
    explain::page::{self, CheckRow, Page, PageObjects, PageOptions},
    runtime::health::Health,
};

/// Nothing but the style sheet and the filter's own form: no script, image or frame, from anywhere.
const SECURITY_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
);
/// The number of objects after which other tasks get a turn.
const OBJECTS_PER_TURN: usize = 32;

/// The data of the handlers.
#[derive(Clone)]
struct PageState {
    explain: ExplainState,
    registry: Registry,
    health: Health,
    calls: Arc<CallHistory>,
}

/// Serves the page at `/explain/`, and its style sheet.
pub(super) fn routes(explain: ExplainState, registry: Registry, health: Health) -> Router {
    let calls = Arc::default();
    Router::new()
        .route("/explain", get(async || Redirect::temporary("explain/")))
        .route("/explain/", get(respond))
        .route(
            "/explain/style.css",
            get(async || ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], page::STYLE)),
        )
        .with_state(PageState { explain, registry, health, calls })
}

async fn respond(
    State(state): State<PageState>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let options = PageOptions {
        filter: query
            .get("filter")
            .map(|filter| filter.trim().to_lowercase())
            .unwrap_or_default(),
        keep: query.get("refresh").is_some_and(|refresh| refresh == "off"),
    };
    // A panic, in the provider's code or ours, fails only this request.
    let page = match caught(state.page(options)).await {
        Ok(page) => page,
        Err(panic) => return internal_error(&panic),
    };
    let status = match page.objects {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut response = (status, Html(page::render(&page))).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, SECURITY_POLICY);
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

impl PageState {
    async fn page(&self, options: PageOptions) -> Page {
        let objects = match objects(&self.explain.explanations, &options).await {
            Some(objects) => Ok(objects),
            None => Err(self.explain.not_leading()),
        };
        let families = self.registry.gather();
        let checks = self.health.checks();
        Page {
            at: self
                .explain
                .explanations
                .now()
                .unwrap_or_else(Timestamp::now),
            options,
            objects,
            queues: queues(&families),
            checks: checks
                .iter()
                .map(|check| CheckRow { name: check.name().to_owned(), failure: check.run().err() })
                .collect(),
            calls: self.calls.update(&families),
        }
    }
}

/// Explains all objects; `None` in a process that does not lead.
async fn objects(explanations: &Explanations, options: &PageOptions) -> Option<PageObjects> {
    let mut objects = PageObjects {
        provider: explanations.provider_name()?,
        ..PageObjects::default()
    };
    for (count, name) in explanations.node_names().iter().enumerate() {
        if let Ok(node) = explanations.node(name) {
            objects.add_node(node, options);
        }
        if count % OBJECTS_PER_TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
    for (namespace, name) in explanations.service_names() {
        if let Ok(service) = explanations.service(&namespace, &name) {
            objects.add_service(service, options);
        }
        tokio::task::yield_now().await;
    }
    if let Ok(routes) = explanations.routes() {
        objects.add_routes(routes);
    }
    objects.finish();
    Some(objects)
}

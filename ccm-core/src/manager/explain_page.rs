//! The HTTP handlers of the page of explanations, and what it shows.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::{Query, State},
    http::{HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Redirect, Response},
    routing::get,
};
use jiff::Timestamp;
use prometheus::Registry;
use tokio::{sync::Mutex, time::Instant};

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
/// The time for which readers share the explained objects. A page with all of them costs the number
/// of Services times the number of Nodes.
const SHARED_FOR: Duration = Duration::from_secs(3);
/// The maximum number of filters whose objects are shared. The objects of a filter are at most some
/// hundred rows, and what is said of all routes.
const MAX_SHARED: usize = 8;

/// The data of the handlers.
#[derive(Clone)]
struct PageState {
    explain: ExplainState,
    registry: Registry,
    health: Health,
    calls: Arc<CallHistory>,
    objects: Arc<SharedObjects>,
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
        .with_state(PageState { explain, registry, health, calls, objects: Arc::default() })
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
        let explanations = &self.explain.explanations;
        let explained = self
            .objects
            .get(&options.filter, || objects(explanations, &options))
            .await;
        let (at, objects) = match explained {
            Some(objects) => (objects.at, Ok(objects)),
            None => (Timestamp::now(), Err(self.explain.not_leading())),
        };
        let families = self.registry.gather();
        let checks = self.health.checks();
        Page {
            at,
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

/// The objects that readers of the last seconds saw, by filter. One reader at a time explains
/// objects, while the others wait for the result.
#[derive(Default)]
struct SharedObjects(Mutex<VecDeque<SharedEntry>>);

struct SharedEntry {
    filter: String,
    begun: Instant,
    objects: Arc<PageObjects>,
}

impl SharedObjects {
    /// Returns the objects of a filter from a moment ago, or explains them now. A reader who had to
    /// wait takes what was begun after it came, however long that took.
    async fn get<F>(&self, filter: &str, explain: impl FnOnce() -> F) -> Option<Arc<PageObjects>>
    where
        F: Future<Output = Option<PageObjects>>,
    {
        let arrived = Instant::now();
        let mut entries = self.0.lock().await;
        let begun = Instant::now();
        entries.retain(|entry| {
            entry.begun >= arrived || begun.duration_since(entry.begun) < SHARED_FOR
        });
        if let Some(entry) = entries.iter().find(|entry| entry.filter == filter) {
            return Some(entry.objects.clone());
        }
        let objects = Arc::new(explain().await?);
        if entries.len() == MAX_SHARED {
            entries.pop_front();
        }
        let filter = filter.to_owned();
        entries.push_back(SharedEntry { filter, begun, objects: objects.clone() });
        Some(objects)
    }
}

/// Explains all objects; `None` in a process that does not lead.
async fn objects(explanations: &Explanations, options: &PageOptions) -> Option<PageObjects> {
    let mut objects = PageObjects {
        provider: explanations.provider_name()?,
        at: explanations.now()?,
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts how often objects are explained.
    #[derive(Default)]
    struct Counted {
        shared: SharedObjects,
        explained: AtomicUsize,
        takes: Duration,
    }

    impl Counted {
        async fn read(&self, filter: &str) -> usize {
            let explain = async || {
                tokio::time::sleep(self.takes).await;
                self.explained.fetch_add(1, Ordering::Relaxed);
                Some(PageObjects::default())
            };
            assert!(self.shared.get(filter, explain).await.is_some());
            self.explained.load(Ordering::Relaxed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readers_who_wait_long_share_what_is_explained() {
        let page = Counted { takes: 2 * SHARED_FOR, ..Counted::default() };
        let readers = || futures::future::join_all((0..20).map(|_| page.read("")));
        let later = async {
            tokio::time::sleep(SHARED_FOR).await;
            readers().await
        };
        let (first, second) = tokio::join!(readers(), later);
        assert_eq!(first, [1; 20]);
        assert_eq!(second, [2; 20], "what they saw would have been too old");
    }

    #[tokio::test(start_paused = true)]
    async fn readers_of_the_same_seconds_share_what_is_explained() {
        let page = Counted { takes: Duration::from_millis(100), ..Counted::default() };
        let readers = futures::future::join_all((0..20).map(|_| page.read("")));
        assert_eq!(readers.await, [1; 20]);
        assert_eq!(page.read("").await, 1);
        assert_eq!(page.read("web").await, 2, "another filter shows other rows");
        tokio::time::advance(SHARED_FOR).await;
        assert_eq!(page.read("").await, 3, "it is too old");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_shared_is_bounded_and_a_standby_shares_nothing() {
        let page = Counted::default();
        let fetch = |filter: String| {
            let page = &page;
            async move {
                page.shared
                    .get(&filter, async || Some(PageObjects::default()))
                    .await
            }
        };
        for number in 0..3 * MAX_SHARED {
            fetch(number.to_string()).await;
        }
        assert_eq!(page.shared.0.lock().await.len(), MAX_SHARED);
        assert!(page.shared.get("new", async || None).await.is_none());
        assert!(
            page.shared
                .get("new", async || Some(PageObjects::default()))
                .await
                .is_some()
        );
    }
}

//! The explanations of a manager, and the HTTP handlers below `/explain`.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::get,
};
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Manager;
use crate::{
    config::controller_names as names,
    error::{BoxError, caught},
    explain::{
        ExplainTime, Explainer, Explanation, NodeExplanation, ObjectName, RoutesExplanation,
        ServiceExplanation, ShadowExplanation,
    },
    k8s::NodeView,
    provider::CloudProvider,
    runtime::{cache::Cache, events::WallClock, serving::wants_text, shadow::ObjectKind},
};

/// The order in which controllers contribute: the more basic one first. The route controller leaves
/// nodes without pod CIDRs to the allocator, so it comes after it.
const ORDER: [&str; 5] = [
    names::CLOUD_NODE,
    names::CLOUD_NODE_LIFECYCLE,
    names::NODE_IPAM,
    names::NODE_ROUTE,
    names::SERVICE_LB,
];

/// The explanations of a manager's objects. Clones share their state.
///
/// They exist before the manager, because the HTTPS server starts earlier. A process that does not
/// lead explains nothing, because it has no caches.
#[derive(Clone, Default)]
pub struct Explanations(Arc<OnceLock<Sources>>);

/// What explanations are made from.
struct Sources {
    provider: Arc<dyn CloudProvider>,
    nodes: Cache<NodeView>,
    clock: WallClock,
    explainers: Vec<Arc<dyn Explainer>>,
}

/// The reason why there is no explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// The controllers do not run here, or not yet.
    #[error("this process does not lead, or its caches are not full yet, so it explains nothing")]
    NotLeading,
    /// The object does not exist, as far as the caches show.
    #[error("there is no such object in the caches of this manager")]
    NotFound,
    /// No controller of this process has to do with Services.
    #[error(
        "no Service is known here: it does not exist, has another type than LoadBalancer, or the service controller does not run"
    )]
    NoService,
    /// The route controller does not run here.
    #[error(
        "the route controller does not run here: see --controllers and --configure-cloud-routes"
    )]
    NoRoutes,
}

impl fmt::Debug for Explanations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explanations")
            .field("available", &self.0.get().is_some())
            .finish()
    }
}

impl Explanations {
    /// Makes explanations available. A manager runs once, so only the first call has an effect.
    pub(super) fn install(
        &self,
        provider: &Arc<dyn CloudProvider>,
        nodes: Cache<NodeView>,
        clock: &WallClock,
        mut explainers: Vec<(&'static str, Arc<dyn Explainer>)>,
    ) {
        explainers.sort_by_key(|(name, _)| ORDER.iter().position(|known| known == name));
        let sources = Sources {
            provider: provider.clone(),
            nodes,
            clock: clock.clone(),
            explainers: explainers
                .into_iter()
                .map(|(_, explainer)| explainer)
                .collect(),
        };
        // A second manager of a test may share the observability of the first.
        let _ = self.0.set(sources);
    }

    fn sources(&self) -> Result<&Sources, ExplainError> {
        self.0.get().ok_or(ExplainError::NotLeading)
    }

    /// Returns the name of the provider; `None` if this process does not lead.
    pub(super) fn provider_name(&self) -> Option<String> {
        Some(self.0.get()?.provider.name().to_owned())
    }

    /// Returns the current time of the manager's clock; `None` if this process does not lead.
    pub(super) fn now(&self) -> Option<Timestamp> {
        Some(ExplainTime::new(&self.0.get()?.clock).wall())
    }

    /// Returns the names of all Nodes.
    pub(super) fn node_names(&self) -> Vec<Arc<str>> {
        let Some(sources) = self.0.get() else {
            return Vec::new();
        };
        let nodes = sources.nodes.list();
        nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// Returns the namespaces and names of all Services that can be explained.
    pub(super) fn service_names(&self) -> Vec<(String, String)> {
        let Some(sources) = self.0.get() else {
            return Vec::new();
        };
        let mut names = Vec::new();
        for explainer in &sources.explainers {
            for key in explainer.service_keys() {
                if let Some((namespace, name)) = key.split_once('/') {
                    names.push((namespace.to_owned(), name.to_owned()));
                }
            }
        }
        names
    }

    /// Explains a Node.
    ///
    /// # Errors
    /// Returns an error if this process does not lead, or if there is no such Node.
    pub fn node(&self, name: &str) -> Result<NodeExplanation, ExplainError> {
        let sources = self.sources()?;
        let node = sources.nodes.get(name).ok_or(ExplainError::NotFound)?;
        let time = ExplainTime::new(&sources.clock);
        let mut explanation = NodeExplanation::new(&node, &*sources.provider, time);
        for explainer in &sources.explainers {
            explainer.explain_node(&node, time, &mut explanation);
        }
        explanation.finish(&node);
        Ok(explanation)
    }

    /// Explains any object.
    ///
    /// # Errors
    /// Returns an error if this process does not lead, or if there is no such object.
    pub fn explain(&self, object: &ObjectName) -> Result<Explanation, ExplainError> {
        Ok(match object {
            ObjectName::Node(name) => Explanation::Node(Box::new(self.node(name)?)),
            ObjectName::Service { namespace, name } => {
                Explanation::Service(Box::new(self.service(namespace, name)?))
            }
            ObjectName::Routes => Explanation::Routes(Box::new(self.routes()?)),
        })
    }

    /// Explains a Service by its namespace and name.
    ///
    /// # Errors
    /// Returns an error if this process does not lead, or if it has no such Service.
    pub fn service(&self, namespace: &str, name: &str) -> Result<ServiceExplanation, ExplainError> {
        let sources = self.sources()?;
        let time = ExplainTime::new(&sources.clock);
        let key = format!("{namespace}/{name}");
        sources
            .explainers
            .iter()
            .find_map(|explainer| explainer.explain_service(&key, time))
            .ok_or(ExplainError::NoService)
    }

    /// Explains the routes of all nodes.
    ///
    /// # Errors
    /// Returns an error if this process does not lead, or if it manages no routes.
    pub fn routes(&self) -> Result<RoutesExplanation, ExplainError> {
        let sources = self.sources()?;
        let time = ExplainTime::new(&sources.clock);
        sources
            .explainers
            .iter()
            .find_map(|explainer| explainer.explain_routes(time))
            .ok_or(ExplainError::NoRoutes)
    }
}

/// The data of the handlers.
#[derive(Clone)]
pub(super) struct ExplainState {
    pub(super) explanations: Explanations,
    /// The Lease whose holder explains, as `namespace/name`, if there is leader election.
    pub(super) lease: Option<Arc<str>>,
}

/// Serves explanations at `/explain/nodes/NAME`, `/explain/services/NAMESPACE/NAME` and
/// `/explain/routes`: as JSON, or as text to a client that asks for it.
pub(super) fn routes(state: ExplainState) -> Router {
    Router::new()
        .route("/explain/nodes/{name}", get(explain_node))
        .route("/explain/services/{namespace}/{name}", get(explain_service))
        .route("/explain/routes", get(explain_routes))
        .with_state(state)
}

async fn explain_node(
    State(state): State<ExplainState>,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    state.respond(&ObjectName::Node(name), &uri, &headers).await
}

async fn explain_service(
    State(state): State<ExplainState>,
    Path((namespace, name)): Path<(String, String)>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let object = ObjectName::Service { namespace, name };
    state.respond(&object, &uri, &headers).await
}

async fn explain_routes(
    State(state): State<ExplainState>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    state.respond(&ObjectName::Routes, &uri, &headers).await
}

impl ExplainState {
    /// Makes the explanation and the response. A panic, in the provider's code or ours, fails only
    /// this request.
    async fn respond(&self, object: &ObjectName, uri: &Uri, headers: &HeaderMap) -> Response {
        let as_text = match format(uri) {
            Some("text") => true,
            Some("json") => false,
            None => wants_text(headers),
            Some(_) => {
                let answer = "format must be \"json\" or \"text\"\n";
                return (StatusCode::BAD_REQUEST, answer).into_response();
            }
        };
        let explanation = match caught(async { self.explanations.explain(object) }).await {
            Ok(Ok(explanation)) => explanation,
            Ok(Err(error)) => return self.error(error),
            Err(panic) => return internal_error(&panic),
        };
        if !as_text {
            return Json(explanation).into_response();
        }
        match explanation.text() {
            Ok(text) => text.into_response(),
            Err(error) => internal_error(&error),
        }
    }

    fn error(&self, error: ExplainError) -> Response {
        let status = match error {
            ExplainError::NotLeading => StatusCode::SERVICE_UNAVAILABLE,
            ExplainError::NotFound | ExplainError::NoService | ExplainError::NoRoutes => {
                StatusCode::NOT_FOUND
            }
        };
        let text = match error {
            ExplainError::NotLeading => self.not_leading(),
            other => other.to_string(),
        };
        (status, text + "\n").into_response()
    }

    /// Says that this process does not lead, and who does.
    pub(super) fn not_leading(&self) -> String {
        let mut text = ExplainError::NotLeading.to_string();
        if let Some(lease) = &self.lease {
            text.push_str("; the Lease ");
            text.push_str(lease);
            text.push_str(" names the leader");
        }
        text
    }
}

pub(super) fn internal_error(error: &str) -> Response {
    tracing::error!(error, "object not explained");
    (StatusCode::INTERNAL_SERVER_ERROR, "the object could not be explained; see the log\n")
        .into_response()
}

/// Returns the value of `format` in the query.
fn format(uri: &Uri) -> Option<&str> {
    uri.query()?
        .split('&')
        .find_map(|pair| pair.strip_prefix("format="))
}

impl Manager {
    /// Explains an object without a leader: runs one comparison of shadow mode, and explains what
    /// the caches and the comparison show. Changes nothing. The configuration must have
    /// [`ShadowConfig::once`](crate::config::ShadowConfig::once).
    ///
    /// # Errors
    /// Returns an error if the comparison fails, if the caches are not full before `limit`, or if
    /// there is no such object.
    pub async fn explain_alone(
        self,
        object: ObjectName,
        limit: Instant,
        stop: CancellationToken,
    ) -> Result<ShadowExplanation, BoxError> {
        let explanations = self.explanations();
        let report = self.shadow_report.clone();
        let manager = self.with_output(Arc::new(|_: &str| Ok(())));
        // What was compared by then explains more than an error would.
        if let Ok(result) = tokio::time::timeout_at(limit, manager.run(stop)).await {
            result?;
        }
        let mut explanation = explanations.explain(&object)?;
        explanation.forget_process();
        let report = report.lock();
        Ok(ShadowExplanation {
            explanation,
            would_change: report
                .differences()
                .filter(|difference| is_about(&object, difference.kind, &difference.object))
                .map(ToString::to_string)
                .collect(),
            not_compared: report
                .uncompared()
                .filter(|not_compared| is_about(&object, not_compared.kind, &not_compared.object))
                .map(ToString::to_string)
                .collect(),
        })
    }
}

/// Returns true if a finding of shadow mode is about the object, or about all of its kind.
fn is_about(object: &ObjectName, kind: ObjectKind, name: &str) -> bool {
    let (kind_of_object, is_named) = match object {
        ObjectName::Node(node) => (ObjectKind::Node, name == node),
        ObjectName::Service { namespace, name: service } => {
            (ObjectKind::Service, name == format!("{namespace}/{service}"))
        }
        ObjectName::Routes => (ObjectKind::Route, true),
    };
    kind == kind_of_object && (is_named || name.is_empty())
}

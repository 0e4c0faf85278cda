//! The HTTP handler of `/shadow`.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
    routing::get,
};
use parking_lot::Mutex;
use serde::Serialize;

use super::{Difference, NotCompared, Notice, ShadowReport, Summary};
use crate::runtime::serving::wants_text;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShadowResponse {
    summary: Summary,
    differences: Vec<Difference>,
    not_compared: Vec<NotCompared>,
    notices: Vec<Notice>,
}

/// Serves the report at `/shadow`: as JSON, or as the printed lines to a client that accepts
/// `text/plain` before JSON.
pub fn routes(report: Arc<Mutex<ShadowReport>>) -> Router {
    Router::new()
        .route("/shadow", get(shadow))
        .with_state(report)
}

async fn shadow(State(report): State<Arc<Mutex<ShadowReport>>>, headers: HeaderMap) -> Response {
    // The data is copied under the lock and rendered after it is released.
    if wants_text(&headers) {
        let lines = report.lock().lines();
        let mut text = lines.join("\n");
        text.push('\n');
        return text.into_response();
    }
    let response = {
        let report = report.lock();
        let differences = report.differences().cloned().collect();
        let not_compared = report.uncompared().cloned().collect();
        let notices = report.notices().cloned().collect();
        ShadowResponse {
            summary: report.summary(),
            differences,
            not_compared,
            notices,
        }
    };
    Json(response).into_response()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use http::Request;
    use http_body_util::BodyExt;
    use tokio::time::Instant;
    use tower::ServiceExt;

    use super::*;
    use crate::runtime::shadow::{DryRunFindings, ManagerDefect, ObjectKind, PossibleDefect};

    async fn get(accept: Option<&str>) -> (String, String) {
        let mut board = ShadowReport::new(Duration::ZERO);
        let difference = Difference {
            kind: ObjectKind::Route,
            object: "10.244.1.0/24".to_owned(),
            part: "target".to_owned(),
            controller: "node-route-controller",
            current: Some("none".to_owned()),
            desired: "n1".to_owned(),
            why: "it is missing".to_owned(),
            // Only the adoption report says whether it is one.
            defect: Some(PossibleDefect { defect: ManagerDefect::NodeWithoutRoute, since: None }),
        };
        board.update(vec![DryRunFindings {
            compared: vec![("routes", 4)],
            differences: vec![(difference, Instant::now())],
            notices: vec![Notice {
                kind: ObjectKind::Service,
                object: "shop/web".to_owned(),
                reason: "R",
                note: "n".to_owned(),
            }],
            ..DryRunFindings::default()
        }]);
        let mut request = Request::get("/shadow");
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        let pages = routes(Arc::new(Mutex::new(board)));
        let answer = pages
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        let kind = answer.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (kind, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn the_page_is_json() {
        for accept in
            [None, Some("*/*"), Some("application/json, text/plain"), Some("text/html, */*;q=0.8")]
        {
            let (kind, body) = get(accept).await;
            assert_eq!(kind, "application/json", "{accept:?}");
            let page: serde_json::Value = serde_json::from_str(&body).unwrap();
            let expected = serde_json::json!({
                "summary": {"compared": {"routes": 4}, "differences": 1, "notCompared": 0, "settling": 0},
                "differences": [{
                    "kind": "Route", "object": "10.244.1.0/24", "part": "target", "controller": "node-route-controller",
                    "is": "none", "wouldBe": "n1", "why": "it is missing",
                }],
                "notCompared": [],
                "notices": [{"kind": "Service", "object": "shop/web", "reason": "R", "note": "n"}],
            });
            assert_eq!(page, expected);
        }
    }

    #[tokio::test]
    async fn the_page_is_text_for_those_who_want_that() {
        for accept in ["text/plain", "text/plain;q=0.9, */*"] {
            let (kind, body) = get(Some(accept)).await;
            assert!(kind.starts_with("text/plain"), "{kind}");
            let expected = "difference: Route 10.244.1.0/24: target: none -> n1 (node-route-controller: it is missing)\n\
                            notice: Service shop/web: R: n\n\
                            1 difference: 4 routes compared\n";
            assert_eq!(body, expected);
        }
    }
}

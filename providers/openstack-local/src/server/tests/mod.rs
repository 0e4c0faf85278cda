mod frame;
mod hooks;

use axum::Router;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{LocalCloud, Settings};

/// A cloud in memory, asked without a socket.
pub(crate) struct Asked {
    pub(crate) local: LocalCloud,
    pub(crate) router: Router,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn new(settings: Settings) -> Self {
        let local = LocalCloud::in_memory(settings);
        let router = local.router();
        Self { local, router }
    }

    /// Asks, with a token or without (`""`). A body that is no JSON is an error of the test.
    pub(crate) async fn ask(
        &self,
        method: &str,
        target: &str,
        token: &str,
        body: Option<Value>,
    ) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header("host", "cloud.test:5000");
        if !token.is_empty() {
            request = request.header("x-auth-token", token);
        }
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        self.send(request.body(body.into()).unwrap()).await
    }

    pub(crate) async fn send(&self, request: Request<axum::body::Body>) -> Answer {
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes).unwrap()
        };
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, target: &str, token: &str) -> Answer {
        self.ask("GET", target, token, None).await
    }

    pub(crate) async fn post(&self, target: &str, token: &str, body: Value) -> Answer {
        self.ask("POST", target, token, Some(body)).await
    }

    /// Asks for a token with this proof and scope.
    pub(crate) async fn authenticate(&self, identity: Value, scope: Value) -> Answer {
        let mut body = json!({"auth": {"identity": identity}});
        if !scope.is_null() {
            body["auth"]["scope"] = scope;
        }
        self.post("/identity/v3/auth/tokens", "", body).await
    }

    /// Writes the proof by password of a user that a new cloud has.
    pub(crate) fn password(&self, user: &str) -> Value {
        let password = self.local.credentials().password(user).unwrap().expose();
        json!({"methods": ["password"],
            "password": {"user": {"name": user, "domain": {"id": "default"}, "password": password}}})
    }

    /// Makes a token for a user in the project of the same name.
    pub(crate) async fn token(&self, user: &str) -> String {
        let scope = json!({"project": {"name": user, "domain": {"id": "default"}}});
        let answer = self.authenticate(self.password(user), scope).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.token()
    }
}

impl Answer {
    pub(crate) fn token(&self) -> String {
        self.headers["x-subject-token"].to_str().unwrap().to_owned()
    }
}

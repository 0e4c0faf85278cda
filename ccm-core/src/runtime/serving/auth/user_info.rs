//! Users, and the responses to requests that are rejected.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The name of a user without credentials.
const ANONYMOUS: &str = "system:anonymous";
/// The group of users without credentials.
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of all other users.
const AUTHENTICATED: &str = "system:authenticated";

/// The user that sends a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    /// User name.
    #[serde(rename = "username")]
    pub name: String,
    /// Unique ID of the user, or empty.
    pub uid: String,
    /// The names of the groups that the user belongs to.
    pub groups: Vec<String>,
    /// Further values from the authentication method.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// Creates the user of a request without credentials.
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.into(),
            groups: vec![UNAUTHENTICATED.into()],
            ..Self::default()
        }
    }

    /// Returns true if the user is not authenticated. A server may then close an HTTP/2 connection
    /// after the response.
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS || self.groups.iter().any(|group| group == UNAUTHENTICATED)
    }

    /// Adds the group of authenticated users, as upstream: not for the anonymous user, and only if
    /// the user is in neither group.
    pub(super) fn authenticated(mut self) -> Self {
        let has_group = self
            .groups
            .iter()
            .any(|group| group == AUTHENTICATED || group == UNAUTHENTICATED);
        if self.name != ANONYMOUS && !has_group {
            self.groups.push(AUTHENTICATED.into());
        }
        self
    }
}

/// The response to a rejected request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthRefusal {
    /// The status, which is 400, 401, 403, 429 or 500.
    pub status: StatusCode,
    /// The message for the client. It contains no credential, and for a 401 no reason.
    pub reason: String,
}

impl AuthRefusal {
    /// Creates the response to a request whose target is not a path on this server.
    pub(super) fn bad_path() -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            reason: "the request has no path".into(),
        }
    }

    /// Creates the response to a request whose credentials are not accepted. The reason is only
    /// logged, because it would help an attacker.
    pub(super) fn unauthorized() -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            reason: "Unauthorized".into(),
        }
    }

    /// Creates the response to a request that the user may not make.
    pub(super) fn forbidden(caller: &UserInfo, verb: &str, path: &str, detail: &str) -> Self {
        let mut reason =
            harmless(&format!("forbidden: User {:?} cannot {verb} path {path:?}", caller.name));
        if !detail.is_empty() {
            reason = format!("{reason}: {detail}");
        }
        Self { status: StatusCode::FORBIDDEN, reason }
    }

    /// Creates the response for the time when too many reviews are in flight.
    pub(super) fn too_many_requests() -> Self {
        let reason = "too many reviews are in flight, please try again later".into();
        Self { status: StatusCode::TOO_MANY_REQUESTS, reason }
    }

    /// Creates the response to a request that the API server could not review.
    pub(super) fn review_failed(path: &str) -> Self {
        let reason = format!("Internal Server Error: {path:?}: the SubjectAccessReview failed");
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            reason: harmless(&reason),
        }
    }

    /// Returns the response. It is a `Status` in JSON, as a kube-apiserver writes it, or plain text
    /// for a 500.
    pub fn response(&self) -> Response<Bytes> {
        let (kind, body) = if self.status == StatusCode::INTERNAL_SERVER_ERROR {
            ("text/plain; charset=utf-8", format!("{}\n", self.reason).into())
        } else {
            ("application/json", Bytes::from(self.object().to_string()))
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        for (name, value) in [
            (header::CONTENT_TYPE, kind),
            (header::CACHE_CONTROL, "no-cache, private"),
            (HeaderName::from_static("x-content-type-options"), "nosniff"),
        ] {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }

    fn object(&self) -> serde_json::Value {
        let mut object = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.reason,
            "reason": self.status.canonical_reason().unwrap_or_default().replace(' ', ""), "code": self.status.as_u16(),
        });
        if self.status == StatusCode::FORBIDDEN {
            object["details"] = json!({});
        }
        object
    }
}

impl fmt::Display for AuthRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Escapes text so that no browser interprets it as HTML.
fn harmless(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

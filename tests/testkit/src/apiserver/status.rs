//! Errors in the form the real API server answers them: a `Status` object with reason, code and
//! details.
//!
//! Messages follow `k8s.io/apimachinery/pkg/api/errors` 1.36, because clients and people match on
//! them.

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::resources::ResourceDef;

/// One rejected field of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Machine-readable kind, such as `FieldValueInvalid`.
    pub reason: String,
    /// Error message without the field's path.
    pub message: String,
    /// Path of the field, such as `spec.ports[0].port`; empty for the whole object.
    pub field: String,
}

impl FieldError {
    /// Returns the cause for a field that must not be set.
    pub fn forbidden(field: &str, message: &str) -> Self {
        Self {
            reason: "FieldValueForbidden".into(),
            message: format!("Forbidden: {message}"),
            field: field.into(),
        }
    }

    /// Returns the cause for a missing field.
    pub fn required(field: &str, message: &str) -> Self {
        Self {
            reason: "FieldValueRequired".into(),
            message: format!("Required value: {message}"),
            field: field.into(),
        }
    }

    /// Returns the cause for a field whose value is not allowed; `value` is printed as given.
    pub fn invalid(field: &str, value: &str, message: &str) -> Self {
        Self {
            reason: "FieldValueInvalid".into(),
            message: format!("Invalid value: {value}: {message}"),
            field: field.into(),
        }
    }

    fn text(&self) -> String {
        if self.field.is_empty() {
            self.message.clone()
        } else {
            format!("{}: {}", self.field, self.message)
        }
    }
}

/// A refused request, as the client sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// HTTP status, repeated in the body.
    pub code: StatusCode,
    /// `Status.reason`; empty where the real server leaves it out.
    pub reason: &'static str,
    /// `Status.message`.
    pub message: String,
    /// `Status.details`, absent where the real server sends none.
    pub details: Option<Map<String, Value>>,
    /// `metadata.continue`, set when an expired list can be continued inconsistently.
    pub continue_token: Option<String>,
}

impl ApiError {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            continue_token: None,
        }
    }

    fn with(mut self, entries: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        let details = self.details.get_or_insert_default();
        for (key, value) in entries {
            // The real type omits empty values from its JSON.
            if value != json!("") && value != json!(0) && value != json!([]) {
                details.insert(key.into(), value);
            }
        }
        self
    }

    fn about(self, def: &ResourceDef, name: &str) -> Self {
        self.with([("group", json!(def.group)), ("kind", json!(def.plural)), ("name", json!(name))])
    }

    /// Returns 400 with any message.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// Returns 401 for an unknown token.
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// Returns 403 for a resource; `message` follows the colon.
    pub fn forbidden(group: &str, resource: &str, name: &str, message: &str) -> Self {
        let qualified = if group.is_empty() {
            resource.to_owned()
        } else {
            format!("{resource}.{group}")
        };
        let message = match (qualified.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {message}"),
            (false, true) => format!("{qualified} is forbidden: {message}"),
            (false, false) => format!("{qualified} \"{name}\" is forbidden: {message}"),
        };
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).with([
            ("group", json!(group)),
            ("kind", json!(resource)),
            ("name", json!(name)),
        ])
    }

    /// Returns 404 for an object.
    pub fn not_found(def: &ResourceDef, name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("{} \"{name}\" not found", def.qualified_name()),
        )
        .about(def, name)
    }

    /// Returns 404 for an unknown path.
    pub fn no_such_path() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the server could not find the requested resource",
        )
        .with([])
    }

    /// Returns 405 for a verb that the resource does not support.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).with([])
    }

    /// Returns 406 if no accepted media type can be produced. `conversion`: the media type can be
    /// produced, but not in the requested form.
    pub fn not_acceptable(produced: &str, conversion: bool) -> Self {
        if conversion {
            let message = format!("only the following media types are accepted: {produced}");
            return Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message);
        }
        let message = format!("406: Not Acceptable\n\nAvailable representations: {produced}");
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message).with([])
    }

    /// Returns 409 for an object that already exists.
    pub fn already_exists(def: &ResourceDef, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", def.qualified_name());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(def, name)
    }

    /// Returns 409 for an object that has changed since the client read it.
    pub fn conflict(def: &ResourceDef, name: &str) -> Self {
        let message = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict_because(&def.qualified_name(), def.group, def.plural, name, message)
    }

    /// Returns 409 with its own reason; the details contain `kind`.
    pub fn conflict_because(
        qualified: &str,
        group: &str,
        kind: &str,
        name: &str,
        message: &str,
    ) -> Self {
        let message = format!("Operation cannot be fulfilled on {qualified} \"{name}\": {message}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).with([
            ("group", json!(group)),
            ("kind", json!(kind)),
            ("name", json!(name)),
        ])
    }

    /// Returns 410 for a version that is no longer kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// Returns 413 for a body above the server's limit.
    pub fn too_large(message: &str) -> Self {
        let message = format!("Request entity too large: {message}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// Returns 415 for a body with an unsupported media type.
    pub fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// Returns 415 for a PATCH, which the real server rejects before it checks the resource.
    pub fn unsupported_patch() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            "415: Unsupported Media Type",
        )
        .with([])
    }

    /// Returns 422 with one cause per rejected field. `group` and `kind` are the object's, not the
    /// resource's.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let qualified = if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{group}")
        };
        let mut texts: Vec<String> = Vec::new();
        for text in errors.iter().map(FieldError::text) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let message = match texts.as_slice() {
            [] => format!("{qualified} \"{name}\" is invalid"),
            [one] => format!("{qualified} \"{name}\" is invalid: {one}"),
            many => format!("{qualified} \"{name}\" is invalid: [{}]", many.join(", ")),
        };
        let causes: Vec<Value> = errors
            .iter()
            .map(|e| json!({"reason": e.reason, "message": e.message, "field": e.field}))
            .collect();
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).with([
            ("group", json!(group)),
            ("kind", json!(kind)),
            ("name", json!(name)),
            ("causes", Value::Array(causes)),
        ])
    }

    /// Returns 422 for a JSON Patch that did not apply. The real server names neither object nor
    /// cause.
    pub fn patch_did_not_apply() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).with([])
    }

    /// Returns 500 with the text in the message and as the only cause.
    pub fn internal(message: &str) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {message}"),
        )
        .with([("causes", json!([{"message": message}]))])
    }

    /// Returns 500 as for an error without its own status: no reason, only the text.
    pub fn unclassified(message: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// Returns 504 for a version that does not exist yet.
    pub fn too_large_resource_version(wanted: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message).with([
            ("causes", json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}])),
            ("retryAfterSeconds", json!(1)),
        ])
    }

    /// Returns a scripted answer, in the general form of that code.
    pub fn injected(code: StatusCode, retry_after: Option<u32>) -> Self {
        let (reason, message) = match code {
            StatusCode::BAD_REQUEST => {
                ("BadRequest", "the server rejected our request for an unknown reason")
            }
            StatusCode::UNAUTHORIZED => ("Unauthorized", "Unauthorized"),
            StatusCode::FORBIDDEN => ("Forbidden", "forbidden: injected fault"),
            StatusCode::NOT_FOUND => {
                ("NotFound", "the server could not find the requested resource")
            }
            StatusCode::CONFLICT => ("Conflict", "the server reported a conflict"),
            StatusCode::GONE => (
                "Expired",
                "The provided continue parameter is too old to display a consistent list result.",
            ),
            StatusCode::UNPROCESSABLE_ENTITY => {
                ("Invalid", "the server rejected our request due to an error in our request")
            }
            StatusCode::TOO_MANY_REQUESTS => (
                "TooManyRequests",
                "the server has received too many requests and has asked us to try again later",
            ),
            StatusCode::SERVICE_UNAVAILABLE => {
                ("ServiceUnavailable", "the server is currently unable to handle the request")
            }
            StatusCode::GATEWAY_TIMEOUT => (
                "Timeout",
                "the server was unable to return a response in the time allotted, but may still be processing the request",
            ),
            other if other.is_server_error() => (
                "InternalError",
                "an error on the server (\"injected fault\") has prevented the request from succeeding",
            ),
            _ => ("", "injected fault"),
        };
        Self::new(code, reason, message)
            .with([("retryAfterSeconds", json!(retry_after.unwrap_or(0)))])
    }

    /// Seconds the client is asked to wait, as also sent in `Retry-After`.
    pub fn retry_after(&self) -> Option<u64> {
        self.details.as_ref()?.get("retryAfterSeconds")?.as_u64()
    }

    /// Returns the `Status` object.
    pub fn to_value(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".into(), json!(token));
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": self.message, "code": self.code.as_u16(),
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if let Some(details) = &self.details {
            status["details"] = Value::Object(details.clone());
        }
        status
    }
}

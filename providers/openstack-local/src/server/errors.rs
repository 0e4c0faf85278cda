//! Bodies of errors, in the format of each service.

use std::time::Duration;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use super::Origin;
use crate::state::ApiError;

/// Format of an error's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// `{"error": {"code", "title", "message"}}`.
    Keystone,
    /// `{"code", "title", "description"}`.
    Barbican,
    /// `{"itemNotFound": {"code", "message"}}`.
    Nova,
    /// `{"NeutronError": {"type", "message", "detail"}}`.
    Neutron,
    /// `{"faultcode", "faultstring", "debuginfo"}`.
    Octavia,
}

impl Shape {
    /// Returns the body.
    pub fn body(self, error: &ApiError) -> Value {
        let code = error.status.as_u16();
        let message = &*error.message;
        match self {
            _ if error.status == StatusCode::UNAUTHORIZED => keystone(error.status, message),
            Self::Keystone => keystone(error.status, message),
            Self::Barbican => {
                let title = error.status.canonical_reason().unwrap_or("Error");
                json!({"code": code, "title": title, "description": message})
            }
            Self::Nova => {
                let mut fault = json!({"code": code, "message": message});
                if let Some(after) = error.retry_after {
                    fault["retryAfter"] = seconds(after).into();
                }
                json!({nova_fault(error.status): fault})
            }
            Self::Neutron => {
                let kind = if error.kind.is_empty() {
                    neutron_kind(error.status)
                } else {
                    &error.kind
                };
                json!({"NeutronError": {"type": kind, "message": message, "detail": ""}})
            }
            Self::Octavia => {
                let fault = if error.status.is_server_error() {
                    "Server"
                } else {
                    "Client"
                };
                json!({"faultcode": fault, "faultstring": message, "debuginfo": null})
            }
        }
    }

    /// Returns the response.
    pub fn answer(self, error: &ApiError, origin: &Origin) -> Response {
        let mut response = (error.status, Json(self.body(error))).into_response();
        let headers = response.headers_mut();
        if let Some(after) = error.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(after)));
        }
        if error.status == StatusCode::UNAUTHORIZED {
            let value = format!("Keystone uri=\"{origin}/identity\"");
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(header::WWW_AUTHENTICATE, value);
            }
        }
        response
    }
}

fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

fn keystone(status: StatusCode, message: &str) -> Value {
    json!({"error": {"code": status.as_u16(), "title": status.canonical_reason().unwrap_or("Error"), "message": message}})
}

fn nova_fault(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "badRequest",
        401 => "unauthorized",
        403 => "forbidden",
        404 => "itemNotFound",
        405 => "badMethod",
        409 => "conflictingRequest",
        413 | 429 => "overLimit",
        501 => "notImplemented",
        503 => "serviceUnavailable",
        _ => "computeFault",
    }
}

fn neutron_kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "HTTPBadRequest",
        403 => "PolicyNotAuthorized",
        404 => "HTTPNotFound",
        409 => "Conflict",
        412 => "RevisionNumberConstraintFailed",
        503 => "ServiceUnavailable",
        _ => "HTTPInternalServerError",
    }
}

/// An error, which the middleware of the service formats.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Returns the error of a request without a valid token.
pub(crate) fn unauthorized() -> ApiError {
    ApiError::new(
        StatusCode::UNAUTHORIZED,
        "",
        "The request you have made requires authentication.",
    )
}

/// Formats a response for the service if it is an error.
pub(super) fn shaped(shape: Shape, origin: &Origin, mut response: Response) -> Response {
    let error = match response.extensions_mut().remove::<ApiError>() {
        Some(error) => error,
        // The router's own errors have no body.
        None if response.status() == StatusCode::METHOD_NOT_ALLOWED => {
            ApiError::new(response.status(), "", "The method is not allowed for this resource.")
        }
        None => return response,
    };
    shape.answer(&error, origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_its_own_body() {
        let gone = ApiError::not_found("PortNotFound", "Port x could not be found.");
        let many = ApiError {
            retry_after: Some(Duration::from_millis(1500)),
            ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, "", "slow down")
        };
        let down = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "", "down");
        let text = "Port x could not be found.";
        for (shape, error, expected) in [
            (
                Shape::Keystone,
                &gone,
                json!({"error": {"code": 404, "title": "Not Found", "message": text}}),
            ),
            (
                Shape::Barbican,
                &gone,
                json!({"code": 404, "title": "Not Found", "description": text}),
            ),
            (Shape::Nova, &gone, json!({"itemNotFound": {"code": 404, "message": text}})),
            (
                Shape::Neutron,
                &gone,
                json!({"NeutronError": {"type": "PortNotFound", "message": text, "detail": ""}}),
            ),
            (
                Shape::Octavia,
                &gone,
                json!({"faultcode": "Client", "faultstring": text, "debuginfo": null}),
            ),
            (
                Shape::Nova,
                &many,
                json!({"overLimit": {"code": 429, "message": "slow down", "retryAfter": 2}}),
            ),
            (
                Shape::Octavia,
                &down,
                json!({"faultcode": "Server", "faultstring": "down", "debuginfo": null}),
            ),
            (
                Shape::Neutron,
                &down,
                json!({"NeutronError": {"type": "ServiceUnavailable", "message": "down", "detail": ""}}),
            ),
        ] {
            assert_eq!(shape.body(error), expected, "{shape:?}");
        }
    }

    #[test]
    fn a_bad_token_looks_the_same_everywhere() {
        for shape in [Shape::Keystone, Shape::Nova, Shape::Neutron, Shape::Octavia] {
            let body = shape.body(&unauthorized());
            assert_eq!(body["error"]["code"], 401, "{shape:?}");
            let answer = shape.answer(&unauthorized(), &Origin::new("http://c:1"));
            assert_eq!(
                answer.headers()["www-authenticate"],
                "Keystone uri=\"http://c:1/identity\""
            );
        }
    }
}

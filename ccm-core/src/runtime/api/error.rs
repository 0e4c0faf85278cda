//! Errors of requests to the API server.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use http::StatusCode;

use super::{
    RequestInfo,
    status::{Cause, Status},
};
use crate::{provider::MAX_RETRY_AFTER, write_gate::NotLeader};

/// The error of a request to the API server.
///
/// `Display` prints in one line what was requested and the cause of the failure. For a missing
/// permission it names the RBAC rule.
#[derive(Clone, Debug)]
pub struct ApiError {
    /// The kind of the error, which tells the caller what to do.
    pub kind: ApiErrorKind,
    details: Box<ErrorDetails>,
}

#[derive(Clone, Debug)]
struct ErrorDetails {
    request: RequestInfo,
    message: String,
    reason: String,
    code: Option<u16>,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The kind of an [`ApiError`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiErrorKind {
    /// 404: the object does not exist.
    NotFound,
    /// 409: the object was changed concurrently or already exists ([`ApiError::reason`]
    /// `AlreadyExists`), or a precondition failed. Read the object and decide again.
    Conflict,
    /// 422 without details: a `test` or another operation of a JSON Patch did not match the object.
    /// Read the object and decide again.
    ///
    /// This was observed on Kubernetes 1.36.3. If validation fails, the server always sends
    /// details.
    TestFailed,
    /// 422: validation rejected the object. A retry does not help.
    Invalid(Vec<Cause>),
    /// 403: a permission is missing, or an admission plug-in rejected the request.
    Forbidden,
    /// 401: the credentials were rejected, or could not be obtained.
    Unauthorized,
    /// 429: the server throttles the client.
    Throttled,
    /// 410: the resource version or the continue token has expired. List again.
    Gone,
    /// The write gate was closed, and nothing was sent.
    NotLeader,
    /// No response arrived before the deadline. A write may have taken effect.
    Timeout,
    /// The client was shut down while the request waited, and nothing was sent.
    Canceled,
    /// 5xx, or no connection to the server. A write may have taken effect.
    Unavailable,
    /// Any other error.
    Other,
}

impl ApiError {
    /// Creates an error that the client itself detected.
    pub(crate) fn local(
        kind: ApiErrorKind,
        request: RequestInfo,
        message: impl Into<String>,
    ) -> Self {
        let details = ErrorDetails {
            request,
            message: message.into(),
            reason: String::new(),
            code: None,
            retry_after: None,
            source: None,
        };
        Self { kind, details: Box::new(details) }
    }

    /// Sets the source of the error.
    #[must_use]
    pub(crate) fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.details.source = Some(Arc::new(source));
        self
    }

    /// Creates an error from an error response. `json_patch` is true if the request was a JSON
    /// Patch.
    pub(crate) fn from_response(
        request: RequestInfo,
        code: StatusCode,
        status: Status,
        retry_after: Option<Duration>,
        json_patch: bool,
    ) -> Self {
        let retry_after = retry_after
            .or(status.retry_after)
            .map(|after| after.min(MAX_RETRY_AFTER));
        let kind = classify(code, &status, json_patch);
        let details = ErrorDetails {
            request,
            message: status.message,
            reason: status.reason,
            code: Some(code.as_u16()),
            retry_after,
            source: None,
        };
        Self { kind, details: Box::new(details) }
    }

    /// Creates an error for a request without a response.
    pub(crate) fn transport(request: RequestInfo, error: kube::Error) -> Self {
        let (kind, message) = match &error {
            // The gate closed while the request waited for the rate limit.
            kube::Error::Service(inner) if inner.is::<NotLeader>() => {
                return Self::not_leader(request, NotLeader);
            }
            kube::Error::Auth(_) => (ApiErrorKind::Unauthorized, "cannot obtain credentials"),
            _ => (ApiErrorKind::Unavailable, "no answer from the API server"),
        };
        Self::local(kind, request, message).with_source(error)
    }

    /// Creates an error for a request that the closed write gate rejected.
    pub(crate) fn not_leader(request: RequestInfo, error: NotLeader) -> Self {
        Self::local(ApiErrorKind::NotLeader, request, error.to_string())
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> &ApiErrorKind {
        &self.kind
    }

    /// Returns true if the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind == ApiErrorKind::NotFound
    }

    /// Returns true if the object was not in the state that the caller assumed. The caller should
    /// read the object and decide again.
    pub fn is_conflict(&self) -> bool {
        match &self.kind {
            ApiErrorKind::Conflict | ApiErrorKind::TestFailed => true,
            // The response to a patch that contains a UID, if the object of this name has another
            // UID. Observed on Kubernetes 1.36.3, for every kind of patch except JSON Patch.
            ApiErrorKind::Invalid(causes) => {
                !causes.is_empty() && causes.iter().all(|cause| cause.field == "metadata.uid")
            }
            _ => false,
        }
    }

    /// Returns the delay that the server requested before a retry.
    pub fn retry_after(&self) -> Option<Duration> {
        self.details.retry_after
    }

    /// Returns the verb, the resource and the object of the request.
    pub fn request(&self) -> &RequestInfo {
        &self.details.request
    }

    /// Returns the server's machine-readable reason, such as `AlreadyExists` or `Expired`. Empty if
    /// the server gave none.
    pub fn reason(&self) -> &str {
        &self.details.reason
    }

    /// Returns the HTTP status code of the response, or `None` if there was no response.
    pub fn code(&self) -> Option<u16> {
        self.details.code
    }

    /// Returns the server's message, or the client's if there was no response.
    pub fn message(&self) -> &str {
        &self.details.message
    }
}

/// Returns the kind of an error response.
fn classify(code: StatusCode, status: &Status, json_patch: bool) -> ApiErrorKind {
    if status.reason == "Expired" {
        return ApiErrorKind::Gone;
    }
    match code.as_u16() {
        401 => ApiErrorKind::Unauthorized,
        403 => ApiErrorKind::Forbidden,
        404 if status.reason == "NotFound" => ApiErrorKind::NotFound,
        408 => ApiErrorKind::Timeout,
        409 => ApiErrorKind::Conflict,
        410 => ApiErrorKind::Gone,
        422 if json_patch && status.causes.is_empty() => ApiErrorKind::TestFailed,
        422 => ApiErrorKind::Invalid(status.causes.clone()),
        429 => ApiErrorKind::Throttled,
        504 if status.reason == "Timeout" => ApiErrorKind::Timeout,
        // A 404 without a reason comes from a proxy, or from an API server that is still starting.
        404 | 500..=599 => ApiErrorKind::Unavailable,
        _ => ApiErrorKind::Other,
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ErrorDetails { request, message, code, .. } = &*self.details;
        match &self.kind {
            ApiErrorKind::Forbidden => {
                let RequestInfo { verb, group, resource, .. } = request;
                write!(
                    f,
                    "cannot {request}: missing RBAC rule for verb {verb:?} on resource {resource:?} in API group {group:?}"
                )?;
                if message.is_empty() {
                    Ok(())
                } else {
                    write!(f, " (server: {message})")
                }
            }
            ApiErrorKind::Unauthorized => {
                write!(f, "cannot {request}: credentials not accepted")?;
                if message.is_empty() {
                    Ok(())
                } else {
                    write!(f, " ({message})")
                }
            }
            _ => match code {
                Some(code) if message.is_empty() => {
                    write!(f, "cannot {request}: server answered {code}")
                }
                Some(code) => write!(f, "cannot {request}: {message} ({code})"),
                None => write!(f, "cannot {request}: {message}"),
            },
        }
    }
}

impl Error for ApiError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.details
            .source
            .as_deref()
            .map(|e| e as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::runtime::encoding::Encoding;

    fn answered(code: u16, status: Status, json_patch: bool) -> ApiError {
        let request = RequestInfo::from_request(&Method::PATCH, "/api/v1/nodes/a/status");
        ApiError::from_response(
            request,
            StatusCode::from_u16(code).unwrap(),
            status,
            None,
            json_patch,
        )
    }

    #[test]
    fn a_missing_right_names_the_rule() {
        let text = answered(403, Status::default(), false).to_string();
        assert_eq!(
            text,
            "cannot patch nodes/status a: missing RBAC rule for verb \"patch\" on resource \"nodes/status\" in API group \"\""
        );
    }

    #[test]
    fn a_failed_test_is_told_from_a_refusal() {
        let cause = Cause {
            field: "spec".into(),
            reason: "FieldValueInvalid".into(),
            message: "no".into(),
        };
        let refused = Status { causes: vec![cause.clone()], ..Status::default() };
        assert_eq!(answered(422, Status::default(), true).kind, ApiErrorKind::TestFailed);
        assert_eq!(answered(422, refused, true).kind, ApiErrorKind::Invalid(vec![cause]));
        assert_eq!(answered(422, Status::default(), false).kind, ApiErrorKind::Invalid(Vec::new()));
    }

    #[test]
    fn a_refusal_because_of_the_uid_alone_is_a_race() {
        let cause = |field: &str| Cause { field: field.into(), ..Cause::default() };
        let refused = |fields: &[&str]| {
            let causes = fields.iter().map(|field| cause(field)).collect();
            answered(422, Status { causes, ..Status::default() }, false).is_conflict()
        };
        assert!(refused(&["metadata.uid"]) && refused(&["metadata.uid", "metadata.uid"]));
        assert!(
            !refused(&[])
                && !refused(&["metadata.uid", "status.addresses"])
                && !refused(&["spec.podCIDRs"])
        );
    }

    #[test]
    fn only_the_api_server_says_that_something_is_not_there() {
        let of =
            |body: &str| answered(404, Status::from_body(Encoding::Json, body.as_bytes()), false);
        let status = r#"{"kind": "Status", "reason": "NotFound", "message": "nodes \"a\" not found", "code": 404}"#;
        assert!(of(status).is_not_found());
        for body in [
            "404 page not found\n",
            "<html>404</html>",
            "{}",
            r#"{"message": "no Route matched"}"#,
            "",
        ] {
            let error = of(body);
            assert_eq!(error.kind, ApiErrorKind::Unavailable, "{body}");
            assert!(error.to_string().contains("404"), "{error}");
        }
    }

    #[test]
    fn codes_map_to_kinds() {
        let cases = [
            (400, ApiErrorKind::Other),
            (401, ApiErrorKind::Unauthorized),
            (404, ApiErrorKind::Unavailable),
            (409, ApiErrorKind::Conflict),
            (410, ApiErrorKind::Gone),
            (429, ApiErrorKind::Throttled),
            (500, ApiErrorKind::Unavailable),
            (503, ApiErrorKind::Unavailable),
        ];
        for (code, want) in cases {
            assert_eq!(answered(code, Status::default(), false).kind, want, "{code}");
        }
        let expired = Status { reason: "Expired".into(), ..Status::default() };
        assert_eq!(answered(500, expired, false).kind, ApiErrorKind::Gone);
    }
}

//! Errors of REST APIs: error codes, statuses, and the delay that a cloud requests.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use jiff::Timestamp;
use serde_json::Value;

use crate::provider::ErrorKind;

/// The smallest number in a header that is a Unix time. As a delay it would be 31 years.
const MIN_UNIX_TIME: u64 = 1_000_000_000;

/// The error that a cloud reports in a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorResponse {
    /// The kind of the error. If it is `None`, it derives from the HTTP status
    /// ([`ErrorKind::of_status`]).
    pub kind: Option<ErrorKind>,
    /// The cloud's own error message, without secrets.
    pub message: String,
    /// The delay that the cloud requests. If it is `None`, it derives from the header `Retry-After`
    /// or from the one that [`with_reset_header`](super::RestClient::with_reset_header) names.
    pub retry_after: Option<Duration>,
}

/// The format of a cloud's error bodies, with the kinds of its error codes.
///
/// ```
/// # use ccm_core::provider::{ErrorKind, rest::ErrorFormat};
/// /// `{"error": {"code": "locked", "message": "network 7 is busy"}}`
/// const ERRORS: ErrorFormat = ErrorFormat {
///     code: "/error/code",
///     message: "/error/message",
///     kinds: &[
///         ("not_found", ErrorKind::NotFound),
///         ("locked", ErrorKind::Conflict),
///         ("resource_limit_exceeded", ErrorKind::QuotaExceeded),
///     ],
/// };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorFormat {
    /// The JSON pointer (RFC 6901) to the error code, which is a string or an integer. A body
    /// without it is not from the cloud.
    pub code: &'static str,
    /// The JSON pointer to the message.
    pub message: &'static str,
    /// The kinds of error codes. For a code that is not in this table, the kind derives from the
    /// HTTP status ([`ErrorKind::of_status`]).
    ///
    /// [`ErrorKind::NotFound`] applies only to responses with status 404 or 410. Use it only for
    /// codes that mean the requested object itself.
    pub kinds: &'static [(&'static str, ErrorKind)],
}

impl ErrorFormat {
    /// Parses an error response. Returns `None` if it is not from the cloud.
    pub fn parse(&self, response: &Response<Bytes>) -> Option<ErrorResponse> {
        let body: Value = serde_json::from_slice(response.body()).ok()?;
        let code = match body.pointer(self.code)? {
            Value::String(code) => code.clone(),
            Value::Number(code) => code.to_string(),
            _ => return None,
        };
        let message = body.pointer(self.message).and_then(Value::as_str);
        let proves_absence = matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::GONE);
        let kind = self
            .kind_of(&code)
            .filter(|kind| *kind != ErrorKind::NotFound || proves_absence);
        Some(ErrorResponse {
            kind,
            message: message.map_or(code, str::to_owned),
            retry_after: None,
        })
    }

    /// Creates the error of a [long-running operation](super::RestClient::poll) that failed, from
    /// its error code and message. The kind of a code that is not in the table, and of one that
    /// means [`ErrorKind::NotFound`], is `None`.
    pub fn of_code(&self, code: &str, message: &str) -> ErrorResponse {
        let kind = self
            .kind_of(code)
            .filter(|kind| *kind != ErrorKind::NotFound);
        let message = if message.is_empty() { code } else { message };
        ErrorResponse { kind, message: message.to_owned(), retry_after: None }
    }

    fn kind_of(&self, code: &str) -> Option<ErrorKind> {
        let known = self.kinds.iter().find(|(known, _)| *known == code);
        known.map(|(_, kind)| *kind)
    }
}

impl ErrorKind {
    /// Returns the kind of error for an HTTP status, for responses without a more precise error.
    ///
    /// 404 and 410 are [`Transient`](Self::Transient), not [`NotFound`](Self::NotFound). They may
    /// also come from a proxy or mean a wrong path, and absence must be proven. If the body is from
    /// the cloud and says that the object does not exist, an [`ErrorFormat`] or the error parser
    /// returns `NotFound`.
    pub fn of_status(status: u16) -> Self {
        match status {
            400 | 406 | 411 | 413..=417 | 422 => Self::InvalidInput,
            401 | 403 | 407 => Self::Denied,
            402 => Self::QuotaExceeded,
            405 | 501 => Self::NotImplemented,
            409 | 412 | 423 => Self::Conflict,
            429 => Self::Throttled,
            _ => Self::Transient,
        }
    }
}

/// Returns the delay that the headers of an error response request. `Retry-After` takes precedence
/// over `reset_header`. Points in time are compared with the cloud's own clock if the response has
/// a `Date`.
pub(super) fn retry_after(headers: &HeaderMap, reset_header: Option<&str>) -> Option<Duration> {
    let get = |name: &str| headers.get(name)?.to_str().ok();
    let now = get(header::DATE.as_str())
        .and_then(parse_date)
        .unwrap_or_else(Timestamp::now);
    get(header::RETRY_AFTER.as_str())
        .and_then(|text| parse_retry_after(text, now))
        .or_else(|| parse_reset(get(reset_header?)?, now))
}

/// Parses `Retry-After`: seconds, or a date (RFC 9110, 10.2.3). A date in the past means zero.
fn parse_retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    Some(time_until(parse_date(text)?, now))
}

/// Parses the time of a reset: seconds from now, or a Unix time in seconds.
fn parse_reset(text: &str, now: Timestamp) -> Option<Duration> {
    let number: u64 = text.trim().parse().ok()?;
    if number < MIN_UNIX_TIME {
        return Some(Duration::from_secs(number));
    }
    let at = Timestamp::from_second(i64::try_from(number).ok()?).ok()?;
    Some(time_until(at, now))
}

fn parse_date(text: &str) -> Option<Timestamp> {
    Some(jiff::fmt::rfc2822::parse(text.trim()).ok()?.timestamp())
}

/// Returns the time until `at`, or zero if that is in the past.
fn time_until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
#[path = "errors_tests.rs"]
mod tests;

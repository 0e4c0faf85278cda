//! Building HTTP answers.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use tower::BoxError;

use super::Body;
use super::status::ApiError;

/// Returns a JSON answer.
pub(crate) fn json(code: StatusCode, body: Bytes) -> Response<Body> {
    whole(code, "application/json", body)
}

/// Returns a text answer.
pub(crate) fn plain(code: StatusCode, text: &'static str) -> Response<Body> {
    whole(code, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

/// Returns an answer of any type.
pub(crate) fn whole(code: StatusCode, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(
        Full::new(body)
            .map_err(|never| match never {})
            .boxed_unsync(),
    );
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Returns a refusal as a `Status`.
pub(crate) fn refuse(error: &ApiError) -> Response<Body> {
    let mut response = json(error.code, Bytes::from(error.to_value().to_string()));
    if let Some(seconds) = error.retry_after() {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Returns a refusal of priority and fairness, which is plain text.
pub(crate) fn too_many_requests(retry_after: u32) -> Response<Body> {
    let mut response =
        plain(StatusCode::TOO_MANY_REQUESTS, "Too many requests, please try again later.\n");
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from(retry_after));
    response
}

/// Returns the error that makes a connection break.
pub(crate) fn cut() -> BoxError {
    "connection cut by a scripted fault".into()
}

//! Extractors of the handlers.

use std::{convert::Infallible, fmt, sync::Arc};

use crate::api::keystone::AUTH_TOKEN;
use axum::extract::{FromRequest, FromRequestParts, Request};
use http::{StatusCode, header, request::Parts};
use serde::de::DeserializeOwned;

use super::{Cloud, errors::unauthorized};
use crate::{
    keystone,
    state::{ApiError, RequestContext},
};

/// Maximum size of a request's body in bytes.
const BODY_LIMIT: usize = 4 << 20;

/// The request has a valid token, scoped to a project or to the whole cloud.
#[derive(Clone, Debug)]
pub struct Auth(pub RequestContext);

impl FromRequestParts<Arc<Cloud>> for Auth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, cloud: &Arc<Cloud>) -> Result<Self, ApiError> {
        let caller = caller(parts, cloud)?;
        if caller.ctx.project.is_empty() && !caller.ctx.admin {
            return Err(ApiError::forbidden("", "The token is not scoped to a project."));
        }
        Ok(Self(caller.ctx))
    }
}

/// Returns the user of a request, according to the token in the header.
pub(crate) fn caller(parts: &Parts, cloud: &Cloud) -> Result<keystone::RequestUser, ApiError> {
    let token = parts
        .headers
        .get(AUTH_TOKEN)
        .and_then(|value| value.to_str().ok())
        .ok_or_else(unauthorized)?;
    let now = cloud.clock.now();
    // Nobody can know a token whose creation is not on disk yet.
    cloud
        .store
        .peek(|state| keystone::authorize(state, token, now))
        .ok_or_else(unauthorized)
}

/// The body of a request, parsed as JSON.
#[derive(Clone, Debug)]
pub struct Input<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Input<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let bytes = axum::body::to_bytes(request.into_body(), BODY_LIMIT)
            .await
            .map_err(|error| {
                ApiError::new(
                    StatusCode::BAD_REQUEST,
                    "",
                    format!("The body could not be read: {error}"),
                )
            })?;
        serde_json::from_slice(&bytes).map(Self).map_err(|error| {
            ApiError::bad_request("", format!("The body is not what was expected: {error}"))
        })
    }
}

/// Scheme and host by which the client reaches the cloud, such as `http://127.0.0.1:5000`. URLs in
/// answers begin with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(Box<str>);

impl Origin {
    /// Creates one from scheme and host; a slash at the end is removed.
    pub fn new(origin: &str) -> Self {
        Self(origin.trim_end_matches('/').into())
    }

    /// Returns that of a request: `Host`, or the request's URL.
    pub(crate) fn of(parts: &Parts) -> Self {
        let scheme = parts.uri.scheme_str().unwrap_or("http");
        let host = parts
            .headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok());
        let host = host
            .or_else(|| parts.uri.authority().map(http::uri::Authority::as_str))
            .unwrap_or("127.0.0.1");
        Self(format!("{scheme}://{host}").into())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<S: Sync> FromRequestParts<S> for Origin {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(parts
            .extensions
            .get()
            .cloned()
            .unwrap_or_else(|| Self::of(parts)))
    }
}

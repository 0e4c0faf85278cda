//! Microversions.

use std::{fmt, sync::Arc};

use crate::api::nova::{MAX_MICROVERSION, MIN_MICROVERSION};
use axum::{
    extract::{FromRequestParts, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};

use crate::{server::Cloud, state::ApiError};

/// Header of all services.
const HEADER: &str = "openstack-api-version";
/// Header of compute only.
const OLD_HEADER: &str = "x-openstack-nova-api-version";

/// Microversion of a request: the minor number of 2.x.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Microversion(pub u16);

impl Microversion {
    /// The lowest, which is also used when none is requested.
    pub const MIN: Self = Self(MIN_MICROVERSION.1);
    /// Highest.
    pub const MAX: Self = Self(MAX_MICROVERSION.1);

    /// Parses the headers.
    ///
    /// # Errors
    /// 400 for an invalid version, 406 for one beyond `highest`.
    pub fn read(headers: &HeaderMap, highest: Self) -> Result<Self, ApiError> {
        let text = |name| {
            headers
                .get(name)
                .and_then(|value: &HeaderValue| value.to_str().ok())
                .map(str::trim)
        };
        let new = text(HEADER).and_then(|value| {
            value
                .split(',')
                .find_map(|part| part.trim().strip_prefix("compute ").map(str::trim))
        });
        let Some(asked) = new.or_else(|| text(OLD_HEADER)) else {
            return Ok(Self::MIN);
        };
        if asked == "latest" {
            return Ok(highest);
        }
        let parts = asked.split_once('.').and_then(|(major, minor)| {
            Some((
                major.parse::<u16>().ok()?,
                minor
                    .parse::<u16>()
                    .ok()
                    .filter(|_| !minor.starts_with('+'))?,
            ))
        });
        match parts {
            None => Err(ApiError::bad_request(
                "",
                format!(
                    "API Version String {asked} is of invalid format. Must be of format MajorNum.MinorNum."
                ),
            )),
            Some((2, minor)) if (Self::MIN.0..=highest.0).contains(&minor) => Ok(Self(minor)),
            Some((major, minor)) => Err(ApiError::new(
                StatusCode::NOT_ACCEPTABLE,
                "",
                format!(
                    "Version {major}.{minor} is not supported by the API. Minimum is {} and maximum is {highest}.",
                    Self::MIN
                ),
            )),
        }
    }
}

impl fmt::Display for Microversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "2.{}", self.0)
    }
}

/// Returns the highest version that a cloud supports.
pub(super) fn highest(cloud: &Cloud) -> Microversion {
    Microversion(
        cloud
            .settings()
            .nova_minor
            .clamp(Microversion::MIN.0, Microversion::MAX.0),
    )
}

impl FromRequestParts<Arc<Cloud>> for Microversion {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, cloud: &Arc<Cloud>) -> Result<Self, ApiError> {
        Self::read(&parts.headers, highest(cloud))
    }
}

/// Rejects unsupported versions, and adds the version to each answer.
pub(super) async fn layer(
    State(cloud): State<Arc<Cloud>>,
    request: Request,
    next: Next,
) -> Response {
    let version = match Microversion::read(request.headers(), highest(&cloud)) {
        Ok(version) => version,
        Err(error) => return error.into_response(),
    };
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [(HEADER, format!("compute {version}")), (OLD_HEADER, version.to_string())]
    {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
        headers.append(header::VARY, HeaderValue::from_static(name));
    }
    response
}

//! Selects the `[ServiceOverride]` section for a client.

use crate::config::{OverriddenService, ServiceOverride, Settings};

/// Endpoint of a client, and what its requests are signed for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointOverride {
    /// Endpoint.
    pub(super) url: String,
    /// Region of the signature.
    pub(super) region: String,
    /// Service of the signature; `None` for the service's own.
    pub(super) name: Option<String>,
}

/// Returns the override for a service in a region. Without one the SDK decides: by
/// `AWS_ENDPOINT_URL_<SERVICE>`, by `AWS_ENDPOINT_URL`, or by its own table.
pub(super) fn endpoint_override(
    settings: &Settings,
    service: &OverriddenService,
    region: &str,
) -> Option<EndpointOverride> {
    let found = settings
        .overrides
        .iter()
        .find(|section| section.service == *service && *section.region == *region)?;
    let or = |text: &str, other: &str| {
        if text.is_empty() {
            other.to_owned()
        } else {
            text.to_owned()
        }
    };
    Some(EndpointOverride {
        url: found.url.clone().into(),
        region: or(&found.signing_region, region),
        name: found
            .signing_name
            .as_ref()
            .filter(|name| !name.is_empty())
            .map(|name| name.clone().into()),
    })
}

/// Returns the endpoint of the metadata service, whatever region its section names.
pub(super) fn metadata(settings: &Settings) -> Option<&str> {
    let is_metadata = |section: &&ServiceOverride| section.service == OverriddenService::Imds;
    settings
        .overrides
        .iter()
        .find(is_metadata)
        .map(|section| &*section.url)
}

//! Selects the `[ServiceOverride]` section for a client.

use crate::config::{OverriddenService, ServiceOverride, Settings};

/// Endpoint of a client, with region and service for which its requests are signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointOverride {
    /// URL of the endpoint.
    pub(super) url: String,
    /// Region for which requests are signed.
    pub(super) region: String,
    /// Service for which requests are signed; `None` for the client's own service.
    pub(super) name: Option<String>,
}

/// Returns the override for a service in a region. Without an override, the SDK uses
/// `AWS_ENDPOINT_URL_<SERVICE>`, `AWS_ENDPOINT_URL`, or its own table.
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

/// Returns the endpoint of the metadata service. The region of its section is ignored.
pub(super) fn metadata(settings: &Settings) -> Option<&str> {
    let is_metadata = |section: &&ServiceOverride| section.service == OverriddenService::Imds;
    settings
        .overrides
        .iter()
        .find(is_metadata)
        .map(|section| &*section.url)
}

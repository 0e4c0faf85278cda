//! What the service offers: versions, provider drivers, flavors, availability zones.

use crate::api::octavia::{
    AvailabilityZone, Flavor, FlavorProfile, Link, Provider, Version, Versions,
};

use super::{
    error::{disabled_option, validation},
    rows::{AvailabilityZoneRow, FlavorProfileRow, FlavorRow},
    settings::{Driver, Settings},
};
use crate::state::{ApiError, CloudState, new_id};

/// When each minor version was introduced, from 2.0 on.
const UPDATED: [&str; 31] = [
    "2016-12-11T00:00:00Z",
    "2018-04-20T00:00:00Z",
    "2018-07-31T00:00:00Z",
    "2018-12-18T00:00:00Z",
    "2018-12-19T00:00:00Z",
    "2019-01-21T00:00:00Z",
    "2019-01-25T00:00:00Z",
    "2018-01-25T12:00:00Z",
    "2019-02-12T00:00:00Z",
    "2019-03-04T00:00:00Z",
    "2019-03-05T00:00:00Z",
    "2019-06-24T00:00:00Z",
    "2019-09-11T00:00:00Z",
    "2019-09-13T00:00:00Z",
    "2019-11-10T00:00:00Z",
    "2020-03-10T00:00:00Z",
    "2020-03-15T00:00:00Z",
    "2020-04-29T00:00:00Z",
    "2020-04-29T01:00:00Z",
    "2020-05-12T00:00:00Z",
    "2020-08-02T00:00:00Z",
    "2020-09-03T00:00:00Z",
    "2020-09-04T00:00:00Z",
    "2020-09-07T00:00:00Z",
    "2020-10-15T00:00:00Z",
    "2021-10-02T00:00:00Z",
    "2022-08-29T00:00:00Z",
    "2023-05-05T00:00:00Z",
    "2023-11-08T00:00:00Z",
    "2024-10-15T00:00:00Z",
    "2025-02-26T00:00:00Z",
];

/// Returns the root document, up to the newest version that is offered. `base`: URL of the service,
/// without a slash at its end.
pub fn versions(state: &CloudState, base: &str) -> Versions {
    let newest = usize::from(Settings::of(state).newest_minor).min(UPDATED.len() - 1);
    let version = |(minor, updated): (usize, &&str)| Version {
        id: format!("v2.{minor}"),
        status: if minor == newest {
            "CURRENT"
        } else {
            "SUPPORTED"
        }
        .to_owned(),
        updated: (*updated).to_owned(),
        links: vec![Link { href: format!("{base}/v2"), rel: "self".to_owned() }],
    };
    Versions {
        versions: UPDATED
            .iter()
            .take(newest + 1)
            .enumerate()
            .map(|(minor, at)| version((minor, at)))
            .collect(),
    }
}

/// Returns the provider drivers.
pub fn providers(state: &CloudState) -> Vec<Provider> {
    let described = |(name, driver): (String, Driver)| {
        let description = match (name.as_str(), driver) {
            ("octavia", _) => "Deprecated alias of the Octavia Amphora driver.",
            (_, Driver::Amphora) => "The Octavia Amphora driver.",
            (_, Driver::Ovn) => "Octavia OVN driver.",
        };
        Provider { name, description: description.to_owned() }
    };
    Settings::of(state)
        .providers
        .into_iter()
        .map(described)
        .collect()
}

/// Adds a flavor of a provider, with a profile for it. Returns its ID.
pub fn put_flavor(state: &mut CloudState, name: &str, provider: &str, enabled: bool) -> String {
    let profile = FlavorProfile {
        id: new_id(),
        name: name.to_owned(),
        provider_name: provider.to_owned(),
        flavor_data: "{}".to_owned(),
    };
    let flavor = Flavor {
        id: new_id(),
        name: name.to_owned(),
        description: String::new(),
        enabled,
        flavor_profile_id: Some(profile.id.clone()),
    };
    let id = flavor.id.clone();
    state.octavia.flavor_profiles.put(FlavorProfileRow(profile));
    state.octavia.flavors.put(FlavorRow(flavor));
    id
}

/// Adds an availability zone.
pub fn put_availability_zone(state: &mut CloudState, name: &str, enabled: bool) {
    let zone = AvailabilityZone {
        name: name.to_owned(),
        description: String::new(),
        enabled,
        availability_zone_profile_id: None,
    };
    state
        .octavia
        .availability_zones
        .put(AvailabilityZoneRow(zone));
}

/// Returns the provider of a flavor that may be used.
pub(super) fn provider_of_flavor(state: &CloudState, id: &str) -> Result<String, ApiError> {
    let Some(flavor) = state.octavia.flavors.get(id) else {
        return Err(validation("Invalid flavor_id."));
    };
    if !flavor.0.enabled {
        return Err(disabled_option("flavor", id));
    }
    let profile = flavor
        .0
        .flavor_profile_id
        .as_ref()
        .and_then(|id| state.octavia.flavor_profiles.get(id));
    profile
        .map(|row| row.0.provider_name.clone())
        .ok_or_else(|| validation("Invalid flavor_id."))
}

/// Checks that an availability zone may be used.
pub(super) fn check_availability_zone(state: &CloudState, name: &str) -> Result<(), ApiError> {
    match state.octavia.availability_zones.get(name) {
        None => Err(validation("Invalid availability zone.")),
        Some(zone) if !zone.0.enabled => Err(disabled_option("availability_zone", name)),
        Some(_) => Ok(()),
    }
}

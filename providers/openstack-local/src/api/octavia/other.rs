use serde::{Deserialize, Serialize};

use super::{Link, Patch, envelopes, or_default};

/// Root document: versions of the API, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Versions.
    pub versions: Vec<Version>,
}

impl Versions {
    /// Returns what the last entry says, as clients take it: major and minor number, such as `(2,
    /// 26)`.
    pub fn newest(&self) -> Option<(u16, u16)> {
        let (major, minor) = self
            .versions
            .last()?
            .id
            .strip_prefix('v')?
            .split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }
}

/// A version of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Such as `v2.26`.
    pub id: String,
    /// `CURRENT` (the newest) or `SUPPORTED`.
    #[serde(default)]
    pub status: String,
    /// Time of the release.
    #[serde(default)]
    pub updated: String,
    /// Links to the object.
    #[serde(default)]
    pub links: Vec<Link>,
}

envelopes!(provider: ProviderBody, providers: Providers, providers_links of Provider);

/// Provider driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provider {
    /// Name, such as `amphora`.
    pub name: String,
    /// Description.
    #[serde(default, deserialize_with = "or_default")]
    pub description: String,
}

envelopes!(flavor: FlavorBody, flavors: Flavors, flavors_links of Flavor);

/// Flavor, from 2.6.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flavor {
    /// Identifier.
    pub id: String,
    /// Name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Description.
    #[serde(default, deserialize_with = "or_default")]
    pub description: String,
    /// May be used.
    #[serde(default)]
    pub enabled: bool,
    /// Profile.
    #[serde(default)]
    pub flavor_profile_id: Option<String>,
}

envelopes!(flavorprofile: FlavorProfileBody, flavorprofiles: FlavorProfiles, flavorprofiles_links of FlavorProfile);

/// Flavor profile: what a flavor means to a provider driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlavorProfile {
    /// Identifier.
    pub id: String,
    /// Name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Provider driver.
    #[serde(default, deserialize_with = "or_default")]
    pub provider_name: String,
    /// JSON text that the driver reads.
    #[serde(default, deserialize_with = "or_default")]
    pub flavor_data: String,
}

envelopes!(
    availability_zone: AvailabilityZoneBody,
    availability_zones: AvailabilityZones,
    availability_zones_links of AvailabilityZone
);

/// Availability zone, from 2.14.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvailabilityZone {
    /// Name, which is also its identifier.
    pub name: String,
    /// Description.
    #[serde(default, deserialize_with = "or_default")]
    pub description: String,
    /// May be used.
    #[serde(default)]
    pub enabled: bool,
    /// Profile.
    #[serde(default)]
    pub availability_zone_profile_id: Option<String>,
}

envelopes!(
    availability_zone_profile: AvailabilityZoneProfileBody,
    availability_zone_profiles: AvailabilityZoneProfiles,
    availability_zone_profiles_links of AvailabilityZoneProfile
);

/// Availability zone profile: what an availability zone means to a provider driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvailabilityZoneProfile {
    /// Identifier.
    pub id: String,
    /// Name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Provider driver.
    #[serde(default, deserialize_with = "or_default")]
    pub provider_name: String,
    /// JSON text that the driver reads.
    #[serde(default, deserialize_with = "or_default")]
    pub availability_zone_data: String,
}

envelopes!(quota: QuotaBody, quotas: Quotas, quotas_links of Quota);

/// Quotas of a project: -1 for no limit, null for the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quota {
    /// Project; absent where the path names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Load balancers.
    pub loadbalancer: Option<i64>,
    /// Load balancers; old spelling.
    pub load_balancer: Option<i64>,
    /// Listeners.
    pub listener: Option<i64>,
    /// Members.
    pub member: Option<i64>,
    /// Pools.
    pub pool: Option<i64>,
    /// Health monitors.
    pub healthmonitor: Option<i64>,
    /// Health monitors; old spelling.
    pub health_monitor: Option<i64>,
    /// Rules by content.
    pub l7policy: Option<i64>,
    /// Conditions of rules.
    pub l7rule: Option<i64>,
}

/// Change of a quota; null is back to the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuotaUpdate {
    /// Load balancers.
    #[serde(alias = "load_balancer", skip_serializing_if = "Patch::is_keep")]
    pub loadbalancer: Patch<i64>,
    /// Listeners.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub listener: Patch<i64>,
    /// Members.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub member: Patch<i64>,
    /// Pools.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub pool: Patch<i64>,
    /// Health monitors.
    #[serde(alias = "health_monitor", skip_serializing_if = "Patch::is_keep")]
    pub healthmonitor: Patch<i64>,
    /// Rules by content.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub l7policy: Patch<i64>,
    /// Conditions of rules.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub l7rule: Patch<i64>,
}

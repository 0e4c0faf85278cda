//! Flavors and availability zones, which an administrator offers to the users of load balancers,
//! and their profiles, which contain settings for a provider driver. The data of a profile is
//! stored and has no effect: all load balancers here are the same.

use crate::api::octavia::{AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    error::{conflict, forbidden, no_such, not_found, validation},
    provider_driver::Provider,
    rows::{AvailabilityZoneProfileRow, AvailabilityZoneRow, FlavorProfileRow, FlavorRow},
    settings::Settings,
};
use crate::state::{ApiError, CloudState, RequestContext, new_id};

const FLAVOR: &str = "Flavor";
const FLAVOR_PROFILE: &str = "Flavor Profile";
const ZONE: &str = "Availability Zone";
const ZONE_PROFILE: &str = "Availability Zone Profile";

fn administrator(ctx: &RequestContext) -> Result<(), ApiError> {
    if ctx.admin { Ok(()) } else { Err(forbidden()) }
}

fn in_use(kind: &str, id: &str) -> ApiError {
    conflict(format!("{kind} {id} is in use and cannot be modified."))
}

fn already_there(kind: &str, name: &str) -> ApiError {
    conflict(format!("A {kind} of {name} already exists."))
}

/// Checks a profile: its provider must exist, and its data must be a JSON object.
fn check_profile(
    state: &CloudState,
    provider: &str,
    field: &str,
    data: &str,
) -> Result<(), ApiError> {
    Provider::find(&Settings::of(state), Some(provider))?;
    match serde_json::from_str::<Map<String, Value>>(data) {
        Ok(_) => Ok(()),
        Err(error) => Err(validation(format_args!("{field} must be an object of JSON: {error}"))),
    }
}

/// A flavor or zone to create; the schema has checked that required attributes are present.
#[derive(Debug, Deserialize)]
pub struct OfferCreate {
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    enabled: Option<bool>,
    #[serde(alias = "flavor_profile_id", alias = "availability_zone_profile_id")]
    profile: String,
}

/// Change of a flavor or zone.
#[derive(Debug, Deserialize)]
pub struct OfferUpdate {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    enabled: Option<bool>,
}

/// A profile to create.
#[derive(Debug, Deserialize)]
pub struct ProfileCreate {
    name: String,
    provider_name: String,
    #[serde(alias = "flavor_data", alias = "availability_zone_data")]
    data: String,
}

/// Change of a profile.
#[derive(Debug, Deserialize)]
pub struct ProfileUpdate {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    provider_name: Option<String>,
    #[serde(default, alias = "flavor_data", alias = "availability_zone_data")]
    data: Option<String>,
}

/// Defines the functions of a kind of profile. `$users` is the table that refers to it.
macro_rules! profiles {
    ($(#[$doc:meta])* $module:ident, $table:ident, $row:ident, $body:ident, $data:ident, $kind:ident, $users:ident, $reference:ident) => {
        $(#[$doc])*
        pub mod $module {
            use super::*;

            /// Returns all.
            pub fn list(state: &CloudState, _: &RequestContext) -> Vec<$body> {
                state.octavia.$table.iter().map(|row| row.0.clone()).collect()
            }

            /// Returns one.
            ///
            /// # Errors
            /// 404.
            pub fn show(state: &CloudState, _: &RequestContext, id: &str) -> Result<$body, ApiError> {
                state.octavia.$table.get(id).map(|row| row.0.clone()).ok_or_else(|| not_found($kind, id))
            }

            /// Creates one.
            ///
            /// # Errors
            /// 400 for an unknown provider or data that is no JSON, 403 unless the user is an
            /// administrator.
            pub fn create(state: &mut CloudState, ctx: &RequestContext, create: ProfileCreate) -> Result<$body, ApiError> {
                administrator(ctx)?;
                check_profile(state, &create.provider_name, stringify!($data), &create.data)?;
                let ProfileCreate { name, provider_name, data } = create;
                let made = $body { id: new_id(), name, provider_name, $data: data };
                state.octavia.$table.put($row(made.clone()));
                Ok(made)
            }

            /// Changes one.
            ///
            /// # Errors
            /// As for creation; 404; 409 when more than the name changes and something refers to
            /// the profile.
            pub fn update(state: &mut CloudState, ctx: &RequestContext, id: &str, update: ProfileUpdate) -> Result<$body, ApiError> {
                administrator(ctx)?;
                let mut body = show(state, ctx, id)?;
                let same = update.provider_name.as_ref().is_none_or(|given| *given == body.provider_name)
                    && update.data.as_ref().is_none_or(|given| *given == body.$data);
                if !same && is_used(state, id) {
                    return Err(in_use($kind, id));
                }
                body.name = update.name.unwrap_or(body.name);
                body.provider_name = update.provider_name.unwrap_or(body.provider_name);
                body.$data = update.data.unwrap_or(body.$data);
                check_profile(state, &body.provider_name, stringify!($data), &body.$data)?;
                state.octavia.$table.put($row(body.clone()));
                Ok(body)
            }

            /// Deletes one.
            ///
            /// # Errors
            /// 403 unless the user is an administrator; 404; 409 when something refers to it.
            pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
                administrator(ctx)?;
                show(state, ctx, id)?;
                if is_used(state, id) {
                    return Err(in_use($kind, id));
                }
                state.octavia.$table.remove(id);
                Ok(())
            }

            fn is_used(state: &CloudState, id: &str) -> bool {
                state.octavia.$users.iter().any(|row| row.0.$reference.as_deref() == Some(id))
            }
        }
    };
}

profiles! {
    /// Profiles of flavors.
    flavor_profiles, flavor_profiles, FlavorProfileRow, FlavorProfile, flavor_data, FLAVOR_PROFILE, flavors, flavor_profile_id
}
profiles! {
    /// Profiles of availability zones.
    zone_profiles, zone_profiles, AvailabilityZoneProfileRow, AvailabilityZoneProfile, availability_zone_data, ZONE_PROFILE,
    availability_zones, availability_zone_profile_id
}

/// Flavors.
pub mod flavors {
    use super::{
        ApiError, CloudState, FLAVOR, FLAVOR_PROFILE, Flavor, FlavorRow, OfferCreate, OfferUpdate,
        RequestContext, administrator, already_there, in_use, new_id, no_such, not_found,
    };

    /// Returns all.
    pub fn list(state: &CloudState, _: &RequestContext) -> Vec<Flavor> {
        state
            .octavia
            .flavors
            .iter()
            .map(|row| row.0.clone())
            .collect()
    }

    /// Returns one.
    ///
    /// # Errors
    /// 404.
    pub fn show(state: &CloudState, _: &RequestContext, id: &str) -> Result<Flavor, ApiError> {
        state
            .octavia
            .flavors
            .get(id)
            .map(|row| row.0.clone())
            .ok_or_else(|| not_found(FLAVOR, id))
    }

    /// Creates one.
    ///
    /// # Errors
    /// 400 without its profile, 403 unless the user is an administrator, 409 when the name is
    /// taken.
    pub fn create(
        state: &mut CloudState,
        ctx: &RequestContext,
        create: OfferCreate,
    ) -> Result<Flavor, ApiError> {
        administrator(ctx)?;
        if state.octavia.flavor_profiles.get(&create.profile).is_none() {
            return Err(no_such(FLAVOR_PROFILE, &create.profile));
        }
        check_name(state, &create.name, "")?;
        let flavor = Flavor {
            id: new_id(),
            name: create.name,
            description: create.description.unwrap_or_default(),
            enabled: create.enabled.unwrap_or(true),
            flavor_profile_id: Some(create.profile),
        };
        state.octavia.flavors.put(FlavorRow(flavor.clone()));
        Ok(flavor)
    }

    /// Changes one.
    ///
    /// # Errors
    /// 403 unless the user is an administrator; 404; 409 when another has that name.
    pub fn update(
        state: &mut CloudState,
        ctx: &RequestContext,
        id: &str,
        update: OfferUpdate,
    ) -> Result<Flavor, ApiError> {
        administrator(ctx)?;
        let mut body = show(state, ctx, id)?;
        body.name = update.name.unwrap_or(body.name);
        check_name(state, &body.name, id)?;
        body.description = update.description.unwrap_or(body.description);
        body.enabled = update.enabled.unwrap_or(body.enabled);
        state.octavia.flavors.put(FlavorRow(body.clone()));
        Ok(body)
    }

    /// Deletes one.
    ///
    /// # Errors
    /// 403 unless the user is an administrator; 404; 409 when a load balancer has it.
    pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
        administrator(ctx)?;
        show(state, ctx, id)?;
        if state
            .octavia
            .load_balancers
            .iter()
            .any(|row| row.body.flavor_id.as_deref() == Some(id))
        {
            return Err(in_use(FLAVOR, id));
        }
        state.octavia.flavors.remove(id);
        Ok(())
    }

    /// Checks that no other flavor has the name.
    fn check_name(state: &CloudState, name: &str, own: &str) -> Result<(), ApiError> {
        let taken = state
            .octavia
            .flavors
            .iter()
            .any(|row| row.0.name == name && row.0.id != own);
        if taken {
            Err(already_there("flavor", name))
        } else {
            Ok(())
        }
    }
}

/// Availability zones, which are identified by their names.
pub mod zones {
    use super::{
        ApiError, AvailabilityZone, AvailabilityZoneRow, CloudState, OfferCreate, OfferUpdate,
        RequestContext, ZONE, ZONE_PROFILE, administrator, already_there, in_use, no_such,
        not_found,
    };

    /// Returns all.
    pub fn list(state: &CloudState, _: &RequestContext) -> Vec<AvailabilityZone> {
        state
            .octavia
            .availability_zones
            .iter()
            .map(|row| row.0.clone())
            .collect()
    }

    /// Returns one.
    ///
    /// # Errors
    /// 404.
    pub fn show(
        state: &CloudState,
        _: &RequestContext,
        name: &str,
    ) -> Result<AvailabilityZone, ApiError> {
        state
            .octavia
            .availability_zones
            .get(name)
            .map(|row| row.0.clone())
            .ok_or_else(|| not_found(ZONE, name))
    }

    /// Creates one.
    ///
    /// # Errors
    /// 400 without its profile, 403 unless the user is an administrator, 409 when the name is
    /// taken.
    pub fn create(
        state: &mut CloudState,
        ctx: &RequestContext,
        create: OfferCreate,
    ) -> Result<AvailabilityZone, ApiError> {
        administrator(ctx)?;
        if state.octavia.zone_profiles.get(&create.profile).is_none() {
            return Err(no_such(ZONE_PROFILE, &create.profile));
        }
        if state.octavia.availability_zones.get(&create.name).is_some() {
            return Err(already_there("availability zone", &create.name));
        }
        let zone = AvailabilityZone {
            name: create.name,
            description: create.description.unwrap_or_default(),
            enabled: create.enabled.unwrap_or(true),
            availability_zone_profile_id: Some(create.profile),
        };
        state
            .octavia
            .availability_zones
            .put(AvailabilityZoneRow(zone.clone()));
        Ok(zone)
    }

    /// Changes one; its name stays.
    ///
    /// # Errors
    /// 403 unless the user is an administrator; 404.
    pub fn update(
        state: &mut CloudState,
        ctx: &RequestContext,
        name: &str,
        update: OfferUpdate,
    ) -> Result<AvailabilityZone, ApiError> {
        administrator(ctx)?;
        let mut body = show(state, ctx, name)?;
        body.description = update.description.unwrap_or(body.description);
        body.enabled = update.enabled.unwrap_or(body.enabled);
        state
            .octavia
            .availability_zones
            .put(AvailabilityZoneRow(body.clone()));
        Ok(body)
    }

    /// Deletes one.
    ///
    /// # Errors
    /// 403 unless the user is an administrator; 404; 409 when a load balancer is in it.
    pub fn delete(
        state: &mut CloudState,
        ctx: &RequestContext,
        name: &str,
    ) -> Result<(), ApiError> {
        administrator(ctx)?;
        show(state, ctx, name)?;
        if state
            .octavia
            .load_balancers
            .iter()
            .any(|row| row.body.availability_zone.as_deref() == Some(name))
        {
            return Err(in_use(ZONE, name));
        }
        state.octavia.availability_zones.remove(name);
        Ok(())
    }
}

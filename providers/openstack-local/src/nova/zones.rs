//! Availability zones.

use crate::api::nova::{AvailabilityZone, ZoneState};
use serde_json::json;

use super::ZoneRow;
use crate::state::CloudState;

/// The zone that always exists.
pub const DEFAULT: &str = "nova";

/// Returns all zones; with details, their hosts as well.
pub fn list(state: &CloudState, details: bool) -> Vec<AvailabilityZone> {
    let default = ZoneRow { name: DEFAULT.to_owned(), available: true };
    let others = state.nova.zones.iter().map(|zone| ZoneRow::clone(zone));
    let zones = std::iter::once(default).chain(others.filter(|zone| zone.name != DEFAULT));
    zones
        .map(|zone| {
            let service = json!({"nova-compute": {"available": zone.available, "active": true, "updated_at": null}});
            let hosts = details.then(|| json!({ host(&zone.name): service }));
            AvailabilityZone { state: ZoneState { available: zone.available }, name: zone.name, hosts }
        })
        .collect()
}

/// Returns the one host of a zone.
pub fn host(zone: &str) -> String {
    format!("compute-{zone}")
}

/// Returns whether a zone accepts servers.
pub fn is_available(state: &CloudState, zone: &str) -> bool {
    zone == DEFAULT
        || state
            .nova
            .zones
            .get(zone)
            .is_some_and(|zone| zone.available)
}

/// Adds a zone.
pub fn add(state: &mut CloudState, name: &str) {
    state
        .nova
        .zones
        .put(ZoneRow { name: name.to_owned(), available: true });
}

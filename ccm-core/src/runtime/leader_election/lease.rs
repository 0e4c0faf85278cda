//! The Lease as the elector uses it: the record that decides, and the object around it, which is
//! written back unchanged.
//!
//! Times are kept as text. Decisions use only local observation, so the clock of the holder, its
//! time zone or a malformed time has no effect. It only matters whether the text changed.

use jiff::Timestamp;
use kube::core::{ApiResource, DynamicObject};
use serde_json::{Map, Value, json};

/// The fields of a Lease's spec that leader election reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseRecord {
    /// `holderIdentity`; empty when the Lease is free.
    pub(super) holder: String,
    /// `leaseDurationSeconds`; `None` when absent or not a positive number.
    pub(super) duration_seconds: Option<u32>,
    /// `acquireTime`, as the holder wrote it.
    pub(super) acquire_time: Option<String>,
    /// `renewTime`, as the holder wrote it.
    pub(super) renew_time: Option<String>,
    /// `leaseTransitions`; 0 when absent or malformed.
    pub(super) transitions: i32,
}

impl LeaseRecord {
    /// Reads the record leniently: a missing or malformed field becomes empty, and the other fields
    /// are still used.
    pub(super) fn read(lease: &DynamicObject) -> Self {
        let spec = &lease.data["spec"];
        let seconds = spec["leaseDurationSeconds"].as_i64().filter(|s| *s > 0);
        Self {
            holder: spec["holderIdentity"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            duration_seconds: seconds.map(|s| {
                u32::try_from(s)
                    .unwrap_or(u32::MAX)
                    .min(i32::MAX.cast_unsigned())
            }),
            acquire_time: time_text(&spec["acquireTime"]),
            renew_time: time_text(&spec["renewTime"]),
            transitions: spec["leaseTransitions"]
                .as_i64()
                .and_then(|n| i32::try_from(n).ok())
                .unwrap_or(0)
                .max(0),
        }
    }

    /// Writes the record as client-go does: with every field, and with nothing else in the spec.
    pub(super) fn write(&self, lease: &mut DynamicObject) {
        let spec = json!({
            "holderIdentity": self.holder,
            "leaseDurationSeconds": self.duration_seconds,
            "acquireTime": self.acquire_time,
            "renewTime": self.renew_time,
            "leaseTransitions": self.transitions,
        });
        match &mut lease.data {
            Value::Object(data) => {
                data.insert("spec".to_owned(), spec);
            }
            data => *data = Value::Object(Map::from_iter([("spec".to_owned(), spec)])),
        }
    }
}

/// Formats a time as `metav1.MicroTime` does: in UTC, always with six fractional digits.
pub(super) fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// Returns a time as it is written, even if its form is wrong; `None` if it is absent.
fn time_text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Returns the resource for kube's dynamic API.
pub(super) fn api_resource() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::coordination::v1::Lease>(&())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(spec: &Value) -> DynamicObject {
        DynamicObject::new("l", &api_resource()).data(json!({ "spec": spec }))
    }

    #[test]
    fn times_have_six_digits_and_utc() {
        let cases = [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_500_000_000, "1970-01-01T00:00:01.500000Z"),
            (1_000_001_999, "1970-01-01T00:00:01.000001Z"),
        ];
        for (nanos, want) in cases {
            assert_eq!(micro_time(Timestamp::from_nanosecond(nanos).unwrap()), want);
        }
    }

    #[test]
    fn a_record_survives_writing_and_reading() {
        let record = LeaseRecord {
            holder: "a_1".into(),
            duration_seconds: Some(15),
            acquire_time: Some("2026-01-01T00:00:00.000000Z".into()),
            renew_time: Some("2026-01-01T00:00:02.000000Z".into()),
            transitions: 3,
        };
        let mut object = lease(&json!({"preferredHolder": "b"}));
        record.write(&mut object);
        assert_eq!(LeaseRecord::read(&object), record);
        assert_eq!(object.data["spec"].as_object().unwrap().len(), 5);
    }

    #[test]
    fn malformed_fields_read_as_absent() {
        let cases = [
            (json!(null), LeaseRecord::default()),
            (json!([1]), LeaseRecord::default()),
            (json!({"holderIdentity": null, "leaseDurationSeconds": -4}), LeaseRecord::default()),
            (
                json!({"holderIdentity": "x", "leaseDurationSeconds": "15", "renewTime": 7, "leaseTransitions": -1}),
                LeaseRecord {
                    holder: "x".into(),
                    renew_time: Some("7".into()),
                    ..LeaseRecord::default()
                },
            ),
            (
                json!({"holderIdentity": "x", "leaseDurationSeconds": u64::MAX >> 1, "leaseTransitions": 1e30}),
                LeaseRecord {
                    holder: "x".into(),
                    duration_seconds: Some(2_147_483_647),
                    ..LeaseRecord::default()
                },
            ),
        ];
        for (spec, want) in cases {
            assert_eq!(LeaseRecord::read(&lease(&spec)), want, "{spec}");
        }
    }
}

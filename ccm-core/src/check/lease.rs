//! The check of the Lease of leader election.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;

use super::{Area, Finding};

/// The part of a Lease that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Lease {
    spec: LeaseSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeaseSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u64>,
    renew_time: Option<Timestamp>,
}

/// Says who leads.
pub(crate) fn check(name: &str, lease: Option<&Lease>, now: Timestamp) -> Finding {
    let Some(spec) = lease.map(|lease| &lease.spec) else {
        return Finding::ok(Area::Leader, format!("Lease {name} does not exist: no manager ran"));
    };
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder.is_empty() {
        return Finding::ok(Area::Leader, format!("Lease {name} is free"));
    }
    let duration = Duration::from_secs(spec.lease_duration_seconds.unwrap_or_default());
    let age = spec
        .renew_time
        .and_then(|renewed| Duration::try_from(now.duration_since(renewed)).ok())
        .unwrap_or_default();
    if age > duration {
        let message = format!(
            "Lease {name} of {holder} was not renewed for {} s: no manager runs, or the clocks differ",
            age.as_secs()
        );
        return Finding::ok(Area::Leader, message);
    }
    Finding::ok(Area::Leader, format!("{holder} leads, by Lease {name}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_lease_tells_who_leads() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let spec = |holder: &str, renewed: &str| {
            json!({"spec": {
                "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed
            }})
        };
        let cases = [
            (json!({}), "is free"),
            (spec("", "2026-01-01T00:00:59Z"), "is free"),
            (spec("a_1", "2026-01-01T00:00:50.5Z"), "a_1 leads, by Lease kube-system/x"),
            (spec("a_1", "2026-01-01T00:00:10Z"), "of a_1 was not renewed for 50 s"),
            (spec("a_1", "2026-01-01T00:01:10Z"), "a_1 leads"),
        ];
        for (lease, expected) in cases {
            let lease = serde_json::from_value(lease).unwrap();
            let finding = check("kube-system/x", Some(&lease), now);
            assert!(finding.message.contains(expected), "{expected}: {}", finding.message);
        }
        assert!(
            check("kube-system/x", None, now)
                .message
                .contains("does not exist")
        );
    }
}

//! The checks of Leases: of leader election, and of other managers.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;

use super::{
    Area, ClusterFinding, Finding,
    managers::{self, IMAGE_SUFFIX, ManagerPod},
};

/// The default lock of a leader migration. Other locks of managers are named like their images.
const MIGRATION_LOCK: &str = "cloud-provider-extraction-migration";

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

impl Lease {
    fn holder(&self) -> Option<&str> {
        let holder = self.spec.holder_identity.as_deref();
        holder.filter(|holder| !holder.is_empty())
    }

    /// Returns the time since the last renewal, if the Lease has expired.
    fn expired_since(&self, now: Timestamp) -> Option<Duration> {
        let spec = &self.spec;
        let duration = Duration::from_secs(spec.lease_duration_seconds.unwrap_or_default());
        let age = spec
            .renew_time
            .and_then(|renewed| Duration::try_from(now.duration_since(renewed)).ok())
            .unwrap_or_default();
        (age > duration).then_some(age)
    }

    /// Returns the identity that holds the Lease now.
    pub(crate) fn live_holder(&self, now: Timestamp) -> Option<&str> {
        self.holder().filter(|_| self.expired_since(now).is_none())
    }
}

/// Says who leads. `others` are the pods of other managers.
pub(crate) fn check(
    name: &str,
    lease: Option<&Lease>,
    others: &[ManagerPod],
    now: Timestamp,
) -> Finding {
    let Some(lease) = lease else {
        return Finding::ok(Area::Leader, format!("Lease {name} does not exist: no manager ran"));
    };
    let Some(holder) = lease.holder() else {
        return Finding::ok(Area::Leader, format!("Lease {name} is free"));
    };
    if let Some(age) = lease.expired_since(now) {
        let message = format!(
            "Lease {name} of {holder} was not renewed for {} s: no manager runs, or the clocks differ",
            age.as_secs()
        );
        return Finding::ok(Area::Leader, message);
    }
    let message = format!("{holder} leads, by Lease {name}");
    match managers::pod_of(holder, others) {
        Some(pod) => ClusterFinding::LeaseHeldByAnother
            .about(format!("pod {}", pod.name), format!("{message}: another manager")),
        None => Finding::ok(Area::Leader, message),
    }
}

/// Reports Leases of other managers that are held now, given all Leases of the namespace with their
/// names. `own` are the names that this process uses.
pub(crate) fn check_others(
    leases: &[(String, Lease)],
    own: &[String],
    now: Timestamp,
) -> Vec<Finding> {
    let is_other = |name: &String| {
        !own.contains(name) && (name.ends_with(IMAGE_SUFFIX) || name == MIGRATION_LOCK)
    };
    let others = leases.iter().filter(|(name, _)| is_other(name));
    others
        .filter_map(|(name, lease)| {
            let holder = lease.live_holder(now)?;
            let message = format!("{holder} holds Lease {name}, which this manager does not use");
            Some(ClusterFinding::OtherLease.about(format!("Lease {name}"), message))
        })
        .collect()
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
            let finding = check("kube-system/x", Some(&lease), &[], now);
            assert!(finding.message.contains(expected), "{expected}: {}", finding.message);
        }
        assert!(
            check("kube-system/x", None, &[], now)
                .message
                .contains("does not exist")
        );
    }

    #[test]
    fn only_live_leases_of_managers_count() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let lease = |name: &str, renewed: &str| {
            let spec =
                json!({"holderIdentity": "h_1", "leaseDurationSeconds": 15, "renewTime": renewed});
            (name.to_owned(), serde_json::from_value(json!({"spec": spec})).unwrap())
        };
        let fresh = "2026-01-01T00:00:55Z";
        let leases = [
            lease("cloud-controller-manager", fresh),
            lease("openstack-cloud-controller-manager", fresh),
            lease(MIGRATION_LOCK, "2026-01-01T00:00:05Z"),
            lease("kube-scheduler", fresh),
        ];
        let own = ["cloud-controller-manager".to_owned()];
        let found = check_others(&leases, &own, now);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].object, "Lease openstack-cloud-controller-manager");
    }
}

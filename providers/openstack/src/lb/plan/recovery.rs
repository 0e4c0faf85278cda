//! Plans the recovery of a load balancer in ERROR. Pure.

use jiff::Timestamp;
use openstack_api::octavia::OperatingStatus;

use crate::{
    api::{neutron::FloatingIp, octavia::LoadBalancer},
    lb::{
        features::Driver,
        ownership::{ServiceOwnership, created_at},
    },
};

/// A load balancer in ERROR, and what is known of its Service.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryInput<'a> {
    /// The load balancer.
    pub load_balancer: &'a LoadBalancer,
    /// Relation of the Service to the load balancer.
    pub ownership: &'a ServiceOwnership,
    /// True when the Service's status or annotations show an address.
    pub was_served: bool,
    /// Description of the load balancers that are created for the Service.
    pub description: &'a str,
    /// True when Octavia supports tags.
    pub tags: bool,
    /// Creation time of the Service.
    pub service_created: Timestamp,
    /// True when this process created the load balancer.
    pub is_own_creation: bool,
    /// Floating IPs on the port of the load balancer's VIP, as far as they were read.
    pub floating_ips: &'a [FloatingIp],
    /// Whether it may be failed over.
    pub failover: FailoverInput,
}

/// What decides, besides the load balancer itself, whether it may be failed over.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailoverInput {
    /// Setting `failover-on-error`.
    pub is_enabled: bool,
    /// True when Octavia did not allow the last attempt, and the next one is not due.
    pub was_denied: bool,
    /// True when it was failed over, and the next time is not due.
    pub is_recent: bool,
}

/// What is done with a load balancer in ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// It is deleted, and the next sync creates it again: it was created for this Service and has
    /// never served.
    Replace,
    /// It is failed over.
    FailOver,
    /// The Service that owns it recovers it.
    LeaveToOwner,
    /// It is only reported.
    Keep(KeepReason),
}

/// The reason why a load balancer in ERROR is neither deleted nor failed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// Octavia reports that it serves.
    Serves,
    /// It is not certain that it does not serve.
    MayServe,
    /// It was in use, so it is not one whose creation failed.
    HasServed,
    /// Its description or its tags are not those of the Service.
    OtherOwner,
    /// It may be older than the Service.
    MayBeOlder,
    /// Its driver has no failover.
    NoFailover,
    /// Failover is not enabled.
    FailoverDisabled,
    /// Octavia does not allow this user to fail it over.
    FailoverDenied,
    /// It was failed over not long ago.
    FailedOver,
}

impl KeepReason {
    /// Describes the reason and the next step for a load balancer, as the end of an error message.
    pub fn describe(self, id: &str) -> String {
        let command = format!("\"openstack loadbalancer failover {id}\"");
        let reason = match self {
            Self::Serves => {
                return format!(
                    "Octavia reports that it serves, so it is neither deleted nor failed over; an administrator can fail it over, with {command}"
                );
            }
            Self::NoFailover => {
                return "its driver has no failover, so an administrator has to repair it"
                    .to_owned();
            }
            Self::FailoverDisabled => {
                return format!(
                    "an administrator can fail it over, with {command}; failover-on-error in [LoadBalancer] of cloud.conf lets the cloud controller manager do it"
                );
            }
            Self::FailoverDenied => {
                return format!(
                    "Octavia does not allow this user to fail it over; an administrator can, with {command}"
                );
            }
            Self::FailedOver => {
                return "it was failed over less than half an hour ago".to_owned();
            }
            Self::HasServed => "it seems to have served",
            Self::MayServe => "its operating status does not show that it does not serve",
            Self::OtherOwner => {
                "its description and tags are not those of this Service and cluster"
            }
            Self::MayBeOlder => "it is not shown to be newer than the Service",
        };
        format!(
            "it is not deleted, because {reason}; delete it if no other cluster uses it, and it is created again"
        )
    }
}

/// Returns true if a load balancer forwards traffic, whatever its provisioning status.
pub fn is_serving(load_balancer: &LoadBalancer) -> bool {
    matches!(load_balancer.operating_status, OperatingStatus::Online | OperatingStatus::Degraded)
}

/// Plans what is done with a load balancer in ERROR.
///
/// Its name alone is no reason to delete it: another cluster of the same name has the same names.
pub fn plan_recovery(input: &RecoveryInput<'_>) -> Recovery {
    let RecoveryInput { load_balancer, ownership, .. } = *input;
    if !ownership.owner && !ownership.is_orphaned_by_owner(load_balancer) {
        return Recovery::LeaveToOwner;
    }
    if is_serving(load_balancer) {
        return Recovery::Keep(KeepReason::Serves);
    }
    let has_other_tags = ownership.other_service_tags(load_balancer).next().is_some();
    if input.was_served || has_other_tags || !ownership.owner {
        return plan_failover(load_balancer, input.failover);
    }
    let is_down =
        matches!(load_balancer.operating_status, OperatingStatus::Offline | OperatingStatus::Error);
    if !is_down {
        return Recovery::Keep(KeepReason::MayServe);
    }
    let has_own_tag = load_balancer
        .tags
        .iter()
        .any(|tag| ownership.is_own_tag(tag));
    if load_balancer.description != input.description || (input.tags && !has_own_tag) {
        return Recovery::Keep(KeepReason::OtherOwner);
    }
    let is_newer = created_at(load_balancer).is_some_and(|at| at >= input.service_created);
    if !is_newer && !input.is_own_creation {
        return Recovery::Keep(KeepReason::MayBeOlder);
    }
    if !input.is_own_creation && has_served(input) {
        return Recovery::Keep(KeepReason::HasServed);
    }
    Recovery::Replace
}

/// Plans whether a load balancer in ERROR that is not deleted is failed over.
pub fn plan_failover(load_balancer: &LoadBalancer, input: FailoverInput) -> Recovery {
    let reason = if is_serving(load_balancer) {
        KeepReason::Serves
    } else if Driver::parse(&load_balancer.provider).is_ovn() {
        KeepReason::NoFailover
    } else if !input.is_enabled {
        KeepReason::FailoverDisabled
    } else if input.was_denied {
        KeepReason::FailoverDenied
    } else if input.is_recent {
        KeepReason::FailedOver
    } else {
        return Recovery::FailOver;
    };
    Recovery::Keep(reason)
}

/// Returns true if a load balancer was in use: it has a floating IP, or its operating status was
/// reported. A failed creation leaves OFFLINE, except with `ovn`.
fn has_served(input: &RecoveryInput<'_>) -> bool {
    let RecoveryInput { load_balancer, floating_ips, .. } = *input;
    let is_reported = load_balancer.operating_status == OperatingStatus::Error;
    !floating_ips.is_empty() || (is_reported && load_balancer.provider != "ovn")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lb::{model::ServiceKey, names, ownership::service_ownership};

    const NAME: &str = "kube_service_c1_ns_web";

    /// A load balancer whose creation failed.
    fn failed() -> LoadBalancer {
        serde_json::from_value(json!({
            "id": "lb", "name": NAME, "tags": [NAME],
            "description": "Kubernetes external service ns/web from cluster c1",
            "provisioning_status": "ERROR", "operating_status": "OFFLINE",
            "created_at": "2026-01-02T03:04:05",
        }))
        .unwrap()
    }

    fn plan(load_balancer: &LoadBalancer, change: impl FnOnce(&mut RecoveryInput<'_>)) -> Recovery {
        let service = ServiceKey { namespace: "ns".into(), name: "web".into(), uid: "u".into() };
        let ownership = service_ownership("c1", &service, false, load_balancer);
        let description = names::description("c1", "ns", "web");
        let mut input = RecoveryInput {
            load_balancer,
            ownership: &ownership,
            was_served: false,
            description: &description,
            tags: true,
            service_created: "2026-01-02T03:04:05Z".parse().unwrap(),
            is_own_creation: false,
            floating_ips: &[],
            failover: FailoverInput { is_enabled: true, ..FailoverInput::default() },
        };
        change(&mut input);
        plan_recovery(&input)
    }

    #[test]
    fn only_what_the_creation_of_the_service_made_is_replaced() {
        type Change = fn(&mut LoadBalancer);
        let keep = Recovery::Keep;
        let cases: [(&str, Change, Recovery); 16] = [
            ("created for it", |_| {}, Recovery::Replace),
            (
                "reported as down",
                |lb| lb.operating_status = "ERROR".into(),
                keep(KeepReason::HasServed),
            ),
            (
                "failed with ovn",
                |lb| (lb.operating_status, lb.provider) = ("ERROR".into(), "ovn".into()),
                Recovery::Replace,
            ),
            ("online", |lb| lb.operating_status = "ONLINE".into(), keep(KeepReason::Serves)),
            ("degraded", |lb| lb.operating_status = "DEGRADED".into(), keep(KeepReason::Serves)),
            ("draining", |lb| lb.operating_status = "DRAINING".into(), keep(KeepReason::MayServe)),
            ("unknown word", |lb| lb.operating_status = "NEW".into(), keep(KeepReason::MayServe)),
            (
                "older than the Service",
                |lb| lb.created_at = Some("2026-01-02T03:04:04".into()),
                keep(KeepReason::MayBeOlder),
            ),
            ("without a time", |lb| lb.created_at = None, keep(KeepReason::MayBeOlder)),
            (
                "with an unreadable time",
                |lb| lb.created_at = Some("yesterday".into()),
                keep(KeepReason::MayBeOlder),
            ),
            ("without a tag", |lb| lb.tags.clear(), keep(KeepReason::OtherOwner)),
            ("without a description", |lb| lb.description.clear(), keep(KeepReason::OtherOwner)),
            (
                "described by another cluster",
                |lb| lb.description = names::description("c2", "ns", "web").into(),
                keep(KeepReason::OtherOwner),
            ),
            ("shared", |lb| lb.tags.push("kube_service_c1_ns_other".into()), Recovery::FailOver),
            (
                "another Service's",
                |lb| lb.name = "kube_service_c1_ns_other".into(),
                Recovery::FailOver,
            ),
            (
                "another Service's, which is not deleted",
                |lb| {
                    lb.name = "kube_service_c1_ns_other".into();
                    lb.tags.push(lb.name.clone());
                },
                Recovery::LeaveToOwner,
            ),
        ];
        for (what, change, expected) in cases {
            let mut load_balancer = failed();
            change(&mut load_balancer);
            assert_eq!(plan(&load_balancer, |_| {}), expected, "{what}");
        }
    }

    #[test]
    fn what_is_known_of_the_service_decides_too() {
        assert_eq!(plan(&failed(), |input| input.was_served = true), Recovery::FailOver);
        let mut untagged = failed();
        untagged.tags.clear();
        assert_eq!(plan(&untagged, |input| input.tags = false), Recovery::Replace);
        // The clocks of the cloud and of the API server may differ.
        let mut older = failed();
        older.created_at = Some("2026-01-02T03:04:03".into());
        assert_eq!(plan(&older, |input| input.is_own_creation = true), Recovery::Replace);
        let floating_ips: &'static [_] = vec![FloatingIp::default()].leak();
        let in_use = plan(&failed(), |input| input.floating_ips = floating_ips);
        assert_eq!(in_use, Recovery::Keep(KeepReason::HasServed));
        older.operating_status = OperatingStatus::Error;
        let created = plan(&older, |input| {
            (input.floating_ips, input.is_own_creation) = (floating_ips, true);
        });
        assert_eq!(created, Recovery::Replace);
        let mut serving = failed();
        serving.operating_status = OperatingStatus::Online;
        let served = plan(&serving, |input| input.was_served = true);
        assert_eq!(served, Recovery::Keep(KeepReason::Serves));
        let created = plan(&serving, |input| input.is_own_creation = true);
        assert_eq!(created, Recovery::Keep(KeepReason::Serves));
    }

    #[test]
    fn what_is_not_failed_over_has_a_reason() {
        let enabled = FailoverInput { is_enabled: true, ..FailoverInput::default() };
        let cases = [
            ("", "ERROR", enabled, Recovery::FailOver),
            ("amphora", "OFFLINE", enabled, Recovery::FailOver),
            ("ovn", "ERROR", enabled, Recovery::Keep(KeepReason::NoFailover)),
            ("amphora", "ONLINE", enabled, Recovery::Keep(KeepReason::Serves)),
            ("amphora", "DEGRADED", enabled, Recovery::Keep(KeepReason::Serves)),
            (
                "amphora",
                "ERROR",
                FailoverInput::default(),
                Recovery::Keep(KeepReason::FailoverDisabled),
            ),
            (
                "amphora",
                "ERROR",
                FailoverInput { was_denied: true, ..enabled },
                Recovery::Keep(KeepReason::FailoverDenied),
            ),
            (
                "amphora",
                "ERROR",
                FailoverInput { is_recent: true, ..enabled },
                Recovery::Keep(KeepReason::FailedOver),
            ),
        ];
        for (driver, status, input, expected) in cases {
            let mut load_balancer = failed();
            load_balancer.provider = driver.into();
            load_balancer.operating_status = status.into();
            assert_eq!(
                plan_failover(&load_balancer, input),
                expected,
                "{driver} {status} {input:?}"
            );
            // The same holds for one of a Service that was served.
            let recovery = plan(&load_balancer, |recovery| {
                (recovery.was_served, recovery.failover) = (true, input);
            });
            assert_eq!(recovery, expected, "{driver} {status} {input:?}");
        }
    }
}

//! Replaces the settings that existing objects keep ([`UpdateScope`]) by the observed ones, so that the
//! rest of the plan finds no difference there.

use std::borrow::Cow;

use super::target_groups::TargetGroupPairing;
use crate::{
    api::elb::HealthCheck,
    lb::{
        model::{DesiredListener, DesiredLoadBalancer, SubnetChoice, UpdateScope},
        observe::observed::{ObservedListener, ObservedLoadBalancer, ObservedState},
    },
};

/// Returns the desired state with the settings that existing objects keep.
pub(super) fn merge<'a>(
    desired: &'a DesiredLoadBalancer,
    observed: &ObservedState,
) -> Cow<'a, DesiredLoadBalancer> {
    let Some(load_balancer) = &observed.load_balancer else {
        return Cow::Borrowed(desired);
    };
    if desired.updates == UpdateScope::All {
        return Cow::Borrowed(desired);
    }
    let mut merged = desired.clone();
    keep_load_balancer(&mut merged, load_balancer);
    // Then the health checks of the target groups that stay, in the order of the listeners.
    let pairing = TargetGroupPairing::new(desired, observed);
    for (listener, pair) in merged.listeners.iter_mut().zip(&pairing.pairs) {
        let group = pair.observed_group();
        if let Some(current) = group.and_then(|group| group.resource.health_check.as_ref()) {
            keep_health_check(&mut listener.target_group.health_check, current);
        }
        if let Some(existing) = observed.listener(listener.key()) {
            keep_certificates(listener, existing);
        }
    }
    Cow::Owned(merged)
}

fn keep_load_balancer(desired: &mut DesiredLoadBalancer, observed: &ObservedLoadBalancer) {
    let current = &observed.resource;
    desired.scheme = current.scheme.unwrap_or(desired.scheme);
    desired.ip_address_type = current.ip_address_type.unwrap_or(desired.ip_address_type);
    desired.ipv6_source_nat = None;
    desired.source_nat_prefixes.clear();
    desired.capacity_units = None;
    desired.subnets = SubnetChoice::Discover;
    desired.allocations.clear();
    desired.private_ipv4.clear();
    desired.ipv6.clear();
}

/// Upstream replaces a target group if protocol or interval of its health check change. Otherwise it
/// never sends the timeout, and both thresholds only if the healthy one changes.
fn keep_health_check(desired: &mut HealthCheck, current: &HealthCheck) {
    if desired.protocol != current.protocol || desired.interval != current.interval {
        return;
    }
    desired.timeout = current.timeout;
    if desired.healthy == current.healthy {
        desired.unhealthy = current.unhealthy;
    }
}

fn keep_certificates(listener: &mut DesiredListener, observed: &ObservedListener) {
    let (Some(tls), Some(existing)) = (&mut listener.tls, &observed.certificates) else {
        return;
    };
    tls.certificates.truncate(1);
    let others = existing
        .iter()
        .filter(|certificate| tls.certificates.first() != Some(*certificate));
    let others: Vec<_> = others.cloned().collect();
    tls.certificates.extend(others);
}

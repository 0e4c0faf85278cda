//! Computes the desired targets of a Service.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ccm_core::k8s::{EndpointSliceView, IpFamily, NodeView, TaintEffect};
use ipnet::IpNet;

use crate::api::{InstanceId, elb::Target};
use crate::lb::model::{DesiredListener, DesiredLoadBalancer, Targets};

/// Taint of nodes that Karpenter is about to remove.
const DISRUPTED_TAINT: &str = "karpenter.sh/disrupted";

/// Returns true if a node may get traffic. A node that Karpenter is about to remove may not.
pub(in crate::lb) fn accepts_traffic(node: &NodeView) -> bool {
    !node
        .taints
        .iter()
        .any(|taint| &*taint.key == DISRUPTED_TAINT && taint.effect == TaintEffect::NoSchedule)
}

/// Makes each instance a target of each listener's target group.
pub(in crate::lb) fn instance_targets(
    desired: &DesiredLoadBalancer,
    instances: &BTreeSet<InstanceId>,
) -> Targets {
    let mut targets = Targets::new();
    for listener in &desired.listeners {
        let port = listener.target_group.port.get();
        let listener_targets = instances
            .iter()
            .map(|id| Target { id: id.as_str().into(), port, zone: None })
            .collect();
        targets.insert(listener.key(), listener_targets);
    }
    targets
}

/// Makes each ready endpoint a target of its port's target group. An address outside the VPC gets
/// the zone `all`.
pub(in crate::lb) fn ip_targets(
    desired: &DesiredLoadBalancer,
    slices: &[Arc<EndpointSliceView>],
    vpc: &[IpNet],
) -> Targets {
    let mut targets = Targets::new();
    for listener in &desired.listeners {
        let listener_targets = slices
            .iter()
            .flat_map(|slice| slice_targets(listener, slice, vpc))
            .collect::<BTreeSet<_>>();
        targets.insert(listener.key(), listener_targets.into_iter().collect());
    }
    targets
}

/// Returns the targets of a listener in one EndpointSlice.
fn slice_targets(
    listener: &DesiredListener,
    slice: &EndpointSliceView,
    vpc: &[IpNet],
) -> Vec<Target> {
    let group = &listener.target_group;
    let (name, protocol) = &group.service_port;
    let mut targets = Vec::new();
    for slice_port in &slice.ports {
        let Some(port) = slice_port.port else {
            continue;
        };
        if slice_port.name != *name || slice_port.protocol != *protocol {
            continue;
        }
        for endpoint in &slice.endpoints {
            if !endpoint.ready || endpoint.terminating {
                continue;
            }
            for address in &endpoint.addresses {
                if family(address) == group.family {
                    targets.push(ip_target(address, port.get(), vpc));
                }
            }
        }
    }
    targets
}

fn ip_target(address: &IpAddr, port: u16, vpc: &[IpNet]) -> Target {
    let is_inside_vpc = vpc.iter().any(|network| network.contains(address));
    Target {
        id: address.to_string().into(),
        port,
        zone: if is_inside_vpc {
            None
        } else {
            Some("all".into())
        },
    }
}

fn family(address: &IpAddr) -> IpFamily {
    match address {
        IpAddr::V4(_) => IpFamily::V4,
        IpAddr::V6(_) => IpFamily::V6,
    }
}

#[cfg(test)]
#[path = "desired_tests.rs"]
mod tests;

//! The desired targets of a Service. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ccm_core::k8s::{EndpointSliceView, IpFamily, NodeView, TaintEffect};
use ipnet::IpNet;

use crate::api::{InstanceId, elb::Target};
use crate::lb::model::{DesiredListener, DesiredLoadBalancer, Targets};

/// Taint of nodes that Karpenter is about to remove.
const DISRUPTED: &str = "karpenter.sh/disrupted";

/// Tells whether a node may get traffic, which one that Karpenter is about to remove may not.
pub(in crate::lb) fn accepts_traffic(node: &NodeView) -> bool {
    !node
        .taints
        .iter()
        .any(|taint| &*taint.key == DISRUPTED && taint.effect == TaintEffect::NoSchedule)
}

/// Makes each instance a target of each listener's target group.
pub(in crate::lb) fn instance_targets(
    desired: &DesiredLoadBalancer,
    instances: &BTreeSet<InstanceId>,
) -> Targets {
    let targets = |listener: &DesiredListener| {
        let port = listener.target_group.port.get();
        instances
            .iter()
            .map(|id| Target { id: id.as_str().into(), port, zone: None })
            .collect()
    };
    desired
        .listeners
        .iter()
        .map(|listener| ((listener.port, listener.protocol), targets(listener)))
        .collect()
}

/// Makes each ready endpoint a target of its port's target group. An address outside the VPC gets
/// the zone `all`.
pub(in crate::lb) fn ip_targets(
    desired: &DesiredLoadBalancer,
    slices: &[Arc<EndpointSliceView>],
    vpc: &[IpNet],
) -> Targets {
    let mut targets = BTreeMap::new();
    for listener in &desired.listeners {
        let group = &listener.target_group;
        let (name, protocol) = &group.service_port;
        let mut found = BTreeSet::new();
        for slice in slices {
            let ports = slice
                .ports
                .iter()
                .filter(|port| port.name == *name && port.protocol == *protocol);
            for port in ports.filter_map(|port| port.port) {
                let ready = slice
                    .endpoints
                    .iter()
                    .filter(|endpoint| endpoint.ready && !endpoint.terminating);
                let addresses = ready.flat_map(|endpoint| &endpoint.addresses);
                let addresses = addresses.filter(|address| family(address) == group.family);
                found.extend(
                    addresses.map(|address| Target {
                        id: address.to_string().into(),
                        port: port.get(),
                        zone: (!vpc.iter().any(|network| network.contains(address)))
                            .then(|| "all".into()),
                    }),
                );
            }
        }
        targets.insert((listener.port, listener.protocol), found.into_iter().collect());
    }
    targets
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

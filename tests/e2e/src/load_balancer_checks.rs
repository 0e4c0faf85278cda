//! Judges whether a cloud holds exactly the load balancers that Services ask for.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::k8s::well_known::{LABEL_EXCLUDE_FROM_LOAD_BALANCERS, TAINT_TO_BE_DELETED};
use ccm_mock::cloud::{LoadBalancer, LoadBalancerState, Members, NodeMember};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::ResourceExt as _;

use crate::watcher::{
    Nodes, Services, has_finalizer, ingress_addresses, is_tainted, label, provider_id,
    wants_balancer,
};

/// Says what differs between the cloud and what these Services and nodes ask for; of each Service
/// the first.
pub fn differences(
    services: &Services,
    nodes: &Nodes,
    balancers: &[LoadBalancer],
) -> Result<(), String> {
    let members = members(nodes);
    let by_uid: BTreeMap<&str, &LoadBalancer> =
        balancers.iter().map(|b| (b.uid.as_str(), b)).collect();
    let mut wrong: Vec<String> = Vec::new();
    if by_uid.len() < balancers.len() {
        wrong.push("a Service has two load balancers".to_owned());
    }
    let mut wanted = BTreeSet::new();
    for (name, service) in services {
        let uid = service.uid().unwrap_or_default();
        let judged = if wants_balancer(service) {
            let judged = by_uid
                .get(&*uid)
                .ok_or_else(|| "no load balancer".to_owned());
            judged.and_then(|balancer| served(service, balancer, &members))
        } else {
            unserved(service)
        };
        wrong.extend(judged.err().map(|why| format!("{name}: {why}")));
        if wants_balancer(service) {
            wanted.insert(uid);
        }
    }
    let surplus = balancers
        .iter()
        .filter(|balancer| !wanted.contains(&balancer.uid));
    wrong.extend(
        surplus.map(|balancer| format!("{}: its load balancer is left over", balancer.service)),
    );
    match wrong.first() {
        None => Ok(()),
        Some(first) => Err(format!("{first} (and {} more)", wrong.len() - 1)),
    }
}

/// Members of every balancer that takes all nodes.
pub fn members(nodes: &Nodes) -> Members {
    let backends = nodes.values().filter(|node| is_backend(node));
    let member = |node: &std::sync::Arc<Node>| NodeMember {
        name: node.name_any().into(),
        provider_id: provider_id(node).map(Into::into),
    };
    Members::Nodes(backends.map(member).collect()).sorted()
}

fn is_backend(node: &Node) -> bool {
    let excluded =
        label(node, LABEL_EXCLUDE_FROM_LOAD_BALANCERS).is_some_and(|value| value != "false");
    !excluded
        && node.metadata.deletion_timestamp.is_none()
        && !is_tainted(node, TAINT_TO_BE_DELETED)
}

/// Judges a Service that wants a balancer and has this one.
fn served(service: &Service, balancer: &LoadBalancer, members: &Members) -> Result<(), String> {
    let wrong = |what: &str, have: &dyn std::fmt::Debug| Err(format!("{what}: {have:?}"));
    if balancer.state != LoadBalancerState::Active {
        return wrong("state", &balancer.state);
    }
    let listeners: Vec<_> = balancer
        .settings
        .listeners
        .iter()
        .map(|l| {
            (
                format!("{:?}", l.protocol).to_uppercase(),
                i32::from(l.port),
                l.node_port.map(i32::from),
            )
        })
        .collect();
    if listeners != ports(service) {
        return Err(format!("listeners {listeners:?} instead of {:?}", ports(service)));
    }
    if balancer.members != *members {
        let (have, want) = (balancer.members.node_names(), members.node_names());
        let surplus: Vec<_> = have.iter().filter(|name| !want.contains(name)).collect();
        let missing: Vec<_> = want.iter().filter(|name| !have.contains(name)).collect();
        return Err(format!(
            "members: {surplus:?} too many, {missing:?} missing, or other provider IDs"
        ));
    }
    let addresses: Vec<_> = balancer.addresses.iter().map(ToString::to_string).collect();
    if ingress_addresses(service) != addresses {
        return Err(format!("status {:?} instead of {addresses:?}", ingress_addresses(service)));
    }
    if has_finalizer(service) {
        Ok(())
    } else {
        Err("it lacks the finalizer".to_owned())
    }
}

/// Judges a Service that wants none, or goes.
fn unserved(service: &Service) -> Result<(), String> {
    if service.metadata.deletion_timestamp.is_some() {
        return Err(format!("it still goes; finalizers {:?}", service.finalizers()));
    }
    match (has_finalizer(service), ingress_addresses(service)) {
        (false, addresses) if addresses.is_empty() => Ok(()),
        (finalizer, addresses) => {
            Err(format!("not released: finalizer {finalizer}, addresses {addresses:?}"))
        }
    }
}

/// Protocol, port and node port of each port.
fn ports(service: &Service) -> Vec<(String, i32, Option<i32>)> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let port = |port: &k8s_openapi::api::core::v1::ServicePort| {
        (port.protocol.clone().unwrap_or_default(), port.port, port.node_port)
    };
    ports.into_iter().flatten().map(port).collect()
}

#[cfg(test)]
mod tests;

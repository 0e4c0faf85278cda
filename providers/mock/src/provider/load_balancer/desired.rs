//! What a Service asks for, in the cloud's words.

use std::net::{IpAddr, SocketAddr};

use ccm_core::{
    k8s::{EndpointSliceView, ServiceView, SessionAffinity},
    provider::{Backends, CloudError, FieldError, LbSpec, SourceRanges},
};

use super::{super::Settings, annotations::Options};
use crate::cloud::{
    EndpointMember, Family, Listener, LoadBalancerKey, LoadBalancerSettings, LoadBalancerSpec, Members, NodeMember,
};

/// Returns the name of a Service's balancer: upstream's default, `a` and the UID without dashes, at most 32 characters.
/// The UID does not fit in whole, so that the owner is compared too.
pub(super) fn balancer_name(uid: &str) -> String {
    std::iter::once('a').chain(uid.chars().filter(|c| *c != '-')).take(32).collect()
}

/// Returns the settings of a Service's balancer.
///
/// # Errors
/// Every mistake of the Service.
pub(super) fn settings(
    service: &ServiceView,
    options: &Options,
    sources: &SourceRanges,
) -> Result<LoadBalancerSettings, Vec<FieldError>> {
    let mut mistakes = Vec::new();
    if service.ports.is_empty() {
        mistakes.push(FieldError::new("spec.ports", "is empty"));
    }
    let source_ranges = match sources {
        SourceRanges::Unset => Vec::new(),
        // No source at all is not "everybody", which is what an empty list says to the cloud.
        SourceRanges::Only(ranges) if ranges.is_empty() => {
            mistakes.push(FieldError::new("spec.loadBalancerSourceRanges", "admits no client"));
            Vec::new()
        }
        SourceRanges::Only(ranges) => ranges.clone(),
    };
    let families: Vec<Family> = service.ip_families.iter().map(|family| Family::from(*family)).collect();
    let requested = service.load_balancer_ip.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let requested_address = requested.and_then(|text| match text.parse::<IpAddr>() {
        Ok(address) if families.is_empty() || families.contains(&Family::of(address)) => Some(address),
        Ok(_) => {
            let message = format!("{text:?} is of no family of spec.ipFamilies");
            mistakes.push(FieldError::new("spec.loadBalancerIP", message));
            None
        }
        Err(_) => {
            mistakes.push(FieldError::new("spec.loadBalancerIP", format!("{text:?} is no IP address")));
            None
        }
    });
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let listener = |port: &ccm_core::k8s::ServicePort| Listener {
        protocol: port.protocol.into(),
        port: port.port.get(),
        node_port: port.node_port.map(Into::into),
    };
    Ok(LoadBalancerSettings {
        listeners: service.ports.iter().map(listener).collect(),
        source_ranges,
        health_check_node_port: service.health_check_node_port.map(Into::into),
        affinity_seconds: match service.session_affinity {
            SessionAffinity::None => None,
            SessionAffinity::ClientIp(timeout) => Some(timeout.as_secs()),
        },
        families,
        requested_address,
        internal: options.internal,
    })
}

/// Names a Service's balancer.
pub(super) fn key(cluster: &str, uid: &str, namespace: &str, name: &str) -> LoadBalancerKey {
    LoadBalancerKey {
        cluster: cluster.to_owned(),
        uid: uid.to_owned(),
        name: balancer_name(uid),
        service: format!("{namespace}/{name}"),
    }
}

/// Returns the key of the balancer of a description.
pub(super) fn key_of(want: &LbSpec) -> LoadBalancerKey {
    key(&want.cluster, &want.service.uid, &want.service.namespace, &want.service.name)
}

/// Puts a whole description in the cloud's words.
///
/// # Errors
/// The mistakes of the Service as one error; the framework does not ask for a Service that has any.
pub(super) fn spec(want: &LbSpec, provider: &Settings) -> Result<LoadBalancerSpec, CloudError> {
    let service = &want.service;
    let invalid = |mistakes: Vec<FieldError>| {
        let mistakes: Vec<_> = mistakes.iter().map(|m| format!("{}: {}", m.field, m.message)).collect();
        let name = format!("{}/{}", service.namespace, service.name);
        CloudError::invalid_input(format!("service {name}: {}", mistakes.join("; ")))
    };
    if service.uid.is_empty() {
        return Err(invalid(vec![FieldError::new("metadata.uid", "is empty")]));
    }
    let (options, mistakes) = Options::parse(service, provider);
    if !mistakes.is_empty() {
        return Err(invalid(mistakes));
    }
    let settings = settings(service, &options, &want.sources).map_err(invalid)?;
    Ok(LoadBalancerSpec { key: key_of(want), settings, members: members(want), activation: options.activation })
}

/// Returns the members of a description.
pub(super) fn members(want: &LbSpec) -> Members {
    match &want.backends {
        Backends::Nodes(nodes) => Members::Nodes(
            nodes
                .iter()
                .map(|node| NodeMember { name: node.name.clone(), provider_id: node.provider_id.clone() })
                .collect(),
        ),
        Backends::Endpoints(slices) => {
            Members::Endpoints(slices.iter().flat_map(|slice| endpoints(&want.service, slice)).collect())
        }
    }
    .sorted()
}

/// Returns the ready endpoints of a slice, for each port of the Service that it serves.
fn endpoints(service: &ServiceView, slice: &EndpointSliceView) -> Vec<EndpointMember> {
    let mut members = Vec::new();
    for slice_port in &slice.ports {
        let same =
            |port: &&ccm_core::k8s::ServicePort| port.name == slice_port.name && port.protocol == slice_port.protocol;
        let (Some(target), Some(port)) = (slice_port.port, service.ports.iter().find(same)) else { continue };
        for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.ready) {
            members.extend(endpoint.addresses.iter().map(|address| EndpointMember {
                address: SocketAddr::new(*address, target.get()),
                protocol: port.protocol.into(),
                listener: port.port.get(),
            }));
        }
    }
    members
}

//! Translates a Service to the desired state of its load balancer, in the types of the cloud's API.

use std::net::{IpAddr, SocketAddr};

use ccm_core::{
    k8s::{EndpointSliceView, ServiceView, SessionAffinity},
    provider::{Backends, CloudError, FieldError, LbSpec, SourceRanges},
};

use super::{super::Settings, annotations::Options};
use crate::cloud::{
    EndpointMember, Family, Listener, LoadBalancerKey, LoadBalancerSettings, LoadBalancerSpec,
    Members, NodeMember,
};

/// Returns the name of a Service's load balancer: upstream's default, `a` and the UID without
/// dashes, cut to 32 characters. The whole UID does not fit, so the cloud also compares the owner.
pub(super) fn balancer_name(uid: &str) -> String {
    std::iter::once('a')
        .chain(uid.chars().filter(|c| *c != '-'))
        .take(32)
        .collect()
}

/// Returns the settings of a Service's load balancer.
///
/// # Errors
/// All validation errors of the Service.
pub(super) fn settings(
    service: &ServiceView,
    options: &Options,
    sources: &SourceRanges,
) -> Result<LoadBalancerSettings, Vec<FieldError>> {
    // First, validate the ports, the source ranges and the requested address.
    let mut mistakes = Vec::new();
    if service.ports.is_empty() {
        mistakes.push(FieldError::new("spec.ports", "is empty"));
    }
    let source_ranges = match sources {
        SourceRanges::Unset => Vec::new(),
        // "No source allowed" cannot be expressed: an empty list means "all clients" to the cloud.
        SourceRanges::Only(ranges) if ranges.is_empty() => {
            mistakes.push(FieldError::new("spec.loadBalancerSourceRanges", "admits no client"));
            Vec::new()
        }
        SourceRanges::Only(ranges) => ranges.clone(),
    };
    let families: Vec<Family> = service
        .ip_families
        .iter()
        .map(|family| Family::from(*family))
        .collect();
    let requested = service
        .load_balancer_ip
        .as_deref()
        .map(str::trim)
        .filter(|text| !text.is_empty());
    let requested_address = requested.and_then(|text| match text.parse::<IpAddr>() {
        Ok(address) if families.is_empty() || families.contains(&Family::of(address)) => {
            Some(address)
        }
        Ok(_) => {
            let message = format!("{text:?} is of no family of spec.ipFamilies");
            mistakes.push(FieldError::new("spec.loadBalancerIP", message));
            None
        }
        Err(_) => {
            mistakes
                .push(FieldError::new("spec.loadBalancerIP", format!("{text:?} is no IP address")));
            None
        }
    });
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    // Then build the settings.
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

/// Makes the key of a Service's load balancer.
pub(super) fn key(cluster: &str, uid: &str, namespace: &str, name: &str) -> LoadBalancerKey {
    LoadBalancerKey {
        cluster: cluster.to_owned(),
        uid: uid.to_owned(),
        name: balancer_name(uid),
        service: format!("{namespace}/{name}"),
    }
}

/// Returns the key of the load balancer that the framework requests.
pub(super) fn key_of(want: &LbSpec) -> LoadBalancerKey {
    key(&want.cluster, &want.service.uid, &want.service.namespace, &want.service.name)
}

/// Translates the framework's request for a load balancer to the cloud's specification.
///
/// # Errors The validation errors of the Service as one error. The framework does not request load balancers for
/// invalid Services.
pub(super) fn spec(want: &LbSpec, provider: &Settings) -> Result<LoadBalancerSpec, CloudError> {
    let service = &want.service;
    let invalid = |mistakes: Vec<FieldError>| {
        let mistakes: Vec<_> = mistakes
            .iter()
            .map(|m| format!("{}: {}", m.field, m.message))
            .collect();
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
    Ok(LoadBalancerSpec {
        key: key_of(want),
        settings,
        members: members(want),
        activation: options.activation,
    })
}

/// Returns the members of the load balancer that the framework requests.
pub(super) fn members(want: &LbSpec) -> Members {
    match &want.backends {
        Backends::Nodes(nodes) => Members::Nodes(
            nodes
                .iter()
                .map(|node| NodeMember {
                    name: node.name.clone(),
                    provider_id: node.provider_id.clone(),
                })
                .collect(),
        ),
        Backends::Endpoints(slices) => Members::Endpoints(
            slices
                .iter()
                .flat_map(|slice| endpoints(&want.service, slice))
                .collect(),
        ),
    }
    .sorted()
}

/// Returns the ready endpoints of a slice, for each port of the Service that it serves.
fn endpoints(service: &ServiceView, slice: &EndpointSliceView) -> Vec<EndpointMember> {
    let mut members = Vec::new();
    for slice_port in &slice.ports {
        let same = |port: &&ccm_core::k8s::ServicePort| {
            port.name == slice_port.name && port.protocol == slice_port.protocol
        };
        let (Some(target), Some(port)) = (slice_port.port, service.ports.iter().find(same)) else {
            continue;
        };
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

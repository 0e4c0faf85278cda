//! Translates a Service to the desired state of its load balancer, in the types of the cloud's API.

use std::net::{IpAddr, SocketAddr};

use ccm_core::{
    k8s::{EndpointSliceView, ServicePort, ServiceView, SessionAffinity},
    provider::{Backends, CloudError, FieldError, LbSpec, SourceRanges},
};

use super::{super::Settings, annotations::ServiceOptions};
use crate::cloud::{
    EndpointMember, Family, Listener, LoadBalancerKey, LoadBalancerSettings, LoadBalancerSpec,
    Members, NodeMember,
};

/// Returns the name of a Service's load balancer. As in k8s.io/cloud-provider, it is `a` and the
/// UID without dashes, truncated to 32 characters. Since the UID does not fit completely, the cloud
/// also compares the owner.
pub(super) fn load_balancer_name(uid: &str) -> String {
    let name = format!("a{}", uid.replace('-', ""));
    name.chars().take(32).collect()
}

/// Returns the settings of a Service's load balancer.
///
/// # Errors
/// Returns all validation errors of the Service.
pub(super) fn settings(
    service: &ServiceView,
    options: &ServiceOptions,
    sources: &SourceRanges,
) -> Result<LoadBalancerSettings, Vec<FieldError>> {
    // First, validate the ports, the source ranges and the requested address.
    let mut errors = Vec::new();
    if service.ports.is_empty() {
        errors.push(FieldError::new("spec.ports", "is empty"));
    }
    let source_ranges = match sources {
        SourceRanges::Unset => Vec::new(),
        // An empty list would mean "all clients" to the cloud.
        SourceRanges::Only(ranges) if ranges.is_empty() => {
            errors.push(FieldError::new(
                "spec.loadBalancerSourceRanges",
                "does not admit any client",
            ));
            Vec::new()
        }
        SourceRanges::Only(ranges) => ranges.clone(),
    };
    let families: Vec<Family> = service
        .ip_families
        .iter()
        .map(|family| Family::from(*family))
        .collect();
    let requested_address = parse_requested_address(service, &families).unwrap_or_else(|error| {
        errors.push(error);
        None
    });
    if !errors.is_empty() {
        return Err(errors);
    }
    // Then build the settings.
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

/// Parses `spec.loadBalancerIP`. Returns `None` if it is missing or empty.
fn parse_requested_address(
    service: &ServiceView,
    families: &[Family],
) -> Result<Option<IpAddr>, FieldError> {
    let text = service
        .load_balancer_ip
        .as_deref()
        .unwrap_or_default()
        .trim();
    if text.is_empty() {
        return Ok(None);
    }
    let Ok(address) = text.parse::<IpAddr>() else {
        return Err(FieldError::new(
            "spec.loadBalancerIP",
            format!("{text:?} is not an IP address"),
        ));
    };
    if families.is_empty() || families.contains(&Family::of(address)) {
        return Ok(Some(address));
    }
    let message = format!("{text:?} does not belong to a family of spec.ipFamilies");
    Err(FieldError::new("spec.loadBalancerIP", message))
}

fn listener(port: &ServicePort) -> Listener {
    Listener {
        protocol: port.protocol.into(),
        port: port.port.get(),
        node_port: port.node_port.map(Into::into),
    }
}

/// Returns the key of a Service's load balancer.
pub(super) fn key(cluster: &str, uid: &str, namespace: &str, name: &str) -> LoadBalancerKey {
    LoadBalancerKey {
        cluster: cluster.to_owned(),
        uid: uid.to_owned(),
        name: load_balancer_name(uid),
        service: format!("{namespace}/{name}"),
    }
}

/// Returns the key of the load balancer that the framework requests.
pub(super) fn key_of(desired: &LbSpec) -> LoadBalancerKey {
    key(
        &desired.cluster,
        &desired.service.uid,
        &desired.service.namespace,
        &desired.service.name,
    )
}

/// Translates the framework's request for a load balancer to the cloud's specification.
///
/// # Errors
/// Returns the validation errors of the Service as one error. The framework does not request load
/// balancers for invalid Services.
pub(super) fn spec(desired: &LbSpec, provider: &Settings) -> Result<LoadBalancerSpec, CloudError> {
    let service = &desired.service;
    if service.uid.is_empty() {
        let error = FieldError::new("metadata.uid", "is empty");
        return Err(invalid_service(service, &[error]));
    }
    let (options, errors) = ServiceOptions::parse(service, provider);
    if !errors.is_empty() {
        return Err(invalid_service(service, &errors));
    }
    let settings = settings(service, &options, &desired.sources)
        .map_err(|errors| invalid_service(service, &errors))?;
    Ok(LoadBalancerSpec {
        key: key_of(desired),
        settings,
        members: members(desired),
        activation: options.activation_delay,
    })
}

fn invalid_service(service: &ServiceView, errors: &[FieldError]) -> CloudError {
    let errors: Vec<_> = errors
        .iter()
        .map(|error| format!("{}: {}", error.field, error.message))
        .collect();
    let ServiceView { namespace, name, .. } = service;
    CloudError::invalid_input(format!("service {namespace}/{name}: {}", errors.join("; ")))
}

/// Returns the members of the load balancer that the framework requests.
pub(super) fn members(desired: &LbSpec) -> Members {
    match &desired.backends {
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
                .flat_map(|slice| endpoints(&desired.service, slice))
                .collect(),
        ),
    }
    .sorted()
}

/// Returns the ready endpoints of a slice, for each port of the Service that it serves.
fn endpoints(service: &ServiceView, slice: &EndpointSliceView) -> Vec<EndpointMember> {
    let mut members = Vec::new();
    for slice_port in &slice.ports {
        let Some(target) = slice_port.port else {
            continue;
        };
        let Some(port) = service
            .ports
            .iter()
            .find(|port| port.name == slice_port.name && port.protocol == slice_port.protocol)
        else {
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

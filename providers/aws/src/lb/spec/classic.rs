//! Parses a Service with a classic load balancer, as cloud-provider-aws v1.37 reads it
//! (`EnsureLoadBalancer`, `buildListener` and `ensureLoadBalancerHealthCheck`).
//!
//! There is one dialect only: upstream has no newer reading of these annotations.

use std::ops::RangeInclusive;

use ccm_core::{
    k8s::{IpFamily, Protocol, ServicePort, ServiceView, SessionAffinity, TrafficPolicy},
    provider::{ServiceNotice, SourceRanges},
};
use ipnet::IpNet;

use super::{
    DefaultsSource, SpecReader,
    addressing::subnets,
    annotations::{self as a, Annotation, PREFIX, boolean},
    dialect, extra_tags, health, node_labels, security_groups,
};
use crate::{
    api::{
        SecurityGroupId,
        classic::{
            ClassicAccessLog, ClassicAttributes, ClassicDraining, ClassicHealthCheck,
            ClassicListener,
        },
        elb::{IpAddressType, Scheme, TargetType},
    },
    config::{AnnotationDialect, Settings},
    lb::{
        classic::model::{ClassicGroups, ClassicReading, DEFAULT_IDLE_TIMEOUT, DesiredClassic},
        model::ServiceKey,
        names,
    },
    ownership_tags::Cluster,
};

const DRAINING: &str = "connection-draining-enabled";
const DRAINING_TIMEOUT: &str = "connection-draining-timeout";
const IDLE_TIMEOUT: &str = "connection-idle-timeout";
const EMIT_INTERVAL: &str = "access-log-emit-interval";

/// Upstream's health check of classic load balancers: interval and timeout in seconds, and the
/// thresholds for a healthy and an unhealthy instance.
const DEFAULT_CHECK: (u32, u32, u32, u32) = (10, 5, 2, 6);

/// Reads a Service as one with a classic load balancer, whatever its type annotation says.
pub(super) fn read(
    service: &ServiceView,
    settings: &Settings,
    cluster: &Cluster,
) -> (ClassicReading, Vec<ServiceNotice>) {
    let dialect = AnnotationDialect::Upstream;
    let mut reader = SpecReader {
        service,
        settings,
        cluster,
        defaults_source: DefaultsSource::CloudProviderAws,
        dialect,
        target_type: TargetType::Instance,
        owner: ServiceKey {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            uid: service.uid.clone(),
        },
        annotations: a::AnnotationReader::new(service, dialect),
        notices: Vec::new(),
        creation_errors: Vec::new(),
    };
    let groups = ClassicGroups {
        given: group_ids(&reader, &a::SECURITY_GROUPS.definition),
        extra: group_ids(&reader, &a::EXTRA_SECURITY_GROUPS.definition),
    };
    let desired = read_desired(&mut reader, &groups);
    let notices = std::mem::take(&mut reader.notices);
    let errors = reader.annotations.finish();
    let desired = match desired {
        Some(desired) if errors.is_empty() => Ok(Box::new(desired)),
        _ => Err(errors),
    };
    (ClassicReading { desired, groups }, notices)
}

/// Reads a list of group IDs, without duplicates. Upstream passes them on as they are.
fn group_ids(reader: &SpecReader<'_>, annotation: &Annotation) -> Vec<SecurityGroupId> {
    let mut ids: Vec<SecurityGroupId> = Vec::new();
    let text = reader.annotations.text(annotation).unwrap_or_default();
    for id in text.split(',').map(str::trim).filter(|id| !id.is_empty()) {
        let id = SecurityGroupId::from(id);
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// Reads the whole desired state. Returns `None` only together with a validation error.
fn read_desired(reader: &mut SpecReader<'_>, groups: &ClassicGroups) -> Option<DesiredClassic> {
    reject_unsupported(reader);
    let subnets = subnets(reader);
    let internal = reader.annotations.get(&a::INTERNAL).unwrap_or_default();
    let listeners = read_listeners(reader);
    let health_check = read_health_check(reader, listeners.first());
    let desired = DesiredClassic {
        owner: reader.owner.clone(),
        name: names::load_balancer(&reader.owner.uid),
        scheme: if internal {
            Scheme::Internal
        } else {
            Scheme::InternetFacing
        },
        subnets,
        groups: groups.clone(),
        sources: read_sources(reader, groups),
        ports: reader
            .service
            .ports
            .iter()
            .map(|port| port.port.get())
            .collect(),
        proxy_protocol: read_proxy_protocol(reader),
        tls_policy: reader.annotations.get(&a::TLS_POLICY),
        attributes: read_attributes(reader),
        extra_tags: extra_tags(reader),
        node_labels: node_labels(reader),
        listeners,
        // Last, so that the errors of everything else are known.
        health_check: health_check?,
    };
    // Subnets and tags of a classic load balancer are compared as long as it exists.
    for error in std::mem::take(&mut reader.creation_errors) {
        let (key, message) = error.split_once(": ").unwrap_or(("", &error));
        reader.annotations.add_error(key, message);
    }
    Some(desired)
}

/// Adds errors for what classic load balancers do not have.
fn reject_unsupported(reader: &mut SpecReader<'_>) {
    let service = reader.service;
    let target_attributes = &a::TARGET_ATTRIBUTES.definition;
    if service.annotations.contains_key(&*target_attributes.key()) {
        let message = "target group attributes annotation is only supported for NLB";
        reader.annotations.invalid_value(target_attributes, message);
    }
    if service.session_affinity != SessionAffinity::None {
        let message = "unsupported load balancer affinity: ClientIP";
        reader
            .annotations
            .add_error("spec.sessionAffinity", message);
    }
    if service
        .load_balancer_ip
        .as_ref()
        .is_some_and(|ip| !ip.is_empty())
    {
        let message = "LoadBalancerIP cannot be specified for AWS ELB";
        reader.annotations.add_error("spec.loadBalancerIP", message);
    }
    let mut others = service.ports.iter().map(|port| port.protocol);
    if let Some(protocol) = others.find(|protocol| *protocol != Protocol::Tcp) {
        let message = format!(
            "Protocol {} not supported by LoadBalancer: a classic load balancer has TCP only; {}: nlb makes a \
             Network Load Balancer",
            protocol.as_str(),
            a::TYPE.definition.key()
        );
        reader.annotations.add_error("spec.ports", message);
    }
}

/// Reads the listeners of all ports with a node port.
fn read_listeners(reader: &mut SpecReader<'_>) -> Vec<ClassicListener> {
    let ports = dialect::served_ports(reader);
    if ports.is_empty() {
        let message = "requested load balancer with no ports";
        reader.annotations.add_error("spec.ports", message);
    }
    let mut listeners = Vec::new();
    for port in ports {
        match port.node_port {
            Some(node_port) => listeners.push(read_listener(reader, port, node_port.get())),
            None => reader
                .annotations
                .add_error("spec.ports", health::NO_NODE_PORT),
        }
    }
    listeners
}

/// Reads one listener. With a certificate, the protocol of the instances decides about that of the
/// clients.
fn read_listener(
    reader: &mut SpecReader<'_>,
    port: &ServicePort,
    instance_port: u16,
) -> ClassicListener {
    let tls = dialect::tls_texts(reader);
    let backend = reader
        .annotations
        .text(&a::BACKEND_PROTOCOL.definition)
        .unwrap_or_default();
    let name = port.name.to_lowercase();
    let is_named = |entry: &str| entry.parse() == Ok(port.port.get()) || *entry == *name;
    let certificate = tls
        .certificates
        .first()
        .filter(|_| tls.is_for_all_ports || tls.ports.iter().any(|entry| is_named(entry)));
    let (protocol, instance_protocol) = match (certificate, backend) {
        (Some(_), "https") => ("HTTPS", "HTTPS"),
        (Some(_), "http") => ("HTTPS", "HTTP"),
        (Some(_), "ssl") => ("SSL", "SSL"),
        (Some(_), "" | "tcp") => ("SSL", "TCP"),
        (Some(_), other) => {
            let message =
                format!("Invalid backend protocol {other}: expected http, https, ssl or tcp");
            reader
                .annotations
                .invalid_value(&a::BACKEND_PROTOCOL.definition, message);
            ("SSL", "TCP")
        }
        (None, "http") => ("HTTP", "HTTP"),
        (None, _) => ("TCP", "TCP"),
    };
    ClassicListener {
        port: port.port.get(),
        protocol: protocol.into(),
        instance_port,
        instance_protocol: instance_protocol.into(),
        certificate: certificate.cloned(),
    }
}

/// Reads the networks that the load balancer's own group admits. Given groups have rules of their own.
fn read_sources(reader: &mut SpecReader<'_>, groups: &ClassicGroups) -> Vec<IpNet> {
    let has_own_group =
        groups.given.is_empty() && reader.settings.protected_security_group.is_none();
    if !has_own_group {
        return security_groups::any_source(IpAddressType::Ipv4);
    }
    let found = match SourceRanges::of(reader.service) {
        Ok(SourceRanges::Only(found)) => found,
        Ok(SourceRanges::Unset) => return security_groups::any_source(IpAddressType::Ipv4),
        Err(errors) => {
            reader.annotations.add_errors(errors);
            Vec::new()
        }
    };
    for network in &found {
        if IpFamily::of(network) == IpFamily::V6 {
            let message = format!("a classic load balancer has no IPv6 clients: {network}");
            reader
                .annotations
                .add_error("spec.loadBalancerSourceRanges", message);
        }
    }
    found
}

fn read_proxy_protocol(reader: &mut SpecReader<'_>) -> bool {
    let text = text(reader, "proxy-protocol");
    if !["", "*"].contains(&&*text) {
        let message =
            format!("{text:?} is not possible: the only value supported currently is '*'");
        invalid(reader, "proxy-protocol", message);
    }
    &*text == "*"
}

/// Reads the health check. AWS has one for all ports: that of the first port, or of kube-proxy.
fn read_health_check(
    reader: &mut SpecReader<'_>,
    first: Option<&ClassicListener>,
) -> Option<ClassicHealthCheck> {
    let traffic_port = first?.instance_port;
    let port_text = text(reader, "healthcheck-port");
    // Find the defaults.
    let service = reader.service;
    let node_port = service.health_check_node_port;
    let backend = text(reader, "backend-protocol").to_ascii_lowercase();
    let (protocol, port, path) = match (service.external_traffic_policy, node_port) {
        (TrafficPolicy::Local, Some(_)) if &*port_text == "traffic-port" => {
            ("HTTP", traffic_port, "/healthz")
        }
        (TrafficPolicy::Local, Some(port)) => ("HTTP", port.get(), "/healthz"),
        _ => match &reader.settings.shared_health_probe {
            Some(probe) => ("HTTP", probe.port.get(), &*probe.path),
            None if ["https", "ssl"].contains(&&*backend) => ("SSL", traffic_port, ""),
            None => ("TCP", traffic_port, ""),
        },
    };
    // Apply the annotations.
    let protocol = match &*text(reader, "healthcheck-protocol") {
        "" => protocol.to_owned(),
        text => text.to_ascii_uppercase(),
    };
    if !["TCP", "SSL", "HTTP", "HTTPS"].contains(&&*protocol) {
        let message = format!("Unsupported health check protocol {protocol}");
        invalid(reader, "healthcheck-protocol", message);
    }
    let port = match &*port_text {
        "" | "traffic-port" => port,
        text => text
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .unwrap_or_else(|| {
                let message = format!("Invalid health check port '{text}'");
                invalid(reader, "healthcheck-port", message);
                port
            }),
    };
    let path = if protocol.starts_with("HTTP") {
        match &*text(reader, "healthcheck-path") {
            "" if path.is_empty() => "/".to_owned(),
            "" => path.to_owned(),
            text => text.to_owned(),
        }
    } else {
        String::new()
    };
    let (interval, timeout, healthy, unhealthy) = DEFAULT_CHECK;
    let check = ClassicHealthCheck {
        target: format!("{protocol}:{port}{path}").into(),
        interval: number(reader, "healthcheck-interval", 5..=300).unwrap_or(interval),
        timeout: number(reader, "healthcheck-timeout", 2..=60).unwrap_or(timeout),
        healthy: number(reader, "healthcheck-healthy-threshold", 2..=10).unwrap_or(healthy),
        unhealthy: number(reader, "healthcheck-unhealthy-threshold", 2..=10).unwrap_or(unhealthy),
    };
    if check.timeout >= check.interval {
        let message = format!(
            "health check timeout ({}) must be less than the interval ({})",
            check.timeout, check.interval
        );
        invalid(reader, "healthcheck-timeout", message);
    }
    Some(check)
}

/// Reads the attributes. Like upstream, all of them are set even if the Service names none.
fn read_attributes(reader: &mut SpecReader<'_>) -> ClassicAttributes {
    let optional = |text: Box<str>| (!text.is_empty()).then_some(text);
    let bucket = optional(text(reader, "access-log-s3-bucket-name"));
    let prefix = optional(text(reader, "access-log-s3-bucket-prefix"));
    let access_log = ClassicAccessLog {
        enabled: flag(reader, "access-log-enabled"),
        interval: emit_interval(reader),
        bucket,
        prefix,
    };
    let draining = ClassicDraining {
        enabled: flag(reader, DRAINING),
        timeout: number(reader, DRAINING_TIMEOUT, 1..=3600),
    };
    let idle_timeout = number(reader, IDLE_TIMEOUT, 1..=4000).unwrap_or(DEFAULT_IDLE_TIMEOUT);
    ClassicAttributes {
        access_log: Some(access_log),
        draining: Some(draining),
        idle_timeout: Some(idle_timeout),
        cross_zone: Some(flag(reader, "cross-zone-load-balancing-enabled")),
    }
}

/// Reads the minutes between two files of the access log. AWS takes two values.
fn emit_interval(reader: &mut SpecReader<'_>) -> Option<u32> {
    let interval = number(reader, EMIT_INTERVAL, 5..=60)?;
    if ![5, 60].contains(&interval) {
        invalid(reader, EMIT_INTERVAL, format!("{interval} is neither 5 nor 60"));
    }
    Some(interval)
}

/// Returns the value of an annotation, or empty text.
fn text(reader: &SpecReader<'_>, name: &str) -> Box<str> {
    let annotations = &reader.service.annotations;
    let found = annotations.get(&*format!("{PREFIX}{name}"));
    found.map_or_else(Box::default, |text| (&**text).into())
}

fn invalid(reader: &mut SpecReader<'_>, name: &str, message: impl Into<Box<str>>) {
    reader
        .annotations
        .add_error(format!("{PREFIX}{name}"), message);
}

fn flag(reader: &mut SpecReader<'_>, name: &str) -> bool {
    let text = text(reader, name);
    if text.is_empty() {
        return false;
    }
    boolean(&text).unwrap_or_else(|| {
        let message = format!("error parsing service annotation: {PREFIX}{name}={text}");
        invalid(reader, name, message);
        false
    })
}

/// Reads a number with limits set by AWS.
fn number(reader: &mut SpecReader<'_>, name: &str, bounds: RangeInclusive<u32>) -> Option<u32> {
    let text = text(reader, name);
    if text.is_empty() {
        return None;
    }
    match text.parse::<u32>() {
        Ok(number) if bounds.contains(&number) => return Some(number),
        Ok(number) => {
            let message =
                format!("{number} is not between {} and {}", bounds.start(), bounds.end());
            invalid(reader, name, message);
        }
        Err(_) => {
            let message = format!("error parsing service annotation: {PREFIX}{name}={text}");
            invalid(reader, name, message);
        }
    }
    None
}

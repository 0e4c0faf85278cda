//! Parses the attributes of load balancers, listeners and target groups that a Service sets. Other
//! attributes are not changed.

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    k8s::{ServicePort, SessionAffinity},
    provider::FieldError,
};

use super::SpecReader;
use crate::{
    api::elb::{Attributes, ElbProtocol, TargetType},
    lb::spec::annotations::{self as a, HINT, Pairs, boolean},
};

const CROSS_ZONE: &str = "load_balancing.cross_zone.enabled";
const LOGS: &str = "access_logs.s3.enabled";
const LOGS_BUCKET: &str = "access_logs.s3.bucket";
const LOGS_PREFIX: &str = "access_logs.s3.prefix";
const PROTECTION: &str = "deletion_protection.enabled";
const ROUTING_POLICY: &str = "dns_record.client_routing_policy";
const ROUTING_POLICIES: [&str; 3] = [
    "any_availability_zone",
    "partial_availability_zone_affinity",
    "availability_zone_affinity",
];
/// Boolean attributes of load balancers.
const BOOLEAN_ATTRIBUTES: [&str; 5] =
    [CROSS_ZONE, LOGS, PROTECTION, "ipv6.deny_all_igw_traffic", "zonal_shift.config.enabled"];

const PRESERVE: &str = "preserve_client_ip.enabled";
const PROXY: &str = "proxy_protocol_v2.enabled";
pub(in crate::lb) const STICKY: &str = "stickiness.enabled";
const STICKY_BY: &str = "stickiness.type";
/// Boolean attributes of target groups.
const BOOLEAN_TARGET_ATTRIBUTES: [&str; 5] = [
    PRESERVE,
    PROXY,
    STICKY,
    "deregistration_delay.connection_termination.enabled",
    "target_health_state.unhealthy.connection_termination.enabled",
];
/// Attributes of target groups in seconds, with AWS' maximum.
const TARGET_SECONDS: [(&str, u32); 2] = [
    ("deregistration_delay.timeout_seconds", 3600),
    ("target_health_state.unhealthy.draining_interval_seconds", 360_000),
];
const IDLE_TIMEOUT: &str = "tcp.idle_timeout.seconds";

/// The attributes of a load balancer.
pub(super) struct LoadBalancerAttributes {
    pub(super) attributes: Attributes,
    /// True if the Service requests deletion protection.
    pub(super) deletion_protection: bool,
}

/// Parses the attributes of the load balancer. Like cloud-provider-aws, always sets cross-zone
/// load balancing and access logs, and also bucket and prefix while access logs are enabled.
pub(super) fn of_load_balancer(reader: &mut SpecReader<'_>) -> LoadBalancerAttributes {
    let mut found = reader.annotations.get(&a::ATTRIBUTES).unwrap_or_default();
    check(reader, &mut found);
    for (key, name) in [(&a::CROSS_ZONE, CROSS_ZONE), (&a::ACCESS_LOG, LOGS)] {
        match reader.annotations.get(key) {
            Some(value) => _ = found.insert(name.into(), value.to_string().into()),
            None => _ = found.entry(name.into()).or_insert_with(|| "false".into()),
        }
    }
    let bucket = reader.annotations.get(&a::ACCESS_LOG_BUCKET);
    let prefix = reader.annotations.get(&a::ACCESS_LOG_PREFIX);
    if has_value(&found, LOGS, "true") {
        if let Some(bucket) = bucket {
            found.insert(LOGS_BUCKET.into(), bucket);
        }
        match prefix {
            Some(prefix) => _ = found.insert(LOGS_PREFIX.into(), prefix),
            None => _ = found.entry(LOGS_PREFIX.into()).or_default(),
        }
    }
    // AWS rejects an empty bucket.
    found.retain(|key, value| &**key != LOGS_BUCKET || !value.is_empty());
    LoadBalancerAttributes {
        deletion_protection: has_value(&found, PROTECTION, "true"),
        attributes: found,
    }
}

/// What the annotations of a Service say about deletion protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionProtection {
    /// They request it, or their value is unreadable. That counts as a request, because a deletion
    /// cannot be undone.
    Enabled,
    /// They turn it off.
    Disabled,
    /// They do not mention it. Protection of the load balancer was then enabled by hand, or by an
    /// annotation that was removed since.
    Unspecified,
}

impl DeletionProtection {
    /// Reads the annotations in the dialect `extended`, even if the Service is invalid.
    pub(in crate::lb) fn of(annotations: &BTreeMap<Arc<str>, Arc<str>>) -> Self {
        let Some(text) = annotations.get(&*a::ATTRIBUTES.definition.key()) else {
            return Self::Unspecified;
        };
        let Some(attributes) = a::map(text) else {
            return if text.contains(PROTECTION) {
                Self::Enabled
            } else {
                Self::Unspecified
            };
        };
        match attributes.get(PROTECTION).map(|value| boolean(value)) {
            Some(Some(false)) => Self::Disabled,
            Some(_) => Self::Enabled,
            None => Self::Unspecified,
        }
    }
}

/// Checks attributes of load balancers with known values, and normalizes booleans to AWS' spelling.
fn check(reader: &mut SpecReader<'_>, found: &mut Pairs) {
    let definition = &a::ATTRIBUTES.definition;
    for (key, value) in found {
        if BOOLEAN_ATTRIBUTES.contains(&&**key) {
            match boolean(value) {
                Some(on) => *value = on.to_string().into(),
                None => reader
                    .annotations
                    .invalid_value(definition, format!("failed to parse attribute {key}={value}")),
            }
        } else if &**key == ROUTING_POLICY && !ROUTING_POLICIES.contains(&&**value) {
            let message = format!(
                "invalid {ROUTING_POLICY} set in annotation {}: got '{value}' expected one of ['{}']",
                definition.key(),
                ROUTING_POLICIES.join("', '")
            );
            reader.annotations.invalid_value(definition, message);
        }
    }
}

/// The attributes that a Service requests for its target groups.
pub(in crate::lb) struct TargetAttributes {
    /// Attributes of all target groups.
    general: Pairs,
    /// Attributes of single ports, with the annotation's key and the port.
    ports: Vec<(Box<str>, u16, Pairs)>,
    /// Ports with proxy protocol; `None` if no annotation decides about it.
    proxy: Option<ProxyProtocolPorts>,
    /// True if the Service requests session affinity.
    stickiness: bool,
}

/// The attributes of one target group.
pub(in crate::lb) struct TargetGroupAttributes {
    pub(in crate::lb) attributes: Attributes,
    /// True if the targets see the clients' addresses.
    pub(in crate::lb) preserves_client_ip: bool,
}

/// The ports named by `proxy-protocol` and `proxy-protocol-per-target-group`.
enum ProxyProtocolPorts {
    All,
    Only(Vec<u16>),
}

impl TargetAttributes {
    /// Parses the attributes.
    pub(in crate::lb) fn read(reader: &mut SpecReader<'_>) -> Self {
        let general = reader
            .annotations
            .get(&a::TARGET_ATTRIBUTES)
            .unwrap_or_default();
        let mut errors = Vec::new();
        let mut ports = Vec::new();
        check_targets(&a::TARGET_ATTRIBUTES.definition.key(), &general, &mut errors);
        if reader.is_upstream() {
            errors.extend(unsupported_upstream(&general));
        }
        for (port, pairs) in reader.annotations.each(&a::PORT_TARGET_ATTRIBUTES) {
            let key =
                format!("{}{port}", a::PORT_TARGET_ATTRIBUTES.definition.key()).into_boxed_str();
            // Empty values do not override general ones.
            let pairs: Pairs = pairs
                .into_iter()
                .filter(|(_, value)| !value.is_empty())
                .collect();
            check_targets(&key, &pairs, &mut errors);
            match port.parse::<u16>() {
                Ok(number) if has_port(reader, number) => ports.push((key, number, pairs)),
                _ => {
                    let note = format!("{key} has no effect: the Service has no port {port}");
                    reader.warn("UnusedAnnotation", note);
                }
            }
        }
        reader.annotations.add_errors(errors);
        let stickiness = reader.service.session_affinity != SessionAffinity::None;
        Self {
            general,
            ports,
            proxy: proxy_protocol_ports(reader),
            stickiness,
        }
    }

    /// Returns the attributes of the target group of a port.
    pub(in crate::lb) fn for_port(
        &self,
        reader: &mut SpecReader<'_>,
        port: &ServicePort,
        listener: ElbProtocol,
        protocol: ElbProtocol,
    ) -> TargetGroupAttributes {
        // Merge the attributes by rising priority: session affinity, all ports, this port, proxy
        // protocol.
        let mut found = Attributes::new();
        if self.stickiness {
            if [listener, protocol].contains(&ElbProtocol::Tls) {
                reader.annotations.add_error(
                    "spec.sessionAffinity",
                    "unsupported load balancer affinity: ClientIP",
                );
            }
            found.insert(STICKY.into(), "true".into());
            found.insert(STICKY_BY.into(), "source_ip".into());
        }
        found.extend(
            self.general
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
        let mut field = a::TARGET_ATTRIBUTES.definition.key();
        if let Some((key, _, own)) = self
            .ports
            .iter()
            .find(|(_, number, _)| *number == port.port.get())
        {
            found.extend(own.iter().map(|(key, value)| (key.clone(), value.clone())));
            field = key.clone();
        }
        match &self.proxy {
            Some(ProxyProtocolPorts::All) => _ = found.insert(PROXY.into(), "true".into()),
            Some(ProxyProtocolPorts::Only(ports)) => {
                let on = ports.contains(&port.port.get());
                found.insert(PROXY.into(), on.to_string().into());
            }
            None => {}
        }
        // Reject combinations that AWS does not support.
        let is_udp = protocol.has_udp();
        if is_udp && has_value(&found, PRESERVE, "false") {
            reader.annotations.add_error(
                &*field,
                invalid("client IP preservation can't be disabled for UDP ports"),
            );
        }
        if has_value(&found, STICKY, "true")
            && !self.stickiness
            && [listener, protocol].contains(&ElbProtocol::Tls)
        {
            reader
                .annotations
                .add_error(&*field, invalid("stickiness is not possible for TLS ports"));
        }
        if self.stickiness && has_value(&found, STICKY, "false") {
            reader.annotations.add_error(
                &*field,
                invalid("stickiness contradicts spec.sessionAffinity: ClientIP"),
            );
        }
        let preserves_client_ip = match found.get(PRESERVE) {
            // Upstream's rules do not depend on it.
            Some(_) if reader.is_upstream() => true,
            Some(value) => **value == *"true",
            None => is_udp || reader.target_type == TargetType::Instance,
        };
        TargetGroupAttributes { attributes: found, preserves_client_ip }
    }

    /// Returns true if a target group's attributes hide the clients' addresses from its targets.
    pub(in crate::lb) fn hide_clients(attributes: &Attributes) -> bool {
        has_value(attributes, PRESERVE, "false")
    }

    /// Returns true if a target group's attributes enable proxy protocol.
    pub(in crate::lb) fn has_proxy_protocol(attributes: &Attributes) -> bool {
        has_value(attributes, PROXY, "true")
    }
}

fn has_port(reader: &SpecReader<'_>, number: u16) -> bool {
    let mut ports = reader.service.ports.iter();
    ports.any(|port| port.port.get() == number)
}

fn has_value(attributes: &Attributes, key: &str, value: &str) -> bool {
    attributes.get(key).is_some_and(|found| **found == *value)
}

fn invalid(what: &str) -> String {
    format!("error validating target group attributes: {what}")
}

/// Returns errors for attributes that cloud-provider-aws refuses.
fn unsupported_upstream(general: &Pairs) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for key in general.keys() {
        // A name without dot is invalid in both dialects.
        if key.contains('.') && ![PRESERVE, PROXY].contains(&&**key) {
            let message = format!(
                "the attribute \"{key}\" is not supported by the controller or is invalid{HINT}"
            );
            let field = a::TARGET_ATTRIBUTES.definition.key();
            errors.push(FieldError::new(field, invalid(&message)));
        }
    }
    errors
}

/// Checks attributes of target groups whose valid values are known. AWS checks the others.
fn check_targets(field: &str, found: &Pairs, errors: &mut Vec<FieldError>) {
    for (key, value) in found {
        // All of AWS' names have a dot.
        let message = if !key.contains('.') || key.chars().any(char::is_whitespace) {
            format!("the attribute \"{key}\" is not supported by the controller or is invalid")
        } else if value.is_empty() {
            format!("attribute value is empty for \"{key}\"")
        } else if !is_valid_target_value(key, value) {
            format!("invalid attribute value for \"{key}\": {value}")
        } else {
            continue;
        };
        errors.push(FieldError::new(field, invalid(&message)));
    }
}

/// Returns false if the value of a target group's attribute is known to be invalid.
fn is_valid_target_value(key: &str, value: &str) -> bool {
    if BOOLEAN_TARGET_ATTRIBUTES.contains(&key) {
        return matches!(value, "true" | "false");
    }
    if key == STICKY_BY {
        return value == "source_ip";
    }
    if key == CROSS_ZONE {
        return matches!(value, "true" | "false" | "use_load_balancer_configuration");
    }
    match TARGET_SECONDS.iter().find(|(name, _)| *name == key) {
        Some((_, max)) => value.parse::<u32>().is_ok_and(|seconds| seconds <= *max),
        None => true,
    }
}

fn proxy_protocol_ports(reader: &mut SpecReader<'_>) -> Option<ProxyProtocolPorts> {
    let all = reader.annotations.get(&a::PROXY_PROTOCOL);
    let definition = &a::PROXY_PROTOCOL_PORTS.definition;
    let named = reader.annotations.get(&a::PROXY_PROTOCOL_PORTS);
    let mut ports = Vec::new();
    for text in named.iter().flatten() {
        match text.parse::<u16>() {
            Ok(port) if port > 0 => ports.push(port),
            _ => {
                let message =
                    format!("invalid port number in proxy-protocol-per-target-group: {text}");
                reader.annotations.invalid_value(definition, message);
            }
        }
    }
    if all.is_some() {
        Some(ProxyProtocolPorts::All)
    } else if named.is_some() {
        Some(ProxyProtocolPorts::Only(ports))
    } else {
        None
    }
}

/// Parses the attributes of listeners, each with the end of its annotation's key, such as `TCP-80`.
pub(in crate::lb) fn of_listeners(reader: &mut SpecReader<'_>) -> Vec<(Box<str>, Attributes)> {
    let found = reader.annotations.each(&a::LISTENER_ATTRIBUTES);
    let found: Vec<(Box<str>, Attributes)> = found
        .into_iter()
        .map(|(name, pairs)| (name.into(), pairs))
        .collect();
    for (name, attributes) in &found {
        let Some(timeout) = attributes.get(IDLE_TIMEOUT) else {
            continue;
        };
        if !timeout
            .parse::<u32>()
            .is_ok_and(|seconds| (60..=6000).contains(&seconds))
        {
            let key = format!("{}{name}", a::LISTENER_ATTRIBUTES.definition.key());
            let message = format!("{IDLE_TIMEOUT} must be a number from 60 to 6000, not {timeout}");
            reader.annotations.add_error(key, message);
        }
    }
    found
}

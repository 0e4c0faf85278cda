//! Notices for the owner of a Service, about what is not an error.

use ccm_core::{
    k8s::TrafficPolicy,
    provider::{EventType, ServiceNotice},
};

use super::{SpecReader, ports::METHODS};
use crate::lb::{annotations as keys, model::DesiredLoadBalancer};

/// Maximum length of the list in a note, which may have 1 kB.
const ROOM: usize = 800;

/// Collects notices about the parsed Service.
pub(super) fn collect_notices(reader: &mut SpecReader<'_>, desired: &DesiredLoadBalancer) {
    let service = reader.service;
    let mut warn = |reason, note: String| {
        reader
            .remarks
            .push(ServiceNotice { kind: EventType::Warning, reason, note: note.into() });
    };
    // First, settings that are unknown or that the cloud does not support.
    let method = reader.annotations.text(&keys::METHOD, "");
    if !method.is_empty() && !METHODS.contains(&method) {
        let short: String = method.chars().take(40).collect();
        warn(
            "LoadBalancerLbMethodUnknown",
            format!("{short:?} is no algorithm of Octavia; that of the configuration holds"),
        );
    }
    let zone = reader
        .annotations
        .text(&keys::AVAILABILITY_ZONE, &reader.settings.availability_zone);
    if !zone.is_empty() && !reader.features.availability_zones {
        warn(
            "LoadBalancerAvailabilityZonesIgnored",
            "this cloud's load balancers have no availability zones".into(),
        );
    }
    // Then settings whose effect may be unexpected.
    let unchecked = desired
        .listeners
        .iter()
        .any(|listener| listener.pool.monitor.is_none());
    if service.external_traffic_policy == TrafficPolicy::Local && unchecked {
        let note = "externalTrafficPolicy is Local and members are not checked: nodes without endpoints drop what they \
                    are sent; set the annotation enable-health-monitor";
        warn("LoadBalancerLocalWithoutMonitor", note.into());
    }
    if service.ip_families.len() > 1 {
        let family = format!("{:?}", service.ip_families[0]).replace('V', "IPv");
        warn(
            "LoadBalancerSingleFamily",
            format!("the load balancer has an address of the first family only, {family}"),
        );
    }
    if service.ports.iter().any(|port| port.node_port.is_none()) {
        warn("LoadBalancerWithoutMembers", "ports without a node port have no members".into());
    }
    // Finally, annotations that have no effect.
    let unknown = keys::unknown(service);
    if !unknown.is_empty() {
        let kind = EventType::Normal;
        let note = list("unknown annotations: ", unknown.into_iter());
        reader
            .remarks
            .push(ServiceNotice { kind, reason: "AnnotationsWithoutEffect", note });
    }
}

/// Adds a notice about the values that were not understood.
pub(super) fn ignored_values(notices: &mut Vec<ServiceNotice>, ignored: &[String]) {
    if !ignored.is_empty() {
        let note = list("", ignored.iter().map(String::as_str));
        notices.push(ServiceNotice {
            kind: EventType::Warning,
            reason: "AnnotationNotUnderstood",
            note,
        });
    }
}

fn list<'a>(start: &str, entries: impl Iterator<Item = &'a str>) -> Box<str> {
    let mut text = start.to_owned();
    for (at, entry) in entries.enumerate() {
        if text.len() + entry.len() > ROOM {
            text.push_str(", …");
            break;
        }
        text.push_str(if at == 0 { "" } else { ", " });
        text.push_str(entry);
    }
    text.into()
}

//! Notices for the owner of a Service, about settings that have no effect or a surprising one.

use ccm_core::{
    k8s::TrafficPolicy,
    provider::{EventType, ServiceNotice},
};

use super::{SpecReader, ports::METHODS};
use crate::lb::{annotations as keys, model::DesiredLoadBalancer};

/// Maximum length of the list in a note. The API server accepts notes of up to 1 kB.
const MAX_LIST_BYTES: usize = 800;

/// Collects notices about the parsed Service.
pub(super) fn collect_notices(reader: &mut SpecReader<'_>, desired: &DesiredLoadBalancer) {
    let notices = [
        check_method(reader),
        check_zone(reader),
        check_tags(reader),
        check_health_checks(reader, desired),
        check_families(reader),
        check_node_ports(reader),
        check_annotations(reader),
    ];
    reader.notices.extend(notices.into_iter().flatten());
}

pub(super) fn warning(reason: &'static str, note: impl Into<Box<str>>) -> ServiceNotice {
    ServiceNotice { kind: EventType::Warning, reason, note: note.into() }
}

fn check_method(reader: &SpecReader<'_>) -> Option<ServiceNotice> {
    let method = reader.annotations.text(&keys::METHOD, "");
    if method.is_empty() || METHODS.contains(&method) {
        return None;
    }
    let short: String = method.chars().take(40).collect();
    Some(warning(
        "LoadBalancerLbMethodUnknown",
        format!("{short:?} is no algorithm of Octavia, using the configured one"),
    ))
}

fn check_zone(reader: &SpecReader<'_>) -> Option<ServiceNotice> {
    let zone = reader
        .annotations
        .text(&keys::AVAILABILITY_ZONE, &reader.settings.availability_zone);
    if zone.is_empty() || reader.features.availability_zones {
        return None;
    }
    Some(warning(
        "LoadBalancerAvailabilityZonesIgnored",
        "this cloud's load balancers have no availability zones",
    ))
}

fn check_tags(reader: &SpecReader<'_>) -> Option<ServiceNotice> {
    let annotations = [&keys::LOAD_BALANCER_TAGS, &keys::LISTENER_TAGS, &keys::POOL_TAGS];
    let requests_tags = annotations
        .into_iter()
        .any(|annotation| !reader.annotations.text(annotation, "").is_empty());
    if !requests_tags || reader.features.tags {
        return None;
    }
    Some(warning("LoadBalancerTagsIgnored", "this cloud's load balancers have no tags"))
}

fn check_health_checks(
    reader: &SpecReader<'_>,
    desired: &DesiredLoadBalancer,
) -> Option<ServiceNotice> {
    let is_local = reader.service.external_traffic_policy == TrafficPolicy::Local;
    let is_checked = desired
        .listeners
        .iter()
        .all(|listener| listener.pool.monitor.is_some());
    if !is_local || is_checked {
        return None;
    }
    Some(warning(
        "LoadBalancerLocalWithoutMonitor",
        "externalTrafficPolicy is Local and members are not checked: nodes without endpoints drop what they are sent; \
         set the annotation enable-health-monitor",
    ))
}

fn check_families(reader: &SpecReader<'_>) -> Option<ServiceNotice> {
    let [first, _, ..] = &reader.service.ip_families[..] else {
        return None;
    };
    if reader.second_family().is_some() {
        return None;
    }
    let family = format!("{first:?}").replace('V', "IPv");
    Some(warning(
        "LoadBalancerSingleFamily",
        format!("the load balancer has an address of the first family only, {family}"),
    ))
}

fn check_node_ports(reader: &SpecReader<'_>) -> Option<ServiceNotice> {
    let ports = &reader.service.ports;
    if ports.iter().all(|port| port.node_port.is_some()) {
        return None;
    }
    Some(warning("LoadBalancerWithoutMembers", "ports without a node port have no members"))
}

fn check_annotations(reader: &SpecReader<'_>) -> Option<ServiceNotice> {
    let unknown = keys::find_unknown(reader.service);
    if unknown.is_empty() {
        return None;
    }
    Some(ServiceNotice {
        kind: EventType::Normal,
        reason: "AnnotationsWithoutEffect",
        note: join_within_limit("unknown annotations: ", unknown.into_iter()),
    })
}

/// Adds a notice about annotations whose values are invalid and were ignored.
pub(super) fn add_ignored_values(notices: &mut Vec<ServiceNotice>, ignored: &[String]) {
    if !ignored.is_empty() {
        let note = join_within_limit("", ignored.iter().map(String::as_str));
        notices.push(warning("AnnotationNotUnderstood", note));
    }
}

/// Joins a prefix and as many entries as fit into a note.
fn join_within_limit<'a>(prefix: &str, entries: impl Iterator<Item = &'a str>) -> Box<str> {
    let mut text = prefix.to_owned();
    for (index, entry) in entries.enumerate() {
        if text.len() + entry.len() > MAX_LIST_BYTES {
            text.push_str(", …");
            break;
        }
        text.push_str(if index == 0 { "" } else { ", " });
        text.push_str(entry);
    }
    text.into()
}

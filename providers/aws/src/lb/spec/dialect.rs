//! The two ways of reading the annotations of a Service, and what the dialect `upstream` reads in its
//! own way.
//!
//! cloud-provider-aws v1.37 defines that dialect: `EnsureLoadBalancer` and
//! `buildNLBHealthCheckConfiguration` in its `aws.go`, `aws_loadbalancer.go` and
//! `aws_validations.go`. Annotations that it does not know at all are left out by
//! [`AnnotationReader`](super::annotations::AnnotationReader).

use std::collections::BTreeSet;

use ccm_core::{
    k8s::{Protocol, ServicePort, ServiceView, SessionAffinity},
    provider::{EventType, ServiceNotice},
};

use super::{
    DefaultsSource, DeletionProtection, ManagedService, ServiceOwnership, SpecReader,
    annotations::{self as a, HINT},
    parse_managed, service_ownership,
};
use crate::{
    config::{AnnotationDialect, Settings},
    lb::model::DesiredLoadBalancer,
    ownership_tags::Cluster,
};

/// Maximum length of the list in a note, which has at most 1 kB.
const MAX_LIST_LENGTH: usize = 700;

/// Returns the dialect of a Service: by its annotation, or by the configuration. What is claimed from
/// the AWS load balancer controller uses annotations that upstream never served.
pub(super) fn of(
    service: &ServiceView,
    settings: &Settings,
    defaults_source: DefaultsSource,
) -> AnnotationDialect {
    if defaults_source == DefaultsSource::LoadBalancerController {
        return AnnotationDialect::Extended;
    }
    let text = service.annotations.get(&*a::DIALECT.definition.key());
    text.and_then(|text| AnnotationDialect::parse(text))
        .unwrap_or(settings.annotation_dialect)
}

/// Warns if the annotation names no dialect. Upstream would ignore it.
pub(super) fn warn_if_unknown(reader: &mut SpecReader<'_>) {
    if let Some(Err(message)) = reader.annotations.parse(&a::DIALECT) {
        let key = a::DIALECT.definition.key();
        reader.warn("UnusedAnnotation", format!("{key} has no effect: {message}"));
    }
}

/// Returns the desired state of a valid Service as upstream reads its annotations; `None` if that is
/// not possible, or if upstream does not serve the Service.
pub(in crate::lb) fn upstream_reading(
    service: &ServiceView,
    settings: &Settings,
    cluster: &Cluster,
) -> Option<Box<DesiredLoadBalancer>> {
    let ServiceOwnership::Ours(DefaultsSource::CloudProviderAws) =
        service_ownership(service, settings)
    else {
        return None;
    };
    let defaults_source = DefaultsSource::CloudProviderAws;
    let dialect = AnnotationDialect::Upstream;
    let parsed = parse_managed(service, settings, cluster, defaults_source, dialect);
    parsed.desired.filter(|_| parsed.errors.is_empty())
}

/// Returns what a Service says about deletion protection, even if it is invalid. Upstream knows no
/// annotation for that. If another controller is responsible for the Service now, everything counts
/// that may prevent the deletion.
pub(in crate::lb) fn deletion_protection(
    service: &ServiceView,
    settings: &Settings,
) -> DeletionProtection {
    let dialect = match service_ownership(service, settings) {
        ServiceOwnership::Ours(defaults_source) => of(service, settings, defaults_source),
        ServiceOwnership::Classic | ServiceOwnership::Invalid(_) => {
            of(service, settings, DefaultsSource::CloudProviderAws)
        }
        ServiceOwnership::Elsewhere(_) => AnnotationDialect::Extended,
    };
    match dialect {
        AnnotationDialect::Upstream => DeletionProtection::Unspecified,
        AnnotationDialect::Extended => DeletionProtection::of(&service.annotations),
    }
}

/// Returns Warnings that name the annotations which have no effect in the dialect `upstream` and would
/// have one in the dialect `extended`. A note has at most 1 kB, so that there may be several.
pub(super) fn dormant_annotations(
    service: &ServiceView,
    settings: &Settings,
    cluster: &Cluster,
) -> Vec<ServiceNotice> {
    let candidates = a::possibly_dormant(service);
    if candidates.is_empty() {
        return Vec::new();
    }
    let extended = |service: &ServiceView| {
        let source = DefaultsSource::CloudProviderAws;
        parse_managed(service, settings, cluster, source, AnnotationDialect::Extended)
    };
    let with_all = extended(service);
    let mut lists: Vec<String> = Vec::new();
    for key in candidates {
        let mut reduced = service.clone();
        let value = reduced.annotations.remove(&key).unwrap_or_default();
        let without = extended(&reduced);
        if without.desired == with_all.desired && without.errors == with_all.errors {
            continue;
        }
        let name = key.strip_prefix(a::PREFIX).unwrap_or(&key);
        let entry = format!("{name}={value:?}{}", rejection(&key, &with_all));
        match lists.last_mut() {
            Some(list) if list.len() + entry.len() < MAX_LIST_LENGTH => {
                list.push_str(", ");
                list.push_str(&entry);
            }
            _ => lists.push(entry),
        }
    }
    lists.iter().map(|list| dormant_notice(list)).collect()
}

fn dormant_notice(list: &str) -> ServiceNotice {
    let note = format!(
        "upstream's manager ignores these annotations ({}…), and so does this one until {}=extended is set: {list}",
        a::PREFIX,
        a::DIALECT.definition.name
    );
    ServiceNotice {
        kind: EventType::Warning,
        reason: "DormantAnnotations",
        note: note.into(),
    }
}

/// Returns the part of the note that says that an annotation would be rejected, if it would.
fn rejection(key: &str, extended: &ManagedService) -> String {
    let error = extended.errors.iter().find(|error| *error.field == *key);
    error.map_or_else(String::new, |error| format!(" (would be rejected: {})", error.message))
}

/// Adds errors for features that cloud-provider-aws rejects.
pub(super) fn reject_unsupported(reader: &mut SpecReader<'_>) {
    if reader.service.session_affinity != SessionAffinity::None {
        let message = format!("unsupported load balancer affinity: ClientIP{HINT}");
        reader
            .annotations
            .add_error("spec.sessionAffinity", message);
    }
    let protocols: BTreeSet<Protocol> = reader
        .service
        .ports
        .iter()
        .map(|port| port.protocol)
        .collect();
    if protocols.len() > 1 {
        let message = format!("mixed protocol is not supported for LoadBalancer{HINT}");
        reader.annotations.add_error("spec.ports", message);
    }
}

/// Returns the ports that get a listener. Upstream leaves out ports without node port; but a load
/// balancer without any listener is not made here.
pub(super) fn served_ports<'a>(reader: &mut SpecReader<'a>) -> Vec<&'a ServicePort> {
    let all: Vec<&ServicePort> = reader.service.ports.iter().collect();
    if !reader.is_upstream() {
        return all;
    }
    let (served, skipped): (Vec<_>, Vec<_>) = all
        .iter()
        .copied()
        .partition(|port| port.node_port.is_some());
    if served.is_empty() {
        return all;
    }
    for port in skipped {
        let note = format!("port {} has no node port and gets no listener", port.port);
        reader.warn("PortsNotServed", note);
    }
    served
}

/// The entries of `ssl-cert` and `ssl-ports`.
pub(super) struct TlsTexts {
    pub(super) certificates: Vec<Box<str>>,
    pub(super) ports: BTreeSet<Box<str>>,
    pub(super) is_for_all_ports: bool,
}

/// Reads `ssl-cert` as one ARN, and splits `ssl-ports` at commas only. `*` means all ports only if it
/// stands alone.
pub(super) fn tls_texts(reader: &SpecReader<'_>) -> TlsTexts {
    let text = |annotation| reader.annotations.text(annotation).unwrap_or_default();
    let certificate = text(&a::CERTIFICATES.definition);
    let ports = text(&a::TLS_PORTS.definition);
    let is_for_all_ports = ports.is_empty() || ports == "*";
    let mut certificates = Vec::new();
    if !certificate.is_empty() {
        certificates.push(certificate.into());
    }
    TlsTexts {
        certificates,
        ports: if is_for_all_ports {
            BTreeSet::new()
        } else {
            ports.split(',').map(Into::into).collect()
        },
        is_for_all_ports,
    }
}

/// Checks that the timeout of the health check is a number. Its value is never sent to AWS.
pub(super) fn check_timeout(reader: &mut SpecReader<'_>) {
    let definition = &a::HEALTH_TIMEOUT.definition;
    let text = reader.annotations.text(definition).unwrap_or_default();
    if !text.is_empty() && text.parse::<i64>().is_err() {
        let message = format!("failed to parse annotation {}={text}", definition.key());
        reader.annotations.invalid_value(definition, message);
    }
}

//! The checks of Services.

use std::sync::Arc;

use super::{Area, ClusterFinding, Finding};
use crate::{
    k8s::{ServiceFields, ServiceView, well_known},
    provider::{EventType, ServiceInterpretation, ServiceNotice},
};

/// A Service that this provider would serve, with what the provider says of it.
#[derive(Debug)]
pub(crate) struct ReadService {
    pub(crate) service: Arc<ServiceView>,
    pub(crate) interpretation: ServiceInterpretation,
    pub(crate) notices: Vec<ServiceNotice>,
}

/// Checks the Services that this provider would serve.
pub(crate) fn check_served(services: &[ReadService]) -> Vec<Finding> {
    let is_valid =
        |read: &&ReadService| matches!(read.interpretation, ServiceInterpretation::Valid { .. });
    let served = services.iter().filter(is_valid).count();
    let message = format!("Services of type LoadBalancer: {served} for this provider");
    let mut findings = vec![Finding::ok(Area::Services, message)];
    for read in services {
        let key = read.service.key();
        if let ServiceInterpretation::Invalid(errors) = &read.interpretation {
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            let message = format!("{key}: {}", errors.join("; "));
            findings.push(ClusterFinding::ServiceRejected.about(&key, message));
        }
        let warnings = read.notices.iter().filter(|n| n.kind == EventType::Warning);
        for notice in warnings {
            let message = format!("{key}: {}: {}", notice.reason, notice.note);
            findings.push(ClusterFinding::ServiceNotice.about(&key, message));
        }
    }
    findings
}

/// Checks the finalizers of the Services in the cache of the service controller.
pub(crate) fn check_finalizers(
    services: &[Arc<ServiceView>],
    fields: &ServiceFields,
) -> Vec<Finding> {
    let with_finalizer = services.iter().filter(|service| service.has_finalizer());
    with_finalizer
        .filter_map(|service| check_finalizer(service, fields))
        .collect()
}

/// Returns true if a finding is about the finalizer of a manager of another class.
pub(crate) fn is_of_other_class(finding: &Finding) -> bool {
    let kind = &ClusterFinding::TABLE[ClusterFinding::FinalizerOfOtherClass as usize];
    finding.name == kind.name
}

fn check_finalizer(service: &ServiceView, fields: &ServiceFields) -> Option<Finding> {
    let (key, finalizer) = (service.key(), well_known::FINALIZER_LOAD_BALANCER);
    let class = service.class.as_deref();
    if service.is_load_balancer && !fields.claims_class(class) {
        // Without the deletion, the finalizer belongs to the manager that serves the class.
        let class = class.unwrap_or_default();
        let message =
            format!("{key} is being deleted, has {finalizer}, and class {class:?} is not ours");
        return service
            .deleting
            .then(|| ClusterFinding::FinalizerOfOtherClass.about(key, message));
    }
    let state = match (service.deleting, service.is_load_balancer) {
        (true, _) => "is being deleted",
        (false, false) => "is no longer of type LoadBalancer",
        (false, true) => return None,
    };
    let message = format!("{key} {state} and still has {finalizer}");
    Some(ClusterFinding::FinalizerLeft.about(key, message))
}

/// Reports Services that are being deleted and have the finalizer, given their names, if no service
/// controller runs.
pub(crate) fn check_unserved(names: &[String]) -> Vec<Finding> {
    let report = |key: &String| {
        let finalizer = well_known::FINALIZER_LOAD_BALANCER;
        let message = format!(
            "{key} is being deleted, has {finalizer}, and service-lb-controller does not run"
        );
        ClusterFinding::FinalizerWithoutController.about(key, message)
    };
    names.iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::Severity,
        provider::{BackendKind, Digest, FieldError},
    };

    fn read(name: &str, interpretation: ServiceInterpretation) -> ReadService {
        let service = Arc::new(ServiceView::named("shop", name));
        ReadService { service, interpretation, notices: Vec::new() }
    }

    #[test]
    fn invalid_services_and_warnings_are_named() {
        let invalid = vec![FieldError::new("spec.ports", "UDP is not supported")];
        let valid = ServiceInterpretation::Valid {
            backends: BackendKind::Nodes(Vec::new()),
            digest: Digest(1),
        };
        let notice =
            |kind, note: &str| ServiceNotice { kind, reason: "Dormant", note: note.into() };
        let mut served = read("c", valid);
        served.notices =
            vec![notice(EventType::Normal, "moved"), notice(EventType::Warning, "x is ignored")];
        let services = [
            read("a", ServiceInterpretation::ImplementedElsewhere),
            read("b", ServiceInterpretation::Invalid(invalid)),
            served,
        ];
        let findings = check_served(&services);
        let lines: Vec<_> = findings.iter().map(|f| (f.severity, &*f.message)).collect();
        assert_eq!(
            lines,
            [
                (Severity::Ok, "Services of type LoadBalancer: 1 for this provider"),
                (Severity::Error, "shop/b: spec.ports: UDP is not supported"),
                (Severity::Warning, "shop/c: Dormant: x is ignored"),
            ]
        );
        assert!(findings[1].advice.contains("Service shop/b"), "{}", findings[1].advice);
    }

    #[test]
    fn finalizers_that_nobody_removes_are_named() {
        let service = |name: &str, class: Option<&str>, is_load_balancer: bool, deleting: bool| {
            Arc::new(ServiceView {
                class: class.map(Arc::from),
                is_load_balancer,
                deleting,
                finalizers: [well_known::FINALIZER_LOAD_BALANCER.into()].into(),
                ..ServiceView::named("shop", name)
            })
        };
        let fields = ServiceFields { classes: vec!["ours".into()], ..ServiceFields::default() };
        let services = [
            service("served", None, true, false),
            service("served-by-class", Some("ours"), true, false),
            service("elsewhere", Some("other"), true, false),
            service("stuck-elsewhere", Some("other"), true, true),
            service("deleted", Some("ours"), true, true),
            service("converted", None, false, false),
            Arc::new(ServiceView {
                is_load_balancer: false,
                ..ServiceView::named("shop", "plain")
            }),
        ];
        let findings = check_finalizers(&services, &fields);
        let found: Vec<_> = findings.iter().map(|f| (f.name, &*f.object)).collect();
        assert_eq!(
            found,
            [
                ("FinalizerOfOtherClass", "shop/stuck-elsewhere"),
                ("FinalizerLeft", "shop/deleted"),
                ("FinalizerLeft", "shop/converted"),
            ]
        );
        let unserved = check_unserved(&["shop/a".to_owned()]);
        assert!(unserved[0].advice.contains("Service shop/a"), "{}", unserved[0].advice);
    }
}

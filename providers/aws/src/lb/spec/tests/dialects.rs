//! The two dialects: what each reads, row by row and in the cases where upstream reads a value in its
//! own way.

use ccm_core::k8s::SessionAffinity;

use super::{
    table::{named, telling},
    *,
};
use crate::lb::{
    model::UpdateScope,
    spec::annotations::{ALL, Annotation, possibly_dormant},
};

/// Returns true if the row is one that only the dialect `extended` applies.
fn is_dormant(row: &Annotation) -> bool {
    let case = nlb().says(&named(row), "x");
    !possibly_dormant(&case.service).is_empty()
}

/// Returns the note of the Warning about dormant annotations.
fn dormant_note(case: &Case) -> Option<String> {
    let notices = case.read().notices;
    let found = notices
        .iter()
        .find(|notice| notice.reason == "DormantAnnotations");
    if let Some(notice) = found {
        assert_eq!(notice.kind, EventType::Warning);
    }
    found.map(|notice| notice.note.to_string())
}

#[test]
fn every_annotation_that_upstream_ignores_is_dormant_until_the_opt_in() {
    let telling = telling();
    let mut tested = 0;
    for row in ALL.iter().filter(|row| is_dormant(row)) {
        let name = named(row);
        let Some((case, value)) = telling.get(row.name) else {
            continue;
        };
        tested += 1;
        // Upstream's dialect reads the Service as if the annotation were not there.
        let with = case.clone().says(&name, value).upstream();
        assert_eq!(with.wanted(), case.clone().upstream().wanted(), "{name}");
        // It says so, with key and value.
        let note = dormant_note(&with).unwrap_or_default();
        assert!(note.contains(&format!("{name}={value:?}")), "{name}: {note}");
        assert!(note.len() < 1024, "{name}");
        // The annotation of the Service turns it on, whatever the configuration.
        let opted_in = with.says("annotation-dialect", "extended");
        assert_eq!(opted_in.wanted(), case.clone().says(&name, value).wanted(), "{name}");
        assert_eq!(dormant_note(&opted_in), None, "{name}");
        // And the other way round.
        let opted_out = case
            .clone()
            .says(&name, value)
            .says("annotation-dialect", "upstream");
        assert_eq!(opted_out.wanted(), case.clone().upstream().wanted(), "{name}");
    }
    assert_eq!(tested, 20, "rows of the table that are dormant and were compared");
}

#[test]
fn upstreams_dialect_rejects_no_value_that_upstream_ignores() {
    let odd =
        ["x", "-1", "a=b=c,d", "0", "true", " ", "aws:x=1", "1000", "é", "ip", "::1", "yes=no"];
    for row in ALL.iter().filter(|row| is_dormant(row)) {
        for value in odd {
            let case = nlb().says(&named(row), value).upstream();
            // Upstream rejects a timeout that is no number, and sends none.
            if row.name == "healthcheck-timeout" && value.parse::<i64>().is_err() {
                assert_eq!(case.mistakes().len(), 1, "{value:?}");
                continue;
            }
            assert_eq!(case.wanted(), nlb().upstream().wanted(), "{} {value:?}", row.name);
        }
    }
}

#[test]
fn a_warning_names_what_the_opt_in_would_reject() {
    let case = nlb().says("proxy-protocol", "true").upstream();
    let note = dormant_note(&case).unwrap();
    assert!(
        note.contains("proxy-protocol=\"true\" (would be rejected: invalid value true"),
        "{note}"
    );
    // What would change nothing is not dormant.
    for (name, value) in [
        ("nlb-target-type", "instance"),
        ("ip-address-type", "ipv4"),
        ("multi-cluster-target-group", "false"),
        ("scheme", "internet-facing"),
        ("healthcheck-timeout", "10"),
    ] {
        assert_eq!(dormant_note(&nlb().says(name, value).upstream()), None, "{name}");
    }
    assert_eq!(dormant_note(&nlb().says("proxy-protocol", "*")), None, "extended");
}

#[test]
fn a_dialect_that_does_not_exist_is_a_warning() {
    let case = nlb().says("annotation-dialect", "exteded").upstream();
    assert_eq!(case.wanted(), nlb().upstream().wanted());
    let (reason, note) = case.remarks().remove(0);
    assert_eq!(reason, "UnusedAnnotation");
    assert!(note.contains("\"exteded\" is neither upstream nor extended"), "{note}");
}

#[test]
fn what_is_claimed_from_the_load_balancer_controller_is_read_whole() {
    let case = claimed()
        .says("nlb-target-type", "ip")
        .says("annotation-dialect", "upstream")
        .upstream();
    assert_eq!(case.wanted().target_type, TargetType::Ip);
    assert_eq!(case.wanted().updates, UpdateScope::All);
}

/// The protocols of the listeners, by rising port.
fn protocols(case: &Case) -> Vec<&'static str> {
    case.listeners()
        .iter()
        .map(|listener| listener.protocol.as_str())
        .collect()
}

#[test]
fn upstream_splits_ssl_ports_at_commas_only() {
    let tls = |ports: &str| {
        nlb()
            .tcp(443)
            .says("ssl-cert", "arn:a,arn:b")
            .says("ssl-ports", ports)
    };
    // Ports 80 and 443, by the entries: upstream, extended.
    for (ports, upstream, extended) in [
        ("443, 80", ["TCP", "TLS"], ["TLS", "TLS"]),
        ("443,80", ["TLS", "TLS"], ["TLS", "TLS"]),
        ("p443", ["TCP", "TLS"], ["TCP", "TLS"]),
        (" p443", ["TCP", "TCP"], ["TCP", "TLS"]),
        ("*", ["TLS", "TLS"], ["TLS", "TLS"]),
        ("443,*", ["TCP", "TLS"], ["TLS", "TLS"]),
        ("", ["TLS", "TLS"], ["TLS", "TLS"]),
    ] {
        assert_eq!(protocols(&tls(ports).upstream()), upstream, "{ports:?}");
        assert_eq!(protocols(&tls(ports)), extended, "{ports:?}");
    }
    // An empty entry is the name of a port without one.
    let unnamed = bare()
        .port("", Protocol::Tcp, 80, 30080)
        .says("ssl-cert", "arn:a")
        .says("ssl-ports", "443,");
    assert_eq!(protocols(&unnamed.clone().upstream()), ["TLS"]);
    assert_eq!(protocols(&unnamed), ["TCP"]);
    // The whole text is one certificate.
    let certificates = |case: Case| -> Vec<String> {
        let tls = case.listeners()[0].tls.clone().unwrap();
        tls.certificates.iter().map(ToString::to_string).collect()
    };
    assert_eq!(certificates(tls("").upstream()), ["arn:a,arn:b"]);
    assert_eq!(certificates(tls("")), ["arn:a", "arn:b"]);
}

#[test]
fn what_upstream_rejects_is_rejected_with_the_way_out() {
    let affinity = SessionAffinity::ClientIp(std::time::Duration::from_secs(10_800));
    for (case, text) in [
        (nlb().udp(53), "mixed protocol is not supported for LoadBalancer"),
        (
            nlb().spec(|service| service.session_affinity = affinity),
            "unsupported load balancer affinity: ClientIP",
        ),
        (
            nlb().says("target-group-attributes", "stickiness.enabled=true"),
            "the attribute \"stickiness.enabled\" is not supported by the controller or is invalid",
        ),
        (nlb().says("healthcheck-port", "p80"), "Invalid health check port 'p80'"),
    ] {
        let mistakes = case.clone().upstream().mistakes();
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(mistakes[0].contains(text), "{mistakes:?}");
        assert!(mistakes[0].ends_with("extended turns it on"), "{mistakes:?}");
        assert!(case.read().tolerant.is_none(), "{text}: the extended dialect takes it");
    }
}

#[test]
fn what_upstream_reads_only_at_creation_rejects_nothing_later() {
    for case in [
        nlb().says("private-ipv4-addresses", "10.0.0.x"),
        nlb().says("private-ipv4-addresses", "10.0.0.1"),
        nlb()
            .says("internal", "true")
            .says("eip-allocations", "eipalloc-1"),
        nlb()
            .says("subnets", "subnet-1,subnet-2")
            .says("eip-allocations", "eipalloc-1"),
        nlb().says("additional-resource-tags", "aws:x=y"),
        nlb().says("subnets", ","),
    ] {
        assert_eq!(case.mistakes().len(), 1, "{:?}", case.service.annotations);
        let wanted = case.clone().upstream().wanted();
        assert_eq!(wanted.creation_errors.len(), 1, "{:?}", wanted.creation_errors);
        assert_eq!(wanted.updates, UpdateScope::AsCloudProviderAws);
    }
}

#[test]
fn upstream_takes_what_needs_other_settings_here() {
    // Timeout above the interval, and a threshold that AWS would not accept but never gets.
    let health = nlb()
        .says("healthcheck-timeout", "60")
        .says("healthcheck-interval", "10")
        .says("healthcheck-unhealthy-threshold", "99");
    assert_eq!(health.mistakes().len(), 2);
    let check = health.upstream().listener().target_group.health_check;
    assert_eq!((check.interval, check.timeout, check.unhealthy), (10, 10, 99));
    // The port of a health check that mode `Shared` replaces.
    let shared = nlb()
        .says("healthcheck-port", "no such port")
        .set(|settings| {
            settings.shared_health_probe = Some(crate::config::SharedProbe {
                port: 10256.try_into().unwrap(),
                path: "/healthz".into(),
            });
        });
    assert_eq!(shared.mistakes().len(), 1);
    shared.upstream().wanted();
    // A port without node port, beside one that has one.
    let half = nlb().port("p81", Protocol::Tcp, 81, 0);
    assert_eq!(
        half.mistakes(),
        ["unable to support instance target type with an unallocated NodePort"]
    );
    let half = half.upstream();
    assert_eq!(half.listener().port.get(), 80);
    assert_eq!(half.remarks()[0].0, "PortsNotServed");
    // An IPv6 Service.
    let v6 = nlb().spec(|service| service.ip_families = [ccm_core::k8s::IpFamily::V6].into());
    assert_eq!(v6.mistakes().len(), 1);
    assert_eq!(v6.upstream().wanted(), nlb().upstream().wanted());
    // IPv6 ranges of which no rule is made.
    let ranges = nlb()
        .says("service.beta.kubernetes.io/load-balancer-source-ranges", "::/0")
        .set(|settings| settings.disable_security_group_ingress = true);
    assert_eq!(ranges.mistakes().len(), 1);
    ranges.clone().upstream().wanted();
    let with_rules = ranges.set(|settings| settings.disable_security_group_ingress = false);
    assert_eq!(with_rules.upstream().mistakes().len(), 1);
}

#[test]
fn upstreams_rules_on_nodes_do_not_depend_on_the_preservation_of_addresses() {
    let case = nlb()
        .says("target-group-attributes", "preserve_client_ip.enabled=false")
        .says("service.beta.kubernetes.io/load-balancer-source-ranges", "10.0.0.0/8");
    assert!(!case.listener().target_group.preserves_client_ip);
    let case = case.upstream();
    let group = case.listener().target_group;
    assert!(group.preserves_client_ip);
    assert_eq!(pairs(&group.attributes), [("preserve_client_ip.enabled", "false")]);
    assert_eq!(case.remarks()[0].0, "SourceRangesNotEnforced");
}

#[test]
fn upstream_knows_no_protection_by_annotation() {
    let case = nlb().says("attributes", "deletion_protection.enabled=true");
    let of = |case: &Case| deletion_protection(&case.service, &case.settings);
    assert_eq!(of(&case), DeletionProtection::Enabled);
    assert_eq!(of(&case.clone().upstream()), DeletionProtection::Unspecified);
    // If another controller may be responsible now, everything counts that may prevent it.
    let elsewhere = case.upstream().says("type", "external");
    assert_eq!(of(&elsewhere), DeletionProtection::Enabled);
}

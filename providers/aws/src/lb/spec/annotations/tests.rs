use std::collections::BTreeSet;

use super::*;

fn service(pairs: &[(&str, &str)]) -> ServiceView {
    let mut service = ServiceView::named("ns", "name");
    service.annotations = pairs
        .iter()
        .map(|(key, value)| (Arc::from(*key), Arc::from(*value)))
        .collect();
    service
}

/// The page in docs/reference is this one; `CCM_UPDATE_REFERENCE=1` writes it anew.
#[test]
fn reference_page_matches_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/aws-annotations.md");
    let page = reference();
    if std::env::var_os("CCM_UPDATE_REFERENCE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/reference/aws-annotations.md is out of date: \
         CCM_UPDATE_REFERENCE=1 cargo test -p ccm-aws reference_page"
    );
}

#[test]
fn every_row_is_there_once_and_says_what_it_does() {
    let mut keys = BTreeSet::new();
    for row in ALL {
        assert!(keys.insert(row.key()), "{} is there twice", row.name);
        assert!(
            !row.effect.is_empty() || row.without_effect.is_some(),
            "{} says nothing",
            row.name
        );
        assert_eq!(row.name.ends_with('.'), !row.port.is_empty(), "{}", row.name);
    }
}

#[test]
fn keys_with_a_port_are_told_from_those_without() {
    let service = service(&[
        ("service.beta.kubernetes.io/aws-load-balancer-target-group-attributes", "a.b=0"),
        ("service.beta.kubernetes.io/aws-load-balancer-target-group-attributes.443", "a.b=2"),
        ("service.beta.kubernetes.io/aws-load-balancer-target-group-attributes.80", "a.b=1"),
        ("service.beta.kubernetes.io/aws-load-balancer-target-group-attributes.81", ""),
        ("service.beta.kubernetes.io/aws-load-balancer-target-node-labels", "x"),
    ]);
    let mut reader = AnnotationReader::new(&service, AnnotationDialect::Extended);
    assert_eq!(reader.get(&TARGET_ATTRIBUTES).unwrap().len(), 1);
    let ports: Vec<_> = reader
        .each(&PORT_TARGET_ATTRIBUTES)
        .into_iter()
        .map(|(port, _)| port)
        .collect();
    assert_eq!(ports, ["443", "80"]);
    assert!(reader.finish().is_empty());
}

#[test]
fn a_mistake_names_the_whole_key_and_is_told_once() {
    let bad = "service.beta.kubernetes.io/aws-load-balancer-listener-attributes.TCP-80";
    let service = service(&[(bad, "nonsense")]);
    let mut reader = AnnotationReader::new(&service, AnnotationDialect::Extended);
    for _ in 0..2 {
        assert!(reader.each(&LISTENER_ATTRIBUTES).is_empty());
    }
    let message = format!("failed to parse stringMap annotation, {bad}: nonsense");
    assert_eq!(reader.finish(), [FieldError::new(bad, message)]);
}

#[test]
fn what_has_no_effect_is_listed_with_the_reason() {
    let service = service(&[
        ("service.beta.kubernetes.io/actions.TCP-80", "{}"),
        ("service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout", "60"),
        ("service.beta.kubernetes.io/aws-load-balancer-listener-attributes.TCP-80", "a=b"),
        ("service.beta.kubernetes.io/aws-load-balancer-tpye", "nlb"),
        ("service.beta.kubernetes.io/aws-load-balancer-type", "nlb"),
        ("service.beta.kubernetes.io/load-balancer-source-ranges", "10.0.0.0/8"),
        ("somebody.else/annotation", "x"),
    ]);
    let names: Vec<_> = ignored_annotations(&service);
    assert_eq!(
        names,
        [
            ("service.beta.kubernetes.io/actions.TCP-80", "not supported here"),
            (
                "service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout",
                "for classic load balancers only"
            ),
            ("service.beta.kubernetes.io/aws-load-balancer-tpye", "unknown"),
        ]
    );
}

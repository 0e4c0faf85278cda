//! Tests of reading annotations.

use std::fmt::Write as _;

use super::*;

/// Keys with values.
type Given<'a> = &'a [(&'a str, &'a str)];

fn service(annotations: &[(&str, &str)]) -> ServiceView {
    let annotations = annotations
        .iter()
        .map(|(key, value)| (Arc::from(*key), Arc::from(*value)))
        .collect();
    ServiceView { annotations, ..ServiceView::named("ns", "web") }
}

// A11 A12 A13
#[test]
fn numbers_that_are_none_leave_the_default() {
    for (given, wanted, notes) in
        [(None, 1, 0), (Some("2"), 2, 0), (Some("bar"), 1, 1), (Some(""), 1, 1)]
    {
        let key = CONNECTION_LIMIT.key();
        let given: Vec<_> = given.iter().map(|text| (&*key, *text)).collect();
        let service = service(&given);
        let mut reader = AnnotationReader::new(&service);
        assert_eq!(reader.integer(&CONNECTION_LIMIT, 1), wanted, "{given:?}");
        assert_eq!(reader.finish().ignored.len(), notes, "{given:?}");
    }
}

// A14 A15 A16 A17
#[test]
fn truths_are_true_and_false_alone() {
    let cases = [
        (None, true, true, 0),
        (Some("true"), false, true, 0),
        (Some("false"), true, false, 0),
        (Some("invalid"), true, true, 1),
        (Some("True"), false, false, 1),
    ];
    for (given, default, wanted, notes) in cases {
        let key = MONITOR.key();
        let given: Vec<_> = given.iter().map(|text| (&*key, *text)).collect();
        let service = service(&given);
        let mut reader = AnnotationReader::new(&service);
        assert_eq!(reader.boolean(&MONITOR, default), wanted, "{given:?}");
        assert_eq!(reader.finish().ignored.len(), notes, "{given:?}");
    }
}

// A19 A20 A21 A22 A23 A24 A25 A26
#[test]
fn a_text_that_is_there_wins_even_when_it_is_empty() {
    let key = CLASS.key();
    let cases: [(Given<'_>, &str, &str); 7] = [
        (&[], "", ""),
        (&[(&key, "given")], "default", "given"),
        (&[], "default", "default"),
        (&[(&key, "given")], "", "given"),
        (&[("other", "given")], "default", "default"),
        (&[("other", "given")], "", ""),
        (&[(&key, "")], "default", ""),
    ];
    for (given, default, wanted) in cases {
        let named = service(given);
        assert_eq!(AnnotationReader::new(&named).text(&CLASS, default), wanted, "{given:?}");
        let unnamed = ServiceView { name: "".into(), namespace: "".into(), ..named };
        assert_eq!(AnnotationReader::new(&unnamed).text(&CLASS, default), wanted, "{given:?}");
    }
}

// U01 U02 U03 U04 U05
#[test]
fn pairs_are_read_loosely() {
    let cases: [(&str, Given<'_>); 6] = [
        ("k1=v1,k2=v2", &[("k1", "v1"), ("k2", "v2")]),
        ("k1=v1,k2=v2=true", &[("k1", "v1"), ("k2", "v2=true")]),
        ("k1,k2", &[("k1", ""), ("k2", "")]),
        (" k1=v1, k2 ", &[("k1", "v1"), ("k2", "")]),
        ("k3=v3,=emptykey", &[("", "emptykey"), ("k3", "v3")]),
        ("", &[]),
    ];
    for (text, wanted) in cases {
        let found = parse_pairs(text);
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|(key, value)| (&**key, &**value))
            .collect();
        assert_eq!(found, wanted, "{text:?}");
    }
}

// F01 F02 F03 F04 F05 F06
#[test]
fn nodes_must_meet_every_requirement() {
    let node = |labels: &[(&str, &str)]| {
        let labels = labels
            .iter()
            .map(|(key, value)| (Arc::from(*key), Arc::from(*value)))
            .collect();
        ccm_core::k8s::NodeView { labels, ..ccm_core::k8s::NodeView::named("n1") }
    };
    let cases: [(&str, Given<'_>, bool); 6] = [
        ("", &[], true),
        ("k1=v1,k2=v2", &[("k1", "v1"), ("k2", "v2")], true),
        ("k1=v1,k2=v2=true", &[("k1", "v1"), ("k2", "v2=true")], true),
        ("k1,k2", &[("k1", "v1"), ("k2", "")], true),
        (" k1=v1, k2 ", &[("k1", "v1")], false),
        ("k3=v3", &[("k1", "v1"), ("k2", "v2")], false),
    ];
    for (text, labels, wanted) in cases {
        let node = node(labels);
        assert_eq!(
            parse_selector(text)
                .iter()
                .all(|requirement| requirement.matches(&node)),
            wanted,
            "{text:?}"
        );
    }
}

#[test]
fn keys_are_whole_and_unknown_ones_are_found() {
    assert_eq!(&*CLASS.key(), "loadbalancer.openstack.org/class");
    assert_eq!(&*INTERNAL.key(), "service.beta.kubernetes.io/openstack-internal-load-balancer");
    let service = service(&[
        ("loadbalancer.openstack.org/clas", "x"),
        ("loadbalancer.openstack.org/class", "x"),
        ("a", "b"),
    ]);
    assert_eq!(find_unknown(&service), ["loadbalancer.openstack.org/clas"]);
}

/// The page in docs/reference is this one; `CCM_UPDATE_REFERENCE=1` writes it anew.
#[test]
fn reference_page_of_annotations_matches_the_table() {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openstack-annotations.md");
    let mut page = include_str!("reference-head.md").to_owned();
    for Annotation { name, kind, default, effect, applies_to_existing } in ALL {
        let kind = format!("{kind:?}").to_lowercase();
        writeln!(page, "| `{name}` | {kind} | {default} | {effect} | {applies_to_existing} |")
            .unwrap();
    }
    if std::env::var_os("CCM_UPDATE_REFERENCE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/reference/openstack-annotations.md is out of date: \
         CCM_UPDATE_REFERENCE=1 cargo test -p ccm-openstack reference_page"
    );
}

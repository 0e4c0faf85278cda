use super::*;

fn meta(additional: &[(&str, &str)]) -> InstanceMetadata {
    InstanceMetadata {
        additional_labels: additional
            .iter()
            .map(|(k, v)| ((*k).into(), (*v).into()))
            .collect(),
        ..Default::default()
    }
}

fn labels(entries: &[(&'static str, &'static str)]) -> LabelMap {
    entries.iter().copied().collect()
}

fn set(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn type_zone_and_region_overwrite_and_empty_ones_make_no_label() {
    let meta = InstanceMetadata {
        instance_type: Some("m1".into()),
        zone: Some("z-a".into()),
        region: Some("".into()),
        ..Default::default()
    };
    let plan = initial_labels(
        &meta,
        &labels(&[(well_known::LABEL_ZONE, "other"), (well_known::LABEL_INSTANCE_TYPE, "m1")]),
    );
    let wanted = set(&[
        (well_known::LABEL_INSTANCE_TYPE_BETA, "m1"),
        (well_known::LABEL_ZONE, "z-a"),
        (well_known::LABEL_ZONE_BETA, "z-a"),
    ]);
    assert_eq!(plan, LabelPlan { set: wanted, sets_additional: false, dropped: vec![] });
}

#[test]
fn reserved_additional_labels_are_dropped_and_present_ones_kept() {
    let existing = labels(&[("foo", "fizz"), ("same", "value")]);
    let plan = initial_labels(
        &meta(&[
            ("k8s.io/x", "1"),
            ("kubernetes.io/x", "1"),
            ("topology.kubernetes.io/x", "1"),
            ("app.k8s.io/x", "1"),
            ("app.k8snio/bar", "1"),
            ("k8snio/bar", "1"),
            ("notk8s.io/bar", "1"),
            ("foo", "bar"),
            ("same", "value"),
        ]),
        &existing,
    );
    assert_eq!(
        plan.set,
        set(&[("app.k8snio/bar", "1"), ("k8snio/bar", "1"), ("notk8s.io/bar", "1")])
    );
    assert!(plan.sets_additional);
    let dropped: Vec<_> = plan
        .dropped
        .iter()
        .map(|d| (d.key.as_str(), d.reason))
        .collect();
    assert_eq!(
        dropped,
        [
            ("app.k8s.io/x", DropReason::Reserved),
            ("foo", DropReason::Different),
            ("k8s.io/x", DropReason::Reserved),
            ("kubernetes.io/x", DropReason::Reserved),
            ("topology.kubernetes.io/x", DropReason::Reserved),
        ]
    );
}

#[test]
fn labels_that_the_api_server_would_reject_are_dropped() {
    let long = "a".repeat(64);
    let plan = initial_labels(
        &InstanceMetadata {
            zone: Some("zone with spaces".into()),
            ..meta(&[
                ("example.com/ok", "x"),
                ("empty", ""),
                ("bad value", "x"),
                ("Upper.example/x", "x"),
                ("a", "-b"),
                (&long, "x"),
                ("b", &long),
                ("/x", "x"),
                ("x/", "x"),
            ])
        },
        &LabelMap::default(),
    );
    assert_eq!(plan.set, set(&[("empty", ""), ("example.com/ok", "x")]));
    assert_eq!(plan.dropped.len(), 9);
    assert!(plan.dropped.iter().all(|d| d.reason == DropReason::Invalid), "{:?}", plan.dropped);
}

#[test]
fn a_refresh_adds_and_replaces_additional_labels_and_removes_none() {
    let plan = refreshed_labels(
        &InstanceMetadata {
            zone: Some("moved".into()),
            ..meta(&[("host", "b"), ("new", "1"), ("k8s.io/x", "1")])
        },
        &labels(&[("host", "a"), ("mine", "x"), (well_known::LABEL_ZONE, "z")]),
    );
    assert_eq!(
        plan.set,
        set(&[("host", "b"), ("new", "1")]),
        "the zone never moves after initialisation"
    );
}

#[test]
fn stable_labels_copy_their_beta_twins() {
    let mut node = NodeView::named("n");
    let beta = [
        (well_known::LABEL_ZONE_BETA, "z"),
        (well_known::LABEL_REGION_BETA, "r"),
        (well_known::LABEL_INSTANCE_TYPE_BETA, "t"),
    ];
    let copies = [
        (well_known::LABEL_ZONE, "z"),
        (well_known::LABEL_REGION, "r"),
        (well_known::LABEL_INSTANCE_TYPE, "t"),
    ];
    let wanted: BTreeMap<_, _> = copies.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();

    node.labels = labels(&beta);
    assert_eq!(reconciled_labels(&node), wanted, "missing copies are added");
    node.labels = [&beta[..], &copies[..]].concat().into_iter().collect();
    assert!(reconciled_labels(&node).is_empty(), "equal pairs need nothing");
    node.labels = [
        &beta[..],
        &[
            (well_known::LABEL_ZONE, "x"),
            (well_known::LABEL_REGION, "x"),
            (well_known::LABEL_INSTANCE_TYPE, "x"),
        ],
    ]
    .concat()
    .into_iter()
    .collect();
    assert_eq!(reconciled_labels(&node), wanted, "differing copies are overwritten");
    node.labels = labels(&copies);
    assert!(reconciled_labels(&node).is_empty(), "without a beta label nothing is done");
}

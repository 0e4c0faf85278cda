use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::k8s::{ConditionStatus, OwnCondition, Protocol};

const OURS: &str = well_known::FINALIZER_LOAD_BALANCER;

fn service(finalizers: &[&str]) -> ServiceView {
    let finalizers = finalizers.iter().map(|f| Arc::from(*f)).collect();
    ServiceView {
        uid: "u".into(),
        resource_version: "7".into(),
        finalizers,
        ..ServiceView::named("ns", "web")
    }
}

fn with_status(service: ServiceView) -> ServiceView {
    let ingress = LbIngress { ip: Some("1.2.3.4".parse().unwrap()), ..LbIngress::default() };
    ServiceView { status: LbStatus { ingress: vec![ingress] }, ..service }
}

fn annotated(annotations: &[(&str, &str)], service: ServiceView) -> ServiceView {
    let annotations = annotations
        .iter()
        .map(|(key, value)| (Arc::from(*key), Arc::from(*value)))
        .collect();
    ServiceView { annotations, ..service }
}

fn merge(patch: Option<Patch>) -> Value {
    match patch {
        None => Value::Null,
        Some(Patch::Merge(body)) => body,
        Some(other) => panic!("{other:?}"),
    }
}

#[test]
fn only_what_differs_is_published() {
    let none = BTreeMap::new();
    let plain = service(&[OURS]);
    let shown = with_status(plain.clone());
    assert_eq!(status_patch(&shown, Some(&shown.status), &none), None, "same");
    assert_eq!(status_patch(&shown, None, &none), None, "left as it is");
    assert_eq!(status_patch(&plain, Some(&LbStatus::default()), &none), None, "nothing to clear");
    let ingress = json!([{"ip": "1.2.3.4"}]);
    let set = json!({"metadata": {"uid": "u"}, "status": {"loadBalancer": {"ingress": ingress}}});
    assert_eq!(merge(status_patch(&plain, Some(&shown.status), &none)), set);
    let clear = json!({"metadata": {"uid": "u"}, "status": {"loadBalancer": {"ingress": []}}});
    assert_eq!(merge(status_patch(&shown, Some(&LbStatus::default()), &none)), clear);
}

#[test]
fn annotations_ride_along_with_the_status_and_only_those_that_differ() {
    let service = annotated(
        &[("same", "1"), ("old", "1"), ("gone", "1"), ("foreign", "1")],
        service(&[OURS]),
    );
    let wanted = [
        ("same", Some("1")),
        ("old", Some("2")),
        ("gone", None),
        ("absent", None),
        ("new", Some("3")),
    ];
    let wanted = wanted
        .map(|(key, value)| (Box::from(key), value.map(Box::from)))
        .into();
    let annotations = json!({"old": "2", "gone": null, "new": "3"});
    let expected = json!({"metadata": {"uid": "u", "annotations": annotations}});
    assert_eq!(merge(status_patch(&service, None, &wanted)), expected);
    let both = merge(status_patch(&service, Some(&with_status(service.clone()).status), &wanted));
    assert_eq!((&both["metadata"], both["status"].is_null()), (&expected["metadata"], false));
}

#[test]
fn an_entry_point_is_written_whole() {
    let error = LbPortStatus {
        port: 80.try_into().unwrap(),
        protocol: Protocol::Sctp,
        error: Some("PortInUse".into()),
    };
    let status = LbStatus {
        ingress: vec![LbIngress {
            ip: None,
            hostname: Some("lb.example".into()),
            ip_mode: Some("Proxy".into()),
            ports: vec![error],
        }],
    };
    let written = merge(status_patch(&service(&[]), Some(&status), &BTreeMap::new()));
    let port = json!({"port": 80, "protocol": "SCTP", "error": "PortInUse"});
    let entry = json!({"hostname": "lb.example", "ipMode": "Proxy", "ports": [port]});
    assert_eq!(written["status"]["loadBalancer"]["ingress"], json!([entry]));
}

fn paths(operations: &[PatchOp]) -> Vec<String> {
    let line = |operation: &PatchOp| match operation {
        PatchOp::Test { path, value } => format!("test {path} {value}"),
        PatchOp::Add { path, value } => format!("add {path} {value}"),
        PatchOp::Replace { path, value } => format!("replace {path} {value}"),
        PatchOp::Remove { path } => format!("remove {path}"),
    };
    operations.iter().map(line).collect()
}

#[test]
fn a_release_takes_off_what_is_ours_and_is_nothing_where_nothing_is() {
    let identity =
        [r#"test /metadata/uid "u""#, r#"test /metadata/resourceVersion "7""#].map(str::to_owned);
    let finalizer = |at: usize| {
        [
            format!("test /metadata/finalizers/{at} {OURS:?}"),
            format!("remove /metadata/finalizers/{at}"),
        ]
    };
    let status = ["add /status/loadBalancer {}".to_owned()];
    let stale = ["example/a".into(), "absent".into()];
    let annotation = [
        r#"test /metadata/annotations/example~1a "1""#,
        "remove /metadata/annotations/example~1a",
    ];
    let with_annotation = || annotated(&[("example/a", "1"), ("b", "2")], service(&[OURS]));
    let deleting = ServiceView { deleting: true, ..with_status(with_annotation()) };
    let all = |parts: &[&[String]]| [&identity[..], &parts.concat()].concat();
    for (name, service, expected) in [
        ("nothing of ours", service(&[]), vec![]),
        ("finalizers of others alone", service(&["x", "y"]), vec![]),
        ("ours alone", service(&[OURS]), all(&[&finalizer(0)])),
        ("ours among others", service(&["x", OURS, "y"]), all(&[&finalizer(1)])),
        ("a status alone", with_status(service(&["x"])), all(&[&status])),
        ("both", with_status(service(&[OURS])), all(&[&finalizer(0), &status])),
        (
            "an annotation",
            with_annotation(),
            all(&[&finalizer(0), &annotation.map(str::to_owned)]),
        ),
        ("what is deleted goes as a whole", deleting, all(&[&finalizer(0)])),
    ] {
        assert_eq!(paths(&release_operations(&service, &stale)), expected, "{name}");
    }
}

#[test]
fn our_condition_is_released_at_its_place_and_only_if_it_is_still_there() {
    let condition = OwnCondition {
        index: 1,
        status: ConditionStatus::True,
        reason: "LoadBalancerServed".into(),
        observed_generation: 0,
    };
    let served = ServiceView { own_condition: Some(condition.into()), ..service(&[]) };
    let expected = [
        r#"test /metadata/uid "u""#,
        r#"test /metadata/resourceVersion "7""#,
        r#"test /status/conditions/1/type "service.cloud-controller-manager/LoadBalancerReady""#,
        "remove /status/conditions/1",
    ];
    assert_eq!(paths(&release_operations(&served, &[])), expected);
    let deleting = ServiceView { deleting: true, ..served };
    assert_eq!(paths(&release_operations(&deleting, &[])), [""; 0], "it goes as a whole");
}

#[test]
fn a_condition_rides_along_with_the_status() {
    let plain = service(&[OURS]);
    let status = with_status(plain.clone()).status;
    let entry = json!({"type": "t"});
    let with = status_patch(&plain, Some(&status), &BTreeMap::new());
    let with = with_condition(&plain, with, entry.clone());
    let ingress = json!([{"ip": "1.2.3.4"}]);
    let expected = json!({"metadata": {"uid": "u"},
        "status": {"loadBalancer": {"ingress": ingress}, "conditions": [entry.clone()]}});
    assert_eq!(with, Patch::Strategic(expected));
    let alone = json!({"metadata": {"uid": "u"}, "status": {"conditions": [entry.clone()]}});
    assert_eq!(with_condition(&plain, None, entry), Patch::Strategic(alone));
}

/// Applies what concerns finalizers as the server does: all or, when a test fails, nothing.
fn apply(operations: &[PatchOp], finalizers: &[&str]) -> Option<Vec<String>> {
    let mut list: Vec<String> = finalizers.iter().map(ToString::to_string).collect();
    let index = |path: &str| {
        path.strip_prefix("/metadata/finalizers/")
            .map(|at| at.parse::<usize>().unwrap())
    };
    for operation in operations {
        match operation {
            PatchOp::Test { path, value } => {
                if let Some(at) = index(path)
                    && list.get(at).map(|f| &**f) != value.as_str()
                {
                    return None;
                }
            }
            PatchOp::Remove { path } => {
                if let Some(at) = index(path) {
                    list.remove(at);
                }
            }
            other => panic!("{other:?}"),
        }
    }
    Some(list)
}

proptest! {
    /// W9: upstream removes the whole list when ours was the only one in its cache.
    #[test]
    fn a_release_never_removes_a_finalizer_of_somebody_else(
        seen in prop::sample::subsequence(vec!["x", OURS, "y", "z"], 0..4).prop_shuffle(),
        meanwhile in prop::sample::subsequence(vec!["x", OURS, "y", "z", "new"], 0..5).prop_shuffle(),
    ) {
        let operations = release_operations(&service(&seen), &[]);
        if let Some(left) = apply(&operations, &meanwhile) {
            let foreign = |list: &[&str]| list.iter().filter(|f| **f != OURS).map(ToString::to_string).collect::<Vec<_>>();
            let kept: Vec<&str> = left.iter().map(|f| &**f).collect();
            prop_assert_eq!(foreign(&kept), foreign(&meanwhile));
            prop_assert!(!kept.contains(&OURS) || !seen.contains(&OURS));
        }
        prop_assert!(apply(&operations, &seen).is_some_and(|left| !left.contains(&OURS.to_owned())));
    }
}

//! Arbitrary JSON for property tests: random values under the field names that the code looks at,
//! since text drawn at random would never name one.

use proptest::prelude::*;
use serde_json::{Map, Value};

const FIELDS: &[&str] = &[
    "metadata",
    "spec",
    "status",
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "uid",
    "type",
    "ports",
    "port",
    "nodePort",
    "protocol",
    "targetPort",
    "clusterIP",
    "clusterIPs",
    "ipFamilies",
    "taints",
    "key",
    "value",
    "effect",
    "podCIDR",
    "podCIDRs",
    "providerID",
    "conditions",
    "addresses",
    "address",
    "loadBalancer",
    "ingress",
    "ip",
    "selector",
    "externalIPs",
    "state",
    "waiting",
    "terminated",
    "reason",
    "containerStatuses",
    "restartCount",
    "initContainerStatuses",
    "subsets",
    "endpoints",
    "involvedObject",
    "regarding",
    "series",
    "count",
    "data",
    "holderIdentity",
    "leaseDurationSeconds",
    "firstTimestamp",
    "eventTime",
    "sessionAffinityConfig",
    "clientIP",
    "sessionAffinity",
    "externalTrafficPolicy",
    "appProtocol",
    "loadBalancerSourceRanges",
    "ownerReferences",
    "addressType",
];

const WORDS: &[&str] = &[
    "",
    "a",
    "ClusterIP",
    "NodePort",
    "LoadBalancer",
    "ExternalName",
    "TCP",
    "None",
    "10.0.0.1",
    "fd00::1",
    "10.0.0.0/24",
    "2026-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "NoSchedule",
    "Local",
    "ClientIP",
    "Ready",
    "True",
    "-",
    "a/b/c",
    "é",
];

/// Returns a JSON value of at most a few levels.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-2i64..70_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(WORDS).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let field = prop_oneof![4 => prop::sample::select(FIELDS).prop_map(str::to_owned), 1 => ".{0,4}".prop_map(String::from)];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            3 => prop::collection::vec((field.clone(), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

use proptest::prelude::*;

use super::*;
use crate::apiserver::resources::{all, find};
use crate::apiserver::test_json::any_json;

const NOW: &str = "2026-03-01T12:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn def(plural: &str) -> &'static ResourceDef {
    all().iter().find(|d| d.plural == plural).unwrap()
}

/// Column names and cells of one object, as one row of text per column.
fn printed(plural: &str, object: Value) -> Vec<(String, String)> {
    let table = to_table(def(plural), &[object], IncludeObject::None, now());
    let names = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap().to_owned());
    let cells = table["rows"][0]["cells"].as_array().unwrap().iter();
    names
        .zip(cells.map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_owned)))
        .collect()
}

fn cell(plural: &str, column: &str, object: Value) -> String {
    printed(plural, object)
        .into_iter()
        .find(|(name, _)| name == column)
        .unwrap()
        .1
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
        .collect()
}

fn meta(name: &str) -> Value {
    json!({"name": name, "creationTimestamp": "2026-03-01T11:57:00Z", "resourceVersion": "7"})
}

#[test]
fn a_node_shows_what_kubectl_users_expect() {
    let node = json!({
        "metadata": {
            "name": "n1", "creationTimestamp": "2026-03-01T11:57:00Z",
            "labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge", "node-role.kubernetes.io/": ""},
        },
        "spec": {"unschedulable": true},
        "status": {
            "conditions": [{"type": "Ready", "status": "Unknown"}],
            "addresses": [
                {"type": "Hostname", "address": "n1"},
                {"type": "InternalIP", "address": "10.0.0.1"},
                {"type": "InternalIP", "address": "fd00::1"},
            ],
            "nodeInfo": {"kubeletVersion": "v1.36.3", "kernelVersion": "6.1.0", "architecture": "arm64", "osImage": "Linux"},
        },
    });
    assert_eq!(
        printed("nodes", node),
        owned(&[
            ("Name", "n1"),
            ("Status", "NotReady,SchedulingDisabled"),
            ("Roles", "edge,worker"),
            ("Age", "3m"),
            ("Version", "v1.36.3"),
            ("Internal-IP", "10.0.0.1"),
            ("External-IP", "<none>"),
            ("OS-Image", "Linux"),
            ("Kernel-Version", "6.1.0 (arm64)"),
            ("Container-Runtime", "<unknown>"),
        ])
    );
}

#[test]
fn node_status_follows_the_ready_condition() {
    let with =
        |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    assert_eq!(cell("nodes", "Status", with("True")), "Ready");
    assert_eq!(cell("nodes", "Status", with("False")), "NotReady");
    assert_eq!(cell("nodes", "Status", json!({})), "Unknown");
    assert_eq!(cell("nodes", "Roles", json!({})), "<none>");
}

#[test]
fn a_service_shows_its_addresses_by_type() {
    let service = |spec: Value| json!({"metadata": meta("web"), "spec": spec});
    let spec = json!({
        "type": "NodePort", "clusterIPs": ["10.96.0.9"], "selector": {"b": "2", "a": "1"},
        "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}],
    });
    assert_eq!(
        printed("services", service(spec)),
        owned(&[
            ("Name", "web"),
            ("Type", "NodePort"),
            ("Cluster-IP", "10.96.0.9"),
            ("External-IP", "<none>"),
            ("Port(s)", "80:30080/TCP,53/UDP"),
            ("Age", "3m"),
            ("Selector", "a=1,b=2"),
        ])
    );
    let external = |spec: Value, status: Value| {
        cell("services", "External-IP", json!({"spec": spec, "status": status}))
    };
    let ingress = json!({"loadBalancer": {"ingress": [{"hostname": "lb.example"}, {"ip": "192.0.2.7", "hostname": "x"}]}});
    assert_eq!(external(json!({"type": "LoadBalancer"}), json!({})), "<pending>");
    assert_eq!(external(json!({"type": "LoadBalancer"}), ingress.clone()), "192.0.2.7,lb.example");
    let with_ips = json!({"type": "LoadBalancer", "externalIPs": ["198.51.100.1"]});
    assert_eq!(external(with_ips, ingress), "192.0.2.7,lb.example,198.51.100.1");
    assert_eq!(
        external(json!({"type": "ClusterIP", "externalIPs": ["198.51.100.1"]}), json!({})),
        "198.51.100.1"
    );
    assert_eq!(
        external(json!({"type": "ExternalName", "externalName": "db.example"}), json!({})),
        "db.example"
    );
    assert_eq!(cell("services", "Cluster-IP", json!({})), "<none>");
    assert_eq!(cell("services", "Port(s)", json!({})), "<none>");
}

#[test]
fn an_event_shows_when_and_what_it_is_about() {
    let event = json!({
        "metadata": {"name": "n1.1"}, "type": "Normal", "reason": "Synced", "message": " Node synced\n", "count": 4,
        "firstTimestamp": "2026-03-01T11:00:00Z", "lastTimestamp": "2026-03-01T11:59:30Z",
        "involvedObject": {"kind": "Node", "name": "n1", "fieldPath": "spec"},
        "source": {"component": "cloud-node-controller", "host": "h"},
    });
    let want = owned(&[
        ("Last Seen", "30s"),
        ("Type", "Normal"),
        ("Reason", "Synced"),
        ("Object", "node/n1"),
        ("Subobject", "spec"),
        ("Source", "cloud-node-controller, h"),
        ("Message", "Node synced"),
        ("First Seen", "60m"),
        ("Count", "4"),
        ("Name", "n1.1"),
    ]);
    assert_eq!(printed("events", event), want);

    let series = json!({"eventTime": "2026-03-01T11:00:00.000000Z", "reportingController": "c",
        "series": {"count": 9, "lastObservedTime": "2026-03-01T11:59:59.000000Z"}});
    assert_eq!(cell("events", "Last Seen", series.clone()), "1s");
    assert_eq!(cell("events", "First Seen", series.clone()), "60m");
    assert_eq!(cell("events", "Count", series.clone()), "9");
    assert_eq!(cell("events", "Source", series), "c");
    assert_eq!(cell("events", "Count", json!({})), "1");
}

#[test]
fn the_newer_event_group_prints_alike() {
    let event = json!({"note": "hello", "regarding": {"kind": "Service", "name": "web"}, "deprecatedCount": 3,
        "deprecatedLastTimestamp": "2026-03-01T11:59:55Z", "deprecatedSource": {"component": "service-controller"}});
    let def = find("events.k8s.io", "v1", "events").unwrap();
    let table = to_table(def, &[event], IncludeObject::None, now());
    let cells = &table["rows"][0]["cells"];
    assert_eq!(
        (&cells[0], &cells[3], &cells[6], &cells[8]),
        (&json!("5s"), &json!("service/web"), &json!("hello"), &json!(3))
    );
    assert_eq!(cells[5], "service-controller");
}

#[test]
fn small_kinds_show_their_own_columns() {
    let printed = |plural: &str, mut object: Value| -> Vec<String> {
        object["metadata"] = meta("x");
        printed(plural, object)
            .into_iter()
            .map(|(_, cell)| cell)
            .collect()
    };
    assert_eq!(
        printed("namespaces", json!({"status": {"phase": "Active"}})),
        ["x", "Active", "3m"]
    );
    assert_eq!(
        printed("configmaps", json!({"data": {"a": ""}, "binaryData": {"b": ""}})),
        ["x", "2", "3m"]
    );
    assert_eq!(
        printed("secrets", json!({"type": "Opaque", "data": {"a": ""}})),
        ["x", "Opaque", "1", "3m"]
    );
    assert_eq!(printed("serviceaccounts", json!({})), ["x", "3m"]);
    assert_eq!(printed("leases", json!({"spec": {"holderIdentity": "me"}})), ["x", "me", "3m"]);
    assert_eq!(printed("endpoints", json!({})), ["x", "<none>", "3m"]);
    let subsets = json!([{"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "ports": [{"port": 80}, {"port": 443}]}]);
    assert_eq!(
        printed("endpoints", json!({"subsets": subsets})),
        ["x", "10.0.0.1:80,[fd00::1]:80,10.0.0.1:443 + 1 more...", "3m"]
    );
    let slice = json!({"addressType": "IPv4", "ports": [{"port": 80}, {"name": "all"}, {}],
        "endpoints": [{"addresses": ["10.0.0.1"]}]});
    assert_eq!(printed("endpointslices", slice), ["x", "IPv4", "80,all,*", "10.0.0.1", "3m"]);
    assert_eq!(
        printed("endpointslices", json!({"addressType": "IPv4"})),
        ["x", "IPv4", "<unset>", "<unset>", "3m"]
    );
    assert_eq!(printed("tokenreviews", json!({})), ["x", "2026-03-01T11:57:00Z"]);
}

#[test]
fn a_pod_shows_what_its_containers_do() {
    let pod = |containers: Value, status: Value| json!({"spec": {"containers": containers}, "status": status});
    let status = |value: Value| cell("pods", "Status", pod(json!([{}]), value));
    assert_eq!(status(json!({"phase": "Pending"})), "Pending");
    let waiting = json!({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]});
    assert_eq!(status(waiting), "ImagePullBackOff");
    let exit = json!({"phase": "Running", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]});
    assert_eq!(status(exit), "ExitCode:3");
    let init = json!({"phase": "Pending", "initContainerStatuses": [{"state": {"running": {}}}]});
    assert_eq!(status(init), "Init:0/0");

    let running = json!({"phase": "Running", "containerStatuses": [
        {"ready": true, "restartCount": 2, "state": {"running": {}},
         "lastState": {"terminated": {"finishedAt": "2026-03-01T11:55:00Z"}}},
        {"restartCount": 0, "state": {"waiting": {}}},
    ]});
    let object = pod(json!([{}, {}]), running);
    assert_eq!(cell("pods", "Ready", object.clone()), "1/2");
    assert_eq!(cell("pods", "Restarts", object.clone()), "2 (5m ago)");
    let row = |phase: &str| {
        to_table(def("pods"), &[json!({"status": {"phase": phase}})], IncludeObject::None, now())
    };
    assert_eq!(row("Running")["rows"][0].get("conditions"), None);
    for phase in ["Succeeded", "Failed"] {
        let condition = row(phase)["rows"][0]["conditions"][0].clone();
        assert_eq!(
            (&condition["type"], &condition["reason"]),
            (&json!("Completed"), &json!(phase))
        );
    }
    let mut leaving = object;
    leaving["metadata"] = json!({"deletionTimestamp": NOW});
    assert_eq!(cell("pods", "Status", leaving), "Terminating");
}

#[test]
fn rows_carry_as_much_of_the_object_as_was_asked_for() {
    let object = json!({"metadata": meta("x"), "data": {"a": "b"}});
    let row = |include| {
        to_table(def("configmaps"), std::slice::from_ref(&object), include, now())["rows"][0]["object"].clone()
    };
    assert_eq!(row(IncludeObject::None), Value::Null);
    let partial = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta("x")});
    assert_eq!(row(IncludeObject::Metadata), partial);
    let whole =
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta("x"), "data": {"a": "b"}});
    assert_eq!(row(IncludeObject::Object), whole);

    assert_eq!(IncludeObject::parse(None), Ok(IncludeObject::Metadata));
    assert_eq!(IncludeObject::parse(Some("Object")), Ok(IncludeObject::Object));
    let wrong = IncludeObject::parse(Some("x")).unwrap_err();
    assert!(
        wrong.ends_with(
            "includeObject: Invalid value: \"x\": must be 'Metadata', 'Object', 'None', or empty"
        ),
        "{wrong}"
    );
}

#[test]
fn a_table_names_itself_and_its_version() {
    let object = json!({"metadata": meta("x")});
    let mut table =
        to_table(def("leases"), std::slice::from_ref(&object), IncludeObject::None, now());
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(table["metadata"]["resourceVersion"], "7");
    let name = json!({"name": "Name", "type": "string", "format": "name", "priority": 0, "description": NAME.description});
    assert_eq!(table["columnDefinitions"][0], name);
    strip_columns(&mut table);
    assert_eq!(table["columnDefinitions"], Value::Null);
    let list = to_table(def("leases"), &[object.clone(), object], IncludeObject::None, now());
    assert_eq!(
        (list["metadata"]["resourceVersion"].as_str(), list["rows"].as_array().unwrap().len()),
        (Some(""), 2)
    );
}

proptest! {
    #[test]
    fn every_row_has_a_cell_per_column(object in any_json(), index in 0..all().len()) {
        let table = to_table(&all()[index], &[object], IncludeObject::Object, now());
        let cells = table["rows"][0]["cells"].as_array().unwrap().len();
        prop_assert_eq!(cells, table["columnDefinitions"].as_array().unwrap().len());
    }
}

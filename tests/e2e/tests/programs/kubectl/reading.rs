use serde_json::json;

use super::harness::{Cluster, rows};
use crate::async_cases;
use crate::plain::Case;

pub(crate) fn cases() -> Vec<Case> {
    async_cases![
        nodes_are_listed_in_every_form,
        a_node_is_described_with_its_events,
        services_leases_and_the_rest_have_their_columns,
        the_server_says_what_it_is_and_serves,
    ]
}

async fn nodes_are_listed_in_every_form() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", "10.0.0.1").await;
    cluster.add_node("n2", "10.0.0.2").await;

    let table = rows(&cluster.ok(&["get", "nodes"]).await);
    assert_eq!(table[0], ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]);
    assert_eq!(table[1][..3], ["n1", "Ready", "worker"]);
    assert_eq!((table[2][0].as_str(), table[2][4].as_str(), table.len()), ("n2", "v1.36.3", 3));

    let wide = rows(&cluster.ok(&["get", "nodes", "-o", "wide"]).await);
    let extra = ["INTERNAL-IP", "EXTERNAL-IP", "OS-IMAGE", "KERNEL-VERSION", "CONTAINER-RUNTIME"];
    assert_eq!(wide[0][5..], extra);
    assert_eq!(
        wide[1][5..],
        ["10.0.0.1", "<none>", "Test Linux", "6.1.0 (amd64)", "containerd://2.0.0"]
    );

    let yaml = cluster.ok(&["get", "node", "n1", "-o", "yaml"]).await;
    assert!(yaml.starts_with("apiVersion: v1\nkind: Node\nmetadata:\n"), "{yaml}");
    assert!(
        yaml.contains("    address: 10.0.0.1\n") || yaml.contains("  - address: 10.0.0.1\n"),
        "{yaml}"
    );

    let list = cluster.json(&["get", "nodes"]).await;
    assert_eq!((list["kind"].as_str(), list["items"].as_array().unwrap().len()), (Some("List"), 2));
    assert_eq!(list["items"][0]["kind"], "Node");

    assert_eq!(cluster.ok(&["get", "nodes", "-o", "name"]).await, "node/n1\nnode/n2\n");
    assert_eq!(
        cluster
            .ok(&["get", "no", "n2", "-o", "jsonpath={.status.addresses[0].address}"])
            .await,
        "10.0.0.2"
    );
    let sorted = rows(
        &cluster
            .ok(&["get", "nodes", "--sort-by=.metadata.name", "--no-headers"])
            .await,
    );
    assert_eq!((sorted[0][0].as_str(), sorted[1][0].as_str()), ("n1", "n2"));
    let labels = cluster
        .ok(&["get", "nodes", "--show-labels", "-l", "zone=a", "--no-headers"])
        .await;
    assert!(labels.contains("node-role.kubernetes.io/worker=,zone=a"), "{labels}");
    let paged = rows(
        &cluster
            .ok(&["get", "nodes", "--chunk-size=1", "--no-headers"])
            .await,
    );
    assert_eq!(paged.len(), 2, "{paged:?}");
    let missing = cluster.fails(&["get", "node", "n9"], "").await;
    assert!(missing.contains("Error from server (NotFound): nodes \"n9\" not found"), "{missing}");
    cluster.stop().await;
}

async fn a_node_is_described_with_its_events() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", "10.0.0.1").await;
    let uid = cluster
        .ok(&["get", "node", "n1", "-o", "jsonpath={.metadata.uid}"])
        .await;
    let event = |name: &str, uid: &str, message: &str| {
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid}, "reason": "Synced", "type": "Normal",
            "message": message, "source": {"component": "cloud-node-controller"}, "count": 2,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
        })
        .to_string()
    };
    // kubectl asks for events by name and by UID, each time with a field selector.
    cluster
        .ok_with_input(&["create", "-f", "-"], &event("n1.a", "n1", "Node synced successfully"))
        .await;
    cluster
        .ok_with_input(&["create", "-f", "-"], &event("n1.b", &uid, "told by UID"))
        .await;
    let other = event("n2.a", "n2", "about another").replace("\"name\":\"n1\"", "\"name\":\"n2\"");
    cluster.ok_with_input(&["create", "-f", "-"], &other).await;

    let text = cluster.ok(&["describe", "node", "n1"]).await;
    for part in [
        "Name:               n1\n",
        "Roles:              worker\n",
        "Taints:             node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule\n",
        "  Ready   True",
        "  InternalIP:  10.0.0.1\n",
        "  Kubelet Version:            v1.36.3\n",
        "Non-terminated Pods:          (0 in total)",
        "Node synced successfully",
        "told by UID",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    assert!(!text.contains("about another"), "{text}");

    let events = rows(&cluster.ok(&["get", "events"]).await);
    assert_eq!(events[0], ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
    assert_eq!(events.len(), 4);
    assert_eq!(events[1][1..4], ["Normal", "Synced", "node/n1"]);
    let wide = rows(
        &cluster
            .ok(&["get", "events", "-o", "wide", "--field-selector", "involvedObject.name=n2"])
            .await,
    );
    assert_eq!(wide.len(), 2);
    assert!(wide[1].contains(&"cloud-node-controller".to_owned()), "{wide:?}");
    let newer = rows(&cluster.ok(&["get", "events.events.k8s.io"]).await);
    assert_eq!((newer.len(), newer[1][3].as_str()), (4, "node/n1"));
    let listed = cluster.ok(&["events", "--for=node/n1"]).await;
    assert!(listed.contains("Node synced successfully"), "{listed}");
    cluster.stop().await;
}

async fn services_leases_and_the_rest_have_their_columns() {
    let cluster = Cluster::start().await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    cluster
        .ok_with_input(&["create", "-f", "-"], &service.to_string())
        .await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "cloud-controller-manager", "namespace": "kube-system"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"},
    });
    cluster
        .ok_with_input(&["create", "-f", "-"], &lease.to_string())
        .await;

    let services = rows(&cluster.ok(&["get", "svc", "-o", "wide"]).await);
    assert_eq!(
        services[0],
        ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE", "SELECTOR"]
    );
    let web = services.iter().find(|row| row[0] == "web").unwrap();
    assert_eq!(
        (web[1].as_str(), web[3].as_str(), web[6].as_str()),
        ("LoadBalancer", "<pending>", "app=web")
    );
    assert!(
        web[2].starts_with("10.96.") && web[4].starts_with("80:3") && web[4].ends_with("/TCP"),
        "{web:?}"
    );
    let described = cluster.ok(&["describe", "svc", "web"]).await;
    assert!(described.contains("Type:                     LoadBalancer\n"), "{described}");

    let leases = rows(&cluster.ok(&["get", "leases", "-A"]).await);
    assert_eq!(leases[0], ["NAMESPACE", "NAME", "HOLDER", "AGE"]);
    assert!(
        leases[1..]
            .iter()
            .any(|row| row[..3] == ["kube-system", "cloud-controller-manager", "me"]),
        "{leases:?}"
    );

    let namespaces = rows(&cluster.ok(&["get", "ns"]).await);
    assert_eq!(namespaces[0], ["NAME", "STATUS", "AGE"]);
    assert!(
        namespaces
            .iter()
            .any(|row| row[..2] == ["kube-system", "Active"]),
        "{namespaces:?}"
    );
    for (kind, header) in [
        ("secrets", "NAME TYPE DATA AGE"),
        ("configmaps", "NAME DATA AGE"),
        ("endpoints", "NAME ENDPOINTS AGE"),
        ("endpointslices", "NAME ADDRESSTYPE PORTS ENDPOINTS AGE"),
        ("pods", "NAME READY STATUS RESTARTS AGE"),
        ("serviceaccounts", "NAME AGE"),
    ] {
        let ran = cluster.run_with_input(&["get", kind, "-A"], "").await;
        assert!(ran.success, "{kind}: {}", ran.stderr);
        let table = rows(&ran.stdout);
        match table.first() {
            Some(first) => assert_eq!(first[1..].join(" "), header, "{kind}"),
            None => assert!(ran.stderr.contains("No resources found"), "{kind}: {}", ran.stderr),
        }
    }
    let all = cluster.ok(&["get", "all"]).await;
    assert!(all.contains("service/web"), "{all}");
    for (kind, name, part) in [
        ("namespace", "kube-system", "Status:       Active"),
        ("lease", "cloud-controller-manager", "Holder Identity:         me"),
    ] {
        let text = cluster
            .ok(&["-n", "kube-system", "describe", kind, name])
            .await;
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    cluster.stop().await;
}

async fn the_server_says_what_it_is_and_serves() {
    let cluster = Cluster::start().await;
    let version = cluster.json(&["version"]).await;
    assert_eq!(version["serverVersion"]["minor"], "36");

    let resources = rows(&cluster.ok(&["api-resources"]).await);
    let line = |name: &str| {
        resources
            .iter()
            .find(|row| row[0] == name)
            .unwrap_or_else(|| panic!("{name}"))
            .clone()
    };
    assert_eq!(line("nodes"), ["nodes", "no", "v1", "false", "Node"]);
    assert_eq!(line("services"), ["services", "svc", "v1", "true", "Service"]);
    assert_eq!(line("leases"), ["leases", "coordination.k8s.io/v1", "true", "Lease"]);
    let versions = cluster.ok(&["api-versions"]).await;
    assert!(
        versions.lines().any(|l| l == "discovery.k8s.io/v1") && versions.lines().any(|l| l == "v1"),
        "{versions}"
    );

    assert_eq!(cluster.ok(&["get", "--raw", "/readyz"]).await, "ok");
    assert_eq!(cluster.ok(&["auth", "can-i", "list", "nodes"]).await, "yes\n");
    let explained = cluster.ok(&["explain", "service.spec.ports"]).await;
    assert!(explained.contains("nodePort") && explained.contains("<integer>"), "{explained}");
    let node = cluster.ok(&["explain", "node.spec.taints.effect"]).await;
    assert!(node.contains("FIELD: effect <string>"), "{node}");
    cluster.stop().await;
}

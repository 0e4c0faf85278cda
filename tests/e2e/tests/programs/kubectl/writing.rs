use serde_json::{Value, json};

use super::harness::Cluster;
use crate::async_cases;
use crate::plain::Case;

pub(crate) fn cases() -> Vec<Case> {
    async_cases![
        manifests_are_created_applied_and_changed,
        mistakes_are_named,
        patches_of_all_three_types_are_taken,
        labels_annotations_and_taints_are_edited,
        objects_are_deleted_when_their_finalizers_are_gone,
        typed_clients_create_objects_in_protobuf,
        a_node_is_drained_edited_and_compared,
    ]
}

fn service(name: &str, port: i64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": port, "targetPort": 8080}]},
    })
}

async fn manifests_are_created_applied_and_changed() {
    let cluster = Cluster::start().await;
    let made = cluster
        .ok_with_input(&["create", "-f", "-"], &service("a", 80).to_string())
        .await;
    assert_eq!(made, "service/a created\n");
    let again = cluster
        .fails(&["create", "-f", "-"], &service("a", 80).to_string())
        .await;
    assert!(
        again.contains("(AlreadyExists)") && again.contains("services \"a\" already exists"),
        "{again}"
    );

    let apply = ["apply", "-f", "-"];
    let mut manifest = service("b", 80);
    assert_eq!(cluster.ok_with_input(&apply, &manifest.to_string()).await, "service/b created\n");
    assert_eq!(cluster.ok_with_input(&apply, &manifest.to_string()).await, "service/b unchanged\n");
    let before = cluster.json(&["get", "svc", "b"]).await;
    // A changed port number replaces the port, a new one joins it, a label that is gone is taken
    // off.
    manifest["spec"]["ports"] = json!([{"name": "https", "port": 443, "targetPort": 8443}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
    manifest["metadata"]["labels"] = json!({"tier": "web"});
    assert_eq!(
        cluster.ok_with_input(&apply, &manifest.to_string()).await,
        "service/b configured\n"
    );
    let after = cluster.json(&["get", "svc", "b"]).await;
    let ports: Vec<i64> = after["spec"]["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["port"].as_i64().unwrap())
        .collect();
    assert_eq!(ports, [443, 53]);
    assert_eq!(after["metadata"]["labels"], json!({"tier": "web"}));
    assert_eq!(after["spec"]["clusterIP"], before["spec"]["clusterIP"]);
    assert_ne!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);

    let replaced = {
        let mut whole = after.clone();
        whole["spec"]["selector"] = json!({"app": "c"});
        cluster
            .ok_with_input(&["replace", "-f", "-"], &whole.to_string())
            .await
    };
    assert_eq!(replaced, "service/b replaced\n");
    let dry = cluster
        .ok_with_input(&["apply", "--dry-run=server", "-f", "-"], &service("never", 80).to_string())
        .await;
    assert_eq!(dry, "service/never created (server dry run)\n");
    let absent = cluster.fails(&["get", "svc", "never"], "").await;
    assert!(absent.contains("NotFound"), "{absent}");
    cluster.stop().await;
}

async fn mistakes_are_named() {
    let cluster = Cluster::start().await;
    let mut typo = service("a", 80);
    typo["spec"]["sessionAfinity"] = "None".into();
    let said = cluster
        .fails(&["create", "-f", "-"], &typo.to_string())
        .await;
    assert!(said.contains("unknown field \"spec.sessionAfinity\""), "{said}");

    let mut wrong = service("a", 80);
    wrong["spec"]["ports"][0]["port"] = "http".into();
    let said = cluster
        .fails(&["create", "-f", "-"], &wrong.to_string())
        .await;
    assert!(
        said.contains(
            "cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32"
        ),
        "{said}"
    );

    let said = cluster
        .fails(&["create", "-f", "-"], &service("a", 70_000).to_string())
        .await;
    assert!(said.contains("The Service \"a\" is invalid: spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive"), "{said}");

    let said = cluster
        .fails(&["create", "-f", "-"], &service("Not_A_Name", 80).to_string())
        .await;
    assert!(said.contains("metadata.name: Invalid value: \"Not_A_Name\""), "{said}");

    let said = cluster
        .fails(&["apply", "--server-side", "-f", "-"], &service("a", 80).to_string())
        .await;
    assert!(said.contains("Server-side apply not available on the server"), "{said}");

    cluster.add_node("n1", "10.0.0.1").await;
    cluster
        .ok(&["patch", "node", "n1", "-p", r#"{"spec":{"providerID":"mock://1"}}"#])
        .await;
    let said = cluster
        .fails(&["patch", "node", "n1", "-p", r#"{"spec":{"providerID":"mock://2"}}"#], "")
        .await;
    assert!(
        said.contains("spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid"),
        "{said}"
    );
    cluster.stop().await;
}

async fn patches_of_all_three_types_are_taken() {
    let cluster = Cluster::start().await;
    cluster
        .ok_with_input(&["create", "-f", "-"], &service("a", 80).to_string())
        .await;
    let ports = async || -> Vec<i64> {
        let service = cluster.json(&["get", "svc", "a"]).await;
        service["spec"]["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["port"].as_i64().unwrap())
            .collect()
    };
    // The same patch document merges by port in one type and replaces the list in another.
    let two = r#"{"spec":{"ports":[{"name":"https","port":443}]}}"#;
    let said = cluster
        .ok(&["patch", "svc", "a", "--type=strategic", "-p", two])
        .await;
    assert_eq!(said, "service/a patched\n");
    let mut both = ports().await;
    both.sort_unstable();
    assert_eq!(both, [80, 443]);
    cluster
        .ok(&["patch", "svc", "a", "--type=merge", "-p", two])
        .await;
    assert_eq!(ports().await, [443]);
    let json_patch = r#"[{"op":"test","path":"/spec/ports/0/port","value":443},{"op":"replace","path":"/spec/ports/0/port","value":8443}]"#;
    cluster
        .ok(&["patch", "svc", "a", "--type=json", "-p", json_patch])
        .await;
    assert_eq!(ports().await, [8443]);
    let said = cluster
        .fails(&["patch", "svc", "a", "--type=json", "-p", json_patch], "")
        .await;
    // What the real server's 422 without details becomes.
    assert!(
        said.contains(
            "The request is invalid: the server rejected our request due to an error in our request"
        ),
        "{said}"
    );
    assert_eq!(ports().await, [8443]);
    let same = cluster
        .ok(&["patch", "svc", "a", "--type=merge", "-p", r#"{"metadata":{"labels":{"app":"a"}}}"#])
        .await;
    assert_eq!(same, "service/a patched (no change)\n");
    let delete = r#"{"spec":{"ports":[{"$patch":"delete","port":8443},{"port":90}]}}"#;
    cluster.ok(&["patch", "svc", "a", "-p", delete]).await;
    assert_eq!(ports().await, [90]);
    cluster.stop().await;
}

async fn labels_annotations_and_taints_are_edited() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", "10.0.0.1").await;
    assert_eq!(
        cluster
            .ok(&["label", "node", "n1", "zone=b", "--overwrite"])
            .await,
        "node/n1 labeled\n"
    );
    assert_eq!(cluster.ok(&["label", "node", "n1", "disk=ssd"]).await, "node/n1 labeled\n");
    assert_eq!(cluster.ok(&["label", "node", "n1", "disk-"]).await, "node/n1 unlabeled\n");
    assert_eq!(
        cluster
            .ok(&["annotate", "node", "n1", "example.com/note=hello"])
            .await,
        "node/n1 annotated\n"
    );
    assert_eq!(
        cluster
            .ok(&["taint", "node", "n1", "dedicated=db:NoExecute"])
            .await,
        "node/n1 tainted\n"
    );
    assert_eq!(cluster.ok(&["cordon", "n1"]).await, "node/n1 cordoned\n");
    let node = cluster.json(&["get", "node", "n1"]).await;
    assert_eq!(
        (&node["metadata"]["labels"]["zone"], node["metadata"]["labels"].get("disk")),
        (&json!("b"), None)
    );
    assert_eq!(node["metadata"]["annotations"]["example.com/note"], "hello");
    assert_eq!(node["spec"]["unschedulable"], true);
    let taints: Vec<&str> = node["spec"]["taints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["key"].as_str().unwrap())
        .collect();
    assert!(
        taints.contains(&"dedicated")
            && taints.contains(&"node.cloudprovider.kubernetes.io/uninitialized"),
        "{taints:?}"
    );

    let said = cluster
        .ok(&["taint", "node", "n1", "node.cloudprovider.kubernetes.io/uninitialized-"])
        .await;
    assert_eq!(said, "node/n1 untainted\n");
    let said = cluster.fails(&["label", "node", "n1", "zone=c"], "").await;
    assert!(said.contains("already has a value"), "{said}");
    assert_eq!(
        cluster
            .ok(&["wait", "--for=condition=Ready", "node/n1", "--timeout=20s"])
            .await,
        "node/n1 condition met\n"
    );
    cluster.stop().await;
}

async fn objects_are_deleted_when_their_finalizers_are_gone() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", "10.0.0.1").await;
    let gone = cluster.ok(&["delete", "node", "n1"]).await;
    assert!(gone.starts_with("node \"n1\" deleted"), "{gone}");
    assert!(
        cluster
            .fails(&["get", "node", "n1"], "")
            .await
            .contains("NotFound")
    );
    let absent = cluster
        .ok(&["delete", "node", "n1", "--ignore-not-found"])
        .await;
    assert_eq!(absent, "");

    let mut held = service("a", 80);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster
        .ok_with_input(&["create", "-f", "-"], &held.to_string())
        .await;
    cluster.ok(&["delete", "svc", "a", "--wait=false"]).await;
    let leaving = cluster.json(&["get", "svc", "a"]).await;
    assert!(leaving["metadata"]["deletionTimestamp"].is_string(), "{leaving}");
    cluster
        .ok(&["patch", "svc", "a", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])
        .await;
    assert!(
        cluster
            .fails(&["get", "svc", "a"], "")
            .await
            .contains("NotFound")
    );

    cluster.ok(&["create", "namespace", "team"]).await;
    cluster
        .ok(&["-n", "team", "create", "configmap", "c", "--from-literal=a=b"])
        .await;
    cluster
        .ok(&["-n", "team", "create", "configmap", "d", "--from-literal=a=b"])
        .await;
    cluster
        .ok(&["-n", "team", "delete", "configmap", "--all"])
        .await;
    assert_eq!(
        cluster
            .ok(&["-n", "team", "get", "configmap", "-o", "name"])
            .await,
        ""
    );
    cluster.stop().await;
}

/// These commands use Go's typed clients, which post protobuf.
async fn typed_clients_create_objects_in_protobuf() {
    let cluster = Cluster::start().await;
    let lb = ["create", "service", "loadbalancer", "lb", "--tcp=80:8080", "--tcp=443:https"];
    assert_eq!(cluster.ok(&lb).await, "service/lb created\n");
    let spec = cluster.json(&["get", "svc", "lb"]).await["spec"].clone();
    assert_eq!((&spec["type"], &spec["selector"]), (&json!("LoadBalancer"), &json!({"app": "lb"})));
    let targets: Vec<&Value> = spec["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| &p["targetPort"])
        .collect();
    assert_eq!(targets, [&json!(8080), &json!("https")]);

    cluster
        .ok(&["create", "secret", "generic", "s", "--from-literal=password=hidden"])
        .await;
    let secret = cluster.json(&["get", "secret", "s"]).await;
    assert_eq!(
        (&secret["type"], &secret["data"]["password"]),
        (&json!("Opaque"), &json!("aGlkZGVu"))
    );
    cluster.ok(&["create", "serviceaccount", "robot"]).await;
    let token = cluster
        .ok(&["create", "token", "robot", "--duration=20m"])
        .await;
    assert!(token.trim().len() > 20, "a token of {} characters", token.trim().len());
    let said = cluster
        .fails(&["create", "namespace", "Not_A_Name"], "")
        .await;
    assert!(said.contains("metadata.name: Invalid value: \"Not_A_Name\""), "{said}");
    cluster.stop().await;
}

async fn a_node_is_drained_edited_and_compared() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", "10.0.0.1").await;
    let drained = cluster.ok(&["drain", "n1", "--ignore-daemonsets"]).await;
    assert!(drained.contains("node/n1 drained"), "{drained}");
    cluster.ok(&["uncordon", "n1"]).await;
    assert_eq!(cluster.json(&["get", "node", "n1"]).await["spec"].get("unschedulable"), None);

    cluster
        .ok_with_input(&["create", "-f", "-"], &service("a", 80).to_string())
        .await;
    // As an editor would: the file kubectl hands it, changed in place.
    let edited = cluster
        .ok_with_editor(&["edit", "svc", "a"], "sed -i s/targetPort:.8080/targetPort:\\ 9090/")
        .await;
    assert_eq!(edited, "service/a edited\n");
    assert_eq!(cluster.json(&["get", "svc", "a"]).await["spec"]["ports"][0]["targetPort"], 9090);
    let from_file = cluster
        .ok_with_input(&["delete", "-f", "-"], &service("a", 80).to_string())
        .await;
    assert!(from_file.starts_with("service \"a\" deleted"), "{from_file}");
    cluster.stop().await;
}

use super::*;

const PATH: &str = "/api/v1/namespaces/default/services";

fn service(name: &str, kind: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": kind, "ports": [{"port": 80}]}})
}

async fn create(server: &ApiServer, service: Value) -> (u16, Value) {
    send(server, "POST", PATH, &[], service).await
}

async fn merge(server: &ApiServer, name: &str, patch: Value) -> (u16, Value) {
    let path = format!("{PATH}/{name}");
    send(server, "PATCH", &path, &[("content-type", "application/merge-patch+json")], patch).await
}

#[tokio::test(start_paused = true)]
async fn addresses_and_ports_are_given_and_released() {
    let server = server();
    let (code, made) = create(&server, service("a", "LoadBalancer")).await;
    assert_eq!(code, 201, "{made}");
    let ip = made["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert!(ip.starts_with("10.96."));
    assert_eq!(made["spec"]["clusterIPs"], json!([ip]));
    let port = made["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30_000..=32_767).contains(&port));
    assert_eq!(made["metadata"].get("generation"), None);

    let (_, other) = create(&server, service("b", "NodePort")).await;
    assert_ne!(other["spec"]["clusterIP"], made["spec"]["clusterIP"]);
    assert_ne!(other["spec"]["ports"][0]["nodePort"], made["spec"]["ports"][0]["nodePort"]);

    let mut taken = service("c", "NodePort");
    taken["spec"]["ports"][0]["nodePort"] = json!(port);
    let (code, refusal) = create(&server, taken.clone()).await;
    assert_eq!(code, 422);
    assert_eq!(
        refusal["message"],
        format!(
            "Service \"c\" is invalid: spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated"
        )
    );
    let mut taken_ip = service("c", "ClusterIP");
    taken_ip["spec"]["clusterIP"] = json!(ip);
    let (code, refusal) = create(&server, taken_ip.clone()).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("spec.clusterIPs")));

    let (code, deleted) = send(&server, "DELETE", &format!("{PATH}/a"), &[], Value::Null).await;
    assert_eq!(
        (code, &deleted["kind"]),
        (200, &json!("Service")),
        "services answer with the object"
    );
    assert_eq!(create(&server, taken).await.0, 201, "the port is free again");
    taken_ip["metadata"]["name"] = json!("d");
    assert_eq!(create(&server, taken_ip).await.0, 201, "the address is free again");
}

#[tokio::test(start_paused = true)]
async fn a_health_check_port_comes_and_goes_with_the_local_policy() {
    let server = server();
    let mut local = service("a", "LoadBalancer");
    local["spec"]["externalTrafficPolicy"] = json!("Local");
    let (_, made) = create(&server, local).await;
    let health = made["spec"]["healthCheckNodePort"].as_u64().unwrap();
    assert_ne!(made["spec"]["ports"][0]["nodePort"], health);
    let (_, after) =
        merge(&server, "a", json!({"spec": {"externalTrafficPolicy": "Cluster"}})).await;
    assert_eq!(after["spec"].get("healthCheckNodePort"), None, "{after}");
    let (_, after) = merge(&server, "a", json!({"spec": {"externalTrafficPolicy": "Local"}})).await;
    assert!(after["spec"]["healthCheckNodePort"].is_u64());
}

#[tokio::test(start_paused = true)]
async fn a_change_of_type_drops_what_it_no_longer_takes() {
    let server = server();
    create(&server, service("a", "LoadBalancer")).await;
    let (code, after) = merge(&server, "a", json!({"spec": {"type": "ClusterIP"}})).await;
    assert_eq!(code, 200, "{after}");
    assert_eq!(after["spec"]["ports"][0].get("nodePort"), None);
    assert_eq!(after["spec"].get("allocateLoadBalancerNodePorts"), None);
    assert!(after["spec"]["clusterIP"].is_string());
}

#[tokio::test(start_paused = true)]
async fn node_ports_can_be_declined() {
    let server = server();
    let mut bare = service("a", "LoadBalancer");
    bare["spec"]["allocateLoadBalancerNodePorts"] = json!(false);
    let (_, made) = create(&server, bare).await;
    assert_eq!(made["spec"]["ports"][0].get("nodePort"), None, "{made}");
    let (_, headless) = create(
        &server,
        json!({"metadata": {"name": "h"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}),
    )
    .await;
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
}

#[tokio::test(start_paused = true)]
async fn tcp_and_udp_of_one_port_share_a_node_port() {
    let server = server();
    let mut both = service("a", "NodePort");
    both["spec"]["ports"] = json!([{"name": "t", "port": 53, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"}]);
    let (code, made) = create(&server, both).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["spec"]["ports"][0]["nodePort"], made["spec"]["ports"][1]["nodePort"]);
}

#[tokio::test(start_paused = true)]
async fn the_status_path_carries_finalizers_annotations_and_status() {
    let server = server();
    create(&server, service("a", "LoadBalancer")).await;
    let patch = json!({
        "metadata": {"finalizers": ["service.kubernetes.io/load-balancer-cleanup"], "annotations": {"a": "b"}},
        "spec": {"sessionAffinity": "ClientIP"},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
    });
    let path = format!("{PATH}/a/status");
    let headers = [("content-type", "application/strategic-merge-patch+json")];
    let (code, after) = send(&server, "PATCH", &path, &headers, patch).await;
    assert_eq!(code, 200, "{after}");
    assert_eq!(after["metadata"]["finalizers"][0], "service.kubernetes.io/load-balancer-cleanup");
    assert_eq!(after["metadata"]["annotations"]["a"], "b");
    assert_eq!(after["spec"]["sessionAffinity"], "None");
    assert_eq!(after["status"]["loadBalancer"]["ingress"][0]["ipMode"], "VIP");
    assert_eq!(after["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");

    let (code, marked) = send(&server, "DELETE", &format!("{PATH}/a"), &[], Value::Null).await;
    assert_eq!(code, 200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let (code, _) =
        send(&server, "PATCH", &path, &headers, json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(code, 200);
    assert_eq!(
        send(&server, "GET", &format!("{PATH}/a"), &[], Value::Null)
            .await
            .0,
        404
    );
}

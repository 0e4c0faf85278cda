use std::sync::Arc;

use ccm_mock::cloud::{Listener, LoadBalancerSettings, Transport};
use serde_json::{Value, json};

use super::*;

fn services(list: &[Value]) -> Services {
    let parsed = list
        .iter()
        .map(|value| serde_json::from_value::<Service>(value.clone()).expect("it is a Service"));
    parsed
        .map(|service| (service.name_any(), Arc::new(service)))
        .collect()
}

fn service() -> Value {
    json!({
        "metadata": {"name": "s", "uid": "u", "finalizers": ["service.kubernetes.io/load-balancer-cleanup"]},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30000}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "198.18.0.1"}]}},
    })
}

fn node(name: &str, excluded: &str) -> (String, Arc<Node>) {
    let labels = json!({"node.kubernetes.io/exclude-from-external-load-balancers": excluded});
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"providerID": format!("mock://r/{name}")}});
    (name.to_owned(), Arc::new(serde_json::from_value(node).expect("it is a Node")))
}

fn nodes() -> Nodes {
    [node("in", "false"), node("out", "true")].into()
}

fn balancer() -> LoadBalancer {
    let address = "198.18.0.1".parse().expect("it is an address");
    let listener = Listener { protocol: Transport::Tcp, port: 80, node_port: Some(30000) };
    LoadBalancer {
        id: "lb-1".to_owned(),
        name: "au".to_owned(),
        cluster: "kubernetes".to_owned(),
        uid: "u".to_owned(),
        service: "default/s".to_owned(),
        state: LoadBalancerState::Active,
        retained: false,
        ports: vec![80],
        nodes: ["in".to_owned()].into(),
        address,
        addresses: vec![address],
        settings: LoadBalancerSettings {
            listeners: vec![listener],
            ..LoadBalancerSettings::default()
        },
        members: Members::Nodes(
            [NodeMember { name: "in".into(), provider_id: Some("mock://r/in".into()) }].into(),
        ),
        generation: 1,
    }
}

#[test]
fn a_balancer_that_is_as_asked_is_in_line() {
    assert_eq!(differences(&services(&[service()]), &nodes(), &[balancer()]), Ok(()));
    assert_eq!(differences(&services(&[]), &nodes(), &[]), Ok(()));
}

type Change<T> = (&'static str, fn(&mut T));

#[test]
fn every_difference_of_a_balancer_is_found() {
    let changes: [Change<LoadBalancer>; 6] = [
        ("state", |b| b.state = LoadBalancerState::Provisioning),
        ("listeners", |b| b.settings.listeners[0].port = 81),
        ("listeners", |b| b.settings.listeners[0].node_port = None),
        ("members", |b| b.members = Members::nodes(["in"])),
        ("instead of", |b| b.addresses.clear()),
        ("no load balancer", |b| b.uid = "other".to_owned()),
    ];
    for (words, change) in changes {
        let mut balancer = balancer();
        change(&mut balancer);
        let wrong = differences(&services(&[service()]), &nodes(), &[balancer]).expect_err(words);
        assert!(wrong.contains(words), "{wrong}");
    }
    let twice = differences(&services(&[service()]), &nodes(), &[balancer(), balancer()]);
    assert!(twice.is_err_and(|wrong| wrong.contains("two load balancers")));
}

#[test]
fn every_difference_of_a_service_is_found() {
    let changes: [Change<Value>; 4] = [
        ("lacks the finalizer", |s| s["metadata"]["finalizers"] = json!(null)),
        ("not released", |s| s["spec"]["type"] = json!("ClusterIP")),
        ("it still goes", |s| s["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z")),
        ("is left over", |s| {
            *s = json!({"metadata": {"name": "s", "uid": "u"}, "spec": {"type": "ClusterIP"}});
        }),
    ];
    for (words, change) in changes {
        let mut service = service();
        change(&mut service);
        let wrong = differences(&services(&[service]), &nodes(), &[balancer()]).expect_err(words);
        assert!(wrong.contains(words), "{wrong}");
    }
}

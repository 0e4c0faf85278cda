use proptest::prelude::*;

use super::*;
use crate::apiserver::resources::all;
use crate::apiserver::test_json::any_json;

fn defaulted(group: &str, plural: &str, mut object: Value) -> Value {
    let def = all()
        .iter()
        .find(|d| d.group == group && d.plural == plural)
        .unwrap();
    default(def, &mut object);
    object
}

fn service(spec: Value) -> Value {
    let object = Map::from_iter([("spec".to_owned(), spec)]);
    defaulted("", "services", object.into())["spec"].clone()
}

#[test]
fn a_cluster_service_gets_its_defaults() {
    let got = defaulted(
        "",
        "services",
        json!({"spec": {"ports": [{"port": 80}, {"port": 53, "protocol": "UDP", "targetPort": "dns"}]}}),
    );
    let want = json!({
        "spec": {
            "type": "ClusterIP",
            "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster",
            "ipFamilyPolicy": "SingleStack",
            "ports": [
                {"port": 80, "protocol": "TCP", "targetPort": 80},
                {"port": 53, "protocol": "UDP", "targetPort": "dns"},
            ],
        },
        "status": {"loadBalancer": {}},
    });
    assert_eq!(got, want);
}

#[test]
fn service_defaults_depend_on_the_type() {
    let balancer = service(json!({"type": "LoadBalancer"}));
    assert_eq!(balancer["externalTrafficPolicy"], "Cluster");
    assert_eq!(balancer["allocateLoadBalancerNodePorts"], true);
    let kept = service(
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "allocateLoadBalancerNodePorts": false}),
    );
    assert_eq!(
        (&kept["externalTrafficPolicy"], &kept["allocateLoadBalancerNodePorts"]),
        (&json!("Local"), &json!(false))
    );
    let node_port = service(json!({"type": "NodePort"}));
    assert_eq!(
        (
            node_port["externalTrafficPolicy"].as_str(),
            node_port.get("allocateLoadBalancerNodePorts")
        ),
        (Some("Cluster"), None)
    );
    let with_ips = service(json!({"externalIPs": ["192.0.2.1"]}));
    assert_eq!(with_ips["externalTrafficPolicy"], "Cluster");
    let external_name = service(json!({"type": "ExternalName", "externalName": "db.example"}));
    assert_eq!(
        external_name,
        json!({"type": "ExternalName", "externalName": "db.example", "sessionAffinity": "None"})
    );
}

#[test]
fn session_affinity_has_a_timeout_only_where_it_applies() {
    let sticky = service(json!({"sessionAffinity": "ClientIP"}));
    assert_eq!(sticky["sessionAffinityConfig"], json!({"clientIP": {"timeoutSeconds": 10800}}));
    let config = json!({"clientIP": {"timeoutSeconds": 5}});
    let own = service(json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}));
    assert_eq!(own["sessionAffinityConfig"], config);
    assert_eq!(
        service(json!({"sessionAffinityConfig": config})).get("sessionAffinityConfig"),
        None
    );
}

#[test]
fn cluster_ips_and_families_follow_the_cluster_ip() {
    assert_eq!(service(json!({"clusterIP": "fd00::5"}))["clusterIPs"], json!(["fd00::5"]));
    let headless = service(json!({"clusterIP": "None", "selector": {"a": "b"}}));
    assert_eq!(
        (&headless["clusterIPs"], &headless["ipFamilyPolicy"]),
        (&json!(["None"]), &json!("SingleStack"))
    );
    let selectorless = service(json!({"clusterIP": "None"}));
    assert_eq!(
        (&selectorless["ipFamilies"], &selectorless["ipFamilyPolicy"]),
        (&json!(["IPv4", "IPv6"]), &json!("RequireDualStack"))
    );
}

#[test]
fn only_addresses_of_a_load_balancer_get_a_mode() {
    let ingress = json!([{"ip": "192.0.2.1"}, {"ip": "192.0.2.2", "ipMode": "Proxy"}, {"hostname": "lb.example"}]);
    let status = json!({"loadBalancer": {"ingress": ingress}});
    let balancer =
        defaulted("", "services", json!({"spec": {"type": "LoadBalancer"}, "status": status}));
    let want = json!([{"ip": "192.0.2.1", "ipMode": "VIP"}, {"ip": "192.0.2.2", "ipMode": "Proxy"}, {"hostname": "lb.example"}]);
    assert_eq!(balancer["status"]["loadBalancer"]["ingress"], want);
    assert_eq!(defaulted("", "services", json!({"status": status}))["status"], status);
}

#[test]
fn a_change_of_type_clears_what_no_longer_applies() {
    let mut old = json!({"spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1", "externalTrafficPolicy": "Local",
        "loadBalancerClass": "c", "healthCheckNodePort": 32000, "ports": [{"port": 80, "nodePort": 30080}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    default(all().iter().find(|d| d.plural == "services").unwrap(), &mut old);
    let changed = |kind: &str| {
        let mut new = old.clone();
        new["spec"]["type"] = kind.into();
        drop_type_dependent_fields(&old, &mut new);
        new
    };
    let cluster = changed("ClusterIP");
    assert_eq!(cluster["status"], json!({"loadBalancer": {}}));
    assert_eq!(cluster["spec"]["clusterIP"], "10.0.0.1");
    for gone in [
        "externalTrafficPolicy",
        "loadBalancerClass",
        "healthCheckNodePort",
        "allocateLoadBalancerNodePorts",
    ] {
        assert_eq!(cluster["spec"].get(gone), None, "{gone}");
    }
    assert_eq!(cluster["spec"]["ports"][0].get("nodePort"), None);
    let node_port = changed("NodePort");
    assert_eq!(node_port["spec"]["ports"][0]["nodePort"], 30080);
    assert_eq!(node_port["spec"]["externalTrafficPolicy"], "Local");
    assert_eq!(node_port["spec"].get("healthCheckNodePort"), None);
    let external_name = changed("ExternalName");
    for gone in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        assert_eq!(external_name["spec"].get(gone), None, "{gone}");
    }
    assert_eq!(changed("LoadBalancer"), old);
}

#[test]
fn other_kinds_get_their_defaults() {
    let node = defaulted(
        "",
        "nodes",
        json!({"status": {"capacity": {"cpu": "4"}, "nodeInfo": {"osImage": "x"}}}),
    );
    assert_eq!(node["spec"], json!({}));
    assert_eq!(node["status"]["allocatable"], json!({"cpu": "4"}));
    assert_eq!(
        (&node["status"]["nodeInfo"]["osImage"], &node["status"]["nodeInfo"]["bootID"]),
        (&json!("x"), &json!(""))
    );
    assert_eq!(node["status"]["daemonEndpoints"], json!({"kubeletEndpoint": {"Port": 0}}));

    let namespace = defaulted("", "namespaces", json!({"metadata": {"name": "a"}}));
    let want = json!({"metadata": {"name": "a", "labels": {"kubernetes.io/metadata.name": "a"}},
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
    assert_eq!(namespace, want);
    let leaving = defaulted(
        "",
        "namespaces",
        json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    );
    assert_eq!(leaving["spec"], json!({}));

    let secret = defaulted("", "secrets", json!({"data": {"a": "eA=="}, "stringData": {"b": "y"}}));
    assert_eq!(secret, json!({"type": "Opaque", "data": {"a": "eA==", "b": "eQ=="}}));

    let event = defaulted(
        "",
        "events",
        json!({"source": {"component": "c"}, "lastTimestamp": "2026-01-01T00:00:00Z"}),
    );
    assert_eq!((&event["source"]["component"], &event["eventTime"]), (&json!("c"), &Value::Null));
    assert_eq!(
        (&event["reportingComponent"], &event["lastTimestamp"]),
        (&json!(""), &json!("2026-01-01T00:00:00Z"))
    );

    let slice = defaulted("discovery.k8s.io", "endpointslices", json!({"ports": [{"port": 80}]}));
    assert_eq!(slice["ports"], json!([{"port": 80, "name": "", "protocol": "TCP"}]));
    let endpoints = defaulted("", "endpoints", json!({"subsets": [{"ports": [{"port": 80}]}]}));
    assert_eq!(endpoints["subsets"][0]["ports"], json!([{"port": 80, "protocol": "TCP"}]));
    assert_eq!(defaulted("coordination.k8s.io", "leases", json!({})), json!({"spec": {}}));
    let coordinated =
        json!({"spec": {"holderIdentity": "a", "strategy": "x", "preferredHolder": "y"}});
    assert_eq!(
        defaulted("coordination.k8s.io", "leases", coordinated),
        json!({"spec": {"holderIdentity": "a"}})
    );
    let endpoint = json!({"endpoints": [{"addresses": ["10.0.0.1"]}]});
    let endpoint = defaulted("discovery.k8s.io", "endpointslices", endpoint);
    assert_eq!(endpoint["endpoints"], json!([{"addresses": ["10.0.0.1"], "conditions": {}}]));
    assert_eq!(defaulted("", "configmaps", json!({"x": 1})), json!({"x": 1}));
}

proptest! {
    #[test]
    fn defaulting_twice_is_defaulting_once(mut object in any_json(), index in 0..all().len()) {
        default(&all()[index], &mut object);
        let once = object.clone();
        default(&all()[index], &mut object);
        prop_assert_eq!(once, object);
    }

    #[test]
    fn clearing_fields_takes_any_json(old in any_json(), mut new in any_json()) {
        drop_type_dependent_fields(&old, &mut new);
        let once = new.clone();
        drop_type_dependent_fields(&old, &mut new);
        prop_assert_eq!(once, new);
    }
}

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::*;
use crate::{
    AdminClient, CloudConfig,
    cloud::{
        CloudApi, EndpointMember, Family, Listener, LoadBalancerKey, LoadBalancerSettings,
        LoadBalancerSpec, Members, NodeMember, Transport,
    },
};

struct Server {
    cloud: MockCloud,
    base: String,
    admin: AdminClient,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<io::Result<()>>,
}

impl Server {
    async fn start(config: &str) -> Self {
        let config = CloudConfig::parse("test", config).unwrap();
        let cloud = MockCloud::new(&config).unwrap();
        let listener = bind_admin(&":0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        assert!(address.ip().is_loopback());
        let cancel = CancellationToken::new();
        let task = tokio::spawn(serve_admin(cloud.clone(), listener, cancel.clone()));
        let admin = AdminClient::new(address.to_string().parse().unwrap());
        Self {
            cloud,
            base: format!("http://{address}"),
            admin,
            cancel,
            task,
        }
    }

    async fn send(&self, method: Method, path: &str, body: &str) -> (u16, Value) {
        use http_body_util::{BodyExt, Full};
        use hyper_util::{client::legacy::Client, rt::TokioExecutor};
        let client = Client::builder(TokioExecutor::new()).build_http();
        let body: Full<Bytes> = Full::from(body.to_owned());
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .body(body)
            .unwrap();
        let answer = client.request(request).await.unwrap();
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send(Method::GET, path, "").await
    }

    async fn stop(self) {
        self.cancel.cancel();
        tokio::time::timeout(Duration::from_secs(10), self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn empty_lists_and_counts_have_their_full_shape() {
    let server = Server::start("").await;
    for path in ["/v1/instances", "/v1/load-balancers", "/v1/routes"] {
        assert_eq!(server.get(path).await, (200, json!([])), "{path}");
    }
    let zero = json!({
        "describe_instances": 0, "describe_instances_nodes": 0, "list_routes": 0, "create_route": 0, "delete_route": 0,
        "get_load_balancer": 0, "ensure_load_balancer": 0, "create_load_balancer": 0, "modify_load_balancer": 0,
        "update_load_balancer": 0, "delete_load_balancer": 0, "retain_load_balancer": 0, "adopt_load_balancer": 0,
        "list_load_balancers": 0, "throttled": 0,
    });
    assert_eq!(server.get("/v1/calls").await, (200, zero));
    server.stop().await;
}

#[tokio::test]
async fn an_instance_is_put_read_and_deleted() {
    let server = Server::start("{region: eu, zones: [], instanceType: big}").await;
    assert_eq!(server.get("/v1/instances/n1").await.0, 404);
    let full = json!({
        "providerID": "mock://eu/n1", "instanceType": "small", "zone": "eu-1", "region": "eu",
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}], "powerState": "stopped",
        "additionalLabels": {"a": "b"},
    });
    assert_eq!(
        server
            .send(Method::PUT, "/v1/instances/n1", &full.to_string())
            .await,
        (200, full.clone())
    );
    assert_eq!(server.get("/v1/instances/n1").await, (200, full.clone()));
    assert_eq!(server.get("/v1/instances").await, (200, json!([full])));
    let sparse = json!({"addresses": [], "powerState": null});
    let made = json!({
        "providerID": "mock://eu/n1", "instanceType": "big", "zone": "", "region": "eu", "addresses": [],
        "powerState": "running", "additionalLabels": {},
    });
    assert_eq!(
        server
            .send(Method::PUT, "/v1/instances/n1", &sparse.to_string())
            .await,
        (200, made)
    );
    assert_eq!(server.send(Method::DELETE, "/v1/instances/n1", "").await, (204, Value::Null));
    assert_eq!(server.send(Method::DELETE, "/v1/instances/n1", "").await.0, 404);
    assert_eq!(server.get("/v1/instances/n1").await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn bad_requests_name_the_field() {
    let server = Server::start("").await;
    server
        .send(Method::PUT, "/v1/instances/taken", r#"{"providerID":"mock://r/x"}"#)
        .await;
    let cases = [
        ("/v1/instances/n", "{", None),
        ("/v1/instances/n", "[]", None),
        ("/v1/instances/n", r#"{"colour":1}"#, Some("colour")),
        ("/v1/instances/n", r#"{"powerState":"asleep"}"#, Some("powerState")),
        (
            "/v1/instances/n",
            r#"{"zone":"z","addresses":[{"type":"IP","address":"x"}]}"#,
            Some("addresses"),
        ),
        (
            "/v1/instances/n",
            r#"{"addresses":[{"type":"InternalIP","address":"x"}]}"#,
            Some("addresses[0].address"),
        ),
        ("/v1/instances/n", r#"{"providerID":"aws:///x"}"#, Some("providerID")),
        ("/v1/instances/n", r#"{"providerID":"mock://r/x"}"#, Some("providerID")),
        ("/v1/instances/a%2Fb", "{}", Some("name")),
        ("/v1/routes/r", r#"{"node":"n"}"#, Some("destinationCIDR")),
        ("/v1/routes/r", r#"{"node":"n","destinationCIDR":"10.0.0.0"}"#, Some("destinationCIDR")),
        ("/v1/routes/r", r#"{"destinationCIDR":"10.0.0.0/24"}"#, Some("node")),
        (
            "/v1/routes/r",
            r#"{"name":"q","node":"n","destinationCIDR":"10.0.0.0/24"}"#,
            Some("name"),
        ),
        ("/v1/faults", "{}", None),
        ("/v1/faults", "[1]", Some("[0]")),
        ("/v1/faults", r#"[{"error":"transient"}]"#, Some("[0].operation")),
        ("/v1/faults", r#"[{"operation":"list_routes"}]"#, Some("[0].error")),
        (
            "/v1/faults",
            r#"[{"operation":"format_disk","error":"transient"}]"#,
            Some("[0].operation"),
        ),
        ("/v1/faults", r#"[{"operation":"list_routes","error":"bad"}]"#, Some("[0].error")),
        (
            "/v1/faults",
            r#"[{"operation":"list_routes","error":"transient","times":0}]"#,
            Some("[0].times"),
        ),
        (
            "/v1/faults",
            r#"[{"operation":"list_routes","error":"transient","times":-1}]"#,
            Some("[0].times"),
        ),
        (
            "/v1/faults",
            r#"[{"operation":"list_routes","error":"transient","match":"x"}]"#,
            Some("[0].match"),
        ),
        ("/v1/faults", r#"[{"operation":"any","error":"not_found"}]"#, Some("[0].error")),
        (
            "/v1/faults",
            r#"[{"operation":"any","error":"transient","forSeconds":-1}]"#,
            Some("[0].forSeconds"),
        ),
        (
            "/v1/faults",
            r#"[{"operation":"get_load_balancer","error":"throttled","retryAfterSeconds":-1}]"#,
            Some("[0].retryAfterSeconds"),
        ),
    ];
    for (path, body, field) in cases {
        let (status, answer) = server.send(Method::PUT, path, body).await;
        assert_eq!((status, answer["field"].as_str()), (400, field), "{path} {body}: {answer}");
        assert!(
            answer["error"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{answer}"
        );
    }
    for (method, path, status) in
        [(Method::GET, "/v1/volumes", 404), (Method::POST, "/v1/calls", 405)]
    {
        let (seen, answer) = server.send(method, path, "").await;
        assert_eq!(seen, status, "{path}");
        assert!(answer["error"].is_string(), "{path}: {answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_refused_list_of_faults_changes_nothing() {
    let server = Server::start("autoProvision: true").await;
    let good = r#"[{"operation":"list_routes","error":"transient"}]"#;
    assert_eq!(
        server.send(Method::PUT, "/v1/faults", good).await,
        (200, serde_json::from_str(good).unwrap())
    );
    assert_eq!(
        server
            .send(Method::PUT, "/v1/faults", r#"[{"operation":"list_routes"}]"#)
            .await
            .0,
        400
    );
    assert!(server.cloud.list_routes("c").await.is_err());
    assert_eq!(server.send(Method::DELETE, "/v1/faults", "").await.0, 204);
    assert!(server.cloud.list_routes("c").await.is_ok());
    server.stop().await;
}

/// Specification of the load balancer `a1`: UDP, with one node and one source range.
fn dns_load_balancer() -> LoadBalancerSpec {
    let key = LoadBalancerKey {
        cluster: "c".to_owned(),
        uid: "u".to_owned(),
        name: "a1".to_owned(),
        service: "default/web".to_owned(),
    };
    let settings = LoadBalancerSettings {
        listeners: vec![Listener { protocol: Transport::Udp, port: 53, node_port: Some(30053) }],
        source_ranges: vec!["10.0.0.0/8".parse().unwrap()],
        families: vec![Family::V4],
        ..LoadBalancerSettings::default()
    };
    let node = NodeMember { name: "n1".into(), provider_id: Some("mock://r/n1".into()) };
    let members = Members::Nodes([node].into());
    LoadBalancerSpec { key, settings, members, activation: None }
}

#[tokio::test]
async fn a_load_balancer_is_shown_and_changed_by_hand() {
    let server = Server::start("loadBalancerAddressPool: 192.0.2.0/28").await;
    let spec = dns_load_balancer();
    server.cloud.create_load_balancer(&spec).await.unwrap();
    let shown = json!({
        "id": "lb-00000001", "name": "a1", "cluster": "c", "uid": "u", "service": "default/web", "retained": false, "state": "active",
        "ports": [53], "nodes": ["n1"], "address": "192.0.2.1", "addresses": ["192.0.2.1"],
        "listeners": [{"protocol": "UDP", "port": 53, "nodePort": 30053}], "sourceRanges": ["10.0.0.0/8"],
        "healthCheckNodePort": null, "affinitySeconds": null, "families": ["IPv4"], "requestedAddress": null,
        "internal": false, "members": {"nodes": [{"name": "n1", "providerID": "mock://r/n1"}]}, "generation": 1,
    });
    assert_eq!(server.get("/v1/load-balancers").await, (200, json!([shown])));
    assert_eq!(server.get("/v1/load-balancers/a1").await, (200, shown));
    let (status, changed) = server
        .send(Method::PUT, "/v1/load-balancers/a1", r#"{"nodes":["n3","n2"],"sourceRanges":[]}"#)
        .await;
    assert_eq!(
        (status, &changed["nodes"], &changed["sourceRanges"]),
        (200, &json!(["n2", "n3"]), &json!([]))
    );
    assert_eq!(
        server.admin.load_balancer("a1").await.unwrap().unwrap(),
        server.cloud.load_balancers()[0]
    );
    let edit = LoadBalancerEdit { uid: Some("v".to_owned()), ..Default::default() };
    assert_eq!(
        server
            .admin
            .edit_load_balancer("a1", &edit)
            .await
            .unwrap()
            .unwrap()
            .uid,
        "v"
    );
    assert_eq!(server.admin.edit_load_balancer("a2", &edit).await.unwrap(), None);
    let (status, error) = server
        .send(Method::PUT, "/v1/load-balancers/a1", r#"{"state":"deleting"}"#)
        .await;
    assert_eq!((status, error["field"].as_str()), (400, Some("state")));
    let (status, error) = server
        .send(Method::PUT, "/v1/load-balancers/a1", r#"{"address":"192.0.2.9"}"#)
        .await;
    assert_eq!((status, error["field"].as_str()), (400, Some("address")));
    let member = EndpointMember {
        address: "[2001:db8::1]:8080".parse().unwrap(),
        protocol: Transport::Tcp,
        listener: 80,
    };
    let key = LoadBalancerKey { uid: "v".to_owned(), ..spec.key };
    server
        .cloud
        .update_load_balancer(&key, &Members::Endpoints([member].into()))
        .await
        .unwrap();
    let members = json!({"endpoints": [{"address": "[2001:db8::1]:8080", "protocol": "TCP", "listener": 80}]});
    let seen = server.get("/v1/load-balancers/a1").await.1;
    assert_eq!((&seen["members"], &seen["nodes"]), (&members, &json!([])));
    assert!(server.admin.remove_load_balancer("a1").await.unwrap());
    assert!(!server.admin.remove_load_balancer("a1").await.unwrap());
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        assert_eq!(server.send(method, "/v1/load-balancers/a1", "{}").await.0, 404);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_route_is_put_listed_and_deleted() {
    let server = Server::start("").await;
    let route =
        json!({"name": "r1", "node": "n1", "destinationCIDR": "10.1.0.0/24", "blackhole": false});
    let body = r#"{"node":"n1","destinationCIDR":"10.1.0.7/24"}"#;
    assert_eq!(server.send(Method::PUT, "/v1/routes/r1", body).await, (200, route.clone()));
    assert_eq!(server.get("/v1/routes").await, (200, json!([route])));
    assert_eq!(server.send(Method::DELETE, "/v1/routes/r1", "").await.0, 204);
    assert_eq!(server.send(Method::DELETE, "/v1/routes/r1", "").await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn the_typed_client_does_the_same() {
    use crate::cloud::{InstanceSpec, PowerState, RouteBody};
    let server = Server::start("").await;
    let admin = &server.admin;
    assert_eq!(admin.instance("odd name%").await.unwrap(), None);
    assert_eq!(admin.set_power("n1", PowerState::Stopped).await.unwrap(), None);
    let spec = InstanceSpec { zone: Some("z9".to_owned()), ..InstanceSpec::default() };
    let put = admin.put_instance("n1", &spec).await.unwrap();
    let stopped = admin
        .set_power("n1", PowerState::Stopped)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(stopped, crate::cloud::Instance { power_state: PowerState::Stopped, ..put });
    assert_eq!(admin.instances().await.unwrap(), [stopped]);
    assert!(admin.delete_instance("n1").await.unwrap());
    assert!(!admin.delete_instance("n1").await.unwrap());
    let body = RouteBody {
        node: Some("n1".to_owned()),
        destination: Some("10.0.0.0/24".parse().unwrap()),
        ..RouteBody::default()
    };
    admin.put_route("r", &body).await.unwrap();
    assert_eq!(admin.routes().await.unwrap().len(), 1);
    assert!(admin.delete_route("r").await.unwrap());
    assert_eq!(admin.load_balancers().await.unwrap(), []);
    assert_eq!(admin.calls().await.unwrap(), crate::cloud::Calls::default());
    let error = admin.set_faults(&[FaultSpec::default()]).await.unwrap_err();
    assert_eq!(error.status(), Some(StatusCode::BAD_REQUEST));
    admin.clear_faults().await.unwrap();
    server.stop().await;
}

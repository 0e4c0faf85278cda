//! Requests, decoding and the caches of ccm-core against whole API servers: the embedded one in
//! virtual time, and the real one where its programs are.

use std::time::Duration;

use ccm_core::{
    k8s::{EndpointSliceView, NodeFields, NodeView, ServiceFields, ServiceView, well_known},
    runtime::{
        api::{
            ACCEPT_OBJECT, ACCEPT_WATCH, ApiClient, ApiClientOptions, ApiErrorKind, ApiMetrics,
            ApiRequest, Patch, PatchOp, Subresource,
        },
        cache::Cache,
        encoding::{CachedObject, Decoder, Encoding},
        reflector::{CacheMetrics, FirstSyncTimedOut, Reflector, ReflectorOptions},
    },
    write_gate::WriteGate,
};
use ccm_testkit::apiserver::{self, Access, ApiServer, Match, Rule};
use ccm_testkit::control_plane::{ControlPlane, Options, User};
use ccm_testkit::kubelet::{KubeletOptions, Kubelets, NodeShape, NodeSpec};
use prometheus::Registry;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Case, binaries, cases};

pub(crate) fn embedded() -> Vec<Case> {
    cases![
        the_embedded_server_is_followed,
        services_and_slices_of_the_embedded_server_are_followed,
        watches_that_break_freeze_or_expire_lose_nothing,
        rights_that_come_late_are_used,
    ]
}

pub(crate) fn real() -> Vec<Case> {
    cases![a_real_server_is_followed, a_real_server_without_streaming_lists_is_followed]
}

fn api_client(client: kube::Client) -> ApiClient {
    let metrics = ApiMetrics::register(&Registry::new()).unwrap();
    let mut options =
        ApiClientOptions::new("ccm-test/v0", "test", metrics, WriteGate::always_open());
    options.qps = 0.0;
    ApiClient::new(client, options)
}

struct Follower<T: CachedObject = NodeView> {
    cache: Cache<T>,
    _task: JoinHandle<Result<(), FirstSyncTimedOut>>,
    _stop: DropGuard,
}

impl Follower {
    async fn start(client: &ApiClient, options: ReflectorOptions) -> Self {
        Self::of(client, NodeFields::default(), options).await
    }
}

impl<T: CachedObject> Follower<T> {
    async fn of(client: &ApiClient, fields: T::Fields, options: ReflectorOptions) -> Self {
        let cache = Cache::new(fields);
        let metrics = CacheMetrics::register(&Registry::new()).unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(
            Reflector::new(client.clone(), cache.clone(), options, metrics).run(stop.clone()),
        );
        tokio::time::timeout(Duration::from_secs(60), cache.synced())
            .await
            .expect("the cache fills");
        Self { cache, _task: task, _stop: stop.drop_guard() }
    }

    async fn until(&self, what: &str, limit: Duration, holds: impl Fn(&Cache<T>) -> bool) {
        let deadline = Instant::now() + limit;
        while !holds(&self.cache) {
            assert!(Instant::now() < deadline, "not in time: {what}; {:?}", self.cache);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn kubelets(client: kube::Client) -> Kubelets {
    Kubelets::new(client, KubeletOptions { shape: NodeShape::Full, ..KubeletOptions::default() })
}

fn specs(from: usize, to: usize) -> impl Iterator<Item = NodeSpec> {
    let spec = |n: usize| {
        let spec = NodeSpec::new(format!("node-{n:03}"))
            .provided_ip([10, 0, 0, u8::try_from(n % 250).unwrap()].into());
        // Every second one as it is after initialisation.
        if n.is_multiple_of(2) {
            spec
        } else {
            spec.provider_id(format!("mock://{n}")).initialized()
        }
    };
    (from..to).map(spec)
}

/// What the cache holds is what the server says when asked for JSON, node by node.
async fn holds_what_the_server_has(client: &ApiClient, cache: &Cache<NodeView>) {
    for cached in cache.list() {
        let path = format!("/api/v1/nodes/{}", cached.name);
        let response = client.send(ApiRequest::get(path)).await.unwrap();
        let decoder = Decoder::<NodeView>::new(NodeFields::default());
        assert_eq!(
            decoder
                .object(response.encoding(), response.body())
                .unwrap(),
            *cached
        );
        assert_eq!(
            client
                .get_node(&cached.name, &NodeFields::default())
                .await
                .unwrap(),
            *cached
        );
    }
}

/// Writes, and the errors that a server answers them with.
// length: one story, told in order
async fn writes_and_their_errors(client: &ApiClient) {
    let node = client
        .get_node("node-001", &NodeFields::default())
        .await
        .unwrap();
    let test = |uid: &str| PatchOp::Test { path: "/metadata/uid".into(), value: json!(uid) };
    let label = PatchOp::Add { path: "/metadata/labels/a~1b".into(), value: json!("c") };

    let patch = Patch::Json(vec![test("another"), label.clone()]);
    let error = client
        .patch_node("node-001", Subresource::None, &patch)
        .await
        .unwrap_err();
    assert_eq!(*error.kind(), ApiErrorKind::TestFailed, "{error}");

    let patch = Patch::Json(vec![test(&node.uid), label]);
    let patched = client
        .patch_node("node-001", Subresource::None, &patch)
        .await
        .unwrap();
    assert_eq!((patched.uid.as_str(), patched.labels["a/b"].as_str()), (&*node.uid, "c"));
    assert_ne!(patched.resource_version, *node.resource_version);
    assert!(!patched.deleting);

    let status = json!({"status": {"addresses": [{"type": "ExternalIP", "address": "192.0.2.1"}]}});
    client
        .patch_node("node-001", Subresource::Status, &Patch::Strategic(status))
        .await
        .unwrap();

    let move_away = Patch::Merge(json!({"spec": {"providerID": "mock://elsewhere"}}));
    let error = client
        .patch_node("node-001", Subresource::None, &move_away)
        .await
        .unwrap_err();
    assert!(matches!(error.kind(), ApiErrorKind::Invalid(causes) if !causes.is_empty()), "{error}");

    let missing = client
        .patch_node("node-999", Subresource::None, &move_away)
        .await
        .unwrap_err();
    assert_eq!(*missing.kind(), ApiErrorKind::NotFound, "{missing}");
    let seen = client
        .get_node("node-001", &NodeFields::default())
        .await
        .unwrap();
    assert_ne!(seen.resource_version, node.resource_version);
    for (uid, version) in
        [("another", &seen.resource_version), (&*node.uid, &node.resource_version)]
    {
        let error = client
            .delete_node("node-001", uid, version)
            .await
            .unwrap_err();
        assert_eq!(*error.kind(), ApiErrorKind::Conflict, "{error}");
    }
    client
        .delete_node("node-001", &seen.uid, &seen.resource_version)
        .await
        .unwrap();
    let error = client
        .delete_node("node-001", &seen.uid, &seen.resource_version)
        .await
        .unwrap_err();
    assert_eq!(*error.kind(), ApiErrorKind::NotFound, "{error}");

    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
    let error = client
        .send(ApiRequest::create("/api/v1/namespaces", &namespace).unwrap())
        .await
        .unwrap_err();
    assert_eq!((error.kind(), error.reason()), (&ApiErrorKind::Conflict, "AlreadyExists"));
}

const SERVICES: &str = "/api/v1/namespaces/default/services";

/// A Service that the API takes, with this name and spec.
async fn create_service(
    client: &ApiClient,
    name: &str,
    spec: serde_json::Value,
    metadata: serde_json::Value,
) {
    let mut service =
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
    service["metadata"]["name"] = json!(name);
    if service["spec"]["type"] != "ExternalName" {
        service["spec"]["ports"] = json!([
            {"name": "http", "port": 80, "targetPort": "web", "appProtocol": "http"},
            {"name": "dns", "port": 53, "protocol": "UDP"},
        ]);
    }
    client
        .send(ApiRequest::create(SERVICES, &service).unwrap())
        .await
        .unwrap();
}

/// What the cache holds is what the server says when asked for JSON, and it holds nothing else.
async fn holds_the_services(
    client: &ApiClient,
    cache: &Cache<ServiceView>,
    fields: &ServiceFields,
    names: &[&str],
) {
    let mut held: Vec<_> = cache.list().iter().map(|s| s.name.to_string()).collect();
    held.sort();
    assert_eq!(held, names);
    for cached in cache.list() {
        let response = client
            .send(ApiRequest::get(format!("{SERVICES}/{}", cached.name)))
            .await
            .unwrap();
        let decoder = Decoder::<ServiceView>::new(fields.clone());
        assert_eq!(
            decoder
                .object(response.encoding(), response.body())
                .unwrap(),
            *cached
        );
        assert_eq!(
            client
                .get_service("default", &cached.name, fields)
                .await
                .unwrap(),
            *cached
        );
    }
}

/// Services of all types.
async fn create_services(client: &ApiClient) {
    let of_class = |class: &str| json!({"type": "LoadBalancer", "loadBalancerClass": class});
    create_service(client, "a-cluster-ip", json!({"type": "ClusterIP"}), json!({})).await;
    create_service(client, "b-node-port", json!({"type": "NodePort"}), json!({})).await;
    let external = json!({"type": "ExternalName", "externalName": "a.example.com"});
    create_service(client, "c-external-name", external, json!({})).await;
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP",
                       "loadBalancerSourceRanges": ["10.0.0.0/8"], "internalTrafficPolicy": "Local"});
    create_service(
        client,
        "d-balancer",
        local,
        json!({"labels": {"a": "b"}, "annotations": {"c": "d"}}),
    )
    .await;
    create_service(client, "e-claimed", of_class("example.com/ours"), json!({})).await;
    create_service(
        client,
        "f-foreign",
        of_class("example.com/theirs"),
        json!({"annotations": {"c": "d"}}),
    )
    .await;
    let finalizers = json!({"finalizers": [well_known::FINALIZER_LOAD_BALANCER]});
    create_service(client, "g-cleanup", json!({"type": "ClusterIP"}), finalizers).await;
}

/// Services of all types, and how they become others.
// length: one story, told in order
async fn services_are_followed(client: &ApiClient) {
    create_services(client).await;
    let fields = ServiceFields {
        classes: vec!["example.com/ours".into()],
        ..ServiceFields::default()
    };
    let options = ReflectorOptions { page_size: 3, ..ReflectorOptions::default() };
    let follower = Follower::<ServiceView>::of(client, fields.clone(), options).await;
    holds_the_services(
        client,
        &follower.cache,
        &fields,
        &["d-balancer", "e-claimed", "f-foreign", "g-cleanup"],
    )
    .await;
    let d = follower.cache.get("default/d-balancer").unwrap();
    assert_eq!((d.ports.len(), d.labels.len(), d.annotations.len()), (2, 1, 1));
    assert!(d.ports.iter().all(|p| p.node_port.is_some()) && d.health_check_node_port.is_some());
    assert!(
        follower
            .cache
            .get("default/f-foreign")
            .unwrap()
            .ports
            .is_empty()
    );

    let soon = Duration::from_secs(20);
    let add = PatchOp::Add {
        path: "/metadata/finalizers".into(),
        value: json!([well_known::FINALIZER_LOAD_BALANCER]),
    };
    let status = json!({"ingress": [{"ip": "192.0.2.1"}, {"hostname": "lb.example.com"}]});
    let status = PatchOp::Add { path: "/status/loadBalancer".into(), value: status };
    let test = PatchOp::test("/metadata/uid", &d.uid);
    let patched = client
        .patch_service_status("default", "d-balancer", &Patch::Json(vec![test, add, status]))
        .await;
    let patched = patched.unwrap();
    assert_eq!(
        (patched.uid.as_str(), patched.finalizers.as_slice()),
        (&*d.uid, &[well_known::FINALIZER_LOAD_BALANCER.to_owned()][..])
    );
    let has_status = |cache: &Cache<ServiceView>| {
        cache
            .get("default/d-balancer")
            .is_some_and(|s| s.status.ingress.len() == 2 && s.has_finalizer())
    };
    follower.until("the status", soon, has_status).await;
    assert_eq!(
        *follower
            .cache
            .get("default/d-balancer")
            .unwrap()
            .resource_version,
        *patched.resource_version
    );
    let another = Patch::Json(vec![PatchOp::test("/metadata/uid", "another")]);
    let error = client
        .patch_service_status("default", "d-balancer", &another)
        .await
        .unwrap_err();
    assert_eq!(*error.kind(), ApiErrorKind::TestFailed, "{error}");

    // Away with the type; the finalizer keeps it in the cache until it goes, too.
    let send = async |name: &str, patch: serde_json::Value| {
        client
            .send(ApiRequest::patch(format!("{SERVICES}/{name}"), &Patch::Merge(patch)).unwrap())
            .await
            .unwrap();
    };
    send("d-balancer", json!({"spec": {"type": "ClusterIP", "loadBalancerSourceRanges": null}}))
        .await;
    let retyped = |cache: &Cache<ServiceView>| {
        cache
            .get("default/d-balancer")
            .is_some_and(|s| !s.is_load_balancer)
    };
    follower.until("the change of type", soon, retyped).await;
    let off = Patch::Json(vec![PatchOp::Remove { path: "/metadata/finalizers".into() }]);
    client
        .patch_service_status("default", "d-balancer", &off)
        .await
        .unwrap();
    send("b-node-port", json!({"spec": {"type": "LoadBalancer"}})).await;
    send("e-claimed", json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null}})).await;
    client
        .send(ApiRequest::delete(format!("{SERVICES}/f-foreign")))
        .await
        .unwrap();
    client
        .send(ApiRequest::delete(format!("{SERVICES}/g-cleanup")))
        .await
        .unwrap();
    create_service(client, "h-late", json!({"type": "LoadBalancer"}), json!({})).await;
    follower
        .until("the last one", soon, |cache| cache.get("default/h-late").is_some())
        .await;
    holds_the_services(client, &follower.cache, &fields, &["b-node-port", "g-cleanup", "h-late"])
        .await;
    assert!(follower.cache.get("default/g-cleanup").unwrap().deleting);
    let gone = client
        .get_service("default", "f-foreign", &fields)
        .await
        .unwrap_err();
    assert!(gone.is_not_found(), "{gone}");
}

/// Slices of a Service, and one of none.
async fn slices_are_followed(client: &ApiClient) {
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    for (name, labels) in
        [("web-1", json!({"kubernetes.io/service-name": "web"})), ("stray", json!({}))]
    {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": name, "labels": labels},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": ["10.1.0.7"], "nodeName": "node-1", "conditions": {"ready": true}}],
        });
        client
            .send(ApiRequest::create(slices, &slice).unwrap())
            .await
            .unwrap();
    }
    let follower = Follower::<EndpointSliceView>::of(client, (), ReflectorOptions::default()).await;
    let ours: Vec<_> = follower
        .cache
        .list()
        .into_iter()
        .filter(|s| &*s.namespace == "default" && &*s.service == "web")
        .collect();
    assert_eq!(ours.len(), 1);
    assert_eq!((ours[0].endpoints.len(), ours[0].ports.len()), (1, 1));
    assert!(follower.cache.get("default/stray").is_none());
    let response = client
        .send(ApiRequest::get(format!("{slices}/web-1")))
        .await
        .unwrap();
    assert_eq!(
        Decoder::<EndpointSliceView>::new(())
            .object(response.encoding(), response.body())
            .unwrap(),
        *ours[0]
    );
    client
        .send(ApiRequest::delete(format!("{slices}/web-1")))
        .await
        .unwrap();
    follower
        .until("the deletion", Duration::from_secs(20), |cache| {
            cache.get("default/web-1").is_none()
        })
        .await;
}

async fn follows_a_real_server(streaming: bool) {
    let options = Options::default()
        .feature_gate("WatchList", streaming)
        .audit()
        .user(User::new("nobody"));
    let control_plane = ControlPlane::start(&binaries(), options).await.unwrap();
    let client = api_client(control_plane.client().await.unwrap());
    let kubelets = kubelets(control_plane.client().await.unwrap());
    kubelets.register_all(specs(0, 25)).await.unwrap();

    let list = client
        .send(ApiRequest::get("/api/v1/nodes").accept(ACCEPT_OBJECT))
        .await
        .unwrap();
    assert_eq!(list.encoding(), Encoding::Protobuf);
    let watch = ApiRequest::get("/api/v1/nodes?watch=true&timeoutSeconds=1").accept(ACCEPT_WATCH);
    assert_eq!(client.open(watch).await.unwrap().0, Encoding::Protobuf);

    let follower =
        Follower::start(&client, ReflectorOptions { page_size: 10, ..ReflectorOptions::default() })
            .await;
    assert_eq!(follower.cache.len(), 25);
    holds_what_the_server_has(&client, &follower.cache).await;
    kubelets.register_all(specs(25, 40)).await.unwrap();
    let soon = Duration::from_secs(20);
    follower
        .until("new nodes", soon, |cache| cache.len() == 40)
        .await;
    writes_and_their_errors(&client).await;
    follower
        .until("the deletion", soon, |cache| cache.len() == 39 && cache.get("node-001").is_none())
        .await;
    holds_what_the_server_has(&client, &follower.cache).await;
    let listed = client.list_nodes(&NodeFields::default()).await.unwrap();
    assert_eq!(listed.len(), 39);
    services_are_followed(&client).await;
    slices_are_followed(&client).await;

    let nobody = &control_plane.user("nobody").unwrap().token;
    let nobody = api_client(control_plane.client_as(nobody).await.unwrap());
    let patch = Patch::Merge(json!({}));
    let error = nobody
        .patch_node("node-002", Subresource::Status, &patch)
        .await
        .unwrap_err();
    assert!(
        error.to_string().starts_with(
            "cannot patch nodes/status node-002: missing RBAC rule for verb \"patch\""
        ),
        "{error}"
    );

    // Streaming lists are refused by a server without them, and then everything comes in pages.
    let ours = control_plane.audit_log().unwrap().of_agent("ccm-test/");
    assert_eq!(ours.count("list", "nodes"), if streaming { 2 } else { 2 + 3 });
    kubelets.stop().await;
    control_plane.stop().await.unwrap();
}

async fn a_real_server_is_followed() {
    follows_a_real_server(true).await;
}

async fn a_real_server_without_streaming_lists_is_followed() {
    follows_a_real_server(false).await;
}

async fn the_embedded_server_is_followed() {
    for streaming_lists in [true, false] {
        let server =
            ApiServer::new(apiserver::Options { streaming_lists, ..apiserver::Options::default() });
        let client = api_client(server.client());
        let kubelets = kubelets(server.client());
        kubelets.register_all(specs(0, 25)).await.unwrap();
        let follower = Follower::start(
            &client,
            ReflectorOptions { page_size: 10, ..ReflectorOptions::default() },
        )
        .await;
        assert_eq!(follower.cache.len(), 25);
        holds_what_the_server_has(&client, &follower.cache).await;
        writes_and_their_errors(&client).await;
        let soon = Duration::from_secs(1);
        follower
            .until("the deletion", soon, |cache| cache.len() == 24)
            .await;
        holds_what_the_server_has(&client, &follower.cache).await;
        kubelets.stop().await;
    }
}

async fn services_and_slices_of_the_embedded_server_are_followed() {
    for streaming_lists in [true, false] {
        let server =
            ApiServer::new(apiserver::Options { streaming_lists, ..apiserver::Options::default() });
        let client = api_client(server.client());
        services_are_followed(&client).await;
        slices_are_followed(&client).await;
        kubelets(server.client())
            .register_all(specs(0, 12))
            .await
            .unwrap();
        let mut listed = client.list_nodes(&NodeFields::default()).await.unwrap();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(listed.len(), 12);
        for node in listed {
            assert_eq!(
                client
                    .get_node(&node.name, &NodeFields::default())
                    .await
                    .unwrap(),
                node
            );
        }
    }
}

async fn watches_that_break_freeze_or_expire_lose_nothing() {
    let server =
        ApiServer::new(apiserver::Options { history_limit: 20, ..apiserver::Options::default() });
    let client = api_client(server.client());
    let kubelets = kubelets(server.client());
    kubelets.register_all(specs(0, 5)).await.unwrap();
    let follower = Follower::start(&client, ReflectorOptions::default()).await;
    let nodes = Match::resource("nodes").verb("watch");

    assert_eq!(server.faults().cut_watches(&nodes), 1);
    kubelets.register_all(specs(5, 10)).await.unwrap();
    follower
        .until("after a cut", Duration::from_secs(5), |cache| cache.len() == 10)
        .await;

    let frozen = server.faults().freeze_watches(nodes.clone());
    kubelets.register_all(specs(10, 15)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(follower.cache.len(), 10, "frozen");
    server.faults().thaw(frozen);
    follower
        .until("after a freeze", Duration::from_secs(200), |cache| cache.len() == 15)
        .await;

    // More than the history holds, unseen.
    let frozen = server.faults().freeze_watches(nodes.clone());
    kubelets.register_all(specs(15, 60)).await.unwrap();
    server.faults().cut_watches(&nodes);
    server.faults().thaw(frozen);
    follower
        .until("after 410", Duration::from_secs(200), |cache| cache.len() == 60)
        .await;
    holds_what_the_server_has(&client, &follower.cache).await;
    kubelets.stop().await;
}

async fn rights_that_come_late_are_used() {
    let server = ApiServer::new(apiserver::Options::default());
    let user = apiserver::User::new("ccm", &[]);
    server.users().set_access("ccm", Access::Rules(Vec::new()));
    let client = api_client(server.client_as(user));
    kubelets(server.client())
        .register_all(specs(0, 3))
        .await
        .unwrap();

    let cache = Cache::<NodeView>::new(NodeFields::default());
    let metrics = CacheMetrics::register(&Registry::new()).unwrap();
    let first_sync = Duration::from_secs(60);
    let options = ReflectorOptions {
        first_sync,
        count_denials: true,
        ..ReflectorOptions::default()
    };
    let reflector = Reflector::new(client.clone(), cache, options, metrics);
    let error = reflector.run(CancellationToken::new()).await.unwrap_err();
    let rule = "missing RBAC rule for verb \"watch\" on resource \"nodes\"";
    assert!(error.to_string().contains(rule), "{error}");

    let granted = tokio::spawn({
        let server = server.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            let role = json!({"rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]});
            server
                .users()
                .set_access("ccm", Access::Rules(Rule::of_role(&role).unwrap()));
        }
    });
    let follower = Follower::start(&client, ReflectorOptions::default()).await;
    granted.await.unwrap();
    assert_eq!(follower.cache.len(), 3);
}

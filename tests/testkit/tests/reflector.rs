//! Requests, decoding and the node cache of ccm-core against whole API servers: the embedded one in virtual time, and
//! the real one where its programs are.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, too")]

use std::time::Duration;

use ccm_core::k8s::{NodeFields, NodeView};
use ccm_core::runtime::api::{
    ACCEPT_OBJECT, ACCEPT_WATCH, ApiClient, ApiClientOptions, ApiErrorKind, ApiMetrics, ApiRequest, Encoding, Patch,
    PatchOp, Subresource,
};
use ccm_core::runtime::cache::Cache;
use ccm_core::runtime::gate::WriteGate;
use ccm_core::runtime::reflector::{CacheMetrics, Decoder, FirstSyncTimedOut, Reflector, ReflectorOptions};
use ccm_testkit::apiserver::{self, Access, ApiServer, Match, Rule};
use ccm_testkit::control_plane::{Binaries, ControlPlane, Options, User};
use ccm_testkit::kubelet::{KubeletOptions, Kubelets, NodeShape, NodeSpec};
use prometheus::Registry;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

fn api_client(client: kube::Client) -> ApiClient {
    let metrics = ApiMetrics::register(&Registry::new()).unwrap();
    let mut options = ApiClientOptions::new("ccm-test/v0", "test", metrics, WriteGate::always_open());
    options.qps = 0.0;
    ApiClient::new(client, options)
}

struct Follower {
    cache: Cache<NodeView>,
    _task: JoinHandle<Result<(), FirstSyncTimedOut>>,
    _stop: DropGuard,
}

impl Follower {
    async fn start(client: &ApiClient, options: ReflectorOptions) -> Self {
        let cache = Cache::new(NodeFields::default());
        let metrics = CacheMetrics::register(&Registry::new()).unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(Reflector::new(client.clone(), cache.clone(), options, metrics).run(stop.clone()));
        tokio::time::timeout(Duration::from_secs(60), cache.synced()).await.expect("the cache fills");
        Self { cache, _task: task, _stop: stop.drop_guard() }
    }

    async fn until(&self, what: &str, limit: Duration, holds: impl Fn(&Cache<NodeView>) -> bool) {
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
        let spec = NodeSpec::new(format!("node-{n:03}")).provided_ip([10, 0, 0, u8::try_from(n % 250).unwrap()].into());
        // Every second one as it is after initialisation.
        if n.is_multiple_of(2) { spec } else { spec.provider_id(format!("mock://{n}")).initialized() }
    };
    (from..to).map(spec)
}

/// What the cache holds is what the server says when asked for JSON, node by node.
async fn holds_what_the_server_has(client: &ApiClient, cache: &Cache<NodeView>) {
    for cached in cache.list() {
        let path = format!("/api/v1/nodes/{}", cached.name);
        let response = client.send(ApiRequest::get(path)).await.unwrap();
        let decoder = Decoder::<NodeView>::new(NodeFields::default());
        assert_eq!(decoder.object(response.encoding(), response.body()).unwrap(), *cached);
        assert_eq!(client.get_node(&cached.name, &NodeFields::default()).await.unwrap(), *cached);
    }
}

/// Writes, and the errors that a server answers them with.
async fn writes_and_their_errors(client: &ApiClient) {
    let node = client.get_node("node-001", &NodeFields::default()).await.unwrap();
    let test = |uid: &str| PatchOp::Test { path: "/metadata/uid".into(), value: json!(uid) };
    let label = PatchOp::Add { path: "/metadata/labels/a~1b".into(), value: json!("c") };

    let patch = Patch::Json(vec![test("another"), label.clone()]);
    let error = client.patch_node("node-001", Subresource::None, &patch).await.unwrap_err();
    assert_eq!(*error.kind(), ApiErrorKind::TestFailed, "{error}");

    let patch = Patch::Json(vec![test(&node.uid), label]);
    let patched = client.patch_node("node-001", Subresource::None, &patch).await.unwrap();
    assert_eq!((patched.uid.as_str(), patched.labels["a/b"].as_str()), (&*node.uid, "c"));
    assert_ne!(patched.resource_version, *node.resource_version);
    assert!(!patched.deleting);

    let status = json!({"status": {"addresses": [{"type": "ExternalIP", "address": "192.0.2.1"}]}});
    client.patch_node("node-001", Subresource::Status, &Patch::Strategic(status)).await.unwrap();

    let move_away = Patch::Merge(json!({"spec": {"providerID": "mock://elsewhere"}}));
    let error = client.patch_node("node-001", Subresource::None, &move_away).await.unwrap_err();
    assert!(matches!(error.kind(), ApiErrorKind::Invalid(causes) if !causes.is_empty()), "{error}");

    let missing = client.patch_node("node-999", Subresource::None, &move_away).await.unwrap_err();
    assert_eq!(*missing.kind(), ApiErrorKind::NotFound, "{missing}");
    let seen = client.get_node("node-001", &NodeFields::default()).await.unwrap();
    assert_ne!(seen.resource_version, node.resource_version);
    for (uid, version) in [("another", &seen.resource_version), (&*node.uid, &node.resource_version)] {
        let error = client.delete_node("node-001", uid, version).await.unwrap_err();
        assert_eq!(*error.kind(), ApiErrorKind::Conflict, "{error}");
    }
    client.delete_node("node-001", &seen.uid, &seen.resource_version).await.unwrap();
    let error = client.delete_node("node-001", &seen.uid, &seen.resource_version).await.unwrap_err();
    assert_eq!(*error.kind(), ApiErrorKind::NotFound, "{error}");

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
    let error = client.create("/api/v1/namespaces", &namespace).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (&ApiErrorKind::Conflict, "AlreadyExists"));
}

async fn follows_a_real_server(streaming: bool) {
    let what = if streaming { "the node cache" } else { "the node cache without streaming lists" };
    let Some(binaries) = Binaries::find_or_say_skipped(what) else { return };
    let options = Options::default().feature_gate("WatchList", streaming).audit().user(User::new("nobody"));
    let control_plane = ControlPlane::start(&binaries, options).await.unwrap();
    let client = api_client(control_plane.client().await.unwrap());
    let kubelets = kubelets(control_plane.client().await.unwrap());
    kubelets.register_all(specs(0, 25)).await.unwrap();

    let list = client.send(ApiRequest::get("/api/v1/nodes").accept(ACCEPT_OBJECT)).await.unwrap();
    assert_eq!(list.encoding(), Encoding::Protobuf);
    let watch = ApiRequest::get("/api/v1/nodes?watch=true&timeoutSeconds=1").accept(ACCEPT_WATCH);
    assert_eq!(client.open(watch).await.unwrap().0, Encoding::Protobuf);

    let follower = Follower::start(&client, ReflectorOptions { page_size: 10, ..ReflectorOptions::default() }).await;
    assert_eq!(follower.cache.len(), 25);
    holds_what_the_server_has(&client, &follower.cache).await;
    kubelets.register_all(specs(25, 40)).await.unwrap();
    let soon = Duration::from_secs(20);
    follower.until("new nodes", soon, |cache| cache.len() == 40).await;
    writes_and_their_errors(&client).await;
    follower.until("the deletion", soon, |cache| cache.len() == 39 && cache.get("node-001").is_none()).await;
    holds_what_the_server_has(&client, &follower.cache).await;

    let nobody = &control_plane.user("nobody").unwrap().token;
    let nobody = api_client(control_plane.client_as(nobody).await.unwrap());
    let patch = Patch::Merge(json!({}));
    let error = nobody.patch_node("node-002", Subresource::Status, &patch).await.unwrap_err();
    assert!(
        error.to_string().starts_with("cannot patch nodes/status node-002: missing RBAC rule for verb \"patch\""),
        "{error}"
    );

    // Streaming lists are refused by a server without them, and then everything comes in pages.
    let ours = control_plane.audit_log().unwrap().of_agent("ccm-test/");
    assert_eq!(ours.count("list", "nodes"), if streaming { 1 } else { 1 + 3 });
    kubelets.stop().await;
    control_plane.stop().await.unwrap();
}

#[tokio::test]
async fn a_real_server_is_followed() {
    follows_a_real_server(true).await;
}

#[tokio::test]
async fn a_real_server_without_streaming_lists_is_followed() {
    follows_a_real_server(false).await;
}

#[tokio::test(start_paused = true)]
async fn the_embedded_server_is_followed() {
    for streaming_lists in [true, false] {
        let server = ApiServer::new(apiserver::Options { streaming_lists, ..apiserver::Options::default() });
        let client = api_client(server.client());
        let kubelets = kubelets(server.client());
        kubelets.register_all(specs(0, 25)).await.unwrap();
        let follower =
            Follower::start(&client, ReflectorOptions { page_size: 10, ..ReflectorOptions::default() }).await;
        assert_eq!(follower.cache.len(), 25);
        holds_what_the_server_has(&client, &follower.cache).await;
        writes_and_their_errors(&client).await;
        let soon = Duration::from_secs(1);
        follower.until("the deletion", soon, |cache| cache.len() == 24).await;
        holds_what_the_server_has(&client, &follower.cache).await;
        kubelets.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_break_freeze_or_expire_lose_nothing() {
    let server = ApiServer::new(apiserver::Options { history_limit: 20, ..apiserver::Options::default() });
    let client = api_client(server.client());
    let kubelets = kubelets(server.client());
    kubelets.register_all(specs(0, 5)).await.unwrap();
    let follower = Follower::start(&client, ReflectorOptions::default()).await;
    let nodes = Match::resource("nodes").verb("watch");

    assert_eq!(server.faults().cut_watches(&nodes), 1);
    kubelets.register_all(specs(5, 10)).await.unwrap();
    follower.until("after a cut", Duration::from_secs(5), |cache| cache.len() == 10).await;

    let frozen = server.faults().freeze_watches(nodes.clone());
    kubelets.register_all(specs(10, 15)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(follower.cache.len(), 10, "frozen");
    server.faults().thaw(frozen);
    follower.until("after a freeze", Duration::from_secs(200), |cache| cache.len() == 15).await;

    // More than the history holds, unseen.
    let frozen = server.faults().freeze_watches(nodes.clone());
    kubelets.register_all(specs(15, 60)).await.unwrap();
    server.faults().cut_watches(&nodes);
    server.faults().thaw(frozen);
    follower.until("after 410", Duration::from_secs(200), |cache| cache.len() == 60).await;
    holds_what_the_server_has(&client, &follower.cache).await;
    kubelets.stop().await;
}

#[tokio::test(start_paused = true)]
async fn rights_that_come_late_are_used() {
    let server = ApiServer::new(apiserver::Options::default());
    let user = apiserver::User::new("ccm", &[]);
    server.users().set_access("ccm", Access::Rules(Vec::new()));
    let client = api_client(server.client_as(user));
    kubelets(server.client()).register_all(specs(0, 3)).await.unwrap();

    let cache = Cache::<NodeView>::new(NodeFields::default());
    let metrics = CacheMetrics::register(&Registry::new()).unwrap();
    let options = ReflectorOptions { first_sync: Duration::from_secs(60), ..ReflectorOptions::default() };
    let reflector = Reflector::new(client.clone(), cache, options, metrics);
    let error = reflector.run(CancellationToken::new()).await.unwrap_err();
    let rule = "missing RBAC rule for verb \"watch\" on resource \"nodes\"";
    assert!(error.to_string().contains(rule), "{error}");

    let granted = tokio::spawn({
        let server = server.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            let role = json!({"rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]});
            server.users().set_access("ccm", Access::Rules(Rule::of_role(&role).unwrap()));
        }
    });
    let follower = Follower::start(&client, ReflectorOptions::default()).await;
    granted.await.unwrap();
    assert_eq!(follower.cache.len(), 3);
}

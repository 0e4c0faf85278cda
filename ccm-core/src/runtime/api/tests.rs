use std::{sync::Arc, time::Duration};

use http::{Request, Response};
use kube::client::Body;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    k8s::{NodeFields, ServiceFields, well_known},
    runtime::reflector::tests::server::{Behaviour, Server, failure},
    write_gate::WriteGate,
};

fn server() -> Server {
    let server = Server::new(Behaviour::default());
    server.put("a", "u1", "mock://a");
    server
}

fn labels(value: &str) -> Patch {
    Patch::Merge(json!({"metadata": {"labels": {"x": value}}}))
}

fn test_uid(uid: &str) -> Patch {
    Patch::Json(vec![PatchOp::Test { path: "/metadata/uid".into(), value: json!(uid) }])
}

#[tokio::test(start_paused = true)]
async fn a_node_is_read_patched_and_deleted() {
    for protobuf in [false, true] {
        let server = server();
        server.behave(|b| b.protobuf = protobuf);
        let client = server.client();
        let node = client.get_node("a", &NodeFields::default()).await.unwrap();
        assert_eq!(node.provider_id.as_deref(), Some("mock://a"));

        let patched = client
            .patch_node("a", Subresource::None, &labels("1"))
            .await
            .unwrap();
        assert_eq!((patched.uid.as_str(), patched.deleting), ("u1", false));
        assert_ne!(patched.resource_version, *node.resource_version);
        assert_eq!(patched.labels["x"], "1");
        let seen = client
            .patch_node("a", Subresource::Status, &test_uid("u1"))
            .await
            .unwrap()
            .resource_version;

        for (uid, version) in [("u2", &*seen), ("u1", &*node.resource_version)] {
            let error = client.delete_node("a", uid, version).await.unwrap_err();
            assert_eq!(error.kind, ApiErrorKind::Conflict, "{uid} {version}");
        }
        client.delete_node("a", "u1", &seen).await.unwrap();
        let error = client.delete_node("a", "u1", &seen).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (&ApiErrorKind::NotFound, Some(404)));
        let log = server.requests();
        assert!(
            log[1].starts_with(
                "PATCH /api/v1/nodes/a [test/v0] application/json;as=PartialObjectMetadata"
            ),
            "{log:?}"
        );
        assert!(log[2].starts_with("PATCH /api/v1/nodes/a/status "), "{log:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_test_is_an_error_of_its_own() {
    let error = server()
        .client()
        .patch_node("a", Subresource::None, &test_uid("u2"))
        .await
        .unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::TestFailed);
}

#[tokio::test(start_paused = true)]
async fn a_closed_gate_lets_nothing_but_reads_out() {
    let (gate, keeper) = WriteGate::closed();
    let server = server();
    let (client, _) = server.client_with(gate, |_| {});
    let attempts = [
        client
            .patch_node("a", Subresource::Status, &labels("1"))
            .await
            .map(|_| ()),
        client.delete_node("a", "u1", "1").await,
        client
            .patch_service_status("shop", "web", &labels("1"))
            .await
            .map(|_| ()),
        client
            .send(ApiRequest::create("/api/v1/namespaces/default/events", &json!({})).unwrap())
            .await
            .map(|_| ()),
        client
            .send(ApiRequest::update("/api/v1/nodes/a", &json!({})).unwrap())
            .await
            .map(|_| ()),
    ];
    for attempt in attempts {
        assert_eq!(attempt.unwrap_err().kind, ApiErrorKind::NotLeader);
    }
    assert_eq!(server.requests().len(), 0);
    client.get_node("a", &NodeFields::default()).await.unwrap();
    keeper.open_until(Instant::now() + Duration::from_secs(1));
    client
        .patch_node("a", Subresource::None, &labels("1"))
        .await
        .unwrap();
}

fn web() -> serde_json::Value {
    json!({
        "kind": "Service", "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
        "metadata": {"namespace": "shop", "name": "web", "uid": "u1", "finalizers": ["x", well_known::FINALIZER_LOAD_BALANCER]},
    })
}

#[tokio::test(start_paused = true)]
async fn a_service_is_read_and_its_status_patched() {
    for protobuf in [false, true] {
        let server = Server::new(Behaviour { protobuf, ..Behaviour::default() });
        server.put_object(web());
        let client = server.client();
        let fields = ServiceFields::default();
        let service = client.get_service("shop", "web", &fields).await.unwrap();
        assert_eq!(
            (service.key().as_str(), service.ports.len(), service.has_finalizer()),
            ("shop/web", 1, true)
        );

        let patched = client
            .patch_service_status("shop", "web", &test_uid("u1"))
            .await
            .unwrap();
        assert_eq!(patched.finalizers, ["x", well_known::FINALIZER_LOAD_BALANCER]);
        assert_ne!(patched.resource_version, *service.resource_version);
        let error = client
            .patch_service_status("shop", "web", &test_uid("u2"))
            .await
            .unwrap_err();
        assert_eq!(*error.kind(), ApiErrorKind::TestFailed);
        assert_eq!(error.request().to_string(), "patch services/status shop/web");
        let log = server.requests();
        let patch = "PATCH /api/v1/namespaces/shop/services/web/status [test/v0] application/json;as=PartialObjectMetadata";
        assert!(log[1].starts_with(patch), "{log:?}");

        server.delete("shop/web");
        let error = client
            .get_service("shop", "web", &fields)
            .await
            .unwrap_err();
        assert!(
            error.is_not_found() && error.request().to_string() == "list services shop/web",
            "{error}"
        );
        assert!(
            client
                .patch_service_status("shop", "web", &test_uid("u1"))
                .await
                .unwrap_err()
                .is_not_found()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_cannot_be_read_is_an_error_that_says_why() {
    let server = Server::new(Behaviour::default());
    let mut web = web();
    web["spec"]["ports"][0]["protocol"] = json!("QUIC");
    server.put_object(web);
    let error = server
        .client()
        .get_service("shop", "web", &ServiceFields::default())
        .await
        .unwrap_err();
    let want = "cannot list services in namespace shop: cannot read the answer: services \"shop/web\" has an unusable \
                spec.ports.protocol \"QUIC\"";
    assert_eq!(crate::error::chain(&error), want);
}

fn nodes(behaviour: Behaviour, count: usize) -> Server {
    let server = Server::new(behaviour);
    for i in 0..count {
        server.put(&format!("n{i:04}"), "u1", "");
    }
    server
}

#[tokio::test(start_paused = true)]
async fn nodes_are_listed_page_by_page() {
    for protobuf in [false, true] {
        let server = nodes(Behaviour { protobuf, ..Behaviour::default() }, 1001);
        let nodes = server
            .client()
            .list_nodes(&NodeFields::default())
            .await
            .unwrap();
        let names: std::collections::BTreeSet<_> =
            nodes.iter().map(|node| node.name.clone()).collect();
        assert_eq!((nodes.len(), names.len()), (1001, 1001));
        let requests = server.requests();
        assert_eq!(requests.len(), 3);
        assert!(
            !requests.iter().any(|r| r.contains("resourceVersion")),
            "from a cache: {requests:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn half_a_list_is_no_list() {
    for protobuf in [false, true] {
        let server =
            nodes(Behaviour { protobuf, write_between_pages: true, ..Behaviour::default() }, 501);
        let error = server
            .client()
            .list_nodes(&NodeFields::default())
            .await
            .unwrap_err();
        assert_eq!(*error.kind(), ApiErrorKind::Gone, "the second page expired: {error}");
    }
    let server = nodes(Behaviour::default(), 501);
    server.put_object(json!({"metadata": {"name": "zz"}, "spec": {"taints": "none"}}));
    let error = server
        .client()
        .list_nodes(&NodeFields::default())
        .await
        .unwrap_err();
    let text = crate::error::chain(&error);
    assert!(
        text.starts_with(
            "cannot list nodes: cannot read the answer: malformed JSON of nodes \"zz\""
        ),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_gate_is_asked_after_the_wait_for_the_rate() {
    let (gate, keeper) = WriteGate::closed();
    let server = server();
    let (client, _) = server.client_with(gate, |o| (o.qps, o.burst) = (0.1, 1));
    keeper.open_until(Instant::now() + Duration::from_secs(5));
    client
        .patch_node("a", Subresource::None, &labels("1"))
        .await
        .unwrap();
    // Its turn comes after ten seconds.
    let error = client
        .patch_node("a", Subresource::None, &labels("2"))
        .await
        .unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::NotLeader);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn requests_keep_to_the_rate_and_the_deadline() {
    let server = server();
    let (client, _) =
        server.client_with(WriteGate::always_open(), |o| (o.qps, o.burst) = (20.0, 30));
    let start = Instant::now();
    for _ in 0..70 {
        client.get_node("a", &NodeFields::default()).await.unwrap();
    }
    assert!((1950..2200).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());

    server.behave(|b| b.hangs = true);
    let start = Instant::now();
    let error = client
        .get_node("a", &NodeFields::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Timeout);
    assert_eq!(start.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_waits_but_not_requests() {
    let server = server();
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    let (client, _) = server.client_with(WriteGate::always_open(), move |o| {
        (o.qps, o.burst, o.shutdown) = (0.01, 2, token);
    });
    client.get_node("a", &NodeFields::default()).await.unwrap();
    server.behave(|b| b.hangs = true);
    let fields = NodeFields::default();
    let (sent, waiting, ()) =
        tokio::join!(client.get_node("a", &fields), client.get_node("a", &fields), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            shutdown.cancel();
        });
    assert_eq!(sent.unwrap_err().kind, ApiErrorKind::Timeout);
    assert_eq!(waiting.unwrap_err().kind, ApiErrorKind::Canceled);
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn waiting_times_of_the_server_reach_the_caller() {
    let server = server();
    let mut status = failure(429, "TooManyRequests", "slow down");
    status["details"] = json!({"retryAfterSeconds": 7});
    server.behave(|b| b.answers = Some((429, status)));
    let error = server
        .client()
        .get_node("a", &NodeFields::default())
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.retry_after()),
        (&ApiErrorKind::Throttled, Some(Duration::from_secs(7)))
    );
    assert_eq!(error.to_string(), "cannot get nodes a: slow down (429)");
}

#[tokio::test(start_paused = true)]
async fn requests_are_counted_under_upstreams_names() {
    let server = server();
    let (client, registry) = server.client_with(WriteGate::always_open(), |_| {});
    client.get_node("a", &NodeFields::default()).await.unwrap();
    client
        .patch_node("b", Subresource::None, &labels("1"))
        .await
        .unwrap_err();
    server.behave(|b| b.hangs = true);
    client
        .get_node("a", &NodeFields::default())
        .await
        .unwrap_err();

    let mut seen = Vec::new();
    for family in registry.gather() {
        for metric in family.get_metric() {
            let labels: Vec<_> = metric
                .get_label()
                .iter()
                .map(|l| format!("{}={}", l.name(), l.value()))
                .collect();
            let count =
                metric.get_counter().get_value() + metric.get_histogram().get_sample_count() as f64;
            seen.push(format!("{}{{{}}} {count}", family.name(), labels.join(",")));
        }
    }
    let requests: Vec<_> = seen
        .iter()
        .filter(|l| l.starts_with("rest_client_requests_total"))
        .collect();
    assert_eq!(
        requests,
        [
            "rest_client_requests_total{code=200,host=localhost:6443,method=GET} 1",
            "rest_client_requests_total{code=404,host=localhost:6443,method=PATCH} 1",
            "rest_client_requests_total{code=<error>,host=localhost:6443,method=GET} 1",
        ]
    );
    let duration =
        "rest_client_request_duration_seconds{host=localhost:6443,verb=GET} 2".to_owned();
    assert!(seen.contains(&duration), "{seen:?}");
}

/// The client of events, behind a guard of its own, beside a controller's client; what reaches the
/// server, with times.
struct Guarded {
    client: kube::Client,
    seen: Arc<parking_lot::Mutex<Vec<(String, Instant)>>>,
    registry: prometheus::Registry,
    metrics: ApiMetrics,
}

impl Guarded {
    fn new() -> Self {
        let seen: Arc<parking_lot::Mutex<Vec<(String, Instant)>>> = Arc::default();
        let log = seen.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            log.lock()
                .push((format!("{} {}", request.method(), request.uri().path()), Instant::now()));
            let body = json!({ "metadata": { "name": "a", "namespace": "default", "uid": "u", "resourceVersion": "1" } });
            let body = http_body_util::Full::new(bytes::Bytes::from(body.to_string()));
            async move { Ok::<_, std::convert::Infallible>(Response::new(body)) }
        });
        let registry = prometheus::Registry::new();
        let metrics = ApiMetrics::register(&registry).unwrap();
        Self {
            client: kube::Client::new(service, "default"),
            seen,
            registry,
            metrics,
        }
    }

    fn guard(
        &self,
        limit: RateLimit,
        gate: WriteGate,
        shutdown: &CancellationToken,
    ) -> kube::Client {
        let (metrics, shutdown) = (self.metrics.clone(), shutdown.clone());
        ClientMiddleware { limit, gate, metrics, host: "api.test".into(), shutdown }
            .wrap(self.client.clone())
    }

    fn count(&self, what: &str) -> usize {
        self.seen
            .lock()
            .iter()
            .filter(|(request, _)| request.starts_with(what))
            .count()
    }
}

fn request(method: http::Method) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri("/api/v1/namespaces/default/configmaps/a")
        .body(Body::empty())
        .unwrap()
}

/// W35: upstream's events share the bucket of their controller.
#[tokio::test(start_paused = true)]
async fn a_flood_of_events_does_not_delay_a_write_of_state() {
    use crate::{
        provider::EventType,
        runtime::events::{EventMetrics, EventRecorder, ObjectRef, WallClock},
    };
    let server = Guarded::new();
    let stop = CancellationToken::new();
    let client = server.guard(RateLimit::new(20.0, 30), WriteGate::always_open(), &stop);
    let metrics = EventMetrics::register(&server.registry).unwrap();
    let (events, driver) = EventRecorder::new(
        client,
        "cloud-node-controller",
        WriteGate::always_open(),
        metrics,
        WallClock::system(),
    );
    let options = ApiClientOptions::new(
        "test/v0",
        "api.test",
        server.metrics.clone(),
        WriteGate::always_open(),
    );
    let controller = ApiClient::new(server.client.clone(), options);
    let running = tokio::spawn(driver.run(stop.clone()));
    for node in 0..500 {
        events.event(
            &ObjectRef::node(format!("n{node}"), format!("u{node}")),
            EventType::Normal,
            "Synced",
            "all is well",
        );
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(
        (100..=140).contains(&server.count("POST")),
        "30 at once, then 20 a second: {}",
        server.count("POST")
    );
    let before = Instant::now();
    controller
        .patch_node("n1", Subresource::Status, &labels("1"))
        .await
        .unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(server.count("POST"), 500);
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_guarded_client_keeps_its_rate_and_is_counted() {
    let server = Guarded::new();
    let client =
        server.guard(RateLimit::new(2.0, 3), WriteGate::always_open(), &CancellationToken::new());
    let start = Instant::now();
    for _ in 0..7 {
        client.send(request(http::Method::GET)).await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::from_secs(2), "three at once, then two a second");
    let families = server.registry.gather();
    let family = families
        .iter()
        .find(|family| family.name() == "rest_client_requests_total")
        .unwrap();
    let counted: f64 = family
        .get_metric()
        .iter()
        .map(|metric| metric.get_counter().get_value())
        .sum();
    assert!((counted - 7.0).abs() < 0.1, "{counted}");
}

#[tokio::test(start_paused = true)]
async fn a_guarded_client_writes_only_while_leadership_is_proved() {
    let server = Guarded::new();
    let (gate, keeper) = WriteGate::closed();
    let client = server.guard(RateLimit::new(1.0, 1), gate, &CancellationToken::new());
    client.send(request(http::Method::GET)).await.unwrap();
    let refused = client.send(request(http::Method::PUT)).await.unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Service(error) if error.is::<crate::write_gate::NotLeader>()),
        "{refused}"
    );
    keeper.open_until(Instant::now() + Duration::from_secs(2));
    client.send(request(http::Method::PUT)).await.unwrap();
    // It closes while the next two wait for their turn.
    let (first, second) = tokio::join!(
        client.send(request(http::Method::PUT)),
        client.send(request(http::Method::PUT))
    );
    assert!(first.is_err() && second.is_err());
    assert_eq!((server.count("GET"), server.count("PUT")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_guarded_request_that_waits_ends_with_the_process() {
    let server = Guarded::new();
    let stop = CancellationToken::new();
    let client = server.guard(RateLimit::new(0.001, 1), WriteGate::always_open(), &stop);
    client.send(request(http::Method::GET)).await.unwrap();
    let waiting = client.send(request(http::Method::GET));
    let (ended, ()) = tokio::join!(waiting, async { stop.cancel() });
    assert!(
        matches!(&ended, Err(kube::Error::Service(error)) if error.is::<ShuttingDown>()),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_write_is_in_flight_from_when_it_waits_for_its_turn_to_its_answer() {
    let server = server();
    let (gate, writes) = (WriteGate::always_open(), WritesInFlight::default());
    let (client, _) = server.client_with(gate, |options| {
        (options.qps, options.burst, options.writes) = (1.0, 1, writes.clone());
    });
    let waits = || tokio::time::timeout(Duration::ZERO, writes.wait_until_empty());
    let fields = NodeFields::default();
    client.get_node("a", &fields).await.unwrap();
    let (read, started) = tokio::join!(client.get_node("a", &fields), async { writes.is_empty() });
    assert!(read.is_ok() && started, "a read does not count");

    let patch = labels("1");
    let write = client.patch_node("a", Subresource::Status, &patch);
    let (written, waiting) =
        tokio::join!(write, async { (writes.is_empty(), waits().await.is_err()) });
    assert!(written.is_ok() && waiting == (false, true), "{waiting:?}");
    assert!(writes.is_empty() && waits().await.is_ok());

    assert!(
        tokio::time::timeout(Duration::ZERO, client.patch_node("a", Subresource::Status, &patch))
            .await
            .is_err()
    );
    assert!(writes.is_empty(), "nobody waits for it any more");
    server.delete("a");
    assert!(
        client
            .patch_node("a", Subresource::Status, &patch)
            .await
            .is_err()
    );
    assert!(writes.is_empty(), "it was refused");
    let begun = writes.begin();
    let wait = async {
        writes.wait_until_empty().await;
        Instant::now()
    };
    let (woken, dropped) = tokio::join!(wait, async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        drop(begun);
        Instant::now()
    });
    assert_eq!(woken, dropped);
}

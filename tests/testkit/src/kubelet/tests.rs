//! Under paused time, against the least that answers like an API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

/// Objects by path, the requests seen, and how to misbehave.
#[derive(Default)]
struct Fixture {
    objects: BTreeMap<String, Value>,
    requests: Vec<(Method, String, Value)>,
    /// That many requests are answered with 503 first.
    unavailable: usize,
    in_flight: usize,
    most_in_flight: usize,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<Fixture>>);

impl Server {
    fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let body = if body.is_empty() {
                    Value::Null
                } else {
                    serde_json::from_slice(&body).unwrap()
                };
                {
                    let mut world = server.0.lock();
                    world.in_flight += 1;
                    world.most_in_flight = world.most_in_flight.max(world.in_flight);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
                let mut world = server.0.lock();
                world.in_flight -= 1;
                let (code, answer) = world.answer(&parts.method, parts.uri.path(), body);
                let answer = Response::builder()
                    .status(code)
                    .body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, tower::BoxError>(answer.unwrap())
            }
        });
        kube::Client::new(service, "default")
    }

    /// Bodies of the requests with this method whose path ends so.
    fn bodies(&self, method: &Method, path: &str) -> Vec<Value> {
        let world = self.0.lock();
        let fits = |(seen, at, _): &&(Method, String, Value)| seen == method && at.ends_with(path);
        world
            .requests
            .iter()
            .filter(fits)
            .map(|(_, _, body)| body.clone())
            .collect()
    }
}

impl Fixture {
    fn answer(&mut self, method: &Method, path: &str, body: Value) -> (StatusCode, Value) {
        self.requests
            .push((method.clone(), path.to_owned(), body.clone()));
        if self.unavailable > 0 {
            self.unavailable -= 1;
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable");
        }
        let key = path.trim_end_matches("/status").to_owned();
        match *method {
            Method::POST => {
                let key = format!("{key}/{}", body["metadata"]["name"].as_str().unwrap());
                if self.objects.contains_key(&key) {
                    return refusal(StatusCode::CONFLICT, "AlreadyExists");
                }
                let mut created = body;
                created["metadata"]["uid"] = "uid-1".into();
                self.objects.insert(key, created.clone());
                (StatusCode::CREATED, created)
            }
            Method::PUT => {
                self.objects.insert(key, body.clone());
                (StatusCode::OK, body)
            }
            _ => match self.objects.get(&key) {
                Some(found) => (StatusCode::OK, found.clone()),
                None => refusal(StatusCode::NOT_FOUND, "NotFound"),
            },
        }
    }
}

fn refusal(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    (
        code,
        json!({"kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": code.as_u16()}),
    )
}

fn ready(patch: &Value) -> (&str, &str) {
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    let ready = conditions
        .iter()
        .find(|condition| condition["type"] == "Ready")
        .unwrap();
    (ready["status"].as_str().unwrap(), ready["lastTransitionTime"].as_str().unwrap())
}

#[tokio::test(start_paused = true)]
async fn reports_touch_only_the_kubelets_own_conditions() {
    let server = Server::default();
    let kubelets = Kubelets::new(server.client(), KubeletOptions::default());
    kubelets
        .register(NodeSpec::new("a").provided_ip("10.0.0.1".parse().unwrap()))
        .await
        .unwrap();
    assert_eq!(server.bodies(&Method::PATCH, "/status").len(), 0, "the status came with the Node");

    tokio::time::sleep(Duration::from_secs(601)).await;
    let patches = server.bodies(&Method::PATCH, "/api/v1/nodes/a/status");
    assert_eq!(patches.len(), 2, "one report in five minutes");
    for patch in &patches {
        assert_eq!(patch.as_object().unwrap().keys().collect::<Vec<_>>(), ["status"]);
        assert_eq!(
            patch["status"]
                .as_object()
                .unwrap()
                .keys()
                .collect::<Vec<_>>(),
            ["conditions"]
        );
    }
    assert_eq!(ready(&patches[0]), ready(&patches[1]), "no transition");
    assert_ne!(patches[0], patches[1], "but a newer heartbeat");
    kubelets.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_reported_at_once_and_silence_lasts() {
    let server = Server::default();
    let options = KubeletOptions {
        lease_period: Some(Duration::from_secs(10)),
        ..KubeletOptions::default()
    };
    let kubelets = Kubelets::new(server.client(), options);
    kubelets.register(NodeSpec::new("a")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(95)).await;
    assert!(
        (8..=10).contains(&server.bodies(&Method::PUT, "/leases/a").len()),
        "a renewal every ten seconds"
    );
    let lease = &server.bodies(&Method::POST, "/namespaces/kube-node-lease/leases")[0];
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "uid-1");

    kubelets.set_ready("a", Ready::Unknown).await.unwrap();
    let requests = server.0.lock().requests.len();
    assert_eq!(ready(server.bodies(&Method::PATCH, "/status").last().unwrap()).0, "Unknown");
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(server.0.lock().requests.len(), requests, "a silent kubelet writes nothing");

    kubelets.set_ready("a", Ready::False).await.unwrap();
    assert_eq!(ready(server.bodies(&Method::PATCH, "/status").last().unwrap()).0, "False");
    tokio::time::sleep(Duration::from_mins(6)).await;
    assert!(server.0.lock().requests.len() > requests + 1, "it speaks again");

    let unknown = kubelets.set_ready("b", Ready::True).await.unwrap_err();
    assert_eq!(unknown.to_string(), "no simulated kubelet runs for node b");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_comes_back_only_with_a_restart() {
    let server = Server::default();
    let kubelets = Kubelets::new(server.client(), KubeletOptions::default());
    kubelets.register(NodeSpec::new("a")).await.unwrap();
    server.0.lock().objects.clear();
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert!(server.0.lock().objects.is_empty());
    assert!(kubelets.failed_reports() >= 3);

    kubelets.restart("a").await.unwrap();
    assert!(server.0.lock().objects.contains_key("/api/v1/nodes/a"));
    assert_eq!(kubelets.names(), ["a"]);
    kubelets.stop_node("a").unwrap();
    let requests = server.0.lock().requests.len();
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert_eq!(server.0.lock().requests.len(), requests, "a stopped kubelet is silent");
}

#[tokio::test(start_paused = true)]
async fn addresses_of_the_cloud_are_left_alone() {
    for (there, written) in
        [(json!([{"type": "InternalIP", "address": "10.9.9.9"}]), false), (json!([]), true)]
    {
        let server = Server::default();
        let node = json!({"metadata": {"name": "a", "uid": "u"}, "status": {"addresses": there}});
        server
            .0
            .lock()
            .objects
            .insert("/api/v1/nodes/a".to_owned(), node);
        let kubelets = Kubelets::new(server.client(), KubeletOptions::default());
        kubelets
            .register(NodeSpec::new("a").provided_ip("10.0.0.1".parse().unwrap()))
            .await
            .unwrap();
        let patches = server.bodies(&Method::PATCH, "/status");
        assert_eq!(patches[0]["status"].get("addresses").is_some(), written, "{there}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_in_flight_are_bounded() {
    let server = Server::default();
    let options = KubeletOptions { concurrency: 7, ..KubeletOptions::default() };
    let kubelets = Kubelets::new(server.client(), options);
    let all = (0..200).map(|n| kubelets.register(NodeSpec::new(format!("node-{n}"))));
    futures::future::try_join_all(all).await.unwrap();
    assert_eq!(kubelets.names().len(), 200);
    assert_eq!(server.0.lock().most_in_flight, 7);
    tokio::time::sleep(Duration::from_mins(10)).await;
    let reports = server.bodies(&Method::PATCH, "/status").len();
    assert!((400..405).contains(&reports), "two reports each, not {reports}");
    assert_eq!(server.0.lock().most_in_flight, 7);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_busy_is_asked_again_and_a_refusal_is_final() {
    let server = Server::default();
    server.0.lock().unavailable = 5;
    let kubelets = Kubelets::new(server.client(), KubeletOptions::default());
    kubelets.register(NodeSpec::new("a")).await.unwrap();
    assert_eq!(server.bodies(&Method::POST, "/nodes").len(), 6);

    let twice = kubelets.register(NodeSpec::new("a")).await.unwrap_err();
    assert_eq!(twice.to_string(), "a simulated kubelet runs for node a already");
    server.0.lock().unavailable = usize::MAX;
    let failed = kubelets.register(NodeSpec::new("b")).await.unwrap_err();
    assert_eq!(failed.to_string(), "register node b");
    assert!(
        matches!(failed, KubeletError::Api { source: kube::Error::Api(status), .. } if status.code == 503)
    );
}

/// Callers register nodes in tasks of a runtime with many threads.
#[expect(dead_code, reason = "compiling it is the test")]
fn registering_can_move_between_threads(kubelets: &Kubelets) -> impl Send {
    async { kubelets.register_all([NodeSpec::new("a")]).await }
}

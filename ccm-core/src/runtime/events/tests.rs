//! Recorder and driver against a sink that keeps events, in virtual time.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::runtime::gate::GateKeeper;

const SECOND: Duration = Duration::from_secs(1);
/// A status that the sink never answers with: the connection breaks.
const BROKEN: u16 = 0;

#[derive(Default)]
struct State {
    events: BTreeMap<String, Value>,
    /// Method, path, and seconds since the start.
    requests: Vec<(Method, String, u64)>,
    refuse: VecDeque<u16>,
}

/// The events of an API server.
#[derive(Clone)]
struct Sink(Arc<Mutex<State>>, Instant);

impl Sink {
    fn client(&self) -> Client {
        let sink = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let sink = sink.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.expect("a request body in memory").to_bytes();
                let body: Value = serde_json::from_slice(&body).expect("JSON");
                let (code, answer) = sink.answer(&parts.method, parts.uri.path(), &body)?;
                let body = Body::from(serde_json::to_vec(&answer).expect("JSON"));
                Ok::<_, std::io::Error>(Response::builder().status(code).body(body).expect("a response"))
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, path: &str, body: &Value) -> std::io::Result<(StatusCode, Value)> {
        let mut state = self.0.lock();
        state.requests.push((method.clone(), path.to_owned(), self.1.elapsed().as_secs()));
        match state.refuse.pop_front() {
            Some(BROKEN) => return Err(std::io::Error::other("connection reset")),
            Some(code) => return Ok(status(code)),
            None => {}
        }
        if *method == Method::POST {
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().expect("a name"));
            if state.events.contains_key(&path) {
                return Ok(status(409));
            }
            state.events.insert(path, body.clone());
            return Ok((StatusCode::CREATED, body.clone()));
        }
        let Some(event) = state.events.get_mut(path) else { return Ok(status(404)) };
        let changes = body.as_object().expect("an object").clone();
        event.as_object_mut().expect("an object").extend(changes);
        Ok((StatusCode::OK, event.clone()))
    }

    fn events(&self) -> Vec<Value> {
        self.0.lock().events.values().cloned().collect()
    }

    fn verbs(&self) -> Vec<Method> {
        self.0.lock().requests.iter().map(|r| r.0.clone()).collect()
    }
}

fn status(code: u16) -> (StatusCode, Value) {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "AlreadyExists",
        _ => "Other",
    };
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "refused",
        "reason": reason, "code": code});
    (StatusCode::from_u16(code).expect("a status code"), body)
}

struct Fixture {
    sink: Sink,
    recorder: EventRecorder,
    keeper: GateKeeper,
    registry: Registry,
    stop: CancellationToken,
    driver: JoinHandle<()>,
}

/// A recorder with its driver running, and an open gate.
fn fixture(refuse: &[u16]) -> Fixture {
    let sink = Sink(Arc::default(), Instant::now());
    sink.0.lock().refuse.extend(refuse);
    let (gate, keeper) = WriteGate::closed();
    keeper.open_until(Instant::now() + Duration::from_secs(100_000));
    let registry = Registry::new();
    let metrics = EventMetrics::register(&registry).unwrap();
    let wall = WallClock::tokio_from("2026-01-01T00:00:00Z".parse().unwrap());
    let (recorder, driver) = EventRecorder::new(sink.client(), "cloud-node-controller", gate, metrics, wall);
    let stop = CancellationToken::new();
    let driver = tokio::spawn(driver.run(stop.clone()));
    Fixture { sink, recorder, keeper, registry, stop, driver }
}

impl Fixture {
    fn node_event(&self, note: &str) {
        self.recorder.event(&ObjectRef::node("n1", "u-1"), EventKind::Warning, "Broken", note);
    }

    /// Returns the outcomes counted so far, those that never happened left out.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn outcomes(&self) -> BTreeMap<String, u64> {
        let families = self.registry.gather();
        let family = families.iter().find(|f| f.name() == "ccm_events_total");
        let metrics = family.map(prometheus::proto::MetricFamily::get_metric).unwrap_or_default();
        let counted = metrics.iter().filter(|m| m.get_counter().get_value() > 0.0);
        counted.map(|m| (m.get_label()[0].value().to_owned(), m.get_counter().get_value() as u64)).collect()
    }

    fn outcome(&self, label: &str) -> u64 {
        self.outcomes().get(label).copied().unwrap_or_default()
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_has_the_fields_that_kubectl_looks_for() {
    let f = fixture(&[]);
    f.node_event("disk full");
    sleep(SECOND).await;
    assert_eq!(f.sink.0.lock().requests[0].1, "/api/v1/namespaces/default/events");
    assert_eq!(
        f.sink.events()[0],
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "n1.18867251edfa0000", "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u-1"},
            "type": "Warning",
            "reason": "Broken",
            "message": "disk full",
            "count": 1,
            "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2026-01-01T00:00:00Z",
            "source": {"component": "cloud-node-controller"},
            "reportingComponent": "cloud-node-controller",
            "reportingInstance": "",
        })
    );
}

#[tokio::test(start_paused = true)]
async fn events_of_namespaced_objects_live_beside_them() {
    let f = fixture(&[]);
    let service = ObjectRef::service("shop", "web", "u-2");
    f.recorder.for_object(service).record(EventKind::Normal, "EnsuredLoadBalancer", "done");
    sleep(SECOND).await;
    assert_eq!(f.sink.0.lock().requests[0].1, "/api/v1/namespaces/shop/events");
    assert_eq!(f.sink.events()[0]["involvedObject"]["namespace"], "shop");
}

#[tokio::test(start_paused = true)]
async fn a_repetition_patches_and_a_forgotten_event_is_created_again() {
    let f = fixture(&[]);
    f.node_event("disk full");
    sleep(60 * SECOND).await;
    f.node_event("disk full");
    sleep(SECOND).await;
    assert_eq!(f.sink.verbs(), [Method::POST, Method::PATCH]);
    let event = f.sink.events()[0].clone();
    assert_eq!((&event["count"], &event["lastTimestamp"]), (&json!(2), &json!("2026-01-01T00:01:00Z")));
    assert_eq!(event["firstTimestamp"], "2026-01-01T00:00:00Z");
    f.sink.0.lock().events.clear();
    f.node_event("disk full");
    sleep(SECOND).await;
    assert_eq!(f.sink.verbs()[2..], [Method::PATCH, Method::POST]);
    assert_eq!(f.sink.events()[0]["count"], 3);
    assert_eq!(f.outcomes(), BTreeMap::from([("created".into(), 2), ("counted".into(), 1)]));
}

#[tokio::test(start_paused = true)]
async fn transient_errors_are_tried_twelve_times_ten_seconds_apart() {
    for error in [BROKEN, 429, 500, 503] {
        let f = fixture(&[error; 20]);
        f.node_event("disk full");
        sleep(200 * SECOND).await;
        let times: Vec<_> = f.sink.0.lock().requests.iter().map(|r| r.2).collect();
        assert_eq!(times.len(), 12, "{error}");
        assert!(times[1] <= 10, "the first pause is a random part");
        assert!(times.windows(2).skip(1).all(|w| (9..=11).contains(&(w[1] - w[0]))), "{times:?}");
        assert_eq!(f.outcome("failed"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_outlives_a_short_outage() {
    let f = fixture(&[BROKEN, 503, 429]);
    f.node_event("disk full");
    sleep(40 * SECOND).await;
    assert_eq!((f.sink.events().len(), f.outcome("created")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn final_errors_are_not_tried_again() {
    for error in [400, 403, 404, 422] {
        let f = fixture(&[error]);
        f.node_event("disk full");
        sleep(200 * SECOND).await;
        assert_eq!((f.sink.verbs().len(), f.outcome("failed")), (1, 1), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_there_after_a_lost_answer_counts_as_written() {
    let f = fixture(&[BROKEN, 409]);
    f.node_event("disk full");
    sleep(40 * SECOND).await;
    assert_eq!((f.outcome("created"), f.outcome("failed")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_and_counts() {
    let f = fixture(&[]);
    // Nothing runs between these, so none is taken from the queue.
    for i in 0..1010 {
        f.recorder.event(&ObjectRef::node(format!("n{i}"), "u"), EventKind::Normal, "Synced", "x");
    }
    assert_eq!(f.outcome("queue_full"), 10);
    sleep(SECOND).await;
    assert_eq!(f.outcome("created"), 1000);
}

#[tokio::test(start_paused = true)]
async fn a_lost_leader_writes_nothing_more() {
    let f = fixture(&[BROKEN]);
    f.node_event("before");
    f.node_event("queued");
    sleep(Duration::from_millis(1)).await;
    f.keeper.close();
    sleep(60 * SECOND).await;
    assert_eq!(f.sink.verbs().len(), 1, "neither the retry nor the queued one");
    assert_eq!(f.outcome("not_leader"), 2);
}

#[tokio::test(start_paused = true)]
async fn too_many_about_one_object_are_throttled() {
    let f = fixture(&[]);
    for _ in 0..30 {
        f.node_event("again");
    }
    sleep(SECOND).await;
    assert_eq!((f.sink.verbs().len(), f.outcome("throttled")), (25, 5));
}

#[tokio::test(start_paused = true)]
async fn what_is_queued_at_the_end_is_written_without_patience() {
    let f = fixture(&[]);
    f.node_event("last words");
    f.stop.cancel();
    f.driver.await.unwrap();
    assert_eq!(f.sink.events().len(), 1);

    let f = fixture(&[503; 10]);
    f.node_event("one");
    f.node_event("two");
    sleep(Duration::from_millis(1)).await;
    f.stop.cancel();
    let start = Instant::now();
    f.driver.await.unwrap();
    assert_eq!((start.elapsed().as_secs(), f.sink.events().len()), (0, 0));
    f.recorder.event(&ObjectRef::node("n", "u"), EventKind::Normal, "Late", "dropped");
}

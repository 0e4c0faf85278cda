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
use crate::write_gate::WriteGateHandle;

const SECOND: Duration = Duration::from_secs(1);
/// A status that the sink never answers with: the connection breaks.
const BROKEN: u16 = 0;

#[derive(Default)]
struct SinkState {
    events: BTreeMap<String, Value>,
    /// Method, path, and seconds since the start.
    requests: Vec<(Method, String, u64)>,
    refuse: VecDeque<u16>,
}

/// The events of an API server.
#[derive(Clone)]
struct Sink(Arc<Mutex<SinkState>>, Instant);

impl Sink {
    fn client(&self) -> Client {
        let sink = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let sink = sink.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body
                    .collect()
                    .await
                    .expect("a request body in memory")
                    .to_bytes();
                let body: Value = serde_json::from_slice(&body).expect("JSON");
                let (code, answer) = sink.answer(&parts.method, parts.uri.path(), &body)?;
                let body = Body::from(serde_json::to_vec(&answer).expect("JSON"));
                Ok::<_, std::io::Error>(
                    Response::builder()
                        .status(code)
                        .body(body)
                        .expect("a response"),
                )
            }
        });
        Client::new(service, "default")
    }

    fn answer(
        &self,
        method: &Method,
        path: &str,
        body: &Value,
    ) -> std::io::Result<(StatusCode, Value)> {
        let mut state = self.0.lock();
        state
            .requests
            .push((method.clone(), path.to_owned(), self.1.elapsed().as_secs()));
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
        let Some(event) = state.events.get_mut(path) else {
            return Ok(status(404));
        };
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
    keeper: WriteGateHandle,
    registry: Registry,
    writes: WritesInFlight,
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
    let (recorder, driver) =
        EventRecorder::new(sink.client(), "cloud-node-controller", gate, metrics, wall);
    let (writes, stop) = (WritesInFlight::default(), CancellationToken::new());
    let driver = tokio::spawn(driver.after(writes.clone()).run(stop.clone()));
    Fixture { sink, recorder, keeper, registry, writes, stop, driver }
}

impl Fixture {
    fn node_event(&self, note: &str) {
        self.recorder
            .event(&ObjectRef::node("n1", "u-1"), EventType::Warning, "Broken", note);
    }

    /// Returns the outcomes counted so far, those that never happened left out.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn outcomes(&self) -> BTreeMap<String, u64> {
        let families = self.registry.gather();
        let family = families.iter().find(|f| f.name() == "ccm_events_total");
        let metrics = family
            .map(prometheus::proto::MetricFamily::get_metric)
            .unwrap_or_default();
        let counted = metrics.iter().filter(|m| m.get_counter().get_value() > 0.0);
        counted
            .map(|m| (m.get_label()[0].value().to_owned(), m.get_counter().get_value() as u64))
            .collect()
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
    f.recorder
        .for_object(service)
        .record(EventType::Normal, "EnsuredLoadBalancer", "done");
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
    assert_eq!(
        (&event["count"], &event["lastTimestamp"]),
        (&json!(2), &json!("2026-01-01T00:01:00Z"))
    );
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
        assert!(
            times
                .windows(2)
                .skip(1)
                .all(|w| (9..=11).contains(&(w[1] - w[0]))),
            "{times:?}"
        );
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
        f.recorder
            .event(&ObjectRef::node(format!("n{i}"), "u"), EventType::Normal, "Synced", "x");
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
    f.recorder
        .event(&ObjectRef::node("n", "u"), EventType::Normal, "Late", "dropped");
}

#[tokio::test(start_paused = true)]
async fn events_wait_while_state_is_written_and_no_longer_than_five_seconds() {
    let f = fixture(&[]);
    let event = |name: &str| {
        f.recorder
            .event(&ObjectRef::node(name, "u"), EventType::Normal, "Synced", "x");
    };
    let write = f.writes.begin();
    event("a");
    sleep(2 * SECOND).await;
    event("b");
    assert_eq!(f.sink.verbs(), [Method::GET; 0]);
    drop(write);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(f.sink.verbs().len(), 2, "as soon as there is nothing else to write");
    event("c");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(f.sink.verbs().len(), 3, "at once");

    let start = f.sink.1.elapsed().as_secs();
    let writes = [f.writes.begin(), f.writes.begin()];
    event("d");
    sleep(3 * SECOND).await;
    event("e");
    let [one, other] = writes;
    drop(one);
    sleep(60 * SECOND).await;
    let times: Vec<_> = f
        .sink
        .0
        .lock()
        .requests
        .iter()
        .skip(3)
        .map(|r| r.2 - start)
        .collect();
    assert_eq!(times, [5, 8], "each from when it was recorded");
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn what_repeats_an_event_that_waits_is_written_with_it() {
    let f = fixture(&[]);
    let write = f.writes.begin();
    for _ in 0..3 {
        f.node_event("disk full");
        sleep(SECOND).await;
    }
    drop(write);
    sleep(SECOND).await;
    assert_eq!(f.sink.verbs(), [Method::POST]);
    let event = f.sink.events()[0].clone();
    let times = (&event["firstTimestamp"], &event["lastTimestamp"]);
    assert_eq!(
        (&event["count"], times),
        (&json!(3), (&json!("2026-01-01T00:00:00Z"), &json!("2026-01-01T00:00:02Z")))
    );

    let write = f.writes.begin();
    for _ in 0..2 {
        f.node_event("disk full");
        sleep(SECOND).await;
    }
    drop(write);
    sleep(SECOND).await;
    assert_eq!(f.sink.verbs(), [Method::POST, Method::PATCH]);
    let event = f.sink.events()[0].clone();
    assert_eq!(
        (&event["count"], &event["lastTimestamp"]),
        (&json!(5), &json!("2026-01-01T00:00:05Z"))
    );
    assert_eq!(f.outcomes(), BTreeMap::from([("created".into(), 1), ("counted".into(), 4)]));
}

#[tokio::test(start_paused = true)]
async fn events_that_waited_end_up_as_those_that_did_not() {
    // Alike, combined and throttled ones.
    let notes =
        |i: u64| ["disk full".to_owned(), format!("pod {} failed", i % 40), "again".to_owned()];
    let mut ends = Vec::new();
    for waits in [false, true] {
        let f = fixture(&[]);
        let mut write = None;
        for i in 0..90 {
            match i % 9 {
                0 if waits => write = Some(f.writes.begin()),
                4 => write = None,
                _ => {}
            }
            for note in notes(i) {
                f.recorder.event(
                    &ObjectRef::node(format!("n{}", i % 2), "u"),
                    EventType::Warning,
                    "Broken",
                    &note,
                );
            }
            sleep(SECOND).await;
        }
        drop(write);
        sleep(10 * SECOND).await;
        let throttled = f.outcome("throttled");
        assert!(throttled > 0);
        assert_eq!(f.outcomes().values().sum::<u64>(), 270, "each has one outcome");
        ends.push(((f.sink.events(), throttled), f.sink.verbs().len()));
    }
    let [(first, all), (second, fewer)] = &ends[..] else {
        unreachable!()
    };
    assert_eq!(first, second);
    assert!(fewer < all, "{fewer} {all}");
}

#[tokio::test(start_paused = true)]
async fn writes_that_never_end_hold_up_nothing_for_good() {
    let f = fixture(&[]);
    let mut writes = VecDeque::new();
    for i in 0..600 {
        writes.push_back(f.writes.begin());
        if writes.len() > 10 {
            writes.pop_front();
        }
        f.recorder.event(
            &ObjectRef::node(format!("n{}", i / 3), "u"),
            EventType::Normal,
            "Synced",
            "x",
        );
        sleep(SECOND / 10).await;
    }
    assert_eq!(f.outcome("queue_full"), 0);
    let requests = f.sink.0.lock().requests.clone();
    let late = requests
        .iter()
        .enumerate()
        .find(|(i, (.., at))| *at > (*i as u64 * 3) / 10 + 6);
    assert!(requests.len() >= 180 && late.is_none(), "{} {late:?}", requests.len());
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_as_long_as_ever_while_events_wait() {
    let f = fixture(&[]);
    let _write = f.writes.begin();
    let event = |name: String| {
        f.recorder
            .event(&ObjectRef::node(name, "u"), EventType::Normal, "Synced", "x");
    };
    for i in 0..990 {
        event(format!("n{i}"));
    }
    sleep(SECOND).await;
    for _ in 0..20 {
        event("n0".to_owned());
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(f.outcome("queue_full"), 0, "what is written with another takes no place");
    for i in 0..20 {
        event(format!("m{i}"));
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!((f.outcome("queue_full"), f.sink.verbs().len()), (10, 0));
    sleep(10 * SECOND).await;
    assert_eq!(
        f.outcomes(),
        [("created", 1000), ("counted", 20), ("queue_full", 10)]
            .map(|(l, n)| (l.into(), n))
            .into()
    );
    event("later".to_owned());
    sleep(10 * SECOND).await;
    assert_eq!(f.outcome("created"), 1001, "there is room again");
}

#[tokio::test(start_paused = true)]
async fn at_the_end_nothing_waits_for_writes_of_state() {
    let f = fixture(&[]);
    let _write = f.writes.begin();
    for i in 0..300 {
        f.recorder
            .event(&ObjectRef::node(format!("n{i}"), "u"), EventType::Normal, "Synced", "x");
        if i == 200 {
            sleep(SECOND).await;
        }
    }
    assert_eq!(f.sink.events().len(), 0);
    f.stop.cancel();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(f.sink.events().len(), 300);
    f.driver.await.unwrap();
}

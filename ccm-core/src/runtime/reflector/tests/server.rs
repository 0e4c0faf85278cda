//! A small API server for one kind of object: it keeps objects and their history, lists, and
//! watches, in JSON or protobuf.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{Method, Request, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

use super::proto;
use crate::{
    runtime::api::{ApiClient, ApiClientOptions, ApiMetrics},
    write_gate::WriteGate,
};

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;
type Feed = mpsc::UnboundedSender<Line>;

/// What goes over a watch.
enum Line {
    Event(&'static str, Value),
    Cut,
    Mute,
}

/// How the server misbehaves, or which server it is.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent ways to misbehave"
)]
pub(crate) struct Behaviour {
    pub streaming: bool,
    pub protobuf: bool,
    /// The seconds between bookmarks; none when 0.
    pub bookmarks: u64,
    /// Answers nothing at all, ever.
    pub hangs: bool,
    /// Status code of every answer.
    pub answers: Option<(u16, Value)>,
    /// Watches are accepted and then closed without a word.
    pub closes_watches: bool,
    /// Watches are accepted and then break.
    pub breaks_watches: bool,
    /// Every position is too old for a watch, however new.
    pub expires_watches: bool,
    /// A continue token expires with the next write.
    pub write_between_pages: bool,
    /// 410 comes as an event in a watch that was accepted.
    pub late_410: bool,
    /// Initial events of a streaming list never end.
    pub no_end: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            streaming: true,
            protobuf: false,
            bookmarks: 60,
            hangs: false,
            answers: None,
            closes_watches: false,
            breaks_watches: false,
            expires_watches: false,
            write_between_pages: false,
            late_410: false,
            no_end: false,
        }
    }
}

#[derive(Default)]
struct Store {
    version: u64,
    objects: BTreeMap<String, Value>,
    history: Vec<(u64, &'static str, Value)>,
    /// Everything up to here is forgotten.
    compacted: u64,
    watches: Vec<Feed>,
    requests: Vec<(String, Instant)>,
    behaviour: Behaviour,
}

#[derive(Clone, Default)]
pub(crate) struct Server(Arc<Mutex<Store>>);

impl Server {
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        let server = Self::default();
        server.0.lock().behaviour = behaviour;
        server.0.lock().version = 100;
        server
    }

    pub(crate) fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.0.lock().behaviour);
    }

    /// Creates or replaces a node.
    pub(crate) fn put(&self, name: &str, uid: &str, provider_id: &str) {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z",
                         "labels": {"kubernetes.io/hostname": name}},
            "spec": {"providerID": provider_id},
        });
        self.put_object(node);
    }

    pub(crate) fn put_object(&self, mut object: Value) {
        let mut store = self.0.lock();
        store.version += 1;
        object["metadata"]["resourceVersion"] = json!(store.version.to_string());
        let known = store.objects.insert(key(&object), object.clone()).is_some();
        store.publish(if known { "MODIFIED" } else { "ADDED" }, &object);
    }

    pub(crate) fn delete(&self, key: &str) {
        let mut store = self.0.lock();
        if let Some(mut object) = store.objects.remove(key) {
            store.version += 1;
            object["metadata"]["resourceVersion"] = json!(store.version.to_string());
            store.publish("DELETED", &object);
        }
    }

    /// Ends all watches as a lost connection does.
    pub(crate) fn cut(&self) {
        for watch in self.0.lock().watches.drain(..) {
            let _ = watch.send(Line::Cut);
        }
    }

    /// Lets watches live on without ever saying anything again.
    pub(crate) fn mute(&self) {
        for watch in self.0.lock().watches.drain(..) {
            let _ = watch.send(Line::Mute);
        }
    }

    pub(crate) fn compact(&self) {
        let mut store = self.0.lock();
        store.compacted = store.version;
        store.history.clear();
    }

    /// Does not have the object, and never had.
    pub(crate) fn forget(&self, name: &str) {
        self.0.lock().objects.remove(name);
    }

    /// Moves the resource version on, as writes to other kinds do.
    pub(crate) fn advance(&self, by: u64) {
        self.0.lock().version += by;
    }

    /// Goes back in time, as a restored backup does.
    pub(crate) fn restore_backup(&self, version: u64) {
        let mut store = self.0.lock();
        store.version = version;
        store.history.clear();
        store.compacted = 0;
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.0
            .lock()
            .requests
            .iter()
            .map(|(r, _)| r.clone())
            .collect()
    }

    pub(crate) fn request_times(&self, contains: &str) -> Vec<Instant> {
        self.0
            .lock()
            .requests
            .iter()
            .filter(|(r, _)| r.contains(contains))
            .map(|(_, t)| *t)
            .collect()
    }

    pub(crate) fn count(&self, contains: &str) -> usize {
        self.request_times(contains).len()
    }

    pub(crate) fn client(&self) -> ApiClient {
        self.client_with(WriteGate::always_open(), |_| {}).0
    }

    pub(crate) fn client_with(
        &self,
        gate: WriteGate,
        change: impl FnOnce(&mut ApiClientOptions),
    ) -> (ApiClient, Registry) {
        let server = self.clone();
        let service = tower::service_fn(move |request| {
            let server = server.clone();
            async move { Ok::<_, io::Error>(server.answer(request).await) }
        });
        let registry = Registry::new();
        let metrics = ApiMetrics::register(&registry).unwrap();
        let mut options = ApiClientOptions::new("test/v0", "localhost:6443", metrics, gate);
        options.qps = 0.0;
        change(&mut options);
        (ApiClient::new(kube::Client::new(service, "default"), options), registry)
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let path = parts
            .uri
            .path_and_query()
            .map(ToString::to_string)
            .unwrap_or_default();
        let agent = parts
            .headers
            .get(header::USER_AGENT)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let accept = parts
            .headers
            .get(header::ACCEPT)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let behaviour = {
            let mut store = self.0.lock();
            // A client that never pauses would hold up virtual time for ever.
            assert!(store.requests.len() < 2000, "flooded");
            store
                .requests
                .push((format!("{} {path} [{agent}] {accept}", parts.method), Instant::now()));
            store.behaviour.clone()
        };
        if behaviour.hangs {
            return futures::future::pending().await;
        }
        if let Some((code, status)) = behaviour.answers {
            return plain(code, &status);
        }
        let query: BTreeMap<String, String> = parts
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|q| q.split_once('='))
            .map(own)
            .collect();
        let Some(key) = key_in(parts.uri.path()) else {
            return if query.contains_key("watch") {
                self.watch(&query)
            } else {
                self.list(&query)
            };
        };
        let body = body.collect().await.unwrap().to_bytes();
        let kind = parts
            .headers
            .get(header::CONTENT_TYPE)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default();
        self.single(&parts.method, &key, kind, &body)
    }

    /// Requests about one object.
    fn single(&self, method: &Method, name: &str, kind: &str, body: &[u8]) -> Answer {
        let (found, protobuf) = {
            let store = self.0.lock();
            (store.objects.get(name).cloned(), store.behaviour.protobuf)
        };
        let Some(mut object) = found else {
            return plain(404, &failure(404, "NotFound", &format!("nodes {name:?} not found")));
        };
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        match (method.as_str(), kind) {
            ("GET", _) => encoded(protobuf, &object),
            ("DELETE", _)
                if ["uid", "resourceVersion"]
                    .iter()
                    .any(|key| body["preconditions"][key] != object["metadata"][key]) =>
            {
                plain(409, &failure(409, "Conflict", "a precondition does not match"))
            }
            ("DELETE", _) => {
                self.delete(name);
                plain(200, &json!({"kind": "Status", "status": "Success"}))
            }
            ("PATCH", "application/json-patch+json") => {
                let fits = |op: &Value| {
                    op["op"] != "test"
                        || object.pointer(op["path"].as_str().unwrap_or_default())
                            == op.get("value")
                };
                if body.as_array().is_some_and(|ops| ops.iter().all(fits)) {
                    self.put_object(object.clone());
                    return plain(200, &self.0.lock().objects[name]);
                }
                // As 1.36.3 does it.
                let mut status = failure(
                    422,
                    "Invalid",
                    "the server rejected our request due to an error in our request",
                );
                status["details"] = json!({});
                plain(422, &status)
            }
            ("PATCH", "application/merge-patch+json") => {
                for (key, value) in body["metadata"]["labels"].as_object().into_iter().flatten() {
                    object["metadata"]["labels"][key] = value.clone();
                }
                self.put_object(object);
                plain(200, &self.0.lock().objects[name])
            }
            _ => plain(415, &failure(415, "UnsupportedMediaType", kind)),
        }
    }

    fn list(&self, query: &BTreeMap<String, String>) -> Answer {
        let mut store = self.0.lock();
        let protobuf = store.behaviour.protobuf;
        let (version, after) = match query.get("continue").and_then(|t| t.split_once('.')) {
            Some((version, after)) => (version.parse().unwrap_or(0), after.replace('_', "/")),
            None => (store.version, String::new()),
        };
        if version < store.compacted {
            return plain(
                410,
                &failure(410, "Expired", "The provided continue parameter is too old"),
            );
        }
        let limit = query
            .get("limit")
            .and_then(|l| l.parse().ok())
            .unwrap_or(usize::MAX);
        let name = query
            .get("fieldSelector")
            .and_then(|selector| selector.strip_prefix("metadata.name%3D"));
        let selected = |object: &Value| name.is_none_or(|name| object["metadata"]["name"] == name);
        let mut rest = store
            .objects
            .iter()
            .filter(|(key, object)| **key > after && selected(object));
        let items: Vec<Value> = rest.by_ref().take(limit).map(|(_, o)| o.clone()).collect();
        let token = match (rest.next(), items.last()) {
            (Some(_), Some(last)) => format!("{version}.{}", key(last).replace('/', "_")),
            _ => String::new(),
        };
        if store.behaviour.write_between_pages && !token.is_empty() {
            store.version += 1;
            store.compacted = store.version;
        }
        let kind = items
            .first()
            .and_then(|item| item["kind"].as_str())
            .unwrap_or("Node");
        let list = json!({"kind": format!("{kind}List"), "apiVersion": "v1", "items": items,
                          "metadata": {"resourceVersion": version.to_string(), "continue": token}});
        encoded(protobuf, &list)
    }

    fn watch(&self, query: &BTreeMap<String, String>) -> Answer {
        let mut store = self.0.lock();
        let initial = query.contains_key("sendInitialEvents");
        if initial && !store.behaviour.streaming {
            let message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList \
                           feature gate is enabled";
            let mut status = failure(422, "Invalid", message);
            status["details"] = json!({"causes": [{"reason": "FieldValueForbidden", "message": "Forbidden",
                                                   "field": "sendInitialEvents"}]});
            return plain(422, &status);
        }
        let from: u64 = query
            .get("resourceVersion")
            .and_then(|v| v.parse().ok())
            .unwrap_or(store.version);
        let expired = failure(
            410,
            "Expired",
            &format!("too old resource version: {from} ({})", store.compacted),
        );
        let expires = store.behaviour.expires_watches && !initial;
        if expires || from < store.compacted && !store.behaviour.late_410 {
            return plain(410, &expired);
        }
        if from > store.version {
            let message =
                format!("Timeout: Too large resource version: {from}, current: {}", store.version);
            return plain(504, &failure(504, "Timeout", &message));
        }
        let (feed, lines) = mpsc::unbounded_channel();
        if from < store.compacted {
            let _ = feed.send(Line::Event("ERROR", expired));
        } else if initial {
            for object in store.objects.values() {
                let _ = feed.send(Line::Event("ADDED", object.clone()));
            }
            if !store.behaviour.no_end {
                let end = json!({"k8s.io/initial-events-end": "true"});
                let _ = feed.send(Line::Event("BOOKMARK", bookmark(store.version, &end)));
            }
        } else {
            for (_, kind, object) in store.history.iter().filter(|(version, ..)| *version > from) {
                let _ = feed.send(Line::Event(kind, object.clone()));
            }
        }
        if store.behaviour.breaks_watches {
            let _ = feed.send(Line::Cut);
        } else if !store.behaviour.closes_watches {
            store.watches.push(feed);
        }
        let timeout = query
            .get("timeoutSeconds")
            .and_then(|t| t.parse().ok())
            .unwrap_or(1800);
        let until = Instant::now() + Duration::from_secs(timeout);
        let protobuf = store.behaviour.protobuf;
        let body = StreamBody::new(self.stream(lines, until, protobuf));
        Response::builder()
            .header(header::CONTENT_TYPE, media(protobuf, true))
            .body(body.boxed_unsync())
            .unwrap()
    }

    fn stream(
        &self,
        lines: mpsc::UnboundedReceiver<Line>,
        until: Instant,
        protobuf: bool,
    ) -> impl Stream<Item = Result<Frame<Bytes>, io::Error>> + use<> {
        let store = self.0.clone();
        stream::unfold(lines, move |mut lines| {
            let store = store.clone();
            async move {
                let seconds = store.lock().behaviour.bookmarks;
                let pause = Duration::from_secs(if seconds == 0 { 1_000_000 } else { seconds });
                tokio::select! {
                    biased;
                    line = lines.recv() => match line? {
                        Line::Mute => {
                            tokio::time::sleep_until(until).await;
                            None
                        }
                        Line::Cut => Some((Err(io::Error::other("connection reset")), lines)),
                        Line::Event(kind, object) => Some((Ok(frame(protobuf, kind, &object)), lines)),
                    },
                    () = tokio::time::sleep_until(until) => None,
                    () = tokio::time::sleep(pause) => {
                        let version = store.lock().version;
                        Some((Ok(frame(protobuf, "BOOKMARK", &bookmark(version, &json!({})))), lines))
                    }
                }
            }
        })
        // Cut events into pieces: the end of a read is not the end of an event.
        .flat_map(|frame| {
            stream::iter(match frame {
                Ok(bytes) => bytes.chunks(61).map(|c| Ok(Frame::data(Bytes::copy_from_slice(c)))).collect::<Vec<_>>(),
                Err(error) => vec![Err(error)],
            })
        })
    }
}

impl Store {
    fn publish(&mut self, kind: &'static str, object: &Value) {
        self.history.push((self.version, kind, object.clone()));
        self.watches
            .retain(|watch| watch.send(Line::Event(kind, object.clone())).is_ok());
    }
}

fn key(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    metadata["namespace"]
        .as_str()
        .map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

/// Returns the key in a request's path; `None` when the path is that of everything.
fn key_in(path: &str) -> Option<String> {
    match *path.trim_matches('/').split('/').collect::<Vec<_>>() {
        ["api", _, "namespaces", namespace, _, name]
        | ["api", _, "namespaces", namespace, _, name, "status"] => {
            Some(format!("{namespace}/{name}"))
        }
        ["api", _, _, name] | ["api", _, _, name, "status"] => Some(name.to_owned()),
        _ => None,
    }
}

fn own((key, value): (&str, &str)) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

fn bookmark(version: u64, annotations: &Value) -> Value {
    json!({"kind": "Node", "apiVersion": "v1",
           "metadata": {"resourceVersion": version.to_string(), "annotations": annotations}})
}

pub(crate) fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code})
}

fn media(protobuf: bool, watch: bool) -> &'static str {
    match (protobuf, watch) {
        (true, true) => "application/vnd.kubernetes.protobuf;stream=watch",
        (true, false) => "application/vnd.kubernetes.protobuf",
        (false, _) => "application/json",
    }
}

fn plain(code: u16, body: &Value) -> Answer {
    whole(code, "application/json", body.to_string().into())
}

fn encoded(protobuf: bool, body: &Value) -> Answer {
    let bytes = if protobuf {
        proto::envelope(body)
    } else {
        body.to_string().into_bytes()
    };
    whole(200, media(protobuf, false), bytes.into())
}

fn whole(code: u16, media: &str, body: Bytes) -> Answer {
    let body = http_body_util::Full::new(body)
        .map_err(|never| match never {})
        .boxed_unsync();
    Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, media)
        .body(body)
        .unwrap()
}

fn frame(protobuf: bool, kind: &str, object: &Value) -> Vec<u8> {
    if protobuf {
        proto::event(kind, object)
    } else {
        format!("{}\n", json!({"type": kind, "object": object})).into_bytes()
    }
}

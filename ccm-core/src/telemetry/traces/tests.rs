//! A collector on the loopback that decodes what arrives.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    common::v1::{KeyValue as Attribute, any_value::Value},
    trace::v1::Span,
};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::{net::TcpListener, task::JoinSet};

use super::*;
use crate::{
    config::LoggingConfig,
    telemetry::{
        controller_metrics::{ControllerMetrics, ReconcileOutcome, call_span, record_reason},
        logging::dispatch_with,
    },
};

#[derive(Default)]
struct Received {
    requests: Vec<ExportTraceServiceRequest>,
    paths: Vec<String>,
}

struct Collector {
    endpoint: String,
    received: Arc<Mutex<Received>>,
    _connections: JoinSet<()>,
}

impl Collector {
    /// Listens, and takes two connections at most.
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let received: Arc<Mutex<Received>> = Arc::default();
        let mut connections = JoinSet::new();
        let shared = received.clone();
        connections.spawn(async move {
            for _ in 0..2 {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = shared.clone();
                let service =
                    hyper::service::service_fn(move |request| answer(shared.clone(), request));
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                // The client may go away at any time.
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            }
        });
        Self { endpoint, received, _connections: connections }
    }

    fn spans(&self) -> Vec<Span> {
        let received = self.received.lock();
        let resources = received
            .requests
            .iter()
            .flat_map(|request| &request.resource_spans);
        resources
            .flat_map(|resource| &resource.scope_spans)
            .flat_map(|scope| scope.spans.clone())
            .collect()
    }

    fn resource(&self) -> BTreeMap<String, String> {
        let received = self.received.lock();
        let resource = received.requests[0].resource_spans[0]
            .resource
            .clone()
            .unwrap();
        attributes(&resource.attributes)
    }
}

type Frames = futures::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;

/// Answers one call: a message in gRPC's frame of a flag and a length.
async fn answer(
    received: Arc<Mutex<Received>>,
    request: Request<Incoming>,
) -> Result<Response<StreamBody<Frames>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
    assert_eq!((body[0], body.len()), (0, length + 5), "one message, not compressed");
    {
        let mut received = received.lock();
        received
            .requests
            .push(ExportTraceServiceRequest::decode(&body[5..]).unwrap());
        received.paths.push(path);
    }
    let message = ExportTraceServiceResponse::default().encode_to_vec();
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend(message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let frames = vec![Ok(Frame::data(Bytes::from(frame))), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(futures::stream::iter(frames));
    Ok(Response::builder()
        .header("content-type", "application/grpc")
        .body(body)
        .unwrap())
}

fn attributes(list: &[Attribute]) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        other => format!("{other:?}"),
    };
    let pair = |attribute: &Attribute| {
        let value = attribute
            .value
            .as_ref()
            .and_then(|value| value.value.as_ref())
            .map(text);
        (attribute.key.clone(), value.unwrap_or_default())
    };
    list.iter().map(pair).collect()
}

fn config(endpoint: &str, sampling_rate_per_million: u32) -> TracesConfig {
    TracesConfig { endpoint: endpoint.to_owned(), sampling_rate_per_million }
}

/// A reconcile with a cloud call in it, in a log of the default verbosity.
async fn work(layer: SpanLayer) {
    let (dispatch, _) = dispatch_with(&LoggingConfig::default(), std::io::sink, Some(layer));
    let metrics = ControllerMetrics::register(&prometheus::Registry::new()).unwrap();
    let reconcile = async {
        record_reason("service created");
        call_span("ensure_load_balancer").in_scope(|| tracing::info!("said within"));
        (ReconcileOutcome::Done, ())
    };
    let _default = tracing::dispatcher::set_default(&dispatch);
    metrics
        .reconcile("service-lb-controller", "default/web", reconcile)
        .await;
}

#[tokio::test]
async fn spans_reach_a_collector_as_otlp() {
    let collector = Collector::start().await;
    let config = config(&collector.endpoint, 1_000_000);
    let (traces, layer) = Traces::start(&config, "ccm-test", "v1.2.3", "one".to_owned()).unwrap();
    work(layer).await;
    traces.shutdown().await;
    assert_eq!(
        collector.received.lock().paths,
        ["/opentelemetry.proto.collector.trace.v1.TraceService/Export"]
    );
    let mut spans = collector.spans();
    spans.sort_by(|a, b| b.name.cmp(&a.name));
    let [reconcile, call] = &spans[..] else {
        panic!("{spans:?}")
    };
    assert_eq!((&*reconcile.name, &*call.name), ("reconcile", "cloud_call"));
    assert_eq!((&call.trace_id, &call.parent_span_id), (&reconcile.trace_id, &reconcile.span_id));
    let said = attributes(&reconcile.attributes);
    for (key, value) in [
        ("controller", "service-lb-controller"),
        ("object", "default/web"),
        ("reason", "service created"),
        ("outcome", "done"),
    ] {
        assert_eq!(said.get(key).map(String::as_str), Some(value), "{said:?}");
    }
    assert_eq!(
        attributes(&call.attributes)
            .get("operation")
            .map(String::as_str),
        Some("ensure_load_balancer")
    );
    assert!(
        reconcile.end_time_unix_nano >= reconcile.start_time_unix_nano
            && reconcile.start_time_unix_nano > 0
    );
    let resource = collector.resource();
    for (key, value) in [
        ("service.name", "ccm-test"),
        ("service.version", "v1.2.3"),
        ("service.instance.id", "one"),
    ] {
        assert_eq!(resource.get(key).map(String::as_str), Some(value), "{resource:?}");
    }
}

#[tokio::test]
async fn without_a_sampling_rate_nothing_is_sent() {
    let collector = Collector::start().await;
    let (traces, layer) =
        Traces::start(&config(&collector.endpoint, 0), "ccm-test", "v1", String::new()).unwrap();
    work(layer).await;
    traces.shutdown().await;
    assert!(collector.received.lock().requests.is_empty());
}

#[tokio::test]
async fn a_collector_that_is_away_delays_nobody() {
    // Nothing listens on it, and nobody else gets it.
    let held = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    held.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    let address = held.local_addr().unwrap().as_socket().unwrap().to_string();
    let (traces, layer) =
        Traces::start(&config(&address, 1_000_000), "ccm-test", "v1", String::new()).unwrap();
    let (dispatch, _) = dispatch_with(&LoggingConfig::default(), std::io::sink, Some(layer));
    let started = std::time::Instant::now();
    tracing::dispatcher::with_default(&dispatch, || {
        for _ in 0..3 * QUEUE {
            call_span("describe_instances").in_scope(|| ());
        }
    });
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    traces.shutdown().await;
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

//! Embedded Kubernetes API server: the part of the API that a cloud-controller-manager and kubectl use, in memory.
//!
//! **A test tool and a base for demos, never a production store**: nothing is persisted, nothing is encrypted, and
//! every feature exists because a test needs it.
//!
//! [`ApiServer`] is a [`tower::Service`]: tests hand it to a `kube::Client` in process, where tokio's paused time works,
//! and a watch held for an hour of virtual time costs a millisecond. TLS on loopback is a layer around the same service.
//! Error forms, versions and watch behaviour follow kube-apiserver 1.36.

pub mod resources;

mod allocate;
mod clock;
mod dispatch;
mod faults;
mod namespaces;
mod negotiate;
mod object;
mod patch;
mod read;
mod request;
mod selectors;
mod smp;
mod status;
mod store;
mod strategy;
mod watch;
mod write;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use ipnet::IpNet;
use tower::BoxError;

pub use clock::Clock;
pub use faults::{Action, FaultId, Faults, Match};
pub use object::Object;
pub use request::RequestInfo;
pub use status::{ApiError, FieldError};
pub use store::{Backlog, Change, Event, Expired, ObjectKey, ResourceKey, Store, Transaction};

/// Body of an answer: a whole object or the stream of a watch.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Largest request body that is read, as the real server's `--max-request-body-bytes`.
const MAX_BODY: usize = 3 * 1024 * 1024;

/// Settings of an [`ApiServer`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Events kept per resource; older watch positions get 410. Default 5,000.
    pub history_limit: usize,
    /// Time between bookmarks. Default one minute, as the real server.
    pub bookmark_period: Duration,
    /// How long a watch without `timeoutSeconds` is held. Default 40 minutes; the real server picks 30 to 60.
    pub watch_timeout: Duration,
    /// Whether `sendInitialEvents` is served; false answers as a server does whose WatchList feature is off.
    pub streaming_lists: bool,
    /// Ranges of cluster IPs, primary family first. Default `10.96.0.0/16`.
    pub service_ranges: Vec<IpNet>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            history_limit: 5_000,
            bookmark_period: Duration::from_mins(1),
            watch_timeout: Duration::from_mins(40),
            streaming_lists: true,
            service_ranges: vec![IpNet::new_assert([10, 96, 0, 0].into(), 16)],
        }
    }
}

/// The server; cheap to clone, all clones are one server.
#[derive(Debug, Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    store: Arc<Store>,
    clock: Clock,
    faults: Faults,
}

impl ApiServer {
    /// A server with the namespaces of a fresh cluster and nothing else.
    pub fn new(options: Options) -> Self {
        let allocations = allocate::Allocations::new(options.service_ranges.clone());
        let store = Arc::new(Store::new(options.history_limit, allocations));
        let server =
            Self { shared: Arc::new(Shared { store, clock: Clock::new(), faults: Faults::default(), options }) };
        server.create_initial_objects();
        server
    }

    /// A client in this process, with all rights and no network between.
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.clone(), "default")
    }

    /// The objects.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// The server's clock, which moves with tokio's.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// The script of faults.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }
}

impl<B> tower::Service<Request<B>> for ApiServer
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = http_body_util::Limited::new(body, MAX_BODY).collect().await;
            server.handle(parts, body.map(http_body_util::Collected::to_bytes)).await
        })
    }
}

//! Embedded Kubernetes API server: the part of the API that a cloud-controller-manager and kubectl
//! use, in memory.
//!
//! **A test tool and a base for demos, never a production store**: nothing is persisted, nothing is
//! encrypted, and every feature exists because a test needs it.
//!
//! [`ApiServer`] is a [`tower::Service`]: tests hand it to a `kube::Client` in process, where tokio's paused time works,
//! and a watch held for an hour of virtual time costs a millisecond. TLS on loopback is a layer
//! around the same service. Error forms, versions and watch behaviour follow kube-apiserver 1.36.

pub mod defaulting;
pub mod discovery;
mod openapi;
pub mod parts;
pub mod resources;
pub mod schema;
pub mod table;
pub mod validation;

mod allocate;
mod auth;
mod client;
mod clock;
mod convert;
mod dispatch;
mod faults;
mod json_op;
mod log;
mod namespaces;
mod negotiate;
mod object;
mod patch;
mod protobuf;
mod prune;
mod read;
mod request;
mod respond;
mod reviews;
mod selectors;
mod status;
mod store;
mod strategic_merge;
mod strategy;
mod tls;
mod verbs;
mod watch;
mod write;

#[cfg(test)]
mod test_json;
#[cfg(test)]
mod tests;

use std::fmt;
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
use parking_lot::Mutex;
use tower::BoxError;

use crate::hooks::Hooks;

pub use auth::{ANONYMOUS, Access, AccessCheck, Attributes, MASTERS, Rule, User, Users};
pub use client::ClientBuilder;
pub use clock::Clock;
pub use faults::{Action, FaultId, Faults, Match};
pub use log::{CountKey, LogEntry, RequestLog};
pub use object::Object;
pub use request::RequestInfo;
pub use status::{ApiError, FieldError};
pub use store::{Backlog, Change, Event, Expired, ObjectKey, ResourceKey, Store, Transaction};
pub use tls::{ServeError, Serving};

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
    /// Duration of a watch without `timeoutSeconds`. Default 40 minutes; the real server picks 30
    /// to 60.
    pub watch_timeout: Duration,
    /// True if `sendInitialEvents` is served; false answers as a server does whose WatchList
    /// feature is off.
    pub streaming_lists: bool,
    /// Ranges of cluster IPs, primary family first. Default `10.96.0.0/16`.
    pub service_ranges: Vec<IpNet>,
    /// True if new nodes get the taint `node.kubernetes.io/not-ready:NoSchedule`, as the real
    /// server's admission gives them; the kube-controller-manager takes it off. Default true.
    pub taint_new_nodes: bool,
    /// Requests kept in the log. Default 20,000.
    pub log_limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            history_limit: 5_000,
            bookmark_period: Duration::from_mins(1),
            watch_timeout: Duration::from_mins(40),
            streaming_lists: true,
            service_ranges: vec![IpNet::new_assert([10, 96, 0, 0].into(), 16)],
            taint_new_nodes: true,
            log_limit: 20_000,
        }
    }
}

/// The embedded API server. Clones share its state.
#[derive(Debug, Clone)]
pub struct ApiServer {
    shared: Arc<ApiServerInner>,
}

struct ApiServerInner {
    options: Options,
    store: Arc<Store>,
    clock: Clock,
    faults: Faults,
    users: Users,
    admin_token: String,
    log: RequestLog,
    hooks: Mutex<Vec<(Match, Hooks)>>,
}

impl ApiServer {
    /// Creates a server with the namespaces and the one service of a fresh cluster.
    pub fn new(options: Options) -> Self {
        let allocations = allocate::Allocations::new(options.service_ranges.clone());
        let store = Arc::new(Store::new(options.history_limit, allocations));
        let users = Users::default();
        let admin_token = uuid::Uuid::new_v4().to_string();
        users.add(&admin_token, User::admin());
        let shared = ApiServerInner {
            store,
            clock: Clock::new(),
            faults: Faults::default(),
            users,
            admin_token,
            log: RequestLog::new(options.log_limit),
            hooks: Mutex::default(),
            options,
        };
        let server = Self { shared: Arc::new(shared) };
        server.create_initial_objects();
        server
    }

    /// Returns an in-process client with all permissions. Must be called inside a tokio runtime.
    pub fn client(&self) -> kube::Client {
        self.client_builder().build()
    }

    /// Returns an in-process client that acts as `user`.
    pub fn client_as(&self, user: User) -> kube::Client {
        self.client_builder().user(user).build()
    }

    /// Returns a builder for an in-process client with its own user, user agent and hooks.
    pub fn client_builder(&self) -> ClientBuilder {
        ClientBuilder::new(self.clone())
    }

    /// Calls `hooks` around matching writes of any client, including clients over the network.
    pub fn add_hooks(&self, matching: Match, hooks: &Hooks) {
        self.shared.hooks.lock().push((matching, hooks.clone()));
    }

    fn hooks_for(&self, info: &RequestInfo) -> Vec<Hooks> {
        self.shared
            .hooks
            .lock()
            .iter()
            .filter(|(m, _)| m.matches(info))
            .map(|(_, h)| h.clone())
            .collect()
    }

    /// Returns the tokens and permissions.
    pub fn users(&self) -> &Users {
        &self.shared.users
    }

    /// Returns the administrator's token, which is generated at the start.
    pub fn admin_token(&self) -> &str {
        &self.shared.admin_token
    }

    /// Returns the log of requests.
    pub fn log(&self) -> &RequestLog {
        &self.shared.log
    }

    /// Returns the store of objects.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Returns the server's clock, which moves with tokio's.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Returns the script of faults.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }
}

impl fmt::Debug for ApiServerInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The administrator's token is a secret; the objects are too many.
        f.debug_struct("ApiServerInner")
            .field("options", &self.options)
            .finish_non_exhaustive()
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
            server
                .handle(parts, body.map(http_body_util::Collected::to_bytes))
                .await
        })
    }
}

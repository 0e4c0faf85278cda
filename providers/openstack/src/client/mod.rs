//! The OpenStack client: sockets, tokens, catalog, retries, pages, metrics; typed requests on top.
//!
//! [`Client::get`] and the others take a [`Request`] (which [`Call`], on what path) and return what
//! is inside the envelope: `get::<Server>` of [`Call::ServerGet`] reads `{"server": {…}}`,
//! `get_all::<Server>` of [`Call::ServerList`] reads every page of `{"servers": […]}`, and `post`
//! wraps its body in the same way.

mod body;
mod call;
mod display_url;
mod error;
mod error_class;
mod https;
mod rate_limit;
mod request;
mod request_metrics;
mod retry;
mod rows;
mod send;
mod session;
mod tls;
mod transport;

use std::sync::Arc;

use bytes::Bytes;
use ccm_core::provider::{CloudError, Mutation, MutationResponse, Op};
use http::Method;
use parking_lot::Mutex;
use prometheus::Registry;
use serde::{Serialize, de::DeserializeOwned};

use self::{
    body::Wrapped,
    rate_limit::RateLimiters,
    request_metrics::ApiMetrics,
    send::{OutgoingRequest, ServiceResponse},
};
pub use self::{
    call::{Call, Class, Service},
    error::{ErrorCause, ErrorResponse, OpenStackError, SessionError, UnreliableResponse},
    error_class::{ErrorClass, reason},
    https::{Https, HttpsError},
    request::Request,
    rows::{Rows, UnreadableRow},
    session::{Credentials, Microversion, OctaviaVersion, Session},
    tls::TlsError,
    transport::{Transport, TransportError},
};
use crate::config::{Limits, Settings};

/// Maximum number of pages of a list: 1,000 pages of 1,000 are more than any project has. A service
/// whose pages never end causes an error and not an endless loop.
const MAX_PAGES: usize = 1000;

/// A further page of a list: the query that requests it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextPage(String);

/// A list that was read up to a number of rows.
#[derive(Debug)]
pub enum BoundedList<T> {
    /// Every row of the list.
    Complete(Rows<T>),
    /// The first rows of a longer list. What they lack may still exist.
    TooLong(Rows<T>),
}

/// The OpenStack client. Cheap to clone; all clones share token, rate limiters and metrics.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    session: Arc<Session>,
    rate_limiters: Option<Arc<RateLimiters>>,
    metrics: ApiMetrics,
}

impl Client {
    /// Creates a client. No request is sent yet.
    pub fn new(
        settings: &Settings,
        credentials: Arc<dyn Credentials>,
        transport: Arc<dyn Transport>,
    ) -> Self {
        let metrics = ApiMetrics::new().expect("names and labels of the metrics are valid");
        let session =
            Session::new(&settings.cloud, credentials, transport.clone(), metrics.clone());
        let rate_limiters = Some(Arc::new(RateLimiters::new(&settings.limits)));
        Self {
            transport,
            session: Arc::new(session),
            rate_limiters,
            metrics,
        }
    }

    /// Creates a client with the credentials of the settings, and gets its first token.
    ///
    /// # Errors
    /// No token was issued.
    pub async fn connect(
        settings: &Settings,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, OpenStackError> {
        let client = Self::new(settings, Arc::new(settings.cloud.auth.clone()), transport);
        client.session.authenticate().await?;
        Ok(client)
    }

    /// Sets other rate limits; `None` means no limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Option<&Limits>) -> Self {
        self.rate_limiters = limits.map(|limits| Arc::new(RateLimiters::new(limits)));
        self
    }

    /// Returns tokens and catalog.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Registers the metrics of requests.
    ///
    /// # Errors
    /// Metrics of these names are registered already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        self.metrics.register(registry)
    }

    /// Returns how often a request was sent, including retries.
    pub fn count(&self, call: Call) -> u64 {
        self.metrics.count(call)
    }

    /// Reads one object.
    ///
    /// # Errors
    /// The service's answer, after quick retries where they help.
    pub async fn get<T: DeserializeOwned>(
        &self,
        op: &Op,
        request: &Request<'_>,
    ) -> Result<T, OpenStackError> {
        let received = self
            .read(op, &OutgoingRequest::new(request, Method::GET, Bytes::new()))
            .await?;
        received.object()
    }

    /// Reads every page of a list.
    ///
    /// # Errors
    /// As [`get_rows`](Self::get_rows), and if a row cannot be read: a partial list is never
    /// returned.
    pub async fn get_all<T: DeserializeOwned>(
        &self,
        op: &Op,
        request: &Request<'_>,
    ) -> Result<Vec<T>, OpenStackError> {
        self.get_rows(op, request).await?.complete()
    }

    /// Reads every page of a list in which a row that cannot be read must not cost the others.
    ///
    /// # Errors
    /// As [`get`](Self::get), if any page is missing. Pages that never end are an error too.
    pub async fn get_rows<T: DeserializeOwned>(
        &self,
        op: &Op,
        request: &Request<'_>,
    ) -> Result<Rows<T>, OpenStackError> {
        match self.get_up_to(op, request, usize::MAX).await? {
            BoundedList::Complete(items) | BoundedList::TooLong(items) => Ok(items),
        }
    }

    /// Reads pages of a list until it is complete or has more than `max_rows` rows, those that cannot
    /// be read included.
    ///
    /// # Errors
    /// As [`get_rows`](Self::get_rows).
    pub async fn get_up_to<T: DeserializeOwned>(
        &self,
        op: &Op,
        request: &Request<'_>,
        max_rows: usize,
    ) -> Result<BoundedList<T>, OpenStackError> {
        let mut items = Rows { rows: Vec::new(), unreadable: Vec::new() };
        let mut pages = 0;
        let mut at = None;
        loop {
            let (received, found, next) = self.page(op, request, at).await?;
            items.rows.extend(found.rows);
            items.unreadable.extend(found.unreadable);
            if next.is_none() {
                return Ok(BoundedList::Complete(items));
            }
            if items.count() >= max_rows {
                return Ok(BoundedList::TooLong(items));
            }
            pages += 1;
            if pages == MAX_PAGES {
                return Err(
                    received.unreliable(&format!("the list has more than {MAX_PAGES} pages"))
                );
            }
            at = next;
        }
    }

    /// Reads one page of a list, the first without `at`, and returns which page is next.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_page<T: DeserializeOwned>(
        &self,
        op: &Op,
        request: &Request<'_>,
        at: Option<NextPage>,
    ) -> Result<(Rows<T>, Option<NextPage>), OpenStackError> {
        let (_, found, next) = self.page(op, request, at).await?;
        Ok((found, next))
    }

    async fn page<T: DeserializeOwned>(
        &self,
        op: &Op,
        request: &Request<'_>,
        at: Option<NextPage>,
    ) -> Result<(ServiceResponse, Rows<T>, Option<NextPage>), OpenStackError> {
        let mut out = OutgoingRequest::new(request, Method::GET, Bytes::new());
        out.page = at.map(|NextPage(query)| query);
        let received = self.read(op, &out).await?;
        let opened = received.list::<T>()?;
        let next = opened
            .next
            .map(|link| received.page(&link, request.query))
            .transpose()?;
        if next.is_some() && next == out.page {
            return Err(received.unreliable("the next page is the same page"));
        }
        Ok((received, opened.value, next.map(NextPage)))
    }

    /// Creates an object, as one [`Op::mutate`] for each attempt.
    ///
    /// # Errors
    /// As [`get`](Self::get), and when this process must not write. A request without an answer is
    /// not repeated: the next reconcile sees what it did.
    pub async fn post<T: DeserializeOwned>(
        &self,
        op: &Op,
        request: &Request<'_>,
        body: &(impl Serialize + Sync),
    ) -> Result<T, OpenStackError> {
        let out = OutgoingRequest::new(request, Method::POST, wrap(request.call, body)?);
        self.write(op, &out).await?.object()
    }

    /// Changes an object; otherwise as [`post`](Self::post).
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn put<T: DeserializeOwned>(
        &self,
        op: &Op,
        request: &Request<'_>,
        body: &(impl Serialize + Sync),
    ) -> Result<T, OpenStackError> {
        let out = OutgoingRequest::new(request, Method::PUT, wrap(request.call, body)?);
        self.write(op, &out).await?.object()
    }

    /// Changes something where the answer has no body (batch update of members, failover), or none
    /// that matters.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn put_no_content(
        &self,
        op: &Op,
        request: &Request<'_>,
        body: &(impl Serialize + Sync),
    ) -> Result<(), OpenStackError> {
        let out = OutgoingRequest::new(request, Method::PUT, wrap(request.call, body)?);
        self.write(op, &out).await?.close()
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// As [`post`](Self::post); [`OpenStackError::is_not_found`] says that the object is deleted
    /// already.
    pub async fn delete(&self, op: &Op, request: &Request<'_>) -> Result<(), OpenStackError> {
        let out = OutgoingRequest::new(request, Method::DELETE, Bytes::new());
        self.write(op, &out).await?.close()
    }

    /// Creates several objects in one request, all or none. They are recorded one by one under the
    /// names `objects`.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn post_batch<T: DeserializeOwned + Send>(
        &self,
        op: &Op,
        request: &Request<'_>,
        objects: &[Box<str>],
        body: &(impl Serialize + Sync),
    ) -> Result<Vec<T>, OpenStackError> {
        let out = OutgoingRequest::new(request, Method::POST, wrap(request.call, body)?);
        let _turn = self.acquire(op, request.call).await?;
        let mutations = objects
            .iter()
            .map(|object| mutation(request, object))
            .collect();
        let failure: Mutex<Option<OpenStackError>> = Mutex::new(None);
        let sent = async {
            let items = self
                .attempt(&out)
                .await
                .and_then(|received| received.list::<T>()?.value.complete());
            let items = items.map_err(|error| {
                *failure.lock() = Some(error.clone());
                CloudError::from(error)
            })?;
            Ok(MutationResponse::new(items.into_iter().map(Ok).collect()))
        };
        let results = op.mutate_batch(mutations, sent).await;
        let failure = failure.into_inner();
        let results: Result<Vec<T>, CloudError> = results.into_iter().collect();
        results.map_err(|error| {
            failure.unwrap_or_else(|| OpenStackError::new(request.call, ErrorCause::NotSent(error)))
        })
    }

    async fn read(
        &self,
        op: &Op,
        out: &OutgoingRequest<'_>,
    ) -> Result<ServiceResponse, OpenStackError> {
        debug_assert_eq!(out.request.call.class(), Class::Read, "{:?}", out.request.call);
        let sent = async {
            let mut attempts = 0;
            Ok(loop {
                match self.attempt_when_allowed(op, out).await {
                    Ok(received) => break Ok(received),
                    Err((error, began)) => {
                        if let Err(error) =
                            self.wait_to_retry(op, &mut attempts, began, error).await
                        {
                            break Err(error);
                        }
                    }
                }
            })
        };
        op.run(sent)
            .await
            .map_err(|error| OpenStackError::new(out.request.call, ErrorCause::NotSent(error)))?
    }

    async fn write(
        &self,
        op: &Op,
        out: &OutgoingRequest<'_>,
    ) -> Result<ServiceResponse, OpenStackError> {
        let request = out.request;
        debug_assert_eq!(request.call.class(), Class::Write, "{:?}", request.call);
        let mut attempts = 0;
        loop {
            let turn = self.acquire(op, request.call).await?;
            let failure: Mutex<Option<OpenStackError>> = Mutex::new(None);
            let sent = async {
                let received = self.attempt(out).await.map_err(|error| {
                    *failure.lock() = Some(error.clone());
                    CloudError::from(error)
                })?;
                let id = received.request_id();
                let reply = MutationResponse::new(received);
                Ok(match id {
                    Some(id) => reply.with_request_id(id),
                    None => reply,
                })
            };
            let began = tokio::time::Instant::now();
            let result = op
                .mutate(mutation(request, &request.object_name()), sent)
                .await;
            drop(turn);
            let error = match (result, failure.into_inner()) {
                (Ok(received), _) => return Ok(received),
                (Err(_), Some(error)) => error,
                (Err(refused), None) => {
                    OpenStackError::new(request.call, ErrorCause::NotSent(refused))
                }
            };
            self.wait_to_retry(op, &mut attempts, began, error).await?;
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

fn mutation(request: &Request<'_>, object: &str) -> Mutation {
    let mutation = Mutation::new(request.call.name(), object);
    if request.detail.is_empty() {
        mutation
    } else {
        mutation.with_detail(request.detail)
    }
}

fn wrap(call: Call, body: &impl Serialize) -> Result<Bytes, OpenStackError> {
    let written = serde_json::to_vec(&Wrapped { key: call.key(), body });
    written
        .map(Bytes::from)
        .map_err(|error| OpenStackError::new(call, ErrorCause::Input(error.to_string().into())))
}

#[cfg(test)]
pub(crate) mod in_process;
#[cfg(test)]
mod tests;

//! Client that sends requests to AWS: with rate limits, quick retries, metrics, and writes only
//! through the write gate.

mod error_class;
mod rate_limit;
mod request_metrics;
mod response_cache;
mod retry;

use std::sync::Arc;

use ccm_core::provider::{CloudError, Mutation, MutationResponse, Op};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::Instant;

pub(crate) use self::response_cache::ResponseCache;
use self::{rate_limit::RateLimiters, request_metrics::ApiMetrics};
pub use crate::client::error_class::reason;
pub(crate) use crate::client::error_class::{
    ErrorClass, rate_limit_delay, wait_in_line, with_message,
};
use crate::{
    api::{self, AwsError, AwsErrorCause, Page, Request, RequestClass, Transport},
    config::Limits,
};

/// Maximum number of pages of one listing: 1,000 pages of 400 are more than any account has. If a
/// server returns pages without end (the same token again), that is an error and not an endless
/// loop.
const MAX_PAGES: usize = 1000;

/// AWS client. Cheap to clone; all clones share rate limiters and metrics.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    rate_limiters: Option<Arc<RateLimiters>>,
    metrics: ApiMetrics,
    /// Cached responses to reads, if reads may be answered from them.
    responses: Option<ResponseCache>,
}

impl Client {
    /// Creates a client on a transport, without rate limits.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        let metrics = ApiMetrics::new().expect("names and labels of the metrics are valid");
        Self { transport, rate_limiters: None, metrics, responses: None }
    }

    /// Returns a client that answers reads from this cache and stores new answers in it.
    pub(crate) fn with_response_cache(&self, responses: &ResponseCache) -> Self {
        Self { responses: Some(responses.clone()), ..self.clone() }
    }

    /// Sets the rate limits.
    #[must_use]
    pub fn with_limits(mut self, limits: &Limits) -> Self {
        self.rate_limiters = Some(Arc::new(RateLimiters::new(limits)));
        self
    }

    /// Registers the request metrics: upstream's names, plus one series per request.
    ///
    /// # Errors
    /// Metrics of these names are registered already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        self.metrics.register(registry)
    }

    /// Sends a request that changes nothing.
    ///
    /// # Errors
    /// AWS' answer, after quick retries where they help; [`AwsErrorCause::RateLimited`] if our own
    /// rate limiter requires a longer wait than this call may still sleep.
    pub async fn read<R: Request>(&self, op: &Op, request: R) -> Result<R::Reply, AwsError> {
        debug_assert_eq!(R::ACTION.class(), RequestClass::Read, "{:?}", R::ACTION);
        if let Some(responses) = &self.responses
            && let Some(response) = responses.get(&request.clone().into_call())
        {
            return response.and_then(unwrap_reply::<R>);
        }
        op.run(async { Ok(self.read_with_retries(op, request).await) })
            .await
            .map_err(not_sent::<R>)?
    }

    async fn read_with_retries<R: Request>(
        &self,
        op: &Op,
        request: R,
    ) -> Result<R::Reply, AwsError> {
        self.acquire::<R>(op).await?;
        let mut attempts = 0;
        loop {
            let started = Instant::now();
            match self.attempt(request.clone()).await {
                Ok(reply) => return Ok(reply),
                Err(error) => {
                    self.wait_to_retry::<R>(op, &mut attempts, started, error)
                        .await?;
                }
            }
        }
    }

    /// Reads every page of an answer; `set_token` puts the token of the next page into the request.
    ///
    /// # Errors
    /// As [`read`](Self::read), or the answer has more than 1,000 pages.
    pub async fn read_all<R, T>(
        &self,
        op: &Op,
        mut request: R,
        mut set_token: impl FnMut(&mut R, String),
    ) -> Result<Vec<T>, AwsError>
    where
        R: Request<Reply = Page<T>>,
    {
        let mut items = Vec::new();
        for _ in 0..MAX_PAGES {
            let page = self.read(op, request.clone()).await?;
            items.extend(page.items);
            match page.next {
                Some(token) => set_token(&mut request, token),
                None => return Ok(items),
            }
        }
        Err(AwsError::no_response(R::ACTION, format!("the answer has more than {MAX_PAGES} pages")))
    }

    /// Sends a request that changes something, each attempt as one [`Op::mutate`]; `why` adds what
    /// only the caller knows about the reason.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`AwsErrorCause::NotSent`] if the write gate is closed. A
    /// request without an answer is not repeated: the next reconcile observes what it did.
    pub async fn write<R: Request>(
        &self,
        op: &Op,
        request: R,
        why: &str,
    ) -> Result<R::Reply, AwsError> {
        debug_assert_eq!(R::ACTION.class(), RequestClass::Write, "{:?}", R::ACTION);
        let object = api::object_of(&request.clone().into_call());
        let mut attempts = 0;
        self.acquire::<R>(op).await?;
        loop {
            let mutation = Mutation::new(R::ACTION.operation(), object.as_str()).with_detail(why);
            // The operation only passes a `CloudError` on, so AWS' error is kept beside it.
            let aws_error: Mutex<Option<AwsError>> = Mutex::new(None);
            let attempt = async {
                match self.attempt(request.clone()).await {
                    Ok(reply) => Ok(MutationResponse::new(reply)),
                    Err(error) => {
                        *aws_error.lock() = Some(error.clone());
                        Err(CloudError::from(error))
                    }
                }
            };
            let started = Instant::now();
            let cloud_error = match op.mutate(mutation, attempt).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let error = match aws_error.into_inner() {
                Some(error) => error,
                None => not_sent::<R>(cloud_error),
            };
            self.wait_to_retry::<R>(op, &mut attempts, started, error)
                .await?;
        }
    }

    /// Waits for a token of the request's rate limiter.
    async fn acquire<R: Request>(&self, op: &Op) -> Result<(), AwsError> {
        let Some(rate_limiters) = &self.rate_limiters else {
            return Ok(());
        };
        rate_limiters
            .acquire(op, R::ACTION)
            .await
            .map_err(|wait| AwsError {
                action: Some(R::ACTION),
                cause: AwsErrorCause::RateLimited(wait),
            })
    }

    /// Waits before the next attempt of a request, whose last attempt began at `started`: first the
    /// retry delay, then for a token of the rate limiter. Returns the error if a retry does not
    /// help, or if this call must not wait that long.
    ///
    /// The callers loop around this function, instead of passing an attempt to it: the compiler
    /// cannot prove that the future of an asynchronous closure is `Send`.
    async fn wait_to_retry<R: Request>(
        &self,
        op: &Op,
        attempts: &mut u32,
        started: Instant,
        error: AwsError,
    ) -> Result<(), AwsError> {
        *attempts += 1;
        if let Some(rate_limiters) = &self.rate_limiters
            && ErrorClass::of(error.code()) == ErrorClass::Throttled
        {
            rate_limiters.halve_rate(R::ACTION);
        }
        if *attempts >= retry::MAX_ATTEMPTS
            || !retry::should_retry(R::ACTION.class(), started.elapsed(), &error)
        {
            return Err(error);
        }
        let wait = retry::delay(*attempts, rand::random());
        tracing::debug!(operation = R::ACTION.operation(), attempts, ?wait, %error, "request is sent again");
        if op.sleep(wait).await {
            self.acquire::<R>(op).await.map_err(|_| error)
        } else {
            Err(error)
        }
    }

    async fn attempt<R: Request>(&self, request: R) -> Result<R::Reply, AwsError> {
        let started = Instant::now();
        let call = request.into_call();
        let reply = match &self.responses {
            Some(responses) if R::ACTION.class() == RequestClass::Read => {
                let reply = self.transport.send(call.clone()).await;
                responses.store(call, &reply);
                reply
            }
            _ => self.transport.send(call).await,
        };
        let reply = reply.and_then(unwrap_reply::<R>);
        self.metrics
            .record_attempt(R::ACTION, started, reply.as_ref().err());
        reply
    }
}

fn unwrap_reply<R: Request>(reply: api::Reply) -> Result<R::Reply, AwsError> {
    R::from_reply(reply)
        .ok_or_else(|| AwsError::no_response(R::ACTION, "the answer is of another request"))
}

fn not_sent<R: Request>(error: CloudError) -> AwsError {
    AwsError {
        action: Some(R::ACTION),
        cause: AwsErrorCause::NotSent(error),
    }
}

#[cfg(test)]
mod tests;

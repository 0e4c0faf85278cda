//! Client that sends requests to AWS, with rate limits, quick retries and metrics. Writes pass the
//! write gate first.

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
    ErrorClass, is_object_missing, rate_limit_delay, wait_in_line, with_message,
};
use crate::{
    api::{
        self, AwsError, AwsErrorCause, Call, DryRunAnswer, Page, Request, RequestClass, Transport,
    },
    config::Limits,
};

/// Maximum number of pages of one listing. No account has more than 1,000 pages of 400 objects, so
/// more pages mean that the server keeps returning the same token.
const MAX_PAGES: usize = 1000;

/// AWS client. Cheap to clone; all clones share rate limiters and metrics.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    rate_limiters: Option<Arc<RateLimiters>>,
    metrics: ApiMetrics,
    /// Responses from which reads may be answered.
    responses: Option<ResponseCache>,
}

impl Client {
    /// Creates a client for a transport, without rate limits.
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

    /// Registers the request metrics, which have upstream's names.
    ///
    /// # Errors
    /// Returns an error if metrics of these names are already registered.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        self.metrics.register(registry)
    }

    /// Sends a request that changes nothing.
    ///
    /// # Errors
    /// Returns AWS' error after quick retries, if the error is retryable. Returns
    /// [`AwsErrorCause::RateLimited`] if our own rate limiter requires a longer wait than this call
    /// may still sleep.
    pub async fn read<R: Request>(&self, op: &Op, request: R) -> Result<R::Reply, AwsError> {
        debug_assert_eq!(R::ACTION.class(), RequestClass::Read, "{:?}", R::ACTION);
        if let Some(responses) = &self.responses
            && let Some(response) = responses.get(&request.clone().into_call())
        {
            return response.and_then(unwrap_reply::<R>);
        }
        op.run(async { Ok(self.read_with_retries(op, request).await) })
            .await
            .map_err(not_sent_error::<R>)?
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

    /// Reads all pages of an answer. `set_token` sets the token of the next page in the request.
    ///
    /// # Errors
    /// Fails like [`read`](Self::read), and if the answer has more than 1,000 pages.
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

    /// Sends a request that changes something. Each attempt is one [`Op::mutate`], which logs
    /// `reason` after the controller's own reason.
    ///
    /// # Errors
    /// Fails like [`read`](Self::read), and with [`AwsErrorCause::NotSent`] if the write gate is
    /// closed. A request without an answer is not repeated, because AWS may have carried it out.
    /// The next reconcile observes the result.
    pub async fn write<R: Request>(
        &self,
        op: &Op,
        request: R,
        reason: &str,
    ) -> Result<R::Reply, AwsError> {
        debug_assert_eq!(R::ACTION.class(), RequestClass::Write, "{:?}", R::ACTION);
        let object = api::object_of(&request.clone().into_call());
        let mut attempts = 0;
        self.acquire::<R>(op).await?;
        loop {
            let mutation =
                Mutation::new(R::ACTION.operation(), object.as_str()).with_detail(reason);
            // `Op::mutate` returns only a `CloudError`, so AWS' error is stored separately.
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
                None => not_sent_error::<R>(cloud_error),
            };
            self.wait_to_retry::<R>(op, &mut attempts, started, error)
                .await?;
        }
    }

    /// Asks AWS whether it would allow a change, without making it.
    ///
    /// # Errors
    /// Returns AWS' error if it says nothing about the permission.
    pub(crate) async fn would_allow(&self, op: &Op, call: Call) -> Result<DryRunAnswer, AwsError> {
        let action = Some(call.action());
        let asked = async { Ok(self.transport.would_allow(call).await) };
        let not_sent = |error| AwsError { action, cause: AwsErrorCause::NotSent(error) };
        op.run(asked).await.map_err(not_sent)?
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

    /// Waits before the next attempt of a request, for the retry delay and then for a token of the
    /// rate limiter. The last attempt began at `started` and failed with `error`.
    ///
    /// The callers call this function in a loop, instead of passing it a closure that makes an
    /// attempt, because the compiler cannot prove that the closure's future is `Send`.
    ///
    /// # Errors
    /// Returns `error` if it is not retryable, or if this call may not wait that long.
    async fn wait_to_retry<R: Request>(
        &self,
        op: &Op,
        attempts: &mut u32,
        started: Instant,
        error: AwsError,
    ) -> Result<(), AwsError> {
        *attempts += 1;
        if let Some(rate_limiters) = &self.rate_limiters
            && ErrorClass::from_code(error.code()) == ErrorClass::Throttled
        {
            rate_limiters.halve_rate(R::ACTION);
        }
        if *attempts >= retry::MAX_ATTEMPTS
            || !retry::should_retry(R::ACTION.class(), started.elapsed(), &error)
        {
            return Err(error);
        }
        let wait = retry::delay(*attempts, rand::random());
        tracing::debug!(operation = R::ACTION.operation(), attempts, ?wait, %error, "retrying a request");
        if op.sleep(wait).await {
            self.acquire::<R>(op).await.map_err(|_| error)
        } else {
            Err(error)
        }
    }

    /// Sends a request once, and caches the response to a read if there is a response cache.
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
    R::from_reply(reply).ok_or_else(|| {
        AwsError::no_response(R::ACTION, "the answer belongs to another kind of request")
    })
}

fn not_sent_error<R: Request>(error: CloudError) -> AwsError {
    AwsError {
        action: Some(R::ACTION),
        cause: AwsErrorCause::NotSent(error),
    }
}

#[cfg(test)]
mod tests;

//! TokenReviews and SubjectAccessReviews.

use std::time::Duration;

use prometheus::Registry;
use rand::RngExt as _;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::{
    AuthError, UserInfo,
    metrics::ReviewMetrics,
    review_cache::{Key, ReviewCache, ReviewError},
};
use crate::{
    crypto::{SystemRandom, hmac},
    error::chain,
    runtime::api::{
        ApiClient, ApiClientOptions, ApiError, ApiErrorKind, ApiMetrics, ApiRequest, ApiResponse,
    },
    write_gate::WriteGate,
};

/// The timeout of one review, including all attempts. It is upstream's timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Upstream's retries: the number of attempts, and a delay that grows by half each time and is
/// extended by up to a fifth.
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const GROWTH: f64 = 1.5;
const JITTER: f64 = 0.2;
/// Upstream's rate limit for delegated reviews.
const QPS: f64 = 200.0;
const BURST: u32 = 400;
/// Cached answers of each kind. At the rate above, TTLs of 10 s fill at most 2,400.
const CAPACITY: usize = 4096;

/// Reviews of each kind that may be in flight. At the rate above the last one waits for two and a
/// half seconds. With more, all of them would wait too long.
pub(super) const PENDING: usize = 500;

/// Sends reviews to the API server, with a separate rate limit. A standby sends them too, because
/// they change nothing and need no leadership.
#[derive(Clone, Debug)]
pub(super) struct ReviewClient(ApiClient);

impl ReviewClient {
    pub(super) fn new(client: kube::Client, user_agent: &str) -> prometheus::Result<Self> {
        // Not registered with the process's registry: reviews are counted in metrics of their own,
        // as upstream.
        let metrics = ApiMetrics::register(&Registry::new())?;
        let options = ApiClientOptions::new(user_agent, "", metrics, WriteGate::always_open());
        Ok(Self(ApiClient::new(
            client,
            ApiClientOptions { qps: QPS, burst: BURST, timeout: TIMEOUT, ..options },
        )))
    }

    /// Sends a request and retries it after transient errors until the timeout.
    pub(super) async fn send_with_retries(
        &self,
        request: &ApiRequest,
        metrics: Option<&ReviewMetrics>,
    ) -> Result<ApiResponse, ApiError> {
        let deadline = Instant::now() + TIMEOUT;
        let mut backoff = FIRST_PAUSE;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let started = Instant::now();
            let answer = match tokio::time::timeout_at(deadline, self.0.send(request.clone())).await
            {
                Ok(answer) => answer,
                Err(_) => Err(ApiError::local(
                    ApiErrorKind::Timeout,
                    request.request_info(),
                    "no answer in time",
                )),
            };
            if let Some(metrics) = metrics {
                // Upstream's servers answer 201 to both kinds of review.
                let code = answer.as_ref().map_or_else(ApiError::code, |_| Some(201));
                metrics.record_request(code, started.elapsed());
            }
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let delay = backoff.mul_f64(1.0 + JITTER * rand::rng().random::<f64>());
            if attempt == ATTEMPTS || !is_transient(&error) || Instant::now() + delay >= deadline {
                return Err(error);
            }
            tokio::time::sleep(delay).await;
            backoff = backoff.mul_f64(GROWTH);
        }
    }
}

fn is_transient(error: &ApiError) -> bool {
    matches!(error.kind(), ApiErrorKind::Throttled | ApiErrorKind::Unavailable)
}

/// Reviews of bearer tokens.
#[derive(Debug)]
pub(super) struct TokenReviews {
    client: ReviewClient,
    metrics: ReviewMetrics,
    ttl: Duration,
    hash: hmac::Key,
    /// `None` for tokens that the API server does not know.
    answers: ReviewCache<Option<UserInfo>>,
}

impl TokenReviews {
    pub(super) fn new(
        client: ReviewClient,
        metrics: ReviewMetrics,
        ttl: Duration,
    ) -> Result<Self, AuthError> {
        Ok(Self {
            client,
            metrics,
            ttl,
            hash: hash_key()?,
            answers: ReviewCache::new(CAPACITY, PENDING),
        })
    }

    /// Returns the user of the token, if the API server knows it.
    ///
    /// The review requests no audience, as upstream: the token must be one for the API server
    /// itself.
    pub(super) async fn user_for_token(
        &self,
        token: &str,
    ) -> Result<Option<UserInfo>, ReviewError> {
        self.answers
            .get(key(&self.hash, token.as_bytes()), || {
                let client = self.client.clone();
                let metrics = self.metrics.clone();
                let ttl = self.ttl;
                let token = token.to_owned();
                async move { Ok((review_token(&client, &metrics, &token).await?, ttl)) }
            })
            .await
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TokenReview {
    status: TokenStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    user: UserInfo,
}

async fn review_token(
    client: &ReviewClient,
    metrics: &ReviewMetrics,
    token: &str,
) -> Result<Option<UserInfo>, ReviewError> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let request = ApiRequest::create("/apis/authentication.k8s.io/v1/tokenreviews", &review);
    let answer = match request {
        Ok(request) => client.send_with_retries(&request, Some(metrics)).await,
        Err(error) => Err(error),
    };
    // The API server's message must not expose the token.
    let answer =
        answer.map_err(|error| ReviewError::failed(chain(&error).replace(token, "<token>")))?;
    // The body contains the token, so the parser's message is dropped.
    let review: TokenReview = answer
        .json()
        .map_err(|_| ReviewError::failed("the answer to a TokenReview cannot be read"))?;
    let TokenStatus { authenticated, user } = review.status;
    if authenticated && !user.name.is_empty() {
        Ok(Some(user))
    } else {
        Ok(None)
    }
}

/// Reviews of what users may do.
#[derive(Debug)]
pub(super) struct AccessReviews {
    client: ReviewClient,
    metrics: ReviewMetrics,
    authorized_ttl: Duration,
    unauthorized_ttl: Duration,
    hash: hmac::Key,
    answers: ReviewCache<Decision>,
}

/// The API server's decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The user may make the request.
    Allowed,
    /// Denied, with the server's reason.
    Denied(String),
    /// Neither allowed nor explicitly denied.
    NoOpinion(String),
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct AccessReview {
    status: AccessStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
    denied: bool,
    reason: String,
}

impl AccessReviews {
    pub(super) fn new(
        client: ReviewClient,
        metrics: ReviewMetrics,
        authorized_ttl: Duration,
        unauthorized_ttl: Duration,
    ) -> Result<Self, AuthError> {
        let hash = hash_key()?;
        let answers = ReviewCache::new(CAPACITY, PENDING);
        Ok(Self {
            client,
            metrics,
            authorized_ttl,
            unauthorized_ttl,
            hash,
            answers,
        })
    }

    /// Returns true if the user may make this request.
    pub(super) async fn decide(
        &self,
        user: &UserInfo,
        verb: &str,
        path: &str,
    ) -> Result<Decision, ReviewError> {
        let spec = json!({
            "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
            "nonResourceAttributes": {"path": path, "verb": verb},
        });
        // The JSON text is unambiguous for each review: its keys are sorted and its strings are
        // quoted.
        let key = key(&self.hash, spec.to_string().as_bytes());
        self.answers
            .get(key, || {
                let client = self.client.clone();
                let metrics = self.metrics.clone();
                let authorized_ttl = self.authorized_ttl;
                let unauthorized_ttl = self.unauthorized_ttl;
                async move {
                    let decision = review_access(&client, &metrics, &spec).await?;
                    let ttl = match decision {
                        Decision::Allowed => authorized_ttl,
                        Decision::Denied(_) | Decision::NoOpinion(_) => unauthorized_ttl,
                    };
                    Ok((decision, ttl))
                }
            })
            .await
    }
}

async fn review_access(
    client: &ReviewClient,
    metrics: &ReviewMetrics,
    spec: &serde_json::Value,
) -> Result<Decision, ReviewError> {
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
    let status = create_access_review(client, metrics, &review)
        .await
        .map_err(|error| ReviewError::failed(chain(&error)))?;
    if status.denied {
        Ok(Decision::Denied(status.reason))
    } else if status.allowed {
        Ok(Decision::Allowed)
    } else {
        Ok(Decision::NoOpinion(status.reason))
    }
}

async fn create_access_review(
    client: &ReviewClient,
    metrics: &ReviewMetrics,
    review: &serde_json::Value,
) -> Result<AccessStatus, ApiError> {
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let request = ApiRequest::create(path, review)?;
    let answer = client.send_with_retries(&request, Some(metrics)).await?;
    Ok(answer.json::<AccessReview>()?.status)
}

/// Creates a key that lives as long as the process, so that hashes can neither be precomputed nor
/// compared with another process's.
fn hash_key() -> Result<hmac::Key, AuthError> {
    hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(|_| AuthError::Random)
}

fn key(hash: &hmac::Key, content: &[u8]) -> Key {
    let mut key = Key::default();
    key.copy_from_slice(hmac::sign(hash, content).as_ref());
    key
}

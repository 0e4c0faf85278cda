//! The token of one ServiceAccount: requested when it is needed, and again before it expires.
//!
//! Requests only use the current token. A background task requests new ones, so that a request is
//! not delayed while the current token is valid, and a token request is not aborted when a request
//! is dropped.

use std::time::Duration;

use http::{HeaderValue, Request};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::NAMESPACE;
use crate::{error::chain, write_gate::WriteGate};

/// Requested lifetime, and the fraction of it after which another token is requested: upstream's
/// values.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);
const REFRESH_FRACTION: f64 = 0.8;
/// The API server issues no token for less than ten minutes. A shorter refresh interval would mean
/// constant requests.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// Attempts of one request for a token, and the delay after the first one, which doubles:
/// upstream's values.
const MAX_ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);
/// Timeout of one attempt.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of all attempts together. It is well below the 30 s after which requests time out, so
/// that these get the reason.
const LIMIT: Duration = Duration::from_secs(15);
/// How long no token is requested after a failure. Requests fail with that failure, or use a token
/// that is still valid.
const FAILURE_BACKOFF: Duration = Duration::from_secs(5);
/// Minimum interval between log messages about the same failure.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Why there is no token. Contains no part of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenError {
    #[error(
        "no token for ServiceAccount {NAMESPACE}/{account}: no right to {verb} {resource} in namespace {NAMESPACE}, which \
         --use-service-account-credentials needs: {message}"
    )]
    Forbidden {
        account: &'static str,
        verb: &'static str,
        resource: &'static str,
        message: String,
    },
    #[error("no token for ServiceAccount {NAMESPACE}/{account}: {message}")]
    Failed { account: &'static str, message: String },
}

/// Requests and caches the tokens of one ServiceAccount.
pub(super) struct TokenSource {
    root: kube::Client,
    account: &'static str,
    gate: WriteGate,
    state: Mutex<TokenState>,
    /// Notified when another token is needed.
    refresh_requested: Notify,
    /// Notifies waiting requests of a changed state. True once no more tokens are requested.
    state_changed: watch::Sender<bool>,
}

#[derive(Default)]
struct TokenState {
    token: Option<Token>,
    failure: Option<(TokenError, Instant)>,
    logged: Option<(TokenError, Instant)>,
}

/// A token that is never shown: the header value is marked as sensitive.
struct Token {
    header: HeaderValue,
    refresh_at: Instant,
    expires_at: Instant,
}

impl TokenSource {
    pub(super) fn new(root: kube::Client, account: &'static str, gate: WriteGate) -> Self {
        let state = Mutex::default();
        let refresh_requested = Notify::new();
        let state_changed = watch::Sender::new(false);
        Self { root, account, gate, state, refresh_requested, state_changed }
    }

    /// Returns the value of `Authorization`: immediately while there is a valid token, otherwise
    /// once [`run`](Self::run) has received one or failed.
    pub(super) async fn token(&self) -> Result<HeaderValue, TokenError> {
        let mut changes = self.state_changed.subscribe();
        loop {
            let ended = *changes.borrow_and_update();
            match self.state.lock().check(Instant::now()) {
                TokenStatus::Valid(header) => return Ok(header),
                // The token is due for a refresh but still valid.
                TokenStatus::RefreshDue(header) => {
                    self.refresh_requested.notify_one();
                    return Ok(header);
                }
                TokenStatus::Failed(error) => return Err(error),
                TokenStatus::None if ended => return Err(self.failed("the process is stopping")),
                TokenStatus::None => self.refresh_requested.notify_one(),
            }
            if changes.changed().await.is_err() {
                return Err(self.failed("the process is stopping"));
            }
        }
    }

    /// Drops a token that the API server rejected.
    pub(super) fn invalidate(&self, header: &HeaderValue) {
        let mut state = self.state.lock();
        if state
            .token
            .as_ref()
            .is_some_and(|token| token.header == *header)
        {
            state.token = None;
        }
    }

    /// Requests a token each time one is needed, until `stop`.
    pub(super) async fn run(&self, stop: &CancellationToken) {
        let serve = async {
            loop {
                self.refresh_requested.notified().await;
                // A token may have arrived since the notification, for another request.
                if !self.state.lock().needs_refresh(Instant::now()) {
                    continue;
                }
                let answer = timeout(LIMIT, self.request_token())
                    .await
                    .unwrap_or_else(|_| Err(self.failed("no answer in time")));
                match answer {
                    Ok(token) => {
                        *self.state.lock() =
                            TokenState { token: Some(token), ..TokenState::default() }
                    }
                    Err(error) => self.state.lock().failed(&error),
                }
                self.state_changed.send_replace(false);
            }
        };
        stop.run_until_cancelled(serve).await;
        self.state_changed.send_replace(true);
    }

    async fn request_token(&self) -> Result<Token, TokenError> {
        let mut pause = PAUSE;
        for _ in 1..MAX_ATTEMPTS {
            match self.request_token_once().await {
                Err(TokenError::Failed { .. }) => {}
                // A missing permission does not appear within seconds.
                ended => return ended,
            }
            sleep(pause).await;
            pause *= 2;
        }
        self.request_token_once().await
    }

    /// Requests a token; creates the ServiceAccount if it does not exist.
    async fn request_token_once(&self) -> Result<Token, TokenError> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": self.account}});
        let token_path = format!("{path}/{}/token", self.account);
        let token_request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": TOKEN_LIFETIME.as_secs()},
        });
        let requested_at = Instant::now();
        let mut answer = self.post(&token_path, &token_request).await?;
        if let Err(kube::Error::Api(status)) = &answer
            && status.is_not_found()
        {
            match self.post::<serde_json::Value>(&path, &account).await? {
                // Another process created it at the same time.
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(error) => return Err(self.failure("serviceaccounts", &error)),
                Ok(_) => tracing::info!(
                    account = self.account,
                    namespace = NAMESPACE,
                    "made the ServiceAccount"
                ),
            }
            answer = self.post(&token_path, &token_request).await?;
        }
        let answer: TokenRequestResponse =
            answer.map_err(|error| self.failure("serviceaccounts/token", &error))?;
        let mut header = HeaderValue::try_from(format!("Bearer {}", answer.status.token))
            .map_err(|_| self.failed("the API server's answer is no token"))?;
        header.set_sensitive(true);
        // Measured from the time of the request, because the server's clock may differ.
        let life = answer
            .spec
            .expiration_seconds
            .map_or(TOKEN_LIFETIME, Duration::from_secs)
            .max(MIN_REFRESH_INTERVAL);
        Ok(Token {
            header,
            refresh_at: requested_at + life.mul_f64(REFRESH_FRACTION),
            expires_at: requested_at + life,
        })
    }

    async fn post<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<Result<T, kube::Error>, TokenError> {
        self.gate
            .may_write()
            .map_err(|error| self.failed(&error.to_string()))?;
        let request = Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| self.failed(&error.to_string()))?;
        timeout(TIMEOUT, self.root.request(request))
            .await
            .map_err(|_| self.failed("no answer in time"))
    }

    fn failed(&self, message: &str) -> TokenError {
        TokenError::Failed { account: self.account, message: message.to_owned() }
    }

    fn failure(&self, resource: &'static str, error: &kube::Error) -> TokenError {
        match error {
            kube::Error::Api(status) if status.is_forbidden() => TokenError::Forbidden {
                account: self.account,
                verb: "create",
                resource,
                message: status.message.clone(),
            },
            kube::Error::Api(status) => {
                self.failed(&format!("{} ({})", status.message, status.code))
            }
            error => self.failed(&chain(error)),
        }
    }
}

/// State of the token for a request.
enum TokenStatus {
    Valid(HeaderValue),
    /// Valid, but due for a refresh.
    RefreshDue(HeaderValue),
    /// There is no token, and none is requested during the back-off.
    Failed(TokenError),
    None,
}

impl TokenState {
    fn check(&self, now: Instant) -> TokenStatus {
        if let Some(token) = self.token.as_ref().filter(|token| now < token.expires_at) {
            let header = token.header.clone();
            return if self.needs_refresh(now) {
                TokenStatus::RefreshDue(header)
            } else {
                TokenStatus::Valid(header)
            };
        }
        self.backing_off(now)
            .map_or(TokenStatus::None, |error| TokenStatus::Failed(error.clone()))
    }

    /// Returns whether a token must be requested.
    fn needs_refresh(&self, now: Instant) -> bool {
        self.token
            .as_ref()
            .is_none_or(|token| now >= token.refresh_at)
            && self.backing_off(now).is_none()
    }

    fn backing_off(&self, now: Instant) -> Option<&TokenError> {
        self.failure
            .as_ref()
            .filter(|(_, at)| now < *at + FAILURE_BACKOFF)
            .map(|(error, _)| error)
    }

    /// Records a failure, and logs it unless the same one was logged recently.
    fn failed(&mut self, error: &TokenError) {
        let now = Instant::now();
        self.failure = Some((error.clone(), now));
        if self
            .logged
            .as_ref()
            .is_some_and(|(last, at)| last == error && now < *at + LOG_INTERVAL)
        {
            return;
        }
        self.logged = Some((error.clone(), now));
        match error {
            TokenError::Forbidden { .. } => tracing::error!(%error, "missing right, trying on"),
            TokenError::Failed { .. } => tracing::warn!(%error, "trying on"),
        }
    }
}

#[derive(Deserialize)]
struct TokenRequestResponse {
    spec: TokenRequestSpec,
    status: TokenRequestStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenRequestSpec {
    expiration_seconds: Option<u64>,
}

#[derive(Deserialize)]
struct TokenRequestStatus {
    token: String,
}

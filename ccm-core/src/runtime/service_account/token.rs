//! The token of one ServiceAccount, which is requested when it is needed and again before it
//! expires.
//!
//! API requests only use the current token, and a background task requests new ones. An API request
//! is therefore not delayed while the current token is valid, and a token request is not aborted
//! when an API request is dropped.

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

/// The requested lifetime of a token, and the fraction of it after which another one is requested.
/// Both are upstream's values.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);
const REFRESH_FRACTION: f64 = 0.8;
/// The minimum lifetime that is assumed of a token. The API server issues none for less than ten
/// minutes, and a very short lifetime would mean constant requests.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// The number of attempts to get a token, and the delay after the first one, which doubles. Both
/// are upstream's values.
const MAX_ATTEMPTS: u32 = 4;
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The timeout of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of all attempts together. It is well below the 30 s after which API requests time
/// out, so that the error of such a request contains the reason.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The back-off after a failure. Until it ends, API requests use a token that is still valid, or
/// get the error.
const FAILURE_BACKOFF: Duration = Duration::from_secs(5);
/// The interval at which a persistent error is logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// The error of a request for a token. Contains no part of a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenError {
    #[error(
        "no token for ServiceAccount {NAMESPACE}/{account}: missing permission to {verb} {resource} in namespace \
         {NAMESPACE}, which --use-service-account-credentials needs: {message}"
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
    last_error: Option<(TokenError, Instant)>,
    logged: Option<(TokenError, Instant)>,
}

/// A token.
struct Token {
    /// The value of `Authorization`, marked as sensitive so that it is never printed.
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

    /// Returns the value of `Authorization`. If there is no valid token, waits until
    /// [`run`](Self::run) has received one or failed.
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
                TokenStatus::None if ended => return Err(self.error("the process is stopping")),
                TokenStatus::None => self.refresh_requested.notify_one(),
            }
            if changes.changed().await.is_err() {
                return Err(self.error("the process is stopping"));
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

    /// Requests a token each time one is needed, until `stop` is cancelled.
    pub(super) async fn run(&self, stop: &CancellationToken) {
        let request_tokens = async {
            loop {
                self.refresh_requested.notified().await;
                // A token may have arrived since the notification, for another request.
                if !self.state.lock().needs_refresh(Instant::now()) {
                    continue;
                }
                let result = timeout(TIMEOUT, self.request_token())
                    .await
                    .unwrap_or_else(|_| Err(self.error("no answer in time")));
                match result {
                    Ok(token) => {
                        *self.state.lock() =
                            TokenState { token: Some(token), ..TokenState::default() }
                    }
                    Err(error) => self.state.lock().record_error(&error),
                }
                self.state_changed.send_replace(false);
            }
        };
        stop.run_until_cancelled(request_tokens).await;
        self.state_changed.send_replace(true);
    }

    /// Requests a token, with retries.
    async fn request_token(&self) -> Result<Token, TokenError> {
        let mut delay = RETRY_DELAY;
        for _ in 1..MAX_ATTEMPTS {
            match self.request_token_once().await {
                Err(TokenError::Failed { .. }) => {}
                // Do not retry after `Forbidden`: nobody grants a permission within seconds.
                result => return result,
            }
            sleep(delay).await;
            delay *= 2;
        }
        self.request_token_once().await
    }

    /// Requests a token, and creates the ServiceAccount if it does not exist.
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
        let mut response = self.post(&token_path, &token_request).await?;
        if let Err(kube::Error::Api(status)) = &response
            && status.is_not_found()
        {
            match self.post::<serde_json::Value>(&path, &account).await? {
                // Another process created it at the same time.
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(error) => return Err(self.request_error("serviceaccounts", &error)),
                Ok(_) => tracing::info!(
                    account = self.account,
                    namespace = NAMESPACE,
                    "created the ServiceAccount"
                ),
            }
            response = self.post(&token_path, &token_request).await?;
        }
        let response: TokenRequestResponse =
            response.map_err(|error| self.request_error("serviceaccounts/token", &error))?;
        let mut header = HeaderValue::try_from(format!("Bearer {}", response.status.token))
            .map_err(|_| self.error("the API server returned an invalid token"))?;
        header.set_sensitive(true);
        // Counted from the time of the request, because the server's clock may differ.
        let lifetime = response
            .spec
            .expiration_seconds
            .map_or(TOKEN_LIFETIME, Duration::from_secs)
            .max(MIN_REFRESH_INTERVAL);
        Ok(Token {
            header,
            refresh_at: requested_at + lifetime.mul_f64(REFRESH_FRACTION),
            expires_at: requested_at + lifetime,
        })
    }

    /// Creates an object. The outer error means that no request was sent or that it timed out.
    async fn post<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<Result<T, kube::Error>, TokenError> {
        self.gate
            .may_write()
            .map_err(|error| self.error(&error.to_string()))?;
        let request = Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| self.error(&error.to_string()))?;
        timeout(ATTEMPT_TIMEOUT, self.root.request(request))
            .await
            .map_err(|_| self.error("no answer in time"))
    }

    fn error(&self, message: &str) -> TokenError {
        TokenError::Failed { account: self.account, message: message.to_owned() }
    }

    /// Creates the error for a failed request to create `resource`.
    fn request_error(&self, resource: &'static str, error: &kube::Error) -> TokenError {
        match error {
            kube::Error::Api(status) if status.is_forbidden() => TokenError::Forbidden {
                account: self.account,
                verb: "create",
                resource,
                message: status.message.clone(),
            },
            kube::Error::Api(status) => {
                self.error(&format!("{} ({})", status.message, status.code))
            }
            error => self.error(&chain(error)),
        }
    }
}

/// The status of the token, as an API request sees it.
enum TokenStatus {
    Valid(HeaderValue),
    /// Valid, but due for a refresh.
    RefreshDue(HeaderValue),
    /// There is no token, and none is requested before the end of the back-off.
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
        self.backoff_error(now)
            .map_or(TokenStatus::None, |error| TokenStatus::Failed(error.clone()))
    }

    /// Returns true if a token must be requested now.
    fn needs_refresh(&self, now: Instant) -> bool {
        self.token
            .as_ref()
            .is_none_or(|token| now >= token.refresh_at)
            && self.backoff_error(now).is_none()
    }

    /// Returns the last error, unless its back-off is over.
    fn backoff_error(&self, now: Instant) -> Option<&TokenError> {
        self.last_error
            .as_ref()
            .filter(|(_, at)| now < *at + FAILURE_BACKOFF)
            .map(|(error, _)| error)
    }

    /// Records an error, and logs it unless the same one was logged recently.
    fn record_error(&mut self, error: &TokenError) {
        let now = Instant::now();
        self.last_error = Some((error.clone(), now));
        if self
            .logged
            .as_ref()
            .is_some_and(|(last, at)| last == error && now < *at + LOG_INTERVAL)
        {
            return;
        }
        self.logged = Some((error.clone(), now));
        match error {
            TokenError::Forbidden { .. } => tracing::error!(%error, "missing permission, retrying"),
            TokenError::Failed { .. } => tracing::warn!(%error, "could not get a token, retrying"),
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

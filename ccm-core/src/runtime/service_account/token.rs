//! The token of one ServiceAccount: asked for when it is needed, and again before it runs out.
//!
//! Requests only read what is there. A task of the process asks, so that a request is not held up while there is a token
//! that is still good, and nothing is lost when a request is given up.

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

/// Life that is asked for, and the part of it after which another is asked for: upstream's.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);
const REFRESH_FRACTION: f64 = 0.8;
/// The API server gives none for less than ten minutes; anything below this would mean to ask without end.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// Tries of one request for a token, and the pause after the first, which doubles: upstream's.
const MAX_ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);
/// How long one try may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long all tries may take together: well below the 30 s after which requests are given up, so that those learn why.
const LIMIT: Duration = Duration::from_secs(15);
/// How long nobody tries after a failure; requests fail with it, or use a token that is still good.
const FAILURE_BACKOFF: Duration = Duration::from_secs(5);
/// How often a lasting failure is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Why there is no token. Holds no part of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenError {
    #[error(
        "no token for ServiceAccount {NAMESPACE}/{account}: no right to {verb} {resource} in namespace {NAMESPACE}, which \
         --use-service-account-credentials needs: {message}"
    )]
    Forbidden { account: &'static str, verb: &'static str, resource: &'static str, message: String },
    #[error("no token for ServiceAccount {NAMESPACE}/{account}: {message}")]
    Failed { account: &'static str, message: String },
}

/// Where the tokens of one account come from.
pub(super) struct TokenSource {
    root: kube::Client,
    account: &'static str,
    gate: WriteGate,
    state: Mutex<TokenState>,
    /// Somebody wants another token.
    refresh_requested: Notify,
    /// Tells those who wait that the state changed: true once nobody asks any more.
    state_changed: watch::Sender<bool>,
}

#[derive(Default)]
struct TokenState {
    token: Option<Token>,
    failure: Option<(TokenError, Instant)>,
    logged: Option<(TokenError, Instant)>,
}

/// A token that is never shown: the header's value is marked as sensitive.
struct Token {
    header: HeaderValue,
    refresh_at: Instant,
    expires_at: Instant,
}

impl TokenSource {
    pub(super) fn new(root: kube::Client, account: &'static str, gate: WriteGate) -> Self {
        let (state, refresh_requested, state_changed) = (Mutex::default(), Notify::new(), watch::Sender::new(false));
        Self { root, account, gate, state, refresh_requested, state_changed }
    }

    /// Returns the value of `Authorization`: at once while there is a token that is good, otherwise when [`run`](Self::run)
    /// has got one, or a reason why there is none.
    pub(super) async fn token(&self) -> Result<HeaderValue, TokenError> {
        let mut changes = self.state_changed.subscribe();
        loop {
            let ended = *changes.borrow_and_update();
            match self.state.lock().check(Instant::now()) {
                TokenStatus::Valid(header) => return Ok(header),
                // One that is not new any more is still good.
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

    /// Forgets a token that the API server does not take.
    pub(super) fn invalidate(&self, header: &HeaderValue) {
        let mut state = self.state.lock();
        if state.token.as_ref().is_some_and(|token| token.header == *header) {
            state.token = None;
        }
    }

    /// Asks for a token each time one is wanted, until `stop`.
    pub(super) async fn run(&self, stop: &CancellationToken) {
        let serve = async {
            loop {
                self.refresh_requested.notified().await;
                // It may have come meanwhile: whoever waits wants it as well.
                if !self.state.lock().needs_refresh(Instant::now()) {
                    continue;
                }
                let answer = timeout(LIMIT, self.request_token())
                    .await
                    .unwrap_or_else(|_| Err(self.failed("no answer in time")));
                match answer {
                    Ok(token) => *self.state.lock() = TokenState { token: Some(token), ..TokenState::default() },
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
                // A right does not come within seconds.
                ended => return ended,
            }
            sleep(pause).await;
            pause *= 2;
        }
        self.request_token_once().await
    }

    /// Asks for a token; makes the account if that is missing.
    async fn request_token_once(&self) -> Result<Token, TokenError> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": self.account}});
        let of_token = format!("{path}/{}/token", self.account);
        let wanted = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": TOKEN_LIFETIME.as_secs()},
        });
        let asked = Instant::now();
        let mut answer = self.post(&of_token, &wanted).await?;
        if let Err(kube::Error::Api(status)) = &answer
            && status.is_not_found()
        {
            match self.post::<serde_json::Value>(&path, &account).await? {
                // Another process made it meanwhile.
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(error) => return Err(self.failure("serviceaccounts", &error)),
                Ok(_) => tracing::info!(account = self.account, namespace = NAMESPACE, "made the ServiceAccount"),
            }
            answer = self.post(&of_token, &wanted).await?;
        }
        let answer: TokenRequestResponse = answer.map_err(|error| self.failure("serviceaccounts/token", &error))?;
        let mut header = HeaderValue::try_from(format!("Bearer {}", answer.status.token))
            .map_err(|_| self.failed("the API server's answer is no token"))?;
        header.set_sensitive(true);
        // By the time since it was asked for: the server's clock may be another.
        let life = answer.spec.expiration_seconds.map_or(TOKEN_LIFETIME, Duration::from_secs).max(MIN_REFRESH_INTERVAL);
        Ok(Token { header, refresh_at: asked + life.mul_f64(REFRESH_FRACTION), expires_at: asked + life })
    }

    async fn post<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<Result<T, kube::Error>, TokenError> {
        self.gate.may_write().map_err(|error| self.failed(&error.to_string()))?;
        let request = Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| self.failed(&error.to_string()))?;
        timeout(TIMEOUT, self.root.request(request)).await.map_err(|_| self.failed("no answer in time"))
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
            kube::Error::Api(status) => self.failed(&format!("{} ({})", status.message, status.code)),
            error => self.failed(&chain(error)),
        }
    }
}

/// What a request finds.
enum TokenStatus {
    Valid(HeaderValue),
    /// Good for now; it is time for another.
    RefreshDue(HeaderValue),
    /// There is none, and nobody tries for a moment.
    Failed(TokenError),
    None,
}

impl TokenState {
    fn check(&self, now: Instant) -> TokenStatus {
        if let Some(token) = self.token.as_ref().filter(|token| now < token.expires_at) {
            let header = token.header.clone();
            return if self.needs_refresh(now) { TokenStatus::RefreshDue(header) } else { TokenStatus::Valid(header) };
        }
        self.backing_off(now).map_or(TokenStatus::None, |error| TokenStatus::Failed(error.clone()))
    }

    /// Tells whether it is time to ask for a token.
    fn needs_refresh(&self, now: Instant) -> bool {
        self.token.as_ref().is_none_or(|token| now >= token.refresh_at) && self.backing_off(now).is_none()
    }

    fn backing_off(&self, now: Instant) -> Option<&TokenError> {
        self.failure.as_ref().filter(|(_, at)| now < *at + FAILURE_BACKOFF).map(|(error, _)| error)
    }

    /// Remembers a failure, and logs it unless it was not long ago.
    fn failed(&mut self, error: &TokenError) {
        let now = Instant::now();
        self.failure = Some((error.clone(), now));
        if self.logged.as_ref().is_some_and(|(last, at)| last == error && now < *at + LOG_INTERVAL) {
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

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
use crate::{error::chain, runtime::gate::WriteGate};

/// Life that is asked for, and the part of it after which another is asked for: upstream's.
const LIFE: Duration = Duration::from_secs(3600);
const USED: f64 = 0.8;
/// The API server gives none for less than ten minutes; anything below this would mean to ask without end.
const SHORTEST: Duration = Duration::from_secs(60);
/// Tries of one request for a token, and the pause after the first, which doubles: upstream's.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);
/// How long one try may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long all tries may take together: well below the 30 s after which requests are given up, so that those learn why.
const LIMIT: Duration = Duration::from_secs(15);
/// How long nobody tries after a failure; requests fail with it, or use a token that is still good.
const REST: Duration = Duration::from_secs(5);
/// How often a lasting failure is logged.
const REPEAT: Duration = Duration::from_secs(30);

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
pub(super) struct Source {
    root: kube::Client,
    account: &'static str,
    gate: WriteGate,
    state: Mutex<State>,
    /// Somebody wants another token.
    wanted: Notify,
    /// Tells those who wait that the state changed: true once nobody asks any more.
    ended: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    failure: Option<(TokenError, Instant)>,
    logged: Option<(TokenError, Instant)>,
}

/// A token that is never shown: the header's value is marked as sensitive.
struct Token {
    header: HeaderValue,
    refresh: Instant,
    end: Instant,
}

impl Source {
    pub(super) fn new(root: kube::Client, account: &'static str, gate: WriteGate) -> Self {
        let (state, wanted, ended) = (Mutex::default(), Notify::new(), watch::Sender::new(false));
        Self { root, account, gate, state, wanted, ended }
    }

    /// Returns the value of `Authorization`: at once while there is a token that is good, otherwise when [`run`](Self::run)
    /// has got one, or a reason why there is none.
    pub(super) async fn token(&self) -> Result<HeaderValue, TokenError> {
        let mut changes = self.ended.subscribe();
        loop {
            let ended = *changes.borrow_and_update();
            match self.state.lock().look(Instant::now()) {
                Look::Good(header) => return Ok(header),
                // One that is not new any more is still good.
                Look::Old(header) => {
                    self.wanted.notify_one();
                    return Ok(header);
                }
                Look::Failed(error) => return Err(error),
                Look::None if ended => return Err(self.failed("the process is stopping")),
                Look::None => self.wanted.notify_one(),
            }
            if changes.changed().await.is_err() {
                return Err(self.failed("the process is stopping"));
            }
        }
    }

    /// Forgets a token that the API server does not take.
    pub(super) fn refused(&self, header: &HeaderValue) {
        let mut state = self.state.lock();
        if state.token.as_ref().is_some_and(|token| token.header == *header) {
            state.token = None;
        }
    }

    /// Asks for a token each time one is wanted, until `stop`.
    pub(super) async fn run(&self, stop: &CancellationToken) {
        let serve = async {
            loop {
                self.wanted.notified().await;
                // It may have come meanwhile: whoever waits wants it as well.
                if !self.state.lock().is_wanted(Instant::now()) {
                    continue;
                }
                let answer = timeout(LIMIT, self.ask()).await.unwrap_or_else(|_| Err(self.failed("no answer in time")));
                match answer {
                    Ok(token) => *self.state.lock() = State { token: Some(token), ..State::default() },
                    Err(error) => self.state.lock().failed(&error),
                }
                self.ended.send_replace(false);
            }
        };
        stop.run_until_cancelled(serve).await;
        self.ended.send_replace(true);
    }

    async fn ask(&self) -> Result<Token, TokenError> {
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            match self.try_once().await {
                Err(TokenError::Failed { .. }) => {}
                // A right does not come within seconds.
                ended => return ended,
            }
            sleep(pause).await;
            pause *= 2;
        }
        self.try_once().await
    }

    /// Asks for a token; makes the account if that is missing.
    async fn try_once(&self) -> Result<Token, TokenError> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": self.account}});
        let of_token = format!("{path}/{}/token", self.account);
        let wanted = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": LIFE.as_secs()},
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
        let answer: Answer = answer.map_err(|error| self.failure("serviceaccounts/token", &error))?;
        let mut header = HeaderValue::try_from(format!("Bearer {}", answer.status.token))
            .map_err(|_| self.failed("the API server's answer is no token"))?;
        header.set_sensitive(true);
        // By the time since it was asked for: the server's clock may be another.
        let life = answer.spec.expiration_seconds.map_or(LIFE, Duration::from_secs).max(SHORTEST);
        Ok(Token { header, refresh: asked + life.mul_f64(USED), end: asked + life })
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
enum Look {
    Good(HeaderValue),
    /// Good for now; it is time for another.
    Old(HeaderValue),
    /// There is none, and nobody tries for a moment.
    Failed(TokenError),
    None,
}

impl State {
    fn look(&self, now: Instant) -> Look {
        if let Some(token) = self.token.as_ref().filter(|token| now < token.end) {
            let header = token.header.clone();
            return if self.is_wanted(now) { Look::Old(header) } else { Look::Good(header) };
        }
        self.resting(now).map_or(Look::None, |error| Look::Failed(error.clone()))
    }

    /// Tells whether it is time to ask for a token.
    fn is_wanted(&self, now: Instant) -> bool {
        self.token.as_ref().is_none_or(|token| now >= token.refresh) && self.resting(now).is_none()
    }

    fn resting(&self, now: Instant) -> Option<&TokenError> {
        self.failure.as_ref().filter(|(_, at)| now < *at + REST).map(|(error, _)| error)
    }

    /// Remembers a failure, and logs it unless it was not long ago.
    fn failed(&mut self, error: &TokenError) {
        let now = Instant::now();
        self.failure = Some((error.clone(), now));
        if self.logged.as_ref().is_some_and(|(last, at)| last == error && now < *at + REPEAT) {
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
struct Answer {
    spec: Spec,
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    expiration_seconds: Option<u64>,
}

#[derive(Deserialize)]
struct Status {
    token: String,
}

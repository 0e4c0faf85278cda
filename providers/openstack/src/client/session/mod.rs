//! Tokens and the catalog: one token for the process, renewed before it expires or when a service
//! rejects it.

mod catalog;
mod discovery;
pub(super) mod keystone;
mod token_request;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use tokio::{sync::Mutex as AsyncMutex, time::Instant};
use url::Url;

use self::discovery::DiscoveredVersions;
pub use self::discovery::{Microversion, OctaviaVersion};
use super::{
    Call, ErrorCause, OpenStackError, Service, SessionError, Transport, request_metrics::ApiMetrics,
};
use crate::config::{Auth, Cloud, Interface};

/// First back-off after Keystone issued no token; doubles up to [`MAX_BACKOFF`].
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Longest back-off. It is also used when credentials were rejected, since many wrong attempts lock
/// a user out.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// How long no new token is requested for a service that rejects fresh tokens.
const REJECTED_TOKEN_BACKOFF: Duration = Duration::from_secs(10);
/// A token is renewed when less than this, or less than a tenth of its lifetime, is left.
const RENEW_BEFORE_EXPIRY: Duration = Duration::from_secs(300);

/// Source of credentials. It is read for each token, so that changed credentials are used without a
/// restart.
pub trait Credentials: Send + Sync + 'static {
    /// Returns the current credentials.
    ///
    /// # Errors
    /// They cannot be read: which file, and why.
    fn read(&self) -> Result<Auth, Box<str>>;

    /// Returns a number that changes when the credentials may have changed. That ends a back-off
    /// after they were rejected.
    fn file_version(&self) -> u64 {
        0
    }
}

impl Credentials for Auth {
    fn read(&self) -> Result<Auth, Box<str>> {
        Ok(self.clone())
    }
}

/// The token of the process and its catalog.
pub struct Session {
    credentials: Arc<dyn Credentials>,
    transport: Arc<dyn Transport>,
    metrics: ApiMetrics,
    region: Box<str>,
    interface: Interface,
    scoped_token: Mutex<Option<Arc<ScopedToken>>>,
    /// Held while a token is requested: one request for all who need it.
    renewal: AsyncMutex<TokenRenewal>,
    /// When services rejected a fresh token.
    token_rejections: Mutex<BTreeMap<Service, Instant>>,
    versions: DiscoveredVersions,
}

#[derive(Default)]
struct TokenRenewal {
    generation: u64,
    failure: Option<AuthFailure>,
    /// Keystone's versioned URL that was discovered, with the configured URL that has no version.
    found: Option<(Url, Url)>,
}

struct AuthFailure {
    error: Arc<SessionError>,
    pause: Duration,
    until: Instant,
    stamp: u64,
}

/// A token with its catalog.
pub(super) struct ScopedToken {
    token: HeaderValue,
    generation: u64,
    renew_at: Instant,
    expires_at: Instant,
    /// URLs of the services, with their versions where the catalog has them.
    endpoints: BTreeMap<Service, Result<Url, Arc<SessionError>>>,
}

impl ScopedToken {
    pub(super) fn token(&self) -> &HeaderValue {
        &self.token
    }
}

impl Session {
    pub(super) fn new(
        cloud: &Cloud,
        credentials: Arc<dyn Credentials>,
        transport: Arc<dyn Transport>,
        metrics: ApiMetrics,
    ) -> Self {
        Self {
            credentials,
            transport,
            metrics,
            region: cloud.region.clone(),
            interface: cloud.interface,
            scoped_token: Mutex::default(),
            renewal: AsyncMutex::default(),
            token_rejections: Mutex::default(),
            versions: DiscoveredVersions::default(),
        }
    }

    /// Gets a token, unless there is one.
    ///
    /// # Errors
    /// Keystone's error response, or why there is none.
    pub async fn authenticate(&self) -> Result<(), OpenStackError> {
        self.current().await.map(drop)
    }

    /// Returns the URL of a service, as it is in the catalog.
    ///
    /// # Errors
    /// The catalog does not have the service; the message says what it has.
    pub async fn endpoint(&self, service: Service) -> Result<Url, OpenStackError> {
        let call = Call::TokenCreate;
        let token = self.current().await?;
        token
            .endpoint(service)
            .map_err(|error| OpenStackError::new(call, ErrorCause::Session(error)))
    }

    /// Returns the token, and renews it first if it is about to expire.
    pub(super) async fn current(&self) -> Result<Arc<ScopedToken>, OpenStackError> {
        let token = self.scoped_token.lock().clone();
        let now = Instant::now();
        match token {
            Some(signed) if now < signed.renew_at => Ok(signed),
            Some(signed) if now < signed.expires_at => {
                // If another task is renewing it, this one is still valid.
                let Ok(renewal) = self.renewal.try_lock() else {
                    return Ok(signed);
                };
                let renewed = self.renew(renewal, Some(signed.generation)).await;
                renewed.or_else(|error| {
                    tracing::warn!(
                        error = &*error as &dyn std::error::Error,
                        "the token cannot be renewed yet"
                    );
                    Ok(signed)
                })
            }
            old => {
                let renewal = self.renewal.lock().await;
                let renewed = self.renew(renewal, old.map(|old| old.generation)).await;
                renewed.map_err(|error| {
                    OpenStackError::new(Call::TokenCreate, ErrorCause::Session(error))
                })
            }
        }
    }

    /// Returns another token than this one, which a service rejected.
    pub(super) async fn renew_rejected(
        &self,
        old: &ScopedToken,
        service: Service,
    ) -> Result<Arc<ScopedToken>, OpenStackError> {
        let failed = |error| OpenStackError::new(Call::TokenCreate, ErrorCause::Session(error));
        let refused = self.token_rejections.lock().get(&service).copied();
        if refused.is_some_and(|at| at.elapsed() < REJECTED_TOKEN_BACKOFF) {
            let words =
                format!("the {service} service does not accept tokens that were just issued");
            let url = shown_or_none(old.endpoints.get(&service));
            return Err(failed(Arc::new(SessionError::Denied { url, message: words.into() })));
        }
        let renewal = self.renewal.lock().await;
        self.renew(renewal, Some(old.generation))
            .await
            .map_err(failed)
    }

    /// Records that a service rejected a token that had just been issued.
    pub(super) fn record_rejection(&self, service: Service) {
        self.token_rejections.lock().insert(service, Instant::now());
    }

    /// Requests a token, unless there is one of another generation.
    async fn renew(
        &self,
        mut renewal: tokio::sync::MutexGuard<'_, TokenRenewal>,
        generation: Option<u64>,
    ) -> Result<Arc<ScopedToken>, Arc<SessionError>> {
        if let Some(token) = self
            .scoped_token
            .lock()
            .clone()
            .filter(|signed| Some(signed.generation) != generation)
        {
            return Ok(token);
        }
        let file_version = self.credentials.file_version();
        let failure = renewal.failure.as_ref();
        if let Some(failure) = failure
            .filter(|failure| Instant::now() < failure.until && failure.stamp == file_version)
        {
            return Err(failure.error.clone());
        }
        match self.request_token(&mut renewal).await {
            Ok(signed) => {
                renewal.failure = None;
                let signed = Arc::new(signed);
                *self.scoped_token.lock() = Some(signed.clone());
                Ok(signed)
            }
            Err(error) => {
                let pause = renewal
                    .failure
                    .as_ref()
                    .map_or(INITIAL_BACKOFF, |failure| failure.pause * 2);
                let pause = error.pause(pause);
                let error = Arc::new(error);
                let until = Instant::now() + pause;
                renewal.failure =
                    Some(AuthFailure { error: error.clone(), pause, until, stamp: file_version });
                Err(error)
            }
        }
    }

    /// Returns the URL for a request, with the headers that choose a version.
    pub(super) async fn endpoint_for(
        &self,
        call: Call,
        token: &ScopedToken,
    ) -> Result<(Url, HeaderMap), OpenStackError> {
        let endpoint = token
            .endpoint(call.service())
            .map_err(|error| OpenStackError::new(call, ErrorCause::Session(error)))?;
        match call.service() {
            Service::Compute => {
                let compute = self
                    .compute(&endpoint)
                    .await
                    .map_err(|error| OpenStackError { call, ..error })?;
                Ok((compute.base.clone(), compute.headers()))
            }
            service => Ok((catalog::with_version(service, &endpoint), HeaderMap::new())),
        }
    }
}

impl ScopedToken {
    fn endpoint(&self, service: Service) -> Result<Url, Arc<SessionError>> {
        match self.endpoints.get(&service) {
            Some(endpoint) => endpoint.clone(),
            None => Err(Arc::new(SessionError::NoEndpoint(
                format!("the catalog has no {service}").into(),
            ))),
        }
    }
}

impl SessionError {
    /// Returns how long to back off; `pause` is a delay that grows.
    fn pause(&self, pause: Duration) -> Duration {
        match self {
            Self::Unavailable { retry_after: Some(after), .. } => {
                (*after).clamp(pause.min(MAX_BACKOFF), MAX_BACKOFF)
            }
            Self::Denied { .. } => MAX_BACKOFF,
            _ => pause.min(MAX_BACKOFF),
        }
    }
}

fn shown_or_none(endpoint: Option<&Result<Url, Arc<SessionError>>>) -> Box<str> {
    endpoint
        .and_then(|endpoint| endpoint.as_ref().ok())
        .map(super::display_url::display_url)
        .unwrap_or_default()
        .into()
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("region", &self.region)
            .field("interface", &self.interface)
            .finish_non_exhaustive()
    }
}

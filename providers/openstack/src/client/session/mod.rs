//! The token of the process and its catalog. The token is renewed before it expires, and when a
//! service rejects it.

mod catalog;
mod discovery;
pub(super) mod keystone;
mod token_request;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
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
/// Maximum back-off. It is also used after credentials were rejected, since many failed attempts
/// may lock the user out.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Time for which no new token is requested for a service that rejects fresh tokens.
const REJECTED_TOKEN_BACKOFF: Duration = Duration::from_secs(10);
/// A token is renewed when less than this, or less than a tenth of its lifetime, is left.
const RENEW_BEFORE_EXPIRY: Duration = Duration::from_secs(300);

/// Source of credentials. It is read for each token, so that changed credentials are used without a
/// restart.
pub trait Credentials: Send + Sync + 'static {
    /// Returns the current credentials.
    ///
    /// # Errors
    /// Returns a message with the file that cannot be read, and the reason.
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
    /// Held while a token is requested, so that there is one request for all who need a token.
    renewal: AsyncMutex<TokenRenewal>,
    /// Times when services rejected a fresh token.
    token_rejections: Mutex<BTreeMap<Service, Instant>>,
    versions: DiscoveredVersions,
}

#[derive(Default)]
struct TokenRenewal {
    generation: u64,
    failure: Option<AuthFailure>,
    /// The configured URL of Keystone, and the versioned URL that was discovered for it.
    keystone_url: Option<(Url, Url)>,
    /// Scope of the first token. Later tokens must have the same one, because all that this process
    /// knows is about that project.
    first_scope: Option<TokenScope>,
}

struct AuthFailure {
    error: Arc<SessionError>,
    backoff: Duration,
    until: Instant,
    file_version: u64,
}

/// What a token is good for: the IDs of a project or of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TokenScope {
    project: Option<Box<str>>,
    domain: Option<Box<str>>,
}

/// Whose token it is, and what it is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenOwner {
    /// ID of the user.
    pub user_id: Box<str>,
    /// Name of the user.
    pub user_name: Box<str>,
    /// ID of the project; `None` if the token is good for a domain.
    pub project_id: Option<Box<str>>,
    /// Name of the project.
    pub project_name: Option<Box<str>>,
    /// Names of the roles in the project, sorted.
    pub roles: Vec<Box<str>>,
    /// ID of the application credential that the token was made with.
    pub application_credential: Option<Box<str>>,
    /// Expiry of the user's password, in Keystone's form.
    pub password_expires_at: Option<Box<str>>,
    /// The time of Keystone when it issued the token.
    pub issued_at: Timestamp,
}

/// A token with its catalog.
pub(super) struct ScopedToken {
    token: HeaderValue,
    scope: TokenScope,
    /// True with the role `admin`, with which services also list the objects of other projects.
    is_admin: bool,
    owner: TokenOwner,
    generation: u64,
    renew_at: Instant,
    expires_at: Instant,
    /// URLs of the services, as they are in the catalog.
    endpoints: BTreeMap<Service, Result<Url, Arc<SessionError>>>,
}

/// Where a request goes.
pub(super) struct VersionedEndpoint {
    pub base: Url,
    /// Headers that choose a version.
    pub headers: HeaderMap,
    /// The version that they choose, for Nova.
    pub microversion: Option<Microversion>,
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

    /// Requests a token, unless there is a valid one.
    ///
    /// # Errors
    /// Returns Keystone's error response, or the reason why there is none.
    pub async fn authenticate(&self) -> Result<(), OpenStackError> {
        self.current().await.map(drop)
    }

    /// Returns the ID of the project that the credentials are good for, or `None` if they are good
    /// for a domain.
    ///
    /// # Errors
    /// Returns Keystone's response, or the reason why there is none.
    pub async fn project(&self) -> Result<Option<Box<str>>, OpenStackError> {
        Ok(self.current().await?.scope.project.clone())
    }

    /// Returns true if the credentials have the role `admin`, with which services also list the
    /// objects of other projects.
    ///
    /// # Errors
    /// Returns Keystone's response, or the reason why there is none.
    pub async fn is_admin(&self) -> Result<bool, OpenStackError> {
        Ok(self.current().await?.is_admin)
    }

    /// Returns whose token is used, and what it is good for.
    ///
    /// # Errors
    /// Returns Keystone's response, or the reason why there is none.
    pub async fn owner(&self) -> Result<TokenOwner, OpenStackError> {
        Ok(self.current().await?.owner.clone())
    }

    /// Returns the URL of a service, as it is in the catalog.
    ///
    /// # Errors
    /// Returns an error if the catalog lacks the service. The message lists what the catalog has.
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
            Some(token) if now < token.renew_at => Ok(token),
            Some(token) if now < token.expires_at => {
                // Another task is renewing the token, and this one is still valid.
                let Ok(renewal) = self.renewal.try_lock() else {
                    return Ok(token);
                };
                let renewed = self.renew(renewal, Some(token.generation)).await;
                renewed.or_else(|error| {
                    tracing::warn!(
                        error = &*error as &dyn std::error::Error,
                        "the token cannot be renewed yet"
                    );
                    Ok(token)
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

    /// Returns a new token in place of one that a service rejected.
    pub(super) async fn renew_rejected(
        &self,
        old: &ScopedToken,
        service: Service,
    ) -> Result<Arc<ScopedToken>, OpenStackError> {
        let failed = |error| OpenStackError::new(Call::TokenCreate, ErrorCause::Session(error));
        let rejected_at = self.token_rejections.lock().get(&service).copied();
        if rejected_at.is_some_and(|at| at.elapsed() < REJECTED_TOKEN_BACKOFF) {
            let message =
                format!("the {service} service does not accept tokens that were just issued");
            let url = display_endpoint(old.endpoints.get(&service));
            return Err(failed(Arc::new(SessionError::Denied { url, message: message.into() })));
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

    /// Requests a token, unless another task has already replaced the one of this generation.
    async fn renew(
        &self,
        mut renewal: tokio::sync::MutexGuard<'_, TokenRenewal>,
        generation: Option<u64>,
    ) -> Result<Arc<ScopedToken>, Arc<SessionError>> {
        if let Some(token) = self
            .scoped_token
            .lock()
            .clone()
            .filter(|token| Some(token.generation) != generation)
        {
            return Ok(token);
        }
        let file_version = self.credentials.file_version();
        let failure = renewal.failure.as_ref();
        if let Some(failure) = failure.filter(|failure| {
            Instant::now() < failure.until && failure.file_version == file_version
        }) {
            return Err(failure.error.clone());
        }
        match self.request_token(&mut renewal).await {
            Ok(token) => {
                renewal.failure = None;
                let token = Arc::new(token);
                *self.scoped_token.lock() = Some(token.clone());
                Ok(token)
            }
            Err(error) => {
                let grown = renewal
                    .failure
                    .as_ref()
                    .map_or(INITIAL_BACKOFF, |failure| failure.backoff * 2);
                let backoff = error.backoff(grown);
                let error = Arc::new(error);
                let until = Instant::now() + backoff;
                renewal.failure =
                    Some(AuthFailure { error: error.clone(), backoff, until, file_version });
                Err(error)
            }
        }
    }

    /// Returns the URL for a request, with the headers that choose a version.
    pub(super) async fn endpoint_for(
        &self,
        call: Call,
        token: &ScopedToken,
    ) -> Result<VersionedEndpoint, OpenStackError> {
        let endpoint = token
            .endpoint(call.service())
            .map_err(|error| OpenStackError::new(call, ErrorCause::Session(error)))?;
        match call.service() {
            Service::Compute => {
                let compute = self
                    .compute(&endpoint)
                    .await
                    .map_err(|error| OpenStackError { call, ..error })?;
                Ok(VersionedEndpoint {
                    base: compute.base.clone(),
                    headers: compute.headers(),
                    microversion: Some(compute.version),
                })
            }
            service => Ok(VersionedEndpoint {
                base: catalog::with_version(service, &endpoint),
                headers: HeaderMap::new(),
                microversion: None,
            }),
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
    /// Returns the back-off after this error. `grown` is the back-off that grows with each attempt.
    fn backoff(&self, grown: Duration) -> Duration {
        match self {
            Self::Unavailable { retry_after: Some(after), .. } => {
                (*after).clamp(grown.min(MAX_BACKOFF), MAX_BACKOFF)
            }
            Self::Denied { .. } => MAX_BACKOFF,
            _ => grown.min(MAX_BACKOFF),
        }
    }
}

fn display_endpoint(endpoint: Option<&Result<Url, Arc<SessionError>>>) -> Box<str> {
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

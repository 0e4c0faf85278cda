//! Authentication and authorization of requests to the HTTPS server: delegated to the API server,
//! as in Go's framework (`k8s.io/apiserver/pkg/server/options` v0.37).
//!
//! A user is authenticated by the first method that succeeds: a front proxy's headers, a client
//! certificate, a bearer token (TokenReview). A request without any credential is from
//! `system:anonymous`. A credential that no method accepts leads to a 401, never to an anonymous
//! user. So does a token that the API server cannot be asked about, as upstream. Authorization is
//! decided by the group `system:masters`, by `--authorization-always-allow-paths`, and by a
//! SubjectAccessReview, in this order. Otherwise the response is a 403, or a 500 if the API server
//! cannot be asked. The server's [`AuthFilter`](super::AuthFilter) admits everybody to
//! always-allowed paths before this code runs, so that a probe does not depend on an API server;
//! unlike upstream, an invalid credential does no harm there.
//!
//! # Threats
//!
//! - *A client names a user in headers.* Proxy headers are read only after the peer's certificate
//!   was verified against the proxies' CA and has an allowed name. A header that names the user
//!   twice is rejected.
//! - *A certificate for another purpose.* It must come from a CA of the right bundle, be valid now,
//!   under a CA that is valid now, and have the extended key usage for clients. A subject that can
//!   be interpreted in two ways is rejected.
//! - *An old CA.* Files and ConfigMap are read every minute, and soon after a certificate was not
//!   accepted. A CA that is removed from the bundle is trusted for at most a minute. A bundle that
//!   cannot be read or parsed stays unchanged.
//! - *A stolen cache.* Tokens are not stored: answers are cached under a keyed hash whose key ends
//!   with the process.
//! - *A revoked token or permission.* Works until the TTL of its cached answer is over, as upstream
//!   (10 s by default).
//! - *Tokens in logs.* No message of this program contains a token, and tokens are removed from
//!   messages of the API server.
//! - *A flood.* One review in flight for each token and each request, at most 500 of each kind at
//!   once (429 for more), at most 4096 cached answers of each kind, 200 reviews a second (400 at
//!   once), and 10 s for each. A flood of different tokens can use this up, so that new reviews of
//!   other users are rejected. Always-allowed paths, `system:masters` by certificate and cached
//!   answers are not affected, nor is the lookup of CAs, which has its own rate limit.
//! - *An ambiguous path.* Paths are compared undecoded, as they are routed; a path with `%`, `\` or
//!   a segment `.` or `..` never matches a prefix.
//! - *The API server is unavailable.* No new user is admitted: 401 with a token, 500 without.
//!   Health checks are always allowed and need no review.

mod allowed_path_matcher;
mod bearer;
mod client_ca;
mod clients;
pub(crate) mod metrics;
mod request_header;
mod review_cache;
mod reviews;
mod user_info;
mod x509;

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderMap, request::Parts};
use parking_lot::Mutex;
use prometheus::Registry;
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{
    client_ca::{CONFIG_MAP, DynamicClientCa},
    metrics::AuthMetrics,
    review_cache::ReviewError,
    reviews::{AccessReviews, Decision, ReviewClient, TokenReviews},
};
pub use self::{
    clients::AuthClients,
    user_info::{AuthRefusal, UserInfo},
};
pub(super) use crate::runtime::serving::auth::allowed_path_matcher::AllowedPaths;
use crate::{
    config::{AuthenticationConfig, AuthorizationConfig, kubeconfig::ClientConfigError},
    error::chain,
    runtime::{api::ApiError, events::WallClock},
};

/// Group whose members may do everything, as in the API server.
const MASTERS: &str = "system:masters";
/// Minimum interval between log messages about rejected requests.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// The error of the setup of delegated authentication.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// A flag's value cannot be used.
    #[error("--{flag}={value}: {reason}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// The given value.
        value: String,
        /// The problem with it.
        reason: String,
    },
    /// The cluster's ConfigMap cannot be read.
    #[error(
        "ConfigMap {CONFIG_MAP} cannot be read, so client certificates would not be recognized; bind the Role \
         extension-apiserver-authentication-reader of kube-system to this process's ServiceAccount, or set \
         --authentication-tolerate-lookup-failure or --authentication-skip-lookup"
    )]
    Lookup(#[source] ApiError),
    /// The cluster's ConfigMap cannot be parsed.
    #[error(
        "{key} of ConfigMap {CONFIG_MAP}: {reason}; --authentication-tolerate-lookup-failure starts without it, \
         --authentication-skip-lookup leaves it alone"
    )]
    ConfigMap {
        /// The key in the ConfigMap.
        key: &'static str,
        /// The problem with the value.
        reason: String,
    },
    /// The client of a flag's kubeconfig, or of the pod, cannot be made.
    #[error(transparent)]
    Client(#[from] ClientConfigError),
    /// A client cannot be built.
    #[error("client of --{0} cannot be built")]
    Connect(&'static str, #[source] Box<kube::Error>),
    /// A metric is registered twice.
    #[error("metrics cannot be registered")]
    Metrics(#[from] prometheus::Error),
    /// The operating system provides no random numbers.
    #[error("no random numbers from the system")]
    Random,
    /// Several errors.
    #[error("{}", .0.iter().map(|e| chain(e)).collect::<Vec<_>>().join("; "))]
    Several(Vec<AuthError>),
}

/// Authenticates and authorizes requests. Clones share their state.
#[derive(Clone)]
pub struct DelegatedAuth(Arc<DelegatedAuthInner>);

struct DelegatedAuthInner {
    client_ca: DynamicClientCa,
    token_reviews: Option<TokenReviews>,
    always_allowed: AllowedPaths,
    access_reviews: Option<AccessReviews>,
    metrics: AuthMetrics,
    clock: WallClock,
    last_logged: Mutex<Option<Instant>>,
}

/// The reason for not accepting a credential.
enum AuthenticationError {
    /// The credential is invalid.
    Invalid(String),
    /// The API server could not review the credential.
    Unasked(ReviewError),
}

impl DelegatedAuth {
    /// Reads files and the cluster's ConfigMap.
    ///
    /// Requires `get` on ConfigMap `kube-system/extension-apiserver-authentication` (unless both CA
    /// files are given or the lookup is off), and `create` on `tokenreviews` and on
    /// `subjectaccessreviews`.
    ///
    /// # Errors
    /// All errors together: files that cannot be used, a ConfigMap that cannot be read (unless that
    /// is tolerated), an invalid path.
    pub async fn connect(
        authentication: &AuthenticationConfig,
        authorization: &AuthorizationConfig,
        clients: AuthClients,
        registry: &Registry,
    ) -> Result<Self, AuthError> {
        Self::connect_at(authentication, authorization, clients, registry, WallClock::system())
            .await
    }

    async fn connect_at(
        authentication: &AuthenticationConfig,
        authorization: &AuthorizationConfig,
        clients: AuthClients,
        registry: &Registry,
        clock: WallClock,
    ) -> Result<Self, AuthError> {
        let metrics = AuthMetrics::register(registry)?;
        // The CAs have a separate client: a flood of tokens must not delay the removal of a
        // withdrawn CA.
        let ca_client = review_client(clients.authentication.clone(), &clients.user_agent)?;
        let token_client = review_client(clients.authentication, &clients.user_agent)?;
        let access_client = review_client(clients.authorization, &clients.user_agent)?;
        warn_missing_clients(token_client.as_ref(), access_client.as_ref(), authentication);
        // Errors in paths and CAs are reported together.
        let mut problems = Vec::new();
        let always_allowed = match AllowedPaths::parse(&authorization.always_allow_paths) {
            Ok(paths) => paths,
            Err(entry) => {
                problems.push(AuthError::Flag {
                    flag: "authorization-always-allow-paths",
                    value: entry,
                    reason: "may have a * at its end only".to_owned(),
                });
                AllowedPaths::default()
            }
        };
        let client_ca = DynamicClientCa::new(authentication, ca_client);
        for problem in client_ca.refresh().await {
            if authentication.tolerate_lookup_failure && !matches!(problem, AuthError::Flag { .. })
            {
                tracing::warn!(error = %chain(&problem), "continuing without the cluster's client CAs");
            } else {
                problems.push(problem);
            }
        }
        match problems.len() {
            0 => {}
            1 => return Err(problems.remove(0)),
            _ => return Err(AuthError::Several(problems)),
        }
        let token_reviews = match token_client {
            Some(client) => Some(TokenReviews::new(
                client,
                metrics.token_reviews.clone(),
                authentication.token_webhook_cache_ttl,
            )?),
            None => None,
        };
        let access_reviews = match access_client {
            Some(client) => Some(AccessReviews::new(
                client,
                metrics.access_reviews.clone(),
                authorization.webhook_cache_authorized_ttl,
                authorization.webhook_cache_unauthorized_ttl,
            )?),
            None => None,
        };
        Ok(Self(Arc::new(DelegatedAuthInner {
            client_ca,
            token_reviews,
            always_allowed,
            access_reviews,
            metrics,
            clock,
            last_logged: Mutex::new(None),
        })))
    }

    /// Keeps the client CAs up to date until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        self.0.client_ca.run(&stop).await;
    }

    /// Returns the user of a request if the user may make it.
    ///
    /// `peer` is the certificate chain that the client sent in the TLS handshake, its own
    /// certificate first. Possession of that certificate's key is proven; nothing else is checked
    /// yet.
    ///
    /// # Errors
    /// 401 for credentials that are not accepted, also if the API server could not review them; 403
    /// if the user may not make the request; 500 if the API server could not review that; 429 if
    /// too many reviews are in flight.
    ///
    /// # Cancellation
    /// Safe at any await point.
    pub async fn authenticate_and_authorize(
        &self,
        peer: &[CertificateDer<'static>],
        parts: &Parts,
    ) -> Result<UserInfo, AuthRefusal> {
        let path = parts.uri.path();
        if !path.starts_with('/') {
            return Err(AuthRefusal::bad_path());
        }
        let started = Instant::now();
        let authenticated = self.authenticate(peer, &parts.headers).await;
        self.0
            .metrics
            .authenticated(authenticated.is_ok(), started.elapsed());
        let user = authenticated.map_err(|error| match error {
            AuthenticationError::Invalid(reason) => {
                self.log_refusal("a user's credentials are not accepted", &reason);
                AuthRefusal::unauthorized()
            }
            AuthenticationError::Unasked(ReviewError::Busy) => self.busy(),
            // As upstream's filter (apiserver, endpoints/filters/authentication.go): any failure to
            // authenticate is a 401.
            AuthenticationError::Unasked(ReviewError::Failed(reason)) => {
                self.log_refusal(
                    "a user cannot be authenticated, because the TokenReview failed",
                    &reason,
                );
                AuthRefusal::unauthorized()
            }
        })?;
        self.authorize(&user, &parts.method.as_str().to_ascii_lowercase(), path)
            .await?;
        Ok(user)
    }

    /// Tries all authentication methods in order, even if one of them does not accept its
    /// credential.
    async fn authenticate(
        &self,
        peer: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<UserInfo, AuthenticationError> {
        let (user, mut invalid) = self.authenticate_certificate(peer, headers);
        if let Some(user) = user {
            return Ok(user.authenticated());
        }
        if !invalid.is_empty() {
            // The CA of the certificate may be newer than our bundle.
            self.0.client_ca.request_refresh();
        }
        match self.authenticate_token(headers).await {
            Ok(Some(user)) => return Ok(user.authenticated()),
            Ok(None) => {}
            Err(AuthenticationError::Invalid(reason)) => invalid.push(reason),
            Err(unasked) => return Err(unasked),
        }
        if invalid.is_empty() {
            Ok(UserInfo::anonymous())
        } else {
            Err(AuthenticationError::Invalid(invalid.join("; ")))
        }
    }

    /// Returns the user whom a proxy with this certificate names, or the user of the certificate,
    /// and the reasons of the methods that do not accept the certificate.
    fn authenticate_certificate(
        &self,
        peer: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> (Option<UserInfo>, Vec<String>) {
        let mut invalid = Vec::new();
        if peer.is_empty() {
            return (None, invalid);
        }
        let trusted = self.0.client_ca.current();
        // A clock before 1970 counts as 1970, when no certificate is valid.
        let seconds = u64::try_from(self.0.clock.now().as_second()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        if let Some(proxies) = &trusted.proxies {
            match proxies.user_info(peer, headers, now) {
                Ok(Some(user)) => return (Some(user), invalid),
                Ok(None) => {}
                Err(reason) => invalid.push(format!("as a proxy's certificate: {reason}")),
            }
        }
        if let Some(clients) = &trusted.clients {
            match clients.verify(peer, now) {
                Ok(subject) => return (subject.user_info(), invalid),
                Err(reason) => invalid.push(format!("as a client's certificate: {reason}")),
            }
        }
        (None, invalid)
    }

    async fn authenticate_token(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<UserInfo>, AuthenticationError> {
        let Some(tokens) = &self.0.token_reviews else {
            return Ok(None);
        };
        let Some(token) = bearer::token(headers)
            .map_err(|reason| AuthenticationError::Invalid(reason.to_owned()))?
        else {
            return Ok(None);
        };
        match tokens.user_for_token(token).await {
            Ok(Some(user)) => Ok(Some(user)),
            Ok(None) => Err(AuthenticationError::Invalid(
                "the API server does not know the bearer token".into(),
            )),
            Err(unasked) => Err(AuthenticationError::Unasked(unasked)),
        }
    }

    async fn authorize(&self, user: &UserInfo, verb: &str, path: &str) -> Result<(), AuthRefusal> {
        let started = Instant::now();
        let decision = self.access_decision(user, verb, path).await;
        let (result, outcome) = match decision {
            Ok(Decision::Allowed) => ("allowed", Ok(())),
            Ok(Decision::Denied(reason)) => {
                ("denied", Err(AuthRefusal::forbidden(user, verb, path, &reason)))
            }
            Ok(Decision::NoOpinion(reason)) => {
                ("no-opinion", Err(AuthRefusal::forbidden(user, verb, path, &reason)))
            }
            Err(ReviewError::Busy) => ("error", Err(self.busy())),
            Err(ReviewError::Failed(reason)) => {
                self.log_refusal(
                    "a request cannot be authorized, because the SubjectAccessReview failed",
                    &reason,
                );
                ("error", Err(AuthRefusal::review_failed(path)))
            }
        };
        self.0.metrics.authorized(result, started.elapsed());
        outcome
    }

    async fn access_decision(
        &self,
        user: &UserInfo,
        verb: &str,
        path: &str,
    ) -> Result<Decision, ReviewError> {
        if user.groups.iter().any(|group| group == MASTERS) || self.0.always_allowed.contains(path)
        {
            return Ok(Decision::Allowed);
        }
        match &self.0.access_reviews {
            Some(reviews) => reviews.decide(user, verb, path).await,
            None => Ok(Decision::NoOpinion(String::new())),
        }
    }

    fn busy(&self) -> AuthRefusal {
        self.log_refusal(
            "too many reviews are in flight",
            "further requests are rejected until the API server responds",
        );
        AuthRefusal::too_many_requests()
    }

    /// Logs a rejected request, at most one per [`LOG_PERIOD`] as a warning.
    fn log_refusal(&self, what: &'static str, reason: &str) {
        let now = Instant::now();
        let mut last_logged = self.0.last_logged.lock();
        if last_logged.is_some_and(|last| now < last + LOG_PERIOD) {
            drop(last_logged);
            tracing::debug!(reason, "{what}");
            return;
        }
        *last_logged = Some(now);
        drop(last_logged);
        tracing::warn!(reason, "{what}");
    }
}

impl fmt::Debug for DelegatedAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelegatedAuth")
            .field("client_ca", &self.0.client_ca)
            .finish_non_exhaustive()
    }
}

fn review_client(
    client: Option<kube::Client>,
    user_agent: &str,
) -> prometheus::Result<Option<ReviewClient>> {
    client
        .map(|client| ReviewClient::new(client, user_agent))
        .transpose()
}

/// Warns about what does not work without a client for the API server.
fn warn_missing_clients(
    token_client: Option<&ReviewClient>,
    access_client: Option<&ReviewClient>,
    config: &AuthenticationConfig,
) {
    if token_client.is_none() {
        tracing::warn!(
            "no --authentication-kubeconfig, and this is not a pod: bearer tokens count as anonymous"
        );
        let has_both_files =
            config.client_ca_file.is_some() && config.requestheader_client_ca_file.is_some();
        if !config.skip_lookup && !has_both_files {
            tracing::warn!(
                "for the same reason, client certificates of the cluster's own CAs are not recognised"
            );
        }
    }
    if access_client.is_none() {
        tracing::warn!(
            "no --authorization-kubeconfig, and this is not a pod: requests that are not always allowed are forbidden"
        );
    }
}

#[cfg(test)]
mod tests;

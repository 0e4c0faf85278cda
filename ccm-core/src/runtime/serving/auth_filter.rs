//! Filter that decides who may use which endpoint.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::{StatusCode, request::Parts};
use rustls::pki_types::CertificateDer;

use super::auth::{AllowedPaths, AuthError, AuthRefusal, DelegatedAuth};

/// The client's certificate chain from the TLS handshake, its own certificate first; empty without
/// one. Only possession of the first certificate's key is proven.
#[derive(Clone, Debug, Default)]
pub struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);

/// Decides about requests for paths that are not open to everybody.
#[async_trait]
pub trait RequestAuth: Send + Sync + 'static {
    /// Authenticates and authorizes a request.
    ///
    /// # Errors
    /// The response to send instead.
    async fn check(
        &self,
        peer: &[CertificateDer<'static>],
        parts: &Parts,
    ) -> Result<(), AuthRefusal>;
}

#[async_trait]
impl RequestAuth for DelegatedAuth {
    async fn check(
        &self,
        peer: &[CertificateDer<'static>],
        parts: &Parts,
    ) -> Result<(), AuthRefusal> {
        Self::authenticate_and_authorize(self, peer, parts)
            .await
            .map(drop)
    }
}

/// Admits or rejects requests. Clones share their state.
///
/// Always-allowed paths are served without authentication: a probe must not depend on an API server
/// that reviews its token. No other path is served until [`install`](Self::install) was called.
#[derive(Clone)]
pub struct AuthFilter {
    always_allowed: Arc<AllowedPaths>,
    request_auth: Arc<OnceLock<Arc<dyn RequestAuth>>>,
}

impl AuthFilter {
    /// Creates a filter that admits everybody to these paths (`--authorization-always-allow-paths`)
    /// and nobody to any other path.
    ///
    /// # Errors
    /// The first entry that is not a valid path.
    pub fn new(always_allowed: &[String]) -> Result<Self, AuthError> {
        let paths = AllowedPaths::parse(always_allowed).map_err(|value| AuthError::Flag {
            flag: "authorization-always-allow-paths",
            value,
            reason: "may have a * at its end only".to_owned(),
        })?;
        Ok(Self {
            always_allowed: Arc::new(paths),
            request_auth: Arc::default(),
        })
    }

    /// Installs the authentication for all other paths. Only the first call has an effect.
    pub fn install(&self, guard: Arc<dyn RequestAuth>) {
        if self.request_auth.set(guard).is_err() {
            tracing::error!("requests are guarded already");
        }
    }

    async fn check(&self, peer: &PeerCertificates, parts: &Parts) -> Result<(), AuthRefusal> {
        if self.always_allowed.contains(parts.uri.path()) {
            return Ok(());
        }
        match self.request_auth.get() {
            Some(guard) => guard.check(&peer.0, parts).await,
            None => Err(AuthRefusal {
                status: StatusCode::SERVICE_UNAVAILABLE,
                reason: "callers cannot be authenticated yet".to_owned(),
            }),
        }
    }
}

impl std::fmt::Debug for AuthFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthFilter")
            .field("always_allowed", &self.always_allowed)
            .finish_non_exhaustive()
    }
}

/// Middleware that checks each request before any handler runs.
pub(super) async fn authorize(
    State(auth_filter): State<AuthFilter>,
    request: Request,
    next: Next,
) -> Response {
    let peer = request
        .extensions()
        .get::<PeerCertificates>()
        .cloned()
        .unwrap_or_default();
    let (parts, body) = request.into_parts();
    match auth_filter.check(&peer, &parts).await {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(refusal) => refusal.response().map(Body::from),
    }
}

//! Requests a token from Keystone.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ccm_core::error::chain;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use jiff::Timestamp;
use openstack_api::keystone::SUBJECT_TOKEN;
use tokio::time::Instant;
use url::Url;

use super::{
    RENEW_BEFORE_EXPIRY, ScopedToken, Session, TokenRenewal, catalog, discovery, keystone,
};
use crate::{
    api::keystone::Token,
    client::{
        Call, ErrorCause, OpenStackError, Service, SessionError, body, display_url::display_url,
    },
    config::{Auth, Scope},
};

/// Assumed lifetime of a token whose expiry cannot be parsed.
const DEFAULT_TOKEN_LIFETIME: Duration = Duration::from_secs(600);

impl Session {
    pub(super) async fn request_token(
        &self,
        renewal: &mut TokenRenewal,
    ) -> Result<ScopedToken, SessionError> {
        let auth = self.credentials.read().map_err(SessionError::Credentials)?;
        let base = self.keystone_url(&auth, renewal).await?;
        let mut url = base;
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["auth", "tokens"]);
        }
        let body = serde_json::to_vec(&keystone::request(&auth)).map(Bytes::from);
        let body = body.map_err(|error| unavailable(&url, &error.to_string()))?;
        let secrets = keystone::secrets(&auth);
        let response = self
            .send_unauthenticated(Call::TokenCreate, Method::POST, &url, body, &secrets)
            .await
            .map_err(|error| auth_error(&url, &error))?;
        let token = response.headers().get(SUBJECT_TOKEN).cloned();
        let read = body::unwrap_object::<Token>(response.body(), Call::TokenCreate.key());
        // The parser's message is left out, because it quotes the response.
        let (Some(mut header), Ok(read)) = (token, read) else {
            let message =
                "the answer is no token of Keystone v3 (X-Subject-Token and {\"token\": …})";
            return Err(unavailable(&url, message));
        };
        header.set_sensitive(true);
        renewal.generation += 1;
        Ok(self.build_token(header, &read, renewal.generation))
    }

    fn build_token(&self, token: HeaderValue, read: &Token, generation: u64) -> ScopedToken {
        // The lifetime is computed by Keystone's clock alone, because ours may be wrong.
        let issued = read.issued_at.parse().unwrap_or_else(|_| Timestamp::now());
        let end: Option<Timestamp> = read.expires_at.parse().ok();
        let life = end
            .and_then(|end| Duration::try_from(end.duration_since(issued)).ok())
            .unwrap_or(DEFAULT_TOKEN_LIFETIME);
        let now = Instant::now();
        let endpoints = Service::ALL.map(|service| {
            let found = catalog::find(&read.catalog, service, &self.region, self.interface);
            (service, found.map_err(Arc::new))
        });
        ScopedToken {
            token,
            generation,
            renew_at: now + life.saturating_sub(RENEW_BEFORE_EXPIRY.min(life / 10)),
            expires_at: now + life,
            endpoints: endpoints.into_iter().collect(),
        }
    }

    /// Returns Keystone's URL with its version. If the configured URL has none, it is discovered
    /// once.
    async fn keystone_url(
        &self,
        auth: &Auth,
        renewal: &mut TokenRenewal,
    ) -> Result<Url, SessionError> {
        let (root, version) = catalog::split(&auth.url);
        if version.is_some() {
            return Ok(auth.url.clone());
        }
        if matches!(auth.scope, Scope::Trust(_)) {
            return Ok(catalog::with_version(Service::Identity, &root));
        }
        if let Some((_, found)) = renewal
            .keystone_url
            .as_ref()
            .filter(|(asked, _)| *asked == auth.url)
        {
            return Ok(found.clone());
        }
        let asked = discovery::with_slash(&root);
        let response = self
            .send_unauthenticated(Call::IdentityVersionList, Method::GET, &asked, Bytes::new(), &[])
            .await;
        let response = response.map_err(|error| auth_error(&asked, &error))?;
        let found = discovery::identity(&root, response.body())
            .map_err(|message| unavailable(&asked, &message))?;
        renewal.keystone_url = Some((auth.url.clone(), found.clone()));
        Ok(found)
    }

    /// Sends a request without a token. `secrets` are texts in the body that errors must not show.
    /// Status 300 counts as success, because Keystone lists its versions with it.
    pub(super) async fn send_unauthenticated(
        &self,
        call: Call,
        method: Method,
        url: &Url,
        body: Bytes,
        secrets: &[&str],
    ) -> Result<http::Response<Bytes>, OpenStackError> {
        let target: Arc<str> = format!("{method} {}", display_url(url)).into();
        let mut request = http::Request::builder().method(method).uri(url.as_str());
        request = request.header(header::ACCEPT, "application/json");
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(body);
        let request = request.map_err(|error| {
            OpenStackError::new(call, ErrorCause::Input(error.to_string().into()))
        })?;
        let began = Instant::now();
        let sent = self.transport.send(request).await;
        let good =
            |status: StatusCode| status.is_success() || status == StatusCode::MULTIPLE_CHOICES;
        self.metrics.record_attempt(
            call,
            began,
            !sent.as_ref().is_ok_and(|response| good(response.status())),
        );
        match sent {
            Ok(response) if good(response.status()) => Ok(response),
            Ok(response) => {
                let headers: &HeaderMap = response.headers();
                Err(OpenStackError::from_response(
                    call,
                    &target,
                    response.status(),
                    headers,
                    response.body(),
                    secrets,
                ))
            }
            Err(error) => {
                Err(OpenStackError { call, target, cause: ErrorCause::NoResponse(Arc::new(error)) })
            }
        }
    }
}

/// Converts the error of a request to Keystone.
fn auth_error(url: &Url, error: &OpenStackError) -> SessionError {
    let url: Box<str> = display_url(url).into();
    match &error.cause {
        ErrorCause::Response(answer) if matches!(answer.status.as_u16(), 400 | 401 | 403) => {
            let message =
                format!("{} ({} {})", answer.message, answer.status.as_u16(), answer.kind);
            SessionError::Denied { url, message: message.into() }
        }
        ErrorCause::NoResponse(lost) => {
            SessionError::Unavailable { url, message: chain(lost).into(), retry_after: None }
        }
        ErrorCause::Response(answer) => {
            let message =
                format!("{} ({} {})", answer.message, answer.status.as_u16(), answer.kind);
            SessionError::Unavailable {
                url,
                message: message.into(),
                retry_after: answer.retry_after,
            }
        }
        ErrorCause::UnreliableResponse(doubt) => {
            let message = format!("{} (status {})", doubt.reason, doubt.status.as_u16());
            SessionError::Unavailable {
                url,
                message: message.into(),
                retry_after: doubt.retry_after,
            }
        }
        _ => {
            SessionError::Unavailable { url, message: error.to_string().into(), retry_after: None }
        }
    }
}

fn unavailable(url: &Url, message: &str) -> SessionError {
    SessionError::Unavailable {
        url: display_url(url).into(),
        message: message.into(),
        retry_after: None,
    }
}

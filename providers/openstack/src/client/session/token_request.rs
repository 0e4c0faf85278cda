//! Requests a token from Keystone.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ccm_core::error::chain;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use jiff::Timestamp;
use openstack_api::keystone::{AUTH_TOKEN, SUBJECT_TOKEN};
use tokio::time::Instant;
use url::Url;

use super::{
    RENEW_BEFORE_EXPIRY, ScopedToken, Session, TokenOwner, TokenRenewal, TokenScope, catalog,
    discovery, keystone,
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
        let read = body::unwrap_object::<Token>(response.body(), Call::TokenCreate.key(), None);
        // The parser's message is left out, because it quotes the response.
        let (Some(mut header), Ok(read)) = (token, read) else {
            let message =
                "the answer is no token of Keystone v3 (X-Subject-Token and {\"token\": …})";
            return Err(unavailable(&url, message));
        };
        header.set_sensitive(true);
        check_scope(&url, &read, renewal)?;
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
            scope: token_scope(read),
            is_admin: has_admin_role(read),
            owner: token_owner(read, issued),
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
    pub(super) async fn send_unauthenticated(
        &self,
        call: Call,
        method: Method,
        url: &Url,
        body: Bytes,
        secrets: &[&str],
    ) -> Result<http::Response<Bytes>, OpenStackError> {
        let mut request = http::Request::builder().method(method).uri(url.as_str());
        request = request.header(header::ACCEPT, "application/json");
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        self.send_once(call, url, request.body(body), secrets).await
    }

    /// Reads a version document with a token.
    pub(super) async fn read_with_token(
        &self,
        call: Call,
        url: &Url,
        token: &ScopedToken,
    ) -> Result<http::Response<Bytes>, OpenStackError> {
        let request = http::Request::builder()
            .uri(url.as_str())
            .header(AUTH_TOKEN, token.token())
            .header(header::ACCEPT, "application/json")
            .body(Bytes::new());
        let secrets = [token.token().to_str().unwrap_or_default()];
        self.send_once(call, url, request, &secrets).await
    }

    /// Sends a request once. Status 300 counts as success, because services list their versions
    /// with it.
    async fn send_once(
        &self,
        call: Call,
        url: &Url,
        request: http::Result<http::Request<Bytes>>,
        secrets: &[&str],
    ) -> Result<http::Response<Bytes>, OpenStackError> {
        let request = request.map_err(|error| {
            OpenStackError::new(call, ErrorCause::Input(error.to_string().into()))
        })?;
        let target: Arc<str> = format!("{} {}", request.method(), display_url(url)).into();
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

fn has_admin_role(token: &Token) -> bool {
    token
        .roles
        .iter()
        .any(|role| role.name.eq_ignore_ascii_case("admin"))
}

fn token_owner(token: &Token, issued_at: Timestamp) -> TokenOwner {
    let project = token.project.as_ref();
    let credential = token.application_credential.as_ref();
    let mut roles: Vec<Box<str>> = token
        .roles
        .iter()
        .map(|role| role.name.as_str().into())
        .collect();
    roles.sort();
    TokenOwner {
        user_id: token.user.id.as_str().into(),
        user_name: token.user.name.as_str().into(),
        project_id: project.map(|project| project.id.as_str().into()),
        project_name: project.map(|project| project.name.as_str().into()),
        roles,
        application_credential: credential.map(|credential| credential.id.as_str().into()),
        password_expires_at: token.user.password_expires_at.as_deref().map(Into::into),
        issued_at,
    }
}

fn token_scope(token: &Token) -> TokenScope {
    TokenScope {
        project: token
            .project
            .as_ref()
            .map(|project| project.id.as_str().into()),
        domain: token
            .domain
            .as_ref()
            .map(|domain| domain.id.as_str().into()),
    }
}

/// Checks that a token has the scope of this process's first one. In another project the servers and
/// load balancers of this cluster do not exist, so its answers would look like proof that they were
/// deleted.
fn check_scope(url: &Url, token: &Token, renewal: &mut TokenRenewal) -> Result<(), SessionError> {
    let scope = token_scope(token);
    let first = renewal.first_scope.get_or_insert_with(|| scope.clone());
    if *first == scope {
        return Ok(());
    }
    Err(SessionError::Credentials(
        format!(
            "authentication at {}: the credentials are now good for {scope}, and this process began with those of \
             {first}: restart it if the cluster has moved there",
            display_url(url)
        )
        .into(),
    ))
}

impl std::fmt::Display for TokenScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.project, &self.domain) {
            (Some(project), _) => write!(f, "project {project}"),
            (None, Some(domain)) => write!(f, "domain {domain}"),
            (None, None) => f.write_str("no project"),
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

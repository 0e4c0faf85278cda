//! Sends one request: rate limit, token, answer.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use ccm_core::provider::Op;
use http::{HeaderMap, Method, Response, StatusCode, header};
use openstack_api::keystone::AUTH_TOKEN;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::{sync::SemaphorePermit, time::Instant};
use url::{Url, form_urlencoded};

use super::{
    Call, Client, ErrorCause, ErrorClass, Microversion, OpenStackError, Request, Service,
    body::{self, BadRow, RequiredField, Unwrapped},
    display_url::display_url,
    error::request_id,
    retry,
    rows::{Rows, UnreadableRow},
    session::{ScopedToken, VersionedEndpoint},
};

/// A request with its method and body.
pub(super) struct OutgoingRequest<'a> {
    pub request: &'a Request<'a>,
    pub method: Method,
    pub body: Bytes,
    /// Query that replaces the request's own: of a further page.
    pub page: Option<String>,
}

impl<'a> OutgoingRequest<'a> {
    pub(super) fn new(request: &'a Request<'a>, method: Method, body: Bytes) -> Self {
        Self { request, method, body, page: None }
    }

    fn url(&self, base: &Url) -> Result<Url, OpenStackError> {
        let mut url = self.request.url(base)?;
        if let Some(query) = &self.page {
            url.set_query(Some(query));
        }
        Ok(url)
    }

    fn http(
        &self,
        url: &Url,
        token: &ScopedToken,
        headers: &HeaderMap,
    ) -> Result<http::Request<Bytes>, OpenStackError> {
        let mut http = http::Request::builder()
            .method(self.method.clone())
            .uri(url.as_str());
        http = http
            .header(AUTH_TOKEN, token.token())
            .header(header::ACCEPT, "application/json");
        if !self.body.is_empty() {
            http = http.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(revision) = self.request.revision {
            http = http.header(header::IF_MATCH, format!("revision_number={revision}"));
        }
        for (name, value) in headers {
            http = http.header(name, value);
        }
        http.body(self.body.clone()).map_err(|error| {
            OpenStackError::new(self.request.call, ErrorCause::Input(error.to_string().into()))
        })
    }
}

/// An answer of a service.
#[derive(Debug)]
pub(super) struct ServiceResponse {
    call: Call,
    target: Arc<str>,
    response: Response<Bytes>,
    /// Microversion of the request, if it went to Nova.
    microversion: Option<Microversion>,
    /// Field that each object of the answer must have.
    required: Option<RequiredField>,
}

impl ServiceResponse {
    /// Returns the error if the answer is one. `token`: of the request, to be redacted.
    fn into_result(self, token: &ScopedToken) -> Result<Self, OpenStackError> {
        let status = self.response.status();
        if status.is_success() {
            return Ok(self);
        }
        if status.is_redirection() {
            return Err(self.unreliable("the answer is a redirection, which is not followed: set the service's own address in the catalog"));
        }
        let secrets = [token.token().to_str().unwrap_or_default()];
        Err(OpenStackError::from_response(
            self.call,
            &self.target,
            status,
            self.response.headers(),
            self.response.body(),
            &secrets,
        ))
    }

    /// Parses the object in the envelope.
    ///
    /// # Errors
    /// [`ErrorCause::UnreliableResponse`].
    pub(super) fn object<T: DeserializeOwned>(&self) -> Result<T, OpenStackError> {
        body::unwrap_object(self.response.body(), self.call.key(), self.required)
            .map_err(|error| self.cannot_parse(&error))
    }

    /// Parses the list in the envelope. A row that cannot be parsed is logged.
    ///
    /// # Errors
    /// [`ErrorCause::UnreliableResponse`].
    pub(super) fn list<T: DeserializeOwned>(&self) -> Result<Unwrapped<Rows<T>>, OpenStackError> {
        let list = body::unwrap_list(self.response.body(), self.call.key(), self.required)
            .map_err(|error| self.cannot_parse(&error))?;
        let mut rows = Rows {
            rows: Vec::with_capacity(list.value.len()),
            unreadable: Vec::new(),
        };
        for row in list.value {
            match row {
                Ok(row) => rows.rows.push(row),
                Err(bad) => rows.unreadable.push(self.unreadable(bad)),
            }
        }
        Ok(Unwrapped { value: rows, next: list.next })
    }

    fn unreadable(&self, bad: BadRow) -> UnreadableRow {
        let field = |name: &str| {
            bad.row
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (id, name) = (field("id"), field("name"));
        let reason = format!(
            "the row with the ID {id:?} and the name {name:?} cannot be read: {}",
            bad.error
        );
        let error = self.unreliable(&reason);
        tracing::warn!(request = self.call.name(), id, name, error = %bad.error, "a row of a list cannot be read, what it is about is unknown");
        UnreadableRow { error, row: bad.row }
    }

    fn cannot_parse(&self, error: &serde_json::Error) -> OpenStackError {
        self.unreliable(&format!("the answer cannot be read: {error}"))
    }

    /// Checks an answer whose content does not matter: a proxy's page says nothing about the
    /// request.
    ///
    /// # Errors
    /// [`ErrorCause::UnreliableResponse`].
    pub(super) fn close(&self) -> Result<(), OpenStackError> {
        let body = self.response.body();
        if body.is_empty() || serde_json::from_slice::<IgnoredAny>(body).is_ok() {
            Ok(())
        } else {
            Err(self.unreliable("the answer is not the service's"))
        }
    }

    /// Returns the query of a link to another page. The rest of the link is ignored: behind a proxy
    /// it often has another scheme, host or path, where the token must not be sent. Octavia's links
    /// lack the filters of the list, which are added.
    pub(super) fn page(&self, link: &str, own: &[(&str, &str)]) -> Result<String, OpenStackError> {
        let query = link
            .split('#')
            .next()
            .and_then(|link| link.split_once('?'))
            .map(|(_, query)| query);
        let Some(query) = query.filter(|query| !query.is_empty()) else {
            return Err(self.unreliable("the link to the next page names no page"));
        };
        let named: BTreeSet<_> = form_urlencoded::parse(query.as_bytes())
            .map(|(name, _)| name)
            .collect();
        let missing: Vec<_> = own
            .iter()
            .filter(|(name, _)| !named.contains(*name))
            .collect();
        if missing.is_empty() {
            return Ok(query.to_owned());
        }
        Ok(form_urlencoded::Serializer::new(query.to_owned())
            .extend_pairs(missing)
            .finish())
    }

    pub(super) fn unreliable(&self, reason: &str) -> OpenStackError {
        OpenStackError::unreliable(self.call, &self.target, self.response.status(), reason)
    }

    pub(super) fn request_id(&self) -> Option<Box<str>> {
        request_id(self.response.headers())
    }
}

impl Client {
    /// Waits until the rate limiter admits a request. The request counts as in flight until the
    /// permit is dropped.
    pub(super) async fn acquire(
        &self,
        op: &Op,
        call: Call,
    ) -> Result<Option<SemaphorePermit<'_>>, OpenStackError> {
        let Some(rate_limiters) = &self.rate_limiters else {
            return Ok(None);
        };
        match rate_limiters
            .acquire(op, call.service(), call.class())
            .await
        {
            Ok(permit) => Ok(Some(permit)),
            Err(delay) => Err(OpenStackError::new(call, ErrorCause::RateLimited(delay))),
        }
    }

    /// Sends one attempt when the rate limiter admits it. An error includes when the attempt began.
    pub(super) async fn attempt_when_allowed(
        &self,
        op: &Op,
        out: &OutgoingRequest<'_>,
    ) -> Result<ServiceResponse, (OpenStackError, Instant)> {
        let permit = self
            .acquire(op, out.request.call)
            .await
            .map_err(|error| (error, Instant::now()))?;
        let began = Instant::now();
        let result = self.attempt(out).await.map_err(|error| (error, began));
        drop(permit);
        result
    }

    /// Waits before a request is sent again whose last attempt began at `began`. Returns the error
    /// if a retry does not help.
    pub(super) async fn wait_to_retry(
        &self,
        op: &Op,
        attempts: &mut u32,
        began: Instant,
        error: OpenStackError,
    ) -> Result<(), OpenStackError> {
        *attempts += 1;
        let is_throttled =
            error.class() == ErrorClass::Throttled && error.rate_limit_delay().is_none();
        if is_throttled && let Some(rate_limiters) = &self.rate_limiters {
            rate_limiters.halve_rate(error.call.service(), error.call.class());
        }
        if *attempts >= retry::ATTEMPTS
            || !retry::should_retry(error.call.class(), began.elapsed(), &error)
        {
            return Err(error);
        }
        let delay = retry::delay(*attempts, rand::random(), error.retry_after());
        if !op.sleep(delay).await {
            return Err(error);
        }
        tracing::debug!(request = error.call.name(), attempts, wait = ?delay, %error, "request is sent again");
        Ok(())
    }

    /// Sends a request. If its token is rejected, sends it once more with a new one.
    pub(super) async fn attempt(
        &self,
        out: &OutgoingRequest<'_>,
    ) -> Result<ServiceResponse, OpenStackError> {
        let call = out.request.call;
        let token = self
            .session
            .current()
            .await
            .map_err(|error| OpenStackError { call, ..error })?;
        let first = self.send_supported(out, &token).await?;
        if first.response.status() != StatusCode::UNAUTHORIZED {
            return first.into_result(&token);
        }
        tracing::debug!(request = call.name(), "the token is not accepted");
        let renewed = self
            .session
            .renew_rejected(&token, call.service())
            .await
            .map_err(|error| OpenStackError { call, ..error })?;
        let second = self.send_supported(out, &renewed).await?;
        if second.response.status() == StatusCode::UNAUTHORIZED {
            self.session.record_rejection(call.service());
        }
        second.into_result(&renewed)
    }

    /// Returns the field that each object of an answer must have.
    ///
    /// Without its tags, a load balancer or a listener that others share would seem to be nobody's, and
    /// a change of the tags would remove those of others. An Octavia that has tags shows them, but in an
    /// upgrade an older process of it may answer. A floating IP that does not show its port would seem
    /// to be free, and a member that does not show its subnet would be created again.
    fn required_field(&self, call: Call) -> Option<RequiredField> {
        match call {
            Call::MemberList => Some(RequiredField { name: "subnet_id", may_be_null: true }),
            Call::FloatingIpList => Some(RequiredField { name: "port_id", may_be_null: true }),
            Call::LoadBalancerList
            | Call::LoadBalancerGet
            | Call::LoadBalancerCreate
            | Call::LoadBalancerUpdate
            | Call::ListenerList
            | Call::ListenerCreate
            | Call::ListenerUpdate
            | Call::PoolList
            | Call::PoolCreate
            | Call::PoolUpdate
                if self.session.has_octavia_tags() =>
            {
                Some(RequiredField { name: "tags", may_be_null: false })
            }
            _ => None,
        }
    }

    /// Sends a request. If Nova does not support its microversion, as after a return to an older
    /// release, sends it once more with one that is discovered anew. Nova has not done anything then.
    async fn send_supported(
        &self,
        out: &OutgoingRequest<'_>,
        token: &ScopedToken,
    ) -> Result<ServiceResponse, OpenStackError> {
        let first = self.send(out, token).await?;
        let is_rejected = first.response.status() == StatusCode::NOT_ACCEPTABLE;
        if !is_rejected || out.request.call.service() != Service::Compute {
            return Ok(first);
        }
        tracing::info!("Nova does not support the microversion any more, discovering it again");
        if let Some(rejected) = first.microversion {
            self.session.forget_microversion(rejected);
        }
        self.send(out, token).await
    }

    async fn send(
        &self,
        out: &OutgoingRequest<'_>,
        token: &ScopedToken,
    ) -> Result<ServiceResponse, OpenStackError> {
        let call = out.request.call;
        let VersionedEndpoint { base, headers, microversion } =
            self.session.endpoint_for(call, token).await?;
        let url = out.url(&base)?;
        let target: Arc<str> = format!("{} {}", out.method, display_url(&url)).into();
        let http = out.http(&url, token, &headers)?;
        let began = Instant::now();
        let sent = self.transport.send(http).await;
        let succeeded = sent
            .as_ref()
            .is_ok_and(|response| response.status().as_u16() < 400);
        self.metrics.record_attempt(call, began, !succeeded);
        match sent {
            Ok(response) => {
                let required = self.required_field(call);
                Ok(ServiceResponse { call, target, response, microversion, required })
            }
            Err(error) => {
                Err(OpenStackError { call, target, cause: ErrorCause::NoResponse(Arc::new(error)) })
            }
        }
    }
}

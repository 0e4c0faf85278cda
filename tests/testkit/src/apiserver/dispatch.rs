//! The way of a request: hooks, faults, who may, what it asks for, and the log.

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode, header};
use tower::BoxError;

use super::auth::{Attributes, User};
use super::client::ClientIdentity;
use super::faults::Action;
use super::request::{self, RequestInfo};
use super::respond::{cut, plain, refuse, too_many_requests, whole};
use super::status::ApiError;
use super::{ApiServer, Body, discovery, resources};
use crate::hooks::{Hooks, Operation, Side};

/// A request whose body has been read.
pub(crate) struct Call {
    pub(crate) info: RequestInfo,
    pub(crate) parts: Parts,
    pub(crate) body: Result<Bytes, BoxError>,
    pub(crate) user: User,
    /// Lists are answered as of this version.
    pub(crate) stale: Option<u64>,
    /// Finalizers do not hold what is to be deleted: it had none when that was judged.
    pub(crate) unheld: bool,
}

impl Call {
    pub(crate) fn header(&self, name: &header::HeaderName) -> &str {
        request::text(&self.parts.headers, name)
    }

    /// Returns the body.
    ///
    /// # Errors
    /// 413: it was larger than the server reads.
    pub(crate) fn body(&self) -> Result<&Bytes, ApiError> {
        self.body
            .as_ref()
            .map_err(|_| ApiError::too_large("limit is 3145728"))
    }
}

impl ApiServer {
    /// Answers one request; an error breaks the connection.
    pub(crate) async fn handle(
        &self,
        parts: Parts,
        body: Result<Bytes, BoxError>,
    ) -> Result<Response<Body>, BoxError> {
        let info = RequestInfo::parse(&parts.method, &parts.uri, &parts.headers);
        let mut call = Call {
            info,
            parts,
            body,
            user: User::default(),
            stale: None,
            unheld: false,
        };
        let answer = self.with_hooks(&mut call).await;
        let status = answer.as_ref().ok().map(|r| r.status().as_u16());
        let body = call.body.as_deref().unwrap_or_default();
        self.log().record(
            self.clock().now(),
            call.info.clone(),
            call.user.name.clone(),
            status,
            body,
        );
        answer
    }

    async fn with_hooks(&self, call: &mut Call) -> Result<Response<Body>, BoxError> {
        let mut hooks = self.hooks_for(&call.info);
        if let Some(ClientIdentity::Local { hooks: Some(own), .. }) =
            call.parts.extensions.get::<ClientIdentity>()
        {
            hooks.push(own.clone());
        }
        for hooks in &hooks {
            hooks.alive()?;
        }
        if !call.info.is_write() || hooks.is_empty() {
            return self.with_faults(call).await;
        }
        let operation = operation(&call.info);
        let mut passed: Vec<(Hooks, u64)> = Vec::new();
        for hooks in hooks {
            let number = hooks.before(&operation)?;
            passed.push((hooks, number));
        }
        let answer = self.with_faults(call).await?;
        for (hooks, number) in passed {
            hooks.after(number, &operation)?;
        }
        Ok(answer)
    }

    async fn with_faults(&self, call: &mut Call) -> Result<Response<Body>, BoxError> {
        let mut lose_reply = false;
        for action in self.faults().meet(&call.info) {
            match action {
                Action::Delay(time) => tokio::time::sleep(time).await,
                Action::Error { code, retry_after } => {
                    return Ok(refuse(&ApiError::injected(code, retry_after)));
                }
                Action::TooManyRequests { retry_after } => {
                    return Ok(too_many_requests(retry_after));
                }
                Action::Drop => return Err(cut()),
                Action::DropReply => lose_reply = true,
                Action::StaleRead(version) => call.stale = Some(version),
                Action::LateDelete(time) => {
                    call.unheld = self.has_no_finalizers(&call.info);
                    tokio::time::sleep(time).await;
                }
            }
        }
        let answer = self.answer(call).unwrap_or_else(|error| refuse(&error));
        if lose_reply { Err(cut()) } else { Ok(answer) }
    }

    fn answer(&self, call: &mut Call) -> Result<Response<Body>, ApiError> {
        call.user = self.authenticate(&call.parts)?;
        self.users()
            .authorize(&call.user, &Attributes::of(&call.info))?;
        if call.info.is_resource() {
            self.serve_resource(call)
        } else {
            Ok(Self::serve_path(call))
        }
    }

    fn authenticate(&self, parts: &Parts) -> Result<User, ApiError> {
        let header = request::text(&parts.headers, &header::AUTHORIZATION);
        if let Some((scheme, token)) = header.split_once(' ')
            && scheme.eq_ignore_ascii_case("bearer")
        {
            return self
                .users()
                .authenticate(token.trim(), self.clock().now())
                .ok_or_else(ApiError::unauthorized);
        }
        Ok(match parts.extensions.get::<ClientIdentity>() {
            None => User::admin(),
            Some(ClientIdentity::Local { user, .. }) => user.clone(),
            Some(ClientIdentity::Network) => User::anonymous(),
        })
    }

    fn serve_path(call: &Call) -> Response<Body> {
        let path = call.info.path.as_str();
        if matches!(path, "/healthz" | "/livez" | "/readyz") {
            return plain(StatusCode::OK, "ok");
        }
        let accept = call.header(&header::ACCEPT);
        let accept = (!accept.is_empty()).then_some(accept);
        match discovery::respond(path, accept, resources::all()) {
            Some((code, content_type, body)) => whole(code, content_type, Bytes::from(body)),
            None => nothing_here(),
        }
    }

    fn serve_resource(&self, call: &Call) -> Result<Response<Body>, ApiError> {
        let info = &call.info;
        let Some(def) = info.def else {
            if resources::all().iter().any(|d| d.group == info.group) {
                return Err(ApiError::no_such_path());
            }
            return Ok(nothing_here());
        };
        let verbs = if info.subresource.is_empty() {
            def.verbs
        } else {
            def.subresource(&info.subresource)
                .ok_or_else(ApiError::no_such_path)?
                .verbs
        };
        // The object is named in the path for all but these; a creation names it for its
        // subresource alone.
        let collective = match info.verb.as_str() {
            "list" | "watch" | "deletecollection" => true,
            "create" => info.subresource.is_empty(),
            _ => false,
        };
        let named = !info.name.is_empty();
        if !verbs.contains(&info.verb.as_str()) || (collective == named && info.verb != "watch") {
            return Err(ApiError::method_not_allowed());
        }
        if def.namespaced
            && info.namespace.is_empty()
            && !matches!(info.verb.as_str(), "list" | "watch")
        {
            return Err(if named {
                ApiError::no_such_path()
            } else {
                ApiError::method_not_allowed()
            });
        }
        if !def.namespaced && !info.namespace.is_empty() {
            return Err(ApiError::no_such_path());
        }
        self.serve_verb(def, call)
    }
}

/// Returns the response of the real server's outermost handler for an unknown path.
fn nothing_here() -> Response<Body> {
    plain(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn operation(info: &RequestInfo) -> Operation {
    let object = match (info.namespace.as_str(), info.name.as_str()) {
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    };
    Operation {
        side: Side::Api,
        action: format!("{} {}", info.verb, info.target()),
        object,
    }
}

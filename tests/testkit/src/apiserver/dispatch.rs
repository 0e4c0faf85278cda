//! From a request to its answer.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http::request::Parts;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use serde_json::{Value, json};
use tower::BoxError;

use super::faults::Action;
use super::negotiate::{self, Encoder};
use super::patch::{self, Patch};
use super::request::{self, RequestInfo};
use super::resources::{self, ResourceDef};
use super::status::ApiError;
use super::strategy;
use super::watch::{Watch, WatchSettings};
use super::write::{self, Context, DeleteOptions, Deleted, Written};
use super::{ApiServer, Body, namespaces, read};

/// A request whose body has been read.
struct Call {
    info: RequestInfo,
    parts: Parts,
    body: Bytes,
}

impl ApiServer {
    /// Answers one request; an error breaks the connection.
    pub(crate) async fn handle(&self, parts: Parts, body: Result<Bytes, BoxError>) -> Result<Response<Body>, BoxError> {
        let info = RequestInfo::parse(&parts.method, &parts.uri, &parts.headers);
        let mut stale = None;
        let mut lose_reply = false;
        for action in self.faults().meet(&info) {
            match action {
                Action::Delay(time) => tokio::time::sleep(time).await,
                Action::Error { code, retry_after } => return Ok(refuse(&ApiError::injected(code, retry_after))),
                Action::TooManyRequests { retry_after } => return Ok(too_many_requests(retry_after)),
                Action::Drop => return Err(cut()),
                Action::DropReply => lose_reply = true,
                Action::StaleRead(version) => stale = Some(version),
            }
        }
        let Ok(body) = body else { return Ok(refuse(&ApiError::too_large("limit is 3145728"))) };
        let answer = self.answer(&Call { info, parts, body }, stale).unwrap_or_else(|error| refuse(&error));
        if lose_reply { Err(cut()) } else { Ok(answer) }
    }

    fn answer(&self, call: &Call, stale: Option<u64>) -> Result<Response<Body>, ApiError> {
        let info = &call.info;
        if !info.is_resource() {
            return match info.path.as_str() {
                "/healthz" | "/livez" | "/readyz" => Ok(plain(StatusCode::OK, "ok")),
                _ => Err(ApiError::no_such_path()),
            };
        }
        let def = info.def.ok_or_else(ApiError::no_such_path)?;
        let verbs = if info.subresource.is_empty() {
            def.verbs
        } else {
            def.subresource(&info.subresource).ok_or_else(ApiError::no_such_path)?.verbs
        };
        if !verbs.contains(&info.verb.as_str()) {
            return Err(ApiError::method_not_allowed());
        }
        let encoder = Encoder::new(def, negotiate::choose(request::text(&call.parts.headers, &header::ACCEPT))?);
        match info.verb.as_str() {
            "get" => self.get(def, info, &encoder),
            "list" => Ok(json(StatusCode::OK, encoder.list(&read::list(self.store(), def, info, stale)?))),
            "watch" => self.watch(def, info, encoder),
            "create" => self.create(def, call, &encoder),
            "update" => self.update(def, call, &encoder),
            "patch" => self.patch(def, call, &encoder),
            "delete" => self.delete(def, call, &encoder),
            "deletecollection" => self.delete_collection(def, call, &encoder),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    fn context<'a>(&'a self, def: &'static ResourceDef, info: &'a RequestInfo) -> Context<'a> {
        Context {
            def,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            dry_run: info.dry_run(),
            clock: self.clock(),
        }
    }

    fn get(
        &self,
        def: &'static ResourceDef,
        info: &RequestInfo,
        encoder: &Encoder,
    ) -> Result<Response<Body>, ApiError> {
        let object = self.store().get(def.storage_key(), &info.namespace, &info.name);
        let object = object.ok_or_else(|| ApiError::not_found(def, &info.name))?;
        Ok(json(StatusCode::OK, encoder.object(&object)))
    }

    fn watch(
        &self,
        def: &'static ResourceDef,
        info: &RequestInfo,
        encoder: Encoder,
    ) -> Result<Response<Body>, ApiError> {
        let options = &self.shared.options;
        let settings = WatchSettings {
            bookmark_period: options.bookmark_period,
            default_timeout: options.watch_timeout,
            streaming_lists: options.streaming_lists,
        };
        let store = Arc::clone(&self.shared.store);
        let watch = Watch::open(store, def, info, encoder, settings, self.faults().watches())?;
        let frames = stream::unfold(watch, |mut watch| async move {
            let next = watch.next().await?;
            Some((next.map(Frame::data), watch))
        });
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        Ok(response)
    }

    fn create(&self, def: &'static ResourceDef, call: &Call, encoder: &Encoder) -> Result<Response<Body>, ApiError> {
        let object = body_object(call)?;
        let cx = self.context(def, &call.info);
        let created = self.store().write(|tx| write::create(tx, cx, object))?;
        Ok(json(StatusCode::CREATED, encoder.object(&created)))
    }

    fn update(&self, def: &'static ResourceDef, call: &Call, encoder: &Encoder) -> Result<Response<Body>, ApiError> {
        let object = body_object(call)?;
        let cx = self.context(def, &call.info);
        let written = self.store().write(|tx| write::update(tx, cx, object))?;
        Ok(written_answer(&written, encoder))
    }

    fn patch(&self, def: &'static ResourceDef, call: &Call, encoder: &Encoder) -> Result<Response<Body>, ApiError> {
        let parsed = Patch::parse(request::text(&call.parts.headers, &header::CONTENT_TYPE), &call.body)?;
        let cx = self.context(def, &call.info);
        let written = self.store().write(|tx| patch::patch(tx, cx, &parsed))?;
        Ok(written_answer(&written, encoder))
    }

    fn delete(&self, def: &'static ResourceDef, call: &Call, encoder: &Encoder) -> Result<Response<Body>, ApiError> {
        let (options, dry_run) = delete_options(call)?;
        let cx = Context { dry_run, ..self.context(def, &call.info) };
        let deleted = self.store().write(|tx| write::delete(tx, cx, &options))?;
        Ok(match deleted {
            Deleted::Marked(object) => json(StatusCode::OK, encoder.object(&object)),
            Deleted::Gone(object) if strategy::returns_deleted(def) => json(StatusCode::OK, encoder.object(&object)),
            Deleted::Gone(object) => json(StatusCode::OK, success(def, &object.name, &object.uid)),
        })
    }

    fn delete_collection(
        &self,
        def: &'static ResourceDef,
        call: &Call,
        encoder: &Encoder,
    ) -> Result<Response<Body>, ApiError> {
        let (options, dry_run) = delete_options(call)?;
        let page = read::list(self.store(), def, &call.info, None)?;
        self.store().write(|tx| {
            for object in &page.objects {
                let base = self.context(def, &call.info);
                let cx = Context { namespace: &object.namespace, name: &object.name, dry_run, ..base };
                match write::delete(tx, cx, &options) {
                    // Gone in between is as good as deleted.
                    Ok(_) => {}
                    Err(error) if error.code == StatusCode::NOT_FOUND => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })?;
        Ok(json(StatusCode::OK, encoder.list(&page)))
    }

    pub(super) fn create_initial_objects(&self) {
        let Some(def) = resources::find("", "v1", "namespaces") else { return };
        let info = RequestInfo::default();
        for name in namespaces::INITIAL {
            let cx = self.context(def, &info);
            let object = json!({"metadata": {"name": name}});
            // A namespace cannot be refused by an empty store.
            let _ = self.store().write(|tx| write::create(tx, cx, object));
        }
    }
}

fn written_answer(written: &Written, encoder: &Encoder) -> Response<Body> {
    let code = if matches!(written, Written::Created(_)) { StatusCode::CREATED } else { StatusCode::OK };
    json(code, encoder.object(written.object()))
}

fn body_object(call: &Call) -> Result<Value, ApiError> {
    let content_type = request::text(&call.parts.headers, &header::CONTENT_TYPE);
    let media = content_type.split(';').next().unwrap_or_default().trim();
    if !["", "application/json", "*/*"].contains(&media) {
        return Err(ApiError::unsupported_media_type("application/json"));
    }
    serde_json::from_slice(&call.body)
        .map_err(|e| ApiError::bad_request(format!("couldn't get version/kind; json parse error: {e}")))
}

fn delete_options(call: &Call) -> Result<(DeleteOptions, bool), ApiError> {
    let mut options = DeleteOptions::default();
    let mut dry_run = call.info.dry_run();
    if !call.body.is_empty() {
        let body = body_object(call)?;
        let text = |v: &Value| v.as_str().map(str::to_owned);
        options.uid = text(&body["preconditions"]["uid"]);
        options.resource_version = text(&body["preconditions"]["resourceVersion"]);
        dry_run |= body["dryRun"].as_array().is_some_and(|d| d.iter().any(|v| v == "All"));
    }
    Ok((options, dry_run))
}

fn success(def: &ResourceDef, name: &str, uid: &str) -> Bytes {
    let mut details = json!({"name": name, "kind": def.plural, "uid": uid});
    if !def.group.is_empty() {
        details["group"] = json!(def.group);
    }
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    Bytes::from(status.to_string())
}

fn json(code: StatusCode, body: Bytes) -> Response<Body> {
    respond(code, "application/json", body)
}

fn plain(code: StatusCode, text: &'static str) -> Response<Body> {
    respond(code, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn respond(code: StatusCode, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}

fn refuse(error: &ApiError) -> Response<Body> {
    let mut response = json(error.code, Bytes::from(error.to_value().to_string()));
    if let Some(seconds) = error.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from(seconds));
    }
    response
}

fn too_many_requests(retry_after: u32) -> Response<Body> {
    let mut response = plain(StatusCode::TOO_MANY_REQUESTS, "Too many requests, please try again later.\n");
    response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from(retry_after));
    response
}

fn cut() -> BoxError {
    "connection cut by a scripted fault".into()
}

//! What each verb does with a resource.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::{Value, json};

use super::dispatch::Call;
use super::negotiate::{self, Encoder};
use super::patch::{self, Patch};
use super::protobuf;
use super::request::RequestInfo;
use super::resources::{self, ResourceDef};
use super::respond::json;
use super::schema;
use super::status::{ApiError, FieldError};
use super::strategy;
use super::watch::{Watch, WatchSettings};
use super::write::{self, Context, DeleteOptions, DeleteOutcome, WriteOutcome};
use super::{ApiServer, Body, convert, namespaces, read, reviews, validation};

type VerbResult = Result<Response<Body>, ApiError>;

impl ApiServer {
    pub(crate) fn serve_verb(&self, def: &'static ResourceDef, call: &Call) -> VerbResult {
        check_dry_run(&call.info)?;
        let form = negotiate::choose(call.header(&header::ACCEPT), &call.info)?;
        let mut encoder = Encoder::new(def, form, self.clock().clone());
        let info = &call.info;
        match info.verb.as_str() {
            "get" => self.get(def, info, &mut encoder),
            "list" => Ok(json(
                StatusCode::OK,
                encoder.list(&read::list(self.store(), def, info, call.stale)?),
            )),
            "watch" => self.watch(def, info, encoder),
            "create" if !def.is_stored() => {
                let answer = reviews::review(self, def, &call.user, body_object(def, call)?)?;
                Ok(json(StatusCode::CREATED, Bytes::from(answer.to_string())))
            }
            "create" if info.subresource == "token" => {
                let answer = reviews::issue_token(self, def, info, parse_body(call)?)?;
                Ok(json(StatusCode::CREATED, Bytes::from(answer.to_string())))
            }
            "create" => self.create(def, call, &mut encoder),
            "update" => self.update(def, call, &mut encoder),
            "patch" => self.patch(def, call, &mut encoder),
            "delete" => self.delete(def, call, &mut encoder),
            "deletecollection" => self.delete_collection(def, call, &mut encoder),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    fn context<'a>(&'a self, def: &'static ResourceDef, info: &'a RequestInfo) -> Context<'a> {
        Context {
            def: convert::storage(def),
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            dry_run: info.dry_run(),
            clock: self.clock(),
            taint_new_nodes: self.shared.options.taint_new_nodes,
        }
    }

    fn get(
        &self,
        def: &'static ResourceDef,
        info: &RequestInfo,
        encoder: &mut Encoder,
    ) -> VerbResult {
        if let Some(version) = read::version(info)? {
            read::check_not_ahead(self.store(), version)?;
        }
        let object = self
            .store()
            .get(def.storage_key(), &info.namespace, &info.name);
        let object = object.ok_or_else(|| ApiError::not_found(def, &info.name))?;
        Ok(json(StatusCode::OK, encoder.object(&object)))
    }

    fn watch(&self, def: &'static ResourceDef, info: &RequestInfo, encoder: Encoder) -> VerbResult {
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
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(response)
    }

    fn create(&self, def: &'static ResourceDef, call: &Call, encoder: &mut Encoder) -> VerbResult {
        let object = body_object(def, call)?;
        check_unconverted(def, &call.info, &object)?;
        let object = convert::incoming(def, object);
        let ctx = self.context(def, &call.info);
        let created = self.store().write(|tx| write::create(tx, ctx, object))?;
        Ok(json(StatusCode::CREATED, encoder.object(&created)))
    }

    fn update(&self, def: &'static ResourceDef, call: &Call, encoder: &mut Encoder) -> VerbResult {
        let object = convert::incoming(def, body_object(def, call)?);
        let ctx = self.context(def, &call.info);
        let written = self.store().write(|tx| write::update(tx, ctx, object))?;
        Ok(written_answer(&written, encoder))
    }

    fn patch(&self, def: &'static ResourceDef, call: &Call, encoder: &mut Encoder) -> VerbResult {
        let parsed = Patch::parse(call.header(&header::CONTENT_TYPE), call.body()?)?;
        let ctx = self.context(def, &call.info);
        let strict = call.info.query("fieldValidation") == Some("Strict");
        let written = self
            .store()
            .write(|tx| patch::patch(tx, ctx, def, &parsed, strict))?;
        Ok(written_answer(&written, encoder))
    }

    fn delete(&self, def: &'static ResourceDef, call: &Call, encoder: &mut Encoder) -> VerbResult {
        let (options, dry_run) = delete_options(call)?;
        let options = DeleteOptions { unheld: call.unheld, ..options };
        let ctx = Context { dry_run, ..self.context(def, &call.info) };
        let deleted = self.store().write(|tx| write::delete(tx, ctx, &options))?;
        Ok(match deleted {
            DeleteOutcome::Marked(object) => json(StatusCode::OK, encoder.object(&object)),
            DeleteOutcome::Gone(object) if strategy::returns_deleted(def) => {
                json(StatusCode::OK, encoder.object(&object))
            }
            DeleteOutcome::Gone(object) => {
                json(StatusCode::OK, success(def, &object.name, &object.uid))
            }
        })
    }

    /// Returns true if an object is there that no finalizer holds.
    pub(super) fn has_no_finalizers(&self, info: &RequestInfo) -> bool {
        let Some(def) = info.def else { return false };
        let object =
            self.store()
                .get(convert::storage(def).storage_key(), &info.namespace, &info.name);
        object.is_some_and(|object| write::has_no_finalizers(def, &object.value()))
    }

    fn delete_collection(
        &self,
        def: &'static ResourceDef,
        call: &Call,
        encoder: &mut Encoder,
    ) -> VerbResult {
        let (options, dry_run) = delete_options(call)?;
        let page = read::list(self.store(), def, &call.info, None)?;
        self.store().write(|tx| {
            for object in &page.objects {
                let base = self.context(def, &call.info);
                let ctx = Context {
                    namespace: &object.namespace,
                    name: &object.name,
                    dry_run,
                    ..base
                };
                match write::delete(tx, ctx, &options) {
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
        for name in namespaces::INITIAL {
            // A namespace cannot be refused by an empty store.
            let _ = self.seed(
                &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            );
        }
        self.create_kubernetes_service();
    }

    /// Creates the service through which pods reach the API, which every cluster has.
    pub(super) fn create_kubernetes_service(&self) {
        let Some(ip) = self
            .shared
            .options
            .service_ranges
            .first()
            .and_then(|r| r.hosts().next())
        else {
            return;
        };
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {"clusterIP": ip.to_string(),
                "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
        });
        // The first address of the range is free in an empty store.
        let _ = self.seed(&service);
    }

    /// Creates an object without request, log, hooks or faults: the state a test starts from.
    /// Unlike a creation over the API it keeps the status given, and finalizers and labels as they
    /// are.
    ///
    /// # Errors
    /// 404 for an unknown kind, else as a creation.
    pub fn seed(&self, object: &Value) -> Result<Value, ApiError> {
        let part = |key: &str| object[key].as_str().unwrap_or_default();
        let version = part("apiVersion");
        let known = resources::all()
            .iter()
            .find(|d| d.kind == part("kind") && d.api_version() == version);
        let def = known
            .filter(|d| d.is_stored())
            .ok_or_else(ApiError::no_such_path)?;
        let namespace = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => namespace,
            None if def.namespaced => "default",
            None => "",
        };
        let info = RequestInfo { namespace: namespace.to_owned(), ..RequestInfo::default() };
        let ctx = self.context(def, &info);
        let stored = convert::incoming(def, object.clone());
        let status = stored.get("status").cloned();
        let created = self.store().write(|tx| {
            let created = write::create(tx, ctx, stored)?;
            let Some(status) = status else {
                return Ok(created);
            };
            let mut object = created.value();
            object["status"] = status;
            let ctx = Context { subresource: "status", name: &created.name, ..ctx };
            Ok(write::replace(tx, ctx, &created, object)?.object().clone())
        })?;
        Ok(convert::outgoing(def, created.value()))
    }
}

/// Rules of a form under which objects are not stored: the newer events are stricter than the
/// older.
fn check_unconverted(
    def: &ResourceDef,
    info: &RequestInfo,
    object: &Value,
) -> Result<(), ApiError> {
    let metadata = &object["metadata"];
    let name = metadata["name"]
        .as_str()
        .or(metadata["generateName"].as_str())
        .unwrap_or_default();
    if !convert::is_converted(def) || name.is_empty() {
        return Ok(());
    }
    let mut object = object.clone();
    // Not yet filled in from the path, nor generated.
    object["metadata"]["namespace"] = json!(info.namespace);
    object["metadata"]["name"] = json!(name.trim_end_matches('-'));
    let errors = strategy::errors(validation::validate_create(def, &object));
    // The real server reports them under the group of the stored form.
    let group = def.storage_key().0;
    if errors.is_empty() {
        Ok(())
    } else {
        Err(ApiError::invalid(group, def.kind, name, &errors))
    }
}

fn written_answer(written: &WriteOutcome, encoder: &mut Encoder) -> Response<Body> {
    let code = if matches!(written, WriteOutcome::Created(_)) {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    json(code, encoder.object(written.object()))
}

fn parse_body(call: &Call) -> Result<Value, ApiError> {
    let media = call
        .header(&header::CONTENT_TYPE)
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if media == protobuf::MEDIA_TYPE {
        return protobuf::decode(call.body()?).map_err(|e| ApiError::bad_request(e.to_string()));
    }
    if !["", "application/json", "*/*"].contains(&media) {
        // Other types the real server lists are not read here, so they are not promised.
        return Err(ApiError::unsupported_media_type(&format!(
            "application/json, {}",
            protobuf::MEDIA_TYPE
        )));
    }
    serde_json::from_slice(call.body()?).map_err(|e| {
        let kind = call.info.def.map_or("", |d| d.kind);
        let head = format!("the object provided is unrecognized (must be of type {kind}): ");
        ApiError::bad_request(format!("{head}couldn't get version/kind; json parse error: {e}"))
    })
}

/// Returns the body as an object of the kind, its types checked as decoding would.
fn body_object(def: &'static ResourceDef, call: &Call) -> Result<Value, ApiError> {
    let object = parse_body(call)?;
    let checked = schema::check(def, &object);
    if let Some(error) = checked.type_error {
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: {error}",
            def.version,
            kind = def.kind
        )));
    }
    if call.info.query("fieldValidation") == Some("Strict") && !checked.unknown_fields.is_empty() {
        let head = format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: ",
            def.version,
            kind = def.kind
        );
        return Err(ApiError::bad_request(head + &strict_error(&checked.unknown_fields)));
    }
    Ok(object)
}

/// Returns the error of strict decoding for unknown fields.
pub(crate) fn strict_error(unknown: &[String]) -> String {
    let fields: Vec<String> = unknown
        .iter()
        .map(|f| format!("unknown field \"{f}\""))
        .collect();
    format!("strict decoding error: {}", fields.join(", "))
}

fn delete_options(call: &Call) -> Result<(DeleteOptions, bool), ApiError> {
    let mut options = DeleteOptions::default();
    let mut dry_run = call.info.dry_run();
    if !call.body()?.is_empty() {
        let body = parse_body(call)?;
        let text = |v: &Value| v.as_str().map(str::to_owned);
        options.uid = text(&body["preconditions"]["uid"]);
        options.resource_version = text(&body["preconditions"]["resourceVersion"]);
        check_propagation(&body)?;
        dry_run |= body["dryRun"]
            .as_array()
            .is_some_and(|d| d.iter().any(|v| v == "All"));
    }
    Ok((options, dry_run))
}

/// Checks the dry run parameter. Only `All` is valid.
fn check_dry_run(info: &RequestInfo) -> Result<(), ApiError> {
    let Some(asked) = info.query("dryRun").filter(|d| *d != "All") else {
        return Ok(());
    };
    let kind = match info.verb.as_str() {
        "create" => "CreateOptions",
        "update" => "UpdateOptions",
        "patch" => "PatchOptions",
        "delete" | "deletecollection" => "DeleteOptions",
        _ => return Ok(()),
    };
    let error = FieldError {
        reason: "FieldValueNotSupported".into(),
        message: format!("Unsupported value: [\"{asked}\"]: supported values: \"All\""),
        field: "dryRun".into(),
    };
    Err(ApiError::invalid("meta.k8s.io", kind, "", &[error]))
}

fn check_propagation(options: &Value) -> Result<(), ApiError> {
    let policy = options["propagationPolicy"]
        .as_str()
        .unwrap_or("Background");
    if ["Foreground", "Background", "Orphan"].contains(&policy) {
        return Ok(());
    }
    let supported = "supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"";
    let error = FieldError {
        reason: "FieldValueNotSupported".into(),
        message: format!("Unsupported value: \"{policy}\": {supported}"),
        field: "propagationPolicy".into(),
    };
    Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &[error]))
}

fn success(def: &ResourceDef, name: &str, uid: &str) -> Bytes {
    let mut details = json!({"name": name, "kind": def.plural, "uid": uid});
    if !def.group.is_empty() {
        details["group"] = json!(def.group);
    }
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    Bytes::from(status.to_string())
}

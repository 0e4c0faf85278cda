//! Create, update, delete: what the generic registry of the real server does around the rules of
//! each kind.
//!
//! Order of checks and which field survives follow `k8s.io/apiserver/pkg/registry/rest` and
//! `.../generic/registry/store.go` 1.36.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::clock::{Clock, seconds};
use super::object::Object;
use super::resources::ResourceDef;
use super::status::{ApiError, FieldError};
use super::store::Transaction;
use super::strategy;
use super::validation;

/// Context of a write besides the objects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub def: &'static ResourceDef,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub dry_run: bool,
    pub clock: &'a Clock,
    /// True if new nodes get the not-ready taint.
    pub taint_new_nodes: bool,
}

/// Outcome of an update or create.
#[derive(Debug)]
pub(crate) enum WriteOutcome {
    /// The object is new.
    Created(Arc<Object>),
    /// The object was changed, or already was as asked.
    Updated(Arc<Object>),
    /// The last finalizer went, and the object with it; its last state.
    Removed(Arc<Object>),
}

impl WriteOutcome {
    pub(crate) fn object(&self) -> &Arc<Object> {
        match self {
            Self::Created(o) | Self::Updated(o) | Self::Removed(o) => o,
        }
    }
}

impl Context<'_> {
    fn invalid(&self, name: &str, errors: &[FieldError]) -> ApiError {
        ApiError::invalid(self.def.group, self.def.kind, name, errors)
    }

    fn store(&self, tx: &mut Transaction<'_>, value: Value) -> Arc<Object> {
        if self.dry_run {
            Arc::new(Object::unwritten(self.def, value))
        } else {
            tx.put(self.def, value)
        }
    }
}

/// Creates `object`.
///
/// # Errors
/// As the real server: 400, 403, 404 (namespace), 409, 422, 500.
pub(crate) fn create(
    tx: &mut Transaction<'_>,
    ctx: Context<'_>,
    mut object: Value,
) -> Result<Arc<Object>, ApiError> {
    check_type(ctx.def, &mut object)?;
    ensure_namespace(ctx, &mut object)?;
    if !text(&object, "resourceVersion").is_empty() {
        return Err(ApiError::unclassified(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    prepare_metadata(ctx, &mut object);
    let name = choose_name(tx, ctx, &mut object)?;
    if ctx.def.namespaced {
        check_namespace(tx, ctx, &name)?;
    }
    strategy::prepare_create(ctx.def, &mut object);
    if ctx.taint_new_nodes {
        strategy::taint_new_node(ctx.def, &mut object);
    }
    // Addresses and ports come before validation, which wants them; what is refused later has
    // claimed nothing yet.
    strategy::allocate(tx, ctx.def, None, &mut object)
        .map_err(|errors| ctx.invalid(&name, &errors))?;
    let errors = strategy::errors(validation::validate_create(ctx.def, &object));
    if !errors.is_empty() {
        return Err(ctx.invalid(&name, &errors));
    }
    if tx
        .get(ctx.def.storage_key(), ctx.namespace, &name)
        .is_some()
    {
        return Err(ApiError::already_exists(ctx.def, &name));
    }
    Ok(ctx.store(tx, object))
}

/// Replaces the object, or its status, by `object`.
///
/// # Errors
/// As the real server: 400, 404, 409, 422.
pub(crate) fn update(
    tx: &mut Transaction<'_>,
    ctx: Context<'_>,
    mut object: Value,
) -> Result<WriteOutcome, ApiError> {
    check_type(ctx.def, &mut object)?;
    ensure_namespace(ctx, &mut object)?;
    let name = text(&object, "name").to_owned();
    if name.is_empty() {
        let message = format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            ctx.name
        );
        return Err(ApiError::bad_request(message));
    }
    if name != ctx.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            ctx.name
        )));
    }
    match tx.get(ctx.def.storage_key(), ctx.namespace, ctx.name) {
        Some(old) => replace(tx, ctx, &old, object),
        None if strategy::create_on_update(ctx.def) && ctx.subresource.is_empty() => {
            object["metadata"]["resourceVersion"] = json!("");
            create(tx, ctx, object).map(WriteOutcome::Created)
        }
        None => Err(ApiError::not_found(ctx.def, ctx.name)),
    }
}

/// Puts `object` in the place of `old`: the common end of update and patch.
///
/// # Errors
/// 409 for another version or incarnation, 422 for what validation refuses.
pub(crate) fn replace(
    tx: &mut Transaction<'_>,
    ctx: Context<'_>,
    old: &Arc<Object>,
    mut object: Value,
) -> Result<WriteOutcome, ApiError> {
    let before = old.value();
    check_incarnation(ctx, old, &object)?;
    carry_metadata(&before, &mut object);
    strategy::prepare_update(ctx.def, ctx.subresource, &before, &mut object);
    object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    strategy::allocate(tx, ctx.def, Some(&before), &mut object)
        .map_err(|errors| ctx.invalid(ctx.name, &errors))?;
    let errors = strategy::errors(validation::validate_update(ctx.def, &before, &object));
    if !errors.is_empty() {
        return Err(ctx.invalid(ctx.name, &errors));
    }
    tidy_metadata(&mut object);
    if is_deleting(&object) && has_no_finalizers(ctx.def, &object) {
        return Ok(WriteOutcome::Removed(remove(tx, ctx, old, object)));
    }
    if object == before {
        // The real server writes nothing when nothing changes: no new version, no watch event.
        return Ok(WriteOutcome::Updated(old.clone()));
    }
    Ok(WriteOutcome::Updated(ctx.store(tx, object)))
}

/// Options of a DELETE, from its body or query.
#[derive(Debug, Default, Clone)]
pub(crate) struct DeleteOptions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    /// Finalizers do not hold it: it had none when that was judged.
    pub unheld: bool,
}

/// Outcome of a delete.
#[derive(Debug)]
pub(crate) enum DeleteOutcome {
    /// It is gone; its last state.
    Gone(Arc<Object>),
    /// It waits for its finalizers.
    Marked(Arc<Object>),
}

/// Deletes an object, or marks it when it has finalizers.
///
/// # Errors
/// 404, or 409 when a precondition fails.
pub(crate) fn delete(
    tx: &mut Transaction<'_>,
    ctx: Context<'_>,
    options: &DeleteOptions,
) -> Result<DeleteOutcome, ApiError> {
    let Some(old) = tx.get(ctx.def.storage_key(), ctx.namespace, ctx.name) else {
        return Err(ApiError::not_found(ctx.def, ctx.name));
    };
    check_preconditions(ctx, &old, options)?;
    let mut object = old.value();
    if ctx.def.plural == "namespaces" {
        return super::namespaces::delete(tx, ctx, &old);
    }
    if options.unheld || has_no_finalizers(ctx.def, &object) {
        return Ok(DeleteOutcome::Gone(remove(tx, ctx, &old, object)));
    }
    if is_deleting(&object) {
        return Ok(DeleteOutcome::Marked(old));
    }
    mark_deleted(&mut object, ctx.clock);
    Ok(DeleteOutcome::Marked(ctx.store(tx, object)))
}

/// Sets the deletion time stamp, as the first step of every delayed deletion.
pub(crate) fn mark_deleted(object: &mut Value, clock: &Clock) {
    object["metadata"]["deletionTimestamp"] = json!(clock.stamp());
    object["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    if let Some(generation) = object["metadata"]["generation"].as_u64() {
        object["metadata"]["generation"] = json!(generation + 1);
    }
}

fn remove(
    tx: &mut Transaction<'_>,
    ctx: Context<'_>,
    old: &Arc<Object>,
    last: Value,
) -> Arc<Object> {
    if ctx.dry_run {
        return old.clone();
    }
    let removed = tx.remove(ctx.def, old, last);
    super::namespaces::finish_if_empty(tx, &old.namespace);
    removed
}

fn check_preconditions(
    ctx: Context<'_>,
    old: &Object,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let kind = if ctx.def.group.is_empty() {
        ctx.def.kind.to_owned()
    } else {
        format!("{}.{}", ctx.def.kind, ctx.def.group)
    };
    // The real server names the kind where other conflicts name the resource.
    let conflict = |message: String| {
        ApiError::conflict_because(&kind, ctx.def.group, ctx.def.kind, ctx.name, &message)
    };
    if let Some(uid) = options.uid.as_ref().filter(|u| **u != old.uid) {
        return Err(conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            old.uid
        )));
    }
    if let Some(version) = options
        .resource_version
        .as_ref()
        .filter(|v| **v != old.version.to_string())
    {
        return Err(conflict(format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
            old.version
        )));
    }
    Ok(())
}

fn check_incarnation(ctx: Context<'_>, old: &Object, object: &Value) -> Result<(), ApiError> {
    let version = text(object, "resourceVersion");
    if version.is_empty() || version == "0" {
        if !strategy::unconditional_update(ctx.def) {
            let error = FieldError::invalid(
                "metadata.resourceVersion",
                "0",
                "must be specified for an update",
            );
            // Here the real server gives the resource where the kind belongs.
            return Err(ApiError::invalid(ctx.def.group, ctx.def.plural, ctx.name, &[error]));
        }
    } else if version.parse() != Ok(old.version) {
        if version.parse::<u64>().is_err() {
            let message = format!("strconv.ParseUint: parsing \"{version}\": invalid syntax");
            return Err(ApiError::unclassified(&message));
        }
        return Err(ApiError::conflict(ctx.def, ctx.name));
    }
    let uid = text(object, "uid");
    if !uid.is_empty() && uid != old.uid {
        let message = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{}/{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            ctx.def.plural, ctx.name, old.uid
        );
        let qualified = ctx.def.qualified_name();
        return Err(ApiError::conflict_because(
            &qualified,
            ctx.def.group,
            ctx.def.plural,
            ctx.name,
            &message,
        ));
    }
    Ok(())
}

/// Fields of metadata a client cannot change.
fn carry_metadata(before: &Value, object: &mut Value) {
    for field in [
        "uid",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
    ] {
        let kept = &before["metadata"][field];
        if let Some(metadata) = object["metadata"].as_object_mut() {
            if kept.is_null() {
                metadata.remove(field);
            } else {
                metadata.insert(field.into(), kept.clone());
            }
        }
    }
    tidy_metadata(object);
}

/// Drops what the typed object of the real server would omit.
fn tidy_metadata(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.retain(|_, v| {
            !(v.is_null()
                || v.as_str() == Some("")
                || v.as_object().is_some_and(Map::is_empty)
                || v.as_array().is_some_and(Vec::is_empty))
        });
    }
}

fn prepare_metadata(ctx: Context<'_>, object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in [
            "resourceVersion",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "generation",
        ] {
            metadata.remove(field);
        }
        metadata.insert("uid".into(), json!(uuid::Uuid::new_v4().to_string()));
        metadata.insert("creationTimestamp".into(), json!(seconds(ctx.clock.now())));
    }
    tidy_metadata(object);
}

fn choose_name(
    tx: &Transaction<'_>,
    ctx: Context<'_>,
    object: &mut Value,
) -> Result<String, ApiError> {
    let name = text(object, "name").to_owned();
    if !name.is_empty() {
        return Ok(name);
    }
    let base = text(object, "generateName").to_owned();
    if base.is_empty() {
        let error = FieldError::required("metadata.name", "name or generateName is required");
        return Err(ctx.invalid("", &[error]));
    }
    // Names are at most 63 characters after generation; the suffix takes five.
    let base: String = base.chars().take(58).collect();
    let taken = |name: &str| tx.get(ctx.def.storage_key(), ctx.namespace, name).is_some();
    let name = (0..8)
        .map(|_| format!("{base}{}", random_suffix()))
        .find(|n| !taken(n));
    let name = name.ok_or_else(|| ApiError::already_exists(ctx.def, &base))?;
    object["metadata"]["name"] = json!(name);
    Ok(name)
}

fn random_suffix() -> String {
    // The real server's alphabet: no vowels, so that no words appear, and no look-alikes.
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    (0..5)
        .map(|_| char::from(ALPHABET[rand::random_range(0..ALPHABET.len())]))
        .collect()
}

fn check_type(def: &ResourceDef, object: &mut Value) -> Result<(), ApiError> {
    let Some(map) = object.as_object_mut() else {
        return Err(ApiError::bad_request(
            "couldn't get version/kind; json parse error: the body is not an object",
        ));
    };
    let given = |key: &str| {
        map.get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (kind, version) = (given("kind"), given("apiVersion"));
    let expected = def.api_version();
    if (!kind.is_empty() && kind != def.kind) || (!version.is_empty() && version != expected) {
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {}: the body must be {expected}, Kind={}",
            def.kind, def.kind
        )));
    }
    map.insert("kind".into(), json!(def.kind));
    map.insert("apiVersion".into(), json!(expected));
    if !map.get("metadata").is_some_and(Value::is_object) {
        map.insert("metadata".into(), json!({}));
    }
    Ok(())
}

fn ensure_namespace(ctx: Context<'_>, object: &mut Value) -> Result<(), ApiError> {
    let given = text(object, "namespace").to_owned();
    if !ctx.def.namespaced {
        // A namespace on a cluster-scoped object is dropped without a word.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
    } else if given.is_empty() {
        object["metadata"]["namespace"] = json!(ctx.namespace);
    } else if given != ctx.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

fn check_namespace(tx: &Transaction<'_>, ctx: Context<'_>, name: &str) -> Result<(), ApiError> {
    match super::namespaces::phase(tx, ctx.namespace).as_deref() {
        None => Err(super::namespaces::not_found(ctx.namespace)),
        Some("Terminating") => {
            let message = format!(
                "unable to create new content in namespace {} because it is being terminated",
                ctx.namespace
            );
            let mut error = ApiError::forbidden(ctx.def.group, ctx.def.plural, name, &message);
            let cause = json!([{"reason": "NamespaceTerminating", "message": format!("namespace {} is being terminated", ctx.namespace), "field": "metadata.namespace"}]);
            error
                .details
                .get_or_insert_default()
                .insert("causes".into(), cause);
            Err(error)
        }
        Some(_) => Ok(()),
    }
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub(super) fn has_no_finalizers(def: &ResourceDef, object: &Value) -> bool {
    let none = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    none(&object["metadata"]["finalizers"])
        && (def.plural != "namespaces" || none(&object["spec"]["finalizers"]))
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

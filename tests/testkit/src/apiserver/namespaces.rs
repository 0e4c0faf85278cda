//! Namespaces: the ones that are always there, and deletion with all they hold.
//!
//! The real server leaves emptying to the namespace controller; here it happens in the delete
//! itself.

use std::sync::Arc;

use serde_json::{Value, json};

use super::object::Object;
use super::resources::{self, ResourceDef};
use super::status::ApiError;
use super::store::Transaction;
use super::write::{Context, DeleteOutcome, is_deleting, mark_deleted};

/// Namespaces a fresh cluster has.
pub(crate) const INITIAL: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

const KEY: (&str, &str) = ("", "namespaces");

fn def() -> &'static ResourceDef {
    static MISSING: &str = "the table of resources has namespaces";
    resources::find("", "v1", "namespaces").expect(MISSING)
}

pub(crate) fn not_found(name: &str) -> ApiError {
    ApiError::not_found(def(), name)
}

/// Returns the namespace's `status.phase`, if it exists.
pub(crate) fn phase(tx: &Transaction<'_>, name: &str) -> Option<String> {
    let object = tx.get(KEY, "", name)?;
    Some(
        object.value()["status"]["phase"]
            .as_str()
            .unwrap_or("Active")
            .to_owned(),
    )
}

/// Adds the fields of a new namespace.
pub(crate) fn prepare(object: &mut Value) {
    object["spec"] = json!({"finalizers": ["kubernetes"]});
    object["status"] = json!({"phase": "Active"});
    if let Some(name) = object["metadata"]["name"].as_str().map(str::to_owned) {
        if !object["metadata"]["labels"].is_object() {
            object["metadata"]["labels"] = json!({});
        }
        object["metadata"]["labels"]["kubernetes.io/metadata.name"] = json!(name);
    }
}

/// Namespaces that admission keeps from being deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Marks a namespace and empties it.
///
/// # Errors
/// 403 for those every cluster needs.
pub(crate) fn delete(
    tx: &mut Transaction<'_>,
    ctx: Context<'_>,
    old: &Arc<Object>,
) -> Result<DeleteOutcome, ApiError> {
    if IMMORTAL.contains(&ctx.name) {
        return Err(ApiError::forbidden(
            "",
            "namespaces",
            ctx.name,
            "this namespace may not be deleted",
        ));
    }
    let mut object = old.value();
    if is_deleting(&object) || ctx.dry_run {
        return Ok(DeleteOutcome::Marked(old.clone()));
    }
    mark_deleted(&mut object, ctx.clock);
    object["status"]["phase"] = json!("Terminating");
    let marked = tx.put(def(), object);
    empty(tx, ctx);
    finish_if_empty(tx, ctx.name);
    Ok(DeleteOutcome::Marked(marked))
}

fn empty(tx: &mut Transaction<'_>, ctx: Context<'_>) {
    let kinds = resources::all()
        .iter()
        .filter(|d| d.namespaced && d.is_stored() && (d.group, d.plural) == d.storage_key());
    for kind in kinds {
        for object in tx.list(kind.storage_key(), Some(ctx.name)) {
            let mut value = object.value();
            if value["metadata"]["finalizers"]
                .as_array()
                .is_none_or(Vec::is_empty)
            {
                tx.remove(kind, &object, value);
            } else if !is_deleting(&value) {
                mark_deleted(&mut value, ctx.clock);
                tx.put(kind, value);
            }
        }
    }
}

/// Removes a terminating namespace once nothing is left in it.
pub(crate) fn finish_if_empty(tx: &mut Transaction<'_>, name: &str) {
    let Some(object) = tx.get(KEY, "", name) else {
        return;
    };
    let value = object.value();
    let mut kinds = resources::all()
        .iter()
        .filter(|d| d.namespaced && d.is_stored());
    let kept = value["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|f| !f.is_empty());
    if is_deleting(&value)
        && !kept
        && kinds.all(|d| tx.list(d.storage_key(), Some(name)).is_empty())
    {
        tx.remove(def(), &object, value);
    }
}

//! PATCH in its three forms.

use serde_json::Value;

use super::convert;
use super::json_op;
use super::resources::ResourceDef;
use super::schema;
use super::status::{ApiError, FieldError};
use super::store::Transaction;
use super::strategic_merge;
use super::verbs::strict_error;
use super::write::{Context, WriteOutcome, replace};

/// Media types the real server lists when it is given another. Apply is listed as it would be with
/// apply switched off.
const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json";

/// Operations a JSON Patch may have (`maxJSONPatchOperations` upstream).
const MAX_OPERATIONS: usize = 10_000;

/// A parsed patch.
#[derive(Debug)]
pub(crate) enum Patch {
    Json(Vec<Value>),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    /// Reads the body of a PATCH.
    ///
    /// # Errors
    /// 415 for another media type, server-side apply among them; 400 for a body that is no such
    /// patch; 413 for too many operations.
    pub(crate) fn parse(content_type: &str, body: &[u8]) -> Result<Self, ApiError> {
        let media = content_type.split(';').next().unwrap_or_default().trim();
        let bad =
            |e: serde_json::Error| ApiError::bad_request(format!("error decoding patch: {e}"));
        let parse = || serde_json::from_slice::<Value>(body).map_err(bad);
        match media {
            "application/json-patch+json" => {
                let patch: Vec<Value> = serde_json::from_slice(body).map_err(bad)?;
                if patch.len() > MAX_OPERATIONS {
                    return Err(ApiError::too_large(&format!(
                        "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                        patch.len()
                    )));
                }
                Ok(Self::Json(patch))
            }
            "application/merge-patch+json" => Ok(Self::Merge(object(parse()?)?)),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic(object(parse()?)?)),
            // The real server applies; this one says what to use instead.
            "application/apply-patch+yaml" => Err(ApiError::unsupported_media_type(ACCEPTED)),
            _ => Err(ApiError::unsupported_patch()),
        }
    }

    pub(crate) fn apply(&self, def: &ResourceDef, current: &Value) -> Result<Value, ApiError> {
        match self {
            Self::Json(patch) => {
                let mut patched = current.clone();
                for operation in patch {
                    json_op::apply(&mut patched, operation)
                        .map_err(|_| ApiError::patch_did_not_apply())?;
                }
                Ok(patched)
            }
            Self::Merge(patch) => {
                let mut patched = current.clone();
                json_patch::merge(&mut patched, patch);
                Ok(patched)
            }
            Self::Strategic(patch) => {
                strategic_merge::apply(def, current, patch).map_err(|e| ApiError::unclassified(&e))
            }
        }
    }
}

fn object(patch: Value) -> Result<Value, ApiError> {
    if patch.is_object() {
        Ok(patch)
    } else {
        Err(ApiError::bad_request(
            "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}",
        ))
    }
}

/// Applies `patch`, written for objects as `def` shows them, to the object the request names.
/// `strict` refuses unknown fields.
///
/// # Errors
/// 404, 409, 422, 400 as the real server.
pub(crate) fn patch(
    tx: &mut Transaction<'_>,
    ctx: Context<'_>,
    def: &'static ResourceDef,
    patch: &Patch,
    strict: bool,
) -> Result<WriteOutcome, ApiError> {
    let Some(old) = tx.get(ctx.def.storage_key(), ctx.namespace, ctx.name) else {
        return Err(ApiError::not_found(ctx.def, ctx.name));
    };
    let patched = patch.apply(def, &convert::outgoing(def, old.value()))?;
    check_shape(ctx, def, &patched, strict)?;
    check_uid(ctx, &old.uid, &patched)?;
    replace(tx, ctx, &old, convert::incoming(def, patched))
}

/// Rejects a patch with another UID. The patch is invalid; an update would be a conflict.
fn check_uid(ctx: Context<'_>, uid: &str, patched: &Value) -> Result<(), ApiError> {
    let given = patched["metadata"]["uid"].as_str().unwrap_or_default();
    if given.is_empty() || given == uid {
        return Ok(());
    }
    let error = FieldError::invalid("metadata.uid", &format!("{given:?}"), "field is immutable");
    Err(ApiError::invalid(ctx.def.group, ctx.def.kind, ctx.name, &[error]))
}

/// Refuses what would no longer decode as the kind, or would name another object.
fn check_shape(
    ctx: Context<'_>,
    def: &'static ResourceDef,
    patched: &Value,
    strict: bool,
) -> Result<(), ApiError> {
    let invalid = |message: &str| {
        let error = FieldError::invalid("patch", &format!("{:?}", patched.to_string()), message);
        ApiError::invalid("", "", "", &[error])
    };
    if !patched["metadata"].is_object() {
        return Err(invalid("metadata is not an object"));
    }
    let checked = schema::check(def, patched);
    if let Some(error) = checked.type_error {
        return Err(invalid(&error));
    }
    if strict && !checked.unknown_fields.is_empty() {
        return Err(invalid(&strict_error(&checked.unknown_fields)));
    }
    let name = patched["metadata"]["name"].as_str().unwrap_or_default();
    if name != ctx.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            ctx.name
        )));
    }
    if patched["kind"] != def.kind || patched["apiVersion"] != def.api_version() {
        return Err(invalid("the patch must not change kind or apiVersion"));
    }
    Ok(())
}

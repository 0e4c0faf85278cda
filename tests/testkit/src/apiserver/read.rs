//! Get and list.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::object::Object;
use super::request::RequestInfo;
use super::resources::ResourceDef;
use super::selectors::Selector;
use super::status::{ApiError, FieldError};
use super::store::{ObjectKey, Store};

/// A page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub objects: Vec<Arc<Object>>,
    pub version: u64,
    pub continue_token: Option<String>,
    pub remaining: Option<usize>,
}

/// Returns the namespace to read, or `None` for all.
pub(crate) fn scope(info: &RequestInfo) -> Option<&str> {
    (!info.namespace.is_empty()).then_some(info.namespace.as_str())
}

/// Returns the selector of the request's query.
///
/// # Errors
/// 400 for what cannot be parsed or selected on.
pub(crate) fn selector(def: &ResourceDef, info: &RequestInfo) -> Result<Selector, ApiError> {
    Selector::parse(def, info.query("labelSelector"), info.query("fieldSelector"))
}

/// Returns a resource version from the query; absent and empty are `None`.
///
/// # Errors
/// 400 when it is no number; on a watch the real server says 500.
pub(crate) fn version(info: &RequestInfo) -> Result<Option<u64>, ApiError> {
    let Some(text) = info.query("resourceVersion") else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_| {
        let message = format!(
            "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
        );
        if info.verb == "watch" {
            ApiError::unclassified(&message)
        } else {
            ApiError::bad_request(format!("invalid resource version: {message}"))
        }
    })
}

/// Returns a whole number from the query; absent is 0.
///
/// # Errors
/// 400 when it is no number.
pub(crate) fn number(info: &RequestInfo, key: &str) -> Result<u64, ApiError> {
    let Some(text) = info.query(key) else {
        return Ok(0);
    };
    text.parse().map_err(|_| {
        ApiError::bad_request(format!("strconv.ParseInt: parsing \"{text}\": invalid syntax"))
    })
}

/// Returns one page of the list a request asks for. `stale` answers as a server that lags would.
///
/// # Errors
/// 400, 410, 422, 504 as the real server.
pub(crate) fn list(
    store: &Store,
    def: &'static ResourceDef,
    info: &RequestInfo,
    stale: Option<u64>,
) -> Result<Page, ApiError> {
    validate_options(info)?;
    let selector = selector(def, info)?;
    let wanted = version(info)?;
    let limit = usize::try_from(number(info, "limit")?).unwrap_or(usize::MAX);
    let (objects, at, start) = if let Some(token) = info.query("continue") {
        continued(store, def, info, token)?
    } else if let Some(at) = stale {
        (
            store
                .list_at(def.storage_key(), scope(info), at)
                .map_err(|_| too_old())?,
            at,
            None,
        )
    } else {
        first_page(store, def, info, wanted)?
    };
    let objects = objects
        .into_iter()
        .filter(|o| start.as_ref().is_none_or(|s| key_of(o) > *s))
        .filter(|o| selector.matches(o));
    // The watch cache, which answers version 0, knows no pages.
    let limit = if wanted == Some(0) { 0 } else { limit };
    Ok(page(objects.collect(), at, limit, selector.is_empty()))
}

type ListResult = (Vec<Arc<Object>>, u64, Option<ObjectKey>);

fn first_page(
    store: &Store,
    def: &'static ResourceDef,
    info: &RequestInfo,
    wanted: Option<u64>,
) -> Result<ListResult, ApiError> {
    let exact = info.query("resourceVersionMatch") == Some("Exact")
        || (info.query("resourceVersionMatch").is_none()
            && info.query("limit").is_some()
            && wanted.is_some_and(|v| v > 0));
    if let Some(version) = wanted.filter(|_| exact) {
        check_not_ahead(store, version)?;
        let objects = store
            .list_at(def.storage_key(), scope(info), version)
            .map_err(|_| too_old())?;
        return Ok((objects, version, None));
    }
    if let Some(version) = wanted {
        check_not_ahead(store, version)?;
    }
    let (objects, at) = store.list(def.storage_key(), scope(info));
    Ok((objects, at, None))
}

fn too_old() -> ApiError {
    ApiError::expired("The resourceVersion for the provided list is too old.")
}

fn continued(
    store: &Store,
    def: &'static ResourceDef,
    info: &RequestInfo,
    token: &str,
) -> Result<ListResult, ApiError> {
    if info.query("resourceVersion").is_some_and(|v| v != "0") {
        return Err(ApiError::bad_request(
            "specifying resource version is not allowed when using continue",
        ));
    }
    let (version, start) = decode_token(token)?;
    if version < 0 {
        // A token from an expired list: goes on from there, at the present.
        let (objects, at) = store.list(def.storage_key(), scope(info));
        return Ok((objects, at, Some(start)));
    }
    let version = version.unsigned_abs();
    if let Ok(objects) = store.list_at(def.storage_key(), scope(info), version) {
        return Ok((objects, version, Some(start)));
    }
    let mut error = ApiError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    error.continue_token = Some(encode_token(-1, &start));
    Err(error)
}

/// Refuses a version from the future.
///
/// # Errors
/// 504, after which clients try again.
pub(crate) fn check_not_ahead(store: &Store, version: u64) -> Result<(), ApiError> {
    let current = store.version();
    if version > current {
        Err(ApiError::too_large_resource_version(version, current))
    } else {
        Ok(())
    }
}

fn page(mut objects: Vec<Arc<Object>>, version: u64, limit: usize, unfiltered: bool) -> Page {
    if limit == 0 || objects.len() <= limit {
        return Page { objects, version, continue_token: None, remaining: None };
    }
    let remaining = objects.len() - limit;
    objects.truncate(limit);
    let continue_token = objects
        .last()
        .map(|o| encode_token(i64::try_from(version).unwrap_or(i64::MAX), &key_of(o)));
    Page {
        objects,
        version,
        continue_token,
        remaining: unfiltered.then_some(remaining),
    }
}

fn key_of(object: &Object) -> ObjectKey {
    (object.namespace.clone(), object.name.clone())
}

fn encode_token(version: i64, (namespace, name): &ObjectKey) -> String {
    let start = if namespace.is_empty() {
        format!("{name}\u{0}")
    } else {
        format!("{namespace}/{name}\u{0}")
    };
    URL_SAFE_NO_PAD
        .encode(json!({"v": "meta.k8s.io/v1", "rv": version, "start": start}).to_string())
}

fn decode_token(token: &str) -> Result<(i64, ObjectKey), ApiError> {
    let invalid = || ApiError::bad_request("invalid continue token: continue key is not valid");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| invalid())?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
    let version = value["rv"]
        .as_i64()
        .filter(|v| *v != 0)
        .ok_or_else(invalid)?;
    let start = value["start"]
        .as_str()
        .and_then(|s| s.strip_suffix('\u{0}'))
        .ok_or_else(invalid)?;
    let (namespace, name) = start.split_once('/').unwrap_or(("", start));
    Ok((version, (namespace.to_owned(), name.to_owned())))
}

fn validate_options(info: &RequestInfo) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    if let Some(matching) = info.query("resourceVersionMatch") {
        let field = "resourceVersionMatch";
        if info.query("resourceVersion").is_none() {
            errors.push(FieldError::forbidden(
                field,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if info.query("continue").is_some() {
            errors.push(FieldError::forbidden(
                field,
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        }
        if !["Exact", "NotOlderThan"].contains(&matching) {
            errors.push(FieldError {
                reason: "FieldValueNotSupported".into(),
                message: format!(
                    "Unsupported value: \"{matching}\": supported values: \"Exact\", \"NotOlderThan\", \"\""
                ),
                field: field.into(),
            });
        }
        if matching == "Exact" && info.query("resourceVersion") == Some("0") {
            errors.push(FieldError::forbidden(
                field,
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ));
        }
    }
    if info.query("sendInitialEvents").is_some() {
        errors.push(FieldError::forbidden(
            "sendInitialEvents",
            "sendInitialEvents is forbidden for list",
        ));
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", &errors))
    }
}

//! Requests that are answered and not kept: token and access reviews, and tokens for service
//! accounts.

use std::time::Duration;

use serde_json::{Value, json};

use super::ApiServer;
use super::auth::{Attributes, User};
use super::clock::seconds;
use super::request::RequestInfo;
use super::resources::ResourceDef;
use super::status::{ApiError, FieldError};

/// Lifetime of a token that asks for none; the real server's default.
const TOKEN_SECONDS: u64 = 3600;
/// Shortest and longest lifetime that may be asked for.
const TOKEN_RANGE: std::ops::RangeInclusive<u64> = 600..=(1 << 32);

/// Whom tokens are for when nobody says.
const AUDIENCE: &str = "https://kubernetes.default.svc.cluster.local";

/// Answers a review.
///
/// Where the real server leaves the kind out of a refusal, so does this.
///
/// # Errors
/// 422 for a review that asks nothing.
pub(crate) fn review(
    server: &ApiServer,
    def: &ResourceDef,
    user: &User,
    mut body: Value,
) -> Result<Value, ApiError> {
    body["kind"] = json!(def.kind);
    body["apiVersion"] = json!(def.api_version());
    if !body["metadata"].is_object() {
        body["metadata"] = json!({});
    }
    let status = match def.plural {
        "tokenreviews" if text(&body["spec"], "token").is_empty() => {
            return Err(ApiError::bad_request(
                "token is required for TokenReview in authentication",
            ));
        }
        "tokenreviews" => token(server, &body["spec"]),
        "selfsubjectaccessreviews" => access(server, def, user, &body["spec"])?,
        _ => {
            let named = User {
                name: text(&body["spec"], "user"),
                uid: text(&body["spec"], "uid"),
                groups: groups(&body),
            };
            if named.name.is_empty() && named.groups.is_empty() {
                let message = "at least one of user or group must be specified";
                return Err(ApiError::invalid(
                    def.group,
                    def.kind,
                    "",
                    &[FieldError::invalid("spec.user", "\"\"", message)],
                ));
            }
            access(server, def, &named, &body["spec"])?
        }
    };
    body["status"] = status;
    Ok(body)
}

fn token(server: &ApiServer, spec: &Value) -> Value {
    match server
        .users()
        .authenticate(&text(spec, "token"), server.clock().now())
    {
        Some(user) => {
            let audiences = if spec["audiences"].is_array() {
                spec["audiences"].clone()
            } else {
                json!([AUDIENCE])
            };
            json!({"authenticated": true, "audiences": audiences,
                "user": {"username": user.name, "uid": user.uid, "groups": user.groups}})
        }
        None => json!({"user": {}, "error": "invalid bearer token"}),
    }
}

fn access(
    server: &ApiServer,
    def: &ResourceDef,
    user: &User,
    spec: &Value,
) -> Result<Value, ApiError> {
    let resource = &spec["resourceAttributes"];
    let path = &spec["nonResourceAttributes"];
    if resource.is_object() == path.is_object() {
        let message =
            "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let error = FieldError::invalid("spec.resourceAttributes", "null", message);
        return Err(ApiError::invalid(def.group, "", "", &[error]));
    }
    let wanted = if resource.is_object() {
        let part = |key: &str| text(resource, key);
        Attributes {
            verb: part("verb"),
            group: part("group"),
            resource: part("resource"),
            subresource: part("subresource"),
            namespace: part("namespace"),
            name: part("name"),
            path: String::new(),
        }
    } else {
        Attributes {
            verb: text(path, "verb"),
            path: text(path, "path"),
            ..Attributes::default()
        }
    };
    Ok(json!({"allowed": server.users().allowed(user, &wanted)}))
}

/// Issues a token for a service account.
///
/// # Errors
/// 404 without the account, 422 for a lifetime out of range.
pub(crate) fn issue_token(
    server: &ApiServer,
    def: &ResourceDef,
    info: &RequestInfo,
    mut body: Value,
) -> Result<Value, ApiError> {
    let account = server
        .store()
        .get(def.storage_key(), &info.namespace, &info.name);
    let account = account.ok_or_else(|| ApiError::not_found(def, &info.name))?;
    let lifetime = body["spec"]["expirationSeconds"]
        .as_u64()
        .unwrap_or(TOKEN_SECONDS);
    if !TOKEN_RANGE.contains(&lifetime) {
        let message = if lifetime < *TOKEN_RANGE.start() {
            "may not specify a duration less than 10 minutes"
        } else {
            "may not specify a duration larger than 2^32 seconds"
        };
        let error = FieldError::invalid("spec.expirationSeconds", &lifetime.to_string(), message);
        return Err(ApiError::invalid("authentication.k8s.io", "TokenRequest", "", &[error]));
    }
    let expires = server
        .clock()
        .now()
        .saturating_add(Duration::from_secs(lifetime))
        .unwrap_or(jiff::Timestamp::MAX);
    let token = format!("embedded-{}", uuid::Uuid::new_v4());
    let user = User {
        uid: account.uid.clone(),
        ..User::service_account(&info.namespace, &info.name)
    };
    server.users().add_until(&token, user, expires);
    if body["spec"]["audiences"]
        .as_array()
        .is_none_or(Vec::is_empty)
    {
        body["spec"]["audiences"] = json!([AUDIENCE]);
    }
    if body["spec"].get("boundObjectRef").is_none() {
        body["spec"]["boundObjectRef"] = Value::Null;
    }
    body["kind"] = json!("TokenRequest");
    body["apiVersion"] = json!("authentication.k8s.io/v1");
    body["metadata"] = json!({"name": info.name, "namespace": info.namespace, "creationTimestamp": server.clock().stamp()});
    body["spec"]["expirationSeconds"] = json!(lifetime);
    body["status"] = json!({"token": token, "expirationTimestamp": seconds(expires)});
    Ok(body)
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn groups(body: &Value) -> Vec<String> {
    let groups = body["spec"]["groups"].as_array().into_iter().flatten();
    groups
        .filter_map(|g| g.as_str().map(str::to_owned))
        .collect()
}

//! What a request asks for, read from its method, path and query the way the real server reads it.

use std::collections::HashMap;

use http::{HeaderMap, Method, Uri, header};

use super::resources::{self, ResourceDef};

/// A request, classified.
#[derive(Debug, Clone, Default)]
pub struct RequestInfo {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or the
    /// lower-case method for paths that are no resource.
    pub verb: String,
    /// API group; empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Resource, empty for paths that are no resource.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Object name, or empty.
    pub name: String,
    /// Path without query.
    pub path: String,
    /// `User-Agent` header, or empty.
    pub user_agent: String,
    pub(crate) def: Option<&'static ResourceDef>,
    pub(crate) query: HashMap<String, String>,
}

impl RequestInfo {
    /// Reads a request line and its headers.
    pub fn parse(method: &Method, uri: &Uri, headers: &HeaderMap) -> Self {
        let mut info = Self {
            verb: method.as_str().to_ascii_lowercase(),
            path: uri.path().to_owned(),
            user_agent: text(headers, &header::USER_AGENT).to_owned(),
            query: parse_query(uri.query().unwrap_or_default()),
            ..Self::default()
        };
        let path = info.path.clone();
        let parts: Vec<String> = path
            .split('/')
            .filter(|p| !p.is_empty())
            .map(decode)
            .collect();
        let rest = match parts.split_first() {
            Some((first, rest)) if first == "api" && rest.len() >= 2 => rest,
            Some((first, rest)) if first == "apis" && rest.len() >= 3 => {
                info.group.clone_from(&rest[0]);
                &rest[1..]
            }
            _ => return info,
        };
        info.version.clone_from(&rest[0]);
        info.read_resource(method, &rest[1..]);
        info
    }

    fn read_resource(&mut self, method: &Method, parts: &[String]) {
        let mut parts = parts;
        if parts[0] == "namespaces" && parts.len() > 1 {
            self.namespace.clone_from(&parts[1]);
            if parts.len() > 2 && !["status", "finalize"].contains(&parts[2].as_str()) {
                parts = &parts[2..];
            }
        }
        self.resource.clone_from(&parts[0]);
        self.name = parts.get(1).cloned().unwrap_or_default();
        self.subresource = parts.get(2).cloned().unwrap_or_default();
        if self.resource == "namespaces" {
            // Authorization sees the namespace as both; storage needs it as the name alone.
            self.namespace.clear();
        }
        self.def = resources::find(&self.group, &self.version, &self.resource);
        let watching = self
            .query
            .get("watch")
            .is_some_and(|w| !["false", "0", ""].contains(&w.as_str()));
        let verb = match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if self.name.is_empty() => "deletecollection",
            Method::DELETE => "delete",
            Method::GET | Method::HEAD if watching && self.subresource.is_empty() => "watch",
            Method::GET | Method::HEAD if self.name.is_empty() => "list",
            Method::GET | Method::HEAD => "get",
            _ => "",
        };
        verb.clone_into(&mut self.verb);
    }

    /// Returns true if the path names a resource, known or not.
    pub fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }

    /// Returns true if the request changes something. Reviews and token requests are created but
    /// change nothing a controller could lose.
    pub fn is_write(&self) -> bool {
        let changes = ["create", "update", "patch", "delete", "deletecollection"]
            .contains(&self.verb.as_str());
        changes && self.def.is_some_and(ResourceDef::is_stored) && self.subresource != "token"
    }

    /// Returns `resource` or `resource/subresource`.
    pub fn target(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }

    pub(crate) fn query(&self, key: &str) -> Option<&str> {
        self.query
            .get(key)
            .map(String::as_str)
            .filter(|v| !v.is_empty())
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.query
            .get(key)
            .is_some_and(|v| !["false", "0"].contains(&v.as_str()))
    }

    pub(crate) fn dry_run(&self) -> bool {
        self.query("dryRun") == Some("All")
    }
}

pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> &'a str {
    headers
        .get(name)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default()
}

fn parse_query(query: &str) -> HashMap<String, String> {
    let mut map = HashMap::new();
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        // The real decoder takes the first of repeated parameters.
        map.entry(decode(&key.replace('+', " ")))
            .or_insert_with(|| decode(&value.replace('+', " ")));
    }
    map
}

/// Undoes percent encoding; what is not valid encoding stays as it is.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = escaped {
            out.push(byte);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

//! The verb, the resource and the object of a request, for errors.

use std::fmt;

use http::Method;

/// The verb, the resource and the object of a request, in the terms of RBAC rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// The verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`,
    /// `deletecollection`.
    pub verb: &'static str,
    /// The API group, which is empty for the core group.
    pub group: Box<str>,
    /// The resource, with the subresource after a slash, such as `nodes` or `nodes/status`. For a
    /// path without a resource it is the whole path.
    pub resource: Box<str>,
    /// The namespace, if the resource is namespaced.
    pub namespace: Option<Box<str>>,
    /// The name of the object, unless the request is for a collection.
    pub name: Option<Box<str>>,
}

impl RequestInfo {
    /// Derives the information from the method and the path of a request.
    pub(crate) fn from_request(method: &Method, path_and_query: &str) -> Self {
        let (path, query) = path_and_query
            .split_once('?')
            .unwrap_or((path_and_query, ""));
        let mut parts = path.trim_matches('/').split('/').filter(|p| !p.is_empty());
        let group = match parts.next() {
            Some("api") => "",
            Some("apis") => parts.next().unwrap_or_default(),
            _ => return Self::without_resource(method, path),
        };
        // Skip the version.
        let segments: Vec<&str> = parts.skip(1).collect();
        // `namespaces/<ns>/<resource>` is a namespaced resource. `namespaces/<ns>` and its two
        // subresources are not.
        let (namespace, segments) = match segments.as_slice() {
            ["namespaces", _, "status" | "finalize"] | ["namespaces"] | ["namespaces", _] => {
                (None, segments.as_slice())
            }
            ["namespaces", namespace, in_namespace @ ..] => {
                (Some(Box::from(*namespace)), in_namespace)
            }
            all => (None, all),
        };
        let Some((resource, object)) = segments.split_first() else {
            return Self::without_resource(method, path);
        };
        let name = object.first().map(|n| Box::from(*n));
        let resource = match object.get(1) {
            Some(subresource) => format!("{resource}/{subresource}").into(),
            None => Box::from(*resource),
        };
        let is_watch = query
            .split('&')
            .any(|q| matches!(q, "watch=1" | "watch=true"));
        let verb = verb(method, name.is_none(), is_watch);
        Self { verb, group: group.into(), resource, namespace, name }
    }

    fn without_resource(method: &Method, path: &str) -> Self {
        let verb = verb(method, false, false);
        Self {
            verb,
            group: Box::default(),
            resource: path.into(),
            namespace: None,
            name: None,
        }
    }
}

/// Returns the RBAC verb of a request.
fn verb(method: &Method, is_collection: bool, is_watch: bool) -> &'static str {
    match (method.as_str(), is_collection) {
        ("GET" | "HEAD", _) if is_watch => "watch",
        ("GET" | "HEAD", true) => "list",
        ("GET" | "HEAD", false) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "deletecollection",
        ("DELETE", false) => "delete",
        _ => "request",
    }
}

impl fmt::Display for RequestInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => write!(f, " {namespace}/{name}"),
            (None, Some(name)) => write!(f, " {name}"),
            (Some(namespace), None) => write!(f, " in namespace {namespace}"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_like_rbac_rules() {
        let cases = [
            ("GET", "/api/v1/nodes", "list nodes"),
            ("GET", "/api/v1/nodes?watch=true&x=y", "watch nodes"),
            ("GET", "/api/v1/nodes/a", "get nodes a"),
            ("PATCH", "/api/v1/nodes/a/status", "patch nodes/status a"),
            ("DELETE", "/api/v1/nodes/a", "delete nodes a"),
            ("POST", "/api/v1/namespaces/default/events", "create events in namespace default"),
            (
                "PUT",
                "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l",
                "update leases kube-system/l",
            ),
            ("GET", "/api/v1/namespaces/kube-system", "get namespaces kube-system"),
            ("PUT", "/api/v1/namespaces/x/finalize", "update namespaces/finalize x"),
            ("GET", "/version", "get /version"),
        ];
        for (method, path, want) in cases {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(RequestInfo::from_request(&method, path).to_string(), want, "{path}");
        }
        assert_eq!(
            &*RequestInfo::from_request(&Method::GET, "/apis/coordination.k8s.io/v1/leases").group,
            "coordination.k8s.io"
        );
    }
}

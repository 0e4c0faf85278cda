//! What a request is about, for errors and metrics: verb, resource, namespace and name.

use std::fmt;

use http::Method;

/// Verb, resource and object of a request, in the terms of RBAC rules. Derived from the method and
/// the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// Verb of the rule: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`,
    /// `deletecollection`.
    pub verb: &'static str,
    /// API group; empty for the core group.
    pub group: Box<str>,
    /// Resource, with the subresource after a slash: `nodes`, `nodes/status`. For a path without a
    /// resource: the whole path.
    pub resource: Box<str>,
    /// Namespace, for namespaced resources.
    pub namespace: Option<Box<str>>,
    /// Name of the object, unless the request is for a collection.
    pub name: Option<Box<str>>,
}

impl RequestInfo {
    /// Derives the target of a request. Never fails: for an unusual path the resource is the whole
    /// path.
    pub(crate) fn of(method: &Method, path_and_query: &str) -> Self {
        let (path, query) = path_and_query
            .split_once('?')
            .unwrap_or((path_and_query, ""));
        let mut parts = path.trim_matches('/').split('/').filter(|p| !p.is_empty());
        let group = match parts.next() {
            Some("api") => "",
            Some("apis") => parts.next().unwrap_or_default(),
            _ => return Self::unusual(method, path),
        };
        let rest: Vec<&str> = parts.skip(1).collect();
        // `namespaces/<ns>/<resource>` is a namespaced resource. `namespaces/<ns>` and its two
        // subresources are not.
        let (namespace, rest) = match rest.as_slice() {
            ["namespaces", _, "status" | "finalize"] | ["namespaces"] | ["namespaces", _] => {
                (None, rest.as_slice())
            }
            ["namespaces", namespace, rest @ ..] => (Some(Box::from(*namespace)), rest),
            all => (None, all),
        };
        let Some((resource, rest)) = rest.split_first() else {
            return Self::unusual(method, path);
        };
        let name = rest.first().map(|n| Box::from(*n));
        let resource = match rest.get(1) {
            Some(sub) => format!("{resource}/{sub}").into(),
            None => Box::from(*resource),
        };
        let watch = query
            .split('&')
            .any(|q| matches!(q, "watch=1" | "watch=true"));
        let verb = verb(method, name.is_none(), watch);
        Self { verb, group: group.into(), resource, namespace, name }
    }

    fn unusual(method: &Method, path: &str) -> Self {
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

fn verb(method: &Method, collection: bool, watch: bool) -> &'static str {
    match (method.as_str(), collection) {
        ("GET" | "HEAD", _) if watch => "watch",
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
            assert_eq!(RequestInfo::of(&method, path).to_string(), want, "{path}");
        }
        assert_eq!(
            &*RequestInfo::of(&Method::GET, "/apis/coordination.k8s.io/v1/leases").group,
            "coordination.k8s.io"
        );
    }
}

//! The resources the embedded server knows: names, scope, verbs and subresources.
//!
//! One table feeds routing, discovery, `OpenAPI`, printing and validation, so that a resource
//! cannot be served but not discovered. Names, short names, categories and verbs are those of
//! kube-apiserver 1.36 (`api/discovery/` in kubernetes/kubernetes); resources the real server
//! serves and this one does not are simply absent.

/// One served resource.
#[derive(Debug, PartialEq, Eq)]
pub struct ResourceDef {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version inside the group.
    pub version: &'static str,
    /// Kind of one object.
    pub kind: &'static str,
    /// Path segment, lower case.
    pub plural: &'static str,
    /// Singular name, as kubectl accepts it.
    pub singular: &'static str,
    /// Abbreviations kubectl accepts.
    pub short_names: &'static [&'static str],
    /// True if objects live in a namespace.
    pub namespaced: bool,
    /// Subresources under one object.
    pub subresources: &'static [SubresourceDef],
    /// Verbs on the resource itself, sorted.
    pub verbs: &'static [&'static str],
    /// Groupings such as `all`.
    pub categories: &'static [&'static str],
}

/// One subresource of a [`ResourceDef`].
#[derive(Debug, PartialEq, Eq)]
pub struct SubresourceDef {
    /// Last path segment, such as `status`.
    pub name: &'static str,
    /// Group, version and kind of its body where they differ from the parent's.
    pub body: Option<(&'static str, &'static str, &'static str)>,
    /// Verbs on the subresource, sorted.
    pub verbs: &'static [&'static str],
}

impl ResourceDef {
    /// Returns `v1` or `group/version`, as in an object's `apiVersion`.
    pub fn api_version(&self) -> String {
        group_version(self.group, self.version)
    }

    /// Returns the kind of a list of these objects.
    pub fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }

    /// Returns `plural` or `plural.group`, as in error messages and RBAC.
    pub fn qualified_name(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Returns the group and plural under which objects are stored: events of both groups are the
    /// same objects.
    pub fn storage_key(&self) -> (&'static str, &'static str) {
        if self.plural == "events" {
            ("", "events")
        } else {
            (self.group, self.plural)
        }
    }

    /// Returns true if objects are kept; reviews are answered and forgotten.
    pub fn is_stored(&self) -> bool {
        self.supports("get")
    }

    /// Returns true if the resource itself takes `verb`.
    pub fn supports(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// Returns the subresource of that name.
    pub fn subresource(&self, name: &str) -> Option<&'static SubresourceDef> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Returns true if status is written through its own path only.
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }
}

/// Returns `version` or `group/version`.
pub fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// Returns every resource served, in the order discovery shows them.
pub fn all() -> &'static [ResourceDef] {
    ALL
}

/// Returns the resource at `group`, `version` and `plural`.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static ResourceDef> {
    ALL.iter()
        .find(|d| d.group == group && d.version == version && d.plural == plural)
}

const ALL_VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// Namespaces cannot be deleted as a collection.
const NAMESPACE_VERBS: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
const READ_VERBS: &[&str] = &["get", "list", "watch"];
const CREATE: &[&str] = &["create"];

const STATUS: SubresourceDef = SubresourceDef {
    name: "status",
    body: None,
    verbs: &["get", "patch", "update"],
};
const FINALIZE: SubresourceDef =
    SubresourceDef { name: "finalize", body: None, verbs: &["update"] };
const TOKEN: SubresourceDef = SubresourceDef {
    name: "token",
    body: Some(("authentication.k8s.io", "v1", "TokenRequest")),
    verbs: CREATE,
};

/// A namespaced core/v1 resource with all verbs: what most rows below differ from by a field or
/// two.
const CORE: ResourceDef = ResourceDef {
    group: "",
    version: "v1",
    kind: "",
    plural: "",
    singular: "",
    short_names: &[],
    namespaced: true,
    subresources: &[],
    verbs: ALL_VERBS,
    categories: &[],
};

/// A cluster-scoped review: created, answered, not kept.
const REVIEW: ResourceDef = ResourceDef { namespaced: false, verbs: CREATE, ..CORE };

const ALL: &[ResourceDef] = &[
    ResourceDef {
        kind: "ConfigMap",
        plural: "configmaps",
        singular: "configmap",
        short_names: &["cm"],
        ..CORE
    },
    ResourceDef {
        kind: "Endpoints",
        plural: "endpoints",
        singular: "endpoints",
        short_names: &["ep"],
        ..CORE
    },
    ResourceDef {
        kind: "Event",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        ..CORE
    },
    ResourceDef {
        kind: "Namespace",
        plural: "namespaces",
        singular: "namespace",
        short_names: &["ns"],
        namespaced: false,
        subresources: &[FINALIZE, STATUS],
        verbs: NAMESPACE_VERBS,
        ..CORE
    },
    ResourceDef {
        kind: "Node",
        plural: "nodes",
        singular: "node",
        short_names: &["no"],
        namespaced: false,
        subresources: &[STATUS],
        ..CORE
    },
    ResourceDef {
        kind: "Pod",
        plural: "pods",
        singular: "pod",
        short_names: &["po"],
        subresources: &[STATUS],
        verbs: READ_VERBS,
        categories: &["all"],
        ..CORE
    },
    ResourceDef {
        kind: "Secret",
        plural: "secrets",
        singular: "secret",
        ..CORE
    },
    ResourceDef {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short_names: &["sa"],
        subresources: &[TOKEN],
        ..CORE
    },
    ResourceDef {
        kind: "Service",
        plural: "services",
        singular: "service",
        short_names: &["svc"],
        subresources: &[STATUS],
        categories: &["all"],
        ..CORE
    },
    ResourceDef {
        group: "events.k8s.io",
        kind: "Event",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        ..CORE
    },
    ResourceDef {
        group: "authentication.k8s.io",
        kind: "TokenReview",
        plural: "tokenreviews",
        singular: "tokenreview",
        ..REVIEW
    },
    ResourceDef {
        group: "authorization.k8s.io",
        kind: "SelfSubjectAccessReview",
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        ..REVIEW
    },
    ResourceDef {
        group: "authorization.k8s.io",
        kind: "SubjectAccessReview",
        plural: "subjectaccessreviews",
        singular: "subjectaccessreview",
        ..REVIEW
    },
    ResourceDef {
        group: "coordination.k8s.io",
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        ..CORE
    },
    ResourceDef {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        plural: "endpointslices",
        singular: "endpointslice",
        ..CORE
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_is_found_once_by_its_path() {
        for def in all() {
            let same = all()
                .iter()
                .filter(|d| (d.group, d.plural) == (def.group, def.plural))
                .count();
            assert_eq!(same, 1, "{}", def.qualified_name());
            assert_eq!(find(def.group, def.version, def.plural), Some(def));
        }
        assert_eq!(find("", "v1", "replicationcontrollers"), None);
    }

    #[test]
    fn verbs_are_sorted_as_discovery_shows_them() {
        for def in all() {
            for verbs in std::iter::once(def.verbs).chain(def.subresources.iter().map(|s| s.verbs))
            {
                assert!(verbs.is_sorted() && !verbs.is_empty(), "{}", def.qualified_name());
            }
        }
    }

    #[test]
    fn derived_names_are_those_of_the_api() {
        let lease = find("coordination.k8s.io", "v1", "leases").unwrap();
        assert_eq!(lease.api_version(), "coordination.k8s.io/v1");
        assert_eq!(lease.qualified_name(), "leases.coordination.k8s.io");
        assert_eq!(lease.list_kind(), "LeaseList");
        assert!(!lease.has_status() && lease.is_stored());
        let node = find("", "v1", "nodes").unwrap();
        assert_eq!((node.api_version().as_str(), node.qualified_name().as_str()), ("v1", "nodes"));
        assert!(node.has_status() && node.supports("deletecollection"));
        let review = find("authorization.k8s.io", "v1", "subjectaccessreviews").unwrap();
        assert!(!review.is_stored() && review.supports("create"));
        assert_eq!(find("events.k8s.io", "v1", "events").unwrap().storage_key(), ("", "events"));
    }
}

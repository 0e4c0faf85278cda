//! What the roles of managers on Go's framework grant, as their projects' manifests had it.

use ccm_e2e::permissions::{Grant, grants};
use serde_json::json;

/// A role: where it is written, and verbs by resource. Names behind the resource are those of the
/// only objects meant.
struct Role {
    source: &'static str,
    rules: &'static [(&'static str, &'static [&'static str])],
}

const EVENTS: (&str, &[&str]) = ("events", &["create", "patch", "update"]);
const LEASES: (&str, &[&str]) =
    ("leases.coordination.k8s.io", &["create", "get", "list", "watch", "update"]);
const ENDPOINTS: (&str, &[&str]) = ("endpoints", &["create", "get", "list", "watch", "update"]);
const VOLUMES: (&str, &[&str]) = ("persistentvolumes", &["get", "list", "update", "watch"]);
const READ: &[&str] = &["get", "list", "watch"];
/// Of the role `extension-apiserver-authentication-reader`, which the same manifests bind.
const READER: (&str, &[&str]) = ("configmaps extension-apiserver-authentication", READ);

const ROLES: [Role; 5] = [
    Role {
        source: "kubernetes/cloud-provider-aws v1.36.1: examples/existing-cluster/base/cluster-role.yaml",
        rules: &[
            EVENTS,
            ("nodes", &["*"]),
            ("nodes/status", &["patch"]),
            ("services", &["list", "patch", "update", "watch"]),
            ("services/status", &["list", "patch", "update", "watch"]),
            ("serviceaccounts", &["create", "get", "list", "watch"]),
            ("serviceaccounts/token", &["create"]),
            VOLUMES,
            ENDPOINTS,
            LEASES,
            READER,
        ],
    },
    Role {
        source: "kubernetes/cloud-provider-aws v1.36.1: charts/aws-cloud-controller-manager/values.yaml",
        rules: &[
            EVENTS,
            ("nodes", &["*"]),
            ("nodes/status", &["patch"]),
            ("services", &["list", "patch", "update", "watch"]),
            ("services/status", &["list", "patch", "update", "watch"]),
            ("serviceaccounts", &["create"]),
            ("serviceaccounts/token", &["create"]),
            VOLUMES,
            ENDPOINTS,
            LEASES,
            READER,
            ("tokenreviews.authentication.k8s.io", &["create"]),
            ("subjectaccessreviews.authorization.k8s.io", &["create"]),
        ],
    },
    Role {
        source: "kubernetes/cloud-provider-openstack v1.36.0: manifests/controller-manager/cloud-controller-manager-roles.yaml",
        rules: OPENSTACK,
    },
    Role {
        source: "kubernetes/cloud-provider-openstack v1.36.0: charts/openstack-cloud-controller-manager/templates/clusterrole.yaml",
        rules: OPENSTACK,
    },
    Role {
        source: "hetznercloud/hcloud-cloud-controller-manager v1.35.0: chart/templates/clusterrole.yml",
        rules: &[
            ("configmaps", READ),
            EVENTS,
            ("nodes", &["*"]),
            ("nodes/status", &["patch"]),
            ("services", &["list", "watch"]),
            ("services/status", &["patch", "update"]),
            ("serviceaccounts", &["create"]),
            LEASES,
        ],
    },
];

const OPENSTACK: &[(&str, &[&str])] = &[
    ("leases.coordination.k8s.io", &["get", "create", "update"]),
    EVENTS,
    ("nodes", &["*"]),
    ("nodes/status", &["patch"]),
    ("services", &["list", "patch", "update", "watch"]),
    ("services/status", &["patch"]),
    ("serviceaccounts", &["create", "get"]),
    ("serviceaccounts/token", &["create"]),
    ("persistentvolumes", &["*"]),
    ENDPOINTS,
    ("configmaps", READ),
    ("secrets", READ),
];

/// For the manager's own account with `--use-service-account-credentials`, beside those above that
/// grant tokens.
const WITH_ACCOUNTS: Role = Role {
    source: "kubernetes/cloud-provider-aws v1.36.1: examples/existing-cluster/overlays/superset-role/cluster-role-patch.yaml",
    rules: &[
        EVENTS,
        ("nodes", &["get", "list", "patch", "update", "watch"]),
        ("nodes/status", &["patch"]),
        ("services", &["list", "patch", "update", "watch"]),
        ("services/status", &["patch", "update"]),
        ("serviceaccounts", &["create"]),
        ENDPOINTS,
        LEASES,
        READER,
        ("serviceaccounts/token node-controller service-controller route-controller", &["create"]),
    ],
};

/// What each of the roles grants.
pub(crate) fn roles() -> anyhow::Result<Vec<Vec<Grant>>> {
    ROLES.iter().map(taken_apart).collect()
}

/// What each role grants that lets the manager ask for the controllers' tokens.
#[allow(dead_code, reason = "one of the suites that share this needs it")]
pub(crate) fn roles_with_accounts() -> anyhow::Result<Vec<Vec<Grant>>> {
    let mut roles = roles()?;
    roles.retain(|grants| {
        grants
            .iter()
            .any(|grant| grant.resource == "serviceaccounts/token")
    });
    roles.push(taken_apart(&WITH_ACCOUNTS)?);
    Ok(roles)
}

fn taken_apart(role: &Role) -> anyhow::Result<Vec<Grant>> {
    let rule = |(target, verbs): &(&str, &[&str])| {
        let mut words = target.split(' ');
        let target = words.next().unwrap_or_default();
        let (resource, group) = target.split_once('.').unwrap_or((target, ""));
        let names: Vec<_> = words.collect();
        json!({"apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": verbs})
    };
    let rules: Vec<_> = role.rules.iter().map(rule).collect();
    grants(&json!({"kind": "ClusterRole", "metadata": {"name": role.source}, "rules": rules}))
}

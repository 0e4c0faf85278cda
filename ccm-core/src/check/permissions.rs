//! The permissions that the enabled controllers need.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Area, ClusterFinding, Finding, Severity};
use crate::{config::controller_names as names, runtime::service_account};

/// A permission, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Permission {
    /// A controller, or another part of the process.
    pub(crate) needed_by: &'static str,
    pub(crate) verb: &'static str,
    group: &'static str,
    /// A resource, or a subresource such as `nodes/status`.
    resource: &'static str,
    namespace: Option<String>,
    name: Option<String>,
    /// The controller's own ServiceAccount that needs it; `None` for the user of this process.
    account: Option<&'static str>,
    /// How bad it is if the permission is missing.
    severity: Severity,
}

impl Permission {
    /// Creates permissions for a resource in all namespaces.
    fn cluster(
        needed_by: &'static str,
        verbs: &'static str,
        group: &'static str,
        resource: &'static str,
    ) -> impl Iterator<Item = Self> {
        verbs.split(' ').map(move |verb| Self {
            needed_by,
            verb,
            group,
            resource,
            namespace: None,
            name: None,
            account: None,
            severity: Severity::Error,
        })
    }

    fn in_namespace(self, namespace: &str, name: Option<&str>) -> Self {
        Self {
            namespace: Some(namespace.to_owned()),
            name: name.map(str::to_owned),
            ..self
        }
    }

    /// Builds the review that asks for this permission: a SelfSubjectAccessReview, or a
    /// SubjectAccessReview for a ServiceAccount of a controller.
    pub(crate) fn review(&self) -> Value {
        let attributes = self.attributes();
        let Some(account) = self.account else {
            return json!({
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            });
        };
        json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "resourceAttributes": attributes,
                "user": service_account::user(account),
                "groups": service_account::GROUPS,
            },
        })
    }

    /// Returns true if a ServiceAccount of a controller needs it.
    pub(crate) fn is_of_account(&self) -> bool {
        self.account.is_some()
    }

    fn attributes(&self) -> Value {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        json!({
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace.as_deref().unwrap_or_default(),
            "name": self.name.as_deref().unwrap_or_default(),
        })
    }

    /// Returns true if the caches cannot be filled without this permission.
    pub(crate) fn is_for_caches(&self) -> bool {
        self.needed_by == CACHES
    }
}

/// The parts of the process that need permissions.
#[derive(Clone, Debug, Default)]
pub(crate) struct EnabledParts {
    /// The names of the controllers that run.
    pub(crate) controllers: BTreeSet<&'static str>,
    /// True if the service controller watches EndpointSlices.
    pub(crate) endpoints: bool,
    /// The ServiceAccounts that the controllers use instead of the process's own, by the name of the
    /// controller. Empty without `--use-service-account-credentials`.
    pub(crate) accounts: BTreeMap<&'static str, &'static str>,
    /// The ServiceAccounts of `accounts` that do not exist yet, and that the manager creates.
    pub(crate) missing_accounts: BTreeSet<&'static str>,
    /// The namespaces and names of the Leases by which leaders are elected.
    pub(crate) leases: Vec<(String, String)>,
    /// True if the HTTPS server asks the API server about its users.
    pub(crate) delegated_auth: bool,
    /// How bad it is if the client CAs of the cluster cannot be read. `None` if they are not looked
    /// up.
    pub(crate) client_ca_lookup: Option<Severity>,
}

const CACHES: &str = "caches";
const ACCOUNTS: &str = "the controllers' ServiceAccounts";

/// Returns the permissions that these parts need, as in `rbac/`.
pub(crate) fn required(parts: &EnabledParts) -> Vec<Permission> {
    let mut all = Vec::new();
    all.extend(Permission::cluster(CACHES, "list watch", "", "nodes"));
    if parts.controllers.contains(names::SERVICE_LB) {
        all.extend(Permission::cluster(CACHES, "list watch", "", "services"));
    }
    let mut add = |controller, rules: &[(&'static str, &'static str)]| {
        if parts.controllers.contains(controller) {
            let account = parts.accounts.get(controller).copied();
            for (verbs, resource) in rules {
                let rules = Permission::cluster(controller, verbs, "", resource);
                all.extend(rules.map(|rule| Permission { account, ..rule }));
            }
        }
    };
    add(
        names::CLOUD_NODE,
        &[("get patch", "nodes"), ("patch", "nodes/status"), ("create patch", "events")],
    );
    add(
        names::CLOUD_NODE_LIFECYCLE,
        &[("get patch delete", "nodes"), ("create patch", "events")],
    );
    add(names::NODE_ROUTE, &[("patch", "nodes/status"), ("create patch", "events")]);
    add(names::SERVICE_LB, &[("patch", "services/status"), ("create patch", "events")]);
    add(names::NODE_IPAM, &[("get patch", "nodes"), ("create patch", "events")]);
    if parts.endpoints {
        // Without it only Services with pods as backends wait.
        let user = "Services with pods as backends";
        let slices = Permission::cluster(user, "list watch", "discovery.k8s.io", "endpointslices");
        all.extend(slices.map(|p| Permission { severity: Severity::Warning, ..p }));
    }
    for account in parts.accounts.values().collect::<BTreeSet<_>>() {
        let token = Permission::cluster(ACCOUNTS, "create", "", "serviceaccounts/token");
        all.extend(token.map(|p| p.in_namespace("kube-system", Some(account))));
    }
    for account in &parts.missing_accounts {
        let create = Permission::cluster(ACCOUNTS, "create", "", "serviceaccounts");
        all.extend(create.map(|p| p.in_namespace("kube-system", Some(account))));
    }
    for (namespace, name) in &parts.leases {
        all.extend(for_lease(namespace, name));
    }
    if parts.delegated_auth {
        // Without these the controllers work, but nobody can read metrics.
        let user = "the HTTPS server";
        let token = Permission::cluster(user, "create", "authentication.k8s.io", "tokenreviews");
        let access =
            Permission::cluster(user, "create", "authorization.k8s.io", "subjectaccessreviews");
        let reviews = token.chain(access);
        all.extend(reviews.map(|p| Permission { severity: Severity::Warning, ..p }));
    }
    if let Some(severity) = parts.client_ca_lookup {
        let lookup = Permission::cluster("the HTTPS server", "get", "", "configmaps");
        all.extend(lookup.map(|permission| Permission {
            severity,
            ..permission.in_namespace("kube-system", Some("extension-apiserver-authentication"))
        }));
    }
    all
}

/// Returns the permissions that leader election by this Lease needs.
fn for_lease(namespace: &str, name: &str) -> Vec<Permission> {
    let mut all = Vec::new();
    let (user, group) = ("leader election", "coordination.k8s.io");
    let create = Permission::cluster(user, "create", group, "leases");
    all.extend(create.map(|permission| permission.in_namespace(namespace, None)));
    let change = Permission::cluster(user, "get update", group, "leases");
    all.extend(change.map(|permission| permission.in_namespace(namespace, Some(name))));
    // Without it only the events "became leader" and "stopped leading" are missing.
    let events = Permission::cluster(user, "create", "", "events");
    let events = events.map(|p| Permission { severity: Severity::Warning, ..p });
    all.extend(events.map(|permission| permission.in_namespace(namespace, None)));
    all
}

/// Reports the permissions that are missing, by what needs them. `asked` is the number of those that
/// were asked for.
pub(crate) fn check(asked: usize, denied: &[&Permission]) -> Vec<Finding> {
    if denied.is_empty() {
        let message = format!("all {asked} permissions that the enabled controllers need");
        return vec![Finding::ok(Area::Permissions, message)];
    }
    let mut by_part: BTreeMap<(&str, Option<&str>), Missing> = BTreeMap::new();
    for permission in denied {
        let place = match &permission.namespace {
            Some(namespace) => format!(" in {namespace}"),
            None => String::new(),
        };
        let missing = by_part
            .entry((permission.needed_by, permission.account))
            .or_default();
        missing.is_error |= permission.severity == Severity::Error;
        missing
            .requests
            .insert(format!("{} {}{place}", permission.verb, permission.resource));
    }
    let mut findings = Vec::new();
    for ((part, account), missing) in by_part {
        let requests = missing.requests.into_iter().collect::<Vec<_>>().join(", ");
        let finding = match account {
            Some(account) => ClusterFinding::AccountPermissionMissing
                .about(account, format!("{part} as {account} may not: {requests}")),
            None => {
                ClusterFinding::PermissionMissing.about(part, format!("{part} may not: {requests}"))
            }
        };
        let severity = if missing.is_error {
            Severity::Error
        } else {
            Severity::Warning
        };
        findings.push(finding.with_severity(severity));
    }
    findings
}

/// The permissions that one part of the process lacks.
#[derive(Debug, Default)]
struct Missing {
    is_error: bool,
    requests: BTreeSet<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_parts() -> EnabledParts {
        EnabledParts {
            controllers: BTreeSet::from([
                names::CLOUD_NODE,
                names::CLOUD_NODE_LIFECYCLE,
                names::NODE_ROUTE,
                names::SERVICE_LB,
                names::NODE_IPAM,
            ]),
            endpoints: true,
            accounts: BTreeMap::new(),
            missing_accounts: BTreeSet::new(),
            leases: vec![("kube-system".to_owned(), "cloud-controller-manager".to_owned())],
            delegated_auth: true,
            client_ca_lookup: Some(Severity::Error),
        }
    }

    #[test]
    fn a_review_names_the_subresource_the_namespace_and_the_object() {
        let required = required(&all_parts());
        let find = |verb: &str, resource: &str| {
            required
                .iter()
                .find(|p| p.verb == verb && p.resource == resource)
                .unwrap()
                .review()["spec"]["resourceAttributes"]
                .clone()
        };
        assert_eq!(
            find("patch", "nodes/status"),
            json!({"verb": "patch", "group": "", "resource": "nodes", "subresource": "status", "namespace": "", "name": ""})
        );
        let lease = find("update", "leases");
        assert_eq!(
            (&lease["namespace"], &lease["name"]),
            (&json!("kube-system"), &json!("cloud-controller-manager"))
        );
        assert_eq!(find("create", "leases")["name"], "", "it has no name before it exists");
    }

    #[test]
    fn only_enabled_parts_need_permissions() {
        let needed_by = |parts: &EnabledParts| {
            required(parts)
                .iter()
                .map(|permission| permission.needed_by)
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(needed_by(&EnabledParts::default()), BTreeSet::from(["caches"]));
        assert_eq!(needed_by(&all_parts()).len(), 9);
        let accounts = BTreeMap::from([(names::CLOUD_NODE, "node-controller")]);
        let own = EnabledParts { accounts, ..all_parts() };
        assert!(needed_by(&own).contains(ACCOUNTS));
        for permission in required(&own) {
            let of_account = permission.needed_by == names::CLOUD_NODE;
            assert_eq!(permission.is_of_account(), of_account, "{permission:?}");
            let review = permission.review();
            let user = &review["spec"]["user"];
            if of_account {
                assert_eq!(*user, "system:serviceaccount:kube-system:node-controller");
            } else {
                assert!(user.is_null(), "{review}");
            }
        }
        let controllers = BTreeSet::from([names::CLOUD_NODE]);
        let node = EnabledParts { controllers, ..EnabledParts::default() };
        assert_eq!(needed_by(&node), BTreeSet::from(["caches", names::CLOUD_NODE]));
    }

    #[test]
    fn missing_permissions_are_reported_by_what_needs_them() {
        let required = required(&all_parts());
        assert_eq!(check(required.len(), &[])[0].severity, Severity::Ok);
        let denied: Vec<_> = required
            .iter()
            .filter(|p| {
                ["nodes/status", "tokenreviews", "leases", "configmaps"].contains(&p.resource)
            })
            .collect();
        let findings = check(required.len(), &denied);
        let lines: Vec<_> = findings
            .iter()
            .map(|finding| (finding.severity, &*finding.message))
            .collect();
        assert_eq!(
            lines,
            [
                (Severity::Error, "cloud-node-controller may not: patch nodes/status"),
                (
                    Severity::Error,
                    "leader election may not: create leases in kube-system, get leases in kube-system, update leases in kube-system"
                ),
                (Severity::Error, "node-route-controller may not: patch nodes/status"),
                (
                    Severity::Error,
                    "the HTTPS server may not: create tokenreviews, get configmaps in kube-system"
                ),
            ]
        );
        assert!(findings[0].advice.contains("rbac/"));
    }
}

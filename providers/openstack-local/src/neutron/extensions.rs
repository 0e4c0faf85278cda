//! API extensions of the service.

use std::collections::BTreeSet;

use crate::api::neutron::Extension;

/// Alias and name of each.
const EXTENSIONS: [(&str, &str); 22] = [
    ("allowed-address-pairs", "Allowed Address Pairs"),
    ("availability_zone", "Availability Zone"),
    ("binding", "Port Binding"),
    ("external-net", "Neutron external network"),
    ("extraroute", "Neutron Extra Route"),
    ("extraroute-atomic", "Atomically add/remove extra routes"),
    ("fip-port-details", "Floating IP Port Details Extension"),
    ("net-mtu", "Network MTU"),
    ("pagination", "Pagination support"),
    ("port-security", "Port Security"),
    ("project-id", "project_id field enabled"),
    ("quota_details", "Quota details management support"),
    ("quotas", "Quota management support"),
    ("revision-if-match", "If-Match constraints based on revision_number"),
    ("router", "Neutron L3 Router"),
    ("security-group", "security-group"),
    ("sorting", "Sorting support"),
    ("standard-attr-description", "standard-attr-description"),
    ("standard-attr-revisions", "Resource revision numbers"),
    ("standard-attr-tag", "Tag support for resources with standard attribute"),
    ("trunk", "Trunk Extension"),
    ("trunk-details", "Trunk port details"),
];

/// Returns those that are offered, ordered by alias.
pub fn list(hidden: &BTreeSet<String>) -> Vec<Extension> {
    EXTENSIONS
        .iter()
        .filter(|(alias, _)| !hidden.contains(*alias))
        .map(|(alias, name)| extension(alias, name))
        .collect()
}

fn extension(alias: &str, name: &str) -> Extension {
    Extension {
        alias: alias.into(),
        name: name.into(),
        description: name.into(),
        updated: "2020-01-01T00:00:00-00:00".into(),
        links: Vec::new(),
    }
}

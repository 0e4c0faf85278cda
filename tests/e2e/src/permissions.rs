//! What roles grant, taken apart, so that it can be compared with what was asked for.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::Context as _;
use ccm_testkit::control_plane::AuditEvent;
use serde::Deserialize;
use serde_json::{Value, json};

/// Every verb of a resource, for `*`.
const VERBS: [&str; 8] =
    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// One verb on one resource, perhaps of one name, that one role grants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// The role.
    pub role: String,
    /// Namespace that the role holds in; everywhere without.
    pub namespace: Option<String>,
    /// API group.
    pub group: String,
    /// Resource with its subresource, or `*`.
    pub resource: String,
    /// Verb, or `*`.
    pub verb: String,
    /// The only object that it is about.
    pub name: Option<String>,
}

/// A rule as a role has it.
#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
#[derive(Default)]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    resource_names: Vec<String>,
    verbs: Vec<String>,
}

/// Takes a Role or ClusterRole apart; nothing for an object of another kind.
///
/// # Errors
/// The rules cannot be read, or one is about nothing.
pub fn grants(manifest: &Value) -> anyhow::Result<Vec<Grant>> {
    let metadata = &manifest["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (role, namespace) =
        (text(&metadata["name"]), metadata["namespace"].as_str().map(str::to_owned));
    if !text(&manifest["kind"]).ends_with("Role") || manifest["rules"].is_null() {
        return Ok(Vec::new());
    }
    let rules: Vec<Rule> = serde_json::from_value(manifest["rules"].clone())
        .with_context(|| format!("rules of {role}"))?;
    let mut grants = Vec::new();
    for Rule { api_groups, resources, resource_names, verbs } in rules {
        let before = grants.len();
        let names: Vec<_> = if resource_names.is_empty() {
            vec![None]
        } else {
            resource_names.into_iter().map(Some).collect()
        };
        for group in &api_groups {
            for resource in &resources {
                for verb in &verbs {
                    grants.extend(names.iter().map(|name| Grant {
                        role: role.clone(),
                        namespace: namespace.clone(),
                        group: group.clone(),
                        resource: resource.clone(),
                        verb: verb.clone(),
                        name: name.clone(),
                    }));
                }
            }
        }
        anyhow::ensure!(grants.len() > before, "a rule of {role} grants nothing");
    }
    Ok(grants)
}

impl Grant {
    /// Whether it allows a request.
    pub fn allows(&self, request: &AuditEvent) -> bool {
        let fits = |granted: &str, asked: &str| granted == "*" || granted == asked;
        fits(&self.verb, &request.verb)
            && fits(&self.group, &request.group)
            && fits(&self.resource, &request.resource)
            && self.name.as_ref().is_none_or(|name| *name == request.name)
            && self
                .namespace
                .as_ref()
                .is_none_or(|namespace| *namespace == request.namespace)
    }

    /// Whether it allows all that the other does.
    fn covers(&self, other: &Self) -> bool {
        let fits = |mine: &str, theirs: &str| mine == "*" || mine == theirs;
        fits(&self.verb, &other.verb)
            && fits(&self.group, &other.group)
            && fits(&self.resource, &other.resource)
            && (self.name.is_none() || self.name == other.name)
            && (self.namespace.is_none() || self.namespace == other.namespace)
    }

    /// The same without `*` for the verb.
    fn spelt_out(&self) -> Vec<Self> {
        match self.verb.as_str() {
            "*" => VERBS
                .map(|verb| Self { verb: verb.to_owned(), ..self.clone() })
                .into(),
            _ => vec![self.clone()],
        }
    }

    /// As a rule of a role.
    pub fn rule(&self) -> Value {
        let mut rule =
            json!({"apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb]});
        if let Some(name) = &self.name {
            rule["resourceNames"] = json!([name]);
        }
        rule
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, namespace, group, resource, verb, name } = self;
        write!(f, "{role}: {verb} {resource}")?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        if let Some(name) = name {
            write!(f, " {name}")?;
        }
        namespace
            .as_ref()
            .map_or(Ok(()), |namespace| write!(f, " in {namespace}"))
    }
}

/// What all of these roles grant, verb by verb, in the words of the first that has it.
pub fn common(roles: &[Vec<Grant>]) -> Vec<Grant> {
    let all = roles.iter().flatten().flat_map(Grant::spelt_out);
    let everywhere = |grant: &Grant| {
        roles
            .iter()
            .all(|role| role.iter().any(|other| other.covers(grant)))
    };
    let mut seen = BTreeSet::new();
    let mut common: Vec<_> = all.filter(everywhere).collect();
    common.retain(|grant| seen.insert(grant.rule().to_string()));
    common
}

/// A right that no request needs, and why it is granted all the same.
#[derive(Debug, Clone, Copy)]
pub struct Exception {
    /// The grant as it is written.
    pub grant: &'static str,
    /// Why it is there.
    pub reason: &'static str,
}

/// Judges rights by the requests that were made: none may have been refused for want of one, each
/// has to be needed, and so has each exception.
///
/// # Errors
/// Names all that is wrong.
pub fn judge(
    grants: &[Grant],
    requests: &[AuditEvent],
    exceptions: &[Exception],
) -> anyhow::Result<()> {
    let mut wrong = forbidden(requests);
    let is_used = |grant: &Grant| {
        requests
            .iter()
            .any(|request| request.code < 300 && grant.allows(request))
    };
    let exception = |grant: &Grant| {
        exceptions
            .iter()
            .find(|exception| grant.to_string() == exception.grant)
    };
    for grant in grants {
        match (is_used(grant), exception(grant)) {
            (false, None) => wrong.insert(format!("granted and never used: {grant}")),
            (true, Some(exception)) => {
                wrong.insert(format!("used, hence no exception: {}", exception.grant))
            }
            _ => false,
        };
    }
    let unknown = exceptions.iter().filter(|exception| {
        grants
            .iter()
            .all(|grant| grant.to_string() != exception.grant)
    });
    wrong.extend(
        unknown.map(|exception| format!("an exception that nothing grants: {}", exception.grant)),
    );
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.into_iter().collect::<Vec<_>>().join("\n"));
    Ok(())
}

/// Requests that were refused for want of a right, each once.
pub fn forbidden(requests: &[AuditEvent]) -> BTreeSet<String> {
    let refused = requests.iter().filter(|request| request.code == 403);
    refused
        .map(|AuditEvent { verb, resource, namespace, name, user, .. }| {
            format!("forbidden to {user}: {verb} {resource} {namespace}/{name}")
        })
        .collect()
}

#[cfg(test)]
mod tests;

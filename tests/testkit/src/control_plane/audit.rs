//! Parses kube-apiserver's audit log and counts requests by user, verb, resource and result.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;

use serde::Deserialize;

/// The audit policy: one line per request, without bodies. `RequestReceived` would only repeat what
/// the later stage says; a watch appears when it starts and again when it ends.
pub(super) const POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [{"level": "Metadata"}]
}"#;

/// One request as the API server saw it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "RawEvent")]
pub struct AuditEvent {
    /// Identifies the request; a watch's events share one.
    pub audit_id: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; the HTTP
    /// method in lower case for requests that are not about a resource.
    pub verb: String,
    /// API group of the resource; empty for the core group.
    pub group: String,
    /// Resource with its subresource, such as `nodes` or `nodes/status`; the path for other
    /// requests.
    pub resource: String,
    /// Namespace, empty for resources without.
    pub namespace: String,
    /// Object name, empty for lists.
    pub name: String,
    /// User name.
    pub user: String,
    /// The client's `User-Agent` header.
    pub user_agent: String,
    /// HTTP status of the answer; 0 when none was recorded.
    pub code: u16,
}

/// The fields of `audit.k8s.io/v1` Event that are used.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEvent {
    #[serde(rename = "auditID")]
    audit_id: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    user: RawUser,
    object_ref: Option<RawObject>,
    response_status: Option<RawStatus>,
}

#[derive(Default, Deserialize)]
struct RawUser {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
struct RawObject {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct RawStatus {
    #[serde(default)]
    code: u16,
}

impl From<RawEvent> for AuditEvent {
    fn from(raw: RawEvent) -> Self {
        let object = raw.object_ref.unwrap_or_default();
        let resource = match (object.resource.as_str(), object.subresource.as_str()) {
            ("", _) => raw
                .request_uri
                .split('?')
                .next()
                .unwrap_or_default()
                .to_owned(),
            (resource, "") => resource.to_owned(),
            (resource, subresource) => format!("{resource}/{subresource}"),
        };
        Self {
            audit_id: raw.audit_id,
            verb: raw.verb,
            group: object.api_group,
            resource,
            namespace: object.namespace,
            name: object.name,
            user: raw.user.username,
            user_agent: raw.user_agent,
            code: raw.response_status.map_or(0, |status| status.code),
        }
    }
}

/// Key by which requests are counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuditKey {
    /// See [`AuditEvent::verb`].
    pub verb: String,
    /// See [`AuditEvent::resource`].
    pub resource: String,
    /// See [`AuditEvent::user_agent`].
    pub user_agent: String,
}

/// The requests of an audit log, one entry each, in the order in which they were answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditLog {
    /// The requests.
    pub events: Vec<AuditEvent>,
}

impl AuditLog {
    /// Reads the log file. The last line may be half written and is then left out.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    fn parse(text: &str) -> io::Result<Self> {
        let whole_lines = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let mut seen = HashSet::new();
        let mut events = Vec::new();
        for line in whole_lines.lines() {
            let event: AuditEvent = serde_json::from_str(line)?;
            if seen.insert(event.audit_id.clone()) {
                events.push(event);
            }
        }
        Ok(Self { events })
    }

    /// Returns only the requests that fit.
    #[must_use]
    pub fn filter(&self, mut fits: impl FnMut(&AuditEvent) -> bool) -> Self {
        Self {
            events: self
                .events
                .iter()
                .filter(|event| fits(event))
                .cloned()
                .collect(),
        }
    }

    /// Returns only the requests of clients whose user agent has this prefix.
    #[must_use]
    pub fn of_agent(&self, prefix: &str) -> Self {
        self.filter(|event| event.user_agent.starts_with(prefix))
    }

    /// Returns the number of requests by verb, resource and user agent.
    pub fn counts(&self) -> BTreeMap<AuditKey, usize> {
        let mut counts = BTreeMap::new();
        for AuditEvent { verb, resource, user_agent, .. } in &self.events {
            let key = AuditKey {
                verb: verb.clone(),
                resource: resource.clone(),
                user_agent: user_agent.clone(),
            };
            *counts.entry(key).or_default() += 1;
        }
        counts
    }

    /// Returns the number of requests with this verb on this resource.
    pub fn count(&self, verb: &str, resource: &str) -> usize {
        self.events
            .iter()
            .filter(|event| event.verb == verb && event.resource == resource)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = concat!(
        r#"{"kind":"Event","auditID":"1","stage":"ResponseStarted","requestURI":"/api/v1/nodes?watch=true","verb":"watch","user":{"username":"a"},"userAgent":"ccm/1","objectRef":{"resource":"nodes","apiVersion":"v1"},"responseStatus":{"code":200}}"#,
        "\n",
        r#"{"kind":"Event","auditID":"2","stage":"ResponseComplete","requestURI":"/api/v1/nodes/n/status","verb":"patch","user":{"username":"a"},"userAgent":"ccm/1","objectRef":{"resource":"nodes","name":"n","apiVersion":"v1","subresource":"status"},"responseStatus":{"code":409}}"#,
        "\n",
        r#"{"kind":"Event","auditID":"1","stage":"ResponseComplete","requestURI":"/api/v1/nodes?watch=true","verb":"watch","user":{"username":"a"},"userAgent":"ccm/1","objectRef":{"resource":"nodes","apiVersion":"v1"},"responseStatus":{"code":200}}"#,
        "\n",
        r#"{"kind":"Event","auditID":"3","stage":"ResponseComplete","requestURI":"/readyz?verbose","verb":"get","user":{"username":"b"},"userAgent":"probe","responseStatus":{"code":200}}"#,
        "\n",
        r#"{"kind":"Event","auditID":"4","sta"#,
    );

    #[test]
    fn a_request_counts_once_and_a_half_line_not_at_all() {
        let log = AuditLog::parse(LOG).unwrap();
        assert_eq!(
            log.events
                .iter()
                .map(|event| event.audit_id.as_str())
                .collect::<Vec<_>>(),
            ["1", "2", "3"]
        );
        assert_eq!(log.count("watch", "nodes"), 1);
        assert_eq!(log.count("patch", "nodes/status"), 1);
        assert_eq!(log.count("patch", "nodes"), 0);
        assert_eq!(log.events[1].code, 409);
        assert_eq!(log.events[1].name, "n");
        assert_eq!(log.events[2].resource, "/readyz");
    }

    #[test]
    fn counts_are_by_verb_resource_and_agent() {
        let log = AuditLog::parse(LOG).unwrap();
        let counts = log.of_agent("ccm").counts();
        let keys: Vec<_> = counts
            .iter()
            .map(|(key, count)| (key.verb.as_str(), key.resource.as_str(), *count))
            .collect();
        assert_eq!(keys, [("patch", "nodes/status", 1), ("watch", "nodes", 1)]);
    }

    #[test]
    fn a_broken_line_in_the_middle_is_an_error() {
        assert!(AuditLog::parse("{\n{}\n").is_err());
    }
}

//! What the subcommand `check` finds out about cluster, cloud and configuration, as pure functions
//! of what [`Manager::check`](crate::manager::Manager::check) observed.

pub(crate) mod cluster;
mod kinds;
pub(crate) mod lease;
pub(crate) mod managers;
pub(crate) mod permissions;
pub mod reference;
pub(crate) mod services;

use serde::Serialize;
use serde_json::{Value, json};

pub use self::kinds::ClusterFinding;
pub use crate::provider::{Area, Finding, FindingKind, Severity};
use crate::{
    error::{BoxError, chain},
    provider::NotBuilt,
};

/// The result of the subcommand `check`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// All findings, in the order of the checks.
    pub findings: Vec<Finding>,
}

impl CheckReport {
    /// Returns the worst severity of all findings.
    pub fn worst(&self) -> Severity {
        self.findings
            .iter()
            .map(|finding| finding.severity)
            .max()
            .unwrap_or(Severity::Ok)
    }

    /// Formats the report as a table for people, which ends in a line that counts.
    pub fn table(&self) -> String {
        let mut lines = Vec::new();
        for finding in &self.findings {
            let Finding { area, severity, message, .. } = finding;
            lines.push(format!("{severity:<8} {area:<12} {message}"));
            if !finding.consequence.is_empty() {
                lines.push(format!("{:21} => {}", "", finding.consequence));
            }
            if !finding.advice.is_empty() {
                lines.push(format!("{:21} -> {}", "", finding.advice));
            }
        }
        let (errors, warnings) = (self.count(Severity::Error), self.count(Severity::Warning));
        lines.push(format!("errors: {errors}, warnings: {warnings}"));
        lines.join("\n")
    }

    /// Formats the report as JSON. The schema is documented in `docs/reference/check.md`; fields are
    /// only added.
    pub fn json(&self) -> Value {
        let findings: Vec<FindingRow> = self.findings.iter().map(FindingRow::from).collect();
        json!({
            "errors": self.count(Severity::Error),
            "warnings": self.count(Severity::Warning),
            "findings": findings,
        })
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    }
}

/// A finding in its JSON form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FindingRow {
    /// The name of its kind. Empty if all is well.
    pub finding: &'static str,
    /// The subject of the check.
    pub area: String,
    /// `ok`, `warning` or `error`.
    pub severity: String,
    /// The object that it is about. May be empty.
    pub object: String,
    /// What was found.
    pub message: String,
    /// What follows from it. Empty if nothing does.
    pub consequence: String,
    /// What to do about it. Empty if nothing is to be done.
    pub advice: String,
}

impl From<&Finding> for FindingRow {
    fn from(finding: &Finding) -> Self {
        Self {
            finding: finding.name,
            area: finding.area.to_string(),
            severity: finding.severity.to_string(),
            object: finding.object.clone(),
            message: finding.message.clone(),
            consequence: finding.consequence.clone(),
            advice: finding.advice.clone(),
        }
    }
}

/// Returns the finding about a provider that cannot be built.
pub fn not_built(error: &BoxError) -> Finding {
    match error.downcast_ref::<NotBuilt>() {
        Some(error) => error.finding.clone(),
        None => ClusterFinding::CloudConfigRejected.about("cloud config", chain(&**error)),
    }
}

/// Returns the finding about a panic, which ended only a part of the checks.
pub(crate) fn panicked(object: &str, panic: &str) -> Finding {
    ClusterFinding::CheckPanicked.about(object, format!("a panic ended {object}: {panic}"))
}

/// Lists names for a message: all of them if they are few, otherwise the first and a count.
pub fn list_names<T: AsRef<str>>(names: &[T]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_shows_what_to_do_and_counts() {
        let report = CheckReport {
            findings: vec![
                Finding::ok(Area::ApiServer, "Kubernetes v1.36.3"),
                ClusterFinding::ServiceRejected.about("shop/web", "shop/web: no ports"),
            ],
        };
        assert_eq!(report.worst(), Severity::Error);
        assert_eq!(
            report.table(),
            "ok       api server   Kubernetes v1.36.3\n\
             error    services     shop/web: no ports\n                      \
             => the Service is not served, or keeps the load balancer that it has\n                      \
             -> correct the fields of Service shop/web that are named\n\
             errors: 1, warnings: 0"
        );
        let json = report.json();
        assert_eq!((&json["errors"], &json["warnings"]), (&json!(1), &json!(0)));
        let keys = ["finding", "area", "severity", "object", "message", "consequence", "advice"];
        for finding in json["findings"].as_array().unwrap() {
            let finding = finding.as_object().unwrap();
            assert_eq!(finding.len(), keys.len(), "{finding:?}");
            assert!(keys.iter().all(|key| finding[*key].is_string()), "{finding:?}");
        }
        assert_eq!(json["findings"][0]["finding"], "");
        assert_eq!(json["findings"][1]["finding"], "ServiceRejected");
        assert_eq!(json["findings"][1]["object"], "shop/web");
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(list_names(&["a", "b"]), "a, b");
        assert_eq!(list_names(&["a", "b", "c", "d", "e", "f", "g"]), "a, b, c, d, e and 2 more");
    }
}

//! What the subcommand `check` finds out about cluster, cloud and configuration, as pure functions
//! of what [`Manager::check`](crate::manager::Manager::check) observed.

pub(crate) mod cluster;
pub(crate) mod lease;
pub(crate) mod permissions;

use std::fmt;

use serde_json::{Value, json};

/// The result of the subcommand `check`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// All findings, in the order of the checks.
    pub findings: Vec<Finding>,
}

/// One result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The subject of the check.
    pub area: Area,
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub message: String,
    /// What to do about it. Empty if nothing is to be done.
    pub advice: String,
}

/// The subject of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// The connection to the API server, and its version.
    ApiServer,
    /// The controllers that are enabled.
    Controllers,
    /// The permissions of this process in the cluster.
    Permissions,
    /// The Lease of leader election.
    Leader,
    /// The configuration of the cloud, and the connection to it.
    Cloud,
    /// Nodes and their instances.
    Nodes,
    /// Services of type LoadBalancer.
    Services,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// All is well.
    Ok,
    /// The manager can work, but something deserves attention.
    Warning,
    /// The manager, or a part of it, cannot work.
    Error,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ApiServer => "api server",
            Self::Controllers => "controllers",
            Self::Permissions => "permissions",
            Self::Leader => "leader",
            Self::Cloud => "cloud",
            Self::Nodes => "nodes",
            Self::Services => "services",
        })
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

impl Finding {
    /// Creates a finding that needs no action.
    pub(crate) fn ok(area: Area, message: impl Into<String>) -> Self {
        Self {
            area,
            severity: Severity::Ok,
            message: message.into(),
            advice: String::new(),
        }
    }

    /// Creates a warning.
    pub(crate) fn warning(
        area: Area,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let (severity, message, advice) = (Severity::Warning, message.into(), advice.into());
        Self { area, severity, message, advice }
    }

    /// Creates an error.
    pub(crate) fn error(area: Area, message: impl Into<String>, advice: impl Into<String>) -> Self {
        let (severity, message, advice) = (Severity::Error, message.into(), advice.into());
        Self { area, severity, message, advice }
    }
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
        for Finding { area, severity, message, advice } in &self.findings {
            lines.push(format!("{severity:<8} {area:<12} {message}"));
            if !advice.is_empty() {
                lines.push(format!("{:21} -> {advice}", ""));
            }
        }
        let (errors, warnings) = (self.count(Severity::Error), self.count(Severity::Warning));
        lines.push(format!("errors: {errors}, warnings: {warnings}"));
        lines.join("\n")
    }

    /// Formats the report as JSON.
    pub fn json(&self) -> Value {
        let finding = |finding: &Finding| {
            json!({
                "area": finding.area.to_string(),
                "severity": finding.severity.to_string(),
                "message": finding.message,
                "advice": finding.advice,
            })
        };
        json!({
            "errors": self.count(Severity::Error),
            "warnings": self.count(Severity::Warning),
            "findings": self.findings.iter().map(finding).collect::<Vec<_>>(),
        })
    }

    /// Returns true if there is a finding about `area`.
    pub(crate) fn has(&self, area: Area) -> bool {
        self.findings.iter().any(|finding| finding.area == area)
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    }
}

/// Lists names for a message: all of them if they are few, otherwise the first and a count.
fn list_names(names: &[&str]) -> String {
    const SHOWN: usize = 5;
    let shown = names[..names.len().min(SHOWN)].join(", ");
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
                Finding::error(Area::Nodes, "n1 is unknown", "check the region"),
            ],
        };
        assert_eq!(report.worst(), Severity::Error);
        assert_eq!(
            report.table(),
            "ok       api server   Kubernetes v1.36.3\n\
             error    nodes        n1 is unknown\n                      -> check the region\n\
             errors: 1, warnings: 0"
        );
        let json = report.json();
        assert_eq!((&json["errors"], &json["warnings"]), (&json!(1), &json!(0)));
        assert_eq!(json["findings"][1]["advice"], "check the region");
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(list_names(&["a", "b"]), "a, b");
        assert_eq!(list_names(&["a", "b", "c", "d", "e", "f", "g"]), "a, b, c, d, e and 2 more");
    }
}

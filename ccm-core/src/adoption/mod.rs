//! The adoption report: what a single comparison of shadow mode found out, in a form that can be
//! attached to a change request.
//!
//! [`Manager`](crate::manager::Manager) observes; everything here is a pure function of what it
//! observed.

pub(crate) mod defects;
pub mod estimate;
mod markdown;

use jiff::Timestamp;
use serde::Serialize;

pub use self::defects::FoundDefect;
use self::estimate::Estimate;
use crate::{
    check::{Finding, FindingRow, Severity},
    k8s::{LbStatus, NodeView, ServiceView},
    runtime::shadow::{Difference, NotCompared, Notice, ObjectKind, Summary, Verdict},
};

/// The version of the JSON form. It changes if a field is removed or changes its meaning; fields are
/// only added otherwise.
pub const FORMAT_VERSION: u32 = 1;

/// The report. Its JSON form is documented in `docs/adoption.md`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AdoptionReport {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// The time at which the report was made.
    pub at: Timestamp,
    /// The program that made the report, and that would manage the cluster.
    pub manager: ReportingManager,
    /// The cluster.
    pub cluster: ReportedCluster,
    /// The manager that is active now.
    pub active_manager: ActiveManager,
    /// `same`, `different` or `incomplete`, as the exit code says it.
    pub verdict: &'static str,
    /// The numbers of compared objects and of differences.
    pub summary: Summary,
    /// What is served now.
    pub served: Served,
    /// What this manager would change.
    pub changes: Vec<Difference>,
    /// What could not be compared.
    pub not_compared: Vec<NotCompared>,
    /// What this manager would warn the owners of Services about, such as dormant annotations.
    pub notices: Vec<Notice>,
    /// The permissions that this manager needs, and lacks.
    pub permissions: Permissions,
    /// What the provider's own check found in the cloud.
    pub cloud: CloudFindings,
    /// What else would not work.
    pub findings: Vec<FindingRow>,
    /// The defects of the active manager that were seen.
    pub defects: Vec<FoundDefect>,
    /// What was not examined, and why.
    pub not_examined: Vec<String>,
    /// The calls and writes per hour of both managers, estimated.
    pub estimate: Estimate,
    /// How to go back to the active manager.
    pub way_back: Vec<String>,
}

/// The program that made the report.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportingManager {
    /// The name of the binary.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The cloud provider.
    pub provider: String,
}

/// The cluster of the report.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportedCluster {
    /// `--cluster-name`.
    pub name: String,
    /// The host of the API server.
    pub api_server: String,
}

/// The manager that is active now, as far as it is known.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ActiveManager {
    /// The Lease of leader election, as `namespace/name`. `None` without leader election.
    pub lease: Option<String>,
    /// The identity that holds it. `None` if nobody does, or if it could not be read.
    pub holder: Option<String>,
    /// Why the Lease could not be read. `None` if it was read, does not exist or is not needed.
    pub unreadable: Option<String>,
}

/// What is served now.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Served {
    /// The controllers that were compared.
    pub controllers: Vec<&'static str>,
    /// The Services of type LoadBalancer of this provider, by name. `None` if the service
    /// controller does not run.
    pub services: Option<Vec<ServedService>>,
    /// The Nodes of this provider, by name.
    pub nodes: Vec<ServedNode>,
    /// The number of routes in the pod networks. `None` if the route controller does not run.
    pub routes: Option<usize>,
}

/// A Service with a load balancer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedService {
    /// `namespace/name`.
    pub name: String,
    /// The addresses and host names of its status.
    pub addresses: Vec<String>,
    /// The ports, such as `80/TCP`.
    pub ports: Vec<String>,
    /// The number of changes that this manager would make.
    pub changes: usize,
}

/// A Node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedNode {
    /// The name.
    pub name: String,
    /// The provider ID.
    pub provider_id: Option<String>,
    /// True if the Node is Ready.
    pub ready: bool,
    /// True if a cloud-controller-manager has initialised it.
    pub initialized: bool,
    /// The addresses, such as `InternalIP 10.0.0.1`.
    pub addresses: Vec<String>,
    /// The pod networks.
    pub pod_cidrs: Vec<String>,
    /// The number of changes that this manager would make.
    pub changes: usize,
}

/// The permissions in the cluster.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Permissions {
    /// The user for whom the API server was asked, which is that of this process. `None` if the
    /// API server does not say.
    pub user: Option<String>,
    /// True if the ServiceAccounts of `--use-service-account-credentials` were asked for, too.
    pub has_service_accounts: bool,
    /// The answers.
    pub findings: Vec<FindingRow>,
    /// Why not all permissions were asked for. `None` if they were.
    pub not_examined: Option<String>,
}

/// What the provider's own check found.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CloudFindings {
    /// The findings that are not fine.
    pub findings: Vec<FindingRow>,
    /// Why the check did not end. `None` if it did.
    pub not_examined: Option<String>,
}

impl AdoptionReport {
    /// Returns the report as JSON.
    ///
    /// # Errors
    /// None occur: all keys are strings.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Returns the report as Markdown (CommonMark with GitHub's tables).
    pub fn markdown(&self) -> String {
        markdown::render(self)
    }
}

/// Returns the word for a verdict.
pub(crate) fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Same => "same",
        Verdict::Different => "different",
        Verdict::Incomplete => "incomplete",
    }
}

/// Returns the findings that are not fine.
pub(crate) fn problems(findings: &[Finding]) -> Vec<FindingRow> {
    let problems = findings.iter().filter(|f| f.severity > Severity::Ok);
    problems.map(FindingRow::from).collect()
}

/// Describes a Node of this provider.
pub(crate) fn served_node(node: &NodeView, changes: &[Difference]) -> ServedNode {
    let addresses = node.addresses.iter();
    ServedNode {
        name: node.name.to_string(),
        provider_id: node.provider_id.as_deref().map(str::to_owned),
        ready: node.is_ready(),
        initialized: !node.is_uninitialized(),
        addresses: addresses
            .map(|address| format!("{} {}", address.kind.as_str(), address.address))
            .collect(),
        pod_cidrs: node.pod_cidrs.iter().map(ToString::to_string).collect(),
        changes: count(changes, ObjectKind::Node, &node.name),
    }
}

/// Describes a Service with a load balancer.
pub(crate) fn served_service(service: &ServiceView, changes: &[Difference]) -> ServedService {
    let name = service.key();
    let ports = service.ports.iter();
    ServedService {
        addresses: addresses(&service.status),
        ports: ports
            .map(|port| format!("{}/{}", port.port, port.protocol.as_str()))
            .collect(),
        changes: count(changes, ObjectKind::Service, &name),
        name,
    }
}

fn addresses(status: &LbStatus) -> Vec<String> {
    let ingress = status.ingress.iter();
    ingress
        .filter_map(|ingress| match (&ingress.hostname, ingress.ip) {
            (Some(hostname), _) => Some(hostname.to_string()),
            (None, ip) => ip.map(|ip| ip.to_string()),
        })
        .collect()
}

fn count(changes: &[Difference], kind: ObjectKind, object: &str) -> usize {
    let about = |change: &&Difference| change.kind == kind && change.object == object;
    changes.iter().filter(about).count()
}

/// Describes how to go back to the active manager, whose Lease is `lease`.
pub(crate) fn way_back(lease: Option<&str>, has_changes: bool) -> Vec<String> {
    let mut steps = vec![
        "Change the image, and the command if it names the binary, back to those of the manager that is active now. Nothing has to be converted: labels, taints, the finalizer, conditions, events and the Lease are the same.".to_owned(),
        "Remove the flags that the other manager does not know, for example `--shadow-once`, `--report` and `--node-deletion-safety`. It ends at its start with an unknown flag.".to_owned(),
    ];
    if let Some(lease) = lease {
        steps.push(format!(
            "Wait until the other manager holds the Lease `{lease}`. This manager releases it when it stops, so that takes seconds; a manager that is killed keeps it until it expires."
        ));
    }
    if has_changes {
        steps.push("The changes that this report lists stay as this manager made them until the other manager has a reason to change them.".to_owned());
    }
    steps.push("Look at `kubectl get events -A --field-selector type=Warning`, `kubectl get nodes -o wide` and `kubectl get services -A --field-selector spec.type=LoadBalancer`, as after the takeover.".to_owned());
    steps
}

#[cfg(test)]
mod tests;

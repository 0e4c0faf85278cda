//! The explanation of a Service.

use jiff::Timestamp;
use serde::Serialize;

use super::{Attempt, ExplainedCause};

/// The explanation of a Service of type LoadBalancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceExplanation {
    /// `namespace/name`.
    pub service: String,
    /// When this was explained.
    pub at: Timestamp,
    /// One sentence.
    pub summary: String,
    /// What is wrong, the most important cause first. Empty if nothing is.
    pub causes: Vec<ExplainedCause>,
    /// What the Service requests, as read.
    pub requested: RequestedLoadBalancer,
    /// What exists.
    pub existing: ExistingLoadBalancer,
    /// What this manager does next.
    pub plan: ExplainedPlan,
    /// The last attempt, if it did not succeed.
    pub last_attempt: Option<Attempt>,
    /// The backends, if the Service should have a load balancer of this manager.
    pub backends: Option<ExplainedBackends>,
}

/// What a Service requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestedLoadBalancer {
    /// True if the Service has type LoadBalancer.
    pub is_load_balancer: bool,
    /// `spec.loadBalancerClass`.
    pub class: Option<String>,
    /// The ports, as `port/protocol -> node port`.
    pub ports: Vec<String>,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic_policy: &'static str,
    /// The networks of the clients that may connect; empty if the Service sets none.
    pub source_ranges: Vec<String>,
    /// The annotations, and where each comes from.
    pub annotations: Vec<ExplainedAnnotation>,
    /// The validation errors of an invalid Service, as `field: error`.
    pub validation_errors: Vec<String>,
    /// What the provider remarks about a valid Service.
    pub notices: Vec<String>,
}

/// An annotation of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedAnnotation {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// Who wrote it.
    pub origin: &'static str,
}

/// What exists of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExistingLoadBalancer {
    /// True if the Service has the finalizer that keeps it until its load balancer is deleted.
    pub finalizer: bool,
    /// The addresses and host names of the status.
    pub ingress: Vec<String>,
    /// True if the cloud may have objects for the Service, as far as this process knows.
    pub may_exist_in_cloud: bool,
    /// True if the cloud was last seen in the state that the Service requests.
    pub up_to_date: bool,
    /// When the load balancer is next compared with the cloud.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_drift_check: Option<Timestamp>,
    /// Since when the cloud has been working on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_since: Option<Timestamp>,
}

/// What the manager does next for a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedPlan {
    /// The action, such as `ensure`; `wait` if there is none.
    pub action: &'static str,
    /// The reason for the action.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: &'static str,
    /// Until when nothing is done unless something changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// The backends of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedBackends {
    /// `nodes` or `endpoints`.
    pub kind: &'static str,
    /// The number of members that get traffic.
    pub members: usize,
    /// True if these are the backends that were last applied to the cloud.
    pub applied: bool,
    /// Every node or endpoint, with the reason why it is a member or not.
    pub candidates: Vec<ExplainedMember>,
}

/// A node or endpoint that could be a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedMember {
    /// The name of the node, or the addresses of the endpoint.
    pub name: String,
    /// True if it is a member.
    pub member: bool,
    /// Why it is, or is not.
    pub reason: String,
}

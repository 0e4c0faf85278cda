//! The explanation of a Node.

use jiff::Timestamp;
use serde::Serialize;

use super::{Attempt, AttemptRecord, Cause, ExplainTime, ExplainedCause};
use crate::{
    config::controller_names as names,
    k8s::{AddressType, NodeAddress, NodeView, Taint, well_known},
    provider::{
        CloudProvider, NodeOwnership, PowerState,
        instance_records::{AnswerContent, InstanceRecords},
    },
};

/// The explanation of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeExplanation {
    /// The name of the Node.
    pub node: String,
    /// When this was explained.
    pub at: Timestamp,
    /// One sentence.
    pub summary: String,
    /// What is wrong, the most important cause first. Empty if nothing is.
    pub causes: Vec<ExplainedCause>,
    /// True if the condition `Ready` is `True`.
    pub ready: bool,
    /// True if the Node belongs to the provider of this manager.
    pub ours: bool,
    /// The name of the provider of this manager.
    pub provider: String,
    /// `spec.providerID`.
    pub provider_id: Option<String>,
    /// The taints, and who sets them.
    pub taints: Vec<ExplainedTaint>,
    /// The last answer of the cloud about the instance, if this process has one.
    pub instance: Option<InstanceAnswer>,
    /// The proof that the instance is absent, as far as it has come.
    pub absence: Option<ExplainedAbsence>,
    /// `status.addresses`, and where they come from.
    pub addresses: Vec<ExplainedAddress>,
    /// The labels that the cloud reported and that were not set.
    pub labels_not_set: Vec<ExplainedLabel>,
    /// `spec.podCIDRs`, with their routes.
    pub pod_cidrs: Vec<ExplainedPodCidr>,
    /// The condition `NetworkUnavailable`, as `status (reason)`.
    pub network_unavailable: Option<String>,
    /// The last attempts that did not succeed.
    pub attempts: Vec<Attempt>,
    /// The controllers of this process that look after nodes.
    pub controllers: Vec<&'static str>,
}

/// A taint, and who sets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedTaint {
    /// `key:effect`.
    pub taint: String,
    /// Who sets the taint, and when it goes.
    pub origin: &'static str,
}

/// The last answer of the cloud about an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceAnswer {
    /// The answer, such as `running` or `not found`.
    pub answer: &'static str,
    /// When it came.
    pub at: Timestamp,
    /// The error, if the query failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The ID of the failed request in the cloud's own logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// True if the cloud has found the instance since this process started.
    pub found_since_start: bool,
    /// Since when the cloud no longer finds an instance that it found before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_found_since: Option<Timestamp>,
}

/// The proof that an instance is absent, as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedAbsence {
    /// Since when this process has seen that the node is not Ready.
    pub not_ready_since: Timestamp,
    /// For how many seconds the cloud has answered "not found", without errors in between.
    pub not_found_for_seconds: u64,
    /// For how many seconds it must at least.
    pub required_seconds: u64,
    /// When the cloud is asked again.
    pub next_query: Timestamp,
    /// Why the Node was not deleted although that time is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// An address of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedAddress {
    /// The type, such as `InternalIP`.
    pub kind: &'static str,
    /// The address.
    pub address: String,
    /// Where it comes from.
    pub origin: &'static str,
}

/// A label that the cloud reported and that was not set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedLabel {
    /// The key.
    pub label: String,
    /// Why it was not set.
    pub reason: &'static str,
}

/// A pod CIDR of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedPodCidr {
    /// The CIDR, as written in the Node.
    pub cidr: String,
    /// The state of its route; absent if this process manages no routes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
}

impl InstanceAnswer {
    /// Returns the last answer about a node; `None` if there is none.
    pub(crate) fn last(
        records: &InstanceRecords,
        node: &NodeView,
        time: ExplainTime,
    ) -> Option<Self> {
        let last = records.last_answer(&node.name)?;
        let record = records.of(node).unwrap_or_default();
        let mut error = None;
        let mut request_id = None;
        let answer = match last.content {
            AnswerContent::NotFound => "not found",
            AnswerContent::Found(PowerState::Running) => "running",
            AnswerContent::Found(PowerState::Stopped) => "shut down",
            AnswerContent::Found(PowerState::Terminated) => "terminated",
            AnswerContent::Found(PowerState::Transitional) => "neither running nor shut down",
            AnswerContent::Found(PowerState::Unknown) => "in an unknown state",
            AnswerContent::Failed(failure) => {
                error = Some(failure.chain());
                request_id = failure.request_id().map(str::to_owned);
                "the query failed"
            }
        };
        Some(Self {
            answer,
            at: time.at(last.at),
            error,
            request_id,
            found_since_start: record.was_found,
            not_found_since: record.lost_since.map(|since| time.at(since)),
        })
    }
}

impl NodeExplanation {
    /// Creates an explanation from the Node alone, to which the controllers add.
    pub(crate) fn new(node: &NodeView, provider: &dyn CloudProvider, time: ExplainTime) -> Self {
        let ours = provider.node_ownership(node) == NodeOwnership::Ours;
        let mut explanation = Self {
            node: node.name.to_string(),
            at: time.wall(),
            summary: String::new(),
            causes: Vec::new(),
            ready: node.is_ready(),
            ours,
            provider: provider.name().to_owned(),
            provider_id: node.provider_id.as_deref().map(str::to_owned),
            taints: node.taints.iter().map(explain_taint).collect(),
            instance: None,
            absence: None,
            addresses: explain_addresses(node, ours),
            labels_not_set: Vec::new(),
            pod_cidrs: Vec::new(),
            network_unavailable: node
                .network_unavailable
                .as_ref()
                .map(|condition| format!("{} ({})", condition.status.as_str(), condition.reason)),
            attempts: Vec::new(),
            controllers: Vec::new(),
        };
        for cidr in &node.pod_cidrs {
            explanation
                .pod_cidrs
                .push(ExplainedPodCidr { cidr: cidr.to_string(), route: None });
        }
        if !ours {
            let id = node.provider_id.as_deref().unwrap_or_default();
            let message =
                format!("node {}: provider ID {id:?} is not of {}", node.name, provider.name());
            explanation.add(ExplainedCause::new(Cause::NodeOfAnotherProvider, message));
        }
        if node.deleting {
            let message = format!("node {}: has a deletion timestamp", node.name);
            explanation.add(ExplainedCause::new(Cause::NodeBeingDeleted, message));
        }
        explanation
    }

    /// Adds a cause.
    pub(crate) fn add(&mut self, cause: ExplainedCause) {
        self.causes.push(cause);
    }

    /// Adds an attempt that did not succeed, and its cause.
    pub(crate) fn add_attempt(
        &mut self,
        controller: &'static str,
        attempt: &AttemptRecord,
        time: ExplainTime,
    ) {
        self.attempts.push(attempt.explain(controller, time));
        let object = format!("node {}", self.node);
        self.add(ExplainedCause::of_attempt(&object, attempt, time));
    }

    /// Completes the explanation after all controllers have contributed.
    pub(crate) fn finish(&mut self, node: &NodeView) {
        let is_initialised_here = self.controllers.contains(&names::CLOUD_NODE);
        if self.ours && node.is_uninitialized() && !is_initialised_here {
            let message = format!("node {}: no controller here initialises it", node.name);
            self.add(ExplainedCause::new(Cause::CloudNodeControllerNotRunning, message));
        }
        let others: Vec<_> = node.taints.iter().filter(|taint| !is_ours(taint)).collect();
        if !others.is_empty() {
            let keys: Vec<_> = others.iter().map(|taint| &*taint.key).collect();
            let message = format!("node {}: {}", node.name, keys.join(", "));
            self.add(ExplainedCause::new(Cause::TaintedByOthers, message));
        }
        let state = match (self.ours, node.is_uninitialized(), node.is_ready()) {
            (false, ..) => "belongs to another provider",
            (true, true, _) => "is not initialised",
            (true, false, false) => "is initialised and not Ready",
            (true, false, true) => "is initialised and Ready",
        };
        self.summary = format!("Node {} {state}", node.name);
    }
}

/// Returns true if this manager removes the taint when its cause is gone.
fn is_ours(taint: &Taint) -> bool {
    &*taint.key == well_known::TAINT_UNINITIALIZED
        || taint.is_shutdown()
        || taint.is_own_out_of_service()
}

fn explain_taint(taint: &Taint) -> ExplainedTaint {
    let origin = match &*taint.key {
        well_known::TAINT_UNINITIALIZED => {
            "the kubelet sets it with --cloud-provider=external; this manager removes it when it has found the instance"
        }
        well_known::TAINT_SHUTDOWN => {
            "this manager sets it while the instance is shut down, and removes it when the node is Ready"
        }
        well_known::TAINT_TO_BE_DELETED => {
            "the cluster autoscaler sets it and will delete the node"
        }
        "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable" => {
            "kube-controller-manager sets it while the kubelet is not Ready or does not report"
        }
        "node.kubernetes.io/network-unavailable" => {
            "kube-controller-manager sets it while the condition NetworkUnavailable is True: the route is missing"
        }
        "node.kubernetes.io/memory-pressure"
        | "node.kubernetes.io/disk-pressure"
        | "node.kubernetes.io/pid-pressure" => {
            "kube-controller-manager sets it while the kubelet reports the pressure"
        }
        "node.kubernetes.io/unschedulable" => "somebody has cordoned the node: kubectl uncordon",
        well_known::TAINT_OUT_OF_SERVICE if taint.is_own_out_of_service() => {
            "this manager sets it after --out-of-service-after, and removes it when the instance runs or the node is Ready"
        }
        well_known::TAINT_OUT_OF_SERVICE => "an administrator has set it",
        _ => "not set by this manager",
    };
    ExplainedTaint {
        taint: format!("{}:{}", taint.key, taint.effect.as_str()),
        origin,
    }
}

fn explain_addresses(node: &NodeView, ours: bool) -> Vec<ExplainedAddress> {
    let provided = node
        .annotations
        .get(well_known::ANNOTATION_PROVIDED_NODE_IP)
        .unwrap_or_default();
    let origin = |address: &NodeAddress| {
        if !ours {
            "another manager"
        } else if node.is_uninitialized() {
            "the kubelet; the cloud's follow with the initialisation"
        } else if provided.split(',').any(|ip| ip == &*address.address) {
            "the cloud; first because of the kubelet's --node-ip"
        } else if address.kind == AddressType::Hostname {
            "the cloud, or the kubelet if the cloud reports no host name"
        } else {
            "the cloud"
        }
    };
    node.addresses
        .iter()
        .map(|address| ExplainedAddress {
            kind: address.kind.as_str(),
            address: address.address.to_string(),
            origin: origin(address),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{k8s::TaintEffect, runtime::events::WallClock};

    struct Cloud;
    impl CloudProvider for Cloud {
        fn name(&self) -> &'static str {
            "test"
        }

        fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
            NodeOwnership::by_scheme("test", node)
        }
    }

    fn tainted(keys: &[&str]) -> NodeView {
        let taint = |key: &&str| Taint {
            key: Arc::from(*key),
            value: Arc::from(""),
            effect: TaintEffect::NoSchedule,
        };
        NodeView {
            taints: keys.iter().map(taint).collect(),
            ..NodeView::named("a")
        }
    }

    fn explain(node: &NodeView) -> NodeExplanation {
        let time = ExplainTime::new(&WallClock::system());
        let mut explanation = NodeExplanation::new(node, &Cloud, time);
        explanation.finish(node);
        explanation
    }

    fn causes(explanation: &NodeExplanation) -> Vec<Cause> {
        explanation.causes.iter().map(|cause| cause.cause).collect()
    }

    #[test]
    fn each_taint_says_who_sets_it_and_only_those_of_others_are_a_cause() {
        let shutdown = explain(&tainted(&[well_known::TAINT_SHUTDOWN]));
        assert_eq!(causes(&shutdown), [], "the lifecycle controller has the cause of this one");
        assert!(shutdown.taints[0].origin.contains("this manager sets it"));
        let others = explain(&tainted(&["node.kubernetes.io/not-ready", "team/gpu"]));
        assert_eq!(causes(&others), [Cause::TaintedByOthers]);
        assert_eq!(others.causes[0].message, "node a: node.kubernetes.io/not-ready, team/gpu");
        assert!(others.taints[0].origin.contains("kube-controller-manager"));
        assert_eq!(others.taints[1].origin, "not set by this manager");
    }

    #[test]
    fn a_tainted_node_without_the_controller_says_so() {
        let explanation = explain(&tainted(&[well_known::TAINT_UNINITIALIZED]));
        assert_eq!(causes(&explanation), [Cause::CloudNodeControllerNotRunning]);
        assert_eq!(explanation.summary, "Node a is not initialised");
    }

    #[test]
    fn a_node_of_another_provider_and_one_that_is_deleted_are_named() {
        let foreign = NodeView {
            provider_id: Some("other://1".into()),
            ..NodeView::named("a")
        };
        let explanation = explain(&foreign);
        assert_eq!(causes(&explanation), [Cause::NodeOfAnotherProvider]);
        assert_eq!(
            explanation.causes[0].message,
            "node a: provider ID \"other://1\" is not of test"
        );
        let deleting = explain(&NodeView { deleting: true, ..NodeView::named("a") });
        assert_eq!(causes(&deleting), [Cause::NodeBeingDeleted]);
    }
}

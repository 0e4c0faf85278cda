//! What the cloud-node controller contributes to the explanation of a node.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    NodeController, NodeSyncError,
    apply::NodeWriteError,
    plan::{InitializationError, addresses::AddressError, labels::DroppedLabel},
};
use crate::{
    config::controller_names::CLOUD_NODE,
    explain::{
        AttemptLog, AttemptRecord, Cause, ExplainTime, ExplainedCause, ExplainedLabel, Explainer,
        InstanceAnswer, NodeExplanation, api_attempt, api_cause, cloud_attempt, cloud_cause,
    },
    k8s::NodeView,
    provider::{CloudError, ErrorKind, instance_records::InstanceRecords},
    runtime::api::ApiError,
};

/// What explanations need beyond the state that the controller acts on. Only nodes whose last
/// attempt failed, or that lack a label, have an entry. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeHistory {
    /// The last syncs that failed.
    pub(super) syncs: AttemptLog,
    /// The last comparisons of addresses that failed.
    pub(super) updates: AttemptLog,
    dropped_labels: Arc<Mutex<HashMap<Arc<str>, Vec<DroppedLabel>>>>,
}

impl NodeHistory {
    /// Records a sync that failed. An error that says nothing about the node is left out.
    pub(super) fn record_failure(
        &self,
        node: &NodeView,
        error: &NodeSyncError,
        failures: u32,
        retry_at: Instant,
    ) {
        let Some(cause) = error.cause() else {
            return;
        };
        let operation = if node.is_uninitialized() {
            "initialize"
        } else {
            "update labels"
        };
        let attempt = AttemptRecord {
            request_id: error.request_id(),
            failures,
            retry_at: Some(retry_at),
            ..AttemptRecord::now(operation, cause, error.text(node))
        };
        self.syncs.record(&node.name, attempt);
    }

    /// Records a failed query for a comparison of addresses.
    pub(super) fn record_failed_query(&self, node: &NodeView, error: &CloudError) {
        self.updates
            .record(&node.name, cloud_attempt("compare addresses", error));
    }

    /// Records addresses that could not be chosen.
    pub(super) fn record_address_error(&self, node: &NodeView, error: &AddressError, text: &str) {
        let attempt = AttemptRecord::now("compare addresses", address_cause(error), text);
        self.updates.record(&node.name, attempt);
    }

    /// Records a failed write of addresses or labels.
    pub(super) fn record_failed_update(&self, node: &NodeView, error: &ApiError) {
        self.updates
            .record(&node.name, api_attempt("write addresses or labels", error));
    }

    /// Records the labels that were not set when the node was initialised.
    pub(super) fn record_dropped_labels(&self, node: &Arc<str>, labels: Vec<DroppedLabel>) {
        let mut dropped = self.dropped_labels.lock();
        if labels.is_empty() {
            dropped.remove(node);
        } else {
            dropped.insert(node.clone(), labels);
        }
    }

    /// Forgets a node that no longer exists.
    pub(super) fn forget(&self, node: &str) {
        self.syncs.clear(node);
        self.updates.clear(node);
        self.dropped_labels.lock().remove(node);
    }
}

impl NodeSyncError {
    /// Returns the cause that the error stands for; `None` if it says nothing about the node.
    pub(super) fn cause(&self) -> Option<Cause> {
        Some(match self {
            Self::Stopping | Self::NodeChanged | Self::Apply(NodeWriteError::NodeReplaced) => {
                return None;
            }
            Self::InstanceNotFound => Cause::InstanceNotFound,
            Self::Panicked(_) => Cause::SyncPanicked,
            Self::Cloud(error) if error.kind() == ErrorKind::InvalidInput => {
                Cause::InvalidProviderId
            }
            Self::Cloud(error) => cloud_cause(error),
            Self::Apply(NodeWriteError::Plan(InitializationError::NoProviderId(_))) => {
                Cause::MissingProviderId
            }
            Self::Apply(NodeWriteError::Plan(InitializationError::Address { source, .. })) => {
                address_cause(source)
            }
            Self::Apply(NodeWriteError::Api(error)) => api_cause(error),
        })
    }

    /// Returns the ID of the failed request in the cloud's own logs.
    fn request_id(&self) -> Option<Arc<str>> {
        match self {
            Self::Cloud(error) => error.request_id().map(Arc::from),
            _ => None,
        }
    }
}

/// Returns the cause for which addresses could not be chosen.
pub(super) fn address_cause(error: &AddressError) -> Cause {
    match error {
        AddressError::BadAnnotation { .. } => Cause::InvalidProvidedNodeIp,
        AddressError::NotInCloud(_) => Cause::NodeIpNotInCloud,
    }
}

/// Explains nodes from the state of the controller.
struct CloudNodeExplainer {
    history: NodeHistory,
    records: Arc<InstanceRecords>,
}

impl NodeController {
    /// Returns what explains nodes while the controller runs.
    pub(crate) fn explainer(&self) -> Arc<dyn Explainer> {
        Arc::new(CloudNodeExplainer {
            history: self.history.clone(),
            records: self.instances.records().clone(),
        })
    }
}

impl Explainer for CloudNodeExplainer {
    fn explain_node(&self, node: &NodeView, time: ExplainTime, explanation: &mut NodeExplanation) {
        explanation.controllers.push(CLOUD_NODE);
        explanation.instance = InstanceAnswer::last(&self.records, node, time);
        if !explanation.ours || node.deleting {
            return;
        }
        // A node that is not initialised and has no failed sync has not been synced yet.
        match self.history.syncs.get(&node.name) {
            Some(attempt) => explanation.add_attempt(CLOUD_NODE, &attempt, time),
            None if node.is_uninitialized() => {
                let message = format!("node {}: its first sync is queued or runs", node.name);
                explanation.add(ExplainedCause::new(Cause::NodeNotSyncedYet, message));
            }
            None => {}
        }
        if !node.is_uninitialized()
            && let Some(attempt) = self.history.updates.get(&node.name)
        {
            explanation.add_attempt(CLOUD_NODE, &attempt, time);
        }
        if let Some(labels) = self.history.dropped_labels.lock().get(&node.name) {
            explanation.labels_not_set = labels
                .iter()
                .map(|label| ExplainedLabel {
                    label: label.key.clone(),
                    reason: label.reason.as_str(),
                })
                .collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controllers::node::plan::labels::DropReason, provider::CloudProvider,
        runtime::events::WallClock,
    };

    struct Cloud;
    impl CloudProvider for Cloud {
        fn name(&self) -> &'static str {
            "test"
        }
    }

    fn address(source: AddressError) -> NodeSyncError {
        let error = InitializationError::Address { node: "a".to_owned(), source };
        NodeSyncError::Apply(NodeWriteError::Plan(error))
    }

    fn cloud(kind: ErrorKind) -> NodeSyncError {
        NodeSyncError::from(CloudError::new(kind, "no"))
    }

    #[test]
    fn each_error_of_a_sync_has_its_cause() {
        let bad = AddressError::BadAnnotation { value: "x".to_owned(), reason: "no" };
        let missing = InitializationError::NoProviderId("a".to_owned());
        for (error, cause) in [
            (NodeSyncError::Stopping, None),
            (NodeSyncError::NodeChanged, None),
            (NodeSyncError::Apply(NodeWriteError::NodeReplaced), None),
            (cloud(ErrorKind::NotLeader), None),
            (NodeSyncError::InstanceNotFound, Some(Cause::InstanceNotFound)),
            (cloud(ErrorKind::NotFound), Some(Cause::InstanceNotFound)),
            (cloud(ErrorKind::InvalidInput), Some(Cause::InvalidProviderId)),
            (cloud(ErrorKind::Denied), Some(Cause::CloudAccessDenied)),
            (cloud(ErrorKind::QuotaExceeded), Some(Cause::QuotaExceeded)),
            (NodeSyncError::Panicked("no".to_owned()), Some(Cause::SyncPanicked)),
            (NodeSyncError::Apply(NodeWriteError::Plan(missing)), Some(Cause::MissingProviderId)),
            (address(bad), Some(Cause::InvalidProvidedNodeIp)),
            (address(AddressError::NotInCloud([1, 2, 3, 4].into())), Some(Cause::NodeIpNotInCloud)),
        ] {
            assert_eq!(error.cause(), cause, "{error:?}");
            // What is explained is reported as an event, too, and the other way round.
            assert_eq!(error.event_reason().is_some(), cause.is_some(), "{error:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn labels_that_were_not_set_are_explained_until_the_node_is_gone() {
        let history = NodeHistory::default();
        let explainer = CloudNodeExplainer { history: history.clone(), records: Arc::default() };
        let node = NodeView::named("a");
        let time = ExplainTime::new(&WallClock::system());
        let labels = || {
            let mut explanation = NodeExplanation::new(&node, &Cloud, time);
            explainer.explain_node(&node, time, &mut explanation);
            explanation.labels_not_set
        };
        let dropped = DroppedLabel { key: "k8s.io/x".to_owned(), reason: DropReason::Reserved };
        history.record_dropped_labels(&node.name, vec![dropped]);
        let reason = "its key is in a name space reserved for Kubernetes";
        assert_eq!(labels(), [ExplainedLabel { label: "k8s.io/x".to_owned(), reason }]);
        history.forget("a");
        assert_eq!(labels(), []);
    }
}

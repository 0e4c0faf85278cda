//! Explains for each node or endpoint whether it is a backend. Pure functions.

use std::sync::Arc;

use super::super::backend_nodes::{
    BackendNodes, ExclusionReason, endpoints_fingerprint, exclusion_reason,
};
use crate::{
    explain::{ExplainedBackends, ExplainedMember},
    k8s::{EndpointSliceView, EndpointView, NodeView, well_known},
    provider::{LabelRequirement, NodeTarget},
};

/// The backends of a Service, with the reason for each candidate.
#[derive(Debug)]
pub(super) struct SelectedBackends {
    pub(super) kind: &'static str,
    /// The fingerprint of the members; `None` if the EndpointSlices are not listed.
    pub(super) fingerprint: Option<u64>,
    /// True if most members are gone from the cache, which the API server has not confirmed.
    pub(super) is_unconfirmed: bool,
    pub(super) candidates: Vec<ExplainedMember>,
}

impl SelectedBackends {
    pub(super) fn members(&self) -> usize {
        self.candidates
            .iter()
            .filter(|candidate| candidate.member)
            .count()
    }

    pub(super) fn explain(self, applied: bool) -> ExplainedBackends {
        ExplainedBackends {
            kind: self.kind,
            members: self.members(),
            applied,
            candidates: self.candidates,
        }
    }
}

/// Explains which of the nodes are backends. `is_candidate` returns false for a node that the load
/// balancers cannot address.
pub(super) fn explain_nodes(
    mut all: Vec<Arc<NodeView>>,
    requirements: &[LabelRequirement],
    target: NodeTarget,
    is_candidate: impl Fn(&NodeView) -> bool,
) -> SelectedBackends {
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let mut candidates = Vec::new();
    for node in &all {
        let is_addressable = is_candidate(node);
        let exclusion = exclusion_reason(node, requirements);
        let reason = match exclusion {
            _ if !is_addressable => "it belongs to another cloud provider".to_owned(),
            Some(exclusion) => describe_exclusion(exclusion),
            None if !node.is_ready() => {
                "no reason against it; it is not Ready, which the health check of the load balancer decides".to_owned()
            }
            None => "no reason against it".to_owned(),
        };
        let member = is_addressable && exclusion.is_none();
        candidates.push(ExplainedMember { name: node.name.to_string(), member, reason });
    }
    all.retain(|node| is_candidate(node));
    let set = BackendNodes::new(&all, requirements, target);
    SelectedBackends {
        kind: "nodes",
        fingerprint: Some(set.fingerprint),
        is_unconfirmed: false,
        candidates,
    }
}

fn describe_exclusion(exclusion: ExclusionReason<'_>) -> String {
    match exclusion {
        ExclusionReason::Deleting => "the Node is being deleted".to_owned(),
        ExclusionReason::ExclusionLabel => {
            format!("it has the label {}", well_known::LABEL_EXCLUDE_FROM_LOAD_BALANCERS)
        }
        ExclusionReason::AutoscalerTaint => {
            format!("it has the taint {}", well_known::TAINT_TO_BE_DELETED)
        }
        ExclusionReason::Requirement(LabelRequirement::Exists(key)) => {
            format!("it lacks the label {key}")
        }
        ExclusionReason::Requirement(LabelRequirement::Equals(key, value)) => {
            format!("it lacks the label {key}={value}")
        }
    }
}

/// Explains which of the endpoints are backends; `slices` is `None` if they are not listed.
pub(super) fn explain_endpoints(slices: Option<&[Arc<EndpointSliceView>]>) -> SelectedBackends {
    let mut candidates = Vec::new();
    for slice in slices.unwrap_or_default() {
        candidates.extend(slice.endpoints.iter().map(explain_endpoint));
    }
    SelectedBackends {
        kind: "endpoints",
        fingerprint: slices.map(endpoints_fingerprint),
        is_unconfirmed: false,
        candidates,
    }
}

fn explain_endpoint(endpoint: &EndpointView) -> ExplainedMember {
    let addresses: Vec<_> = endpoint.addresses.iter().map(ToString::to_string).collect();
    let name = match &endpoint.node {
        Some(node) => format!("{} on node {node}", addresses.join(", ")),
        None => addresses.join(", "),
    };
    let (member, reason) = match (endpoint.serving, endpoint.terminating) {
        (true, false) => (true, "it serves"),
        (true, true) => (false, "its pod is terminating and finishes its connections"),
        (false, true) => (false, "its pod is terminating"),
        (false, false) => (false, "its pod is not ready"),
    };
    ExplainedMember { name, member, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::{LabelMap, Taint, TaintEffect};

    fn labelled(name: &str, labels: &[(&str, &str)]) -> Arc<NodeView> {
        let labels: LabelMap = labels.iter().copied().collect();
        Arc::new(NodeView { labels, ..NodeView::named(name) })
    }

    #[test]
    fn each_node_that_is_left_out_has_its_reason() {
        let taint = Taint {
            key: Arc::from(well_known::TAINT_TO_BE_DELETED),
            value: Arc::from(""),
            effect: TaintEffect::NoSchedule,
        };
        let web = [("role", "web")];
        let going = NodeView {
            taints: Box::new([taint]),
            ..(*labelled("autoscaled", &web)).clone()
        };
        let deleting = NodeView { deleting: true, ..(*labelled("deleting", &web)).clone() };
        let exclude = well_known::LABEL_EXCLUDE_FROM_LOAD_BALANCERS;
        let nodes = vec![
            labelled("other", &[("role", "db")]),
            labelled("in", &web),
            labelled("excluded", &[("role", "web"), (exclude, "")]),
            labelled("foreign", &web),
            Arc::new(going),
            Arc::new(deleting),
        ];
        let requirements = [LabelRequirement::Equals("role".into(), "web".into())];
        let is_candidate = |node: &NodeView| *node.name != *"foreign";
        let selected =
            explain_nodes(nodes.clone(), &requirements, NodeTarget::Address, is_candidate);
        let reasons: Vec<_> = selected
            .candidates
            .iter()
            .map(|member| (&*member.name, member.member, &*member.reason))
            .collect();
        assert_eq!(
            reasons,
            [
                ("autoscaled", false, "it has the taint ToBeDeletedByClusterAutoscaler"),
                ("deleting", false, "the Node is being deleted"),
                (
                    "excluded",
                    false,
                    "it has the label node.kubernetes.io/exclude-from-external-load-balancers"
                ),
                ("foreign", false, "it belongs to another cloud provider"),
                (
                    "in",
                    true,
                    "no reason against it; it is not Ready, which the health check of the load balancer decides"
                ),
                ("other", false, "it lacks the label role=web"),
            ]
        );
        // The explanation has the same members and the same fingerprint as the sync.
        let candidates: Vec<_> = nodes
            .into_iter()
            .filter(|node| is_candidate(node))
            .collect();
        let synced = BackendNodes::new(&candidates, &requirements, NodeTarget::Address);
        assert_eq!(selected.fingerprint, Some(synced.fingerprint));
        assert_eq!((selected.members(), synced.nodes.len()), (1, 1));
    }

    #[test]
    fn endpoints_are_members_while_they_serve() {
        let endpoint = |last, serving: bool, terminating: bool| EndpointView {
            addresses: Box::new([[10, 0, 0, last].into()]),
            node: Some(Arc::from("a")),
            zone: None,
            ready: serving && !terminating,
            serving,
            terminating,
        };
        let slice = EndpointSliceView {
            endpoints: Box::new([
                endpoint(1, true, false),
                endpoint(2, false, false),
                endpoint(3, true, true),
                endpoint(4, false, true),
            ]),
            ..EndpointSliceView::named("shop", "web-1", "web")
        };
        let selected = explain_endpoints(Some(&[Arc::new(slice)]));
        assert_eq!(selected.members(), 1);
        assert_eq!(selected.candidates[0].name, "10.0.0.1 on node a");
        let reasons: Vec<_> = selected
            .candidates
            .iter()
            .map(|member| &*member.reason)
            .collect();
        assert_eq!(
            reasons,
            [
                "it serves",
                "its pod is not ready",
                "its pod is terminating and finishes its connections",
                "its pod is terminating"
            ]
        );
        assert_eq!(explain_endpoints(None).fingerprint, None, "they are not listed");
    }
}

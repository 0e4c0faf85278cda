//! Chooses the labels that the controller writes to a node.

use std::collections::BTreeMap;

use crate::{
    k8s::{LabelMap, NodeView, is_dns_subdomain, is_label_name, is_label_value, well_known},
    provider::InstanceMetadata,
};

/// The label pairs that upstream reconciles. The stable label is a copy of the beta label.
const PAIRS: [(&str, &str); 3] = [
    (well_known::LABEL_ZONE_BETA, well_known::LABEL_ZONE),
    (well_known::LABEL_REGION_BETA, well_known::LABEL_REGION),
    (well_known::LABEL_INSTANCE_TYPE_BETA, well_known::LABEL_INSTANCE_TYPE),
];

/// A label that the cloud reported and that is not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DroppedLabel {
    pub(crate) key: String,
    pub(crate) reason: DropReason,
}

/// The reason why a label is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The key is in a name space that is reserved for Kubernetes.
    Reserved,
    /// The node already has another value, which an initialisation does not overwrite.
    Different,
    /// The API server would reject the key or the value, and with it the whole initialisation.
    Invalid,
}

impl DropReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "its key is in a name space reserved for Kubernetes",
            Self::Different => "the node has another value already",
            Self::Invalid => "the API server would not accept it",
        }
    }
}

/// Labels to write, and labels that are not written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelPlan {
    pub(crate) set: BTreeMap<String, String>,
    /// True if `set` contains additional labels. An initialisation must not overwrite any, so its
    /// patch must fail if the node has changed since it was read.
    pub(crate) sets_additional: bool,
    pub(crate) dropped: Vec<DroppedLabel>,
}

/// Plans the labels of an initialisation. `existing` must contain all labels of the node.
pub(crate) fn initial_labels(meta: &InstanceMetadata, existing: &LabelMap) -> LabelPlan {
    let mut plan = LabelPlan::default();
    for (value, keys) in [
        (
            &meta.instance_type,
            [well_known::LABEL_INSTANCE_TYPE_BETA, well_known::LABEL_INSTANCE_TYPE],
        ),
        (&meta.zone, [well_known::LABEL_ZONE_BETA, well_known::LABEL_ZONE]),
        (&meta.region, [well_known::LABEL_REGION_BETA, well_known::LABEL_REGION]),
    ] {
        let Some(value) = value.as_deref().filter(|value| !value.is_empty()) else {
            continue;
        };
        for key in keys {
            if !is_label_value(value) {
                plan.drop(key, DropReason::Invalid);
            } else if existing.get(key) != Some(value) {
                plan.set.insert(key.to_owned(), value.to_owned());
            }
        }
    }
    plan.add_additional(meta, existing, OverwritePolicy::Keep);
    plan
}

/// Plans the refresh of additional labels on an initialised node (upstream's feature gate
/// `CloudNodeAdditionalLabelsReconciliation`). Missing labels are added and different values are
/// replaced, but no label is removed.
pub(crate) fn refreshed_labels(meta: &InstanceMetadata, existing: &LabelMap) -> LabelPlan {
    let mut plan = LabelPlan::default();
    plan.add_additional(meta, existing, OverwritePolicy::Replace);
    plan
}

/// Returns the stable labels of an initialised node that differ from their beta labels, with the
/// values of the beta labels.
///
/// As upstream, a stable label without a beta label is not changed. The beta labels are deprecated,
/// but existing clusters rely on this.
pub(crate) fn reconciled_labels(node: &NodeView) -> BTreeMap<&'static str, String> {
    let mut copies = BTreeMap::new();
    for (beta, stable) in PAIRS {
        if let Some(value) = node.labels.get(beta)
            && node.labels.get(stable) != Some(value)
        {
            copies.insert(stable, value.to_owned());
        }
    }
    copies
}

/// Returns the beta label that a stable label is copied from.
pub(crate) fn beta_label_of(stable: &str) -> Option<&'static str> {
    let (beta, _) = PAIRS.into_iter().find(|(_, copy)| *copy == stable)?;
    Some(beta)
}

#[derive(Clone, Copy)]
enum OverwritePolicy {
    Keep,
    Replace,
}

impl LabelPlan {
    fn drop(&mut self, key: &str, reason: DropReason) {
        self.dropped
            .push(DroppedLabel { key: key.to_owned(), reason });
    }

    fn add_additional(
        &mut self,
        meta: &InstanceMetadata,
        existing: &LabelMap,
        overwrite: OverwritePolicy,
    ) {
        for (key, value) in &meta.additional_labels {
            let current = existing.get(key);
            if is_reserved(key) {
                self.drop(key, DropReason::Reserved);
            } else if !is_label_key(key) || !is_label_value(value) {
                self.drop(key, DropReason::Invalid);
            } else if current == Some(value) {
                // The node already has it.
            } else if current.is_some() && matches!(overwrite, OverwritePolicy::Keep) {
                self.drop(key, DropReason::Different);
            } else {
                self.set.insert(key.to_string(), value.to_string());
                self.sets_additional = true;
            }
        }
    }
}

/// Returns true if the prefix of the key is `kubernetes.io`, `k8s.io` or a subdomain of one of
/// them.
fn is_reserved(key: &str) -> bool {
    // Upstream searches the whole key for `(^|\.)(kubernetes|k8s)\.io/`, but only the prefix can
    // match.
    let Some((prefix, _)) = key.split_once('/') else {
        return false;
    };
    ["kubernetes.io", "k8s.io"].iter().any(|domain| {
        prefix
            .strip_suffix(domain)
            .is_some_and(|subdomain| subdomain.is_empty() || subdomain.ends_with('.'))
    })
}

/// Returns true if the API server accepts this label key, which has the form `[prefix/]name`.
fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        None => is_label_name(key),
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_name(name),
    }
}

#[cfg(test)]
#[path = "labels_tests.rs"]
mod tests;

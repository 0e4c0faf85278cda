//! Announces what changes when a Service, or the configuration, asks for more than upstream's reading
//! of its annotations.

use ccm_core::provider::{EventType, Op, PlannedChange};

use crate::lb::{
    observe::observed::ObservedState,
    reconcile::{LoadBalancerReconciler, ReconcileInput, resolved_targets::ResolvedTargets},
    sync_state::LoadBalancerSyncState,
};

/// Maximum length of the list in a note, which has at most 1 kB.
const MAX_LIST_LENGTH: usize = 900;

impl LoadBalancerReconciler {
    /// Emits an event with the changes that upstream's reading of the Service would not cause,
    /// before they are made. Emits none for a new load balancer, and none again in this process.
    pub(super) async fn announce_activation(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        observed: &ObservedState,
        resolved_targets: &ResolvedTargets,
        state: &mut LoadBalancerSyncState,
    ) {
        let Some(as_upstream) = input.as_upstream else {
            state.activation_announced = false;
            return;
        };
        if state.activation_announced {
            return;
        }
        state.activation_announced = true;
        if observed.load_balancer.is_none() {
            return;
        }
        // What cannot be planned now is reported by the sync itself.
        let changes = self
            .planned_changes(op, input.desired, observed, resolved_targets)
            .await
            .unwrap_or_default();
        if changes.is_empty() {
            return;
        }
        // If upstream could not serve the Service, all changes are due to the other reading.
        let of_upstream = self
            .planned_changes(op, as_upstream, observed, resolved_targets)
            .await
            .unwrap_or_default();
        let activated = changes
            .iter()
            .filter(|change| !of_upstream.contains(change));
        if let Some(note) = describe(activated) {
            op.event(EventType::Normal, "AnnotationsActivated", &note);
        }
    }
}

/// Describes changes, each kind once; returns `None` if there are none.
fn describe<'a>(changes: impl Iterator<Item = &'a PlannedChange>) -> Option<String> {
    let mut entries: Vec<String> = Vec::new();
    let mut length = 0;
    for change in changes {
        let entry = format!("{} ({})", change.operation, change.reason);
        if entries.contains(&entry) {
            continue;
        }
        length += entry.len() + 2;
        if length > MAX_LIST_LENGTH {
            entries.push("…".to_owned());
            break;
        }
        entries.push(entry);
    }
    if entries.is_empty() {
        return None;
    }
    let list = entries.join("; ");
    Some(format!("annotations that upstream's manager ignores take effect: {list}"))
}

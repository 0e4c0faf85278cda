//! Announces what changes when a Service, or the configuration, asks for more than upstream's reading
//! of its annotations.

use ccm_core::provider::{CloudError, ErrorKind, EventType, Op, PlannedChange};

use crate::lb::{
    observe::observed::ObservedState,
    reconcile::{
        LoadBalancerReconciler, ReconcileInput, as_transient, resolved_targets::ResolvedTargets,
    },
    sync_state::LoadBalancerSyncState,
};

/// Maximum length of the list in a note, which has at most 1 kB.
const MAX_LIST_LENGTH: usize = 900;

impl LoadBalancerReconciler {
    /// Emits an event with the changes that upstream's reading of the Service would not cause,
    /// before they are made. Emits none for a new load balancer, and none again in this process.
    ///
    /// # Errors
    /// Errors that may go away by themselves. The sync must then end before it changes anything, so
    /// that the next one can announce it.
    pub(super) async fn announce_activation(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        observed: &ObservedState,
        resolved_targets: &ResolvedTargets,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), CloudError> {
        let Some(as_upstream) = input.as_upstream else {
            state.activation_announced = false;
            return Ok(());
        };
        if state.activation_announced {
            return Ok(());
        }
        if observed.load_balancer.is_none() {
            state.activation_announced = true;
            return Ok(());
        }
        let changes = match self
            .planned_changes(op, input.desired, observed, resolved_targets, true)
            .await
        {
            Ok(changes) => changes,
            // The sync itself reports what is wrong. The next one announces what is possible then.
            Err(error) if is_rejection(&error) || error.kind() == ErrorKind::Denied => {
                return Ok(());
            }
            Err(error) => return Err(as_transient(error)),
        };
        let of_upstream = match self
            .planned_changes(op, as_upstream, observed, resolved_targets, true)
            .await
        {
            Ok(of_upstream) => of_upstream,
            // Upstream could not serve the Service, so that all changes are due to the other reading.
            Err(error) if is_rejection(&error) => Vec::new(),
            // Without permission nothing can be compared, but the sync may still succeed.
            Err(error) if error.kind() == ErrorKind::Denied => return Ok(()),
            Err(error) => return Err(as_transient(error)),
        };
        state.activation_announced = true;
        let activated = changes
            .iter()
            .filter(|change| !of_upstream.contains(change));
        if let Some(note) = describe(activated) {
            op.event(EventType::Normal, "AnnotationsActivated", &note);
        }
        Ok(())
    }
}

/// Returns true if the desired state itself is the reason of an error.
fn is_rejection(error: &CloudError) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::QuotaExceeded)
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

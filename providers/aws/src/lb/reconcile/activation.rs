//! Announces what changes when a Service, or the configuration, asks for more than upstream's reading
//! of its annotations.

use ccm_core::provider::{EventType, Op};

use crate::lb::{
    model::UpdateScope,
    observe::observed::ObservedState,
    plan::{self, PlanInput, PlannedAction},
    reconcile::ReconcileInput,
    sync_state::LastApplied,
};

/// Maximum length of the list in a note, which has at most 1 kB.
const MAX_LIST_LENGTH: usize = 900;

/// Emits an event with the changes that upstream's reading of the Service would not cause, before
/// they are made. Emits none for a new load balancer, or if this process has already applied more
/// than upstream's reading.
pub(super) fn announce(
    op: &Op,
    input: &ReconcileInput<'_>,
    plan_input: &PlanInput,
    observed: &ObservedState,
    last_applied: Option<&LastApplied>,
) {
    let is_new = last_applied.is_none_or(|last| last.desired.updates != UpdateScope::All);
    let Some(as_upstream) = input.as_upstream else {
        return;
    };
    if !is_new || observed.load_balancer.is_none() {
        return;
    }
    // A plan that is impossible makes no changes.
    let changes = plan::plan(input.desired, plan_input, observed).unwrap_or_default();
    if changes.is_empty() {
        return;
    }
    let as_upstream = plan::plan(as_upstream, plan_input, observed).unwrap_or_default();
    if let Some(note) = describe_activated(&input.desired.name, &changes, &as_upstream) {
        op.event(EventType::Normal, "AnnotationsActivated", &note);
    }
}

/// Describes the actions that are not in upstream's plan; `None` if there are none.
fn describe_activated(
    load_balancer: &str,
    changes: &[PlannedAction],
    as_upstream: &[PlannedAction],
) -> Option<String> {
    let mut list = String::new();
    let activated = changes
        .iter()
        .filter(|planned| !as_upstream.iter().any(|other| other.action == planned.action));
    for change in activated.filter_map(|planned| planned.describe(load_balancer)) {
        let separator = if list.is_empty() { "" } else { "; " };
        let entry = format!("{separator}{} {}: {}", change.operation, change.object, change.reason);
        if list.len() + entry.len() > MAX_LIST_LENGTH {
            list.push_str("; …");
            break;
        }
        list.push_str(&entry);
    }
    (!list.is_empty())
        .then(|| format!("annotations that upstream's manager ignores take effect: {list}"))
}

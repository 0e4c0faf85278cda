//! Stickiness that a Service no longer requests. Pure.

use std::{borrow::Cow, collections::BTreeSet};

use crate::lb::{
    model::{DesiredListener, DesiredLoadBalancer, ListenerKey},
    spec::STICKY,
};

/// Returns true if a Service requests stickiness on a listener.
pub(super) fn enables_stickiness(listener: &DesiredListener) -> bool {
    listener
        .target_group
        .attributes
        .get(STICKY)
        .is_some_and(|value| &**value == "true")
}

/// Returns the desired state with stickiness disabled on the listeners where we enabled it and the
/// Service does not mention it any more. Attributes that a Service does not mention are otherwise
/// left unchanged.
pub(super) fn disable_unrequested_stickiness<'a>(
    desired: &'a DesiredLoadBalancer,
    sticky_listeners: &BTreeSet<ListenerKey>,
) -> Cow<'a, DesiredLoadBalancer> {
    let must_disable = |listener: &DesiredListener| {
        let is_mentioned = listener.target_group.attributes.contains_key(STICKY);
        sticky_listeners.contains(&listener.key()) && !is_mentioned
    };
    if !desired.listeners.iter().any(must_disable) {
        return Cow::Borrowed(desired);
    }
    let mut desired = desired.clone();
    for listener in &mut desired.listeners {
        if must_disable(listener) {
            let attributes = &mut listener.target_group.attributes;
            attributes.insert(STICKY.into(), "false".into());
        }
    }
    Cow::Owned(desired)
}

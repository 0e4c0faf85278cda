//! Suppresses repeated events of Nodes.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::{
    k8s::NodeView,
    provider::EventType,
    runtime::events::{EventRecorder, ObjectRef},
};

/// Emits an event of a node only if its reason differs from that of the node's last event.
#[derive(Debug, Default)]
pub(crate) struct EventDeduplicator(Mutex<HashMap<Arc<str>, LastEvent>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LastEvent {
    node_uid: Box<str>,
    reason: &'static str,
}

impl EventDeduplicator {
    /// Emits an event of type Warning, unless the last event of the node had the same reason.
    pub(crate) fn warn_once(
        &self,
        events: &EventRecorder,
        node: &NodeView,
        reason: &'static str,
        note: &str,
    ) {
        self.emit_once(events, node, EventType::Warning, reason, note);
    }

    /// Emits an event, unless the last event of the node had the same reason. Nodes with different
    /// UIDs are different nodes.
    pub(crate) fn emit_once(
        &self,
        events: &EventRecorder,
        node: &NodeView,
        kind: EventType,
        reason: &'static str,
        note: &str,
    ) {
        let event = LastEvent { node_uid: node.uid.clone(), reason };
        let last = self.0.lock().insert(node.name.clone(), event.clone());
        if last != Some(event) {
            events.event(&ObjectRef::node(node.name.clone(), &*node.uid), kind, reason, note);
        }
    }

    /// Forgets the nodes for which `keep` returns false.
    pub(crate) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.0.lock().retain(|name, _| keep(name));
    }

    /// Forgets the last event of a node, so that the next one is emitted in any case.
    pub(crate) fn clear(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

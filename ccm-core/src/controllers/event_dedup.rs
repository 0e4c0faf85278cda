//! Events on change only: the same failure of the same node is told once.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::{
    k8s::NodeView,
    provider::EventType,
    runtime::events::{EventRecorder, ObjectRef},
};

/// Remembers what was last told about each node.
#[derive(Debug, Default)]
pub(crate) struct EventDeduplicator(Mutex<HashMap<Arc<str>, LastEvent>>);

/// UID of the node, and the reason that was told.
type LastEvent = (Box<str>, &'static str);

impl EventDeduplicator {
    /// Records a warning unless the same reason was the last one told about this very node.
    pub(crate) fn warn_once(&self, events: &EventRecorder, node: &NodeView, reason: &'static str, note: &str) {
        self.emit_once(events, node, EventType::Warning, reason, note);
    }

    /// Records an event unless the same reason was the last one told about this very node.
    pub(crate) fn emit_once(
        &self,
        events: &EventRecorder,
        node: &NodeView,
        kind: EventType,
        reason: &'static str,
        note: &str,
    ) {
        let told = self.0.lock().insert(node.name.clone(), (node.uid.clone(), reason));
        if told.is_none_or(|(uid, last)| uid != node.uid || last != reason) {
            events.event(&ObjectRef::node(node.name.clone(), &*node.uid), kind, reason, note);
        }
    }

    /// Forgets the nodes that are not to be kept.
    pub(crate) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.0.lock().retain(|name, _| keep(name));
    }

    /// Forgets a node: its next failure is told again.
    pub(crate) fn clear(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

//! Differences that shadow mode reports.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

/// The text for an absent value.
pub(crate) const NONE: &str = "none";

/// The kind of the object of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ObjectKind {
    /// A Node.
    Node,
    /// A route in the cloud, identified by its destination.
    Route,
    /// A Service, with its load balancer.
    Service,
}

impl ObjectKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::Route => "Route",
            Self::Service => "Service",
        }
    }
}

/// One change that a controller would make. Differences are shown in the order of this type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// The kind of the object.
    pub kind: ObjectKind,
    /// Its name, with its namespace if it has one.
    pub object: String,
    /// The part that differs: a field, or an object in the cloud.
    pub part: String,
    /// The controller that would change it.
    pub controller: &'static str,
    /// Observed value; absent where only the change can be named.
    #[serde(rename = "is", skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// The value after the change, or the action.
    #[serde(rename = "wouldBe")]
    pub desired: String,
    /// The reason for the change.
    pub why: String,
    /// What it may say about the active manager: most differences say nothing. The adoption report
    /// decides whether it does, and `/shadow` does not show it.
    #[serde(skip)]
    pub defect: Option<PossibleDefect>,
}

/// What a difference says about the active manager if it has lasted for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PossibleDefect {
    /// The defect.
    pub defect: ManagerDefect,
    /// The time since which the active manager could have corrected it. `None` if that needs no
    /// time.
    pub since: Option<Timestamp>,
}

/// A defect of the active manager: something that it should have done, and has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ManagerDefect {
    /// A Service of type LoadBalancer has had no address for a long time.
    ServiceWithoutAddress,
    /// A Service has been being deleted for a long time.
    DeletionUnfinished,
    /// A cloud object of this cluster that no Service or Node needs.
    OrphanedObject,
    /// A pod network of a Node has no route, or a wrong one.
    NodeWithoutRoute,
    /// A route that leads to a network of no Node, or twice to the same.
    StaleRoute,
    /// A Node has been waiting for its initialisation for a long time.
    NodeUninitialized,
    /// A Node that is not Ready, and whose instance no longer exists.
    NodeOfDeletedInstance,
    /// A Node shows other addresses than its instance has.
    OutdatedAddresses,
}

impl Difference {
    /// Says what the difference means for the active manager if it has lasted for long since this
    /// time; `None` if that needs no time.
    #[must_use]
    pub(crate) fn with_defect(self, defect: ManagerDefect, since: Option<Timestamp>) -> Self {
        Self { defect: Some(PossibleDefect { defect, since }), ..self }
    }

    /// Returns the key of a difference. Equal keys mean the same part of the same object.
    pub(super) fn key(&self) -> (ObjectKind, String, String, &'static str) {
        (self.kind, self.object.clone(), self.part.clone(), self.controller)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            object,
            part,
            controller,
            current: is,
            desired: would_be,
            why,
            defect: _,
        } = self;
        write!(f, "{} {object}: {part}: ", kind.as_str())?;
        if let Some(is) = is {
            write!(f, "{is} -> ")?;
        }
        write!(f, "{would_be} ({controller}: {why})")
    }
}

/// Something that could not be compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NotCompared {
    /// The kind of the object.
    pub kind: ObjectKind,
    /// Its name, with its namespace if it has one; empty for all objects of the kind.
    pub object: String,
    /// The controller that would compare it.
    pub controller: &'static str,
    /// The reason why the comparison failed.
    pub why: String,
}

impl NotCompared {
    pub(super) fn key(&self) -> (ObjectKind, String, String, &'static str) {
        (self.kind, self.object.clone(), String::new(), self.controller)
    }
}

impl fmt::Display for NotCompared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, object, controller, why } = self;
        if object.is_empty() {
            write!(f, "every {} ({controller}: {why})", kind.as_str())
        } else {
            write!(f, "{} {object} ({controller}: {why})", kind.as_str())
        }
    }
}

/// A Warning that a controller would emit about an object that it leaves as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// The kind of the object.
    pub kind: ObjectKind,
    /// Its name, with its namespace if it has one.
    pub object: String,
    /// The reason of the event.
    pub reason: &'static str,
    /// The note of the event.
    pub note: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, object, reason, note } = self;
        write!(f, "{} {object}: {reason}: {note}", kind.as_str())
    }
}

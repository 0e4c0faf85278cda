use std::fmt;

use serde::Serialize;

/// How an absent value is shown.
pub(crate) const NONE: &str = "none";

/// What is spoken about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ObjectKind {
    /// A Node.
    Node,
    /// A route of the cloud, named by its destination.
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

/// One change that a controller would make. The order is that in which differences are shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// What the object is.
    pub kind: ObjectKind,
    /// Its name, with its namespace if it has one.
    pub object: String,
    /// What of it: a field, or an object of the cloud.
    pub part: String,
    /// The controller that would change it.
    pub controller: &'static str,
    /// What is there; absent where only the change can be named.
    #[serde(rename = "is", skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// What would be there, or be done.
    #[serde(rename = "wouldBe")]
    pub desired: String,
    /// Why.
    pub why: String,
}

impl Difference {
    /// Tells whether both are about the same part of the same object.
    pub(super) fn key(&self) -> (ObjectKind, String, String, &'static str) {
        (self.kind, self.object.clone(), self.part.clone(), self.controller)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, object, part, controller, current: is, desired: would_be, why } = self;
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
    /// What the object is.
    pub kind: ObjectKind,
    /// Its name, with its namespace if it has one; empty for all of the kind.
    pub object: String,
    /// The controller that would compare it.
    pub controller: &'static str,
    /// Why not.
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
        match object.is_empty() {
            true => write!(f, "every {} ({controller}: {why})", kind.as_str()),
            false => write!(f, "{} {object} ({controller}: {why})", kind.as_str()),
        }
    }
}

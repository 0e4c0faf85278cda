//! Findings of the subcommand `check`: what is wrong, what follows from it, and what to do.

use std::{fmt, sync::Arc};

use crate::{
    error::BoxError,
    k8s::{NodeView, ServiceView},
};

/// The subject of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// The connection to the API server, and its version.
    ApiServer,
    /// The controllers that are enabled.
    Controllers,
    /// The permissions of this process in the cluster.
    Permissions,
    /// The Lease of leader election, and other managers.
    Leader,
    /// The cloud: its configuration, the connection to it, and what the cluster has there.
    Cloud,
    /// Nodes and their instances.
    Nodes,
    /// Services of type LoadBalancer.
    Services,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// All is well.
    Ok,
    /// The manager can work, but something deserves attention.
    Warning,
    /// The manager, or a part of it, cannot work.
    Error,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ApiServer => "api server",
            Self::Controllers => "controllers",
            Self::Permissions => "permissions",
            Self::Leader => "leader",
            Self::Cloud => "cloud",
            Self::Nodes => "nodes",
            Self::Services => "services",
        })
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// A row of a table of findings, which [`finding_kinds!`](crate::finding_kinds) declares. In its
/// texts `OBJECT` stands for the object of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FindingKind {
    /// The name, in PascalCase. Scripts may rely on it.
    pub name: &'static str,
    /// The subject.
    pub area: Area,
    /// How bad it usually is.
    pub severity: Severity,
    /// What follows from it. Begins in lower case and has no full stop.
    pub consequence: &'static str,
    /// What to do about it, written like the consequence.
    pub advice: &'static str,
}

impl FindingKind {
    /// Creates a finding of this kind about an object. `message` says what was found.
    pub fn about(&self, object: impl Into<String>, message: impl Into<String>) -> Finding {
        let object = object.into();
        Finding {
            name: self.name,
            area: self.area,
            severity: self.severity,
            message: message.into(),
            consequence: self.consequence.replace(OBJECT, &object),
            advice: self.advice.replace(OBJECT, &object),
            object,
        }
    }
}

/// The word in the texts of a kind that stands for the object.
const OBJECT: &str = "OBJECT";

/// One result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of its [`FindingKind`]. Empty if all is well.
    pub name: &'static str,
    /// The subject of the check.
    pub area: Area,
    /// How bad it is.
    pub severity: Severity,
    /// The object that it is about, such as a Node, a flag or a network. May be empty.
    pub object: String,
    /// What was found.
    pub message: String,
    /// What follows from it. Empty if nothing does.
    pub consequence: String,
    /// What to do about it. Empty if nothing is to be done.
    pub advice: String,
}

impl Finding {
    /// Creates a finding that needs no action.
    pub fn ok(area: Area, message: impl Into<String>) -> Self {
        Self {
            name: "",
            area,
            severity: Severity::Ok,
            object: String::new(),
            message: message.into(),
            consequence: String::new(),
            advice: String::new(),
        }
    }

    /// Replaces the usual severity of the kind.
    #[must_use]
    pub fn with_severity(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }
}

/// Declares an enum of all kinds of findings of one crate, from which its reference is generated.
///
/// ```
/// ccm_core::finding_kinds! {
///     /// What `check` finds in the shelf.
///     pub enum ShelfFinding {
///         BoardMissing: Error Cloud
///             "machines on OBJECT are not found"
///             "put board OBJECT back";
///     }
/// }
/// let finding = ShelfFinding::BoardMissing.about("b7", "there is no board b7");
/// assert_eq!(finding.advice, "put board b7 back");
/// ```
#[macro_export]
macro_rules! finding_kinds {
    ($(#[$doc:meta])* $visibility:vis enum $kinds:ident {
        $($name:ident: $severity:ident $area:ident $consequence:literal $advice:literal;)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $kinds {
            $(#[doc = concat!("Then ", $consequence, ".")] $name,)+
        }

        impl $kinds {
            /// Every row, in the order of the declaration.
            $visibility const TABLE: &[$crate::provider::FindingKind] = &[$($crate::provider::FindingKind {
                name: stringify!($name),
                area: $crate::provider::Area::$area,
                severity: $crate::provider::Severity::$severity,
                consequence: $consequence,
                advice: $advice,
            },)+];

            /// Creates a finding of this kind about an object. `message` says what was found.
            $visibility fn about(
                self,
                object: impl Into<String>,
                message: impl Into<String>,
            ) -> $crate::provider::Finding {
                Self::TABLE[self as usize].about(object, message)
            }
        }
    };
}

/// The cluster, as the subcommand `check` shows it to
/// [`CloudProvider::check`](super::CloudProvider::check).
#[derive(Clone, Copy, Debug)]
pub struct CheckedCluster<'a> {
    /// The Nodes of this provider, by name.
    pub nodes: &'a [Arc<NodeView>],
    /// The Services that should have a load balancer of this provider, or still have one, by
    /// namespace and name. `None` if the service controller does not run, or if they could not be
    /// read.
    pub services: Option<&'a [Arc<ServiceView>]>,
    /// True if the route controller runs.
    pub creates_routes: bool,
}

/// An error for which a provider cannot be built, with its finding. To everything but the
/// subcommand `check` it is the error itself.
#[derive(Debug)]
pub struct NotBuilt {
    /// The finding.
    pub finding: Finding,
    error: BoxError,
}

impl NotBuilt {
    /// Adds the finding to the error.
    pub fn new(finding: Finding, error: impl Into<BoxError>) -> Self {
        Self { finding, error: error.into() }
    }
}

impl fmt::Display for NotBuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotBuilt {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::chain;

    finding_kinds! {
        /// Kinds of the test.
        enum Kinds {
            First: Warning Nodes "OBJECT waits" "restart OBJECT";
            Second: Error Cloud "nothing works" "correct OBJECT";
        }
    }

    #[test]
    fn a_finding_names_its_object_in_both_texts() {
        let finding = Kinds::First.about("n1", "n1 is slow");
        assert_eq!((finding.name, finding.severity), ("First", Severity::Warning));
        assert_eq!((&*finding.consequence, &*finding.advice), ("n1 waits", "restart n1"));
        let second = Kinds::Second
            .about("x", "")
            .with_severity(Severity::Warning);
        assert_eq!((second.name, second.severity), ("Second", Severity::Warning));
    }

    #[test]
    fn an_error_with_a_finding_reads_like_the_error() {
        let inner = std::io::Error::other(fmt::Error);
        let text = chain(&inner);
        let error: BoxError = NotBuilt::new(Kinds::Second.about("x", ""), inner).into();
        assert_eq!(chain(&*error), text);
        let found = error.downcast_ref::<NotBuilt>().map(|e| e.finding.name);
        assert_eq!(found, Some("Second"));
    }
}

//! Bugs that are planted to show that the explorer finds them: a provider or a client that does wrong what the framework
//! or a provider could do wrong. Nothing of the framework knows of them.

mod client;
mod provider;

use std::sync::Arc;

use ccm_core::provider::CloudProvider;
use ccm_mock::MockProvider;

pub(crate) use client::Lies;

use crate::fault::Class;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The finalizer is added after the load balancer was made.
    FinalizerLate,
    /// The finalizer is removed while the load balancer is still being deleted.
    FinalizerEarly,
    /// A load balancer that could not be deleted counts as deleted.
    DeletedOnError,
    /// The status shows an address before there is a load balancer.
    StatusEarly,
    /// An update of backends goes on after the load balancer was deleted, and makes it again.
    UpdateRacesDelete,
    /// Backends are replaced by taking all out and putting the new ones in.
    BackendsCleared,
    /// A node whose instance could not be asked for counts as gone.
    GoneOnError,
    /// A list of routes that the cloud could not give in full is taken for all that is known of them.
    RoutesPartial,
    /// Renewals of the lease that do not reach the API server count as made.
    LeaseUnchecked,
    /// A new process gives pod networks anew, from the first.
    NetworksForgotten,
    /// What was made is never found equal to what is wanted.
    NeverEqual,
}

/// How a planted bug is found.
#[derive(Clone, Copy, Debug)]
pub struct Plant {
    /// The bug.
    pub bug: Bug,
    /// Its name on the command line.
    pub name: &'static str,
    /// The scenario that it shows in.
    pub scenario: &'static str,
    /// The faults that bring it out; none: it shows without.
    pub class: Option<Class>,
    /// What the explorer says of it, in part.
    pub says: &'static str,
}

/// All of them.
pub const ALL: [Plant; 11] = [
    plant(Bug::FinalizerLate, "finalizer-late", "service-created", None, "before its finalizer"),
    plant(
        Bug::FinalizerEarly,
        "finalizer-early",
        "service-slow-cloud",
        None,
        "removed while its load balancer is there",
    ),
    plant(
        Bug::DeletedOnError,
        "deleted-on-error",
        "service-deleted",
        Some(Class::Refused),
        "removed while its load balancer is there",
    ),
    plant(Bug::StatusEarly, "status-early", "service-created", Some(Class::Refused), "which no load balancer has"),
    plant(Bug::UpdateRacesDelete, "update-races-delete", "everything", None, "before its finalizer"),
    plant(Bug::BackendsCleared, "backends-cleared", "service-nodes", None, "serving node"),
    plant(Bug::GoneOnError, "gone-on-error", "node-stops", Some(Class::Refused), "deleted while its instance exists"),
    plant(Bug::RoutesPartial, "routes-partial", "routes", Some(Class::Refused), "was deleted while Node"),
    plant(
        Bug::LeaseUnchecked,
        "lease-unchecked",
        "fail-over",
        Some(Class::Split),
        "while another process holds the lease",
    ),
    plant(Bug::NetworksForgotten, "networks-forgotten", "ipam", None, "belongs to Node"),
    plant(Bug::NeverEqual, "never-equal", "service-created", None, "never became quiet"),
];

const fn plant(
    bug: Bug,
    name: &'static str,
    scenario: &'static str,
    class: Option<Class>,
    says: &'static str,
) -> Plant {
    Plant { bug, name, scenario, class, says }
}

impl Bug {
    /// The provider of a process, with the bug if it is one of providers.
    pub(crate) fn in_provider(self, inner: Arc<MockProvider>) -> Arc<dyn CloudProvider> {
        Arc::new(provider::Planted::new(self, inner))
    }
}

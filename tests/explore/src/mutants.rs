//! Bugs that are planted to show that the explorer finds them: a provider or a client that does
//! wrong what the framework or a provider could do wrong. Nothing of the framework knows of them.

mod client;
mod provider;

use std::sync::Arc;

use ccm_core::provider::CloudProvider;
use ccm_mock::MockProvider;

pub(crate) use client::MutantClient;

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
    /// A list of routes that the cloud could not give in full is taken for all that is known of
    /// them.
    RoutesPartial,
    /// Renewals of the lease that do not reach the API server count as made.
    LeaseUnchecked,
    /// A new process gives pod networks anew, from the first.
    NetworksForgotten,
    /// Pod networks that were written once count as written for good.
    NetworksRemembered,
    /// What was made is never found equal to what is wanted.
    NeverEqual,
    /// What is asked of the API server before something is deleted is answered by a cache that
    /// lags.
    ReadFromCache,
    /// An orphan is deleted by the name of its Service, whatever the UID.
    DeletedByName,
    /// A write whose answer was lost counts as made.
    LostCountsAsMade,
    /// A creation whose answer was lost is sent again under another name.
    CreatedAgain,
    /// One call to the cloud at a time, and none has an end but its answer.
    NoDeadline,
    /// That a load balancer is still being deleted is known to the process alone that began it.
    DeletionForgotten,
    /// Writes say nothing of what they change as it was seen.
    Unconditional,
    /// Nodes of another provider that are not ready are claimed, and found to have no instance.
    StrangersClaimed,
    /// Nodes of another provider are no backends, although load balancers use addresses.
    StrangersLeftOut,
    /// Nodes of a Service that was invalid when the process began are not followed.
    InvalidLeftAlone,
    /// Services of another controller's class are served.
    ClassIgnored,
    /// The first page of the instances is taken for all of them.
    FirstPage,
    /// Nodes are not listed before Services can be.
    EveryCacheNeeded,
    /// A page that says 404 is taken for the API server's word.
    PagesBelieved,
    /// Credentials that were refused once are not read again.
    ExpiredForGood,
    /// A Node that has neither provider ID nor taint is deleted with another.
    NobodysDeleted,
    /// An instance that is not found is doubted for ever, whatever else is found.
    DoubtedForEver,
    /// An instance that was not found once is gone by its name.
    GoneByName,
}

/// How a planted bug is found.
#[derive(Clone, Copy, Debug)]
pub struct MutantCase {
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
pub const ALL: [MutantCase; 30] = [
    plant(Bug::FinalizerLate, "finalizer-late", "service-created", None, "before its finalizer"),
    plant(Bug::FinalizerEarly, "finalizer-early", "service-slow-cloud", None, REMOVED),
    plant(
        Bug::UpdateRacesDelete,
        "update-races-delete",
        "everything",
        None,
        "before its finalizer",
    ),
    plant(Bug::BackendsCleared, "backends-cleared", "service-nodes", None, "serving node"),
    plant(Bug::NetworksForgotten, "networks-forgotten", "ipam", None, "belongs to Node"),
    plant(
        Bug::NetworksRemembered,
        "networks-remembered",
        "ipam-restored",
        None,
        "has no pod network",
    ),
    plant(Bug::NeverEqual, "never-equal", "service-created", None, "never became quiet"),
    plant(Bug::DeletedByName, "deleted-by-name", "orphans", None, WANTED),
    plant(
        Bug::StrangersClaimed,
        "strangers-claimed",
        "foreign-nodes",
        None,
        "of another provider was deleted",
    ),
    plant(Bug::StrangersLeftOut, "strangers-left-out", "foreign-nodes", None, "should have nodes"),
    plant(
        Bug::InvalidLeftAlone,
        "invalid-left-alone",
        "service-invalid",
        None,
        "should have nodes",
    ),
    plant(
        Bug::ClassIgnored,
        "class-ignored",
        "service-classes",
        None,
        "of another controller's class got a finalizer",
    ),
    plant(Bug::FirstPage, "first-page", "cloud-denies", None, "deleted while its instance exists"),
    plant(
        Bug::EveryCacheNeeded,
        "every-cache-needed",
        "role-without-services",
        None,
        "is not initialised",
    ),
    plant(Bug::PagesBelieved, "pages-believed", "proxy-pages", None, "is not initialised"),
    plant(Bug::ExpiredForGood, "expired-for-good", "standby-expired", None, "is not initialised"),
    plant(
        Bug::NobodysDeleted,
        "nobodys-deleted",
        "nodes-without-ids",
        None,
        "of nobody was deleted",
    ),
    plant(
        Bug::DoubtedForEver,
        "doubted-for-ever",
        "nodes-without-ids",
        None,
        "is there and its instance is not",
    ),
    plant(
        Bug::GoneByName,
        "gone-by-name",
        "name-reused",
        None,
        "deleted while its instance exists",
    ),
    plant(
        Bug::DeletedOnError,
        "deleted-on-error",
        "service-deleted",
        Some(Class::Refused),
        REMOVED,
    ),
    plant(
        Bug::StatusEarly,
        "status-early",
        "service-created",
        Some(Class::Refused),
        "which no load balancer has",
    ),
    plant(
        Bug::GoneOnError,
        "gone-on-error",
        "node-stops",
        Some(Class::Refused),
        "deleted while its instance exists",
    ),
    plant(
        Bug::RoutesPartial,
        "routes-partial",
        "routes",
        Some(Class::Refused),
        "was deleted while Node",
    ),
    plant(Bug::ReadFromCache, "read-from-cache", "orphans-return", Some(Class::Stale), WANTED),
    plant(
        Bug::LostCountsAsMade,
        "lost-counts-as-made",
        "service-created",
        Some(Class::Lost),
        "before its finalizer",
    ),
    plant(
        Bug::CreatedAgain,
        "created-again",
        "service-created",
        Some(Class::Lost),
        "has two load balancers",
    ),
    plant(
        Bug::NoDeadline,
        "no-deadline",
        "service-created",
        Some(Class::Slow),
        "has 0 load balancers",
    ),
    plant(
        Bug::DeletionForgotten,
        "deletion-forgotten",
        "service-slow-cloud",
        Some(Class::Crash),
        REMOVED,
    ),
    plant(Bug::Unconditional, "unconditional", "service-type", Some(Class::Crash), REMOVED),
    plant(
        Bug::LeaseUnchecked,
        "lease-unchecked",
        "fail-over",
        Some(Class::Split),
        "another process holds the lease",
    ),
];

/// What the witness says of a finalizer that goes too early.
const REMOVED: &str = "removed while its load balancer is there";
/// What the witness says of a load balancer that goes although it should stay.
const WANTED: &str = "wants it";

const fn plant(
    bug: Bug,
    name: &'static str,
    scenario: &'static str,
    class: Option<Class>,
    says: &'static str,
) -> MutantCase {
    MutantCase { bug, name, scenario, class, says }
}

impl Bug {
    /// The provider of a process, with the bug if it is one of providers.
    pub(crate) fn in_provider(self, inner: Arc<MockProvider>) -> Arc<dyn CloudProvider> {
        Arc::new(provider::MutantProvider::new(self, inner))
    }
}

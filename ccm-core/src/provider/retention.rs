//! Load balancers that outlive their Service, and Services that adopt them.
//!
//! Two annotations of a Service decide. They are read here alone, so that no provider can read them
//! in another way. [`ANNOTATION_RETAIN`] has the load balancer kept where it would be deleted, and
//! [`ANNOTATION_ADOPT`] names a kept load balancer by its ID. A load balancer that was let go
//! carries a mark in the cloud and belongs to nobody until it is adopted.

use crate::k8s::{
    ServiceView,
    well_known::{ANNOTATION_ADOPT, ANNOTATION_RETAIN},
};

/// What a Service wants to become of its load balancer when it no longer needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Retention {
    /// It is deleted.
    #[default]
    Delete,
    /// It is kept.
    Keep,
    /// The annotation has this value, which is neither `true` nor `false`. Nothing is deleted until
    /// it is corrected.
    Unclear(Box<str>),
}

impl Retention {
    /// Reads the annotation of a Service.
    pub(crate) fn of(service: &ServiceView) -> Self {
        match service.annotation(ANNOTATION_RETAIN).map(str::trim) {
            None | Some("false") => Self::Delete,
            Some("true") => Self::Keep,
            Some(other) => Self::Unclear(other.chars().take(40).collect()),
        }
    }

    /// Returns what is done with the load balancer. `can_retain` says that the provider can keep
    /// load balancers.
    pub(crate) fn removal(&self, can_retain: bool) -> RemovalPlan {
        match self {
            Self::Delete => RemovalPlan::Delete,
            Self::Keep if can_retain => RemovalPlan::LetGo,
            Self::Keep | Self::Unclear(_) => RemovalPlan::Nothing,
        }
    }

    /// Returns what becomes of the load balancer of a Service that is gone, and whose name
    /// `successor` has now. A wish that can be fulfilled stays as it is. Otherwise nobody could
    /// correct it any more, so a clear annotation of the successor decides.
    pub(crate) fn decided_by(&self, successor: &ServiceView, can_retain: bool) -> Self {
        let decides = self.removal(can_retain) == RemovalPlan::Nothing
            && successor.annotation(ANNOTATION_RETAIN).is_some();
        match Self::of(successor) {
            decision @ (Self::Delete | Self::Keep) if decides => decision,
            _ => self.clone(),
        }
    }
}

/// What is done with a load balancer that its Service no longer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalPlan {
    /// It is deleted.
    Delete,
    /// It is kept, and belongs to nobody from then on.
    LetGo,
    /// Nothing, and the Service waits until its annotation is corrected.
    Nothing,
}

/// The result of [`LoadBalancers::retain`](super::LoadBalancers::retain).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetainOutcome {
    /// The load balancer is marked and belongs to nobody.
    Retained {
        /// Its ID, by which a Service adopts it.
        id: Box<str>,
        /// What stays in the cloud, in the cloud's own terms and with IDs, for an event.
        kept: Box<str>,
    },
    /// It is proven that the Service has no load balancer: the cloud answered completely, and none
    /// of the answers shows one. In doubt it is an error.
    NothingToRetain {
        /// The proof, in the cloud's own terms, for an event.
        reason: Box<str>,
    },
    /// The cloud is still working on it.
    Pending {
        /// The delay before the next call.
        after: std::time::Duration,
        /// The reason: what the call waits for.
        reason: Box<str>,
    },
}

/// Returns the ID of the load balancer that a Service adopts; `None` if it adopts none.
///
/// A provider must send no change to a load balancer with this ID that neither is the Service's own
/// nor carries the mark of one that was let go.
pub fn adopted_id(service: &ServiceView) -> Option<&str> {
    service
        .annotation(ANNOTATION_ADOPT)
        .map(str::trim)
        .filter(|id| !id.is_empty())
}

/// Returns true if a Service clearly asks to keep its load balancer. A provider may use it for notices
/// only: the framework decides what becomes of a load balancer.
pub fn asks_to_retain(service: &ServiceView) -> bool {
    Retention::of(service) == Retention::Keep
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn annotated(key: &str, value: &str) -> ServiceView {
        let mut service = ServiceView::named("ns", "web");
        service.annotations.insert(Arc::from(key), Arc::from(value));
        service
    }

    #[test]
    fn only_a_clear_no_lets_a_load_balancer_be_deleted() {
        let unclear = |text: &str| Retention::Unclear(text.into());
        assert_eq!(Retention::of(&ServiceView::named("ns", "web")), Retention::Delete);
        for (value, retention) in [
            ("false", Retention::Delete),
            (" false ", Retention::Delete),
            ("true", Retention::Keep),
            (" true\n", Retention::Keep),
            ("", unclear("")),
            ("True", unclear("True")),
            ("yes", unclear("yes")),
            ("1", unclear("1")),
            ("ture", unclear("ture")),
        ] {
            assert_eq!(Retention::of(&annotated(ANNOTATION_RETAIN, value)), retention, "{value:?}");
        }
    }

    #[test]
    fn a_successor_decides_only_where_nothing_else_could_be_done() {
        use Retention::{Delete, Keep};
        let unclear = || Retention::Unclear("yes".into());
        for (wish, can_retain, value, result) in [
            (Keep, true, "false", Keep),
            (Keep, false, "false", Delete),
            (Keep, false, "true", Keep),
            (Keep, false, "no", Keep),
            (unclear(), true, "false", Delete),
            (unclear(), true, "true", Keep),
            (unclear(), true, "no", unclear()),
            (Delete, true, "true", Delete),
        ] {
            let successor = annotated(ANNOTATION_RETAIN, value);
            let found = wish.decided_by(&successor, can_retain);
            assert_eq!(found, result, "{wish:?}, {can_retain}, {value:?}");
        }
        // Without the annotation it says nothing.
        let successor = ServiceView::named("ns", "web");
        assert_eq!(unclear().decided_by(&successor, true), unclear());
        assert_eq!(Keep.decided_by(&successor, false), Keep);
    }

    #[test]
    fn an_id_is_read_without_spaces_around_it() {
        assert_eq!(adopted_id(&annotated(ANNOTATION_ADOPT, " lb-1 ")), Some("lb-1"));
        assert_eq!(adopted_id(&annotated(ANNOTATION_ADOPT, "")), None);
        assert_eq!(adopted_id(&ServiceView::named("ns", "web")), None);
    }
}

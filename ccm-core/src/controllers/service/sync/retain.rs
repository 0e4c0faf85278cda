//! Removes the load balancer of a Service from this cluster: deletes it, or lets go of it if the
//! Service asks to keep it.

use std::time::Duration;

use super::{
    super::{
        ServiceController,
        plan::AfterDelete,
        sync_error::{ServiceOperation, ServiceSyncError},
    },
    ServiceSync,
};
use crate::{
    k8s::{
        ServiceView,
        well_known::{ANNOTATION_ADOPT, ANNOTATION_RETAIN},
    },
    provider::{CloudError, ErrorKind, LbRef, Progress, RemovalPlan, RetainOutcome, Retention},
};

/// What became of a load balancer that its Service no longer needs.
pub(super) enum Removal {
    /// The cloud is still working on it.
    Pending { after: Duration, reason: Box<str> },
    /// It no longer exists, or never did.
    Deleted,
    /// It is kept and belongs to nobody.
    Retained { id: Box<str>, kept: Box<str> },
    /// There was none to keep, for this reason.
    NothingToRetain { reason: Box<str> },
    /// Another controller made it, and decides what becomes of it.
    OtherController,
}

impl Removal {
    /// Returns reason and text of the event about it.
    pub(super) fn event(&self) -> (&'static str, String) {
        match self {
            Self::Retained { id, kept } => {
                let note = format!(
                    "Kept load balancer {id}, which belongs to no Service now. These stay: {kept}. A Service adopts it \
                     with the annotation {ANNOTATION_ADOPT}: {id}. If nobody needs it, delete it in the cloud"
                );
                ("RetainedLoadBalancer", note)
            }
            Self::NothingToRetain { reason } => {
                ("RetainedLoadBalancer", format!("There is no load balancer to keep: {reason}"))
            }
            Self::OtherController => {
                let note =
                    "Another controller made the load balancer, and decides what becomes of it";
                ("RetainedLoadBalancer", note.to_owned())
            }
            Self::Pending { .. } | Self::Deleted => {
                ("DeletedLoadBalancer", "Deleted load balancer".to_owned())
            }
        }
    }
}

/// Returns reason and text of the event that announces the removal; `None` if nothing is done.
pub(super) fn start_event(plan: RemovalPlan) -> Option<(&'static str, &'static str)> {
    match plan {
        RemovalPlan::Delete => Some(("DeletingLoadBalancer", "Deleting load balancer")),
        RemovalPlan::LetGo => Some(("RetainingLoadBalancer", "Keeping load balancer")),
        RemovalPlan::Nothing => None,
    }
}

impl ServiceSync {
    /// Takes over what a newer version of the Service, read from the API server, wants to become of
    /// its load balancer. It never makes a deletion of what was to be kept: a person can still
    /// delete what was kept, but not the reverse.
    pub(super) fn confirm_retention(&mut self, fresh: &ServiceView) {
        let retention = Retention::of(fresh);
        if fresh.uid == self.state.uid && retention != Retention::Delete {
            self.state.retention = retention;
        }
    }
}

impl ServiceController {
    /// Returns what is done with the load balancer if it is not needed.
    pub(super) fn removal_plan(&self, sync: &ServiceSync) -> RemovalPlan {
        self.retention(sync).removal(self.can_retain())
    }

    /// Returns what the Service wants to become of its load balancer.
    fn retention(&self, sync: &ServiceSync) -> Retention {
        sync.state
            .retention_beside(sync.service.as_deref(), self.can_retain())
    }

    fn can_retain(&self) -> bool {
        self.cloud
            .load_balancers()
            .is_ok_and(|load_balancers| load_balancers.supports().retain)
    }

    /// Deletes the load balancer, or lets go of it. Whatever goes wrong while it is to be kept is an
    /// error, and never leads to a deletion.
    pub(super) async fn remove_in_cloud(
        &self,
        sync: &ServiceSync,
        load_balancer: &LbRef,
        follow_up: AfterDelete,
    ) -> Result<Removal, ServiceSyncError> {
        match self.retention(sync) {
            Retention::Delete => {
                let progress = self.delete_in_cloud(sync, load_balancer, follow_up).await?;
                Ok(match progress {
                    Progress::Done => Removal::Deleted,
                    Progress::Pending { after, reason } => Removal::Pending { after, reason },
                })
            }
            Retention::Keep => self.retain_in_cloud(sync, load_balancer, follow_up).await,
            Retention::Unclear(value) => {
                let wrong = format!(
                    "annotation {ANNOTATION_RETAIN} is {value:?}, which is neither true nor false"
                );
                Err(refusal(&wrong, "correct it", follow_up))
            }
        }
    }

    async fn retain_in_cloud(
        &self,
        sync: &ServiceSync,
        load_balancer: &LbRef,
        follow_up: AfterDelete,
    ) -> Result<Removal, ServiceSyncError> {
        let result = self
            .cloud
            .retain(self.op_for_service(sync), load_balancer)
            .await?;
        match result {
            Ok(RetainOutcome::Retained { id, kept }) => {
                tracing::info!(service = %sync.key, load_balancer = %id, %kept, "load balancer retained");
                Ok(Removal::Retained { id, kept })
            }
            Ok(RetainOutcome::NothingToRetain { reason }) => {
                tracing::info!(service = %sync.key, %reason, "no load balancer to retain");
                Ok(Removal::NothingToRetain { reason })
            }
            Ok(RetainOutcome::Pending { after, reason }) => Ok(Removal::Pending { after, reason }),
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => {
                Ok(Removal::OtherController)
            }
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                let wrong = format!("annotation {ANNOTATION_RETAIN} is true, but {error}");
                let correction = "remove it to have the load balancer deleted";
                Err(refusal(&wrong, correction, follow_up))
            }
            Err(error) => Err(retain_error(error)),
        }
    }
}

/// Returns the error of a removal that waits for a person. `correction` is what the owner of the
/// Service can do.
fn refusal(wrong: &str, correction: &str, follow_up: AfterDelete) -> ServiceSyncError {
    let message = match follow_up {
        AfterDelete::RemoveFinalizer => format!("{wrong}: nothing is deleted; {correction}"),
        AfterDelete::Requeue => format!(
            "{wrong}, on an earlier Service of this name: its load balancer is not deleted, and this Service waits; \
             set the annotation on this Service to say whether to keep that load balancer"
        ),
        AfterDelete::Forget => format!(
            "{wrong}: nothing is deleted, although the Service is gone; the same annotation on a new Service of this \
             name decides"
        ),
    };
    retain_error(CloudError::invalid_input(message))
}

fn retain_error(error: CloudError) -> ServiceSyncError {
    ServiceSyncError::cloud(ServiceOperation::Retain, error)
}

#[cfg(test)]
mod tests {
    use super::super::super::plan::ServiceSyncState;
    use super::*;

    #[test]
    fn a_wish_is_read_before_the_first_sync_and_never_from_another_service() {
        let wishing = |uid: &str, value: &str| {
            let mut service = ServiceView { uid: uid.into(), ..ServiceView::named("ns", "web") };
            service
                .annotations
                .insert(ANNOTATION_RETAIN.into(), value.into());
            service
        };
        let mut state = ServiceSyncState::default();
        state.observe_retention(Some(&wishing("a", "true")));
        assert_eq!(state.retention, Retention::Keep);
        state.uid = "a".into();
        state.may_exist_in_cloud = true;
        state.observe_retention(Some(&wishing("b", "false")));
        state.observe_retention(None);
        assert_eq!(state.retention, Retention::Keep);
        // Another Service decides only if nothing else can be done.
        let beside = |can_retain| state.retention_beside(Some(&wishing("b", "false")), can_retain);
        assert_eq!((beside(true), beside(false)), (Retention::Keep, Retention::Delete));
        assert_eq!(state.retention_beside(Some(&wishing("a", "false")), false), Retention::Keep);
    }
}

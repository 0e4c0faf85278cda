//! Deletes balancers.

use super::{
    super::{
        ServiceController,
        metrics::{Outcome, Work},
        plan::{Known, Subject, Then, Written},
        trouble::{Doing, Trouble},
        writes,
    },
    Look, Next, REST,
};
use crate::provider::{ErrorKind, EventKind, LbRef, Progress};

impl ServiceController {
    /// Deletes the balancer. The finalizer goes last.
    pub(super) async fn delete(&self, look: &mut Look, then: Then, announce: bool) -> Result<Next, Trouble> {
        (look.work, look.subject) = (Work::Delete, Some(Subject::Delete));
        let lb = self.reference(look, then);
        if announce {
            self.tell(look, EventKind::Normal, "DeletingLoadBalancer", "Deleting load balancer");
            look.known.announced = Some(Subject::Delete);
            look.known.pending_since = None;
        }
        look.known.may_exist = true;
        look.known.applied = None;
        look.known.attempted = true;
        let doing = Doing::Delete { gone: then != Then::Release };
        match self.cloud.delete(self.op_for(look), &lb).await? {
            Ok(Progress::Done) => {}
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ImplementedElsewhere) => {}
            Err(error) => return Err(Trouble::cloud(doing, error)),
            Ok(Progress::Pending { after, why }) => {
                tracing::debug!(service = %look.key, ?after, %why, "load balancer is being deleted");
                return Ok(self.wait(look, after));
            }
        }
        let mut written = None;
        if let (Then::Release, Some(service)) = (then, look.service.clone()) {
            let balancers = self.cloud.balancers().map_err(|error| Trouble::cloud(Doing::RemoveFinalizer, error))?;
            let stale = balancers.stale_annotations(&lb);
            let version = writes::release(&self.cx.api, &self.fields, &service, &stale)
                .await
                .map_err(|error| Trouble::api(Doing::RemoveFinalizer, error))?;
            // Gone already: nothing that the cache still shows of it is true.
            let version = version.map_or(u64::MAX, |version| version.parse().unwrap_or(0));
            written = Some(Written { version, finalizer: false });
        }
        tracing::info!(service = %look.key, "load balancer deleted");
        self.tell(look, EventKind::Normal, "DeletedLoadBalancer", "Deleted load balancer");
        self.metrics.count(Work::Delete, Outcome::Done);
        match then {
            Then::Forget => return Ok(Next::Forget),
            Then::LookAgain => look.known = Known::default(),
            Then::Release => look.known = Known { uid: look.known.uid.clone(), written, ..Known::default() },
        }
        // What came meanwhile, a balancer wanted again for instance, is looked at now.
        Ok(if then == Then::LookAgain { Next::Again } else { REST })
    }

    /// Names what is to be deleted: the Service as it is, or as it was when it last was of the right type.
    pub(super) fn reference(&self, look: &Look, then: Then) -> LbRef {
        let current = look.service.as_ref().filter(|_| then == Then::Release);
        let last = look.known.last_seen.as_ref().filter(|last| *last.uid == *look.known.uid);
        let seen = match current {
            Some(service) if service.is_load_balancer && self.fields.claims(service.class.as_deref()) => Some(service),
            _ => last.or(current),
        };
        let (namespace, name) = look.key.split_once('/').unwrap_or(("", &look.key));
        LbRef {
            uid: look.known.uid.clone(),
            namespace: namespace.into(),
            name: name.into(),
            class: seen.and_then(|service| service.class.clone()),
            annotations: seen.map(|service| service.annotations.clone()).unwrap_or_default(),
            status: seen.map(|service| service.status.clone()).unwrap_or_default(),
            last_seen: seen.cloned(),
        }
    }
}

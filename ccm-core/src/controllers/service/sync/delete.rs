//! Deletes balancers.

use super::{
    super::{
        ServiceController,
        metrics::{Outcome, Work},
        nodes::Doubt,
        plan::{Known, Subject, Then, Written},
        trouble::{Doing, Trouble},
        writes::{self, Released},
    },
    Look, Next, REST,
};
use crate::{
    k8s::ServiceView,
    provider::{ErrorKind, EventKind, LbRef, Progress},
};

/// So many Services that vanish without having been deleted, and more than half of all, are not believed to be gone.
const MANY: usize = 3;

impl ServiceController {
    /// Deletes the balancer. The finalizer goes last.
    pub(super) async fn delete(&self, look: &mut Look, then: Then, announce: bool) -> Result<Next, Trouble> {
        let subject = Subject::delete(look.service.as_deref(), &look.known, then);
        (look.work, look.subject) = (Work::Delete, Some(subject));
        match then {
            Then::Forget => self.confirm_gone(look).await?,
            Then::Release => self.confirm_unwanted(look).await?,
            Then::LookAgain => {}
        }
        let lb = self.reference(look, then);
        if announce {
            self.tell(look, EventKind::Normal, "DeletingLoadBalancer", "Deleting load balancer");
            look.known.announced = Some(subject);
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
        look.known.deleted = true;
        let mut written = None;
        if let (Then::Release, Some(service)) = (then, look.service.clone()) {
            let balancers = self.cloud.balancers().map_err(|error| Trouble::cloud(Doing::RemoveFinalizer, error))?;
            let stale = balancers.stale_annotations(&lb);
            let released = writes::release(&self.cx.api, &self.fields, &service, &stale)
                .await
                .map_err(|error| Trouble::api(Doing::RemoveFinalizer, error))?;
            let written_at = |version| Written { version, finalizer: false, at: self.now() };
            written = match released {
                Released::Written(version) => Some(written_at(version.parse().unwrap_or(0))),
                // Gone already: nothing that the cache still shows of it is true.
                Released::Nothing => Some(written_at(u64::MAX)),
                Released::WantedAgain => None,
            };
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

    /// Makes sure that a Service whose balancer is to be deleted is gone.
    ///
    /// The finalizer keeps a Service until its balancer is deleted, so that one vanishes with its balancer is rare: its
    /// finalizer was taken off by hand or came when the deletion had begun, or the cache or etcd went back in time. The last
    /// must not cost all balancers.
    async fn confirm_gone(&self, look: &Look) -> Result<(), Trouble> {
        let (all, gone) = {
            let known = self.known.lock();
            let served = known.iter().filter(|(_, known)| known.may_exist && !known.deleted);
            let gone = served.clone().filter(|(key, _)| self.services.get(key).is_none());
            (served.count(), gone.count())
        };
        if !look.known.deleted && gone >= MANY && gone * 2 > all {
            return Err(Trouble::Doubt(Doubt::MostGone { gone, all }));
        }
        let (namespace, name) = look.key.split_once('/').unwrap_or(("", &look.key));
        match self.ask(namespace, name, Doing::Delete { gone: true }).await? {
            Some(fresh) if fresh.uid == look.known.uid && fresh.is_load_balancer => {
                Err(Trouble::Doubt(Doubt::StillThere))
            }
            _ => Ok(()),
        }
    }

    /// Makes sure that a Service whose type or class changed is not one to be served again: an attempt may have waited for
    /// minutes, and the cache may lag. A deletion cannot be taken back, so that one needs no question.
    async fn confirm_unwanted(&self, look: &Look) -> Result<(), Trouble> {
        let Some(service) = look.service.as_ref().filter(|service| !service.deleting) else { return Ok(()) };
        match self.ask(&service.namespace, &service.name, Doing::Delete { gone: false }).await? {
            Some(fresh) if fresh.uid == service.uid && self.fields.wants(&fresh) => {
                Err(Trouble::Doubt(Doubt::WantedAgain))
            }
            _ => Ok(()),
        }
    }

    /// Asks the API server for the Service as it is now; none if there is none. `doing`: what for.
    async fn ask(&self, namespace: &str, name: &str, doing: Doing) -> Result<Option<ServiceView>, Trouble> {
        match self.cx.api.get_service(namespace, name, &self.fields).await {
            Ok(fresh) => Ok(Some(fresh)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(Trouble::api(doing, error)),
        }
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

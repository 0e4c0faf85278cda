//! What the service controller would do about each Service, from what can be seen: as a process that has just started.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::{Look, Wanted};
use crate::{
    config::controllers::SERVICE_LB,
    controllers::service::{
        ServiceController,
        plan::{Facts, Known, Step, Then, decide},
        trouble::{Doing, Trouble},
    },
    k8s::{ServiceView, well_known as wk},
    provider::{ErrorKind, InvalidInput, PlannedChange},
    runtime::shadow::{Difference, Findings, Kind, NONE, Paced, Preview, Uncompared},
};

/// The controller as a shadow.
struct ServicePreview {
    controller: ServiceController,
    /// Services and fingerprints of their backends as they were when they were compared.
    paced: Paced<(Arc<ServiceView>, Option<u64>)>,
}

impl ServiceController {
    /// Makes a controller that only says what it would do; what differs is looked at again after `settle`.
    pub(crate) fn preview(self, settle: Duration) -> Box<dyn Preview> {
        let paced = Paced::new(settle, self.config.verify_period);
        Box::new(ServicePreview { controller: self, paced })
    }
}

#[async_trait]
impl Preview for ServicePreview {
    async fn look(&mut self, now: Instant) -> Findings {
        let Self { controller, paced } = self;
        let mut services = controller.services.list();
        services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        paced.retain(|key| controller.services.get(key).is_some());
        let mut due = Vec::new();
        for service in services {
            let key: Arc<str> = service.key().into();
            let observed = controller.observe(&key, &service).await;
            let fingerprint = observed.as_ref().map_or(None, |observed| observed.look.fingerprint);
            let is_same = |(seen, backends): &(Arc<ServiceView>, Option<u64>)| {
                Arc::ptr_eq(seen, &service) && *backends == fingerprint
            };
            if paced.is_due(&key, now, is_same) {
                due.push((key, (service, fingerprint), observed));
            }
        }
        let controller = &*controller;
        let compare = |(key, about, observed): (_, _, Result<Observed, Trouble>)| async move {
            let outcome = match observed {
                Ok(observed) => controller.differences(observed).await,
                Err(trouble) => Err(trouble),
            };
            (key, about, outcome)
        };
        let mut outcomes = stream::iter(due).map(compare).buffered(controller.cloud.lanes());
        while let Some((key, about, outcome)) = outcomes.next().await {
            match outcome {
                Ok(found) => paced.compared(&key, about, now, found),
                Err(trouble) => {
                    let why = match &trouble {
                        Trouble::Paused(_) => "the cloud wants to be left alone".to_owned(),
                        // The gate is shut, so whoever asks for leadership in a comparison is told that there is none.
                        trouble => trouble.log().unwrap_or_else(|| "the comparison was broken off".to_owned()),
                    };
                    let (object, retry_after) = (key.to_string(), trouble.delay(1));
                    let why = Uncompared { kind: Kind::Service, object, controller: SERVICE_LB, why };
                    paced.failed(&key, about, now, why, Some(retry_after));
                }
            }
        }
        paced.findings("services", now)
    }
}

/// Where a Service shows the addresses of its balancer.
const STATUS: &str = "status.loadBalancer";

/// A Service as seen, and what is to be done about it.
struct Observed {
    look: Look,
    wanted: Option<Wanted>,
    step: Step,
}

impl ServiceController {
    /// Decides about a Service of which nothing is remembered. Asks the cloud nothing.
    async fn observe(&self, key: &Arc<str>, service: &Arc<ServiceView>) -> Result<Observed, Trouble> {
        let known = Known { uid: service.uid.clone(), ..Known::default() };
        let mut look = Look::new(key, Some(service.clone()), known);
        let (wish, wanted) = match self.readable(&look) {
            Some(service) => self.interpret(&mut look, service).await?,
            None => (None, None),
        };
        let step = decide(Facts {
            service: look.service.as_deref(),
            known: &look.known,
            fields: &self.fields,
            wish: wish.as_ref(),
            pass_awaited: false,
            now: self.now(),
        });
        Ok(Observed { look, wanted, step })
    }

    /// Says what doing it would change.
    async fn differences(&self, observed: Observed) -> Result<Vec<Difference>, Trouble> {
        let Observed { look, wanted, step } = observed;
        let Some(service) = &look.service else { return Ok(Vec::new()) };
        match (step, wanted) {
            (Step::Forget | Step::LeaveAlone | Step::Rest { .. }, _) => Ok(Vec::new()),
            (Step::Refuse { mistakes }, _) => Ok(refusal(service, &mistakes)),
            (Step::Delete { then, .. }, _) => self.release(&look, service, then),
            (_, Some(wanted)) => {
                let changes = match self.cloud.plan(self.op_for(&look), &wanted.spec).await? {
                    Ok(changes) => changes,
                    // Nothing would be made, and the status be left alone.
                    Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => return Ok(guard(service)),
                    Err(error) => return Err(Trouble::cloud(Doing::Compare, error)),
                };
                let mut found = balancer_differences(service, &changes);
                found.extend(guard(service));
                // Which address that is, only the balancer knows. One that changed is among the provider's changes.
                if service.status.ingress.is_empty() {
                    let is = Some(NONE.to_owned());
                    let status =
                        difference(service, STATUS.to_owned(), "the address of its load balancer belongs there");
                    found.push(Difference { is, would_be: "set".to_owned(), ..status });
                }
                Ok(found)
            }
            (_, None) => Ok(Vec::new()),
        }
    }

    /// What the deletion of its balancer changes on the Service, after the balancer itself.
    fn release(&self, look: &Look, service: &ServiceView, then: Then) -> Result<Vec<Difference>, Trouble> {
        let why = match service.deleting {
            true => "the service is being deleted",
            false => "the service wants no load balancer",
        };
        let balancer = Difference {
            is: None,
            would_be: "deleted".to_owned(),
            ..difference(service, "load balancer".to_owned(), why)
        };
        let mut found = vec![balancer, finalizer(service, "set", NONE, why)];
        if !service.deleting {
            let balancers = self.cloud.balancers().map_err(|error| Trouble::cloud(Doing::RemoveFinalizer, error))?;
            let stale = balancers.stale_annotations(&self.reference(look, then));
            found.extend(stale.iter().filter_map(|key| {
                let is = Some(service.annotations.get(&**key)?.to_string());
                Some(Difference { is, ..difference(service, format!("metadata.annotations[{key}]"), why) })
            }));
            if !service.status.ingress.is_empty() {
                let is = Some("set".to_owned());
                found.push(Difference { is, ..difference(service, STATUS.to_owned(), why) });
            }
        }
        Ok(found)
    }
}

/// A Service that is not served is refused by whoever leads, too; one that is served would not be any longer.
fn refusal(service: &ServiceView, mistakes: &[InvalidInput]) -> Vec<Difference> {
    if !service.has_finalizer() && service.status.ingress.is_empty() {
        return Vec::new();
    }
    let list: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    let difference = difference(service, "load balancer".to_owned(), &list.join("; "));
    let (is, would_be) = (Some("served".to_owned()), "refused, and left as it is".to_owned());
    vec![Difference { is, would_be, ..difference }]
}

/// One difference for each operation on each object, whatever the number of reasons.
fn balancer_differences(service: &ServiceView, changes: &[PlannedChange]) -> Vec<Difference> {
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for PlannedChange { object, operation, reason } in changes {
        reasons.entry((object, operation)).or_default().push(reason);
    }
    let one = |((object, operation), reasons): ((&str, &str), Vec<&str>)| {
        let part = format!("load balancer {object}, {operation}");
        Difference { is: None, would_be: "needed".to_owned(), ..difference(service, part, &reasons.join("; ")) }
    };
    reasons.into_iter().map(one).collect()
}

/// The finalizer of a Service that is to have a load balancer.
fn guard(service: &ServiceView) -> Vec<Difference> {
    let why = "a load balancer must be deleted before its service";
    if service.has_finalizer() { Vec::new() } else { vec![finalizer(service, NONE, "set", why)] }
}

fn finalizer(service: &ServiceView, is: &str, would_be: &str, why: &str) -> Difference {
    let part = format!("metadata.finalizers[{}]", wk::FINALIZER_LOAD_BALANCER);
    Difference { is: Some(is.to_owned()), would_be: would_be.to_owned(), ..difference(service, part, why) }
}

/// A part of a Service that would go away.
fn difference(service: &ServiceView, part: String, why: &str) -> Difference {
    Difference {
        kind: Kind::Service,
        object: service.key(),
        part,
        controller: SERVICE_LB,
        is: None,
        would_be: NONE.to_owned(),
        why: why.to_owned(),
    }
}

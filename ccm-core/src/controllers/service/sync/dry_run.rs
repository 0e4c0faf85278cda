//! Dry run: what the service controller would do about each Service, planned like a process that
//! has just started.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::{DesiredService, ServiceSync};
use crate::{
    config::controller_names::SERVICE_LB,
    controllers::service::{
        ServiceController,
        plan::{AfterDelete, PlanInput, ServiceAction, ServiceSyncState, plan},
        sync_failure::{ServiceOperation, ServiceSyncError},
    },
    k8s::{ServiceView, well_known as wk},
    provider::{ErrorKind, FieldError, PlannedChange},
    runtime::shadow::{
        CompareSchedule, Difference, DryRun, DryRunFindings, NONE, NotCompared, ObjectKind,
    },
};

/// The service controller in a dry run.
struct ServiceDryRun {
    controller: ServiceController,
    /// Services, and fingerprints of their backends, as they were when they were compared.
    schedule: CompareSchedule<(Arc<ServiceView>, Option<u64>)>,
}

impl ServiceController {
    /// Makes a dry run that only reports what the controller would do. Differences are checked
    /// again after `settle`.
    pub(crate) fn dry_run(self, settle: Duration) -> Box<dyn DryRun> {
        let schedule = CompareSchedule::new(settle, self.config.verify_period);
        Box::new(ServiceDryRun { controller: self, schedule })
    }
}

#[async_trait]
impl DryRun for ServiceDryRun {
    async fn compare(&mut self, now: Instant) -> DryRunFindings {
        let Self { controller, schedule } = self;
        // First, plan every Service without cloud calls, to find out which ones are due for a
        // comparison.
        let mut services = controller.services.list();
        services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        schedule.retain(|key| controller.services.get(key).is_some());
        let mut due = Vec::new();
        for service in services {
            let key: Arc<str> = service.key().into();
            let observed = controller.plan_service(&key, &service).await;
            let fingerprint = observed
                .as_ref()
                .map_or(None, |observed| observed.sync.fingerprint);
            let is_same = |(seen, backends): &(Arc<ServiceView>, Option<u64>)| {
                Arc::ptr_eq(seen, &service) && *backends == fingerprint
            };
            if schedule.is_due(&key, now, is_same) {
                due.push((key, (service, fingerprint), observed));
            }
        }
        // Then compare these with the cloud, several at a time, and record the findings.
        let controller = &*controller;
        let compare = |(key, about, observed): (_, _, Result<PlannedSync, ServiceSyncError>)| async move {
            let outcome = match observed {
                Ok(observed) => controller.differences(observed).await,
                Err(error) => Err(error),
            };
            (key, about, outcome)
        };
        let mut outcomes = stream::iter(due)
            .map(compare)
            .buffered(controller.cloud.concurrency());
        while let Some((key, about, outcome)) = outcomes.next().await {
            match outcome {
                Ok(found) => schedule.compared(&key, about, now, found),
                Err(trouble) => {
                    let why = match &trouble {
                        ServiceSyncError::Throttled(_) => {
                            "the cloud wants to be left alone".to_owned()
                        }
                        // The write gate is closed, so a comparison that checks leadership fails
                        // like that of a process that is not the leader.
                        trouble => trouble
                            .log()
                            .unwrap_or_else(|| "the comparison was broken off".to_owned()),
                    };
                    let object = key.to_string();
                    let retry_after = trouble.delay(1);
                    let why = NotCompared {
                        kind: ObjectKind::Service,
                        object,
                        controller: SERVICE_LB,
                        why,
                    };
                    schedule.failed(&key, about, now, why, Some(retry_after));
                }
            }
        }
        schedule.findings("services", now)
    }
}

/// The field of a Service that has the addresses of its load balancer.
const STATUS: &str = "status.loadBalancer";

/// A Service as observed, and the action that is planned for it.
struct PlannedSync {
    sync: ServiceSync,
    desired: Option<DesiredService>,
    step: ServiceAction,
}

impl ServiceController {
    /// Plans a Service without sync state. Makes no cloud call.
    async fn plan_service(
        &self,
        key: &Arc<str>,
        service: &Arc<ServiceView>,
    ) -> Result<PlannedSync, ServiceSyncError> {
        let state = ServiceSyncState { uid: service.uid.clone(), ..ServiceSyncState::default() };
        let mut look = ServiceSync::new(key, Some(service.clone()), state);
        let (desired_state, desired_service) = match self.service_to_sync(&look) {
            Some(service) => self.interpret_spec(&mut look, service).await?,
            None => (None, None),
        };
        let step = plan(PlanInput {
            service: look.service.as_deref(),
            state: &look.state,
            fields: &self.fields,
            desired: desired_state.as_ref(),
            node_sync_scheduled: false,
            now: self.now(),
        });
        Ok(PlannedSync { sync: look, desired: desired_service, step })
    }

    /// Returns what applying the action would change.
    async fn differences(
        &self,
        observed: PlannedSync,
    ) -> Result<Vec<Difference>, ServiceSyncError> {
        let PlannedSync { sync: look, desired: wanted, step } = observed;
        let Some(service) = &look.service else {
            return Ok(Vec::new());
        };
        match (step, wanted) {
            (ServiceAction::Forget | ServiceAction::Ignore | ServiceAction::Wait { .. }, _) => {
                Ok(Vec::new())
            }
            (ServiceAction::ReportInvalid { errors }, _) => {
                Ok(invalid_differences(service, &errors))
            }
            (ServiceAction::Delete { then, .. }, _) => {
                self.finalizer_differences(&look, service, then)
            }
            (_, Some(wanted)) => {
                let changes = match self
                    .cloud
                    .plan(self.op_for_service(&look), &wanted.spec)
                    .await?
                {
                    Ok(changes) => changes,
                    // The provider would create nothing, and the status would not be touched. Only
                    // the finalizer would be added.
                    Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => {
                        return Ok(missing_finalizer(service));
                    }
                    Err(error) => {
                        return Err(ServiceSyncError::cloud(ServiceOperation::Compare, error));
                    }
                };
                let mut found = load_balancer_differences(service, &changes);
                found.extend(missing_finalizer(service));
                // Only the load balancer knows the address. A changed address is among the
                // provider's changes.
                if service.status.ingress.is_empty() {
                    let is = Some(NONE.to_owned());
                    let status = difference(
                        service,
                        STATUS.to_owned(),
                        "the address of its load balancer belongs there",
                    );
                    found.push(Difference { current: is, desired: "set".to_owned(), ..status });
                }
                Ok(found)
            }
            (_, None) => Ok(Vec::new()),
        }
    }

    /// Returns the deletion of the load balancer, and what follows from it on the Service.
    fn finalizer_differences(
        &self,
        sync: &ServiceSync,
        service: &ServiceView,
        then: AfterDelete,
    ) -> Result<Vec<Difference>, ServiceSyncError> {
        let why = if service.deleting {
            "the service is being deleted"
        } else {
            "the service wants no load balancer"
        };
        let balancer = Difference {
            current: None,
            desired: "deleted".to_owned(),
            ..difference(service, "load balancer".to_owned(), why)
        };
        let mut found = vec![balancer, finalizer(service, "set", NONE, why)];
        if !service.deleting {
            let balancers = self.cloud.load_balancers().map_err(|error| {
                ServiceSyncError::cloud(ServiceOperation::RemoveFinalizer, error)
            })?;
            let stale = balancers.stale_annotations(&self.lb_ref(sync, then));
            found.extend(stale.iter().filter_map(|key| {
                let is = Some(service.annotations.get(&**key)?.to_string());
                Some(Difference {
                    current: is,
                    ..difference(service, format!("metadata.annotations[{key}]"), why)
                })
            }));
            if !service.status.ingress.is_empty() {
                let is = Some("set".to_owned());
                found.push(Difference {
                    current: is,
                    ..difference(service, STATUS.to_owned(), why)
                });
            }
        }
        Ok(found)
    }
}

/// Differences of an invalid Service. One that is not served has none, because every leader rejects
/// it. For one that is served, the load balancer would be left as it is.
fn invalid_differences(service: &ServiceView, errors: &[FieldError]) -> Vec<Difference> {
    if !service.has_finalizer() && service.status.ingress.is_empty() {
        return Vec::new();
    }
    let list: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let difference = difference(service, "load balancer".to_owned(), &list.join("; "));
    let is = Some("served".to_owned());
    let would_be = "refused, and left as it is".to_owned();
    vec![Difference { current: is, desired: would_be, ..difference }]
}

/// One difference for each operation on each object, whatever the number of reasons.
fn load_balancer_differences(service: &ServiceView, changes: &[PlannedChange]) -> Vec<Difference> {
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for PlannedChange { object, operation, reason } in changes {
        reasons.entry((object, operation)).or_default().push(reason);
    }
    let one = |((object, operation), reasons): ((&str, &str), Vec<&str>)| {
        let part = format!("load balancer {object}, {operation}");
        Difference {
            current: None,
            desired: "needed".to_owned(),
            ..difference(service, part, &reasons.join("; "))
        }
    };
    reasons.into_iter().map(one).collect()
}

/// The missing finalizer of a Service that should have a load balancer.
fn missing_finalizer(service: &ServiceView) -> Vec<Difference> {
    let why = "a load balancer must be deleted before its service";
    if service.has_finalizer() {
        Vec::new()
    } else {
        vec![finalizer(service, NONE, "set", why)]
    }
}

fn finalizer(service: &ServiceView, is: &str, would_be: &str, why: &str) -> Difference {
    let part = format!("metadata.finalizers[{}]", wk::FINALIZER_LOAD_BALANCER);
    Difference {
        current: Some(is.to_owned()),
        desired: would_be.to_owned(),
        ..difference(service, part, why)
    }
}

/// Makes a difference for a part of a Service that would be removed.
fn difference(service: &ServiceView, part: String, why: &str) -> Difference {
    Difference {
        kind: ObjectKind::Service,
        object: service.key(),
        part,
        controller: SERVICE_LB,
        current: None,
        desired: NONE.to_owned(),
        why: why.to_owned(),
    }
}

//! The dry run of the service controller, which plans each Service as a process does that has just
//! started, and reports what it would change.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::{DesiredLoadBalancer, ServiceSync};
use crate::{
    config::controller_names::SERVICE_LB,
    controllers::service::{
        ServiceController,
        plan::{AfterDelete, ServiceAction, ServiceSyncState},
        sync_error::{ServiceOperation, ServiceSyncError},
    },
    k8s::{ServiceView, well_known},
    provider::{ErrorKind, EventType, FieldError, PlannedChange, RemovalPlan},
    runtime::shadow::{
        CompareSchedule, Difference, DryRun, DryRunFindings, ManagerDefect, NONE, NotCompared,
        Notice, ObjectKind, PossibleDefect,
    },
};

/// The service controller in a dry run.
struct ServiceDryRun {
    controller: ServiceController,
    schedule: CompareSchedule<ComparedService>,
    /// The provider's Warnings about each Service, as of its last comparison.
    notices: BTreeMap<Arc<str>, Vec<Notice>>,
}

/// A Service as it was compared, and the fingerprint of its backends then.
struct ComparedService {
    service: Arc<ServiceView>,
    fingerprint: Option<u64>,
}

/// A Service that is due for a comparison.
struct DueService {
    key: Arc<str>,
    compared: ComparedService,
    planned: Result<PlannedSync, ServiceSyncError>,
}

/// A Service as observed, and the action that is planned for it.
struct PlannedSync {
    sync: ServiceSync,
    action: ServiceAction,
    desired: Option<DesiredLoadBalancer>,
}

impl ServiceController {
    /// Turns the controller into a dry run, which only reports what the controller would do. A
    /// Service with differences is compared again after `settle`.
    pub(crate) fn dry_run(self, settle: Duration) -> Box<dyn DryRun> {
        let schedule = CompareSchedule::new(settle, self.config.verify_period);
        Box::new(ServiceDryRun { controller: self, schedule, notices: BTreeMap::new() })
    }
}

#[async_trait]
impl DryRun for ServiceDryRun {
    async fn compare(&mut self, now: Instant) -> DryRunFindings {
        let due = self.due_services(now).await;
        let Self { controller, schedule, notices } = self;
        for service in &due {
            let found = controller.warnings(&service.compared.service);
            notices.insert(service.key.clone(), found);
        }
        let controller = &*controller;
        let compare = |due: DueService| async move {
            let result = match due.planned {
                Ok(planned) => controller.find_differences(planned).await,
                Err(error) => Err(error),
            };
            (due.key, due.compared, result)
        };
        let mut results = stream::iter(due)
            .map(compare)
            .buffered(controller.cloud.concurrency());
        while let Some((key, compared, result)) = results.next().await {
            match result {
                Ok(differences) => schedule.compared(&key, compared, now, differences),
                Err(error) => {
                    let not_compared = NotCompared {
                        kind: ObjectKind::Service,
                        object: key.to_string(),
                        controller: SERVICE_LB,
                        why: not_compared_reason(&error),
                    };
                    let retry_after = error.delay(1);
                    schedule.failed(&key, compared, now, not_compared, Some(retry_after));
                }
            }
        }
        DryRunFindings {
            notices: notices.values().flatten().cloned().collect(),
            ..schedule.findings("services", now)
        }
    }
}

impl ServiceDryRun {
    /// Plans every Service, without cloud calls, and returns those that are due for a comparison.
    async fn due_services(&mut self, now: Instant) -> Vec<DueService> {
        let Self { controller, schedule, notices } = self;
        let mut services = controller.services.list();
        services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        schedule.retain(|key| controller.services.get(key).is_some());
        notices.retain(|key, _| controller.services.get(key).is_some());
        let mut due = Vec::new();
        for service in services {
            let key: Arc<str> = service.key().into();
            let planned = controller.plan_service(&key, &service).await;
            let mut fingerprint = None;
            if let Ok(planned) = &planned {
                fingerprint = planned.sync.backend_fingerprint;
            }
            let is_due = schedule.is_due(&key, now, |last: &ComparedService| {
                Arc::ptr_eq(&last.service, &service) && last.fingerprint == fingerprint
            });
            if is_due {
                let compared = ComparedService { service, fingerprint };
                due.push(DueService { key, compared, planned });
            }
        }
        due
    }
}

/// Returns the reason why a Service was not compared.
fn not_compared_reason(error: &ServiceSyncError) -> String {
    if let ServiceSyncError::Throttled(_) = error {
        return "the cloud is throttling".to_owned();
    }
    // An error without a log message comes from the write gate. It is closed in shadow mode, and
    // the provider may check it even during a comparison.
    error
        .log_message()
        .unwrap_or_else(|| "the comparison was aborted".to_owned())
}

/// The field of a Service with the addresses of its load balancer.
const STATUS: &str = "status.loadBalancer";

impl ServiceController {
    /// Plans a Service without sync state and without a cloud call.
    async fn plan_service(
        &self,
        key: &Arc<str>,
        service: &Arc<ServiceView>,
    ) -> Result<PlannedSync, ServiceSyncError> {
        let state = ServiceSyncState { uid: service.uid.clone(), ..ServiceSyncState::default() };
        let mut sync = ServiceSync::new(key, Some(service.clone()), state);
        sync.state.observe_retention(sync.service.as_deref());
        let mut interpreted = None;
        if let Some(service) = self.service_to_serve(&sync) {
            interpreted = Some(self.interpret(&mut sync, service).await?);
        }
        let action = self.plan_action(&sync, interpreted.as_ref(), false);
        let desired = interpreted.and_then(|interpreted| interpreted.load_balancer);
        Ok(PlannedSync { sync, action, desired })
    }

    /// Returns the provider's Warnings about a Service that needs a load balancer.
    fn warnings(&self, service: &ServiceView) -> Vec<Notice> {
        let mut warnings = Vec::new();
        let Ok(load_balancers) = self.cloud.load_balancers() else {
            return warnings;
        };
        if !self.fields.is_managed(service) {
            return warnings;
        }
        for notice in load_balancers.notices(service) {
            if notice.kind == EventType::Warning {
                warnings.push(Notice {
                    kind: ObjectKind::Service,
                    object: service.key(),
                    reason: notice.reason,
                    note: notice.note.into(),
                });
            }
        }
        warnings
    }

    /// Returns the changes that the planned action would make.
    async fn find_differences(
        &self,
        planned: PlannedSync,
    ) -> Result<Vec<Difference>, ServiceSyncError> {
        let PlannedSync { sync, action, desired } = planned;
        let Some(service) = &sync.service else {
            return Ok(Vec::new());
        };
        match action {
            ServiceAction::Forget
            | ServiceAction::Ignore
            | ServiceAction::RemoveCondition
            | ServiceAction::Wait { .. } => Ok(Vec::new()),
            ServiceAction::ReportInvalid { errors } => Ok(invalid_differences(service, &errors)),
            ServiceAction::Delete { follow_up, .. } => {
                self.deletion_differences(&sync, service, follow_up)
            }
            ServiceAction::Serve(_) => match desired {
                Some(desired) => self.serve_differences(&sync, service, &desired).await,
                None => Ok(Vec::new()),
            },
        }
    }

    /// Returns the changes of the load balancer, and those of the Service that follow from them.
    async fn serve_differences(
        &self,
        sync: &ServiceSync,
        service: &ServiceView,
        desired: &DesiredLoadBalancer,
    ) -> Result<Vec<Difference>, ServiceSyncError> {
        let changes = match self
            .cloud
            .plan(self.op_for_service(sync), &desired.spec)
            .await?
        {
            Ok(changes) => changes,
            // The controller would add the finalizer before it learned that another controller
            // serves the Service.
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => {
                return Ok(missing_finalizer(service));
            }
            Err(error) => return Err(ServiceSyncError::cloud(ServiceOperation::Compare, error)),
        };
        let mut differences = load_balancer_differences(service, &changes);
        differences.extend(missing_finalizer(service));
        // The address is not known before the load balancer exists. If an existing address would
        // change, that is one of the provider's changes.
        if service.status.ingress.is_empty() {
            let missing = Difference {
                current: Some(NONE.to_owned()),
                desired: "set".to_owned(),
                ..difference(
                    service,
                    STATUS.to_owned(),
                    "the address of its load balancer belongs there",
                )
            };
            let defect = ManagerDefect::ServiceWithoutAddress;
            differences.push(missing.with_defect(defect, Some(service.created)));
        }
        Ok(differences)
    }

    /// Returns the deletion of the load balancer, and the changes of the Service that follow.
    fn deletion_differences(
        &self,
        sync: &ServiceSync,
        service: &ServiceView,
        follow_up: AfterDelete,
    ) -> Result<Vec<Difference>, ServiceSyncError> {
        let reason = if service.deleting {
            "the service is being deleted"
        } else {
            "the service needs no load balancer"
        };
        let removal = self.removal_plan(sync);
        let becomes = match removal {
            RemovalPlan::Delete => "deleted",
            RemovalPlan::LetGo => "kept, and let go of",
            RemovalPlan::Nothing => "left as it is until the annotation that keeps it is corrected",
        };
        let deletion = Difference {
            current: None,
            desired: becomes.to_owned(),
            // Since when a Service has needed no load balancer is only known of a deletion.
            defect: service.deletion_requested.map(|requested| PossibleDefect {
                defect: ManagerDefect::DeletionUnfinished,
                since: Some(requested),
            }),
            ..difference(service, "load balancer".to_owned(), reason)
        };
        if removal == RemovalPlan::Nothing {
            return Ok(vec![deletion]);
        }
        let mut differences = vec![deletion, finalizer_difference(service, "set", NONE, reason)];
        // A Service that is being deleted disappears with its finalizer.
        if service.deleting {
            return Ok(differences);
        }
        let load_balancers = self
            .cloud
            .load_balancers()
            .map_err(|error| ServiceSyncError::cloud(ServiceOperation::RemoveFinalizer, error))?;
        for key in load_balancers.stale_annotations(&self.load_balancer_ref(sync, follow_up)) {
            if let Some(value) = service.annotations.get(&*key) {
                differences.push(Difference {
                    current: Some(value.to_string()),
                    ..difference(service, format!("metadata.annotations[{key}]"), reason)
                });
            }
        }
        if !service.status.ingress.is_empty() {
            differences.push(Difference {
                current: Some("set".to_owned()),
                ..difference(service, STATUS.to_owned(), reason)
            });
        }
        Ok(differences)
    }
}

/// Returns the difference of an invalid Service that is served, whose load balancer would stay as
/// it is. An invalid Service that is not served has no difference, because any leader rejects it.
fn invalid_differences(service: &ServiceView, errors: &[FieldError]) -> Vec<Difference> {
    if !service.has_finalizer() && service.status.ingress.is_empty() {
        return Vec::new();
    }
    let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
    vec![Difference {
        current: Some("served".to_owned()),
        desired: "refused, and left as it is".to_owned(),
        ..difference(service, "load balancer".to_owned(), &messages.join("; "))
    }]
}

/// Returns one difference for each operation on each cloud object, with all reasons for it.
fn load_balancer_differences(service: &ServiceView, changes: &[PlannedChange]) -> Vec<Difference> {
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for PlannedChange { object, operation, reason } in changes {
        reasons.entry((object, operation)).or_default().push(reason);
    }
    let mut differences = Vec::new();
    for ((object, operation), reasons) in reasons {
        let part = format!("load balancer {object}, {operation}");
        differences.push(Difference {
            current: None,
            desired: "needed".to_owned(),
            ..difference(service, part, &reasons.join("; "))
        });
    }
    differences
}

/// Returns the difference of a Service that should have our finalizer and does not.
fn missing_finalizer(service: &ServiceView) -> Vec<Difference> {
    if service.has_finalizer() {
        return Vec::new();
    }
    let reason = "a load balancer must be deleted before its service";
    vec![finalizer_difference(service, NONE, "set", reason)]
}

fn finalizer_difference(
    service: &ServiceView,
    current: &str,
    desired: &str,
    reason: &str,
) -> Difference {
    let part = format!("metadata.finalizers[{}]", well_known::FINALIZER_LOAD_BALANCER);
    Difference {
        current: Some(current.to_owned()),
        desired: desired.to_owned(),
        ..difference(service, part, reason)
    }
}

/// Returns the difference of a part of a Service that would be removed.
fn difference(service: &ServiceView, part: String, reason: &str) -> Difference {
    Difference {
        kind: ObjectKind::Service,
        object: service.key(),
        part,
        controller: SERVICE_LB,
        current: None,
        desired: NONE.to_owned(),
        why: reason.to_owned(),
        defect: None,
    }
}

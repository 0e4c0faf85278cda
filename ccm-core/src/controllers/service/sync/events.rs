//! Events for the owner of a Service, and logs for the operator: on change, never twice for one
//! attempt.

use std::{collections::BTreeSet, time::Duration};

use super::{
    super::{
        ServiceController,
        metrics::{ServiceOperationKind, ServiceOutcome},
        plan::{ReportedFailure, invalid_digest},
    },
    DesiredService, ServiceSync, SyncResult, object,
};
use crate::{
    controllers::service::sync_failure::{ServiceOperation, ServiceSyncError},
    k8s::ServiceView,
    provider::{Backends, Digest, EventType, FieldError, LbSpec},
    telemetry::controller_metrics::ReconcileOutcome as Reconciled,
};

/// Least time between two events that report new backends, so that in a cluster whose nodes come
/// and go they do not hide more important events.
const BACKENDS_EVENT_GAP: Duration = Duration::from_secs(600);

impl ServiceController {
    /// Emits the provider's notices about the Service, each once.
    pub(super) fn report_notices(&self, sync: &mut ServiceSync, service: &ServiceView) {
        let remarks = self
            .cloud
            .load_balancers()
            .map(|balancers| balancers.notices(service))
            .unwrap_or_default();
        let mut seen = BTreeSet::new();
        for remark in remarks {
            let digest = Digest::of(&(remark.reason, &remark.note));
            if !sync.state.reported_notices.contains(&digest) {
                self.cx
                    .events
                    .event(&object(service), remark.kind, remark.reason, &remark.note);
            }
            seen.insert(digest);
        }
        sync.state.reported_notices = seen;
    }

    /// Reports the validation errors, then requeues: the existing load balancer may need other
    /// backends.
    pub(super) fn report_invalid(
        &self,
        sync: &mut ServiceSync,
        errors: &[FieldError],
    ) -> SyncResult {
        sync.state.reported_invalid_digest = Some(invalid_digest(errors));
        if let Some(service) = &sync.service {
            let list: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let note = format!(
                "Error syncing load balancer: failed to ensure load balancer: {}",
                list.join("; ")
            );
            tracing::warn!(service = %sync.key, error = note, "service refused");
            self.metrics
                .count(ServiceOperationKind::Reject, ServiceOutcome::Done);
            self.cx.events.event(
                &object(service),
                EventType::Warning,
                "SyncLoadBalancerFailed",
                &note,
            );
        }
        SyncResult::RequeueNow
    }

    /// Handles a failed sync: when to retry, and what to report.
    pub(super) fn handle_error(
        &self,
        sync: &mut ServiceSync,
        trouble: &ServiceSyncError,
    ) -> SyncResult {
        let failures = if trouble.is_failure() {
            self.queue.failed(&sync.key)
        } else {
            1
        };
        let now = self.now();
        let until = now + trouble.delay(failures);
        // An outage affects every set of backends, while an exceeded quota or invalid input may
        // concern these backends only.
        sync.defer(now, until, !trouble.needs_user_action());
        sync.reconcile_outcome = Reconciled::Pending;
        if trouble.is_failure() {
            self.metrics.count(sync.operation, ServiceOutcome::Failed);
            sync.reconcile_outcome = Reconciled::Failed;
        }
        if let Some(error) = trouble.log() {
            tracing::warn!(service = %sync.key, error, failures, work = ?sync.operation, "service not synced");
        }
        if let Some((event_reason, error_kind, note)) = trouble.event() {
            let failure = ReportedFailure { attempt: sync.attempt, event_reason, error_kind };
            if sync.state.last_failure_event != Some(failure) {
                sync.state.last_failure_event = Some(failure);
                self.emit_event(sync, EventType::Warning, event_reason, &note);
            }
        }
        SyncResult::RequeueAt { until: Some(until), resets_failures: false }
    }

    pub(super) fn report_success(
        &self,
        sync: &mut ServiceSync,
        desired_service: &DesiredService,
        doing: &ServiceOperation,
    ) {
        let now = self.now();
        let since = self.node_sync.lock().remaining.get(&sync.key).copied();
        if let (ServiceOperation::Update { .. }, Some(since)) = (doing, since) {
            self.metrics
                .backends_delay
                .observe(now.saturating_sub(since).as_secs_f64());
        }
        if sync.state.completion_event_due {
            self.complete_announced(sync, &desired_service.service);
        } else if matches!(doing, ServiceOperation::Update { hosts } if !hosts.is_empty())
            && sync
                .state
                .backends_event_at
                .is_none_or(|told| now >= told + BACKENDS_EVENT_GAP)
        {
            self.emit_event(
                sync,
                EventType::Normal,
                "UpdatedLoadBalancer",
                "Updated load balancer with new hosts",
            );
            sync.state.backends_event_at = Some(now);
        }
    }

    pub(super) fn complete_announced(&self, sync: &mut ServiceSync, service: &ServiceView) {
        sync.state.completion_event_due = false;
        sync.state.backends_event_at = Some(self.now());
        let first = service.status.ingress.is_empty();
        if first
            && sync
                .state
                .desired_status
                .as_ref()
                .is_some_and(|status| !status.ingress.is_empty())
        {
            let age = self
                .cx
                .clock
                .now()
                .duration_since(service.created)
                .as_secs_f64()
                .max(0.0);
            self.metrics.address_delay.observe(age);
        }
        tracing::info!(service = %sync.key, "load balancer ensured");
        self.emit_event(sync, EventType::Normal, "EnsuredLoadBalancer", "Ensured load balancer");
    }

    pub(super) fn report_no_backends(&self, sync: &mut ServiceSync, spec: &LbSpec) {
        let empty = matches!(&spec.backends, Backends::Nodes(nodes) if nodes.is_empty());
        if empty && !sync.state.reported_no_backends {
            let note = "There are no available nodes for LoadBalancer";
            self.emit_event(sync, EventType::Warning, "UnAvailableLoadBalancer", note);
        }
        sync.state.reported_no_backends = empty;
    }

    pub(super) fn emit_event(
        &self,
        sync: &ServiceSync,
        kind: EventType,
        reason: &'static str,
        note: &str,
    ) {
        if let Some(object) = sync.object() {
            self.cx.events.event(&object, kind, reason, note);
        }
    }
}

//! Events for the owner of a Service, and logs for the operator: on change, never twice for one attempt.

use std::{collections::BTreeSet, time::Duration};

use super::{
    super::{
        ServiceController,
        error::{ServiceOperation, ServiceSyncError},
        metrics::{ServiceOperationKind, ServiceOutcome},
        plan::invalid_digest,
    },
    DesiredService, ServiceSync, SyncResult, object,
};
use crate::{
    k8s::ServiceView,
    provider::{Backends, Digest, EventType, FieldError, LbSpec},
    telemetry::controllers::ReconcileOutcome as Reconciled,
};

/// Least time between two events that report new backends, so that in a cluster whose nodes come and go they do not
/// hide more important events.
const BACKENDS_EVENT_GAP: Duration = Duration::from_secs(600);

impl ServiceController {
    /// Emits the provider's notices about the Service, each once.
    pub(super) fn report_notices(&self, look: &mut ServiceSync, service: &ServiceView) {
        let remarks = self.cloud.load_balancers().map(|balancers| balancers.notices(service)).unwrap_or_default();
        let mut seen = BTreeSet::new();
        for remark in remarks {
            let digest = Digest::of(&(remark.reason, &remark.note));
            if !look.state.reported_notices.contains(&digest) {
                self.cx.events.event(&object(service), remark.kind, remark.reason, &remark.note);
            }
            seen.insert(digest);
        }
        look.state.reported_notices = seen;
    }

    /// Reports the validation errors, then requeues: the existing load balancer may need other backends.
    pub(super) fn report_invalid(&self, look: &mut ServiceSync, mistakes: &[FieldError]) -> SyncResult {
        look.state.reported_invalid_digest = Some(invalid_digest(mistakes));
        if let Some(service) = &look.service {
            let list: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            let note = format!("Error syncing load balancer: failed to ensure load balancer: {}", list.join("; "));
            tracing::warn!(service = %look.key, error = note, "service refused");
            self.metrics.count(ServiceOperationKind::Reject, ServiceOutcome::Done);
            self.cx.events.event(&object(service), EventType::Warning, "SyncLoadBalancerFailed", &note);
        }
        SyncResult::RequeueNow
    }

    /// Handles a failed sync: when to retry, and what to report.
    pub(super) fn handle_error(&self, look: &mut ServiceSync, trouble: &ServiceSyncError) -> SyncResult {
        let failures = if trouble.is_failure() { self.queue.failed(&look.key) } else { 1 };
        let now = self.now();
        let until = now + trouble.delay(failures);
        // An outage affects every set of backends, while an exceeded quota or invalid input may concern these backends
        // only.
        look.defer(now, until, !trouble.needs_user_action());
        look.reconcile_outcome = Reconciled::Pending;
        if trouble.is_failure() {
            self.metrics.count(look.operation, ServiceOutcome::Failed);
            look.reconcile_outcome = Reconciled::Failed;
        }
        if let Some(error) = trouble.log() {
            tracing::warn!(service = %look.key, error, failures, work = ?look.operation, "service not synced");
        }
        if let Some((reason, kind, note)) = trouble.event()
            && look.state.last_failure_event != Some((look.attempt, reason, kind))
        {
            look.state.last_failure_event = Some((look.attempt, reason, kind));
            self.emit_event(look, EventType::Warning, reason, &note);
        }
        SyncResult::RequeueAt { until: Some(until), resets_failures: false }
    }

    pub(super) fn report_success(&self, look: &mut ServiceSync, wanted: &DesiredService, doing: &ServiceOperation) {
        let now = self.now();
        let since = self.node_sync.lock().remaining.get(&look.key).copied();
        if let (ServiceOperation::Update { .. }, Some(since)) = (doing, since) {
            self.metrics.backends_delay.observe(now.saturating_sub(since).as_secs_f64());
        }
        if look.state.completion_event_due {
            self.complete_announced(look, &wanted.service);
        } else if matches!(doing, ServiceOperation::Update { hosts } if !hosts.is_empty())
            && look.state.backends_event_at.is_none_or(|told| now >= told + BACKENDS_EVENT_GAP)
        {
            self.emit_event(look, EventType::Normal, "UpdatedLoadBalancer", "Updated load balancer with new hosts");
            look.state.backends_event_at = Some(now);
        }
    }

    pub(super) fn complete_announced(&self, look: &mut ServiceSync, service: &ServiceView) {
        look.state.completion_event_due = false;
        look.state.backends_event_at = Some(self.now());
        let first = service.status.ingress.is_empty();
        if first && look.state.desired_status.as_ref().is_some_and(|status| !status.ingress.is_empty()) {
            let age = self.cx.clock.now().duration_since(service.created).as_secs_f64().max(0.0);
            self.metrics.address_delay.observe(age);
        }
        tracing::info!(service = %look.key, "load balancer ensured");
        self.emit_event(look, EventType::Normal, "EnsuredLoadBalancer", "Ensured load balancer");
    }

    pub(super) fn report_no_backends(&self, look: &mut ServiceSync, spec: &LbSpec) {
        let empty = matches!(&spec.backends, Backends::Nodes(nodes) if nodes.is_empty());
        if empty && !look.state.reported_no_backends {
            let note = "There are no available nodes for LoadBalancer";
            self.emit_event(look, EventType::Warning, "UnAvailableLoadBalancer", note);
        }
        look.state.reported_no_backends = empty;
    }

    pub(super) fn emit_event(&self, look: &ServiceSync, kind: EventType, reason: &'static str, note: &str) {
        if let Some(object) = look.object() {
            self.cx.events.event(&object, kind, reason, note);
        }
    }
}

//! Events for the owner of a Service and logs for the operator. The same event is not repeated
//! while nothing changes.

use std::{collections::BTreeSet, time::Duration};

use super::{
    super::{
        ServiceController,
        metrics::{ServiceOutcome, SyncKind},
        plan::{ReportedFailure, invalid_digest},
        sync_error::{ServiceOperation, ServiceSyncError},
    },
    DeferralScope, DesiredLoadBalancer, ServiceSync, SyncResult,
    desired::join_errors,
    service_ref,
};
use crate::{
    explain::Cause,
    k8s::ServiceView,
    provider::{Backends, Digest, EventType, FieldError, LbSpec},
    telemetry::controller_metrics::ReconcileOutcome as Reconciled,
};

/// The minimum interval between two events about new backends. In a cluster whose nodes come and
/// go, they would otherwise hide more important events.
const MIN_BACKENDS_EVENT_INTERVAL: Duration = Duration::from_secs(600);

impl ServiceController {
    /// Emits the provider's notices about the Service, each once.
    pub(super) fn report_notices(&self, sync: &mut ServiceSync, service: &ServiceView) {
        let mut notices = Vec::new();
        if let Ok(load_balancers) = self.cloud.load_balancers() {
            notices = load_balancers.notices(service);
        }
        let mut current_digests = BTreeSet::new();
        for notice in notices {
            let digest = Digest::of(&(notice.reason, &notice.note));
            if !sync.state.reported_notices.contains(&digest) {
                self.ctx.events.event(
                    &service_ref(service),
                    notice.kind,
                    notice.reason,
                    &notice.note,
                );
            }
            current_digests.insert(digest);
        }
        sync.state.reported_notices = current_digests;
    }

    /// Reports the validation errors. The Service is synced again at once, because the backends of
    /// its existing load balancer may have to be updated.
    pub(super) fn report_invalid(
        &self,
        sync: &mut ServiceSync,
        errors: &[FieldError],
    ) -> SyncResult {
        sync.state.reported_invalid_digest = Some(invalid_digest(errors));
        if let Some(service) = &sync.service {
            let note = format!(
                "Error syncing load balancer: failed to ensure load balancer: {}",
                join_errors(errors)
            );
            tracing::warn!(service = %sync.key, error = note, "service is invalid");
            let note = Cause::ServiceInvalid.with_next_step(&note);
            self.metrics.count(SyncKind::Reject, ServiceOutcome::Done);
            self.ctx.events.event(
                &service_ref(service),
                EventType::Warning,
                "SyncLoadBalancerFailed",
                &note,
            );
        }
        SyncResult::RequeueNow
    }

    /// Reports a failed sync and decides when to retry it.
    pub(super) fn handle_error(
        &self,
        sync: &mut ServiceSync,
        error: &ServiceSyncError,
    ) -> SyncResult {
        let failures = if error.is_failure() {
            self.queue.failed(&sync.key)
        } else {
            1
        };
        let now = self.now();
        let until = now + error.delay(failures);
        // Decide how long to defer the goal. An outage affects any backends, while an exceeded
        // quota or invalid input may concern only these.
        let scope = if error.needs_user_action() {
            DeferralScope::TheseBackends
        } else {
            DeferralScope::AllBackends
        };
        sync.defer(now, until, scope);
        self.record_failed_attempt(sync, error, failures, until);
        // Count and log the failure, and report it to the owner unless that was done before.
        if error.is_failure() {
            self.metrics.count(sync.kind, ServiceOutcome::Failed);
            sync.reconcile_outcome = Reconciled::Failed;
        } else {
            sync.reconcile_outcome = Reconciled::Pending;
        }
        if let Some(message) = error.log_message() {
            tracing::warn!(service = %sync.key, error = message, failures, work = ?sync.kind, "service not synced");
        }
        if let Some(event) = error.event() {
            let failure = ReportedFailure {
                goal: sync.goal,
                event_reason: event.reason,
                error_kind: event.error_kind,
            };
            if sync.state.last_failure_event != Some(failure) {
                sync.state.last_failure_event = Some(failure);
                let mut note = event.note;
                if let Some(cause) = error.cause() {
                    note = cause.with_next_step(&note);
                }
                match &sync.service {
                    // Its owner has to act, also if the load balancer is an earlier Service's.
                    Some(service) if error.is_about_retention() => {
                        let object = service_ref(service);
                        self.ctx
                            .events
                            .event(&object, EventType::Warning, event.reason, &note);
                    }
                    _ => self.emit_event(sync, EventType::Warning, event.reason, &note),
                }
            }
        }
        SyncResult::RequeueAt { at: Some(until), resets_failures: false }
    }

    /// Emits an event and updates the metrics after a load balancer was ensured or its backends
    /// were updated.
    pub(super) fn report_success(
        &self,
        sync: &mut ServiceSync,
        desired: &DesiredLoadBalancer,
        operation: &ServiceOperation,
    ) {
        let now = self.now();
        let mut has_new_hosts = false;
        if let ServiceOperation::Update { hosts } = operation {
            has_new_hosts = !hosts.is_empty();
            let nodes_changed_at = self.node_sync.lock().remaining.get(&sync.key).copied();
            if let Some(nodes_changed_at) = nodes_changed_at {
                self.metrics
                    .backends_delay
                    .observe(now.saturating_sub(nodes_changed_at).as_secs_f64());
            }
        }
        if sync.state.completion_event_due {
            self.complete_announced(sync, &desired.service);
            return;
        }
        let event_is_due = match sync.state.backends_event_at {
            Some(last) => now >= last + MIN_BACKENDS_EVENT_INTERVAL,
            None => true,
        };
        if has_new_hosts && event_is_due {
            self.emit_event(
                sync,
                EventType::Normal,
                "UpdatedLoadBalancer",
                "Updated load balancer with new hosts",
            );
            sync.state.backends_event_at = Some(now);
        }
    }

    /// Reports that the goal is reached whose start was announced by an event.
    pub(super) fn complete_announced(&self, sync: &mut ServiceSync, service: &ServiceView) {
        sync.state.completion_event_due = false;
        sync.state.backends_event_at = Some(self.now());
        let had_address = !service.status.ingress.is_empty();
        let has_address = match &sync.state.desired_status {
            Some(status) => !status.ingress.is_empty(),
            None => false,
        };
        if has_address && !had_address {
            let age = self.ctx.clock.now().duration_since(service.created);
            self.metrics
                .address_delay
                .observe(age.as_secs_f64().max(0.0));
        }
        tracing::info!(service = %sync.key, "load balancer ensured");
        self.emit_event(sync, EventType::Normal, "EnsuredLoadBalancer", "Ensured load balancer");
    }

    /// Emits an event if the load balancer has no nodes, once until it has some again.
    pub(super) fn report_no_backends(&self, sync: &mut ServiceSync, spec: &LbSpec) {
        let has_no_nodes = matches!(&spec.backends, Backends::Nodes(nodes) if nodes.is_empty());
        if has_no_nodes && !sync.state.reported_no_backends {
            let note = "There are no available nodes for LoadBalancer";
            let note = Cause::NoBackendNodes.with_next_step(note);
            self.emit_event(sync, EventType::Warning, "UnAvailableLoadBalancer", &note);
        }
        sync.state.reported_no_backends = has_no_nodes;
    }

    /// Emits an event about the Service, even if the Service no longer exists.
    pub(super) fn emit_event(
        &self,
        sync: &ServiceSync,
        kind: EventType,
        reason: &'static str,
        note: &str,
    ) {
        if let Some(object) = sync.object_ref() {
            self.ctx.events.event(&object, kind, reason, note);
        }
    }
}

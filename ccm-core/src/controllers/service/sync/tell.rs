//! What the owner of a Service and the operator are told: on change, never twice for one attempt.

use std::{collections::BTreeSet, time::Duration};

use super::{
    super::{
        ServiceController,
        metrics::{Outcome, Work},
        plan::digest_of,
        trouble::{Doing, Trouble},
    },
    Look, Next, Wanted, object,
};
use crate::{
    k8s::ServiceView,
    provider::{BackendSet, Digest, EventKind, InvalidInput, LbSpec},
    telemetry::controllers::Outcome as Reconciled,
};

/// Least time between two events that tell of new backends, so that a cluster whose nodes come and go does not bury what
/// matters.
const BACKENDS_EVENT_GAP: Duration = Duration::from_secs(600);

impl ServiceController {
    /// Tells what the provider has to say about the Service, each once.
    pub(super) fn tell_remarks(&self, look: &mut Look, service: &ServiceView) {
        let remarks = self.cloud.balancers().map(|balancers| balancers.remarks(service)).unwrap_or_default();
        let mut seen = BTreeSet::new();
        for remark in remarks {
            let digest = Digest::of(&(remark.reason, &remark.note));
            if !look.known.remarked.contains(&digest) {
                self.cx.events.event(&object(service), remark.kind, remark.reason, &remark.note);
            }
            seen.insert(digest);
        }
        look.known.remarked = seen;
    }

    /// Tells what is wrong. What the Service has from before is looked at next: it may need other backends.
    pub(super) fn refuse(&self, look: &mut Look, mistakes: &[InvalidInput]) -> Next {
        look.known.refused = Some(digest_of(mistakes));
        if let Some(service) = &look.service {
            let list: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            let note = format!("Error syncing load balancer: failed to ensure load balancer: {}", list.join("; "));
            tracing::warn!(service = %look.key, error = note, "service refused");
            self.metrics.count(Work::Refuse, Outcome::Done);
            self.cx.events.event(&object(service), EventKind::Warning, "SyncLoadBalancerFailed", &note);
        }
        Next::Again
    }

    /// Draws the consequences of a failure: when to try again, and whom to tell.
    pub(super) fn fail(&self, look: &mut Look, trouble: &Trouble) -> Next {
        let failures = if trouble.is_failure() { self.queue.failed(&look.key) } else { 1 };
        let now = self.now();
        let until = now + trouble.delay(failures);
        // Whatever the backends, an outage is one; a quota or a mistake may be of these alone.
        look.hold(now, until, !trouble.is_for_a_person());
        look.reconciled = Reconciled::Pending;
        if trouble.is_failure() {
            self.metrics.count(look.work, Outcome::Failed);
            look.reconciled = Reconciled::Failed;
        }
        if let Some(error) = trouble.log() {
            tracing::warn!(service = %look.key, error, failures, work = ?look.work, "service not synced");
        }
        if let Some((reason, kind, note)) = trouble.event()
            && look.known.told != Some((look.subject, reason, kind))
        {
            look.known.told = Some((look.subject, reason, kind));
            self.tell(look, EventKind::Warning, reason, &note);
        }
        Next::Rest { until: Some(until), settled: false }
    }

    pub(super) fn tell_success(&self, look: &mut Look, wanted: &Wanted, doing: &Doing) {
        let now = self.now();
        let since = self.pass.lock().left.get(&look.key).copied();
        if let (Doing::Update { .. }, Some(since)) = (doing, since) {
            self.metrics.backends_delay.observe(now.saturating_sub(since).as_secs_f64());
        }
        if look.known.unfinished {
            self.finish_announced(look, &wanted.service);
        } else if matches!(doing, Doing::Update { hosts } if !hosts.is_empty())
            && look.known.told_backends.is_none_or(|told| now >= told + BACKENDS_EVENT_GAP)
        {
            self.tell(look, EventKind::Normal, "UpdatedLoadBalancer", "Updated load balancer with new hosts");
            look.known.told_backends = Some(now);
        }
    }

    pub(super) fn finish_announced(&self, look: &mut Look, service: &ServiceView) {
        look.known.unfinished = false;
        look.known.told_backends = Some(self.now());
        let first = service.status.ingress.is_empty();
        if first && look.known.published.as_ref().is_some_and(|status| !status.ingress.is_empty()) {
            let age = self.cx.clock.now().duration_since(service.created).as_secs_f64().max(0.0);
            self.metrics.address_delay.observe(age);
        }
        tracing::info!(service = %look.key, "load balancer ensured");
        self.tell(look, EventKind::Normal, "EnsuredLoadBalancer", "Ensured load balancer");
    }

    pub(super) fn tell_if_empty(&self, look: &mut Look, spec: &LbSpec) {
        let empty = matches!(&spec.backends, BackendSet::Nodes(nodes) if nodes.is_empty());
        if empty && !look.known.told_empty {
            let note = "There are no available nodes for LoadBalancer";
            self.tell(look, EventKind::Warning, "UnAvailableLoadBalancer", note);
        }
        look.known.told_empty = empty;
    }

    pub(super) fn tell(&self, look: &Look, kind: EventKind, reason: &'static str, note: &str) {
        if let Some(object) = look.object() {
            self.cx.events.event(&object, kind, reason, note);
        }
    }
}

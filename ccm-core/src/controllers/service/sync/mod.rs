//! One look at one Service: observe, decide, do what was decided.

mod delete;
mod preview;
mod publish;
mod tell;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    ServiceController,
    cloud::Paused,
    metrics::{Outcome, Work},
    node_set::endpoints_fingerprint,
    plan::{Applied, Facts, Hold, Known, Served, ServedAs, Step, Subject, Wish, decide, digest_of, is_finished},
    trouble::{Doing, Trouble, names as node_names},
};
use crate::{
    config::controllers as names,
    error::caught,
    k8s::ServiceView,
    provider::{
        BackendSet, Backends, Claim, CloudError, Depth, Digest, ErrorKind, EventKind, InvalidInput, LbOutcome, LbSpec,
        Op, Progress, SourceRanges,
    },
    runtime::events::ObjectRef,
    telemetry::controllers::{Outcome as Reconciled, because},
};

/// Longest time that a provider may ask to wait, and shortest: what it forgot to say must not become a busy loop.
const PENDING: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);
/// After so many failures of `ensure` in a row, the backends of what there is are brought in line by themselves: whatever
/// fails may fail for hours, and nodes come and go meanwhile.
const PATIENCE_WITH_FAILURES: u32 = 3;
/// When the balancer of a Service that is refused is asked for again after the cloud said that it is gone.
const GONE: Duration = Duration::from_secs(300);
/// Why a Service with endpoints as backends waits.
const NO_ENDPOINTS: &str = "EndpointSlices are not listed yet, as needs the right to list and watch \
                            endpointslices.discovery.k8s.io";

/// What becomes of a key after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing needs to be remembered.
    Forget,
    /// Look again then, or when something changes. `settled`: earlier failures are over.
    Rest { until: Option<Duration>, settled: bool },
    /// Look again at once.
    Again,
}

const REST: Next = Next::Rest { until: None, settled: true };

/// A Service as seen, and what is remembered of it.
struct Look {
    key: Arc<str>,
    service: Option<Arc<ServiceView>>,
    known: Known,
    /// What is attempted, for the back-off.
    subject: Option<Subject>,
    /// The backends with which.
    fingerprint: Option<u64>,
    /// Whether what is wanted was refused, and what there is was given these.
    serves_on: bool,
    work: Work,
    /// Why something is done, for the records of what changes the cloud.
    reason: &'static str,
    reconciled: Reconciled,
}

/// What is to be served.
struct Wanted {
    service: Arc<ServiceView>,
    digest: Digest,
    fingerprint: u64,
    spec: LbSpec,
}

impl ServiceController {
    /// Looks at one Service and does what is to be done; returns what is known of it now.
    pub(super) async fn sync(&self, key: &Arc<str>, known: Known) -> (Known, Next) {
        let mut look = Look::new(key, self.services.get(key), known);
        let work = async move {
            let looked = caught(Box::pin(self.look(&mut look))).await;
            if looked.is_err() {
                // Nobody knows how far it came.
                look.known.applied = None;
            }
            let next = match looked.unwrap_or_else(|panic| Err(Trouble::Panicked(panic))) {
                Ok(next) => next,
                Err(trouble) => self.fail(&mut look, &trouble),
            };
            (look.reconciled, (look.known, next))
        };
        self.cx.shared.reconcile(names::SERVICE_LB, key, work).await
    }

    async fn look(&self, look: &mut Look) -> Result<Next, Trouble> {
        if let Some(service) = &look.service
            && look.known.uid != service.uid
            && !look.known.may_exist
        {
            look.known = Known { uid: service.uid.clone(), ..Known::default() };
        }
        let (wish, wanted) = match self.readable(look) {
            Some(service) => {
                self.tell_remarks(look, &service);
                self.interpret(look, service).await?
            }
            None => (None, None),
        };
        let facts = Facts {
            service: look.service.as_deref(),
            known: &look.known,
            fields: &self.fields,
            wish: wish.as_ref(),
            pass_awaited: matches!(look.known.takes, Some(Backends::Nodes(_))) && self.awaits_pass(&look.key),
            now: self.now(),
        };
        let step = decide(facts);
        tracing::trace!(service = %look.key, ?step, "decided");
        look.reason = step.reason(&look.known);
        if !look.reason.is_empty() {
            because(look.reason);
        }
        match (step, wanted) {
            (Step::Forget, _) => Ok(Next::Forget),
            (Step::LeaveAlone, _) => {
                look.known.foreign = wish.is_none();
                Ok(REST)
            }
            (Step::Rest { until }, _) => {
                // Failures count on as long as what failed is held back.
                let held = look.known.hold.is_some_and(|hold| hold.until > self.now());
                Ok(Next::Rest { until, settled: !held })
            }
            (Step::Refuse { mistakes }, _) => Ok(self.refuse(look, &mistakes)),
            (Step::Delete { then, announce }, _) => self.delete(look, then, announce).await,
            (Step::Ensure { depth, announce }, Some(wanted)) => self.ensure(look, &wanted, depth, announce).await,
            (Step::UpdateBackends, Some(wanted)) => self.update_backends(look, &wanted).await,
            (Step::Compare { drift }, Some(wanted)) => self.compare(look, &wanted, drift).await,
            (Step::Publish, Some(wanted)) => self.publish_again(look, &wanted).await,
            (Step::Ensure { .. } | Step::UpdateBackends | Step::Compare { .. } | Step::Publish, None) => Ok(REST),
        }
    }

    /// Returns the Service if it is one to be served.
    fn readable(&self, look: &Look) -> Option<Arc<ServiceView>> {
        let service = look.service.as_ref()?;
        (self.fields.wants(service) && look.known.uid == service.uid).then(|| service.clone())
    }

    /// Reads what the Service wants, and finds its backends.
    async fn interpret(
        &self,
        look: &mut Look,
        service: Arc<ServiceView>,
    ) -> Result<(Option<Wish>, Option<Wanted>), Trouble> {
        look.known.last_seen = Some(service.clone());
        let balancers = self.cloud.balancers().map_err(|error| Trouble::cloud(Doing::Ensure, error))?;
        let claim = balancers.interpret(&service);
        // The finalizer is written before the first call, by whichever process.
        look.known.may_exist |= claim != Claim::Elsewhere && service.has_finalizer();
        let (backends, digest) = match claim {
            Claim::Elsewhere => return Ok((Some(Wish::Elsewhere), None)),
            Claim::Refused(mistakes) => {
                let backends = balancers.backends_of_invalid(&service);
                return self.refused(look, service, mistakes, backends).await;
            }
            Claim::Ours { backends, digest } => (backends, digest),
        };
        let mistakes = balancers.supports().refuse(&service);
        if !mistakes.is_empty() {
            return self.refused(look, service, mistakes, Some(backends)).await;
        }
        look.known.refused = None;
        let wanted = self.wanted(look, service, backends, digest).await?;
        let wish = Wish::Serve { digest, backends: wanted.fingerprint };
        Ok((Some(wish), Some(wanted)))
    }

    /// Of a Service that cannot be served as it is: what it has from when it could. `backends`: those that it takes as it is.
    async fn refused(
        &self,
        look: &mut Look,
        service: Arc<ServiceView>,
        mistakes: Vec<InvalidInput>,
        backends: Option<Backends>,
    ) -> Result<(Option<Wish>, Option<Wanted>), Trouble> {
        let (known, digest) = (&look.known, digest_of(&mistakes));
        // What is wrong is told first, whatever becomes of the backends.
        if known.refused != Some(digest) {
            return Ok((Some(Wish::Refused { mistakes, served: None }), None));
        }
        // As this process last served it; what it shows by now counts for whether it is served.
        let is_applied = |served: &ServedAs| known.applied.is_some_and(|applied| applied.digest == served.digest);
        let served = known.served_as.clone().filter(|served| known.attempted && is_applied(served)).map(|served| {
            let service = ServiceView { status: service.status.clone(), ..(*served.service).clone() };
            ServedAs { service: Arc::new(service), ..served }
        });
        // An earlier process finished it, of which only the Service and the load balancer are left.
        let found = || {
            let takes = backends.filter(|_| is_finished(&service, known, self.now()))?;
            Some(ServedAs { digest, service: service.clone(), takes })
        };
        let wanted = match served.or_else(found) {
            Some(served) => Some(self.wanted(look, served.service, served.takes, served.digest).await?),
            None => None,
        };
        let served = wanted.as_ref().map(|wanted| Served { digest: wanted.digest, backends: wanted.fingerprint });
        Ok((Some(Wish::Refused { mistakes, served }), wanted))
    }

    /// Describes what is to be served.
    async fn wanted(
        &self,
        look: &mut Look,
        service: Arc<ServiceView>,
        takes: Backends,
        digest: Digest,
    ) -> Result<Wanted, Trouble> {
        look.subject = Some(Subject::Serve(digest));
        // One that says so wrongly is refused: only its backends are followed, and nobody is let in.
        let sources = SourceRanges::of(&service).unwrap_or(SourceRanges::Only(Vec::new()));
        let (backends, fingerprint) = match &takes {
            Backends::Nodes(requirements) => {
                let set = self.sets.get(requirements).await.map_err(Trouble::Doubt)?;
                (BackendSet::Nodes(set.nodes.clone()), set.fingerprint)
            }
            Backends::Endpoints => {
                let unknown = || Trouble::cloud(Doing::Ensure, CloudError::transient(NO_ENDPOINTS));
                let slices = match &self.slices {
                    Some(slices) => slices.of(&look.key).ok_or_else(unknown)?,
                    None => Vec::new(),
                };
                let fingerprint = endpoints_fingerprint(&slices);
                (BackendSet::Endpoints(slices), fingerprint)
            }
        };
        (look.known.takes, look.fingerprint) = (Some(takes), Some(fingerprint));
        let cluster = Arc::from(self.op.cluster_name());
        let spec = LbSpec { cluster, service: service.clone(), sources, backends };
        Ok(Wanted { service, digest, fingerprint, spec })
    }

    async fn ensure(&self, look: &mut Look, wanted: &Wanted, depth: Depth, announce: bool) -> Result<Next, Trouble> {
        look.work = Work::Ensure;
        let from_before = wanted.service.has_finalizer() || !wanted.service.status.ingress.is_empty();
        if from_before && !look.known.attempted && !self.confirm_start(look, wanted).await? {
            return Ok(Next::Again);
        }
        if announce {
            self.tell(look, EventKind::Normal, "EnsuringLoadBalancer", "Ensuring load balancer");
            look.known.announced = Some(Subject::Serve(wanted.digest));
            look.known.unfinished = true;
        }
        if !self.add_finalizer(look, &wanted.service).await? {
            return Ok(REST);
        }
        look.known.may_exist = true;
        self.tell_if_empty(look, &wanted.spec);
        let outcome = self.cloud.ensure(self.op_for(look), &wanted.spec, depth).await?;
        (look.known.applied, look.known.attempted, look.known.deleted) = (None, true, false);
        match &outcome.result {
            Ok(_) => (look.known.failed_ensures, look.known.followed) = (None, None),
            Err(error) => {
                let before = look.known.failed_ensures.filter(|(digest, _)| *digest == wanted.digest);
                let failures = before.map_or(1, |(_, failures)| failures.saturating_add(1));
                look.known.failed_ensures = Some((wanted.digest, failures));
                // Other backends than those that are in line do not wait as long as the change.
                look.serves_on = look.known.followed == Some((wanted.digest, wanted.fingerprint));
                // Not where the cloud itself says when to come again.
                let fails_on = error.kind() == ErrorKind::Transient
                    && error.retry_after().is_none()
                    && failures >= PATIENCE_WITH_FAILURES
                    && !look.serves_on;
                if (fails_on || error.kind().is_refusal()) && !wanted.service.status.ingress.is_empty() {
                    self.serve_on(look, wanted).await;
                }
            }
        }
        self.conclude(look, wanted, outcome, Doing::Ensure).await
    }

    /// Brings the backends of what there is in line although what is wanted now is refused, or fails again and again: it
    /// serves on, and its nodes come and go. The failure is told, this is tried again with it.
    async fn serve_on(&self, look: &mut Look, wanted: &Wanted) {
        look.serves_on = true;
        let outcome = self.cloud.update_backends(self.op_for(look), &wanted.spec).await;
        let done = matches!(outcome, Ok(LbOutcome { result: Ok(Progress::Done), .. }));
        look.known.followed = done.then_some((wanted.digest, wanted.fingerprint));
        if let Ok(LbOutcome { result: Err(error), .. }) = outcome
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(service = %look.key, error = error.chain(), "backends not synced of a service whose load balancer cannot be changed");
        }
    }

    async fn update_backends(&self, look: &mut Look, wanted: &Wanted) -> Result<Next, Trouble> {
        look.work = Work::UpdateBackends;
        let hosts = match &wanted.spec.backends {
            BackendSet::Nodes(nodes) => node_names(nodes),
            BackendSet::Endpoints(slices) => slices.iter().map(|slice| slice.name.clone()).collect(),
        };
        if look.known.applied.is_none() {
            if !self.confirm_start(look, wanted).await? {
                return Ok(Next::Again);
            }
            // What an earlier process may have brought in line is no news. Once the Service is valid, everything is compared.
            look.known.told_backends.get_or_insert(self.now());
            look.known.attempted = false;
        }
        self.tell_if_empty(look, &wanted.spec);
        let started = Instant::now();
        let outcome = self.cloud.update_backends(self.op_for(look), &wanted.spec).await?;
        self.metrics.host_update.observe(started.elapsed().as_secs_f64());
        self.metrics.host_updates.inc();
        if let Some(applied) = &mut look.known.applied {
            applied.backends = None;
        }
        match &outcome.result {
            // Nothing is made of a Service that is refused. A cloud may also say so of what it shows again later.
            Err(error) if error.kind() == ErrorKind::NotFound && look.known.refused.is_some() => {
                // As of an earlier process: once it is valid, everything is compared, and that does not wait.
                (look.known.applied, look.known.attempted) = (None, false);
                look.subject = look.known.refused.map(Subject::Serve);
                let (now, until) = (self.now(), self.now() + GONE);
                look.hold(now, until, false);
                return Ok(Next::Rest { until: Some(until), settled: true });
            }
            // It is made again as a whole.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                look.known.applied = None;
                return Ok(Next::Again);
            }
            Err(_) => self.metrics.host_update_errors.inc(),
            Ok(_) => {}
        }
        self.conclude(look, wanted, outcome, Doing::Update { hosts }).await
    }

    /// Compares the nodes with the API server before backends from before the start are changed. Tells whether those of
    /// `wanted` are still the ones of the cache, which may have been filled up meanwhile.
    async fn confirm_start(&self, look: &Look, wanted: &Wanted) -> Result<bool, Trouble> {
        let Some(Backends::Nodes(requirements)) = &look.known.takes else { return Ok(true) };
        self.sets.confirm_start().await.map_err(Trouble::Doubt)?;
        Ok(self.sets.get(requirements).await.map_err(Trouble::Doubt)?.fingerprint == wanted.fingerprint)
    }

    /// Asks what differs. Without differences the cloud is as it should be, and nothing is written to it.
    async fn compare(&self, look: &mut Look, wanted: &Wanted, drift: bool) -> Result<Next, Trouble> {
        look.work = Work::Compare;
        if !drift {
            // What was doubted a moment ago is not compared again and again.
            self.sets.check_doubt().map_err(Trouble::Doubt)?;
        }
        let changes = match self.cloud.plan(self.op_for(look), &wanted.spec).await? {
            Ok(changes) => changes,
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => Vec::new(),
            // What cannot be asked is ensured, which is idempotent.
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                return self.ensure(look, wanted, Depth::Verify, false).await;
            }
            // It would be refused for ever, while nobody looks after the backends of what there is.
            Err(error) if error.kind().is_refusal() && !drift => {
                return self.ensure(look, wanted, Depth::Verify, true).await;
            }
            Err(error) => return Err(Trouble::cloud(Doing::Compare, error)),
        };
        for change in &changes {
            let (operation, object, why) = (&change.operation, &change.object, &change.reason);
            tracing::info!(service = %look.key, %operation, %object, %why, drift, "load balancer differs");
        }
        if !changes.is_empty() {
            if drift {
                look.reason = "drift";
                self.metrics.drift.inc_by(changes.len() as u64);
            }
            return self.ensure(look, wanted, Depth::Verify, !drift).await;
        }
        look.known.may_exist = true;
        look.known.attempted = true;
        look.known.published.get_or_insert_with(|| wanted.service.status.clone());
        look.known.announced = Some(Subject::Serve(wanted.digest));
        self.metrics.count(Work::Compare, Outcome::Done);
        Ok(self.settle(look, wanted))
    }

    /// Publishes what a call gave, and draws the consequences of how it ended.
    async fn conclude(
        &self,
        look: &mut Look,
        wanted: &Wanted,
        outcome: LbOutcome,
        doing: Doing,
    ) -> Result<Next, Trouble> {
        let LbOutcome { status, annotations, result } = outcome;
        let finished = match &result {
            Ok(Progress::Done) => true,
            Err(error) => error.kind() == ErrorKind::ImplementedElsewhere,
            Ok(Progress::Pending { .. }) => false,
        };
        let next = finished.then(|| self.settle(look, wanted));
        if let Some(status) = &status {
            look.known.published = Some(status.clone());
        }
        look.known.annotations.extend(annotations.clone());
        let service = look.service.clone().unwrap_or_else(|| wanted.service.clone());
        let published = self.publish(look, &service, status.as_ref(), &annotations).await;
        match result {
            Ok(Progress::Done) => published?,
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => return Ok(next.unwrap_or(REST)),
            Err(error) => return Err(Trouble::cloud(doing, error)),
            Ok(Progress::Pending { after, why }) => {
                published?;
                tracing::debug!(service = %look.key, ?after, %why, "load balancer is on its way");
                return Ok(self.wait(look, after));
            }
        }
        self.metrics.count(look.work, Outcome::Done);
        self.tell_success(look, wanted, &doing);
        Ok(next.unwrap_or(REST))
    }

    /// Remembers that the cloud is as it should be.
    fn settle(&self, look: &mut Look, wanted: &Wanted) -> Next {
        let now = self.now();
        let verify_at = match look.known.applied {
            // An update of backends is no comparison.
            Some(applied) if applied.digest == wanted.digest && look.work == Work::UpdateBackends => applied.verify_at,
            _ => now + self.config.verify_period.mul_f64(rand::random_range(0.75..1.25)),
        };
        look.known.applied = Some(Applied { digest: wanted.digest, backends: Some(wanted.fingerprint), verify_at });
        look.known.served_as = look.known.takes.clone().map(|takes| {
            let (digest, service) = (wanted.digest, wanted.service.clone());
            ServedAs { digest, service, takes }
        });
        (look.known.hold, look.known.pending_since, look.known.told) = (None, None, None);
        Next::Rest { until: Some(verify_at), settled: true }
    }

    fn wait(&self, look: &mut Look, after: Duration) -> Next {
        let now = self.now();
        look.known.pending_since.get_or_insert(now);
        let until = now + after.clamp(*PENDING.start(), *PENDING.end());
        look.hold(now, until, false);
        self.metrics.count(look.work, Outcome::Pending);
        look.reconciled = Reconciled::Pending;
        Next::Rest { until: Some(until), settled: true }
    }

    fn op_for(&self, look: &Look) -> Op {
        let pending = look.known.pending_since.map_or(Duration::ZERO, |since| self.now().saturating_sub(since));
        let op = self.op.clone().with_pending_for(pending).with_reason(look.reason);
        match look.object() {
            Some(object) => op.with_events(self.cx.events.for_object(object)),
            None => op,
        }
    }
}

impl Look {
    fn new(key: &Arc<str>, service: Option<Arc<ServiceView>>, known: Known) -> Self {
        Self {
            key: key.clone(),
            service,
            known,
            subject: None,
            fingerprint: None,
            serves_on: false,
            work: Work::Ensure,
            reason: "",
            reconciled: Reconciled::Done,
        }
    }

    /// Holds back the same attempt until then. `all_backends`: with whichever backends; otherwise an update with others than
    /// those of today does not wait that long. Nor does one for what has nothing to do with backends.
    fn hold(&mut self, now: Duration, until: Duration, all_backends: bool) {
        let waits_less = match self.work {
            Work::UpdateBackends => !all_backends,
            Work::Compare | Work::Publish => true,
            Work::Ensure => self.serves_on,
            Work::Delete | Work::Refuse => false,
        };
        let backends = self.fingerprint.filter(|_| waits_less).map(|with| (now, with));
        self.known.hold = self.subject.map(|subject| Hold { until, subject, backends });
    }

    /// Refers to the Service that the work is about, which may be gone.
    fn object(&self) -> Option<ObjectRef> {
        let (namespace, name) = self.key.split_once('/')?;
        Some(ObjectRef::service(namespace, name, &*self.known.uid))
    }
}

fn object(service: &ServiceView) -> ObjectRef {
    ObjectRef::service(service.namespace.clone(), service.name.clone(), &*service.uid)
}

impl From<Paused> for Trouble {
    fn from(Paused(pause): Paused) -> Self {
        Self::Paused(pause)
    }
}

//! The mock provider with one bug each in its load balancers, of the sorts that real providers have
//! had.

mod bugs;
mod inventory;

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use ccm_core::{
    k8s::{IpFamily, LbIngress, LbStatus, Protocol, ServiceView, SessionAffinity},
    provider::{
        CloudError, CloudProvider, Digest, ErrorKind, EventType, FieldError, Inventory, LbOutcome,
        LbRef, LbSpec, LbSupport, LoadBalancers, Op, PlannedChange, Progress, ReadMode,
        ServiceInterpretation, ServiceNotice, SourceRanges,
    },
    write_gate::WriteGate,
};
use ccm_mock::{
    MockCloud, MockProvider,
    cloud::{CloudApi, LoadBalancer, LoadBalancerKey, LoadBalancerState},
    provider::annotations,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{instance_mutants::Dropped, scripted::SECRET};

pub(crate) use bugs::Bug;

pub(crate) struct MutantProvider {
    inner: MockProvider,
    bug: Bug,
    salt: RandomState,
    count: AtomicU64,
    broken: AtomicBool,
    remembered: Mutex<HashSet<String>>,
    scratch: Mutex<Option<LbSpec>>,
}

/// A call that is made.
#[derive(Clone, Copy)]
enum Ask<'a> {
    Ensure(&'a LbSpec, ReadMode),
    Update(&'a LbSpec),
    Delete(&'a LbRef),
    Plan(&'a LbSpec),
}

/// What is answered; for a plan the outcome means nothing.
struct CallResult(LbOutcome, Vec<PlannedChange>);

impl MutantProvider {
    pub(crate) fn new(inner: MockProvider, bug: Bug) -> Self {
        Self {
            inner,
            bug,
            salt: RandomState::new(),
            count: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            remembered: Mutex::default(),
            scratch: Mutex::default(),
        }
    }

    fn real(&self) -> &dyn LoadBalancers {
        self.inner.load_balancers().unwrap()
    }

    fn cloud(&self) -> &MockCloud {
        self.inner.cloud().unwrap()
    }

    /// Bugs about whose a Service's balancer is: all the mock goes by is the UID.
    fn uid(&self, cluster: &str, namespace: &str, name: &str, uid: &str) -> Box<str> {
        let digest = |text: String| {
            format!("{:016x}{:016x}", Digest::of(&text).0, Digest::of(&(text, 1)).0).into()
        };
        match self.bug {
            Bug::NamesByService => digest(format!("{namespace}/{name}")),
            Bug::NamesWithoutNamespace => digest(format!("{cluster}/{name}")),
            Bug::NamesCutOff => digest(
                format!("{cluster}/{namespace}/{name}")
                    .chars()
                    .take(100)
                    .collect(),
            ),
            Bug::NamesJoined => digest(format!("{cluster}/{namespace}-{name}")),
            _ => uid.into(),
        }
    }

    /// Bugs about what is asked of the cloud.
    fn alter_request(&self, want: &LbSpec) -> LbSpec {
        let (mut want, mut service) = (want.clone(), (*want.service).clone());
        service.uid = self.uid(&want.cluster, &service.namespace, &service.name, &service.uid);
        match self.bug {
            Bug::FirstPortOnly => service.ports = service.ports.into_iter().take(1).collect(),
            Bug::UdpAsTcp => service
                .ports
                .iter_mut()
                .for_each(|port| port.protocol = Protocol::Tcp),
            Bug::ServesIpv4Instead if *service.ip_families == [IpFamily::V6] => {
                service.ip_families = [IpFamily::V4].into();
            }
            Bug::ServesTheFirstFamily => {
                service.ip_families = service.ip_families.into_iter().take(1).collect();
            }
            Bug::IgnoresSourceRanges => want.sources = SourceRanges::Unset,
            Bug::AdmitsOneRange => {
                if let SourceRanges::Only(ranges) = &mut want.sources {
                    ranges.truncate(1);
                }
            }
            _ => {}
        }
        LbSpec { service: Arc::new(service), ..want }
    }

    fn balancer(&self, uid: &str) -> Option<LoadBalancer> {
        self.cloud()
            .load_balancers()
            .into_iter()
            .find(|balancer| balancer.uid == uid)
    }

    /// Remembers a wish; tells whether it was known.
    fn known(&self, wish: String) -> bool {
        !self.remembered.lock().insert(wish)
    }

    /// Bugs that every call has.
    async fn call(&self, op: &Op, ask: Ask<'_>) -> Result<CallResult, CloudError> {
        let deaf =
            || Op::new(op.cluster_name(), CancellationToken::new(), WriteGate::always_open());
        let result = match self.bug {
            Bug::NeverAsksTheGate => op.run(self.perform(&deaf(), ask)).await,
            Bug::AsksTheGateOnce => {
                op.may_write()?;
                op.run(self.perform(&deaf(), ask)).await
            }
            Bug::BrokenByDrop => {
                if self.broken.load(Ordering::Relaxed) {
                    return Err(CloudError::transient("broken"));
                }
                let mut guard = Dropped(&self.broken, false);
                let result = self.perform(op, ask).await;
                guard.1 = true;
                result
            }
            Bug::SleepsWhenThrottled => match self.perform(op, ask).await {
                Err(error) if error.kind() == ErrorKind::Throttled => {
                    tokio::time::sleep(error.retry_after().unwrap_or_default()).await;
                    self.perform(op, ask).await
                }
                result => result,
            },
            _ => self.perform(op, ask).await,
        };
        match result {
            Err(error) => Err(self.spoil(error).await),
            done => done,
        }
    }

    async fn perform(&self, op: &Op, ask: Ask<'_>) -> Result<CallResult, CloudError> {
        let (outcome, plan) = match ask {
            Ask::Ensure(want, depth) => match self.before_ensure(op, want, depth).await {
                Some(outcome) => (outcome, Vec::new()),
                None => (self.real().ensure(op, want, depth).await, Vec::new()),
            },
            Ask::Update(want) => (self.update_at(op, want).await, Vec::new()),
            Ask::Delete(lb) => {
                let progress = self.delete_at(op, lb).await?;
                (
                    LbOutcome {
                        status: None,
                        result: Ok(progress),
                        ..LbOutcome::done(LbStatus::default())
                    },
                    Vec::new(),
                )
            }
            Ask::Plan(want) => {
                (LbOutcome::done(LbStatus::default()), self.plan_at(op, want).await?)
            }
        };
        match outcome.result {
            Err(error) => Err(error),
            Ok(_) => Ok(CallResult(outcome, plan)),
        }
    }

    async fn spoil(&self, error: CloudError) -> CloudError {
        match (self.bug, error.kind()) {
            (Bug::DeniedIsTransient, ErrorKind::Denied) => CloudError::transient("failed"),
            (Bug::CancelledIsTransient, ErrorKind::Canceled) => CloudError::transient("broke off"),
            (Bug::ForgetsRetryAfter, kind) => CloudError::new(kind, error.chain()),
            (Bug::TellsSecrets, kind) => {
                CloudError::new(kind, format!("login with {SECRET} failed"))
                    .with_retry_after(error.retry_after().unwrap_or_default())
            }
            (Bug::ReasonsOfTwoWords, _) => error.with_reason("Did not work"),
            (Bug::GoesOnWhenCancelled, ErrorKind::Canceled) => {
                tokio::time::sleep(Duration::from_secs(10)).await;
                error
            }
            _ => error,
        }
    }

    /// Bugs of ensure before the cloud is asked; some answer by themselves.
    async fn before_ensure(&self, op: &Op, want: &LbSpec, depth: ReadMode) -> Option<LbOutcome> {
        let uid = &want.service.uid;
        let wish = spec_text(want);
        match self.bug {
            Bug::TrustMakesNothing if depth == ReadMode::Cached && self.balancer(uid).is_none() => {
                Some(LbOutcome::done(LbStatus::default()))
            }
            Bug::BelievesAnnotations if service_is_marked(want) && self.balancer(uid).is_none() => {
                let entry = LbIngress { ip: "192.0.2.1".parse().ok(), ..LbIngress::default() };
                Some(LbOutcome::done(LbStatus { ingress: vec![entry] }))
            }
            Bug::RemembersIntent if self.known(wish.clone()) => {
                Some(LbOutcome::done(want.service.status.clone()))
            }
            Bug::VerifyTrusts if self.remembered.lock().contains(&wish) => {
                Some(LbOutcome { status: None, ..LbOutcome::done(LbStatus::default()) })
            }
            Bug::OpensThenRestricts if self.balancer(uid).is_none() => {
                let open = LbSpec { sources: SourceRanges::Unset, ..want.clone() };
                let opened = self.real().ensure(op, &open, depth).await;
                opened.result.is_err().then_some(opened)
            }
            Bug::WritesEachTime => {
                let updated = self.real().update_backends(op, want).await;
                let missing =
                    matches!(&updated.result, Err(error) if error.kind() == ErrorKind::NotFound);
                (updated.result.is_err() && !missing).then_some(updated)
            }
            Bug::TakesByName if op.may_write().is_ok() => {
                let name = |uid: &str| {
                    format!("a{}", uid.replace('-', ""))
                        .chars()
                        .take(32)
                        .collect::<String>()
                };
                let taken = self
                    .cloud()
                    .load_balancers()
                    .into_iter()
                    .find(|b| b.name == name(uid) && *b.uid != **uid);
                if let Some(balancer) = taken {
                    self.cloud().remove_load_balancer(&balancer.name);
                }
                None
            }
            _ => None,
        }
    }

    /// Bugs of ensure in what is answered.
    async fn after_ensure(
        &self,
        op: &Op,
        want: &LbSpec,
        mut outcome: LbOutcome,
        depth: ReadMode,
    ) -> LbOutcome {
        let done = matches!(outcome.result, Ok(Progress::Done));
        let entry = |ip: &str| LbIngress { ip: ip.parse().ok(), ..LbIngress::default() };
        match self.bug {
            Bug::TellsSecretsInEvents => {
                op.event(EventType::Warning, "LoggedIn", &format!("with {SECRET}"));
            }
            Bug::NoStatus => outcome.status = None,
            Bug::StatusOfANode if done => {
                outcome.status = Some(LbStatus { ingress: vec![entry("10.0.0.1")] });
            }
            Bug::SameEntryTwice => {
                if let Some(status) = &mut outcome.status {
                    status.ingress.extend_from_within(..);
                }
            }
            Bug::AnswersAnew if done => {
                let count = self.count.fetch_add(1, Ordering::Relaxed);
                return outcome
                    .with_annotation("mock.cloud-provider.example/ensured", count.to_string());
            }
            Bug::RemembersIntent if outcome.result.is_ok() => {
                self.remembered.lock().remove(&spec_text(want));
            }
            Bug::VerifyTrusts if done => {
                self.known(spec_text(want));
            }
            Bug::SleepsUntilActive => {
                while let Ok(Progress::Pending { after, .. }) = &outcome.result {
                    tokio::time::sleep(*after).await;
                    outcome = self.real().ensure(op, want, depth).await;
                }
            }
            Bug::PendingWithoutPause => {
                if let Ok(Progress::Pending { after, .. }) = &mut outcome.result {
                    *after = Duration::ZERO;
                }
            }
            Bug::DoneBeforeActive => {
                let seen = self
                    .balancer(&want.service.uid)
                    .filter(|b| b.state == LoadBalancerState::Provisioning);
                if let Some(seen) = seen {
                    return LbOutcome::done(LbStatus {
                        ingress: vec![entry(&seen.address.to_string())],
                    });
                }
            }
            Bug::DeletesOnlyItsOwnWork => drop(self.known(want.service.uid.to_string())),
            _ => {}
        }
        outcome
    }

    // length: one arm for each bug
    async fn delete_at(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        match self.bug {
            Bug::DeletesUnrecorded => {
                let there = self
                    .balancer(&lb.uid)
                    .filter(|balancer| balancer.cluster == op.cluster_name());
                if let Some(LoadBalancer { cluster, uid, name, service, .. }) = there {
                    op.may_write()?;
                    let key = LoadBalancerKey { cluster, uid, name, service };
                    op.run(self.cloud().delete_load_balancer(&key)).await?;
                }
                self.real().delete(op, lb).await
            }
            Bug::DeletesOnlyItsOwnWork if !self.remembered.lock().contains(&*lb.uid) => {
                Ok(Progress::Done)
            }
            Bug::DeleteNeedsTheService if lb.last_observed.is_none() => {
                Err(CloudError::invalid_input("which service"))
            }
            Bug::DeleteParsesAnnotations => {
                let service = ServiceView {
                    annotations: lb.annotations.clone(),
                    ports: lb
                        .last_observed
                        .as_ref()
                        .map(|service| service.ports.clone())
                        .unwrap_or_default(),
                    ..ServiceView::named(&lb.namespace, &lb.name)
                };
                let bad = |mistake: &FieldError| mistake.field.starts_with(annotations::PREFIX);
                match self.real().interpret(&service) {
                    ServiceInterpretation::Invalid(mistakes) if mistakes.iter().any(bad) => {
                        Err(CloudError::invalid_input("refused"))
                    }
                    _ => self.real().delete(op, lb).await,
                }
            }
            Bug::DeletesByAnnotation
                if !lb.annotations.contains_key(annotations::LOAD_BALANCER_ID)
                    && lb.last_observed.is_none() =>
            {
                Ok(Progress::Done)
            }
            Bug::DeleteRemembersIntent if self.known(lb.uid.to_string()) => Ok(Progress::Done),
            Bug::DeleteOnNothingIsNotFound => {
                let there = self.balancer(&lb.uid).is_some();
                let deleted = self.real().delete(op, lb).await?;
                if there {
                    Ok(deleted)
                } else {
                    Err(CloudError::new(ErrorKind::NotFound, "there is none"))
                }
            }
            Bug::DeleteAlwaysWrites => {
                let deleted = self.real().delete(op, lb).await?;
                if self.balancer(&lb.uid).is_none() {
                    let nothing = LbSpec {
                        cluster: op.cluster_name().into(),
                        service: Arc::new(ServiceView {
                            uid: lb.uid.clone(),
                            ..ServiceView::named("a", "b")
                        }),
                        sources: SourceRanges::Unset,
                        backends: ccm_core::provider::Backends::Nodes(Vec::new()),
                    };
                    match self.real().update_backends(op, &nothing).await.result {
                        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                        _ => {}
                    }
                }
                Ok(deleted)
            }
            Bug::DeletesInAnyCluster | Bug::DeletesByName => {
                let deleted = self.real().delete(op, lb).await?;
                op.may_write()?;
                let name = format!("a{}", lb.uid.replace('-', ""))
                    .chars()
                    .take(32)
                    .collect::<String>();
                let hit = |b: &LoadBalancer| match self.bug {
                    Bug::DeletesByName => b.name == name,
                    _ => *b.uid == *lb.uid && b.cluster != op.cluster_name(),
                };
                let hits = self.cloud().load_balancers().into_iter().filter(hit);
                for balancer in hits {
                    self.cloud().remove_load_balancer(&balancer.name);
                }
                Ok(deleted)
            }
            _ => self.real().delete(op, lb).await,
        }
    }

    async fn update_at(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        let there = self.balancer(&want.service.uid);
        match self.bug {
            Bug::UpdateChangesPorts if there.is_some() => LbOutcome {
                status: None,
                ..self.real().ensure(op, want, ReadMode::Fresh).await
            },
            Bug::UpdateAwaitsEnsure
                if there
                    .as_ref()
                    .is_some_and(|b| b.ports.len() != want.service.ports.len()) =>
            {
                CloudError::new(ErrorKind::Conflict, "the ports are not ensured yet").into()
            }
            Bug::UpdateKeepsLastMember if matches!(&want.backends, ccm_core::provider::Backends::Nodes(n) if n.is_empty()) => {
                LbOutcome { status: None, ..LbOutcome::done(LbStatus::default()) }
            }
            Bug::UpdateOnNothingIsDone => match self.real().update_backends(op, want).await {
                LbOutcome { result: Err(error), .. } if error.kind() == ErrorKind::NotFound => {
                    LbOutcome { status: None, ..LbOutcome::done(LbStatus::default()) }
                }
                outcome => outcome,
            },
            Bug::UpdateOnNothingMakes if there.is_none() => {
                let made = self.real().ensure(op, want, ReadMode::Fresh).await;
                match made.result {
                    Ok(_) => CloudError::new(ErrorKind::NotFound, "there was none").into(),
                    Err(error) => error.into(),
                }
            }
            Bug::UpdateRemembersIntent
                if self.known(format!("{}{:?}", want.service.uid, want.backends)) =>
            {
                LbOutcome { status: None, ..LbOutcome::done(LbStatus::default()) }
            }
            _ => self.real().update_backends(op, want).await,
        }
    }

    async fn plan_at(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let planned = self.real().plan(op, want).await;
        let always = || PlannedChange {
            operation: "look".into(),
            object: "all".into(),
            reason: "habit".into(),
        };
        match self.bug {
            Bug::PlanHidesErrors => Ok(planned.unwrap_or_default()),
            Bug::PlanEnsures => {
                let planned = planned?;
                self.real().ensure(op, want, ReadMode::Fresh).await.result?;
                Ok(planned)
            }
            Bug::PlansAlways => planned.map(|plan| plan.into_iter().chain([always()]).collect()),
            Bug::Panics => panic!("planted"),
            Bug::PlanHangs => std::future::pending().await,
            Bug::PlansNothing => planned.map(|_| Vec::new()),
            Bug::PlansWithoutReason => planned.map(|mut plan| {
                for change in &mut plan {
                    change.reason = "".into();
                }
                plan
            }),
            _ => planned,
        }
    }

    fn redigest(
        &self,
        service: &ServiceView,
        claim: ServiceInterpretation,
    ) -> ServiceInterpretation {
        let ServiceInterpretation::Valid { backends, digest } = claim else {
            return claim;
        };
        let with = |more: u64| Digest(digest.0 ^ more);
        let without = |change: fn(&mut ServiceView)| {
            let mut copy = service.clone();
            change(&mut copy);
            match self.real().interpret(&copy) {
                ServiceInterpretation::Valid { digest, .. } => digest,
                _ => digest,
            }
        };
        let digest = match self.bug {
            Bug::DigestPerProcess => with(self.salt.hash_one(1)),
            Bug::DigestOfStatus => with(Digest::of(&format!("{:?}", service.status)).0),
            Bug::DigestOfAnnotations => with(Digest::of(&service.annotations).0),
            Bug::DigestWithoutRanges => without(|copy| copy.source_ranges = Box::default()),
            Bug::DigestWithoutNodePorts => without(|copy| {
                for port in &mut copy.ports {
                    port.node_port = None;
                }
            }),
            _ => digest,
        };
        ServiceInterpretation::Valid { backends, digest }
    }
}

fn service_is_marked(want: &LbSpec) -> bool {
    want.service
        .annotations
        .contains_key(annotations::LOAD_BALANCER_ID)
}

fn spec_text(want: &LbSpec) -> String {
    format!("{:?}{:?}{:?}{:?}", want.service.uid, want.service.ports, want.sources, want.backends)
}

#[async_trait]
impl LoadBalancers for MutantProvider {
    fn supports(&self) -> LbSupport {
        self.real().supports()
    }

    fn classes(&self) -> Vec<Box<str>> {
        self.real().classes()
    }

    fn supports_endpoint_backends(&self) -> bool {
        self.bug != Bug::EndpointsUnannounced && self.real().supports_endpoint_backends()
    }

    fn notices(&self, service: &ServiceView) -> Vec<ServiceNotice> {
        let mut remarks = self.real().notices(service);
        if self.bug == Bug::TellsAtLength {
            let note = "all the better ".repeat(100).into();
            remarks.push(ServiceNotice { kind: EventType::Normal, reason: "Served", note });
        }
        remarks
    }

    fn stale_annotations(&self, lb: &LbRef) -> Vec<Box<str>> {
        match self.bug {
            Bug::BelievesAnnotations => Vec::new(),
            Bug::TakesUsersAnnotations => lb.annotations.keys().map(|key| (**key).into()).collect(),
            _ => self.real().stale_annotations(lb),
        }
    }

    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation {
        let affinity = service.session_affinity != SessionAffinity::None;
        match (self.bug, self.real().interpret(service)) {
            (Bug::PlainIsElsewhere, ServiceInterpretation::Valid { .. }) => {
                ServiceInterpretation::ImplementedElsewhere
            }
            (Bug::ForgetsItsClasses, _) if service.class.is_some() => {
                ServiceInterpretation::ImplementedElsewhere
            }
            (Bug::RefusesAffinity, _) if affinity => {
                ServiceInterpretation::Invalid(vec![FieldError::new("spec", "no")])
            }
            (Bug::IgnoresBadAnnotations, ServiceInterpretation::Invalid(_)) => {
                let mut stripped = service.clone();
                stripped
                    .annotations
                    .retain(|key, _| !key.starts_with(annotations::PREFIX));
                self.real().interpret(&stripped)
            }
            (Bug::RefusesWithoutValue, ServiceInterpretation::Invalid(mistakes)) => {
                ServiceInterpretation::Invalid(
                    mistakes
                        .into_iter()
                        .map(|mistake| FieldError::new(mistake.field, "bad"))
                        .collect(),
                )
            }
            (_, claim) => self.redigest(service, claim),
        }
    }

    async fn ensure(&self, op: &Op, want: &LbSpec, depth: ReadMode) -> LbOutcome {
        let mut want = self.alter_request(want);
        if self.bug == Bug::SharedScratch {
            *self.scratch.lock() = Some(want.clone());
            tokio::time::sleep(Duration::from_millis(1)).await;
            want = self.scratch.lock().clone().unwrap_or(want);
        }
        if self.bug == Bug::RestrictsOnlyAtCreation
            && let Some(there) = self.balancer(&want.service.uid)
        {
            want.sources = match there.settings.source_ranges {
                ranges if ranges.is_empty() => SourceRanges::Unset,
                ranges => SourceRanges::Only(ranges),
            };
        }
        let outcome = match self.call(op, Ask::Ensure(&want, depth)).await {
            Ok(CallResult(outcome, _)) => outcome,
            Err(error) => error.into(),
        };
        self.after_ensure(op, &want, outcome, depth).await
    }

    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        let want = self.alter_request(want);
        match self.call(op, Ask::Update(&want)).await {
            Ok(CallResult(outcome, _)) => outcome,
            Err(error) => error.into(),
        }
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let lb = LbRef {
            uid: self.uid(op.cluster_name(), &lb.namespace, &lb.name, &lb.uid),
            ..lb.clone()
        };
        let deleted = self.call(op, Ask::Delete(&lb)).await;
        if self.bug == Bug::VerifyTrusts {
            self.remembered.lock().clear();
        }
        deleted?.0.result
    }

    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let want = self.alter_request(want);
        Ok(self.call(op, Ask::Plan(&want)).await?.1)
    }
}

#[async_trait]
impl CloudProvider for MutantProvider {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn mutation_operations(&self) -> &'static [&'static str] {
        if self.bug == Bug::NamesNoOperations {
            &[]
        } else {
            self.inner.mutation_operations()
        }
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(self)
    }

    /// Names that are made from other things than the UID would show up as other owners.
    fn inventory(&self) -> Option<&dyn Inventory> {
        use Bug::{NamesByService, NamesCutOff, NamesJoined, NamesWithoutNamespace};
        let named =
            matches!(self.bug, NamesByService | NamesCutOff | NamesJoined | NamesWithoutNamespace);
        (!named).then_some(self as &dyn Inventory)
    }
}

//! Runs a driver.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{
    Executed, Goal, LoadBalancerDriver, ParsedSpec, Readiness, ServiceOwner, Target,
    sync_state::{SyncState, SyncStates},
};
use crate::{
    k8s::{LbStatus, ServiceView},
    provider::{
        BackendKind, CloudError, Digest, ErrorKind, LbOutcome, LbRef, LbSpec, LbSupport,
        LoadBalancers, NodeTarget, Op, PlannedChange, Progress, ReadMode, ServiceInterpretation,
        ServiceNotice,
    },
};

/// Maximum number of requests in one call; the next call continues.
const MAX_REQUESTS: usize = 500;

const NO_ADDRESS: &str = "the load balancer has no address yet";

/// Load balancers of a [driver](LoadBalancerDriver).
pub struct LoadBalancerEngine<D: LoadBalancerDriver> {
    driver: D,
    sync_states: SyncStates<D>,
}

/// A request that cannot be carried out yet.
struct DeferredAction<A> {
    action: A,
    after: Duration,
    reason: Box<str>,
}

impl<D: LoadBalancerDriver> LoadBalancerEngine<D> {
    /// Makes an engine that remembers nothing.
    pub fn new(driver: D) -> Self {
        Self { driver, sync_states: SyncStates::default() }
    }

    /// Returns the driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Returns what is remembered of a Service.
    #[cfg(test)]
    pub(super) fn memory(&self, uid: &str) -> D::Memory {
        let state = self.sync_states.take(uid);
        let memory = state.memory.clone();
        self.sync_states.put(uid, state);
        memory
    }

    /// Returns what a valid Service requests.
    fn desired(&self, service: &ServiceView) -> Result<Arc<D::Desired>, CloudError> {
        match self.driver.parse(service).spec {
            ParsedSpec::Valid(desired) => Ok(desired),
            ParsedSpec::ImplementedElsewhere => Err(implemented_elsewhere(service)),
            ParsedSpec::Invalid(errors) => Err(errors.into()),
        }
    }

    /// Makes what is observed fit to start from: with [`ReadMode::Fresh`] it is verified, unless
    /// this call continues an interrupted one.
    fn prepare(&self, state: &mut SyncState<D>, read_mode: ReadMode) {
        let is_usable = match read_mode {
            ReadMode::Cached => state.is_verified(),
            ReadMode::Fresh => state.can_resume(),
        };
        if !is_usable {
            self.driver.expire(&mut state.observed);
            state.begin_verification();
        }
    }

    /// Observes, plans and sends the first request, until the plan is empty or nothing more can be
    /// done now.
    async fn run(
        &self,
        op: &Op,
        target: &Target<'_, D>,
        state: &mut SyncState<D>,
    ) -> Result<Progress, CloudError> {
        let mut deferred: Vec<DeferredAction<D::Action>> = Vec::new();
        for _ in 0..MAX_REQUESTS {
            let readiness = self
                .driver
                .observe(op, target, &mut state.observed, &state.memory)
                .await
                .map_err(as_transient)?;
            if let Readiness::Busy { after, reason } = readiness {
                return Ok(Progress::Pending { after, reason });
            }
            let exists = self.driver.exists(&state.observed);
            if matches!(target.goal, Goal::UpdateMembers { .. }) && !exists {
                return Err(no_load_balancer(target.owner));
            }
            let plan = self.driver.plan(target, &state.observed, &state.memory)?;
            let Some(action) = first_not_deferred(plan, &deferred) else {
                if deferred.is_empty() && self.awaits_address(target, state)? {
                    self.driver.expire(&mut state.observed);
                    return Ok(Progress::pending(op, NO_ADDRESS));
                }
                return Ok(earliest(deferred));
            };
            state.begin_change();
            let executed = self
                .driver
                .execute(op, target, &action, &mut state.observed, &mut state.memory)
                .await
                .map_err(as_transient)?;
            if let Executed::Deferred { after, reason } = executed {
                deferred.push(DeferredAction { action, after, reason });
            }
        }
        let ServiceOwner { namespace, name, .. } = target.owner;
        Err(CloudError::transient(format!(
            "the load balancer of service {namespace}/{name} changes while it is reconciled"
        )))
    }

    /// Returns whether the load balancer is as requested and has nothing to publish yet.
    fn awaits_address(
        &self,
        target: &Target<'_, D>,
        state: &SyncState<D>,
    ) -> Result<bool, CloudError> {
        let is_ensure = matches!(target.goal, Goal::Ensure { .. });
        Ok(is_ensure && self.driver.status(target, &state.observed)?.is_none())
    }

    /// Turns the provider's own rate limit into [`Progress::Pending`]: it is no answer of the
    /// cloud.
    fn pending_on_rate_limit(
        &self,
        result: Result<Progress, CloudError>,
    ) -> Result<Progress, CloudError> {
        result.or_else(|error| match self.driver.rate_limit_delay(&error) {
            Some(after) => Ok(Progress::Pending { after, reason: error.to_string().into() }),
            None => Err(error),
        })
    }

    /// Builds the outcome of [`run`](Self::run). The status is published whatever the result: a
    /// load balancer serves although a later step failed.
    fn outcome(
        &self,
        target: &Target<'_, D>,
        state: &SyncState<D>,
        result: Result<Progress, CloudError>,
    ) -> LbOutcome {
        let annotations = self.driver.annotations(target, &state.observed);
        match self.driver.status(target, &state.observed) {
            Ok(status) => LbOutcome { status, annotations, result },
            // An error of the run itself comes first.
            Err(error) => LbOutcome { status: None, annotations, result: result.and(Err(error)) },
        }
    }

    /// Compares with the cloud.
    async fn diff(
        &self,
        op: &Op,
        target: &Target<'_, D>,
        state: &mut SyncState<D>,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let readiness = self
            .driver
            .observe(op, target, &mut state.observed, &state.memory)
            .await
            .map_err(as_transient)?;
        if let Readiness::Busy { reason, .. } = readiness {
            return Ok(vec![change("wait", target, reason)]);
        }
        let plan = self.driver.plan(target, &state.observed, &state.memory)?;
        let mut changes: Vec<_> = plan
            .iter()
            .map(|action| self.driver.describe(target, action))
            .collect();
        match self.driver.status(target, &state.observed)? {
            Some(status) if !shows_same_addresses(&target.service.status, &status) => {
                let reason = "the service shows other addresses than the load balancer has";
                changes.push(change("publish_status", target, reason.into()));
            }
            None if changes.is_empty() => {
                changes.push(change("wait", target, NO_ADDRESS.into()));
            }
            _ => {}
        }
        Ok(changes)
    }
}

#[async_trait]
impl<D: LoadBalancerDriver> LoadBalancers for LoadBalancerEngine<D> {
    fn supports(&self) -> LbSupport {
        self.driver.supports()
    }

    fn classes(&self) -> Vec<Box<str>> {
        self.driver.classes()
    }

    fn supports_endpoint_backends(&self) -> bool {
        self.driver.supports_endpoint_backends()
    }

    fn node_target(&self) -> NodeTarget {
        self.driver.node_target()
    }

    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation {
        match self.driver.parse(service).spec {
            ParsedSpec::Valid(desired) => ServiceInterpretation::Valid {
                backends: self.driver.backend_kind(&desired),
                digest: Digest::of(&(&service.namespace, &service.name, &service.uid, &*desired)),
            },
            ParsedSpec::ImplementedElsewhere => ServiceInterpretation::ImplementedElsewhere,
            ParsedSpec::Invalid(errors) => ServiceInterpretation::Invalid(errors),
        }
    }

    fn backends_of_invalid(&self, service: &ServiceView) -> Option<BackendKind> {
        let tolerant = self.driver.parse(service).tolerant?;
        Some(self.driver.backend_kind(&tolerant))
    }

    fn notices(&self, service: &ServiceView) -> Vec<ServiceNotice> {
        self.driver.parse(service).notices
    }

    /// With [`ReadMode::Cached`], sends no request for a Service that is known to be in sync.
    async fn ensure(&self, op: &Op, spec: &LbSpec, read_mode: ReadMode) -> LbOutcome {
        let desired = match self.desired(&spec.service) {
            Ok(desired) => desired,
            Err(error) => return error.into(),
        };
        let members = self
            .driver
            .members(op, &desired, &spec.backends, read_mode)
            .await;
        let members = match members {
            Ok(members) => members,
            Err(error) => return self.pending_on_rate_limit(Err(as_transient(error))).into(),
        };
        let owner = ServiceOwner::of_service(&spec.service);
        let target = Target {
            owner: &owner,
            service: &spec.service,
            goal: Goal::Ensure { desired: &*desired, members: &members },
        };
        let mut state = self.sync_states.take(&owner.uid);
        let is_in_sync = read_mode == ReadMode::Cached && state.is_applied(&desired, &members);
        let result = if is_in_sync {
            Ok(Progress::Done)
        } else {
            self.prepare(&mut state, read_mode);
            self.pending_on_rate_limit(self.run(op, &target, &mut state).await)
        };
        let outcome = self.outcome(&target, &state, result);
        match &outcome.result {
            Ok(Progress::Done) => state.set_applied(desired, members),
            result => state.record_stop(result),
        }
        self.sync_states.put(&owner.uid, state);
        outcome
    }

    /// Updates the members of an existing load balancer, and nothing else.
    async fn update_backends(&self, op: &Op, spec: &LbSpec) -> LbOutcome {
        let parsed = self.driver.parse(&spec.service);
        let (desired, is_valid) = match (parsed.spec, parsed.tolerant) {
            (ParsedSpec::Valid(desired), _) => (desired, true),
            (ParsedSpec::Invalid(_), Some(tolerant)) => (tolerant, false),
            (ParsedSpec::Invalid(errors), None) => return CloudError::from(errors).into(),
            (ParsedSpec::ImplementedElsewhere, _) => {
                return implemented_elsewhere(&spec.service).into();
            }
        };
        let members = self
            .driver
            .members(op, &desired, &spec.backends, ReadMode::Cached)
            .await;
        let members = match members {
            Ok(members) => members,
            Err(error) => return self.pending_on_rate_limit(Err(as_transient(error))).into(),
        };
        let owner = ServiceOwner::of_service(&spec.service);
        let target = Target {
            owner: &owner,
            service: &spec.service,
            goal: Goal::UpdateMembers { desired: &*desired, members: &members, is_valid },
        };
        let mut state = self.sync_states.take(&owner.uid);
        self.prepare(&mut state, ReadMode::Cached);
        let result = self.pending_on_rate_limit(self.run(op, &target, &mut state).await);
        match &result {
            Ok(Progress::Done) => state.set_members_applied(&desired, members),
            result => state.record_stop(result),
        }
        self.sync_states.put(&owner.uid, state);
        result.into()
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let service = lb.last_observed_service();
        let desired = match self.driver.parse(&service).spec {
            ParsedSpec::Valid(desired) => Some(desired),
            _ => None,
        };
        let owner = ServiceOwner {
            uid: lb.uid.clone(),
            namespace: lb.namespace.clone(),
            name: lb.name.clone(),
        };
        let target = Target {
            owner: &owner,
            service: &service,
            goal: Goal::Delete { desired: desired.as_deref() },
        };
        let mut state = self.sync_states.take(&owner.uid);
        self.prepare(&mut state, ReadMode::Fresh);
        let result = self.pending_on_rate_limit(self.run(op, &target, &mut state).await);
        if matches!(result, Ok(Progress::Done)) {
            self.sync_states.forget(&owner.uid);
        } else {
            state.record_stop(&result);
            self.sync_states.put(&owner.uid, state);
        }
        result
    }

    fn stale_annotations(&self, lb: &LbRef) -> Vec<Box<str>> {
        self.driver.stale_annotations(lb)
    }

    async fn plan(&self, op: &Op, spec: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let desired = self.desired(&spec.service)?;
        let members = self
            .driver
            .members(op, &desired, &spec.backends, ReadMode::Fresh)
            .await
            .map_err(as_transient)?;
        let owner = ServiceOwner::of_service(&spec.service);
        let target = Target {
            owner: &owner,
            service: &spec.service,
            goal: Goal::Ensure { desired: &*desired, members: &members },
        };
        let mut state = self.sync_states.take(&owner.uid);
        self.driver.expire(&mut state.observed);
        state.begin_verification();
        let result = self.diff(op, &target, &mut state).await;
        match &result {
            Ok(changes) if changes.is_empty() => state.set_applied(desired, members),
            Ok(_) => {}
            Err(_) => state.invalidate(),
        }
        self.sync_states.put(&owner.uid, state);
        result
    }
}

impl ServiceOwner {
    fn of_service(service: &ServiceView) -> Self {
        Self {
            uid: service.uid.clone(),
            namespace: service.namespace.clone(),
            name: service.name.clone(),
        }
    }
}

fn first_not_deferred<A: PartialEq>(plan: Vec<A>, deferred: &[DeferredAction<A>]) -> Option<A> {
    plan.into_iter()
        .find(|action| !deferred.iter().any(|deferred| deferred.action == *action))
}

/// Returns when the first of the deferred requests is due; done if there is none.
fn earliest<A>(deferred: Vec<DeferredAction<A>>) -> Progress {
    match deferred.into_iter().min_by_key(|deferred| deferred.after) {
        Some(first) => Progress::Pending { after: first.after, reason: first.reason },
        None => Progress::Done,
    }
}

fn change<D: LoadBalancerDriver>(
    operation: &str,
    target: &Target<'_, D>,
    reason: Box<str>,
) -> PlannedChange {
    let object = target.service.key().into();
    PlannedChange { operation: operation.into(), object, reason }
}

/// Returns whether a Service's status has the same addresses and host names.
fn shows_same_addresses(published: &LbStatus, actual: &LbStatus) -> bool {
    let mut published = published.ingress.iter();
    let mut actual = actual.ingress.iter();
    loop {
        match (published.next(), actual.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if a.ip == b.ip && a.hostname == b.hostname => {}
            _ => return false,
        }
    }
}

fn implemented_elsewhere(service: &ServiceView) -> CloudError {
    let message = format!("service {} is another controller's", service.key());
    CloudError::new(ErrorKind::ImplementedElsewhere, message)
}

fn no_load_balancer(owner: &ServiceOwner) -> CloudError {
    let ServiceOwner { namespace, name, .. } = owner;
    let message = format!("service {namespace}/{name} has no load balancer");
    CloudError::new(ErrorKind::NotFound, message)
}

/// Makes "not found" transient: that one object is missing says nothing about the load balancer as
/// a whole.
fn as_transient(error: CloudError) -> CloudError {
    match error.kind() {
        ErrorKind::NotFound => CloudError::transient(error.to_string()).with_source(error),
        _ => error,
    }
}

//! Network Load Balancers and classic load balancers for Services.
//!
//! Each sync parses the Service ([`spec::parse`]), reads the observed state, [plans](plan) the
//! differences and applies the actions one by one. An interrupted sync leaves nothing to undo:
//! names never change and objects are tagged when they are created, so the next sync finds them and
//! continues.

mod apply;
pub mod classic;
mod deps;
mod inventory;
pub mod model;
mod moving;
pub mod names;
mod observe;
mod ownership;
pub mod plan;
mod reconcile;
mod retry_delay;
pub mod security_groups;
pub mod spec;
mod status;
mod sync_state;
mod targets;
#[cfg(test)]
mod test_fixtures;

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    k8s::ServiceView,
    provider::{
        BackendKind, Backends, CloudError, Digest, ErrorKind, EventType, LbOutcome, LbRef, LbSpec,
        LbSupport, LoadBalancers, NodeTarget, Op, PlannedChange, Progress, ReadMode, RetainOutcome,
        ServiceInterpretation, ServiceNotice, adopted_id, asks_to_retain,
    },
    runtime::events::WallClock,
};

pub(crate) use self::observe::access_denied::is_denied_by_policy;
use self::{
    classic::{ClassicLoadBalancers, ClassicService, model::ClassicReading},
    model::{DesiredLoadBalancer, SecurityGroupChoice, ServiceKey, UpdateScope},
    moving::MovingService,
    reconcile::{LoadBalancerReconciler, ReconcileInput, delete::DeleteInput},
    spec::{DeletionProtection, ParsedService, ServiceSpec},
};
use crate::{
    api::{
        SecurityGroupId,
        elb::{Scheme, TargetType},
    },
    client,
    config::DefaultType,
    instances::InstanceCache,
    scope::Scope,
};

/// Manages the load balancers of Services: Network Load Balancers, and classic ones where upstream
/// would make them.
pub struct NetworkLoadBalancers {
    reconciler: LoadBalancerReconciler,
    classic: ClassicLoadBalancers,
    /// The time since which a move has been drained is on the Service, for the next process.
    pub(crate) clock: WallClock,
}

impl NetworkLoadBalancers {
    /// Creates a manager with empty caches.
    pub fn new(scope: Scope, instances: Arc<InstanceCache>) -> Self {
        Self {
            classic: ClassicLoadBalancers::new(scope.clone()),
            reconciler: LoadBalancerReconciler::new(scope, instances),
            clock: WallClock::system(),
        }
    }

    fn parse(&self, service: &ServiceView) -> ParsedService {
        spec::parse(service, &self.reconciler.scope.settings, &self.reconciler.scope.cluster)
    }

    /// Finds out which kind of load balancer the Service has or requests.
    async fn find_load_balancer(
        &self,
        op: &Op,
        lb_spec: &LbSpec,
    ) -> Result<ServiceLoadBalancer, CloudError> {
        let service = &lb_spec.service;
        let parsed = self.parse(service);
        let request = spec::move_request(service);
        let is_elsewhere =
            parsed.spec == ServiceSpec::ImplementedElsewhere && parsed.classic.is_none();
        if request.state.is_some() && !is_elsewhere {
            let moving = self.find_moving(op, service, parsed).await;
            return Ok(ServiceLoadBalancer::Moving(Box::new(moving)));
        }
        let again = request.is_requested.then(|| parsed.clone());
        let ParsedService { spec, classic, tolerant, .. } = parsed;
        let desired = match spec {
            ServiceSpec::ImplementedElsewhere => {
                if let Some(reading) = classic
                    && let Some(classic) =
                        self.remaining_classic(op, service, None, reading).await?
                {
                    return Ok(ServiceLoadBalancer::Classic(Box::new(classic)));
                }
                let message = format!("service {} is another controller's", service.key());
                return Err(CloudError::new(ErrorKind::ImplementedElsewhere, message));
            }
            ServiceSpec::Classic(desired) => {
                let reading = classic.unwrap_or_else(|| ClassicReading {
                    groups: desired.groups.clone(),
                    desired: Ok(desired),
                });
                let classic = self.requested_classic(op, service, reading).await?;
                return Ok(ServiceLoadBalancer::Classic(Box::new(classic)));
            }
            ServiceSpec::Nlb(desired) => Ok(desired),
            ServiceSpec::Invalid(errors) => Err(CloudError::from(errors)),
        };
        if let Some(reading) = classic
            && let Some(classic) = self
                .remaining_classic(op, service, desired.as_deref().ok(), reading)
                .await?
        {
            if let Some(parsed) = again {
                let moving = self.find_moving(op, service, parsed).await;
                return Ok(ServiceLoadBalancer::Moving(Box::new(moving)));
            }
            return Ok(ServiceLoadBalancer::Classic(Box::new(classic)));
        }
        if desired.is_ok()
            && let Some(classic) = self.unpublished_classic(op, service).await?
        {
            return Ok(ServiceLoadBalancer::Classic(Box::new(classic)));
        }
        let errors = match desired {
            Ok(desired) => return Ok(ServiceLoadBalancer::Network(desired)),
            Err(errors) => errors,
        };
        match tolerant {
            Some(desired) if accepts_backends(&desired, &lb_spec.backends) => {
                Ok(ServiceLoadBalancer::Invalid(desired, errors))
            }
            _ => Err(errors),
        }
    }
}

/// The kind of load balancer that a Service has or requests.
enum ServiceLoadBalancer {
    /// A Network Load Balancer.
    Network(Box<DesiredLoadBalancer>),
    /// A classic load balancer.
    Classic(Box<ClassicService>),
    /// A classic load balancer, and a Network Load Balancer to which the Service moves.
    Moving(Box<MovingService>),
    /// An existing Network Load Balancer whose Service is invalid now: the desired state, usable
    /// for its targets only, and the validation errors.
    Invalid(Box<DesiredLoadBalancer>, CloudError),
}

#[async_trait]
impl LoadBalancers for NetworkLoadBalancers {
    /// Everything is supported but SCTP. [`interpret`](Self::interpret) rejects combinations that
    /// one Service cannot have.
    fn supports(&self) -> LbSupport {
        LbSupport {
            source_ranges: true,
            udp: true,
            sctp: false,
            mixed_protocols: true,
            ipv6: true,
            dual_stack: true,
            no_node_ports: true,
            load_balancer_ip: true,
            client_ip_affinity: true,
            retain: true,
        }
    }

    fn classes(&self) -> Vec<Box<str>> {
        self.reconciler.scope.settings.classes.clone()
    }

    fn supports_endpoint_backends(&self) -> bool {
        true
    }

    fn node_target(&self) -> NodeTarget {
        NodeTarget::Instance
    }

    /// The digest covers the whole desired state, in both readings if the status shows a host name like
    /// that of a classic load balancer. Such a Service counts as valid even if its spec is invalid,
    /// because the instances are still updated, and so does one that is left to another controller only
    /// because there is no default type.
    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation {
        let parsed = self.parse(service);
        let request = spec::move_request(service);
        match parsed.spec {
            ServiceSpec::Nlb(desired) => {
                let requested = request.is_requested.then_some(request.drain);
                let digest = match (&parsed.classic, requested) {
                    (None, None) => Digest::of(&desired),
                    (Some(reading), None) => Digest::of(&(&desired, classic_digest(reading))),
                    (reading, Some(drain)) => {
                        let classic = reading.as_ref().map(classic_digest);
                        Digest::of(&(&desired, classic, drain))
                    }
                };
                ServiceInterpretation::Valid { backends: desired.backends(), digest }
            }
            ServiceSpec::Classic(desired) => ServiceInterpretation::Valid {
                backends: desired.backends(),
                digest: Digest::of(&(&desired, adopted_id(service))),
            },
            ServiceSpec::ImplementedElsewhere => match &parsed.classic {
                Some(reading) => ServiceInterpretation::Valid {
                    backends: match &reading.desired {
                        Ok(desired) => desired.backends(),
                        Err(_) => BackendKind::Nodes(spec::node_requirements_of(service)),
                    },
                    digest: classic_digest(reading),
                },
                None => ServiceInterpretation::ImplementedElsewhere,
            },
            ServiceSpec::Invalid(errors)
                if parsed.status_looks_classic || request.state.is_some() =>
            {
                let errors: Vec<_> = errors
                    .iter()
                    .map(|error| (error.field.clone(), error.message.clone()))
                    .collect();
                let nodes = spec::node_requirements_of(service);
                let classic = parsed.classic.as_ref().map(classic_digest);
                let digest = Digest::of(&(errors, &nodes, classic));
                ServiceInterpretation::Valid { backends: BackendKind::Nodes(nodes), digest }
            }
            ServiceSpec::Invalid(errors) => ServiceInterpretation::Invalid(errors),
        }
    }

    fn backends_of_invalid(&self, service: &ServiceView) -> Option<BackendKind> {
        self.parse(service)
            .tolerant
            .map(|desired| desired.backends())
    }

    fn notices(&self, service: &ServiceView) -> Vec<ServiceNotice> {
        let parsed = self.parse(service);
        let mut notices = parsed.notices;
        let is_classic =
            parsed.status_looks_classic || matches!(parsed.spec, ServiceSpec::Classic(_));
        if is_classic && asks_to_retain(service) {
            notices.push(ServiceNotice {
                kind: EventType::Warning,
                reason: "ClassicLoadBalancer",
                note: format!(
                    "{CLASSIC_NOT_RETAINED}: the Service will not be deleted while it asks for that"
                )
                .into(),
            });
        }
        notices
    }

    /// With [`ReadMode::Cached`], neither reads nor changes the load balancer if the Service is
    /// known to be in sync. Continues an interrupted call. Publishes the host name while the load
    /// balancer is still being provisioned.
    async fn ensure(&self, op: &Op, lb_spec: &LbSpec, read_mode: ReadMode) -> LbOutcome {
        if read_mode == ReadMode::Cached
            && adopted_id(&lb_spec.service).is_none()
            && let Some(outcome) = self.classic_in_sync(op, lb_spec).await
        {
            return outcome;
        }
        match self.find_load_balancer(op, lb_spec).await {
            Ok(ServiceLoadBalancer::Network(desired)) => {
                let as_upstream = self.upstream_reading(&lb_spec.service, &desired);
                let input = ReconcileInput {
                    as_upstream: as_upstream.as_deref(),
                    ..reconcile_input(&desired, lb_spec)
                };
                outcome_on_rate_limit(Box::pin(self.reconciler.ensure(op, &input, read_mode)).await)
            }
            Ok(ServiceLoadBalancer::Classic(classic)) => {
                if let Err(error) = check_classic_adopts_none(&lb_spec.service) {
                    return error.into();
                }
                outcome_on_rate_limit(Box::pin(self.ensure_classic(op, *classic, lb_spec)).await)
            }
            Ok(ServiceLoadBalancer::Moving(moving)) => {
                if let Err(error) = check_classic_adopts_none(&lb_spec.service) {
                    return error.into();
                }
                let outcome = self.ensure_moving(op, &moving, lb_spec, read_mode);
                outcome_on_rate_limit(Box::pin(outcome).await)
            }
            Ok(ServiceLoadBalancer::Invalid(_, errors)) => errors.into(),
            Err(error) => outcome_on_rate_limit(error.into()),
        }
    }

    /// Sends one registration and one deregistration per target group, because the registered
    /// targets are cached. For an invalid Service no security group rule changes, because its
    /// source ranges may be among the invalid values.
    async fn update_backends(&self, op: &Op, lb_spec: &LbSpec) -> LbOutcome {
        match self.find_load_balancer(op, lb_spec).await {
            Ok(ServiceLoadBalancer::Network(desired)) => outcome_on_rate_limit(
                self.reconciler
                    .update_backends(op, &reconcile_input(&desired, lb_spec))
                    .await,
            ),
            Ok(ServiceLoadBalancer::Classic(classic)) => {
                outcome_on_rate_limit(self.update_classic(op, &classic, lb_spec).await)
            }
            Ok(ServiceLoadBalancer::Moving(moving)) => {
                outcome_on_rate_limit(self.update_moving(op, &moving, lb_spec).await)
            }
            Ok(ServiceLoadBalancer::Invalid(desired, _)) => {
                let input =
                    ReconcileInput { targets_only: true, ..reconcile_input(&desired, lb_spec) };
                outcome_on_rate_limit(self.reconciler.update_backends(op, &input).await)
            }
            Err(error) => outcome_on_rate_limit(error.into()),
        }
    }

    /// Fails while the load balancer has deletion protection, unless the Service or the
    /// configuration asks to remove it.
    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let service = lb.last_observed_service();
        let parsed = self.parse(&service);
        let owner = ServiceKey {
            namespace: lb.namespace.clone(),
            name: lb.name.clone(),
            uid: lb.uid.clone(),
        };
        let progress = self.delete_network(op, &owner, &parsed, &service).await;
        let progress = pending_on_rate_limit(progress)?;
        if progress != Progress::Done {
            return Ok(progress);
        }
        pending_on_rate_limit(self.delete_any_classic(op, &owner, &parsed, &service).await)
    }

    /// Returns the annotation that says how far a move is: there is nothing to move any more.
    fn stale_annotations(&self, _: &LbRef) -> Vec<Box<str>> {
        vec![spec::annotations::MOVE_STATE.definition.key()]
    }

    /// Network Load Balancers only. Reads as a deletion does, and the listing. What exists and is kept
    /// gets a mark and loses the tags of its owner, in one request for each kind of object and a last one
    /// for the load balancer.
    async fn retain(&self, op: &Op, lb: &LbRef) -> Result<RetainOutcome, CloudError> {
        let service = lb.last_observed_service();
        let parsed = self.parse(&service);
        let desired = match &parsed.spec {
            ServiceSpec::Nlb(desired) => Some(&**desired),
            _ => None,
        };
        let owner = ServiceKey {
            namespace: lb.namespace.clone(),
            name: lb.name.clone(),
            uid: lb.uid.clone(),
        };
        let no_classic = self.check_no_classic(op, &owner, &parsed, &service).await;
        if let Progress::Pending { after, reason } = pending_on_rate_limit(no_classic)? {
            return Ok(RetainOutcome::Pending { after, reason });
        }
        let names = self.names(&owner, desired, &service);
        let adopted_name = names::adopted_only(&names, adopted_id(&service));
        let input = DeleteInput {
            owner: &owner,
            names: &names,
            adopted_name,
            keep_security_groups: &given_groups(desired),
            remove_protection: false,
        };
        let result = self.reconciler.retain(op, &input).await;
        result.or_else(|error| match client::rate_limit_delay(&error) {
            Some(after) => Ok(RetainOutcome::Pending { after, reason: error.to_string().into() }),
            None => Err(error),
        })
    }

    async fn plan(&self, op: &Op, lb_spec: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        match self
            .find_load_balancer(op, lb_spec)
            .await
            .map_err(transient_on_rate_limit)?
        {
            ServiceLoadBalancer::Network(desired) => self
                .reconciler
                .dry_run(op, &reconcile_input(&desired, lb_spec))
                .await
                .map_err(transient_on_rate_limit),
            ServiceLoadBalancer::Classic(classic) => {
                check_classic_adopts_none(&lb_spec.service)?;
                self.plan_classic(op, &classic, lb_spec)
                    .await
                    .map_err(transient_on_rate_limit)
            }
            ServiceLoadBalancer::Moving(moving) => {
                check_classic_adopts_none(&lb_spec.service)?;
                Box::pin(self.plan_moving(op, *moving, lb_spec))
                    .await
                    .map_err(transient_on_rate_limit)
            }
            ServiceLoadBalancer::Invalid(_, errors) => Err(errors),
        }
    }
}

impl NetworkLoadBalancers {
    /// Deletes the Network Load Balancer of a Service.
    ///
    /// # Errors
    /// The load balancer has deletion protection that nobody asks to remove, and errors of AWS.
    async fn delete_network(
        &self,
        op: &Op,
        owner: &ServiceKey,
        parsed: &ParsedService,
        service: &ServiceView,
    ) -> Result<Progress, CloudError> {
        let desired = match &parsed.spec {
            ServiceSpec::Nlb(desired) => Some(&**desired),
            _ => None,
        };
        let protection = spec::deletion_protection(service, &self.reconciler.scope.settings);
        if protection == DeletionProtection::Enabled
            || desired.is_some_and(|desired| desired.deletion_protection)
        {
            return Err(CloudError::invalid_input(format!(
                "deletion_protection is enabled, cannot delete the service: {}",
                service.key()
            ))
            .with_reason("DeletionProtected"));
        }
        // A request for protection may have no effect, but it is never a reason to remove protection.
        let remove_protection = DeletionProtection::of(&service.annotations)
            != DeletionProtection::Enabled
            && (protection == DeletionProtection::Disabled
                || self.reconciler.scope.settings.remove_deletion_protection);
        let names = self.names(owner, desired, service);
        let adopted_name = names::adopted_only(&names, adopted_id(service));
        let keep = given_groups(desired);
        let input = DeleteInput {
            owner,
            names: &names,
            adopted_name,
            keep_security_groups: &keep,
            remove_protection,
        };
        self.reconciler.delete(op, &input).await
    }

    /// Returns the desired state as upstream reads the Service, if more than that is requested.
    fn upstream_reading(
        &self,
        service: &ServiceView,
        desired: &DesiredLoadBalancer,
    ) -> Option<Box<DesiredLoadBalancer>> {
        let Scope { settings, cluster, .. } = &self.reconciler.scope;
        match desired.updates {
            UpdateScope::All => spec::upstream_reading(service, settings, cluster),
            UpdateScope::AsCloudProviderAws => None,
        }
    }

    /// Returns true if a Service may have a classic load balancer. One that was created just before a
    /// crash is not in the status yet, and the Service or the configuration may have changed since.
    fn may_have_classic(&self, parsed: &ParsedService, service: &ServiceView) -> bool {
        let makes_classic = self.reconciler.scope.settings.default_type == DefaultType::Unset;
        let is_unpublished = service.status.ingress.is_empty();
        parsed.status_looks_classic || parsed.classic.is_some() || (makes_classic && is_unpublished)
    }

    /// Returns true if a Service that goes may have a classic load balancer, as far as is known without
    /// looking for it. Asks AWS once for one of which nothing tells.
    async fn has_to_look_for_classic(
        &self,
        op: &Op,
        owner: &ServiceKey,
        parsed: &ParsedService,
        service: &ServiceView,
    ) -> Result<bool, CloudError> {
        let request = spec::move_request(service);
        let is_moving = request.is_requested || request.state.is_some();
        if is_moving || self.may_have_classic(parsed, service) {
            return Ok(true);
        }
        let is_untyped = !spec::requests_network_load_balancer(service);
        Ok(is_untyped && self.has_leftover_classic(op, owner).await?)
    }

    /// Deletes the classic load balancer of a Service, if there is one.
    async fn delete_any_classic(
        &self,
        op: &Op,
        owner: &ServiceKey,
        parsed: &ParsedService,
        service: &ServiceView,
    ) -> Result<Progress, CloudError> {
        if self
            .has_to_look_for_classic(op, owner, parsed, service)
            .await?
        {
            let Scope { settings, cluster, .. } = &self.reconciler.scope;
            let groups = spec::classic_reading(service, settings, cluster).groups;
            return self.delete_classic(op, owner, &groups).await;
        }
        Ok(Progress::Done)
    }

    /// Checks that a Service that asks to keep its load balancer has no classic one.
    async fn check_no_classic(
        &self,
        op: &Op,
        owner: &ServiceKey,
        parsed: &ParsedService,
        service: &ServiceView,
    ) -> Result<Progress, CloudError> {
        if self
            .has_to_look_for_classic(op, owner, parsed, service)
            .await?
        {
            return self.classic_to_retain(op, owner, service).await;
        }
        Ok(Progress::Done)
    }

    /// Returns the names that the load balancer of a Service may have by itself. Leaves out invalid
    /// names, because AWS rejects a query for them.
    fn names(
        &self,
        owner: &ServiceKey,
        desired: Option<&DesiredLoadBalancer>,
        service: &ServiceView,
    ) -> Vec<Box<str>> {
        let mut candidates = vec![names::load_balancer(&owner.uid)];
        candidates.extend(desired.map(|desired| desired.name.clone()));
        let key = format!("{}name", spec::annotations::PREFIX);
        let custom_name = service.annotations.get(&*key).map(|name| name.trim());
        if let Some(name) = custom_name
            && names::name_error(name).is_none()
        {
            candidates.push(name.into());
        }
        let scope = &self.reconciler.scope;
        if service.class.is_some() || scope.settings.claim_external {
            for scheme in Scheme::ALL {
                candidates.push(names::lbc_load_balancer(&scope.cluster, owner, *scheme));
            }
        }
        let mut names = Vec::new();
        for name in candidates {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// Says that classic load balancers are never kept, and what to do.
const CLASSIC_NOT_RETAINED: &str = "a classic load balancer cannot be kept when its Service goes: remove the annotation to have it deleted, or \
     keep the Service";

/// Checks that a Service with a classic load balancer, or that requests one, adopts none.
fn check_classic_adopts_none(service: &ServiceView) -> Result<(), CloudError> {
    match adopted_id(service) {
        Some(id) => Err(CloudError::invalid_input(format!(
            "the service cannot adopt load balancer {id}, because it has a classic load balancer or asks for one: only a \
             Service of type nlb adopts"
        ))),
        None => Ok(()),
    }
}

/// Turns an error of our own rate limiter into [`Progress::Pending`]. It is not an answer of AWS
/// and does not concern other Services.
fn pending_on_rate_limit(result: Result<Progress, CloudError>) -> Result<Progress, CloudError> {
    result.or_else(|error| match client::rate_limit_delay(&error) {
        Some(after) => Ok(Progress::Pending { after, reason: error.to_string().into() }),
        None => Err(error),
    })
}

/// Turns an error of our own rate limiter into a transient one, for callers that cannot return
/// [`Progress::Pending`].
fn transient_on_rate_limit(error: CloudError) -> CloudError {
    match client::rate_limit_delay(&error) {
        Some(after) => CloudError::transient(error.to_string())
            .with_retry_after(after)
            .with_source(error),
        None => error,
    }
}

/// Returns the digest of a reading, with its errors if it is invalid.
fn classic_digest(reading: &ClassicReading) -> Digest {
    match &reading.desired {
        Ok(desired) => Digest::of(desired),
        Err(errors) => {
            let errors: Vec<_> = errors
                .iter()
                .map(|error| (error.field.clone(), error.message.clone()))
                .collect();
            Digest::of(&(errors, &reading.groups))
        }
    }
}

fn outcome_on_rate_limit(outcome: LbOutcome) -> LbOutcome {
    LbOutcome { result: pending_on_rate_limit(outcome.result), ..outcome }
}

fn reconcile_input<'a>(
    desired: &'a DesiredLoadBalancer,
    lb_spec: &'a LbSpec,
) -> ReconcileInput<'a> {
    ReconcileInput {
        desired,
        service: &lb_spec.service,
        backends: &lb_spec.backends,
        targets_only: false,
        as_upstream: None,
    }
}

/// Returns true if the backends fit the target type. Instances in a target group for addresses
/// would replace all its targets.
fn accepts_backends(desired: &DesiredLoadBalancer, backends: &Backends) -> bool {
    matches!(
        (desired.target_type, backends),
        (TargetType::Instance, Backends::Nodes(_)) | (TargetType::Ip, Backends::Endpoints(_))
    )
}

/// Returns the security groups that a Service names by ID.
fn given_groups(desired: Option<&DesiredLoadBalancer>) -> Vec<SecurityGroupId> {
    match desired.map(|desired| &desired.security.groups) {
        Some(SecurityGroupChoice::Given(names)) => names
            .iter()
            .filter(|name| name.starts_with("sg-"))
            .map(|id| SecurityGroupId::from(&**id))
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
pub(crate) mod tests;

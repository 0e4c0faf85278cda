//! Moves a Service from its classic load balancer to a Network Load Balancer, or back, while both serve.
//!
//! Each call lets both load balancers follow the nodes, [decides](plan) about one step, and does it. How
//! far the move is, is on the Service: in its status, and in an annotation that is written with it.

mod plan;

use std::{collections::BTreeMap, time::Duration};

use ccm_core::{
    k8s::{LbStatus, ServiceView},
    provider::{
        Backends, CloudError, ErrorKind, EventType, LbOutcome, LbSpec, Op, PlannedChange, Progress,
        ReadMode,
    },
};

use self::plan::{MoveFacts, MoveStep, Shown};
pub(in crate::lb) use self::plan::{MoveRequest, MoveState};
use super::{
    NetworkLoadBalancers, ReconcileInput, accepts_backends,
    classic::{ClassicService, model::ClassicReading},
    model::{DesiredLoadBalancer, ServiceKey},
    names, outcome_on_rate_limit, reconcile_input,
    retry_delay::{self, Deferred},
    spec::{self, ParsedService, ServiceSpec, annotations},
    status,
};
use crate::api::{TargetGroupArn, elb::DescribeTargetHealth};

/// Delay before the next call where nothing has to be awaited but the Service as we have just written
/// it.
const NEXT_STEP_DELAY: Duration = Duration::from_secs(1);

/// A Service with a classic load balancer that moves to a Network Load Balancer, or back.
pub(super) struct MovingService {
    request: MoveRequest,
    /// True towards the Network Load Balancer, false back to the classic one.
    is_forward: bool,
    /// The classic load balancer, of which only the instances change; `None` if it does not exist.
    classic: Result<Option<ClassicService>, CloudError>,
    /// The desired Network Load Balancer, perhaps with harmless values in place of invalid ones.
    network: Option<Box<DesiredLoadBalancer>>,
    /// The validation errors of a Service that asks for the move.
    refused: Option<CloudError>,
}

impl NetworkLoadBalancers {
    /// Reads the classic load balancer of a Service that moves.
    pub(super) async fn find_moving(
        &self,
        op: &Op,
        service: &ServiceView,
        parsed: ParsedService,
    ) -> MovingService {
        let request = spec::move_request(service);
        let reading = parsed
            .classic
            .unwrap_or_else(|| self.classic_reading(service));
        let classic = self.moving_classic(op, service, reading).await;
        let asks_for_classic = matches!(parsed.spec, ServiceSpec::Classic(_));
        // A Service that names no type has no Network Load Balancer if the default type is `none`.
        let is_elsewhere = parsed.spec == ServiceSpec::ImplementedElsewhere;
        let is_forward = request.is_requested && !asks_for_classic && !is_elsewhere;
        let (network, refused) = match parsed.spec {
            ServiceSpec::Nlb(desired) => (Some(desired), None),
            ServiceSpec::Invalid(errors) if is_forward => {
                (parsed.tolerant, Some(CloudError::from(errors)))
            }
            _ => (parsed.tolerant, None),
        };
        MovingService { request, is_forward, classic, network, refused }
    }

    fn classic_reading(&self, service: &ServiceView) -> ClassicReading {
        let scope = &self.reconciler.scope;
        spec::classic_reading(service, &scope.settings, &scope.cluster)
    }

    /// Lets both load balancers follow the nodes, and takes the next step of the move.
    pub(super) async fn ensure_moving(
        &self,
        op: &Op,
        moving: &MovingService,
        lb_spec: &LbSpec,
        read_mode: ReadMode,
    ) -> LbOutcome {
        // The classic load balancer first: until the switch, it alone has clients.
        let followed = self.follow_classic(op, moving, lb_spec).await;
        let network = self.ensure_network(op, moving, lb_spec, read_mode).await;
        // Decide, and take the step.
        let (network_progress, network_error) = match network.result {
            Ok(progress) => (progress, None),
            // The way back must not wait for the load balancer that is left.
            Err(error) if !moving.is_forward && error.kind() != ErrorKind::NotLeader => {
                (Progress::Done, Some(error))
            }
            Err(error) => return error.into(),
        };
        if let Some(refused) = &moving.refused {
            return refused.clone().into();
        }
        // What is not known must not change the status.
        let is_started = moving.request.state.is_some();
        if moving.is_forward && is_started && network.status.is_none() {
            let reason = "the network load balancer has no host name yet".into();
            let after = retry_delay::unready_targets(op);
            let pending = Progress::Pending { after, reason };
            let result = followed.map(|followed| earliest([followed, network_progress, pending]));
            return LbOutcome { status: None, annotations: BTreeMap::new(), result };
        }
        let unready = match (moving.is_forward, &moving.network) {
            (true, Some(desired)) => self.find_unready(op, desired).await,
            (true, None) => Ok(None),
            (false, _) => Ok(self.find_classic_unready(moving, lb_spec, &followed)),
        };
        let step = unready.and_then(|unready| self.decide(moving, lb_spec, unready));
        let mut outcome = match step {
            Ok(step) => {
                self.take_step(op, moving, lb_spec, step, network.status)
                    .await
            }
            Err(error) => error.into(),
        };
        outcome.result = match (outcome.result, followed) {
            (Ok(taken), Ok(followed)) => Ok(earliest([taken, followed, network_progress])),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        if let (Ok(_), Some(error)) = (&outcome.result, network_error) {
            outcome.result = Err(error);
        }
        outcome
    }

    /// Lets both load balancers follow the nodes, and nothing else.
    pub(super) async fn update_moving(
        &self,
        op: &Op,
        moving: &MovingService,
        lb_spec: &LbSpec,
    ) -> LbOutcome {
        let followed = self.follow_classic(op, moving, lb_spec).await;
        let network = self.follow_network(op, moving, lb_spec).await;
        let result = followed.and_then(|followed| Ok(earliest([followed, network?])));
        LbOutcome { status: None, annotations: BTreeMap::new(), result }
    }

    async fn follow_classic(
        &self,
        op: &Op,
        moving: &MovingService,
        lb_spec: &LbSpec,
    ) -> Result<Progress, CloudError> {
        match &moving.classic {
            Ok(Some(classic)) => {
                let outcome = self.update_classic(op, classic, lb_spec).await;
                outcome_on_rate_limit(outcome).result
            }
            Ok(None) => Ok(Progress::Done),
            Err(error) => Err(error.clone()),
        }
    }

    /// Registers and deregisters the targets of the Network Load Balancer, if it exists.
    async fn follow_network(
        &self,
        op: &Op,
        moving: &MovingService,
        lb_spec: &LbSpec,
    ) -> Result<Progress, CloudError> {
        let desired = match &moving.network {
            Some(desired)
                if moving.request.state.is_some()
                    && accepts_backends(desired, &lb_spec.backends) =>
            {
                desired
            }
            _ => return Ok(Progress::Done),
        };
        let input = ReconcileInput {
            targets_only: moving.refused.is_some(),
            ..reconcile_input(desired, lb_spec)
        };
        let outcome = self.reconciler.update_backends(op, &input).await;
        match outcome_on_rate_limit(outcome).result {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Progress::Done),
            result => result,
        }
    }

    /// Creates or updates the Network Load Balancer of a Service that moves to it. In any other case only
    /// its targets follow.
    async fn ensure_network(
        &self,
        op: &Op,
        moving: &MovingService,
        lb_spec: &LbSpec,
        read_mode: ReadMode,
    ) -> LbOutcome {
        let is_valid = moving.refused.is_none();
        match &moving.network {
            Some(desired) if moving.is_forward && is_valid && moving.request.state.is_some() => {
                let as_upstream = self.upstream_reading(&lb_spec.service, desired);
                let input = ReconcileInput {
                    as_upstream: as_upstream.as_deref(),
                    ..reconcile_input(desired, lb_spec)
                };
                let outcome = self.reconciler.ensure(op, &input, read_mode);
                outcome_on_rate_limit(Box::pin(outcome).await)
            }
            _ => {
                let result = self.follow_network(op, moving, lb_spec).await;
                LbOutcome { status: None, annotations: BTreeMap::new(), result }
            }
        }
    }

    /// Returns the reason for which the Network Load Balancer cannot serve all clients: each listener
    /// needs a healthy target. Returns `None` if it can.
    async fn find_unready(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
    ) -> Result<Option<String>, CloudError> {
        let Some(observed) = self.reconciler.sync_states.observed(&desired.owner.uid) else {
            return Ok(Some("the network load balancer does not exist yet".to_owned()));
        };
        for listener in &desired.listeners {
            let port = listener.port;
            let group = observed
                .listener(listener.key())
                .and_then(|listener| listener.resource.target_group.clone());
            let Some(group) = group else {
                let reason =
                    format!("the network load balancer has no listener on port {port} yet");
                return Ok(Some(reason));
            };
            let (healthy, all) = self.count_healthy(op, group).await?;
            if healthy == 0 {
                let reason = format!(
                    "none of the {all} targets of the network load balancer on port {port} is healthy yet"
                );
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }

    /// Returns the reason for which it is not certain that the classic load balancer serves. AWS is not
    /// asked for the health of its instances, so one that it has had since before this sync is enough.
    fn find_classic_unready(
        &self,
        moving: &MovingService,
        lb_spec: &LbSpec,
        followed: &Result<Progress, CloudError>,
    ) -> Option<String> {
        if let Err(error) = followed {
            return Some(format!("the classic load balancer does not follow the nodes: {error}"));
        }
        let has_backends = match &lb_spec.backends {
            Backends::Nodes(nodes) => !nodes.is_empty(),
            Backends::Endpoints(slices) => !slices.is_empty(),
        };
        match &moving.classic {
            Ok(Some(classic)) if has_backends && !self.has_lasting_instance(classic) => {
                Some("the classic load balancer has no instance yet".to_owned())
            }
            _ => None,
        }
    }

    /// Returns the number of healthy targets of a target group, and of all.
    async fn count_healthy(
        &self,
        op: &Op,
        arn: TargetGroupArn,
    ) -> Result<(usize, usize), CloudError> {
        let client = &self.reconciler.scope.client;
        let targets = client.read(op, DescribeTargetHealth { arn }).await?;
        let healthy = targets.iter().filter(|target| &*target.state == "healthy");
        Ok((healthy.count(), targets.len()))
    }

    /// Decides about the next step.
    fn decide(
        &self,
        moving: &MovingService,
        lb_spec: &LbSpec,
        unready: Option<String>,
    ) -> Result<MoveStep, CloudError> {
        let classic = match &moving.classic {
            Ok(classic) => classic.as_ref(),
            Err(error) => return Err(error.clone()),
        };
        let service = &lb_spec.service;
        let sync_states = &self.reconciler.sync_states;
        let shown = match (status::hostname(&service.status), classic) {
            (Some(hostname), Some(classic)) if classic.has_dns_name(hostname) => Shown::Classic,
            (Some(hostname), _) if sync_states.has_dns_name(&service.uid, hostname) => {
                Shown::Network
            }
            _ => Shown::Neither,
        };
        Ok(plan::plan(&MoveFacts {
            is_forward: moving.is_forward,
            state: moving.request.state,
            has_classic: classic.is_some(),
            shown,
            unready,
            drain: moving.request.drain,
            now: self.clock.now(),
        }))
    }

    /// Takes a step. `network` has the status with the host name of the Network Load Balancer.
    async fn take_step(
        &self,
        op: &Op,
        moving: &MovingService,
        lb_spec: &LbSpec,
        step: MoveStep,
        network: Option<LbStatus>,
    ) -> LbOutcome {
        let service = &lb_spec.service;
        let owner = ServiceKey::of(service);
        let name = names::load_balancer(&service.uid);
        let classic = match &moving.classic {
            Ok(Some(classic)) => classic.status(),
            _ => None,
        };
        match step {
            MoveStep::Record => {
                let note = format!(
                    "a network load balancer will be created beside classic load balancer {name}"
                );
                recorded(op, None, MoveState::Started, NEXT_STEP_DELAY, &note)
            }
            MoveStep::Wait { publish, until_drained, reason } => {
                let status = if publish == Shown::Network {
                    network
                } else {
                    classic
                };
                let after = until_drained.unwrap_or_else(|| retry_delay::unready_targets(op));
                if until_drained.is_none() && retry_delay::has_become_slow(op, after) {
                    op.event(EventType::Warning, "LoadBalancerMoveWaiting", &reason);
                }
                LbOutcome { status, ..LbOutcome::pending(after, reason) }
            }
            MoveStep::Switch => {
                let drain = moving.request.drain;
                let note = format!(
                    "the network load balancer serves and its host name is published; classic load balancer {name} will \
                     be deleted in {} seconds",
                    drain.as_secs()
                );
                recorded(op, network, MoveState::Switched(self.clock.now()), drain, &note)
            }
            MoveStep::Return => {
                let drain = moving.request.drain;
                let note = format!(
                    "the host name of classic load balancer {name} is published again; the network load balancer will be \
                     deleted in {} seconds",
                    drain.as_secs()
                );
                recorded(op, classic, MoveState::Returned(self.clock.now()), drain, &note)
            }
            MoveStep::DeleteClassic => {
                let groups = self.classic_reading(service).groups;
                let deleted = self.delete_classic(op, &owner, &groups).await;
                finished(op, network, deleted, "the network load balancer serves alone")
            }
            MoveStep::DeleteNetwork => {
                let parsed = self.parse(service);
                let deleted = self.delete_network(op, &owner, &parsed, service).await;
                finished(op, classic, deleted, "the classic load balancer serves alone")
            }
            MoveStep::Finish { is_ready } => {
                // An earlier process, or a person, may have deleted nothing but the load balancer.
                let groups = self.classic_reading(service).groups;
                let removed = self.forget_classic(op, &owner, None, &groups).await;
                let status = network.filter(|_| is_ready);
                finished(op, status, removed, "there is no classic load balancer any more")
            }
        }
    }

    /// Plans what [`ensure_moving`](Self::ensure_moving) would do.
    pub(super) async fn plan_moving(
        &self,
        op: &Op,
        moving: MovingService,
        lb_spec: &LbSpec,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        if let Some(refused) = moving.refused {
            return Err(refused);
        }
        let mut changes = Vec::new();
        if let Some(classic) = moving.classic.as_ref().map_err(CloudError::clone)? {
            changes.extend(self.plan_classic(op, classic, lb_spec).await?);
        }
        let mut unready = if moving.is_forward {
            None
        } else if changes.iter().any(|change| !is_publication(change)) {
            Some("the classic load balancer does not follow the nodes yet".to_owned())
        } else {
            self.find_classic_unready(&moving, lb_spec, &Ok(Progress::Done))
        };
        if let (true, Some(desired)) = (moving.is_forward, &moving.network) {
            let input = reconcile_input(desired, lb_spec);
            let planned = self.reconciler.dry_run(op, &input).await?;
            unready = if planned.iter().any(|change| !is_publication(change)) {
                Some("the network load balancer is not as the Service requests it".to_owned())
            } else {
                self.find_unready(op, desired).await?
            };
            changes.extend(planned);
        }
        // Both would publish their own host name.
        changes.retain(|change| !is_publication(change));
        let step = self.decide(&moving, lb_spec, unready)?;
        changes.push(PlannedChange {
            operation: "move_load_balancer".into(),
            object: names::load_balancer(&lb_spec.service.uid),
            reason: step.describe().into(),
        });
        Ok(changes)
    }
}

fn is_publication(change: &PlannedChange) -> bool {
    &*change.operation == "publish_status"
}

/// Returns the outcome of a step that publishes a load balancer and records how far the move is. Reports
/// it in an event.
fn recorded(
    op: &Op,
    status: Option<LbStatus>,
    state: MoveState,
    after: Duration,
    note: &str,
) -> LbOutcome {
    op.event(EventType::Normal, "MovingLoadBalancer", note);
    let key = annotations::MOVE_STATE.definition.key();
    LbOutcome {
        status,
        annotations: [(key, Some(state.to_string().into()))].into(),
        ..LbOutcome::pending(after, note)
    }
}

/// Returns the outcome of the last step. Once it is done, the Service is treated like any other.
fn finished(
    op: &Op,
    status: Option<LbStatus>,
    deleted: Result<Progress, CloudError>,
    note: &str,
) -> LbOutcome {
    match deleted {
        Ok(Progress::Done) => {
            op.event(EventType::Normal, "LoadBalancerMoved", note);
            let key = annotations::MOVE_STATE.definition.key();
            LbOutcome {
                status,
                annotations: [(key, None)].into(),
                ..LbOutcome::pending(NEXT_STEP_DELAY, "the move is finished")
            }
        }
        result => LbOutcome { status, annotations: BTreeMap::new(), result },
    }
}

/// Combines what several parts are waiting for.
fn earliest<const N: usize>(parts: [Progress; N]) -> Progress {
    let deferred = parts.into_iter().filter_map(|progress| match progress {
        Progress::Pending { after, reason } => Some(Deferred { after, reason }),
        Progress::Done => None,
    });
    retry_delay::earliest(deferred.collect())
}

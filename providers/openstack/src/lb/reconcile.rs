//! Reconciles one Service's load balancer: observe, plan, apply.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use ccm_core::provider::{CloudError, ErrorKind, EventType, LbOutcome, Op, Progress, ReadMode};
use openstack_api::octavia::{LoadBalancer, ProvisioningStatus};

use super::{
    api::Api,
    apply::{self, ApplyResult},
    features::Features,
    floating_ip_sync::{self, ExternalNetworkCache, FloatingIpSync},
    observe, outcome,
    ownership::{ServiceOwnership, service_ownership},
    plan::{self, PlanInput, PlannedAction},
    reconcile_input::ReconcileInput,
    security_groups::SecurityGroupManager,
    settings::LoadBalancerSettings,
    sync_state::{LastApplied, LoadBalancerSyncState, SyncStateStore, object_gone},
};
use crate::{
    client::{Call, Client, ErrorClass, OpenStackError},
    lb::{listing::ListingCache, observed::ObservedLoadBalancer, status_poller::StatusPoller},
};

/// Maximum number of actions in one call; the next call continues with the rest.
const MAX_ACTIONS: usize = 500;

/// Reconciles and deletes load balancers.
pub(super) struct LoadBalancerReconciler {
    pub(super) client: Client,
    pub(super) settings: LoadBalancerSettings,
    pub(super) features: Features,
    pub(super) cluster: Arc<str>,
    pub(super) sync_states: SyncStateStore,
    pub(super) networks: ExternalNetworkCache,
    pub(super) security_groups: SecurityGroupManager,
    pub(super) listings: ListingCache,
    pub(super) status_poller: StatusPoller,
}

/// What is planned and applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanScope {
    /// Everything.
    All,
    /// Only the members of existing pools.
    Members,
}

/// Why a reconcile stopped before its end.
pub(super) enum ReconcileStop {
    /// It has to continue later.
    Pending(Progress),
    /// It failed.
    Failed(CloudError),
}

impl From<CloudError> for ReconcileStop {
    fn from(error: CloudError) -> Self {
        Self::Failed(error)
    }
}

impl From<OpenStackError> for ReconcileStop {
    fn from(error: OpenStackError) -> Self {
        match error.rate_limit_delay() {
            // Our own rate limit is exhausted: the cloud has reported no error.
            Some(after) => {
                Self::Pending(Progress::Pending { after, why: error.to_string().into() })
            }
            None => Self::Failed(error.into()),
        }
    }
}

impl LoadBalancerReconciler {
    pub(super) fn api<'a>(&'a self, op: &'a Op) -> Api<'a> {
        Api { client: &self.client, op }
    }

    /// Reconciles everything as far as possible in one call: Octavia takes one change at a time.
    pub(super) async fn ensure(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        read_mode: ReadMode,
    ) -> LbOutcome {
        let uid = &input.desired.owner.uid;
        let mut state = self.sync_states.take(uid);
        state.deleting_id = None;
        state.replaced_failed = false;
        let mut published_address = None;
        let result = match self
            .reconcile(op, input, read_mode, &mut state, &mut published_address)
            .await
        {
            Ok(()) => Ok(Progress::Done),
            Err(ReconcileStop::Pending(progress)) => Ok(progress),
            Err(ReconcileStop::Failed(error)) => Err(as_transient(error)),
        };
        let outcome = outcome::build(input, &state, published_address, result);
        self.update_sync_state(&mut state, &outcome.result);
        self.sync_states.put(uid, state);
        outcome
    }

    /// Syncs the load balancer, its floating IP and its security group. Sets `published_address` as
    /// soon as the load balancer serves, also if a later step fails.
    async fn reconcile(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        read_mode: ReadMode,
        state: &mut LoadBalancerSyncState,
        published_address: &mut Option<IpAddr>,
    ) -> Result<(), ReconcileStop> {
        let last_applied = state.last_applied.take();
        if read_mode == ReadMode::Cached
            && !state.unfinished
            && let Some(last) = &last_applied
            && last.is(input.desired, &input.backends)
        {
            state.last_applied = last_applied;
            *published_address = outcome::known_address(input, state);
            return Ok(());
        }
        self.observe(op, input, read_mode, state).await?;
        if state.observed.is_none() {
            self.create_load_balancer(op, input, state).await?;
        }
        self.wait_until_active(op, input, state).await?;
        self.apply_plan(op, input, state, PlanScope::All).await?;
        let address = self.sync_floating_ip(op, input, state).await;
        if last_applied.is_none() {
            report_skipped_floating_ip(op, input, state);
        }
        *published_address = Some(address?);
        self.sync_security_group(op, input, state).await?;
        state.last_applied = Some(LastApplied::new(input.desired, &input.backends));
        Ok(())
    }

    /// Returns how the Service relates to the observed load balancer.
    pub(super) fn service_ownership(
        &self,
        input: &ReconcileInput<'_>,
        load_balancer: &LoadBalancer,
    ) -> ServiceOwnership {
        service_ownership(
            &self.cluster,
            &input.desired.owner,
            observe::shows_address(input.service),
            load_balancer,
        )
    }

    pub(super) fn plan_input<'a>(
        &'a self,
        input: &'a ReconcileInput<'_>,
        observed: &'a ObservedLoadBalancer,
        ownership: &'a ServiceOwnership,
    ) -> PlanInput<'a> {
        PlanInput {
            observed,
            ownership,
            features: self.features,
            serial_api_calls: self.settings.serial_api_calls,
            name: &input.desired.name,
            subnet: input.subnet_of_new_members(observed),
            exact_subnet: input.desired.member_subnet.as_deref(),
        }
    }

    /// Plans the actions that are left to do, without those that the cloud has rejected.
    pub(super) fn plan_actions(
        &self,
        input: &ReconcileInput<'_>,
        observed: &ObservedLoadBalancer,
        state: &LoadBalancerSyncState,
        scope: PlanScope,
    ) -> Result<Vec<PlannedAction>, CloudError> {
        let ownership = self.service_ownership(input, &observed.load_balancer);
        let plan_input = self.plan_input(input, observed, &ownership);
        let (desired, members) = (input.desired, input.members());
        let mut actions = match scope {
            PlanScope::All => plan::plan(&plan_input, desired, &members, self.settings.max_shared)?,
            PlanScope::Members if input.invalid => {
                plan::plan_members_of_invalid(&plan_input, desired, &members)
            }
            PlanScope::Members => plan::plan_members_only(&plan_input, desired, &members),
        };
        actions.retain(|action| !state.has_rejected(action));
        Ok(actions)
    }

    /// Applies a plan action by action, and plans again after each.
    async fn apply_plan(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
        scope: PlanScope,
    ) -> Result<(), ReconcileStop> {
        for _ in 0..MAX_ACTIONS {
            self.read_children(op, input, state).await?;
            let observed = state.require_observed()?;
            let actions = self.plan_actions(input, observed, state, scope)?;
            let Some(action) = actions.first() else {
                return Ok(());
            };
            if self.refresh_before_change(op, state, action).await? {
                self.wait_until_active(op, input, state).await?;
                continue;
            }
            if matches!(action.kind.call(), Call::ListenerCreate | Call::ListenerUpdate) {
                self.check_certificates(self.api(op), input.desired).await?;
            }
            self.apply_action(op, state, action).await?;
            self.wait_until_active(op, input, state).await?;
        }
        Err(CloudError::transient(format!(
            "load balancer {} changes while it is reconciled",
            input.desired.name
        ))
        .into())
    }

    /// Applies one action. If the load balancer is busy, the result is pending.
    pub(super) async fn apply_action(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        action: &PlannedAction,
    ) -> Result<(), ReconcileStop> {
        let mut observed = state.take_observed()?;
        state.unfinished = true;
        match apply::apply(self.api(op), &mut observed, action).await {
            Ok(ApplyResult::Done) => {
                state.set_changed(observed, self.sync_states.rounds.now());
                Ok(())
            }
            Ok(ApplyResult::Replan) => Err(object_gone().into()),
            Err(error) if error.is_immutable() => {
                observed.load_balancer.provisioning_status = ProvisioningStatus::PendingUpdate;
                // Somebody else is changing it: what they change is not known.
                state.children_known = false;
                let why = format!("load balancer {} is busy", observed.load_balancer.id);
                state.observed = Some(observed);
                Err(self.pending(op, state, &why))
            }
            Err(error) if error.rate_limit_delay().is_some() => {
                state.observed = Some(observed);
                Err(error.into())
            }
            Err(error) => {
                if matches!(error.class(), ErrorClass::Invalid | ErrorClass::Unsupported)
                    && let Some(change) = action.method_change()
                {
                    let note = format!("pool {} keeps its algorithm: {error}", change.pool);
                    op.event(EventType::Warning, "LoadBalancerLbMethodUnknown", &note);
                    state.rejected_method = Some(change);
                    state.observed = Some(observed);
                    return Ok(());
                }
                Err(error.into())
            }
        }
    }

    /// Syncs the floating IP and returns the address of the Service.
    async fn sync_floating_ip(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<IpAddr, ReconcileStop> {
        let observed = state.take_observed()?;
        let ownership = self.service_ownership(input, &observed.load_balancer);
        let address = self
            .floating_ip_sync(op, input, &ownership)
            .sync(state, &observed)
            .await;
        state.observed = Some(observed);
        Ok(address?)
    }

    pub(super) fn floating_ip_sync<'a>(
        &'a self,
        op: &'a Op,
        input: &'a ReconcileInput<'_>,
        ownership: &'a ServiceOwnership,
    ) -> FloatingIpSync<'a> {
        FloatingIpSync {
            api: self.api(op),
            cluster: &self.cluster,
            networks: &self.networks,
            desired: input.desired,
            ownership,
        }
    }

    /// Syncs only the members, without reading the cloud where the sync state knows it.
    pub(super) async fn update_backends(&self, op: &Op, input: &ReconcileInput<'_>) -> LbOutcome {
        let uid = &input.desired.owner.uid;
        let mut state = self.sync_states.take(uid);
        let last_applied = state.last_applied.take();
        let result = match self.sync_backends(op, input, &mut state).await {
            Ok(()) => {
                state.last_applied = last_applied
                    .and_then(|last| last.with_backends(input.desired, &input.backends));
                Ok(Progress::Done)
            }
            Err(ReconcileStop::Pending(progress)) => {
                state.last_applied = last_applied;
                Ok(progress)
            }
            Err(ReconcileStop::Failed(error)) => Err(error),
        };
        self.update_sync_state(&mut state, &result);
        self.sync_states.put(uid, state);
        LbOutcome { status: None, annotations: BTreeMap::new(), result }
    }

    /// Updates the sync state after a call: after an error the observed state is not known any
    /// more.
    fn update_sync_state(
        &self,
        state: &mut LoadBalancerSyncState,
        result: &Result<Progress, CloudError>,
    ) {
        match result {
            Ok(Progress::Done) => {
                state.unfinished = false;
                state.stop_waiting();
            }
            Ok(Progress::Pending { .. }) => {}
            // A request that was rejected before it was sent has changed nothing.
            Err(error) if error.kind() == ErrorKind::NotLeader => {}
            Err(_) => {
                state.invalidate();
                state.mark_changed(self.sync_states.rounds.now());
            }
        }
    }

    async fn sync_backends(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        if state.observed.is_none() {
            self.observe(op, input, ReadMode::Fresh, state).await?;
        }
        if state.observed.is_none() {
            let message = format!("load balancer {} does not exist", input.desired.name);
            return Err(CloudError::new(ErrorKind::NotFound, message).into());
        }
        self.wait_until_active(op, input, state).await?;
        self.apply_plan(op, input, state, PlanScope::Members)
            .await?;
        self.admit_existing_ports(op, input, state).await
    }
}

/// Reports that there is no floating IP, because the load balancer has an IPv6 address.
fn report_skipped_floating_ip(op: &Op, input: &ReconcileInput<'_>, state: &LoadBalancerSyncState) {
    let Some(observed) = &state.observed else {
        return;
    };
    if !input.desired.internal
        && floating_ip_sync::vip_address(observed).is_ok_and(|address| address.is_ipv6())
    {
        let note = "the load balancer has an IPv6 address: there is no floating IP for it";
        op.event(EventType::Warning, "LoadBalancerFloatingIPSkipped", note);
    }
}

/// Makes "not found" transient: that one object is missing says nothing about the load balancer as
/// a whole.
pub(super) fn as_transient(error: CloudError) -> CloudError {
    match error.kind() {
        ErrorKind::NotFound => CloudError::transient(error.to_string()).with_source(error),
        _ => error,
    }
}

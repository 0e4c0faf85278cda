//! Reconciles one Service's load balancer: observe, plan, apply.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind, EventType, LbOutcome, Op, Progress, ReadMode};
use openstack_api::octavia::ProvisioningStatus;

use super::{
    api::Api,
    apply::{self, ApplyResult},
    features::Features,
    floating_ip_sync::{self, ExternalNetwork, FloatingIpSync},
    min_monitor_delay::MinMonitorDelay,
    observe, outcome,
    ownership::{ServiceOwnership, service_ownership},
    plan::{self, PlanInput, PlannedAction, PoolMethod},
    reconcile_input::ReconcileInput,
    security_groups::SecurityGroupManager,
    settings::LoadBalancerSettings,
    sync_state::{LastApplied, LoadBalancerSyncState, SyncStateStore, changed_meanwhile},
};
use crate::{
    api::octavia::LoadBalancer,
    client::{Call, Client, ErrorClass, OpenStackError},
    lb::{listing::ListingCache, observed::ObservedLoadBalancer, status_poller::StatusPoller},
};

/// Maximum number of actions in one call. The next call continues with the rest.
const MAX_ACTIONS: usize = 500;

/// Reconciles and deletes load balancers.
pub(super) struct LoadBalancerReconciler {
    pub(super) client: Client,
    pub(super) settings: LoadBalancerSettings,
    pub(super) features: Features,
    pub(super) min_monitor_delay: MinMonitorDelay,
    pub(super) cluster: Arc<str>,
    pub(super) sync_states: SyncStateStore,
    pub(super) external_network: ExternalNetwork,
    pub(super) security_groups: SecurityGroupManager,
    pub(super) listings: ListingCache,
    pub(super) status_poller: StatusPoller,
}

/// The part of a load balancer that is planned and applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanScope {
    /// The whole load balancer.
    All,
    /// Only the members of existing pools.
    Members,
}

/// The reason why a reconcile or deletion stopped early.
pub(super) enum ReconcileStop {
    /// It has to continue later, usually because Octavia is busy.
    Pending(Progress),
    /// It failed.
    Failed(CloudError),
}

impl ReconcileStop {
    /// Converts the result of the steps of a sync to the result of the sync.
    pub(super) fn into_progress(result: Result<(), Self>) -> Result<Progress, CloudError> {
        match result {
            Ok(()) => Ok(Progress::Done),
            Err(Self::Pending(progress)) => Ok(progress),
            Err(Self::Failed(error)) => Err(error),
        }
    }
}

impl From<CloudError> for ReconcileStop {
    fn from(error: CloudError) -> Self {
        Self::Failed(error)
    }
}

impl From<OpenStackError> for ReconcileStop {
    fn from(error: OpenStackError) -> Self {
        match error.rate_limit_delay() {
            // Our own rate limiter stopped the request, so the cloud has reported no error.
            Some(after) => {
                Self::Pending(Progress::Pending { after, reason: error.to_string().into() })
            }
            None => Self::Failed(error.into()),
        }
    }
}

/// Result of a reconcile.
struct ReconcileResult {
    /// Address to publish. It is set once the load balancer serves, even if a later step failed.
    published_address: Option<IpAddr>,
    result: Result<(), ReconcileStop>,
}

impl LoadBalancerReconciler {
    pub(super) fn api<'a>(&'a self, op: &'a Op) -> Api<'a> {
        Api { client: &self.client, op }
    }

    /// Reconciles as much as one call can. Octavia takes one change at a time, so the result is
    /// often pending, and the next call continues.
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
        let ReconcileResult { published_address, result } =
            self.reconcile(op, input, read_mode, &mut state).await;
        let result = ReconcileStop::into_progress(result).map_err(as_transient);
        let outcome = outcome::build(input, &state, published_address, result);
        self.update_sync_state(&mut state, &outcome.result);
        self.sync_states.put(uid, state);
        outcome
    }

    /// Syncs the load balancer, its floating IP and its security group, unless the Service is known
    /// to be in sync.
    async fn reconcile(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        read_mode: ReadMode,
        state: &mut LoadBalancerSyncState,
    ) -> ReconcileResult {
        if read_mode == ReadMode::Cached && state.is_in_sync(input.desired, &input.backends) {
            let published_address = outcome::known_address(input, state);
            return ReconcileResult { published_address, result: Ok(()) };
        }
        let address = match self
            .reconcile_until_served(op, input, read_mode, state)
            .await
        {
            Ok(address) => address,
            Err(stop) => return ReconcileResult { published_address: None, result: Err(stop) },
        };
        let mut result = self.sync_security_group(op, input, state).await;
        if result.is_ok() {
            result = self.complete_adoption(op, input, state).await;
        }
        if result.is_ok() {
            state.last_applied = Some(LastApplied::new(input.desired, &input.backends));
        }
        ReconcileResult { published_address: Some(address), result }
    }

    /// Syncs the load balancer and its floating IP, and returns the address that it serves.
    async fn reconcile_until_served(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        read_mode: ReadMode,
        state: &mut LoadBalancerSyncState,
    ) -> Result<IpAddr, ReconcileStop> {
        let was_applied = state
            .last_applied
            .take()
            .is_some_and(|last| last.is_for(input.desired));
        self.observe(op, input, read_mode, PlanScope::All, state)
            .await?;
        if let Err(error) = self.check_use(input, state, PlanScope::All) {
            // It is not the Service's, so the Service does not get its ID.
            state.invalidate();
            return Err(error.into());
        }
        if state.observed.is_none() {
            self.create_load_balancer(op, input, state).await?;
        }
        self.wait_until_active(op, input, state).await?;
        self.begin_adoption(op, input, state).await?;
        self.apply_plan(op, input, state, PlanScope::All).await?;
        let address = self.sync_floating_ip(op, input, state).await;
        // Reported until a sync of this desired state is complete, and not by later ones.
        if !was_applied {
            report_skipped_floating_ip(op, input, state);
            report_missing_family(op, input, state);
        }
        address
    }

    /// Determines the relation of the Service to the observed load balancer.
    pub(super) fn service_ownership(
        &self,
        input: &ReconcileInput<'_>,
        load_balancer: &LoadBalancer,
    ) -> ServiceOwnership {
        let owner = &input.desired.owner;
        let shows_address = observe::shows_address(input.service);
        let ownership = service_ownership(&self.cluster, owner, shows_address, load_balancer);
        if input.is_adopting(load_balancer) {
            return ownership.adopting(load_balancer);
        }
        ownership
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

    /// Plans the remaining actions, without those that the cloud has rejected before.
    pub(super) fn plan_actions(
        &self,
        input: &ReconcileInput<'_>,
        state: &LoadBalancerSyncState,
        scope: PlanScope,
    ) -> Result<Vec<PlannedAction>, CloudError> {
        self.check_use(input, state, scope)?;
        let observed = state.require_observed()?;
        let ownership = self.service_ownership(input, &observed.load_balancer);
        let plan_input = self.plan_input(input, observed, &ownership);
        let (desired, members) = (input.desired, input.members());
        let mut actions = match scope {
            PlanScope::All => {
                let max_shared = self.settings.max_shared;
                plan::plan_load_balancer(&plan_input, desired, &members, max_shared)?
            }
            PlanScope::Members if input.invalid => {
                plan::plan_members_of_invalid(&plan_input, desired, &members)
            }
            PlanScope::Members => plan::plan_members_only(&plan_input, desired, &members),
        };
        actions.retain(|action| !state.has_rejected(action));
        Ok(actions)
    }

    /// Applies the first action of a plan and plans again, until nothing is left to do.
    async fn apply_plan(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
        scope: PlanScope,
    ) -> Result<(), ReconcileStop> {
        for _ in 0..MAX_ACTIONS {
            self.read_children(op, input, state).await?;
            let actions = self.plan_actions(input, state, scope)?;
            let Some(action) = actions.first() else {
                return Ok(());
            };
            // A plan from a shared listing may be out of date. Read the load balancer and plan again.
            let was_refreshed = self.refresh_before_change(op, state, action).await?;
            if was_refreshed {
                self.wait_until_active(op, input, state).await?;
                continue;
            }
            if matches!(action.kind.call(), Call::ListenerCreate | Call::ListenerUpdate) {
                self.check_certificates(self.api(op), input.desired).await?;
            }
            if matches!(action.kind.call(), Call::MembersUpdate | Call::MemberDelete) {
                self.check_member_subnet(op, input, state).await?;
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

    /// Checks that the subnet exists in which members have to be created again. Before that they are
    /// deleted, because Octavia knows a member by its address.
    async fn check_member_subnet(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &LoadBalancerSyncState,
    ) -> Result<(), CloudError> {
        let Some(subnet) = &input.desired.member_subnet else {
            return Ok(());
        };
        let observed = state.require_observed()?;
        let ownership = self.service_ownership(input, &observed.load_balancer);
        let plan_input = self.plan_input(input, observed, &ownership);
        if !plan::has_members_in_wrong_subnet(&plan_input)
            || self.api(op).subnet(subnet).await?.is_some()
        {
            return Ok(());
        }
        let message = format!(
            "subnet {subnet} of members does not exist: correct member-subnet-id; members stay as they are"
        );
        Err(CloudError::invalid_input(message))
    }

    /// Applies one action and updates the observed state. The result is pending if the load
    /// balancer is busy.
    pub(super) async fn apply_action(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        action: &PlannedAction,
    ) -> Result<(), ReconcileStop> {
        let Some(observed) = &mut state.observed else {
            return Err(changed_meanwhile().into());
        };
        state.unfinished = true;
        match apply::apply(self.api(op), observed, action).await {
            Ok(ApplyResult::Done) => {
                state.record_own_change(self.sync_states.rounds.now());
                Ok(())
            }
            Ok(ApplyResult::Replan) => {
                state.observed = None;
                Err(changed_meanwhile().into())
            }
            Err(error) if error.is_immutable() => {
                observed.load_balancer.provisioning_status = ProvisioningStatus::PendingUpdate;
                let reason = format!("load balancer {} is busy", observed.load_balancer.id);
                // Somebody else is changing it, so its children have to be read again.
                state.children_known = false;
                Err(self.stop_as_pending(op, state, &reason))
            }
            Err(error) if error.rate_limit_delay().is_some() => Err(error.into()),
            Err(error) => {
                if let Some(rejected) = rejected_method(action, &error) {
                    let note = format!("pool {} keeps its algorithm: {error}", rejected.pool);
                    op.event(EventType::Warning, "LoadBalancerLbMethodUnknown", &note);
                    state.rejected_method = Some(rejected);
                    return Ok(());
                }
                state.observed = None;
                Err(self.rejection(op, error))
            }
        }
    }

    /// Converts the error of a change. If Octavia named its minimum delay of health checks, the
    /// sync starts again after a second, with that delay.
    pub(super) fn rejection(&self, op: &Op, error: OpenStackError) -> ReconcileStop {
        let Some(delay) = self.min_monitor_delay.learn(&error) else {
            return error.into();
        };
        let note =
            format!("health checks of UDP ports are {delay} s apart, which is Octavia's minimum");
        op.event(EventType::Warning, "LoadBalancerMonitorDelayRaised", &note);
        CloudError::transient(error.to_string())
            .with_retry_after(Duration::from_secs(1))
            .into()
    }

    /// Syncs the floating IP and returns the address of the Service.
    async fn sync_floating_ip(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<IpAddr, ReconcileStop> {
        let Some(observed) = &state.observed else {
            return Err(changed_meanwhile().into());
        };
        let ownership = self.service_ownership(input, &observed.load_balancer);
        let is_listed = state.from_listing;
        let address = self
            .floating_ip_sync(op, input, observed, &ownership)
            .sync(&mut state.floating_ip, is_listed)
            .await?;
        Ok(address)
    }

    pub(super) fn floating_ip_sync<'a>(
        &'a self,
        op: &'a Op,
        input: &'a ReconcileInput<'_>,
        observed: &'a ObservedLoadBalancer,
        ownership: &'a ServiceOwnership,
    ) -> FloatingIpSync<'a> {
        FloatingIpSync {
            api: self.api(op),
            cluster: &self.cluster,
            external_network: &self.external_network,
            desired: input.desired,
            observed,
            ownership,
        }
    }

    /// Syncs only the members. Reads from the cloud only what the sync state lacks.
    pub(super) async fn update_backends(&self, op: &Op, input: &ReconcileInput<'_>) -> LbOutcome {
        let uid = &input.desired.owner.uid;
        let mut state = self.sync_states.take(uid);
        let last_applied = state.last_applied.take();
        let result = self.sync_backends(op, input, &mut state).await;
        state.last_applied = match &result {
            Ok(()) => {
                last_applied.and_then(|last| last.with_backends(input.desired, &input.backends))
            }
            Err(ReconcileStop::Pending(_)) => last_applied,
            Err(ReconcileStop::Failed(_)) => None,
        };
        let result = ReconcileStop::into_progress(result);
        self.update_sync_state(&mut state, &result);
        self.sync_states.put(uid, state);
        LbOutcome { status: None, annotations: BTreeMap::new(), result }
    }

    /// Updates the sync state after a call. An error discards the observed state, because a request
    /// that failed may have changed something.
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
            // The write gate stopped the request, so nothing has changed.
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
            self.observe(op, input, ReadMode::Fresh, PlanScope::Members, state)
                .await?;
        }
        if state.observed.is_none() {
            let message = format!("load balancer {} does not exist", input.desired.name);
            return Err(CloudError::new(ErrorKind::NotFound, message).into());
        }
        self.check_use(input, state, PlanScope::Members)?;
        self.wait_until_active(op, input, state).await?;
        self.apply_plan(op, input, state, PlanScope::Members)
            .await?;
        self.admit_existing_ports(op, input, state).await
    }
}

/// Returns the algorithm that an action was to set, if the error says that the cloud does not
/// support it.
fn rejected_method(action: &PlannedAction, error: &OpenStackError) -> Option<PoolMethod> {
    if !matches!(error.class(), ErrorClass::Invalid | ErrorClass::Unsupported) {
        return None;
    }
    action.method_change()
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

/// Reports that the load balancer has no address of the Service's second family.
fn report_missing_family(op: &Op, input: &ReconcileInput<'_>, state: &LoadBalancerSyncState) {
    let Some(observed) = &state.observed else {
        return;
    };
    let Some(second) = &input.desired.create_settings.second_vip else {
        return;
    };
    if outcome::second_address(input, observed).is_none() {
        let family = format!("{:?}", second.family).replace('V', "IPv");
        let note = format!(
            "the load balancer has no {family} address: Octavia adds one only when a load balancer is created, and only \
             if its network has one {family} subnet or the annotation additional-subnet-id names one"
        );
        op.event(EventType::Warning, "LoadBalancerSingleFamily", &note);
    }
}

/// Makes "not found" transient. One missing object does not prove that the whole load balancer is
/// missing.
pub(super) fn as_transient(error: CloudError) -> CloudError {
    match error.kind() {
        ErrorKind::NotFound => CloudError::transient(error.to_string()).with_source(error),
        _ => error,
    }
}

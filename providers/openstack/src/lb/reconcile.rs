// length: the steps of one reconcile, which share its state
//! Reconciles one Service's load balancer: observe, plan, apply.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use ccm_core::{
    k8s::ServiceView,
    provider::{
        Backends, CloudError, Digest, ErrorKind, EventType, LbOutcome, Op, Progress, ReadMode,
    },
};
use openstack_api::octavia::ProvisioningStatus;
use tokio::time::Instant;

use super::{
    annotations,
    api::Api,
    apply::{self, ApplyResult},
    body,
    features::Features,
    floating_ip::{self, ExternalNetworkCache, FloatingIpSync},
    model::{DesiredLoadBalancer, SecurityGroupSpec},
    observe::{self, LoadBalancerQuery},
    ownership::{ServiceOwnership, service_ownership},
    plan::{self, ActionKind, PlanInput, PlannedAction},
    security_groups::{SecurityGroupManager, SecurityGroupTask, listed::ListedSecurityGroup},
    settings::LoadBalancerSettings,
    status,
    sync_state::{AttachedFloatingIp, LoadBalancerSyncState, SyncStateStore},
};
use crate::{
    client::{Call, Client, ErrorClass, OpenStackError},
    lb::{
        desired_members::{self, DesiredMember, NodeBackend},
        listing::ListingCache,
        observed::ObservedLoadBalancer,
        status_poller::StatusPoller,
    },
};

/// How long an interrupted sync may resume with the observed state that it had, without reading
/// everything again.
const RESUME_WINDOW: Duration = Duration::from_secs(600);
/// How long an observation that was interrupted before the children were read may resume with the
/// load balancer as it was read. The children are read later and so are newer.
const RESUMED_OBSERVATION_AGE: Duration = Duration::from_secs(120);
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

/// Input of one reconcile.
pub(super) struct ReconcileInput<'a> {
    pub(super) desired: &'a DesiredLoadBalancer,
    pub(super) service: &'a ServiceView,
    pub(super) backends: Vec<NodeBackend>,
    /// True when the Service is invalid; then only the addresses of members are reliable.
    pub(super) invalid: bool,
}

impl<'a> ReconcileInput<'a> {
    pub(super) fn new(
        desired: &'a DesiredLoadBalancer,
        service: &'a ServiceView,
        backends: &Backends,
    ) -> Self {
        // `interpret` requests nodes, never endpoints.
        Self {
            desired,
            service,
            backends: desired_members::backends(backends.nodes(), desired.family),
            invalid: false,
        }
    }

    fn members(&self) -> Vec<Vec<DesiredMember>> {
        self.desired
            .listeners
            .iter()
            .map(|listener| desired_members::members(&listener.pool, &self.backends))
            .collect()
    }
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
        let outcome = build_outcome(input, &state, published_address, result);
        self.update_sync_state(&mut state, &outcome.result);
        self.sync_states.put(uid, state);
        outcome
    }

    async fn reconcile(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        read_mode: ReadMode,
        state: &mut LoadBalancerSyncState,
        published_address: &mut Option<IpAddr>,
    ) -> Result<(), ReconcileStop> {
        let applied_digest = |(wanted, backends): &(Arc<DesiredLoadBalancer>, Vec<NodeBackend>)| {
            **wanted == *input.desired && *backends == input.backends
        };
        if read_mode == ReadMode::Cached
            && !state.unfinished
            && state.last_applied.as_ref().is_some_and(applied_digest)
        {
            *published_address = known_address(input, state);
            return Ok(());
        }
        let first = state.last_applied.take().is_none();
        self.observe(op, input, read_mode, state).await?;
        if state.observed.is_none() {
            self.create_load_balancer(op, input, state).await?;
        }
        self.wait_until_active(op, input, state).await?;
        self.apply_plan(op, input, state, Self::plan_all).await?;
        *published_address = Some(self.sync_floating_ip(op, input, state, first).await?);
        self.sync_security_group(op, input, state).await?;
        state.last_applied = Some((Arc::new(input.desired.clone()), input.backends.clone()));
        Ok(())
    }

    /// Reads the observed state, as deeply as `read_mode` requires.
    pub(super) async fn observe(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        read_mode: ReadMode,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let fresh = state.read_at.is_some_and(|at| at.elapsed() < RESUME_WINDOW);
        if state.observed.is_some() && (read_mode == ReadMode::Cached || state.unfinished && fresh)
        {
            return Ok(());
        }
        // The last observation was interrupted by the rate limit: the children are still to be
        // read.
        let lately = state
            .read_at
            .is_some_and(|at| at.elapsed() < RESUMED_OBSERVATION_AGE);
        if state.observed.is_some() && !state.children_known && lately {
            return Ok(());
        }
        let api = self.api(op);
        state.applied_security_group = None;
        state.floating_ip = AttachedFloatingIp::Unknown;
        if state.observed.is_some()
            && state.children_known
            && observe::refresh(api, state).await?.is_some()
        {
            return Ok(());
        }
        state.invalidate();
        let query = LoadBalancerQuery::of(&self.cluster, &input.desired.owner, input.service);
        // A Service that was never served is in no listing.
        if query.served
            && let Some(swept) = self
                .listings
                .find(api, &self.sync_states.rounds, &query, state.listings_stale_until)
                .await?
        {
            state.observed = Some(swept.observed);
            state.floating_ip = swept.floating_ips;
            state.read_at = Some(swept.read_at);
            state.from_listing = true;
            state.listed_security_group = swept.listed;
            return Ok(());
        }
        state.observed = observe::find_load_balancer(api, &query)
            .await?
            .map(ObservedLoadBalancer::new);
        state.read_at = Some(Instant::now());
        state.as_of = self.sync_states.rounds.now();
        Ok(())
    }

    /// Reads the children of the load balancer unless they are known.
    pub(super) async fn read_children(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let Some(seen) = state.observed.as_mut().filter(|_| !state.children_known) else {
            return Ok(());
        };
        let ownership = self.service_ownership(input, seen);
        if state.from_listing {
            observe::read_members(self.api(op), seen, &ownership).await?;
        } else {
            observe::read_children(self.api(op), seen, &ownership).await?;
        }
        state.children_known = true;
        Ok(())
    }

    /// Reads a load balancer again that is known only from a listing, because it is to be changed.
    /// Returns whether it did.
    async fn refresh_before_change(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        step: &PlannedAction,
    ) -> Result<bool, ReconcileStop> {
        let Some(seen) = &mut state.observed else {
            return Err(object_gone().into());
        };
        if !state.from_listing || matches!(step.kind, ActionKind::SetMembers(..)) {
            return Ok(false);
        }
        let Some(balancer) = self.api(op).load_balancer(&seen.load_balancer.id).await? else {
            return Err(object_gone().into());
        };
        seen.load_balancer = balancer;
        state.from_listing = false;
        state.children_known = false;
        state.floating_ip = AttachedFloatingIp::Unknown;
        state.read_at = Some(Instant::now());
        state.as_of = self.sync_states.rounds.now();
        Ok(true)
    }

    /// Creates the load balancer. It has its name and its tag from the start, so that it is found
    /// again whatever happens.
    async fn create_load_balancer(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let api = self.api(op);
        let desired = input.desired;
        if input.backends.is_empty()
            && desired.create_settings.port.is_none()
            && !has_requested_location(desired)
        {
            let message = "no node has an address, and neither subnet nor network of the load balancer is configured";
            return Err(CloudError::invalid_input(message).into());
        }
        self.check_certificates(api, desired).await?;
        let subnet = if has_requested_location(desired) {
            None
        } else {
            Some(self.subnet_of_nodes(api, input).await?)
        };
        let body = body::load_balancer(
            desired,
            &input.members(),
            subnet.as_deref(),
            self.features,
            self.settings.serial_api_calls,
        );
        state.unfinished = true;
        let tree = api.create_load_balancer(&body, "there is none").await?;
        let populated = !body.listeners.is_empty() && tree.listeners.len() == body.listeners.len();
        state.observed = Some(ObservedLoadBalancer::from_tree(tree));
        // If the driver has not created all children yet, they are read later.
        state.children_known = populated || body.listeners.is_empty();
        state.waiting_since = None;
        state.mark_changed(self.sync_states.rounds.now());
        // A port that Octavia creates with the load balancer has no floating IP.
        if desired.create_settings.port.is_none() {
            state.floating_ip = AttachedFloatingIp::None;
        }
        Ok(())
    }

    /// Checks that the certificate exists before a listener refers to it.
    async fn check_certificates(
        &self,
        api: Api<'_>,
        desired: &DesiredLoadBalancer,
    ) -> Result<(), ReconcileStop> {
        let Some(reference) = desired
            .listeners
            .iter()
            .find_map(|listener| listener.tls_container.as_deref())
        else {
            return Ok(());
        };
        if !self.settings.barbican || api.has_certificate(reference).await? {
            return Ok(());
        }
        Err(CloudError::invalid_input(format!("certificate {reference} is not there")).into())
    }

    /// Finds the subnet of the first node: of the server port with the address that the load
    /// balancer sends to.
    async fn subnet_of_nodes(
        &self,
        api: Api<'_>,
        input: &ReconcileInput<'_>,
    ) -> Result<String, ReconcileStop> {
        let first = input
            .backends
            .iter()
            .find_map(|backend| Some((backend.server.as_deref()?, backend.address)));
        let Some((server, address)) = first else {
            let message =
                "no node says which server it is, and neither subnet nor network is configured";
            return Err(CloudError::transient(message).into());
        };
        let ports = api.ports_of(&[server]).await?;
        let mut fixed = ports.iter().flat_map(|port| &port.fixed_ips);
        let found = fixed
            .find(|fixed| fixed.ip_address == address)
            .map(|fixed| fixed.subnet_id.clone());
        found.ok_or_else(|| {
            CloudError::transient(format!("no port of server {server} has the address {address}"))
                .into()
        })
    }

    /// Returns how the Service relates to the observed load balancer.
    pub(super) fn service_ownership(
        &self,
        input: &ReconcileInput<'_>,
        observed: &ObservedLoadBalancer,
    ) -> ServiceOwnership {
        service_ownership(
            &self.cluster,
            &input.desired.owner,
            observe::shows_address(input.service),
            &observed.load_balancer,
        )
    }

    pub(super) fn plan_input<'a>(
        &'a self,
        input: &'a ReconcileInput<'_>,
        observed: &'a ObservedLoadBalancer,
        ownership: &'a ServiceOwnership,
    ) -> PlanInput<'a> {
        let desired = input.desired;
        let exact = desired.member_subnet.as_deref();
        let named = exact.or(desired.vip_subnet.as_deref());
        PlanInput {
            observed,
            ownership,
            features: self.features,
            serial_api_calls: self.settings.serial_api_calls,
            name: &desired.name,
            subnet: named.or(observed.load_balancer.vip_subnet_id.as_deref()),
            exact_subnet: exact,
        }
    }

    pub(super) fn plan_all(
        &self,
        input: &ReconcileInput<'_>,
        side: &PlanInput<'_>,
    ) -> Result<Vec<PlannedAction>, CloudError> {
        plan::plan(side, input.desired, &input.members(), self.settings.max_shared)
    }

    /// Applies a plan action by action, and plans again after each.
    async fn apply_plan(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
        plan: impl Fn(
            &Self,
            &ReconcileInput<'_>,
            &PlanInput<'_>,
        ) -> Result<Vec<PlannedAction>, CloudError>
        + Send
        + Sync,
    ) -> Result<(), ReconcileStop> {
        for _ in 0..MAX_ACTIONS {
            self.read_children(op, input, state).await?;
            let Some(seen) = &state.observed else {
                return Err(object_gone().into());
            };
            let ownership = self.service_ownership(input, seen);
            let mut steps = plan(self, input, &self.plan_input(input, seen, &ownership))?;
            steps.retain(|step| !is_rejected_method(state, step));
            let Some(step) = steps.first() else {
                return Ok(());
            };
            if self.refresh_before_change(op, state, step).await? {
                self.wait_until_active(op, input, state).await?;
                continue;
            }
            if matches!(step.kind.call(), Call::ListenerCreate | Call::ListenerUpdate) {
                self.check_certificates(self.api(op), input.desired).await?;
            }
            self.apply_action(op, state, step).await?;
            self.wait_until_active(op, input, state).await?;
        }
        Err(CloudError::transient(format!(
            "load balancer {} changes while it is brought in line",
            input.desired.name
        ))
        .into())
    }

    /// Applies one action. If the load balancer is busy, the result is pending.
    pub(super) async fn apply_action(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        step: &PlannedAction,
    ) -> Result<(), ReconcileStop> {
        let Some(mut seen) = state.observed.take() else {
            return Err(object_gone().into());
        };
        state.unfinished = true;
        match apply::apply(self.api(op), &mut seen, step).await {
            Ok(ApplyResult::Done) => {
                state.observed = Some(seen);
                state.waiting_since = None;
                state.mark_changed(self.sync_states.rounds.now());
                Ok(())
            }
            Ok(ApplyResult::Replan) => Err(object_gone().into()),
            Err(error) if error.is_immutable() => {
                seen.load_balancer.provisioning_status = ProvisioningStatus::PendingUpdate;
                // Somebody else is changing it: what they change is not known.
                state.children_known = false;
                let why = format!("load balancer {} is busy", seen.load_balancer.id);
                state.observed = Some(seen);
                Err(self.pending(op, state, &why))
            }
            Err(error) if error.rate_limit_delay().is_some() => {
                state.observed = Some(seen);
                Err(error.into())
            }
            Err(error) => {
                let refused =
                    matches!(error.class(), ErrorClass::Invalid | ErrorClass::Unsupported);
                if let (Some((pool, method)), true) = (apply::is_method_change(step), refused) {
                    let note = format!("pool {pool} keeps its algorithm: {error}");
                    op.event(EventType::Warning, "LoadBalancerLbMethodUnknown", &note);
                    state.rejected_method = Some((pool.into(), method.into()));
                    state.observed = Some(seen);
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
        first: bool,
    ) -> Result<IpAddr, ReconcileStop> {
        let Some(seen) = state.observed.take() else {
            return Err(object_gone().into());
        };
        let ownership = self.service_ownership(input, &seen);
        let address = self
            .floating_ip_sync(op, input, &ownership)
            .sync(state, &seen)
            .await;
        let vip = floating_ip::vip_address(&seen);
        state.observed = Some(seen);
        if first && !input.desired.internal && vip.is_ok_and(|vip| vip.is_ipv6()) {
            let note = "the load balancer has an IPv6 address: there is no floating IP for it";
            op.event(EventType::Warning, "LoadBalancerFloatingIPSkipped", note);
        }
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

    pub(super) fn security_group_spec<'a>(
        group: &'a SecurityGroupSpec,
        input: &'a ReconcileInput<'_>,
        observed: &'a ObservedLoadBalancer,
    ) -> Result<SecurityGroupTask<'a>, CloudError> {
        let named = input
            .desired
            .member_subnet
            .as_deref()
            .or(input.desired.vip_subnet.as_deref());
        let subnet = named.or(observed.load_balancer.vip_subnet_id.as_deref());
        let missing = || {
            CloudError::invalid_input(
                "the subnet of members is not known: name it by member-subnet-id",
            )
        };
        Ok(SecurityGroupTask {
            group,
            subnet: subnet.ok_or_else(missing)?,
            backends: &input.backends,
        })
    }

    /// Syncs the security group, or removes one that is left over when none is desired any more.
    async fn sync_security_group(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let api = self.api(op);
        let owner = &input.desired.owner;
        let Some(seen) = &state.observed else {
            return Err(object_gone().into());
        };
        match &input.desired.security_group {
            Some(group) => {
                let task = Self::security_group_spec(group, input, seen)?;
                let surplus = self
                    .ensure_rules(
                        op,
                        task,
                        &mut state.applied_security_group,
                        &mut state.listed_security_group,
                    )
                    .await?;
                SecurityGroupManager::revoke(api, &surplus).await?;
                state.applied_security_group = Some(task.digest());
                Ok(())
            }
            None => {
                let name = super::names::security_group(&owner.uid, &owner.namespace, &owner.name);
                match self.security_groups.remove(api, &name, |_| true).await? {
                    Progress::Done => Ok(()),
                    pending @ Progress::Pending { .. } => Err(ReconcileStop::Pending(pending)),
                }
            }
        }
    }

    /// Admits the load balancer to its nodes at the ports that it serves now. What else the group
    /// admits stays: a change that was rejected may still need it.
    async fn admit_existing_ports(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let Some(seen) = &state.observed else {
            return Err(object_gone().into());
        };
        let ownership = self.service_ownership(input, seen);
        let Some(group) = self
            .plan_input(input, seen, &ownership)
            .current_security_group(input.desired)
        else {
            return Ok(());
        };
        let task = Self::security_group_spec(&group, input, seen)?;
        self.ensure_rules(
            op,
            task,
            &mut state.applied_security_group,
            &mut state.listed_security_group,
        )
        .await?;
        Ok(())
    }

    /// Makes the group admit what the task says, unless it is known to. Returns the IDs of surplus
    /// rules. `applied_digest`: digest of the task that was last applied completely.
    async fn ensure_rules(
        &self,
        op: &Op,
        task: SecurityGroupTask<'_>,
        applied_digest: &mut Option<Digest>,
        listed: &mut Option<ListedSecurityGroup>,
    ) -> Result<Vec<String>, CloudError> {
        let digest = task.digest();
        if *applied_digest == Some(digest) {
            return Ok(Vec::new());
        }
        *applied_digest = None;
        let surplus = if self.listing_shows_in_sync(op, task, listed).await? {
            Vec::new()
        } else {
            self.security_groups
                .ensure_rules(self.api(op), task)
                .await?
        };
        *applied_digest = surplus.is_empty().then_some(digest);
        Ok(surplus)
    }

    /// Returns whether the shared listing shows the security group in the desired state. The
    /// listing is used once.
    pub(super) async fn listing_shows_in_sync(
        &self,
        op: &Op,
        task: SecurityGroupTask<'_>,
        listed: &mut Option<ListedSecurityGroup>,
    ) -> Result<bool, CloudError> {
        match listed
            .take()
            .filter(|listed| listed.started.elapsed() < RESUMED_OBSERVATION_AGE)
        {
            Some(listed) => {
                self.security_groups
                    .listing_shows_in_sync(self.api(op), task, &listed)
                    .await
            }
            None => Ok(false),
        }
    }

    /// Syncs only the members, without reading the cloud where the sync state knows it.
    pub(super) async fn update_backends(&self, op: &Op, input: &ReconcileInput<'_>) -> LbOutcome {
        let uid = &input.desired.owner.uid;
        let mut state = self.sync_states.take(uid);
        let before = state.last_applied.take();
        let result = match self.sync_backends(op, input, &mut state).await {
            Ok(()) => {
                let same = |(wanted, _): &(Arc<DesiredLoadBalancer>, Vec<NodeBackend>)| {
                    **wanted == *input.desired
                };
                state.last_applied = before
                    .filter(same)
                    .map(|(wanted, _)| (wanted, input.backends.clone()));
                Ok(Progress::Done)
            }
            Err(ReconcileStop::Pending(progress)) => {
                state.last_applied = before;
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
            Ok(Progress::Done) => (state.unfinished, state.waiting_since) = (false, None),
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
            let message = format!("load balancer {} is not there", input.desired.name);
            return Err(CloudError::new(ErrorKind::NotFound, message).into());
        }
        self.wait_until_active(op, input, state).await?;
        let members = |_: &Self, order: &ReconcileInput<'_>, side: &PlanInput<'_>| {
            let plan = if order.invalid {
                plan::following
            } else {
                plan::plan_members_only
            };
            Ok(plan(side, order.desired, &order.members()))
        };
        self.apply_plan(op, input, state, members).await?;
        self.admit_existing_ports(op, input, state).await
    }
}

/// Returns whether an action only sets an algorithm that the cloud has rejected.
pub(super) fn is_rejected_method(state: &LoadBalancerSyncState, step: &PlannedAction) -> bool {
    let refused = state
        .rejected_method
        .as_ref()
        .map(|(pool, method)| (&**pool, &**method));
    refused.is_some() && apply::is_method_change(step) == refused
}

fn known_address(input: &ReconcileInput<'_>, state: &LoadBalancerSyncState) -> Option<IpAddr> {
    let floating = state.floating_ip.get().filter(|_| !input.desired.internal);
    let floating = floating.and_then(|floating| floating.floating_ip_address);
    floating.or_else(|| floating_ip::vip_address(state.observed.as_ref()?).ok())
}

/// Returns whether the port, subnet or network of the VIP is set.
fn has_requested_location(desired: &DesiredLoadBalancer) -> bool {
    let create_settings = &desired.create_settings;
    create_settings.port.is_some()
        || create_settings.subnet.is_some()
        || create_settings.network.is_some()
}

/// The object to be changed does not exist any more: retried after one second.
pub(super) fn object_gone() -> CloudError {
    CloudError::transient("the load balancer changed meanwhile")
        .with_retry_after(Duration::from_secs(1))
}

/// Makes "not found" transient: that one object is missing says nothing about the load balancer as
/// a whole.
pub(super) fn as_transient(error: CloudError) -> CloudError {
    match error.kind() {
        ErrorKind::NotFound => CloudError::transient(error.to_string()).with_source(error),
        _ => error,
    }
}

/// Builds the outcome, with the ID and the address as soon as the load balancer serves. Until then
/// it is found by its name: an ID would be taken for one that a user wrote, and then the load
/// balancer has to exist.
fn build_outcome(
    input: &ReconcileInput<'_>,
    state: &LoadBalancerSyncState,
    published_address: Option<IpAddr>,
    result: Result<Progress, CloudError>,
) -> LbOutcome {
    let mut outcome = LbOutcome { status: None, annotations: BTreeMap::new(), result };
    let mut annotate = |row: &annotations::Annotation, value: String| {
        let key = row.key();
        if input
            .service
            .annotations
            .get(&*key)
            .is_none_or(|text| **text != *value)
        {
            outcome.annotations.insert(key, Some(value.into()));
        }
    };
    let serves = published_address.is_some() || observe::was_served(input.service);
    let made = |observed: &&ObservedLoadBalancer| {
        observed.load_balancer.provisioning_status != ProvisioningStatus::PendingCreate
    };
    if let Some(seen) = state.observed.as_ref().filter(|seen| serves && made(seen)) {
        annotate(&annotations::LOAD_BALANCER_ID, seen.load_balancer.id.clone());
    }
    if let Some(address) = published_address {
        annotate(&annotations::LOAD_BALANCER_ADDRESS, address.to_string());
        outcome.status = Some(status::of(address, &input.desired.status_format));
    }
    let id = annotations::LOAD_BALANCER_ID.key();
    if state.replaced_failed && input.service.annotations.contains_key(&*id) {
        outcome.annotations.insert(id, None);
    }
    outcome
}

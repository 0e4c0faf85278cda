// length: the steps of one reconcile, which share its state
//! Reconciles one Service's load balancer: observe, plan, apply.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use ccm_core::{
    k8s::ServiceView,
    provider::{Backends, CloudError, Digest, ErrorKind, EventType, LbOutcome, Op, Progress, ReadMode},
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
    members::{self, DesiredMember, NodeBackend},
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
    lb::{listing::ListingCache, observed::ObservedLoadBalancer, status_poller::StatusPoller},
};

/// How long an interrupted sync may resume with the observed state that it had, without reading everything again.
const RESUME_WINDOW: Duration = Duration::from_secs(600);
/// How long an observation that was interrupted before the children were read may resume with the load balancer as it
/// was read. The children are read later and so are newer.
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
    pub(super) fn new(desired: &'a DesiredLoadBalancer, service: &'a ServiceView, backends: &Backends) -> Self {
        // `interpret` requests nodes, never endpoints.
        Self { desired, service, backends: members::backends(backends.nodes(), desired.family), invalid: false }
    }

    fn members(&self) -> Vec<Vec<DesiredMember>> {
        self.desired.listeners.iter().map(|listener| members::members(&listener.pool, &self.backends)).collect()
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
            Some(after) => Self::Pending(Progress::Pending { after, why: error.to_string().into() }),
            None => Self::Failed(error.into()),
        }
    }
}

impl LoadBalancerReconciler {
    pub(super) fn api<'a>(&'a self, op: &'a Op) -> Api<'a> {
        Api { client: &self.client, op }
    }

    /// Reconciles everything as far as possible in one call: Octavia takes one change at a time.
    pub(super) async fn ensure(&self, op: &Op, order: &ReconcileInput<'_>, depth: ReadMode) -> LbOutcome {
        let uid = &order.desired.owner.uid;
        let mut known = self.sync_states.take(uid);
        known.deleting_id = None;
        known.replaced_failed = false;
        let mut shown = None;
        let result = match self.reconcile(op, order, depth, &mut known, &mut shown).await {
            Ok(()) => Ok(Progress::Done),
            Err(ReconcileStop::Pending(progress)) => Ok(progress),
            Err(ReconcileStop::Failed(error)) => Err(as_transient(error)),
        };
        let outcome = build_outcome(order, &known, shown, result);
        self.update_sync_state(&mut known, &outcome.result);
        self.sync_states.put(uid, known);
        outcome
    }

    async fn reconcile(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        depth: ReadMode,
        known: &mut LoadBalancerSyncState,
        shown: &mut Option<IpAddr>,
    ) -> Result<(), ReconcileStop> {
        let in_line = |(wanted, backends): &(Arc<DesiredLoadBalancer>, Vec<NodeBackend>)| {
            **wanted == *order.desired && *backends == order.backends
        };
        if depth == ReadMode::Cached && !known.unfinished && known.last_applied.as_ref().is_some_and(in_line) {
            *shown = known_address(order, known);
            return Ok(());
        }
        let first = known.last_applied.take().is_none();
        self.observe(op, order, depth, known).await?;
        if known.observed.is_none() {
            self.create_load_balancer(op, order, known).await?;
        }
        self.wait_until_active(op, order, known).await?;
        self.apply_plan(op, order, known, Self::plan_all).await?;
        *shown = Some(self.sync_floating_ip(op, order, known, first).await?);
        self.sync_security_group(op, order, known).await?;
        known.last_applied = Some((Arc::new(order.desired.clone()), order.backends.clone()));
        Ok(())
    }

    /// Reads the observed state, as deeply as `depth` requires.
    pub(super) async fn observe(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        depth: ReadMode,
        known: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let fresh = known.read_at.is_some_and(|at| at.elapsed() < RESUME_WINDOW);
        if known.observed.is_some() && (depth == ReadMode::Cached || known.unfinished && fresh) {
            return Ok(());
        }
        // The last observation was interrupted by the rate limit: the children are still to be read.
        let lately = known.read_at.is_some_and(|at| at.elapsed() < RESUMED_OBSERVATION_AGE);
        if known.observed.is_some() && !known.children_known && lately {
            return Ok(());
        }
        let api = self.api(op);
        known.applied_security_group = None;
        known.floating_ip = AttachedFloatingIp::Unknown;
        if known.observed.is_some() && known.children_known && observe::refresh(api, known).await?.is_some() {
            return Ok(());
        }
        known.invalidate();
        let question = LoadBalancerQuery::of(&self.cluster, &order.desired.owner, order.service);
        // A Service that was never served is in no listing.
        if question.served
            && let Some(swept) =
                self.listings.find(api, &self.sync_states.rounds, &question, known.listings_stale_until).await?
        {
            known.observed = Some(swept.observed);
            known.floating_ip = swept.floating_ips;
            known.read_at = Some(swept.read_at);
            known.from_listing = true;
            known.listed_security_group = swept.listed;
            return Ok(());
        }
        known.observed = observe::find_load_balancer(api, &question).await?.map(ObservedLoadBalancer::new);
        known.read_at = Some(Instant::now());
        known.as_of = self.sync_states.rounds.now();
        Ok(())
    }

    /// Reads the children of the load balancer unless they are known.
    pub(super) async fn read_children(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        known: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let Some(seen) = known.observed.as_mut().filter(|_| !known.children_known) else { return Ok(()) };
        let standing = self.service_ownership(order, seen);
        if known.from_listing {
            observe::read_members(self.api(op), seen, &standing).await?;
        } else {
            observe::read_children(self.api(op), seen, &standing).await?;
        }
        known.children_known = true;
        Ok(())
    }

    /// Reads a load balancer again that is known only from a listing, because it is to be changed. Returns whether it
    /// did.
    async fn refresh_before_change(
        &self,
        op: &Op,
        known: &mut LoadBalancerSyncState,
        step: &PlannedAction,
    ) -> Result<bool, ReconcileStop> {
        let Some(seen) = &mut known.observed else { return Err(object_gone().into()) };
        if !known.from_listing || matches!(step.kind, ActionKind::SetMembers(..)) {
            return Ok(false);
        }
        let Some(balancer) = self.api(op).load_balancer(&seen.load_balancer.id).await? else {
            return Err(object_gone().into());
        };
        seen.load_balancer = balancer;
        known.from_listing = false;
        known.children_known = false;
        known.floating_ip = AttachedFloatingIp::Unknown;
        known.read_at = Some(Instant::now());
        known.as_of = self.sync_states.rounds.now();
        Ok(true)
    }

    /// Creates the load balancer. It has its name and its tag from the start, so that it is found again whatever
    /// happens.
    async fn create_load_balancer(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        known: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let api = self.api(op);
        let wanted = order.desired;
        if order.backends.is_empty() && wanted.create_settings.port.is_none() && !has_requested_location(wanted) {
            let message = "no node has an address, and neither subnet nor network of the load balancer is configured";
            return Err(CloudError::invalid_input(message).into());
        }
        self.check_certificates(api, wanted).await?;
        let subnet = if has_requested_location(wanted) { None } else { Some(self.subnet_of_nodes(api, order).await?) };
        let body = body::load_balancer(
            wanted,
            &order.members(),
            subnet.as_deref(),
            self.features,
            self.settings.serial_api_calls,
        );
        known.unfinished = true;
        let tree = api.create_load_balancer(&body, "there is none").await?;
        let populated = !body.listeners.is_empty() && tree.listeners.len() == body.listeners.len();
        known.observed = Some(ObservedLoadBalancer::from_tree(tree));
        // If the driver has not created all children yet, they are read later.
        known.children_known = populated || body.listeners.is_empty();
        known.waiting_since = None;
        known.mark_changed(self.sync_states.rounds.now());
        // A port that Octavia creates with the load balancer has no floating IP.
        if wanted.create_settings.port.is_none() {
            known.floating_ip = AttachedFloatingIp::None;
        }
        Ok(())
    }

    /// Checks that the certificate exists before a listener refers to it.
    async fn check_certificates(&self, api: Api<'_>, wanted: &DesiredLoadBalancer) -> Result<(), ReconcileStop> {
        let Some(reference) = wanted.listeners.iter().find_map(|listener| listener.tls_container.as_deref()) else {
            return Ok(());
        };
        if !self.settings.barbican || api.has_certificate(reference).await? {
            return Ok(());
        }
        Err(CloudError::invalid_input(format!("certificate {reference} is not there")).into())
    }

    /// Finds the subnet of the first node: of the server port with the address that the load balancer sends to.
    async fn subnet_of_nodes(&self, api: Api<'_>, order: &ReconcileInput<'_>) -> Result<String, ReconcileStop> {
        let first = order.backends.iter().find_map(|backend| Some((backend.server.as_deref()?, backend.address)));
        let Some((server, address)) = first else {
            let message = "no node says which server it is, and neither subnet nor network is configured";
            return Err(CloudError::transient(message).into());
        };
        let ports = api.ports_of(&[server]).await?;
        let mut fixed = ports.iter().flat_map(|port| &port.fixed_ips);
        let found = fixed.find(|fixed| fixed.ip_address == address).map(|fixed| fixed.subnet_id.clone());
        found.ok_or_else(|| {
            CloudError::transient(format!("no port of server {server} has the address {address}")).into()
        })
    }

    /// Returns how the Service relates to the observed load balancer.
    pub(super) fn service_ownership(
        &self,
        order: &ReconcileInput<'_>,
        seen: &ObservedLoadBalancer,
    ) -> ServiceOwnership {
        service_ownership(
            &self.cluster,
            &order.desired.owner,
            observe::shows_address(order.service),
            &seen.load_balancer,
        )
    }

    pub(super) fn plan_input<'a>(
        &'a self,
        order: &'a ReconcileInput<'_>,
        seen: &'a ObservedLoadBalancer,
        standing: &'a ServiceOwnership,
    ) -> PlanInput<'a> {
        let wanted = order.desired;
        let exact = wanted.member_subnet.as_deref();
        let named = exact.or(wanted.vip_subnet.as_deref());
        PlanInput {
            observed: seen,
            ownership: standing,
            features: self.features,
            serial_api_calls: self.settings.serial_api_calls,
            name: &wanted.name,
            subnet: named.or(seen.load_balancer.vip_subnet_id.as_deref()),
            exact_subnet: exact,
        }
    }

    pub(super) fn plan_all(
        &self,
        order: &ReconcileInput<'_>,
        side: &PlanInput<'_>,
    ) -> Result<Vec<PlannedAction>, CloudError> {
        plan::plan(side, order.desired, &order.members(), self.settings.max_shared)
    }

    /// Applies a plan action by action, and plans again after each.
    async fn apply_plan(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        known: &mut LoadBalancerSyncState,
        plan: impl Fn(&Self, &ReconcileInput<'_>, &PlanInput<'_>) -> Result<Vec<PlannedAction>, CloudError> + Send + Sync,
    ) -> Result<(), ReconcileStop> {
        for _ in 0..MAX_ACTIONS {
            self.read_children(op, order, known).await?;
            let Some(seen) = &known.observed else { return Err(object_gone().into()) };
            let standing = self.service_ownership(order, seen);
            let mut steps = plan(self, order, &self.plan_input(order, seen, &standing))?;
            steps.retain(|step| !is_rejected_method(known, step));
            let Some(step) = steps.first() else { return Ok(()) };
            if self.refresh_before_change(op, known, step).await? {
                self.wait_until_active(op, order, known).await?;
                continue;
            }
            if matches!(step.kind.call(), Call::ListenerCreate | Call::ListenerUpdate) {
                self.check_certificates(self.api(op), order.desired).await?;
            }
            self.apply_action(op, known, step).await?;
            self.wait_until_active(op, order, known).await?;
        }
        Err(CloudError::transient(format!("load balancer {} changes while it is brought in line", order.desired.name))
            .into())
    }

    /// Applies one action. If the load balancer is busy, the result is pending.
    pub(super) async fn apply_action(
        &self,
        op: &Op,
        known: &mut LoadBalancerSyncState,
        step: &PlannedAction,
    ) -> Result<(), ReconcileStop> {
        let Some(mut seen) = known.observed.take() else { return Err(object_gone().into()) };
        known.unfinished = true;
        match apply::apply(self.api(op), &mut seen, step).await {
            Ok(ApplyResult::Done) => {
                known.observed = Some(seen);
                known.waiting_since = None;
                known.mark_changed(self.sync_states.rounds.now());
                Ok(())
            }
            Ok(ApplyResult::Replan) => Err(object_gone().into()),
            Err(error) if error.is_immutable() => {
                seen.load_balancer.provisioning_status = ProvisioningStatus::PendingUpdate;
                // Somebody else is changing it: what they change is not known.
                known.children_known = false;
                let why = format!("load balancer {} is busy", seen.load_balancer.id);
                known.observed = Some(seen);
                Err(self.pending(op, known, &why))
            }
            Err(error) if error.rate_limit_delay().is_some() => {
                known.observed = Some(seen);
                Err(error.into())
            }
            Err(error) => {
                let refused = matches!(error.class(), ErrorClass::Invalid | ErrorClass::Unsupported);
                if let (Some((pool, method)), true) = (apply::is_method_change(step), refused) {
                    let note = format!("pool {pool} keeps its algorithm: {error}");
                    op.event(EventType::Warning, "LoadBalancerLbMethodUnknown", &note);
                    known.rejected_method = Some((pool.into(), method.into()));
                    known.observed = Some(seen);
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
        order: &ReconcileInput<'_>,
        known: &mut LoadBalancerSyncState,
        first: bool,
    ) -> Result<IpAddr, ReconcileStop> {
        let Some(seen) = known.observed.take() else { return Err(object_gone().into()) };
        let standing = self.service_ownership(order, &seen);
        let address = self.floating_ip_sync(op, order, &standing).sync(known, &seen).await;
        let vip = floating_ip::vip_address(&seen);
        known.observed = Some(seen);
        if first && !order.desired.internal && vip.is_ok_and(|vip| vip.is_ipv6()) {
            let note = "the load balancer has an IPv6 address: there is no floating IP for it";
            op.event(EventType::Warning, "LoadBalancerFloatingIPSkipped", note);
        }
        Ok(address?)
    }

    pub(super) fn floating_ip_sync<'a>(
        &'a self,
        op: &'a Op,
        order: &'a ReconcileInput<'_>,
        standing: &'a ServiceOwnership,
    ) -> FloatingIpSync<'a> {
        FloatingIpSync {
            api: self.api(op),
            cluster: &self.cluster,
            networks: &self.networks,
            desired: order.desired,
            ownership: standing,
        }
    }

    pub(super) fn security_group_spec<'a>(
        group: &'a SecurityGroupSpec,
        order: &'a ReconcileInput<'_>,
        seen: &'a ObservedLoadBalancer,
    ) -> Result<SecurityGroupTask<'a>, CloudError> {
        let named = order.desired.member_subnet.as_deref().or(order.desired.vip_subnet.as_deref());
        let subnet = named.or(seen.load_balancer.vip_subnet_id.as_deref());
        let missing = || CloudError::invalid_input("the subnet of members is not known: name it by member-subnet-id");
        Ok(SecurityGroupTask { group, subnet: subnet.ok_or_else(missing)?, backends: &order.backends })
    }

    /// Syncs the security group, or removes one that is left over when none is desired any more.
    async fn sync_security_group(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        known: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let api = self.api(op);
        let owner = &order.desired.owner;
        let Some(seen) = &known.observed else { return Err(object_gone().into()) };
        match &order.desired.security_group {
            Some(group) => {
                let task = Self::security_group_spec(group, order, seen)?;
                let surplus = self
                    .ensure_rules(op, task, &mut known.applied_security_group, &mut known.listed_security_group)
                    .await?;
                SecurityGroupManager::revoke(api, &surplus).await?;
                known.applied_security_group = Some(task.digest());
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

    /// Admits the load balancer to its nodes at the ports that it serves now. What else the group admits stays: a
    /// change that was rejected may still need it.
    async fn admit_existing_ports(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        known: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let Some(seen) = &known.observed else { return Err(object_gone().into()) };
        let standing = self.service_ownership(order, seen);
        let Some(group) = self.plan_input(order, seen, &standing).current_security_group(order.desired) else {
            return Ok(());
        };
        let task = Self::security_group_spec(&group, order, seen)?;
        self.ensure_rules(op, task, &mut known.applied_security_group, &mut known.listed_security_group).await?;
        Ok(())
    }

    /// Makes the group admit what the task says, unless it is known to. Returns the IDs of surplus rules. `in_line`:
    /// digest of the task that was last applied completely.
    async fn ensure_rules(
        &self,
        op: &Op,
        task: SecurityGroupTask<'_>,
        in_line: &mut Option<Digest>,
        listed: &mut Option<ListedSecurityGroup>,
    ) -> Result<Vec<String>, CloudError> {
        let digest = task.digest();
        if *in_line == Some(digest) {
            return Ok(Vec::new());
        }
        *in_line = None;
        let surplus = if self.listing_shows_in_sync(op, task, listed).await? {
            Vec::new()
        } else {
            self.security_groups.ensure_rules(self.api(op), task).await?
        };
        *in_line = surplus.is_empty().then_some(digest);
        Ok(surplus)
    }

    /// Returns whether the shared listing shows the security group in the desired state. The listing is used once.
    pub(super) async fn listing_shows_in_sync(
        &self,
        op: &Op,
        task: SecurityGroupTask<'_>,
        listed: &mut Option<ListedSecurityGroup>,
    ) -> Result<bool, CloudError> {
        match listed.take().filter(|listed| listed.started.elapsed() < RESUMED_OBSERVATION_AGE) {
            Some(listed) => self.security_groups.listing_shows_in_sync(self.api(op), task, &listed).await,
            None => Ok(false),
        }
    }

    /// Syncs only the members, without reading the cloud where the sync state knows it.
    pub(super) async fn update_backends(&self, op: &Op, order: &ReconcileInput<'_>) -> LbOutcome {
        let uid = &order.desired.owner.uid;
        let mut known = self.sync_states.take(uid);
        let before = known.last_applied.take();
        let result = match self.sync_backends(op, order, &mut known).await {
            Ok(()) => {
                let same = |(wanted, _): &(Arc<DesiredLoadBalancer>, Vec<NodeBackend>)| **wanted == *order.desired;
                known.last_applied = before.filter(same).map(|(wanted, _)| (wanted, order.backends.clone()));
                Ok(Progress::Done)
            }
            Err(ReconcileStop::Pending(progress)) => {
                known.last_applied = before;
                Ok(progress)
            }
            Err(ReconcileStop::Failed(error)) => Err(error),
        };
        self.update_sync_state(&mut known, &result);
        self.sync_states.put(uid, known);
        LbOutcome { status: None, annotations: BTreeMap::new(), result }
    }

    /// Updates the sync state after a call: after an error the observed state is not known any more.
    fn update_sync_state(&self, known: &mut LoadBalancerSyncState, result: &Result<Progress, CloudError>) {
        match result {
            Ok(Progress::Done) => (known.unfinished, known.waiting_since) = (false, None),
            Ok(Progress::Pending { .. }) => {}
            // A request that was rejected before it was sent has changed nothing.
            Err(error) if error.kind() == ErrorKind::NotLeader => {}
            Err(_) => {
                known.invalidate();
                known.mark_changed(self.sync_states.rounds.now());
            }
        }
    }

    async fn sync_backends(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        known: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        if known.observed.is_none() {
            self.observe(op, order, ReadMode::Fresh, known).await?;
        }
        if known.observed.is_none() {
            let message = format!("load balancer {} is not there", order.desired.name);
            return Err(CloudError::new(ErrorKind::NotFound, message).into());
        }
        self.wait_until_active(op, order, known).await?;
        let members = |_: &Self, order: &ReconcileInput<'_>, side: &PlanInput<'_>| {
            let plan = if order.invalid { plan::following } else { plan::plan_members_only };
            Ok(plan(side, order.desired, &order.members()))
        };
        self.apply_plan(op, order, known, members).await?;
        self.admit_existing_ports(op, order, known).await
    }
}

/// Returns whether an action only sets an algorithm that the cloud has rejected.
pub(super) fn is_rejected_method(known: &LoadBalancerSyncState, step: &PlannedAction) -> bool {
    let refused = known.rejected_method.as_ref().map(|(pool, method)| (&**pool, &**method));
    refused.is_some() && apply::is_method_change(step) == refused
}

fn known_address(order: &ReconcileInput<'_>, known: &LoadBalancerSyncState) -> Option<IpAddr> {
    let floating = known.floating_ip.get().filter(|_| !order.desired.internal);
    let floating = floating.and_then(|floating| floating.floating_ip_address);
    floating.or_else(|| floating_ip::vip_address(known.observed.as_ref()?).ok())
}

/// Returns whether the port, subnet or network of the VIP is set.
fn has_requested_location(wanted: &DesiredLoadBalancer) -> bool {
    let front = &wanted.create_settings;
    front.port.is_some() || front.subnet.is_some() || front.network.is_some()
}

/// The object to be changed does not exist any more: retried after one second.
pub(super) fn object_gone() -> CloudError {
    CloudError::transient("the load balancer changed meanwhile").with_retry_after(Duration::from_secs(1))
}

/// Makes "not found" transient: that one object is missing says nothing about the load balancer as a whole.
pub(super) fn as_transient(error: CloudError) -> CloudError {
    match error.kind() {
        ErrorKind::NotFound => CloudError::transient(error.to_string()).with_source(error),
        _ => error,
    }
}

/// Builds the outcome, with the ID and the address as soon as the load balancer serves. Until then it is found by its
/// name: an ID would be taken for one that a user wrote, and then the load balancer has to exist.
fn build_outcome(
    order: &ReconcileInput<'_>,
    known: &LoadBalancerSyncState,
    shown: Option<IpAddr>,
    result: Result<Progress, CloudError>,
) -> LbOutcome {
    let mut outcome = LbOutcome { status: None, annotations: BTreeMap::new(), result };
    let mut annotate = |row: &annotations::Annotation, value: String| {
        let key = row.key();
        if order.service.annotations.get(&*key).is_none_or(|text| **text != *value) {
            outcome.annotations.insert(key, Some(value.into()));
        }
    };
    let serves = shown.is_some() || observe::was_served(order.service);
    let made =
        |seen: &&ObservedLoadBalancer| seen.load_balancer.provisioning_status != ProvisioningStatus::PendingCreate;
    if let Some(seen) = known.observed.as_ref().filter(|seen| serves && made(seen)) {
        annotate(&annotations::LOAD_BALANCER_ID, seen.load_balancer.id.clone());
    }
    if let Some(address) = shown {
        annotate(&annotations::LOAD_BALANCER_ADDRESS, address.to_string());
        outcome.status = Some(status::of(address, &order.desired.status_format));
    }
    let id = annotations::LOAD_BALANCER_ID.key();
    if known.replaced_failed && order.service.annotations.contains_key(&*id) {
        outcome.annotations.insert(id, None);
    }
    outcome
}

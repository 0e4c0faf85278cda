//! Plans the changes of the cloud's route table, and decides the condition `NetworkUnavailable` of
//! the nodes from their results. Pure functions.
//!
//! This controller manages a route if its destination is within a cluster CIDR. Upstream also
//! manages a route whose destination only begins or ends in a cluster CIDR, and so deletes wider
//! routes of others.

mod foreign_nodes;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;

use self::foreign_nodes::ForeignNodes;
use super::backoff::{ChangeBackoff, ChangeKey};
use crate::{
    k8s::{ConditionStatus, IpFamily, NodeCondition, NodeView},
    provider::Route,
};

/// The input of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanInput<'a> {
    /// The nodes that the provider claims.
    pub(crate) ours: &'a [Arc<NodeView>],
    /// All other nodes.
    pub(crate) foreign: &'a [Arc<NodeView>],
    /// The routes in the cloud.
    pub(crate) routes: &'a [Route],
    /// The cluster CIDRs (`--cluster-cidr`).
    pub(crate) cluster: &'a [IpNet],
    /// The changes that failed before.
    pub(crate) failures: &'a ChangeBackoff,
    /// The time since the start of the controller.
    pub(crate) now: Duration,
}

/// The plan of all routes. It does not depend on the order of nodes and routes in the input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoutePlan {
    /// The changes, one step per destination, ordered by destination.
    pub(crate) steps: Vec<RouteStep>,
    /// The changes that are deferred, because they or a deletion before them failed or are pending.
    pub(crate) backed_off: Vec<ChangeKey>,
    /// Our nodes that have or had pod CIDRs, ordered by name.
    pub(crate) nodes: Vec<NodePlan>,
    /// The pod CIDRs that get no route.
    pub(crate) rejected_cidrs: Vec<RejectedPodCidr>,
    /// The number of routes that this controller manages.
    pub(crate) managed_routes: usize,
}

/// The changes of the routes with one destination. The deletions come first, and the creation
/// follows once they have succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteStep {
    pub(crate) destination: IpNet,
    pub(crate) delete: Vec<Route>,
    pub(crate) create: Option<Arc<NodeView>>,
    /// True if no node claims the destination.
    pub(crate) is_unclaimed: bool,
}

/// A node and the states of its pod CIDRs. They are empty for a node that only has a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePlan {
    pub(crate) node: Arc<NodeView>,
    pub(crate) cidrs: Vec<PodCidrState>,
}

/// The state of the route for a pod CIDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodCidrState {
    /// The route exists.
    Routed,
    /// A step of the plan creates the route to this destination.
    Create(IpNet),
    /// The creation or a deletion before it is pending, and is repeated later.
    Pending,
    /// The creation is deferred, because it or a deletion before it failed.
    BackedOff,
    /// There will be no route. An event of the Node says why.
    Rejected,
}

/// A pod CIDR that gets no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RejectedPodCidr {
    pub(crate) node: Arc<NodeView>,
    /// The CIDR as written in the Node.
    pub(crate) cidr: Arc<str>,
    pub(crate) reason: RejectReason,
}

/// The reason why a pod CIDR gets no route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RejectReason {
    NotANetwork,
    OutsideCluster,
    /// It overlaps with a pod CIDR of a foreign node, or a route with this destination leads to a
    /// foreign node.
    Foreign,
    /// The named node has the same pod CIDR and the route.
    OwnedByNode(Arc<str>),
}

impl RejectedPodCidr {
    /// Returns the event reason.
    pub(crate) fn event_reason(&self) -> &'static str {
        match self.reason {
            RejectReason::NotANetwork => "InvalidPodCIDR",
            RejectReason::OutsideCluster => "PodCIDROutOfRange",
            RejectReason::Foreign | RejectReason::OwnedByNode(_) => "PodCIDRConflict",
        }
    }

    /// Returns the event's note.
    pub(crate) fn note(&self, cluster: &[IpNet]) -> String {
        let name = &self.node.name;
        let cidr = &self.cidr;
        match &self.reason {
            RejectReason::NotANetwork => {
                format!("No route for node {name}: its pod CIDR {cidr:?} is not a network")
            }
            RejectReason::OutsideCluster => {
                let cluster: Vec<_> = cluster.iter().map(ToString::to_string).collect();
                format!(
                    "No route for node {name}: its pod CIDR {cidr} is outside the cluster CIDR {}",
                    cluster.join(",")
                )
            }
            RejectReason::Foreign => {
                format!(
                    "No route for node {name}: its pod CIDR {cidr} is also used by a node of another cloud"
                )
            }
            RejectReason::OwnedByNode(other) => {
                format!(
                    "No route for node {name}: its pod CIDR {cidr} is also that of node {other}, which has the route"
                )
            }
        }
    }
}

impl RoutePlan {
    /// Returns true if the plan deletes more than half of several routes because no node claims
    /// them.
    ///
    /// The cache may lag, and the routes carry the traffic of the whole cluster. So the nodes
    /// should be read from the API server before such a plan is applied.
    pub(crate) fn deletes_most_routes(&self) -> bool {
        let unclaimed: usize = self
            .steps
            .iter()
            .filter(|step| step.is_unclaimed)
            .map(|step| step.delete.len())
            .sum();
        self.managed_routes > 1 && unclaimed * 2 > self.managed_routes
    }

    /// Removes the steps for destinations that no node claims, so that their routes stay.
    pub(crate) fn keep_unclaimed(&mut self) {
        self.steps.retain(|step| !step.is_unclaimed);
    }

    /// Returns all changes that are needed, now or later.
    pub(crate) fn required_changes(&self) -> HashSet<ChangeKey> {
        let mut changes: HashSet<ChangeKey> = self.backed_off.iter().cloned().collect();
        for step in &self.steps {
            changes.extend(step.delete.iter().map(ChangeKey::delete));
            if let Some(node) = &step.create {
                changes.insert(ChangeKey::create(node, step.destination));
            }
        }
        changes
    }
}

/// Plans the routes of all nodes.
pub(crate) fn plan(input: &PlanInput<'_>) -> RoutePlan {
    // Find the routes that are ours to manage, and the destinations that our nodes claim.
    let foreign = ForeignNodes::new(input.foreign, input.routes);
    let managed = managed_routes(input, &foreign);
    let CidrClaims { claims, mut rejected } = collect_claims(input, &foreign);
    let mut plan = RoutePlan {
        managed_routes: managed.values().map(Vec::len).sum(),
        ..RoutePlan::default()
    };
    // Plan each destination.
    let mut cidr_states = CidrStates::new();
    let destinations: BTreeSet<IpNet> = claims.keys().chain(managed.keys()).copied().collect();
    for destination in destinations {
        let routes = managed
            .get(&destination)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let claims = claims
            .get(&destination)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let Some(owner) = choose_owner(claims, routes) else {
            plan_unclaimed(input, &mut plan, destination, routes);
            continue;
        };
        for claim in claims {
            if claim.node.name != owner.name {
                rejected.push(claim.rejected(RejectReason::OwnedByNode(owner.name.clone())));
            }
        }
        let state = plan_claimed(input, &mut plan, destination, owner, routes);
        cidr_states.insert((&owner.name, destination), state);
    }
    // Summarize the result per node.
    rejected.sort_by(|a, b| (&a.node.name, &a.cidr).cmp(&(&b.node.name, &b.cidr)));
    plan.rejected_cidrs = rejected;
    plan.nodes = node_plans(input, &managed, &cidr_states);
    plan
}

/// The states of the destinations that nodes claim, by node name and destination.
type CidrStates<'a> = HashMap<(&'a str, IpNet), PodCidrState>;

/// A node's claim to a destination.
#[derive(Clone, Copy)]
struct CidrClaim<'a> {
    node: &'a Arc<NodeView>,
    cidr: &'a Arc<str>,
}

impl CidrClaim<'_> {
    fn rejected(&self, reason: RejectReason) -> RejectedPodCidr {
        RejectedPodCidr { node: self.node.clone(), cidr: self.cidr.clone(), reason }
    }
}

/// The destinations that our nodes claim, and the pod CIDRs that are rejected.
struct CidrClaims<'a> {
    claims: BTreeMap<IpNet, Vec<CidrClaim<'a>>>,
    rejected: Vec<RejectedPodCidr>,
}

/// Parses a pod CIDR and clears the bits past the prefix, so that two networks are equal even if
/// they are written differently.
fn network(cidr: &str) -> Option<IpNet> {
    let network: IpNet = cidr.parse().ok()?;
    Some(network.trunc())
}

fn is_within(cluster: &[IpNet], destination: &IpNet) -> bool {
    cluster.iter().any(|network| network.contains(destination))
}

/// Collects the destinations that our nodes claim, with the oldest node first, and the pod CIDRs
/// that are rejected.
fn collect_claims<'a>(input: &PlanInput<'a>, foreign: &ForeignNodes<'_>) -> CidrClaims<'a> {
    let mut claims: BTreeMap<IpNet, Vec<CidrClaim<'a>>> = BTreeMap::new();
    let mut rejected = Vec::new();
    for node in input.ours {
        for cidr in &node.pod_cidrs {
            let claim = CidrClaim { node, cidr };
            match routable_network(input, foreign, claim) {
                Ok(network) => {
                    let claimants = claims.entry(network).or_default();
                    // A node may list the same CIDR twice.
                    if claimants.iter().all(|other| other.node.name != node.name) {
                        claimants.push(claim);
                    }
                }
                Err(reason) => rejected.push(claim.rejected(reason)),
            }
        }
    }
    for claimants in claims.values_mut() {
        claimants
            .sort_by(|a, b| (a.node.created, &a.node.name).cmp(&(b.node.created, &b.node.name)));
    }
    CidrClaims { claims, rejected }
}

/// Returns the network of a pod CIDR, or the reason why it cannot get a route. Claims of other
/// nodes of ours do not matter here.
fn routable_network(
    input: &PlanInput<'_>,
    foreign: &ForeignNodes<'_>,
    claim: CidrClaim<'_>,
) -> Result<IpNet, RejectReason> {
    let network = network(claim.cidr).ok_or(RejectReason::NotANetwork)?;
    if !is_within(input.cluster, &network) {
        return Err(RejectReason::OutsideCluster);
    }
    if foreign.overlaps(&network) {
        return Err(RejectReason::Foreign);
    }
    // A route to our node stays even if a foreign node has a route with the same destination.
    let has_route =
        |route: &Route| route.destination.trunc() == network && targets_node(route, claim.node);
    if foreign.has_route(&network) && !input.routes.iter().any(has_route) {
        return Err(RejectReason::Foreign);
    }
    Ok(network)
}

/// Returns the routes that this controller manages, by destination.
fn managed_routes<'a>(
    input: &PlanInput<'a>,
    foreign: &ForeignNodes<'_>,
) -> BTreeMap<IpNet, Vec<&'a Route>> {
    let mut managed: BTreeMap<IpNet, Vec<&Route>> = BTreeMap::new();
    for route in input.routes {
        let destination = route.destination.trunc();
        if is_within(input.cluster, &destination) && !foreign.owns_route(route, &destination) {
            managed.entry(destination).or_default().push(route);
        }
    }
    for routes in managed.values_mut() {
        routes.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
    }
    managed
}

/// Chooses one of several nodes with the same pod CIDR. This is the oldest, unless another one has
/// the route already.
fn choose_owner<'a>(claims: &[CidrClaim<'a>], routes: &[&Route]) -> Option<&'a Arc<NodeView>> {
    for claim in claims {
        if routes.iter().any(|route| targets_node(route, claim.node)) {
            return Some(claim.node);
        }
    }
    claims.first().map(|oldest| oldest.node)
}

fn targets_node(route: &Route, node: &NodeView) -> bool {
    !route.blackhole && route.node.as_ref() == Some(&node.name)
}

/// Returns true if the route was created for the current addresses of the node. As in upstream,
/// both must have the same number of addresses, and the route must have each address of the node.
fn matches_node_addresses(route: &Route, node: &NodeView) -> bool {
    let Some(addresses) = &route.node_addresses else {
        return true;
    };
    addresses.len() == node.addresses.len()
        && node
            .addresses
            .iter()
            .all(|address| addresses.contains(address))
}

/// Plans a destination that a node claims. Returns the state of the node's pod CIDR.
fn plan_claimed(
    input: &PlanInput<'_>,
    plan: &mut RoutePlan,
    destination: IpNet,
    owner: &Arc<NodeView>,
    routes: &[&Route],
) -> PodCidrState {
    let is_desired =
        |route: &Route| targets_node(route, owner) && matches_node_addresses(route, owner);
    let is_routed = routes.iter().any(|route| is_desired(route));
    let create = ChangeKey::create(owner, destination);
    let is_create_deferred = !is_routed && input.failures.is_backed_off(&create, input.now);
    // Delete the other routes. A route to this node with outdated addresses stays as long as its
    // replacement is deferred.
    let mut obsolete = Vec::new();
    for route in routes {
        let is_kept_meanwhile = is_create_deferred && targets_node(route, owner);
        if !is_desired(route) && !is_kept_meanwhile {
            obsolete.push(*route);
        }
    }
    let Deletions { due, deferred } = split_deletions(input, &obsolete);
    // Create the route once no other route with this destination is left. Upstream lets the
    // creation race with the deletions.
    let is_blocked = is_create_deferred || !deferred.is_empty();
    let is_pending = |change: &ChangeKey| input.failures.is_pending(change, input.now);
    let waits = deferred.iter().all(is_pending) && (!is_create_deferred || is_pending(&create));
    plan.backed_off.extend(deferred);
    if is_blocked && !is_routed {
        plan.backed_off.push(create);
    }
    let state = if is_routed {
        PodCidrState::Routed
    } else if is_blocked && waits {
        PodCidrState::Pending
    } else if is_blocked {
        PodCidrState::BackedOff
    } else {
        PodCidrState::Create(destination)
    };
    let create = matches!(state, PodCidrState::Create(_)).then(|| owner.clone());
    if create.is_some() || !due.is_empty() {
        plan.steps
            .push(RouteStep { destination, delete: due, create, is_unclaimed: false });
    }
    state
}

/// Plans a destination that no node claims.
fn plan_unclaimed(
    input: &PlanInput<'_>,
    plan: &mut RoutePlan,
    destination: IpNet,
    routes: &[&Route],
) {
    let Deletions { due, deferred } = split_deletions(input, routes);
    plan.backed_off.extend(deferred);
    if !due.is_empty() {
        plan.steps
            .push(RouteStep { destination, delete: due, create: None, is_unclaimed: true });
    }
}

/// The routes to delete now, and the deletions that are deferred because they failed.
#[derive(Default)]
struct Deletions {
    due: Vec<Route>,
    deferred: Vec<ChangeKey>,
}

fn split_deletions(input: &PlanInput<'_>, obsolete: &[&Route]) -> Deletions {
    let mut deletions = Deletions::default();
    for route in obsolete {
        let deletion = ChangeKey::delete(route);
        if input.failures.is_backed_off(&deletion, input.now) {
            deletions.deferred.push(deletion);
        } else {
            deletions.due.push((*route).clone());
        }
    }
    deletions
}

fn node_plans(
    input: &PlanInput<'_>,
    managed: &BTreeMap<IpNet, Vec<&Route>>,
    cidr_states: &CidrStates<'_>,
) -> Vec<NodePlan> {
    let targets: HashSet<&str> = managed
        .values()
        .flatten()
        .filter_map(|route| route.node.as_deref())
        .collect();
    let mut plans = Vec::new();
    for node in input.ours {
        if !node.pod_cidrs.is_empty() || targets.contains(&*node.name) {
            let cidrs = pod_cidr_states(input, node, cidr_states);
            plans.push(NodePlan { node: node.clone(), cidrs });
        }
    }
    plans.sort_by(|a, b| a.node.name.cmp(&b.node.name));
    plans
}

/// Returns the states of a node's pod CIDRs.
///
/// A pod CIDR of an address family that the cluster CIDRs lack does not count. If a node has no
/// others, they count as rejected, because the node is unreachable.
fn pod_cidr_states(
    input: &PlanInput<'_>,
    node: &NodeView,
    cidr_states: &CidrStates<'_>,
) -> Vec<PodCidrState> {
    let mut states = Vec::new();
    for cidr in &node.pod_cidrs {
        // A CIDR without a state was rejected.
        let Some(network) = network(cidr) else {
            states.push(PodCidrState::Rejected);
            continue;
        };
        if let Some(state) = cidr_states.get(&(&*node.name, network)) {
            states.push(*state);
        } else if !is_other_family(input.cluster, &network) {
            states.push(PodCidrState::Rejected);
        }
    }
    if states.is_empty() {
        states = vec![PodCidrState::Rejected; node.pod_cidrs.len()];
    }
    states
}

/// Returns true if no cluster CIDR has this network's address family.
///
/// `--cluster-cidr` may name only one family of a dual-stack cluster. Another component then
/// creates the routes of the other family, and if they are missing, the node is not unavailable.
fn is_other_family(cluster: &[IpNet], network: &IpNet) -> bool {
    !cluster
        .iter()
        .any(|cluster| IpFamily::of(cluster) == IpFamily::of(network))
}

/// The status of a node's network, as the condition `NetworkUnavailable` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkStatus {
    /// All routes for the node's pod CIDRs exist (`False`, `RouteCreated`).
    Ready,
    /// Some routes are missing (`True`, `NoRouteCreated`).
    NotReady,
}

impl NetworkStatus {
    /// Returns the status of the condition.
    pub(crate) fn status(self) -> ConditionStatus {
        match self {
            Self::Ready => ConditionStatus::False,
            Self::NotReady => ConditionStatus::True,
        }
    }

    /// Returns the reason of the condition, as upstream.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Ready => "RouteCreated",
            Self::NotReady => "NoRouteCreated",
        }
    }

    /// Returns the message of the condition, as upstream.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Ready => "RouteController created a route",
            Self::NotReady => "RouteController failed to create a route",
        }
    }

    /// Returns true if the node already has the condition. As in upstream, only status and reason
    /// count.
    pub(crate) fn matches_condition(self, current: Option<&NodeCondition>) -> bool {
        current.is_some_and(|current| {
            current.status == self.status() && &*current.reason == self.reason()
        })
    }
}

/// The result of the creation of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateResult {
    Created,
    Failed,
    /// The creation, or a deletion before it, is pending.
    Pending,
    /// The creation was not attempted, because the process is stopping, or because the cloud is
    /// throttling and the node's first condition can wait.
    Unknown,
}

/// Returns the status of a node's network, according to its plan and the results of the creations;
/// `None` if the condition is to stay as it is, because a result is unknown or pending.
///
/// An initialised node without the condition gets it while a route is pending, because pods would
/// be scheduled to it without a route otherwise.
pub(crate) fn network_status(
    plan: &NodePlan,
    create_result: impl Fn(IpNet) -> CreateResult,
) -> Option<NetworkStatus> {
    let mut network = if plan.cidrs.is_empty() {
        NetworkStatus::NotReady
    } else {
        NetworkStatus::Ready
    };
    let mut is_pending = false;
    for state in &plan.cidrs {
        match state {
            PodCidrState::Routed => {}
            PodCidrState::Create(destination) => match create_result(*destination) {
                CreateResult::Created => {}
                CreateResult::Failed => network = NetworkStatus::NotReady,
                CreateResult::Pending => is_pending = true,
                CreateResult::Unknown => return None,
            },
            PodCidrState::Pending => is_pending = true,
            PodCidrState::BackedOff | PodCidrState::Rejected => network = NetworkStatus::NotReady,
        }
    }
    if is_pending && network == NetworkStatus::Ready {
        let needs_condition =
            plan.node.network_unavailable.is_none() && !plan.node.is_uninitialized();
        return needs_condition.then_some(NetworkStatus::NotReady);
    }
    Some(network)
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

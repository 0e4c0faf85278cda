//! Plans the changes of the cloud's route table: a pure function from nodes, routes, cluster CIDRs,
//! back-off and time to changes. A second one decides the nodes' `NetworkUnavailable` condition
//! from the results.
//!
//! This controller manages a route if its destination lies within a cluster CIDR. Upstream also
//! manages one that merely begins or ends in a cluster CIDR, and deletes a wider route of somebody
//! else (W17b).

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

/// Everything that a plan depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanInput<'a> {
    /// Nodes that the provider claims.
    pub(crate) ours: &'a [Arc<NodeView>],
    /// All others.
    pub(crate) foreign: &'a [Arc<NodeView>],
    /// Routes of the cloud.
    pub(crate) routes: &'a [Route],
    /// `--cluster-cidr`.
    pub(crate) cluster: &'a [IpNet],
    /// Back-off of the changes that failed before.
    pub(crate) failures: &'a ChangeBackoff,
    /// Time since the start of the controller.
    pub(crate) now: Duration,
}

/// The changes, and what to report. Does not depend on the order of nodes and routes in the input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoutePlan {
    /// Changes, one step per destination, ordered by destination.
    pub(crate) steps: Vec<RouteStep>,
    /// Changes that are deferred, because they or a deletion before them failed.
    pub(crate) backed_off: Vec<ChangeKey>,
    /// Our nodes that have or had pod CIDRs, by name.
    pub(crate) nodes: Vec<NodePlan>,
    /// Pod CIDRs that get no route.
    pub(crate) rejected_cidrs: Vec<RejectedPodCidr>,
    /// Number of routes that this controller manages.
    pub(crate) managed_routes: usize,
}

/// The changes at one destination: the deletions come first, the creation follows once they
/// succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteStep {
    pub(crate) destination: IpNet,
    pub(crate) delete: Vec<Route>,
    pub(crate) create: Option<Arc<NodeView>>,
    /// True if no node claims the destination.
    pub(crate) is_unclaimed: bool,
}

/// A node and the states of its pod CIDRs; none if it has no pod CIDR any more, but still a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePlan {
    pub(crate) node: Arc<NodeView>,
    pub(crate) cidrs: Vec<PodCidrState>,
}

/// What happens to a pod CIDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodCidrState {
    /// The route exists.
    Routed,
    /// A step of the plan creates it.
    Create(IpNet),
    /// It is created later.
    BackedOff,
    /// It gets no route. The reason is reported on the Node.
    Rejected,
}

/// A pod CIDR that gets no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RejectedPodCidr {
    pub(crate) node: Arc<NodeView>,
    /// The CIDR as written in the Node.
    pub(crate) cidr: Arc<str>,
    pub(crate) reject_reason: RejectReason,
}

/// Why a pod CIDR gets no route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RejectReason {
    NotANetwork,
    OutsideCluster,
    /// A foreign node has (part of) it, or a route with this destination leads to a foreign node.
    Foreign,
    /// The named node has it, too, and keeps the route.
    OwnedByNode(Arc<str>),
}

impl RejectedPodCidr {
    /// Returns the event reason.
    pub(crate) fn reason(&self) -> &'static str {
        match self.reject_reason {
            RejectReason::NotANetwork => "InvalidPodCIDR",
            RejectReason::OutsideCluster => "PodCIDROutOfRange",
            RejectReason::Foreign | RejectReason::OwnedByNode(_) => "PodCIDRConflict",
        }
    }

    /// Returns the event's note.
    pub(crate) fn note(&self, cluster: &[IpNet]) -> String {
        let name = &self.node.name;
        let cidr = &self.cidr;
        match &self.reject_reason {
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
    /// Tells whether the plan deletes more than half of several routes because no node claims them.
    /// Then the nodes should be read again first: a cache may lag, and the routes carry the traffic
    /// of the whole cluster.
    pub(crate) fn deletes_most_routes(&self) -> bool {
        let unwanted: usize = self
            .steps
            .iter()
            .filter(|step| step.is_unclaimed)
            .map(|step| step.delete.len())
            .sum();
        self.managed_routes > 1 && unwanted * 2 > self.managed_routes
    }

    /// Removes the steps for destinations that no node seems to claim, so that their routes stay.
    pub(crate) fn keep_unclaimed(&mut self) {
        self.steps.retain(|step| !step.is_unclaimed);
    }

    /// Returns every change that is needed, now or later.
    pub(crate) fn required_changes(&self) -> HashSet<ChangeKey> {
        let keys = self.steps.iter().flat_map(|step| {
            let create = step
                .create
                .iter()
                .map(|node| ChangeKey::create(node, step.destination));
            step.delete.iter().map(ChangeKey::delete).chain(create)
        });
        keys.chain(self.backed_off.iter().cloned()).collect()
    }
}

/// Plans all changes.
pub(crate) fn plan(input: &PlanInput<'_>) -> RoutePlan {
    let foreign = ForeignNodes::new(input.foreign, input.routes);
    let listed = managed_routes(input, &foreign);
    let CidrClaims { claims, rejected: mut refused } = collect_claims(input, &foreign);
    let mut plan = RoutePlan {
        managed_routes: listed.values().map(Vec::len).sum(),
        ..RoutePlan::default()
    };
    let mut cidr_states: HashMap<(&str, IpNet), PodCidrState> = HashMap::new();
    let destinations: BTreeSet<IpNet> = claims.keys().chain(listed.keys()).copied().collect();
    for destination in destinations {
        let routes = listed.get(&destination).map_or(&[][..], Vec::as_slice);
        let claims = claims.get(&destination).map_or(&[][..], Vec::as_slice);
        let owner = choose_claim(claims, routes);
        if let Some(owner) = owner {
            for loser in claims.iter().filter(|claim| claim.node.name != owner.name) {
                refused.push(loser.rejected(RejectReason::OwnedByNode(owner.name.clone())));
            }
            let want = plan_claimed(input, &mut plan, destination, owner, routes);
            cidr_states.insert((&owner.name, destination), want);
        } else {
            plan_unclaimed(input, &mut plan, destination, routes);
        }
    }
    refused.sort_by(|a, b| (&a.node.name, &a.cidr).cmp(&(&b.node.name, &b.cidr)));
    plan.rejected_cidrs = refused;
    plan.nodes = node_plans(input, &listed, &cidr_states);
    plan
}

/// A node's claim to a destination.
#[derive(Clone, Copy)]
struct CidrClaim<'a> {
    node: &'a Arc<NodeView>,
    cidr: &'a Arc<str>,
}

impl CidrClaim<'_> {
    fn rejected(&self, why: RejectReason) -> RejectedPodCidr {
        RejectedPodCidr {
            node: self.node.clone(),
            cidr: self.cidr.clone(),
            reject_reason: why,
        }
    }
}

struct CidrClaims<'a> {
    claims: BTreeMap<IpNet, Vec<CidrClaim<'a>>>,
    rejected: Vec<RejectedPodCidr>,
}

/// Parses a pod CIDR. Bits past the prefix are cleared, because the text of two equal networks may
/// differ (W17g).
fn network(cidr: &str) -> Option<IpNet> {
    cidr.parse::<IpNet>().ok().map(|net| net.trunc())
}

fn is_within(cluster: &[IpNet], destination: &IpNet) -> bool {
    cluster.iter().any(|network| network.contains(destination))
}

/// Collects which of our nodes claim which destinations, oldest node first, and the pod CIDRs that
/// are rejected.
fn collect_claims<'a>(input: &PlanInput<'a>, foreign: &ForeignNodes<'_>) -> CidrClaims<'a> {
    let mut claims: BTreeMap<IpNet, Vec<CidrClaim<'a>>> = BTreeMap::new();
    let mut refused = Vec::new();
    // A route to our node stays even if a foreign node has a route with the same destination.
    let has_route = |node: &NodeView, net: &IpNet| {
        input
            .routes
            .iter()
            .any(|route| route.destination.trunc() == *net && targets_node(route, node))
    };
    let is_taken = |node: &NodeView, net: &IpNet| foreign.has_route(net) && !has_route(node, net);
    for node in input.ours {
        for cidr in &node.pod_cidrs {
            let claim = CidrClaim { node, cidr };
            let why = match network(cidr) {
                None => RejectReason::NotANetwork,
                Some(net) if !is_within(input.cluster, &net) => RejectReason::OutsideCluster,
                Some(net) if foreign.overlaps(&net) || is_taken(node, &net) => {
                    RejectReason::Foreign
                }
                Some(net) => {
                    let same = claims.entry(net).or_default();
                    if !same
                        .iter()
                        .any(|node_names| node_names.node.name == node.name)
                    {
                        same.push(claim);
                    }
                    continue;
                }
            };
            refused.push(claim.rejected(why));
        }
    }
    for same in claims.values_mut() {
        same.sort_by(|a, b| (a.node.created, &a.node.name).cmp(&(b.node.created, &b.node.name)));
    }
    CidrClaims { claims, rejected: refused }
}

/// Returns the routes that this controller manages, by destination.
fn managed_routes<'a>(
    input: &PlanInput<'a>,
    foreign: &ForeignNodes<'_>,
) -> BTreeMap<IpNet, Vec<&'a Route>> {
    let mut listed: BTreeMap<IpNet, Vec<&Route>> = BTreeMap::new();
    for route in input.routes {
        let destination = route.destination.trunc();
        if is_within(input.cluster, &destination) && !foreign.owns_route(route, &destination) {
            listed.entry(destination).or_default().push(route);
        }
    }
    for same in listed.values_mut() {
        same.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
    }
    listed
}

/// Chooses one of several nodes with the same pod CIDR: the one whose route exists, otherwise the
/// oldest. So the route never moves without a reason.
fn choose_claim<'a>(claims: &[CidrClaim<'a>], routes: &[&Route]) -> Option<&'a Arc<NodeView>> {
    let has_route =
        |claim: &&CidrClaim<'_>| routes.iter().any(|route| targets_node(route, claim.node));
    claims
        .iter()
        .find(has_route)
        .or(claims.first())
        .map(|claim| claim.node)
}

fn targets_node(route: &Route, node: &NodeView) -> bool {
    !route.blackhole && route.node.as_ref() == Some(&node.name)
}

/// Tells whether the route was made for the current addresses of the node. As in upstream, both
/// must have the same number of addresses, and the route must have each of the node's.
fn matches_node_addresses(route: &Route, node: &NodeView) -> bool {
    route.node_addresses.as_ref().is_none_or(|addresses| {
        addresses.len() == node.addresses.len()
            && node
                .addresses
                .iter()
                .all(|address| addresses.contains(address))
    })
}

/// Plans a destination that a node claims.
fn plan_claimed(
    input: &PlanInput<'_>,
    plan: &mut RoutePlan,
    destination: IpNet,
    owner: &Arc<NodeView>,
    routes: &[&Route],
) -> PodCidrState {
    let is_good =
        |route: &&&Route| targets_node(route, owner) && matches_node_addresses(route, owner);
    let is_there = routes.iter().any(|route| is_good(&route));
    let create = ChangeKey::create(owner, destination);
    let create_deferred = !is_there && input.failures.is_backed_off(&create, input.now);
    // A route to this node with outdated addresses is not deleted as long as its replacement is
    // deferred.
    let spared = |route: &Route| create_deferred && targets_node(route, owner);
    let obsolete = routes
        .iter()
        .filter(|route| !is_good(route) && !spared(route));
    let (held, delete): (Vec<_>, Vec<_>) = obsolete.partition(|route| {
        input
            .failures
            .is_backed_off(&ChangeKey::delete(route), input.now)
    });
    // The creation waits until every other route with this destination is deleted (W17a).
    let blocked = create_deferred || !held.is_empty();
    plan.backed_off
        .extend(held.into_iter().copied().map(ChangeKey::delete));
    let want = match (is_there, blocked) {
        (true, _) => PodCidrState::Routed,
        (false, true) => PodCidrState::BackedOff,
        (false, false) => PodCidrState::Create(destination),
    };
    if want == PodCidrState::BackedOff {
        plan.backed_off.push(create);
    }
    let create = matches!(want, PodCidrState::Create(_)).then(|| owner.clone());
    if create.is_some() || !delete.is_empty() {
        let delete = delete.into_iter().map(|route| (*route).clone()).collect();
        plan.steps
            .push(RouteStep { destination, delete, create, is_unclaimed: false });
    }
    want
}

/// Plans a destination that no node claims.
fn plan_unclaimed(
    input: &PlanInput<'_>,
    plan: &mut RoutePlan,
    destination: IpNet,
    routes: &[&Route],
) {
    let (held, delete): (Vec<_>, Vec<_>) = routes.iter().partition(|route| {
        input
            .failures
            .is_backed_off(&ChangeKey::delete(route), input.now)
    });
    plan.backed_off
        .extend(held.into_iter().copied().map(ChangeKey::delete));
    if !delete.is_empty() {
        let delete = delete.into_iter().map(|route| (*route).clone()).collect();
        plan.steps
            .push(RouteStep { destination, delete, create: None, is_unclaimed: true });
    }
}

fn node_plans(
    input: &PlanInput<'_>,
    listed: &BTreeMap<IpNet, Vec<&Route>>,
    cidr_states: &HashMap<(&str, IpNet), PodCidrState>,
) -> Vec<NodePlan> {
    let targets: HashSet<&str> = listed
        .values()
        .flatten()
        .filter_map(|route| route.node.as_deref())
        .collect();
    let concerned = input
        .ours
        .iter()
        .filter(|node| !node.pod_cidrs.is_empty() || targets.contains(&*node.name));
    let mut plans: Vec<NodePlan> = concerned
        .map(|node| {
            let want = |cidr: &Arc<str>| {
                let network = network(cidr);
                match network.and_then(|network| cidr_states.get(&(&*node.name, network)).copied())
                {
                    Some(want) => Some(want),
                    // A CIDR that is not in the map was rejected. One of another address family
                    // does not count.
                    None => (!network
                        .is_some_and(|network| is_other_family(input.cluster, &network)))
                    .then_some(PodCidrState::Rejected),
                }
            };
            let wants: Vec<_> = node.pod_cidrs.iter().filter_map(want).collect();
            // A node that has only CIDRs of the other family is as unreachable as one with a
            // rejected CIDR.
            let wants = if wants.is_empty() {
                node.pod_cidrs
                    .iter()
                    .map(|_| PodCidrState::Rejected)
                    .collect()
            } else {
                wants
            };
            NodePlan { node: node.clone(), cidrs: wants }
        })
        .collect();
    plans.sort_by(|a, b| a.node.name.cmp(&b.node.name));
    plans
}

/// Tells whether no cluster CIDR is of this network's address family, as where `--cluster-cidr`
/// names one family of a dual-stack cluster. Then somebody else makes the routes of the family, and
/// missing ones do not make a node unavailable.
fn is_other_family(cluster: &[IpNet], network: &IpNet) -> bool {
    !cluster
        .iter()
        .any(|cluster| IpFamily::of(cluster) == IpFamily::of(network))
}

/// What the condition `NetworkUnavailable` says about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkStatus {
    /// All routes for its pod CIDRs exist: `False`, `RouteCreated`.
    Ready,
    /// Some are missing: `True`, `NoRouteCreated`.
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

    /// Returns the reason of the condition, upstream's.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Ready => "RouteCreated",
            Self::NotReady => "NoRouteCreated",
        }
    }

    /// Returns the message of the condition, upstream's.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Ready => "RouteController created a route",
            Self::NotReady => "RouteController failed to create a route",
        }
    }

    /// Tells whether the node already has the condition. As in upstream, only status and reason
    /// count.
    pub(crate) fn matches_condition(self, have: Option<&NodeCondition>) -> bool {
        have.is_some_and(|have| have.status == self.status() && &*have.reason == self.reason())
    }
}

/// Result of the creation of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateResult {
    Created,
    Failed,
    /// It was not attempted: the process is stopping, or the cloud is throttling and the node's
    /// first condition can wait.
    Unknown,
}

/// Decides a node's condition from its plan and from the results of the creations. `None` if a
/// result is unknown.
pub(crate) fn network_status(
    plan: &NodePlan,
    created: impl Fn(IpNet) -> CreateResult,
) -> Option<NetworkStatus> {
    let mut network = if plan.cidrs.is_empty() {
        NetworkStatus::NotReady
    } else {
        NetworkStatus::Ready
    };
    for want in &plan.cidrs {
        match want {
            PodCidrState::Routed => {}
            PodCidrState::Create(destination) => match created(*destination) {
                CreateResult::Created => {}
                CreateResult::Failed => network = NetworkStatus::NotReady,
                CreateResult::Unknown => return None,
            },
            PodCidrState::BackedOff | PodCidrState::Rejected => network = NetworkStatus::NotReady,
        }
    }
    Some(network)
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

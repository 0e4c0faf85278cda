//! What should change in the cloud's route table: a pure function from (nodes, routes, cluster networks, back-off, time)
//! to changes, and from their outcome to the nodes' `NetworkUnavailable` condition.
//!
//! A route is this controller's business when its destination lies within a cluster network. Upstream also takes one that
//! merely begins or ends in it, and deletes a wider route of somebody else (W17b).

mod foreign;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;

use self::foreign::Foreign;
use super::failures::{ChangeKey, Failures};
use crate::{
    k8s::{ConditionStatus, IpFamily, NodeCondition, NodeView},
    provider::Route,
};

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World<'a> {
    /// Nodes that the provider claims.
    pub(crate) ours: &'a [Arc<NodeView>],
    /// All others.
    pub(crate) foreign: &'a [Arc<NodeView>],
    /// Routes of the cloud.
    pub(crate) routes: &'a [Route],
    /// `--cluster-cidr`.
    pub(crate) cluster: &'a [IpNet],
    /// Changes that failed before.
    pub(crate) failures: &'a Failures,
    /// Time since the controller began.
    pub(crate) now: Duration,
}

/// What to do, and what to say. Equal for equal worlds, however their nodes and routes are ordered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Changes, one step per destination, in order of destinations.
    pub(crate) steps: Vec<Step>,
    /// Changes that are due later, because they failed.
    pub(crate) held: Vec<ChangeKey>,
    /// Our nodes that have or had pod networks, by name.
    pub(crate) nodes: Vec<NodePlan>,
    /// Pod networks that get no route.
    pub(crate) complaints: Vec<Complaint>,
    /// Routes that are this controller's business.
    pub(crate) responsible: usize,
}

/// The changes at one destination: what is deleted first, and what is created once that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) destination: IpNet,
    pub(crate) delete: Vec<Route>,
    pub(crate) create: Option<Arc<NodeView>>,
    /// Whether no node wants the destination.
    pub(crate) unwanted: bool,
}

/// A node and what becomes of its pod networks; none when it has no pod network any more, but still a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePlan {
    pub(crate) node: Arc<NodeView>,
    pub(crate) wants: Vec<Want>,
}

/// What becomes of a pod network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// The route is there.
    Kept,
    /// A step of the plan creates it.
    Create(IpNet),
    /// It is created later.
    Held,
    /// It gets none; there is a complaint about it.
    Refused,
}

/// A pod network that gets no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) node: Arc<NodeView>,
    /// The network, as the Node has it.
    pub(crate) cidr: Arc<str>,
    pub(crate) why: Refusal,
}

/// Why a pod network gets no route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    NotANetwork,
    OutsideCluster,
    /// A node of another cloud has (part of) it, or a route to there leads to one.
    Foreign,
    /// The named node has it, too.
    TakenBy(Arc<str>),
}

impl Complaint {
    /// Returns the event reason.
    pub(crate) fn reason(&self) -> &'static str {
        match self.why {
            Refusal::NotANetwork => "InvalidPodCIDR",
            Refusal::OutsideCluster => "PodCIDROutOfRange",
            Refusal::Foreign | Refusal::TakenBy(_) => "PodCIDRConflict",
        }
    }

    /// Returns the event's note.
    pub(crate) fn note(&self, cluster: &[IpNet]) -> String {
        let (name, cidr) = (&self.node.name, &self.cidr);
        match &self.why {
            Refusal::NotANetwork => format!("No route for node {name}: its pod CIDR {cidr:?} is not a network"),
            Refusal::OutsideCluster => {
                let cluster: Vec<_> = cluster.iter().map(ToString::to_string).collect();
                format!(
                    "No route for node {name}: its pod CIDR {cidr} is outside the cluster CIDR {}",
                    cluster.join(",")
                )
            }
            Refusal::Foreign => {
                format!("No route for node {name}: its pod CIDR {cidr} is also used by a node of another cloud")
            }
            Refusal::TakenBy(other) => {
                format!(
                    "No route for node {name}: its pod CIDR {cidr} is also that of node {other}, which has the route"
                )
            }
        }
    }
}

impl Plan {
    /// Tells whether so much would go away, because no node wants it, that the nodes should be read again first: more
    /// than half of several routes. A cache may lag, and the routes carry the traffic of the whole cluster.
    pub(crate) fn is_drastic(&self) -> bool {
        let unwanted: usize = self.steps.iter().filter(|step| step.unwanted).map(|step| step.delete.len()).sum();
        self.responsible > 1 && unwanted * 2 > self.responsible
    }

    /// Leaves alone what no node seems to want.
    pub(crate) fn spare_unwanted(&mut self) {
        self.steps.retain(|step| !step.unwanted);
    }

    /// Returns every change that is needed, now or later.
    pub(crate) fn needed(&self) -> HashSet<ChangeKey> {
        let keys = self.steps.iter().flat_map(|step| {
            let create = step.create.iter().map(|node| ChangeKey::create(node, step.destination));
            step.delete.iter().map(ChangeKey::delete).chain(create)
        });
        keys.chain(self.held.iter().cloned()).collect()
    }
}

/// Plans all changes.
pub(crate) fn plan(world: &World<'_>) -> Plan {
    let foreign = Foreign::new(world.foreign, world.routes);
    let listed = responsible_routes(world, &foreign);
    let Claims { claims, mut refused } = collect_claims(world, &foreign);
    let mut plan = Plan { responsible: listed.values().map(Vec::len).sum(), ..Plan::default() };
    let mut wants: HashMap<(&str, IpNet), Want> = HashMap::new();
    let destinations: BTreeSet<IpNet> = claims.keys().chain(listed.keys()).copied().collect();
    for destination in destinations {
        let routes = listed.get(&destination).map_or(&[][..], Vec::as_slice);
        let claims = claims.get(&destination).map_or(&[][..], Vec::as_slice);
        let owner = choose_owner(claims, routes);
        if let Some(owner) = owner {
            for loser in claims.iter().filter(|claim| claim.node.name != owner.name) {
                refused.push(loser.refused(Refusal::TakenBy(owner.name.clone())));
            }
            let want = plan_wanted(world, &mut plan, destination, owner, routes);
            wants.insert((&owner.name, destination), want);
        } else {
            plan_unwanted(world, &mut plan, destination, routes);
        }
    }
    refused.sort_by(|a, b| (&a.node.name, &a.cidr).cmp(&(&b.node.name, &b.cidr)));
    plan.complaints = refused;
    plan.nodes = node_plans(world, &listed, &wants);
    plan
}

/// A node's claim to a destination.
#[derive(Clone, Copy)]
struct Claim<'a> {
    node: &'a Arc<NodeView>,
    cidr: &'a Arc<str>,
}

impl Claim<'_> {
    fn refused(&self, why: Refusal) -> Complaint {
        Complaint { node: self.node.clone(), cidr: self.cidr.clone(), why }
    }
}

struct Claims<'a> {
    claims: BTreeMap<IpNet, Vec<Claim<'a>>>,
    refused: Vec<Complaint>,
}

/// Parses a pod CIDR; bits past the prefix are cleared, because the text of two equal networks may differ (W17g).
fn network(cidr: &str) -> Option<IpNet> {
    cidr.parse::<IpNet>().ok().map(|net| net.trunc())
}

fn is_within(cluster: &[IpNet], destination: &IpNet) -> bool {
    cluster.iter().any(|network| network.contains(destination))
}

/// Which destinations are wanted by which of our nodes, oldest first.
fn collect_claims<'a>(world: &World<'a>, foreign: &Foreign<'_>) -> Claims<'a> {
    let mut claims: BTreeMap<IpNet, Vec<Claim<'a>>> = BTreeMap::new();
    let mut refused = Vec::new();
    // A route of ours that is there beside theirs is not given up for it.
    let has_route = |node: &NodeView, net: &IpNet| {
        world.routes.iter().any(|route| route.destination.trunc() == *net && leads_to(route, node))
    };
    let is_taken = |node: &NodeView, net: &IpNet| foreign.has_route(net) && !has_route(node, net);
    for node in world.ours {
        for cidr in &node.pod_cidrs {
            let claim = Claim { node, cidr };
            let why = match network(cidr) {
                None => Refusal::NotANetwork,
                Some(net) if !is_within(world.cluster, &net) => Refusal::OutsideCluster,
                Some(net) if foreign.overlaps(&net) || is_taken(node, &net) => Refusal::Foreign,
                Some(net) => {
                    let same = claims.entry(net).or_default();
                    if !same.iter().any(|known| known.node.name == node.name) {
                        same.push(claim);
                    }
                    continue;
                }
            };
            refused.push(claim.refused(why));
        }
    }
    for same in claims.values_mut() {
        same.sort_by(|a, b| (a.node.created, &a.node.name).cmp(&(b.node.created, &b.node.name)));
    }
    Claims { claims, refused }
}

/// Routes that are this controller's business, by destination.
fn responsible_routes<'a>(world: &World<'a>, foreign: &Foreign<'_>) -> BTreeMap<IpNet, Vec<&'a Route>> {
    let mut listed: BTreeMap<IpNet, Vec<&Route>> = BTreeMap::new();
    for route in world.routes {
        let destination = route.destination.trunc();
        if is_within(world.cluster, &destination) && !foreign.concerns(route, &destination) {
            listed.entry(destination).or_default().push(route);
        }
    }
    for same in listed.values_mut() {
        same.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
    }
    listed
}

/// Of several nodes with one pod network the one whose route is there has it, otherwise the oldest: it never moves by
/// itself.
fn choose_owner<'a>(claims: &[Claim<'a>], routes: &[&Route]) -> Option<&'a Arc<NodeView>> {
    let has_route = |claim: &&Claim<'_>| routes.iter().any(|route| leads_to(route, claim.node));
    claims.iter().find(has_route).or(claims.first()).map(|claim| claim.node)
}

fn leads_to(route: &Route, node: &NodeView) -> bool {
    !route.blackhole && route.node.as_ref() == Some(&node.name)
}

/// Tells whether the route was made for the addresses that the node has now. Upstream's comparison: as many, and each of
/// the node's among them.
fn fits_addresses(route: &Route, node: &NodeView) -> bool {
    route.node_addresses.as_ref().is_none_or(|addresses| {
        addresses.len() == node.addresses.len() && node.addresses.iter().all(|address| addresses.contains(address))
    })
}

/// Plans a destination that a node wants.
fn plan_wanted(
    world: &World<'_>,
    plan: &mut Plan,
    destination: IpNet,
    owner: &Arc<NodeView>,
    routes: &[&Route],
) -> Want {
    let is_good = |route: &&&Route| leads_to(route, owner) && fits_addresses(route, owner);
    let is_there = routes.iter().any(|route| is_good(&route));
    let create = ChangeKey::create(owner, destination);
    let create_held = !is_there && world.failures.holds(&create, world.now);
    // A route that works, if for other addresses, is not taken away before it can be replaced.
    let spared = |route: &Route| create_held && leads_to(route, owner);
    let obsolete = routes.iter().filter(|route| !is_good(route) && !spared(route));
    let (held, delete): (Vec<_>, Vec<_>) =
        obsolete.partition(|route| world.failures.holds(&ChangeKey::delete(route), world.now));
    // What is to be created waits until everything else at the destination is gone (W17a).
    let blocked = create_held || !held.is_empty();
    plan.held.extend(held.into_iter().copied().map(ChangeKey::delete));
    let want = match (is_there, blocked) {
        (true, _) => Want::Kept,
        (false, true) => Want::Held,
        (false, false) => Want::Create(destination),
    };
    if want == Want::Held {
        plan.held.push(create);
    }
    let create = matches!(want, Want::Create(_)).then(|| owner.clone());
    if create.is_some() || !delete.is_empty() {
        let delete = delete.into_iter().map(|route| (*route).clone()).collect();
        plan.steps.push(Step { destination, delete, create, unwanted: false });
    }
    want
}

/// Plans a destination that no node wants.
fn plan_unwanted(world: &World<'_>, plan: &mut Plan, destination: IpNet, routes: &[&Route]) {
    let (held, delete): (Vec<_>, Vec<_>) =
        routes.iter().partition(|route| world.failures.holds(&ChangeKey::delete(route), world.now));
    plan.held.extend(held.into_iter().copied().map(ChangeKey::delete));
    if !delete.is_empty() {
        let delete = delete.into_iter().map(|route| (*route).clone()).collect();
        plan.steps.push(Step { destination, delete, create: None, unwanted: true });
    }
}

fn node_plans(
    world: &World<'_>,
    listed: &BTreeMap<IpNet, Vec<&Route>>,
    wants: &HashMap<(&str, IpNet), Want>,
) -> Vec<NodePlan> {
    let targets: HashSet<&str> = listed.values().flatten().filter_map(|route| route.node.as_deref()).collect();
    let concerned = world.ours.iter().filter(|node| !node.pod_cidrs.is_empty() || targets.contains(&*node.name));
    let mut plans: Vec<NodePlan> = concerned
        .map(|node| {
            let want = |cidr: &Arc<str>| {
                let network = network(cidr);
                match network.and_then(|network| wants.get(&(&*node.name, network)).copied()) {
                    Some(want) => Some(want),
                    // What is not in the map was refused.
                    None => (!network.is_some_and(|network| is_other_family(world.cluster, &network)))
                        .then_some(Want::Refused),
                }
            };
            let wants: Vec<_> = node.pod_cidrs.iter().filter_map(want).collect();
            // A node with nothing but networks of the other family is as unreachable as one with a foreign one.
            let wants = if wants.is_empty() { node.pod_cidrs.iter().map(|_| Want::Refused).collect() } else { wants };
            NodePlan { node: node.clone(), wants }
        })
        .collect();
    plans.sort_by(|a, b| a.node.name.cmp(&b.node.name));
    plans
}

/// Tells whether no cluster CIDR is of this network's family: then routes of the family are somebody else's business, as
/// where `--cluster-cidr` names one family of a dual-stack cluster, and do not make a node unavailable.
fn is_other_family(cluster: &[IpNet], network: &IpNet) -> bool {
    !cluster.iter().any(|cluster| IpFamily::of(cluster) == IpFamily::of(network))
}

/// What condition `NetworkUnavailable` says of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// All routes of its pod networks are there: `False`, `RouteCreated`.
    Ready,
    /// Some are not: `True`, `NoRouteCreated`.
    NotReady,
}

impl Network {
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

    /// Tells whether the node has the condition already. As upstream, status and reason count.
    pub(crate) fn is_shown_by(self, have: Option<&NodeCondition>) -> bool {
        have.is_some_and(|have| have.status == self.status() && &*have.reason == self.reason())
    }
}

/// How the creation of a route ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Created {
    Yes,
    No,
    /// It was not tried: the process is stopping, or the cloud wants a pause that the node's first condition can wait for.
    Unknown,
}

/// Decides a node's condition from its plan and from how the creations ended. `None` when nothing is known.
pub(crate) fn judge(plan: &NodePlan, created: impl Fn(IpNet) -> Created) -> Option<Network> {
    let mut network = if plan.wants.is_empty() { Network::NotReady } else { Network::Ready };
    for want in &plan.wants {
        match want {
            Want::Kept => {}
            Want::Create(destination) => match created(*destination) {
                Created::Yes => {}
                Created::No => network = Network::NotReady,
                Created::Unknown => return None,
            },
            Want::Held | Want::Refused => network = Network::NotReady,
        }
    }
    Some(network)
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

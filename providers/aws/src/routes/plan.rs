//! Determines which route a table has for a destination, whether it belongs to the cluster, and
//! whether to create, replace or delete it. Pure functions.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    str::FromStr,
    sync::Arc,
};

use ccm_core::{k8s::NodeView, provider};
use ipnet::IpNet;

use crate::{
    api::{
        EniId, InstanceId, RouteTableId,
        ec2::{Route, RouteTable, RouteTarget},
    },
    instances::Instance,
};

/// Target of a route that may belong to the cluster. EC2 names only the interface, and not its
/// instance, for some routes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum RouteHop {
    Instance(InstanceId),
    Interface(EniId),
}

/// The route to a destination in one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExistingRoute {
    /// No route.
    None,
    /// A route to a gateway, a NAT gateway, a peering connection or anything else that is not an
    /// instance, with its target. It is never changed.
    Foreign(Box<str>),
    /// A route to an instance or an interface.
    Hop { hop: RouteHop, blackhole: bool },
}

/// Desired target of a node's routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeTarget {
    pub(super) instance: InstanceId,
    /// The primary interface if the instance has several interfaces, because EC2 then does not
    /// accept the instance as a target.
    pub(super) interface: Option<EniId>,
    /// All interfaces of the instance.
    pub(super) interfaces: Vec<EniId>,
    /// True unless the source/destination check is known to be disabled. With the check, the target
    /// drops packets of pods.
    pub(super) source_dest_check: bool,
}

/// Action that creates a route in one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CreateAction {
    /// The route exists already.
    Done,
    Create,
    /// Replace an existing blackhole route, or a route to another instance of the cluster.
    Replace,
    /// Fail, because the destination has a foreign route, with its target.
    DestinationInUse(Box<str>),
}

/// Action that deletes a route from one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeleteAction {
    /// The route does not exist any more.
    Done,
    Delete,
    /// Fail, because the route was a blackhole when it was listed, but now has a working target.
    RouteInUse,
}

/// Target and tables of a listed route. Its text is the name of the [`provider::Route`], so that a
/// route can be deleted as it was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RouteHandle {
    pub(super) hop: RouteHop,
    pub(super) tables: Vec<RouteTableId>,
}

/// Nodes by their instances and network interfaces.
#[derive(Clone, Debug, Default)]
pub(super) struct NodesByHop {
    by_hop: HashMap<RouteHop, Vec<Arc<NodeView>>>,
}

impl fmt::Display for RouteHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance(id) => write!(f, "{id}"),
            Self::Interface(id) => write!(f, "{id}"),
        }
    }
}

impl FromStr for RouteHop {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text.starts_with("i-") {
            Ok(Self::Instance(text.into()))
        } else if text.starts_with("eni-") {
            Ok(Self::Interface(text.into()))
        } else {
            Err(())
        }
    }
}

impl fmt::Display for RouteHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in ", self.hop)?;
        for (i, table) in self.tables.iter().enumerate() {
            write!(f, "{}{table}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for RouteHandle {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (hop, tables) = text.split_once(" in ").ok_or(())?;
        let tables: Vec<RouteTableId> = tables
            .split(',')
            .filter(|id| !id.is_empty())
            .map(Into::into)
            .collect();
        if tables.is_empty() {
            Err(())
        } else {
            Ok(Self { hop: hop.parse()?, tables })
        }
    }
}

impl NodeTarget {
    /// Determines the route target for an instance. Returns `None` if it has several interfaces and
    /// no primary one.
    pub(super) fn for_instance(instance: &Instance) -> Option<Self> {
        let interfaces = &instance.interfaces;
        let attached = interfaces
            .iter()
            .filter(|interface| interface.device_index.is_some())
            .count();
        let primary = instance.primary_interface();
        let primary_check = primary.and_then(|interface| interface.source_dest_check);
        // With several interfaces, the target is the primary one, so its check takes precedence.
        let interface;
        let source_dest_check;
        if attached > 1 {
            interface = Some(primary?.id.clone());
            source_dest_check = primary_check.or(instance.source_dest_check);
        } else {
            interface = None;
            source_dest_check = instance.source_dest_check.or(primary_check);
        }
        Some(Self {
            instance: instance.id.clone(),
            interface,
            interfaces: interfaces
                .iter()
                .map(|interface| interface.id.clone())
                .collect(),
            source_dest_check: source_dest_check != Some(false),
        })
    }

    pub(super) fn to_route(&self) -> RouteTarget {
        match &self.interface {
            Some(interface) => RouteTarget::Interface(interface.clone()),
            None => RouteTarget::Instance(self.instance.clone()),
        }
    }

    /// Returns true if a hop leads to this instance, directly or through one of its interfaces.
    pub(super) fn has_hop(&self, hop: &RouteHop) -> bool {
        match hop {
            RouteHop::Instance(id) => *id == self.instance,
            RouteHop::Interface(id) => self.interfaces.contains(id),
        }
    }
}

impl fmt::Display for NodeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            Some(interface) => write!(f, "{interface} of {}", self.instance),
            None => write!(f, "{}", self.instance),
        }
    }
}

impl NodesByHop {
    /// Adds a node with its instance.
    pub(super) fn add(&mut self, instance: InstanceId, node: &Arc<NodeView>) {
        self.by_hop
            .entry(RouteHop::Instance(instance))
            .or_default()
            .push(node.clone());
    }

    /// Adds the interfaces of a node's instance.
    pub(super) fn add_interfaces(&mut self, instance: &Instance) {
        let Some(nodes) = self
            .by_hop
            .get(&RouteHop::Instance(instance.id.clone()))
            .cloned()
        else {
            return;
        };
        for interface in &instance.interfaces {
            self.by_hop
                .insert(RouteHop::Interface(interface.id.clone()), nodes.clone());
        }
    }

    pub(super) fn contains(&self, hop: &RouteHop) -> bool {
        self.by_hop.contains_key(hop)
    }

    /// Returns the node of a hop. If an instance has several Nodes, the one with the destination as
    /// pod CIDR is preferred.
    fn find(&self, hop: &RouteHop, destination: &IpNet) -> Option<&Arc<NodeView>> {
        let nodes = self.by_hop.get(hop)?;
        let with_pod_cidr = nodes.iter().find(|node| has_pod_cidr(node, destination));
        with_pod_cidr.or_else(|| nodes.iter().min_by(|a, b| a.name.cmp(&b.name)))
    }

    /// Returns true if a hop leads to the node that has the destination as pod CIDR.
    fn leads_to_pod_cidr(&self, hop: &RouteHop, destination: &IpNet) -> bool {
        self.find(hop, destination)
            .is_some_and(|node| has_pod_cidr(node, destination))
    }
}

fn has_pod_cidr(node: &NodeView, destination: &IpNet) -> bool {
    node.pod_cidrs.iter().any(|cidr| {
        cidr.parse::<IpNet>()
            .is_ok_and(|net| net.trunc() == *destination)
    })
}

/// Returns a route's target if it is an instance or an interface.
fn hop_of(route: &Route) -> Option<RouteHop> {
    if route.gateway.is_some() {
        return None;
    }
    if let Some(instance) = &route.instance {
        return Some(RouteHop::Instance(instance.clone()));
    }
    let interface = route.interface.as_ref()?;
    Some(RouteHop::Interface(interface.clone()))
}

/// Returns the route to a destination in a table.
pub(super) fn existing_route(table: &RouteTable, destination: &IpNet) -> ExistingRoute {
    let Some(route) = table.routes.iter().find(|route| {
        route
            .destination
            .is_some_and(|net| net.trunc() == destination.trunc())
    }) else {
        return ExistingRoute::None;
    };
    if let Some(hop) = hop_of(route) {
        return ExistingRoute::Hop { hop, blackhole: route.blackhole };
    }
    match &route.gateway {
        Some(gateway) => ExistingRoute::Foreign(gateway.clone()),
        None => ExistingRoute::Foreign("something that is not an instance".into()),
    }
}

/// Updates a cached table after a change: replaces its route to the destination, or deletes it if
/// there is no target.
pub(super) fn record_change(
    table: &mut RouteTable,
    destination: IpNet,
    target: Option<&NodeTarget>,
) {
    table
        .routes
        .retain(|route| route.destination != Some(destination));
    if let Some(target) = target {
        table.routes.push(Route {
            destination: Some(destination),
            blackhole: false,
            instance: Some(target.instance.clone()),
            interface: target.interface.clone(),
            gateway: None,
        });
    }
}

/// Returns the targets of routes that do not belong to a node.
pub(super) fn unmatched_hops(tables: &[RouteTable], nodes: &NodesByHop) -> Vec<RouteHop> {
    let mut unmatched = BTreeSet::new();
    for route in tables.iter().flat_map(|table| &table.routes) {
        if route.blackhole {
            continue;
        }
        if let Some(hop) = hop_of(route)
            && !nodes.contains(&hop)
        {
            unmatched.insert(hop);
        }
    }
    unmatched.into_iter().collect()
}

/// A route that may be in several tables.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ListedRoute {
    destination: IpNet,
    hop: RouteHop,
    blackhole: bool,
}

/// Lists the routes to instances, and blackhole routes, except routes to hops for which
/// `is_foreign` is true.
///
/// A blackhole route to the instance of the node that has the pod CIDR is listed as if it were not
/// a blackhole. The instance is stopped, so recreating the route in every pass would not change
/// anything.
///
/// A route that is only in some of several tables is omitted if its node has the pod CIDR. The
/// route controller then creates it in the others. If no node has the pod CIDR, the route is
/// listed, and the route controller deletes it.
pub(super) fn list_routes(
    tables: &[RouteTable],
    nodes: &NodesByHop,
    is_foreign: impl Fn(&RouteHop) -> bool,
) -> Vec<provider::Route> {
    // First, collect the tables of each route.
    let mut tables_by_route: BTreeMap<ListedRoute, Vec<RouteTableId>> = BTreeMap::new();
    for table in tables {
        for route in &table.routes {
            let (Some(destination), Some(hop)) = (route.destination, hop_of(route)) else {
                continue;
            };
            let destination = destination.trunc();
            let blackhole = route.blackhole && !nodes.leads_to_pod_cidr(&hop, &destination);
            if blackhole || nodes.contains(&hop) || !is_foreign(&hop) {
                tables_by_route
                    .entry(ListedRoute { destination, hop, blackhole })
                    .or_default()
                    .push(table.id.clone());
            }
        }
    }
    // Then list each route once, with its node.
    let mut routes = Vec::new();
    for (route, mut tables_with_route) in tables_by_route {
        let ListedRoute { destination, hop, blackhole } = route;
        tables_with_route.sort();
        let is_partial = tables_with_route.len() < tables.len();
        let mut node = None;
        if !blackhole {
            if is_partial && nodes.leads_to_pod_cidr(&hop, &destination) {
                continue;
            }
            node = nodes.find(&hop, &destination);
        }
        let node = node.map(|node| node.name.clone());
        let name = RouteHandle { hop, tables: tables_with_route }
            .to_string()
            .into();
        routes.push(provider::Route { name, node, node_addresses: None, destination, blackhole });
    }
    routes
}

/// Determines how to create a route to `target` in a table. `is_foreign` returns true for hops that
/// do not belong to the cluster.
pub(super) fn plan_creation(
    existing_route: &ExistingRoute,
    target: &NodeTarget,
    is_foreign: impl Fn(&RouteHop) -> bool,
) -> CreateAction {
    match existing_route {
        ExistingRoute::None => CreateAction::Create,
        ExistingRoute::Foreign(target) => CreateAction::DestinationInUse(target.clone()),
        // The route may be a blackhole because the instance is stopped.
        ExistingRoute::Hop { hop, .. } if target.has_hop(hop) => CreateAction::Done,
        ExistingRoute::Hop { hop, blackhole: false } if is_foreign(hop) => {
            CreateAction::DestinationInUse(hop.to_string().into())
        }
        ExistingRoute::Hop { .. } => CreateAction::Replace,
    }
}

/// Determines how to delete a route, which was listed with this hop, from a table.
pub(super) fn plan_deletion(
    existing_route: &ExistingRoute,
    listed_hop: &RouteHop,
    was_blackhole: bool,
) -> DeleteAction {
    match existing_route {
        ExistingRoute::Hop { hop, blackhole } if hop == listed_hop => {
            if was_blackhole && !blackhole {
                DeleteAction::RouteInUse
            } else {
                DeleteAction::Delete
            }
        }
        _ => DeleteAction::Done,
    }
}

#[cfg(test)]
mod tests;

//! Nodes and their instances: existence, power state, addresses, zone, type, topology.
//!
//! Everything about EC2 instances comes from one [`InstanceCache`], which load balancers and routes
//! use as well. [`Ec2Instances`] determines what each Node is (an instance by ID, an instance by
//! name, or a Fargate node), fetches all of a kind together, and then fetches labels only for those
//! Nodes that lack them.
//!
//! # When a Node counts as not found
//!
//! [`InstanceStatus::NotFound`] is returned
//! - for an instance ID when AWS rejects a request for this ID alone with
//!   `InvalidInstanceID.NotFound`, or when a successful answer to a request for it lacks it;
//! - for a name only when EC2 itself assigns such names in this region and complete listings
//!   contain no such instance, tagged or not;
//! - for a Fargate node when a complete listing of the VPC's attached interfaces contains none with
//!   its address.
//!
//! Every other answer is an error. So are all of these when the provider ID names a zone of another
//! region, because no request was sent to that region. A provider ID without a zone, or with an
//! invalid one, is no reason for an error.

pub mod addresses;
mod by_name;
mod cache;
mod fargate;
mod fetch;
mod instance;
pub mod plan;
pub mod topology;
pub mod zones;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::Ipv4Addr,
    num::NonZeroUsize,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use ccm_core::{
    k8s::NodeView,
    provider::{
        BatchLimits, CloudError, InstanceMetadata, InstanceQuery, InstanceStatus, Instances,
        MetadataScope, Op, PowerState,
    },
};
use parking_lot::Mutex;

use self::topology::Topology;
pub use self::{
    cache::{InstanceCache, InstanceLookup},
    instance::{Instance, Interface},
};
use crate::{
    api::{AwsError, InstanceId, ec2::NetworkInterface},
    environment::region_of_zone,
    provider_id::{self, ProviderId},
    scope::Scope,
};

/// Label with the ID of the zone.
pub const ZONE_ID_LABEL: &str = "topology.k8s.aws/zone-id";
/// Label with the outermost network node. Labels of the inner layers count up from 1.
pub const FIRST_LAYER_LABEL: &str = "topology.k8s.aws/network-node-layer-1";
/// Prefix of [`FIRST_LAYER_LABEL`] and the labels of the inner layers.
const LAYER_LABEL_PREFIX: &str = "topology.k8s.aws/network-node-layer-";
/// Labels that `describe` reads: values that a Node already has are not fetched again.
pub const NODE_LABELS: [&str; 2] = [ZONE_ID_LABEL, FIRST_LAYER_LABEL];

/// Greatest age of an answer about existence and power state, whatever the query allows.
const POWER_AGE: Duration = Duration::from_secs(10);
/// Maximum number of Nodes with malformed instance IDs that are remembered, so that each is logged
/// once.
const MAX_LOGGED: usize = 10_000;

/// [`Instances`] for EC2 instances and Fargate nodes.
pub struct Ec2Instances {
    scope: Scope,
    instance_cache: Arc<InstanceCache>,
    topology: Topology,
    logged: Mutex<HashSet<Arc<str>>>,
}

/// How to find the compute resource of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NodeTarget {
    Instance(InstanceId),
    Fargate(Ipv4Addr),
    Named(Arc<str>),
}

/// The compute resource found for a Node.
enum ComputeResource {
    Instance(Arc<Instance>),
    Fargate(Arc<NetworkInterface>),
}

impl Ec2Instances {
    /// Creates the instances capability. The cache is shared with load balancers and routes.
    pub fn new(scope: Scope, instance_cache: Arc<InstanceCache>) -> Self {
        let topology = Topology::default();
        let logged = Mutex::default();
        Self { scope, instance_cache, topology, logged }
    }

    /// Finds the compute resources of Nodes: one result per query.
    async fn resolve_nodes(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Vec<Result<Option<ComputeResource>, CloudError>> {
        let targets: Vec<_> = queries
            .iter()
            .map(|query| target_of_node(&query.node))
            .collect();
        let mut ids: HashMap<InstanceId, Duration> = HashMap::new();
        let mut names: HashMap<Arc<str>, Duration> = HashMap::new();
        let mut addresses = BTreeSet::new();
        for (query, target) in queries.iter().zip(&targets) {
            let age = max_age(query);
            match target {
                Ok(NodeTarget::Instance(id)) => keep_stricter(&mut ids, id, age),
                Ok(NodeTarget::Named(name)) => keep_stricter(&mut names, name, age),
                Ok(NodeTarget::Fargate(address)) => drop(addresses.insert(*address)),
                Err(_) => {}
            }
        }
        let (by_id, by_name, by_address) = tokio::join!(
            self.instance_cache.get_each(op, ids),
            by_name::find(op, &self.instance_cache, &names),
            fargate::find(op, &self.scope, &addresses)
        );
        let lost = || Err(CloudError::transient("there is no answer for the node"));
        let one = |(query, target): (&InstanceQuery, Result<NodeTarget, CloudError>)| match target?
        {
            NodeTarget::Instance(id) => by_id.get(&id).map_or_else(lost, |known| match known {
                Ok(instance) => Ok(instance.clone().map(ComputeResource::Instance)),
                Err(error) => Err(self.failed(&query.node, error)),
            }),
            NodeTarget::Named(name) => by_name
                .get(&name)
                .map_or_else(lost, |known| Ok(known.clone()?.map(ComputeResource::Instance))),
            NodeTarget::Fargate(address) => by_address
                .get(&address)
                .map_or_else(lost, |known| Ok(known.clone()?.map(ComputeResource::Fargate))),
        };
        queries.iter().zip(targets).map(one).collect()
    }

    /// Converts the error of a node, and logs once per node that its instance ID is malformed.
    fn failed(&self, node: &NodeView, error: &AwsError) -> CloudError {
        if error.has_code(fetch::INSTANCE_ID_MALFORMED) {
            let mut logged = self.logged.lock();
            if logged.len() >= MAX_LOGGED {
                logged.clear();
            }
            if logged.insert(node.name.clone()) {
                tracing::warn!(node = %node.name, provider_id = node.provider_id.as_deref(), error = %error, "no instance can have this ID; the node is left alone");
            }
        }
        error.clone().into()
    }

    /// Fetches the labels of those compute resources that need them.
    async fn labels(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
        machines: &[Result<Option<ComputeResource>, CloudError>],
    ) -> Labels {
        let mut zones = BTreeSet::new();
        let mut instances = Vec::new();
        for (query, machine) in queries.iter().zip(machines) {
            let Ok(Some(machine)) = machine else { continue };
            if !needs_labels(query, machine) {
                continue;
            }
            if is_missing_zone_id(&query.node, machine) {
                zones.insert(machine.zone());
            }
            if let (ComputeResource::Instance(instance), true) =
                (machine, is_missing_layers(&query.node))
            {
                instances.push((instance.id.clone(), instance.instance_type.clone()));
            }
        }
        let client = &self.scope.client;
        let (zones, layers) = tokio::join!(
            self.instance_cache.zones().ids(op, client, &zones),
            self.topology
                .of(op, client, &self.scope.settings.topology_types, &instances)
        );
        Labels { zones: zones.map_err(CloudError::from), layers }
    }

    /// Returns `NotFound`, unless the node may be in a region to which no request was sent.
    fn not_found_status(&self, node: &NodeView) -> Result<InstanceStatus, CloudError> {
        let zone = node.provider_id.as_deref().and_then(provider_id::zone_of);
        match zone.and_then(|zone| region_of_zone(zone).ok()) {
            Some(region) if *region != *self.scope.region => {
                Err(CloudError::invalid_input(format!(
                    "node {} is in region {region} by its provider ID, and this manager works in {}",
                    node.name, self.scope.region
                )))
            }
            _ => Ok(InstanceStatus::NotFound),
        }
    }

    fn instance_status(
        &self,
        query: &InstanceQuery,
        machine: Option<&ComputeResource>,
        labels: &Labels,
    ) -> Result<InstanceStatus, CloudError> {
        let Some(machine) = machine else {
            return self.not_found_status(&query.node);
        };
        let power = machine.power();
        let mut meta = InstanceMetadata {
            provider_id: query
                .node
                .provider_id
                .as_deref()
                .map(Box::from)
                .or_else(|| machine.provider_id()),
            instance_type: some(machine.instance_type()),
            zone: some(&machine.zone()),
            region: some(&self.scope.region),
            ..InstanceMetadata::default()
        };
        if query.scope >= MetadataScope::Addresses && power != PowerState::Terminated {
            let families = &self.scope.settings.node_ip_families;
            meta.addresses = match machine {
                ComputeResource::Instance(instance) => addresses::of_instance(instance, families)?,
                ComputeResource::Fargate(interface) => {
                    addresses::of_interface(interface, families)?
                }
            };
        }
        if needs_labels(query, machine) {
            meta.additional_labels = labels.of(&query.node, machine)?;
        }
        Ok(InstanceStatus::Found { power_state: power, meta })
    }
}

#[async_trait]
impl Instances for Ec2Instances {
    /// 1,000 nodes, the maximum of one request; two batches in flight, since the cache sends one
    /// request after the other anyway. Nodes that appear together are batched for 100 ms, as
    /// upstream does.
    fn limits(&self) -> BatchLimits {
        const BATCH: NonZeroUsize = NonZeroUsize::new(plan::MAX_IDS).expect("not zero");
        const IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(2).expect("not zero");
        BatchLimits {
            max_batch: BATCH,
            max_in_flight: IN_FLIGHT,
            batch_window: Duration::from_millis(100),
        }
    }

    /// Costs one call for up to 1,000 instances, and none for those that are in the cache and no
    /// older than `max_age` (10 s at most for queries about existence and power state). Labels cost
    /// one call per day for the zones, and one per 100 instances of types with a network topology.
    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
        let machines = self.resolve_nodes(op, queries).await;
        let labels = self.labels(op, queries, &machines).await;
        let answer =
            |(query, machine): (&InstanceQuery, Result<Option<ComputeResource>, CloudError>)| {
                self.instance_status(query, machine?.as_ref(), &labels)
            };
        Ok(queries.iter().zip(machines).map(answer).collect())
    }
}

impl ComputeResource {
    fn power(&self) -> PowerState {
        match self {
            Self::Instance(instance) => instance.power(),
            // A Fargate pod cannot be shut down: its interface exists as long as the pod does.
            Self::Fargate(_) => PowerState::Running,
        }
    }

    fn zone(&self) -> Arc<str> {
        match self {
            Self::Instance(instance) => instance.zone.clone(),
            Self::Fargate(interface) => (&*interface.zone).into(),
        }
    }

    fn instance_type(&self) -> &str {
        match self {
            Self::Instance(instance) => &instance.instance_type,
            Self::Fargate(_) => "",
        }
    }

    fn provider_id(&self) -> Option<Box<str>> {
        match self {
            Self::Instance(instance) => Some(
                ProviderId::instance(&instance.zone, instance.id.clone())
                    .to_string()
                    .into(),
            ),
            // It was found by the provider ID that the Node has.
            Self::Fargate(_) => None,
        }
    }
}

/// Fetched values of labels.
struct Labels {
    zones: Result<BTreeMap<Arc<str>, Arc<str>>, CloudError>,
    layers: HashMap<InstanceId, Result<topology::Layers, AwsError>>,
}

impl Labels {
    fn of(
        &self,
        node: &NodeView,
        machine: &ComputeResource,
    ) -> Result<BTreeMap<Box<str>, Box<str>>, CloudError> {
        let mut labels = BTreeMap::new();
        if is_missing_zone_id(node, machine) {
            let zone = machine.zone();
            let id = self.zones.as_ref().map_err(Clone::clone)?.get(&zone);
            let id = id.ok_or_else(|| {
                CloudError::transient(format!("zone {zone:?} is not among those of the region"))
            })?;
            labels.insert(ZONE_ID_LABEL.into(), (&**id).into());
        }
        let ComputeResource::Instance(instance) = machine else {
            return Ok(labels);
        };
        if let (true, Some(layers)) = (is_missing_layers(node), self.layers.get(&instance.id)) {
            for (layer, network_node) in (1..).zip(
                layers
                    .as_ref()
                    .map_err(|error| CloudError::from(error.clone()))?
                    .iter(),
            ) {
                labels.insert(format!("{LAYER_LABEL_PREFIX}{layer}").into(), network_node.clone());
            }
        }
        Ok(labels)
    }
}

fn needs_labels(query: &InstanceQuery, machine: &ComputeResource) -> bool {
    query.scope >= MetadataScope::All && machine.power() != PowerState::Terminated
}

fn is_missing_zone_id(node: &NodeView, machine: &ComputeResource) -> bool {
    !node.labels.contains(ZONE_ID_LABEL) && !machine.zone().is_empty()
}

fn is_missing_layers(node: &NodeView) -> bool {
    !node.labels.contains(FIRST_LAYER_LABEL)
}

/// Determines how to find a Node: by its provider ID, or else by its name, which may itself be an
/// instance ID.
fn target_of_node(node: &NodeView) -> Result<NodeTarget, CloudError> {
    match ProviderId::of(node)? {
        Some(ProviderId::Instance { id, .. }) => Ok(NodeTarget::Instance(id)),
        Some(ProviderId::Fargate { id }) => fargate::address_of(&id).map(NodeTarget::Fargate),
        None if node.name.is_empty() => {
            Err(CloudError::invalid_input("the node has neither provider ID nor name"))
        }
        None => Ok(match node.name.split('.').next() {
            Some(id) if id.starts_with("i-") => NodeTarget::Instance(id.into()),
            _ => NodeTarget::Named(node.name.clone()),
        }),
    }
}

fn max_age(query: &InstanceQuery) -> Duration {
    if query.scope == MetadataScope::PowerState {
        query.max_age.min(POWER_AGE)
    } else {
        query.max_age
    }
}

fn keep_stricter<K: Clone + Eq + std::hash::Hash>(
    ages: &mut HashMap<K, Duration>,
    key: &K,
    age: Duration,
) {
    ages.entry(key.clone())
        .and_modify(|known| *known = age.min(*known))
        .or_insert(age);
}

fn some(text: &str) -> Option<Box<str>> {
    (!text.is_empty()).then(|| text.into())
}

#[cfg(test)]
mod tests;

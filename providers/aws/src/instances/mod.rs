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
pub mod network_topology;
pub mod plan;
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

use self::{by_name::NameLookup, fargate::InterfaceLookup, network_topology::Topology};
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

/// Results of looking up the targets of nodes.
struct NodeLookups {
    instances: HashMap<InstanceId, InstanceLookup>,
    named_instances: HashMap<Arc<str>, NameLookup>,
    interfaces: HashMap<Ipv4Addr, InterfaceLookup>,
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
        // Each instance is looked up once, with the smallest maximum age of its queries.
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
        let (instances, named_instances, interfaces) = tokio::join!(
            self.instance_cache.get_each(op, ids),
            by_name::find(op, &self.instance_cache, &names),
            fargate::find(op, &self.scope, &addresses)
        );
        let lookups = NodeLookups { instances, named_instances, interfaces };
        let mut resources = Vec::with_capacity(queries.len());
        for (query, target) in queries.iter().zip(targets) {
            let resource = match target {
                Ok(target) => self.resource_of_node(&query.node, &target, &lookups),
                Err(error) => Err(error),
            };
            resources.push(resource);
        }
        resources
    }

    /// Finds the compute resource of a node in the lookups.
    fn resource_of_node(
        &self,
        node: &NodeView,
        target: &NodeTarget,
        lookups: &NodeLookups,
    ) -> Result<Option<ComputeResource>, CloudError> {
        match target {
            NodeTarget::Instance(id) => match lookups.instances.get(id).ok_or_else(no_answer)? {
                Ok(instance) => Ok(instance.clone().map(ComputeResource::Instance)),
                Err(error) => Err(self.lookup_error(node, error)),
            },
            NodeTarget::Named(name) => {
                let instance = lookups
                    .named_instances
                    .get(name)
                    .ok_or_else(no_answer)?
                    .clone()?;
                Ok(instance.map(ComputeResource::Instance))
            }
            NodeTarget::Fargate(address) => {
                let interface = lookups.interfaces.get(address).ok_or_else(no_answer)?;
                Ok(interface.clone()?.map(ComputeResource::Fargate))
            }
        }
    }

    /// Converts the error of a node, and logs once per node that its instance ID is malformed.
    fn lookup_error(&self, node: &NodeView, error: &AwsError) -> CloudError {
        if error.has_code(fetch::INSTANCE_ID_MALFORMED) {
            let mut logged = self.logged.lock();
            if logged.len() >= MAX_LOGGED {
                logged.clear();
            }
            if logged.insert(node.name.clone()) {
                tracing::warn!(node = %node.name, provider_id = node.provider_id.as_deref(), error = %error, "no instance can have this ID; skipping the node");
            }
        }
        error.clone().into()
    }

    /// Fetches the labels of those compute resources that need them.
    async fn labels(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
        resources: &[Result<Option<ComputeResource>, CloudError>],
    ) -> Labels {
        let mut zones = BTreeSet::new();
        let mut instances = Vec::new();
        for (query, resource) in queries.iter().zip(resources) {
            let Ok(Some(resource)) = resource else {
                continue;
            };
            if !needs_labels(query, resource) {
                continue;
            }
            if is_missing_zone_id(&query.node, resource) {
                zones.insert(resource.zone());
            }
            if let ComputeResource::Instance(instance) = resource
                && is_missing_layers(&query.node)
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
        if let Some(zone) = zone
            && let Ok(region) = region_of_zone(zone)
            && *region != *self.scope.region
        {
            return Err(CloudError::invalid_input(format!(
                "node {} is in region {region} by its provider ID, and this manager works in {}",
                node.name, self.scope.region
            )));
        }
        Ok(InstanceStatus::NotFound)
    }

    fn instance_status(
        &self,
        query: &InstanceQuery,
        resource: Option<&ComputeResource>,
        labels: &Labels,
    ) -> Result<InstanceStatus, CloudError> {
        let Some(resource) = resource else {
            return self.not_found_status(&query.node);
        };
        let power = resource.power();
        let mut meta = InstanceMetadata {
            provider_id: match &query.node.provider_id {
                Some(provider_id) => Some((&**provider_id).into()),
                None => resource.provider_id(),
            },
            instance_type: non_empty(resource.instance_type()),
            zone: non_empty(&resource.zone()),
            region: non_empty(&self.scope.region),
            ..InstanceMetadata::default()
        };
        if query.scope >= MetadataScope::Addresses && power != PowerState::Terminated {
            let families = &self.scope.settings.node_ip_families;
            meta.addresses = match resource {
                ComputeResource::Instance(instance) => addresses::of_instance(instance, families)?,
                ComputeResource::Fargate(interface) => {
                    addresses::of_interface(interface, families)?
                }
            };
        }
        if needs_labels(query, resource) {
            meta.additional_labels = labels.of(&query.node, resource)?;
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
        let resources = self.resolve_nodes(op, queries).await;
        let labels = self.labels(op, queries, &resources).await;
        let mut statuses = Vec::with_capacity(queries.len());
        for (query, resource) in queries.iter().zip(resources) {
            statuses.push(match resource {
                Ok(resource) => self.instance_status(query, resource.as_ref(), &labels),
                Err(error) => Err(error),
            });
        }
        Ok(statuses)
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
    layers: HashMap<InstanceId, Result<network_topology::Layers, AwsError>>,
}

impl Labels {
    fn of(
        &self,
        node: &NodeView,
        resource: &ComputeResource,
    ) -> Result<BTreeMap<Box<str>, Box<str>>, CloudError> {
        let mut labels = BTreeMap::new();
        if is_missing_zone_id(node, resource) {
            let zone = resource.zone();
            let zone_ids = self.zones.as_ref().map_err(Clone::clone)?;
            let Some(id) = zone_ids.get(&zone) else {
                let message = format!("zone {zone:?} is not among those of the region");
                return Err(CloudError::transient(message));
            };
            labels.insert(ZONE_ID_LABEL.into(), (&**id).into());
        }
        let ComputeResource::Instance(instance) = resource else {
            return Ok(labels);
        };
        if is_missing_layers(node)
            && let Some(layers) = self.layers.get(&instance.id)
        {
            let layers = layers
                .as_ref()
                .map_err(|error| CloudError::from(error.clone()))?;
            for (layer, network_node) in (1..).zip(layers.iter()) {
                labels.insert(format!("{LAYER_LABEL_PREFIX}{layer}").into(), network_node.clone());
            }
        }
        Ok(labels)
    }
}

fn no_answer() -> CloudError {
    CloudError::transient("there is no answer for the node")
}

fn needs_labels(query: &InstanceQuery, resource: &ComputeResource) -> bool {
    query.scope >= MetadataScope::All && resource.power() != PowerState::Terminated
}

fn is_missing_zone_id(node: &NodeView, resource: &ComputeResource) -> bool {
    !node.labels.contains(ZONE_ID_LABEL) && !resource.zone().is_empty()
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
        None => {
            let host = node.name.split('.').next().unwrap_or_default();
            if host.starts_with("i-") {
                Ok(NodeTarget::Instance(host.into()))
            } else {
                Ok(NodeTarget::Named(node.name.clone()))
            }
        }
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
        .and_modify(|strictest| *strictest = age.min(*strictest))
        .or_insert(age);
}

fn non_empty(text: &str) -> Option<Box<str>> {
    if text.is_empty() {
        None
    } else {
        Some(text.into())
    }
}

#[cfg(test)]
mod tests;

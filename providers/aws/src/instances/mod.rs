//! Nodes and their instances: existence, power state, addresses, zone, type, topology.
//!
//! All data about EC2 instances comes from one [`InstanceCache`], which load balancers and routes
//! use as well. [`Ec2Instances`] determines how to find each Node (by instance ID, by name, or as a
//! Fargate node), queries all Nodes of a kind together, and then fetches labels only for those
//! Nodes that lack them.
//!
//! # When a Node counts as not found
//!
//! [`InstanceStatus::NotFound`] is returned
//! - for an instance ID if AWS rejects a request for this ID alone with
//!   `InvalidInstanceID.NotFound`, or if a successful answer to a request for it lacks it;
//! - for a name only if EC2 itself assigns such names in this region and complete listings contain
//!   no such instance, tagged or not;
//! - for a Fargate node if a complete listing of the VPC's attached interfaces contains none with
//!   its address.
//!
//! Every other answer is an error. These answers are errors, too, if the provider ID names a zone
//! of another region, because no request was sent to that region. A provider ID without a zone, or
//! with an invalid one, is accepted.

pub mod addresses;
pub mod batching;
mod by_name;
mod cache;
mod fargate;
mod fetch;
mod instance;
pub mod network_topology;
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

/// Label with the ID of the node's zone, such as `usw2-az1`.
pub const ZONE_ID_LABEL: &str = "topology.k8s.aws/zone-id";
/// Label with the outermost network node above the instance. The labels of the inner layers end in
/// 2, 3 and so on.
pub const FIRST_LAYER_LABEL: &str = "topology.k8s.aws/network-node-layer-1";
/// Prefix of [`FIRST_LAYER_LABEL`] and the labels of the inner layers.
const LAYER_LABEL_PREFIX: &str = "topology.k8s.aws/network-node-layer-";
/// Labels that `describe` reads from Nodes, so that existing values are not fetched again.
pub const NODE_LABELS: [&str; 2] = [ZONE_ID_LABEL, FIRST_LAYER_LABEL];

/// Maximum age of an answer about existence and power state, even if the query allows more.
const MAX_POWER_STATE_AGE: Duration = Duration::from_secs(10);
/// Maximum number of Nodes with malformed instance IDs that are recorded in order to log each only
/// once.
const MAX_LOGGED_NODES: usize = 10_000;

/// [`Instances`] for EC2 instances and Fargate nodes.
pub struct Ec2Instances {
    scope: Scope,
    instance_cache: Arc<InstanceCache>,
    topology: Topology,
    /// Names of Nodes whose malformed instance ID was logged.
    logged_nodes: Mutex<HashSet<Arc<str>>>,
}

/// The key by which the compute resource of a Node is found.
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

/// Results of all lookups for one call.
struct NodeLookups {
    instances: HashMap<InstanceId, InstanceLookup>,
    named_instances: HashMap<Arc<str>, NameLookup>,
    interfaces: HashMap<Ipv4Addr, InterfaceLookup>,
}

impl Ec2Instances {
    /// Creates the instances capability. The cache is shared with load balancers and routes.
    pub fn new(scope: Scope, instance_cache: Arc<InstanceCache>) -> Self {
        Self {
            scope,
            instance_cache,
            topology: Topology::default(),
            logged_nodes: Mutex::default(),
        }
    }

    /// Finds the compute resource of each Node. Returns one result per query.
    async fn find_resources(
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

    /// Returns the compute resource of a node from the results of the lookups.
    fn resource_of_node(
        &self,
        node: &NodeView,
        target: &NodeTarget,
        lookups: &NodeLookups,
    ) -> Result<Option<ComputeResource>, CloudError> {
        match target {
            NodeTarget::Instance(id) => {
                match lookups.instances.get(id).ok_or_else(missing_lookup)? {
                    Ok(instance) => Ok(instance.clone().map(ComputeResource::Instance)),
                    Err(error) => Err(self.report_lookup_error(node, error)),
                }
            }
            NodeTarget::Named(name) => {
                let instance = lookups
                    .named_instances
                    .get(name)
                    .ok_or_else(missing_lookup)?
                    .clone()?;
                Ok(instance.map(ComputeResource::Instance))
            }
            NodeTarget::Fargate(address) => {
                let interface = lookups.interfaces.get(address).ok_or_else(missing_lookup)?;
                Ok(interface.clone()?.map(ComputeResource::Fargate))
            }
        }
    }

    /// Converts the error of a lookup. Logs a malformed instance ID once per node.
    fn report_lookup_error(&self, node: &NodeView, error: &AwsError) -> CloudError {
        if error.has_code(fetch::INSTANCE_ID_MALFORMED) {
            let mut logged = self.logged_nodes.lock();
            if logged.len() >= MAX_LOGGED_NODES {
                logged.clear();
            }
            if logged.insert(node.name.clone()) {
                tracing::warn!(node = %node.name, provider_id = node.provider_id.as_deref(), error = %error, "no instance can have this ID; skipping the node");
            }
        }
        error.clone().into()
    }

    /// Fetches the values of labels for the Nodes that lack them.
    async fn fetch_labels(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
        resources: &[Result<Option<ComputeResource>, CloudError>],
    ) -> FetchedLabels {
        // First, collect the zones and instances for which labels are missing.
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
        // Then fetch both kinds of labels at the same time.
        let client = &self.scope.client;
        let required_types = &self.scope.settings.topology_types;
        let (zone_ids, layers) = tokio::join!(
            self.instance_cache.zones().ids(op, client, &zones),
            self.topology.layers(op, client, required_types, &instances)
        );
        FetchedLabels { zone_ids: zone_ids.map_err(CloudError::from), layers }
    }

    /// Returns `NotFound`, or an error if the node is in another region, to which no request was
    /// sent.
    fn not_found_status(&self, node: &NodeView) -> Result<InstanceStatus, CloudError> {
        let zone = node.provider_id.as_deref().and_then(provider_id::zone_of);
        if let Some(zone) = zone
            && let Ok(region) = region_of_zone(zone)
            && *region != *self.scope.region
        {
            return Err(CloudError::invalid_input(format!(
                "node {} is in region {region} according to its provider ID, but this manager works in {}",
                node.name, self.scope.region
            )));
        }
        Ok(InstanceStatus::NotFound)
    }

    fn instance_status(
        &self,
        query: &InstanceQuery,
        resource: Option<&ComputeResource>,
        labels: &FetchedLabels,
    ) -> Result<InstanceStatus, CloudError> {
        let Some(resource) = resource else {
            return self.not_found_status(&query.node);
        };
        let power_state = resource.power_state();
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
        if query.scope >= MetadataScope::Addresses && power_state != PowerState::Terminated {
            let families = &self.scope.settings.node_ip_families;
            meta.addresses = match resource {
                ComputeResource::Instance(instance) => addresses::of_instance(instance, families)?,
                ComputeResource::Fargate(interface) => {
                    addresses::of_interface(interface, families)?
                }
            };
        }
        if needs_labels(query, resource) {
            meta.additional_labels = labels.missing_labels(&query.node, resource)?;
        }
        Ok(InstanceStatus::Found { power_state, meta })
    }
}

#[async_trait]
impl Instances for Ec2Instances {
    /// Returns 1,000 nodes per batch, the maximum of one request. More than two batches in flight
    /// would not help, because the cache sends one request after the other. The batch window is
    /// upstream's.
    fn limits(&self) -> BatchLimits {
        const BATCH: NonZeroUsize = NonZeroUsize::new(batching::MAX_IDS).expect("not zero");
        const IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(2).expect("not zero");
        BatchLimits {
            max_batch: BATCH,
            max_in_flight: IN_FLIGHT,
            batch_window: Duration::from_millis(100),
        }
    }

    /// Describes the instances of Nodes. Sends one request for up to 1,000 instances, and none for
    /// instances in the cache that are no older than `max_age` (10 s at most for queries about
    /// existence and power state). Labels take one request per day for the zones, and one per 100
    /// instances of types with a network topology.
    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
        let resources = self.find_resources(op, queries).await;
        let labels = self.fetch_labels(op, queries, &resources).await;
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
    fn power_state(&self) -> PowerState {
        match self {
            Self::Instance(instance) => instance.power_state(),
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
            // A Fargate node is found by the provider ID that it already has.
            Self::Fargate(_) => None,
        }
    }
}

/// Values for the labels that Nodes lack.
struct FetchedLabels {
    /// Zone IDs by zone name.
    zone_ids: Result<BTreeMap<Arc<str>, Arc<str>>, CloudError>,
    layers: HashMap<InstanceId, Result<network_topology::Layers, AwsError>>,
}

impl FetchedLabels {
    /// Returns the labels that a Node lacks.
    fn missing_labels(
        &self,
        node: &NodeView,
        resource: &ComputeResource,
    ) -> Result<BTreeMap<Box<str>, Box<str>>, CloudError> {
        let mut labels = BTreeMap::new();
        if is_missing_zone_id(node, resource) {
            let zone = resource.zone();
            let zone_ids = self.zone_ids.as_ref().map_err(Clone::clone)?;
            let Some(id) = zone_ids.get(&zone) else {
                let message = format!("zone {zone:?} is not in the list of the region's zones");
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

fn missing_lookup() -> CloudError {
    CloudError::transient("the node was not looked up")
}

fn needs_labels(query: &InstanceQuery, resource: &ComputeResource) -> bool {
    query.scope >= MetadataScope::All && resource.power_state() != PowerState::Terminated
}

fn is_missing_zone_id(node: &NodeView, resource: &ComputeResource) -> bool {
    !node.labels.contains(ZONE_ID_LABEL) && !resource.zone().is_empty()
}

fn is_missing_layers(node: &NodeView) -> bool {
    !node.labels.contains(FIRST_LAYER_LABEL)
}

/// Returns the key by which a Node's compute resource is found: its provider ID, or else its name,
/// which may itself be an instance ID.
fn target_of_node(node: &NodeView) -> Result<NodeTarget, CloudError> {
    match ProviderId::of_node(node)? {
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

/// Returns the maximum age of the answer to a query.
fn max_age(query: &InstanceQuery) -> Duration {
    if query.scope == MetadataScope::PowerState {
        query.max_age.min(MAX_POWER_STATE_AGE)
    } else {
        query.max_age
    }
}

/// Records a maximum age for a key, or keeps the existing one if that is smaller.
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

//! Nodes and their instances: existence, power state, addresses, zone, type, topology.
//!
//! Everything about EC2 instances comes from one [`InstanceCache`], which load balancers and routes ask as well.
//! [`Ec2Instances`] finds out what each Node is (an instance by ID, an instance by name, or a Fargate node), asks for all of
//! a kind together, and only then for labels, of those Nodes that lack them.
//!
//! # When a Node counts as gone
//!
//! [`Presence::NotFound`] is answered for an instance ID when AWS refuses a request for this ID alone as
//! `InvalidInstanceID.NotFound`, or when a successful answer to a request for it does not hold it; for a name only when it
//! is one that EC2 itself gives in this region and complete listings hold no such instance, tagged or not; for a Fargate
//! node when a complete listing of the VPC's attached interfaces holds none with its address. Every other answer is an error,
//! and so are all of these when the provider ID names a zone of another region: nobody was asked there. A zone that is none,
//! or not written, raises no doubt.

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
        BatchLimits, CloudError, InstanceMetadata, InstanceQuery, InstanceStatus, Instances, MetadataScope, Op,
        PowerState,
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
/// Label with the outermost network node; the next ones count up from it.
pub const FIRST_LAYER_LABEL: &str = "topology.k8s.aws/network-node-layer-1";
/// What [`FIRST_LAYER_LABEL`] and the next ones begin with.
const LAYER_LABEL_PREFIX: &str = "topology.k8s.aws/network-node-layer-";
/// Labels that `describe` reads: what is there is not asked for again.
pub const NODE_LABELS: [&str; 2] = [ZONE_ID_LABEL, FIRST_LAYER_LABEL];

/// Greatest age of an answer about existence, whatever the question allows.
const POWER_AGE: Duration = Duration::from_secs(10);
/// Nodes with malformed instance IDs that are remembered, so that each is logged once.
const MAX_LOGGED: usize = 10_000;

/// Instances of EC2, and Fargate nodes.
pub struct Ec2Instances {
    scope: Scope,
    instance_cache: Arc<InstanceCache>,
    topology: Topology,
    logged: Mutex<HashSet<Arc<str>>>,
}

/// What a Node is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NodeTarget {
    Instance(InstanceId),
    Fargate(Ipv4Addr),
    Named(Arc<str>),
}

/// What was found for a Node.
enum ComputeResource {
    Instance(Arc<Instance>),
    Fargate(Arc<NetworkInterface>),
}

impl Ec2Instances {
    /// Makes the capability. The store is shared with load balancers and routes.
    pub fn new(scope: Scope, instance_cache: Arc<InstanceCache>) -> Self {
        let (topology, logged) = (Topology::default(), Mutex::default());
        Self { scope, instance_cache, topology, logged }
    }

    /// Finds the machines of Nodes: one answer per query.
    async fn resolve_nodes(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Vec<Result<Option<ComputeResource>, CloudError>> {
        let targets: Vec<_> = queries.iter().map(|query| target_of_node(&query.node)).collect();
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
        let one = |(query, target): (&InstanceQuery, Result<NodeTarget, CloudError>)| match target? {
            NodeTarget::Instance(id) => by_id.get(&id).map_or_else(lost, |known| match known {
                Ok(instance) => Ok(instance.clone().map(ComputeResource::Instance)),
                Err(error) => Err(self.failed(&query.node, error)),
            }),
            NodeTarget::Named(name) => {
                by_name.get(&name).map_or_else(lost, |known| Ok(known.clone()?.map(ComputeResource::Instance)))
            }
            NodeTarget::Fargate(address) => {
                by_address.get(&address).map_or_else(lost, |known| Ok(known.clone()?.map(ComputeResource::Fargate)))
            }
        };
        queries.iter().zip(targets).map(one).collect()
    }

    /// Returns the error of a node, and logs once that its ID can never exist.
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

    /// Finds the labels of those machines that need them.
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
            if let (ComputeResource::Instance(instance), true) = (machine, is_missing_layers(&query.node)) {
                instances.push((instance.id.clone(), instance.instance_type.clone()));
            }
        }
        let client = &self.scope.client;
        let (zones, layers) = tokio::join!(
            self.instance_cache.zones().ids(op, client, &zones),
            self.topology.of(op, client, &self.scope.settings.topology_types, &instances)
        );
        Labels { zones: zones.map_err(CloudError::from), layers }
    }

    /// Believes an absence, unless the node may be in a region that was not asked.
    fn not_found_status(&self, node: &NodeView) -> Result<InstanceStatus, CloudError> {
        let zone = node.provider_id.as_deref().and_then(provider_id::zone_of);
        match zone.and_then(|zone| region_of_zone(zone).ok()) {
            Some(region) if *region != *self.scope.region => Err(CloudError::invalid_input(format!(
                "node {} is in region {region} by its provider ID, and this manager works in {}",
                node.name, self.scope.region
            ))),
            _ => Ok(InstanceStatus::NotFound),
        }
    }

    fn instance_status(
        &self,
        query: &InstanceQuery,
        machine: Option<&ComputeResource>,
        labels: &Labels,
    ) -> Result<InstanceStatus, CloudError> {
        let Some(machine) = machine else { return self.not_found_status(&query.node) };
        let power = machine.power();
        let mut meta = InstanceMetadata {
            provider_id: query.node.provider_id.as_deref().map(Box::from).or_else(|| machine.provider_id()),
            instance_type: some(machine.instance_type()),
            zone: some(&machine.zone()),
            region: some(&self.scope.region),
            ..InstanceMetadata::default()
        };
        if query.scope >= MetadataScope::Addresses && power != PowerState::Terminated {
            let families = &self.scope.settings.node_ip_families;
            meta.addresses = match machine {
                ComputeResource::Instance(instance) => addresses::of_instance(instance, families)?,
                ComputeResource::Fargate(interface) => addresses::of_interface(interface, families)?,
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
    /// 1,000 nodes, as many as one request may name; two calls in flight, since one request is sent after the other
    /// anyway. Nodes that appear together are joined for 100 ms, as upstream's batches are.
    fn limits(&self) -> BatchLimits {
        const BATCH: NonZeroUsize = NonZeroUsize::new(plan::MAX_IDS).expect("not zero");
        const IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(2).expect("not zero");
        BatchLimits { max_batch: BATCH, max_in_flight: IN_FLIGHT, batch_window: Duration::from_millis(100) }
    }

    /// Costs one call for up to 1,000 instances; none for those that the store saw within `max_age` (10 s at most where
    /// existence is asked). Labels cost one call for the zones a day and one for 100 instances of types with a topology.
    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
        let machines = self.resolve_nodes(op, queries).await;
        let labels = self.labels(op, queries, &machines).await;
        let answer = |(query, machine): (&InstanceQuery, Result<Option<ComputeResource>, CloudError>)| {
            self.instance_status(query, machine?.as_ref(), &labels)
        };
        Ok(queries.iter().zip(machines).map(answer).collect())
    }
}

impl ComputeResource {
    fn power(&self) -> PowerState {
        match self {
            Self::Instance(instance) => instance.power(),
            // There is nothing to shut down: the interface is there as long as the pod is.
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
            Self::Instance(instance) => {
                Some(ProviderId::instance(&instance.zone, instance.id.clone()).to_string().into())
            }
            // It was found by the one that it has.
            Self::Fargate(_) => None,
        }
    }
}

/// What is known for labels.
struct Labels {
    zones: Result<BTreeMap<Arc<str>, Arc<str>>, CloudError>,
    layers: HashMap<InstanceId, Result<topology::Layers, AwsError>>,
}

impl Labels {
    fn of(&self, node: &NodeView, machine: &ComputeResource) -> Result<BTreeMap<Box<str>, Box<str>>, CloudError> {
        let mut labels = BTreeMap::new();
        if is_missing_zone_id(node, machine) {
            let zone = machine.zone();
            let id = self.zones.as_ref().map_err(Clone::clone)?.get(&zone);
            let id =
                id.ok_or_else(|| CloudError::transient(format!("zone {zone:?} is not among those of the region")))?;
            labels.insert(ZONE_ID_LABEL.into(), (&**id).into());
        }
        let ComputeResource::Instance(instance) = machine else { return Ok(labels) };
        if let (true, Some(layers)) = (is_missing_layers(node), self.layers.get(&instance.id)) {
            for (layer, network_node) in
                (1..).zip(layers.as_ref().map_err(|error| CloudError::from(error.clone()))?.iter())
            {
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

/// Tells what a Node is: by its provider ID, or else by its name, which may itself be an instance's ID.
fn target_of_node(node: &NodeView) -> Result<NodeTarget, CloudError> {
    match ProviderId::of(node)? {
        Some(ProviderId::Instance { id, .. }) => Ok(NodeTarget::Instance(id)),
        Some(ProviderId::Fargate { id }) => fargate::address_of(&id).map(NodeTarget::Fargate),
        None if node.name.is_empty() => Err(CloudError::invalid_input("the node has neither provider ID nor name")),
        None => Ok(match node.name.split('.').next() {
            Some(id) if id.starts_with("i-") => NodeTarget::Instance(id.into()),
            _ => NodeTarget::Named(node.name.clone()),
        }),
    }
}

fn max_age(query: &InstanceQuery) -> Duration {
    if query.scope == MetadataScope::PowerState { query.max_age.min(POWER_AGE) } else { query.max_age }
}

fn keep_stricter<K: Clone + Eq + std::hash::Hash>(ages: &mut HashMap<K, Duration>, key: &K, age: Duration) {
    ages.entry(key.clone()).and_modify(|known| *known = age.min(*known)).or_insert(age);
}

fn some(text: &str) -> Option<Box<str>> {
    (!text.is_empty()).then(|| text.into())
}

#[cfg(test)]
mod tests;

//! Describes Nodes by their Nova servers: existence, power state, addresses, flavor and zone.
//!
//! # When a Node counts as not found
//!
//! The result is [`InstanceStatus::NotFound`] in two cases only. A server ID is not found if Nova
//! answers a request for this server with its own 404 response. A Node without provider ID is not
//! found if a complete list has no server with the Node's name as its name or host name, nor with the
//! Node's system UUID as its ID, and every cell answered. A Nova that has returned to a release before
//! microversion 2.69 does not show whether every cell answered, so nothing is not found by its name.
//! With a Nova that was older from the start, a list counts as it is.
//!
//! A server that is missing in a list is therefore requested by its ID. A server in a cell that
//! does not answer is an error, and so is one whose provider ID names another region, which this
//! process does not query.

pub mod addresses;
mod cache;
mod fetch;
pub mod labels;
pub mod lookup_strategy;
mod node_match;
pub mod server;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroUsize,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use ccm_core::{
    k8s::{NodeView, is_label_value},
    provider::{
        BatchLimits, CloudError, InstanceMetadata, InstanceQuery, InstanceStatus, Instances,
        MetadataScope, Op,
    },
};

use self::{
    addresses::AddressRules,
    server::{Flavor, NovaServer},
};
pub use self::{
    cache::{PortLookup, ServerCache, ServerPorts, ServerTarget},
    server::ServerLookup,
};
use crate::provider_id::ProviderId;

/// The label with Nova's `hostId`, an opaque ID of the hypervisor.
pub const HOST_ID_LABEL: &str = "topology.openstack.org/host-id";
/// Maximum age of a server's existence and power state, even if the query allows more.
const MAX_POWER_STATE_AGE: Duration = Duration::from_secs(10);

/// Settings of instances.
#[derive(Clone, Debug, Default)]
pub struct InstanceSettings {
    /// The region for labels and provider IDs. Empty if none is configured.
    pub region: Box<str>,
    /// True if provider IDs contain the region (`OS_CCM_REGIONAL`).
    pub regional_ids: bool,
    /// The rules that choose and order addresses.
    pub addresses: AddressRules,
}

/// The [`Instances`] of Nova.
pub struct NovaInstances {
    settings: InstanceSettings,
    server_cache: Arc<ServerCache>,
}

type ServerLookups = HashMap<ServerTarget, ServerLookup>;

impl NovaInstances {
    /// Creates the instances from a cache of servers.
    pub fn new(settings: InstanceSettings, server_cache: Arc<ServerCache>) -> Self {
        Self { settings, server_cache }
    }

    /// Returns the key by which to find a Node's server: its ID, or the Node's name and system UUID if
    /// the Node has no provider ID yet.
    ///
    /// # Errors
    /// The provider ID is invalid, or names a region that this process does not query.
    fn server_target(&self, node: &NodeView) -> Result<ServerTarget, CloudError> {
        let Some(text) = node.provider_id.as_deref() else {
            return Ok(ServerTarget::Node {
                name: node.name.clone(),
                system_uuid: node.system_uuid.as_deref().and_then(to_server_id),
            });
        };
        let id = ProviderId::parse(text)?;
        match id.region {
            Some(region) if region != self.settings.region => {
                Err(CloudError::invalid_input(format!(
                    "ProviderID {text:?} names the region {region:?}, and this process queries only {:?}",
                    self.settings.region
                )))
            }
            _ => Ok(ServerTarget::Id(id.server.into())),
        }
    }

    /// Builds the metadata of a server. For scopes other than [`MetadataScope::All`] it contains
    /// only the provider ID and the addresses.
    async fn build_metadata(
        &self,
        op: &Op,
        scope: MetadataScope,
        server: &NovaServer,
        ports: &ServerPorts,
    ) -> Result<InstanceMetadata, CloudError> {
        let addresses = addresses::collect_addresses(
            server,
            &ports.ports,
            &ports.sub_ports,
            &self.settings.addresses,
        );
        let region = &self.settings.region;
        let id = ProviderId {
            region: (self.settings.regional_ids && !region.is_empty()).then(|| region.clone()),
            server: (*server.id).into(),
        };
        let meta = InstanceMetadata {
            provider_id: Some(id.to_string().into()),
            addresses,
            ..InstanceMetadata::default()
        };
        if scope != MetadataScope::All {
            return Ok(meta);
        }
        let zone = server
            .zone
            .as_deref()
            .map(labels::to_label_value)
            .filter(|zone| !zone.is_empty());
        let mut additional_labels = BTreeMap::new();
        if let Some(host) = &server.host_id
            && is_label_value(host)
        {
            additional_labels.insert(HOST_ID_LABEL.into(), (&**host).into());
        }
        Ok(InstanceMetadata {
            instance_type: self.instance_type(op, server).await?,
            zone: zone.map(Into::into),
            region: (!region.is_empty()).then(|| region.clone()),
            additional_labels,
            ..meta
        })
    }

    /// Returns the flavor's name, or its ID if the name is unknown or not a valid label value.
    async fn instance_type(
        &self,
        op: &Op,
        server: &NovaServer,
    ) -> Result<Option<Box<str>>, CloudError> {
        let (name, id) = match &server.flavor {
            Flavor::Name(name) => (Some(name.clone()), None),
            Flavor::Id(id) => (self.server_cache.flavor_name(op, id).await?, Some(id.clone())),
            Flavor::Unknown => (None, None),
        };
        Ok([name, id]
            .into_iter()
            .flatten()
            .find(|text| is_label_value(text))
            .map(|text| (*text).into()))
    }

    /// Builds the result of one query from the servers and ports that were found.
    async fn build_status(
        &self,
        op: &Op,
        query: &InstanceQuery,
        servers: &ServerLookups,
        ports: &Result<HashMap<Arc<str>, PortLookup>, CloudError>,
    ) -> Result<InstanceStatus, CloudError> {
        let no_answer = || {
            CloudError::transient(format!("Nova returned no result for node {}", query.node.name))
        };
        let target = self.server_target(&query.node)?;
        let lookup = servers.get(&target).ok_or_else(no_answer)?;
        let Some(server) = lookup.clone()? else {
            return Ok(InstanceStatus::NotFound);
        };
        let power_state = server::power_state(&server);
        if query.scope == MetadataScope::PowerState {
            return Ok(InstanceStatus::Found { power_state, meta: InstanceMetadata::default() });
        }
        let ports = ports
            .as_ref()
            .map_err(Clone::clone)?
            .get(&server.id)
            .ok_or_else(no_answer)?
            .clone()?;
        let meta = self
            .build_metadata(op, query.scope, &server, &ports)
            .await?;
        Ok(InstanceStatus::Found { power_state, meta })
    }
}

/// Returns the server ID that a system UUID stands for. Nova gives virtual machines their server ID
/// as system UUID. Returns `None` for other text, which some machines have instead of a UUID.
fn to_server_id(system_uuid: &str) -> Option<Arc<str>> {
    let is_uuid = system_uuid.len() == 36
        && system_uuid.char_indices().all(|(at, c)| match at {
            8 | 13 | 18 | 23 => c == '-',
            _ => c.is_ascii_hexdigit(),
        });
    is_uuid.then(|| system_uuid.to_ascii_lowercase().into())
}

/// Records that `key` is queried. If it was recorded before, the smaller maximum age counts.
fn add_query<K: Ord>(max_ages: &mut BTreeMap<K, Duration>, key: K, max_age: Duration) {
    let smallest = max_ages.entry(key).or_insert(max_age);
    *smallest = max_age.min(*smallest);
}

#[async_trait]
impl Instances for NovaInstances {
    fn limits(&self) -> BatchLimits {
        // One listing answers for any number of nodes, so queries are few and large.
        const BATCH: NonZeroUsize = NonZeroUsize::new(5000).expect("not zero");
        const IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(2).expect("not zero");
        BatchLimits {
            max_batch: BATCH,
            max_in_flight: IN_FLIGHT,
            ..BatchLimits::default()
        }
    }

    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
        // Find the servers of all nodes.
        let mut target_ages: BTreeMap<ServerTarget, Duration> = BTreeMap::new();
        for query in queries {
            let max_age = if query.scope == MetadataScope::PowerState {
                query.max_age.min(MAX_POWER_STATE_AGE)
            } else {
                query.max_age
            };
            if let Ok(target) = self.server_target(&query.node) {
                add_query(&mut target_ages, target, max_age);
            }
        }
        let servers = self.server_cache.find_servers(op, &target_ages).await?;
        // Find the ports of the servers whose addresses are needed.
        let mut port_ages: BTreeMap<Arc<str>, Duration> = BTreeMap::new();
        for query in queries
            .iter()
            .filter(|query| query.scope != MetadataScope::PowerState)
        {
            if let Ok(target) = self.server_target(&query.node)
                && let Some(Ok(Some(server))) = servers.get(&target)
            {
                add_query(&mut port_ages, server.id.clone(), query.max_age);
            }
        }
        let ports = if port_ages.is_empty() {
            Ok(HashMap::new())
        } else {
            self.server_cache
                .find_ports(op, &port_ages)
                .await
                .map_err(CloudError::from)
        };
        // Build the result of every query.
        let mut statuses = Vec::with_capacity(queries.len());
        for query in queries {
            statuses.push(self.build_status(op, query, &servers, &ports).await);
        }
        Ok(statuses)
    }
}

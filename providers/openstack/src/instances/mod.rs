//! Nodes as Nova servers: existence, power state, addresses, flavor, zone.
//!
//! # When a Node counts as not found
//!
//! [`InstanceStatus::NotFound`] is returned for a server ID when Nova, queried for this server
//! alone, says in its own format that there is none; for a name when a complete list has no server
//! of that name and every cell answered. Anything else is an error: a server that a list does not
//! contain is queried by its ID first, one in a cell that does not answer is uncertain, and so is
//! one whose provider ID names another region, which this process does not query.

pub mod addresses;
mod cache;
mod fetch;
pub mod labels;
pub mod plan;
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

pub use self::cache::{ServerCache, ServerLookup, ServerPorts, ServerTarget};
use self::{
    addresses::AddressRules,
    server::{Flavor, NovaServer},
};
use crate::provider_id::ProviderId;

/// Label with the opaque name of the hypervisor.
pub const HOST_ID_LABEL: &str = "topology.openstack.org/host-id";
/// Maximum age of an answer about existence and power state, whatever the query allows.
const POWER_AGE: Duration = Duration::from_secs(10);

/// Settings of this capability.
#[derive(Clone, Debug, Default)]
pub struct InstanceSettings {
    /// Region of labels and provider IDs; empty when none is configured.
    pub region: Box<str>,
    /// True when provider IDs contain the region (`OS_CCM_REGIONAL`).
    pub regional_ids: bool,
    /// Which addresses a Node has, and in which order.
    pub addresses: AddressRules,
}

/// Nodes as instances of Nova.
pub struct NovaInstances {
    settings: InstanceSettings,
    server_cache: Arc<ServerCache>,
}

type ServerLookups = HashMap<ServerTarget, ServerLookup>;

impl NovaInstances {
    /// Creates the capability.
    pub fn new(settings: InstanceSettings, server_cache: Arc<ServerCache>) -> Self {
        Self { settings, server_cache }
    }

    /// Returns which server a Node is.
    fn target(&self, node: &NodeView) -> Result<ServerTarget, CloudError> {
        let Some(text) = node.provider_id.as_deref() else {
            return Ok(ServerTarget::Name(node.name.clone()));
        };
        let id = ProviderId::parse(text)?;
        match id.region {
            Some(region) if region != self.settings.region => {
                Err(CloudError::invalid_input(format!(
                    "ProviderID {text:?} names the region {region:?}, and this process asks {:?} alone",
                    self.settings.region
                )))
            }
            _ => Ok(ServerTarget::Id(id.server.into())),
        }
    }

    async fn metadata(
        &self,
        op: &Op,
        need: MetadataScope,
        machine: &NovaServer,
        ports: &ServerPorts,
    ) -> Result<InstanceMetadata, CloudError> {
        let addresses =
            addresses::of(machine, &ports.nics, &ports.sub_ports, &self.settings.addresses);
        let region = &self.settings.region;
        let id = ProviderId {
            region: (self.settings.regional_ids && !region.is_empty()).then(|| region.clone()),
            server: (*machine.id).into(),
        };
        let meta = InstanceMetadata {
            provider_id: Some(id.to_string().into()),
            addresses,
            ..InstanceMetadata::default()
        };
        if need != MetadataScope::All {
            return Ok(meta);
        }
        let zone = machine
            .zone
            .as_deref()
            .map(labels::zone)
            .filter(|zone| !zone.is_empty());
        let host = machine
            .host_id
            .as_deref()
            .filter(|host| is_label_value(host));
        Ok(InstanceMetadata {
            instance_type: self.instance_type(op, machine).await?,
            zone: zone.map(Into::into),
            region: (!region.is_empty()).then(|| region.clone()),
            additional_labels: host
                .map(|host| (HOST_ID_LABEL.into(), host.into()))
                .into_iter()
                .collect(),
            ..meta
        })
    }

    /// Returns the flavor's name, or its ID where the name is not a valid label value or cannot be
    /// found.
    async fn instance_type(
        &self,
        op: &Op,
        machine: &NovaServer,
    ) -> Result<Option<Box<str>>, CloudError> {
        let (name, id) = match &machine.flavor {
            Flavor::Name(name) => (Some(name.clone()), None),
            Flavor::Id(id) => (self.server_cache.flavor(op, id).await?, Some(id.clone())),
            Flavor::Unknown => (None, None),
        };
        Ok([name, id]
            .into_iter()
            .flatten()
            .find(|text| is_label_value(text))
            .map(|text| (*text).into()))
    }

    async fn instance_status(
        &self,
        op: &Op,
        query: &InstanceQuery,
        found: &ServerLookups,
        interfaces: &Result<HashMap<Arc<str>, Arc<ServerPorts>>, CloudError>,
    ) -> Result<InstanceStatus, CloudError> {
        let lost =
            || CloudError::transient(format!("there is no answer for node {}", query.node.name));
        let known = found.get(&self.target(&query.node)?).ok_or_else(lost)?;
        let Some(machine) = known.clone()? else {
            return Ok(InstanceStatus::NotFound);
        };
        let power = server::power(&machine.status);
        if query.scope == MetadataScope::PowerState {
            return Ok(InstanceStatus::Found {
                power_state: power,
                meta: InstanceMetadata::default(),
            });
        }
        let ports = interfaces
            .as_ref()
            .map_err(Clone::clone)?
            .get(&machine.id)
            .ok_or_else(lost)?;
        let meta = self.metadata(op, query.scope, &machine, ports).await?;
        Ok(InstanceStatus::Found { power_state: power, meta })
    }
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
        let mut questions: BTreeMap<ServerTarget, Duration> = BTreeMap::new();
        for query in queries {
            let age = if query.scope == MetadataScope::PowerState {
                query.max_age.min(POWER_AGE)
            } else {
                query.max_age
            };
            if let Ok(target) = self.target(&query.node) {
                questions
                    .entry(target)
                    .and_modify(|known| *known = age.min(*known))
                    .or_insert(age);
            }
        }
        let found = self.server_cache.find(op, &questions).await?;
        let mut servers: BTreeMap<Arc<str>, Duration> = BTreeMap::new();
        for query in queries
            .iter()
            .filter(|query| query.scope != MetadataScope::PowerState)
        {
            let machine = self
                .target(&query.node)
                .ok()
                .and_then(|target| found.get(&target)?.as_ref().ok()?.as_ref());
            if let Some(machine) = machine {
                let age = query.max_age;
                servers
                    .entry(machine.id.clone())
                    .and_modify(|known| *known = age.min(*known))
                    .or_insert(age);
            }
        }
        let interfaces = if servers.is_empty() {
            Ok(HashMap::new())
        } else {
            self.server_cache
                .interfaces(op, &servers)
                .await
                .map_err(CloudError::from)
        };
        let mut answers = Vec::with_capacity(queries.len());
        for query in queries {
            answers.push(self.instance_status(op, query, &found, &interfaces).await);
        }
        Ok(answers)
    }
}

//! The cloud's instances.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr},
};

use ccm_core::{
    k8s::AddressType,
    provider::{CloudError, ErrorKind},
};

use super::{
    Address, CloudInstanceQuery, FieldError, Instance, InstanceSpec, MalformedProviderId,
    PowerState, ProviderId, provider_id::scheme_of,
};

/// Defaults for values that an [`InstanceSpec`] does not give.
#[derive(Clone, Debug)]
pub(super) struct Defaults {
    pub(super) region: String,
    pub(super) zones: Vec<String>,
    pub(super) instance_type: String,
}

impl Defaults {
    /// Creates an instance from a spec and the defaults.
    fn new_instance(&self, name: &str, spec: InstanceSpec) -> Instance {
        let hash = stable_hash(name);
        Instance {
            // Always with the cloud's own region, regardless of the instance's `region`, because
            // the provider claims nodes by the region of the cloud.
            provider_id: spec.provider_id.unwrap_or_else(|| {
                ProviderId { region: self.region.clone(), node: name.to_owned() }.to_string()
            }),
            instance_type: spec
                .instance_type
                .unwrap_or_else(|| self.instance_type.clone()),
            zone: spec.zone.unwrap_or_else(|| self.zone_for(hash)),
            region: spec.region.unwrap_or_else(|| self.region.clone()),
            addresses: spec.addresses.unwrap_or_else(|| {
                vec![
                    Address::new(AddressType::InternalIp, generate_address(hash).to_string()),
                    Address::new(AddressType::Hostname, name),
                ]
            }),
            power_state: spec.power_state.unwrap_or_default(),
            additional_labels: spec.additional_labels.unwrap_or_default(),
        }
    }

    /// Returns the zone for a hash, so that instances are spread over the zones.
    fn zone_for(&self, hash: u64) -> String {
        match self.zones.len() {
            0 => String::new(),
            count => self.zones[usize::try_from(hash % count as u64).unwrap_or(0)].clone(),
        }
    }
}

/// Returns an address of 10.0.0.0/8, but never the first or the last address of a /24 network.
fn generate_address(hash: u64) -> Ipv4Addr {
    let [high, low, host, ..] = (hash >> 16).to_le_bytes();
    Ipv4Addr::new(10, high, low, host % 254 + 1)
}

/// Computes an FNV-1a hash with a final mix. Implemented here, because generated addresses must not
/// change with the toolchain.
fn stable_hash(text: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

/// The cloud's instances.
#[derive(Debug)]
pub(super) struct InstanceTable {
    defaults: Defaults,
    /// Whether an instance exists for every name, even if it was never put.
    auto_provision: bool,
    /// By node name. `None` means deleted: auto-provisioning does not create it again.
    entries: BTreeMap<String, Option<Instance>>,
    /// Names of the existing entries by provider ID.
    by_provider_id: HashMap<String, String>,
}

impl InstanceTable {
    pub(super) fn new(defaults: Defaults, auto_provision: bool) -> Self {
        Self {
            defaults,
            auto_provision,
            entries: BTreeMap::new(),
            by_provider_id: HashMap::new(),
        }
    }

    pub(super) fn region(&self) -> &str {
        &self.defaults.region
    }

    /// Lists the instances that were put or queried. Auto-provisioned instances that were never
    /// queried cannot be listed, because they exist for every name.
    pub(super) fn list(&self) -> Vec<Instance> {
        self.entries.values().flatten().cloned().collect()
    }

    pub(super) fn get(&self, name: &str) -> Option<Instance> {
        match self.entries.get(name) {
            Some(entry) => entry.clone(),
            None if self.auto_provision => {
                Some(self.defaults.new_instance(name, InstanceSpec::default()))
            }
            None => None,
        }
    }

    pub(super) fn put(&mut self, name: &str, spec: InstanceSpec) -> Result<Instance, FieldError> {
        check_name(name)?;
        check_spec(&spec)?;
        let instance = self.defaults.new_instance(name, spec);
        if let Some(owner) = self.by_provider_id.get(&instance.provider_id)
            && owner != name
        {
            return Err(FieldError::new(
                "providerID",
                format!("{} is in use", instance.provider_id),
            ));
        }
        self.insert(name, Some(instance.clone()));
        Ok(instance)
    }

    /// Deletes an instance. Returns `false` if it does not exist.
    pub(super) fn delete(&mut self, name: &str) -> bool {
        let exists = self.get(name).is_some();
        if exists {
            self.insert(name, None);
        }
        exists
    }

    fn insert(&mut self, name: &str, entry: Option<Instance>) {
        if let Some(instance) = &entry {
            self.by_provider_id
                .insert(instance.provider_id.clone(), name.to_owned());
        }
        let new_id = entry.as_ref().map(|i| i.provider_id.clone());
        if let Some(Some(old)) = self.entries.insert(name.to_owned(), entry)
            && Some(&old.provider_id) != new_id.as_ref()
        {
            self.by_provider_id.remove(&old.provider_id);
        }
    }

    /// Answers one query. `None` is proof that the instance does not exist. If its existence is
    /// uncertain, an error is returned.
    pub(super) fn find(
        &mut self,
        query: &CloudInstanceQuery,
    ) -> Result<Option<Instance>, CloudError> {
        let Some(name) = self.instance_name(query)? else {
            return Ok(None);
        };
        let found = self.get(&name);
        if let Some(instance) = &found
            && !self.entries.contains_key(&name)
        {
            self.insert(&name, Some(instance.clone()));
        }
        Ok(found)
    }

    /// Returns the name of the queried instance, or `None` if the provider ID proves that it does
    /// not exist.
    fn instance_name(&self, query: &CloudInstanceQuery) -> Result<Option<String>, CloudError> {
        let Some(id) = &query.provider_id else {
            return Ok(Some(query.node.clone()));
        };
        if let Some(name) = self.by_provider_id.get(id) {
            return Ok(Some(name.clone()));
        }
        // No instance has this ID, but auto-provisioning may create it.
        let name = self.node_in_provider_id(id).map_err(|reason| {
            CloudError::invalid_input(format!("describe instance of node {}: {reason}", query.node))
        })?;
        if self.auto_provision && !self.entries.contains_key(&name) {
            Ok(Some(name))
        } else {
            Ok(None)
        }
    }

    /// Returns the node in a provider ID of this cloud's region.
    fn node_in_provider_id(&self, id: &str) -> Result<String, String> {
        let parsed: ProviderId = id
            .parse()
            .map_err(|error: MalformedProviderId| error.to_string())?;
        if parsed.region == self.defaults.region {
            Ok(parsed.node)
        } else {
            Err(format!("provider ID {id:?} is not of region {}", self.defaults.region))
        }
    }

    /// Returns the provider ID of the node's instance, as the target of a route.
    pub(super) fn route_target(&self, node: &str) -> Result<String, CloudError> {
        match self.get(node) {
            Some(instance) => Ok(instance.provider_id),
            None => {
                Err(CloudError::new(ErrorKind::NotFound, format!("there is no instance {node}")))
            }
        }
    }

    /// Returns true if the node's instance still has this provider ID and is not terminated.
    pub(super) fn carries_traffic(&self, node: &str, provider_id: &str) -> bool {
        self.get(node).is_some_and(|instance| {
            instance.provider_id == provider_id && instance.power_state != PowerState::Terminated
        })
    }
}

fn check_name(name: &str) -> Result<(), FieldError> {
    if name.is_empty() || name.contains(|c: char| c == '/' || c.is_whitespace()) {
        Err(FieldError::new("name", format!("{name:?} cannot be a node name")))
    } else {
        Ok(())
    }
}

fn check_spec(spec: &InstanceSpec) -> Result<(), FieldError> {
    if let Some(id) = &spec.provider_id
        && (scheme_of(id) != Some(super::provider_id::SCHEME) || id.len() == "mock://".len())
    {
        return Err(FieldError::new("providerID", format!("{id:?} does not begin with mock://")));
    }
    for (index, address) in spec.addresses.iter().flatten().enumerate() {
        let is_ip = matches!(address.kind.0, AddressType::InternalIp | AddressType::ExternalIp);
        let message = if is_ip && address.address.parse::<IpAddr>().is_err() {
            format!("{:?} is not an IP address", address.address)
        } else if address.address.is_empty() {
            "is empty".to_owned()
        } else {
            continue;
        };
        return Err(FieldError::new(format!("addresses[{index}].address"), message));
    }
    Ok(())
}

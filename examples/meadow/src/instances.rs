//! Instances. Each has the name of its node.

use std::net::IpAddr;

use ccm_core::provider::prelude::*;
use serde::Deserialize;

use crate::{Meadow, NAME};

#[derive(Deserialize)]
struct Instance {
    id: Box<str>,
    name: Box<str>,
    state: String,
    size: Box<str>,
    zone: Box<str>,
    region: Box<str>,
    private_address: IpAddr,
    public_address: Option<IpAddr>,
}

#[async_trait]
impl SimpleInstances for Meadow {
    fn id_of<'n>(&self, node: &'n NodeView) -> Result<Option<&'n str>, CloudError> {
        instance_id(node)
    }

    async fn list_instances(
        &self,
        op: &Op,
        name: Option<&str>,
    ) -> Result<Vec<SimpleInstance>, CloudError> {
        let labels = [("name", name.unwrap_or_default())];
        let instances: Vec<Instance> = self.list(op, "v1/instances", &labels).await?;
        Ok(instances.into_iter().map(Into::into).collect())
    }

    async fn get_instance(&self, op: &Op, id: &str) -> Result<Option<SimpleInstance>, CloudError> {
        let path = path("v1/instances", &[id], &[]);
        let found = self.api.get_if_exists::<Instance>(op, &path).await?;
        Ok(found.map(Into::into))
    }
}

impl From<Instance> for SimpleInstance {
    fn from(instance: Instance) -> Self {
        let power_state = match &*instance.state {
            "running" => PowerState::Running,
            "stopped" => PowerState::Stopped,
            "deleted" => PowerState::Terminated,
            "starting" | "stopping" => PowerState::Transitional,
            _ => PowerState::Unknown,
        };
        let private =
            NodeAddress::new(AddressType::InternalIp, instance.private_address.to_string());
        let public = instance
            .public_address
            .map(|ip| NodeAddress::new(AddressType::ExternalIp, ip.to_string()));
        let meta = InstanceMetadata {
            provider_id: Some(format!("{NAME}://{}", instance.id).into()),
            instance_type: Some(instance.size),
            zone: Some(instance.zone),
            region: Some(instance.region),
            addresses: [private].into_iter().chain(public).collect(),
            ..InstanceMetadata::default()
        };
        Self { id: instance.id, name: instance.name, power_state, meta }
    }
}

/// Reads the provider ID of a node, such as `meadow://ins-7`; `None` when it has none yet.
pub(crate) fn instance_id(node: &NodeView) -> Result<Option<&str>, CloudError> {
    node.id_in(NAME, |id| id.strip_prefix("ins-").is_some_and(is_canonical_number))
}

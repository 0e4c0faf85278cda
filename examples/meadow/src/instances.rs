//! Instances. Each has the name of its node.

use std::net::IpAddr;

use ccm_core::provider::prelude::*;
use serde::Deserialize;

use crate::{Meadow, NAME};

#[derive(Deserialize)]
struct Instance {
    id: String,
    name: String,
    state: String,
    size: Box<str>,
    zone: Box<str>,
    region: Box<str>,
    private_address: IpAddr,
    public_address: Option<IpAddr>,
}

#[async_trait]
impl Instances for Meadow {
    /// One listing answers for all nodes. It is complete, so an instance that it lacks is proven
    /// not to exist.
    async fn describe(
        &self,
        op: &Op,
        asked: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
        let instances: Vec<Instance> = self.list(op, "v1/instances", &[]).await?;
        let answer = |query: &InstanceQuery| {
            let found = match instance_id(&query.node)? {
                Some(id) => instances.iter().find(|instance| instance.id == id),
                None => instances
                    .iter()
                    .find(|instance| *instance.name == *query.node.name),
            };
            Ok(found.map_or(InstanceStatus::NotFound, Instance::presence))
        };
        Ok(asked.iter().map(answer).collect())
    }
}

impl Instance {
    fn presence(&self) -> InstanceStatus {
        let power = match &*self.state {
            "running" => PowerState::Running,
            "stopped" => PowerState::Stopped,
            "deleted" => PowerState::Terminated,
            "starting" | "stopping" => PowerState::Transitional,
            _ => PowerState::Unknown,
        };
        let private = NodeAddress::new(AddressType::InternalIp, self.private_address.to_string());
        let public = self
            .public_address
            .map(|ip| NodeAddress::new(AddressType::ExternalIp, ip.to_string()));
        let meta = InstanceMetadata {
            provider_id: Some(format!("{NAME}://{}", self.id).into()),
            instance_type: Some(self.size.clone()),
            zone: Some(self.zone.clone()),
            region: Some(self.region.clone()),
            addresses: [private].into_iter().chain(public).collect(),
            ..InstanceMetadata::default()
        };
        InstanceStatus::Found { power_state: power, meta }
    }
}

/// Reads the provider ID of a node, such as `meadow://ins-7`; `None` when it has none yet.
pub(crate) fn instance_id(node: &NodeView) -> Result<Option<&str>, CloudError> {
    let Some(text) = node.provider_id.as_deref() else {
        return Ok(None);
    };
    let canonical = |number: &str| {
        number
            .parse::<u32>()
            .is_ok_and(|parsed| parsed.to_string() == number)
    };
    match text.strip_prefix("meadow://") {
        Some(id) if id.strip_prefix("ins-").is_some_and(canonical) => Ok(Some(id)),
        _ => Err(CloudError::invalid_input(format!(
            "provider ID {text:?} is not meadow://ins-<number>"
        ))),
    }
}

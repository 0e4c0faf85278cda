//! Instances, which Quarry calls servers. Each has the name of its node.

use std::net::IpAddr;

use ccm_core::provider::prelude::*;
use serde::Deserialize;

use crate::{NAME, PAGES, Quarry, Wrapped};

const SERVERS: &str = "v1/servers";

#[derive(Deserialize)]
struct Server {
    id: u64,
    name: Box<str>,
    status: String,
    #[serde(rename = "server_type")]
    size: Named,
    datacenter: Datacenter,
    private_net: Vec<Address>,
    public_net: PublicNet,
}

#[derive(Deserialize)]
pub(crate) struct Named {
    pub(crate) name: Box<str>,
}

#[derive(Deserialize)]
struct Datacenter {
    name: Box<str>,
    location: Named,
}

#[derive(Deserialize)]
pub(crate) struct PublicNet {
    pub(crate) ipv4: Option<Address>,
}

#[derive(Deserialize)]
pub(crate) struct Address {
    pub(crate) ip: IpAddr,
}

#[async_trait]
impl SimpleInstances for Quarry {
    fn id_of<'n>(&self, node: &'n NodeView) -> Result<Option<&'n str>, CloudError> {
        instance_id(node)
    }

    async fn list_instances(
        &self,
        op: &Op,
        name: Option<&str>,
    ) -> Result<Vec<SimpleInstance>, CloudError> {
        let path = path(SERVERS, &[], &[("name", name.unwrap_or_default())]);
        let servers: Vec<Server> = self.api.list_numbered(op, &path, "/servers", PAGES).await?;
        Ok(servers.into_iter().map(Into::into).collect())
    }

    async fn get_instance(&self, op: &Op, id: &str) -> Result<Option<SimpleInstance>, CloudError> {
        let path = path(SERVERS, &[id], &[]);
        let found = self.api.get_if_exists::<Wrapped<Server>>(op, &path).await?;
        Ok(found.map(|answer| answer.object.into()))
    }
}

impl From<Server> for SimpleInstance {
    fn from(server: Server) -> Self {
        let power_state = match &*server.status {
            "running" => PowerState::Running,
            "off" => PowerState::Stopped,
            // Until Quarry says `not_found`, it exists.
            "starting" | "stopping" | "deleting" => PowerState::Transitional,
            _ => PowerState::Unknown,
        };
        let address = |kind| move |Address { ip }: Address| NodeAddress::new(kind, ip.to_string());
        let private = server.private_net.into_iter();
        let public = server.public_net.ipv4.into_iter();
        let meta = InstanceMetadata {
            provider_id: Some(format!("{NAME}://{}", server.id).into()),
            instance_type: Some(server.size.name),
            zone: Some(server.datacenter.name),
            region: Some(server.datacenter.location.name),
            addresses: private
                .map(address(AddressType::InternalIp))
                .chain(public.map(address(AddressType::ExternalIp)))
                .collect(),
            ..InstanceMetadata::default()
        };
        let id = server.id.to_string().into();
        Self { id, name: server.name, power_state, meta }
    }
}

/// Reads the provider ID of a node, such as `quarry://7`; `None` when it has none yet.
pub(crate) fn instance_id(node: &NodeView) -> Result<Option<&str>, CloudError> {
    node.id_in(NAME, is_canonical_number)
}

//! Instances: one by one by id when they are few, otherwise one listing for the whole batch.

use std::{collections::BTreeMap, num::NonZeroUsize, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    k8s::{AddressType, NodeAddress, NodeView},
    provider::{BatchLimits, CloudError, ErrorKind, InstanceMetadata, Instances, NodeQuery, Op, Power, Presence},
};

use super::{OpenStack, api::Server};

type Answer = Result<Presence, CloudError>;

/// Up to so many servers are cheaper to GET than a listing of the project.
const FEW: usize = 3;

#[async_trait]
impl Instances for OpenStack {
    fn limits(&self) -> BatchLimits {
        // One page of a detailed listing holds 1,000 servers, and two listings at once tell nothing new.
        BatchLimits {
            max_batch: const { NonZeroUsize::new(1000).expect("not zero") },
            max_in_flight: NonZeroUsize::MIN,
            window: Duration::from_millis(50),
        }
    }

    async fn describe(&self, op: &Op, queries: &[NodeQuery]) -> Result<Vec<Answer>, CloudError> {
        if queries.len() <= FEW && queries.iter().all(|q| q.node.provider_id.is_some()) {
            let answers = queries.iter().map(|q| self.describe_one(&q.node));
            return op.run(async { Ok(futures::future::join_all(answers).await) }).await;
        }
        let servers = op.run(async { Ok(self.api.servers().await?) }).await?;
        Ok(queries.iter().map(|q| self.look_up(&servers, &q.node)).collect())
    }
}

impl OpenStack {
    async fn describe_one(&self, node: &NodeView) -> Answer {
        let id = self.server_id(node.provider_id.as_deref().unwrap_or_default())?;
        match self.api.server(id).await.map_err(CloudError::from) {
            Ok(server) => self.presence(&server),
            // The cloud's own 404 for this very id is a proof.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Presence::NotFound),
            Err(error) => Err(error),
        }
    }

    /// Finds a node in a complete listing.
    fn look_up(&self, servers: &[Server], node: &NodeView) -> Answer {
        if let Some(text) = node.provider_id.as_deref() {
            let id = self.server_id(text)?;
            return servers.iter().find(|s| s.id == id).map_or(Ok(Presence::NotFound), |s| self.presence(s));
        }
        let named: Vec<_> = servers.iter().filter(|s| s.name == Some(&*node.name)).collect();
        match named[..] {
            [server] => self.presence(server),
            // A server of a cell that does not answer has no name in the listing: any of them could be this one.
            [] if servers.iter().any(|s| s.name.is_none()) => {
                Err(CloudError::transient("servers of a cell that is down cannot be told apart by name"))
            }
            [] => Ok(Presence::NotFound),
            _ => Err(CloudError::invalid_input(format!("multiple servers are named {}", node.name))),
        }
    }

    fn presence(&self, server: &Server) -> Answer {
        let power = match server.status {
            "UNKNOWN" => return Err(CloudError::transient(format!("the cell of server {} is down", server.id))),
            "ACTIVE" | "PASSWORD" => Power::Running,
            "SHUTOFF" => Power::Stopped,
            "DELETED" => Power::Terminated,
            "BUILD" | "REBOOT" | "HARD_REBOOT" | "REBUILD" | "RESIZE" | "MIGRATING" => Power::Transitional,
            // Exists, and upstream does not call it shut down (SUSPENDED, PAUSED, SHELVED, SOFT_DELETED, ERROR).
            _ => Power::Unknown,
        };
        let mut addresses: Vec<_> =
            server.fixed_ips.iter().map(|ip| NodeAddress::new(AddressType::InternalIp, ip.to_string())).collect();
        addresses.extend(server.floating_ip.map(|ip| NodeAddress::new(AddressType::ExternalIp, ip.to_string())));
        let mut additional_labels = BTreeMap::new();
        if !server.host_id.is_empty() {
            additional_labels.insert("topology.openstack.org/host-id".into(), server.host_id.into());
        }
        let meta = InstanceMetadata {
            provider_id: Some(format!("openstack:///{}", server.id).into()),
            instance_type: Some(server.flavor.into()),
            zone: Some(label_value(server.zone).into()),
            region: Some(self.region.clone()),
            addresses,
            additional_labels,
        };
        Ok(Presence::Found { power, meta })
    }
}

/// Makes a label value of a zone's name.
pub(super) fn label_value(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let words: Vec<_> = text.split(|c| !allowed(c)).collect();
    let mut value = String::new();
    for (at, word) in words.iter().enumerate() {
        // A run of other characters becomes one dash.
        if at > 0 && (!word.is_empty() || at + 1 == words.len()) {
            value.push('-');
        }
        value.push_str(word);
    }
    value.trim_matches(['-', '_', '.']).chars().take(63).collect()
}

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{k8s::NodeView, provider::CloudProvider};
use ipnet::IpNet;

use super::super::FaultyCloud;

/// Shows and changes the routes of the cloud behind the provider under test.
///
/// What is shown is read from the cloud itself, never from the provider.
#[async_trait]
pub trait RouteCloud: FaultyCloud {
    /// Lists the routes of every table and cluster that could be mixed up with this cluster's.
    async fn routes(&self) -> anyhow::Result<Vec<CloudRoute>>;

    /// Makes by hand a route that is not this cluster's: in another cluster's table, or in a table
    /// that the provider is not configured for. `false`, the default, when there is no such thing.
    async fn add_foreign(&self, node: &NodeView, destination: IpNet) -> anyhow::Result<bool> {
        let _ = (node, destination);
        Ok(false)
    }

    /// Makes a provider of another cluster in the same account; `None`, the default, when all that
    /// tells clusters apart is [`Op::cluster_name`](ccm_core::provider::Op::cluster_name).
    async fn other_cluster(&self) -> anyhow::Result<Option<Arc<dyn CloudProvider>>> {
        Ok(None)
    }

    /// Tells whether destinations may be IPv6 networks; yes by default.
    fn ipv6(&self) -> bool {
        true
    }

    /// Returns how many routes are made in one call to show that many can be; two hundred by
    /// default.
    fn many(&self) -> usize {
        200
    }
}

/// A route as the cloud has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CloudRoute {
    /// Distinguishes it from every other route, of all tables.
    pub id: String,
    /// Destination.
    pub destination: IpNet,
    /// Name of the node that it leads to, if its instance exists.
    pub node: Option<String>,
}

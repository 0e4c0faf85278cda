use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{k8s::NodeView, provider::CloudProvider};
use ipnet::IpNet;

use super::super::FaultyCloud;

/// Inspects and changes the routes in the cloud behind the provider under test.
///
/// Read everything from the cloud itself, never from the provider.
#[async_trait]
pub trait RouteCloud: FaultyCloud {
    /// Lists the routes of all tables and clusters that the provider could confuse with its own.
    async fn routes(&self) -> anyhow::Result<Vec<CloudRoute>>;

    /// Creates a route in a table of another cluster, or in a table that the provider is not
    /// configured for. Returns `false`, the default, if no such table exists.
    async fn add_foreign(&self, node: &NodeView, destination: IpNet) -> anyhow::Result<bool> {
        let _ = (node, destination);
        Ok(false)
    }

    /// Returns a provider of another cluster in the same account. Returns `None`, the default, if
    /// only [`Op::cluster_name`](ccm_core::provider::Op::cluster_name) distinguishes clusters.
    async fn other_cluster(&self) -> anyhow::Result<Option<Arc<dyn CloudProvider>>> {
        Ok(None)
    }

    /// Returns true, the default, if the cloud supports routes to IPv6 networks.
    fn ipv6(&self) -> bool {
        true
    }

    /// Returns the number of routes in one call of the rule `large-batch`. 200 by default.
    fn many(&self) -> usize {
        200
    }
}

/// Observed state of a route in the cloud.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CloudRoute {
    /// Id that is unique among the routes of all tables.
    pub id: String,
    /// Destination network.
    pub destination: IpNet,
    /// Name of the target node; `None` if its instance does not exist.
    pub node: Option<String>,
}
